#!/usr/bin/env python3
"""Measures this server and its peers in turn. scripts/bench-peers.sh starts it."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import bench_model
import gguf

PORT = 8431
LEVELS = [1, 4, 16]
# Time limit for one row of the table. A slower server counts as not finished.
LEVEL_TIMEOUT_S = 600
# Separate prompts of 512 tokens; and prompts of 64 tokens after a shared prefix of 1,024.
WORKLOADS = {
    "A": ["--input-tokens", "512", "--output-tokens", "128"],
    "B": ["--input-tokens", "64", "--output-tokens", "64", "--shared-prefix-tokens", "1024"],
}


def servers(folder: Path, program: Path) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Commands and environments of all servers. Peers may not be installed."""
    model, vllm = str(folder / "model"), folder / "vllm"
    cores = os.cpu_count() or 1
    openmp = next(vllm.rglob("libiomp5.so"), "")
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    settings = {"VLLM_CPU_OMP_THREADS_BIND": f"0-{cores - 1}", "VLLM_CPU_KVCACHE_SPACE": "2", "LD_PRELOAD": str(openmp)}
    port = ["--port", str(PORT)]
    common = [*port, "--served-model-name", "m", "--max-model-len", "2048"]
    ours = [str(program), "serve"]
    theirs = [str(vllm / "bin/vllm"), "serve", model, "--dtype", "bfloat16", "--enforce-eager", *common]
    slots = ["--parallel", str(max(LEVELS)), "--ctx-size", str(2048 * max(LEVELS)), "--threads", str(cores)]
    llama = [str(folder / "llama.cpp/build/bin/llama-server"), *port, *slots, "--no-webui", "--model"]
    mistral = [str(folder / "mistralrs/bin/python"), str(Path(__file__).with_name("mistralrs_server.py")), model, *port]
    return {
        "candlepower": ([*ours, model, *common], {}),
        "vllm": (theirs, {**quiet, **settings}),
        "llama.cpp": ([*llama, str(folder / "bf16.gguf")], {}),
        "candlepower-q8_0": ([*ours, str(folder / "q8_0.gguf"), *common], {}),
        "llama.cpp-q8_0": ([*llama, str(folder / "q8_0.gguf")], {}),
        "mistralrs": (mistral, {}),
        "mistralrs-bf16": ([*mistral, "--dtype", "BF16"], {}),
    }


def peak_bytes(group: int) -> int:
    """Peak of the memory of all processes in a group."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(process.name)) == group:
                status = (process / "status").read_text()
                total += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        except (ProcessLookupError, FileNotFoundError):
            continue
    return total * 1024


def wait_until_ready(server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5)
            return
        except OSError:
            time.sleep(0.02)
    raise SystemExit(f"the server ended with status {server.returncode} before it was ready: see its log")


def measure(name: str, folder: Path, program: Path) -> list[dict[str, object]]:
    command, environment = servers(folder, program)[name]
    log = (folder / f"{name}.log").open("ab")
    began = time.monotonic()
    server = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=log, stderr=log, start_new_session=True
    )
    rows = []
    try:
        wait_until_ready(server)
        ready = time.monotonic() - began
        too_slow: set[str] = set()
        for workload, streams in itertools.product(WORKLOADS, LEVELS):
            if workload in too_slow:
                continue
            bench = [str(program), "bench", "serve", "--url", f"http://127.0.0.1:{PORT}", "--json", "-"]
            bench += ["--concurrency", str(streams), "--requests", str(max(3, 2 * streams)), *WORKLOADS[workload]]
            try:
                bench = subprocess.run(
                    bench, capture_output=True, text=True, check=True, timeout=LEVEL_TIMEOUT_S
                )
            except subprocess.TimeoutExpired:
                print(f"{name}, {workload} at {streams}: not within {LEVEL_TIMEOUT_S} s; no more streams are tried", file=sys.stderr)
                too_slow.add(workload)
                continue
            except subprocess.CalledProcessError as error:
                said = (error.stderr.strip().splitlines() or ["nothing was said"])[-1]
                print(f"{name}, {workload} at {streams}: did not finish: {said}", file=sys.stderr)
                continue
            (level,) = json.loads(bench.stdout)["levels"]
            rows.append({
                "server": name, "workload": workload, "streams": streams,
                "tokens_per_s": level["output_tokens_per_s"],
                "first_token_s": level["time_to_first_token_s"]["p50"],
                "per_token_s": level["time_per_output_token_s"]["p50"], "ready_s": ready,
            })  # fmt: skip
        memory = peak_bytes(server.pid)
        return [{**row, "memory": memory} for row in rows]
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--servers", type=lambda names: names.split(","), help="default: all that are installed")
    args = parser.parse_args()
    folder, program = args.folder.resolve(), args.program.resolve()
    if not (folder / "model/model.safetensors").exists():
        bench_model.make_model(folder / "model")
    for name, kind in [("bf16", gguf.GGMLQuantizationType.BF16), ("q8_0", gguf.GGMLQuantizationType.Q8_0)]:
        file = folder / f"{name}.gguf"
        if not file.exists():
            bench_model.make_gguf(folder / "model", file.with_suffix(".part"), kind)
            file.with_suffix(".part").rename(file)
    commands = servers(folder, program)
    names = args.servers or [name for name, (command, _) in commands.items() if Path(command[0]).exists()]
    rows: list[dict[str, object]] = []
    for name in names * args.rounds:
        rows += measure(name, folder, program)
        (folder / "results.json").write_text(json.dumps(rows, indent=1))

    def median(key: str, **wanted: object) -> float:
        found = [row[key] for row in rows if all(row[k] == v for k, v in wanted.items())]
        return statistics.median(found) if found else math.nan

    print(
        "| workload | streams | server | tokens/s | first token, ms | per token after it, ms |\n|---|---|---|---|---|---|"
    )
    for workload in WORKLOADS:
        for streams in LEVELS:
            for name in names:
                at = {"workload": workload, "streams": streams, "server": name}
                first, each = median("first_token_s", **at) * 1e3, median("per_token_s", **at) * 1e3
                rate = median("tokens_per_s", **at)
                print(f"| {workload} | {streams} | {name} | {rate:.1f} | {first:.0f} | {each:.1f} |")
    print("\n| server | from start to ready, s | peak memory, MB |\n|---|---|---|")
    for name in names:
        print(f"| {name} | {median('ready_s', server=name):.1f} | {median('memory', server=name) / 1e6:.0f} |")


if __name__ == "__main__":
    main()
