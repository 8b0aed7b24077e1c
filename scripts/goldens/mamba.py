"""Recipes of decoders.py: models with Mamba-2."""

from __future__ import annotations

import torch
from experts import GRANITE

# transformers applies the lower bound of time steps in prompts only, and NVIDIA's own code and vLLM never do. So the
# bound is too small to have an effect.
NEMOTRON = dict(
    head_dim=24,
    mamba_num_heads=8,
    mamba_head_dim=16,
    n_groups=2,
    ssm_state_size=32,
    layer_norm_epsilon=1e-4,
    time_step_min=1e-30,
)


def nemotron_as_published(config: dict) -> None:
    """Writes layers as letters, and an infinity, which JSON does not have."""
    for key in ("layer_types", "layers_block_type", "rms_norm_eps"):
        config.pop(key, None)
    config.update(hybrid_override_pattern="MM-*-M", time_step_limit=[0.0, float("inf")])


# Same form as MODELS in decoders.py.
MODELS = {
    "bamba": dict(
        cls="Bamba",
        config=dict(
            attn_layer_indices=[1],
            mamba_n_heads=8,
            mamba_d_head=16,
            mamba_n_groups=2,
            mamba_d_state=32,
        ),
        dtype=torch.bfloat16,
    ),
    # Settings of Granite 4 H Tiny.
    "granite-hybrid": dict(
        cls="GraniteMoeHybrid",
        config=GRANITE
        | dict(
            num_local_experts=5,
            num_experts_per_tok=2,
            intermediate_size=40,
            shared_intermediate_size=48,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            position_embedding_type="nope",
            mamba_n_heads=4,
            mamba_d_head="auto",
            mamba_n_groups=1,
            mamba_d_state=64,
        ),
        rewrite=lambda c: c.update(layer_types=["mamba", "attention", "mamba"]),
        dtype=torch.bfloat16,
    ),
    "nemotron-h": dict(
        cls="NemotronH",
        config=NEMOTRON
        | dict(
            layers_block_type=["linear_attention"] * 2
            + ["mlp", "full_attention", "mlp", "linear_attention"],
        ),
        rewrite=nemotron_as_published,
        dtype=torch.bfloat16,
    ),
    # Settings of Nemotron 3 Nano, in transformers 5's form.
    "nemotron-h-moe": dict(
        cls="NemotronH",
        seed=8102,
        config=NEMOTRON
        | dict(
            layers_block_type=["linear_attention", "moe", "full_attention", "moe", "linear_attention"],
            n_routed_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=40,
            moe_shared_expert_intermediate_size=48,
            routed_scaling_factor=2.5,
            use_conv_bias=False,
        ),
        rewrite=lambda c: c.pop("rms_norm_eps", None),
        dtype=torch.bfloat16,
    ),
}
