// A validator for the common keywords of JSON Schema. It names the keywords that it does not check.

/** Keywords that describe a schema and constrain nothing. */
const ANNOTATIONS = new Set(['title', 'description', 'default', 'examples', '$schema', '$id', '$comment', '$defs', 'definitions',
  'deprecated', 'readOnly', 'writeOnly', 'then', 'else', 'minContains', 'maxContains']);
/** Most schemas that one validation applies. Schemas of files could otherwise hold the page for long. */
const MAX_STEPS = 100000;
const MAX_REFERENCES = 64;

/** Errors of a value, and what was not checked. */
function validateSchema(schema, value) {
  const run = { root: schema, errors: [], unchecked: new Set(), steps: 0 };
  applySchema(run, schema, value, '$', run.errors, 0);
  return { errors: run.errors, unchecked: [...run.unchecked] };
}

function isValid(run, schema, value, depth) {
  const errors = [];
  applySchema(run, schema, value, '', errors, depth);
  return errors.length === 0;
}

function applySchema(run, schema, value, path, errors, depth) {
  run.steps += 1;
  if (run.steps > MAX_STEPS || depth > MAX_REFERENCES) {
    run.unchecked.add('parts, as the schema is too deep or too large');
    return;
  }
  if (schema === false) errors.push({ path, message: 'is not allowed' });
  if (!isObject(schema)) return;
  const context = { run, schema, value, path, errors, depth: depth + 1 };
  for (const [keyword, argument] of Object.entries(schema)) {
    const check = Object.hasOwn(KEYWORDS, keyword) ? KEYWORDS[keyword] : null;
    if (!check) {
      if (!ANNOTATIONS.has(keyword)) run.unchecked.add(`\`${keyword}\``);
      continue;
    }
    try {
      const message = check(argument, context);
      if (message) errors.push({ path, message });
    } catch {
      // The keyword's value has a wrong type, or is nested too deep.
      run.unchecked.add(`\`${keyword}\``);
    }
  }
}

const KEYWORDS = {
  type: (type, { value }) =>
    [type].flat().some((name) => hasType(value, name)) ? null : `must be ${[type].flat().join(' or ')}, and is ${typeOf(value)}`,
  enum: (values, { value }) =>
    values.some((one) => isEqual(one, value)) ? null : `must be one of ${values.map((one) => JSON.stringify(one)).join(', ')}`,
  const: (one, { value }) => isEqual(one, value) ? null : `must be ${JSON.stringify(one)}`,

  minimum: (bound, { value }) => typeof value === 'number' && value < bound ? `must be at least ${bound}` : null,
  maximum: (bound, { value }) => typeof value === 'number' && value > bound ? `must be at most ${bound}` : null,
  exclusiveMinimum: (bound, { value }) => typeof value === 'number' && value <= bound ? `must be above ${bound}` : null,
  exclusiveMaximum: (bound, { value }) => typeof value === 'number' && value >= bound ? `must be below ${bound}` : null,
  multipleOf: (step, { value }) => {
    if (typeof value !== 'number') return null;
    const quotient = value / step;
    return !(Math.abs(quotient - Math.round(quotient)) < 1e-9) ? `must be a multiple of ${step}` : null;
  },

  minLength: (bound, { value }) =>
    typeof value === 'string' && [...value].length < bound ? `must have at least ${bound} characters` : null,
  maxLength: (bound, { value }) =>
    typeof value === 'string' && [...value].length > bound ? `must have at most ${bound} characters` : null,
  pattern: (pattern, { run, value }) =>
    typeof value === 'string' && patternOf(run, pattern)?.test(value) === false ? `must match ${pattern}` : null,

  properties: (properties, context) => eachMember(context, ([name]) => Object.hasOwn(properties, name) ? [properties[name]] : []),
  patternProperties: (patterns, context) => eachMember(context, ([name]) =>
    Object.entries(patterns).filter(([pattern]) => patternOf(context.run, pattern)?.test(name)).map(([, schema]) => schema)),
  additionalProperties: (schema, context) => {
    const { properties = {}, patternProperties = {} } = context.schema;
    const patterns = Object.keys(patternProperties).map((pattern) => patternOf(context.run, pattern));
    return eachMember(context, ([name]) =>
      Object.hasOwn(properties, name) || patterns.some((pattern) => !pattern || pattern.test(name)) ? [] : [schema]);
  },
  propertyNames: (schema, { run, value, depth }) => {
    const wrong = isObject(value) && Object.keys(value).find((name) => !isValid(run, schema, name, depth));
    return typeof wrong === 'string' ? `has a key that is not allowed: ${JSON.stringify(wrong)}` : null;
  },
  required: (names, { value }) => {
    const missing = isObject(value) ? names.filter((name) => !Object.hasOwn(value, name)) : [];
    return missing.length ? `has no ${missing.map((name) => JSON.stringify(name)).join(', ')}` : null;
  },
  dependentRequired: (dependents, context) => {
    if (!isObject(context.value)) return null;
    const present = Object.entries(dependents).filter(([name]) => Object.hasOwn(context.value, name));
    return KEYWORDS.required(present.flatMap(([, names]) => names), context);
  },
  minProperties: (bound, { value }) =>
    isObject(value) && Object.keys(value).length < bound ? `must have at least ${bound} members` : null,
  maxProperties: (bound, { value }) =>
    isObject(value) && Object.keys(value).length > bound ? `must have at most ${bound} members` : null,

  prefixItems: (schemas, context) => eachItem(context, (i) => i < schemas.length ? schemas[i] : true),
  items: (schema, context) => {
    const first = context.schema.prefixItems?.length ?? 0;
    if (Array.isArray(schema)) return KEYWORDS.prefixItems(schema, context);
    return eachItem(context, (i) => i >= first ? schema : true);
  },
  contains: (schema, { run, schema: { minContains = 1, maxContains = Infinity }, value, depth }) => {
    if (!Array.isArray(value)) return null;
    const count = value.filter((item) => isValid(run, schema, item, depth)).length;
    return count < minContains || count > maxContains ? 'must contain other items' : null;
  },
  minItems: (bound, { value }) => Array.isArray(value) && value.length < bound ? `must have at least ${bound} items` : null,
  maxItems: (bound, { value }) => Array.isArray(value) && value.length > bound ? `must have at most ${bound} items` : null,
  uniqueItems: (isOn, { value }) =>
    isOn && Array.isArray(value) && new Set(value.map(canonical)).size < value.length ? 'must have no equal items' : null,

  allOf: (schemas, { run, value, path, errors, depth }) =>
    void schemas.forEach((schema) => applySchema(run, schema, value, path, errors, depth)),
  anyOf: (schemas, { run, value, depth }) =>
    schemas.some((schema) => isValid(run, schema, value, depth)) ? null : 'must match one of the schemas of `anyOf`',
  oneOf: (schemas, { run, value, depth }) => {
    const count = schemas.filter((schema) => isValid(run, schema, value, depth)).length;
    return count === 1 ? null : `must match exactly one of the schemas of \`oneOf\`, and matches ${count}`;
  },
  not: (schema, { run, value, depth }) => isValid(run, schema, value, depth) ? 'must not match the schema of `not`' : null,
  if: (schema, { run, schema: parent, value, path, errors, depth }) => {
    const branch = isValid(run, schema, value, depth) ? parent.then : parent.else;
    if (branch !== undefined) applySchema(run, branch, value, path, errors, depth);
  },
  $ref: (reference, { run, value, path, errors, depth }) => {
    const target = referenced(run.root, reference);
    if (target === undefined) run.unchecked.add(`\`$ref\` to ${reference}`);
    else applySchema(run, target, value, path, errors, depth);
  },
};

