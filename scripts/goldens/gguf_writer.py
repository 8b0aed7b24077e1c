#!/usr/bin/env python3
"""Makes the golden checkpoints of tests/golden that are GGUF files.

    python3 -m venv .venv && .venv/bin/pip install -r scripts/goldens/requirements.txt
    .venv/bin/python scripts/goldens/gguf_writer.py

Each folder has a tiny random model in the form that llama.cpp's converter writes. golden.safetensors has the same
content as for the models of decoders.py, computed by transformers in f32 from the dequantized values of the file.
It also has the first rows of some of these, as `dequantized.NAME`. tokenizer.json is the tokenizer that the file's
vocabulary was taken from.

The folders in on-load have golden.safetensors alone. It is computed with the model of another folder, whose matrices
are rounded as --quantize-on-load rounds them: for int8 to GGUF's Q8_0, with first rows of these; for int4 by
candlepower itself, through cargo.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import common
import experts
import gguf
import gguf_formats
import numpy as np
import on_load
import torch
import transformers
from experts import yarn
from gemma4 import TWO_LAYERS_OF_EXPERTS
from gguf import GGMLQuantizationType as Type
from gguf import TokenType
from tokenizer_fixtures import LLAMA3_SPLIT
from transformers.convert_slow_tokenizer import generate_merges

FIXTURES = common.ROOT / "crates" / "tokenizer" / "tests" / "data"
DEQUANTIZED_ROWS = 8

TEMPLATE = (
    "{% for message in messages %}<|role|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|role|>assistant\n{% endif %}"
)

# Splitting rules in tokenizer.json files on the hub: those of Mistral NeMo and of GPT-4o.
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
WORDS = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*%s"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN_SPLIT = WORDS % ("", "") + r"|\p{N}" + REST
GPT_4O_SPLIT = WORDS % (SUFFIX, SUFFIX) + r"|\p{N}{1,3}" + REST

# DeepSeek-V3's rules, which are applied in sequence.
DEEPSEEK_V3_SPLITS = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    + r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
]

LEGACY = [Type.Q5_0, Type.Q4_1, Type.Q4_0, Type.Q5_1, Type.F16, Type.Q8_0, Type.Q4_0]
K_QUANTS = [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K]

# Settings of models with multi-head latent attention. The formats have blocks of 32 values.
LATENTS = experts.WITH_EXPERTS | dict(
    q_lora_rank=32, kv_lora_rank=64, qk_nope_head_dim=32, v_head_dim=32, moe_intermediate_size=32
)

# folder: class, ggml's architecture, types of the matrices in turn, tokenizer, and the differences from COMMON.
MODELS = {
    # In two files, with biases, and with Llama 3.1's RoPE factors as a tensor.
    "gguf-llama": dict(
        cls="Llama",
        arch="llama",
        types=LEGACY,
        tokenizer="spm",
        config=dict(
            attention_bias=True,
            mlp_bias=True,
            rope_parameters=dict(
                rope_type="llama3",
                rope_theta=10000.0,
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        ),
        split=True,
    ),
    "gguf-yarn": dict(
        cls="Llama",
        arch="llama",
        types=[Type.F16],
        tokenizer="gpt-4o",
        config=dict(
            tie_word_embeddings=True,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64
            ),
        ),
    ),
    # The K-quants have super-blocks of 256 values.
    "gguf-qwen2": dict(
        cls="Qwen2",
        arch="qwen2",
        types=K_QUANTS,
        tokenizer="qwen2",
        config=dict(hidden_size=256, intermediate_size=256, tie_word_embeddings=True),
    ),
    "gguf-qwen3": dict(
        cls="Qwen3", arch="qwen3", types=[Type.BF16], tokenizer="llama-bpe", config=dict(head_dim=32)
    ),
    "gguf-gemma2": dict(
        cls="Gemma2",
        arch="gemma2",
        types=[Type.Q8_0],
        tokenizer="spm-no-space",
        config=dict(
            head_dim=32,
            query_pre_attn_scalar=32,
            sliding_window=10,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=0.7,
            tie_word_embeddings=True,
        ),
    ),
    "gguf-gemma3": dict(
        cls="Gemma3",
        text=True,
        arch="gemma3",
        types=[Type.Q4_0, Type.Q8_0],
        tokenizer="tekken",
        config=dict(
            num_hidden_layers=3,
            head_dim=32,
            query_pre_attn_scalar=32,
            sliding_window=10,
            layer_types=common.ALTERNATING,
            tie_word_embeddings=True,
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", rope_theta=50000.0, factor=4.0),
                sliding_attention=dict(rope_type="default", rope_theta=500.0),
            ),
        ),
    ),
    # KV sharing between layers, wider feed-forwards in the layers that share, and per-layer embeddings.
    "gguf-gemma4": dict(
        cls="Gemma4",
        text=True,
        arch="gemma4",
        types=[Type.Q4_0, Type.Q8_0],
        tokenizer="spm-gemma4",
        config=dict(
            num_hidden_layers=4,
            head_dim=32,
            global_head_dim=64,
            layer_types=["sliding_attention", "full_attention"] * 2,
            num_kv_shared_layers=2,
            use_double_wide_mlp=True,
            hidden_size_per_layer_input=32,
            sliding_window=10,
            final_logit_softcapping=2.0,
            tie_word_embeddings=True,
            rope_parameters=dict(
                full_attention=dict(rope_type="proportional", rope_theta=50000.0, partial_rotary_factor=0.25),
                sliding_attention=dict(rope_type="default", rope_theta=500.0),
            ),
        ),
    ),
    # Experts in parallel with a feed-forward, keys that serve as values, and other numbers of heads.
    "gguf-gemma4-moe": dict(
        cls="Gemma4",
        text=True,
        arch="gemma4",
        types=[Type.Q8_0, Type.Q4_0],
        tokenizer="spm-gemma4",
        config=TWO_LAYERS_OF_EXPERTS,
    ),
    "gguf-phi3": dict(
        cls="Phi3",
        arch="phi3",
        types=[Type.F32],
        tokenizer="spm-phi3",
        config=dict(
            sliding_window=15,
            original_max_position_embeddings=32,
            rope_parameters=dict(
                rope_type="longrope",
                rope_theta=10000.0,
                partial_rotary_factor=0.75,
                short_factor=[1.0, 1.05, 1.1, 1.2, 1.3, 1.4],
                long_factor=[1.1, 1.5, 2.0, 3.0, 5.0, 8.0],
            ),
        ),
        short_prompt=24,
    ),
    "gguf-granite": dict(
        cls="Granite",
        arch="granite",
        types=[Type.Q8_0, Type.Q5_1],
        tokenizer="refact",
        config=dict(
            embedding_multiplier=12.0,
            attention_multiplier=0.0625,
            residual_multiplier=0.22,
            logits_scaling=6.0,
        ),
    ),
    # The matrices of experts are one tensor for each kind.
    "gguf-qwen3-moe": dict(
        cls="Qwen3Moe",
        arch="qwen3moe",
        types=[Type.Q5_0, Type.Q4_1, Type.Q4_0, Type.Q5_1, Type.Q8_0],
        tokenizer="qwen2",
        config=dict(
            head_dim=32,
            num_experts=5,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            norm_topk_prob=True,
            mlp_only_layers=[],
        ),
    ),
    # Super-blocks of 256 values, and rows of q and k in pairs.
    "gguf-mixtral": dict(
        cls="Mixtral",
        arch="llama",
        types=[Type.Q4_K, Type.Q6_K],
        tokenizer="spm",
        config=dict(
            num_hidden_layers=1,
            hidden_size=256,
            intermediate_size=256,
            num_local_experts=3,
            num_experts_per_tok=2,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0),
        ),
    ),
    "gguf-olmoe": dict(
        cls="Olmoe",
        arch="olmoe",
        types=[Type.Q8_0],
        tokenizer="llama-bpe",
        config=dict(
            intermediate_size=32,
            num_experts=4,
            num_experts_per_tok=2,
            norm_topk_prob=False,
        ),
    ),
    # DeepSeek-V3's form: separate matrices of keys and values, with those of keys transposed.
    "gguf-deepseek2": dict(
        cls="DeepseekV3",
        arch="deepseek2",
        types=[Type.Q8_0, Type.Q4_0, Type.Q5_1],
        tokenizer="deepseek-v3",
        config=dict(
            **LATENTS,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            routed_scaling_factor=2.5,
            rope_parameters=yarn(1.0),
        ),
    ),
    # The first form of DeepSeek-V2-Lite's files: keys and values of heads in one matrix.
    "gguf-deepseek2-lite": dict(
        cls="DeepseekV2",
        arch="deepseek2",
        types=[Type.Q8_0, Type.Q5_0],
        tokenizer="glm4",
        whole_heads=True,
        config=dict(
            **LATENTS | dict(q_lora_rank=None),
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_shared_experts=2,
            rope_parameters=yarn(0.707),
        ),
    ),
    # Biases of experts, and the experts' four-bit type.
    "gguf-gpt-oss": dict(
        cls="GptOss",
        arch="gpt-oss",
        types=[Type.MXFP4, Type.Q8_0, Type.MXFP4],
        tokenizer="gpt-4o",
        config=dict(
            head_dim=32,
            intermediate_size=64,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=8,
            max_position_embeddings=1024,
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=3000.0,
                factor=8.0,
                beta_fast=32.0,
                beta_slow=1.0,
                truncate=False,
                original_max_position_embeddings=128,
            ),
        ),
    ),
    # Types with a table of values. Next to other types in one matrix (q, k and v) they are kept in eight bits.
    "gguf-iq4": dict(
        cls="Llama",
        arch="llama",
        types=[Type.IQ4_XS, Type.IQ4_XS, Type.Q5_K, Type.IQ4_NL, Type.IQ4_NL, Type.IQ4_XS, Type.IQ4_XS, Type.IQ4_NL, Type.Q6_K],
        tokenizer="llama-bpe",
        config=dict(
            num_hidden_layers=1,
            hidden_size=256,
            intermediate_size=256,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0),
        ),
    ),
}

# folder: the folder of the model, and the type of its matrices. The head and the embedding get eight bits.
ON_LOAD = {
    "on-load/llama-int8": ("llama", Type.Q8_0),
    "on-load/llama-int4": ("llama", "int4"),
    # Transposed matrices, and tied embeddings.
    "on-load/gpt2-int8": ("gpt2", Type.Q8_0),
    "on-load/experts-int4": ("qwen3-moe", "int4"),
}
KEPT = ("wpe.weight", "embed_tokens.weight", "mlp.gate.weight")
HEADS = ("wte.weight", "lm_head.weight")


def byte_level(name: str) -> dict:
    """The tokenizer.json of byte-level BPE with a model family's splitting rule."""
    original = json.loads((FIXTURES / "byte_level.tokenizer.json").read_text())
    model, steps = original["model"], original["pre_tokenizer"]["pretokenizers"]
    rules = {
        "llama-bpe": LLAMA3_SPLIT, "qwen2": LLAMA3_SPLIT.replace("{1,3}", ""),
        "tekken": TEKKEN_SPLIT, "gpt-4o": GPT_4O_SPLIT, "glm4": LLAMA3_SPLIT,
    }
    if name == "deepseek-v3":
        split = steps[0]
        steps[:1] = [{**split, "pattern": {"Regex": rule}} for rule in DEEPSEEK_V3_SPLITS]
    elif name in rules:
        steps[0]["pattern"]["Regex"] = rules[name]
    else:
        steps[0] = {"type": "Digits", "individual_digits": True}
        steps[1]["use_regex"] = True
    model["ignore_merges"] = name in ("llama-bpe", "tekken", "glm4")
    if name == "qwen2":
        original["normalizer"] = {"type": "NFC"}
    if name not in ("llama-bpe", "tekken"):
        original["post_processor"] = None
    # A GGUF file has all tokens in one vocabulary.
    model["vocab"] |= {token["content"]: token["id"] for token in original["added_tokens"]}
    return original


