#!/usr/bin/env python3
"""Compares the texts per second of a server and of sentence-transformers, in turn, on the same machine and threads.

    candlepower serve FOLDER --served-model-name m --threads 2
    .venv/bin/python scripts/bench_embeddings.py --url http://127.0.0.1:8000 --folder FOLDER --threads 2

Each round embeds the same texts from the golden file in one batch with both. The figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.request
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer


def ask(url: str, texts: list[str]) -> None:
    body = json.dumps({"model": "m", "input": texts, "encoding_format": "base64"}).encode()
    request = urllib.request.Request(f"{url}/v1/embeddings", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        assert len(json.load(response)["data"]) == len(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    golden = Path(__file__).resolve().parent.parent / "tests/golden/encoders/all-minilm-l6-v2.json"
    rows = json.loads(golden.read_text())
    texts = [f"{rows[i % len(rows)]['text']} {i}" for i in range(args.texts)]
    torch.set_num_threads(args.threads)
    model = SentenceTransformer(args.folder, device="cpu")
    work = {
        "sentence-transformers": lambda: model.encode(texts, batch_size=32, show_progress_bar=False),
        "server": lambda: ask(args.url, texts),
    }
    seconds = {name: [] for name in work}
    for turn in range(args.rounds + 1):
        for name, run in work.items():
            began = time.perf_counter()
            run()
            if turn:  # the first round warms up
                seconds[name].append(time.perf_counter() - began)
    for name, taken in seconds.items():
        print(f"{name}: {len(texts) / statistics.median(taken):.0f} texts/s, rounds of {[round(t, 2) for t in taken]} s")
    ratio = statistics.median(seconds["sentence-transformers"]) / statistics.median(seconds["server"])
    print(f"the server is {ratio:.2f} times as fast")


if __name__ == "__main__":
    main()
