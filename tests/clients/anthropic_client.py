"""Cases for /v1/messages with the official `anthropic` Python client: `anthropic_client.py CASE URL`."""

import sys

import anthropic
from anthropic import Anthropic
from pydantic import BaseModel

MODEL = "demo"
URL = ""
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
# The client has no name for it any more, the wire has.
GREEDY = {"temperature": 0}


def client(**kwargs):
    return Anthropic(base_url=URL, **{"api_key": "unused", "max_retries": 0, **kwargs})


def create(**request):
    """One message, greedily."""
    return client().messages.create(**{"model": MODEL, "max_tokens": 64, "messages": CAPITAL, "extra_body": GREEDY, **request})


def message():
    answer = create()
    assert answer.id.startswith("msg_") and (answer.type, answer.role) == ("message", "assistant")
    assert answer.model == MODEL
    (block,) = answer.content
    assert block.type == "text" and "Paris" in block.text, block
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    usage = answer.usage
    assert usage.input_tokens > 0 and usage.output_tokens > 0 and usage.cache_read_input_tokens == 0
    again = create(max_tokens=1)
    assert again.stop_reason == "max_tokens"
    assert again.usage.cache_read_input_tokens == usage.input_tokens - 1 and again.usage.input_tokens == 1
    system = [{"type": "text", "text": "You are helpful.", "cache_control": {"type": "ephemeral"}}]
    told = create(system=system)
    whole = told.usage.input_tokens + told.usage.cache_read_input_tokens
    assert whole > usage.input_tokens, (whole, usage)


def stop_and_continue():
    answer = create()
    text = answer.content[0].text
    stopped = create(stop_sequences=["Par", "never there"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Par"), stopped
    beginning = text.split("Par")[0]
    assert stopped.content[0].text == beginning
    # Where the last message is the assistant's, the model goes on with it.
    prefix = (beginning + "Paris").strip()
    going_on = create(messages=[*CAPITAL, {"role": "assistant", "content": prefix}])
    assert prefix + going_on.content[0].text == text.strip(), (prefix, going_on, text)


def streaming():
    whole = create()
    events = list(create(stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"], kinds
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds
    assert set(kinds[2:-3]) == {"content_block_delta"} and len(kinds) > 6, kinds
    start = events[0].message.usage
    assert start.input_tokens + start.cache_read_input_tokens == whole.usage.input_tokens
    assert events[-2].usage.output_tokens == whole.usage.output_tokens
    with client().messages.stream(model=MODEL, max_tokens=64, messages=CAPITAL, extra_body=GREEDY) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        final = stream.get_final_message()
    assert (final.stop_reason, final.content[0].text) == ("end_turn", whole.content[0].text)


def structured():
    class Answer(BaseModel):
        ok: bool
        number: int

    parsed = client().messages.parse(model=MODEL, max_tokens=200, messages=CAPITAL, output_format=Answer)
    assert isinstance(parsed.parsed_output, Answer), parsed


def count_tokens():
    counted = client().messages.count_tokens(model=MODEL, messages=CAPITAL, system="You are helpful.")
    answer = client().messages.create(model=MODEL, max_tokens=1, messages=CAPITAL, system="You are helpful.")
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def errors():
    def refused(status, **request):
        try:
            client().messages.create(**{"model": MODEL, "max_tokens": 4, "messages": CAPITAL, **request})
        except anthropic.APIStatusError as error:
            assert error.status_code == status, error
            return error.body["error"]
        raise AssertionError(f"{request} was taken")

    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    assert refused(400, tools=tools)["param"] == "tools"
    assert refused(400, thinking={"type": "enabled", "budget_tokens": 1024})["param"] == "thinking"
    assert refused(400, messages=[])["param"] == "messages"
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    assert refused(400, messages=[{"role": "user", "content": [image]}])["param"] == "messages[0].content[0].type"
    assert refused(400, max_tokens=5000)["param"] == "max_tokens"
    assert refused(404, model="other")["code"] == "model_not_found"


def authentication():
    answer = client(api_key="secret").messages.create(model=MODEL, max_tokens=4, messages=CAPITAL)
    assert answer.usage.output_tokens > 0
    try:
        client(api_key="wrong").messages.create(model=MODEL, max_tokens=4, messages=CAPITAL)
    except anthropic.AuthenticationError:
        return
    raise AssertionError("a wrong key was taken")


if __name__ == "__main__":
    URL = sys.argv[2]
    globals()[sys.argv[1]]()
