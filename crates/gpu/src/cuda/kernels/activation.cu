// Activations of the feed-forward layers, alone and gated. They are bound by memory, so each makes one pass over it, with
// 16-byte accesses where the rows are aligned. Arithmetic is in f32 and is rounded once, at the store. Gated rows can be
// written in FP8 for a product that alone reads them.

#include "activation.cuh"
#include "fp8_rows.cuh"
#include "prefetch.cuh"

namespace candlepower {

struct GatedActivationArgs {
  const void* gate;  // [tokens, gate_width], of which the first `inner` columns are used
  const void* up;    // [tokens, up_width], likewise
  void* out;         // [tokens, inner], may be the gate; null with FP8
  int64_t tokens;
  int32_t inner;
  int32_t gate_width;
  int32_t up_width;
  int32_t dtype;
  int32_t activation;
  uint32_t blocks;  // set by the launcher: blocks that compute; later ones are for `next`
  Fp8Rows fp8;      // written instead of `out`
  Prefetch next;
};
static_assert(sizeof(GatedActivationArgs) == 96, "as in src/cuda/activation.rs");

struct ActivationArgs {
  const void* x;  // [count]
  void* out;      // [count], may be x
  int64_t count;
  int32_t dtype;
  int32_t activation;
};
static_assert(sizeof(ActivationArgs) == 32, "as in src/cuda/activation.rs");

// `act(gate) * up` of N neighbouring columns of a token, rounded to the element type.
template <typename T, int32_t N, Activation kActivation>
__device__ __forceinline__ Vector<T, N> gated(const GatedActivationArgs& args, int64_t token, int32_t column) {
  Vector<T, N> gate = load<N>(static_cast<const T*>(args.gate) + token * args.gate_width + column);
  const Vector<T, N> up = load<N>(static_cast<const T*>(args.up) + token * args.up_width + column);
#pragma unroll
  for (int32_t j = 0; j < N; ++j) {
    gate.at[j] = gated_element<T, kActivation>(gate.at[j], up.at[j]);
  }
  return gate;
}

// A grid-stride loop: each thread computes N neighbouring outputs at a time. All threads of a block make the same number of
// turns, because the lanes of a group in FP8 share its scale.
template <typename T, int32_t N, Activation kActivation, RowsAs kAs>
__global__ void gated_activation_kernel(GatedActivationArgs args) {
  const int32_t per_row = args.inner / N;
  const int64_t total = args.tokens * per_row;
  const int64_t step = static_cast<int64_t>(args.blocks) * blockDim.x;
  if (blockIdx.x >= args.blocks) return prefetch_share(args.next, args.blocks);
  wait_for_inputs();
  let_next_start();
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * blockDim.x; base < total; base += step) {
    const int64_t i = base + threadIdx.x;
    const bool is_inside = i < total;
    if (kAs == RowsAs::kHalves && !is_inside) return;
    const int64_t token = is_inside ? i / per_row : 0;
    const int32_t column = is_inside ? static_cast<int32_t>(i % per_row) * N : 0;
    const Vector<T, N> values = gated<T, N, kActivation>(args, token, column);
    if constexpr (kAs == RowsAs::kHalves) {
      store<N>(static_cast<T*>(args.out) + token * args.inner + column, values);
    } else {
      store_fp8_group(args.fp8, token, args.tokens, args.inner, column, is_inside, values);
    }
  }
}

// Vectors of a row that a thread of the next kernel keeps in registers: with 1024 threads, rows of 32,768 elements.
constexpr int32_t kKeptVectors = 4;
constexpr int32_t kMostRowThreads = 1024;

// One block per row, which has one scale in FP8.
template <typename T, int32_t N, Activation kActivation>
__global__ void __launch_bounds__(kMostRowThreads) gated_fp8_row_kernel(GatedActivationArgs args) {
  const int64_t token = blockIdx.x;
  if (token >= args.tokens) return prefetch_share(args.next, static_cast<uint32_t>(args.tokens));
  wait_for_inputs();
  let_next_start();
  store_fp8_row<T, N, kKeptVectors>(args.fp8, token, args.inner, [&](int32_t column) {
    return gated<T, N, kActivation>(args, token, column);
  });
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

template <typename T, int32_t N, RowsAs kAs>
void launch_gated_activation(GatedActivationArgs args, cudaStream_t stream) {
  args.blocks = grid_for(args.tokens * (args.inner / N), kActivationThreads);
  const uint32_t grid = args.blocks + prefetch_blocks(args.next, kActivationThreads);
  with_activation(args.activation, [&](auto act) {
    constexpr Activation kAct = decltype(act)::value;
    launch_early(gated_activation_kernel<T, N, kAct, kAs>, grid, kActivationThreads, stream, args);
  });
}

template <typename T, int32_t N>
void launch_gated_fp8_rows(const GatedActivationArgs& args, cudaStream_t stream) {
  const int64_t vectors = (args.inner / N + kKeptVectors - 1) / kKeptVectors;
  const int32_t threads = threads_for(vectors, kMostRowThreads);
  const uint32_t grid = static_cast<uint32_t>(args.tokens) + prefetch_blocks(args.next, threads);
  with_activation(args.activation, [&](auto act) {
    constexpr Activation kAct = decltype(act)::value;
    launch_early(gated_fp8_row_kernel<T, N, kAct>, grid, threads, stream, args);
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

}  // namespace candlepower

using namespace candlepower;

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
  // `up` may start at any column of a wider row, so its alignment is checked.
  constexpr int32_t kWidth = kVectorWidth<__half>;
  const bool aligned = reinterpret_cast<uintptr_t>(args->up) % (kWidth * sizeof(__half)) == 0;
  const bool in_vectors =
      aligned && args->inner % kWidth == 0 && args->gate_width % kWidth == 0 && args->up_width % kWidth == 0;
  const bool in_fp8 = args->fp8.codes != nullptr;
  if (in_fp8 && !(in_vectors && fits<kWidth>(args->fp8, args->inner))) return cudaErrorInvalidValue;
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int32_t N = kVectorWidth<T>;
    if (in_fp8 && args->fp8.group >= args->inner) {
      launch_gated_fp8_rows<T, N>(*args, stream);
    } else if (in_fp8) {
      launch_gated_activation<T, N, RowsAs::kFp8Groups>(*args, stream);
    } else if (in_vectors) {
      launch_gated_activation<T, N, RowsAs::kHalves>(*args, stream);
    } else {
      launch_gated_activation<T, 1, RowsAs::kHalves>(*args, stream);
    }
  });
}
