// Elements. All text of the document and of answers becomes text nodes.

function add(parent, tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== '') made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') made.addEventListener(name, value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? '' : value);
  }
  parent.append(made);
  return made;
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Browsers offer the clipboard on secure origins only.
    const area = add(document.body, 'textarea', text);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  button.textContent = 'Copied';
  setTimeout(() => { button.textContent = 'Copy'; }, 1500);
}
