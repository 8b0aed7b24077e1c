"""Measures the speed of other implementations at the shapes of gpu-check.sh.

gpu-peers.py FOLDER.., each with a config.json, measures PyTorch and transformers:
- A decode step of the whole model with random bf16 weights and a static cache, recorded as a CUDA graph. torch.compile
  compiles one layer with max-autotune, and all layers share it. Attention is the faster one of cuDNN's and flash
  attention, measured alone before.
- The product of large matrices and a copy, which are upper limits.
- Greedy generation of transformers, if it is installed: one stream with a static cache, and many with continuous
  batching.

gpu-peers.py --kernels measures single kernels in the shapes of `cuda_kernels --times`:
- PyTorch's products in bf16 and in FP8 with scales for each row and each block, attention of prompts by cuDNN and by
  flash attention, and products of experts.
- 4-bit products of humming, and chunkwise linear attention and Mamba-2 of flash-linear-attention, if they are
  installed. Both compile their kernels at the first call.

A line is printed for each measurement. Those of models repeat the results so far after `= `, so that an interrupted run
keeps them. A measurement that fails says so, and the next one runs. Without a GPU it measures tiny shapes on the CPU, to show that
it works.
"""

import importlib.util
import itertools
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
# More bytes than the L2 cache of any GPU.
BEYOND_CACHES = 256 << 20
STEPS = 50
PROMPT = 128
# Outputs and inputs of a layer's matrices in Llama-3.1-8B.
MATRICES = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}


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


