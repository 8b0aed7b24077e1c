"""Formats of quantized weights, after their own references: how a matrix is packed, and its dequantized values.

Each class has the `quantization_config` that names it. `pack` rounds a matrix to the format, and `unpack` dequantizes
the packed tensors alone. Matrices are [outputs, inputs] float32. Arrays are NumPy's, or PyTorch's for dtypes that
NumPy lacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "np.ndarray | torch.Tensor"]


def by_group(w: np.ndarray, group_of_input: np.ndarray, groups: int) -> list[np.ndarray]:
    """The columns of each group."""
    return [w[:, group_of_input == group] for group in range(groups)]


def scales_and_zeros(parts: list[np.ndarray], bits: int, symmetric: bool) -> tuple[np.ndarray, np.ndarray]:
    """A float16 scale and a zero-point per group and output, [groups, outputs], for quantized weights of 0 to 2**bits
    - 1.
    """
    most = 2**bits - 1
    scales, zeros = [], []
    for part in parts:
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            scale = (2 * np.maximum(high, -low) / most).astype(np.float16)
            zero = np.full(len(scale), 2 ** (bits - 1))
        else:
            scale = ((high - low) / most).astype(np.float16)
            zero = np.clip(np.rint(-low / scale.astype(np.float32)), 0, most)
        scales.append(scale)
        zeros.append(zero.astype(np.int64))
    return np.stack(scales), np.stack(zeros)


def rounded(w: np.ndarray, scales: np.ndarray, zeros: np.ndarray, groups: np.ndarray, bits: int) -> np.ndarray:
    """The quantized weights [outputs, inputs] nearest to `w`."""
    codes = np.rint(w / scales[groups].T.astype(np.float32)) + zeros[groups].T
    return np.clip(codes, 0, 2**bits - 1).astype(np.int64)


def pack_words(codes: np.ndarray, bits: int, order: list[int]) -> np.ndarray:
    """[.., count] -> int32 [.., count / values per word]. Value `order[i]` of each word has the bits from i * bits
    on.
    """
    words = np.zeros((*codes.shape[:-1], codes.shape[-1] // len(order)), np.uint32)
    for i, place in enumerate(order):
        words |= codes[..., place :: len(order)].astype(np.uint32) << np.uint32(i * bits)
    return words.view(np.int32)


def unpack_words(words: np.ndarray, bits: int, order: list[int]) -> np.ndarray:
    """The inverse of `pack_words`."""
    codes = np.zeros((*words.shape[:-1], words.shape[-1] * len(order)), np.int64)
    for i, place in enumerate(order):
        codes[..., place :: len(order)] = words.view(np.uint32) >> np.uint32(i * bits) & np.uint32(2**bits - 1)
    return codes


class Awq:
    """AutoAWQ's GEMM layout: [inputs, outputs / 8] words, with values of outputs 0, 2, 4, 6, 1, 3, 5, 7."""

    ORDER = [0, 2, 4, 6, 1, 3, 5, 7]

    def __init__(self, group: int):
        self.group = group
        self.config = {
            "quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True,
        }

    def pack(self, w: np.ndarray, rng: np.random.Generator) -> Tensors:
        groups = np.arange(w.shape[1]) // self.group
        scales, zeros = scales_and_zeros(by_group(w, groups, groups[-1] + 1), 4, False)
        codes = rounded(w, scales, zeros, groups, 4)
        return {
            "qweight": pack_words(np.ascontiguousarray(codes.T), 4, self.ORDER),
            "qzeros": pack_words(zeros, 4, self.ORDER),
            "scales": scales,
        }

    def unpack(self, t: Tensors) -> np.ndarray:
        codes = unpack_words(t["qweight"], 4, self.ORDER)
        groups = np.arange(len(codes)) // self.group
        zeros = unpack_words(t["qzeros"], 4, self.ORDER)[groups]
        return ((codes - zeros).astype(np.float32) * t["scales"][groups].astype(np.float32)).T