def sentence_piece(name: str) -> dict:
    """The tokenizer.json that transformers makes from a SentencePiece vocabulary."""
    original = json.loads((FIXTURES / "byte_fallback.tokenizer.json").read_text())
    model = original["model"]
    if name in ("spm-no-space", "spm-gemma4"):
        original["normalizer"] = original["normalizer"]["normalizers"][1]
        original["decoder"]["decoders"].pop()
    if name == "spm-phi3":
        for content in ["<|user|>", "<|end|>"]:
            token = {**original["added_tokens"][0], "id": len(model["vocab"]), "content": content}
            original["added_tokens"].append(token)
            model["vocab"][content] = token["id"]
        for token in original["added_tokens"]:
            token["rstrip"] = token["content"] not in ("<unk>", "<s>")
    if name == "spm-gemma4":
        # Gemma 4's control tokens. Files store one of them as user-defined. The end-of-turn token is among them.
        for content in ["<turn|>", "<|tool_response>", '<|"|>']:
            token = {**original["added_tokens"][0], "id": len(model["vocab"]), "content": content}
            original["added_tokens"].append(token)
            model["vocab"][content] = token["id"]
    vocab = model["vocab"]
    scores = {token: -float(id) for token, id in vocab.items()}
    skipped = [t["content"] for t in original["added_tokens"]] + [t for t in vocab if t.startswith("<0x")]
    model["merges"] = generate_merges(vocab, scores, skip_tokens=skipped)
    return original


