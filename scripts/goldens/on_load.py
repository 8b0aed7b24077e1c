"""Goldens of `--quantize-on-load int4`. transformers computes with the matrices that candlepower makes."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import common
import torch
import transformers


def make(name: str, source: str, out: Path, seed: int) -> None:
    """The method is not part of GGUF, so candlepower itself is asked for the dequantized values."""
    with tempfile.TemporaryDirectory() as folder:
        example = ["cargo", "run", "--quiet", "--package", "candlepower-models", "--example", "on_load", "--"]
        subprocess.run([*example, out / source, "int4", folder], check=True, cwd=common.ROOT)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        common.write_golden(common.empty(out / name), model.eval(), seed + 1)
