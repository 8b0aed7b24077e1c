#!/usr/bin/env python3
"""Makes the goldens that are GGUF files, smaller variants of the recipes of decoders.py.

    .venv/bin/python scripts/goldens/gguf_models.py

This makes the goldens of PACKED, for types of tensors and for tokenizers. gguf_writer.py writes the files.
tokenizer.json is the tokenizer that a file's vocabulary was taken from. golden.safetensors also has the first rows of
some dequantized matrices, as `dequantized.NAME`.

With llama.cpp's converter the script makes the goldens of CONVERTED instead, one for each of GGUF's architectures.
They have BF16 matrices and no vocabulary:

    .venv/bin/pip download --no-deps --no-binary llama-cpp-python --dest .venv llama-cpp-python==0.3.36
    tar -xzf .venv/llama_cpp_python-0.3.36.tar.gz -C .venv
    .venv/bin/python scripts/goldens/gguf_models.py --converter .venv/llama_cpp_python-0.3.36/vendor/llama.cpp

golden.safetensors has the same content as for decoders.py. transformers computes it in f32 from the file's dequantized
values.
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
from gemma4 import TWO_LAYERS_OF_EXPERTS

# Types of matrices in turn. The converter has its own version of the package gguf, so it is not imported here.
LEGACY = ["Q5_0", "Q4_1", "Q4_0", "Q5_1", "F16", "Q8_0", "Q4_0"]
K_QUANTS = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
TABLES = ["IQ4_XS", "IQ4_XS", "Q5_K", "IQ4_NL", "IQ4_NL", "IQ4_XS", "IQ4_XS", "IQ4_NL", "Q6_K"]

# Super-blocks have 256 values.
WIDE = dict(hidden_size=256, intermediate_size=256)
UNSCALED = dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0))
# Multi-head latent attention whose rows consist of whole blocks of 32 values.
LATENTS = dict(q_lora_rank=32, kv_lora_rank=64, qk_nope_head_dim=32, v_head_dim=32, moe_intermediate_size=32)

# folder: the recipe, ggml's architecture, types of the matrices in turn, tokenizer, and the differences from the
# recipe. `text` means the text part alone. A seed follows from the position, so new folders are only appended. Some
# have a seed of their own, since others were put before them.
PACKED = {
    # In three files, with biases, and with Llama 3.1's RoPE factors as a tensor.
    "gguf-llama": dict(of="llama", arch="llama", types=LEGACY, tokenizer="spm", split=True),
    "gguf-yarn": dict(
        of="llama-yarn",
        arch="llama",
        types=["F16"],
        tokenizer="gpt-4o",
        config=dict(
            tie_word_embeddings=True,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64
            ),
        ),
    ),
    "gguf-qwen2": dict(
        of="qwen2",
        arch="qwen2",
        types=K_QUANTS,
        tokenizer="qwen2",
        config=WIDE | dict(use_sliding_window=False, tie_word_embeddings=True),
    ),
    "gguf-qwen3": dict(
        of="qwen3",
        arch="qwen3",
        types=["BF16"],
        tokenizer="llama-bpe",
        config=dict(attention_bias=False, use_sliding_window=False, layer_types=None),
    ),
    "gguf-gemma2": dict(
        of="gemma2",
        arch="gemma2",
        types=["Q8_0"],
        tokenizer="spm-no-space",
        config=dict(attention_bias=False, query_pre_attn_scalar=32),
    ),
    "gguf-gemma3": dict(
        of="gemma3",
        arch="gemma3",
        types=["Q4_0", "Q8_0"],
        tokenizer="tekken",
        config=dict(
            num_hidden_layers=3,
            query_pre_attn_scalar=32,
            layer_types=common.ALTERNATING,
            final_logit_softcapping=None,
        ),
    ),
    # KV sharing between layers, wider feed-forwards in the layers that share, and per-layer embeddings.
    "gguf-gemma4": dict(
        of="gemma4",
        text=True,
        arch="gemma4",
        types=["Q4_0", "Q8_0"],
        tokenizer="spm-gemma4",
        config=dict(
            num_hidden_layers=4,
            head_dim=32,
            global_head_dim=64,
            layer_types=["sliding_attention", "full_attention"] * 2,
            num_kv_shared_layers=2,
            hidden_size_per_layer_input=32,
        ),
    ),
    # Experts in parallel with a feed-forward, keys that serve as values, and other numbers of heads.
    "gguf-gemma4-moe": dict(
        of="gemma4-moe",
        arch="gemma4",
        types=["Q8_0", "Q4_0"],
        tokenizer="spm-gemma4",
        config=TWO_LAYERS_OF_EXPERTS,
    ),
    "gguf-phi3": dict(
        of="phi3-longrope",
        seed=9600,
        arch="phi3",
        types=["F32"],
        tokenizer="spm-phi3",
        config=dict(sliding_window=15),
    ),
    "gguf-granite": dict(
        of="granite",
        seed=9700,
        arch="granite",
        types=["Q8_0", "Q5_1"],
        tokenizer="refact",
        config=dict(attention_bias=False),
    ),
    # The matrices of experts are one tensor for each kind.
    "gguf-qwen3-moe": dict(
        of="qwen3-moe-renormalized",
        seed=9800,
        arch="qwen3moe",
        types=["Q5_0", "Q4_1", "Q4_0", "Q5_1", "Q8_0"],
        tokenizer="qwen2",
        config=dict(
            head_dim=32, num_experts=5, moe_intermediate_size=32, decoder_sparse_step=1, use_sliding_window=False
        ),
    ),
    # Rows of q and k in pairs.
    "gguf-mixtral": dict(
        of="mixtral",
        seed=9900,
        arch="llama",
        types=["Q4_K", "Q6_K"],
        tokenizer="spm",
        config=WIDE | UNSCALED | dict(num_hidden_layers=1, num_local_experts=3, sliding_window=None),
    ),
    "gguf-olmoe": dict(
        of="olmoe",
        seed=10000,
        arch="olmoe",
        types=["Q8_0"],
        tokenizer="llama-bpe",
        config=dict(intermediate_size=32, num_experts=4, num_experts_per_tok=2, norm_topk_prob=False),
    ),
    # DeepSeek-V3's form: separate matrices of keys and values, with those of keys transposed.
    "gguf-deepseek2": dict(
        of="deepseek-v3",
        arch="deepseek2",
        types=["Q8_0", "Q4_0", "Q5_1"],
        tokenizer="deepseek-v3",
        config=LATENTS | dict(n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1),
    ),
    # The first form of DeepSeek-V2-Lite's files: keys and values of heads in one matrix.
    "gguf-deepseek2-lite": dict(
        of="deepseek-v2",
        arch="deepseek2",
        types=["Q8_0", "Q5_0"],
        tokenizer="glm4",
        whole_heads=True,
        config=LATENTS | dict(q_lora_rank=None, n_routed_experts=4, num_experts_per_tok=2),
    ),
    # Biases of experts, and the experts' four-bit type.
    "gguf-gpt-oss": dict(
        of="gpt-oss",
        seed=10100,
        arch="gpt-oss",
        types=["MXFP4", "Q8_0", "MXFP4"],
        tokenizer="gpt-4o",
        config=dict(intermediate_size=64, num_local_experts=4, num_experts_per_tok=2),
    ),
    # Types with a table of values. Next to other types in one matrix (q, k and v) they are kept in eight bits.
    "gguf-iq4": dict(
        of="llama",
        arch="llama",
        types=TABLES,
        tokenizer="llama-bpe",
        config=WIDE | UNSCALED | dict(num_hidden_layers=1, attention_bias=False, mlp_bias=False),
    ),
}

# For models that mix linear attention and attention.
RECURRENT = dict(num_hidden_layers=2, layer_types=["linear_attention", "full_attention"])

# folder: the recipe, the differences from it, and keys that published configurations have but transformers does not
# write, or vice versa (None).
CONVERTED = {
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


def variant(recipe: dict, sizes: dict) -> dict:
    """The recipe that `recipe` varies, with its differences. `sizes` are settings that all variants have."""
    source = decoders.MODELS[recipe["of"]]
    if recipe.get("text"):
        source = {key: value for key, value in source.items() if key not in ("head", "vision")}
    return {**source, **recipe, "config": source.get("config", {}) | sizes | recipe.get("config", {})}


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


def make_converted(name: str, recipe: dict, out: Path, seed: int) -> None:
    model = common.random_model(variant(recipe, dict(vocab_size=96)), common.TWO_LAYERS, seed)
    folder = common.empty(out / name)
    with tempfile.TemporaryDirectory() as temporary:
        # The folder's name becomes part of the file.
        checkpoint = Path(temporary) / name
        model.to(torch.bfloat16).save_pretrained(checkpoint)
        convert(checkpoint, folder / "model.gguf", recipe.get("edit", {}))
        model = common.read_back(type(model), checkpoint)
    common.write_golden(folder, model, seed + 1)


def make_packed(name: str, recipe: dict, out: Path, seed: int) -> None:
    import gguf_tokenizers
    import gguf_writer

    tokenizer = gguf_tokenizers.tokenizer(recipe["tokenizer"])
    sizes = dict(vocab_size=len(tokenizer["model"]["vocab"]))
    if recipe["arch"] == "gemma4":
        sizes["vocab_size_per_layer_input"] = sizes["vocab_size"]
    recipe = variant(recipe, sizes)
    model = common.random_model(recipe, common.TWO_LAYERS, seed)
    folder = common.empty(out / name)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")) + "\n")
    dequantized = gguf_writer.write(folder / "model.gguf", model, recipe, tokenizer, seed)
    common.write_golden(folder, model, seed + 1, recipe.get("short_prompt"), dequantized)


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--converter", type=Path, metavar="LLAMA_CPP", help="make the goldens of CONVERTED instead")
    args = parser.parse_args()
    if not args.converter:
        for name, recipe, seed in common.wanted(PACKED, args.only, 9000):
            make_packed(name, recipe, args.out, recipe.get("seed", seed))
        return
    # The converter's own version of the package gguf.
    sys.path[:0] = [str(args.converter), str(args.converter / "gguf-py")]
    importlib.import_module("conversion")
    for name, recipe, seed in common.wanted(CONVERTED, args.only, 11000):
        make_converted(name, recipe, args.out, seed)


if __name__ == "__main__":
    main()
