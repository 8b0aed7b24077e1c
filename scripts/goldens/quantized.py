#!/usr/bin/env python3
"""Makes the golden checkpoints of tests/golden whose weights are quantized.

    .venv/bin/python scripts/goldens/quantized.py

Each folder has a tiny random model, packed by `quantized_formats.py`. golden.safetensors has the same content as for
the models of decoders.py, computed by transformers in f32 from the dequantized values. It also has these values
for one layer, as `dequantized.NAME`. Large matrices that are not quantized come from a seed, as described in
decoders.py.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path

import common
import experts
import numpy as np
import torch
from gemma4 import TWO_LAYERS_OF_EXPERTS
from quantized_formats import Awq, CompressedInt, Fp8, Gptq, Mxfp4, Nvfp4, SqueezeLlm
from safetensors.torch import load_file, save_file
from seeded_weights import seed_weights


def in_layer(layer: int, *modules: str) -> list[str]:
    return [f"model.layers.{layer}.{module}" for module in modules]


ATTENTION = [f"self_attn.{part}_proj" for part in "qkvo"]
MLP = [f"mlp.{part}_proj" for part in ("gate", "up", "down")]

# folder: class, format, dtype of unquantized weights, and the differences from COMMON. `skipped` are the modules that
# are not quantized, `skip` is their form in the configuration, and `lm_head` means that the head is quantized, too.
MODELS = {
    # One of q, k and v is not quantized, which the fused matrix of all three must support.
    "awq": dict(
        cls="Qwen2",
        format=Awq(group=32),
        dtype=torch.float16,
        skip=["layers.1.self_attn.v_proj", "model.layers.0.mlp.down_proj"],
        skipped=in_layer(1, "self_attn.v_proj") + in_layer(0, "mlp.down_proj"),
        skip_key="modules_to_not_convert",
    ),
    "gptq": dict(
        cls="Llama",
        format=Gptq(bits=4, group=16, act_order=True, symmetric=False, version=1, lm_head=True),
        dtype=torch.float16,
        lm_head=True,
    ),
    # Fused q, k and v, fused gate and up. The quantization is described in a file of its own.
    "gptq-8bit": dict(
        cls="Phi3",
        format=Gptq(bits=8, group=-1, act_order=False, symmetric=False, version=2),
        dtype=torch.bfloat16,
        own_file="quantize_config.json",
        config=dict(original_max_position_embeddings=256),
    ),
    "gptq-sym": dict(
        cls="Qwen3",
        format=Gptq(bits=4, group=32, act_order=False, symmetric=True, version=1),
        dtype=torch.float16,
        config=dict(head_dim=32),
    ),
    "fp8": dict(
        cls="Llama",
        format=Fp8("tensor", activation_scheme="static"),
        dtype=torch.bfloat16,
        skip=["model.layers.1"],
        skipped=in_layer(1, *ATTENTION, *MLP),
        skip_key="ignored_layers",
    ),
    "fp8-channel": dict(
        cls="Qwen2",
        format=Fp8("channel", compressed_tensors=True),
        dtype=torch.bfloat16,
        skip=["lm_head", r"re:.*layers\.1\.mlp\..*_proj$"],
        skipped=in_layer(1, *MLP),
        skip_key="ignore",
    ),
    "fp8-block": dict(
        cls="Qwen3",
        format=Fp8("block", block=(48, 32)),
        dtype=torch.bfloat16,
        config=dict(head_dim=32),
    ),
    # Settings of DeepSeek-V3. The matrix with a part for each head is dequantized, because its blocks of scales do
    # not end with heads.
    "fp8-latents": dict(
        cls="DeepseekV3",
        format=Fp8("block", block=(48, 32)),
        dtype=torch.bfloat16,
        config=dict(
            **experts.WITH_EXPERTS | dict(moe_intermediate_size=32),
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            routed_scaling_factor=2.5,
        ),
    ),
    # Experts in parallel with a feed-forward, keys that serve as values, heads of two widths.
    "compressed-tensors-w4a16": dict(
        cls="Gemma4",
        text=True,
        format=CompressedInt(4, group=32),
        dtype=torch.bfloat16,
        skip=["lm_head", "re:.*router.*"],
        skip_key="ignore",
        skipped=in_layer(0, "router.proj") + in_layer(1, "router.proj"),
        config=TWO_LAYERS_OF_EXPERTS,
    ),
    # Act-order with zero-points. The head is quantized, too.
    "compressed-tensors-w4a16-order": dict(
        cls="Llama",
        format=CompressedInt(4, group=16, symmetric=False, act_order=True),
        dtype=torch.float16,
        lm_head=True,
        skip=[],
        skip_key="ignore",
    ),
    "compressed-tensors-w8a16": dict(
        cls="Qwen2",
        format=CompressedInt(8, group=32, symmetric=False),
        dtype=torch.bfloat16,
        skip=["lm_head"],
        skip_key="ignore",
    ),
    "compressed-tensors-w8a8": dict(
        cls="Qwen3",
        format=CompressedInt(8, group=None, in_words=False),
        dtype=torch.bfloat16,
        config=dict(head_dim=32),
        skip=["lm_head"],
        skip_key="ignore",
    ),
    "nvfp4": dict(
        cls="Llama",
        format=Nvfp4(),
        dtype=torch.bfloat16,
        skip=["lm_head", "model.layers.1.self_attn.o_proj"],
        skipped=in_layer(1, "self_attn.o_proj"),
        skip_key="ignore",
    ),
    # Experts, and a description in a file of its own.
    "nvfp4-modelopt": dict(
        cls="Qwen3Moe",
        format=Nvfp4(modelopt=True),
        dtype=torch.bfloat16,
        own_file="hf_quant_config.json",
        own_section="quantization",
        skip=["lm_head", "model.layers.*.mlp.gate", "model.layers.1.self_attn*"],
        skipped=in_layer(1, *ATTENTION) + in_layer(0, "mlp.gate") + in_layer(1, "mlp.gate"),
        skip_key="exclude_modules",
        config=dict(
            head_dim=32,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            norm_topk_prob=True,
        ),
    ),
    "squeezellm": dict(cls="Mistral", format=SqueezeLlm(), dtype=torch.float16),
    "squeezellm-sparse": dict(cls="Llama", format=SqueezeLlm(outliers=0.02), dtype=torch.float16),
    "awq-experts": dict(
        cls="Qwen3Moe",
        format=Awq(group=32),
        dtype=torch.float16,
        skip=["gate"],
        skip_key="modules_to_not_convert",
        config=dict(
            head_dim=16,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            norm_topk_prob=True,
        ),
    ),
    # The matrices of all experts are one tensor each.
    "mxfp4": dict(
        cls="GptOss",
        format=Mxfp4(),
        dtype=torch.bfloat16,
        skip=["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
        skip_key="modules_to_not_convert",
        config=dict(
            head_dim=32,
            intermediate_size=64,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=8,
        ),
    ),
    # Fused rows of a delta net and of gated attention, grouped by head.
    "awq-delta": dict(
        cls="Qwen3Next",
        format=Awq(group=32),
        dtype=torch.float16,
        skip=["gate", "shared_expert_gate", "linear_attn.in_proj_ba"],
        skipped=in_layer(0, "linear_attn.in_proj_ba", "mlp.shared_expert_gate") + in_layer(1, "mlp.shared_expert_gate"),
        skip_key="modules_to_not_convert",
        config=dict(
            head_dim=32,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=32,
            linear_value_head_dim=32,
            full_attention_interval=2,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=64,
        ),
    ),
}


def is_skipped(module: str, recipe: dict) -> bool:
    """Whether a module is not quantized."""
    return module in recipe.get("skipped", ()) or (module == "lm_head" and not recipe.get("lm_head"))


def parameters(model: torch.nn.Module, recipe: dict) -> dict[str, torch.Tensor]:
    """The parameters by their published names. Most experts are separate there, but one tensor in transformers."""
    named = {name: model.state_dict()[name] for name, _ in model.named_buffers() if name in model.state_dict()}
    if isinstance(recipe["format"], Mxfp4):
        return dict(sorted((name, parameter.data) for name, parameter in model.named_parameters()))
    for name, parameter in model.named_parameters():
        experts, _, part = name.rpartition(".")
        if part not in ("gate_up_proj", "down_proj"):
            named[name] = parameter.data
            continue
        for i, expert in enumerate(parameter.data):
            parts = dict(zip(("gate_proj", "up_proj"), expert.chunk(2), strict=True))
            for part_name, matrix in parts.items() if part == "gate_up_proj" else [(part, expert)]:
                named[f"{experts}.{i}.{part_name}.weight"] = matrix
    return dict(sorted(named.items()))


def to_torch(name: str, array: np.ndarray | torch.Tensor) -> torch.Tensor:
    if isinstance(array, torch.Tensor):
        return array.contiguous()
    tensor = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape).copy())
    if name == "weight_scale" and array.dtype == np.float16:
        # compressed-tensors stores scales in the type of the other weights. NumPy has no bfloat16.
        return tensor.to(torch.bfloat16)
    return tensor.view(torch.float8_e4m3fn) if name == "weight" and array.dtype == np.uint8 else tensor


def make(name: str, recipe: dict, out: Path, seed: int) -> None:
    model = common.random_model(recipe, common.TWO_LAYERS, seed)
    folder = common.empty(out / name)
    # transformers writes the configuration. The weights are replaced below.
    copy.deepcopy(model).to(recipe["dtype"]).save_pretrained(folder)
    # The parameters are rounded, but not the RoPE frequencies, which are buffers and are not stored.
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(tensor.to(recipe["dtype"]))

    rng = np.random.default_rng(seed)
    scheme, stored, plain, dequantized = recipe["format"], {}, {}, {}
    linears = {n for n, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    for parameter_name, parameter in parameters(model, recipe).items():
        module = parameter_name.removesuffix(".weight")
        of_all_experts = isinstance(scheme, Mxfp4)
        is_matrix = module in linears and not of_all_experts or ".experts." in module and not module.endswith("_bias")
        if not is_matrix or is_skipped(module, recipe):
            stored[parameter_name] = parameter.to(recipe["dtype"]).contiguous()
            plain[parameter_name] = parameter
            continue
        packed = scheme.pack(parameter.numpy(), rng)
        dot = "_" if of_all_experts else "."
        stored |= {f"{module}{dot}{part}": to_torch(part, array) for part, array in packed.items()}
        numbers = torch.from_numpy(np.ascontiguousarray(scheme.unpack(packed)))
        parameter.copy_(numbers)
        if ".layers.0." in parameter_name or module == "lm_head":
            if of_all_experts:
                numbers = torch.from_numpy(scheme.rows(numbers.numpy(), module.endswith("gate_up_proj")))
            dequantized[f"dequantized.{parameter_name}"] = numbers
    weights = folder / "model.safetensors"
    save_file(stored, weights, metadata={"format": "pt"})
    # Large matrices that are not quantized are replaced by seeded ones, and the model computes with these, too.
    seed_weights(folder, seed, stored.keys() - plain.keys())
    seeded = load_file(weights)
    for parameter_name, parameter in plain.items():
        parameter.copy_(seeded[parameter_name])

    quantization = dict(scheme.config)
    if "skip" in recipe:
        quantization[recipe["skip_key"]] = recipe["skip"]
    if own_file := recipe.get("own_file"):
        quantization.pop("quant_method", None)
        section = recipe.get("own_section")
        common.write_json(folder / own_file, {section: quantization} if section else quantization)
    else:
        common.rewrite_json(
            folder / "config.json", lambda c: c.update(quantization_config=quantization)
        )
    common.forget_version(folder)
    if isinstance(scheme, Fp8):
        round_activations(model, scheme, lambda module: not is_skipped(module, recipe))
    common.write_golden(folder, model, seed + 1, dequantized=dequantized)


def round_activations(model: torch.nn.Module, scheme: Fp8, is_quantized: Callable[[str], bool]) -> None:
    """Rounds the inputs of all quantized linear layers and experts to FP8 from now on. The matrices of heads of latent
    attention are multiplied with queries and values instead of latents, so latents stay as they are.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and is_quantized(name) and not name.endswith("kv_b_proj"):
            module.register_forward_pre_hook(lambda _, inputs: (scheme.round_activations(inputs[0]),))
        if name.endswith("mlp.experts"):
            module.forward = functools.partial(rounded_experts, module, scheme)


def rounded_experts(module: torch.nn.Module, scheme: Fp8, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """The experts of transformers, one token and one expert at a time, with rounded activations."""
    out = torch.zeros_like(x)
    for token, experts in enumerate(chosen):
        for expert, share in zip(experts.tolist(), shares[token], strict=True):
            gate, up = (scheme.round_activations(x[token]) @ module.gate_up_proj[expert].T).chunk(2)
            inner = scheme.round_activations(module.act_fn(gate) * up)
            out[token] += share * (inner @ module.down_proj[expert].T)
    return out


def main() -> None:
    args = common.arguments(__doc__).parse_args()
    for name, recipe, seed in common.wanted(MODELS, args.only, 5000):
        make(name, recipe, args.out, seed)


if __name__ == "__main__":
    main()
