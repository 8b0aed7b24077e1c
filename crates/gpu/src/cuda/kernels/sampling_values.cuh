// Passes over a row of values or over a list of candidates by the threads of one block, and the largest value.
//
// The speed of a pass is limited by the number of bytes in flight, so it loads several vectors per thread before it uses
// the first.
#pragma once

#include "common.cuh"
#include "sampling_math.cuh"

namespace candlepower {

// Calls `visit` with each id of `range` and its value. The ids are divided among `workers` threads, and this thread is
// `worker`.
//
// Values are loaded 16 bytes at a time where they are aligned, and several vectors before the first is visited. That is 32
// to 64 bytes per thread in flight.
template <typename V, typename Visit>
__device__ __forceinline__ void each_value(const V* values, Range range, int32_t worker, int32_t workers, Visit visit) {
  constexpr int32_t N = kVectorWidth<V>;
  constexpr int32_t kAhead = 16 / N;
  const auto misaligned = static_cast<int32_t>(reinterpret_cast<uintptr_t>(values + range.begin) / sizeof(V) % N);
  const int32_t before = min(range.end - range.begin, (N - misaligned) % N);
  const int32_t first = range.begin + before;
  const int32_t vectors = (range.end - first) / N;
  const int32_t last = first + vectors * N;
  for (int32_t i = worker; i < before + range.end - last; i += workers) {
    const int32_t id = i < before ? range.begin + i : last + i - before;
    visit(id, static_cast<float>(values[id]));
  }
  for (int32_t i = worker; i < vectors; i += kAhead * workers) {
    Vector<V, N> some[kAhead];
#pragma unroll
    for (int32_t ahead = 0; ahead < kAhead; ++ahead) {
      const int32_t at = i + ahead * workers;
      if (at < vectors) some[ahead] = load<N>(values + first + at * N);
    }
#pragma unroll
    for (int32_t ahead = 0; ahead < kAhead; ++ahead) {
      const int32_t at = i + ahead * workers;
      if (at >= vectors) break;
#pragma unroll
      for (int32_t j = 0; j < N; ++j) visit(first + at * N + j, static_cast<float>(some[ahead].at[j]));
    }
  }
}

// The largest of the values that the threads of a block have found.
__device__ Best best_together(Best best) {
  const auto of_warp = [](uint64_t rank) {
    return warp_reduce(rank, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  };
  return {block_reduce(best.rank, uint64_t(0), of_warp)};
}

// The largest value of `range`, with all threads of the block.
template <typename V>
__device__ Best best_value(const V* values, Range range) {
  Best best{};
  each_value(values, range, threadIdx.x, static_cast<int32_t>(blockDim.x),
             [&](int32_t id, float value) { best.take(id, value); });
  return best_together(best);
}

// A row of values, and the maximum that keys are relative to.
template <typename V>
struct Row {
  const V* values;
  int32_t count;
  float max;

  // Calls `visit` with each id of `range` and its key. This thread is `worker` of `workers` threads, which share the
  // ids.
  template <typename Visit>
  __device__ __forceinline__ void each_key(Range range, int32_t worker, int32_t workers, Visit visit) const {
    each_value(values, range, worker, workers,
               [&](int32_t id, float value) { visit(id, distance_key(value, max)); });
  }

  __device__ __forceinline__ uint32_t key_at(int32_t id) const {
    return distance_key(static_cast<float>(values[id]), max);
  }

  __device__ __forceinline__ uint32_t id_at(int32_t id) const { return id; }
};

// A token that top_k may keep.
struct alignas(8) Candidate {
  uint32_t key;
  uint32_t id;
};

// The candidates of a row, by ascending id. It has the functions of `Row`, with places in the list instead of ids.
struct Candidates {
  const uint32_t* keys;
  const Candidate* list;
  int32_t count;

  template <typename Visit>
  __device__ __forceinline__ void each_key(Range range, int32_t worker, int32_t workers, Visit visit) const {
    for (int32_t i = range.begin + worker; i < range.end; i += workers) visit(i, keys[i]);
  }

  __device__ __forceinline__ uint32_t key_at(int32_t i) const { return keys[i]; }
  __device__ __forceinline__ uint32_t id_at(int32_t i) const { return list[i].id; }
};

// Part of a range that one of `warps` warps handles. Its boundaries are multiples of a warp's width.
__device__ __forceinline__ Range part_of_warp(Range range, int32_t warp, int32_t warps) {
  const Range part = split_range(range.end - range.begin, kWarp, warp, warps);
  return {range.begin + part.begin, range.begin + part.end};
}

// Adds to a 64-bit sum as two 32-bit halves with a carry. Shared memory has no 64-bit atomic addition: nvcc emits a
// compare-and-swap loop (ATOMS.CAST.SPIN.64), in which all threads would contend for the few bins near the largest
// logit.
__device__ __forceinline__ void add_shared(uint64_t* sum, uint64_t amount) {
  auto* halves = reinterpret_cast<uint32_t*>(sum);
  const auto low = static_cast<uint32_t>(amount);
  const uint32_t before = atomicAdd(&halves[0], low);
  const uint32_t high = static_cast<uint32_t>(amount >> 32) + (before + low < before ? 1 : 0);
  if (high != 0) atomicAdd(&halves[1], high);
}

// Adds one to a number below 2^32.
__device__ __forceinline__ void add_count(uint64_t* count) { atomicAdd(reinterpret_cast<uint32_t*>(count), 1u); }

}  // namespace candlepower
