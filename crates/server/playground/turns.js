// Turns as elements: text, reasoning, calls, results, checks and actions.

const ROLE_NAMES = { user: 'You', assistant: 'Assistant', tool: 'Result' };

/** One turn of the conversation. `actions` has the functions that its buttons call. */
class TurnView {
  constructor(turn, actions) {
    this.turn = turn;
    this.actions = actions;
    this.showsTokens = true;
    this.head = element('div', { class: 'head' });
    this.body = element('div', { class: 'body' });
    this.foot = element('div', { class: 'foot' });
    this.root = element('article', { class: `turn ${turn.role}`, 'data-turn': turn.id }, this.head, this.body, this.foot);
    this.content = element('div', { class: 'content' });
    this.reasoning = element('div', { class: 'content' });
    this.reasoningTitle = element('summary');
    this.reasoningFold = element('details', { class: 'reasoning' }, this.reasoningTitle, this.reasoning);
  }

  /** Shows the turn as it is now. */
  draw({ siblings, isRunning, isEnd }) {
    this.state = { siblings, isRunning, isEnd };
    if (this.isEdited) return;
    this.root.setAttribute('aria-busy', String(isRunning));
    this.#drawHead(siblings, isRunning);
    this.drawBody();
    this.#drawFoot(isRunning, isEnd);
  }

  #drawHead(siblings, isRunning) {
    const { turn, actions } = this;
    const at = siblings.indexOf(turn.id);
    const to = (step, text, label) => button(text, () => actions.choose(siblings[at + step]),
      { class: 'quiet', 'aria-label': label, disabled: isRunning || siblings[at + step] === undefined });
    const branches = siblings.length > 1 && element('span', { class: 'branches', role: 'group', 'aria-label': 'Branches' },
      to(-1, '‹', 'Previous branch'), element('span', {}, `${at + 1}/${siblings.length}`), to(1, '›', 'Next branch'));
    const name = turn.role === 'tool' ? `Result of ${turn.name ?? 'a tool'}` : ROLE_NAMES[turn.role];
    const model = turn.role === 'assistant' && turn.model ? element('span', { class: 'muted' }, turn.model) : '';
    this.head.replaceChildren(element('h2', {}, name), model, branches || '');
  }

  /** Shows the text. A stream calls this for each of its parts. */
  drawBody() {
    const { turn } = this;
    if (turn.role !== 'assistant') {
      const images = (turn.images ?? []).map((url, i) => element('img', { src: url, alt: `Image ${i + 1}` }));
      this.body.replaceChildren(...images, element('div', { class: turn.role === 'tool' ? 'text mono' : 'text' }, turn.content));
      return;
    }
    // Elements that stay keep their place, so that a fold or a selection survives the stream.
    const parts = [];
    if (turn.reasoning) {
      const isThinking = this.state.isRunning && !turn.content && !turn.calls;
      this.reasoningTitle.textContent = isThinking ? 'Reasoning …' : 'Reasoning';
      renderMarkdown(this.reasoning, turn.reasoning);
      parts.push(this.reasoningFold);
    }
    if (turn.content) parts.push(this.#contentElement());
    if (this.state.isRunning && !turn.content && !turn.calls && !turn.reasoning) {
      parts.push(element('span', { class: 'waiting', 'aria-label': 'Waiting for the answer' }, '● ● ●'));
    }
    for (const call of turn.calls ?? []) parts.push(this.#callElement(call));
    if (turn.schema && !this.state.isRunning && turn.content) parts.push(checkElement(turn.schema, turn.content));
    if (turn.notHeld) parts.push(element('p', { class: 'note' }, `The server left out: ${turn.notHeld}`));
    if (turn.isStopped) parts.push(element('p', { class: 'note' }, 'Stopped.'));
    if (turn.finish === 'length') parts.push(element('p', { class: 'note' }, 'The limit of tokens ended this answer.'));
    if (turn.error) {
      parts.push(element('div', { class: 'error' }, element('span', {}, turn.error), button('Try again', () => this.actions.resend(turn))));
    }
    const isSame = parts.length === this.body.children.length && parts.every((part, i) => part === this.body.children[i]);
    if (!isSame) this.body.replaceChildren(...parts);
  }

  #contentElement() {
    const { turn } = this;
    if (!this.state.isRunning && turn.logprobs?.length && this.showsTokens) {
      if (this.tokensOf !== turn.logprobs) this.tokens = tokensElement(turn.logprobs);
      this.tokensOf = turn.logprobs;
      return this.tokens;
    }
    const json = turn.schema ? parseJson(turn.content).value : undefined;
    const text = turn.schema ? `\`\`\`json\n${json === undefined ? turn.content : JSON.stringify(json, null, 2)}\n\`\`\`` : turn.content;
    renderMarkdown(this.content, text);
    return this.content;
  }

  #callElement(call) {
    const { value, error } = parseJson(call.arguments || '{}');
    const text = error ? call.arguments : JSON.stringify(value, null, 2);
    const parameters = this.actions.parametersOf(call.name);
    const box = element('div', { class: 'call' },
      element('p', {}, 'Call of ', element('strong', { class: 'mono' }, call.name)),
      element('pre', { class: 'mono', tabindex: 0 }, text));
    if (parameters && !this.state.isRunning) box.append(checkElement(parameters, call.arguments || '{}'));
    return box;
  }

  #drawFoot(isRunning, isEnd) {
    const { turn, actions } = this;
    if (isRunning) return this.foot.replaceChildren();
    const act = (text, click, label) => button(text, click, { class: 'quiet', title: label });
    const buttons = [turn.content ? copyButton(() => turn.content) : ''];
    buttons.push(act('Edit', () => this.edit(), 'Change this turn in a branch of its own'));
    if (turn.role === 'assistant') {
      buttons.push(act('Answer again', () => actions.resend(turn), 'Generate another answer'));
      if (turn.logprobs?.length) {
        const toggle = () => { this.showsTokens = !this.showsTokens; this.draw(this.state); };
        buttons.push(act(this.showsTokens ? 'Show text' : 'Show tokens', toggle));
      }
    } else if (isEnd) {
      buttons.push(act('Answer', () => actions.answer(turn), 'Generate an answer'));
    }
    if (!isEnd) buttons.push(act('Branch', () => actions.branch(turn), 'Begin another branch behind this turn'));
    buttons.push(act('Remove', () => actions.remove(turn), 'Remove this turn and all behind it'));
    const stats = statsText(turn.stats);
    this.foot.replaceChildren(element('div', { class: 'actions' }, ...buttons), stats ? element('span', { class: 'stats' }, stats) : '');
  }

  /** Shows the turn's text in a field. Saving makes a branch. */
  edit() {
    const { turn, actions } = this;
    const area = element('textarea', { 'aria-label': 'Text of this turn', rows: Math.min(12, turn.content.split('\n').length + 1) });
    area.value = turn.content;
    const close = () => { this.isEdited = false; this.draw(this.state); };
    const save = () => { if (actions.edit(turn, area.value)) this.isEdited = false; };
    area.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') { event.stopPropagation(); close(); }
      if (isEnter(event)) { event.preventDefault(); save(); }
    });
    this.isEdited = true;
    const name = turn.role === 'assistant' ? 'Save' : 'Save and send';
    this.body.replaceChildren(element('div', { class: 'edit' }, area,
      element('div', { class: 'buttons' }, button(name, save, { class: 'primary' }), button('Cancel', close))));
    this.foot.replaceChildren();
    area.focus();
  }
}