def write_tokenizer(writer: gguf.GGUFWriter, original: dict, name: str) -> None:
    added = {token["content"]: token["special"] for token in original["added_tokens"]}
    vocab = sorted(original["model"]["vocab"].items(), key=lambda entry: entry[1])
    tokens = [token for token, _ in vocab]

    def kind(token: str) -> TokenType:
        if token == "<unk>":
            return TokenType.UNKNOWN
        if token in ("<|tool_response>", '<|"|>'):
            return TokenType.USER_DEFINED
        if token in added:
            return TokenType.CONTROL if added[token] else TokenType.USER_DEFINED
        spm_byte = name.startswith("spm") and token.startswith("<0x")
        return TokenType.BYTE if spm_byte else TokenType.NORMAL

    writer.add_token_list(tokens)
    writer.add_token_types([kind(token) for token in tokens])
    if name.startswith("spm"):
        if name == "spm-gemma4":
            writer.add_tokenizer_model("gemma4")
            writer.add_token_scores([-1000.0] * len(tokens))
            writer.add_token_merges([" ".join(merge) for merge in original["model"]["merges"]])
        else:
            writer.add_tokenizer_model("llama")
            writer.add_tokenizer_pre("default")
            writer.add_token_scores([-float(id) for _, id in vocab])
        writer.add_add_space_prefix(name not in ("spm-no-space", "spm-gemma4"))
        writer.add_bos_token_id(tokens.index("<s>"))
        writer.add_eos_token_id(tokens.index("</s>"))
        writer.add_unk_token_id(tokens.index("<unk>"))
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(name)
        writer.add_token_merges([" ".join(merge) for merge in original["model"]["merges"]])
        writer.add_bos_token_id(tokens.index("<|begin|>"))
        # The file names a wrong end-of-sequence token. The right one is recognized by its name only.
        writer.add_eos_token_id(tokens.index("<|begin|>"))
        writer.add_chat_template(TEMPLATE)


