// The page: its state, requests, and what the user does.

const EXPORT_FORMAT = 'candlepower-playground';
const EXAMPLE_SCHEMA = {
  type: 'object',
  properties: { name: { type: 'string' }, age: { type: 'integer', minimum: 0 } },
  required: ['name', 'age'],
  additionalProperties: false,
};
/** Shortest time of an answer whose tokens/s are shown. Others say more about the network's buffers than about the model. */
const MIN_SECONDS = 0.01;
const MAX_IMPORT_BYTES = 64 << 20;
const EXAMPLES = ['Explain in two sentences how a candle burns.', 'Write a haiku about the sea.', 'List three prime numbers as a table.'];

const page = {
  conversation: new Conversation(),
  models: [],
  key: '',
  openapi: null,
  /** The turn that is being generated, with the controller that stops it. */
  running: null,
  views: new Map(),
  lost: null,
};
const settings = new SettingsForm(keepSoon);
const tools = new ToolsForm(() => { keepSoon(); drawLog(); });
const draftImages = new DraftImages();

// ---- Requests

function chosenModel() {
  return page.models.find(({ id }) => id === byId('model').value);
}

/** The messages of turns. */
function messagesOf(turns) {
  const messages = byId('system').value.trim() ? [{ role: 'system', content: byId('system').value }] : [];
  for (const turn of turns) {
    if (turn.role === 'tool') {
      messages.push({ role: 'tool', tool_call_id: turn.callId, name: turn.name, content: turn.content });
    } else if (turn.role === 'user') {
      const images = (turn.images ?? []).map((url) => ({ type: 'image_url', image_url: { url } }));
      const text = turn.content ? [{ type: 'text', text: turn.content }] : [];
      messages.push({ role: 'user', content: images.length ? [...images, ...text] : turn.content });
    } else if (turn.content || turn.calls) {
      const calls = turn.calls?.map(({ id, name, arguments: text }) => ({ id, type: 'function', function: { name, arguments: text } }));
      messages.push({ role: 'assistant', content: turn.content, reasoning_content: turn.reasoning, tool_calls: calls });
    }
  }
  return messages;
}

/** The schema of the answer, if there is one. */
function answerSchema() {
  if (!byId('schema-on').checked) return {};
  const { value, error } = parseJson(byId('schema').value);
  if (isObject(value)) return { schema: value };
  return { problem: `The schema must be a JSON object. ${error ?? ''}` };
}

function extraFields() {
  const text = byId('extra').value.trim();
  if (!text) return { fields: {} };
  const { value, error } = parseJson(text);
  if (isObject(value)) return { fields: value };
  return { fields: {}, problem: `The further fields must be a JSON object. ${error ?? ''}` };
}

/** Everything that keeps a request from being sent. */
function problems() {
  return [...settings.problems(), answerSchema().problem, extraFields().problem].filter((problem) => problem);
}

function requestBody(turns) {
  const { schema } = answerSchema();
  const model = chosenModel();
  return {
    ...settings.fields(model?.max_model_len),
    ...tools.fields(),
    ...(schema && { response_format: { type: 'json_schema', json_schema: { name: 'answer', strict: true, schema } } }),
    ...extraFields().fields,
    model: model?.id,
    messages: messagesOf(turns),
    stream: true,
    stream_options: { include_usage: true },
  };
}

/** Whether a request may be sent. Otherwise a notice says why not. */
function mayRequest() {
  const [problem] = problems();
  if (problem) notify(problem, { isError: true });
  else if (!chosenModel()) notify('The server has named no model yet.', { isError: true });
  return !problem && !page.running && Boolean(chosenModel());
}

/** Generates an answer behind a turn. */
async function answer(parent) {
  if (!mayRequest()) return;
  const controller = new AbortController();
  const body = requestBody(page.conversation.pathTo(parent));
  const turn = page.conversation.add(parent, { role: 'assistant', model: body.model, schema: answerSchema().schema });
  page.running = { turn, controller };
  drawLog();
  scrollToEnd();
  announce('The model is answering.');
  const times = { start: performance.now() };
  try {
    const onChunk = (chunk) => { takeChunk(turn, chunk, times); drawSoon(); };
    turn.notHeld = await streamAnswer(body, { key: page.key, signal: controller.signal, onChunk }) ?? undefined;
    announce(turn.calls ? `Call of ${turn.calls.map(({ name }) => name).join(', ')}` : `Answer: ${turn.content.slice(0, 500)}`);
  } catch (error) {
    if (error.name === 'AbortError') {
      turn.isStopped = true;
      announce('Stopped.');
    } else {
      turn.error = errorText(error);
      if (!(error instanceof ApiError)) console.error(error);
      announce(`Error: ${turn.error}`);
      if (error.status === 401) askForKey();
    }
  }
  page.running = null;
  keepSoon();
  drawLog();
  // The focus moves on from the message to the results of calls.
  if (document.activeElement === byId('message') && !byId('message').value) byId('result-0')?.focus();
}