/** Whether a key press sends. Enter that ends the composition of a character does not. */
function isEnter(event) {
  return event.key === 'Enter' && !event.shiftKey && !event.isComposing && event.keyCode !== 229;
}

/** The result of a validation. */
function checkElement(schema, text) {
  const { value, error } = parseJson(text);
  if (error) return element('p', { class: 'check bad' }, `✗ Not JSON: ${error}`);
  const { errors, unchecked } = validateSchema(schema, value);
  const note = unchecked.length ? element('p', { class: 'note' }, `Not checked by this page: ${unchecked.join(', ')}.`) : null;
  const result = errors.length
    ? element('ul', { class: 'check bad' }, ...errors.slice(0, 20).map(({ path, message }) => element('li', {}, `✗ ${path} ${message}`)))
    : element('p', { class: 'check good' }, unchecked.length ? '✓ Nothing wrong in the parts that were checked' : '✓ Valid by the schema');
  return element('div', { class: 'checked' }, result, note);
}

function statsText(stats) {
  if (!stats) return '';
  const parts = [];
  const has = (name) => typeof stats[name] === 'number';
  if (has('completion')) parts.push(`${stats.completion} tokens`);
  if (has('reasoning')) parts.push(`${stats.reasoning} of reasoning`);
  if (has('perSecond')) parts.push(`${stats.perSecond.toFixed(1)} tokens/s`);
  if (has('first')) parts.push(`first after ${(stats.first / 1000).toFixed(2)} s`);
  if (has('prompt')) parts.push(`prompt ${stats.prompt}${has('cached') ? `, ${stats.cached} cached` : ''}`);
  return parts.join(' · ');
}

/** Fields for the results of calls. `send` gets a text for each call. */
function resultsElement(calls, send) {
  const areas = calls.map((call, i) => element('textarea', { id: `result-${i}`, class: 'mono', rows: 2, spellcheck: 'false' }));
  const submit = () => send(areas.map((area) => area.value));
  for (const area of areas) {
    area.addEventListener('keydown', (event) => {
      if (isEnter(event)) { event.preventDefault(); submit(); }
    });
  }
  const fields = calls.flatMap((call, i) => [element('label', { for: `result-${i}` }, `Result of ${call.name}`), areas[i]]);
  return element('div', { class: 'results' }, ...fields,
    element('div', { class: 'buttons' }, button(calls.length > 1 ? 'Send results' : 'Send result', submit, { class: 'primary' })));
}
