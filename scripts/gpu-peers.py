"""Measures the speed of PyTorch at the shapes of gpu-check.sh: gpu-peers.py FOLDER.., each with a config.json.

- A decode step of the whole model with random bf16 weights and a static cache, recorded as a CUDA graph. torch.compile
  compiles one layer with max-autotune, and all layers share it. Attention is the faster one of cuDNN's and flash
  attention, measured alone before.
- The product of large matrices and a copy, which are upper limits.
- Greedy generation of transformers, if it is installed: one stream with a static cache, and many with continuous
  batching.

A line is printed for each measurement. Each line also repeats the results so far after `= `, so that an interrupted
run keeps them. Without a GPU it measures tiny shapes on the CPU, to show that it works.
"""

import json
import statistics
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
BACKENDS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION) if CUDA else (SDPBackend.MATH,)
BATCHES = (1, 64)
CONTEXT = 1024
STEPS = 50
PROMPT = 128


class Layer(torch.nn.Module):
    """Attention over a static cache, and a gated feed-forward, with fused products."""

    def __init__(self, c, batch):
        super().__init__()
        self.heads, self.kv = c["num_attention_heads"], c["num_key_value_heads"]
        self.dim = c.get("head_dim") or c["hidden_size"] // self.heads
        hidden, inner = c["hidden_size"], c["intermediate_size"]
        weight = lambda n, k: torch.nn.Parameter(torch.randn(n, k) * k**-0.5, requires_grad=False)
        self.qkv = weight((self.heads + 2 * self.kv) * self.dim, hidden)
        self.out = weight(hidden, self.heads * self.dim)
        self.gate_up, self.down = weight(2 * inner, hidden), weight(hidden, inner)
        self.norms = torch.nn.Parameter(torch.ones(2, hidden), requires_grad=False)
        self.register_buffer("k", torch.randn(batch, self.kv, CONTEXT, self.dim) * 0.1)
        self.register_buffer("v", torch.randn(batch, self.kv, CONTEXT, self.dim) * 0.1)

    def forward(self, x, position, cos, sin):
        batch = x.shape[0]
        qkv = F.rms_norm(x, (x.shape[-1],), self.norms[0]) @ self.qkv.T
        q, k, v = qkv.view(batch, -1, self.dim).split([self.heads, self.kv, self.kv], 1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        self.k.index_copy_(2, position, k.unsqueeze(2))
        self.v.index_copy_(2, position, v.unsqueeze(2))
        # All of the cache is attended. A mask would exclude the fast kernels.
        y = F.scaled_dot_product_attention(q.unsqueeze(2), self.k, self.v, enable_gqa=True)
        x = x + y.reshape(batch, -1) @ self.out.T
        gate, up = (F.rms_norm(x, (x.shape[-1],), self.norms[1]) @ self.gate_up.T).chunk(2, -1)
        return x + (F.silu(gate) * up) @ self.down.T


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Model(torch.nn.Module):
    def __init__(self, c, batch):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(c, batch) for _ in range(c["num_hidden_layers"]))
        self.embed = torch.nn.Parameter(torch.randn(c["vocab_size"], c["hidden_size"]), requires_grad=False)
        self.norm = torch.nn.Parameter(torch.ones(c["hidden_size"]), requires_grad=False)

    def forward(self, ids, position, cos, sin):
        x = self.embed[ids]
        for layer in self.layers:
            x = layer(x, position, cos, sin)
        return (F.rms_norm(x, (x.shape[-1],), self.norm) @ self.embed.T).argmax(-1)


def milliseconds(run, repeat=STEPS):
    """Median milliseconds of a run."""
    if not CUDA:
        begin = time.perf_counter()
        run()
        return 1000 * (time.perf_counter() - begin)
    for _ in range(3):
        run()
    times = []
    for _ in range(repeat):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def fastest_attention(layer, batch):
    """The backend that attends a layer's cache the fastest."""
    q = torch.randn(batch, layer.heads, 1, layer.dim, device=DEVICE)
    times = {}
    for backend in BACKENDS:
        try:
            with sdpa_kernel(backend):
                attend = lambda: F.scaled_dot_product_attention(q, layer.k, layer.v, enable_gqa=True)
                times[backend] = milliseconds(attend, 20)
        except RuntimeError as error:
            print(f"{backend.name} does not attend these shapes: {error}")
    return min(times, key=times.get)


