// Tools: their definition, and the choice among them.

const TOOL_NAME = /^[A-Za-z0-9_-]{1,64}$/;
const MAX_TOOLS = 128;
const EXAMPLE_TOOL = {
  name: 'get_weather',
  description: 'Returns the weather of a city.',
  parameters: { type: 'object', properties: { city: { type: 'string' }, unit: { enum: ['C', 'F'] } }, required: ['city'] },
};
const TOOL_CHOICES = [['auto', 'Auto'], ['none', 'None'], ['required', 'Required']];

class ToolsForm {
  constructor(changed) {
    this.changed = changed;
    /** Each has name, description, parameters and isOn. */
    this.tools = [];
    this.choice = 'auto';
    this.draw();
  }

  /** Shows tools that anyone may have written. Throws an error that says what is wrong. */
  load(tools, choice) {
    if (tools !== undefined && (!Array.isArray(tools) || tools.length > MAX_TOOLS)) throw new Error('`tools` must be a list of tools.');
    const loaded = (tools ?? []).map((tool, i) => {
      checkedObject(tool, `tools[${i}]`);
      if (typeof tool.name !== 'string' || !TOOL_NAME.test(tool.name)) throw new Error(`\`tools[${i}].name\` is no name of a tool.`);
      const parameters = checkedObject(tool.parameters ?? {}, `tools[${i}].parameters`);
      return { name: tool.name, description: String(tool.description ?? ''), parameters, isOn: tool.isOn !== false };
    });
    this.tools = loaded;
    this.choice = typeof choice === 'string' ? choice : 'auto';
    this.draw();
  }

  /** The fields of a request. */
  fields() {
    const tools = this.tools.filter(({ isOn }) => isOn);
    if (!tools.length) return {};
    const isName = tools.some(({ name }) => name === this.choice.replace(/^tool:/, ''));
    const choice = this.choice.startsWith('tool:')
      ? (isName ? { type: 'function', function: { name: this.choice.slice(5) } } : 'auto')
      : this.choice;
    return {
      tools: tools.map(({ name, description, parameters }) =>
        ({ type: 'function', function: { name, description: description || undefined, parameters } })),
      tool_choice: choice === 'auto' ? undefined : choice,
    };
  }

  /** The schema of a tool's arguments, if the tool is known. */
  parametersOf(name) {
    return this.tools.find((tool) => tool.name === name)?.parameters;
  }

  draw() {
    const names = this.tools.filter(({ isOn }) => isOn).map(({ name }) => [`tool:${name}`, `Call ${name}`]);
    const options = [...TOOL_CHOICES, ...names].map(([value, text]) =>
      element('option', { value, selected: value === this.choice }, text));
    const list = element('ul', { class: 'tools' }, ...this.tools.map((tool) => this.#row(tool)));
    const choose = (event) => { this.choice = event.target.value; this.changed(); };
    const choice = element('div', { class: 'setting' },
      element('label', { for: 'tool-choice' }, 'Choice'), element('select', { id: 'tool-choice', change: choose }, ...options));
    byId('tools').replaceChildren(...(this.tools.length ? [list, choice] : []),
      element('div', { class: 'buttons' },
        button('Add a tool', () => this.#edit(null)),
        button('Add an example', () => this.#save(null, structuredClone(EXAMPLE_TOOL)),
          { disabled: this.tools.some(({ name }) => name === EXAMPLE_TOOL.name) })));
    const count = this.tools.filter(({ isOn }) => isOn).length;
    byId('tools-state').textContent = count ? `${count} on` : '';
  }

  #row(tool) {
    const toggle = () => { tool.isOn = !tool.isOn; this.draw(); this.changed(); };
    const label = element('label', { class: 'check' },
      element('input', { type: 'checkbox', checked: tool.isOn, change: toggle }), ` ${tool.name}`);
    return element('li', {}, label,
      button('Edit', () => this.#edit(tool), { class: 'quiet', 'aria-label': `Edit ${tool.name}` }),
      button('Remove', () => {
        this.tools = this.tools.filter((other) => other !== tool);
        this.draw();
        this.changed();
      }, { class: 'quiet', 'aria-label': `Remove ${tool.name}` }));
  }

  #save(tool, fields) {
    if (tool) Object.assign(tool, fields);
    else this.tools.push({ ...fields, isOn: true });
    this.draw();
    this.changed();
  }

  /** Shows a form for a new tool, or for one of the list. */
  #edit(tool) {
    const name = element('input', { id: 'tool-name', spellcheck: 'false', autocomplete: 'off' });
    const description = element('input', { id: 'tool-description', autocomplete: 'off' });
    const parameters = element('textarea', { id: 'tool-parameters', class: 'mono', rows: 8, spellcheck: 'false' });
    name.value = tool?.name ?? '';
    description.value = tool?.description ?? '';
    parameters.value = JSON.stringify(tool?.parameters ?? { type: 'object', properties: {} }, null, 2);
    const error = element('p', { class: 'error', role: 'alert' });
    const save = () => {
      const schema = parseJson(parameters.value);
      const isTaken = this.tools.some((other) => other !== tool && other.name === name.value);
      if (!TOOL_NAME.test(name.value)) error.textContent = 'A name has up to 64 letters, digits, _ and -.';
      else if (isTaken) error.textContent = 'Another tool has this name.';
      else if (!isObject(schema.value)) error.textContent = `The parameters must be a JSON schema. ${schema.error ?? ''}`;
      else this.#save(tool, { name: name.value, description: description.value, parameters: schema.value });
    };
    byId('tools').replaceChildren(
      element('label', { for: 'tool-name' }, 'Name'), name,
      element('label', { for: 'tool-description' }, 'Description'), description,
      element('label', { for: 'tool-parameters' }, 'Parameters, as a JSON schema'), parameters, error,
      element('div', { class: 'buttons' }, button('Save', save, { class: 'primary' }), button('Cancel', () => this.draw())));
    name.focus();
  }
}
