"""Cases for /v1/messages with the official `anthropic` Python client: `anthropic_client.py CASE URL`."""

import json
import sys

import anthropic
import pictures
from anthropic import Anthropic
from pydantic import BaseModel
from streams import in_pieces

MODEL = "demo"
URL = ""
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
# The client has no parameter for temperature any more, but the protocol still has the field.
GREEDY = {"temperature": 0}


def client(**kwargs):
    return Anthropic(base_url=URL, **{"api_key": "unused", "max_retries": 0, **kwargs})


def create(**request):
    """One message with greedy decoding."""
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
    cached = again.usage.cache_read_input_tokens
    assert cached == (usage.input_tokens - 1) // 16 * 16, again.usage
    assert again.usage.input_tokens == usage.input_tokens - cached
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
    # If the last message is the assistant's, the model continues it.
    prefix = (beginning + "Paris").strip()
    going_on = create(messages=[*CAPITAL, {"role": "assistant", "content": prefix}])
    assert prefix + going_on.content[0].text == text.strip(), (prefix, going_on, text)


def is_delta(event):
    return event.type == "content_block_delta"


def streaming():
    whole = create()
    events = in_pieces(lambda: create(stream=True), is_delta)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"], kinds
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds
    assert set(kinds[2:-3]) == {"content_block_delta"}, kinds
    start = events[0].message.usage
    assert start.input_tokens + start.cache_read_input_tokens == whole.usage.input_tokens
    assert events[-2].usage.output_tokens == whole.usage.output_tokens
    with client().messages.stream(model=MODEL, max_tokens=64, messages=CAPITAL, extra_body=GREEDY) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        final = stream.get_final_message()
    assert (final.stop_reason, final.content[0].text) == ("end_turn", whole.content[0].text)


def images():
    """Prompts with pictures have the tokens of transformers."""
    source = lambda name: {"type": "base64", "media_type": "image/png", "data": pictures.encoded(name)}
    image = lambda name: {"type": "image", "source": source(name)}
    answers = set()
    for name in ("image_first", "image_first_other", "three_images"):
        messages, expected = pictures.messages(name, image), len(pictures.CASES[name]["input_ids"])
        request = {"messages": messages, "max_tokens": 32}
        whole = create(**request)
        assert whole.usage.input_tokens + whole.usage.cache_read_input_tokens == expected, (name, whole.usage)
        assert client().messages.count_tokens(model=MODEL, messages=messages).input_tokens == expected, name
        with client().messages.stream(model=MODEL, **request, extra_body=GREEDY) as stream:
            assert stream.get_final_text() == whole.content[0].text, name
        answers.add(whole.content[0].text)
    assert len(answers) == 3, answers


def structured():
    class Answer(BaseModel):
        ok: bool
        number: int

    parsed = client().messages.parse(model=MODEL, max_tokens=200, messages=CAPITAL, output_format=Answer)
    assert isinstance(parsed.parsed_output, Answer), parsed


WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
GET_WEATHER = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
# Arguments that any constrained model writes in a few tokens.
SET_LAMP = {
    "name": "set_lamp",
    "strict": True,
    "input_schema": {
        "type": "object",
        "properties": {"color": {"enum": ["red", "green"]}, "level": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["color", "level"],
        "additionalProperties": False,
    },
}


def check_lamp(block):
    assert (block.type, block.name) == ("tool_use", "set_lamp"), block
    assert block.input["color"] in ("red", "green") and block.input["level"] in range(10), block


def tools():
    asked = create(messages=WEATHER, tools=[GET_WEATHER], max_tokens=120)
    (call,) = asked.content
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"}), asked
    assert asked.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": '{"temperature": 21, "condition": "sunny"}'}
    conversation = [*WEATHER, {"role": "assistant", "content": asked.content}, {"role": "user", "content": [result]}]
    answer = create(messages=conversation, tools=[GET_WEATHER], max_tokens=120)
    assert answer.stop_reason == "end_turn" and "21" in answer.content[0].text, answer
    # The generated turn is not computed again.
    before = asked.usage.input_tokens + asked.usage.cache_read_input_tokens
    assert answer.usage.cache_read_input_tokens >= before // 16 * 16, (asked.usage, answer.usage)
    counted = client().messages.count_tokens(model=MODEL, messages=conversation, tools=[GET_WEATHER])
    assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens
    plain = create(tools=[GET_WEATHER])
    assert plain.content[0].type == "text" and "Paris" in plain.content[0].text, plain
    # Tools that must not be called are not in the prompt.
    none = create(messages=WEATHER, tools=[GET_WEATHER], tool_choice={"type": "none"})
    assert {block.type for block in none.content} == {"text"}, none
    assert none.usage.input_tokens + none.usage.cache_read_input_tokens < before


def tool_choices():
    both = [GET_WEATHER, SET_LAMP]
    for choice in ({"type": "tool", "name": "set_lamp"}, {"type": "any", "disable_parallel_tool_use": True}):
        offered = both if choice["type"] == "tool" else [SET_LAMP]
        answer = create(tools=offered, tool_choice=choice, max_tokens=120)
        (call,) = answer.content
        check_lamp(call)
        assert answer.stop_reason == "tool_use", answer
    cut = create(tools=both, tool_choice={"type": "tool", "name": "set_lamp"}, max_tokens=24)
    assert cut.stop_reason == "max_tokens" and "INVALID_JSON" in cut.content[0].input, cut


def tools_streaming():
    request = {"messages": WEATHER, "tools": [GET_WEATHER], "max_tokens": 120}
    whole = create(**request)
    events = in_pieces(lambda: create(**request, stream=True), is_delta)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"], kinds
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds
    assert events[1].content_block.type == "tool_use" and events[1].content_block.input == {}
    fragments = [event.delta.partial_json for event in events if is_delta(event)]
    assert json.loads("".join(fragments)) == {"city": "Paris"}, fragments
    assert events[-2].delta.stop_reason == "tool_use"
    with client().messages.stream(model=MODEL, extra_body=GREEDY, **request) as stream:
        final = stream.get_final_message()
    assert (final.content[0].name, final.content[0].input) == (whole.content[0].name, whole.content[0].input)
    assert final.usage.output_tokens == whole.usage.output_tokens


def count_tokens():
    counted = client().messages.count_tokens(model=MODEL, messages=CAPITAL, system="You are helpful.")
    answer = client().messages.create(model=MODEL, max_tokens=1, messages=CAPITAL, system="You are helpful.")
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def errors():
    def refused(status, **request):
        try:
            extra = {"thread": request.pop("thread")} if "thread" in request else None
            client().messages.create(**{"model": MODEL, "max_tokens": 4, "messages": CAPITAL, **request}, extra_body=extra)
        except anthropic.APIStatusError as error:
            assert error.status_code == status, error
            return error.body["error"]
        raise AssertionError(f"{request} was taken")

    bash = {"type": "bash_20250124", "name": "bash"}
    assert refused(400, tools=[bash], tool_choice={"type": "any"})["param"] == "tool_choice"
    assert refused(400, thread={"type": "create"})["details"]["error_code"] == "thread_unsupported_request"
    unknown = {"name": "f", "strict": True, "input_schema": {"type": "object", "$ref": "#/no"}}
    assert refused(400, tools=[unknown])["param"] == "tools[0].input_schema"
    assert refused(400, tools=[GET_WEATHER], tool_choice={"type": "tool", "name": "g"})["param"] == "tool_choice.name"
    calling = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
    assert refused(400, tools=[GET_WEATHER], messages=[*WEATHER, calling])["param"] == "messages"
    budget = refused(400, thinking={"type": "enabled", "budget_tokens": -1})
    assert budget["param"] == "thinking.budget_tokens"
    assert refused(400, messages=[])["param"] == "messages"
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    assert refused(400, messages=[{"role": "user", "content": [image]}])["param"] == "messages[0].content[0].source"
    assert refused(400, max_tokens=0)["param"] == "max_tokens"
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
