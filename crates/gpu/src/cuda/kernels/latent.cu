// The part of MLA before attention: RoPE for queries, and norm, RoPE and cache write for a token's latent.

#include "heads.cuh"

#include <cuda_fp8.h>

namespace candlepower {

struct LatentArgs {
  const void* q;              // [tokens, heads, q_dim]
  const void* latents;        // [tokens, rank + rot_dim]
  const void* norm;           // [rank]
  const float* cos;           // [max_len, rot_dim / 2]
  const float* sin;           // [max_len, rot_dim / 2]
  const uint32_t* positions;  // [tokens]
  const uint32_t* slots;      // [tokens], kNoSlot: not written
  const float* query_scales;  // [max_len]: factors on whole queries; null: none
  void* q_out;                // [tokens, heads, head_dim]; from `latent` on, a head is written; before, it is only scaled
  void* keys;                 // [num_blocks, 1, block_size, head_dim]
  int64_t tokens;
  int32_t heads;
  int32_t q_dim;
  int32_t rank;
  int32_t rot_dim;
  int32_t latent;
  int32_t head_dim;
  int32_t max_len;
  int32_t block_size;
  uint32_t num_slots;
  int32_t rope_style;
  int32_t dtype;
  float eps;
  float weight_offset;  // 1 where the model multiplies by 1 + weight, else 0
  int32_t fp8_cache;    // 1: keys are e4m3; 0: they have the rows' own type
  float key_scale;      // divisor of keys before they are stored
  int32_t padding;
};
static_assert(sizeof(LatentArgs) == 152, "as in src/cuda/latent.rs");

constexpr int32_t kWarpsPerBlock = 4;
constexpr int32_t kMaxRow = 1024;

// Normalizes the first `rank` elements of `values` in f32, and sets those from there up to `latent` to zero.
template <typename T>
__device__ void normalize_latent(float* values, const LatentArgs& args) {
  const int32_t lane = threadIdx.x % kWarp;
  float squares = 0.0f;
  for (int32_t i = lane; i < args.rank; i += kWarp) squares += values[i] * values[i];
  const float scale = rsqrtf(warp_sum(squares) / args.rank + args.eps);
  const T* weight = static_cast<const T*>(args.norm);
  for (int32_t i = lane; i < args.latent; i += kWarp) {
    values[i] = i < args.rank ? values[i] * scale * (static_cast<float>(weight[i]) + args.weight_offset) : 0.0f;
  }
  __syncwarp();
}

// One warp per head of q, and one per latent. T is the type of the rows, C that of the cache; conversion to e4m3
// saturates.
template <typename T, typename C>
__global__ void latents_kernel(LatentArgs args) {
  __shared__ float of_warps[kWarpsPerBlock][kMaxRow];
  const int32_t lane = threadIdx.x % kWarp;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
  if (item >= args.tokens * (args.heads + 1)) return;  // The whole warp returns; no block-wide barrier follows.
  const int64_t token = item / (args.heads + 1);
  const auto head = static_cast<int32_t>(item % (args.heads + 1));
  const bool is_query = head < args.heads;
  const uint32_t slot = args.slots[token];
  if (!is_query && slot >= args.num_slots) return;  // kNoSlot is such a slot.

  float* values = of_warps[threadIdx.x / kWarp];
  float* rotated = values + args.latent;
  const T* row = is_query ? static_cast<const T*>(args.q) + (token * args.heads + head + 1) * args.q_dim
                          : static_cast<const T*>(args.latents) + (token + 1) * (args.rank + args.rot_dim);
  const T* last = row - args.rot_dim;
  for (int32_t i = lane; i < args.head_dim - args.latent; i += kWarp) {
    rotated[i] = i < args.rot_dim ? static_cast<float>(last[i]) : 0.0f;
  }
  if (!is_query) {
    for (int32_t i = lane; i < args.rank; i += kWarp) values[i] = static_cast<float>(last[i - args.rank]);
  }
  __syncwarp();
  const RotaryTable table{args.cos, args.sin, args.rot_dim, args.max_len, static_cast<RopeStyle>(args.rope_style)};
  rotate(rotated, args.positions[token], table);
  if (is_query) {
    T* out = static_cast<T*>(args.q_out) + (token * args.heads + head) * args.head_dim;
    const uint32_t position = args.positions[token];
    if (args.query_scales != nullptr && position < static_cast<uint32_t>(args.max_len)) {
      const float scale = args.query_scales[position];
      for (int32_t i = lane; i < args.latent; i += kWarp) out[i] = T(static_cast<float>(out[i]) * scale);
      for (int32_t i = lane; i < args.head_dim - args.latent; i += kWarp) rotated[i] *= scale;
      __syncwarp();
    }
    store_head(out + args.latent, rotated, args.head_dim - args.latent, 1.0f);
  } else {
    normalize_latent<T>(values, args);
    const uint64_t first = cache_offset(slot, 0, 1, args.block_size, args.head_dim);
    store_head(static_cast<C*>(args.keys) + first, values, args.head_dim, args.key_scale);
  }
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_latents_to_cache(const LatentArgs* args, cudaStream_t stream) {
  if (args->head_dim > kMaxRow) return cudaErrorInvalidValue;
  const int64_t warps = args->tokens * (args->heads + 1);
  const auto blocks = static_cast<uint32_t>((warps + kWarpsPerBlock - 1) / kWarpsPerBlock);
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int32_t kThreads = kWarpsPerBlock * kWarp;
    if (args->fp8_cache != 0) {
      latents_kernel<T, __nv_fp8_e4m3><<<blocks, kThreads, 0, stream>>>(*args);
    } else {
      latents_kernel<T, T><<<blocks, kThreads, 0, stream>>>(*args);
    }
  });
}
