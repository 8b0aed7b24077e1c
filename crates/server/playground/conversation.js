// A conversation: a tree of turns. The chosen child of each turn makes the path that the page shows and the model reads.

const ROOT = 'root';
const ROLES = new Set(['user', 'assistant', 'tool']);
const MAX_TURNS = 10000;
const MAX_TURN_IMAGES = 64;
const IMAGE_DATA = /^data:image\/(?:png|jpeg|webp|gif);base64,[A-Za-z0-9+/]+={0,2}$/;

class Conversation {
  constructor() {
    this.turns = new Map();
    /** The ids of each turn's children, in the order of their creation. */
    this.children = new Map([[ROOT, []]]);
    /** The chosen child of each turn. Turns without one are the end of the path, even if they have children. */
    this.chosen = new Map();
    this.count = 0;
  }

  /** Adds a turn behind another one, and chooses it. */
  add(parent, fields) {
    this.count += 1;
    const turn = { id: `t${this.count}`, parent, content: '', ...fields };
    this.#insert(turn);
    this.chosen.set(parent, turn.id);
    return turn;
  }

  #insert(turn) {
    this.turns.set(turn.id, turn);
    this.children.set(turn.id, []);
    this.children.get(turn.parent).push(turn.id);
  }

  /** The turns from the first to the end of the path. */
  path() {
    const turns = [];
    for (let id = this.chosen.get(ROOT); id !== undefined; id = this.chosen.get(id)) turns.push(this.turns.get(id));
    return turns;
  }

  /** The turns from the first to this one. */
  pathTo(id) {
    const turns = [];
    for (let turn = this.turns.get(id); turn; turn = this.turns.get(turn.parent)) turns.unshift(turn);
    return turns;
  }

  end() {
    return this.path().at(-1)?.id ?? ROOT;
  }

  siblings(turn) {
    return this.children.get(turn.parent);
  }

  choose(turn) {
    this.chosen.set(turn.parent, turn.id);
  }

  /** Ends the path at this turn, so that the next message begins a branch. */
  branchAt(id) {
    this.chosen.delete(id);
  }

  /** Removes a turn and all behind it. */
  remove(turn) {
    const siblings = this.siblings(turn).filter((id) => id !== turn.id);
    this.children.set(turn.parent, siblings);
    if (this.chosen.get(turn.parent) === turn.id) {
      this.chosen.delete(turn.parent);
      if (siblings.length) this.chosen.set(turn.parent, siblings.at(-1));
    }
    const forget = [turn.id];
    while (forget.length) {
      const id = forget.pop();
      forget.push(...this.children.get(id));
      this.children.delete(id);
      this.chosen.delete(id);
      this.turns.delete(id);
    }
  }

  /** The conversation as JSON. `lighter` leaves out log-probabilities (1) and images (2). */
  save(lighter = 0) {
    const turns = [...this.turns.values()].map((turn) => {
      const saved = { ...turn };
      if (lighter >= 1) delete saved.logprobs;
      if (lighter >= 2) delete saved.images;
      return saved;
    });
    return { turns, chosen: Object.fromEntries(this.chosen) };
  }

  /** A conversation of JSON that anyone may have written. Throws an error that says what is wrong. */
  static load(saved) {
    const conversation = new Conversation();
    const { turns, chosen } = checkedObject(saved, 'conversation');
    if (!Array.isArray(turns) || turns.length > MAX_TURNS) throw new Error(`\`turns\` must be a list of at most ${MAX_TURNS} turns.`);
    for (const [i, turn] of turns.entries()) {
      const checked = checkedTurn(turn, `turns[${i}]`);
      // A parent comes before its children, so there are no cycles.
      if (!conversation.children.has(checked.parent)) throw new Error(`\`turns[${i}].parent\` names no turn before it.`);
      if (conversation.children.has(checked.id)) throw new Error(`\`turns[${i}].id\` occurs twice.`);
      conversation.#insert(checked);
      conversation.count = Math.max(conversation.count, Number(checked.id.slice(1)));
    }
    for (const [parent, child] of Object.entries(checkedObject(chosen ?? {}, 'chosen'))) {
      if (!conversation.children.get(parent)?.includes(child)) throw new Error('`chosen` names a turn that does not exist.');
      conversation.chosen.set(parent, child);
    }
    return conversation;
  }
}

function checkedObject(value, name) {
  if (!isObject(value)) throw new Error(`\`${name}\` must be an object.`);
  return value;
}

/** The known fields of a turn, each of the right type. Other fields are left out. */
function checkedTurn(turn, name) {
  checkedObject(turn, name);
  const fail = (field, what) => { throw new Error(`\`${name}.${field}\` must be ${what}.`); };
  const text = (field, limit = 8 << 20) => {
    const value = turn[field];
    if (value === undefined || value === null) return undefined;
    return typeof value === 'string' && value.length <= limit ? value : fail(field, 'a text');
  };
  if (!/^t\d{1,9}$/.test(turn.id)) fail('id', 'the letter t and a number');
  if (turn.parent !== ROOT && !/^t\d{1,9}$/.test(turn.parent)) fail('parent', 'the id of a turn, or root');
  if (!ROLES.has(turn.role)) fail('role', 'user, assistant or tool');
  const checked = {
    id: turn.id, parent: turn.parent, role: turn.role, content: text('content') ?? '', reasoning: text('reasoning'),
    model: text('model', 1000), finish: text('finish', 100), error: text('error', 10000), callId: text('callId', 1000),
    name: text('name', 1000), notHeld: text('notHeld', 10000), isStopped: turn.isStopped === true || undefined,
  };
  if (turn.images !== undefined) {
    if (!Array.isArray(turn.images) || turn.images.length > MAX_TURN_IMAGES) fail('images', 'a list of images');
    if (!turn.images.every((url) => typeof url === 'string' && IMAGE_DATA.test(url))) fail('images', 'data: URLs of images');
    checked.images = [...turn.images];
  }
  if (turn.calls !== undefined) {
    if (!Array.isArray(turn.calls) || turn.calls.length > 1000) fail('calls', 'a list of calls');
    checked.calls = turn.calls.map((call) => {
      const isCall = isObject(call) && ['id', 'name', 'arguments'].every((field) => typeof call[field] === 'string');
      return isCall ? { id: call.id, name: call.name, arguments: call.arguments } : fail('calls', 'calls with id, name and arguments');
    });
  }
  if (turn.schema !== undefined) checked.schema = checkedObject(turn.schema, `${name}.schema`);
  if (turn.stats !== undefined) {
    const stats = Object.entries(checkedObject(turn.stats, `${name}.stats`));
    checked.stats = Object.fromEntries(stats.filter(([, value]) => typeof value === 'number'));
  }
  if (turn.logprobs !== undefined) checked.logprobs = checkedLogprobs(turn.logprobs, () => fail('logprobs', 'log-probabilities'));
  return checked;
}
