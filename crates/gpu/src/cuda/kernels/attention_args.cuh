// Arguments of attention's planners and kernels, and helpers for calling FlashInfer.
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

#include <flashinfer/attention/scheduler.cuh>

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
  int32_t whole_contexts;  // 1: attention_prefill.cu divides no context among thread blocks
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
