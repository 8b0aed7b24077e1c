// Products of f32 matrices on tensor cores, with each element as the sum of two bf16 values.
//
// A product takes three products of bf16: upper by upper parts, and each upper by the other's lower parts. The product of
// the lower parts is left out. It is below 2^-17 of the result, like the rounding of the lower parts.
#pragma once

#include "async_copy.cuh"
#include "tensor_core.cuh"

namespace candlepower {

// Splits two values into their upper and lower parts.
__device__ __forceinline__ void split(float first, float second, uint32_t& upper, uint32_t& lower) {
  const __nv_bfloat162 rounded = __floats2bfloat162_rn(first, second);
  const float2 back = __bfloat1622float2(rounded);
  const __nv_bfloat162 rest = __floats2bfloat162_rn(first - back.x, second - back.y);
  upper = *reinterpret_cast<const uint32_t*>(&rounded);
  lower = *reinterpret_cast<const uint32_t*>(&rest);
}

// An operand of `multiply` with 16 rows and 16 columns.
struct SplitRows {
  uint32_t upper[4];
  uint32_t lower[4];

  // From sums of two products: the left and the right eight columns. A lane holds the elements that it needs.
  __device__ __forceinline__ SplitRows(const float (&left)[4], const float (&right)[4]) {
    split(left[0], left[1], upper[0], lower[0]);
    split(left[2], left[3], upper[1], lower[1]);
    split(right[0], right[1], upper[2], lower[2]);
    split(right[2], right[3], upper[3], lower[3]);
  }
  __device__ __forceinline__ SplitRows() {}
};

// Two operands of `multiply` with 16 rows and eight columns each.
struct SplitColumns {
  uint32_t upper[4];
  uint32_t lower[4];
};

// left += a b and right += a b', for the two operands of `b`.
__device__ __forceinline__ void multiply_split(float (&left)[4], float (&right)[4], const SplitRows& a, const SplitColumns& b) {
  const auto both = [&](const uint32_t (&of_a)[4], const uint32_t (&of_b)[4]) {
    multiply(left, of_a, {of_b[0], of_b[1]}, __nv_bfloat16{});
    multiply(right, of_a, {of_b[2], of_b[3]}, __nv_bfloat16{});
  };
  both(a.upper, b.upper);
  both(a.upper, b.lower);
  both(a.lower, b.upper);
}

// Index of an element in an image: a matrix of rows of `kColumns` elements, whose groups of eight elements are exchanged.
// The groups of one column in eight rows lie in different banks of shared memory.
template <int32_t kColumns>
__device__ __forceinline__ int32_t image_index(int32_t row, int32_t column) {
  return row * kColumns + ((column / 8) ^ (row % 8)) * 8 + column % 8;
}

// Loads from the images of the upper and of the lower parts of a matrix. Each function has one address for each lane, at a
// place in 16 by 16 elements.
template <int32_t kColumns>
struct SplitImage {
  uint32_t upper;  // addresses in shared memory
  uint32_t lower;

  // Rows of a matrix as `a` of `multiply`.
  __device__ __forceinline__ SplitRows rows(int32_t row, int32_t column, int32_t lane) const {
    const int32_t at = 2 * image_index<kColumns>(row + lane % 16, column + lane / 16 * 8);
    SplitRows loaded;
    load_matrices(loaded.upper, upper + at);
    load_matrices(loaded.lower, lower + at);
    return loaded;
  }
  // 16 rows of a matrix as the columns of two operands `b`: they are multiplied by the matrix, transposed.
  __device__ __forceinline__ SplitColumns transposed(int32_t row, int32_t column, int32_t lane) const {
    const int32_t at = 2 * image_index<kColumns>(row + lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8);
    SplitColumns loaded;
    load_matrices(loaded.upper, upper + at);
    load_matrices(loaded.lower, lower + at);
    return loaded;
  }
  // 16 rows and 16 columns of a matrix as two operands `b`.
  __device__ __forceinline__ SplitColumns columns(int32_t row, int32_t column, int32_t lane) const {
    const int32_t at = 2 * image_index<kColumns>(row + lane % 16, column + lane / 16 * 8);
    SplitColumns loaded;
    load_transposed(loaded.upper, upper + at);
    load_transposed(loaded.lower, lower + at);
    return loaded;
  }
};

}  // namespace candlepower
