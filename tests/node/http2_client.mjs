// Cases for Node's own HTTP/2 client: `http2_client.mjs CASE URL [AUTHORITY]` fails if the case does. AUTHORITY is
// the certificate authority's file, for https.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import http2 from "node:http2";

const [caseName, url, authority] = process.argv.slice(2);
// Node counts unsent bodies towards a session's memory, in MB, and accepts no answer when it is full.
const options = { maxSessionMemory: 200, ...(authority ? { ca: readFileSync(authority) } : {}) };
const connect = () => http2.connect(url, options);
const messages = [{ role: "user", content: "What is the capital of France?" }];
const chat = { model: "demo", messages, temperature: 0, max_tokens: 64 };
const long = { model: "demo", prompt: "a", max_tokens: 1900, temperature: 0, ignore_eos: true };

// Opens a stream. The body is sent unchanged, or as JSON if it is an object.
function open(session, method, path, body, headers = {}) {
  const json = { "content-type": "application/json" };
  const stream = session.request({ ":method": method, ":path": path, ...(body ? json : {}), ...headers });
  if (body) stream.end(Buffer.isBuffer(body) ? body : JSON.stringify(body));
  return stream;
}

function status(stream) {
  return new Promise((resolve, reject) => {
    stream.on("response", (headers) => resolve(headers[":status"]));
    stream.on("error", reject);
    stream.on("close", () => reject(new Error("closed without an answer")));
  });
}

async function text(stream) {
  let whole = "";
  stream.setEncoding("utf8");
  for await (const part of stream) whole += part;
  return whole;
}

async function ask(session, method, path, body, headers) {
  const stream = open(session, method, path, body, headers);
  const code = await status(stream);
  return { code, text: await text(stream) };
}

const events = (text) => text.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));

async function metric(session, name) {
  const { text } = await ask(session, "GET", "/metrics");
  const values = text.split("\n").filter((line) => line.split(/[{ ]/)[0] === `candlepower_${name}`);
  return values.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(" "))), 0);
}

async function until(what, probe) {
  const end = Date.now() + 240_000;
  while (!(await probe())) assert.ok(Date.now() < end, `waited too long for ${what}`);
}

const cases = {
  async chat() {
    const session = connect();
    const whole = await ask(session, "POST", "/v1/chat/completions", chat);
    assert.equal(whole.code, 200, whole.text);
    const content = JSON.parse(whole.text).choices[0].message.content;
    assert.match(content, /Paris/);
    const streamed = await ask(session, "POST", "/v1/chat/completions", { ...chat, stream: true });
    const chunks = events(streamed.text);
    assert.equal(chunks.pop(), "[DONE]");
    const parts = chunks.map((chunk) => JSON.parse(chunk).choices[0]?.delta.content ?? "");
    assert.equal(parts.join(""), content);
    session.close();
  },

  // Many events arrive while the answer is generated.
  async events_are_not_held_back() {
    const session = connect();
    const stream = open(session, "POST", "/v1/completions", { ...long, stream: true });
    assert.equal(await status(stream), 200);
    let pieces = 0;
    let running = 0;
    for await (const part of stream) {
      pieces += part.length > 0;
      if (pieces === 1) running = await metric(session, "num_requests_running");
    }
    assert.equal(running, 1);
    assert.ok(pieces > 20, `${pieces}`);
    session.close();
  },

  async many_streams_at_once() {
    const session = connect();
    const asked = Array.from({ length: 64 }, () => ask(session, "POST", "/v1/chat/completions", chat));
    for (const { code, text } of await Promise.all(asked)) {
      assert.equal(code, 200, text);
      assert.match(JSON.parse(text).choices[0].message.content, /Paris/);
    }
    session.close();
  },

  // The server requires a key, and these bodies are larger than its limit.
  async early_answers() {
    const body = Buffer.alloc(40 << 20, " ");
    const key = { authorization: "Bearer secret" };
    const early = [
      ["POST", "/v1/completions", {}, 401],
      ["POST", "/v1/completions", key, 413],
      ["POST", "/v1/nothing", key, 404],
      ["PUT", "/v1/completions", key, 405],
      ["POST", "/v1/completions", { ...key, "content-encoding": "gzip" }, 415],
    ];
    for (const [method, path, headers, expected] of early) {
      const session = connect();
      const answer = await ask(session, method, path, body, headers);
      assert.equal(answer.code, expected, answer.text);
      assert.ok(JSON.parse(answer.text).error.message);
      assert.equal((await ask(session, "GET", "/v1/models", null, key)).code, 200);
      session.close();
    }
  },

  async hosts() {
    const session = connect();
    for (const [headers, expected] of [
      [{ ":authority": "localhost" }, 200],
      [{ ":authority": "attacker.example" }, 421],
      [{ ":authority": "localhost", host: "attacker.example" }, 400],
    ]) {
      const answer = await ask(session, "GET", "/v1/models", null, headers);
      assert.equal(answer.code, expected, answer.text);
    }
    const large = Buffer.alloc(40 << 20, " ");
    const answer = await ask(session, "POST", "/v1/completions", large, { ":authority": "attacker.example" });
    assert.equal(answer.code, 421, answer.text);
    session.close();
  },

  // A reset stream or a closed connection ends its requests, streamed or not.
  async cancel() {
    for (const end of ["reset", "connection"]) {
      for (const stream of [true, false]) {
        const [session, probe] = [connect(), connect()];
        session.on("error", () => {});
        const before = await metric(probe, "generation_tokens_total");
        const asked = open(session, "POST", "/v1/completions", { ...long, stream });
        asked.on("error", () => {});
        await until("the request to run", async () => (await metric(probe, "num_requests_running")) === 1);
        if (end === "reset") asked.close(http2.constants.NGHTTP2_CANCEL);
        else session.destroy();
        await until("the request to end", async () => (await metric(probe, "num_requests_running")) === 0);
        const generated = (await metric(probe, "generation_tokens_total")) - before;
        assert.ok(generated < long.max_tokens, `${end} of a ${stream ? "streamed" : "whole"} answer: ${generated}`);
        if (end === "reset") assert.equal((await ask(session, "GET", "/health")).code, 200);
        session.destroy();
        probe.close();
      }
    }
  },

  // Prints when it streams. The test then stops the server, which sends GOAWAY and finishes the stream.
  async drain() {
    const session = connect();
    const goodbye = new Promise((resolve) => session.on("goaway", resolve));
    const stream = open(session, "POST", "/v1/completions", { ...long, stream: true });
    assert.equal(await status(stream), 200);
    let whole = "";
    stream.setEncoding("utf8");
    for await (const part of stream) {
      if (whole === "") console.log("streaming");
      whole += part;
    }
    assert.equal(await goodbye, http2.constants.NGHTTP2_NO_ERROR);
    const chunks = events(whole);
    assert.equal(chunks.pop(), "[DONE]");
    assert.equal(JSON.parse(chunks.pop()).choices[0].finish_reason, "length");
  },
};

await cases[caseName]();
