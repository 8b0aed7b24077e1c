"""Recipes of decoders.py: Gemma 4, whose layers differ not only in their windows."""

from __future__ import annotations

import torch

# Tiny encoders of images and sounds, whose output is not used.
VISION = dict(
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=8,
    patch_size=4,
    position_embedding_size=8,
)
UNIFIED_VISION = dict(patch_size=2, pooling_kernel_size=1, mm_embed_dim=64, mm_posemb_size=4, output_proj_dims=64)

# Settings of MoE models whose matrices are packed by the scripts for quantized goldens, so rows consist of whole
# blocks.
TWO_LAYERS_OF_EXPERTS = dict(
    head_dim=32,
    global_head_dim=64,
    num_global_key_value_heads=1,
    attention_k_eq_v=True,
    layer_types=["sliding_attention", "full_attention"],
    hidden_size_per_layer_input=0,
    sliding_window=11,
    enable_moe_block=True,
    num_experts=4,
    top_k_experts=2,
    moe_intermediate_size=32,
    tie_word_embeddings=True,
)


def as_published(config: dict) -> None:
    """Writes two keys for all global layers. transformers 5.23 would write the values of each such layer."""
    text = config["text_config"]
    of_global = next(iter(text.pop("per_layer_config").values()))
    text["global_head_dim"] = of_global["head_dim"]
    text["num_global_key_value_heads"] = of_global.get("num_key_value_heads")


# Same form as MODELS in decoders.py.
MODELS = {
    # The last three layers use the keys and values of the two layers before them, of the same kind. Their own are
    # stored but not used.
    "gemma4": dict(
        cls="Gemma4",
        seed=714,
        head="ForConditionalGeneration",
        vision=VISION,
        config=dict(
            num_hidden_layers=6,
            head_dim=16,
            global_head_dim=32,
            layer_types=[
                "sliding_attention",
                "sliding_attention",
                "full_attention",
                "sliding_attention",
                "sliding_attention",
                "full_attention",
            ],
            num_kv_shared_layers=3,
            use_double_wide_mlp=True,
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=320,
            sliding_window=10,
            final_logit_softcapping=2.0,
            tie_word_embeddings=True,
            rope_parameters=dict(
                full_attention=dict(rope_type="proportional", rope_theta=50000.0, partial_rotary_factor=0.25),
                sliding_attention=dict(rope_type="default", rope_theta=500.0),
            ),
        ),
        rewrite=as_published,
        rename=lambda tensors: tensors
        | {f"model.language_model.layers.{i}.self_attn.k_norm.weight": torch.ones(16) for i in (3, 4)},
        dtype=torch.bfloat16,
    ),
    # Global layers have a head width without a kernel of its own. Experts run in parallel with the feed-forward.
    "gemma4-moe": dict(
        cls="Gemma4",
        text=True,
        config=dict(
            TWO_LAYERS_OF_EXPERTS,
            head_dim=24,
            global_head_dim=80,
            layer_types=["sliding_attention", "full_attention", "full_attention"],
            num_experts=6,
            top_k_experts=3,
            moe_intermediate_size=40,
        ),
        dtype=torch.bfloat16,
    ),
    # Head widths as published, and default settings of all RoPEs.
    "gemma4-unified": dict(
        cls="Gemma4Unified",
        head="ForConditionalGeneration",
        vision=UNIFIED_VISION,
        config=dict(
            num_hidden_layers=2,
            num_attention_heads=2,
            head_dim=256,
            global_head_dim=512,
            num_global_key_value_heads=1,
            attention_k_eq_v=True,
            layer_types=["sliding_attention", "full_attention"],
            hidden_size_per_layer_input=0,
            sliding_window=12,
            tie_word_embeddings=True,
        ),
        rewrite=lambda c: (as_published(c), c["text_config"].pop("rope_parameters")),
        dtype=torch.bfloat16,
    ),
}
