"""Recipes of decoders.py: GPTs and similar models, and models with squared ReLUs."""

from __future__ import annotations

import torch
from common import TWO_LAYERS

# Keys of COMMON that these configurations replace by others.
LLAMA_KEYS = ["intermediate_size", "num_key_value_heads", "rms_norm_eps"]


def without(*keys: str):
    """Removes keys from a configuration, and those that only Llama-like models have."""
    return lambda c: [c.pop(key, None) for key in (*keys, *LLAMA_KEYS)]


def old_ropes(config: dict) -> None:
    """Writes NeoX's settings in transformers 4's form."""
    rope = config.pop("rope_parameters")
    config.pop("partial_rotary_factor", None)
    config.update(rotary_emb_base=rope["rope_theta"], rotary_pct=rope["partial_rotary_factor"])


# Same form as MODELS in decoders.py.
MODELS = {
    "opt": dict(
        cls="OPT",
        seed=13,
        config=TWO_LAYERS | dict(ffn_dim=160, max_position_embeddings=90, tie_word_embeddings=True),
        rewrite=without(),
        dtype=torch.float16,
    ),
    "gpt-neo": dict(
        cls="GPTNeo",
        seed=26,
        config=TWO_LAYERS
        | dict(
            num_hidden_layers=4,
            intermediate_size=256,
            attention_types=[[["global", "local"], 1], [["local"], 2]],
            window_size=10,
            max_position_embeddings=90,
            layer_norm_epsilon=1e-4,
            tie_word_embeddings=True,
        ),
        rewrite=without("attention_layers"),
        dtype=torch.bfloat16,
    ),
    # With a causal mask as a tensor, as old checkpoints have it.
    "gpt-neox": dict(
        cls="GPTNeoX",
        config=TWO_LAYERS
        | dict(
            layer_norm_eps=1e-4,
            rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.5),
        ),
        rewrite=lambda c: (c.pop("num_key_value_heads", None), c.pop("rms_norm_eps", None), old_ropes(c)),
        rename=lambda tensors: tensors
        | {"gpt_neox.layers.0.attention.bias": torch.ones(1, 1, 96, 96).tril()},
        dtype=torch.bfloat16,
    ),
    "gpt-j": dict(
        cls="GPTJ",
        config=TWO_LAYERS | dict(n_positions=256, n_inner=160, rotary_dim=8),
        rewrite=without(),
        dtype=torch.bfloat16,
    ),
    "gpt-bigcode": dict(
        cls="GPTBigCode",
        seed=6201,
        config=TWO_LAYERS | dict(n_positions=90, n_inner=160, tie_word_embeddings=True),
        rewrite=without(),
        dtype=torch.bfloat16,
    ),
    "gpt-bigcode-heads": dict(
        cls="GPTBigCode",
        config=TWO_LAYERS
        | dict(n_positions=90, multi_query=False, activation_function="gelu"),
        rewrite=without(),
        dtype=torch.bfloat16,
    ),
    # Settings of Falcon 7B, with biases.
    "falcon": dict(
        cls="Falcon",
        config=TWO_LAYERS | dict(bias=True, layer_norm_epsilon=1e-4, tie_word_embeddings=True),
        rewrite=without("max_position_embeddings", "ffn_hidden_size"),
        dtype=torch.bfloat16,
    ),
    # Settings of Falcon 40B.
    "falcon-new": dict(
        cls="Falcon",
        config=TWO_LAYERS
        | dict(new_decoder_architecture=True, num_kv_heads=2, ffn_hidden_size=160, rope_theta=500.0),
        rewrite=without(),
        dtype=torch.bfloat16,
    ),
    "nemotron": dict(
        cls="Nemotron",
        seed=6609,
        config=TWO_LAYERS | dict(head_dim=24, norm_eps=1e-4),
        rewrite=lambda c: (c.pop("hidden_act"), c.pop("rms_norm_eps", None)),
        dtype=torch.bfloat16,
    ),
    "arcee": dict(
        cls="Arcee",
        config=TWO_LAYERS | dict(mlp_bias=True),
        dtype=torch.bfloat16,
    ),
    "jais2": dict(
        cls="Jais2",
        config=TWO_LAYERS | dict(layer_norm_eps=1e-4),
        rewrite=lambda c: (c.pop("rms_norm_eps", None), c.pop("attention_bias")),
        dtype=torch.bfloat16,
    ),
    "helium": dict(
        cls="Helium",
        config=TWO_LAYERS | dict(head_dim=16, attention_bias=True),
        dtype=torch.bfloat16,
    ),
}
