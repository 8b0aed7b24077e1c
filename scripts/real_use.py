"""Measures two real models: `real_use.py PROGRAM SMOLLM2.gguf GEMMA.gguf WORK`.

scripts/real-use.sh prepares the files.

It prints differences of log-probabilities from transformers, perplexities, the loss from quantizing on load, and how
answers to JSON schemas end.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "clients"))

import schema_answers  # noqa: E402

INPUTS = json.loads((ROOT / "tests" / "real_model" / "inputs.json").read_text())
NOISE = "0.3333333"
CHAT_TOKENS = 48


class Server:
    """`candlepower serve`, for the duration of a `with`."""

    def __init__(self, program: Path, model: Path, *flags: str) -> None:
        command = [program, "serve", model, "--port", "0", "--served-model-name", "model", "--max-model-len", "2048"]
        limits = ["--max-num-seqs", "4", "--kv-cache-memory", "512Mi"]
        self.began = time.monotonic()
        self.child = subprocess.Popen([*command, *limits, *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        self.url = ""

    def __enter__(self) -> Server:
        for line in self.child.stdout:
            self.lines.append(line)
            if found := re.search(r"listening on (http://[\d.]+:\d+)", line):
                self.url = found.group(1)
                break
        else:
            raise SystemExit("".join(self.lines))
        # A full pipe would block the server.
        threading.Thread(target=lambda: self.lines.extend(self.child.stdout), daemon=True).start()
        while not self.is_ready():
            time.sleep(0.05)
        self.seconds = time.monotonic() - self.began
        return self

    def is_ready(self) -> bool:
        if self.child.poll() is not None:
            raise SystemExit("".join(self.lines))
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=60) as answer:
                return answer.status == 200
        except urllib.error.HTTPError as error:
            # The server answers 503 while it loads.
            return error.code != 503

    def __exit__(self, *_: object) -> None:
        self.child.terminate()
        self.child.wait()

    def scores(self, text: str) -> list[float]:
        """The log-probabilities of a text's tokens, without the first."""
        body = {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0}
        answer = schema_answers.post(self.url, "/v1/completions", body)
        return answer["choices"][0]["logprobs"]["token_logprobs"][1:]

    def perplexity(self) -> float:
        scores = [score for entry in INPUTS["texts"] for score in self.scores(entry["text"])]
        return math.exp(-sum(scores) / len(scores))

    def chat(self, question: str) -> str:
        messages = [{"role": "user", "content": question}]
        body = {"messages": messages, "temperature": 0, "max_tokens": CHAT_TOKENS}
        return schema_answers.post(self.url, "/v1/chat/completions", body)["choices"][0]["message"]["content"]


def compare(server: Server, name: str, expected: Path) -> None:
    if not expected.exists():
        print(f"{name}: skipped: transformers' values are not there ({expected})")
        return
    reference = json.loads(expected.read_text())
    largest, count = 0.0, 0
    for entry in INPUTS["texts"]:
        scores = reference["log_probabilities"][entry["name"]]
        found = server.scores(entry["text"])
        assert len(found) == len(scores), entry["name"]
        largest = max([largest, *(abs(a - b) for a, b in zip(found, scores))])
        count += len(found)
    print(f"{name}: float32: largest difference of a log probability {largest:.1e} over {count} tokens")
    if chats := reference["chats"]:
        equal = sum(server.chat(question) == chat for question, chat in zip(INPUTS["chats"], chats))
        print(f"{name}: float32: {equal} of {len(chats)} greedy chats equal")


def derived(name: str, source: Path, work: Path, *flags: str) -> Path:
    """A file of dequantized values, which is made once."""
    out = work / f"{source.stem}-{name}.gguf"
    if not out.exists():
        script = ROOT / "scripts" / "real_weights.py"
        subprocess.run([sys.executable, script, source, out, *flags], check=True)
    return out


def perplexities(program: Path, name: str, model: Path, work: Path) -> None:
    plain = derived("plain", model, work, "--float16")
    rows = [
        ("float32", model, "--dtype", "float32"),
        ("default dtype", model),
        ("FP8 cache", model, "--kv-cache-dtype", "fp8"),
        ("int8 on load", plain, "--quantize-on-load", "int8"),
        ("int4 on load", plain, "--quantize-on-load", "int4"),
        ("fp8 on load", plain, "--quantize-on-load", "fp8"),
    ]
    base = None
    for label, file, *flags in rows:
        with Server(program, file, *flags) as server:
            if base is None:
                compare(server, name, ROOT / "tests" / "real_model" / f"{name}.json")
            perplexity = server.perplexity()
        base = base or perplexity
        print(f"{name}: {label}: perplexity {perplexity:.4f}, {100 * (perplexity / base - 1):+.2f} %", flush=True)


def noisy(program: Path, name: str, model: Path, work: Path) -> None:
    """The loss of four bits for weights that are not on a quantization grid."""
    numbers = derived("noisy", model, work, "--noise", NOISE)
    rounded = derived("rounded", model, work, "--noise", NOISE, "--round-to-nearest")
    rows = [
        ("float32", numbers, "--dtype", "float32"),
        ("round to nearest, Q4_1, embedding Q8_0", rounded),
        ("int4 on load", numbers, "--quantize-on-load", "int4"),
    ]
    base, losses = None, []
    for label, file, *flags in rows:
        with Server(program, file, *flags) as server:
            perplexity, seconds = server.perplexity(), server.seconds
            weights = next((line for line in server.lines if " weights" in line), "").strip()
        base = base or perplexity
        losses.append(perplexity / base - 1)
        print(f"{name} with noise: {label}: perplexity {perplexity:.4f}, {100 * losses[-1]:+.2f} %, ready in {seconds:.1f} s")
        print(f"    {weights}", flush=True)
    print(f"{name} with noise: int4 loses {losses[2] / losses[1]:.2f} of what rounding to the nearest loses", flush=True)


def schemas(program: Path, models: dict[str, Path]) -> None:
    ended, open_strings = 0, []
    for name, model in models.items():
        with Server(program, model) as server:
            for entry in INPUTS["schemas"]:
                for temperature in (0, 0.7):
                    text, reason = schema_answers.ask(server.url, entry, temperature=temperature, seed=1)
                    if schema_answers.judge(entry, text, reason) == "ended":
                        ended += 1
                    else:
                        open_strings.append(f"{name}, temperature {temperature}, {entry['name']}: ..{text[-40:]!r}")
    print(f"schemas: {ended} of {ended + len(open_strings)} answers ended, all valid; no number is longer than its cap")
    for line in open_strings:
        print(f"    a string without maxLength went on: {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=Path)
    parser.add_argument("smollm2", type=Path)
    parser.add_argument("gemma", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", choices=["perplexities", "noise", "schemas"])
    args = parser.parse_args()
    models = {"smollm2": args.smollm2, "gemma": args.gemma}
    for name, model in models.items():
        if args.only in (None, "perplexities"):
            perplexities(args.program, name, model, args.work)
        if args.only in (None, "noise"):
            noisy(args.program, name, model, args.work)
    if args.only in (None, "schemas"):
        schemas(args.program, models)


if __name__ == "__main__":
    main()
