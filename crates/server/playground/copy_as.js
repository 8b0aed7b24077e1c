// The request as a command or program. The key is a variable of the environment there, never its value.

/** Fields that OpenAI's clients have parameters for. Others need `extra_body` in Python. */
const CLIENT_FIELDS = new Set(['model', 'messages', 'temperature', 'top_p', 'max_tokens', 'presence_penalty', 'frequency_penalty', 'seed',
  'stop', 'logprobs', 'top_logprobs', 'tools', 'tool_choice', 'response_format', 'reasoning_effort', 'stream', 'stream_options']);

const COPY_LANGUAGES = { curl: asCurl, Python: asPython, Node: asNode };

/** JSON without characters that a terminal or an editor would act on, or hide. */
function safeJson(value, indent = 2) {
  return JSON.stringify(value, null, indent).replace(/[\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

function asCurl(body, server, hasKey) {
  const url = shellQuoted(new URL('v1/chat/completions', server).href);
  const key = hasKey ? ' \\\n  -H "Authorization: Bearer $API_KEY"' : '';
  // No line of JSON is `END`, so the text cannot leave the here-document.
  return `curl -N ${url}${key} \\\n  -H 'Content-Type: application/json' --data-binary @- <<'END'\n${safeJson(body)}\nEND\n`;
}

function shellQuoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function asPython(body, server, hasKey) {
  const known = Object.entries(body).filter(([name]) => CLIENT_FIELDS.has(name));
  const others = Object.fromEntries(Object.entries(body).filter(([name]) => !CLIENT_FIELDS.has(name)));
  if (Object.keys(others).length) known.push(['extra_body', others]);
  const fields = known.map(([name, value]) => `    ${name}=${pythonLiteral(value, 4)},\n`).join('');
  return `${hasKey ? 'import os\n\n' : ''}from openai import OpenAI

client = OpenAI(base_url=${safeJson(new URL('v1', server).href)}, api_key=${hasKey ? 'os.environ["API_KEY"]' : '"none"'})
stream = client.chat.completions.create(
${fields})
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
print()
`;
}

/** A value as Python writes it. Texts of JSON are texts of Python. */
function pythonLiteral(value, indent) {
  if (value === null) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (typeof value !== 'object') return safeJson(value);
  const pad = ' '.repeat(indent + 4);
  const parts = Array.isArray(value)
    ? value.map((item) => pythonLiteral(item, indent + 4))
    : Object.entries(value).filter(([, item]) => item !== undefined)
      .map(([name, item]) => `${safeJson(name)}: ${pythonLiteral(item, indent + 4)}`);
  const [open, close] = Array.isArray(value) ? '[]' : '{}';
  return parts.length ? `${open}\n${parts.map((part) => `${pad}${part},\n`).join('')}${' '.repeat(indent)}${close}` : open + close;
}

function asNode(body, server, hasKey) {
  return `import OpenAI from 'openai';

const client = new OpenAI({ baseURL: ${safeJson(new URL('v1', server).href)}, apiKey: ${hasKey ? 'process.env.API_KEY' : "'none'"} });
const stream = await client.chat.completions.create(${safeJson(body)});
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? '');
process.stdout.write('\\n');
`;
}

/** Shows a request in the dialog. */
function showCopyDialog(body, hasKey) {
  const code = byId('copy-code');
  const choose = (language) => {
    code.textContent = COPY_LANGUAGES[language](body, SERVER, hasKey);
    for (const tab of byId('copy-languages').children) tab.setAttribute('aria-pressed', String(tab.textContent === language));
  };
  byId('copy-languages').replaceChildren(...Object.keys(COPY_LANGUAGES).map((language) => button(language, () => choose(language))));
  choose('curl');
  byId('copy-dialog').showModal();
}
