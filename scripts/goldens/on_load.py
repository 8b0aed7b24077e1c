#!/usr/bin/env python3
"""Makes the goldens of `--quantize-on-load`.

    .venv/bin/python scripts/goldens/on_load.py

Each folder has golden.safetensors alone. transformers computes it with the model of another folder, whose matrices are
rounded as candlepower rounds them while loading: for int8 to GGUF's Q8_0, with first rows of these as
`dequantized.NAME`; for int4 by candlepower itself, through cargo, since the method is not part of GGUF; for fp8 to e4m3 with
a scale for each output, beside activations that are rounded to e4m3 with a scale for each row.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import common
import gguf
import numpy as np
import seeded_weights
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from quantized_formats import rounded_activations

# folder: the folder of the model, and the method. The head and the embedding get eight bits.
ON_LOAD = {
    "on-load/llama-int8": ("llama", "int8"),
    "on-load/llama-int4": ("llama", "int4"),
    # Transposed matrices, and tied embeddings.
    "on-load/gpt2-int8": ("gpt2", "int8"),
    "on-load/experts-int4": ("qwen3-moe", "int4"),
    # The head and the embedding keep their values.
    "on-load/llama-fp8": ("llama", "fp8"),
}
KEPT = ("wpe.weight", "embed_tokens.weight", "mlp.gate.weight")
HEADS = ("wte.weight", "lm_head.weight")


def make_int4(name: str, source: str, out: Path, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        example = ["cargo", "run", "--quiet", "--package", "candlepower-models", "--example", "on_load", "--"]
        subprocess.run([*example, out / source, "int4", folder], check=True, cwd=common.ROOT)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        common.write_golden(common.empty(out / name), model.eval(), seed + 1)


def make_int8(name: str, source: str, out: Path, seed: int) -> None:
    model = common.read_back(transformers.AutoModelForCausalLM, out / source)
    dequantized = {}
    for parameter_name, parameter in model.named_parameters():
        if parameter.dim() == 1 or parameter_name.endswith(KEPT):
            continue
        # GPT-2's linear weights are transposed.
        transposed = source.startswith("gpt2") and not parameter_name.endswith(HEADS)
        data = parameter.detach().numpy()
        data = np.ascontiguousarray(data.T if transposed else data)
        values = gguf.quants.dequantize(gguf.quants.quantize(data, Type.Q8_0), Type.Q8_0)
        parameter.data.copy_(torch.from_numpy(values.T if transposed else values))
        if source == "llama" and ("layers.0." in parameter_name or parameter_name.endswith(HEADS)):
            dequantized[f"dequantized.{parameter_name}"] = torch.from_numpy(values[: common.DEQUANTIZED_ROWS].copy())
    common.write_golden(common.empty(out / name), model, seed + 1, dequantized=dequantized)


def make_fp8(name: str, source: str, out: Path, seed: int) -> None:
    model = common.read_back(transformers.AutoModelForCausalLM, out / source)
    dequantized = {}
    for module_name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or module_name == "lm_head":
            continue
        module.weight.data = rounded_activations(module.weight.data)
        module.register_forward_pre_hook(lambda _, inputs: (rounded_activations(inputs[0]),))
        if "layers.0." in module_name:
            dequantized[f"dequantized.{module_name}.weight"] = module.weight.data[: common.DEQUANTIZED_ROWS].clone()
    common.write_golden(common.empty(out / name), model, seed + 1, dequantized=dequantized)


def main() -> None:
    args = common.arguments(__doc__).parse_args()
    for name, (source, method), seed in common.wanted(ON_LOAD, args.only, 10000):
        seeded_weights.write_weights(args.out / source)
        make = {"int4": make_int4, "int8": make_int8, "fp8": make_fp8}[method]
        make(name, source, args.out.resolve(), seed)


if __name__ == "__main__":
    main()
