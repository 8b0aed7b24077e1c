// Tests of the playground in a browser. Prints a line for each test, and fails if one does.
//
//   PLAYGROUND_URL=http://127.0.0.1:8000 node playground.test.mjs
//
// The server at PLAYGROUND_URL has a scripted model, which writes the texts of answers.json. A message `play NAME` chooses an
// answer, `play payload-N` the payload of that index, and behind a tool's message the answer is `result`. template.jinja chooses so: it
// looks at the last message, and pads the prompt to the length after which the model writes that text. The texts have the model's own
// marks, and the server makes reasoning and calls of them. One token a byte lets characters arrive in parts.
//
// Further variables: PLAYGROUND_KEYED_URL and PLAYGROUND_KEY (the same server with an API key; otherwise the proxy of this test
// demands one), CHROMIUM (the browser), PLAYGROUND_MODULES (a folder with node_modules), PLAYGROUND_ONLY (part of a test's name).

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

import { axe, chromium, openPage as openRecorded } from './browser.mjs';
import { URL_OF_SERVER, startProxy } from './proxy.mjs';
import { TOOL, answerText, payloads, sampleConversation } from './samples.mjs';
import { units } from './units.mjs';

const MAX_PAGE = 150000;
const KEY = process.env.PLAYGROUND_KEY ?? 'secret-key-of-the-test';

// ---- The browser

const openPage = (browser, { url = `${URL_OF_SERVER}/`, ...options } = {}) => openRecorded(browser, url, options);

async function ready(page) {
  await page.waitForFunction(() => document.querySelector('#model option') !== null);
}

async function finished(page) {
  await page.waitForFunction(() => document.querySelector('#stop').hidden && document.querySelector('.turn.assistant'));
}

async function ask(page, text) {
  const before = await page.locator('.turn.assistant').count();
  await page.fill('#message', text);
  await page.press('#message', 'Enter');
  await page.waitForFunction((count) => document.querySelectorAll('.turn.assistant').length > count, before);
  await finished(page);
}

const last = (page) => page.locator('.turn').last();
const lastText = (page) => last(page).locator('.content, .text').last().innerText();

/** Opens a section of the settings. */
async function openSection(page, id) {
  if (!(await page.locator(`#${id}`).getAttribute('open') !== null)) await page.locator(`#${id} > summary`).click();
}

async function addExampleTool(page) {
  await openSection(page, 'tools-section');
  await page.getByRole('button', { name: 'Add an example' }).click();
}

async function exported(page) {
  const [download] = await Promise.all([page.waitForEvent('download'), page.click('#export')]);
  return readFileSync(await download.path(), 'utf8');
}

async function importText(page, text) {
  await page.setInputFiles('#import-file', { name: 'x.json', mimeType: 'application/json', buffer: Buffer.from(text) });
  await page.waitForSelector('.notice');
}

/** Nothing of the payloads ran, and the conversation has elements and attributes of the allow-list only. */
async function assertClean(page) {
  const found = await page.evaluate(() => {
    const tags = new Set(('ARTICLE DIV SPAN H2 H3 H4 H5 H6 P UL OL LI BLOCKQUOTE HR TABLE THEAD TBODY TR TH TD PRE CODE STRONG EM DEL BR A '
      + 'BUTTON DETAILS SUMMARY TEXTAREA LABEL IMG').split(' '));
    const attributes = new Set(('class id role aria-label aria-busy tabindex type title disabled data-turn start href target rel for rows '
      + 'spellcheck open src alt').split(' '));
    const wrong = [];
    for (const one of document.querySelectorAll('#log *')) {
      if (!tags.has(one.tagName)) wrong.push(one.outerHTML.slice(0, 200));
      for (const { name } of one.attributes) if (!attributes.has(name)) wrong.push(`${one.tagName} ${name}`);
      if (one.tagName === 'A' && !/^(https?|mailto):/.test(one.getAttribute('href'))) wrong.push(one.outerHTML);
      if (one.tagName === 'A' && !one.rel.includes('noopener')) wrong.push(one.outerHTML);
      if (one.tagName === 'IMG' && !/^data:image\/(png|jpeg|webp|gif);base64,/.test(one.getAttribute('src'))) wrong.push(one.outerHTML);
    }
    if (document.scripts.length !== 1) wrong.push('a further script');
    const forbidden = document.body.querySelectorAll('iframe, object, embed, base, meta, link, style, form, video, audio');
    for (const one of forbidden) wrong.push(one.outerHTML);
    if (window.hacked !== undefined) wrong.push('a payload ran');
    return [...wrong, ...window.violations];
  });
  assert.deepEqual(found, []);
}

