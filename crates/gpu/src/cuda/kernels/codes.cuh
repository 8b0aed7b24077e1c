// Quantized matrices, and their dequantization.
#pragma once

#include <type_traits>

#include "common.cuh"

namespace candlepower {

// Format of the quantized weights. The values are those of `code_kind` in src/cuda/packed.rs.
enum class Codes : int32_t { kU4 = 0, kU8 = 1, kE4m3 = 2, kTable = 3, kE2m1 = 4 };

struct PackedMatrix {
  const uint32_t* codes;          // quantized weights, in the layout of `code_place`
  const float* scales;            // [groups][n in whole tiles][scale, offset]; for kTable [n in whole tiles][16 table entries]
  const uint32_t* inputs;         // [k]: the input that each column multiplies; null: columns are in the order of inputs
  const uint32_t* sparse_starts;  // [n + 1]: begin of each output's entries of the sparse part; null: no sparse part
  const uint32_t* sparse_inputs;
  const float* sparse_numbers;
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

constexpr bool is_narrow(Codes codes) { return codes == Codes::kU4 || codes == Codes::kTable || codes == Codes::kE2m1; }
constexpr int32_t bits_of(Codes codes) { return is_narrow(codes) ? 4 : 8; }

// ---- Dequantization --------------------------------------------------------------------------------

// An E4M3 value in 8 bits, as an f32. It is too small by a factor of 256, because its bits are read as a half, whose
// exponent has one bit more. The scales include that factor.
__device__ __forceinline__ float e4m3_part(uint32_t code) {
  const uint32_t bits = (code & 0x80u) << 8 | (code & 0x7fu) << 7;
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// An E2M1 value (one sign bit, two exponent bits, one mantissa bit) as an f32. It is read as a half too, and is too
// small by a factor of 2^14. The scales include that factor.
__device__ __forceinline__ float e2m1_part(uint32_t code) {
  const uint32_t bits = (code & 8u) << 12 | (code & 7u) << 9;
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// Value of a quantized weight before its scale is applied.
template <Codes kCodes>
__device__ __forceinline__ float code_part(uint32_t code) {
  if constexpr (kCodes == Codes::kE4m3) return e4m3_part(code);
  if constexpr (kCodes == Codes::kE2m1) return e2m1_part(code);
  return static_cast<float>(code);
}

// Number of columns that are dequantized together.
constexpr int32_t kUnpacked = 8;

// Dequantized values of an output for 8 columns from `column` on, each rounded once. `column` must be a multiple of 8.
// Columns from w.k on give zeros.
template <typename T, Codes kCodes>
__device__ __forceinline__ Vector<T, kUnpacked> unpacked(const PackedMatrix& w, int32_t output, int32_t column) {
  constexpr int32_t kBits = bits_of(kCodes);
  float2 scale = {1.0f, 0.0f};
  if constexpr (kCodes != Codes::kTable) {
    const int64_t group = column / w.group;
    scale = reinterpret_cast<const float2*>(w.scales)[group * w.whole_outputs() + output];
  }
  const CodePlace first = code_place(output, column, w.k, kBits);
  Vector<T, kUnpacked> numbers{};
#pragma unroll
  for (int32_t i = 0; i < kUnpacked; ++i) {
    if (column + i >= w.k) break;
    const CodePlace place = place_after(first, i, kBits);
    const uint32_t code = w.codes[place.word] >> place.shift & ((1u << kBits) - 1);
    if constexpr (kCodes == Codes::kTable) {
      numbers.at[i] = T(w.scales[int64_t(output) * kTableNumbers + code]);
    } else {
      numbers.at[i] = T(fmaf(code_part<kCodes>(code), scale.x, scale.y));
    }
  }
  return numbers;
}

// Contribution of the matrix's sparse part to an output, for a row of x.
template <typename T>
__device__ __forceinline__ float sparse_sum(const PackedMatrix& w, const T* x, int32_t output) {
  float sum = 0.0f;
  if (w.sparse_starts == nullptr) return sum;
  for (uint32_t at = w.sparse_starts[output]; at < w.sparse_starts[output + 1]; ++at) {
    sum += static_cast<float>(x[w.sparse_inputs[at]]) * w.sparse_numbers[at];
  }
  return sum;
}

// Calls `launch` with the format of the quantized weights as a compile-time constant.
template <typename Launch>
void with_codes(int32_t kind, Launch launch) {
  switch (static_cast<Codes>(kind)) {
    case Codes::kU4: launch(std::integral_constant<Codes, Codes::kU4>{}); break;
    case Codes::kU8: launch(std::integral_constant<Codes, Codes::kU8>{}); break;
    case Codes::kE4m3: launch(std::integral_constant<Codes, Codes::kE4m3>{}); break;
    case Codes::kE2m1: launch(std::integral_constant<Codes, Codes::kE2m1>{}); break;
    case Codes::kTable: launch(std::integral_constant<Codes, Codes::kTable>{}); break;
  }
}

}  // namespace candlepower
