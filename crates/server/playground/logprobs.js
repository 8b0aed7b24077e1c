// Log-probabilities: the tokens of an answer, with their alternatives on hover, by touch or by the arrow keys.

const MAX_TOKENS = 200000;

/** Log-probabilities of JSON that anyone may have written. */
function checkedLogprobs(entries, fail) {
  const isToken = (entry) => isObject(entry) && typeof entry.token === 'string' && typeof entry.logprob === 'number'
    && (entry.bytes === undefined || entry.bytes === null || Array.isArray(entry.bytes));
  if (!Array.isArray(entries) || entries.length > MAX_TOKENS) fail();
  return entries.map((entry) => {
    if (!isToken(entry) || !Array.isArray(entry.top_logprobs ?? []) || !(entry.top_logprobs ?? []).every(isToken)) fail();
    const token = ({ token, logprob, bytes }) => ({ token, logprob, bytes: bytes ?? null });
    return { ...token(entry), top_logprobs: (entry.top_logprobs ?? []).map(token) };
  });
}

/** Tokens in groups, each of whole characters: a character may be split over several tokens. */
function wholeCharacters(entries) {
  const groups = [];
  let group = [], bytes = [];
  for (const entry of entries) {
    group.push(entry);
    bytes.push(...(entry.bytes ?? new TextEncoder().encode(entry.token)));
    const text = decodedOrNull(bytes);
    // No character has more than four bytes, so longer groups hold damaged text.
    if (text === null && group.length < 4) continue;
    groups.push({ text: text ?? group.map(({ token }) => token).join(''), tokens: group });
    group = [];
    bytes = [];
  }
  if (group.length) groups.push({ text: group.map(({ token }) => token).join(''), tokens: group });
  return groups;
}

function decodedOrNull(bytes) {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(new Uint8Array(bytes));
  } catch {
    return null;
  }
}

function tokensElement(entries) {
  const groups = wholeCharacters(entries);
  const spans = groups.map(({ text, tokens }) => {
    const probability = Math.exp(Math.min(...tokens.map(({ logprob }) => logprob)));
    return element('span', { class: `token ${probabilityClass(probability)}` }, text);
  });
  const label = 'Tokens with their log-probabilities; the arrow keys show those of one token';
  const view = element('div', { class: 'tokens', tabindex: 0, role: 'group', 'aria-label': label }, ...spans);
  let shown = -1;
  const show = (index) => {
    spans[shown]?.querySelector('.alternatives')?.remove();
    spans[shown]?.classList.remove('shown');
    shown = index;
    const span = spans[index];
    if (!span) return;
    const isRight = span.offsetLeft > view.clientWidth / 2;
    span.classList.add('shown');
    span.append(alternativesElement(groups[index].tokens, isRight ? 'alternatives right' : 'alternatives'));
  };
  const over = (event) => {
    const span = event.target instanceof Element ? event.target.closest('.token') : null;
    const index = spans.indexOf(span);
    if (index !== shown && (index >= 0 || event.target === view)) show(index);
  };
  view.addEventListener('mouseover', over);
  view.addEventListener('click', over);
  view.addEventListener('mouseleave', () => show(-1));
  view.addEventListener('blur', () => show(-1));
  view.addEventListener('keydown', (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show(Math.max(0, Math.min(spans.length - 1, shown + step)));
    announce(groups[shown].tokens.map(tokenText).join('; '));
  });
  return view;
}

function probabilityClass(probability) {
  const bounds = [0.9, 0.6, 0.3, 0.1];
  const level = bounds.findIndex((bound) => probability >= bound);
  return `p${level < 0 ? bounds.length : level}`;
}

function percent(logprob) {
  const value = 100 * Math.exp(logprob);
  return `${value >= 0.1 ? value.toFixed(1) : value.toPrecision(1)} %`;
}

function tokenText({ token, logprob }) {
  return `${JSON.stringify(token)} ${percent(logprob)}`;
}

function alternativesElement(tokens, className) {
  const rows = tokens.flatMap((entry) => {
    const others = entry.top_logprobs.filter(({ token }) => token !== entry.token);
    return [alternativeRow(entry, 'sampled'), ...others.map((other) => alternativeRow(other))];
  });
  return element('span', { class: className }, ...rows);
}

function alternativeRow(entry, className) {
  return element('span', { class: className },
    element('span', { class: 'mono' }, JSON.stringify(entry.token)),
    element('span', {}, percent(entry.logprob)),
    element('span', { class: 'muted' }, entry.logprob.toFixed(3)));
}
