// Quantized matrices, and the numbers that their codes mean.
#pragma once

#include <type_traits>

#include "common.cuh"

namespace candlepower {

// What codes mean; the values are those of `code_kind` in src/cuda/packed.rs.
enum class Codes : int32_t { kU4 = 0, kU8 = 1, kE4m3 = 2, kTable = 3, kE2m1 = 4 };

struct PackedMatrix {
  const uint32_t* codes;          // as `code_place` says
  const float* scales;            // [groups][n in whole tiles][scale, minimum]; of tables [n in whole tiles][16]
  const uint32_t* inputs;         // [k]: the input of each column; null where they are in order
  const uint32_t* sparse_starts;  // [n + 1]: where the entries of each output begin; null where there are none
  const uint32_t* sparse_inputs;
  const float* sparse_numbers;
  int32_t n;
  int32_t k;
  int32_t width;  // inputs of a row, of which columns may leave some out
  int32_t group;
  int32_t kind;
  int32_t cut;  // into how many parts groups cut a tile of a matrix in whole tiles: 2^cut; kAnyLayout for other matrices

  CANDLEPOWER_HD int32_t whole_outputs() const {
    return (n + kTileOutputs - 1) / kTileOutputs * kTileOutputs;
  }
};

constexpr int32_t kAnyLayout = -1;

constexpr bool is_narrow(Codes codes) { return codes == Codes::kU4 || codes == Codes::kTable || codes == Codes::kE2m1; }
constexpr int32_t bits_of(Codes codes) { return is_narrow(codes) ? 4 : 8; }

// ---- Numbers ---------------------------------------------------------------------------------------

// A code of eight bits as a half, but for a factor of 256 that scales have: the exponent has one bit more.
__device__ __forceinline__ float e4m3_part(uint32_t code) {
  const uint32_t bits = (code & 0x80u) << 8 | (code & 0x7fu) << 7;
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// A code of a sign, two bits of exponent and one of mantissa as a half, but for a factor of 2^14 that scales have.
__device__ __forceinline__ float e2m1_part(uint32_t code) {
  const uint32_t bits = (code & 8u) << 12 | (code & 7u) << 9;
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// What a code that is multiplied by a scale is.
template <Codes kCodes>
__device__ __forceinline__ float code_part(uint32_t code) {
  if constexpr (kCodes == Codes::kE4m3) return e4m3_part(code);
  if constexpr (kCodes == Codes::kE2m1) return e2m1_part(code);
  return static_cast<float>(code);
}

// Columns whose numbers are unpacked together.
constexpr int32_t kUnpacked = 8;

// The numbers of an output in the columns from `column` on, a multiple of 8, each rounded once; zeros beyond the last column.
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

// What the numbers beside the codes add to an output, for a row of x.
template <typename T>
__device__ __forceinline__ float sparse_sum(const PackedMatrix& w, const T* x, int32_t output) {
  float sum = 0.0f;
  if (w.sparse_starts == nullptr) return sum;
  for (uint32_t at = w.sparse_starts[output]; at < w.sparse_starts[output + 1]; ++at) {
    sum += static_cast<float>(x[w.sparse_inputs[at]]) * w.sparse_numbers[at];
  }
  return sum;
}

// Calls `launch` with a type that has this kind of codes.
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
