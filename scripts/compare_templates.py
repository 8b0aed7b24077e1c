"""Renders 70 published chat templates with transformers and with candlepower, and compares the prompts.

The templates are those of llama.cpp's own tests, from the source package of llama-cpp-python. They are not part of
this repository, since their licences differ. Similar templates are in crates/tokenizer/tests/data.

Needs: `pip install transformers==5.23.0 jinja2==3.1.6 scikit-build-core cmake`. pip reads the source package with the
last two.

Run from the repository's root: `python scripts/compare_templates.py [--templates FOLDER]`.

Exits with 1 if a prompt differs that is not in KNOWN.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

from transformers.utils import chat_template_utils

PACKAGE = "llama-cpp-python==0.3.36"
INSIDE = "vendor/llama.cpp/models/templates/"
NUM_TEMPLATES = 70
NOW_UNIX_S = 1_752_000_000  # 2025-07-08 18:40:00 UTC
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

# Template and conversation, with the reason that their prompts may differ.
KNOWN = {
    ("llama-cpp-deepseek-r1", "tools"): "written for llama.cpp: in transformers `tojson` fails on the result of `map`",
    ("meetkai-functionary-medium-v3.1", "tools"): "`|safe +` makes Jinja2 write &lt; for the < of a description",
}

# Further variables that single templates need.
VARIABLES = {"fireworks-ai-llama-3-firefunction-v2": {"functions": '[{"name": "noop"}]', "datetime": "2025-07-08"}}
ARGUMENTS_ARE_TEXT = {"meetkai-functionary-medium-v3.2"}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather <now> & \"later\" in a city's centre, ü 日本",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name", "default": "Bern", "enum": ["Bern", "Basel"]},
                    "days": {"type": "integer", "description": "How many"},
                    "units": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "celsius or not"},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "noop", "description": "Nothing", "parameters": {"type": "object", "properties": {}}}},
]
CALL = {
    "id": "abcdefgh1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Bern", "days": 2, "deep": {"x": [1.5, None, True]}}},
}
CONVERSATIONS = {
    "plain": ([{"role": "user", "content": "Hello <you> & 'me' \"ü\" 日本 🎈"}], None),
    "system": ([{"role": "system", "content": "You are brief.\n"}, {"role": "user", "content": " Hi \n"}], None),
    "tools": (
        [
            {"role": "user", "content": "Weather in Bern?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefgh1", "content": '{"celsius": 21.0}'},
        ],
        TOOLS,
    ),
    "multi-turn": (
        [
            {"role": "system", "content": "You are brief."},
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": "<think>\nIt is 2.\n</think>\n\n2"},
            {"role": "user", "content": "And 2+2?\n\nThanks"},
            {"role": "assistant", "reasoning_content": "four", "content": "4  "},
            {"role": "user", "content": "Good"},
        ],
        None,
    ),
}


class FixedClock(datetime.datetime):
    """The time that strftime_now sees."""

    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW_UNIX_S, datetime.timezone.utc).replace(tzinfo=None)


def download() -> dict[str, str]:
    """The templates in the source package, by name."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        # pip asks the package for its metadata. This requires cmake, but compiles nothing.
        path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
        subprocess.run(
            [*command, "--no-build-isolation", "--dest", folder, PACKAGE], check=True, env={**os.environ, "PATH": path}
        )
        (archive,) = pathlib.Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            names = [name for name in tar.getnames() if INSIDE in name and name.endswith(".jinja")]
            return {pathlib.Path(name).stem: tar.extractfile(name).read().decode() for name in names}


def case(name: str, template: str, messages: list, tools: list | None) -> dict:
    # transformers uses a template named tool_use only with a list of tools, which may be empty.
    tools = [] if tools is None and name.endswith("-tool_use") else tools
    if name in ARGUMENTS_ARE_TEXT:
        messages = json.loads(json.dumps(messages))
        for call in [call for message in messages for call in message.get("tool_calls", [])]:
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return {
        "template": template,
        "tokenizer_config": SPECIAL_TOKENS,
        "messages": messages,
        "tools": tools,
        "kwargs": VARIABLES.get(name, {}),
        "now_unix_s": NOW_UNIX_S,
    }


def expected(case: dict) -> dict:
    try:
        rendered, _ = chat_template_utils.render_jinja_template(
            conversations=[case["messages"]],
            tools=case["tools"],
            chat_template=case["template"],
            add_generation_prompt=True,
            **SPECIAL_TOKENS,
            **case["kwargs"],
        )
    except Exception as error:  # any error means that the template refuses the conversation
        return {"error": str(error).splitlines()[0] if str(error) else type(error).__name__}
    return {"text": rendered[0]}


def ours(cases: list[dict]) -> list[dict]:
    command = ["cargo", "run", "--quiet", "--package", "candlepower-tokenizer", "--example", "render_templates"]
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    result = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in result.stdout.splitlines()]


def verdict(theirs: dict, mine: dict) -> str:
    if "text" in theirs and "text" in mine:
        return "equal" if theirs["text"] == mine["text"] else "differs"
    return "refused" if "error" in theirs and "error" in mine else "differs"


def explain(theirs: dict, mine: dict) -> str:
    if "error" in theirs or "error" in mine:
        return "\n".join(f"  {who}: {str(answer)[:300]}" for who, answer in [("transformers", theirs), ("candlepower", mine)])
    pairs = enumerate(zip(theirs["text"] + "\0", mine["text"] + "\0"))
    at = next(index for index, (a, b) in pairs if a != b)
    return "\n".join(f"  {who}: ..{text[max(0, at - 40) : at + 60]!r}" for who, text in [("transformers", theirs["text"]), ("candlepower", mine["text"])])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--templates", type=pathlib.Path, help="a folder of .jinja files, instead of downloading them")
    folder = parser.parse_args().templates
    templates = {path.stem: path.read_text() for path in folder.glob("*.jinja")} if folder else download()
    chat_template_utils.datetime = FixedClock
    names = sorted(templates, key=str.lower)
    cases = [case(name, templates[name], *conversation) for name in names for conversation in CONVERSATIONS.values()]
    answers = iter(zip(cases, ours(cases), strict=True))
    counts = {"equal": 0, "refused": 0, "known": 0, "differs": 0}
    details = []
    print(f"{'template':52}" + "".join(f"{name:12}" for name in CONVERSATIONS))
    for name in names:
        row = []
        for conversation in CONVERSATIONS:
            given, mine = next(answers)
            theirs = expected(given)
            result = verdict(theirs, mine)
            if result == "differs":
                details.append(f"{name}, {conversation}:\n{explain(theirs, mine)}")
                result = "known" if (name, conversation) in KNOWN else result
            counts[result] += 1
            row.append(result)
        print(f"{name:52}" + "".join(f"{result:12}" for result in row))
    print("\n".join(details))
    for (name, conversation), reason in KNOWN.items():
        print(f"known: {name}, {conversation}: {reason}")
    print(f"{len(names)} templates, {len(cases)} prompts: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    if not folder and len(names) != NUM_TEMPLATES:
        print(f"expected {NUM_TEMPLATES} templates")
        return 1
    return 1 if counts["differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
