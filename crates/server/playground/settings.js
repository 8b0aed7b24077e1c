// Sampling settings. Defaults, bounds and descriptions are those of the server's OpenAPI document.

/** The settings in the page's order. Each is a field of the request. */
const SETTINGS = [
  { name: 'temperature', step: 0.1 },
  { name: 'top_p', step: 0.05 },
  { name: 'top_k', step: 1 },
  { name: 'min_p', step: 0.01 },
  { name: 'max_tokens', step: 1, minimum: 1 },
  { name: 'presence_penalty', step: 0.1 },
  { name: 'frequency_penalty', step: 0.1 },
  { name: 'repetition_penalty', step: 0.05 },
  { name: 'seed', step: 1 },
  { name: 'stop', kind: 'lines' },
  { name: 'reasoning_effort', kind: 'choice', choices: ['none', 'minimal', 'low', 'medium', 'high'] },
  { name: 'logprobs', kind: 'switch' },
  { name: 'top_logprobs', step: 1, minimum: 0, fallback: 5 },
];
const LABELS = {
  temperature: 'Temperature', top_p: 'Top p', top_k: 'Top k', min_p: 'Min p', max_tokens: 'Max tokens',
  presence_penalty: 'Presence penalty', frequency_penalty: 'Frequency penalty', repetition_penalty: 'Repetition penalty',
  seed: 'Seed', stop: 'Stop strings, one a line', reasoning_effort: 'Reasoning effort', logprobs: 'Log-probabilities of tokens',
  top_logprobs: 'Alternatives of each token',
};

/** The fields of a chat request, by the OpenAPI document. */
function chatFields(document) {
  const schemas = document?.components?.schemas ?? {};
  const collected = {};
  const collect = (schema, depth) => {
    if (!isObject(schema) || depth > 8) return;
    if (typeof schema.$ref === 'string') collect(schemas[schema.$ref.split('/').pop()], depth + 1);
    for (const part of schema.allOf ?? []) collect(part, depth + 1);
    Object.assign(collected, schema.properties);
  };
  collect(document?.paths?.['/v1/chat/completions']?.post?.requestBody?.content?.['application/json']?.schema, 0);
  return collected;
}

class SettingsForm {
  /** `changed` is called after each change. */
  constructor(changed) {
    this.values = {};
    this.controls = new Map();
    for (const setting of SETTINGS) this.#addControl(setting, changed);
  }

  #addControl(setting, changed) {
    const id = `setting-${setting.name}`;
    const attributes = { id, 'aria-describedby': `${id}-hint`, input: () => { this.#read(setting, input); changed(); } };
    const input = {
      lines: () => element('textarea', { ...attributes, rows: 2, spellcheck: 'false' }),
      choice: () => element('select', attributes, ...['', ...setting.choices].map((choice) =>
        element('option', { value: choice }, choice || 'default'))),
      switch: () => element('input', { ...attributes, type: 'checkbox' }),
    }[setting.kind]?.() ?? element('input', { ...attributes, type: 'number', step: 'any', inputmode: 'decimal' });
    if (!setting.kind) input.addEventListener('keydown', (event) => this.#step(event, setting, input));
    const hint = element('p', { id: `${id}-hint`, class: 'hint' });
    const label = setting.kind === 'switch'
      ? element('label', { class: 'check' }, input, ` ${LABELS[setting.name]}`)
      : element('label', { for: id }, LABELS[setting.name]);
    const isWide = setting.kind === 'lines' || setting.kind === 'switch';
    const row = element('div', { class: isWide ? 'setting wide' : 'setting' }, label, setting.kind === 'switch' ? null : input, hint);
    byId('sampling').append(row);
    this.controls.set(setting.name, { setting, input, hint, row });
  }

  /** Arrow keys change a number by the setting's step. The browser's own step would refuse numbers between. */
  #step(event, setting, input) {
    const sign = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!sign) return;
    event.preventDefault();
    const from = input.value === '' ? Number(input.placeholder) || 0 : Number(input.value);
    const to = Math.min(setting.maximum ?? Infinity, Math.max(setting.minimum ?? -Infinity, from + sign * setting.step));
    input.value = String(Number(to.toFixed(6)));
    input.dispatchEvent(new Event('input'));
  }

