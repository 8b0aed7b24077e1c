"""Cases for frameworks based on the `openai` client: `framework_client.py CASE URL` fails if the case does.

The frameworks pin an older `openai` than the other clients. So they have requirements of their own in
tests/requirements-frameworks.txt. All cases set max_tokens, because the server's default is 16.
"""

import os
import sys

import instructor
import pictures
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel, Field

URL = ""
# No service other than the tested server may be called.
os.environ["LANGSMITH_TRACING"] = "false"


class Person(BaseModel):
    """A tool like those that the demo model was trained on."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)
    city: str = Field(max_length=20)


def instructor_models():
    question = [{"role": "user", "content": "Make up a person. Answer in JSON with name, age and city."}]
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
        patched = instructor.from_openai(OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0), mode=mode)
        person = patched.chat.completions.create(model="demo", temperature=0, max_tokens=160, messages=question, response_model=Person, max_retries=0)
        assert isinstance(person, Person), (mode, person)


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"21 degrees, sunny, in {city}"


def langchain_models():
    model = ChatOpenAI(
        model="demo", base_url=f"{URL}/v1", api_key="unused", temperature=0, max_tokens=160, max_retries=0
    )
    for method in ("function_calling", "json_schema"):
        person = model.with_structured_output(Person, method=method).invoke("Make up a person. Answer in JSON with name, age and city.")
        assert isinstance(person, Person), (method, person)
    question = HumanMessage("What is the weather in Paris?")
    bound = model.bind_tools([get_weather])
    called = bound.invoke([question])
    (call,) = called.tool_calls
    assert call["name"] == "get_weather" and call["args"] == {"city": "Paris"}, called
    result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    assert "21" in bound.invoke([question, called, result]).content
    chunks = list(bound.stream([question]))
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    assert total.tool_calls[0]["args"] == {"city": "Paris"}, total
    forced = model.bind_tools([get_weather], tool_choice="any").invoke("Hello")
    assert forced.tool_calls, forced


def langchain_images():
    """LangChain's own form of images and OpenAI's, through chat and through responses."""
    for responses in (False, True):
        model = ChatOpenAI(
            model="demo", base_url=f"{URL}/v1", api_key="unused", temperature=0, max_tokens=32, max_retries=0,
            use_responses_api=responses,
        )
        own = lambda name: {"type": "image", "base64": pictures.encoded(name), "mime_type": "image/png"}
        openai_form = lambda name: {"type": "image_url", "image_url": {"url": pictures.url(name)}}
        answers = set()
        for name in ("image_first", "image_first_other", "three_images"):
            for image in (own, openai_form):
                answer = model.invoke(pictures.messages(name, image))
                assert answer.usage_metadata["input_tokens"] == len(pictures.CASES[name]["input_ids"]), answer
                answers.add(answer.text)
        assert len(answers) == 3, answers


if __name__ == "__main__":
    case, URL = sys.argv[1:]
    globals()[case]()