def write_gemma4(writer: gguf.GGUFWriter, config) -> None:
    """Writes Gemma 4's metadata, as the converter does."""
    windowed = [kind == "sliding_attention" for kind in config.layer_types]
    layers = [config.per_layer_config[i] for i in range(config.num_hidden_layers)]
    wide, narrow = (layers[windowed.index(kind)].head_dim for kind in (False, True))
    for swa, width in [("_swa", narrow), ("", wide)]:
        getattr(writer, f"add_key_length{swa}")(width)
        getattr(writer, f"add_value_length{swa}")(width)
        getattr(writer, f"add_rope_dimension_count{swa}")(width)
    writer.add_head_count_kv([layer.num_key_value_heads for layer in layers])
    first_shared = config.num_hidden_layers - config.num_kv_shared_layers
    width = lambda i: config.intermediate_size * (2 if config.use_double_wide_mlp and i >= first_shared else 1)
    writer.add_feed_forward_length([width(i) for i in range(config.num_hidden_layers)])
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(windowed)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    turned = int(wide * rope["full_attention"]["partial_rotary_factor"] / 2)
    divisors = np.array([1.0] * turned + [1e30] * (wide // 2 - turned), np.float32)
    writer.add_tensor("rope_freqs.weight", divisors)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def write_deepseek2(writer: gguf.GGUFWriter, config, whole_heads: bool) -> None:
    """Writes the metadata of multi-head latent attention, as the converter does. Older files have other head widths."""
    rope, latent = config.rope_parameters, config.kv_lora_rank
    widths = (config.qk_head_dim, config.v_head_dim)
    if whole_heads:
        writer.add_head_count_kv(config.num_attention_heads)
        writer.add_key_length(widths[0])
        writer.add_value_length(widths[1])
    else:
        writer.add_head_count_kv(1)
        writer.add_key_length(latent + config.qk_rope_head_dim)
        writer.add_value_length(latent)
        writer.add_key_length_mla(widths[0])
        writer.add_value_length_mla(widths[1])
    writer.add_kv_lora_rank(latent)
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if config.model_type == "deepseek_v3":
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def write_config(writer: gguf.GGUFWriter, config, recipe: dict) -> None:
    arch, rope = recipe["arch"], config.rope_parameters
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    if arch == "gemma4":
        writer.add_head_count(config.num_attention_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        write_gemma4(writer, config)
        return
    if arch == "deepseek2":
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        write_deepseek2(writer, config, recipe.get("whole_heads", False))
        return
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if arch != "phi3":
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if arch in ("gemma2", "gemma3", "phi3", "gpt-oss"):
        writer.add_sliding_window(config.sliding_window)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if arch == "gemma3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    if arch == "granite":
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if experts := getattr(config, "num_local_experts", None):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if arch == "qwen3moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if arch == "gpt-oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "longrope":
        original = config.original_max_position_embeddings
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(scale) / np.log(original))))
        writer.add_rope_scaling_orig_ctx_len(original)
        for length in ("long", "short"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], np.float32))
    elif rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if rope["rope_type"] == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def pairs(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorders the rows of q or k, so that neighbouring rows are rotated together."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def gpt_oss_experts(name: str, data: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Splits all experts' `[experts, in, out]` or `[experts, out]` into gate and up, whose outputs alternate."""
    stored_name = name.removesuffix("_bias") + (".bias" if name.endswith("_bias") else ".weight")
    data = data if data.dim() == 2 else data.transpose(1, 2)
    if "gate_up_proj" in name:
        yield stored_name.replace("gate_up_proj", "gate_proj"), data[:, 0::2]
        yield stored_name.replace("gate_up_proj", "up_proj"), data[:, 1::2]
    else:
        yield stored_name, data


def stored_tensors(model: torch.nn.Module, whole_heads: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's tensors in ggml's division. They share the model's memory."""
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            yield name.replace("_bias", ".bias"), buffer
        if name.endswith("layer_scalar"):
            yield name + ".weight", buffer
    for name, parameter in model.named_parameters():
        name = name.replace("block_sparse_moe", "mlp")
        if type(model).__name__.startswith("GptOss") and ".experts." in name:
            yield from gpt_oss_experts(name, parameter.data)
        elif type(model).__name__.startswith("Gemma4") and ".experts." in name:
            yield name + ".weight", parameter.data
        elif name.endswith("kv_b_proj.weight") and not whole_heads:
            heads, keys = model.config.num_attention_heads, model.config.qk_nope_head_dim
            of_heads = parameter.data.view(heads, -1, model.config.kv_lora_rank)
            yield name.replace("kv_b", "k_b"), of_heads[:, :keys].transpose(1, 2)
            yield name.replace("kv_b", "v_b"), of_heads[:, keys:]
        elif name.endswith(".sinks"):
            yield name + ".weight", parameter.data
        elif name.endswith("experts.gate_up_proj"):
            gate, up = parameter.data.chunk(2, dim=1)
            yield name.replace("gate_up_proj", "gate_proj.weight"), gate
            yield name.replace("gate_up_proj", "up_proj.weight"), up
        elif name.endswith("experts.down_proj"):
            yield name + ".weight", parameter.data
        else:
            yield name, parameter.data


def router_scale(name: str) -> str:
    """The name of one of the two scales of Gemma 4's routers."""
    layer, scale = name.split(".")[2], name.rpartition(".")[2]
    return f"blk.{layer}." + {"scale": "ffn_gate_inp.scale", "per_expert_scale": "ffn_down_exps.scale"}[scale]


def make(name: str, recipe: dict, out: Path, seed: int) -> None:
    spm = recipe["tokenizer"].startswith("spm")
    original = (sentence_piece if spm else byte_level)(recipe["tokenizer"])
    vocab_size = len(original["model"]["vocab"])
    base = {**common.TWO_LAYERS, "vocab_size": vocab_size}
    if recipe["arch"] == "gemma4":
        base["vocab_size_per_layer_input"] = vocab_size
    model = common.random_model(recipe, base, seed)
    config, folder = model.config, common.empty(out / name)
    (folder / "tokenizer.json").write_text(json.dumps(original, ensure_ascii=False, separators=(",", ":")) + "\n")
    arch = recipe["arch"]
    writer = gguf.GGUFWriter(folder / "model.gguf", arch, split_max_tensors=16 if recipe.get("split") else 0)
    writer.add_name(name)
    write_config(writer, config, recipe)
    write_tokenizer(writer, original, recipe["tokenizer"])
    if config.rope_parameters.get("rope_type") == "llama3":
        head_dim = config.hidden_size // config.num_attention_heads
        plain = 1 / 10000.0 ** (torch.arange(0, head_dim, 2) / head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / common.inv_freq(model)).numpy())

    rng = np.random.default_rng(seed)
    names = gguf.get_tensor_name_map(
        next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == arch), config.num_hidden_layers
    )
    types, dequantized, turn = recipe["types"], {}, 0
    for parameter_name, parameter in stored_tensors(model, recipe.get("whole_heads", False)):
        stored_name = names.get_name(parameter_name, (".weight", ".bias")) or router_scale(parameter_name)
        permuted = None
        if arch in ("llama", "granite"):
            heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
            permuted = heads.get(parameter_name.split(".")[-2])
        data = parameter.numpy().copy()
        if data.ndim == 1 or parameter_name.endswith(".bias"):
            # transformers stores norm weights minus one, GGUF files the weights themselves.
            from_one = arch in ("gemma2", "gemma3") and "norm" in parameter_name
            data = data + 1 if from_one else data
            writer.add_tensor(stored_name, pairs(data, permuted) if permuted else data)
            continue
        if parameter_name.endswith(("mlp.gate.weight", "mlp.router.weight", "router.proj.weight")):  # routers are never quantized
            writer.add_tensor(stored_name, data)
            continue
        stored_type = types[turn % len(types)]
        turn += 1
        shape, data = data.shape, data.reshape(-1, data.shape[-1])
        packed = gguf_formats.pack(stored_type, data, rng)
        numbers = gguf_formats.unpack(stored_type, packed)
        parameter.copy_(torch.from_numpy(numbers).reshape(shape))
        if permuted:
            packed, numbers = pairs(packed, permuted), pairs(numbers, permuted)
        writer.add_tensor(stored_name, packed.reshape(*shape[:-1], -1), raw_dtype=stored_type)
        if stored_type.name.startswith(("Q", "MX", "IQ")) and turn <= 2 * len(types):
            rows = torch.from_numpy(numbers[:DEQUANTIZED_ROWS].copy())
            dequantized[f"dequantized.{stored_name}"] = rows
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    common.write_golden(folder, model, seed + 1, recipe.get("short_prompt"), dequantized)


