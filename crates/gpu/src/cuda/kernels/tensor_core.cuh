// Matrix products on tensor cores.
#pragma once

#include "common.cuh"

namespace candlepower {

// Two elements in a word of an operand.
template <typename T>
__device__ __forceinline__ uint32_t pair_bits(T first, T second) {
  const Vector<T, 2> pair{{first, second}};
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Loads four matrices of 8 by 8 elements from shared memory. Lane `l` passes the address of row `l % 8` of matrix
// `l / 8`. It gets two elements of each matrix: columns 2 (l % 4) and 2 (l % 4) + 1 of row l / 4.
// Source: NVIDIA, PTX ISA, `ldmatrix`.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

// Loads four matrices as `load_matrices` does, and transposes each: a lane gets two elements of a column. They are rows
// 2 (l % 4) and 2 (l % 4) + 1 of column l / 4.
__device__ __forceinline__ void load_transposed(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.trans.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

// Computes sum += a b, where a has 16 rows and 16 columns, and b has 16 rows and 8 columns.
//
// Lane `l` holds these elements:
//
// - a: columns 2 (l % 4) and 2 (l % 4) + 1 of rows l / 4 and l / 4 + 8, then the columns 8 further in the same rows;
// - b: the rows with the indices of its columns of a, in column l / 4;
// - sum: columns 2 (l % 4) and 2 (l % 4) + 1 in its rows of a.
//
// Source: NVIDIA, PTX ISA, `mma.m16n8k16`.
__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                         __nv_bfloat16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], __half) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace candlepower
