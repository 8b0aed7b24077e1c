"""Cases for structured outputs and tools with the official `openai` client: `structured_client.py CASE URL` fails if
one does.

All cases set max_tokens, because the server's default is 16.
"""

import json
import sys

import openai_client
from openai import LengthFinishReasonError, pydantic_function_tool
from openai_client import MODEL, client
from pydantic import BaseModel, Field

ASK = {"model": MODEL, "temperature": 0, "max_tokens": 160}
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]


class Person(BaseModel):
    """A tool like those that the demo model was trained on."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)
    city: str = Field(max_length=20)


class GetWeather(BaseModel):
    """Get the weather of a city."""

    city: str = Field(max_length=20)


def parse_into_a_model():
    question = [{"role": "user", "content": "Make up a person. Answer in JSON with name, age and city."}]
    answer = client().chat.completions.parse(**ASK, messages=question, response_format=Person)
    person = answer.choices[0].message.parsed
    assert isinstance(person, Person), answer
    try:
        client().chat.completions.parse(**{**ASK, "max_tokens": 4}, messages=question, response_format=Person)
        raise AssertionError("an answer that was cut off was parsed")
    except LengthFinishReasonError as error:
        assert error.completion.choices[0].message.content.startswith("{")
    with client().chat.completions.stream(**ASK, messages=question, response_format=Person) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == person


def parse_a_call():
    tools = [pydantic_function_tool(GetWeather)]
    assert tools[0]["function"]["strict"] is True
    answer = client().chat.completions.parse(**ASK, messages=WEATHER, tools=tools, tool_choice="required", parallel_tool_calls=False)
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, GetWeather), call
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None


def calls_by_the_models_decision():
    function = {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
    tools = [{"type": "function", "function": function}]
    answer = client().chat.completions.create(**ASK, messages=WEATHER, tools=tools)
    message = answer.choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "Paris"}, call

    parts = []
    for chunk in client().chat.completions.create(**ASK, messages=WEATHER, tools=tools, stream=True):
        parts += chunk.choices[0].delta.tool_calls or []
    assert parts[0].id and parts[0].type == "function" and parts[0].function.name == "get_weather"
    assert "".join(part.function.arguments for part in parts) == call.function.arguments
    with client().chat.completions.stream(**ASK, messages=WEATHER, tools=tools) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.done" in events, set(events)
    assert final.message.tool_calls[0].function.arguments == call.function.arguments

    result = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21, "condition": "sunny"}'}
    answer = client().chat.completions.create(**ASK, messages=[*WEATHER, message, result], tools=tools)
    assert "21" in answer.choices[0].message.content, answer
    plain = client().chat.completions.create(**ASK, messages=openai_client.CAPITAL, tools=tools)
    assert plain.choices[0].message.tool_calls is None and "Paris" in plain.choices[0].message.content, plain


if __name__ == "__main__":
    case, openai_client.URL = sys.argv[1:]
    globals()[case]()
