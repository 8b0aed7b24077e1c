"""Writes a model with random weights in the shape of Qwen2.5-0.5B, as bf16 safetensors and as GGUF.

scripts/bench_peers.py serves it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TOKENIZER = ROOT / "crates/server/demo"
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCABULARY = 896, 4864, 24, 14, 2, 151_936
POSITIONS, ROPE_THETA, EPSILON = 32_768, 1_000_000.0, 1e-6
# Names within a layer that differ in ggml.
GGML_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def tensors() -> dict[str, tuple[int, ...]]:
    head = HIDDEN // HEADS
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name, outputs in [("q", HIDDEN), ("k", KV_HEADS * head), ("v", KV_HEADS * head)]:
            shapes[f"{prefix}.self_attn.{name}_proj.weight"] = (outputs, HIDDEN)
            shapes[f"{prefix}.self_attn.{name}_proj.bias"] = (outputs,)
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (HIDDEN, HIDDEN)
        shapes[f"{prefix}.mlp.gate_proj.weight"] = (INNER, HIDDEN)
        shapes[f"{prefix}.mlp.up_proj.weight"] = (INNER, HIDDEN)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (HIDDEN, INNER)
        shapes[f"{prefix}.input_layernorm.weight"] = (HIDDEN,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (HIDDEN,)
    return shapes


def make_model(folder: Path) -> None:
    """Random weights in the shape of Qwen2.5-0.5B, in bf16, with the demo's tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = json.loads((TOKENIZER / "tokenizer.json").read_text())["model"]["vocab"]
    # These tokens are whole characters in the byte-level vocabulary. All other rows are zeros, so those tokens are
    # never the likeliest.
    texts = np.array([id for text, id in vocabulary.items() if text.isascii() and text.isalnum()])
    silent = np.setdiff1d(np.arange(VOCABULARY), texts)
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "max_position_embeddings": POSITIONS, "rms_norm_eps": EPSILON,
        "rope_theta": ROPE_THETA, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": VOCABULARY,
        "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(TOKENIZER / name, folder / name)
    random = np.random.default_rng(0)
    header, end = {}, 0
    for name, shape in tensors().items():
        start, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in tensors().items():
            values = random.standard_normal(shape, dtype=np.float32)
            values = 1 + values * 0 if name.endswith("norm.weight") else values * 0.02
            if name == "model.embed_tokens.weight":
                values[silent] = 0
            file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())


def stored(model: Path) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of the checkpoint. bf16 is represented by u16."""
    with model.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(start - 8))
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        numbers = np.memmap(model, np.uint16, "r", start + begin, ((end - begin) // 2,))
        yield name, numbers.reshape(tensor["shape"])


def ggml_name(name: str) -> str:
    parts = name.split(".")
    if parts[1] != "layers":
        return {"embed_tokens": "token_embd", "norm": "output_norm"}[parts[1]] + ".weight"
    return f"blk.{parts[2]}.{GGML_NAMES['.'.join(parts[3:-1])]}.{parts[-1]}"


def make_gguf(folder: Path, file: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Writes the checkpoint of `folder` as a GGUF file with matrices of type `kind`."""
    writer = gguf.GGUFWriter(file, "qwen2")
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_layer_norm_rms_eps(EPSILON)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = {id: text for text, id in tokenizer["model"]["vocab"].items()}
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    tokens, types = [], []
    for id in range(VOCABULARY):
        kinds = gguf.TokenType
        types.append(kinds.CONTROL if id in special else kinds.NORMAL if id in vocabulary else kinds.UNUSED)
        tokens.append(special.get(id) or vocabulary.get(id) or f"[PAD{id}]")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_eos_token_id(0)
    for name, numbers in stored(folder / "model.safetensors"):
        widened = (numbers.astype(np.uint32) << 16).view(np.float32)
        if numbers.ndim == 1:
            writer.add_tensor(ggml_name(name), widened)
        else:
            writer.add_tensor(ggml_name(name), gguf.quants.quantize(widened, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
