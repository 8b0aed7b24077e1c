"""Turns recorded requests of coding agents into the skeletons of tests/agents.

Texts are replaced by filler of the same shape.

    CANDLEPOWER_AGENT_REQUESTS=FOLDER cargo xtask deep agents
    python scripts/agent_requests.py FOLDER

Letters become `x` and digits `0`. Only the start of a long text is kept. Names of fields, tools and parameters stay,
as do the words of the protocol and of JSON Schema, and the test's own texts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "tests/agents"
LONGEST = 120
OWN = ["Print a word with the shell", "echo candle-$((6*7))", "candle-42", "I run it.", "The shell printed it."]
# Members whose texts are names, or words of the protocol or of JSON Schema.
WORDS = {
    "type", "role", "name", "model", "status", "tool_choice", "effort", "summary", "verbosity", "include", "keep", "ttl", "scope", "syntax",
    "$schema", "$ref", "format", "pattern", "enum", "const", "required", "display", "id_type", "mode", "service_tier",
}


def filler(text: str) -> str:
    for own in OWN:
        if own in text:
            return own if len(text) > LONGEST else text
    shape = "".join("x" if c.isascii() and c.islower() else "X" if c.isascii() and c.isupper() else "0" if c.isdigit() else "é" if not c.isascii() else c
                    for c in text)
    return shape[:LONGEST]


def skeleton(value: object, is_word: bool = False, are_names: bool = False) -> object:
    if isinstance(value, dict):
        # The members of `properties` are names, even if they look like a keyword.
        return {key: skeleton(member, key in WORDS and not are_names, key in ("properties", "$defs", "definitions")) for key, member in value.items()}
    if isinstance(value, list):
        return [skeleton(item, is_word) for item in value]
    if isinstance(value, str) and not is_word:
        return filler(value)
    return value


def main() -> None:
    for recorded in sorted(Path(sys.argv[1]).glob("*.json")):
        requests = [{"path": request["path"], "body": skeleton(request["body"])} for request in json.loads(recorded.read_text())]
        lines = ",\n".join(json.dumps(request, ensure_ascii=False) for request in requests)
        (TARGET / recorded.name).write_text(f"[\n{lines}\n]\n")
        print(recorded.name, len(requests), "requests,", len(lines), "bytes")


if __name__ == "__main__":
    main()
