// Gated short convolutions: each token's product of b and x is convolved over its sequence and gated by c. The newest
// products of a sequence are kept as its state.

#include "sequences.cuh"

namespace candlepower {

struct ConvArgs {
  const void* input;           // [tokens, 3 * channels]: b, c and x
  const float* conv_weights;   // [kernel, channels]: conv kernel weights, those of the oldest token first
  void* kept;                  // [num_slots, kernel - 1, channels]: the newest products of earlier steps
  void* out;                   // [tokens, channels]
  const uint32_t* query_start;  // [seqs + 1]
  const uint32_t* slots;       // [seqs]
  const uint32_t* positions;   // [tokens]
  int32_t tokens;
  int32_t seqs;
  int32_t channels;  // a multiple of 8
  int32_t kernel;
  uint32_t num_slots;
  int32_t dtype;
};
static_assert(sizeof(ConvArgs) == 80, "as in src/cuda/short_conv.rs");

constexpr int32_t kConvThreads = 128;

// The products of N neighbouring channels of one token, rounded to the type in which they are kept.
template <typename T, int32_t N>
__device__ __forceinline__ Vector<T, N> products(const ConvArgs& args, int32_t token, int32_t channel) {
  const T* row = static_cast<const T*>(args.input) + static_cast<int64_t>(token) * 3 * args.channels + channel;
  Vector<T, N> b = load<N>(row);
  const Vector<T, N> x = load<N>(row + 2 * static_cast<int64_t>(args.channels));
#pragma unroll
  for (int32_t j = 0; j < N; ++j) b.at[j] = T(static_cast<float>(b.at[j]) * static_cast<float>(x.at[j]));
  return b;
}

// Index of the last sequence whose first token is not after `token`.
__device__ __forceinline__ int32_t sequence_at(const ConvArgs& args, int32_t token) {
  int32_t low = 0;
  int32_t high = args.seqs;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (args.query_start[middle] <= static_cast<uint32_t>(token) ? low : high) = middle;
  }
  return low;
}

// A thread computes N neighbouring channels of a token. The outputs of tokens that belong to no sequence are not
// written.
template <typename T>
__global__ void __launch_bounds__(kConvThreads) conv_kernel(ConvArgs args) {
  constexpr int32_t N = kVectorWidth<T>;
  const int32_t channel = (static_cast<int32_t>(blockIdx.x) * kConvThreads + threadIdx.x) * N;
  if (channel >= args.channels) return;
  for (int32_t token = blockIdx.y; token < args.tokens; token += gridDim.y) {
    const Sequence sequence = sequence_of(args, sequence_at(args, token));
    const int32_t before = token - sequence.start;
    if (before < 0 || before >= sequence.count) continue;
    T* out = static_cast<T*>(args.out) + static_cast<int64_t>(token) * args.channels + channel;
    if (sequence.slot >= args.num_slots) {
      Vector<T, N> nothing;
#pragma unroll
      for (int32_t j = 0; j < N; ++j) nothing.at[j] = T(sequence.slot == kNoSlot ? 0.0f : NAN);
      store<N>(out, nothing);
      continue;
    }
    const T* kept = static_cast<const T*>(args.kept) +
                    static_cast<int64_t>(sequence.slot) * (args.kernel - 1) * args.channels + channel;
    float sums[N] = {};
    for (int32_t index = 0; index < args.kernel; ++index) {
      const int32_t back = args.kernel - 1 - index;
      Vector<T, N> values;
      if (back <= before) {
        values = products<T, N>(args, token - back, channel);
      } else if (!sequence.begins) {
        // Kept products are in the order of their tokens, the newest last.
        values = load<N>(kept + static_cast<int64_t>(args.kernel - 1 - (back - before)) * args.channels);
      } else {
        continue;
      }
      const float* conv_weights = args.conv_weights + static_cast<int64_t>(index) * args.channels + channel;
#pragma unroll
      for (int32_t j = 0; j < N; ++j) sums[j] += conv_weights[j] * static_cast<float>(values.at[j]);
    }
    const T* gates = static_cast<const T*>(args.input) + (static_cast<int64_t>(token) * 3 + 1) * args.channels + channel;
    Vector<T, N> gate = load<N>(gates);
#pragma unroll
    for (int32_t j = 0; j < N; ++j) gate.at[j] = T(sums[j] * static_cast<float>(gate.at[j]));
    store<N>(out, gate);
  }
}

// Keeps the newest products of each sequence. This is a separate kernel because it overwrites products that the
// convolution reads.
template <typename T>
__global__ void __launch_bounds__(kConvThreads) keep_kernel(ConvArgs args) {
  constexpr int32_t N = kVectorWidth<T>;
  const int32_t channel = (static_cast<int32_t>(blockIdx.x) * kConvThreads + threadIdx.x) * N;
  const Sequence sequence = sequence_of(args, blockIdx.y);
  if (channel >= args.channels || sequence.count == 0 || sequence.slot >= args.num_slots) return;
  const int32_t rows = args.kernel - 1;
  T* kept = static_cast<T*>(args.kept) + static_cast<int64_t>(sequence.slot) * rows * args.channels + channel;
  for (int32_t row = 0; row < rows; ++row) {
    // In-place shift: kept products are read from a later row, which has not been overwritten yet.
    const int32_t token = sequence.count - rows + row;
    Vector<T, N> values{};
    if (token >= 0) {
      values = products<T, N>(args, sequence.start + token, channel);
    } else if (!sequence.begins) {
      values = load<N>(kept + static_cast<int64_t>(row + sequence.count) * args.channels);
    }
    store<N>(kept + static_cast<int64_t>(row) * args.channels, values);
  }
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_short_conv(const ConvArgs* args, cudaStream_t stream) {
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int32_t kChannels = kConvThreads * kVectorWidth<T>;
    constexpr int32_t kMaxBlocks = 65535;
    const auto wide = static_cast<uint32_t>((args->channels + kChannels - 1) / kChannels);
    const dim3 grid(wide, args->tokens < kMaxBlocks ? args->tokens : kMaxBlocks);
    conv_kernel<T><<<grid, kConvThreads, 0, stream>>>(*args);
    keep_kernel<T><<<dim3(wide, args->seqs), kConvThreads, 0, stream>>>(*args);
  });
}
