#!/usr/bin/env python3
"""Makes the GGUF files of tests/golden that llama.cpp's converter writes, one for each of GGUF's architectures.

    python3 -m venv .venv && .venv/bin/pip install -r scripts/goldens/requirements.txt sentencepiece
    .venv/bin/pip download --no-deps --no-binary llama-cpp-python --dest .venv llama-cpp-python==0.3.36
    tar -xzf .venv/llama_cpp_python-0.3.36.tar.gz -C .venv
    .venv/bin/python scripts/goldens/gguf_models.py --converter .venv/llama_cpp_python-0.3.36/vendor/llama.cpp

Each folder has a tiny random model, a smaller variant of a recipe of decoders.py, as a GGUF file with BF16
matrices. golden.safetensors has what transformers computes from the same BF16 values. The files have no vocabulary.
"""

from __future__ import annotations

import copy
import importlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import common
import decoders
import torch

SMALL = {**common.TWO_LAYERS, "vocab_size": 96}

# For models that mix linear attention and attention.
RECURRENT = dict(num_hidden_layers=2, layer_types=["linear_attention", "full_attention"])

# folder: the recipe, the differences from it, and keys that published configurations have but transformers does not
# write, or vice versa (None).
MODELS = {
    "gguf-gemma": dict(of="gemma"),
    "gguf-qwen2-moe": dict(of="qwen2-moe", config=dict(mlp_only_layers=[])),
    "gguf-qwen3-next": dict(
        of="qwen3-next",
        config=RECURRENT | dict(mlp_only_layers=[], full_attention_interval=2),
        edit=dict(full_attention_interval=2),
    ),
    # Several value heads share one key head.
    "gguf-qwen3_5": dict(
        of="qwen3_5-text",
        config=RECURRENT | dict(linear_num_value_heads=6),
        edit=dict(full_attention_interval=2),
    ),
    "gguf-qwen3_5-moe": dict(
        of="qwen3_5-moe-text",
        config=RECURRENT
        | dict(linear_num_key_heads=2, linear_conv_kernel_dim=4, num_experts=4),
        edit=dict(full_attention_interval=2),
    ),
    "gguf-glm4": dict(of="glm4"),
    "gguf-glm4-moe": dict(of="glm4-moe"),
    "gguf-olmo3": dict(of="olmo3", config=dict(num_hidden_layers=4, sliding_window=11)),
    # Files store neither windows nor the layers without RoPE. Readers must know that every fourth layer has none.
    "gguf-smollm3": dict(
        of="smollm3", config=dict(num_hidden_layers=4, no_rope_layer_interval=4, use_sliding_window=False)
    ),
    "gguf-seed-oss": dict(of="seed-oss"),
    "gguf-ernie4_5": dict(of="ernie4_5"),
    "gguf-ernie4_5-moe": dict(of="ernie4_5-moe", config=dict(num_hidden_layers=2, moe_layer_end_index=-1)),
    "gguf-exaone4": dict(of="exaone4"),
    "gguf-starcoder2": dict(of="starcoder2", config=dict(sliding_window=None)),
    "gguf-cohere": dict(of="cohere"),
    "gguf-cohere2": dict(of="cohere2", config=dict(sliding_window_pattern=4), edit=dict(rotary_pct=1.0)),
    "gguf-arcee": dict(of="arcee"),
    "gguf-granite-moe": dict(of="granite-moe-shared"),
    "gguf-granite-hybrid": dict(
        of="granite-hybrid", config=RECURRENT, edit=dict(layer_types=["mamba", "attention"])
    ),
    "gguf-minimax-m2": dict(of="minimax-m2"),
    "gguf-ministral3": dict(of="ministral3"),
    "gguf-lfm2": dict(of="lfm2"),
    "gguf-lfm2-moe": dict(
        of="lfm2-moe", config=dict(num_hidden_layers=3, routed_scaling_factor=1.0)
    ),
    "gguf-nemotron-h": dict(
        of="nemotron-h",
        edit=dict(hybrid_override_pattern="MM-*-M", rms_norm_eps=None)
        | dict.fromkeys(["num_experts_per_tok", "n_routed_experts", "n_group", "topk_group"]),
    ),
    "gguf-nemotron-h-moe": dict(of="nemotron-h-moe", edit=dict(rms_norm_eps=None)),
    # Files do not store which layers have a window. Readers must know that three of four have one.
    "gguf-afmoe": dict(of="afmoe", config=dict(num_hidden_layers=4, num_experts=4, global_attn_every_n_layers=4)),
    "gguf-dots1": dict(of="dots1", config=dict(sliding_window=None)),
}


def all_kinds(kind: type) -> Iterator[type]:
    yield kind
    for below in kind.__subclasses__():
        yield from all_kinds(below)


def convert(folder: Path, file: Path, edit: dict) -> None:
    """Writes the checkpoint in `folder` as a GGUF file."""
    from conversion import ModelBase, get_model_class
    from gguf import LlamaFileType

    config = json.loads((folder / "config.json").read_text()) | edit
    config = {key: value for key, value in config.items() if value is not None}
    common.write_json(folder / "config.json", config)
    # The configuration as it is, without keys that this version of transformers would add.
    ModelBase.load_hparams = staticmethod(lambda *_, **__: copy.deepcopy(config))
    [architecture] = config["architectures"]
    converter = get_model_class(architecture)
    # These models have neither vocabularies nor layers for multi-token prediction, so both parts are skipped.
    for kind in all_kinds(ModelBase):
        kind.set_vocab = lambda self: self._set_vocab_none()
    ModelBase.no_mtp = True
    with torch.inference_mode():
        converter(folder, LlamaFileType.MOSTLY_BF16, file).write()


def make(name: str, recipe: dict, out: Path, seed: int) -> None:
    source = decoders.MODELS[recipe["of"]]
    source = {**source, "config": source.get("config", {}) | {"vocab_size": SMALL["vocab_size"]} | recipe.get("config", {})}
    model = common.random_model(source, SMALL, seed)
    folder = common.empty(out / name)
    with tempfile.TemporaryDirectory() as temporary:
        # The folder's name becomes part of the file.
        checkpoint = Path(temporary) / name
        model.to(torch.bfloat16).save_pretrained(checkpoint)
        convert(checkpoint, folder / "model.gguf", recipe.get("edit", {}))
        model = common.read_back(type(model), checkpoint)
    common.write_golden(folder, model, seed + 1)


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--converter", type=Path, required=True, help="the folder of llama.cpp's sources")
    args = parser.parse_args()
    # The converter's own version of the package gguf.
    sys.path[:0] = [str(args.converter), str(args.converter / "gguf-py")]
    importlib.import_module("conversion")
    for name, recipe, seed in common.wanted(MODELS, args.only, 11000):
        make(name, recipe, args.out, seed)


if __name__ == "__main__":
    main()