def make_on_load(name: str, source: str, kind: Type, out: Path, seed: int) -> None:
    model = common.read_back(transformers.AutoModelForCausalLM, out / source)
    dequantized = {}
    for parameter_name, parameter in model.named_parameters():
        if parameter.dim() == 1 or parameter_name.endswith(KEPT):
            continue
        own = Type.Q8_0 if parameter_name.endswith(HEADS) else kind
        # GPT-2's linear weights are transposed.
        turned = source.startswith("gpt2") and not parameter_name.endswith(HEADS)
        data = parameter.detach().numpy()
        data = np.ascontiguousarray(data.T if turned else data)
        numbers = gguf.quants.dequantize(gguf.quants.quantize(data, own), own)
        parameter.data.copy_(torch.from_numpy(numbers.T if turned else numbers))
        if source == "llama" and ("layers.0." in parameter_name or parameter_name.endswith(HEADS)):
            dequantized[f"dequantized.{parameter_name}"] = torch.from_numpy(numbers[:DEQUANTIZED_ROWS].copy())
    common.write_golden(common.empty(out / name), model, seed + 1, dequantized=dequantized)


def main() -> None:
    args = common.arguments(__doc__).parse_args()
    for name, recipe, seed in common.wanted(MODELS, args.only, 9000):
        make(name, recipe, args.out, seed)
    for name, (source, kind), seed in common.wanted(ON_LOAD, args.only, 10000):
        on_load.make(name, source, args.out, seed) if kind == "int4" else make_on_load(name, source, kind, args.out, seed)


if __name__ == "__main__":
    main()
