// Rows that a kernel writes in FP8 (e4m3) for the products that read them, and the arithmetic of that rounding. The reference
// implementation is `Fp8Rounding` in crates/kernels. A value is rounded to the element type first, so the bits are those of
// a kernel that writes 16 bits and of `round_kernel` in fp8.cu after it.
#pragma once

#include <cuda_fp8.h>

#include "common.cuh"

namespace candlepower {

constexpr float kE4m3Max = 448.0f;
constexpr uint32_t kInfinity = 0x7f800000u;

// Inputs that share a scale in a product of cuBLASLt with scales of groups.
constexpr int32_t kFp8Group = 128;

// Where rows in FP8 are written.
struct Fp8Rows {
  uint8_t* codes;  // e4m3 [rows, k]; null: the kernel writes 16 bits instead
  float* scales;   // [groups, rows]
  int32_t group;   // inputs that share a scale: kFp8Group, or at least k
  float fixed;     // the scale of all rows; 0: each group's is computed
};
static_assert(sizeof(Fp8Rows) == 24, "as in src/cuda/fp8.rs");

// How a kernel writes rows: in 16 bits, or in FP8 with a scale for each row or for each group of kFp8Group.
enum class RowsAs : int32_t { kHalves, kFp8Rows, kFp8Groups };

// Whether rows of k elements can be written so: in whole vectors of N elements.
template <int32_t N>
bool fits(const Fp8Rows& out, int32_t k) {
  return k % N == 0 && (out.group >= k || (out.group == kFp8Group && k % kFp8Group == 0));
}

// The larger of `largest` and the magnitudes of some values, as bits. The bits of NaN are above those of infinity.
template <typename T, int32_t N>
__device__ __forceinline__ uint32_t with_largest(uint32_t largest, const Vector<T, N>& values) {
#pragma unroll
  for (int32_t j = 0; j < N; ++j) {
    const uint32_t size = __float_as_uint(static_cast<float>(values.at[j])) & 0x7fffffffu;
    largest = size > largest ? size : largest;
  }
  return largest;
}

__device__ __forceinline__ uint32_t warp_largest(uint32_t value) {
  return warp_reduce(value, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
}

__device__ __forceinline__ uint32_t block_largest(uint32_t value) {
  return block_reduce(value, 0u, [](uint32_t v) { return warp_largest(v); });
}

// The scale of a group whose largest magnitude has the bits `largest`.
__device__ __forceinline__ float scale_of(uint32_t largest, float fixed) {
  if (fixed != 0.0f) return fixed;
  if (largest >= kInfinity) return NAN;
  const float scale = __uint_as_float(largest) / kE4m3Max;
  return scale == 0.0f ? 1.0f : scale;
}

// The scale that a product reads. It reads NaN in e4m3 as a number, so the scale tells of it.
__device__ __forceinline__ float stored_scale(uint32_t largest, float scale) {
  return largest > kInfinity ? NAN : scale;
}

template <typename T, int32_t N>
__device__ __forceinline__ void store_codes(uint8_t* to, const Vector<T, N>& values, float scale) {
  Vector<uint8_t, N> codes;
#pragma unroll
  for (int32_t j = 0; j < N; ++j) {
    codes.at[j] = __nv_cvt_float_to_fp8(static_cast<float>(values.at[j]) / scale, __NV_SATFINITE, __NV_E4M3);
  }
  store<N>(to, codes);
}

// Writes a row of k elements with one scale, by a whole block. `values(i)` are those of the vector from element i on, and
// depend on i alone. They are called once for the first kKept vectors of each thread, which stay in registers, and twice for
// others. Threads beyond the row compute its first vector, so that no branch keeps the loads of several vectors apart.
template <typename T, int32_t N, int32_t kKept, typename Values>
__device__ __forceinline__ void store_fp8_row(const Fp8Rows& out, int64_t row, int32_t k, Values values) {
  const int32_t first = threadIdx.x * N;
  const int32_t step = blockDim.x * N;
  Vector<T, N> kept[kKept];
  uint32_t largest = 0;
#pragma unroll
  for (int32_t turn = 0; turn < kKept; ++turn) {
    const int32_t i = first + turn * step;
    kept[turn] = values(i < k ? i : 0);
    largest = with_largest(largest, kept[turn]);
  }
  for (int32_t i = first + kKept * step; i < k; i += step) largest = with_largest(largest, values(i));
  largest = block_largest(largest);
  const float scale = scale_of(largest, out.fixed);
  if (threadIdx.x == 0) out.scales[row] = stored_scale(largest, scale);
  uint8_t* codes = out.codes + row * k;
#pragma unroll
  for (int32_t turn = 0; turn < kKept; ++turn) {
    const int32_t i = first + turn * step;
    if (i < k) store_codes(codes + i, kept[turn], scale);
  }
  for (int32_t i = first + kKept * step; i < k; i += step) store_codes(codes + i, values(i), scale);
}

// Writes the vector from element i on of a row of k elements, whose groups have scales. The lanes of a group are neighbours
// in a warp, and all lanes of the warp call it. Those beyond the rows say so, and write nothing.
template <typename T, int32_t N>
__device__ __forceinline__ void store_fp8_group(const Fp8Rows& out, int64_t row, int64_t rows, int32_t k, int32_t i,
                                                bool is_inside, const Vector<T, N>& values) {
  uint32_t largest = is_inside ? with_largest(0u, values) : 0u;
  constexpr int32_t kLanes = kFp8Group / N;
  static_assert(kLanes <= kWarp, "a group is at most a warp's");
#pragma unroll
  for (int32_t offset = kLanes / 2; offset > 0; offset /= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, largest, offset);
    largest = other > largest ? other : largest;
  }
  if (!is_inside) return;
  const float scale = scale_of(largest, out.fixed);
  if (i % kFp8Group == 0) out.scales[i / kFp8Group * rows + row] = stored_scale(largest, scale);
  store_codes(out.codes + row * k + i, values, scale);
}

}  // namespace candlepower
