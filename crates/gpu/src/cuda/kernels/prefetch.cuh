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

// Most additional blocks of a kernel. With 128 threads each, every thread requests four lines of 8 MiB.
constexpr int64_t kMaxPrefetchBlocks = 128;
constexpr int64_t kCacheLine = 128;

// Number of additional blocks of `threads` threads: a thread for each line, as far as blocks suffice.
inline uint32_t prefetch_blocks(const Prefetch& next, int32_t threads) {
  if (next.from == nullptr) return 0;
  const int64_t of_block = threads * kCacheLine;
  const int64_t blocks = (next.bytes + of_block - 1) / of_block;
  return static_cast<uint32_t>(blocks < kMaxPrefetchBlocks ? blocks : kMaxPrefetchBlocks);
}

// Requests the share of a block. The additional blocks are those from block `first` of the grid on.
__device__ __forceinline__ void prefetch_share(const Prefetch& next, uint32_t first) {
  const auto* from = static_cast<const char*>(next.from);
  const int64_t step = static_cast<int64_t>(gridDim.x - first) * blockDim.x * kCacheLine;
  const int64_t begin = (static_cast<int64_t>(blockIdx.x - first) * blockDim.x + threadIdx.x) * kCacheLine;
  for (int64_t at = begin; at < next.bytes; at += step) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
}

}  // namespace candlepower
