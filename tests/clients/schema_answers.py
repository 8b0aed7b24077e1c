"""Makes a model answer to JSON schemas, and validates the answers: `schema_answers.py URL INPUTS COUNT`.

Every finished answer is valid by `jsonschema`, and no number is longer than the server's limit.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request

import jsonschema

MAX_TOKENS = 512
DIGITS = 20
EXPONENT = 308
NUMBER = re.compile(r"-?(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?")


def post(url: str, path: str, body: dict) -> dict:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)


def ask(url: str, entry: dict, **settings) -> tuple[str, str]:
    """The text of an answer, and its finish reason. It is a completion, since not every model has a chat template."""
    body = {
        "prompt": f"Question: {entry['ask']}\nAnswer in JSON:\n",
        "structured_outputs": {"json": entry["schema"]},
        "max_tokens": MAX_TOKENS,
        **settings,
    }
    choice = post(url, "/v1/completions", body)["choices"][0]
    return choice["text"], choice["finish_reason"]


def too_long(number: str) -> bool:
    """Whether a JSON number has more digits than the server's limit."""
    whole, fraction, exponent = NUMBER.fullmatch(number).groups()
    return len(whole) > DIGITS or len(fraction or "") > DIGITS or abs(int(exponent or 0)) > EXPONENT


def outside_strings(text: str) -> tuple[str, bool]:
    """The text without its strings, and whether the last string is open."""
    parts = re.split(r'"(?:[^"\\]|\\.)*"', text, flags=re.DOTALL)
    *rest, last = parts
    before, quote, _ = last.partition('"')
    return " ".join([*rest, before]), bool(quote)


def judge(entry: dict, text: str, reason: str) -> str:
    """`ended`, or `open string`. Any other result is a fault of the server."""
    plain, is_open = outside_strings(text)
    long = [match.group() for match in NUMBER.finditer(plain) if too_long(match.group())]
    assert not long, f"{entry['name']}: {long} in {text!r}"
    if reason == "length":
        assert is_open, f"{entry['name']}: no end within {MAX_TOKENS} tokens, and no string is open: {text!r}"
        return "open string"
    jsonschema.validate(json.loads(text), entry["schema"])
    return "ended"


def main() -> None:
    url, inputs, count = sys.argv[1:]
    with open(inputs, encoding="utf-8") as file:
        entries = json.load(file)["schemas"][: int(count)]
    for entry in entries:
        text, reason = ask(url, entry, temperature=0)
        assert judge(entry, text, reason) == "ended", f"{entry['name']}: {text!r}"


if __name__ == "__main__":
    main()