const tests = {
  async 'the page is one response with a strict policy'() {
    const response = await fetch(`${URL_OF_SERVER}/`, { headers: { accept: 'text/html' } });
    const text = await response.text();
    assert.ok(Buffer.byteLength(text) < MAX_PAGE, `the page has ${Buffer.byteLength(text)} bytes`);
    const policy = response.headers.get('content-security-policy');
    const directives = Object.fromEntries(policy.split(';').map((part) => part.trim().split(/ (.*)/s)));
    for (const name of ['default-src', 'base-uri', 'form-action', 'frame-ancestors']) assert.equal(directives[name], "'none'", name);
    assert.match(directives['script-src'], /^'sha256-[A-Za-z0-9+/]{43}='$/);
    assert.match(directives['style-src'], /^'sha256-[A-Za-z0-9+/]{43}='$/);
    assert.equal(directives['connect-src'], "'self'");
    assert.equal(directives['img-src'], 'data: blob:');
    assert.equal(response.headers.get('x-content-type-options'), 'nosniff');
    assert.doesNotMatch(text, /<!-- (style|script) -->/);
    assert.doesNotMatch(text, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function/);
  },

  async 'a conversation is streamed, stopped, edited and branched'(browser) {
    const page = await openPage(browser);
    await ready(page);
    await ask(page, 'play text');
    const content = page.locator('.turn.assistant .content');
    assert.equal(await content.locator('h3').innerText(), 'Candles');
    assert.equal(await content.locator('strong').innerText(), 'three');
    assert.equal(await content.locator('ol > li').count(), 3);
    assert.equal(await content.locator('ol ul li').count(), 2);
    assert.equal(await content.locator('td.right').first().innerText(), '800 °C');
    assert.equal(await content.locator('pre').innerText(), 'def burn(wax):\n    return wax - 1  # a <b> that is text');
    assert.deepEqual(await content.locator('a').evaluateAll((links) => links.map(({ href, rel }) => [href, rel])),
      [['https://example.com/a_(b)', 'noopener noreferrer'], ['https://example.org/', 'noopener noreferrer']]);
    assert.match(await content.innerText(), /日本語 and 🕯️ at the end\.$/);
    assert.match(await page.locator('.stats').innerText(), /\d+ tokens · [\d.]+ tokens\/s · first after [\d.]+ s · prompt \d+, \d+ cached/);

    await page.fill('#message', 'play long');
    await page.press('#message', 'Enter');
    await page.waitForFunction(() => document.querySelectorAll('.turn.assistant')[1]?.textContent.includes('line'));
    await page.keyboard.press('Escape');
    await finished(page);
    const stopped = (await last(page).locator('.content').innerText()).trim();
    assert.ok(stopped.length > 0 && stopped.length < answerText('long').trim().length, `${stopped.length} characters before the stop`);
    assert.equal(await last(page).locator('.note').innerText(), 'Stopped.');

    const second = page.locator('.turn.user').nth(1);
    await second.getByRole('button', { name: 'Edit' }).click();
    await second.locator('textarea').fill('play short');
    await second.locator('textarea').press('Enter');
    await page.waitForFunction(() => document.querySelector('.turn:nth-child(4)')?.textContent.includes('A short answer.'));
    await finished(page);
    assert.equal(await page.locator('.turn.user').nth(1).locator('.branches').innerText(), '‹2/2›');

    await page.getByRole('button', { name: 'Previous branch' }).click();
    assert.equal((await last(page).locator('.content').innerText()).trim(), stopped);
    await page.getByRole('button', { name: 'Next branch' }).click();
    assert.equal(await lastText(page), 'A short answer.');

    await last(page).getByRole('button', { name: 'Answer again' }).click();
    await finished(page);
    assert.equal(await last(page).locator('.branches').innerText(), '‹2/2›');

    // A branch behind the first answer.
    await page.locator('.turn').nth(1).getByRole('button', { name: 'Branch' }).click();
    assert.equal(await page.locator('.turn').count(), 2);
    await ask(page, 'play other');
    assert.equal(await page.locator('.turn').count(), 4);
    assert.equal(await lastText(page), 'Another answer.');
    assert.equal(await page.locator('.turn').nth(2).locator('.branches').innerText(), '‹3/3›');

    // The conversation outlives the page.
    await page.waitForTimeout(600);
    await page.reload();
    await ready(page);
    assert.equal(await lastText(page), 'Another answer.');
    await page.click('#new');
    assert.equal(await page.locator('.turn').count(), 0);
    await page.getByRole('button', { name: 'Undo' }).click();
    assert.equal(await page.locator('.turn').count(), 4);
    return page;
  },

  async 'reasoning is folded'(browser) {
    const page = await openPage(browser);
    await ready(page);
    await ask(page, 'play reasoning');
    assert.equal(await lastText(page), 'Hello! 🕯️');
    const fold = page.locator('details.reasoning');
    assert.equal(await fold.getAttribute('open'), null);
    await fold.locator('summary').click();
    assert.equal((await fold.locator('.content').innerText()).trim(), 'The user greets. I greet back.');
    return page;
  },

  async 'a tool is called and its result is typed'(browser) {
    const page = await openPage(browser);
    await ready(page);
    await openSection(page, 'tools-section');
    await page.getByRole('button', { name: 'Add a tool' }).click();
    await page.fill('#tool-name', 'not a name');
    await page.getByRole('button', { name: 'Save' }).click();
    assert.match(await page.locator('#tools .error').innerText(), /letters, digits/);
    await page.fill('#tool-name', TOOL);
    await page.fill('#tool-parameters', '{"type": "object", "properties": {"city": {"type": "string"}, "unit": {"const": "F"}}}');
    await page.getByRole('button', { name: 'Save' }).click();
    await ask(page, 'play call');
    const call = page.locator('.call');
    assert.match(await call.innerText(), /Call of get_weather/);
    assert.deepEqual(JSON.parse(await call.locator('pre').innerText()), { city: 'Oslo', unit: 'C' });
    assert.equal(await call.locator('.check').innerText(), '✗ $.unit must be "F"');
    assert.equal(await page.evaluate(() => document.activeElement.id), 'result-0');
    await page.fill('#message', 'too early');
    await page.press('#message', 'Enter');
    assert.match(await page.locator('.notice').innerText(), /no results yet/);
    await page.fill('#message', '');
    const sent = page.waitForRequest('**/v1/chat/completions');
    await page.fill('#result-0', '{"celsius": 4}');
    await page.press('#result-0', 'Enter');
    const body = (await sent).postDataJSON();
    assert.equal(body.tools[0].function.name, TOOL);
    assert.deepEqual(body.messages.map(({ role }) => role), ['user', 'assistant', 'tool']);
    assert.equal(body.messages[2].tool_call_id, body.messages[1].tool_calls[0].id);
    assert.equal(body.messages[2].content, '{"celsius": 4}');
    await page.waitForFunction(() => document.querySelectorAll('.turn.assistant').length === 2);
    await finished(page);
    assert.match(await page.locator('.turn.tool').innerText(), /Result of get_weather\s+\{"celsius": 4\}/);
    assert.equal(await lastText(page), 'It is 4 °C in Oslo.');
    return page;
  },

  async 'an answer by a schema is checked'(browser) {
    const page = await openPage(browser);
    await ready(page);
    await openSection(page, 'schema-section');
    await page.fill('#schema', '{"type": "object"');
    await page.check('#schema-on');
    assert.match(await page.locator('#schema-error').innerText(), /must be a JSON object/);
    await page.fill('#message', 'play json');
    await page.press('#message', 'Enter');
    assert.match(await page.locator('.notice.error').innerText(), /The schema must be a JSON object/);
    await page.fill('#schema', JSON.stringify({
      type: 'object',
      properties: { name: { type: 'string', 'x-note': 'a keyword of nobody' }, age: { type: 'integer', maximum: 120 } },
      required: ['name', 'age'],
      additionalProperties: false,
    }));
    assert.match(await page.locator('#schema-error').textContent(), /^(Not checked by this page: `x-note`\.)?$/);
    const sent = page.waitForRequest('**/v1/chat/completions');
    await ask(page, 'play json');
    const format = (await sent).postDataJSON().response_format;
    assert.equal(format.type, 'json_schema');
    assert.equal(format.json_schema.schema.required.length, 2);
    assert.match(await last(page).locator('.check').innerText(), /^✓ Nothing wrong in the parts that were checked$/);
    assert.match(await last(page).locator('.checked .note').innerText(), /`x-note`/);
    return page;
  },

  async 'errors are shown'(browser) {
    const page = await openPage(browser);
    await ready(page);
    await page.fill('#setting-temperature', '7');
    await page.fill('#message', 'play short');
    await page.press('#message', 'Enter');
    assert.match(await page.locator('.notice.error').innerText(), /Temperature must be a number from 0 to 2/);
    assert.equal(await page.locator('#message').inputValue(), 'play short', 'the message stays');
    await page.getByRole('button', { name: "Use the server's defaults" }).click();
    // The server refuses this one.
    await openSection(page, 'schema-section');
    await page.fill('#schema', '{"type": "color"}');
    await page.check('#schema-on');
    await page.press('#message', 'Enter');
    await page.waitForSelector('.turn .body > .error');
    assert.match(await page.locator('.turn .body > .error').innerText(), /color/);
    assert.match(await page.locator('#status').textContent(), /^Error: .*color/);
    await page.uncheck('#schema-on');
    await page.getByRole('button', { name: 'Try again' }).click();
    await page.waitForFunction(() => document.querySelector('.turn.assistant .content')?.textContent === 'A short answer.');
    await finished(page);
    page.problems = page.problems.filter((text) => !/status of 400/.test(text));
    return page;
  },

  async 'the page works below a prefix and with a key, which stays'(browser) {
    const keyed = process.env.PLAYGROUND_KEYED_URL;
    const proxy = await startProxy({ prefix: '/some/prefix', key: keyed ? undefined : KEY });
    const page = await openPage(browser, { url: keyed ? `${keyed.replace(/\/$/, '')}/` : proxy.url });
    await page.waitForSelector('.notice.error');
    assert.match(await page.locator('.notice.error').innerText(), /needs an API key/);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'key');
    await page.fill('#key', 'wrong');
    await page.click('#use-key');
    await page.waitForFunction(() => document.querySelector('.notice')?.textContent.includes('does not know'));
    await page.fill('#key', KEY);
    await page.press('#key', 'Enter');
    await ready(page);
    await ask(page, 'play short');
    assert.equal(await lastText(page), 'A short answer.');
    assert.ok(proxy.seen.every(({ url }) => url.startsWith('/some/prefix/')));
    await page.waitForTimeout(600);
    const stored = () => page.evaluate(() => [JSON.stringify({ ...localStorage }), JSON.stringify({ ...sessionStorage })]);
    for (const text of await stored()) assert.ok(!text.includes(KEY));
    assert.ok(!(await exported(page)).includes(KEY));
    await page.click('#copy-as');
    for (const [language, mark] of [['curl', '$API_KEY'], ['Python', 'os.environ["API_KEY"]'], ['Node', 'process.env.API_KEY']]) {
      await page.locator('#copy-languages').getByRole('button', { name: language }).click();
      const text = await page.locator('#copy-code').innerText();
      assert.ok(text.includes(mark) && !text.includes(KEY), text);
      if (!keyed) assert.ok(text.includes(proxy.url.slice(0, -1)), text);
    }
    await page.click('#copy-close');
    assert.ok(page.urls.every((url) => !url.includes(KEY)));
    await page.reload();
    await page.waitForSelector('.notice.error');
    await page.fill('#key', KEY);
    await page.check('#keep-key');
    await page.click('#use-key');
    await ready(page);
    let [local, session] = await stored();
    assert.ok(!local.includes(KEY) && session.includes(KEY));
    await page.reload();
    await ready(page);
    await openSection(page, 'connection');
    await page.click('#forget-key');
    [local, session] = await stored();
    assert.ok(!local.includes(KEY) && !session.includes(KEY));
    page.problems = page.problems.filter((text) => !/status of 401/.test(text));
    proxy.close();
    return page;
  },

  async 'log-probabilities are shown by token'(browser) {
    const page = await openPage(browser);
    await ready(page);
    await page.check('#setting-logprobs');
    await page.fill('#setting-top_logprobs', '2');
    const sent = page.waitForRequest('**/v1/chat/completions');
    await ask(page, 'play short');
    const { logprobs, top_logprobs: top, max_tokens: most } = (await sent).postDataJSON();
    assert.deepEqual([logprobs, top, most > 16], [true, 2, true]);
    // The token that ends the answer is one too.
    assert.match(await page.locator('.tokens').innerText(), /^A short answer\./);
    await page.hover('.token >> nth=1');
    assert.ok(await page.locator('.alternatives > span').count() >= 1);
    assert.match(await page.locator('.alternatives').innerText(), /%/);
    await page.focus('.tokens');
    await page.keyboard.press('ArrowRight');
    assert.equal(await page.locator('.token.shown').count(), 1);
    await page.getByRole('button', { name: 'Show text' }).click();
    assert.equal(await lastText(page), 'A short answer.');
    return page;
  },

  async 'images are taken where the model takes them'(browser) {
    const png = Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==', 'base64');
    const plain = await openPage(browser);
    await ready(plain);
    const isOffered = (await (await fetch(`${URL_OF_SERVER}/v1/models`)).json()).data[0].input_modalities.includes('image');
    assert.equal(await plain.locator('#attach').isVisible(), isOffered);
    await plain.context().close();
    const proxy = await startProxy({ modalities: ['text', 'image'] });
    const page = await openPage(browser, { url: proxy.url });
    await ready(page);
    await page.setInputFiles('#image-file', { name: 'a.png', mimeType: 'image/png', buffer: png });
    await page.waitForSelector('#draft-images img');
    const drop = (type, name) => page.evaluate(([bytes, type, name]) => {
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array(bytes)], name, { type }));
      document.querySelector('#log').dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true }));
    }, [[...png], type, name]);
    await drop('image/png', 'b.png');
    await page.waitForFunction(() => document.querySelectorAll('#draft-images img').length === 2);
    await drop('image/svg+xml', '<img src=x onerror=hacked=1>.svg');
    assert.match(await page.locator('.notice.error').innerText(), /is no PNG/);
    await page.getByRole('button', { name: 'Remove image 2' }).click();
    await page.fill('#message', 'play short');
    await page.press('#message', 'Enter');
    await finished(page);
    const { content } = JSON.parse(proxy.seen.findLast(({ url }) => url === '/v1/chat/completions').body).messages[0];
    assert.deepEqual(content, [
      { type: 'image_url', image_url: { url: `data:image/png;base64,${png.toString('base64')}` } }, { type: 'text', text: 'play short' },
    ]);
    assert.equal(await page.locator('.turn.user img').count(), 1);
    await assertClean(page);
    page.problems = page.problems.filter((text) => !/status of 400/.test(text));
    proxy.close();
    return page;
  },

  async 'an export is imported as it was'(browser) {
    const page = await openPage(browser);
    await ready(page);
    await page.fill('#setting-temperature', '0.5');
    await addExampleTool(page);
    await ask(page, 'play short');
    await last(page).getByRole('button', { name: 'Answer again' }).click();
    await finished(page);
    const text = await exported(page);
    await page.click('#new');
    await page.click('#reset-sampling');
    await importText(page, text);
    assert.equal(await lastText(page), 'A short answer.');
    assert.equal(await last(page).locator('.branches').innerText(), '‹2/2›');
    assert.equal(await page.locator('#setting-temperature').inputValue(), '0.5');
    assert.deepEqual(JSON.parse(await exported(page)), JSON.parse(text));
    const lost = text.replace('"root": "t1"', '"root": "t77"');
    for (const wrong of ['', '[]', '{}', '{"format":"candlepower-playground","version":1}', lost]) {
      await importText(page, wrong);
      assert.match(await page.locator('.notice.error').innerText(), /cannot be opened/, wrong.slice(0, 40));
      assert.equal(await lastText(page), 'A short answer.', 'nothing changes');
    }
    return page;
  },

  async 'what the browser cannot keep is said, and exports have it'(browser) {
    const page = await openPage(browser);
    await ready(page);
    const content = 'word '.repeat(300000);
    const turns = [
      { id: 't1', parent: 'root', role: 'user', content }, { id: 't2', parent: 't1', role: 'assistant', content, finish: 'stop' },
    ];
    const chosen = { root: 't1', t1: 't2' };
    await importText(page, JSON.stringify({ format: 'candlepower-playground', version: 1, conversation: { turns, chosen } }));
    await page.waitForFunction(() => document.querySelector('.notice')?.textContent.includes('cannot keep'));
    assert.ok((await page.evaluate(() => JSON.stringify({ ...localStorage }).length)) < 2100000);
    assert.equal(JSON.parse(await exported(page)).conversation.turns[1].content.length, content.length);
    return page;
  },

  async 'output of the model never becomes HTML'(browser) {
    const page = await openPage(browser);
    await ready(page);
    assert.ok(payloads.length >= 40);
    for (const i of payloads.keys()) {
      await ask(page, `play payload-${i}`);
      await last(page).hover();
    }
    assert.equal(await page.locator('.turn.assistant').count(), payloads.length);
    assert.equal(await page.locator('.turn .body > .error').count(), 0);
    assert.equal((await page.locator('.turn.assistant .content').first().innerText()).trim(), payloads[0]);
    await assertClean(page);
    return page;
  },

  async 'typed results and messages never become HTML'(browser) {
    const page = await openPage(browser);
    await ready(page);
    await addExampleTool(page);
    await ask(page, 'play call');
    await page.fill('#result-0', payloads[0]);
    await page.press('#result-0', 'Enter');
    await page.waitForFunction(() => document.querySelectorAll('.turn.assistant').length === 2);
    await finished(page);
    for (const [i, payload] of payloads.entries()) {
      if (i % 6 !== 1) continue;
      const tool = page.locator('.turn.tool');
      await tool.getByRole('button', { name: 'Edit' }).click();
      await tool.locator('textarea').fill(payload);
      await tool.locator('textarea').press('Enter');
      await page.waitForFunction((text) => document.querySelector('.turn.tool .text')?.textContent === text, payload);
      await finished(page);
    }
    await ask(page, payloads[1]);
    await assertClean(page);
    return page;
  },

  async 'imported files never become HTML'(browser) {
    const page = await openPage(browser);
    await ready(page);
    const turns = payloads.flatMap((payload, i) => {
      const [user, assistant, tool] = [3 * i + 1, 3 * i + 2, 3 * i + 3].map((id) => `t${id}`);
      const call = { id: '', name: 'f', arguments: JSON.stringify({ [payload]: payload }) };
      const logprobs = i % 2 ? [{ token: payload, logprob: -1, bytes: null, top_logprobs: [{ token: payload, logprob: -2 }] }] : undefined;
      return [
        { id: user, parent: i ? `t${3 * i}` : 'root', role: 'user', content: payload, images: ['data:image/png;base64,AAAA'] },
        {
          id: assistant, parent: user, role: 'assistant', content: payload, reasoning: payload, model: payload,
          finish: payload.slice(0, 90), error: payload, notHeld: payload, calls: [{ id: payload, name: payload, arguments: payload }, call],
          schema: { enum: [payload], [payload]: 1, pattern: payload }, stats: { prompt: 1, [payload]: payload }, logprobs,
        },
        { id: tool, parent: assistant, role: 'tool', name: payload, callId: payload, content: payload },
      ];
    });
    const chosen = Object.fromEntries(turns.map(({ id, parent }) => [parent, id]));
    const [, image] = payloads;
    const state = {
      format: 'candlepower-playground', version: 1, model: image, system: image, extra: image,
      settings: { temperature: image, stop: image, [image]: image }, schema: { isOn: true, text: image },
      tools: [{ name: 'f', description: image, parameters: { [image]: image } }], tool_choice: image,
      conversation: { turns, chosen },
    };
    await importText(page, JSON.stringify(state));
    assert.match(await page.locator('.notice').innerText(), /was opened/);
    assert.equal(await page.locator('.turn').count(), turns.length);
    for (const fold of await page.locator('details.reasoning summary').all()) await fold.click();
    await page.locator('.token').first().hover();
    await openSection(page, 'tools-section');
    await page.getByRole('button', { name: 'Edit f' }).click();
    await assertClean(page);
    await importText(page, JSON.stringify({ ...state, tools: [{ name: image, parameters: {} }] }));
    assert.match(await page.locator('.notice.error').innerText(), /cannot be opened/);
    await assertClean(page);
    // The browser keeps it, and shows it again.
    await page.waitForTimeout(600);
    await page.reload();
    await ready(page);
    assert.equal(await page.locator('.turn').count(), turns.length);
    await assertClean(page);
    page.problems = page.problems.filter((text) => !/ERR_INVALID_URL|Failed to decode/.test(text));
    return page;
  },

  async 'names of models never become HTML'(browser) {
    const proxy = await startProxy({ models: payloads });
    const page = await openPage(browser, { url: proxy.url });
    await ready(page);
    assert.deepEqual(await page.locator('#model option').evaluateAll((options) => options.map(({ value }) => value)), payloads);
    await page.selectOption('#model', payloads[1]);
    await page.fill('#message', 'Hi');
    await page.press('#message', 'Enter');
    await finished(page);
    assert.match(await page.locator('.turn.assistant .head').innerText(), /onerror/);
    await page.click('#copy-as');
    assert.ok((await page.locator('#copy-code').innerText()).includes(JSON.stringify(payloads[1])));
    await assertClean(page);
    page.problems = page.problems.filter((text) => !/status of 404/.test(text));
    proxy.close();
    return page;
  },

  async 'large and hostile texts take no long'(browser) {
    const page = await openPage(browser);
    await ready(page);
    const hostile = ['[', '*', '**a ', '`', '``a`', '> ', '- ', '[a](', '![', '<https://a', '_a', '|', '# ', '~~', '( ',
      '- '.repeat(40) + '\n', '](', '\\', '(((']
      .map((part) => part.repeat(Math.ceil(60000 / part.length)));
    const spaces = ' '.repeat(60000);
    hostile.push(`|a|\n${spaces}x`, `[a](${spaces}x`, `# ${spaces}#x`, `- - ${spaces}x`, `${'> '.repeat(3000)}x`);
    for (const text of hostile) {
      const turns = [{ id: 't1', parent: 'root', role: 'assistant', content: text, finish: 'stop' }];
      const start = Date.now();
      const conversation = { turns, chosen: { root: 't1' } };
      await importText(page, JSON.stringify({ format: 'candlepower-playground', version: 1, conversation }));
      await page.evaluate(() => document.body.offsetHeight);
      const took = Date.now() - start;
      assert.ok(took < 2500, `${JSON.stringify(text.slice(0, 20))} took ${took} ms`);
      await page.locator('#notices').evaluate((notices) => notices.replaceChildren());
    }
    await assertClean(page);
    return page;
  },

  async 'the page is accessible in light and dark, wide and narrow'(browser) {
    for (const colorScheme of ['light', 'dark']) {
      for (const viewport of [{ width: 1280, height: 860 }, { width: 390, height: 844 }]) {
        const page = await openPage(browser, { colorScheme, viewport });
        await ready(page);
        const check = async (what) => {
          await page.evaluate(axe);
          const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
          const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
          const text = serious.flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary }) => `${id}: ${html} ${failureSummary}`));
          assert.deepEqual(text, [], `${colorScheme}, ${viewport.width}, ${what}`);
          for (const { id, impact } of violations) console.log(`# axe: ${impact} ${id} (${colorScheme}, ${viewport.width}, ${what})`);
          const isWide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
          assert.ok(!isWide, `the page is wider than the window: ${viewport.width}, ${what}`);
        };
        await check('welcome');
        const isPhone = viewport.width < 600;
        if (isPhone) await page.click('#toggle-panel');
        for (const id of ['connection', 'system-section', 'tools-section', 'schema-section', 'extra-section']) await openSection(page, id);
        await addExampleTool(page);
        await page.fill('#extra', '{');
        await page.fill('#setting-temperature', '9');
        await check('settings');
        await page.fill('#extra', '');
        await page.fill('#setting-temperature', '');
        if (isPhone) await page.click('#toggle-panel');
        await importText(page, JSON.stringify(sampleConversation()));
        await page.locator('#notices').evaluate((notices) => notices.replaceChildren());
        await check('conversation');
        await page.locator('.turn.user').first().getByRole('button', { name: 'Edit' }).click();
        await page.click('#copy-as');
        await check('dialog');
        assert.deepEqual(page.problems, []);
        await page.context().close();
      }
    }
  },

  async 'the page works by keyboard alone'(browser) {
    const page = await openPage(browser);
    await ready(page);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'message');
    await page.keyboard.type('play');
    await page.keyboard.press('Shift+Enter');
    await page.keyboard.type('x');
    assert.equal(await page.locator('#message').inputValue(), 'play\nx');
    await page.keyboard.press('Control+A');
    await page.keyboard.type('play short');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.querySelector('#status').textContent === 'Answer: A short answer.');
    await finished(page);
    // The order of focus is that of the page.
    await page.evaluate(() => { document.activeElement.blur(); getSelection().removeAllRanges(); });
    await page.locator('body').evaluate(() => document.querySelector('.skip').focus());
    const order = [];
    for (let i = 0; i < 24; i += 1) {
      await page.keyboard.press('Tab');
      order.push(await page.evaluate(() => document.activeElement.id || document.activeElement.textContent));
    }
    const wanted = ['model', 'new', 'export', 'theme', 'log', 'Edit', 'message', 'send', 'setting-temperature'];
    const places = wanted.map((name) => order.indexOf(name));
    assert.ok(places.every((place, i) => place >= 0 && (i === 0 || place > places[i - 1])), order.join(' > '));
    return page;
  },

  async 'each tab keeps its own conversation, and a new one begins with the newest'(browser) {
    const page = await openPage(browser);
    await ready(page);
    await ask(page, 'play short');
    await page.waitForTimeout(600);
    const other = await page.context().newPage();
    await other.goto(`${URL_OF_SERVER}/`);
    await ready(other);
    assert.equal(await lastText(other), 'A short answer.');
    await other.click('#new');
    await ask(other, 'play payload-0');
    await other.waitForTimeout(600);
    const answered = await lastText(other);
    for (const [tab, text] of [[page, 'A short answer.'], [other, answered]]) {
      await tab.reload();
      await ready(tab);
      assert.equal(await lastText(tab), text);
    }
    const third = await page.context().newPage();
    await third.goto(`${URL_OF_SERVER}/`);
    await ready(third);
    assert.equal(await lastText(third), answered);
    return page;
  },

  async 'the theme is chosen and kept'(browser) {
    const page = await openPage(browser, { colorScheme: 'light' });
    await ready(page);
    const colour = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await colour();
    await page.selectOption('#theme', 'dark');
    const dark = await colour();
    assert.notEqual(dark, light);
    await page.reload();
    assert.equal(await colour(), dark);
    await page.selectOption('#theme', '');
    assert.equal(await colour(), light);
    return page;
  },
};

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
const all = [...Object.entries(units), ...Object.entries(tests)].filter(([name]) => name.includes(process.env.PLAYGROUND_ONLY ?? ''));
console.log(`1..${all.length}`);
let failures = 0;
for (const [i, [name, run]] of all.entries()) {
  const start = Date.now();
  try {
    const page = await run(browser);
    if (page) {
      assert.deepEqual(page.problems, [], 'errors of the console');
      assert.deepEqual(page.outside, [], 'requests to others');
      assert.deepEqual(await page.evaluate(() => window.violations), [], 'violations of the policy');
      await page.context().close();
    }
    console.log(`ok ${i + 1} - ${name} # ${((Date.now() - start) / 1000).toFixed(1)} s`);
  } catch (error) {
    failures += 1;
    console.log(`not ok ${i + 1} - ${name}\n  ${String(error.stack).replaceAll('\n', '\n  ')}`);
    // Contexts that a failed test left open would slow the next ones.
    for (const context of browser.contexts()) await context.close();
  }
}
await browser.close();
process.exit(failures ? 1 : 0);
