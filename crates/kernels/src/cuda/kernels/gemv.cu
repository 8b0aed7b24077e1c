// A matrix times few rows: bound by reading the matrix once, which cuBLAS does badly for some shapes.

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
// Enough warps in flight to fill the largest GPUs: 132 multiprocessors with 32 warps each.
constexpr int32_t kWantedWarps = 132 * 32;
// Vectors of the matrix that a thread has asked for before it needs the first of them.
constexpr int32_t kAhead = 4;

// A block computes 8 / `kSplit` outputs of every row; `kSplit` warps share one output, each with a run of k.
// Products are summed in f32, in an order that depends on the shape alone.
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
    const T* weight = static_cast<const T*>(args.weight) + static_cast<int64_t>(output) * args.k;
    constexpr int32_t kStep = kWarp * N;
    Vector<T, N> coming[kAhead];
    const int32_t begin = run.begin + lane * N;
#pragma unroll
    for (int32_t ahead = 0; ahead < kAhead; ++ahead) {
      const int32_t i = begin + ahead * kStep;
      if (i < run.end) coming[ahead] = load_once(weight + i);
    }
    for (int32_t first = begin; first < run.end; first += kAhead * kStep) {
#pragma unroll
      for (int32_t ahead = 0; ahead < kAhead; ++ahead) {
        const int32_t i = first + ahead * kStep;
        if (i >= run.end) break;
        const Vector<T, N> weights = coming[ahead];
        const int32_t next = i + kAhead * kStep;
        if (next < run.end) coming[ahead] = load_once(weight + next);
#pragma unroll
        for (int32_t row = 0; row < kRows; ++row) {
          const Vector<T, N> values = load<N>(x + static_cast<int64_t>(row) * args.k + i);
#pragma unroll
          for (int32_t j = 0; j < N; ++j) {
            sums[row] += static_cast<float>(weights.at[j]) * static_cast<float>(values.at[j]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int32_t row = 0; row < kRows; ++row) {
    const float sum = warp_sum(sums[row]);
    if (lane == 0) partial[warp][row] = sum;
  }
  __syncthreads();
  // The first warp of each output adds up what its fellows found.
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
    case 1: gemv_kernel<T, kRows, 1><<<grid, kThreads, 0, stream>>>(args); break;
    case 2: gemv_kernel<T, kRows, 2><<<grid, kThreads, 0, stream>>>(args); break;
    case 4: gemv_kernel<T, kRows, 4><<<grid, kThreads, 0, stream>>>(args); break;
    default: gemv_kernel<T, kRows, 8><<<grid, kThreads, 0, stream>>>(args); break;
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
