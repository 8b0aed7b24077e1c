"""Cases for the official `openai` Python client: `openai_client.py CASE URL` fails if the case does."""

import asyncio
import json
import math
import sys
import time
import urllib.request

import openai
import pictures
from openai import AsyncOpenAI, OpenAI
from streams import in_pieces

MODEL = "demo"
URL = ""
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
# Far more tokens than a cancelled request can receive.
LONG = {"max_tokens": 1900, "extra_body": {"ignore_eos": True}}


def client(**kwargs):
    kwargs = {"api_key": "unused", "max_retries": 0, **kwargs}
    return OpenAI(base_url=f"{URL}/v1", **kwargs)


def metric(name):
    """Sum of a metric over its labels."""
    with urllib.request.urlopen(f"{URL}/metrics") as response:
        lines = response.read().decode().splitlines()
    name = f"candlepower_{name}"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def wait_until_idle():
    """Waits until no request holds a KV block: ours was cancelled or has ended."""
    deadline = time.monotonic() + 240
    while metric("num_requests_running") or metric("kv_blocks_free") != metric("kv_blocks_total"):
        assert time.monotonic() < deadline, "the request was not cancelled"
    assert metric("generation_tokens_total") < LONG["max_tokens"], "the request ran to its end"


def chat():
    answer = client().chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0, max_tokens=64)
    assert answer.id.startswith("chatcmpl-"), answer.id
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert abs(answer.created - time.time()) < 3600
    (choice,) = answer.choices
    assert choice.index == 0
    assert choice.message.role == "assistant"
    assert "Paris" in choice.message.content, choice.message.content
    assert choice.finish_reason == "stop"
    usage = answer.usage
    assert usage.prompt_tokens > 0 and usage.completion_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == 0
    again = client().chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0, max_tokens=64)
    assert again.choices[0].message.content == choice.message.content
    assert again.id != answer.id
    short = client().chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0, max_completion_tokens=1)
    assert short.choices[0].finish_reason == "length"
    assert short.usage.completion_tokens == 1


def chat_stream():
    request = {"model": MODEL, "messages": CAPITAL, "temperature": 0, "max_tokens": 64}
    whole = client().chat.completions.create(**request)
    create = client().chat.completions.create
    chunks = in_pieces(lambda: create(**request, stream=True), lambda chunk: chunk.choices[0].delta.content)
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1
    first, last = chunks[0].choices[0], chunks[-1].choices[0]
    assert first.delta.role == "assistant" and first.delta.content == "" and first.finish_reason is None
    assert last.finish_reason == whole.choices[0].finish_reason == "stop"
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-1])
    assert all(chunk.usage is None for chunk in chunks)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content


def chat_usage_in_stream():
    request = {"model": MODEL, "messages": CAPITAL, "temperature": 0, "max_tokens": 64}
    whole = client().chat.completions.create(**request)
    options = {"include_usage": True}
    chunks = list(client().chat.completions.create(**request, stream=True, stream_options=options))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert all(chunk.usage is None and chunk.choices for chunk in chunks[:-1])


def completions():
    answer = client().completions.create(model=MODEL, prompt="The capital of", temperature=0, max_tokens=8)
    assert answer.id.startswith("cmpl-"), answer.id
    assert answer.object == "text_completion"
    (choice,) = answer.choices
    assert choice.text and choice.finish_reason in ("stop", "length")
    assert 1 <= answer.usage.completion_tokens <= 8
    default = client().completions.create(model=MODEL, prompt="The", temperature=0, extra_body={"ignore_eos": True})
    assert default.usage.completion_tokens == 16, "max_tokens is 16 unless a request says otherwise"


def completions_of_many_prompts():
    def texts(prompt):
        answer = client().completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=6)
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        return [choice.text for choice in answer.choices]

    prompts = ["The capital of France", "One and two", "My name is"]
    alone = [texts(prompt)[0] for prompt in prompts]
    assert texts(prompts) == alone
    ids = [tokenize(prompt) for prompt in prompts]
    assert texts(ids) == alone
    assert texts(ids[1]) == alone[1:2]


