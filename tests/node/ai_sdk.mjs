// Cases for the AI SDK with its clients of three APIs: `ai_sdk.mjs CASE URL` fails if the case does.

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import { bytes, cases as goldens } from "./pictures.mjs";

const [caseName, url] = process.argv.slice(2);
const baseURL = `${url}/v1`;
const apiKey = "unused";

const cases = {
  // Prompts with pictures have the tokens of transformers, and one answer in all APIs.
  async images() {
    const openai = createOpenAI({ baseURL, apiKey });
    const models = [
      openai.chat("demo"),
      openai.responses("demo"),
      createOpenAICompatible({ name: "candlepower", baseURL, includeUsage: true })("demo"),
      createAnthropic({ baseURL, apiKey })("demo"),
    ];
    const answers = new Set();
    for (const name of ["image_first", "image_first_other", "three_images"]) {
      const messages = goldens[name].messages.map(({ role, content }) => ({
        role,
        content: content.map((part) =>
          part.type === "text" ? part : { type: "file", data: bytes(part.image_url.url), mediaType: "image/png" },
        ),
      }));
      for (const model of models) {
        const request = { model, messages, temperature: 0, maxOutputTokens: 32, maxRetries: 0 };
        const whole = await generateText(request);
        assert.equal(whole.usage.inputTokens, goldens[name].input_ids.length, model.provider);
        const streamed = streamText(request);
        assert.equal(await streamed.text, whole.text, model.provider);
        assert.equal((await streamed.usage).inputTokens, whole.usage.inputTokens, model.provider);
        answers.add(whole.text);
      }
    }
    assert.equal(answers.size, 3);
  },

  // The SDK sends an answer back as references to stored items.
  async turns() {
    const bodies = [];
    const recorded = (address, options) => {
      bodies.push(options.body);
      return fetch(address, options);
    };
    const model = createOpenAI({ baseURL, apiKey, fetch: recorded }).responses("demo");
    const ask = (messages) => generateText({ model, messages, temperature: 0, maxOutputTokens: 24, maxRetries: 0 });
    const user = (content) => ({ role: "user", content });
    const [question, other] = [user("What is the capital of France?"), user("And of Japan?")];
    const first = await ask([question]);
    const second = await ask([question, ...first.response.messages, other]);
    assert.match(bodies[1], /item_reference/);
    const same = await ask([question, { role: "assistant", content: first.text }, other]);
    assert.equal(second.text, same.text);
    assert.equal(second.usage.inputTokens, same.usage.inputTokens);
  },
};

await cases[caseName]();