def size(n):
    """A size of a kernel's operand, which is small on the CPU."""
    return n if CUDA else max(16, n // 64 // 16 * 16)


def noise(*shape):
    return torch.randn(*shape, device=DEVICE)


def turns(make, bytes_each):
    """Copies of an operand in turn, so that none is read from a cache."""
    return itertools.cycle([make() for _ in range(1 + BEYOND_CACHES // bytes_each if CUDA else 1)])


def products():
    """Products of a layer's four matrices in bf16, and in FP8 with scales for each row and for each block of 128."""
    for name, (n, k) in MATRICES.items():
        n, k = size(n), size(k)
        weights = turns(lambda: noise(n, k) * 0.02, 2 * n * k)
        for rows in map(size, (64, 256, 8192)):
            x = noise(rows, k)
            work = 2 * rows * n * k
            yield from attempt(f"{name} x{rows} bf16", lambda: x @ next(weights).T, work)
        if not CUDA:
            continue
        weights = turns(lambda: (noise(n, k) * 0.02).to(torch.float8_e4m3fn), n * k)
        for rows in (64, 256, 8192):
            x, work = noise(rows, k).to(torch.float8_e4m3fn), 2 * rows * n * k
            ones = lambda *shape: torch.ones(*shape, device=DEVICE, dtype=torch.float32)
            scales = {
                "rows": (ones(rows, 1), ones(1, n)),
                "blocks": (ones(k // 128, rows).T, ones(n // 128, k // 128).T),
            }
            for kind, (of_x, of_w) in scales.items():
                run = lambda: torch._scaled_mm(x, next(weights).T, scale_a=of_x, scale_b=of_w, out_dtype=torch.bfloat16)
                yield from attempt(f"{name} x{rows} fp8 {kind}", run, work)


def attempt(what, run, work=None):
    """The line of a measurement, or why there is none."""
    try:
        ms = milliseconds(run, 20)
        yield f"{what} {1000 * ms:.1f} us" + (f", {work / ms / 1e9:.0f} TFLOP/s" if work else "")
    except Exception as error:
        print(f"{what}: {type(error).__name__}: {error}"[:300])


def can_run(module):
    """Whether a module with kernels for GPUs can be imported; otherwise it says why not."""
    why = None if CUDA else "it needs a GPU"
    if importlib.util.find_spec(module) is None:
        why = "it is not installed"
    if why:
        print(f"{module}: {why}")
    return why is None


def prompts():
    """Causal attention of prompts, with heads like those of Llama-3.1-8B."""
    for batch, length in [(1, 8192), (8, 1000), (1, 32768)]:
        length = size(length)
        q, (k, v) = noise(batch, 32, length, 128), (noise(batch, 8, length, 128) for _ in range(2))
        for backend in BACKENDS:
            attend = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            with sdpa_kernel(backend):
                yield from attempt(f"attention {batch}x{length} {backend.name}", attend, 2 * batch * 32 * length**2 * 128)


def experts():
    """The first product of 128 experts, of which each token has eight."""
    if not hasattr(torch, "_grouped_mm"):
        return
    count, n, k = (128, 1536, 2048) if CUDA else (4, 32, 32)
    w = noise(count, n, k) * 0.02
    for tokens in map(size, (64, 256, 2048, 8192)):
        rows = 8 * tokens
        x = noise(rows, k)
        ends = torch.linspace(rows / count, rows, count, device=DEVICE, dtype=torch.float32).round().int()
        run = lambda: torch._grouped_mm(x, w.transpose(-2, -1), offs=ends)
        yield from attempt(f"experts x{tokens}", run, 2 * rows * n * k)


def linear_attention():
    """The gated delta rule with 16 heads of q and k and 32 of v, and Mamba-2 with 64 heads of 64 and states of 128."""
    if not can_run("fla"):
        return
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.simple_gla import chunk_simple_gla

    for tokens in (2048, 8192):
        q, k, v = noise(1, tokens, 32, 128), noise(1, tokens, 32, 128), noise(1, tokens, 32, 128)
        decay, beta = -torch.rand(1, tokens, 32, device=DEVICE).float(), torch.rand(1, tokens, 32, device=DEVICE)
        delta = lambda: chunk_gated_delta_rule(q, k, v, decay, beta, output_final_state=True, use_qk_l2norm_in_kernel=True)
        yield from attempt(f"gated delta rule {tokens} tokens", delta)
        # Mamba-2 has one decay for each head, as simple_gla has.
        b, c, x = noise(1, tokens, 64, 128), noise(1, tokens, 64, 128), noise(1, tokens, 64, 64)
        decay64 = -torch.rand(1, tokens, 64, device=DEVICE).float()
        ssm = lambda: chunk_simple_gla(c, b, x, g=decay64, output_final_state=True)
        yield from attempt(f"Mamba-2 {tokens} tokens", ssm)


def packed(layer_type, n, k):
    layer = layer_type(n, k, {"dtype": "int4", "weight_scale_group_size": 128}, torch_dtype=torch.bfloat16).cuda()
    layer.load_from_unquantized(noise(n, k) * 0.02)
    layer.transform()
    return layer


def four_bits():
    """Products with 4-bit weights in groups of 128."""
    if not can_run("humming"):
        return
    from humming.layer import HummingLayer

    for name, (n, k) in MATRICES.items():
        layers = turns(lambda: packed(HummingLayer, n, k), n * k // 2)
        for rows in (1, 8, 16, 64, 128):
            x = noise(rows, k)
            yield from attempt(f"{name} x{rows} 4 bits", lambda: next(layers)(x), 2 * rows * n * k)


def measurements(folders):
    """Functions that return or yield lines to print."""
    if folders == ["--kernels"]:
        yield from (ceilings, products, prompts, experts, linear_attention, four_bits)
        return
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
    found, failed, of_kernels = [], False, folders == ["--kernels"]
    for measure in measurements(folders):
        try:
            of_measure = measure()
            for one in [of_measure] if isinstance(of_measure, str) else of_measure:
                found.append(one)
                print(one if of_kernels else "= " + ", ".join(found))
        except Exception:
            traceback.print_exc()
            failed = True
        if CUDA:
            torch.cuda.empty_cache()
    if of_kernels:
        print(f"= {len(found)} times of kernels")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
