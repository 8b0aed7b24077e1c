// Cases for the official `openai` Node client: `openai_client.mjs CASE URL` fails if the case does.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { cases as goldens, dataUrl } from "./pictures.mjs";

const [caseName, url] = process.argv.slice(2);
const model = "demo";
const messages = [{ role: "user", content: "What is the capital of France?" }];
const client = (options = {}) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0, ...options });

async function metric(name) {
  const text = await (await fetch(`${url}/metrics`)).text();
  const values = text.split("\n").filter((line) => line.split(/[{ ]/)[0] === `candlepower_${name}`);
  return values.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(" "))), 0);
}

const cases = {
  async chat() {
    const answer = await client().chat.completions.create({ model, messages, temperature: 0, max_tokens: 64 });
    assert.match(answer.id, /^chatcmpl-/);
    assert.equal(answer.choices.length, 1);
    assert.equal(answer.choices[0].message.role, "assistant");
    assert.match(answer.choices[0].message.content, /Paris/);
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  },

  async chat_stream() {
    const request = { model, messages, temperature: 0, max_tokens: 64 };
    const whole = await client().chat.completions.create(request);
    const options = { stream: true, stream_options: { include_usage: true } };
    const stream = await client().chat.completions.create({ ...request, ...options });
    let text = "";
    let finish = null;
    let usage = null;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      finish = chunk.choices[0]?.finish_reason ?? finish;
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(finish, whole.choices[0].finish_reason);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
    // The client's own helper assembles the same answer from the chunks.
    const helper = client().chat.completions.stream(request);
    const final = await helper.finalChatCompletion();
    assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
  },

  async completions() {
    const request = { model, prompt: ["The capital of", "One and two"], temperature: 0, max_tokens: 8 };
    const whole = await client().completions.create(request);
    assert.match(whole.id, /^cmpl-/);
    assert.deepEqual(whole.choices.map((choice) => choice.index), [0, 1]);
    const texts = ["", ""];
    for await (const chunk of await client().completions.create({ ...request, stream: true })) {
      for (const choice of chunk.choices) texts[choice.index] += choice.text;
    }
    assert.deepEqual(texts, whole.choices.map((choice) => choice.text));
  },

  async models() {
    const ids = [];
    for await (const found of client().models.list()) ids.push(found.id);
    assert.deepEqual(ids, [model]);
    assert.equal((await client().models.retrieve(model)).id, model);
  },

  async n_stop_logprobs() {
    const sampled = { model, messages, n: 3, seed: 11, temperature: 1.5, max_tokens: 16, ignore_eos: true };
    const texts = (await client().chat.completions.create(sampled)).choices.map((choice) => choice.message.content);
    assert.equal(new Set(texts).size, 3);
    const again = (await client().chat.completions.create(sampled)).choices.map((choice) => choice.message.content);
    assert.deepEqual(again, texts);

    const greedy = { model, messages, temperature: 0, max_tokens: 64 };
    const text = (await client().chat.completions.create(greedy)).choices[0].message.content;
    const stop = text.slice(5, 9);
    const stopped = (await client().chat.completions.create({ ...greedy, stop: [stop] })).choices[0];
    assert.equal(stopped.message.content, text.slice(0, text.indexOf(stop)));
    assert.equal(stopped.finish_reason, "stop");

    const scored = await client().chat.completions.create({ ...greedy, logprobs: true, top_logprobs: 2 });
    for (const token of scored.choices[0].logprobs.content) {
      assert.equal(token.top_logprobs.length, 2);
      assert.equal(token.top_logprobs[0].logprob, token.logprob);
    }
  },

  async parse_into_zod_models() {
    const Person = z.object({ name: z.string().max(20), age: z.number().int().min(0).max(150), city: z.string().max(20) });
    const question = [{ role: "user", content: "Make up a person. Answer in JSON with name, age and city." }];
    const request = { model, messages: question, temperature: 0, max_tokens: 160 };
    const answer = await client().chat.completions.parse({ ...request, response_format: zodResponseFormat(Person, "person") });
    Person.parse(answer.choices[0].message.parsed);
  },

  async functions() {
    const GetWeather = z.object({ city: z.string().max(20) });
    const tools = [zodFunction({ name: "get_weather", description: "Get the weather of a city.", parameters: GetWeather })];
    const question = [{ role: "user", content: "What is the weather in Paris?" }];
    const request = { model, messages: question, temperature: 0, max_tokens: 160, tools };
    for (const tool_choice of ["auto", "required"]) {
      const answer = await client().chat.completions.parse({ ...request, tool_choice, parallel_tool_calls: false });
      const [call] = answer.choices[0].message.tool_calls;
      assert.equal(call.function.name, "get_weather");
      GetWeather.parse(call.function.parsed_arguments);
      assert.equal(answer.choices[0].finish_reason, "tool_calls");
      const streamed = client().chat.completions.stream({ ...request, tool_choice, parallel_tool_calls: false });
      const final = (await streamed.finalChatCompletion()).choices[0].message.tool_calls[0];
      assert.equal(final.function.arguments, call.function.arguments);
    }
  },

  async errors() {
    const refused = (changes) => client().chat.completions.create({ model, messages, ...changes });
    await assert.rejects(refused({ model: "nothing" }), (error) => {
      assert(error instanceof OpenAI.NotFoundError, error);
      assert.equal(error.code, "model_not_found");
      assert.equal(error.param, "model");
      return true;
    });
    for (const [param, value] of [["temperature", 3], ["n", 0], ["messages", []], ["stop", [""]]]) {
      await assert.rejects(refused({ [param]: value }), (error) => {
        assert(error instanceof OpenAI.BadRequestError, error);
        assert.equal(error.param, param);
        assert.equal(error.type, "invalid_request_error");
        return true;
      });
    }
    await assert.rejects(client().models.retrieve("nothing"), OpenAI.NotFoundError);
  },

  async cancel() {
    const request = { model, messages, stream: true, max_tokens: 1900, ignore_eos: true };
    const stream = await client().chat.completions.create(request);
    let chunks = 0;
    for await (const _ of stream) {
      chunks += 1;
      if (chunks === 5) stream.controller.abort();
    }
    assert(chunks >= 5 && chunks < 1900);
    const deadline = Date.now() + 240_000;
    while ((await metric("kv_blocks_free")) !== (await metric("kv_blocks_total"))) {
      assert(Date.now() < deadline, "the request was not cancelled");
    }
    assert((await metric("generation_tokens_total")) < 1900, "the request ran to its end");
  },

  // Prompts with pictures have the tokens and the answers of transformers.
  async images() {
    for (const name of ["image_first", "image_first_other", "three_images"]) {
      const { messages, input_ids, greedy } = goldens[name];
      for (const part of messages.flatMap((message) => message.content)) {
        if (part.type === "image_url") part.image_url.url = dataUrl(part.image_url.url);
      }
      const request = { model, messages, temperature: 0, max_tokens: 32, ignore_eos: true, return_token_ids: true };
      const whole = await client().chat.completions.create(request);
      assert.deepEqual(whole.choices[0].token_ids, greedy);
      assert.equal(whole.usage.prompt_tokens, input_ids.length);
      const final = await client().chat.completions.stream(request).finalChatCompletion();
      assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
    }
  },

  async authentication() {
    await assert.rejects(client({ apiKey: "wrong" }).models.list(), OpenAI.AuthenticationError);
    const right = client({ apiKey: "secret" });
    assert.equal((await right.models.list()).data[0].id, model);
  },

  // One request runs and one waits. The server of this case has no room for a third.
  async rate_limit() {
    const long = { model, messages, stream: true, max_tokens: 1900, ignore_eos: true };
    const streams = [];
    for (let i = 0; i < 2; i++) streams.push(await client().chat.completions.create(long));
    const deadline = Date.now() + 240_000;
    while ((await metric("num_requests_waiting")) !== 1) {
      assert(Date.now() < deadline, "the second request does not wait");
    }
    await assert.rejects(client().chat.completions.create({ model, messages }), (error) => {
      assert(error instanceof OpenAI.RateLimitError, error);
      assert.equal(error.type, "rate_limit_error");
      return true;
    });
    for (const stream of streams) stream.controller.abort();
  },
};

await cases[caseName]();
