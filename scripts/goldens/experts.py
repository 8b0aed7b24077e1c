"""Recipes of decoders.py: models with shared experts, and models with delta nets."""

from __future__ import annotations

import torch
from common import TWO_LAYERS

# A tiny image encoder, whose output is not used.
QWEN_VISION = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=1, patch_size=4)


def of_all_experts(tensors: dict, experts: int) -> dict:
    """Puts the matrices of each layer's experts into one tensor, with gate before up."""
    one = lambda name, expert, matrix: tensors.pop(name.replace("experts.0.gate_proj", f"experts.{expert}.{matrix}"))
    for name in [name for name in tensors if name.endswith(".experts.0.gate_proj.weight")]:
        layer = name.split("0.gate_proj")[0]
        both = [torch.cat([one(name, e, "gate_proj"), one(name, e, "up_proj")]) for e in range(experts)]
        tensors[layer + "gate_up_proj"] = torch.stack(both)
        tensors[layer + "down_proj"] = torch.stack([one(name, e, "down_proj") for e in range(experts)])
    return tensors


# Settings of models with multi-head latent attention, then of those that are MoE models, too.
LATENTS = dict(
    num_key_value_heads=4,
    q_lora_rank=40,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=24,
)
WITH_EXPERTS = LATENTS | dict(moe_intermediate_size=40, first_k_dense_replace=1)


def yarn(mscale: float) -> dict:
    """RoPE scaling with DeepSeek's settings."""
    return dict(
        rope_type="yarn",
        rope_theta=10000.0,
        factor=4.0,
        original_max_position_embeddings=64,
        beta_fast=32.0,
        beta_slow=1.0,
        mscale=mscale,
        mscale_all_dim=mscale,
    )


def as_published(config: dict, **others) -> None:
    """Writes a configuration as published, with keys that transformers does not read."""
    rope = config.pop("rope_parameters")
    theta, kind = rope.pop("rope_theta"), rope.pop("rope_type")
    for key in ("head_dim", "qk_head_dim", "partial_rotary_factor"):
        config.pop(key, None)
    config.update(rope_theta=theta, rope_scaling={"type": kind, **rope}, **others)