  #read(setting, input) {
    if (setting.kind === 'switch') this.values[setting.name] = input.checked || undefined;
    else this.values[setting.name] = input.validity.badInput ? NaN : input.value || undefined;
    this.#check(setting.name);
  }

  /** Takes defaults, bounds and descriptions from the server. */
  describe(document, contextLength) {
    const fields = chatFields(document);
    const ownLimit = /end after (\d+) tokens/.exec(document?.info?.description ?? '')?.[1];
    for (const { setting, input, row } of this.controls.values()) {
      const field = isObject(fields[setting.name]) ? fields[setting.name] : {};
      for (const bound of ['minimum', 'maximum']) if (typeof field[bound] === 'number') setting[bound] = field[bound];
      if (!setting.kind) input.placeholder = String(field.default ?? setting.fallback ?? 'none');
      const description = typeof field.description === 'string' ? field.description.replaceAll('`', '') : '';
      if (description) row.title = description;
      if (setting.name === 'max_tokens') {
        setting.maximum = contextLength;
        input.placeholder = 'rest of context';
        if (ownLimit) row.title = `${description} Without this page, answers end after ${ownLimit} tokens.`;
      }
      this.#check(setting.name);
    }
  }

  /** What is wrong with a setting, or null. */
  problem(name) {
    const { setting } = this.controls.get(name);
    const value = this.values[name];
    if (value === undefined || setting.kind) return null;
    const { minimum, maximum, step } = setting;
    const number = Number(value);
    const isWrong = Number.isNaN(number) || (step === 1 && !Number.isInteger(number)) || number < minimum || number > maximum;
    if (!isWrong) return null;
    const kind = step === 1 ? 'a whole number' : 'a number';
    if (minimum !== undefined && maximum !== undefined) return `${LABELS[name]} must be ${kind} from ${minimum} to ${maximum}.`;
    return `${LABELS[name]} must be ${kind}${minimum === undefined ? '' : ` of at least ${minimum}`}.`;
  }

  problems() {
    return SETTINGS.map(({ name }) => this.problem(name)).filter((problem) => problem);
  }

  #check(name) {
    const { input, hint } = this.controls.get(name);
    const problem = this.problem(name);
    hint.textContent = problem ?? '';
    input.setAttribute('aria-invalid', String(problem !== null));
    const count = Object.values(this.values).filter((value) => value !== undefined).length;
    this.controls.get('top_logprobs').row.hidden = !this.values.logprobs;
    byId('sampling-state').textContent = count ? `${count} changed` : '';
  }

  /** Shows values that anyone may have written: texts and numbers of known settings. */
  load(values) {
    for (const { setting, input } of this.controls.values()) {
      const value = isObject(values) && Object.hasOwn(values, setting.name) ? values[setting.name] : undefined;
      if (setting.kind === 'switch') input.checked = value === true;
      else input.value = typeof value === 'string' || typeof value === 'number' ? String(value) : '';
      this.#read(setting, input);
    }
  }

  /** The fields of a request. Settings without a value are the server's. */
  fields(contextLength) {
    const fields = {};
    for (const { setting, input } of this.controls.values()) {
      const value = this.values[setting.name];
      if (value === undefined) continue;
      if (setting.kind === 'lines') {
        const lines = value.split('\n').filter((line) => line).map((line) => line.replaceAll('\\n', '\n'));
        if (lines.length) fields.stop = lines;
      } else {
        fields[setting.name] = setting.kind ? value : Number(value);
      }
    }
    if (fields.max_tokens === undefined && contextLength) fields.max_tokens = contextLength;
    if (fields.logprobs) fields.top_logprobs ??= 5;
    else delete fields.top_logprobs;
    return fields;
  }
}