def decode(name, c, batch):
    """Median milliseconds of a recorded decode step."""
    with torch.device(DEVICE):
        model = Model(c, batch)
        dim = model.layers[0].dim
        ids = torch.zeros(batch, dtype=torch.long)
        position = torch.tensor([CONTEXT - 1])
        angles = (CONTEXT - 1) * c["rope_theta"] ** (-torch.arange(0, dim // 2) * 2.0 / dim)
        cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    backend = fastest_attention(model.layers[0], batch)
    # Layers have the same code and shapes, so this compiles once for all of them.
    for layer in model.layers if CUDA else ():
        layer.compile(mode="max-autotune-no-cudagraphs")
    run = lambda: model(ids, position, cos, sin)
    with torch.no_grad(), sdpa_kernel(backend):
        if CUDA:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    run()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            run = graph.replay
        ms = milliseconds(run)
    print(f"{name}, batch {batch}, {backend.name}: {ms:.3f} ms a step, {1000 * batch / ms:.0f} tok/s")
    return 1000 * batch / ms


def ceilings():
    size = 8192 if CUDA else 128
    a = torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16)
    flops = 2 * size**3 / milliseconds(lambda: a @ a, 10) * 1e3
    x = torch.empty(1 << (30 if CUDA else 16), device=DEVICE, dtype=torch.bfloat16)
    y = torch.empty_like(x)
    bandwidth = 2 * x.numel() * 2 / milliseconds(lambda: y.copy_(x), 10) * 1e3
    print(f"{size}^3 bf16 product {flops / 1e12:.0f} TFLOP/s, copy {bandwidth / 1e12:.2f} TB/s")
    return f"{flops / 1e12:.0f} TFLOP/s, {bandwidth / 1e12:.2f} TB/s"


def transformers_tokens_per_s(c, device=DEVICE):
    """Greedy generation with transformers: one stream with its static cache, and many streams."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**c)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to(device).eval()
    ids = torch.ones(1, PROMPT, dtype=torch.long, device=device)
    generate = lambda n: model.generate(ids, max_new_tokens=n, min_new_tokens=n, do_sample=False, cache_implementation="static")
    generate(8)
    begin = time.perf_counter()
    generate(STEPS).tolist()  # waits for the device
    one = STEPS / (time.perf_counter() - begin)
    yield f"transformers {one:.0f} tok/s"
    for batch in BATCHES:
        yield f"continuous batching x{batch} {continuous_batching(model, c, batch):.0f} tok/s"


def continuous_batching(model, c, batch):
    """Tokens per second of transformers' continuous batching while all `batch` requests decode."""
    from transformers import GenerationConfig

    # No token ends a request. The prompts differ, so that no prefix is shared.
    generation = GenerationConfig(max_new_tokens=STEPS, do_sample=False, eos_token_id=-1, pad_token_id=0)
    prompts = [[(7 * i + j) % c["vocab_size"] for j in range(PROMPT)] for i in range(batch)]
    outputs = model.generate_batch(prompts, generation_config=generation, record_timestamps=True)
    times = [output.timestamps for output in outputs.values()]
    if len(times) != batch or any(len(of) != STEPS for of in times):
        raise RuntimeError(f"generated {sorted({len(of) for of in times})} tokens, {STEPS} were asked for")
    begin, end = max(of[0] for of in times), min(of[-1] for of in times)
    decoded = sum(begin < when <= end for of in times for when in of)
    return decoded / (end - begin)


def measurements(folders):
    """Functions that return or yield lines to print."""
    yield ceilings
    for folder in map(Path, folders):
        c = json.loads((folder / "config.json").read_text())
        if not CUDA:
            c |= {"num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 512}
        for batch in BATCHES:
            yield lambda: f"{folder.name} x{batch} {decode(folder.name, c, batch):.0f} tok/s"
        if c["hidden_size"] < 2048 and CUDA:
            # The large model would spend a minute on its start and show the same.
            yield lambda: transformers_tokens_per_s(c)


def main(folders):
    torch.set_default_dtype(torch.bfloat16)
    found, failed = [], False
    for measure in measurements(folders):
        try:
            of_measure = measure()
            for one in [of_measure] if isinstance(of_measure, str) else of_measure:
                found.append(one)
                print("= " + ", ".join(found))
        except Exception:
            traceback.print_exc()
            failed = True
        if CUDA:
            torch.cuda.empty_cache()
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
