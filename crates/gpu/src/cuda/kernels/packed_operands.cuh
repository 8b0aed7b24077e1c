// Quantized matrices: operands of tensor cores from quantized weights.
//
// The products are computed by tensor cores, for 16 outputs, 16 inputs and 8 rows at a time. A few bit operations
// convert quantized weights to bf16 or f16 exactly, two at a time, and tensor cores multiply them unscaled. Scale and
// offset of a group are applied in f32 to the sums over the group:
//
// sum(x * (weight * scale + offset)) = scale * sum(x * weight) + offset * sum(x)
//
// The second sum is a product with ones. Converting a tile this way takes 93 instructions. Scaling each weight before
// the product took 240, and made a 4-bit product of one row as slow as a bf16 one. With 93 instructions, one row of the
// gate and up projection of an 8B model takes 26.0 instead of 49.9 us on an H200.
//
// The layout stores weights in the order of the lanes that multiply them. Source of that idea: Frantar et al., "MARLIN:
// Mixed-Precision Auto-Regressive Parallel Inference on LLMs", 2024.
#pragma once

#include "async_copy.cuh"
#include "packed_matrix.cuh"
#include "tensor_core.cuh"

namespace candlepower {

struct PackedProductArgs {
  PackedMatrix w;
  const void* x;     // [rows, width]
  const void* bias;  // [n], may be null
  void* out;         // [rows, n]
  int32_t rows;
  int32_t dtype;
};
static_assert(sizeof(PackedProductArgs) == 104, "as in src/cuda/packed.rs");

// Rows of a product from row `first` on: their addresses in x, and the stores of their outputs.
template <typename T>
struct ProductRows {
  const PackedProductArgs& args;
  int32_t first;

  // Address of a row in x, or null if there is no such row.
  __device__ __forceinline__ const T* at(int32_t row) const {
    if (first + row >= args.rows) return nullptr;
    return static_cast<const T*>(args.x) + static_cast<int64_t>(first + row) * args.w.width;
  }

  __device__ __forceinline__ void take(int32_t row, int32_t output, float sum) const {
    if (args.bias != nullptr) sum += static_cast<float>(static_cast<const T*>(args.bias)[output]);
    static_cast<T*>(args.out)[static_cast<int64_t>(first + row) * args.w.n + output] = T(sum);
  }
};

// Number of warps of a block. The warps divide the inputs of 16 outputs among themselves. MoE layers have many groups
// of 16 outputs, over all experts, so that blocks of fewer warps suffice there; a single matrix has blocks of 8 warps.
constexpr int32_t kFewPackedWarps = 4;
constexpr int32_t kPackedWarps = 8;
// Number of rows of x in one tensor core product.
constexpr int32_t kTileRows = 8;

template <typename T>
struct Pairs;

template <>
struct Pairs<__nv_bfloat16> {
  using Pair = __nv_bfloat162;
  static constexpr uint32_t kOnes = 0x3f803f80u;
  // 128: its last mantissa bits count ones, so that OR-ing a small integer into them adds it.
  static constexpr uint32_t kOffset = 0x43004300u;
  static constexpr uint32_t kSixteen = 0x41804180u;

  // Exponent and mantissa of an E4M3 value, 7 bits, are shifted to the place of bf16's. The exponent bias of bf16 is
  // larger by 120, so a factor of 2^112 leaves the value too small by 256, as for f16.
  static __device__ __forceinline__ uint32_t e4m3_parts(uint32_t quants);
  static __device__ __forceinline__ uint32_t e2m1_parts(uint32_t quants);
};

template <>
struct Pairs<__half> {
  using Pair = __half2;
  static constexpr uint32_t kOnes = 0x3c003c00u;
  // 1024, with the same property.
  static constexpr uint32_t kOffset = 0x64006400u;
  static constexpr uint32_t kSixteen = 0x4c004c00u;

