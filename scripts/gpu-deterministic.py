"""Compares the answers of a server in different company: gpu-deterministic.py URL FILE [PROMPTS [TOKENS]].

Asks for TOKENS greedy tokens (64) of PROMPTS prompts (64) of 1 to 2,000 tokens: eight at a time, then all at once, where the
second answers have hits in the prefix cache. Answers are compared with FILE. If there is no such file, the prompts are asked one
by one first, and it is written. So a server with another step budget or a smaller cache is compared by the same file. An answer
consists of its text and of the log-probability of each token. Exit status 1 if any answer differs.
"""

import json
import pathlib
import random
import sys
import threading
import urllib.request

MAX_PROMPT = 2000


def prompts(count):
    """Token ids of the prompts. The shortest has one token, and the longest 2,000."""
    numbers = random.Random(7)
    lengths = [1 + round((MAX_PROMPT - 1) * index / max(count - 1, 1)) for index in range(count)]
    numbers.shuffle(lengths)
    return [[numbers.randrange(1000, 100_000) for _ in range(length)] for length in lengths]


def ask(url, model, prompt, tokens):
    """The text of an answer, and the log-probabilities of its tokens."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        choice = json.load(answer)["choices"][0]
    return [choice["text"], choice["logprobs"]["token_logprobs"]]


def ask_all(url, model, asked, tokens, at_once):
    """The answers to all prompts, with so many clients."""
    answers = [None] * len(asked)
    left = iter(range(len(asked)))
    lock = threading.Lock()

    def client():
        while True:
            with lock:
                index = next(left, None)
            if index is None:
                return
            answers[index] = ask(url, model, asked[index], tokens)

    clients = [threading.Thread(target=client) for _ in range(at_once)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    return answers


def main(url, file, count=64, tokens=64):
    with urllib.request.urlopen(url + "/v1/models", timeout=30) as models:
        model = json.load(models)["data"][0]["id"]
    asked = prompts(int(count))
    file = pathlib.Path(file)
    if not file.exists():
        file.write_text(json.dumps(ask_all(url, model, asked, int(tokens), 1)))
    want = json.loads(file.read_text())
    failed = False
    for at_once in (8, len(asked)):
        got = ask_all(url, model, asked, int(tokens), at_once)
        texts = sum(got[0] != want[0] for got, want in zip(got, want, strict=True))
        bits = sum(got != want for got, want in zip(got, want, strict=True))
        failed |= bits > 0
        print(f"= {at_once} at once: {texts} of {len(asked)} texts differ, and {bits} answers in any log-probability")
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
