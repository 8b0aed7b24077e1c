// Sends a request from the page, and shows the answer as it comes.

/** The server. The page is at /docs, perhaps behind a prefix. */
const SERVER = new URL('.', location.href);
/** Longest answer that is shown whole. */
const MAX_SHOWN = 1 << 20;

/** The URL of an operation with the values of its parameters. */
function urlOf(path, values) {
  const filled = path.replace(/\{(\w+)\}/g, (_, name) => (values[name]?.value || `{${name}}`).split('/').map(encodeURIComponent).join('/'));
  const url = new URL(`.${filled}`, SERVER);
  for (const [name, { value, where }] of Object.entries(values)) if (where === 'query' && value) url.searchParams.set(name, value);
  return url;
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** The request as a command. The key is a variable, so that the command can be passed on. */
function curlOf(method, url, body, hasKey) {
  const parts = [`curl ${quoted(url.href)}`];
  if (method !== 'get' && !(method === 'post' && body)) parts.push(`-X ${method.toUpperCase()}`);
  if (hasKey) parts.push('-H "Authorization: Bearer $API_KEY"');
  if (body) parts.push("-H 'Content-Type: application/json'", `-d ${quoted(body)}`);
  return parts.join(' \\\n  ');
}

/** JSON with indentation; other text as it is. */
function pretty(text, type) {
  if (!type.includes('json')) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** Shows the parts of an answer as they arrive. */
async function showBody(response, shown) {
  const type = response.headers.get('content-type') ?? '';
  const reader = response.body?.getReader();
  const decoder = new TextDecoder();
  let text = '';
  while (reader) {
    const { done, value } = await reader.read();
    text += decoder.decode(value, { stream: !done });
    if (done) break;
    if (type.startsWith('text/event-stream')) shown.textContent = text;
    if (text.length > MAX_SHOWN) {
      await reader.cancel();
      shown.textContent = `${text.slice(0, MAX_SHOWN)}\n… cut here`;
      return;
    }
  }
  shown.textContent = pretty(text, type);
}

/** The form of one operation. */
function addTry(parent, { path, method, operation }, key) {
  const box = add(parent, 'div', undefined, { class: 'try' });
  const id = `try-${operation.operationId}`;
  add(box, 'h3', 'Try it');
  const values = {};
  for (const parameter of operation.parameters ?? []) {
    const row = add(box, 'div', undefined, { class: 'row' });
    const field = `${id}-${parameter.name}`;
    add(row, 'label', parameter.name, { for: field });
    const input = add(row, 'input', undefined, { id: field, value: parameter.schema?.examples?.[0] ?? '', spellcheck: 'false' });
    values[parameter.name] = { get value() { return input.value.trim(); }, where: parameter.in };
    input.addEventListener('input', () => update());
  }
  const examples = examplesOf(operation);
  let area;
  if (operation.requestBody) {
    if (examples.length > 1) {
      const row = add(box, 'div', undefined, { class: 'row' });
      add(row, 'label', 'Example', { for: `${id}-example` });
      const choice = add(row, 'select', undefined, { id: `${id}-example` });
      examples.forEach(({ summary }, index) => add(choice, 'option', summary, { value: index }));
      choice.addEventListener('change', () => fill(examples[choice.value].value));
    }
    add(box, 'label', 'Body', { for: `${id}-body` });
    area = add(box, 'textarea', undefined, { id: `${id}-body`, spellcheck: 'false' });
    area.addEventListener('input', () => update());
  }
  const buttons = add(box, 'div', undefined, { class: 'row' });
  const send = add(buttons, 'button', 'Send', { type: 'button', class: 'primary' });
  const stop = add(buttons, 'button', 'Stop', { type: 'button', hidden: true });
  const status = add(buttons, 'span', undefined, { role: 'status' });
  const answer = add(box, 'pre', undefined, { hidden: true, tabindex: '0', 'aria-label': 'Answer' });
  const command = add(box, 'details');
  add(command, 'summary', 'The same with curl');
  const curl = add(command, 'pre', undefined, { tabindex: '0' });
  const copy = add(command, 'button', 'Copy', { type: 'button', click: () => copyText(curl.textContent, copy) });

  function update() {
    curl.textContent = curlOf(method, urlOf(path, values), area?.value.trim(), Boolean(key.value));
  }
  function fill(value) {
    area.value = JSON.stringify(value, null, 2);
    area.rows = Math.min(16, area.value.split('\n').length + 1);
    update();
  }
  if (area) fill(examples[0]?.value ?? {});
  key.addEventListener('input', update);
  update();

  function say(text, className) {
    status.textContent = text;
    status.className = className;
  }
  send.addEventListener('click', async () => {
    const body = area?.value.trim() || undefined;
    const headers = {};
    if (key.value) headers.Authorization = `Bearer ${key.value}`;
    if (body) {
      try {
        JSON.parse(body);
      } catch (error) {
        return say(`The body is no JSON: ${error.message}`, 'bad');
      }
      headers['Content-Type'] = 'application/json';
    }
    const controller = new AbortController();
    const began = performance.now();
    stop.onclick = () => controller.abort();
    [send.disabled, stop.hidden, answer.hidden] = [true, false, false];
    answer.textContent = '';
    say('…', 'muted');
    try {
      const options = { method: method.toUpperCase(), headers, body, signal: controller.signal, redirect: 'error', credentials: 'same-origin' };
      const response = await fetch(urlOf(path, values), options);
      const words = `${response.status} ${response.statusText}`.trim();
      say(words, response.ok ? 'good' : 'bad');
      await showBody(response, answer);
      say(`${words}, ${Math.round(performance.now() - began)} ms`, response.ok ? 'good' : 'bad');
    } catch (error) {
      say(error.name === 'AbortError' ? 'stopped' : 'The server cannot be reached, or the answer broke off.', 'bad');
    }
    [send.disabled, stop.hidden] = [false, true];
  });
}
