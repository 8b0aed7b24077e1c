// A matrix times the norm of one or two rows, after the addition to the residual. Each block computes the norm of the whole
// rows anew, which saves a kernel between two products. It is made for small models, whose rows are short.

#include "gemv.cuh"

namespace candlepower {

struct NormedGemvArgs {
  GemvArgs product;      // its x is added to the residual
  const void* residual;  // [rows, k]
  void* sum;             // [rows, k]: (residual + x) * residual_scale; another memory than the residual, which all blocks read
  const void* weight;    // [k], of the norm
  float eps;
  float weight_offset;  // 1 where the model multiplies by 1 + weight, else 0
  float residual_scale;
  int32_t padding;
};
static_assert(sizeof(NormedGemvArgs) == 96, "as in src/cuda/normed_gemv.rs");

// Each thread has one vector of a row, as in the kernel of the norm alone. So the sums of squares have its order.
constexpr int32_t kMaxInputs = kWarpsPerBlock * kWarp * 8;

// Writes the normed rows to shared memory, and the sums to memory from the first block. The operations and their order are
// those of `rms_norm_kernel` in rows.cu.
template <typename T, int32_t kRows>
__device__ __forceinline__ void norm_rows(const NormedGemvArgs& args, T* normed) {
  constexpr int32_t N = kVectorWidth<T>;
  const int32_t k = args.product.k;
  const auto first = static_cast<int32_t>(threadIdx.x) * N;
  const bool is_inside = first < k;
  const Words<T, N> words = load_words<N>(static_cast<const T*>(args.weight) + (is_inside ? first : 0));
  wait_for_inputs();
#pragma unroll
  for (int32_t row = 0; row < kRows; ++row) {
    Vector<T, N> values{};
    float squares = 0.0f;
    if (is_inside) {
      const int32_t at = row * k + first;
      values = load<N>(static_cast<const T*>(args.product.x) + at);
      const Vector<T, N> before = load<N>(static_cast<const T*>(args.residual) + at);
#pragma unroll
      for (int32_t j = 0; j < N; ++j) {
        const float sum = static_cast<float>(before.at[j]) + static_cast<float>(values.at[j]);
        values.at[j] = T(sum * args.residual_scale);
      }
      if (blockIdx.x == 0) store<N>(static_cast<T*>(args.sum) + at, values);
#pragma unroll
      for (int32_t j = 0; j < N; ++j) {
        const float value = static_cast<float>(values.at[j]);
        squares += value * value;
      }
    }
    const float scale = rsqrtf(block_sum(squares) / k + args.eps);
    if (!is_inside) continue;
    const Vector<T, N> weights = elements<T, N>(words);
#pragma unroll
    for (int32_t j = 0; j < N; ++j) {
      const float factor = static_cast<float>(weights.at[j]) + args.weight_offset;
      values.at[j] = T(static_cast<float>(values.at[j]) * scale * factor);
    }
    store<N>(normed + row * kMaxInputs + first, values);
  }
  __syncthreads();
}

// A block computes the norm once, and then some tiles one after the other. The sums have the order of `gemv_kernel`.
template <typename T, int32_t kRows, int32_t kSplit, bool kGated>
__global__ void __launch_bounds__((GemvTile<kSplit, kGated>::kThreads)) normed_gemv_kernel(NormedGemvArgs args) {
  using Tile = GemvTile<kSplit, kGated>;
  constexpr int32_t N = kVectorWidth<T>;
  constexpr int32_t kStep = kWarp * N;
  __shared__ uint4 normed_words[kRows * kMaxInputs / N];
  // Two tiles' sums, so that one barrier for each tile suffices.
  __shared__ float partial[2][Tile::kWarps][kRows];
  auto* normed = reinterpret_cast<T*>(normed_words);
  const GemvArgs& product = args.product;
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const auto tiles = static_cast<int32_t>(tiles_of(product.n, Tile::kOutputs));
  const Range run = split_range(product.k, kStep, warp % kSplit, kSplit);
  const int32_t begin = run.begin + lane * N;
  const int32_t steps = begin < run.end ? (run.end - begin + kStep - 1) / kStep : 0;
  // The same number for all lanes, of which the last ones may have a step less.
  const auto groups = static_cast<int32_t>(tiles_of(run.end - run.begin, kAhead * kStep));
  // Warps without an output, in the last tile, compute the last output again: all warps meet at the barriers.
  const auto weights_of = [&](int32_t tile) {
    const int32_t output = tile * Tile::kOutputs + Tile::output_of(warp / kSplit);
    const int32_t row = Tile::row_of(output < product.n ? output : product.n - 1, warp / kSplit, product.n);
    return static_cast<const T*>(product.weight) + static_cast<int64_t>(row) * product.k + begin;
  };
  uint4 coming[kAhead];
  const auto load_group = [&](const T* weight, int32_t first_step) {
#pragma unroll
    for (int32_t ahead = 0; ahead < kAhead; ++ahead) {
      if (first_step + ahead < steps) {
        coming[ahead] = __ldcs(reinterpret_cast<const uint4*>(weight + (first_step + ahead) * kStep));
      }
    }
  };

  // The weights are constant, so they are loaded before the wait.
  const T* weight = weights_of(blockIdx.x);
  load_group(weight, 0);
  norm_rows<T, kRows>(args, normed);
  int32_t parity = 0;
#pragma unroll 1
  for (auto tile = static_cast<int32_t>(blockIdx.x); tile < tiles; parity ^= 1) {
    const int32_t first_output = tile * Tile::kOutputs;
    tile += gridDim.x;
    float sums[kRows] = {};
#pragma unroll 1
    for (int32_t group = 0; group < groups; ++group) {
#pragma unroll
      for (int32_t ahead = 0; ahead < kAhead; ++ahead) {
        const int32_t step = group * kAhead + ahead;
        if (step < steps) multiply<T, kRows>(sums, coming[ahead], normed + begin + step * kStep, kMaxInputs);
      }
      if (group + 1 < groups) {
        load_group(weight, (group + 1) * kAhead);
      } else if (tile < tiles) {
        weight = weights_of(tile);
        load_group(weight, 0);
      }
    }
    if (tile >= tiles) let_next_start();
#pragma unroll
    for (int32_t row = 0; row < kRows; ++row) {
      const float sum = warp_sum(sums[row]);
      if (lane == 0) partial[parity][warp][row] = sum;
    }
    __syncthreads();
    store_tile<T, kRows, kSplit, kGated>(product, partial[parity], first_output);
  }
}

template <typename T, int32_t kRows, bool kGated>
void launch_normed(const NormedGemvArgs& args, cudaStream_t stream) {
  const int32_t n = args.product.n;
  with_split(kGated ? 2 * n : n, [&](auto split) {
    constexpr int32_t kSplit = decltype(split)::value;
    using Tile = GemvTile<kSplit, kGated>;
    const auto kernel = normed_gemv_kernel<T, kRows, kSplit, kGated>;
    const auto tiles = static_cast<int32_t>(tiles_of(n, Tile::kOutputs));
    const int32_t asked = args.product.blocks;
    const int32_t most = asked > 0 ? asked : resident_blocks(kernel, Tile::kThreads);
    launch_early(kernel, equal_shares(tiles, most > 0 ? most : tiles), Tile::kThreads, stream, args);
  });
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_normed_gemv(const NormedGemvArgs* args, cudaStream_t stream) {
  const GemvArgs& product = args->product;
  const bool is_gated = product.activation != kNoGates;
  if (product.rows < 1 || product.rows > kFewRows || product.n < 1) return cudaErrorInvalidValue;
  if (product.k < 8 || product.k % 8 != 0 || product.k > kMaxInputs) return cudaErrorInvalidValue;
  if (is_gated && !is_activation(product.activation)) return cudaErrorInvalidValue;
  return with_half_type(product.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (product.rows == 1) {
      is_gated ? launch_normed<T, 1, true>(*args, stream) : launch_normed<T, 1, false>(*args, stream);
    } else {
      is_gated ? launch_normed<T, 2, true>(*args, stream) : launch_normed<T, 2, false>(*args, stream);
    }
  });
}
