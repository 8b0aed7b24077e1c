// Row-wise kernels: norms, RMS norm with the residual addition, gathers. They are bound by memory, so each makes one pass
// over it where it can, with 16-byte accesses where the rows are aligned. Arithmetic is in f32 and is rounded once, at the
// store. RMS norms can be written in FP8 for the products that alone read them.

#include "fp8_rows.cuh"
#include "prefetch.cuh"

namespace candlepower {

// ---- RMS norm --------------------------------------------------------------------------------------

// Maximum number of threads for a row. All of them must fit into the register file at once.
constexpr int32_t kMaxNormThreads = 1024;

struct RmsNormArgs {
  const void* x;       // [rows, dim]
  void* residual;      // [rows, dim], becomes (residual + x) * residual_scale; null: nothing is added
  const void* weight;  // [weight_rows, dim]; row i of x uses row i % weight_rows
  void* out;           // [rows, dim], may be x; null with FP8
  int64_t rows;
  int32_t dim;
  int32_t dtype;
  float eps;
  float weight_offset;  // 1 where the model multiplies by 1 + weight, else 0
  float residual_scale;
  int32_t weight_rows;
  Fp8Rows fp8;  // written instead of `out`
  Prefetch next;
};
static_assert(sizeof(RmsNormArgs) == 104, "as in src/cuda/norm.rs");

// One block per row, and blocks for `next`. The norm is taken of the sum as it is stored, after rounding, so that this
// layer sees the same residual as the layers after it.
template <typename T, int32_t N, RowsAs kAs>
__global__ void __launch_bounds__(kMaxNormThreads) rms_norm_kernel(RmsNormArgs args) {
  if (blockIdx.x >= args.rows) return prefetch_share(args.next, static_cast<uint32_t>(args.rows));
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
  const auto normed = [&](int32_t i) {
    Vector<T, N> values = i == first ? first_values : load<N>(source + i);
    const Vector<T, N> weights = i == first ? elements<T, N>(first_weights) : load<N>(weight + i);
    for (int32_t j = 0; j < N; ++j) {
      const float factor = static_cast<float>(weights.at[j]) + args.weight_offset;
      values.at[j] = T(static_cast<float>(values.at[j]) * scale * factor);
    }
    return values;
  };
  if constexpr (kAs == RowsAs::kHalves) {
    for (int32_t i = first; i < args.dim; i += step) store<N>(out + i, normed(i));
  } else if constexpr (kAs == RowsAs::kFp8Rows) {
    store_fp8_row<T, N, 1>(args.fp8, blockIdx.x, args.dim, normed);
  } else {
    // All lanes of a warp make the same number of turns, because the lanes of a group share its scale.
    for (int32_t base = 0; base < args.dim; base += step) {
      const int32_t i = base + first;
      const bool is_inside = i < args.dim;
      store_fp8_group(args.fp8, blockIdx.x, args.rows, args.dim, i, is_inside, normed(is_inside ? i : 0));
    }
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
  const bool in_fp8 = args->fp8.codes != nullptr;
  if (in_fp8 && !fits<kVectorWidth<__half>>(args->fp8, args->dim)) return cudaErrorInvalidValue;
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int32_t N = kVectorWidth<T>;
    const bool in_vectors = args->dim % N == 0;
    const int32_t threads = threads_for(in_vectors ? args->dim / N : args->dim, kMaxNormThreads);
    const uint32_t blocks = static_cast<uint32_t>(args->rows) + prefetch_blocks(args->next, threads);
    if (in_fp8) {
      const bool is_row = args->fp8.group >= args->dim;
      launch_early(is_row ? rms_norm_kernel<T, N, RowsAs::kFp8Rows> : rms_norm_kernel<T, N, RowsAs::kFp8Groups>, blocks,
                   threads, stream, *args);
    } else if (in_vectors) {
      launch_early(rms_norm_kernel<T, N, RowsAs::kHalves>, blocks, threads, stream, *args);
    } else {
      launch_early(rms_norm_kernel<T, 1, RowsAs::kHalves>, blocks, threads, stream, *args);
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
