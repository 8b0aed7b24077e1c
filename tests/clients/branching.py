"""Runs examples/branching.py against a server: `branching.py CASE URL`."""

import json
import re
import sys
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import branching  # noqa: E402


def program(url):
    root, forks = branching.program(url)
    assert root["best"].strip() in ("a cook", "a painter", "a child")
    assert root.text.endswith(root["best"])
    for fork, view in zip(forks, ("a cook", "a painter", "a child")):
        assert f"- For {view} the city is{fork['view']} In a year:{fork['year']}" in root.text
        assert re.fullmatch(" [12][0-9]{3}", fork["year"])
        assert fork.text.startswith("Paris is the capital of France.")
        # The common prefix of the forks was computed once.
        assert fork.cached_tokens > 10, fork.cached_tokens


def errors(url):
    with branching.Branch(url, "One") as branch:
        branch += branching.gen("two", max_tokens=2)
        try:
            branch += branching.regex("three", "(")
        except branching.ServerError as error:
            assert "regex" in str(error), error
        else:
            raise AssertionError("a broken expression was taken")
        # The branch has not changed.
        branch += branching.select("three", [" a", " b"])
        assert branch.text == "One" + branch["two"] + branch["three"]
    models = json.load(urllib.request.urlopen(f"{url}/v1/models"))
    assert models["data"]


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
