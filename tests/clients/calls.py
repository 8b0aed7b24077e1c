"""Validates the arguments of tool calls: `calls.py FILE`. Each line of FILE is JSON with a schema, and with arguments
as text.
"""

import json
import sys

from jsonschema import Draft202012Validator


def once(pairs):
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), f"a key twice: {keys}"
    return dict(pairs)


def judge(call):
    """The reason that a call is invalid, or None."""
    try:
        arguments = json.loads(call["arguments"], object_pairs_hook=once)
    except (ValueError, AssertionError) as error:
        return str(error)
    validator = Draft202012Validator(call["schema"], format_checker=Draft202012Validator.FORMAT_CHECKER)
    return next((error.message for error in validator.iter_errors(arguments)), None)


def main():
    num_calls, num_invalid = 0, 0
    with open(sys.argv[1], encoding="utf-8") as lines:
        for line in lines:
            call = json.loads(line)
            num_calls += 1
            if reason := judge(call):
                num_invalid += 1
                print(f"INVALID {reason}: {line}")
    assert num_calls, "there are no calls"
    assert not num_invalid, f"{num_invalid} of {num_calls} calls are invalid"


main()
