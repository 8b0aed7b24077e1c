// Markdown of models as elements of an allow-list: p, h3 to h6, ul, ol, li, blockquote, hr, table parts, pre, code, strong, em,
// del, br and a. HTML in the text stays text. Links are absolute with http, https or mailto. Images become links.
//
// Searches for a closing mark are bounded, or end for good after the first failure, so that no text takes quadratic time.

const LINK_PROTOCOLS = new Set(['http:', 'https:', 'mailto:']);
const MAX_DEPTH = 12;
const MAX_LINK = 2000;
const MAX_LINK_TEXT = 500;
const MAX_DELIMITER_ROW = 1000;
const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`\s]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const DELIMITERS = /^[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const TARGET = /\( ?<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?: {1,3}"[^"\n]{0,300}")? ?\)/y;
const AUTOLINK = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const BARE_LINK = /https?:\/\/[^\s<>"`|\\]{1,2000}/y;

/** The blocks that were rendered into an element, so that a stream only renders its last blocks again. */
const renderedBlocks = new WeakMap();

/** Shows a text in an element, and keeps the blocks that are the same as before. */
function renderMarkdown(target, text) {
  const lines = text.replace(/\r\n?/g, '\n').split('\n');
  const blocks = parseBlocks(lines);
  const before = renderedBlocks.get(target) ?? [];
  let same = 0;
  while (same < before.length && same < blocks.length && before[same] === blocks[same].source) same += 1;
  while (target.childNodes.length > same) target.lastChild.remove();
  target.append(...blocks.slice(same).map((block) => blockElement(block, 0)));
  renderedBlocks.set(target, blocks.map((block) => block.source));
}

function parseBlocks(lines) {
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) { at += 1; continue; }
    const block = readBlock(lines, at);
    block.source = `${block.kind}\n${lines.slice(at, block.end).join('\n')}`;
    blocks.push(block);
    at = block.end;
  }
  return blocks;
}

function readBlock(lines, at) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return readCode(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return { kind: 'heading', level: heading[1].length, text: withoutHashes(heading[2]), end: at + 1 };
  if (RULE.test(line)) return { kind: 'rule', end: at + 1 };
  if (/^ {0,3}>/.test(line)) return readQuote(lines, at);
  if (ITEM.test(line)) return readList(lines, at);
  if (line.includes('|') && isDelimiterRow(lines[at + 1] ?? '')) return readTable(lines, at);
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !interrupts(lines[end])) end += 1;
  return { kind: 'paragraph', text: lines.slice(at, end).map((part) => part.trim()).join('\n'), end };
}

function interrupts(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || /^ {0,3}>/.test(line) || ITEM.test(line);
}

function isDelimiterRow(line) {
  return line.length <= MAX_DELIMITER_ROW && line.includes('|') && DELIMITERS.test(line);
}

function withoutHashes(text) {
  let end = text.trimEnd();
  while (end.endsWith('#')) end = end.slice(0, -1);
  return end.trim();
}

function readCode(lines, at, [, indent, mark, language]) {
  const closes = (line) => line.trim().length >= mark.length && line.trim().replaceAll(mark[0], '') === '';
  let end = at + 1;
  while (end < lines.length && !closes(lines[end])) end += 1;
  const text = lines.slice(at + 1, end).map((line) => unindented(line, indent.length)).join('\n');
  return { kind: 'code', language, text, end: Math.min(end + 1, lines.length) };
}

function readQuote(lines, at) {
  let end = at;
  while (end < lines.length && /^ {0,3}>/.test(lines[end])) end += 1;
  return { kind: 'quote', lines: lines.slice(at, end).map((line) => line.replace(/^ {0,3}> ?/, '')), end };
}

function readList(lines, at) {
  const isOrdered = /\d/.test(ITEM.exec(lines[at])[2]);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const line = lines[end];
    const item = ITEM.exec(line);
    const indent = line.length - line.trimStart().length;
    if (item && indent < 2 && !RULE.test(line)) {
      if (/\d/.test(item[2]) !== isOrdered) break;
      items.push({ width: item[0].length, lines: [line.slice(item[0].length)] });
    } else if (line.trim()) {
      // A line without indentation goes on with the item only directly behind its text.
      const isLazy = lines[end - 1]?.trim() && !interrupts(line);
      if (!items.length || (indent < 2 && !isLazy)) break;
      items.at(-1).lines.push(unindented(line, items.at(-1).width));
    } else {
      items.at(-1).lines.push('');
    }
    end += 1;
  }
  // A number of an ordered list, which may begin anywhere.
  return { kind: 'list', isOrdered, start: parseInt(ITEM.exec(lines[at])[2], 10), items, end: Math.max(end, at + 1) };
}