/** Adds a chunk of a stream to a turn. */
function takeChunk(turn, chunk, times) {
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  const reasoning = delta.reasoning_content ?? delta.reasoning;
  if (delta.content || reasoning || delta.tool_calls) {
    times.first ??= performance.now();
    times.last = performance.now();
  }
  if (typeof delta.content === 'string') turn.content += delta.content;
  if (typeof reasoning === 'string' && reasoning) turn.reasoning = (turn.reasoning ?? '') + reasoning;
  for (const part of delta.tool_calls ?? []) {
    turn.calls ??= [];
    // Calls begin in their order.
    if (!(part.index <= turn.calls.length)) continue;
    const call = turn.calls[part.index] ??= { id: '', name: '', arguments: '' };
    call.id ||= part.id ?? '';
    call.name ||= part.function?.name ?? '';
    call.arguments += part.function?.arguments ?? '';
  }
  if (choice?.logprobs?.content) (turn.logprobs ??= []).push(...choice.logprobs.content);
  if (choice?.finish_reason) turn.finish = choice.finish_reason;
  if (chunk.usage) turn.stats = statsOf(chunk.usage, times, Boolean(turn.calls));
}

function statsOf(usage, times, hasCalls) {
  const completion = usage.completion_tokens;
  // The first token belongs to the prefill. Calls may arrive at once when they are complete, so the whole time counts for them.
  const tokens = hasCalls ? completion : completion - 1;
  const seconds = (times.last - (hasCalls ? times.start : times.first)) / 1000;
  return {
    prompt: usage.prompt_tokens,
    cached: usage.prompt_tokens_details?.cached_tokens,
    completion,
    reasoning: usage.completion_tokens_details?.reasoning_tokens || undefined,
    first: times.first === undefined ? undefined : times.first - times.start,
    perSecond: tokens > 0 && seconds >= MIN_SECONDS ? tokens / seconds : undefined,
  };
}

function errorText(error) {
  if (!(error instanceof ApiError)) return `The page failed: ${error.message}`;
  const wait = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : '';
  return `${error.message}${wait}`;
}

// ---- The conversation

/** Sends the message of the composer. */
function send() {
  const message = byId('message');
  if (page.running || (!message.value.trim() && !draftImages.urls.length)) return;
  const result = byId('log').querySelector('.results textarea');
  if (result) {
    notify('The calls have no results yet.', { isError: true });
    result.focus();
    return;
  }
  if (!mayRequest()) return;
  const images = draftImages.urls.length ? [...draftImages.urls] : undefined;
  const turn = page.conversation.add(page.conversation.end(), { role: 'user', content: message.value, images });
  message.value = '';
  draftImages.clear();
  fitMessage();
  answer(turn.id);
}

function stop() {
  page.running?.controller.abort();
}

function resend(turn) {
  if (page.conversation.turns.has(turn.id)) answer(turn.parent);
}

/** Makes a branch with another text. Returns whether it did. */
function edit(turn, content) {
  const needsAnswer = turn.role !== 'assistant';
  if (page.running || (needsAnswer && !mayRequest())) return false;
  const { conversation } = page;
  const following = conversation.pathTo(conversation.end());
  const { role, images, callId, name, calls, model } = turn;
  let added = conversation.add(turn.parent, { role, content, images, callId, name, calls, model });
  if (role === 'tool') {
    // The results of the other calls stay.
    for (const other of following.slice(following.indexOf(turn) + 1)) {
      if (other.role !== 'tool') break;
      added = conversation.add(added.id, { role: 'tool', content: other.content, callId: other.callId, name: other.name });
    }
  }
  if (needsAnswer) answer(added.id);
  keepSoon();
  drawLog();
  return true;
}

function sendResults(parent, calls, texts) {
  if (page.running || !mayRequest()) return;
  let id = parent;
  calls.forEach((call, i) => {
    id = page.conversation.add(id, { role: 'tool', callId: call.id, name: call.name, content: texts[i] }).id;
  });
  answer(id);
}

