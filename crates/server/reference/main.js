// The page: endpoints by their kinds, with fields, forms and answers, then all types.

function addType(cell, schema) {
  const text = typeOf(schema);
  // Names of other types become links to them.
  const names = new Set(namesIn(schema));
  for (const part of text.split(/(\w+)/)) {
    if (names.has(part)) add(cell, 'a', part, { href: `#type-${part}` });
    else cell.append(part);
  }
}

/** A text whose code stands between backticks. */
function addText(cell, text) {
  text.split('`').forEach((part, index) => {
    if (index % 2) add(cell, 'code', part);
    else cell.append(part);
  });
}

/** The fields of a request, or of an answer, which has no choice about them. */
function addFields(parent, schema, { isRequest = false } = {}) {
  const fields = fieldsOf(schema);
  if (!fields.length) {
    addType(add(parent, 'p', undefined, { class: 'muted' }), schema);
    return;
  }
  const table = add(parent, 'table');
  const head = add(add(table, 'thead'), 'tr');
  for (const title of ['Field', 'Type', 'Meaning']) add(head, 'th', title, { scope: 'col' });
  const rows = add(table, 'tbody');
  for (const { name, field, needed } of fields) {
    const row = add(rows, 'tr');
    const cell = add(row, 'td', name);
    if (needed && isRequest) add(cell, 'span', ' required', { class: 'required' });
    addType(add(row, 'td', undefined, { class: 'muted' }), field);
    const fallback = field.default !== undefined ? ` Default: ${JSON.stringify(field.default)}.` : '';
    addText(add(row, 'td'), textOf(field) + fallback);
  }
}

function addParameters(parent, parameters) {
  add(parent, 'h3', 'Parameters');
  const rows = add(add(parent, 'table'), 'tbody');
  for (const parameter of parameters) {
    const row = add(rows, 'tr');
    const cell = add(row, 'td', parameter.name);
    if (parameter.required) add(cell, 'span', ' required', { class: 'required' });
    add(row, 'td', `${parameter.in}, ${typeOf(parameter.schema)}`, { class: 'muted' });
    addText(add(row, 'td'), parameter.description ?? '');
  }
}

function addOperation(parent, one, key) {
  const { path, method, operation } = one;
  const details = add(parent, 'details', undefined, { class: 'endpoint', id: `${method}${path}` });
  const summary = add(details, 'summary');
  add(summary, 'span', method.toUpperCase(), { class: 'method' });
  add(summary, 'code', path);
  addText(add(summary, 'span', undefined, { class: 'muted' }), ` ${operation.summary ?? ''}`);
  // A closed endpoint costs nothing, and there are many.
  details.addEventListener('toggle', () => {
    if (!details.open || details.childElementCount > 1) return;
    if (operation.description) addText(add(details, 'p'), operation.description);
    addTry(details, one, key);
    if (operation.parameters?.length) addParameters(details, operation.parameters);
    const body = operation.requestBody?.content?.['application/json']?.schema;
    if (body) {
      add(details, 'h3', 'Request');
      addFields(details, body, { isRequest: true });
    }
    for (const [status, response] of Object.entries(operation.responses ?? {})) {
      addText(add(details, 'h3'), `${status}: ${response.description ?? ''}`);
      const schema = response.content?.['application/json']?.schema;
      if (schema) addFields(details, schema);
    }
  });
}

/** Opens what the address names. */
function openNamed() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!(named instanceof HTMLDetailsElement)) return;
  named.open = true;
  named.scrollIntoView();
}

function build() {
  const main = document.getElementById('main');
  const nav = document.getElementById('nav');
  const key = document.getElementById('key');
  addText(document.getElementById('about'), api.info.description);
  const all = operations();
  for (const tag of api.tags) {
    const own = all.filter(({ operation }) => operation.tags?.includes(tag.name));
    if (!own.length) continue;
    addText(add(main, 'h2'), `${tag.name}: ${tag.description}`);
    add(nav, 'h2', tag.name);
    for (const one of own) {
      addOperation(main, one, key);
      add(nav, 'a', `${one.method.toUpperCase()} ${one.path}`, { href: `#${one.method}${one.path}` });
    }
  }
  add(main, 'h2', 'Types');
  for (const [name, schema] of Object.entries(schemas)) {
    const details = add(main, 'details', undefined, { class: 'type', id: `type-${name}` });
    add(add(details, 'summary'), 'code', name);
    details.addEventListener('toggle', () => {
      if (!details.open || details.childElementCount > 1) return;
      if (schema.description) addText(add(details, 'p'), schema.description);
      addFields(details, schema);
    });
  }
  addEventListener('hashchange', openNamed);
  openNamed();
}

build();
