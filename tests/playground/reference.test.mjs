// Tests of the API's reference page in a browser. Prints a line for each test, and fails if one does.
//
//   PLAYGROUND_URL=http://127.0.0.1:8000 node reference.test.mjs
//
// The model's name at PLAYGROUND_URL is a payload, which must not run. Further variables: those of playground.test.mjs, and PICTURES
// (a folder for screenshots).

import assert from 'node:assert/strict';

import { axe, chromium, openPage as openRecorded } from './browser.mjs';
import { URL_OF_SERVER, startProxy } from './proxy.mjs';

const KEY = 'secret-key-of-the-test';
const CHAT = '/v1/chat/completions';

/** Answers with an error are tested too, and the browser writes a message for each. */
const openPage = (browser, { url = `${URL_OF_SERVER}/docs`, ...options } = {}) =>
  openRecorded(browser, url, { expected: 'Failed to load resource', ...options });

/** Waits until an endpoint is open. The browser opens it, and the page fills it, only some time after a click. */
async function opened(details) {
  await details.locator('.try').waitFor();
}

/** Opens an endpoint, and returns it. */
async function openEndpoint(page, method, path) {
  const details = page.locator(`[id="${method}${path}"]`);
  if (await details.getAttribute('open') === null) await details.locator('summary').first().click();
  await opened(details);
  return details;
}

/** Sends what is in the form; returns the status line and the answer. */
async function send(endpoint) {
  await endpoint.getByRole('button', { name: 'Send' }).click();
  const status = endpoint.locator('[role=status]');
  await endpoint.page().waitForFunction((element) => /ms$|stopped|cannot|no JSON/.test(element.textContent), await status.elementHandle());
  return { status: await status.innerText(), answer: await endpoint.locator('.try > pre').innerText().catch(() => '') };
}

async function assertClean(page) {
  assert.deepEqual(page.problems, []);
  assert.deepEqual(page.outside, []);
  assert.deepEqual(await page.evaluate(() => window.violations), []);
  assert.equal(await page.evaluate(() => window.hacked), undefined);
}