const turnActions = {
  choose(id) {
    page.conversation.choose(page.conversation.turns.get(id));
    keepSoon();
    drawLog();
  },
  resend,
  answer: (turn) => answer(turn.id),
  edit,
  branch(turn) {
    if (page.running) return;
    page.conversation.branchAt(turn.id);
    keepSoon();
    drawLog();
    byId('message').focus();
  },
  remove(turn) {
    if (page.running) return;
    undoable('The turn was removed.', () => page.conversation.remove(turn));
  },
  parametersOf: (name) => tools.parametersOf(name),
};

/** Changes the whole state, and offers to take the change back. */
function undoable(text, change) {
  const before = JSON.stringify(stateOf());
  change();
  keepSoon();
  drawLog();
  notify(text, { action: 'Undo', act: () => loadState(JSON.parse(before)) });
}

function drawLog() {
  const { conversation, running, views } = page;
  const path = conversation.path();
  for (const id of views.keys()) if (!conversation.turns.has(id)) views.delete(id);
  const wasAtEnd = isAtEnd();
  const shown = path.map((turn, i) => {
    if (views.get(turn.id)?.turn !== turn) views.set(turn.id, new TurnView(turn, turnActions));
    const view = views.get(turn.id);
    view.draw({ siblings: conversation.siblings(turn), isRunning: running?.turn === turn, isEnd: i === path.length - 1 });
    return view.root;
  });
  const end = path.at(-1);
  if (!end) shown.push(welcomeElement());
  const further = conversation.children.get(end?.id ?? ROOT);
  if (further.length) shown.push(furtherElement(further));
  else if (end?.calls && !running) shown.push(resultsElement(end.calls, (texts) => sendResults(end.id, end.calls, texts)));
  // Elements that stay where they are keep their focus and selection.
  const log = byId('log');
  const isSame = shown.length === log.children.length && shown.every((part, i) => part === log.children[i]);
  if (!isSame) log.replaceChildren(...shown);
  if (wasAtEnd) scrollToEnd();
  byId('stop').hidden = !running;
  byId('send').hidden = Boolean(running);
  for (const id of ['new', 'import', 'model']) byId(id).disabled = Boolean(running);
}

function welcomeElement() {
  const use = (text) => { byId('message').value = text; fitMessage(); send(); };
  return element('div', { class: 'welcome' },
    element('h2', {}, 'Talk to the model'),
    element('p', { class: 'muted' }, 'The conversation stays in this browser.'),
    element('div', { class: 'buttons' }, ...EXAMPLES.map((text) => button(text, () => use(text)))));
}

/** Shown where the path ends before turns that exist. */
function furtherElement(ids) {
  const text = ids.length === 1 ? 'A branch goes on from here.' : `${ids.length} branches go on from here.`;
  return element('div', { class: 'further' }, element('span', { class: 'muted' }, `${text} The next message begins another one.`),
    button(ids.length === 1 ? 'Show it' : 'Show the last', () => turnActions.choose(ids.at(-1))));
}

function isAtEnd() {
  const log = byId('log');
  return log.scrollHeight - log.scrollTop - log.clientHeight < 80;
}

function scrollToEnd() {
  byId('log').scrollTop = byId('log').scrollHeight;
}

/** Draws the running turn soon. Long answers take longer to draw, so they are drawn less often. */
function drawSoon() {
  if (page.timer) return;
  page.timer = setTimeout(() => {
    page.timer = null;
    const view = page.running && page.views.get(page.running.turn.id);
    if (!view) return;
    const start = performance.now();
    const wasAtEnd = isAtEnd();
    view.drawBody();
    if (wasAtEnd) scrollToEnd();
    page.drawTime = performance.now() - start;
  }, Math.max(40, 4 * (page.drawTime ?? 0)));
}

// ---- State

/** All that is kept and exported. The key is no part of it. */
function stateOf(lighter = 0) {
  return {
    format: EXPORT_FORMAT, version: 1, model: byId('model').value || page.wantedModel, system: byId('system').value,
    settings: settings.values, tools: tools.tools, tool_choice: tools.choice,
    schema: { isOn: byId('schema-on').checked, text: byId('schema').value }, extra: byId('extra').value,
    conversation: page.conversation.save(lighter),
  };
}

