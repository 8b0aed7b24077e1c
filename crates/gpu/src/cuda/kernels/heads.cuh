// Operations on one head that lies in shared memory and belongs to a single warp.
#pragma once

#include "common.cuh"

namespace candlepower {

struct RotaryTable {
  const float* cos;  // [max_len, rot_dim / 2]
  const float* sin;  // [max_len, rot_dim / 2]
  int32_t rot_dim;
  int32_t max_len;
  RopeStyle style;
};

// Applies RoPE to the first `rot_dim` elements of `values`.
__device__ inline void rotate(float* values, uint32_t position, const RotaryTable& table) {
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t half = table.rot_dim / 2;
  const bool in_table = position < static_cast<uint32_t>(table.max_len);
  const int64_t row = in_table ? static_cast<int64_t>(position) * half : 0;
  for (int32_t i = lane; i < half; i += kWarp) {
    const RopePair pair = rope_pair(i, half, table.style);
    const float a = values[pair.first];
    const float b = values[pair.second];
    // A position beyond the table gives NaN, because a kernel cannot return an error. The sampling kernel reports NaN
    // logits.
    const float cos = in_table ? table.cos[row + i] : NAN;
    const float sin = in_table ? table.sin[row + i] : NAN;
    values[pair.first] = a * cos - b * sin;
    values[pair.second] = b * cos + a * sin;
  }
  __syncwarp();
}

// Stores the first `count` elements of `values`, divided by `scale`. `count` must be even.
template <typename To>
__device__ void store_head(To* out, const float* values, int32_t count, float scale) {
  const int32_t lane = threadIdx.x % kWarp;
  for (int32_t i = lane * 2; i < count; i += kWarp * 2) {
    store<2>(out + i, Vector<To, 2>{{To(values[i] / scale), To(values[i + 1] / scale)}});
  }
}

}  // namespace candlepower
