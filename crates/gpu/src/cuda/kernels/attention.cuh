// What decode and prefill attention share: their arguments, the score function, and the shape of FlashInfer's
// calls. FlashInfer's planners run on the host and divide a step's work among the device's blocks; its
// kernels then read that division from device memory, so that a CUDA graph can be replayed with another one.
//
// Each attention_*.cu is compiled once per head dimension, which the build gives as CANDLEPOWER_HEAD_DIM, but
// attention_latent.cu, which has one. All of it lies in a namespace of that dimension: functions of one name would be merged by the linker.
#pragma once

#include <cstdio>
#include <exception>

#include "common.cuh"

#include <cuda_fp8.h>

#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>
#include <flashinfer/pos_enc.cuh>

// A name with the head dimension at its end.
#define CANDLEPOWER_JOIN(name, dim) name##dim
#define CANDLEPOWER_NAME_OF(name, dim) CANDLEPOWER_JOIN(name, dim)
#define CANDLEPOWER_PER_HEAD_DIM(name) CANDLEPOWER_NAME_OF(name, CANDLEPOWER_HEAD_DIM)

namespace candlepower {
inline namespace CANDLEPOWER_PER_HEAD_DIM(head_dim_) {

constexpr uint32_t kHeadDim = CANDLEPOWER_HEAD_DIM;
constexpr int32_t kPlanWords = 18;
constexpr int32_t kMessageBytes = 256;

// Memory that planner and kernels share.
struct AttentionBuffers {
  void* partials;      // device: partial outputs of split sequences
  void* schedule;      // device: who computes what
  void* host;          // pinned: the schedule before it is copied
  int64_t partials_bytes;
  int64_t schedule_bytes;
};

struct AttentionShape {
  int32_t seqs;
  int32_t tokens;
  int32_t heads;
  int32_t kv_heads;
  int32_t block_size;
  int32_t dtype;
  int32_t window_left;  // positions before a query's own that it sees; -1: all
  int32_t fixed_launch;  // 1: launch parameters depend on `seqs` and `tokens` alone, for CUDA graphs
  int32_t fp8_cache;     // 1: keys and values are e4m3
  int32_t padding;
};

struct PlanArgs {
  AttentionBuffers buffers;
  AttentionShape shape;
  int32_t* query_start;  // host [seqs + 1]
  int32_t* page_start;   // host [seqs + 1]
  const int32_t* context_len;  // host [seqs]
  int64_t* plan;         // host [kPlanWords], written
  char* message;         // host [kMessageBytes], written on an error
};
static_assert(sizeof(PlanArgs) == 120, "as in src/cuda/attention/ffi.rs");

struct RunArgs {
  AttentionBuffers buffers;
  AttentionShape shape;
  const void* q;                // [tokens, heads, head_dim]
  const void* keys;             // [num_blocks, kv_heads, block_size, head_dim]
  const void* values;           // as keys; where latents are kept the same memory
  void* out;                    // [tokens, heads, head_dim], or where latents are kept [tokens, heads, latent]
  float* log_sums;              // [tokens, heads], written: the logarithm to base 2 of what the softmax divides by; null for none
  const int32_t* query_start;   // device [seqs + 1]
  const int32_t* page_start;    // device [seqs + 1]
  const int32_t* page_indices;  // device [page_start[seqs]]
  const int32_t* last_page_len; // device [seqs]
  const int64_t* plan;          // host, from the planner
  char* message;                // host [kMessageBytes], written on an error
  float scale;        // of the products with the keys as they are in the cache
  float softcap;      // 0: none
  float value_scale;  // what the values in the cache are multiplied by
  int32_t padding;
};
static_assert(sizeof(RunArgs) == 184, "as in src/cuda/attention/ffi.rs");

// Scores with window and soft cap chosen at run time: one instance serves all models.
struct PagedScores : flashinfer::AttentionVariantBase {
  static constexpr bool use_softmax = true;

  uint32_t qo_len;
  uint32_t kv_len;
  uint32_t window_left;
  float sm_scale_log2;
  float before_tanh;

  template <typename Params>
  __device__ __host__ PagedScores(const Params& params, uint32_t seq, uint8_t* /*shared*/) {
    qo_len = params.get_qo_len(seq);
    kv_len = params.get_kv_len(seq);
    window_left = params.window_left >= 0 ? params.window_left : kv_len;
    const bool capped = params.logits_soft_cap > 0.0f;
    before_tanh = capped ? params.sm_scale / params.logits_soft_cap : 0.0f;
    sm_scale_log2 =
        flashinfer::math::log2e * (capped ? params.logits_soft_cap : params.sm_scale);
  }

  REGISTER_LOGITS_TRANSFORM(params, logits, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    return before_tanh > 0.0f ? T(flashinfer::math::tanh(float(logits) * before_tanh)) : logits;
  })

  REGISTER_LOGITS_MASK(params, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    return kv_idx + qo_len + window_left >= kv_len + qo_idx;
  })
};

// FlashInfer's parameters with a factor of the outputs: its variants look for a member of this name.
template <typename Params>
struct Scaled : Params {
  using Params::Params;
  float v_scale = 1.0f;
};

// Calls `run` with a value of the element type of q and one of the cache's.
template <typename Run>
int32_t with_types(const AttentionShape& shape, Run run) {
#ifdef CANDLEPOWER_LINK_ONLY
  // A program that is linked and never computes (scripts/cuda/fast_nvcc.py): one instance, for the smallest heads and for
  // latents, shows that all of this compiles.
  if constexpr (kHeadDim == 64 || kHeadDim == 576) run(__nv_bfloat16{}, __nv_bfloat16{});
  return cudaErrorNotSupported;
#else
  return with_half_type(shape.dtype, [&](auto zero) {
    if (shape.fp8_cache != 0) {
      run(zero, __nv_fp8_e4m3{});
    } else {
      run(zero, zero);
    }
  });
#endif
}

template <typename C>
flashinfer::paged_kv_t<C, int32_t> paged_cache(const RunArgs& args) {
  const auto pointer = [](const int32_t* p) { return const_cast<int32_t*>(p); };
  return {static_cast<uint32_t>(args.shape.kv_heads),
          static_cast<uint32_t>(args.shape.block_size),
          kHeadDim,
          static_cast<uint32_t>(args.shape.seqs),
          flashinfer::QKVLayout::kHND,
          static_cast<C*>(const_cast<void*>(args.keys)),
          static_cast<C*>(const_cast<void*>(args.values)),
          pointer(args.page_indices),
          pointer(args.page_start),
          pointer(args.last_page_len)};
}

template <typename P>
P* at(void* base, int64_t offset) {
  return flashinfer::GetPtrFromBaseOffset<P>(base, offset);
}

// What the caller reads where there is no CUDA error number but a message of FlashInfer's.
constexpr int32_t kRefused = -1;

// Runs `call`, which answers a CUDA error, and turns FlashInfer's exceptions into a message.
template <typename Call>
int32_t guarded(char* message, Call call) {
  try {
    return call();
  } catch (const std::exception& error) {
    std::snprintf(message, kMessageBytes, "%s", error.what());
    return kRefused;
  }
}

}  // inline namespace
}  // namespace candlepower