class Gptq:
    """AutoGPTQ's layout: [inputs / values per word, outputs] words, with zero-points packed along the outputs."""

    def __init__(self, bits: int, group: int, act_order: bool, symmetric: bool, version: int, **config):
        self.bits, self.group, self.act_order = bits, group, act_order
        self.symmetric, self.version = symmetric, version
        self.config = {
            "quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order, "sym": symmetric,
            **({"checkpoint_format": "gptq_v2"} if version == 2 else {}), **config,
        }

    @property
    def order(self) -> list[int]:
        return list(range(32 // self.bits))

    def pack(self, w: np.ndarray, rng: np.random.Generator) -> Tensors:
        inputs = w.shape[1]
        groups = np.arange(inputs) // (inputs if self.group == -1 else self.group)
        if self.act_order:
            # Matrices with the same inputs get the same order, because the order follows from the inputs' importance.
            groups = groups[np.random.default_rng(inputs).permutation(inputs)]
        scales, zeros = scales_and_zeros(by_group(w, groups, groups.max() + 1), self.bits, self.symmetric)
        codes = rounded(w, scales, zeros, groups, self.bits)
        stored = zeros if self.version == 2 else (zeros - 1) % 2**self.bits
        return {
            "qweight": np.ascontiguousarray(pack_words(codes, self.bits, self.order).T),
            "qzeros": pack_words(stored, self.bits, self.order),
            "scales": scales,
            "g_idx": groups.astype(np.int32),
        }

    def unpack(self, t: Tensors) -> np.ndarray:
        codes = unpack_words(np.ascontiguousarray(t["qweight"].T), self.bits, self.order)
        zeros = unpack_words(t["qzeros"], self.bits, self.order)
        if self.version == 1:
            zeros = (zeros + 1) % 2**self.bits
        zeros, scales = zeros[t["g_idx"]].T, t["scales"][t["g_idx"]].T
        return (codes - zeros).astype(np.float32) * scales.astype(np.float32)


def e4m3_numbers() -> np.ndarray:
    """The values of the bytes 0 to 126. Byte 127 is NaN, and the highest bit is the sign."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    size = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return size.astype(np.float32)


def rounded_activations(x: torch.Tensor, group: int | None = None, scale: float | None = None) -> torch.Tensor:
    """Activations [.., inputs] rounded to e4m3 and back: with a fixed scale, or with one for each row or each `group` of a
    row's inputs, which makes their largest magnitude 448.
    """
    import torch

    if scale is not None:
        return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
    parts = []
    for part in x.split(group or x.shape[-1], -1):
        scales = part.abs().amax(-1, keepdim=True) / 448
        scales = torch.where(scales == 0, 1.0, scales)
        parts.append((part / scales).to(torch.float8_e4m3fn).float() * scales)
    return torch.cat(parts, -1)


class Fp8:
    """A byte per weight, with scales per "tensor", "channel" (an output) or "block" of outputs and inputs.

    Activations are rounded to e4m3, too: with the scale of the checkpoint, with a scale for the inputs of a block, or with a
    scale for each row.
    """

    # The scale of activations of checkpoints that have one.
    INPUT_SCALE = 1 / 32

    def __init__(self, scales: str, block: tuple[int, int] = (1, 1), compressed_tensors: bool = False, **config):
        self.scales, self.block = scales, block
        self.scale_name = "weight_scale_inv" if scales == "block" else "weight_scale"
        if compressed_tensors:
            weights = {"num_bits": 8, "type": "float", "strategy": scales, "symmetric": True, "dynamic": False}
            activations = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
            group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
            self.config = {
                "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": group},
                **config,
            }
        else:
            self.config = {"quant_method": "fp8", "activation_scheme": "dynamic", **config}
            if scales == "block":
                self.config["weight_block_size"] = list(block)

    def spread(self, scales: np.ndarray, n: int, k: int) -> np.ndarray:
        """The scale of each weight."""
        if self.scales == "block":
            return np.repeat(np.repeat(scales, self.block[0], 0), self.block[1], 1)[:n, :k]
        return np.broadcast_to(scales, (n, k))

    def pack(self, w: np.ndarray, rng: np.random.Generator) -> Tensors:
        n, k = w.shape
        if self.scales == "tensor":
            scales = np.abs(w).max() / 448
        elif self.scales == "channel":
            scales = np.abs(w).max(1, keepdims=True) / 448
        else:
            rows, columns = self.block
            scales = np.array([
                [np.abs(w[i : i + rows, j : j + columns]).max() / 448 for j in range(0, k, columns)]
                for i in range(0, n, rows)
            ])
        scales = np.asarray(scales, np.float32)
        numbers = e4m3_numbers()
        scaled = w / self.spread(scales, n, k)
        codes = np.searchsorted((numbers[1:] + numbers[:-1]) / 2, np.abs(scaled)).astype(np.uint8)
        tensors = {"weight": codes | np.where(scaled < 0, 0x80, 0).astype(np.uint8), self.scale_name: scales}
        if self.config.get("activation_scheme") == "static":
            tensors["input_scale"] = np.array(self.INPUT_SCALE, np.float32)
        return tensors

    def round_activations(self, x: torch.Tensor) -> torch.Tensor:
        """The input of a linear layer, rounded as the configuration says."""
        if self.config.get("activation_scheme") == "static":
            return rounded_activations(x, scale=self.INPUT_SCALE)
        return rounded_activations(x, self.block[1] if self.scales == "block" else None)

    def unpack(self, t: Tensors) -> np.ndarray:
        codes = t["weight"]
        numbers = e4m3_numbers()[codes & 0x7F]
        numbers = np.where(codes & 0x80, -numbers, numbers)
        return numbers * self.spread(t[self.scale_name], *codes.shape)


class CompressedInt:
    """compressed-tensors' integers: `pack-quantized`, in words that its own code packs, or `int-quantized`, a byte
    each.
    """

    def __init__(self, bits: int, group: int | None, symmetric: bool = True, act_order: bool = False, in_words: bool = True):
        self.bits, self.group, self.symmetric = bits, group, symmetric
        self.act_order, self.in_words = act_order, in_words
        weights = {
            "num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False,
            "strategy": "group" if group else "channel", "group_size": group,
            "actorder": "group" if act_order else None,
        }
        activations = None if in_words else {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
        self.config = {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized" if in_words else "int-quantized",
            "quantization_status": "compressed",
            "config_groups": {
                "group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations},
            },
        }

    def pack(self, w: np.ndarray, rng: np.random.Generator) -> Tensors:
        import torch
        from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

        inputs, middle = w.shape[1], 2 ** (self.bits - 1)
        groups = np.arange(inputs) // (self.group or inputs)
        if self.act_order:
            groups = groups[np.random.default_rng(inputs).permutation(inputs)]
        scales, zeros = scales_and_zeros(by_group(w, groups, groups.max() + 1), self.bits, self.symmetric)
        scales = torch.from_numpy(scales).to(torch.bfloat16).float().numpy()
        codes = torch.from_numpy((rounded(w, scales, zeros, groups, self.bits) - middle).astype(np.int8))
        stored = {"weight_scale": np.ascontiguousarray(scales.T).astype(np.float16)}
        # The scales fit into float16 without loss.
        assert (stored["weight_scale"].astype(np.float32) == scales.T).all()
        if not self.in_words:
            return stored | {"weight": codes.numpy()}
        stored["weight_packed"] = pack_to_int32(codes, self.bits).numpy()
        stored["weight_shape"] = np.array(w.shape, np.int64)
        if not self.symmetric:
            points = torch.from_numpy(np.ascontiguousarray((zeros.T - middle).astype(np.int8)))
            stored["weight_zero_point"] = pack_to_int32(points, self.bits, packed_dim=0).numpy()
        if self.act_order:
            stored["weight_g_idx"] = groups.astype(np.int32)
        return stored

    def unpack(self, t: Tensors) -> np.ndarray:
        import torch
        from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

        scales = t["weight_scale"].astype(np.float32)
        if not self.in_words:
            return t["weight"].astype(np.float32) * scales
        shape = torch.Size(t["weight_shape"].tolist())
        codes = unpack_from_int32(torch.from_numpy(t["weight_packed"]), self.bits, shape).numpy()
        groups = t.get("weight_g_idx", np.arange(shape[1]) // (self.group or shape[1]))
        zeros = np.zeros(scales.shape, np.int8)
        if "weight_zero_point" in t:
            points = torch.from_numpy(t["weight_zero_point"])
            zeros = unpack_from_int32(points, self.bits, torch.Size(scales.shape), packed_dim=0).numpy()
        return (codes.astype(np.float32) - zeros[:, groups]) * scales[:, groups]


class Nvfp4:
    """Four-bit floats, packed by compressed-tensors' own code: a float8 scale for 16 inputs, and a divisor for the
    whole tensor.

    ModelOpt has other names, and a factor in place of the divisor.
    """

    GROUP = 16

    def __init__(self, modelopt: bool = False):
        self.modelopt = modelopt
        if modelopt:
            self.config = {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": self.GROUP}
            self.names = ["weight", "weight_scale", "weight_scale_2"]
            return
        numbers = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": self.GROUP, "symmetric": True}
        self.config = {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": numbers | {"dynamic": False},
                    "input_activations": numbers | {"dynamic": "local"},
                },
            },
        }
        self.names = ["weight_packed", "weight_scale", "weight_global_scale"]

    def pack(self, w: np.ndarray, rng: np.random.Generator) -> Tensors:
        import torch
        from compressed_tensors.compressors.nvfp4.helpers import quantize_and_pack_fp4

        weight = torch.from_numpy(w.copy())
        of_all = 448 * 6 / weight.abs().max().reshape(1)
        largest = weight.unflatten(1, (-1, self.GROUP)).abs().amax(-1)
        scales = (largest / 6 * of_all).to(torch.float8_e4m3fn)
        codes = quantize_and_pack_fp4(weight, scales.float(), global_scale=of_all, zero_point=None, group_size=self.GROUP)
        of_all = 1 / of_all.squeeze() if self.modelopt else of_all
        beside = {"input_scale" if self.modelopt else "input_global_scale": np.array([0.5], np.float32)}
        return dict(zip(self.names, (codes, scales, of_all), strict=True)) | beside

    def unpack(self, t: Tensors) -> np.ndarray:
        from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
        import torch

        codes, scales, of_all = (t[name] for name in self.names)
        n, half = codes.shape
        numbers = unpack_fp4_from_uint8(codes, n, 2 * half, dtype=torch.float32)
        scales = scales.float() * of_all if self.modelopt else scales.float() / of_all
        return (numbers * scales.repeat_interleave(self.GROUP, 1)).numpy()


class SqueezeLlm:
    """SqueezeLLM's layout: [inputs / 8, outputs] words, whose values are indices into an output's table of sixteen.

    The fraction `outliers` of all weights, the largest ones, is stored in a sparse matrix that is added, in
    compressed rows.
    """

    def __init__(self, outliers: float = 0.0):
        self.outliers = outliers
        self.config = {"quant_method": "squeezellm", "wbits": 4}

    def pack(self, w: np.ndarray, rng: np.random.Generator) -> Tensors:
        table = np.quantile(w, (np.arange(16) + 0.5) / 16, axis=1).T.astype(np.float16)
        table = np.ascontiguousarray(rng.permuted(table, axis=1))
        codes = np.abs(w[:, :, None] - table[:, None, :].astype(np.float32)).argmin(2)
        order = list(range(8))
        tensors = {"qweight": np.ascontiguousarray(pack_words(codes, 4, order).T), "lookup_table": table}
        if self.outliers:
            outlier = np.abs(w) > np.quantile(np.abs(w), 1 - self.outliers)
            rows, columns = np.nonzero(outlier)
            dense = np.take_along_axis(table.astype(np.float32), codes, 1)
            tensors["rows"] = np.concatenate([[0], outlier.sum(1).cumsum()]).astype(np.int32)
            tensors["cols"] = columns.astype(np.int32)
            tensors["vals"] = (w - dense)[rows, columns].astype(np.float32)
        return tensors

    def unpack(self, t: Tensors) -> np.ndarray:
        codes = unpack_words(np.ascontiguousarray(t["qweight"].T), 4, list(range(8)))
        numbers = np.take_along_axis(t["lookup_table"].astype(np.float32), codes, 1)
        if "rows" in t:
            outputs = np.repeat(np.arange(len(numbers)), np.diff(t["rows"]))
            numbers[outputs, t["cols"]] += t["vals"]
        return numbers


class Mxfp4:
    """The experts of gpt-oss: for [experts, inputs, outputs] two values in a byte, and the exponent of a scale for 32
    inputs.

    `pack` rounds to the values of OCP's MX formats. transformers itself dequantizes the packed tensors.
    """

    GROUP = 32
    NUMBERS = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
    config = {"quant_method": "mxfp4"}

    def pack(self, w: np.ndarray, rng: np.random.Generator) -> Tensors:
        experts, inputs, outputs = w.shape
        groups = w.transpose(0, 2, 1).reshape(experts, outputs, inputs // self.GROUP, self.GROUP)
        # The largest magnitude is between 4 and 8 times the scale.
        exponents = np.floor(np.log2(np.abs(groups).max(-1, keepdims=True))) - 2
        sizes = np.abs(groups) / np.exp2(exponents)
        codes = np.abs(sizes[..., None] - self.NUMBERS).argmin(-1).astype(np.uint8) | (groups < 0).astype(np.uint8) << 3
        blocks = codes[..., 0::2] | codes[..., 1::2] << 4
        return {"blocks": blocks, "scales": (exponents[..., 0] + 127).astype(np.uint8)}

    def unpack(self, t: Tensors) -> np.ndarray:
        import torch
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        blocks, scales = (torch.from_numpy(t[part]) for part in ("blocks", "scales"))
        return convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).numpy()

    @staticmethod
    def rows(numbers: np.ndarray, alternating: bool) -> np.ndarray:
        """The rows of all experts, [experts * outputs, inputs]. If rows of gate and up alternate, gate comes first,
        then up.
        """
        of_experts = numbers.transpose(0, 2, 1)
        if alternating:
            of_experts = np.concatenate([of_experts[:, 0::2], of_experts[:, 1::2]], axis=1)
        return of_experts.reshape(-1, of_experts.shape[-1])
