// Requests to the server, and its streams.

/** The server's address. The page is only served at its root, so the page's path is the prefix, with or without a slash. */
const SERVER = new URL(location.pathname.replace(/\/?$/, '/'), location.origin);

/** An answer that is no success, or a stream that ended with an error. */
class ApiError extends Error {
  constructor(message, { status, type, param, code, retryAfter } = {}) {
    super(message);
    Object.assign(this, { status, type, param, code, retryAfter });
  }
}

/** Sends a request. A body makes it a POST. */
async function request(path, { key, body, signal } = {}) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers['Content-Type'] = 'application/json';
  let response;
  try {
    response = await fetch(new URL(path, SERVER), {
      method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body), signal, credentials: 'same-origin', redirect: 'error',
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError('The server cannot be reached.', { code: 'unreachable' });
  }
  if (response.ok) return response;
  const parsed = parseJson(await response.text()).value?.error;
  const message = typeof parsed?.message === 'string' ? parsed.message : `The server answered with status ${response.status}.`;
  const retryAfter = response.headers.get('retry-after');
  throw new ApiError(message, { status: response.status, type: parsed?.type, param: parsed?.param, code: parsed?.code, retryAfter });
}

/** Takes a stream of server-sent events in pieces, and returns the data of each event that is complete. */
class EventParser {
  #rest = '';
  #data = [];

  push(text) {
    const events = [];
    // A carriage return at the end may be half of a line break.
    const whole = this.#rest + text;
    const cut = whole.endsWith('\r') ? whole.length - 1 : whole.length;
    const lines = whole.slice(0, cut).split(/\r\n|\n|\r/);
    this.#rest = lines.pop() + whole.slice(cut);
    for (const line of lines) {
      if (line.startsWith('data:')) {
        this.#data.push(line.slice(line[5] === ' ' ? 6 : 5));
      } else if (line === '' && this.#data.length) {
        events.push(this.#data.join('\n'));
        this.#data = [];
      }
      // Comments (`: keep-alive`) and other fields say nothing about the answer.
    }
    return events;
  }
}

/** The data of a stream's events. Characters may be split over pieces. */
async function* streamEvents(stream) {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = stream.getReader();
  try {
    while (true) {
      const { done, value } = await reader.read();
      yield* parser.push(decoder.decode(value, { stream: !done }));
      if (done) return;
    }
  } finally {
    // Nothing is read any more, so the server may stop.
    reader.cancel().catch(() => {});
  }
}

/** Requests an answer and passes each chunk of it. Returns the parts of the request that the server left out, or null. */
async function streamAnswer(body, { key, signal, onChunk }) {
  const response = await request('v1/chat/completions', { key, body, signal });
  try {
    for await (const data of streamEvents(response.body)) {
      if (data === '[DONE]') return response.headers.get('x-candlepower-not-held');
      const { value: chunk } = parseJson(data);
      if (chunk?.error) throw new ApiError(String(chunk.error.message ?? 'The answer failed.'), chunk.error);
      if (isObject(chunk)) onChunk(chunk);
    }
  } catch (error) {
    if (error.name === 'AbortError' || error instanceof ApiError) throw error;
    throw new ApiError('The connection broke off before the answer was complete.', { code: 'interrupted' });
  }
  throw new ApiError('The answer ended before it was complete.', { code: 'interrupted' });
}
