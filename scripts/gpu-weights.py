"""Writes random weights for the Llama shape in FOLDER/config.json, with an untied output head: gpu-weights.py FOLDER.

FOLDER/model.safetensors is in bf16, with magnitudes like those of trained weights. The likeliest token is always one
of the tokenizer's whose text has letters or digits only. So an answer has text at once, and its time to first text
can be measured.
"""

import json
import os
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


def main(folder):
    config = json.loads((folder / "config.json").read_text())
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    spoken = {id for text, id in vocabulary.items() if text.isascii() and text.isalnum()}
    header, end = {}, 0
    for name, shape in shapes(config).items():
        start, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = random_numbers(BLOCK)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, (rows, *columns) in shapes(config).items():
            row = 2 * columns[0] if columns else 0
            if not columns:
                file.write(b"\x80\x3f" * rows)  # 1.0
            elif name == "lm_head.weight":
                for id in range(rows):
                    at = id * row % (len(random) - row)
                    file.write(random[at : at + row] if id in spoken else bytes(row))
            else:
                for at in range(0, rows * row, len(random)):
                    file.write(random[: rows * row - at])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