  static __device__ __forceinline__ uint32_t e4m3_parts(uint32_t quants);
  static __device__ __forceinline__ uint32_t e2m1_parts(uint32_t quants);
};

template <typename T>
__device__ __forceinline__ typename Pairs<T>::Pair as_pair(uint32_t bits) {
  return *reinterpret_cast<typename Pairs<T>::Pair*>(&bits);
}

template <typename Pair>
__device__ __forceinline__ uint32_t as_bits(Pair pair) {
  return *reinterpret_cast<uint32_t*>(&pair);
}

__device__ __forceinline__ uint32_t Pairs<__nv_bfloat16>::e4m3_parts(uint32_t quants) {
  const uint32_t small = (quants & 0x00800080u) << 8 | (quants & 0x007f007fu) << 4;
  return as_bits(__hmul2(as_pair<__nv_bfloat16>(small), as_pair<__nv_bfloat16>(0x77807780u)));
}

__device__ __forceinline__ uint32_t Pairs<__half>::e4m3_parts(uint32_t quants) {
  return (quants & 0x00800080u) << 8 | (quants & 0x007f007fu) << 7;
}

// The same for an E2M1 value: three bits are shifted, and the result is too small by a factor of 2^14.
__device__ __forceinline__ uint32_t Pairs<__nv_bfloat16>::e2m1_parts(uint32_t quants) {
  const uint32_t small = (quants & 0x00080008u) << 12 | (quants & 0x00070007u) << 6;
  return as_bits(__hmul2(as_pair<__nv_bfloat16>(small), as_pair<__nv_bfloat16>(0x77807780u)));
}

__device__ __forceinline__ uint32_t Pairs<__half>::e2m1_parts(uint32_t quants) {
  return (quants & 0x00080008u) << 12 | (quants & 0x00070007u) << 9;
}

// Keeps a constant in a register. The compiler would otherwise materialize it again wherever it is read.
__device__ __forceinline__ uint32_t kept(uint32_t constant) {
  uint32_t word;
  asm volatile("mov.u32 %0, %1;" : "=r"(word) : "r"(constant));
  return word;
}

// Converts two integers below 16, in the low bits of the two halves of a word, to two elements, exactly. `offset` is
// `Pairs<T>::kOffset`.
template <typename T>
__device__ __forceinline__ uint32_t small_values(uint32_t word, uint32_t offset) {
  uint32_t bits;
  // (word & 0x000f000f) | offset
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(word), "r"(0x000f000fu), "r"(offset));
  return as_bits(__hsub2(as_pair<T>(bits), as_pair<T>(Pairs<T>::kOffset)));
}

// Converts a lane's quantized weights in step `step` of a tile to the tensor core operand `a`. Register 0 gets inputs 0
// and 1 of output `lane / 4`, and register 1 the same inputs of output `lane / 4 + 8`. Registers 2 and 3 get inputs 2
// and 3 of these outputs.
template <typename T, QuantFormat kFormat>
__device__ __forceinline__ void widen(const uint32_t* words, int32_t step, const T* tables, uint32_t offset, uint32_t (&a)[4]) {
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    if constexpr (kFormat == QuantFormat::kU4) {
      a[i] = small_values<T>(words[step] >> (4 * i), offset);
    } else if constexpr (kFormat == QuantFormat::kE2m1) {
      a[i] = Pairs<T>::e2m1_parts(words[step] >> (4 * i));
    } else if constexpr (kFormat == QuantFormat::kTable) {
      const uint32_t quants = words[step] >> (4 * i);
      const T* table = tables + (threadIdx.x % kWarp / 4 + i % 2 * 8) * kTableEntries;
      const Vector<T, 2> pair{{table[quants & 15], table[quants >> 16 & 15]}};
      a[i] = *reinterpret_cast<const uint32_t*>(&pair);
    } else {
      const uint32_t quants = words[2 * step + i / 2] >> (8 * (i % 2));
      if constexpr (kFormat == QuantFormat::kE4m3) {
        a[i] = Pairs<T>::e4m3_parts(quants & 0x00ff00ffu);
      } else {
        const auto high = as_pair<T>(small_values<T>(quants >> 4, offset));
        const auto low = as_pair<T>(small_values<T>(quants, offset));
        a[i] = as_bits(__hfma2(high, as_pair<T>(Pairs<T>::kSixteen), low));
      }
    }
  }
}

}  // namespace candlepower
