"""Cases for /v1/responses with the official `openai` Python client: `responses_client.py CASE URL`."""

import json
import sys

import openai
import pictures
from openai import OpenAI
from pydantic import BaseModel, Field
from streams import in_pieces

MODEL = "demo"
URL = ""


def client(**kwargs):
    return OpenAI(base_url=f"{URL}/v1", **{"api_key": "unused", "max_retries": 0, **kwargs})


def text_and_usage():
    response = client().responses.create(
        model=MODEL, input="What is the capital of France?", temperature=0, instructions="You are helpful."
    )
    assert response.id.startswith("resp_") and response.object == "response"
    assert "Paris" in response.output_text, response.output_text
    assert (response.status, response.incomplete_details, response.error) == ("completed", None, None)
    (item,) = response.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    assert response.usage.input_tokens > 10 and response.usage.output_tokens > 0
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.instructions == "You are helpful."
    short = client().responses.create(model=MODEL, input="Tell me a story.", max_output_tokens=2, metadata={"a": "b"})
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert short.metadata == {"a": "b"} and short.usage.output_tokens == 2


def previous_response():
    openai_client = client()
    question = "What is the capital of France?"
    first = openai_client.responses.create(model=MODEL, input=question, temperature=0)
    second = openai_client.responses.create(
        model=MODEL, input="Do you like it?", previous_response_id=first.id, temperature=0
    )
    assert second.previous_response_id == first.id
    # Everything in the first turn except its last token was computed and cached.
    before = first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.input_tokens_details.cached_tokens >= (before - 2) // 16 * 16, (before, second.usage)
    # The result equals that of the whole conversation in one request.
    whole = openai_client.responses.create(
        model=MODEL,
        input=[
            {"role": "user", "content": question},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": [{"type": "input_text", "text": "Do you like it?"}]},
        ],
        temperature=0,
    )
    assert whole.output_text == second.output_text
    again = openai_client.responses.create(
        model=MODEL, input=[*[item.to_dict() for item in first.output], {"role": "user", "content": "Really?"}]
    )
    assert again.status in ("completed", "incomplete")
    # Two turns may follow the same response.
    other = openai_client.responses.create(model=MODEL, input="Thanks!", previous_response_id=first.id, temperature=0)
    assert other.id != second.id
    third = openai_client.responses.create(model=MODEL, input="And why?", previous_response_id=second.id, temperature=0)
    before = second.usage.input_tokens + second.usage.output_tokens
    assert third.usage.input_tokens_details.cached_tokens >= (before - 2) // 16 * 16, (before, third.usage)


def images():
    """Prompts with pictures have the tokens of transformers, and a later turn sees the pictures of an earlier one."""
    image = lambda name: {"type": "input_image", "image_url": pictures.url(name), "detail": "auto"}
    text = lambda text: {"type": "input_text", "text": text}
    answers = set()
    for name in ("image_first", "image_first_other", "three_images"):
        request = {"model": MODEL, "input": pictures.messages(name, image, text), "temperature": 0, "max_output_tokens": 32}
        whole = client().responses.create(**request)
        assert whole.usage.input_tokens == len(pictures.CASES[name]["input_ids"]), (name, whole.usage)
        with client().responses.stream(**request) as stream:
            final = list(stream)[-1].response
        assert final.output_text == whole.output_text, name
        follow = {"model": MODEL, "input": "And then?", "temperature": 0, "max_output_tokens": 32}
        next_turn = client().responses.create(**follow, previous_response_id=whole.id)
        answers |= {whole.output_text, next_turn.output_text}
        # The first prompt was cached. The model is not trained, and its answers are no text that has the same tokens again.
        before = whole.usage.input_tokens
        assert next_turn.usage.input_tokens_details.cached_tokens >= before // 16 * 16, (before, next_turn.usage)
    assert len(answers) == 6, answers