function eachMember({ run, value, path, errors, depth }, schemasOf) {
  if (!isObject(value)) return;
  for (const member of Object.entries(value)) {
    for (const schema of schemasOf(member)) applySchema(run, schema, member[1], `${path}.${member[0]}`, errors, depth);
  }
}

function eachItem({ run, value, path, errors, depth }, schemaOf) {
  if (!Array.isArray(value)) return;
  value.forEach((item, i) => applySchema(run, schemaOf(i), item, `${path}[${i}]`, errors, depth));
}

/** The expression of a pattern, or null if it is not checked. */
function patternOf(run, pattern) {
  // Repeated groups with choices or repetitions inside can take exponential time, which would stop the page.
  if (/\((?:[^()\\]|\\.)*[|+*{](?:[^()\\]|\\.)*\)[+*{]/.test(pattern) || /\)\)[+*{]/.test(pattern)) {
    run.unchecked.add(`\`pattern\` ${pattern}`);
    return null;
  }
  try {
    return new RegExp(pattern, 'u');
  } catch {
    run.unchecked.add(`\`pattern\` ${pattern}`);
    return null;
  }
}

function referenced(root, reference) {
  if (reference === '#') return root;
  if (typeof reference !== 'string' || !reference.startsWith('#/')) return undefined;
  try {
    const parts = reference.slice(2).split('/').map((part) =>
      decodeURIComponent(part).replaceAll('~1', '/').replaceAll('~0', '~'));
    return parts.reduce((at, part) => typeof at === 'object' && at !== null && Object.hasOwn(at, part) ? at[part] : undefined, root);
  } catch {
    return undefined;
  }
}

function typeOf(value) {
  if (value === null) return 'null';
  return Array.isArray(value) ? 'array' : typeof value;
}

function hasType(value, name) {
  if (name === 'integer') return Number.isInteger(value);
  return typeOf(value) === name;
}

/** A text that equal values share, whatever the order of their members. */
function canonical(value) {
  return JSON.stringify(value, (_, part) =>
    isObject(part) ? Object.fromEntries(Object.entries(part).sort(([a], [b]) => a < b ? -1 : 1)) : part);
}

function isEqual(a, b) {
  return canonical(a) === canonical(b);
}
