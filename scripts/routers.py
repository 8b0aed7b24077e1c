"""Measures how routers find prompts in the caches of two servers: `routers.py PROGRAM [ROUTER..]`.

PROGRAM is candlepower. ROUTER.. is the command of a router without its addresses. Without it, all goes to one server,
whose share is the most that a router can reach. For example

    routers.py target/release/candlepower smg launch --policy cache_aware
    routers.py target/release/candlepower python -m sglang_router.launch_router --policy cache_aware

(`smg` and `sglang-router` are Python packages.) Conversations of several turns go through the router to two servers
of the model `demo`, streamed and not, in chat and in completions. Every request must be answered. The share of
prompt tokens that later turns find in a cache comes from `usage`.
"""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

CONVERSATIONS, TURNS, AT_ONCE = 18, 12, 6
ANSWER_TOKENS = 48
# Words of a question, some 40 tokens. A later turn repeats all earlier questions and answers.
WORDS = 15


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(command: list[str]) -> tuple[subprocess.Popen, list[str]]:
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: list[str] = []
    # A full pipe would block the program.
    threading.Thread(target=lambda: lines.extend(child.stdout), daemon=True).start()
    return child, lines


def wait_for(url: str, child: subprocess.Popen, lines: list[str]) -> None:
    for _ in range(600):
        if child.poll() is not None:
            raise SystemExit("".join(lines))
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{url} does not answer:\n" + "".join(lines))


def post(url: str, body: dict) -> dict:
    """The answer; a stream as its last usage and its joined text."""
    data, headers = json.dumps(body).encode(), {"content-type": "application/json"}
    request = urllib.request.Request(url, data=data, headers=headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        text = answer.read().decode()
    if not body.get("stream"):
        return json.loads(text)
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", text[-200:]
    chunks = [json.loads(event) for event in events[:-1]]
    deltas = [choice.get("delta", {}).get("content") or choice.get("text") or "" for c in chunks for choice in c["choices"]]
    message = {"content": "".join(deltas)}
    usage = next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))
    return {"choices": [{"message": message, "text": message["content"]}], "usage": usage}


def converse(url: str, number: int) -> list[tuple[int, int, int]]:
    """A conversation: for each turn its number, its prompt tokens, and those that were cached."""
    source = random.Random(number)
    is_chat, streams = number % 3 != 2, number % 2 == 1
    letters = "abcdefghijklmnopqrstuvwxyz"
    question = lambda: " ".join("".join(source.choices(letters, k=4)) for _ in range(WORDS))
    messages, text, turns = [], "", []
    for turn in range(TURNS):
        body = {"model": "demo", "max_tokens": ANSWER_TOKENS, "temperature": 0, "stream": streams}
        if streams:
            body["stream_options"] = {"include_usage": True}
        if is_chat:
            messages.append({"role": "user", "content": question()})
            answer = post(url + "/v1/chat/completions", {**body, "messages": messages})
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        else:
            text += question()
            answer = post(url + "/v1/completions", {**body, "prompt": text})
            text += answer["choices"][0]["text"]
        usage = answer["usage"]
        turns.append((turn, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
    return turns


def main() -> None:
    program, *router = sys.argv[1:]
    children = []
    try:
        urls = []
        for _ in range(2 if router else 1):
            port = free_port()
            urls.append(f"http://127.0.0.1:{port}")
            command = [program, "serve", "demo", "--port", str(port), "--kv-cache-memory", "256Mi"]
            children.append(start(command))
        for url, (child, lines) in zip(urls, children):
            wait_for(url + "/health", child, lines)
        url = urls[0]
        if router:
            port = free_port()
            ports = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
            children.append(start([*router, "--worker-urls", *urls, *ports]))
            url = f"http://127.0.0.1:{port}"
            wait_for(url + "/health", *children[-1])
            # The router is there before it has found the servers.
            time.sleep(5)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            turns = [turn for all in pool.map(lambda n: converse(url, n), range(CONVERSATIONS)) for turn in all]
        later = [(prompt, cached) for turn, prompt, cached in turns if turn]
        share = sum(cached for _, cached in later) / sum(prompt for prompt, _ in later)
        print(f"{len(turns)} of {CONVERSATIONS * TURNS} requests answered")
        print(f"{100 * share:.1f} % of {sum(prompt for prompt, _ in later)} prompt tokens of later turns were cached")
        for url in urls:
            with urllib.request.urlopen(url + "/metrics") as metrics:
                found = re.findall(r"^candlepower_prompt_tokens_total\S* (\S+)$", metrics.read().decode(), re.MULTILINE)
            print(f"{url}: {', '.join(found)} prompt tokens")
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{error}: {error.read().decode()}") from error
    finally:
        for child, _ in children:
            child.terminate()
        for child, _ in children:
            child.wait()


main()
