#!/usr/bin/env python3
"""Measures this server and vLLM in turn: see scripts/bench-peers.sh, which starts it with vLLM's Python."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import time
import urllib.request
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TOKENIZER = ROOT / "crates/server/demo"
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCABULARY = 896, 4864, 24, 14, 2, 151_936
PORT = 8431
LEVELS = [1, 4, 16]
# Prompts of 512 tokens of their own; and prompts that share 1,024 tokens before 64 of their own.
WORKLOADS = {
    "A": ["--input-tokens", "512", "--output-tokens", "128"],
    "B": ["--input-tokens", "64", "--output-tokens", "64", "--shared-prefix-tokens", "1024"],
}


def tensors() -> dict[str, tuple[int, ...]]:
    head = HIDDEN // HEADS
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name, outputs in [("q", HIDDEN), ("k", KV_HEADS * head), ("v", KV_HEADS * head)]:
            shapes[f"{prefix}.self_attn.{name}_proj.weight"] = (outputs, HIDDEN)
            shapes[f"{prefix}.self_attn.{name}_proj.bias"] = (outputs,)
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (HIDDEN, HIDDEN)
        shapes[f"{prefix}.mlp.gate_proj.weight"] = (INNER, HIDDEN)
        shapes[f"{prefix}.mlp.up_proj.weight"] = (INNER, HIDDEN)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (HIDDEN, INNER)
        shapes[f"{prefix}.input_layernorm.weight"] = (HIDDEN,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (HIDDEN,)
    return shapes


def make_model(folder: Path) -> None:
    """Random weights in the shape of Qwen2.5-0.5B, in bf16, with the demo's tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = json.loads((TOKENIZER / "tokenizer.json").read_text())["model"]["vocab"]
    # In a byte-level vocabulary these are whole characters; other rows are zeros, which are never the likeliest.
    texts = np.array([id for text, id in vocabulary.items() if text.isascii() and text.isalnum()])
    silent = np.setdiff1d(np.arange(VOCABULARY), texts)
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": VOCABULARY,
        "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(TOKENIZER / name, folder / name)
    random = np.random.default_rng(0)
    header, end = {}, 0
    for name, shape in tensors().items():
        start, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in tensors().items():
            values = random.standard_normal(shape, dtype=np.float32)
            values = 1 + values * 0 if name.endswith("norm.weight") else values * 0.02
            if name == "model.embed_tokens.weight":
                values[silent] = 0
            file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())


def servers(folder: Path, program: Path) -> dict[str, tuple[list[str], dict[str, str]]]:
    model, vllm = str(folder / "model"), folder / "vllm"
    cores = os.cpu_count() or 1
    openmp = next(vllm.rglob("libiomp5.so"))
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    settings = {"VLLM_CPU_OMP_THREADS_BIND": f"0-{cores - 1}", "VLLM_CPU_KVCACHE_SPACE": "2", "LD_PRELOAD": str(openmp)}
    common = ["--port", str(PORT), "--served-model-name", "m", "--max-model-len", "2048"]
    theirs = [str(vllm / "bin/vllm"), "serve", model, "--dtype", "bfloat16", "--enforce-eager", *common]
    return {
        "candlepower": ([str(program), "serve", model, *common], {}),
        "vllm": (theirs, {**quiet, **settings}),
    }


def peak_bytes(group: int) -> int:
    """Most memory that the processes of a group have had, added up."""
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
        for workload, arguments in WORKLOADS.items():
            levels = ",".join(map(str, LEVELS))
            requests = ",".join(str(max(3, 2 * level)) for level in LEVELS)
            bench = [str(program), "bench", "serve", "--url", f"http://127.0.0.1:{PORT}", "--json", "-"]
            bench += ["--concurrency", levels, "--requests", requests, *arguments]
            output = subprocess.run(bench, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
            for level in json.loads(output)["levels"]:
                rows.append({
                    "server": name, "workload": workload, "streams": level["concurrency"],
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
    args = parser.parse_args()
    folder, program = args.folder.resolve(), args.program.resolve()
    if not (folder / "model/model.safetensors").exists():
        make_model(folder / "model")
    names = list(servers(folder, program))
    rows = [row for _ in range(args.rounds) for name in names for row in measure(name, folder, program)]
    (folder / "results.json").write_text(json.dumps(rows, indent=1))

    def median(key: str, **wanted: object) -> float:
        return statistics.median(row[key] for row in rows if all(row[k] == v for k, v in wanted.items()))

    print("| workload | streams | server | tokens/s | first token, ms | per token after it, ms |\n|---|---|---|---|---|---|")
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
