// Arguments and score function of decode and prefill attention, and helpers for calling FlashInfer.
//
// FlashInfer's planners run on the host and divide a step's work among the blocks of a launch. Its kernels read that
// schedule from device memory, so a CUDA graph can be replayed with another schedule.
//
// Each attention_*.cu is compiled once per head dimension, which the build passes as CANDLEPOWER_HEAD_DIM, except
// attention_latent.cu, which has one dimension. All code is in a namespace of that dimension, because the linker would
// otherwise merge functions of one name.
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

// Appends the head dimension to a name.
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
  void* schedule;      // device: the schedule
  void* host;          // pinned host memory: the schedule before it is copied to the device
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
  int32_t window_left;  // number of positions before its own that a query attends to; -1: all
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
  const void* values;           // the same shape as keys; for latents the same memory as keys
  void* out;                    // [tokens, heads, head_dim], or for latents [tokens, heads, latent]
  float* lse;                   // [tokens, heads], written: base-2 logarithms of the softmax denominators; null: not needed
  const int32_t* query_start;   // device [seqs + 1]
  const int32_t* page_start;    // device [seqs + 1]
  const int32_t* page_indices;  // device [page_start[seqs]]
  const int32_t* last_page_len; // device [seqs]
  const int64_t* plan;          // host, from the planner
  char* message;                // host [kMessageBytes], written on an error
  float scale;        // factor on the products of queries with keys as stored
  float softcap;      // 0: none
  float value_scale;  // factor on the values as stored
  int32_t padding;
};
static_assert(sizeof(RunArgs) == 184, "as in src/cuda/attention/ffi.rs");

// Score function with window and soft cap as run-time parameters, so that one instance serves all models.
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

// FlashInfer's parameters with a factor on the outputs: its variants look for a member of this name.
template <typename Params>
struct Scaled : Params {
  using Params::Params;
  float v_scale = 1.0f;
};

// Calls `run` with a value of q's element type and one of the cache's.
template <typename Run>
int32_t with_types(const AttentionShape& shape, Run run) {
#ifdef CANDLEPOWER_LINK_ONLY
  // For programs that are only linked, never run (scripts/cuda/fast_nvcc.py). Instances for the smallest heads and for
  // latents suffice to show that everything compiles.
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

// Return value for a FlashInfer exception, which has a message instead of a CUDA error number.
constexpr int32_t kRefused = -1;

// Runs `call`, which returns a CUDA error, and converts FlashInfer's exceptions into a message.
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
