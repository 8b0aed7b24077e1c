"""Rounds and packs matrices to GGUF's K-quants and IQ4 types, which the `gguf` package can read but not write.

The rounding is as simple as possible. The goldens test how packed values are read, and `gguf.quants.dequantize` is
the reference for that.
"""

from __future__ import annotations

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type


def halves(values: np.ndarray) -> np.ndarray:
    """[blocks] -> [blocks, 2] bytes of float16."""
    return values.astype(np.float16).reshape(-1, 1).view(np.uint8)


def widened(values: np.ndarray) -> np.ndarray:
    """[blocks] rounded to float16, as [blocks, 1, 1]."""
    return values.astype(np.float16).astype(np.float32).reshape(-1, 1, 1)


def packed_bits(codes: np.ndarray, run: int, bits: int) -> np.ndarray:
    """[blocks, 256] quantized values -> bytes. In each run of `run * 8 / bits` values the first `run` have the lowest
    bits.
    """
    codes = codes.astype(np.uint8).reshape(len(codes), -1, 8 // bits, run)
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    return np.bitwise_or.reduce(codes << shifts, axis=2).reshape(len(codes), -1)


def with_minima(blocks: np.ndarray, group: int, bits: int, sub_bits: int) -> tuple[np.ndarray, ...]:
    """Quantized weights, scales and offsets of groups, with one scale for the scales and one for the offsets."""
    parts = blocks.reshape(len(blocks), -1, group)
    low = np.minimum(parts.min(2), 0)
    scales = (parts.max(2) - low) / (2**bits - 1)
    most = 2**sub_bits - 1
    d, dmin = scales.max(1) / most, -low.min(1) / most
    sub = np.rint(scales / widened(d)[:, 0]).clip(1, most)
    mins = np.rint(-low / np.maximum(widened(dmin)[:, 0], 1e-8)).clip(0, most)
    step, low = widened(d) * sub[:, :, None], widened(dmin) * mins[:, :, None]
    codes = np.rint((parts + low) / step).clip(0, 2**bits - 1).reshape(blocks.shape)
    return codes, sub.astype(np.uint8), mins.astype(np.uint8), d, dmin


def symmetric(blocks: np.ndarray, bits: int, most: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Quantized weights and scales of groups of 16, some of them negative, with a scale of the scales."""
    parts = blocks.reshape(len(blocks), -1, 16)
    half = 2 ** (bits - 1)
    scales = np.abs(parts).max(2) / half
    d = scales.max(1) / most
    sub = np.rint(scales / widened(d)[:, 0]).clip(1, most) * rng.choice([-1, 1], scales.shape)
    codes = np.rint(parts / (widened(d) * sub[:, :, None])).clip(-half, half - 1) + half
    return codes.reshape(blocks.shape).astype(np.uint8), sub.astype(np.int8), d


def six_bit_pairs(scales: np.ndarray, mins: np.ndarray) -> np.ndarray:
    """Eight scales and eight offsets of six bits in twelve bytes."""
    low = scales[:, :4] | scales[:, 4:] >> 4 << 6, mins[:, :4] | mins[:, 4:] >> 4 << 6
    return np.concatenate([*low, scales[:, 4:] & 15 | (mins[:, 4:] & 15) << 4], axis=1)


# ggml's `kvalues_iq4nl`.
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def looked_up(blocks: np.ndarray, kind: Type) -> list[np.ndarray]:
    """[blocks, 32 or 256] as scales of groups of 32, some of them negative, and indices of the nearest of sixteen
    values.
    """
    parts = blocks.reshape(len(blocks), -1, 32)
    scales = np.abs(parts).max(2) / 120
    scales[:, ::3] *= -1
    if kind == Type.IQ4_NL:
        kept, head = widened(scales[:, 0]), [halves(scales[:, 0])]
    else:
        d = np.abs(scales).max(1) / 31
        sub = np.rint(scales / widened(d)[:, 0]).clip(-31, 31)
        sub[sub == 0] = 1
        kept, bits = widened(d) * sub[:, :, None], (sub + 32).astype(np.uint16)
        high = np.bitwise_or.reduce((bits >> 4) << np.arange(0, 16, 2, dtype=np.uint16), axis=1)
        low = (bits[:, 0::2] & 15 | (bits[:, 1::2] & 15) << 4).astype(np.uint8)
        head = [halves(d), high.reshape(-1, 1).view(np.uint8), low]
    codes = np.abs((parts / kept)[..., None] - IQ4).argmin(3).astype(np.uint8)
    return [*head, (codes[..., :16] | codes[..., 16:] << 4).reshape(len(blocks), -1)]


def pack_blocks(kind: Type, blocks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[blocks, values] -> [blocks, bytes]."""
    if kind == Type.Q2_K:
        codes, scales, mins, d, dmin = with_minima(blocks, 16, 2, 4)
        parts = [scales | mins << 4, packed_bits(codes, 32, 2), halves(d), halves(dmin)]
    elif kind in (Type.Q4_K, Type.Q5_K):
        bits = 4 if kind == Type.Q4_K else 5
        codes, scales, mins, d, dmin = with_minima(blocks, 32, bits, 6)
        codes = codes.astype(np.uint8)
        high = [packed_bits(codes >> 4, 32, 1)] if bits == 5 else []
        parts = [halves(d), halves(dmin), six_bit_pairs(scales, mins), *high, packed_bits(codes & 15, 32, 4)]
    elif kind == Type.Q3_K:
        codes, scales, d = symmetric(blocks, 3, 31, rng)
        scales = (scales + 32).astype(np.uint8)
        low = scales[:, :8] & 15 | (scales[:, 8:] & 15) << 4
        high = np.bitwise_or.reduce(
            (scales >> 4).reshape(-1, 4, 4) << np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1), axis=1
        )
        parts = [packed_bits(codes >> 2, 32, 1), packed_bits(codes & 3, 32, 2), low, high, halves(d)]
    elif kind in (Type.IQ4_NL, Type.IQ4_XS):
        parts = looked_up(blocks, kind)
    elif kind == Type.Q6_K:
        codes, scales, d = symmetric(blocks, 6, 127, rng)
        parts = [packed_bits(codes & 15, 64, 4), packed_bits(codes >> 4, 32, 2), scales.view(np.uint8), halves(d)]
    else:
        raise ValueError(kind)
    return np.concatenate(parts, axis=1)


def pack(kind: Type, matrix: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A matrix as GGUF stores it: [rows, bytes]; for F32 and F16 the values."""
    if not kind.name.endswith("_K") and not kind.name.startswith("IQ"):
        return gguf.quants.quantize(matrix, kind)
    packed = pack_blocks(kind, matrix.reshape(-1, gguf.GGML_QUANT_SIZES[kind][0]), rng)
    assert packed.shape[1] == gguf.GGML_QUANT_SIZES[kind][1], kind
    return packed.reshape(len(matrix), -1)


def unpack(kind: Type, packed: np.ndarray) -> np.ndarray:
    """The dequantized values. A zero is positive, whatever the sign of its scale."""
    return gguf.quants.dequantize(packed, kind).astype(np.float32) + np.float32(0)