def tokenize(prompt):
    body = json.dumps({"model": MODEL, "prompt": prompt}).encode()
    request = urllib.request.Request(f"{URL}/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)["tokens"]


def completions_stream():
    request = {"model": MODEL, "prompt": ["The capital of", "One and"], "temperature": 0, "max_tokens": 8}
    whole = client().completions.create(**request)
    texts = ["", ""]
    for chunk in client().completions.create(**request, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


def echo_scores_a_prompt():
    prompt = "The capital of France is"
    answer = client().completions.create(model=MODEL, prompt=prompt, max_tokens=0, echo=True, logprobs=2)
    (choice,) = answer.choices
    assert choice.text == prompt
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == prompt
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert logprobs.text_offset[0] == 0 and logprobs.text_offset == sorted(logprobs.text_offset)
    assert answer.usage.completion_tokens == 0


def models():
    listed = list(client().models.list())
    assert [model.id for model in listed] == [MODEL]
    model = client().models.retrieve(MODEL)
    assert model.id == MODEL and model.object == "model" and model.owned_by
    assert model.max_model_len == 2048 and model.root == "demo"


def n_choices():
    request = {"model": MODEL, "messages": CAPITAL, "temperature": 1.5, "seed": 7, "max_tokens": 12}
    request["extra_body"] = {"ignore_eos": True}
    answer = client().chat.completions.create(**request, n=4)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len(set(texts)) == 4, texts
    assert answer.usage.completion_tokens == 48
    # Choice i equals the output of seed 7 + i alone.
    for i, text in enumerate(texts):
        alone = client().chat.completions.create(**{**request, "seed": 7 + i})
        assert alone.choices[0].message.content == text, i
    streamed = [""] * 4
    for chunk in client().chat.completions.create(**request, n=4, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def stop():
    request = {"model": MODEL, "messages": CAPITAL, "temperature": 0, "max_tokens": 64}
    text = client().chat.completions.create(**request).choices[0].message.content
    # A string in the middle that starts within one word and ends within another.
    middle = text[len(text) // 3 : len(text) // 3 + 6]
    answer = client().chat.completions.create(**request, stop=middle)
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.message.content == text[: text.index(middle)]
    assert choice.stop_reason == middle
    chunks = client().chat.completions.create(**request, stop=["never there", middle], stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == choice.message.content
    kept = client().chat.completions.create(**request, stop=middle, extra_body={"include_stop_str_in_output": True})
    assert kept.choices[0].message.content == text[: text.index(middle) + len(middle)]


def logprobs():
    request = {"model": MODEL, "messages": CAPITAL, "temperature": 0, "max_tokens": 5}
    answer = client().chat.completions.create(**request, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    text = b"".join(bytes(token.bytes) for token in content).decode()
    assert text == answer.choices[0].message.content
    for token in content:
        top = token.top_logprobs
        assert len(top) == 3
        assert top[0].token == token.token and top[0].logprob == token.logprob, "greedy takes the likeliest"
        assert 0 >= top[0].logprob >= top[1].logprob >= top[2].logprob
        assert sum(math.exp(candidate.logprob) for candidate in top) <= 1.0001
    streamed = []
    for chunk in client().chat.completions.create(**request, logprobs=True, top_logprobs=3, stream=True):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert [token.logprob for token in streamed] == [token.logprob for token in content]
    plain = client().chat.completions.create(**request)
    assert plain.choices[0].logprobs is None
    legacy = client().completions.create(model=MODEL, prompt="The capital", temperature=0, max_tokens=3, logprobs=2)
    lists = legacy.choices[0].logprobs
    assert "".join(lists.tokens) == legacy.choices[0].text
    assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs) == len(lists.text_offset)


def refused(error, **changes):
    request = {"model": MODEL, "messages": CAPITAL, "max_tokens": 4, **changes}
    try:
        client().chat.completions.create(**request)
    except error as raised:
        return raised
    raise AssertionError(f"{changes} was not refused")


def errors():
    unknown = refused(openai.NotFoundError, model="nothing")
    assert unknown.status_code == 404 and unknown.code == "model_not_found" and unknown.param == "model"
    assert unknown.type == "invalid_request_error"
    for name, value in [
        ("temperature", 3),
        ("top_p", 0),
        ("n", 129),
        ("max_tokens", 0),
        ("presence_penalty", -2.5),
        ("messages", []),
        ("stop", [""]),
        ("top_logprobs", 21),
    ]:
        error = refused(openai.BadRequestError, **{name: value})
        assert error.param == name, (name, error.body)
        assert error.type == "invalid_request_error"
    assert refused(openai.BadRequestError, tools=[], tool_choice="required").param == "tool_choice"
    impossible = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer", "minimum": 2, "maximum": 1}}}
    error = refused(openai.BadRequestError, response_format=impossible)
    assert error.param == "response_format.json_schema.schema", error.body
    try:
        client().models.retrieve("nothing")
        raise AssertionError("an unknown model was found")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
    try:
        client().embeddings.create(model=MODEL, input="x")
        raise AssertionError("embeddings were answered")
    except (openai.NotFoundError, openai.BadRequestError) as error:
        assert error.type == "invalid_request_error"
    long = [{"role": "user", "content": "word " * 5000}]
    error = refused(openai.BadRequestError, messages=long)
    assert error.code == "context_length_exceeded" and "2048" in error.message, error.message


def cancel():
    stream = client().chat.completions.create(model=MODEL, messages=CAPITAL, stream=True, **LONG)
    for _ in range(5):
        next(stream)
    assert metric("num_requests_running") == 1
    stream.close()
    wait_until_idle()


def extra_fields():
    request = {"model": MODEL, "messages": CAPITAL, "temperature": 0, "max_tokens": 8}
    plain = client().chat.completions.create(**request).choices[0].message.content
    # Fields that cannot change the output are accepted.
    ignored = {"user": "someone", "metadata": {"a": "b"}, "store": False}
    assert client().chat.completions.create(**request, **ignored).choices[0].message.content == plain
    # Unknown fields could be meant to change the output, so they are refused by name.
    error = refused(openai.BadRequestError, extra_body={"no_such_field": 1})
    assert error.param == "no_such_field"
    ids = client().chat.completions.create(**request, extra_body={"return_token_ids": True})
    assert len(ids.choices[0].token_ids) == ids.usage.completion_tokens


def request_id():
    raw = client().chat.completions.with_raw_response
    given = raw.create(model=MODEL, messages=CAPITAL, max_tokens=1, extra_headers={"X-Request-Id": "mine"})
    assert given.headers["x-request-id"] == "mine"
    answer = client().chat.completions.create(model=MODEL, messages=CAPITAL, max_tokens=1)
    assert answer._request_id


def authentication():
    for key in ("wrong", "secret2", "secre"):
        try:
            client(api_key=key).models.list()
            raise AssertionError(f"the key {key} was accepted")
        except openai.AuthenticationError as error:
            assert error.type == "authentication_error"
    right = client(api_key="secret")
    assert [model.id for model in right.models.list()] == [MODEL]
    assert right.chat.completions.create(model=MODEL, messages=CAPITAL, max_tokens=1).choices


def rate_limit():
    """One request runs and one waits. The server of this case has no room for a third."""
    streams = [client().chat.completions.create(model=MODEL, messages=CAPITAL, stream=True, **LONG) for _ in range(2)]
    deadline = time.monotonic() + 240
    while metric("num_requests_waiting") != 1:
        assert time.monotonic() < deadline, "the second request does not wait"
    error = refused(openai.RateLimitError)
    assert error.type == "rate_limit_error"
    assert int(error.response.headers["retry-after"]) >= 1
    for stream in streams:
        stream.close()


def stream_until_killed():
    stream = client().chat.completions.create(model=MODEL, messages=CAPITAL, stream=True, **LONG)
    next(stream)
    print("streaming", flush=True)
    # The rest is never requested. The test kills this process here.
    time.sleep(3600)


def images():
    """Prompts with pictures have the tokens and the answers of transformers."""
    image = lambda name: {"type": "image_url", "image_url": {"url": pictures.url(name), "detail": "high"}}
    assert client().models.retrieve(MODEL).input_modalities == ["text", "image"]
    more = {"ignore_eos": True, "return_token_ids": True}
    for name in ("image_first", "image_first_other", "three_images", "earlier_turn"):
        case = pictures.CASES[name]
        request = {"model": MODEL, "messages": pictures.messages(name, image), "temperature": 0, "max_tokens": 32}
        whole = client().chat.completions.create(**request, extra_body=more)
        assert whole.choices[0].token_ids == case["greedy"], (name, whole)
        assert whole.usage.prompt_tokens == len(case["input_ids"]), (name, whole.usage)
        chunks = list(client().chat.completions.create(**request, extra_body=more, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == whole.choices[0].message.content, name
    broken = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]
    try:
        client().chat.completions.create(model=MODEL, messages=broken)
        raise AssertionError("a broken picture was taken")
    except openai.BadRequestError as error:
        assert error.param == "messages[0].content[0].image_url", error


def async_requests():
    async def run():
        api = AsyncOpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)
        prompts = [f"{i} plus {i}" for i in range(1, 13)]

        async def one(prompt):
            answer = await api.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=10)
            return answer.choices[0].text

        alone = [await one(prompt) for prompt in prompts]
        assert await asyncio.gather(*(one(prompt) for prompt in prompts)) == alone

    asyncio.run(run())


def async_cancel():
    async def run():
        api = AsyncOpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)
        # A request without streaming is cancelled, too, when its task is.
        task = asyncio.create_task(api.chat.completions.create(model=MODEL, messages=CAPITAL, **LONG))
        while not await asyncio.to_thread(metric, "num_requests_running"):
            assert not task.done(), "the request was over before it could be cancelled"
        task.cancel()
        try:
            await task
            raise AssertionError("a cancelled request was answered")
        except asyncio.CancelledError:
            pass
        await asyncio.to_thread(wait_until_idle)

    asyncio.run(run())


if __name__ == "__main__":
    case, URL = sys.argv[1:]
    globals()[case]()
