// A matrix times a few rows. The time is that of reading the matrix once, and for some shapes cuBLAS takes clearly
// longer than that.

#include "common.cuh"

namespace candlepower {

struct GemvArgs {
  const void* x;       // [rows, k]
  const void* weight;  // [n, k]
  const void* bias;    // [n], may be null
  void* out;           // [rows, n]
  int32_t rows;
  int32_t n;
  int32_t k;
  int32_t dtype;
};
static_assert(sizeof(GemvArgs) == 48, "as in src/cuda/gemv.rs");

constexpr int32_t kWarpsPerBlock = 8;
constexpr int32_t kMaxRows = 8;
// Number of warps that fills the largest GPUs: 132 multiprocessors with 32 warps each.
constexpr int32_t kWantedWarps = 132 * 32;
// Number of vectors of the matrix that a thread loads ahead of their use. At 4.8 TB/s and 0.7 us of latency, each of
// 132 multiprocessors must have 25 KiB in flight at every moment. Four vectors a thread are at least 64 KiB for one row.
constexpr int32_t kAhead = 4;

// A block computes 8 / `kSplit` outputs of every row. `kSplit` warps share one output, and each sums a range of k. The
// sums are in f32, in an order that depends on the shape alone.
template <typename T, int32_t kRows, int32_t kSplit>
__global__ void __launch_bounds__(kWarpsPerBlock* kWarp) gemv_kernel(GemvArgs args) {
  constexpr int32_t N = kVectorWidth<T>;
  __shared__ float partial[kWarpsPerBlock][kRows];
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t output = blockIdx.x * (kWarpsPerBlock / kSplit) + warp / kSplit;
  const Range run = split_range(args.k, kWarp * N, warp % kSplit, kSplit);
  const T* x = static_cast<const T*>(args.x);

  float sums[kRows] = {};
  if (output < args.n) {
    constexpr int32_t kStep = kWarp * N;
    const int32_t begin = run.begin + lane * N;
    const int32_t steps = begin < run.end ? (run.end - begin + kStep - 1) / kStep : 0;
    const T* weight = static_cast<const T*>(args.weight) + static_cast<int64_t>(output) * args.k + begin;
    const auto load_words = [&](int32_t step) {
      return __ldcs(reinterpret_cast<const uint4*>(weight + step * kStep));
    };
    const auto multiply = [&](const uint4& words, int32_t step) {
      const auto weights = *reinterpret_cast<const Vector<T, N>*>(&words);
#pragma unroll
      for (int32_t row = 0; row < kRows; ++row) {
        const Vector<T, N> values = load<N>(x + static_cast<int64_t>(row) * args.k + begin + step * kStep);
#pragma unroll
        for (int32_t j = 0; j < N; ++j) {
          sums[row] += static_cast<float>(weights.at[j]) * static_cast<float>(values.at[j]);
        }
      }
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
        multiply(coming[ahead], step + ahead);
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
        if (step + ahead < steps) multiply(coming[ahead], step + ahead);
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
  // The first warp of each output adds the partial sums of the warps that share it.
  if (warp % kSplit != 0 || lane >= kRows || output >= args.n) return;
  float sum = args.bias == nullptr ? 0.0f : static_cast<float>(static_cast<const T*>(args.bias)[output]);
  for (int32_t part = 0; part < kSplit; ++part) sum += partial[warp + part][lane];
  static_cast<T*>(args.out)[static_cast<int64_t>(lane) * args.n + output] = T(sum);
}

template <typename T, int32_t kRows>
void launch_split(const GemvArgs& args, cudaStream_t stream) {
  const int32_t split = warps_per_output(args.n, kWantedWarps, kWarpsPerBlock);
  const int32_t outputs = kWarpsPerBlock / split;
  const auto grid = static_cast<uint32_t>((args.n + outputs - 1) / outputs);
  constexpr int32_t kThreads = kWarpsPerBlock * kWarp;
  switch (split) {
    case 1: launch_early(gemv_kernel<T, kRows, 1>, grid, kThreads, stream, args); break;
    case 2: launch_early(gemv_kernel<T, kRows, 2>, grid, kThreads, stream, args); break;
    case 4: launch_early(gemv_kernel<T, kRows, 4>, grid, kThreads, stream, args); break;
    default: launch_early(gemv_kernel<T, kRows, 8>, grid, kThreads, stream, args); break;
  }
}

// Calls the instance for this number of rows.
template <typename T, int32_t kRows = 1>
void launch_rows(const GemvArgs& args, cudaStream_t stream) {
  if (args.rows == kRows) {
    launch_split<T, kRows>(args, stream);
  } else if constexpr (kRows < kMaxRows) {
    launch_rows<T, kRows + 1>(args, stream);
  }
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_gemv(const GemvArgs* args, cudaStream_t stream) {
  if (args->rows < 1 || args->rows > kMaxRows) return cudaErrorInvalidValue;
  return with_half_type(args->dtype, [&](auto zero) { launch_rows<decltype(zero)>(*args, stream); });
}
