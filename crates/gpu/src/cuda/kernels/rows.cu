// Row-wise kernels: norms, RMS norm with the residual addition, activations, gathers. They are bound by memory, so each
// makes one pass over it where it can, with 16-byte accesses where the rows are aligned. Arithmetic is in f32 and is
// rounded once, at the store.

#include "common.cuh"

namespace candlepower {

// ---- RMS norm --------------------------------------------------------------------------------------

// Maximum number of threads for a row. All of them must fit into the register file at once.
constexpr int32_t kMaxNormThreads = 1024;

struct RmsNormArgs {
  const void* x;       // [rows, dim]
  void* residual;      // [rows, dim], becomes (residual + x) * residual_scale; null: nothing is added
  const void* weight;  // [weight_rows, dim]; row i of x uses row i % weight_rows
  void* out;           // [rows, dim], may be x
  int64_t rows;
  int32_t dim;
  int32_t dtype;
  float eps;
  float weight_offset;  // 1 where the model multiplies by 1 + weight, else 0
  float residual_scale;
  int32_t weight_rows;
};
static_assert(sizeof(RmsNormArgs) == 64, "as in src/cuda/norm.rs");

// One block per row. The norm is taken of the sum as it is stored, after rounding, so that this layer sees the same
// residual as the layers after it.
template <typename T, int32_t N>
__global__ void __launch_bounds__(kMaxNormThreads) rms_norm_kernel(RmsNormArgs args) {
  const int64_t start = static_cast<int64_t>(blockIdx.x) * args.dim;
  const T* x = static_cast<const T*>(args.x) + start;
  T* residual = args.residual == nullptr ? nullptr : static_cast<T*>(args.residual) + start;
  const T* weight = static_cast<const T*>(args.weight) + static_cast<int64_t>(blockIdx.x % args.weight_rows) * args.dim;
  T* out = static_cast<T*>(args.out) + start;
  const int32_t first = threadIdx.x * N;
  const int32_t step = blockDim.x * N;

  // Most rows give a thread only one vector, which stays in registers between the two loops. Its weights are loaded
  // first of all, before the row, because nvcc otherwise waits for them before it loads the row.
  Vector<T, N> first_values{};
  const Words<T, N> first_weights = load_words<N>(weight + (first < args.dim ? first : 0));
  wait_for_inputs();
  let_next_start();
  float squares = 0.0f;
  for (int32_t i = first; i < args.dim; i += step) {
    Vector<T, N> values = load<N>(x + i);
    if (residual != nullptr) {
      const Vector<T, N> before = load<N>(residual + i);
      for (int32_t j = 0; j < N; ++j) {
        const float sum = static_cast<float>(before.at[j]) + static_cast<float>(values.at[j]);
        values.at[j] = T(sum * args.residual_scale);
      }
      store<N>(residual + i, values);
    }
    for (int32_t j = 0; j < N; ++j) {
      const float value = static_cast<float>(values.at[j]);
      squares += value * value;
    }
    if (i == first) first_values = values;
  }
  const float scale = rsqrtf(block_sum(squares) / args.dim + args.eps);

  const T* source = residual == nullptr ? x : residual;
  for (int32_t i = first; i < args.dim; i += step) {
    Vector<T, N> values = i == first ? first_values : load<N>(source + i);
    const Vector<T, N> weights = i == first ? elements<T, N>(first_weights) : load<N>(weight + i);
    for (int32_t j = 0; j < N; ++j) {
      const float factor = static_cast<float>(weights.at[j]) + args.weight_offset;
      values.at[j] = T(static_cast<float>(values.at[j]) * scale * factor);
    }
    store<N>(out + i, values);
  }
}

// ---- Layer norm ------------------------------------------------------------------------------------

struct LayerNormArgs {
  const void* x;       // [rows, dim]
  const void* weight;  // [dim]
  const void* bias;    // [dim]; null where the model has none
  void* out;           // [rows, dim], may be x
  int64_t rows;
  int32_t dim;
  int32_t dtype;
  float eps;
  int32_t padding;
};
static_assert(sizeof(LayerNormArgs) == 56, "as in src/cuda/norm.rs");

// One block per row, which is read three times. The squares are those of distances from the mean, which avoids
// cancellation.
template <typename T, int32_t N>
__global__ void __launch_bounds__(kMaxNormThreads) layer_norm_kernel(LayerNormArgs args) {
  const int64_t start = static_cast<int64_t>(blockIdx.x) * args.dim;
  const T* x = static_cast<const T*>(args.x) + start;
  const T* weight = static_cast<const T*>(args.weight);
  const T* bias = static_cast<const T*>(args.bias);
  T* out = static_cast<T*>(args.out) + start;
  const int32_t first = threadIdx.x * N;
  const int32_t step = blockDim.x * N;
  wait_for_inputs();
  let_next_start();

  float sum = 0.0f;
  for (int32_t i = first; i < args.dim; i += step) {
    const Vector<T, N> values = load<N>(x + i);
    for (int32_t j = 0; j < N; ++j) sum += static_cast<float>(values.at[j]);
  }
  const float mean = block_sum(sum) / args.dim;
  float squares = 0.0f;
  for (int32_t i = first; i < args.dim; i += step) {
    const Vector<T, N> values = load<N>(x + i);
    for (int32_t j = 0; j < N; ++j) {
      const float distance = static_cast<float>(values.at[j]) - mean;
      squares += distance * distance;
    }
  }
  const float scale = rsqrtf(block_sum(squares) / args.dim + args.eps);

  for (int32_t i = first; i < args.dim; i += step) {
    Vector<T, N> values = load<N>(x + i);
    const Vector<T, N> weights = load<N>(weight + i);
    Vector<T, N> added{};
    if (bias != nullptr) added = load<N>(bias + i);
    for (int32_t j = 0; j < N; ++j) {
      const float scaled = (static_cast<float>(values.at[j]) - mean) * scale * static_cast<float>(weights.at[j]);
      values.at[j] = T(bias == nullptr ? scaled : scaled + static_cast<float>(added.at[j]));
    }
    store<N>(out + i, values);
  }
}

// ---- Activations -----------------------------------------------------------------------------------

// The values are those of Activation in Rust.
enum class Activation : int32_t { kSilu = 0, kGelu = 1, kGeluTanh = 2, kSwigluOai = 3, kRelu = 4, kReluSquared = 5 };

// Constants of kSwigluOai: the limit of both halves, and the factor in its sigmoid.
constexpr float kSwigluLimit = 7.0f;
constexpr float kSwigluAlpha = 1.702f;

struct GatedActivationArgs {
  const void* gate;  // [tokens, gate_width], of which the first `inner` columns are used
  const void* up;    // [tokens, up_width], likewise
  void* out;         // [tokens, inner], may be the gate
  int64_t tokens;
  int32_t inner;
  int32_t gate_width;
  int32_t up_width;
  int32_t dtype;
  int32_t activation;
  int32_t padding;
};
static_assert(sizeof(GatedActivationArgs) == 56, "as in src/cuda/activation.rs");

struct ActivationArgs {
  const void* x;  // [count]
  void* out;      // [count], may be x
  int64_t count;
  int32_t dtype;
  int32_t activation;
};
static_assert(sizeof(ActivationArgs) == 32, "as in src/cuda/activation.rs");

template <Activation kActivation>
__device__ __forceinline__ float activate(float x) {
  if constexpr (kActivation == Activation::kSilu) return x / (1.0f + expf(-x));
  if constexpr (kActivation == Activation::kGelu) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  if constexpr (kActivation == Activation::kSwigluOai) {
    const float bounded = fminf(x, kSwigluLimit);
    return bounded / (1.0f + expf(-kSwigluAlpha * bounded));
  }
  if constexpr (kActivation == Activation::kRelu) return fmaxf(x, 0.0f);
  if constexpr (kActivation == Activation::kReluSquared) {
    const float positive = fmaxf(x, 0.0f);
    return positive * positive;
  }
  // sqrt(2 / pi) (x + 0.044715 x^3)
  return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

// The factor that a gate's activation is multiplied by.
template <Activation kActivation>
__device__ __forceinline__ float gated_value(float up) {
  if constexpr (kActivation != Activation::kSwigluOai) return up;
  return fmaxf(fminf(up, kSwigluLimit), -kSwigluLimit) + 1.0f;
}

// A grid-stride loop: each thread computes N neighbouring outputs at a time.
template <typename T, int32_t N, Activation kActivation>
__global__ void gated_activation_kernel(GatedActivationArgs args) {
  const int32_t per_row = args.inner / N;
  const int64_t total = args.tokens * per_row;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  wait_for_inputs();
  let_next_start();
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += step) {
    const int64_t token = i / per_row;
    const int32_t column = static_cast<int32_t>(i % per_row) * N;
    Vector<T, N> gate = load<N>(static_cast<const T*>(args.gate) + token * args.gate_width + column);
    const Vector<T, N> up = load<N>(static_cast<const T*>(args.up) + token * args.up_width + column);
    for (int32_t j = 0; j < N; ++j) {
      const float activated = activate<kActivation>(static_cast<float>(gate.at[j]));
      gate.at[j] = T(activated * gated_value<kActivation>(static_cast<float>(up.at[j])));
    }
    store<N>(static_cast<T*>(args.out) + token * args.inner + column, gate);
  }
}

// The same without a gate.
template <typename T, int32_t N, Activation kActivation>
__global__ void activation_kernel(ActivationArgs args) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * N;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  wait_for_inputs();
  let_next_start();
  for (int64_t i = first; i < args.count; i += step) {
    Vector<T, N> values = load<N>(static_cast<const T*>(args.x) + i);
    for (int32_t j = 0; j < N; ++j) {
      values.at[j] = T(activate<kActivation>(static_cast<float>(values.at[j])));
    }
    store<N>(static_cast<T*>(args.out) + i, values);
  }
}