const tests = {
  async 'the page has a strict policy'() {
    const response = await fetch(`${URL_OF_SERVER}/docs`);
    const policy = response.headers.get('content-security-policy');
    const directives = Object.fromEntries(policy.split(';').map((part) => part.trim().split(/ (.*)/s)));
    for (const name of ['default-src', 'base-uri', 'form-action', 'frame-ancestors']) assert.equal(directives[name], "'none'", name);
    assert.match(directives['script-src'], /^'sha256-[A-Za-z0-9+/]{43}='$/);
    assert.match(directives['style-src'], /^'sha256-[A-Za-z0-9+/]{43}='$/);
    assert.equal(directives['connect-src'], "'self'");
    assert.equal(response.headers.get('x-content-type-options'), 'nosniff');
    const text = await response.text();
    assert.doesNotMatch(text, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage|sessionStorage/);
  },

  async 'endpoints are in the order of their use, with their fields'(browser) {
    const page = await openPage(browser);
    const paths = await page.locator('.endpoint > summary > code').allInnerTexts();
    assert.deepEqual(paths.slice(0, 4), [CHAT, '/v1/completions', '/v1/responses', '/v1/messages']);
    assert.equal(new Set(await page.locator('nav a').allInnerTexts()).size, paths.length);
    const chat = await openEndpoint(page, 'post', CHAT);
    const table = chat.locator('h3', { hasText: 'Request' }).locator('xpath=following-sibling::table[1]');
    assert.equal(await table.locator('tbody tr').first().locator('td').first().innerText(), 'messages required');
    for (const one of await page.locator('.endpoint > summary, .type > summary').all()) await one.click();
    await page.waitForFunction(() => [...document.querySelectorAll('details[open]')].every((one) => one.childElementCount > 1));
    const rows = await page.locator('main tbody tr').evaluateAll((found) => found.map((row) => [...row.children].map((cell) => cell.textContent)));
    assert.ok(rows.length > 300, `${rows.length} rows`);
    for (const [name, type, meaning] of rows) {
      assert.ok(type && meaning, `${name}: ${type}: ${meaning}`);
      assert.doesNotMatch(type, /undefined|\bor\s*$|^\s*or|\bnull\b/, name);
    }
    // Code in texts is marked up.
    const texts = await page.locator('main p, main h2, main h3, main summary, main td').allInnerTexts();
    assert.deepEqual(texts.filter((text) => text.includes('`')), []);
    // Names of types lead to them.
    const links = await page.locator('main td a').evaluateAll((found) => found.map((link) => link.getAttribute('href')));
    for (const link of new Set(links)) assert.equal(await page.locator(`[id="${link.slice(1)}"]`).count(), 1, link);
    await assertClean(page);
  },

  async 'examples are sent, streamed and stopped'(browser) {
    const page = await openPage(browser);
    const chat = await openEndpoint(page, 'post', CHAT);
    const whole = await send(chat);
    assert.match(whole.status, /^200/);
    assert.equal(JSON.parse(whole.answer).object, 'chat.completion');
    await chat.getByLabel('Example').selectOption({ label: 'A streamed answer' });
    const streamed = await send(chat);
    assert.match(streamed.answer, /data: \{[^]*data: \[DONE\]/);
    // A stream that is stopped shows what has come.
    const body = JSON.parse(await chat.getByLabel('Body').inputValue());
    await chat.getByLabel('Body').fill(JSON.stringify({ ...body, n: 16, max_tokens: 1900, ignore_eos: true }));
    const buttons = chat.locator('.try');
    // The page presses Stop itself with the first event, before a browser that waits for its turn has read all others.
    await buttons.evaluate((form) => new MutationObserver((_, observer) => {
      if (!form.querySelector('pre').textContent.includes('data: {')) return;
      observer.disconnect();
      [...form.querySelectorAll('button')].find((one) => one.textContent === 'Stop').click();
    }).observe(form, { childList: true, subtree: true }));
    await chat.getByRole('button', { name: 'Send' }).click();
    await page.waitForFunction((element) => element.textContent === 'stopped', await chat.locator('[role=status]').elementHandle());
    assert.match(await buttons.locator('> pre').innerText(), /data: \{/);
    // An error of the server is shown, and a body that is no JSON is not sent.
    await chat.getByLabel('Body').fill('{"messages": []}');
    const refused = await send(chat);
    assert.match(refused.status, /^400/);
    assert.equal(JSON.parse(refused.answer).error.param, 'messages');
    await chat.getByLabel('Body').fill('{');
    assert.match((await send(chat)).status, /no JSON/);
    const health = await openEndpoint(page, 'get', '/health');
    assert.deepEqual(JSON.parse((await send(health)).answer), { status: 'healthy' });
    const metrics = await openEndpoint(page, 'get', '/metrics');
    assert.match((await send(metrics)).answer, /candlepower_num_requests_running/);
    await assertClean(page);
  },

  async 'behind a prefix and with a key'(browser) {
    const proxy = await startProxy({ prefix: '/some/where', key: KEY });
    const page = await openPage(browser, { url: `${proxy.url}docs` });
    const chat = await openEndpoint(page, 'post', CHAT);
    assert.match((await send(chat)).status, /^401/);
    await page.getByLabel('API key').fill(KEY);
    assert.match((await send(chat)).status, /^200/);
    const sent = proxy.seen.filter(({ url }) => url === `/some/where${CHAT}`);
    assert.deepEqual(sent.map(({ authorization }) => authorization), [undefined, `Bearer ${KEY}`]);
    // The command has the whole address, and a variable for the key.
    await chat.getByText('The same with curl').click();
    const command = await chat.locator('details pre').innerText();
    assert.ok(command.includes(`${proxy.url.replace(/\/$/, '')}${CHAT}`) && command.includes('$API_KEY') && !command.includes(KEY), command);
    // The key stays in the page.
    assert.deepEqual(await page.evaluate(() => [localStorage.length, sessionStorage.length, document.cookie]), [0, 0, '']);
    await page.reload();
    assert.equal(await page.getByLabel('API key').inputValue(), '');
    const models = await openEndpoint(page, 'get', '/v1/models/{id}');
    assert.match((await send(models)).status, /^401/);
    await page.getByLabel('API key').fill(KEY);
    assert.match((await send(models)).status, /^200/);
    for (const href of await page.locator('header a').evaluateAll((found) => found.map((link) => link.href))) {
      assert.ok(href.startsWith(proxy.url), href);
    }
    await assertClean(page);
    proxy.close();
  },

  async 'an address opens its endpoint'(browser) {
    const page = await openPage(browser, { url: `${URL_OF_SERVER}/docs#post/v1/completions` });
    await opened(page.locator('[id="post/v1/completions"]'));
    await page.locator('nav a', { hasText: 'POST /tokenize' }).click();
    await opened(page.locator('[id="post/tokenize"]'));
    await assertClean(page);
  },

  async 'everybody can use it'(browser) {
    for (const [scheme, viewport] of [['light', { width: 1280, height: 900 }], ['dark', { width: 390, height: 800 }]]) {
      const page = await openPage(browser, { colorScheme: scheme, viewport });
      await openEndpoint(page, 'post', CHAT);
      await openEndpoint(page, 'get', '/v1/models/{id}');
      // The script of axe itself is not of the page.
      const found = await page.evaluate(`(async () => { ${axe}; return (await axe.run()).violations.map(({ id, nodes }) => id + ' ' + nodes[0].html); })()`);
      assert.deepEqual(found, []);
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(overflow <= 0, `${scheme}: ${overflow} pixels too wide`);
      if (process.env.PICTURES) await page.screenshot({ path: `${process.env.PICTURES}/docs-${scheme}.png` });
      await assertClean(page);
    }
  },
};

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox', '--disable-dev-shm-usage'] });
let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  if (!name.includes(process.env.PLAYGROUND_ONLY ?? '')) continue;
  try {
    await test(browser);
    console.log(`ok      ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}\n${error.stack}`);
  }
}
await browser.close();
process.exitCode = failed ? 1 : 0;