def stored():
    openai_client = client()
    kept = openai_client.responses.create(model=MODEL, input="Hello!", temperature=0, max_output_tokens=20)
    found = openai_client.responses.retrieve(kept.id)
    assert found.output_text == kept.output_text and found.usage == kept.usage
    openai_client.responses.delete(kept.id)
    dropped = openai_client.responses.create(model=MODEL, input="Hello!", store=False, max_output_tokens=2)
    for forgotten in (kept.id, dropped.id):
        for ask in (
            lambda: openai_client.responses.retrieve(forgotten),
            lambda: openai_client.responses.create(model=MODEL, input="x", previous_response_id=forgotten),
        ):
            try:
                ask()
            except openai.NotFoundError as error:
                assert error.code == "response_not_found", error
            else:
                raise AssertionError("a forgotten response was found")


def streaming():
    request = {"model": MODEL, "input": "What is the capital of France?", "temperature": 0}
    whole = client().responses.create(**request)
    is_delta = lambda event: event.type == "response.output_text.delta"
    events = in_pieces(lambda: client().responses.create(**request, stream=True), is_delta)
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ], kinds
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ], kinds
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if is_delta(event)]
    assert "".join(deltas) == whole.output_text
    completed = events[-1].response
    assert completed.output_text == whole.output_text
    assert completed.usage.output_tokens == whole.usage.output_tokens
    follow = client().responses.create(model=MODEL, input="Thanks!", previous_response_id=completed.id, max_output_tokens=4)
    assert follow.usage.input_tokens_details.cached_tokens > 0
    with client().responses.stream(**request, max_output_tokens=3) as stream:
        last = list(stream)[-1]
        assert last.type == "response.incomplete", last
        assert last.response.incomplete_details.reason == "max_output_tokens"


def structured():
    class Answer(BaseModel):
        ok: bool
        number: int

    parsed = client().responses.parse(model=MODEL, input="Answer!", text_format=Answer, temperature=0)
    assert isinstance(parsed.output_parsed, Answer), parsed
    schema = {"type": "object", "properties": {"x": {"enum": ["a", "b"]}}, "required": ["x"], "additionalProperties": False}
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    response = client().responses.create(model=MODEL, input="Answer!", text=text)
    assert json.loads(response.output_text)["x"] in "ab"
    assert response.text.format.type == "json_schema"


WEATHER = "What is the weather in Paris?"
GET_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
# Arguments that any constrained model writes in a few tokens.
SET_LAMP = {
    "type": "function",
    "name": "set_lamp",
    "parameters": {
        "type": "object",
        "properties": {"color": {"enum": ["red", "green"]}, "level": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["color", "level"],
        "additionalProperties": False,
    },
    "strict": True,
}
NAMED = {"type": "function", "name": "set_lamp"}


def check_lamp(item):
    assert (item.type, item.name, item.status) == ("function_call", "set_lamp", "completed"), item
    arguments = json.loads(item.arguments)
    assert arguments["color"] in ("red", "green") and arguments["level"] in range(10), item


def tools():
    openai_client = client()
    request = {"model": MODEL, "temperature": 0, "max_output_tokens": 120, "tools": [GET_WEATHER]}
    asked = openai_client.responses.create(**request, input=WEATHER)
    (call,) = asked.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed"), asked
    assert json.loads(call.arguments) == {"city": "Paris"} and call.call_id.startswith("call_") and call.id.startswith("fc_")
    assert (asked.status, asked.output_text, asked.tool_choice) == ("completed", "", "auto")
    assert asked.tools[0].to_dict() == GET_WEATHER, asked.tools
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 21, "condition": "sunny"}'}
    following = openai_client.responses.create(**request, input=[result], previous_response_id=asked.id)
    assert "21" in following.output_text, following
    before = asked.usage.input_tokens + asked.usage.output_tokens
    assert following.usage.input_tokens_details.cached_tokens >= (before - 2) // 16 * 16, (asked.usage, following.usage)
    # The result equals that of the whole conversation in one request.
    conversation = [{"role": "user", "content": WEATHER}, *[item.to_dict() for item in asked.output], result]
    whole = openai_client.responses.create(**request, input=conversation)
    assert whole.output_text == following.output_text
    plain = openai_client.responses.create(**request, input="What is the capital of France?")
    assert [item.type for item in plain.output] == ["message"] and "Paris" in plain.output_text, plain
    none = openai_client.responses.create(**request, input=WEATHER, tool_choice="none")
    assert {item.type for item in none.output} == {"message"}, none


