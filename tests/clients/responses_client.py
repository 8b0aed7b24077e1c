"""Cases for /v1/responses with the official `openai` Python client: `responses_client.py CASE URL`."""

import json
import sys

import openai
from openai import OpenAI
from pydantic import BaseModel

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
    # All of the first turn but its very last token was computed and kept.
    before = first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.input_tokens_details.cached_tokens >= before - 2, (before, second.usage)
    # The same as the whole conversation at once.
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
    # Each of two turns may follow the same one.
    other = openai_client.responses.create(model=MODEL, input="Thanks!", previous_response_id=first.id, temperature=0)
    assert other.id != second.id
    third = openai_client.responses.create(model=MODEL, input="And why?", previous_response_id=second.id, temperature=0)
    before = second.usage.input_tokens + second.usage.output_tokens
    assert third.usage.input_tokens_details.cached_tokens >= before - 2, (before, third.usage)


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
    events = list(client().responses.create(**request, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ], kinds
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ], kinds
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1 and "".join(deltas) == whole.output_text
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


def errors():
    def refused(param, **request):
        try:
            client().responses.create(**{"model": MODEL, "input": "x", **request})
        except openai.BadRequestError as error:
            assert error.param == param, error
        else:
            raise AssertionError(f"{request} was taken")

    refused("tools", tools=[{"type": "function", "name": "f", "parameters": {"type": "object"}}])
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