// Calls `launch` with the activation as a compile-time constant.
template <typename Launch>
void with_activation(int32_t activation, Launch launch) {
  switch (static_cast<Activation>(activation)) {
    case Activation::kSilu: launch(std::integral_constant<Activation, Activation::kSilu>{}); break;
    case Activation::kGelu: launch(std::integral_constant<Activation, Activation::kGelu>{}); break;
    case Activation::kGeluTanh:
      launch(std::integral_constant<Activation, Activation::kGeluTanh>{});
      break;
    case Activation::kSwigluOai:
      launch(std::integral_constant<Activation, Activation::kSwigluOai>{});
      break;
    case Activation::kRelu: launch(std::integral_constant<Activation, Activation::kRelu>{}); break;
    case Activation::kReluSquared:
      launch(std::integral_constant<Activation, Activation::kReluSquared>{});
      break;
  }
}

constexpr int32_t kActivationThreads = 256;

template <typename T, int32_t N>
void launch_gated_activation(const GatedActivationArgs& args, cudaStream_t stream) {
  const uint32_t grid = grid_for(args.tokens * (args.inner / N), kActivationThreads);
  with_activation(args.activation, [&](auto act) {
    constexpr Activation kAct = decltype(act)::value;
    launch_early(gated_activation_kernel<T, N, kAct>, grid, kActivationThreads, stream, args);
  });
}