# Same form as MODELS in decoders.py.
MODELS = {
    # With an unused layer for multi-token prediction after the last one. Half of the routed experts are chosen.
    "glm4-moe": dict(
        cls="Glm4Moe",
        config=dict(
            head_dim=24,
            attention_bias=True,
            use_qk_norm=True,
            moe_intermediate_size=40,
            n_routed_experts=6,
            num_experts_per_tok=3,
            n_shared_experts=2,
            routed_scaling_factor=1.5,
            first_k_dense_replace=1,
        ),
        rewrite=lambda c: (
            c["rope_parameters"].pop("partial_rotary_factor"),
            c.pop("partial_rotary_factor", None),
        ),
        rename=lambda tensors: tensors | {"model.layers.3.enorm.weight": torch.zeros(64)},
        dtype=torch.bfloat16,
    ),
    # Settings of DeepSeek-V2-Lite: queries without a latent.
    "deepseek-v2": dict(
        cls="DeepseekV2",
        config=dict(
            **WITH_EXPERTS | dict(q_lora_rank=None),
            n_routed_experts=6,
            num_experts_per_tok=3,
            n_shared_experts=2,
            rope_parameters=yarn(0.707),
        ),
        rewrite=lambda c: as_published(c, scoring_func="softmax", moe_layer_freq=1),
        dtype=torch.bfloat16,
    ),
    # Settings of DeepSeek-V2.
    "deepseek-v2-groups": dict(
        cls="DeepseekV2",
        seed=4001,
        config=dict(
            **WITH_EXPERTS,
            n_routed_experts=8,
            num_experts_per_tok=3,
            n_shared_experts=1,
            n_group=4,
            topk_group=2,
            topk_method="group_limited_greedy",
            routed_scaling_factor=1.5,
        ),
        dtype=torch.bfloat16,
    ),
    # With an unused layer for multi-token prediction after the last one.
    "deepseek-v3": dict(
        cls="DeepseekV3",
        config=dict(
            **WITH_EXPERTS,
            n_routed_experts=8,
            num_experts_per_tok=3,
            n_shared_experts=1,
            n_group=4,
            topk_group=2,
            routed_scaling_factor=2.5,
            rope_parameters=yarn(1.0),
        ),
        rewrite=lambda c: as_published(c, scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1),
        rename=lambda tensors: tensors | {"model.layers.3.enorm.weight": torch.zeros(64)},
        dtype=torch.bfloat16,
    ),
    "glm4-moe-lite": dict(
        cls="Glm4MoeLite",
        config=dict(
            **WITH_EXPERTS | dict(qk_nope_head_dim=24, v_head_dim=32),
            n_routed_experts=6,
            num_experts_per_tok=2,
            routed_scaling_factor=1.8,
        ),
        dtype=torch.bfloat16,
    ),
    # Query scaling by position. RoPE settings refer to whole heads.
    "mistral4": dict(
        cls="Mistral4",
        config=dict(
            **WITH_EXPERTS | dict(first_k_dense_replace=0, qk_nope_head_dim=8),
            num_hidden_layers=2,
            n_routed_experts=6,
            num_experts_per_tok=2,
            rope_parameters=dict(
                **yarn(1.0) | {"original_max_position_embeddings": 16},
                llama_4_scaling_beta=0.1,
            ),
        ),
        dtype=torch.bfloat16,
    ),
    "youtu": dict(
        cls="Youtu",
        config=dict(
            **LATENTS,
            tie_word_embeddings=True,
            # transformers would set the embedding of this token to zeros.
            pad_token_id=None,
        ),
        dtype=torch.bfloat16,
    ),
    "minicpm3": dict(
        cls="MiniCPM3",
        seed=4501,
        config=dict(
            **LATENTS,
            scale_emb=0.6,
            dim_model_base=32,
            scale_depth=2.8,
            tie_word_embeddings=True,
            rope_parameters=dict(
                rope_type="longrope",
                rope_theta=10000.0,
                factor=1.0,
                original_max_position_embeddings=256,
                short_factor=[1.0, 1.1, 1.3, 2.0],
                long_factor=[1.0, 1.1, 1.3, 2.0],
            ),
        ),
        dtype=torch.bfloat16,
    ),
    "ernie4_5-moe": dict(
        cls="Ernie4_5_Moe",
        config=dict(
            num_hidden_layers=4,
            moe_intermediate_size=40,
            moe_num_experts=6,
            moe_k=3,
            moe_num_shared_experts=2,
            moe_layer_start_index=1,
            moe_layer_end_index=2,
        ),
        dtype=torch.bfloat16,
    ),
    # Published form, with keys that transformers does not read.
    "minimax-m2": dict(
        cls="MiniMaxM2",
        config=dict(
            head_dim=24,
            rotary_dim=12,
            intermediate_size=40,
            num_local_experts=6,
            num_experts_per_tok=4,
            rope_theta=3000.0,
        ),
        rewrite=lambda c: (
            c.pop("rope_parameters"),
            c.pop("partial_rotary_factor", None),
            c.update(
                rope_theta=3000.0,
                rotary_dim=12,
                attn_type_list=[1, 1, 1],
                qk_norm_type="per_layer",
                scoring_func="sigmoid",
                shared_intermediate_size=0,
                use_qk_norm=True,
                use_routing_bias=True,
            ),
        ),
        dtype=torch.bfloat16,
    ),
    # Windows shorter than the prompt, and the published kind of RoPE.
    "gpt-oss": dict(
        cls="GptOss",
        seed=4801,
        config=dict(
            head_dim=32,
            intermediate_size=48,
            num_local_experts=6,
            num_experts_per_tok=4,
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
        dtype=torch.bfloat16,
    ),
    # Published form, without the list of layers.
    "qwen3-next": dict(
        cls="Qwen3Next",
        seed=4905,
        config=dict(
            head_dim=32,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=32,
            linear_value_head_dim=32,
            full_attention_interval=2,
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=40,
            shared_expert_intermediate_size=48,
            mlp_only_layers=[2],
        ),
        rewrite=lambda c: (
            c.pop("layer_types"),
            c.update(full_attention_interval=2),
            c["rope_parameters"].pop("partial_rotary_factor", None),
            c.pop("partial_rotary_factor", None),
        ),
        rename=lambda tensors: tensors | {"mtp.norm.weight": torch.zeros(64)},
        dtype=torch.bfloat16,
    ),
    # The text part of a model for text and images. Key heads and value heads have different widths.
    "qwen3_5": dict(
        cls="Qwen3_5",
        seed=5001,
        head="ForConditionalGeneration",
        vision=dict(**QWEN_VISION, out_hidden_size=64),
        config=dict(
            head_dim=32,
            linear_num_key_heads=2,
            linear_num_value_heads=6,
            linear_key_head_dim=32,
            linear_value_head_dim=64,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            tie_word_embeddings=True,
            rope_parameters=dict(
                rope_type="default",
                rope_theta=5000.0,
                partial_rotary_factor=0.5,
                mrope_section=[4, 2, 2],
                mrope_interleaved=True,
            ),
        ),
        dtype=torch.bfloat16,
    ),
    "qwen3_5-text": dict(
        cls="Qwen3_5",
        text=True,
        config=dict(
            num_hidden_layers=2,
            head_dim=16,
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=32,
            linear_value_head_dim=32,
            layer_types=["linear_attention", "full_attention"],
        ),
        dtype=torch.bfloat16,
    ),
    # Published form, with one tensor for all experts of a layer.
    "qwen3_5-moe": dict(
        cls="Qwen3_5Moe",
        seed=5204,
        head="ForConditionalGeneration",
        vision=dict(**QWEN_VISION, out_hidden_size=64),
        config=dict(
            num_hidden_layers=2,
            head_dim=32,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=32,
            linear_value_head_dim=32,
            layer_types=["linear_attention", "full_attention"],
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=48,
        ),
        rename=lambda tensors: of_all_experts(tensors, 6),
        dtype=torch.bfloat16,
    ),
    "qwen3_5-moe-text": dict(
        cls="Qwen3_5Moe",
        text=True,
        config=dict(
            head_dim=32,
            linear_num_key_heads=4,
            linear_num_value_heads=4,
            linear_key_head_dim=32,
            linear_value_head_dim=32,
            linear_conv_kernel_dim=3,
            layer_types=["linear_attention", "linear_attention", "full_attention"],
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=64,
        ),
        dtype=torch.bfloat16,
    ),
    "qwen2-moe": dict(
        cls="Qwen2Moe",
        config=dict(
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=40,
            shared_expert_intermediate_size=80,
            norm_topk_prob=False,
            mlp_only_layers=[1],
        ),
        dtype=torch.bfloat16,
    ),
}

GRANITE = dict(
    embedding_multiplier=12.0,
    attention_multiplier=0.0625,
    residual_multiplier=0.22,
    logits_scaling=6.0,
)

# Further models, added later. Each folder's seed follows from its position, so new ones are only appended.
MORE = {
    "granite-moe": dict(
        cls="GraniteMoe",
        config=TWO_LAYERS
        | GRANITE
        | dict(num_local_experts=5, num_experts_per_tok=2, intermediate_size=40, attention_bias=True),
        dtype=torch.bfloat16,
    ),
    "granite-moe-shared": dict(
        cls="GraniteMoeShared",
        seed=7101,
        config=TWO_LAYERS
        | GRANITE
        | dict(
            num_local_experts=5,
            num_experts_per_tok=2,
            intermediate_size=40,
            shared_intermediate_size=48,
        ),
        dtype=torch.bfloat16,
    ),
    # Settings of Granite 4 Micro, without experts.
    "granite-hybrid-dense": dict(
        cls="GraniteMoeHybrid",
        seed=7201,
        config=TWO_LAYERS
        | GRANITE
        | dict(
            num_local_experts=0,
            shared_intermediate_size=80,
            layer_types=["full_attention"] * 2,
            position_embedding_type="rope",
            mamba_n_heads=4,
        ),
        rewrite=lambda c: c.update(layer_types=["attention"] * 2),
        dtype=torch.bfloat16,
    ),
    "dots1": dict(
        cls="Dots1",
        config=dict(
            moe_intermediate_size=40,
            n_routed_experts=6,
            num_experts_per_tok=3,
            n_shared_experts=2,
            routed_scaling_factor=1.5,
            first_k_dense_replace=1,
            norm_topk_prob=True,
            attention_bias=True,
            sliding_window=9,
            max_window_layers=2,
        ),
        rewrite=lambda c: c.pop("layer_types"),
        dtype=torch.bfloat16,
    ),
    "solar-open": dict(
        cls="SolarOpen",
        seed=7402,
        config=TWO_LAYERS
        | dict(
            head_dim=24,
            moe_intermediate_size=40,
            n_routed_experts=6,
            num_experts_per_tok=3,
            attention_bias=True,
        ),
        rewrite=lambda c: c.pop("intermediate_size", None),
        dtype=torch.bfloat16,
    ),
    "afmoe": dict(
        cls="Afmoe",
        config=dict(
            head_dim=24,
            moe_intermediate_size=40,
            num_experts=6,
            num_experts_per_tok=3,
            num_shared_experts=2,
            num_dense_layers=1,
            route_scale=1.7,
            sliding_window=9,
            global_attn_every_n_layers=2,
            mup_enabled=True,
        ),
        rewrite=lambda c: (c.pop("layer_types"), c.update(score_func="sigmoid", route_norm=True)),
        dtype=torch.bfloat16,
    ),
    # Published form, with the older names of two keys.
    "lfm2": dict(
        cls="Lfm2",
        config=dict(
            num_hidden_layers=4,
            norm_eps=1e-4,
            intermediate_size=150,
            block_multiple_of=16,
            block_ffn_dim_multiplier=1.1,
            layer_types=["conv", "full_attention", "conv", "conv"],
            rope_theta=5000.0,
        ),
        rewrite=lambda c: (
            c.pop("rms_norm_eps", None),
            c.pop("layer_types"),
            c.update(full_attn_idxs=[1], block_ff_dim=c.pop("intermediate_size")),
            c.update(tie_embedding=c.pop("tie_word_embeddings")),
        ),
        dtype=torch.bfloat16,
    ),
    "lfm2-moe": dict(
        cls="Lfm2Moe",
        config=dict(
            conv_L_cache=4,
            layer_types=["conv", "full_attention", "conv"],
            num_dense_layers=1,
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=40,
            routed_scaling_factor=1.5,
            tie_word_embeddings=True,
        ),
        rewrite=lambda c: c.pop("rms_norm_eps", None),
        dtype=torch.bfloat16,
    ),
}