def tool_choices():
    request = {"model": MODEL, "temperature": 0, "max_output_tokens": 120, "input": "What is the capital of France?"}
    both = [GET_WEATHER, SET_LAMP]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}
    for choice in (NAMED, allowed):
        answer = client().responses.create(**request, tools=both, tool_choice=choice, parallel_tool_calls=False)
        (call,) = answer.output
        check_lamp(call)
        assert answer.parallel_tool_calls is False
        assert (answer.tool_choice if isinstance(answer.tool_choice, dict) else answer.tool_choice.to_dict()) == choice
    required = client().responses.create(**request, tools=[SET_LAMP], tool_choice="required", parallel_tool_calls=False)
    check_lamp(required.output[0])
    # A tool that is not allowed is in the prompt, but is not called.
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]}
    answer = client().responses.create(**{**request, "input": WEATHER}, tools=both, tool_choice=allowed)
    assert all(item.type == "message" or item.name == "set_lamp" for item in answer.output), answer

    class SetLamp(BaseModel):
        level: int = Field(ge=0, le=9)

    function = openai.pydantic_function_tool(SetLamp)["function"]
    tool = {"type": "function", **function}
    parsed = client().responses.parse(**request, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    assert parsed.output[0].parsed_arguments["level"] in range(10), parsed


def tools_streaming():
    request = {"model": MODEL, "input": WEATHER, "temperature": 0, "max_output_tokens": 120, "tools": [GET_WEATHER]}
    (call,) = client().responses.create(**request).output
    is_delta = lambda event: event.type == "response.function_call_arguments.delta"
    events = in_pieces(lambda: client().responses.create(**request, stream=True), is_delta)
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"], kinds
    assert kinds[-3:] == [
        "response.function_call_arguments.done", "response.output_item.done", "response.completed",
    ], kinds
    assert [event.sequence_number for event in events] == list(range(len(events)))
    begun, done = events[2].item, events[-2].item
    assert (begun.type, begun.name, begun.arguments, begun.status) == ("function_call", "get_weather", "", "in_progress")
    fragments = [event.delta for event in events if is_delta(event)]
    assert "".join(fragments) == call.arguments == events[-3].arguments == done.arguments
    assert done.call_id == begun.call_id == events[-1].response.output[0].call_id
    assert {event.item_id for event in events[3:-2]} == {begun.id} == {done.id}
    with client().responses.stream(**request) as stream:
        final = stream.get_final_response()
    assert final.output[0].arguments == call.arguments
    cut = client().responses.create(**{**request, "max_output_tokens": 20}, tool_choice="required")
    assert (cut.status, cut.output[0].status) == ("incomplete", "incomplete"), cut


def errors():
    def refused(param, **request):
        try:
            client().responses.create(**{"model": MODEL, "input": "x", **request})
        except openai.BadRequestError as error:
            assert error.param == param, error
        else:
            raise AssertionError(f"{request} was taken")

    refused("tool_choice", tools=[{"type": "web_search"}], tool_choice="required")
    refused("tools[0].parameters", tools=[{"type": "function", "name": "f", "parameters": {"$ref": "#/no"}}])
    refused("tool_choice.name", tools=[GET_WEATHER], tool_choice={"type": "function", "name": "g"})
    refused("tool_choice.tools", tools=[GET_WEATHER], tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [NAMED]})
    refused("input[0].call_id", input=[{"type": "function_call_output", "output": "x"}])
    refused("truncation", truncation="auto")
    refused("input", input=[])
    refused("text.format.schema", text={"format": {"type": "json_schema", "name": "x", "schema": {"type": "no"}}})
    refused("temperature", temperature=3)
    refused("input", input="word " * 5000)
    try:
        client().responses.create(model="other", input="x")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
    else:
        raise AssertionError("another model answered")


if __name__ == "__main__":
    URL = sys.argv[2]
    globals()[sys.argv[1]]()