template <typename T, int32_t N>
void launch_activation(const ActivationArgs& args, cudaStream_t stream) {
  const uint32_t grid = grid_for(args.count / N, kActivationThreads);
  with_activation(args.activation, [&](auto act) {
    constexpr Activation kAct = decltype(act)::value;
    launch_early(activation_kernel<T, N, kAct>, grid, kActivationThreads, stream, args);
  });
}

// ---- Gathers ---------------------------------------------------------------------------------------

struct GatherArgs {
  const void* table;     // [table_rows, dim]: this rank's shard, the rows from first_row on, of all_rows
  const uint32_t* rows;  // [count]
  void* out;             // [count, dim]
  int64_t count;
  uint32_t first_row;
  uint32_t table_rows;
  uint32_t all_rows;
  int32_t dim;
  int32_t dtype;
  float scale;
};
static_assert(sizeof(GatherArgs) == 56, "as in src/cuda/gather.rs");

// One block per row. A row index that no shard has gives NaN, because a kernel cannot return an error; the sampling
// kernel reports NaN logits. An index that another rank's shard has gives zeros, and the all-reduce after this kernel
// adds that rank's row.
template <typename T, int32_t N>
__global__ void gather_kernel(GatherArgs args) {
  wait_for_inputs();
  let_next_start();
  const uint32_t row = args.rows[blockIdx.x];
  // For a row before first_row the subtraction wraps around, to an index beyond every table.
  const uint32_t own = row - args.first_row;
  const T* source = static_cast<const T*>(args.table) + static_cast<int64_t>(own) * args.dim;
  T* out = static_cast<T*>(args.out) + static_cast<int64_t>(blockIdx.x) * args.dim;
  for (int32_t i = threadIdx.x * N; i < args.dim; i += blockDim.x * N) {
    Vector<T, N> values;
    if (own < args.table_rows) {
      values = load<N>(source + i);
      for (int32_t j = 0; j < N; ++j) values.at[j] = T(static_cast<float>(values.at[j]) * args.scale);
    } else {
      for (int32_t j = 0; j < N; ++j) values.at[j] = T(row < args.all_rows ? 0.0f : NAN);
    }
    store<N>(out + i, values);
  }
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_rms_norm(const RmsNormArgs* args, cudaStream_t stream) {
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int32_t N = kVectorWidth<T>;
    const auto rows = static_cast<uint32_t>(args->rows);
    if (args->dim % N == 0) {
      launch_early(rms_norm_kernel<T, N>, rows, threads_for(args->dim / N, kMaxNormThreads), stream, *args);
    } else {
      launch_early(rms_norm_kernel<T, 1>, rows, threads_for(args->dim, kMaxNormThreads), stream, *args);
    }
  });
}

