// Quantized matrices: operands of tensor cores from their codes.
//
// A product is that of tensor cores, 16 outputs by 16 inputs by 8 rows at a time. Codes become elements by a few
// operations on bits, two at a time, and are multiplied as they are: what they count for, a scale and a minimum of
// their group, is applied to the group's sum in f32: sum(x * (code * scale + min)) = scale * sum(x * code) + min *
// sum(x), where the second sum is a product with ones. Source of the idea of laying codes out for the lanes that
// multiply them: Frantar et al., "MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on LLMs", 2024.
#pragma once

#include "async_copy.cuh"
#include "codes.cuh"
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

// The rows of a product from `first` on: where they begin in x, and where their sums go.
template <typename T>
struct ProductRows {
  const PackedProductArgs& args;
  int32_t first;

  // Null where there is no such row.
  __device__ __forceinline__ const T* at(int32_t row) const {
    if (first + row >= args.rows) return nullptr;
    return static_cast<const T*>(args.x) + static_cast<int64_t>(first + row) * args.w.width;
  }

  __device__ __forceinline__ void take(int32_t row, int32_t output, float sum) const {
    if (args.bias != nullptr) sum += static_cast<float>(static_cast<const T*>(args.bias)[output]);
    static_cast<T*>(args.out)[static_cast<int64_t>(first + row) * args.w.n + output] = T(sum);
  }
};

// Of a block, which share the inputs: where experts have 16 outputs of many, and where a matrix has.
constexpr int32_t kFewPackedWarps = 4;
constexpr int32_t kPackedWarps = 8;
// Rows of one product of tensor cores.
constexpr int32_t kTileRows = 8;

template <typename T>
struct Pairs;

template <>
struct Pairs<__nv_bfloat16> {
  using Pair = __nv_bfloat162;
  static constexpr uint32_t kOnes = 0x3f803f80u;
  // 128, of whose mantissa the last bits count ones.
  static constexpr uint32_t kOffset = 0x43004300u;
  static constexpr uint32_t kSixteen = 0x41804180u;

  // The seven bits begin where the exponent does, whose bias is 120 more: 2^112 leaves the factor of 256.
  static __device__ __forceinline__ uint32_t e4m3_parts(uint32_t codes);
  static __device__ __forceinline__ uint32_t e2m1_parts(uint32_t codes);
};

template <>
struct Pairs<__half> {
  using Pair = __half2;
  static constexpr uint32_t kOnes = 0x3c003c00u;
  // 1024, likewise.
  static constexpr uint32_t kOffset = 0x64006400u;
  static constexpr uint32_t kSixteen = 0x4c004c00u;

  static __device__ __forceinline__ uint32_t e4m3_parts(uint32_t codes);
  static __device__ __forceinline__ uint32_t e2m1_parts(uint32_t codes);
};

template <typename T>
__device__ __forceinline__ typename Pairs<T>::Pair as_pair(uint32_t bits) {
  return *reinterpret_cast<typename Pairs<T>::Pair*>(&bits);
}

template <typename Pair>
__device__ __forceinline__ uint32_t as_bits(Pair pair) {
  return *reinterpret_cast<uint32_t*>(&pair);
}

__device__ __forceinline__ uint32_t Pairs<__nv_bfloat16>::e4m3_parts(uint32_t codes) {
  const uint32_t small = (codes & 0x00800080u) << 8 | (codes & 0x007f007fu) << 4;
  return as_bits(__hmul2(as_pair<__nv_bfloat16>(small), as_pair<__nv_bfloat16>(0x77807780u)));
}

__device__ __forceinline__ uint32_t Pairs<__half>::e4m3_parts(uint32_t codes) {
  return (codes & 0x00800080u) << 8 | (codes & 0x007f007fu) << 7;
}

// Likewise: three bits, and the factor of 2^14 that is left.
__device__ __forceinline__ uint32_t Pairs<__nv_bfloat16>::e2m1_parts(uint32_t codes) {
  const uint32_t small = (codes & 0x00080008u) << 12 | (codes & 0x00070007u) << 6;
  return as_bits(__hmul2(as_pair<__nv_bfloat16>(small), as_pair<__nv_bfloat16>(0x77807780u)));
}

__device__ __forceinline__ uint32_t Pairs<__half>::e2m1_parts(uint32_t codes) {
  return (codes & 0x00080008u) << 12 | (codes & 0x00070007u) << 9;
}

// A constant that stays in a register: the compiler would otherwise write it anew wherever it is read.
__device__ __forceinline__ uint32_t kept(uint32_t constant) {
  uint32_t word;
  asm volatile("mov.u32 %0, %1;" : "=r"(word) : "r"(constant));
  return word;
}

// Two numbers below 16, each in the low bits of its half of a word, as two elements: exactly. `offset` is `Pairs<T>::kOffset`.
template <typename T>
__device__ __forceinline__ uint32_t small_numbers(uint32_t word, uint32_t offset) {
  uint32_t bits;
  // (word & 0x000f000f) | offset
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(word), "r"(0x000f000fu), "r"(offset));
  return as_bits(__hsub2(as_pair<T>(bits), as_pair<T>(Pairs<T>::kOffset)));
}

// The codes of a lane in step `kStep` of a tile, as the operand of tensor cores: the two of register 0 belong to output
// `lane / 4` and inputs 0 and 1, of register 1 to the output 8 further, of registers 2 and 3 to inputs 2 and 3.
template <typename T, Codes kCodes>
__device__ __forceinline__ void widen(const uint32_t* words, int32_t step, const T* tables, uint32_t offset, uint32_t (&a)[4]) {
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    if constexpr (kCodes == Codes::kU4) {
      a[i] = small_numbers<T>(words[step] >> (4 * i), offset);
    } else if constexpr (kCodes == Codes::kE2m1) {
      a[i] = Pairs<T>::e2m1_parts(words[step] >> (4 * i));
    } else if constexpr (kCodes == Codes::kTable) {
      const uint32_t codes = words[step] >> (4 * i);
      const T* table = tables + (threadIdx.x % kWarp / 4 + i % 2 * 8) * kTableNumbers;
      const Vector<T, 2> pair{{table[codes & 15], table[codes >> 16 & 15]}};
      a[i] = *reinterpret_cast<const uint32_t*>(&pair);
    } else {
      const uint32_t codes = words[2 * step + i / 2] >> (8 * (i % 2));
      if constexpr (kCodes == Codes::kE4m3) {
        a[i] = Pairs<T>::e4m3_parts(codes & 0x00ff00ffu);
      } else {
        const auto high = as_pair<T>(small_numbers<T>(codes >> 4, offset));
        const auto low = as_pair<T>(small_numbers<T>(codes, offset));
        a[i] = as_bits(__hfma2(high, as_pair<T>(Pairs<T>::kSixteen), low));
      }
    }
  }
}

}  // namespace candlepower
