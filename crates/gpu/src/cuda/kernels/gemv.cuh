// The parts of kernels that multiply a matrix by a few rows: the tile of a block, its products, and the store of its
// outputs.
#pragma once

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
  int32_t activation;  // that of the gates; kNoGates: there are none
  int32_t blocks;      // 0: one for each tile; kResidentBlocks; or a number of blocks
};
static_assert(sizeof(GemvArgs) == 56, "as in src/cuda/gemv.rs");

constexpr int32_t kNoGates = -1;
// The number of blocks is what the GPU holds at once.
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

// Calls `launch` with the number of warps that share a sum, for a matrix of `sums` rows. It decides the order of the sums,
// so all kernels for few rows use it.
template <typename Launch>
void with_split(int32_t sums, Launch launch) {
  switch (warps_per_output(sums, kWantedWarps, kWarpsPerBlock)) {
    case 1: return launch(std::integral_constant<int32_t, 1>{});
    case 2: return launch(std::integral_constant<int32_t, 2>{});
    case 4: return launch(std::integral_constant<int32_t, 4>{});
    default: return launch(std::integral_constant<int32_t, 8>{});
  }
}

}  // namespace candlepower
