"""Writes corpus.jsonl: 1,300 wrong request bodies, each with the status of its answer.

A line is `{"path", "type", "status", "body"}`. The body is a list of pieces. A piece is text whose characters are
bytes, so that invalid UTF-8 fits into JSON, or `[text, times]` for a repetition.

Run `python3 make_corpus.py`. The same seed writes the same file.
"""

import json
import random
import re
from pathlib import Path

COUNT = 1300
JSON = "application/json"
CHAT = {
    "model": "demo",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Wie heißt du? \"ok\""}],
    "max_tokens": 3,
    "temperature": 0.5,
    "stop": ["\n", "x"],
    "stream": False,
}
COMPLETION = {"model": "demo", "prompt": "The capital of", "max_tokens": 3, "logit_bias": {"7": -1.5}, "seed": 42}
TOKENIZE = {"model": "demo", "prompt": "one two"}
DETOKENIZE = {"model": "demo", "tokens": [1, 2, 3]}
RESPONSES = {"model": "demo", "input": [{"role": "user", "content": "Go on."}], "max_output_tokens": 3, "store": False}
MESSAGES = {"model": "demo", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 3, "system": "Be brief."}
VALID = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION, "/v1/responses": RESPONSES, "/v1/messages": MESSAGES,
         "/tokenize": TOKENIZE, "/detokenize": DETOKENIZE}
# Required fields.
NEEDED = ("messages", "prompt", "tokens", "input")
GENERATION = ("/v1/chat/completions", "/v1/completions")

# Values of a wrong type for every field below.
NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "n", "seed", "presence_penalty", "frequency_penalty",
           "repetition_penalty", "min_tokens", "priority"]
