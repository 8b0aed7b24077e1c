// Texts and conversations of the playground's tests.

import { readFileSync } from 'node:fs';

/** The texts that the scripted model writes. */
const { answers, payloads } = JSON.parse(readFileSync(new URL('answers.json', import.meta.url)));
export { payloads };

export const TOOL = 'get_weather';

export const answerText = (name) => {
  const { text, repeat = 1 } = answers.find((answer) => answer.name === name);
  return text.repeat(repeat);
};

/** A conversation with all that turns can have. */
export function sampleConversation() {
  const other = { token: '?', logprob: -9 };
  const logprobs = [...'Hello! '].map((token, i) => ({ token, logprob: -i / 2, top_logprobs: [{ token, logprob: -i / 2 }, other] }));
  const schema = { type: 'object', required: ['a'], 'x-note': 1 };
  const stats = { prompt: 40, cached: 32, completion: 7, reasoning: 2, first: 12, perSecond: 30 };
  const calls = [{ id: '1', name: TOOL, arguments: '{"city": "Oslo"}' }, { id: '2', name: TOOL, arguments: '{"unit": 1}' }];
  const turns = [
    { role: 'user', content: 'A message', images: ['data:image/png;base64,iVBORw0KGgo='] },
    { role: 'assistant', content: answerText('text'), reasoning: 'Some *reasoning*', model: 'demo', finish: 'length', stats },
    { role: 'user', content: 'A message' },
    { role: 'assistant', content: 'Hello! ', logprobs, model: 'demo', finish: 'stop', notHeld: 'verbosity (high)' },
    { role: 'user', content: 'A message' },
    { role: 'assistant', content: '{"b": 1}', schema, model: 'demo', isStopped: true },
    { role: 'user', content: 'A message' },
    { role: 'assistant', content: '', error: 'The queue is full.', model: 'demo' },
    { role: 'tool', content: '{"celsius": 4}', callId: '0', name: TOOL },
    { role: 'assistant', content: 'One call more.', calls, model: 'demo', finish: 'tool_calls' },
  ].map((turn, i) => ({ ...turn, id: `t${i + 1}`, parent: i ? `t${i}` : 'root' }));
  const chosen = Object.fromEntries(turns.map(({ id, parent }) => [parent, id]));
  const tools = [{ name: TOOL, description: '', parameters: { type: 'object', required: ['city'] } }];
  return { format: 'candlepower-playground', version: 1, tools, conversation: { turns, chosen } };
}
