"""Dequantizes a GGUF file, and adds noise, to get weights like those of a checkpoint before its quantization.

    real_weights.py FILE OUT [--noise 0.333] [--round-to-nearest] [--float16]

The weights of a quantized file are on its grid, and another quantization would only have to find that grid again. So
Gaussian noise is added, whose standard deviation is a fraction of the grid's step. With --round-to-nearest the noisy
matrices are rounded to GGUF's Q4_1, and the embedding to its Q8_0.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np

Type = gguf.GGMLQuantizationType
HEADS = ("token_embd.weight", "output.weight")
SEED = 38
ALIGNMENT = 32


def half(blocks: np.ndarray, at: int) -> np.ndarray:
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0].astype(np.float32)


def steps(tensor: gguf.ReaderTensor) -> np.ndarray:
    """The grid's step for each weight of a matrix, `[rows, groups, 1]`."""
    kind, data = tensor.tensor_type, tensor.data
    size, bytes_of_block = gguf.GGML_QUANT_SIZES[kind]
    blocks = data.reshape(data.shape[0], -1, bytes_of_block)
    if kind in (Type.Q4_1, Type.Q5_0, Type.Q8_0):
        return half(blocks, 0)[..., None]
    if kind == Type.Q4_K:
        packed = blocks[..., 4:16]
        high = packed[..., 8:12] & 15 | packed[..., 0:4] >> 6 << 4
        multiples = np.concatenate([packed[..., 0:4] & 63, high], axis=-1)
        scales = half(blocks, 0)[..., None] * multiples
    elif kind == Type.Q6_K:
        multiples = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
        scales = np.abs(half(blocks, 208)[..., None] * multiples)
    else:
        raise SystemExit(f"{tensor.name}: the step of {kind.name} is not known here")
    assert size % scales.shape[-1] == 0
    return scales.reshape(data.shape[0], -1, 1)


def rounded(numbers: np.ndarray, most: int, symmetric: bool) -> np.ndarray:
    """Round to nearest in groups of 32, with scales and offsets in float16."""
    groups = numbers.reshape(numbers.shape[0], -1, 32)
    if symmetric:
        low, scale = np.float32(0), np.abs(groups).max(-1, keepdims=True) / most
    else:
        low = groups.min(-1, keepdims=True)
        scale = (groups.max(-1, keepdims=True) - low) / most
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    codes = np.rint((groups - low) * inverse)
    as_half = lambda values: values.astype(np.float16).astype(np.float32)
    return (codes * as_half(scale) + as_half(low)).reshape(numbers.shape)


def numbers_of(tensor: gguf.ReaderTensor, args: argparse.Namespace, random: np.random.Generator) -> np.ndarray:
    numbers = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    if tensor.tensor_type == Type.F32:
        return numbers
    step = steps(tensor)
    noise = random.standard_normal(numbers.size, dtype=np.float32).reshape(*step.shape[:2], -1)
    numbers += (noise * (step * np.float32(args.noise))).reshape(numbers.shape)
    if args.round_to_nearest:
        in_head = tensor.name in HEADS
        numbers = rounded(numbers, 127 if in_head else 15, symmetric=in_head)
    return numbers


def text(content: str) -> bytes:
    return len(content.encode()).to_bytes(8, "little") + content.encode()


def write(source: Path, out: Path, args: argparse.Namespace) -> None:
    reader = gguf.GGUFReader(source)
    kinds = [Type.F16 if args.float16 and t.tensor_type != Type.F32 else Type.F32 for t in reader.tensors]
    sizes = [int(t.n_elements) * (2 if kind == Type.F16 else 4) for t, kind in zip(reader.tensors, kinds)]
    with source.open("rb") as file:
        header = bytearray(file.read(reader.tensors[0].field.offset))
    place = 0
    for tensor, kind, size in zip(reader.tensors, kinds, sizes):
        header += text(tensor.name) + len(tensor.shape).to_bytes(4, "little")
        header += b"".join(int(length).to_bytes(8, "little") for length in tensor.shape)
        header += int(kind).to_bytes(4, "little") + place.to_bytes(8, "little")
        place += -(-size // ALIGNMENT) * ALIGNMENT
    padding = lambda size: bytes(-size % ALIGNMENT)
    random = np.random.default_rng(SEED)
    with out.open("wb") as file:
        file.write(header + padding(len(header)))
        for tensor, kind, size in zip(reader.tensors, kinds, sizes):
            numbers = numbers_of(tensor, args, random)
            file.write(numbers.astype(np.float16 if kind == Type.F16 else np.float32).tobytes())
            file.write(padding(size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--round-to-nearest", action="store_true")
    parser.add_argument("--float16", action="store_true")
    args = parser.parse_args()
    write(args.file, args.out, args)


if __name__ == "__main__":
    main()
