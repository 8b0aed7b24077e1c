// A matrix times a few rows. The time is that of reading the matrix once, and for some shapes cuBLAS takes clearly
// longer than that.

#include "gemv.cuh"

namespace candlepower {

// A block computes one tile of every row. The sums are in f32, in an order that depends on the shape alone.
template <typename T, int32_t kRows, int32_t kSplit, bool kGated>
__global__ void __launch_bounds__((GemvTile<kSplit, kGated>::kThreads)) gemv_kernel(GemvArgs args) {
  using Tile = GemvTile<kSplit, kGated>;
  constexpr int32_t N = kVectorWidth<T>;
  __shared__ float partial[Tile::kWarps][kRows];
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t first_output = blockIdx.x * Tile::kOutputs;
  const int32_t output = first_output + Tile::output_of(warp / kSplit);
  const Range run = split_range(args.k, kWarp * N, warp % kSplit, kSplit);
  const T* x = static_cast<const T*>(args.x);

  float sums[kRows] = {};
  if (output < args.n) {
    constexpr int32_t kStep = kWarp * N;
    const int32_t begin = run.begin + lane * N;
    const int32_t steps = begin < run.end ? (run.end - begin + kStep - 1) / kStep : 0;
    const int32_t row = Tile::row_of(output, warp / kSplit, args.n);
    const T* weight = static_cast<const T*>(args.weight) + static_cast<int64_t>(row) * args.k + begin;
    const auto load_words = [&](int32_t step) {
      return __ldcs(reinterpret_cast<const uint4*>(weight + step * kStep));
    };
    const auto multiply_step = [&](const uint4& words, int32_t step) {
      multiply<T, kRows>(sums, words, x + begin + step * kStep, args.k);
    };
    // Each vector stays in `Words` form, and its successor is loaded as soon as it is used, with no branch in between.
    // Otherwise nvcc splits or copies a vector right after its load, and the warp waits there. An earlier loop had one
    // load in flight instead of four for that reason, as its machine code showed.
    uint4 coming[kAhead];
#pragma unroll
    for (int32_t ahead = 0; ahead < kAhead; ++ahead) {
      if (ahead < steps) coming[ahead] = load_words(ahead);
    }
    // The weights are constant, so they are loaded before the wait; x is written by the preceding kernel.
    wait_for_inputs();
    int32_t step = 0;
#pragma unroll 1
    for (; step + 2 * kAhead <= steps; step += kAhead) {
#pragma unroll
      for (int32_t ahead = 0; ahead < kAhead; ++ahead) {
        multiply_step(coming[ahead], step + ahead);
        coming[ahead] = load_words(step + kAhead + ahead);
      }
    }
    // The vectors already loaded, and then at most as many again.
#pragma unroll
    for (int32_t part = 0; part < 2; ++part, step += kAhead) {
#pragma unroll
      for (int32_t ahead = 0; ahead < kAhead; ++ahead) {
        if (part == 1 && step + ahead < steps) coming[ahead] = load_words(step + ahead);
      }
#pragma unroll
      for (int32_t ahead = 0; ahead < kAhead; ++ahead) {
        if (step + ahead < steps) multiply_step(coming[ahead], step + ahead);
      }
    }
  }
  let_next_start();
#pragma unroll
  for (int32_t row = 0; row < kRows; ++row) {
    const float sum = warp_sum(sums[row]);
    if (lane == 0) partial[warp][row] = sum;
  }
  __syncthreads();
  store_tile<T, kRows, kSplit, kGated>(args, partial, first_output);
}

// Inputs in a multiple of which `gemv_wave_kernel` takes rows: whole groups of `kAhead` vectors for each thread.
template <typename T, int32_t kSplit>
constexpr int32_t kWaveInputs = kSplit * kWarp * kVectorWidth<T> * kAhead;

// The same for blocks that compute one tile after the other, so that all blocks run at once. A block loads the first
// vectors of its next tile before it adds the sums of the last one. The sums have the bits of `gemv_kernel`, whatever
// the number of blocks.
template <typename T, int32_t kRows, int32_t kSplit, bool kGated>
__global__ void __launch_bounds__((GemvTile<kSplit, kGated>::kThreads), 1024 / (GemvTile<kSplit, kGated>::kThreads))
    gemv_wave_kernel(GemvArgs args) {
  using Tile = GemvTile<kSplit, kGated>;
  constexpr int32_t kStep = kWarp * kVectorWidth<T>;
  // Two tiles' sums, so that one barrier for each tile suffices.
  __shared__ float partial[2][Tile::kWarps][kRows];
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t steps = args.k / (kSplit * kStep);
  const int32_t begin = warp % kSplit * steps * kStep + lane * kVectorWidth<T>;
  const auto tiles = static_cast<int32_t>(tiles_of(args.n, Tile::kOutputs));
  // Warps without an output, in the last tile, compute the last output again: all warps meet at the barriers.
  const auto weights_of = [&](int32_t tile) {
    const int32_t output = tile * Tile::kOutputs + Tile::output_of(warp / kSplit);
    const int32_t row = Tile::row_of(output < args.n ? output : args.n - 1, warp / kSplit, args.n);
    return static_cast<const T*>(args.weight) + static_cast<int64_t>(row) * args.k + begin;
  };
  const auto load_words = [](const T* from) { return __ldcs(reinterpret_cast<const uint4*>(from)); };
  const T* x = static_cast<const T*>(args.x) + begin;

  const T* weight = weights_of(blockIdx.x);
  uint4 coming[kAhead];
#pragma unroll
  for (int32_t ahead = 0; ahead < kAhead; ++ahead) coming[ahead] = load_words(weight + ahead * kStep);
  wait_for_inputs();
  int32_t parity = 0;
#pragma unroll 1
  for (auto tile = static_cast<int32_t>(blockIdx.x); tile < tiles; parity ^= 1) {
    float sums[kRows] = {};
#pragma unroll 1
    for (int32_t step = 0; step + kAhead < steps; step += kAhead) {
#pragma unroll
      for (int32_t ahead = 0; ahead < kAhead; ++ahead) {
        multiply<T, kRows>(sums, coming[ahead], x + (step + ahead) * kStep, args.k);
        coming[ahead] = load_words(weight + (step + kAhead + ahead) * kStep);
      }
    }
    // The last vectors of the tile. In the block's last tile, the loads that follow them read its first vectors again,
    // since a branch between loads would make the warp wait for them.
    const int32_t first_output = tile * Tile::kOutputs;
    tile += gridDim.x;
    if (tile < tiles) weight = weights_of(tile);
    const T* last_x = x + (steps - kAhead) * kStep;
#pragma unroll
    for (int32_t ahead = 0; ahead < kAhead; ++ahead) {
      multiply<T, kRows>(sums, coming[ahead], last_x + ahead * kStep, args.k);
      coming[ahead] = load_words(weight + ahead * kStep);
    }
    if (tile >= tiles) let_next_start();
#pragma unroll
    for (int32_t row = 0; row < kRows; ++row) {
      const float sum = warp_sum(sums[row]);
      if (lane == 0) partial[parity][warp][row] = sum;
    }
    __syncthreads();
    store_tile<T, kRows, kSplit, kGated>(args, partial[parity], first_output);
  }
}

template <typename T, int32_t kRows, int32_t kSplit, bool kGated>
void launch_tiles(const GemvArgs& args, cudaStream_t stream) {
  using Tile = GemvTile<kSplit, kGated>;
  const auto tiles = static_cast<int32_t>(tiles_of(args.n, Tile::kOutputs));
  if constexpr (kRows <= kFewRows) {
    const auto kernel = gemv_wave_kernel<T, kRows, kSplit, kGated>;
    if (args.blocks != 0 && args.k % kWaveInputs<T, kSplit> == 0) {
      const int32_t most = args.blocks == kResidentBlocks ? resident_blocks(kernel, Tile::kThreads) : args.blocks;
      if (most > 0 && most < tiles) return launch_early(kernel, equal_shares(tiles, most), Tile::kThreads, stream, args);
    }
  }
  launch_early(gemv_kernel<T, kRows, kSplit, kGated>, tiles, Tile::kThreads, stream, args);
}

// Calls the instance for this number of rows, of at most `kMost` rows.
template <typename T, int32_t kMost, bool kGated, int32_t kRows = 1>
void launch_rows(const GemvArgs& args, cudaStream_t stream) {
  if (args.rows == kRows) {
    with_split(kGated ? 2 * args.n : args.n, [&](auto split) {
      launch_tiles<T, kRows, decltype(split)::value, kGated>(args, stream);
    });
  } else if constexpr (kRows < kMost) {
    launch_rows<T, kMost, kGated, kRows + 1>(args, stream);
  }
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_gemv(const GemvArgs* args, cudaStream_t stream) {
  const bool is_gated = args->activation != kNoGates;
  if (args->rows < 1 || args->rows > (is_gated ? kFewRows : kMaxRows)) return cudaErrorInvalidValue;
  if (is_gated && !is_activation(args->activation)) return cudaErrorInvalidValue;
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    if (is_gated) {
      launch_rows<T, kFewRows, true>(*args, stream);
    } else {
      launch_rows<T, kMaxRows, false>(*args, stream);
    }
  });
}
