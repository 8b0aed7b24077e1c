// Requests for the L2 cache, for weights that a later kernel reads.
//
// The small kernels between products leave memory idle. Additional blocks of theirs request the first weights of a later
// product meanwhile. They read nothing that a kernel writes, so they wait for no other kernel.
#pragma once

#include "common.cuh"

namespace candlepower {

struct Prefetch {
  const void* from;  // weights; null: nothing is requested
  int64_t bytes;
};
static_assert(sizeof(Prefetch) == 16, "as in src/cuda/prefetch.rs");

// Additional blocks of a kernel. With 128 threads each, every thread requests four lines of 8 MiB.
constexpr uint32_t kPrefetchBlocks = 128;
constexpr int64_t kCacheLine = 128;

// Number of additional blocks.
inline uint32_t prefetch_blocks(const Prefetch& next) { return next.from == nullptr ? 0 : kPrefetchBlocks; }

// Requests the share of block `block` of the additional blocks.
__device__ __forceinline__ void prefetch_share(const Prefetch& next, uint32_t block) {
  const auto* from = static_cast<const char*>(next.from);
  const int64_t step = static_cast<int64_t>(kPrefetchBlocks) * blockDim.x * kCacheLine;
  for (int64_t at = (static_cast<int64_t>(block) * blockDim.x + threadIdx.x) * kCacheLine; at < next.bytes; at += step) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
  }
}

}  // namespace candlepower