/** Takes a state that anyone may have written. Throws an error that says what is wrong, and then changes nothing. */
function loadState(state) {
  checkedObject(state, 'file');
  if (state.format !== EXPORT_FORMAT || state.version !== 1) throw new Error('The file is no conversation of this page.');
  const conversation = Conversation.load(state.conversation);
  tools.load(state.tools, state.tool_choice);
  const text = (value) => typeof value === 'string' ? value : '';
  settings.load(state.settings);
  page.conversation = conversation;
  page.views.clear();
  page.wantedModel = text(state.model);
  if (page.models.some(({ id }) => id === page.wantedModel)) byId('model').value = page.wantedModel;
  byId('system').value = text(state.system);
  byId('schema-on').checked = state.schema?.isOn === true;
  byId('schema').value = text(state.schema?.text) || JSON.stringify(EXAMPLE_SCHEMA, null, 2);
  byId('extra').value = text(state.extra);
  // A turn without an end was cut off by the end of the page.
  for (const turn of conversation.turns.values()) {
    if (turn.role === 'assistant' && !turn.finish && !turn.error && turn.stats === undefined && turn.model) turn.isStopped = true;
  }
  drawPanel();
  modelChanged();
  keepSoon();
  drawLog();
  scrollToEnd();
}

/** Keeps a change soon. */
function keepSoon() {
  page.isChanged = true;
  clearTimeout(page.keeping);
  page.keeping = setTimeout(keep, 400);
}

function keep() {
  // A tab without a change does not become the newest.
  if (!page.isChanged) return;
  page.isChanged = false;
  const lost = keepState(stateOf);
  if (lost && lost !== page.lost) notify(`This browser cannot keep all of the conversation: it leaves out ${lost}. Export keeps all.`);
  page.lost = lost;
}

function drawPanel() {
  byId('system-state').textContent = byId('system').value.trim() ? 'set' : '';
  byId('schema-state').textContent = byId('schema-on').checked ? 'on' : '';
  byId('extra-state').textContent = byId('extra').value.trim() ? 'set' : '';
  const { schema, problem } = answerSchema();
  const unknown = schema ? validateSchema(schema, null).unchecked : [];
  byId('schema-error').textContent = problem ?? (unknown.length ? `Not checked by this page: ${unknown.join(', ')}.` : '');
  byId('schema').setAttribute('aria-invalid', String(Boolean(problem)));
  const extra = extraFields().problem;
  byId('extra-error').textContent = extra ?? '';
  byId('extra').setAttribute('aria-invalid', String(Boolean(extra)));
}

async function importFile(file) {
  if (!file) return;
  if (file.size > MAX_IMPORT_BYTES) return notify('The file has more than 64 MiB.', { isError: true });
  const before = JSON.stringify(stateOf());
  try {
    loadState(JSON.parse(await file.text()));
    notify('The file was opened.', { action: 'Undo', act: () => loadState(JSON.parse(before)) });
  } catch (error) {
    notify(`The file cannot be opened: ${error.message}`, { isError: true });
  }
}

// ---- Server

/** Reads models and settings of the server, and tries again while it starts. */
async function connect() {
  clearTimeout(page.connecting);
  if (!page.openapi) {
    page.openapi = await request('openapi.json', { key: page.key }).then((response) => response.json()).catch(() => null);
    modelChanged();
  }
  try {
    const list = await (await request('v1/models', { key: page.key })).json();
    page.models = (list.data ?? []).filter(({ id }) => typeof id === 'string');
    drawModels();
    byId('notices').replaceChildren();
    if (byId('connection').open) byId('connection').open = false;
  } catch (error) {
    if (error.status === 401) {
      byId('key-state').textContent = page.key ? 'refused' : '';
      notify(page.key ? 'The server does not know this key.' : 'This server needs an API key.', { isError: true });
      askForKey();
      return;
    }
    notify(`${error.message} The page tries again.`, { isError: true });
    page.connecting = setTimeout(connect, 3000);
  }
}

function drawModels() {
  const select = byId('model');
  const wanted = select.value || page.wantedModel;
  select.replaceChildren(...page.models.map(({ id }) => element('option', { value: id, selected: id === wanted }, id)));
  modelChanged();
}

function modelChanged() {
  const model = chosenModel();
  const context = Number(model?.max_model_len) || undefined;
  byId('context').textContent = context ? `${context.toLocaleString('en')} tokens of context` : '';
  draftImages.offer(Array.isArray(model?.input_modalities) && model.input_modalities.includes('image'));
  settings.describe(page.openapi, context);
}

