#!/usr/bin/env python3
"""Makes the golden checkpoints of tests/golden: one tiny random model per architecture.

    .venv/bin/python scripts/goldens/decoders.py

Each folder has a Hugging Face checkpoint with every flag of its architecture switched on, and golden.safetensors with
what transformers computes from it on the CPU in f32 (eager attention):

    prompt      [prompt] int32            token ids
    logits      [prompt, vocab] float32   logits at every position of the prompt
    greedy      [32] int32                the tokens greedy decoding appends to the prompt
    inv_freq    [rot_dim / 2] float32     the RoPE's inverse frequencies for such a prompt
    short_logits, short_inv_freq          the same for the first tokens of the prompt alone, if
                                          the RoPE depends on the length

The weights are seeded, so the same versions of torch and transformers give the same files. The large matrices come
from seeded_weights.py: git keeps model.seeded, from which model.safetensors is generated.

To make a golden, add its recipe below, with every flag on, and run the script with --only NAME. If it prints a small
lead of the best token, give the recipe another `seed`.
"""

from __future__ import annotations

from pathlib import Path

import common
import experts
import gemma4
import gpts
import mamba
import torch
from common import ALTERNATING
from safetensors.torch import load_file, save_file
from seeded_weights import seed_weights

# A tiny image encoder, whose output is not used.
VISION = dict(
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    image_size=8,
    patch_size=4,
)
GEMMA3_DEFAULTS = ["rms_norm_eps", "hidden_activation"]

def in_memory(name: str) -> str:
    """transformers 5's name of a tensor in a model for text and images. It stores the tensor by transformers 4's
    name.
    """
    inner = name.removeprefix("language_model.")
    if inner.startswith("lm_head."):
        return inner
    return "model." + name.replace("language_model.model.", "language_model.")


