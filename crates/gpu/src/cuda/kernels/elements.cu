// Element-wise operations: sums, gates, scaling of logits, attention sinks, and token ids that only the device knows.

#include "common.cuh"

namespace candlepower {

constexpr int32_t kThreads = 256;

struct AddArgs {
  void* residual;  // [count], becomes (residual + x) * scale
  const void* x;   // [count]
  int64_t count;
  int32_t dtype;
  float scale;
};
static_assert(sizeof(AddArgs) == 32, "as in src/cuda/elements.rs");

// A grid-stride loop: each thread handles N neighbouring elements at a time.
template <typename T, int32_t N>
__global__ void add_kernel(AddArgs args) {
  T* residual = static_cast<T*>(args.residual);
  const T* x = static_cast<const T*>(args.x);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * N;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  for (int64_t i = first; i < args.count; i += step) {
    Vector<T, N> sum = load<N>(residual + i);
    const Vector<T, N> added = load<N>(x + i);
    for (int32_t j = 0; j < N; ++j) {
      sum.at[j] = T((static_cast<float>(sum.at[j]) + static_cast<float>(added.at[j])) * args.scale);
    }
    store<N>(residual + i, sum);
  }
}

struct ScaleArgs {
  void* x;  // [count], in place
  int64_t count;
  float scale;
  float cap;  // 0 for none
  int32_t dtype;
};
static_assert(sizeof(ScaleArgs) == 32, "as in src/cuda/elements.rs");

template <typename T>
__global__ void scale_and_cap_kernel(ScaleArgs args) {
  T* x = static_cast<T*>(args.x);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.count; i += step) {
    const float scaled = args.scale * static_cast<float>(x[i]);
    x[i] = T(args.cap == 0.0f ? scaled : args.cap * tanhf(scaled / args.cap));
  }
}

struct SinkArgs {
  void* out;              // [rows, head_dim], in place
  const float* lse;       // [rows], with the meaning of lse of RunArgs in attention.cuh
  const float* sinks;     // [heads]
  int64_t rows;           // tokens * heads
  int32_t heads;
  int32_t head_dim;
  int32_t dtype;
  int32_t padding;
};
static_assert(sizeof(SinkArgs) == 48, "as in src/cuda/attention/ffi.rs");

// Applies attention sink logits. The attention kernel computed the softmax without the sink, so the output is
// multiplied by the share of the weights that the sink leaves.
template <typename T, int32_t N>
__global__ void weigh_sinks_kernel(SinkArgs args) {
  constexpr float kLog2E = 1.4426950408889634f;
  T* out = static_cast<T*>(args.out);
  const int32_t per_row = args.head_dim / N;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.rows * per_row; i += step) {
    const int64_t row = i / per_row;
    const float sink = args.sinks[row % args.heads] * kLog2E;
    const float left = 1.0f / (1.0f + exp2f(sink - args.lse[row]));
    Vector<T, N> values = load<N>(out + i * N);
    for (int32_t j = 0; j < N; ++j) values.at[j] = T(static_cast<float>(values.at[j]) * left);
    store<N>(out + i * N, values);
  }
}

struct SigmoidGateArgs {
  void* x;           // [rows, width], in place
  const void* gate;  // [rows, gates]
  int64_t rows;
  int32_t width;
  int32_t gates;  // width, or 1
  int32_t dtype;
  int32_t padding;
};
static_assert(sizeof(SigmoidGateArgs) == 40, "as in src/cuda/elements.rs");

// A grid-stride loop: each thread handles N neighbouring elements of a row at a time.
template <typename T, int32_t N>
__global__ void sigmoid_gate_kernel(SigmoidGateArgs args) {
  T* x = static_cast<T*>(args.x);
  const T* gate = static_cast<const T*>(args.gate);
  const int64_t total = args.rows * args.width;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * N;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  for (int64_t i = first; i < total; i += step) {
    Vector<T, N> values = load<N>(x + i);
    Vector<T, N> gates;
    if (args.gates == args.width) {
      gates = load<N>(gate + i);
    } else {
      const T of_row = gate[i / args.width];
      for (int32_t j = 0; j < N; ++j) gates.at[j] = of_row;
    }
    for (int32_t j = 0; j < N; ++j) {
      values.at[j] = T(static_cast<float>(values.at[j]) / (1.0f + expf(-static_cast<float>(gates.at[j]))));
    }
    store<N>(x + i, values);
  }
}

struct ResolveArgs {
  uint32_t* tokens;         // [count], in place
  const uint32_t* sampled;  // [num_sampled]
  int32_t count;
  int32_t num_sampled;
};
static_assert(sizeof(ResolveArgs) == 24, "as in src/cuda/elements.rs");

// Replaces entries whose highest bit is set by the token that the previous step sampled at that index. An index beyond
// the sampled tokens gives an invalid token id.
__global__ void resolve_kernel(ResolveArgs args) {
  const int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= args.count) return;
  const uint32_t token = args.tokens[i];
  if (token >> 31 == 0) return;
  const uint32_t index = token & 0x7fffffffu;
  args.tokens[i] = index < static_cast<uint32_t>(args.num_sampled) ? args.sampled[index] : 0xffffffffu;
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_add(const AddArgs* args, cudaStream_t stream) {
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int32_t N = kVectorWidth<T>;
    if (args->count % N == 0) {
      add_kernel<T, N><<<grid_for(args->count / N, kThreads), kThreads, 0, stream>>>(*args);
    } else {
      add_kernel<T, 1><<<grid_for(args->count, kThreads), kThreads, 0, stream>>>(*args);
    }
  });
}

extern "C" int32_t candlepower_scale_and_cap(const ScaleArgs* args, cudaStream_t stream) {
  const uint32_t grid = grid_for(args->count, kThreads);
  return with_half_type(args->dtype, [&](auto zero) {
    scale_and_cap_kernel<decltype(zero)><<<grid, kThreads, 0, stream>>>(*args);
  });
}

extern "C" int32_t candlepower_weigh_sinks(const SinkArgs* args, cudaStream_t stream) {
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int32_t N = kVectorWidth<T>;
    const uint32_t grid = grid_for(args->rows * (args->head_dim / N), kThreads);
    weigh_sinks_kernel<T, N><<<grid, kThreads, 0, stream>>>(*args);
  });
}

extern "C" int32_t candlepower_sigmoid_gate(const SigmoidGateArgs* args, cudaStream_t stream) {
  const int64_t count = args->rows * args->width;
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int32_t N = kVectorWidth<T>;
    if (args->width % N == 0) {
      sigmoid_gate_kernel<T, N><<<grid_for(count / N, kThreads), kThreads, 0, stream>>>(*args);
    } else {
      sigmoid_gate_kernel<T, 1><<<grid_for(count, kThreads), kThreads, 0, stream>>>(*args);
    }
  });
}

extern "C" int32_t candlepower_resolve_tokens(const ResolveArgs* args, cudaStream_t stream) {
  resolve_kernel<<<(args->count + kThreads - 1) / kThreads, kThreads, 0, stream>>>(*args);
  return cudaGetLastError();
}