function askForKey() {
  setPanel(true);
  byId('connection').open = true;
  byId('key').focus();
}

function useKey(key) {
  page.key = key.trim();
  byId('key-state').textContent = page.key ? 'in use' : '';
  writeStored('sessionStorage', ':key', page.key && byId('keep-key').checked ? page.key : null);
  connect();
}

// ---- The page's parts

function setPanel(isOpen) {
  document.body.classList.toggle('panel-open', isOpen);
  byId('toggle-panel').setAttribute('aria-expanded', String(isOpen));
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId('theme').value = theme;
}

/** The message's field grows with its text. */
function fitMessage() {
  const message = byId('message');
  message.rows = 1;
  while (message.rows < 10 && message.scrollHeight > message.clientHeight) message.rows += 1;
}

/** The turns of the request that "Copy as" shows: those of the last answer, or the message that is not sent yet. */
function turnsToCopy() {
  const path = page.conversation.path();
  const draft = byId('message').value.trim();
  if (draft || !path.length) return [...path, { role: 'user', content: draft || 'Hello' }];
  return path.at(-1).role === 'assistant' ? path.slice(0, -1) : path;
}

function begin() {
  setTheme(['light', 'dark'].find((theme) => theme === readStored('localStorage', ':theme')) ?? '');
  byId('docs').href = new URL('docs', SERVER).href;
  byId('schema').value = JSON.stringify(EXAMPLE_SCHEMA, null, 2);
  const kept = keptState();
  try {
    if (kept) {
      loadState(JSON.parse(kept));
      page.isChanged = false;
    }
  } catch (error) {
    notify(`The conversation that this browser kept cannot be read: ${error.message}`, { isError: true });
  }
  page.key = readStored('sessionStorage', ':key') ?? '';
  byId('key').value = page.key;
  byId('keep-key').checked = Boolean(page.key);
  byId('key-state').textContent = page.key ? 'in use' : '';

  const on = (id, event, act) => byId(id).addEventListener(event, act);
  on('send', 'click', send);
  on('stop', 'click', stop);
  on('message', 'input', fitMessage);
  on('message', 'keydown', (event) => {
    if (!isEnter(event)) return;
    event.preventDefault();
    send();
  });
  on('new', 'click', () => {
    undoable('A new conversation began.', () => { page.conversation = new Conversation(); });
    byId('message').focus();
  });
  on('export', 'click', () => download(`conversation-${new Date().toISOString().slice(0, 10)}.json`, JSON.stringify(stateOf(), null, 2)));
  on('import', 'click', () => byId('import-file').click());
  on('import-file', 'change', async (event) => {
    await importFile(event.target.files[0]);
    event.target.value = '';
  });
  on('copy-as', 'click', () => {
    const [problem] = problems();
    if (problem) notify(problem, { isError: true });
    else showCopyDialog(requestBody(turnsToCopy()), Boolean(page.key));
  });
  on('copy-code-button', 'click', (event) => copyText(byId('copy-code').textContent, event.target));
  on('copy-close', 'click', () => byId('copy-dialog').close());
  on('theme', 'change', (event) => {
    setTheme(event.target.value);
    writeStored('localStorage', ':theme', event.target.value || null);
  });
  on('model', 'change', () => { modelChanged(); keepSoon(); });
  on('toggle-panel', 'click', () => setPanel(!document.body.classList.contains('panel-open')));
  on('use-key', 'click', () => useKey(byId('key').value));
  on('key', 'keydown', (event) => { if (isEnter(event)) useKey(byId('key').value); });
  on('keep-key', 'change', () => writeStored('sessionStorage', ':key', page.key && byId('keep-key').checked ? page.key : null));
  on('forget-key', 'click', () => {
    byId('key').value = '';
    byId('keep-key').checked = false;
    useKey('');
  });
  on('reset-sampling', 'click', () => { settings.load({}); keepSoon(); });
  for (const id of ['system', 'schema', 'extra']) on(id, 'input', () => { drawPanel(); keepSoon(); });
  on('schema-on', 'change', () => { drawPanel(); keepSoon(); });
  document.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || byId('copy-dialog').open) return;
    if (page.running) stop();
    else setPanel(false);
  });
  addEventListener('pagehide', keep);

  drawPanel();
  drawLog();
  byId('message').focus();
  connect();
}

begin();
