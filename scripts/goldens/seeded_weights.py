"""Weights from a seed. A golden keeps the seed of its large random matrices, not their elements.

model.seeded is a safetensors file with the small tensors as they are. Its metadata has these entries:

    seed       of all matrices, a number
    generated  JSON: each matrix's name, with its dtype, shape and factor
    sha256     of all tensors, generated or not
    format     the entry of model.safetensors

Element i of a matrix is a hash of seed, name and i, about normally distributed, times the factor:

    key      FNV-1a of the text SEED/NAME, 64 bits
    hash     splitmix64's output i + 1 from the state `key`
    noise    the sum of the four 16-bit parts of the hash, less its mean: the Irwin-Hall distribution of four
    element  noise * factor in float32, rounded to the nearest value of the dtype, ties to even

These are integer operations and one multiplication, so every machine gets the same bits. The crate `goldens` does the
same in Rust. Sources: RFC 9923 (FNV-1a); Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
2014 (splitmix64); Hall, "The distribution of means for samples of size N", 1927.

Needs only NumPy, since GPU machines may have nothing else. `write_weights` makes model.safetensors from a folder's
model.seeded.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Collection
from pathlib import Path

import numpy as np

SEEDED, WEIGHTS = "model.seeded", "model.safetensors"
# Smaller tensors are kept, since their entries would hardly be shorter.
MIN_ELEMENTS = 1024
SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2}
FLOATS = ("F32", "BF16", "F16")
# The moments of the sum of four uniform integers below 2^16.
MEAN = 4 * 0xFFFF // 2
SIGMA = ((2.0**32 - 1) / 3) ** 0.5

# The dtype, shape and bytes of each tensor, by its name.
Tensors = dict[str, tuple[str, list[int], bytes]]


def key(seed: int, name: str) -> int:
    state = 0xCBF29CE484222325
    for byte in f"{seed}/{name}".encode():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return state


def noise(seed: int, name: str, count: int) -> np.ndarray:
    """`[count]` int32 with a standard deviation of SIGMA."""
    hashes = np.arange(1, count + 1, dtype=np.uint64)
    hashes *= np.uint64(0x9E3779B97F4A7C15)  # multiplication and addition wrap around
    hashes += np.uint64(key(seed, name))
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashes ^= hashes >> np.uint64(31)
    parts = [(hashes >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)]
    return sum(parts).astype(np.int32) - np.int32(MEAN)


def generate(seed: int, name: str, dtype: str, shape: list[int], factor: float) -> bytes:
    numbers = noise(seed, name, int(np.prod(shape))).astype(np.float32) * np.float32(factor)
    if dtype == "BF16":
        bits = numbers.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
    return numbers.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def numbers_of(dtype: str, stored: bytes) -> np.ndarray:
    """`[elements]` float64."""
    if dtype == "BF16":
        return (np.frombuffer(stored, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.frombuffer(stored, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float64)


def normal_std(dtype: str, stored: bytes) -> float | None:
    """The standard deviation, to three digits, of a matrix that is normally distributed around zero; None for other
    matrices.
    """
    numbers = numbers_of(dtype, stored)
    std, count = numbers.std(), len(numbers)
    if std == 0 or abs(numbers.mean()) > 5 * std / count**0.5:
        return None
    # A normal distribution has a kurtosis of 3. The bound is five standard deviations of the measured value.
    kurtosis = (numbers**4).mean() / std**4
    return float(f"{std:.3g}") if abs(kurtosis - 3) < 5 * (24 / count) ** 0.5 else None


def digest(tensors: Tensors) -> str:
    """SHA-256 of the tensors, sorted by name. Each contributes a line with name, dtype and shape, then its bytes."""
    whole = hashlib.sha256()
    for name, (dtype, shape, stored) in sorted(tensors.items()):
        whole.update(f"{name} {dtype} {shape}\n".encode())
        whole.update(stored)
    return whole.hexdigest()


def read(path: Path) -> tuple[dict[str, str], Tensors]:
    """Metadata and tensors of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    stored = lambda entry: data[8 + length :][slice(*entry["data_offsets"])]
    return metadata, {name: (entry["dtype"], entry["shape"], stored(entry)) for name, entry in header.items()}


def write(path: Path, metadata: dict[str, str], tensors: Tensors) -> None:
    """Writes a safetensors file in a fixed order. The library orders the metadata differently in each run."""
    header, begin = {"__metadata__": dict(sorted(metadata.items()))}, 0
    ordered = sorted(tensors.items(), key=lambda entry: (-SIZES.get(entry[1][0], 1), entry[0]))
    for name, (dtype, shape, stored) in ordered:
        end = begin + len(stored)
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=[begin, end])
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    part = path.with_name(path.name + ".part")
    part.write_bytes(b"".join([struct.pack("<Q", len(text)), text, *(stored for _, (_, _, stored) in ordered)]))
    os.replace(part, path)


def write_weights(folder: Path) -> None:
    """Writes model.safetensors from model.seeded, if there is one."""
    if not (folder / SEEDED).exists():
        return
    metadata, tensors = read(folder / SEEDED)
    seed = int(metadata.pop("seed"))
    for name, entry in json.loads(metadata.pop("generated")).items():
        tensors[name] = (entry["dtype"], entry["shape"], generate(seed, name, **entry))
    if digest(tensors) != metadata["sha256"]:
        raise ValueError(f"{folder / SEEDED} is damaged: its tensors have another SHA-256 than it says")
    write(folder / WEIGHTS, metadata, tensors)


def seed_weights(folder: Path, seed: int, kept_names: Collection[str] = ()) -> None:
    """Replaces the large random matrices of a folder's model.safetensors by seeded ones of the same distribution.

    The repository keeps model.seeded alone. Tensors of `kept_names` are not changed, and neither are weights in
    several files.
    """
    if not (folder / WEIGHTS).exists():
        return
    metadata, tensors = read(folder / WEIGHTS)
    generated, kept = {}, {}
    for name, (dtype, shape, stored) in sorted(tensors.items()):
        may_change = dtype in FLOATS and np.prod(shape) >= MIN_ELEMENTS and name not in kept_names
        std = normal_std(dtype, stored) if may_change else None
        if std is None:
            kept[name] = tensors[name]
            continue
        generated[name] = dict(dtype=dtype, shape=shape, factor=float(np.float32(std / SIGMA)))
        tensors[name] = (dtype, shape, generate(seed, name, **generated[name]))
    entries = json.dumps(generated, separators=(",", ":"))
    metadata |= dict(seed=str(seed), generated=entries, sha256=digest(tensors))
    write(folder / SEEDED, metadata, kept)
    write_weights(folder)