extern "C" int32_t candlepower_layer_norm(const LayerNormArgs* args, cudaStream_t stream) {
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int32_t N = kVectorWidth<T>;
    const auto rows = static_cast<uint32_t>(args->rows);
    if (args->dim % N == 0) {
      launch_early(layer_norm_kernel<T, N>, rows, threads_for(args->dim / N, kMaxNormThreads), stream, *args);
    } else {
      launch_early(layer_norm_kernel<T, 1>, rows, threads_for(args->dim, kMaxNormThreads), stream, *args);
    }
  });
}

extern "C" int32_t candlepower_activation(const ActivationArgs* args, cudaStream_t stream) {
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int32_t N = kVectorWidth<T>;
    if (args->count % N == 0) {
      launch_activation<T, N>(*args, stream);
    } else {
      launch_activation<T, 1>(*args, stream);
    }
  });
}

extern "C" int32_t candlepower_gated_activation(const GatedActivationArgs* args, cudaStream_t stream) {
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int32_t N = kVectorWidth<T>;
    // `up` may start at any column of a wider row, so its alignment is checked.
    const bool aligned = reinterpret_cast<uintptr_t>(args->up) % (N * sizeof(T)) == 0;
    if (aligned && args->inner % N == 0 && args->gate_width % N == 0 && args->up_width % N == 0) {
      launch_gated_activation<T, N>(*args, stream);
    } else {
      launch_gated_activation<T, 1>(*args, stream);
    }
  });
}

extern "C" int32_t candlepower_gather(const GatherArgs* args, cudaStream_t stream) {
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int32_t N = kVectorWidth<T>;
    const auto count = static_cast<uint32_t>(args->count);
    if (args->dim % N == 0) {
      launch_early(gather_kernel<T, N>, count, threads_for(args->dim / N, 256), stream, *args);
    } else {
      launch_early(gather_kernel<T, 1>, count, threads_for(args->dim, 256), stream, *args);
    }
  });
}

// Text for an error code that a launcher returned.
extern "C" const char* candlepower_cuda_error(int32_t code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}
