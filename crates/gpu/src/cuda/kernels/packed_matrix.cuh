// Quantized matrices, and their dequantization.
#pragma once

#include <type_traits>

#include "common.cuh"

namespace candlepower {

// Format of the quantized weights. The values are those of `format_kind` in src/cuda/packed.rs.
enum class QuantFormat : int32_t { kU4 = 0, kU8 = 1, kE4m3 = 2, kTable = 3, kE2m1 = 4 };

struct PackedMatrix {
  const uint32_t* quants;         // quantized weights, in the layout of `quant_index`
  const float* scales;            // [groups][n in whole tiles][scale, offset]; for kTable [n in whole tiles][16 table entries]
  const uint32_t* inputs;         // [k]: the input that each column multiplies; null: columns are in the order of inputs
  const uint32_t* sparse_starts;  // [n + 1]: begin of each output's entries of the sparse part; null: no sparse part
  const uint32_t* sparse_inputs;
  const float* sparse_values;
  int32_t n;
  int32_t k;
  int32_t width;  // inputs of a row; there may be fewer columns than inputs
  int32_t group;
  int32_t kind;
  int32_t cut;  // group boundaries divide each tile into 2^cut parts; kAnyLayout if PackedTiles cannot read the matrix

  CANDLEPOWER_HD int32_t whole_outputs() const {
    return (n + kTileOutputs - 1) / kTileOutputs * kTileOutputs;
  }
};

constexpr int32_t kAnyLayout = -1;

constexpr bool is_narrow(QuantFormat format) {
  return format == QuantFormat::kU4 || format == QuantFormat::kTable || format == QuantFormat::kE2m1;
}
constexpr int32_t bits_of(QuantFormat format) { return is_narrow(format) ? 4 : 8; }

// ---- Dequantization --------------------------------------------------------------------------------

// An E4M3 value in 8 bits, as an f32. It is too small by a factor of 256, because its bits are read as a half, whose
// exponent has one bit more. The scales include that factor.
__device__ __forceinline__ float e4m3_part(uint32_t quant) {
  const uint32_t bits = (quant & 0x80u) << 8 | (quant & 0x7fu) << 7;
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// An E2M1 value (one sign bit, two exponent bits, one mantissa bit) as an f32. It is read as a half too, and is too
// small by a factor of 2^14. The scales include that factor.
__device__ __forceinline__ float e2m1_part(uint32_t quant) {
  const uint32_t bits = (quant & 8u) << 12 | (quant & 7u) << 9;
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// Value of a quantized weight before its scale is applied.
template <QuantFormat kFormat>
__device__ __forceinline__ float quant_part(uint32_t quant) {
  if constexpr (kFormat == QuantFormat::kE4m3) return e4m3_part(quant);
  if constexpr (kFormat == QuantFormat::kE2m1) return e2m1_part(quant);
  return static_cast<float>(quant);
}

// Number of columns that are dequantized together.
constexpr int32_t kUnpacked = 8;

// Dequantized values of an output for 8 columns from `column` on, each rounded once. `column` must be a multiple of 8.
// Columns from w.k on give zeros.
template <typename T, QuantFormat kFormat>
__device__ __forceinline__ Vector<T, kUnpacked> unpacked(const PackedMatrix& w, int32_t output, int32_t column) {
  constexpr int32_t kBits = bits_of(kFormat);
  float2 scale = {1.0f, 0.0f};
  if constexpr (kFormat != QuantFormat::kTable) {
    const int64_t group = column / w.group;
    scale = reinterpret_cast<const float2*>(w.scales)[group * w.whole_outputs() + output];
  }
  const QuantIndex first = quant_index(output, column, w.k, kBits);
  Vector<T, kUnpacked> values{};
#pragma unroll
  for (int32_t i = 0; i < kUnpacked; ++i) {
    if (column + i >= w.k) break;
    const QuantIndex at = index_after(first, i, kBits);
    const uint32_t quant = w.quants[at.word] >> at.shift & ((1u << kBits) - 1);
    if constexpr (kFormat == QuantFormat::kTable) {
      values.at[i] = T(w.scales[int64_t(output) * kTableEntries + quant]);
    } else {
      values.at[i] = T(fmaf(quant_part<kFormat>(quant), scale.x, scale.y));
    }
  }
  return values;
}

// Contribution of the matrix's sparse part to an output, for a row of x.
template <typename T>
__device__ __forceinline__ float sparse_sum(const PackedMatrix& w, const T* x, int32_t output) {
  float sum = 0.0f;
  if (w.sparse_starts == nullptr) return sum;
  for (uint32_t at = w.sparse_starts[output]; at < w.sparse_starts[output + 1]; ++at) {
    sum += static_cast<float>(x[w.sparse_inputs[at]]) * w.sparse_values[at];
  }
  return sum;
}

// Calls `launch` with the format of the quantized weights as a compile-time constant.
template <typename Launch>
void with_format(int32_t kind, Launch launch) {
  switch (static_cast<QuantFormat>(kind)) {
    case QuantFormat::kU4: launch(std::integral_constant<QuantFormat, QuantFormat::kU4>{}); break;
    case QuantFormat::kU8: launch(std::integral_constant<QuantFormat, QuantFormat::kU8>{}); break;
    case QuantFormat::kE4m3: launch(std::integral_constant<QuantFormat, QuantFormat::kE4m3>{}); break;
    case QuantFormat::kE2m1: launch(std::integral_constant<QuantFormat, QuantFormat::kE2m1>{}); break;
    case QuantFormat::kTable: launch(std::integral_constant<QuantFormat, QuantFormat::kTable>{}); break;
  }
}

}  // namespace candlepower
