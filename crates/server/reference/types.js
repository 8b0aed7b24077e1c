// The OpenAPI document: types in words, fields of schemas, operations in the order of the page.

const api = JSON.parse(document.getElementById('document').textContent);
const schemas = api.components?.schemas ?? {};

/** The most used endpoints, first. Others follow in the document's order. */
const ORDER = [
  '/v1/chat/completions', '/v1/completions', '/v1/responses', '/v1/messages', '/generate', '/v1/messages/count_tokens',
  '/v1/responses/{id}', '/v1/embeddings', '/v1/rerank', '/v1/score', '/v1/models', '/v1/models/{id}', '/tokenize', '/detokenize',
  '/health', '/metrics', '/version',
];

function nameOf(schema) {
  return schema?.$ref?.split('/').pop();
}

/** The types of a value without null, which all optional fields may be. */
function alternatives(schema) {
  const parts = schema.oneOf ?? schema.anyOf ?? [];
  return parts.filter((part) => part.type !== 'null');
}

function typeOf(schema) {
  if (!schema || schema === true) return 'any JSON value';
  if (nameOf(schema)) return nameOf(schema);
  if (alternatives(schema).length) return [...new Set(alternatives(schema).map(typeOf))].join(' or ');
  if (schema.allOf) return [...new Set(schema.allOf.map(typeOf))].join(' and ');
  if (schema.enum) return schema.enum.filter((value) => value !== null).map((value) => JSON.stringify(value)).join(' or ');
  if ('const' in schema) return JSON.stringify(schema.const);
  const types = [schema.type].flat().filter((type) => type && type !== 'null');
  const words = types.map((type) => (type === 'array' ? `list of ${typeOf(schema.items)}` : type));
  return words.join(' or ') || 'any JSON value';
}

/** The types of other schemas in a type, to link to them. */
function namesIn(schema) {
  if (!schema || typeof schema !== 'object') return [];
  const parts = [...(schema.oneOf ?? []), ...(schema.anyOf ?? []), ...(schema.allOf ?? []), schema.items].filter(Boolean);
  return [nameOf(schema), ...parts.flatMap(namesIn)].filter(Boolean);
}

/** A field without a description has the one of its type. */
function textOf(field) {
  const parts = [field, ...alternatives(field), ...(field.allOf ?? [])];
  return parts.map((part) => part.description).find(Boolean) ?? parts.map((part) => schemas[nameOf(part)]?.description).find(Boolean) ?? '';
}

/** The fields of a schema, those that are needed first. */
function fieldsOf(schema) {
  const resolved = schemas[nameOf(schema)] ?? schema ?? {};
  const own = Object.entries(resolved.properties ?? {}).map(([name, field]) => ({
    name, field, needed: (resolved.required ?? []).includes(name),
  }));
  const all = [...own, ...(resolved.allOf ?? []).flatMap(fieldsOf)];
  return all.sort((a, b) => b.needed - a.needed);
}

/** All operations, the most used first. */
function operations() {
  const rank = (path) => (ORDER.includes(path) ? ORDER.indexOf(path) : ORDER.length);
  return Object.entries(api.paths)
    .flatMap(([path, item]) => Object.entries(item).map(([method, operation]) => ({ path, method, operation })))
    .sort((a, b) => rank(a.path) - rank(b.path));
}

/** Names and values of the examples of a request. */
function examplesOf(operation) {
  const examples = operation.requestBody?.content?.['application/json']?.examples ?? {};
  return Object.values(examples).map(({ summary, value }) => ({ summary, value }));
}