FLAGS = ["stream", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "return_token_ids"]
WRONG_FOR_NUMBER = ["1", "", [], {}, True, [1], {"a": 1}]
WRONG_FOR_FLAG = ["true", 1, 0, [], {}, 1.5]
OUT_OF_RANGE = {
    "temperature": [-0.001, 2.001, 1e300], "top_p": [0, -1, 1.001], "top_k": [-2, 1.5], "min_p": [-0.1, 1.1],
    "max_tokens": [-1, 1.5], "n": [0, -1, 129, 10**12], "presence_penalty": [-2.1, 2.1],
    "frequency_penalty": [-2.1, 2.1], "repetition_penalty": [0, -1], "min_tokens": [-1], "seed": [1.5, 10**30],
}
HUGE_NUMBERS = ["1e400", "-1e400", "9" * 400, "1" + "0" * 5000, "0." + "0" * 5000 + "1e9999", "1e99999999999999999999"]
NOT_JSON_NUMBERS = ["NaN", "Infinity", "-Infinity", "01", "+1", ".5", "1.", "0x10", "1_000", "--1", "1e", "\u0661"]
WRONG_MESSAGES = [
    None, "hello", 1, {}, [[]], [1], ["x"], [None], [{}], [{"role": "user"}], [{"content": "x"}],
    [{"role": "wizard", "content": "x"}], [{"role": 1, "content": "x"}], [{"role": "user", "content": 1}],
    [{"role": "user", "content": {"text": "x"}}], [{"role": "user", "content": [1]}],
    [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": [{"text": "x"}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    [{"role": "user", "content": [{"type": "text", "text": 1}]}],
    [{"role": "user", "content": "x", "no_such_key": 1}], [{"role": "user", "content": "x", "name": 1}],
    [{"role": "user", "content": "x"}, None],
]
WRONG_PROMPTS = [None, 1, {}, True, [""], [], [[]], [[[1]]], [1, "x"], ["x", 1], [[1], "x"], [-1], [1.5], [10**9], [[-1]],
                 [None], [[1, None]], ""]
WRONG_STOPS = [1, {}, True, [1], [""], "", ["x", None], ["x"] * 17, [["x"]]]
WRONG_BIASES = [1, "x", [0], {"x": 1}, {"-1": 1}, {"1": "x"}, {"1": 101}, {"1": None}, {"99999999": 1}, {"1.5": 1}]
UNSUPPORTED = [{"best_of": 5}, {"use_beam_search": True}, {"no_such_field": 1}, {"functions": []},
               {"response_format": {"type": "xml"}}, {"structured_outputs": {"regex": "(a+"}},
               {"guided_regex": "((a*)*"}, {"stream_options": {"include_usage": True}}, {"prompt_logprobs": 10**6}]
FUNCTION = {"type": "function", "function": {"name": "f"}}
WRONG_TOOLS = [
    {"tools": [], "tool_choice": "required"}, {"tools": {}}, {"tools": [None]}, {"tools": [{"type": "function"}]},
    {"tools": [{"type": "functoin", "function": {"name": "f"}}]}, {"tools": [{"type": "function", "function": {}}]}, {"tools": [FUNCTION, FUNCTION]},
    {"tools": [{"type": "function", "function": {"name": ""}}]}, {"tools": [{"type": "function", "function": {"name": "a b"}}]},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
    {"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/no"}}}], "tool_choice": "required"},
    {"tool_choice": "required"}, {"tools": [FUNCTION], "tool_choice": "any"},
    {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "g"}}},
    {"tools": [FUNCTION], "parallel_tool_calls": 1}, {"functions": [{"name": "f"}]},
    {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
    {"messages": [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": 1}}]}]},
]
ITEM = {"type": "function", "name": "f"}
WRONG_RESPONSES = [
    {"input": value} for value in [
        None, 1, {}, True, [], [1], [None], [{}], [{"role": "tool", "content": "x"}], [{"role": "user"}],
        [{"role": "user", "content": [{"type": "input_image"}]}], [{"role": "user", "content": "x", "no_such_key": 1}],
        [{"type": "item_reference", "id": "x"}], [{"type": 1}], [{"type": "function_call"}],
        [{"type": "function_call", "call_id": "c", "name": "f", "arguments": 7}], [{"type": "function_call_output", "call_id": "c"}],
        [{"type": "function_call_output", "call_id": 1, "output": "x"}], [{"type": "reasoning", "summary": [1]}],
        [{"type": "reasoning", "no_such_key": "x"}],
    ]
] + [
    {"tools": {}}, {"tools": [None]}, {"tools": [{"type": "function"}]}, {"tools": [{"type": "web_search"}], "tool_choice": "required"}, {"tools": [ITEM, ITEM]},
    {"tools": [{**ITEM, "parameters": []}]}, {"tools": [{**ITEM, "parameters": {"$ref": "#/no"}}]}, {"tools": [{**ITEM, "strict": 1}]},
    {"tools": [ITEM], "tool_choice": "any"}, {"tools": [ITEM], "tool_choice": {"type": "function", "name": "g"}},
    {"tools": [ITEM], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, {"tool_choice": "required"},
    {"text": {"format": {"type": "xml"}}}, {"reasoning": {"summary": "long"}}, {"truncation": "auto"}, {"previous_response_id": 1},
    {"max_output_tokens": 0}, {"max_output_tokens": "1"}, {"temperature": 3}, {"n": 2}, {"metadata": 1}, {"background": True},
]
BLOCK_CASES = [
    ("user", {"type": "tool_use", "id": "c", "name": "f", "input": {}}), ("user", {"type": "image"}), ("user", {}), ("user", 1),
    ("user", {"type": "tool_result"}), ("user", {"type": "tool_result", "tool_use_id": "c", "content": 1}),
    ("user", {"type": "tool_result", "tool_use_id": "c", "is_error": "yes"}), ("assistant", {"type": "tool_result", "tool_use_id": "c"}),
    ("assistant", {"type": "tool_use", "id": "c", "name": "f"}), ("assistant", {"type": "thinking"}),
    ("assistant", {"type": "tool_use", "id": "c", "name": "f", "input": {}}),
]
CUSTOM = {"name": "f", "input_schema": {"type": "object"}}
WRONG_ANTHROPIC = [
    {"messages": value} for value in [None, "x", 1, {}, [], [1], [{}], [{"role": "tool", "content": "x"}], [{"role": "user"}]]
] + [{"messages": [{"role": role, "content": [block]}]} for role, block in BLOCK_CASES] + [
    {"tools": {}}, {"tools": [None]}, {"tools": [{"name": "f"}]}, {"tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "any"}},
    {"tools": [CUSTOM, CUSTOM]}, {"tools": [{**CUSTOM, "name": "a b"}]}, {"tools": [{**CUSTOM, "input_schema": {"type": "string"}}]},
    {"tools": [CUSTOM], "tool_choice": "any"}, {"tools": [CUSTOM], "tool_choice": {"type": "tool"}},
    {"tools": [CUSTOM], "tool_choice": {"type": "tool", "name": "g"}}, {"tool_choice": {"type": "any"}},
    {"thinking": {"type": "enabled", "budget_tokens": -1}}, {"thinking": {"type": "long"}}, {"thinking": 1}, {"system": 1},
    {"max_tokens": None}, {"max_tokens": 0}, {"stop_sequences": [""]}, {"top_k": -2}, {"output_config": {"format": {"type": "xml"}}},
]
WRONG_TYPES = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml",
               "", "json", "application/jsonp", "text/json", "image/png", "application/octet-stream"]


def dumps(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def as_bytes(text):
    """The UTF-8 bytes of a text, as characters."""
    return text.encode("utf-8", "surrogatepass").decode("latin-1")


def is_json(body):
    """Whether strict JSON parsers accept the body, whose characters are bytes."""

    def refuse(constant):
        raise ValueError(constant)

    try:
        json.loads(body.encode("latin-1").decode("utf-8"), parse_constant=refuse)
        return True
    except ValueError:
        return False


def runs_apart(piece):
    """Splits a text with long repetitions of one character, so that the file stays small."""
    if not isinstance(piece, str):
        return [piece]
    parts = []
    for run in re.finditer(r"(.)\1{63,}|.+?(?=(.)\2{63,}|$)", piece, re.DOTALL):
        text = run.group()
        parts.append([text[0], len(text)] if run.group(1) else text)
    assert "".join(part if isinstance(part, str) else part[0] * part[1] for part in parts) == piece
    return parts or [""]


class Corpus:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.cases = []
        self.seen = set()

    def add(self, path, pieces, status=400, kind=JSON):
        pieces = [part for piece in pieces for part in runs_apart(piece)]
        line = dumps({"path": path, "type": kind, "status": status, "body": pieces})
        if line not in self.seen:
            self.seen.add(line)
            self.cases.append(line)

    def add_changed(self, path, change, status=400):
        self.add(path, [as_bytes(dumps({**VALID[path], **change}))], status)

    def wrong_fields(self):
        for path in GENERATION:
            for name in NUMBERS:
                for value in WRONG_FOR_NUMBER:
                    self.add_changed(path, {name: value})
            for name in FLAGS:
                for value in WRONG_FOR_FLAG:
                    self.add_changed(path, {name: value})
            for name, values in OUT_OF_RANGE.items():
                for value in values:
                    self.add_changed(path, {name: value})
            for value in WRONG_STOPS:
                self.add_changed(path, {"stop": value})
            for value in WRONG_BIASES:
                self.add_changed(path, {"logit_bias": value})
            for change in UNSUPPORTED:
                self.add_changed(path, change)
            self.add_changed(path, {"model": "no such model"}, 404)
            self.add_changed(path, {"model": "x" * 100_000}, 404)
        for value in WRONG_MESSAGES:
            self.add_changed("/v1/chat/completions", {"messages": value})
        for change in WRONG_TOOLS:
            self.add_changed("/v1/chat/completions", change)
        for change in WRONG_RESPONSES:
            # An item that was never stored is not found.
            status = 404 if "item_reference" in dumps(change) else 400
            self.add_changed("/v1/responses", change, status)
        for change in WRONG_ANTHROPIC:
            self.add_changed("/v1/messages", change)
        for value in WRONG_PROMPTS:
            self.add_changed("/v1/completions", {"prompt": value})
        for value in [None, 1, "x", {}, [None], [-1], [1.5], ["1"], [[1]], [10**12], [10**6]]:
            self.add_changed("/detokenize", {"tokens": value})
        for value in [None, 1, [], {}, ["x"], True]:
            self.add_changed("/tokenize", {"prompt": value})
        for path, valid in VALID.items():
            for name in valid:
                if name in NEEDED:
                    self.add(path, [as_bytes(dumps({key: value for key, value in valid.items() if key != name}))])
            for body in ["", " ", "null", "[]", "1", "\"x\"", "true", "{}", "{]", "{\"a\"}", "[" + dumps({}) + "]"]:
                self.add(path, [body])

    def numbers_in_text(self):
        for path in GENERATION:
            for name in ("temperature", "max_tokens", "seed", "n"):
                for number in HUGE_NUMBERS:
                    # The number is rounded to 0, which is a valid temperature. The other fields do not accept it.
                    if name == "temperature" and number.startswith("0."):
                        continue
                    self.add(path, [self.with_number(path, name, number)])
                for number in NOT_JSON_NUMBERS:
                    self.add(path, [self.with_number(path, name, number)])

    def with_number(self, path, name, number):
        text = dumps({**VALID[path], name: "@"})
        return as_bytes(text.replace('"@"', number))

    def nesting(self):
        for path in VALID:
            for opening in ("[", '{"a":', '[{"messages":', "[[["):
                for times in (200, 5_000, 300_000):
                    self.add(path, [[opening, times]])
            for name in ("messages", "prompt", "tokens", "logit_bias", "metadata"):
                for times in (2_000, 300_000):
                    self.add(path, [f'{{"model":"demo","{name}":', ["[", times], ["]", times], "}"])

    def many_strings(self):
        for path in GENERATION:
            text = dumps({**VALID[path], "stop": ["@"]})
            before, after = as_bytes(text).split('"@"')
            self.add(path, [before, ['"x",', 1_000_000], '"x"', after])
            self.add(path, ["{", ['"k":1,', 100_000], '"k":1}'])
        self.add("/v1/completions", ['{"model":"demo","prompt":[', ["1,", 1_000_000], "1]}"])
        self.add("/v1/completions", ['{"model":"demo","prompt":[', ['"a",', 200_000], '"a"]}'])
        self.add("/v1/completions", ['{"model":"demo","prompt":"', ["word ", 2_000_000], '"}'])
        self.add("/v1/chat/completions", ['{"model":"demo","messages":[', ['{"role":"user","content":"a"},', 100_000],
                                          '{"role":"user","content":"a"}]}'])

    def media_types(self):
        for path, valid in VALID.items():
            for kind in WRONG_TYPES:
                self.add(path, [as_bytes(dumps(valid))], 415, kind)

    def broken_text(self):
        """Truncations, invalid UTF-8, control characters, and random damage, until the corpus is complete."""
        kinds = [self.truncation, self.bad_utf8, self.control_character, self.damage, self.noise, self.trailing]
        while len(self.cases) < COUNT:
            path = self.random.choice(list(VALID))
            body = self.random.choice(kinds)(as_bytes(dumps(VALID[path])))
            if not is_json(body):
                self.add(path, [body])

    def truncation(self, body):
        return body[: self.random.randrange(len(body))]

    def bad_utf8(self, body):
        at = self.random.randrange(len(body))
        bad = self.random.choice(["\xff", "\xc0\x80", "\xed\xa0\x80", "\xf8\x88\x80\x80\x80", "\x80", "\xe2\x82", "\xfe\xff"])
        return body[:at] + bad + body[at:]

    def control_character(self, body):
        at = self.random.randrange(len(body))
        return body[:at] + self.random.choice("\x00\x01\x08\x0b\x1b\x1f") + body[at:]

    def damage(self, body):
        bytes_ = list(body)
        for _ in range(self.random.randint(1, 4)):
            bytes_[self.random.randrange(len(bytes_))] = chr(self.random.randrange(256))
        return "".join(bytes_)

    def noise(self, body):
        return "".join(chr(self.random.randrange(256)) for _ in range(self.random.randint(1, len(body))))

    def trailing(self, body):
        return body + self.random.choice(["x", "}", ",", "{}", "null", body, "\x00", " 1"])


def main():
    corpus = Corpus(seed=1000)
    corpus.many_strings()
    corpus.nesting()
    corpus.media_types()
    corpus.numbers_in_text()
    corpus.wrong_fields()
    structured = len(corpus.cases)
    assert structured < COUNT * 3 // 4, f"{structured} leave too little room for broken text"
    corpus.broken_text()
    corpus.random.shuffle(corpus.cases)
    Path(__file__).with_name("corpus.jsonl").write_text("\n".join(corpus.cases) + "\n", encoding="utf-8")
    print(f"{len(corpus.cases)} bodies, {structured} of them structured")


if __name__ == "__main__":
    main()