# folder: class, differences from COMMON, and form of the files.
MODELS = {
    "llama": dict(
        cls="Llama",
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
    ),
    # RoPE settings in transformers 4's form, several end-of-sequence tokens, tied embeddings, in shards.
    "llama-linear": dict(
        cls="Llama",
        config=dict(
            tie_word_embeddings=True,
            rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0),
        ),
        rewrite=lambda c: c.update(
            rope_theta=c["rope_parameters"]["rope_theta"],
            rope_scaling=dict(type="linear", factor=c.pop("rope_parameters")["factor"]),
            torch_dtype=c.pop("dtype"),
            eos_token_id=[2, 3],
        ),
        shard_size="200KB",
    ),
    # Stored in bfloat16.
    "llama-yarn": dict(
        cls="Llama",
        config=dict(
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=100.0,  # low enough for both bounds to fall between the few dimensions
                factor=4.0,
                original_max_position_embeddings=64,
                beta_fast=2.0,
                beta_slow=0.5,
            ),
        ),
        dtype=torch.bfloat16,
    ),
    "mistral": dict(cls="Mistral", config=dict(sliding_window=11, head_dim=24)),
    # Without the list of layers that transformers 4.53 and later write.
    "qwen2": dict(
        cls="Qwen2",
        config=dict(use_sliding_window=True, sliding_window=9, max_window_layers=1),
        rewrite=lambda c: c.pop("layer_types"),
    ),
    "qwen3": dict(
        cls="Qwen3",
        config=dict(
            head_dim=32,
            attention_bias=True,
            use_sliding_window=True,
            sliding_window=13,
            layer_types=ALTERNATING,
        ),
    ),
    "gemma2": dict(
        cls="Gemma2",
        seed=601,
        config=dict(
            head_dim=32,
            attention_bias=True,
            query_pre_attn_scalar=24,
            sliding_window=10,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=0.7,
            tie_word_embeddings=True,
        ),
        rewrite=lambda c: c.pop("layer_types"),
    ),
    "phi3": dict(
        cls="Phi3",
        config=dict(
            sliding_window=15,
            original_max_position_embeddings=256,
            rope_parameters=dict(
                rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5
            ),
        ),
    ),
    # The prompt is longer than the original context, so the long factors apply. Stored in float16.
    "phi3-longrope": dict(
        cls="Phi3",
        config=dict(
            original_max_position_embeddings=32,
            rope_parameters=dict(
                rope_type="longrope",
                rope_theta=10000.0,
                partial_rotary_factor=0.75,
                short_factor=[1.0, 1.05, 1.1, 1.2, 1.3, 1.4],
                long_factor=[1.1, 1.5, 2.0, 3.0, 5.0, 8.0],
            ),
        ),
        dtype=torch.float16,
        short_prompt=24,
    ),
    # transformers 4's form: a pattern of layers, a RoPE base for windowed layers, and scaling for the others.
    "gemma3": dict(
        cls="Gemma3",
        text=True,
        config=dict(
            num_hidden_layers=4,
            head_dim=32,
            query_pre_attn_scalar=24,
            sliding_window=10,
            sliding_window_pattern=3,
            final_logit_softcapping=0.9,
            tie_word_embeddings=True,
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", rope_theta=50000.0, factor=4.0),
                sliding_attention=dict(rope_type="default", rope_theta=500.0),
            ),
        ),
        rewrite=lambda c: (
            c.update(
                rope_theta=50000.0,
                rope_local_base_freq=500.0,
                rope_scaling=dict(rope_type="linear", factor=4.0),
                sliding_window_pattern=3,
            ),
            c.pop("rope_parameters"),
            c.pop("layer_types"),
            c.pop("_sliding_window_pattern"),
        ),
        dtype=torch.bfloat16,
    ),
    # transformers 5's form, with a list of layers that follows no pattern.
    "gemma3-nested": dict(
        cls="Gemma3",
        text=True,
        config=dict(
            head_dim=16,
            query_pre_attn_scalar=16,
            sliding_window=9,
            layer_types=ALTERNATING[::-1][1:] + ["full_attention"],
            tie_word_embeddings=False,
            rope_parameters=dict(
                full_attention=dict(rope_type="default", rope_theta=20000.0),
                sliding_attention=dict(rope_type="default", rope_theta=300.0),
            ),
        ),
        dtype=torch.bfloat16,
    ),
    # Without the key for the rotated part of a head, whose default is a half.
    "glm4": dict(
        cls="Glm4",
        config=dict(head_dim=24, attention_bias=True),
        rewrite=lambda c: (
            c["rope_parameters"].pop("partial_rotary_factor"),
            c.pop("partial_rotary_factor", None),
        ),
        dtype=torch.bfloat16,
    ),
    "granite": dict(
        cls="Granite",
        seed=1201,
        config=dict(
            attention_bias=True,
            embedding_multiplier=12.0,
            attention_multiplier=0.0625,
            residual_multiplier=0.22,
            logits_scaling=6.0,
        ),
        dtype=torch.bfloat16,
    ),
    "olmo2": dict(cls="Olmo2", config=dict(attention_bias=True), dtype=torch.bfloat16),
    "starcoder2": dict(
        cls="Starcoder2",
        config=dict(
            hidden_act="gelu_pytorch_tanh",
            norm_epsilon=1e-4,
            sliding_window=12,
            tie_word_embeddings=True,
        ),
        # Published form.
        rewrite=lambda c: (c.pop("rms_norm_eps", None), c.pop("tie_word_embeddings")),
        dtype=torch.bfloat16,
    ),
    # Names without the outer prefix, and a causal mask as a tensor, as in the first checkpoints.
    "gpt2": dict(
        cls="GPT2",
        head="LMHeadModel",
        config=dict(
            max_position_embeddings=96,
            n_inner=160,
            scale_attn_by_inverse_layer_idx=True,
            tie_word_embeddings=True,
        ),
        rewrite=gpts.without(),
        rename=lambda tensors: {
            **{name.removeprefix("transformer."): t for name, t in tensors.items()},
            "h.0.attn.bias": torch.ones(1, 1, 96, 96).tril(),
        },
    ),
    "gpt2-outer": dict(
        cls="GPT2",
        seed=1602,
        head="LMHeadModel",
        config=dict(
            max_position_embeddings=96, activation_function="gelu", scale_attn_weights=False
        ),
        rewrite=gpts.without(),
        dtype=torch.float16,
    ),
    "cohere": dict(
        cls="Cohere",
        seed=1701,
        config=dict(
            attention_bias=True,
            layer_norm_eps=1e-4,
            logit_scale=0.25,
            use_qk_norm=True,
            tie_word_embeddings=True,
        ),
        rewrite=lambda c: (c.pop("rms_norm_eps", None), c.pop("tie_word_embeddings")),
        dtype=torch.bfloat16,
    ),
    "cohere2": dict(
        cls="Cohere2",
        config=dict(
            num_hidden_layers=4,
            logit_scale=0.25,
            sliding_window=10,
            sliding_window_pattern=3,
            tie_word_embeddings=True,
        ),
        rewrite=lambda c: (
            c.pop("rms_norm_eps", None),
            c.pop("layer_types"),
            c.update(sliding_window_pattern=3),
        ),
        dtype=torch.bfloat16,
    ),
    "mixtral": dict(
        cls="Mixtral",
        config=dict(
            num_local_experts=5,
            num_experts_per_tok=2,
            intermediate_size=48,
            sliding_window=14,
            rope_parameters=dict(rope_type="default", rope_theta=5000.0),
        ),
        dtype=torch.bfloat16,
    ),
    "qwen3-moe": dict(
        cls="Qwen3Moe",
        config=dict(
            num_hidden_layers=4,
            head_dim=16,
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            norm_topk_prob=False,
            mlp_only_layers=[1],
            attention_bias=True,
        ),
        dtype=torch.bfloat16,
    ),
    "qwen3-moe-renormalized": dict(
        cls="Qwen3Moe",
        config=dict(
            head_dim=16,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=40,
            norm_topk_prob=True,
            decoder_sparse_step=2,
            use_sliding_window=True,
            sliding_window=11,
        ),
        # transformers 4's name of the key.
        rewrite=lambda c: c.update(num_experts=c.pop("num_local_experts")),
        dtype=torch.bfloat16,
    ),
    "gemma": dict(
        cls="Gemma",
        seed=2203,
        config=dict(head_dim=32, hidden_act="gelu", tie_word_embeddings=True),
        rewrite=lambda c: (c.pop("tie_word_embeddings"), c.update(hidden_act="gelu")),
        dtype=torch.bfloat16,
    ),
    # The text part of a model for text and images. Default values are not written, and tensors have transformers 4's
    # names.
    "gemma3-images": dict(
        cls="Gemma3",
        seed=2301,
        head="ForConditionalGeneration",
        vision=dict(model_type="siglip_vision_model", **VISION, vision_use_head=False),
        config=dict(
            num_hidden_layers=2,
            head_dim=32,
            query_pre_attn_scalar=24,
            sliding_window=8,
            rms_norm_eps=1e-6,
            layer_types=ALTERNATING[:2],
            tie_word_embeddings=True,
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
                sliding_attention=dict(rope_type="default", rope_theta=1e4),
            ),
        ),
        rewrite=lambda c: (
            [c["text_config"].pop(key) for key in GEMMA3_DEFAULTS],
            c["text_config"].pop("rope_parameters"),
            c["text_config"].update(rope_scaling=dict(rope_type="linear", factor=8.0)),
        ),
        dtype=torch.bfloat16,
    ),
    # Tensors have the names that transformers 5 uses in memory.
    "mistral3": dict(
        cls="Mistral3",
        head="ForConditionalGeneration",
        vision=dict(model_type="pixtral", **VISION),
        config=dict(
            model_type="mistral",
            head_dim=24,
            sliding_window=None,
            rope_parameters=dict(rope_type="default", rope_theta=5000.0),
        ),
        rename=lambda tensors: {in_memory(name): t for name, t in tensors.items()},
        dtype=torch.bfloat16,
    ),
    "glm": dict(cls="Glm", seed=602, config=dict(head_dim=24), dtype=torch.bfloat16),
    # transformers 4's form: scaling for the layers without a window. transformers 5 would read only the common base.
    "olmo3": dict(
        cls="Olmo3",
        seed=2601,
        config=dict(
            num_hidden_layers=4,
            sliding_window=11,
            rope_parameters=dict(
                full_attention=dict(
                    rope_type="yarn",
                    rope_theta=500000.0,
                    factor=4.0,
                    original_max_position_embeddings=64,
                    beta_fast=2.0,
                    beta_slow=0.5,
                ),
                sliding_attention=dict(rope_type="default", rope_theta=500000.0),
            ),
        ),
        rewrite=lambda c: (
            c.update(rope_scaling=c.pop("rope_parameters")["full_attention"]),
            c.update(rope_theta=c["rope_scaling"].pop("rope_theta")),
            c.pop("layer_types"),
        ),
        dtype=torch.bfloat16,
    ),
    # transformers 5's form.
    "olmo3-nested": dict(
        cls="Olmo3",
        config=dict(
            sliding_window=9,
            layer_types=ALTERNATING,
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", rope_theta=300.0, factor=2.0),
                sliding_attention=dict(rope_type="default", rope_theta=700.0),
            ),
        ),
        dtype=torch.bfloat16,
    ),
    "olmoe": dict(
        cls="Olmoe",
        config=dict(
            intermediate_size=40,
            num_experts=6,
            num_experts_per_tok=3,
            norm_topk_prob=True,
        ),
        dtype=torch.bfloat16,
    ),
    "smollm3": dict(
        cls="SmolLM3",
        config=dict(
            no_rope_layer_interval=2,
            mlp_bias=True,
            use_sliding_window=True,
            sliding_window=13,
            tie_word_embeddings=True,
        ),
        rewrite=lambda c: (c.pop("layer_types"), c.pop("tie_word_embeddings")),
        dtype=torch.bfloat16,
    ),
    "seed-oss": dict(
        cls="SeedOss",
        config=dict(head_dim=24, attention_out_bias=True, mlp_bias=True),
        dtype=torch.bfloat16,
    ),
    "ernie4_5": dict(
        cls="Ernie4_5",
        config=dict(head_dim=32, use_bias=True, tie_word_embeddings=True),
        dtype=torch.bfloat16,
    ),
    # Published form, with the pattern of layers in letters.
    "exaone4": dict(
        cls="Exaone4",
        config=dict(num_hidden_layers=4, sliding_window=12, sliding_window_pattern=3),
        rewrite=lambda c: c.update(sliding_window_pattern="LLG"),
        dtype=torch.bfloat16,
    ),
    "exaone4-full": dict(
        cls="Exaone4",
        config=dict(
            num_hidden_layers=2,
            sliding_window=None,
            layer_types=["full_attention"] * 2,
        ),
        dtype=torch.bfloat16,
    ),
    "stablelm": dict(
        cls="StableLm",
        config=dict(layer_norm_eps=1e-4, use_qkv_bias=True),
        rewrite=lambda c: c.pop("rms_norm_eps", None),
        dtype=torch.bfloat16,
    ),
    "stablelm-parallel": dict(
        cls="StableLm",
        config=dict(num_hidden_layers=2, use_parallel_residual=True, partial_rotary_factor=0.5),
        rewrite=lambda c: c.pop("rms_norm_eps", None),
        dtype=torch.bfloat16,
    ),
    "ministral3": dict(
        cls="Ministral3",
        seed=3601,
        config=dict(
            head_dim=24,
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=100.0,
                factor=4.0,
                original_max_position_embeddings=16,
                beta_fast=2.0,
                beta_slow=0.5,
                mscale=1.0,
                mscale_all_dim=1.0,
                llama_4_scaling_beta=0.5,
            ),
        ),
        dtype=torch.bfloat16,
    ),
    # Without the key for the rotated part of a head, whose default is a half.
    "phi": dict(
        cls="Phi",
        config=dict(layer_norm_eps=1e-4),
        rewrite=lambda c: (
            c.pop("rms_norm_eps", None),
            c["rope_parameters"].pop("partial_rotary_factor"),
            c.pop("partial_rotary_factor", None),
        ),
        dtype=torch.bfloat16,
    ),
    **experts.MODELS,
    **gemma4.MODELS,
    **gpts.MODELS,
    **experts.MORE,
    **mamba.MODELS,
}

def make(name: str, recipe: dict, out: Path, seed: int) -> None:
    model = common.random_model(recipe, common.COMMON, seed)
    folder = common.empty(out / name)
    stored = recipe.get("dtype", torch.float32)
    model.to(stored).save_pretrained(folder, max_shard_size=recipe.get("shard_size", "1GB"))
    if "rewrite" in recipe:
        common.rewrite_json(folder / "config.json", recipe["rewrite"])
    if "rename" in recipe:
        weights = folder / "model.safetensors"
        save_file(recipe["rename"](load_file(weights)), weights, metadata={"format": "pt"})
    seed_weights(folder, seed)
    common.forget_version(folder)
    model = common.read_back(type(model), folder)
    common.write_golden(folder, model, seed + 1, recipe.get("short_prompt"))


def main() -> None:
    args = common.arguments(__doc__).parse_args()
    for name, recipe, seed in common.wanted(MODELS, args.only, 0):
        make(name, recipe, args.out, recipe.get("seed", seed))


if __name__ == "__main__":
    main()
