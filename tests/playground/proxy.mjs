// A proxy of the server that the playground's tests use.

import http from 'node:http';

export const URL_OF_SERVER = process.env.PLAYGROUND_URL?.replace(/\/$/, '');

/** A proxy of the server below a prefix. It can demand a key, and change the list of models. */
export async function startProxy({ prefix = '', key, models, modalities } = {}) {
  const seen = [];
  const server = http.createServer(async (request, response) => {
    const parts = [];
    for await (const part of request) parts.push(part);
    const body = Buffer.concat(parts);
    seen.push({ url: request.url, authorization: request.headers.authorization, body: body.toString() });
    const path = request.url.startsWith(prefix) ? request.url.slice(prefix.length) || '/' : null;
    if (path === null) return response.writeHead(404).end();
    if (key && !['/', '/docs', '/openapi.json'].includes(path) && request.headers.authorization !== `Bearer ${key}`) {
      response.writeHead(401, { 'content-type': 'application/json' });
      const error = { message: 'The API key is wrong.', type: 'authentication_error', param: null, code: 'invalid_api_key' };
      return response.end(JSON.stringify({ error }));
    }
    const headers = { ...request.headers, host: new URL(URL_OF_SERVER).host };
    const changes = path === '/v1/models' && (models || modalities);
    const upstream = http.request(new URL(path, URL_OF_SERVER), { method: request.method, headers }, async (answer) => {
      if (!changes) {
        response.writeHead(answer.statusCode, answer.headers);
        return answer.pipe(response);
      }
      let text = '';
      for await (const part of answer) text += part;
      const list = JSON.parse(text);
      if (models) list.data = models.map((id) => ({ ...list.data[0], id }));
      if (modalities) list.data[0].input_modalities = modalities;
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(JSON.stringify(list));
    });
    upstream.on('error', () => response.destroy());
    response.on('close', () => upstream.destroy());
    upstream.end(body);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const close = () => { server.closeAllConnections(); server.close(); };
  return { seen, url: `http://127.0.0.1:${server.address().port}${prefix}/`, close };
}
