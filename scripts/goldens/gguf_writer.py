"""Writes GGUF files in the form of llama.cpp's converter, with matrices of any type.

The converter itself writes few types, so metadata and tensors are made here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import common
import gguf
import gguf_formats
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf_tokenizers import write_tokenizer


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


def write(file: Path, model: torch.nn.Module, recipe: dict, tokenizer: dict, seed: int) -> dict[str, torch.Tensor]:
    """Writes the model with its matrices rounded to the recipe's types, and rounds those of `model`, too. Returns the
    first rows of some.
    """
    config, arch, whole_heads = model.config, recipe["arch"], recipe.get("whole_heads", False)
    writer = gguf.GGUFWriter(file, arch, split_max_tensors=16 if recipe.get("split") else 0)
    writer.add_name(file.parent.name)
    write_config(writer, config, recipe)
    write_tokenizer(writer, tokenizer, recipe["tokenizer"])
    if config.rope_parameters.get("rope_type") == "llama3":
        head_dim = config.hidden_size // config.num_attention_heads
        plain = 1 / 10000.0 ** (torch.arange(0, head_dim, 2) / head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / common.inv_freq(model)).numpy())

    rng = np.random.default_rng(seed)
    names = gguf.get_tensor_name_map(
        next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == arch), config.num_hidden_layers
    )
    types, dequantized, turn = [Type[name] for name in recipe["types"]], {}, 0
    for parameter_name, parameter in stored_tensors(model, whole_heads):
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
            rows = torch.from_numpy(numbers[: common.DEQUANTIZED_ROWS].copy())
            dequantized[f"dequantized.{stored_name}"] = rows
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return dequantized