function unindented(line, most) {
  let from = 0;
  while (from < most && line[from] === ' ') from += 1;
  return line.slice(from);
}

function readTable(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].trim() && lines[end].includes('|')) end += 1;
  const alignments = cells(lines[at + 1]).map((cell) =>
    cell.endsWith(':') ? (cell.startsWith(':') ? 'center' : 'right') : 'left');
  return { kind: 'table', head: cells(lines[at]), rows: lines.slice(at + 2, end).map(cells), alignments, end };
}

function cells(line) {
  const parts = [''];
  for (let at = 0; at < line.length; at += 1) {
    if (line[at] === '\\' && line[at + 1] === '|') { parts[parts.length - 1] += '|'; at += 1; }
    else if (line[at] === '|') parts.push('');
    else parts[parts.length - 1] += line[at];
  }
  const trimmed = parts.map((part) => part.trim());
  if (trimmed[0] === '') trimmed.shift();
  if (trimmed.length > 1 && trimmed.at(-1) === '') trimmed.pop();
  return trimmed;
}

function blockElement(block, depth) {
  switch (block.kind) {
    case 'code': return codeElement(block.text, block.language);
    case 'heading': return inlineElement(`h${Math.min(block.level + 2, 6)}`, block.text);
    case 'rule': return element('hr');
    case 'quote': return element('blockquote', {}, ...childBlocks(block.lines, depth));
    case 'list': return listElement(block, depth);
    case 'table': return tableElement(block);
    default: return inlineElement('p', block.text);
  }
}

function childBlocks(lines, depth) {
  if (depth >= MAX_DEPTH) return [lines.join('\n')];
  return parseBlocks(lines).map((block) => blockElement(block, depth + 1));
}

function listElement(block, depth) {
  const items = block.items.map((item) => {
    const [first, ...rest] = childBlocks(item.lines, depth);
    // The text of an item without further blocks needs no paragraph.
    const isText = first instanceof Element && first.tagName === 'P';
    return element('li', {}, ...(isText ? first.childNodes : [first]), ...rest);
  });
  const start = block.isOrdered && block.start !== 1 ? block.start : undefined;
  return element(block.isOrdered ? 'ol' : 'ul', { start }, ...items);
}

function tableElement({ head, rows, alignments }) {
  const row = (tag, parts) => element('tr', {}, ...head.map((_, i) => {
    const cell = inlineElement(tag, parts[i] ?? '');
    cell.className = alignments[i] ?? 'left';
    return cell;
  }));
  const body = element('tbody', {}, ...rows.map((parts) => row('td', parts)));
  const table = element('table', {}, element('thead', {}, row('th', head)), body);
  return element('div', { class: 'table', role: 'region', 'aria-label': 'Table', tabindex: 0 }, table);
}

/** A block of code with a button that copies it. */
function codeElement(text, language) {
  const bar = element('div', { class: 'bar' }, element('span', {}, language || 'text'), copyButton(text));
  return element('div', { class: 'code' }, bar, element('pre', { tabindex: 0 }, element('code', {}, text)));
}

function inlineElement(tag, text) {
  const made = element(tag);
  appendInline(made, text, 0);
  return made;
}

/** Appends text with code, emphasis and links. */
function appendInline(parent, text, depth) {
  const missing = new Set();
  let plain = '';
  const append = (node) => {
    if (plain) parent.append(plain);
    plain = '';
    if (node) parent.append(node);
  };
  for (let at = 0; at < text.length;) {
    const read = depth < MAX_DEPTH && readInline(text, at, missing, depth);
    if (!read) { plain += text[at]; at += 1; continue; }
    if (typeof read.node === 'string') plain += read.node; else append(read.node);
    at = read.end;
  }
  append(null);
}

