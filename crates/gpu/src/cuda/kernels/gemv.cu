// A matrix times a few rows. The time is that of reading the matrix once, and for some shapes cuBLAS takes clearly
// longer than that.

#include "activation.cuh"

namespace candlepower {

struct GemvArgs {
  const void* x;       // [rows, k]
  const void* weight;  // [n, k]; with gates [2 n, k]: the rows of the gates, then those that they are multiplied by
  const void* bias;    // one value for each row of `weight`, may be null
  void* out;           // [rows, n]
  int32_t rows;
  int32_t n;
  int32_t k;
  int32_t dtype;
  int32_t activation;  // of the gates; kNoGates: there are none
  int32_t blocks;      // 0: one for each tile; kResidentBlocks; or a number of blocks
};
static_assert(sizeof(GemvArgs) == 56, "as in src/cuda/gemv.rs");

constexpr int32_t kNoGates = -1;
// As many blocks as the GPU holds at once.
constexpr int32_t kResidentBlocks = -1;

constexpr int32_t kWarpsPerBlock = 8;
constexpr int32_t kMaxRows = 8;
// Rows that kernels with gates or with several tiles take. More rows are multiplied by other kernels.
constexpr int32_t kFewRows = 2;
// Number of warps that fills the largest GPUs: 132 multiprocessors with 32 warps each.
constexpr int32_t kWantedWarps = 132 * 32;
// Number of vectors of the matrix that a thread loads ahead of their use. At 4.8 TB/s and 0.7 us of latency, each of
// 132 multiprocessors must have 25 KiB in flight at every moment. Four vectors a thread are at least 64 KiB for one row.
constexpr int32_t kAhead = 4;

// The tile of a block: its warps and outputs. `kSplit` warps share one sum, and each adds a range of k. With gates, an
// output has two sums.
template <int32_t kSplit, bool kGated>
struct GemvTile {
  static constexpr int32_t kSumsOfOutput = kGated ? 2 : 1;
  static constexpr int32_t kWarps =
      kSplit * kSumsOfOutput > kWarpsPerBlock ? kSplit * kSumsOfOutput : kWarpsPerBlock;
  static constexpr int32_t kThreads = kWarps * kWarp;
  static constexpr int32_t kOutputs = kWarps / (kSplit * kSumsOfOutput);

  // Output of a sum, among those of the tile. The sums of all gates come first.
  static __device__ __forceinline__ int32_t output_of(int32_t sum) { return kGated ? sum % kOutputs : sum; }
  // Row of the matrix for a sum of `output`.
  static __device__ __forceinline__ int32_t row_of(int32_t output, int32_t sum, int32_t n) {
    return kGated && sum >= kOutputs ? n + output : output;
  }
};

// Adds the partial sums of the warps that share a sum, and stores the outputs of a tile. The first warp of each output
// does so, with a lane for each row. The sums are rounded before the activation, like those of a separate kernel.
template <typename T, int32_t kRows, int32_t kSplit, bool kGated>
__device__ __forceinline__ void store_tile(const GemvArgs& args,
                                           const float (&partial)[GemvTile<kSplit, kGated>::kWarps][kRows],
                                           int32_t first_output) {
  using Tile = GemvTile<kSplit, kGated>;
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t output = first_output + warp / kSplit;
  if (warp % kSplit != 0 || lane >= kRows || warp / kSplit >= Tile::kOutputs || output >= args.n) return;
  const auto total = [&](int32_t first_warp, int32_t row_of_matrix) {
    float sum = args.bias == nullptr ? 0.0f : static_cast<float>(static_cast<const T*>(args.bias)[row_of_matrix]);
    for (int32_t part = 0; part < kSplit; ++part) sum += partial[first_warp + part][lane];
    return T(sum);
  };
  T value = total(warp, output);
  if constexpr (kGated) {
    value = gated_element(args.activation, value, total(warp + Tile::kOutputs * kSplit, args.n + output));
  }
  static_cast<T*>(args.out)[static_cast<int64_t>(lane) * args.n + output] = value;
}

// Adds the products of a vector of the matrix and of the same inputs of each row. `x` points to them in the first row.
template <typename T, int32_t kRows>
__device__ __forceinline__ void multiply(float (&sums)[kRows], const uint4& words, const T* x, int32_t k) {
  constexpr int32_t N = kVectorWidth<T>;
  const auto weights = *reinterpret_cast<const Vector<T, N>*>(&words);
#pragma unroll
  for (int32_t row = 0; row < kRows; ++row) {
    const Vector<T, N> values = load<N>(x + static_cast<int64_t>(row) * k);
#pragma unroll
    for (int32_t j = 0; j < N; ++j) {
      sums[row] += static_cast<float>(weights.at[j]) * static_cast<float>(values.at[j]);
    }
  }
}

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

// Blocks of a kernel that the GPU holds at once; 0 after an error, which the next launch reports.
template <typename Kernel>
int32_t resident_blocks(Kernel kernel, int32_t threads) {
  int device = 0;
  int multiprocessors = 0;
  int of_each = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_each, kernel, threads, 0) != cudaSuccess) {
    return 0;
  }
  return multiprocessors * of_each;
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

template <typename T, int32_t kRows, bool kGated>
void launch_split(const GemvArgs& args, cudaStream_t stream) {
  switch (warps_per_output(kGated ? 2 * args.n : args.n, kWantedWarps, kWarpsPerBlock)) {
    case 1: return launch_tiles<T, kRows, 1, kGated>(args, stream);
    case 2: return launch_tiles<T, kRows, 2, kGated>(args, stream);
    case 4: return launch_tiles<T, kRows, 4, kGated>(args, stream);
    default: return launch_tiles<T, kRows, 8, kGated>(args, stream);
  }
}

// Calls the instance for this number of rows, of at most `kMost` rows.
template <typename T, int32_t kMost, bool kGated, int32_t kRows = 1>
void launch_rows(const GemvArgs& args, cudaStream_t stream) {
  if (args.rows == kRows) {
    launch_split<T, kRows, kGated>(args, stream);
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
