// Parts of the playground's page, without a browser.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';

import { payloads } from './samples.mjs';

const SOURCES = new URL('../../crates/server/playground/', import.meta.url);

/** Functions of the page's sources. */
function loadSources() {
  const names = ['dom', 'schema', 'api', 'logprobs', 'conversation', 'copy_as'];
  const text = names.map((name) => readFileSync(new URL(`${name}.js`, SOURCES), 'utf8')).join('\n');
  const wanted = ['EventParser', 'streamEvents', 'validateSchema', 'Conversation', 'wholeCharacters', 'asCurl', 'asPython', 'asNode',
    'SERVER'];
  return new Function('location', `'use strict'; ${text}; return { ${wanted.join(', ')} };`)({ pathname: '/p', origin: 'http://h' });
}

export const units = {
  async 'events are the same in pieces of any size'() {
    const { streamEvents } = loadSources();
    const text = ': keep-alive\n\ndata: {"a":"é🕯️日本"}\r\n\r\nevent: x\rdata:one\rdata: two\r\rdata: [DONE]\n\ndata: cut';
    const bytes = new TextEncoder().encode(text);
    for (let size = 1; size <= bytes.length; size += 1) {
      const pieces = [];
      for (let at = 0; at < bytes.length; at += size) pieces.push(bytes.slice(at, at + size));
      const stream = ReadableStream.from(pieces);
      const events = [];
      for await (const data of streamEvents(stream)) events.push(data);
      assert.deepEqual(events, ['{"a":"é🕯️日本"}', 'one\ntwo', '[DONE]'], `pieces of ${size}`);
    }
  },
  async 'the page below a prefix without a slash has the prefix'() {
    assert.equal(loadSources().SERVER.href, 'http://h/p/');
  },
  async 'the validator checks common keywords and names others'() {
    const { validateSchema } = loadSources();
    const cases = [
      [{ type: 'object', required: ['a'] }, { a: 1 }, {}],
      [{ type: 'integer', minimum: 1, maximum: 3 }, 3, 4],
      [{ exclusiveMinimum: 1, exclusiveMaximum: 3 }, 2, 3],
      [{ multipleOf: 0.1 }, 0.3, 0.35],
      [{ enum: [1, { b: [2] }] }, { b: [2] }, { b: [3] }],
      [{ const: null }, null, 0],
      [{ minLength: 2, maxLength: 2 }, '🕯🕯', '🕯'],
      [{ pattern: '^a+$' }, 'aa', 'ab'],
      [{ properties: { a: { type: 'string' } }, additionalProperties: false }, { a: 'x' }, { a: 'x', b: 1 }],
      [{ patternProperties: { '^a': { type: 'null' } } }, { ab: null }, { ab: 1 }],
      [{ propertyNames: { maxLength: 1 } }, { a: 1 }, { ab: 1 }],
      [{ items: { type: 'boolean' }, minItems: 1, maxItems: 2, uniqueItems: true }, [true, false], [true, true]],
      [{ prefixItems: [{ type: 'string' }], items: false }, ['a'], ['a', 1]],
      [{ contains: { const: 1 }, maxContains: 1 }, [1, 2], [1, 1]],
      [{ anyOf: [{ type: 'string' }, { type: 'null' }] }, null, 1],
      [{ oneOf: [{ minimum: 1 }, { maximum: 2 }] }, 0, 1.5],
      [{ allOf: [{ minimum: 1 }, { maximum: 2 }] }, 1, 3],
      [{ not: { type: 'string' } }, 1, ''],
      [{ if: { type: 'string' }, then: { minLength: 1 }, else: { minimum: 1 } }, 'a', 0],
      [{ $ref: '#/$defs/a~1b', $defs: { 'a/b': { type: 'array', items: { $ref: '#' } } } }, [[], []], 1],
      [{ dependentRequired: { a: ['b'] } }, { a: 1, b: 1 }, { a: 1 }],
      [{ minProperties: 1, maxProperties: 1 }, { a: 1 }, {}],
      [false, undefined, 1],
    ];
    for (const [schema, good, bad] of cases) {
      if (schema !== false) assert.deepEqual(validateSchema(schema, good), { errors: [], unchecked: [] }, JSON.stringify(schema));
      assert.notEqual(validateSchema(schema, bad).errors.length, 0, JSON.stringify(schema));
    }
    const { unchecked } = validateSchema({ format: 'date', title: 't', unevaluatedItems: false }, 1);
    assert.deepEqual(unchecked, ['`format`', '`unevaluatedItems`']);
    assert.deepEqual(validateSchema({ pattern: '^(a+)+$' }, `${'a'.repeat(50)}b`).unchecked, ['`pattern` ^(a+)+$']);
    assert.equal(validateSchema({ $ref: '#' }, 1).unchecked.length, 1, 'a reference to itself ends');
    assert.equal(validateSchema({ constructor: 1, toString: 1 }, 1).errors.length, 0);
    const wrong = {
      required: 5, properties: null, enum: {}, allOf: 1, pattern: [], items: [1], $ref: 7, patternProperties: 'x', prefixItems: 3,
    };
    validateSchema(wrong, {});
    validateSchema(wrong, []);
    validateSchema(wrong, 'x');
  },
  async 'imports are refused if they are no conversation'() {
    const { Conversation } = loadSources();
    const user = { id: 't1', parent: 'root', role: 'user', content: 'a' };
    const load = (...turns) => Conversation.load({ turns, chosen: { root: 't1' } });
    assert.equal(load(user).path()[0].content, 'a');
    const wrong = [
      { ...user, id: '__proto__' }, { ...user, parent: 't2' }, { ...user, parent: 't1' }, { ...user, role: 'system' },
      { ...user, content: 1 },
      { ...user, images: ['https://example.com/a.png'] }, { ...user, images: ['data:image/svg+xml;base64,AA=='] },
      { ...user, images: ['data:image/png;base64,AA==" onerror="x'] }, { ...user, calls: [{ id: 1 }] },
      { ...user, logprobs: [{ token: {} }] },
      { ...user, stats: [] }, { ...user, schema: 'x' }, null, [],
    ];
    for (const turn of wrong) assert.throws(() => load(turn), /must be|names/, JSON.stringify(turn));
    assert.throws(() => load(user, user), /twice/);
    assert.throws(() => Conversation.load({ turns: [user], chosen: { root: 't9' } }), /does not exist/);
    assert.throws(() => Conversation.load({ turns: [user], chosen: JSON.parse('{"__proto__": "t1"}') }), /does not exist/);
    assert.equal(load({ ...user, onclick: 'x' }).path()[0].onclick, undefined);
  },
  async 'tokens that share a character are shown as one'() {
    const bytes = [...new TextEncoder().encode('a🕯b')];
    const entries = [[0, 1], [1, 3], [3, 5], [5, 6]].map(([from, to]) => ({ token: '?', logprob: 0, bytes: bytes.slice(from, to) }));
    assert.deepEqual(loadSources().wholeCharacters(entries).map(({ text }) => text), ['a', '🕯', 'b']);
  },
  async 'copied requests are what was asked, whatever its text'() {
    const { asCurl, asPython, asNode } = loadSources();
    const texts = [...payloads, "it's $HOME `id` \\ \" \nEND\n$(id)", '\u001b[31m\u0007\u009b \u202e\u2028 \ud800 é🕯'];
    const messages = texts.map((content) => ({ role: 'user', content }));
    const body = { model: texts[0], messages, top_k: 3, stop: ["'"], logprobs: true, seed: null };
    const server = new URL("http://127.0.0.1:1/it's/$HOME/");
    const expected = JSON.parse(JSON.stringify(body));
    const run = (program, arguments_, input) => {
      const result = spawnSync(program, arguments_, { input, encoding: 'utf8', env: { ...process.env, API_KEY: 'k' } });
      assert.equal(result.status, 0, result.stderr);
      return JSON.parse(result.stdout);
    };
    const curl = asCurl(body, server, true);
    const check = `curl() { [ "$2" = "http://127.0.0.1:1/it's/\\$HOME/v1/chat/completions" ] && cat; }\n`;
    assert.deepEqual(run('bash', [], check + curl), expected);
    const python = asPython(body, server, true);
    const stub = 'import json, sys, types\nmodule = types.ModuleType("openai")\n'
      + 'class OpenAI:\n    def __init__(self, **more): self.chat = self\n'
      + '    @property\n    def completions(self): return self\n    def create(self, extra_body, **fields):\n'
      + '        sys.stdout.write(json.dumps({**fields, **extra_body})); return []\n'
      + 'module.OpenAI = OpenAI\nsys.modules["openai"] = module\nprint = lambda *more: None\n';
    assert.deepEqual(run('python3', ['-'], stub + python), expected);
    const node = asNode(body, server, true).replace("import OpenAI from 'openai';",
      'class OpenAI { chat = { completions: { create(body) { process.stdout.write(JSON.stringify(body)); process.exit(0); } } }; }');
    assert.deepEqual(run(process.execPath, ['--input-type=module'], node), expected);
    for (const text of [curl, python, node]) assert.doesNotMatch(text, /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u2028-\u202e]/);
  },
};
