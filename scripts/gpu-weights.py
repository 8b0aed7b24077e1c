"""Writes random weights for the Llama shape in FOLDER/config.json, with an untied output head: gpu-weights.py FOLDER [FORMAT].

FORMAT is safetensors (the default) or gguf, and the file is FOLDER/model.FORMAT. Matrices are in bf16, with magnitudes like
those of trained weights. The likeliest token is always one of the tokenizer's whose text has letters or digits only. So
an answer has text at once, and its time to first text can be measured.
"""

import json
import math
import os
import struct
import sys
from pathlib import Path

BLOCK = 1 << 24


def shapes(c):
    hidden, inner, vocabulary = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    head_dim = c.get("head_dim") or hidden // heads
    found = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(c["num_hidden_layers"]):
        of_layer = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (heads * head_dim, hidden),
            "self_attn.k_proj": (kv_heads * head_dim, hidden),
            "self_attn.v_proj": (kv_heads * head_dim, hidden),
            "self_attn.o_proj": (hidden, heads * head_dim),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        found |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    return found | {"model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}


def random_numbers(count):
    """Random values between 1/128 and 1/32, of either sign."""
    exponents = bytes(0x3C | byte & 0x80 for byte in range(256))
    numbers = bytearray(2 * count)
    numbers[0::2], numbers[1::2] = os.urandom(count), os.urandom(count).translate(exponents)
    return memoryview(numbers)


def safetensors_header(config, _):
    """The header of a safetensors file."""
    header, end = {}, 0
    for name, shape in shapes(config).items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


# Numbers of GGUF's types, by the specification in ggml's documentation.
U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5
PACKED = {U32: "<I", F32: "<f", I32: "<i"}
GGML_F32, GGML_BF16 = 0, 30
NORMAL, CONTROL, UNUSED = 1, 3, 5
# Names that differ in GGUF.
GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def gguf_name(name):
    parts = name.removesuffix(".weight").removeprefix("model.layers.").split(".", 1)
    if parts[0].isdigit():
        return f"blk.{parts[0]}.{GGUF_NAMES[parts[1]]}.weight"
    return f"{GGUF_NAMES['.'.join(parts)]}.weight"


def string(text):
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def field(name, kind, value):
    """A field of GGUF's metadata. A list is an array of `kind`."""
    one = string if kind == STRING else lambda number: struct.pack(PACKED[kind], number)
    if isinstance(value, list):
        head = struct.pack("<IIQ", ARRAY, kind, len(value))
        return string(name) + head + b"".join(map(one, value))
    return string(name) + struct.pack("<I", kind) + one(value)


def gguf_header(config, tokenizer):
    """The header of a GGUF file whose vectors are in f32. Tokens that the tokenizer lacks are unused ones."""
    vocabulary = {id: text for text, id in tokenizer["model"]["vocab"].items()}
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    known, ids = vocabulary | special, range(config["vocab_size"])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    heads = config["num_attention_heads"]
    numbers = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "block_count": config["num_hidden_layers"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "rope.dimension_count": config.get("head_dim") or config["hidden_size"] // heads,
        "vocab_size": config["vocab_size"],
    }
    fields = [
        field("general.architecture", STRING, "llama"),
        *(field(f"llama.{name}", U32, number) for name, number in numbers.items()),
        field("llama.rope.freq_base", F32, config["rope_theta"]),
        field("llama.attention.layer_norm_rms_epsilon", F32, config["rms_norm_eps"]),
        field("tokenizer.ggml.model", STRING, "gpt2"),
        field("tokenizer.ggml.pre", STRING, "llama-bpe"),
        field("tokenizer.ggml.tokens", STRING, [known.get(id, f"[PAD{id}]") for id in ids]),
        field("tokenizer.ggml.token_type", I32, [CONTROL if id in special else NORMAL if id in known else UNUSED for id in ids]),
        field("tokenizer.ggml.merges", STRING, merges),
        field("tokenizer.ggml.eos_token_id", U32, config["eos_token_id"]),
    ]
    infos, end = [], 0
    for name, shape in shapes(config).items():
        kind, width = (GGML_F32, 4) if len(shape) == 1 else (GGML_BF16, 2)
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        infos.append(string(gguf_name(name)) + dimensions + struct.pack("<IQ", kind, end))
        # The default alignment of 32 bytes; all sizes of these shapes are multiples of it.
        end += width * math.prod(shape)
        assert end % 32 == 0, f"the size of {name} is no multiple of 32 bytes"
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(fields)) + b"".join(fields + infos)
    return head + bytes(-len(head) % 32)


# The header, and a one in the type of the vectors.
FORMATS = {"safetensors": (safetensors_header, b"\x80\x3f"), "gguf": (gguf_header, b"\x00\x00\x80\x3f")}


def main(folder, kind="safetensors"):
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    spoken = {id for text, id in tokenizer["model"]["vocab"].items() if text.isascii() and text.isalnum()}
    header, one = FORMATS[kind]
    random = random_numbers(BLOCK)
    with (folder / f"model.{kind}").open("wb") as file:
        file.write(header(config, tokenizer))
        for name, (rows, *columns) in shapes(config).items():
            row = 2 * columns[0] if columns else 0
            if not columns:
                file.write(one * rows)
            elif name == "lm_head.weight":
                for id in range(rows):
                    at = id * row % (len(random) - row)
                    file.write(random[at : at + row] if id in spoken else bytes(row))
            else:
                for at in range(0, rows * row, len(random)):
                    file.write(random[: rows * row - at])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
