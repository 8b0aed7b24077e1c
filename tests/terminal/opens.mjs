// The playground opens a conversation that `candlepower chat` has saved: `opens.mjs FILE` prints its turns as JSON.

import { readFileSync } from 'node:fs';

const SOURCES = new URL('../../crates/server/playground/', import.meta.url);
const names = ['dom', 'logprobs', 'conversation'];
const text = names.map((name) => readFileSync(new URL(`${name}.js`, SOURCES), 'utf8')).join('\n');
const Conversation = new Function(`'use strict'; ${text}; return Conversation;`)();

const saved = JSON.parse(readFileSync(process.argv[2], 'utf8'));
const turns = Conversation.load(saved.conversation).path();
console.log(JSON.stringify(turns.map(({ role, content }) => ({ role, content }))));
