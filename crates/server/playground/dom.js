// Elements. Text of models, tools and files reaches the page through these functions, which make text nodes of it.

function byId(id) {
  return document.getElementById(id);
}

/** An element with attributes, listeners (functions) and children. Strings become text nodes. */
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === 'function') made.addEventListener(name, value);
    else made.setAttribute(name, value === true ? '' : String(value));
  }
  made.append(...children.filter((child) => child !== undefined && child !== null));
  return made;
}

function button(text, click, attributes) {
  return element('button', { type: 'button', click, ...attributes }, text);
}

/** Reports a change to screen readers. */
function announce(text) {
  byId('status').textContent = text;
}

/** A message above the composer, with an action if there is something to do. */
function notify(text, { isError = false, action, act, seconds = 8 } = {}) {
  const close = () => notice.remove();
  const notice = element('div', { class: isError ? 'notice error' : 'notice', role: isError ? 'alert' : 'status' },
    element('span', {}, text),
    action && button(action, () => { close(); act(); }),
    button('Close', close, { class: 'quiet' }));
  const wasAtEnd = isAtEnd();
  byId('notices').replaceChildren(notice);
  if (wasAtEnd) scrollToEnd();
  if (!isError) setTimeout(close, seconds * 1000);
}

/** Copies a text. Browsers offer the clipboard on secure origins only, so a selection is the way on others. */
async function copyText(text, from) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element('textarea', { class: 'hidden' });
    area.value = text;
    (from?.closest('dialog') ?? document.body).append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
    from?.focus();
  }
  announce('Copied');
}

function copyButton(text, label = 'Copy') {
  const made = button(label, async () => {
    await copyText(typeof text === 'function' ? text() : text, made);
    made.textContent = 'Copied';
    setTimeout(() => { made.textContent = label; }, 1500);
  }, { class: 'quiet' });
  return made;
}

/** Offers a text as a file. */
function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  element('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function isObject(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function parseJson(text) {
  try {
    return { value: JSON.parse(text) };
  } catch (error) {
    return { error: error.message };
  }
}