function readInline(text, at, missing, depth) {
  switch (text[at]) {
    case '\n': return { node: element('br'), end: at + 1 };
    case '\\': return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? '') ? { node: text[at + 1], end: at + 2 } : null;
    case '`': return readCodeSpan(text, at, missing);
    case '*': case '_': case '~': return readEmphasis(text, at, missing, depth);
    case '!': return text[at + 1] === '[' ? readLink(text, at + 1, missing, depth, 'image: ') : null;
    case '[': return readLink(text, at, missing, depth, '');
    case '<': return readAutolink(AUTOLINK, text, at);
    case 'h': return /\w/.test(text[at - 1] ?? '') ? null : readAutolink(BARE_LINK, text, at);
    default: return null;
  }
}

function readCodeSpan(text, at, missing) {
  let open = at;
  while (text[open] === '`') open += 1;
  const mark = text.slice(at, open);
  for (let close = missing.has(mark) ? -1 : text.indexOf(mark, open); close >= 0;) {
    let end = close;
    while (text[end] === '`') end += 1;
    if (end - close === mark.length) return { node: element('code', {}, text.slice(open, close).trim()), end };
    close = text.indexOf(mark, end);
  }
  missing.add(mark);
  // The whole run is text, as its end would otherwise open a shorter one.
  return { node: mark, end: open };
}

const EMPHASIS = {
  '*': ['em'], _: ['em'], '**': ['strong'], __: ['strong'], '***': ['em', 'strong'], ___: ['em', 'strong'], '~~': ['del'],
};

function readEmphasis(text, at, missing, depth) {
  let open = at;
  while (text[open] === text[at]) open += 1;
  const mark = text.slice(at, open);
  const tags = EMPHASIS[mark];
  const isWord = mark[0] === '_' && /\w/.test(text[at - 1] ?? '');
  const close = !tags || isWord || !/\S/.test(text[open] ?? '') || missing.has(mark) ? -1 : closeOf(text, open, mark);
  if (close < 0) {
    missing.add(mark);
    return { node: mark, end: open };
  }
  const outer = element(tags[0]);
  const inner = tags[1] ? outer.appendChild(element(tags[1])) : outer;
  appendInline(inner, text.slice(open, close), depth + 1);
  return { node: outer, end: close + mark.length };
}

/** The place of the run that closes an emphasis, or -1. */
function closeOf(text, from, mark) {
  for (let at = text.indexOf(mark, from); at >= 0;) {
    let end = at;
    while (text[end] === mark[0]) end += 1;
    const isWord = mark[0] === '_' && /\w/.test(text[end] ?? '');
    if (end - at === mark.length && /\S/.test(text[at - 1]) && !isWord) return at;
    // `**a *b***` closes both.
    if (end - at === 3 && mark.length < 3) return mark.length === 2 ? at + 1 : at;
    at = text.indexOf(mark, end);
  }
  return -1;
}

function readLink(text, at, missing, depth, prefix) {
  if (missing.has('](') || !text.includes('](', at)) {
    missing.add('](');
    return null;
  }
  let level = 0, close = at;
  const last = Math.min(text.length, at + MAX_LINK_TEXT);
  for (; close < last; close += 1) {
    if (text[close] === '\\') close += 1;
    else if (text[close] === '[') level += 1;
    else if (text[close] === ']') level -= 1;
    if (level === 0) break;
  }
  if (text[close] !== ']' || text[close + 1] !== '(') return null;
  TARGET.lastIndex = close + 1;
  const target = TARGET.exec(text);
  const link = target && target[1].length <= MAX_LINK && linkElement(target[1]);
  if (!link) return null;
  link.append(prefix);
  appendInline(link, text.slice(at + 1, close), depth + 1);
  // A link has no links inside, as browsers would not show which of them a click follows.
  for (const inner of link.querySelectorAll('a')) inner.replaceWith(...inner.childNodes);
  if (!link.textContent.trim()) link.append(target[1]);
  return { node: link, end: TARGET.lastIndex };
}

function readAutolink(pattern, text, at) {
  pattern.lastIndex = at;
  const found = pattern.exec(text);
  if (!found) return null;
  let address = found[1] ?? found[0];
  // Marks behind a bare address end the sentence, not the address.
  if (found[1] === undefined) while (/[.,:;!?'")\]}*_~]$/.test(address)) address = address.slice(0, -1);
  const link = linkElement(address);
  if (!link) return null;
  link.append(address);
  return { node: link, end: at + (found[1] === undefined ? address.length : found[0].length) };
}

function linkElement(address) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (!LINK_PROTOCOLS.has(url.protocol)) return null;
  return element('a', { href: url.href, title: url.href, target: '_blank', rel: 'noopener noreferrer' });
}
