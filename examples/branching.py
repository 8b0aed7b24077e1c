"""Branching programs over plain HTTP: `gen`, `select`, `fork`, `join` and `regex`, on one session of POST /generate.

A `Branch` is a text that grows. `branch += "text"` appends to it, and `branch += gen("name", ..)` lets the model
continue it. `branch["name"]` is the text that the model has generated under this name. The server's cache keeps
everything that was computed, so a fork computes only its new tokens.

    python examples/branching.py http://127.0.0.1:30000

runs the program below against `candlepower serve demo --framework prism`. It needs only Python.
"""

import json
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field


class ServerError(Exception):
    """The server's error message."""


@dataclass
class Gen:
    """Generated text, stored as `name`."""

    name: str
    options: dict = field(default_factory=dict)


@dataclass
class Select:
    """The most likely one of some texts."""

    name: str
    choices: list


def gen(name, max_tokens=64, **options):
    """Free text, or text constrained by `structured_outputs`, `stop` and the other fields of /generate."""
    return Gen(name, {"max_tokens": max_tokens, **options})


def regex(name, pattern, max_tokens=64, **options):
    """Text that matches a regular expression as a whole."""
    return gen(name, max_tokens, structured_outputs={"regex": pattern}, **options)


def select(name, choices):
    """One of some texts, chosen by the mean log-probability of its tokens."""
    return Select(name, list(choices))


class Branch:
    """A text on a server, with the session that keeps it."""

    def __init__(self, url, text="", *, ttl=600):
        self.url, self.text, self.values, self.cached_tokens = url, "", {}, 0
        self._session = {"open": True, "ttl": ttl}
        self._pending = ""
        self += text

    def __iadd__(self, part):
        if isinstance(part, str):
            self._pending += part
            self.text += part
        elif isinstance(part, Gen):
            answer = self._advance({"temperature": 0, **part.options})
            self._keep(part.name, answer["choices"][0]["text"])
        elif isinstance(part, Select):
            answer = self._advance({"choices": part.choices})
            self._keep(part.name, answer["choices"][answer["selected"]]["text"])
        else:
            raise TypeError(f"a text, gen, regex or select is needed, not {part!r}")
        return self

    def __getitem__(self, name):
        return self.values[name]

    def fork(self, n):
        """`n` branches that continue from here. This one stays as it is."""
        if self._pending or "open" in self._session:
            # The common prefix is computed once, before the forks continue it.
            self._advance({"max_tokens": 0})
        forks = []
        for _ in range(n):
            fork = object.__new__(Branch)
            fork.url, fork.text, fork.values = self.url, self.text, dict(self.values)
            fork.cached_tokens, fork._pending = 0, ""
            fork._session = {"fork": self._session["id"]}
            forks.append(fork)
        return forks

    def join(self, forks, separator=""):
        """Appends the text that each fork has added to the text of this branch."""
        self += separator.join(fork.text.removeprefix(self.text) for fork in forks)

    def close(self):
        """Ends the session and frees its memory."""
        if "id" in self._session:
            self._post({"session": {**self._session, "close": True}})
            self._session = {"open": True}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _keep(self, name, text):
        self.values[name] = text
        self.text += text

    def _advance(self, options):
        request = {**options, "session": self._session}
        if self._pending:
            request["text"] = self._pending
        answer = self._post(request)
        session = answer.get("session") or answer["choices"][0]["session"]
        self._session, self._pending = {"id": session["id"]}, ""
        self.cached_tokens += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answer

    def _post(self, body):
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{self.url}/generate", data, headers)) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise ServerError(json.load(error)["error"]["message"]) from None


def each(branches, step):
    """Runs `step` on all branches in parallel. The server batches them."""
    with ThreadPoolExecutor(max(1, len(branches))) as pool:
        return list(pool.map(step, branches))


def program(url):
    """Three answers to one question from three points of view. One is selected, and all of it is summed up."""
    views = ["a cook", "a painter", "a child"]
    with Branch(url, "Paris is the capital of France. Many people visit it each year.") as root:
        forks = root.fork(len(views))

        def answer(pair):
            fork, view = pair
            fork += f"\n- For {view} the city is"
            fork += gen("view", max_tokens=12, stop="\n")
            fork += " In a year:"
            fork += regex("year", " [12][0-9]{3}")
            return fork

        each(list(zip(forks, views)), answer)
        root.join(forks)
        root += "\nOf these, the best is"
        root += select("best", [f" {view}" for view in views])
        print(root.text)
        for fork in forks:
            fork.close()
        return root, forks


if __name__ == "__main__":
    program(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:30000")
