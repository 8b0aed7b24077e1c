// Layers of experts: which of them each token goes to, the products of each with the tokens that it gets, and their sum.
// Nothing of it is known to the host: grids have room for the most tiles that there may be.

#include "tensor_core.cuh"

namespace candlepower {

// ---- Which experts ---------------------------------------------------------------------------------

struct RouteArgs {
  const void* scores;  // [tokens, experts]
  uint32_t* chosen;    // [tokens, top_k]: experts in their order
  float* shares;       // [tokens, top_k]: what each counts for
  uint32_t* sorted;    // [tokens * top_k]: places in `chosen`, expert by expert, in the order of the tokens
  uint32_t* starts;    // [experts + 1]: where in `sorted` those of each expert begin
  uint32_t* tiles;     // [experts + 1]: how many tiles of rows the experts before take
  int32_t tokens;
  int32_t experts;
  int32_t top_k;
  int32_t renormalize;
  int32_t tile_rows;
  int32_t dtype;
};
static_assert(sizeof(RouteArgs) == 72, "as in src/cuda/experts.rs");

constexpr int32_t kChooseWarps = 4;

// A warp per token, which looks for the next best expert `top_k` times.
template <typename T>
__global__ void __launch_bounds__(kChooseWarps* kWarp) choose_kernel(RouteArgs args) {
  const int32_t token = blockIdx.x * kChooseWarps + threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  if (token >= args.tokens) return;
  const T* scores = static_cast<const T*>(args.scores) + static_cast<int64_t>(token) * args.experts;
  float max = -INFINITY;
  for (int32_t i = lane; i < args.experts; i += kWarp) max = fmaxf(max, static_cast<float>(scores[i]));
  max = warp_max(max);
  const auto share_of = [&](int32_t expert) { return expf(static_cast<float>(scores[expert]) - max); };
  float all = 0.0f;
  for (int32_t i = lane; i < args.experts; i += kWarp) all += share_of(i);
  all = warp_sum(all);

  float share = 0.0f;
  int32_t expert = args.experts;
  // What was found last; at first what comes before every expert.
  uint32_t last_share = 0xffffffffu;
  int32_t last = -1;
  for (int32_t choice = 0; choice < args.top_k; ++choice) {
    uint32_t best_share = 0;
    int32_t best = args.experts;
    for (int32_t i = lane; i < args.experts; i += kWarp) {
      const uint32_t found = __float_as_uint(share_of(i));
      if (chosen_before(last_share, last, found, i) && chosen_before(found, i, best_share, best)) {
        best_share = found;
        best = i;
      }
    }
    for (int32_t offset = kWarp / 2; offset > 0; offset /= 2) {
      const uint32_t other_share = __shfl_xor_sync(0xffffffffu, best_share, offset);
      const int32_t other = __shfl_xor_sync(0xffffffffu, best, offset);
      if (chosen_before(other_share, other, best_share, best)) {
        best_share = other_share;
        best = other;
      }
    }
    if (lane == choice) {
      share = __uint_as_float(best_share);
      expert = best;
    }
    last_share = best_share;
    last = best;
  }

  const float total = args.renormalize != 0 ? warp_sum(share) : all;
  int32_t place = 0;
  for (int32_t choice = 0; choice < args.top_k; ++choice) {
    place += __shfl_sync(0xffffffffu, expert, choice) < expert ? 1 : 0;
  }
  if (lane >= args.top_k) return;
  const int64_t at = static_cast<int64_t>(token) * args.top_k + place;
  args.chosen[at] = static_cast<uint32_t>(expert);
  args.shares[at] = share / total;
}

constexpr int32_t kSortThreads = 1024;

// A block per expert, which counts the tokens of all and sorts in its own. Counts are whole numbers, the same in any order.
__global__ void __launch_bounds__(kSortThreads) sort_kernel(RouteArgs args) {
  extern __shared__ uint32_t counts[];
  __shared__ uint32_t of_warp[kWarp];
  const int32_t expert = blockIdx.x;
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const uint32_t pairs = static_cast<uint32_t>(args.tokens) * args.top_k;
  for (int32_t i = threadIdx.x; i < args.experts; i += kSortThreads) counts[i] = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < pairs; i += kSortThreads) atomicAdd(&counts[args.chosen[i]], 1u);
  __syncthreads();
  uint32_t rows = 0;
  uint32_t tiles = 0;
  for (int32_t i = threadIdx.x; i < expert; i += kSortThreads) {
    rows += counts[i];
    tiles += tiles_of(counts[i], args.tile_rows);
  }
  rows = block_sum(rows);
  tiles = block_sum(tiles);
  if (threadIdx.x == 0) {
    args.starts[expert] = rows;
    args.tiles[expert] = tiles;
    if (expert + 1 == args.experts) {
      args.starts[args.experts] = pairs;
      args.tiles[args.experts] = tiles + tiles_of(counts[expert], args.tile_rows);
    }
  }
  for (uint32_t first = 0; first < pairs; first += kSortThreads) {
    const uint32_t pair = first + threadIdx.x;
    const bool own = pair < pairs && args.chosen[pair] == static_cast<uint32_t>(expert);
    const uint32_t of_lanes = __ballot_sync(0xffffffffu, own);
    if (lane == 0) of_warp[warp] = __popc(of_lanes);
    __syncthreads();
    uint32_t place = rows + __popc(of_lanes & ((1u << lane) - 1));
    for (int32_t i = 0; i < kSortThreads / kWarp; ++i) {
      if (i < warp) place += of_warp[i];
      rows += of_warp[i];
    }
    if (own) args.sorted[place] = pair;
    // The next round overwrites `of_warp` only when all have read it.
    __syncthreads();
  }
}

// ---- Products --------------------------------------------------------------------------------------

struct ExpertProductArgs {
  const void* x;               // [pairs / pairs_per_row, k]
  const void* const* weights;  // [experts]: where each matrix [n, k] begins
  const uint32_t* sorted;      // as in RouteArgs, likewise the next two
  const uint32_t* starts;
  const uint32_t* tiles;
  void* out;  // [pairs, n]
  int32_t pairs;
  int32_t pairs_per_row;
  int32_t experts;
  int32_t n;
  int32_t k;
  int32_t tile_rows;
  int32_t dtype;
  int32_t padding;
};
static_assert(sizeof(ExpertProductArgs) == 80, "as in src/cuda/experts.rs");

// Inputs that are multiplied from one stage of shared memory: its rows are these.
constexpr int32_t kStageInputs = 64;

// A tile of rows and outputs, and how many warps share each; so many stages of it are in shared memory.
template <int32_t kTileRows, int32_t kTileColumns, int32_t kWarpsOfRows, int32_t kWarpsOfOutputs, int32_t kNumStages>
struct TileShape {
  static constexpr int32_t kRows = kTileRows;
  static constexpr int32_t kOutputs = kTileColumns;
  static constexpr int32_t kStages = kNumStages;
  static constexpr int32_t kOutputWarps = kWarpsOfOutputs;
  static constexpr int32_t kThreads = kWarpsOfRows * kWarpsOfOutputs * kWarp;
  static constexpr int32_t kStageChunks = (kRows + kOutputs) * kRowChunks;
  static constexpr int32_t kBytes = kStages * kStageChunks * 16;
  // Of one warp: products of tensor cores, 16 rows by 8 outputs.
  static constexpr int32_t kRowTiles = kRows / kWarpsOfRows / 16;
  static constexpr int32_t kOutputTiles = kOutputs / kWarpsOfOutputs / 8;
};

// For few rows of each expert, where reading the weights takes the time, and for many, where multiplying does.
using FewRows = TileShape<16, 64, 1, 4, 4>;
using ManyRows = TileShape<128, 128, 2, 4, 3>;

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes to shared memory, or writes zeros there, some time before the copies that follow it have been waited for.
__device__ __forceinline__ void copy_chunk(uint4* to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(exists ? 16 : 0)
               : "memory");
}

// Four matrices of 8 by 8 elements; lane `l` says where row `l % 8` of matrix `l / 8` lies.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const uint4* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// A block computes a tile of the rows of one expert. Products are summed in f32 in the order of the inputs, whatever the
// shape of the tile: a row's result depends on its own values and the expert alone. Where `kWhole`, rows of x and of the
// weights are whole chunks.
template <typename T, typename Shape, bool kWhole>
__global__ void __launch_bounds__(Shape::kThreads) expert_product_kernel(ExpertProductArgs args) {
  extern __shared__ uint4 stages[];
  __shared__ int32_t pairs[Shape::kRows];  // -1 beyond the last
  __shared__ int32_t inputs[Shape::kRows];
  const uint32_t output_tiles = tiles_of(args.n, Shape::kOutputs);
  const uint32_t tile = blockIdx.x / output_tiles;
  if (tile >= args.tiles[args.experts]) return;
  const int32_t expert = expert_of_tile(args.tiles, args.experts, tile);
  const int32_t first_output = static_cast<int32_t>(blockIdx.x % output_tiles) * Shape::kOutputs;
  const uint32_t first_row = args.starts[expert] + (tile - args.tiles[expert]) * Shape::kRows;
  for (int32_t i = threadIdx.x; i < Shape::kRows; i += Shape::kThreads) {
    const bool exists = first_row + i < args.starts[expert + 1];
    pairs[i] = exists ? static_cast<int32_t>(args.sorted[first_row + i]) : -1;
    inputs[i] = exists ? pairs[i] / args.pairs_per_row : -1;
  }
  __syncthreads();

  const T* x = static_cast<const T*>(args.x);
  const T* weight = static_cast<const T*>(args.weights[expert]);
  const auto load_stage = [&](int32_t step) {
    uint4* stage = stages + step % Shape::kStages * Shape::kStageChunks;
#pragma unroll
    for (int32_t i = threadIdx.x; i < Shape::kStageChunks; i += Shape::kThreads) {
      const int32_t row = i / kRowChunks;
      const int32_t chunk = i % kRowChunks;
      const int32_t column = step * kStageInputs + chunk * kVectorWidth<T>;
      const bool of_x = row < Shape::kRows;
      const int32_t source_row = of_x ? inputs[row] : first_output + row - Shape::kRows;
      const bool exists = source_row >= 0 && (of_x || source_row < args.n);
      const T* source = of_x ? x : weight;
      if (exists) source += static_cast<int64_t>(source_row) * args.k + (column < args.k ? column : 0);
      uint4* to = stage + swizzled(row, chunk);
      if constexpr (kWhole) {
        copy_chunk(to, source, exists && column < args.k);
      } else {
        Vector<T, kVectorWidth<T>> values{};
        for (int32_t j = 0; j < kVectorWidth<T>; ++j) {
          if (exists && column + j < args.k) values.at[j] = source[j];
        }
        *reinterpret_cast<Vector<T, kVectorWidth<T>>*>(to) = values;
      }
    }
  };

  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t warp_row = warp / Shape::kOutputWarps * Shape::kRowTiles * 16;
  const int32_t warp_output = warp % Shape::kOutputWarps * Shape::kOutputTiles * 8;
  float sums[Shape::kRowTiles][Shape::kOutputTiles][4] = {};
  const int32_t steps = (args.k + kStageInputs - 1) / kStageInputs;
  // A group of copies for each step, empty ones too, so that as many are under way as are waited for.
  for (int32_t step = 0; step < Shape::kStages - 1; ++step) {
    if (step < steps) load_stage(step);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  for (int32_t step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(Shape::kStages - 2) : "memory");
    // All have what they wait for, and are done with the stage that is loaded next.
    __syncthreads();
    if (step + Shape::kStages - 1 < steps) load_stage(step + Shape::kStages - 1);
    asm volatile("cp.async.commit_group;" ::: "memory");
    const uint4* stage = stages + step % Shape::kStages * Shape::kStageChunks;
#pragma unroll
    for (int32_t chunk = 0; chunk < kRowChunks; chunk += 2) {
      uint32_t a[Shape::kRowTiles][4];
      uint32_t b[Shape::kOutputTiles / 2][4];
#pragma unroll
      for (int32_t i = 0; i < Shape::kRowTiles; ++i) {
        load_matrices(a[i], stage + swizzled(warp_row + i * 16 + lane % 16, chunk + lane / 16));
      }
#pragma unroll
      for (int32_t i = 0; i < Shape::kOutputTiles / 2; ++i) {
        const int32_t row = Shape::kRows + warp_output + i * 16 + lane / 16 * 8 + lane % 8;
        load_matrices(b[i], stage + swizzled(row, chunk + lane / 8 % 2));
      }
#pragma unroll
      for (int32_t i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
        for (int32_t j = 0; j < Shape::kOutputTiles; ++j) {
          const uint32_t operand[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
          multiply(sums[i][j], a[i], operand, T());
        }
      }
    }
  }

#pragma unroll
  for (int32_t i = 0; i < Shape::kRowTiles * 2; ++i) {
    const int32_t pair = pairs[warp_row + i * 8 + lane / 4];
    if (pair < 0) continue;
    T* out = static_cast<T*>(args.out) + static_cast<int64_t>(pair) * args.n;
#pragma unroll
    for (int32_t j = 0; j < Shape::kOutputTiles; ++j) {
      const int32_t output = first_output + warp_output + j * 8 + lane % 4 * 2;
      const float* sum = sums[i / 2][j] + i % 2 * 2;
      if (args.n % 2 == 0) {
        if (output < args.n) store<2>(out + output, Vector<T, 2>{{T(sum[0]), T(sum[1])}});
      } else {
        if (output < args.n) out[output] = T(sum[0]);
        if (output + 1 < args.n) out[output + 1] = T(sum[1]);
      }
    }
  }
}

template <typename T, typename Shape>
void launch_product(const ExpertProductArgs& args, cudaStream_t stream) {
  const auto kernel = args.k % kVectorWidth<T> == 0 ? expert_product_kernel<T, Shape, true>
                                                    : expert_product_kernel<T, Shape, false>;
  // What it says no to, the launch says no to.
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes);
  const uint32_t blocks =
      most_tiles(args.pairs, args.experts, Shape::kRows) * tiles_of(args.n, Shape::kOutputs);
  kernel<<<blocks, Shape::kThreads, Shape::kBytes, stream>>>(args);
}

// ---- Sum -------------------------------------------------------------------------------------------

struct CombineArgs {
  const void* results;  // [tokens, top_k, hidden]
  const float* shares;  // [tokens, top_k]
  void* out;            // [tokens, hidden]
  int32_t tokens;
  int32_t top_k;
  int32_t hidden;
  int32_t dtype;
};
static_assert(sizeof(CombineArgs) == 40, "as in src/cuda/experts.rs");

// One block per token, which adds in the order of the experts.
template <typename T, int32_t N>
__global__ void combine_kernel(CombineArgs args) {
  const int64_t token = blockIdx.x;
  const T* results = static_cast<const T*>(args.results) + token * args.top_k * args.hidden;
  const float* shares = args.shares + token * args.top_k;
  T* out = static_cast<T*>(args.out) + token * args.hidden;
  for (int32_t i = threadIdx.x * N; i < args.hidden; i += blockDim.x * N) {
    float sums[N] = {};
    for (int32_t choice = 0; choice < args.top_k; ++choice) {
      const Vector<T, N> values = load<N>(results + static_cast<int64_t>(choice) * args.hidden + i);
      for (int32_t j = 0; j < N; ++j) sums[j] += shares[choice] * static_cast<float>(values.at[j]);
    }
    Vector<T, N> rounded;
    for (int32_t j = 0; j < N; ++j) rounded.at[j] = T(sums[j]);
    store<N>(out + i, rounded);
  }
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_route(const RouteArgs* args, cudaStream_t stream) {
  return with_half_type(args->dtype, [&](auto zero) {
    const uint32_t blocks = tiles_of(args->tokens, kChooseWarps);
    choose_kernel<decltype(zero)><<<blocks, kChooseWarps * kWarp, 0, stream>>>(*args);
    const size_t bytes = sizeof(uint32_t) * args->experts;
    sort_kernel<<<args->experts, kSortThreads, bytes, stream>>>(*args);
  });
}

extern "C" int32_t candlepower_expert_product(const ExpertProductArgs* args, cudaStream_t stream) {
  if (args->tile_rows != FewRows::kRows && args->tile_rows != ManyRows::kRows) return cudaErrorInvalidValue;
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    if (args->tile_rows == FewRows::kRows) {
      launch_product<T, FewRows>(*args, stream);
    } else {
      launch_product<T, ManyRows>(*args, stream);
    }
  });
}

extern "C" int32_t candlepower_combine_experts(const CombineArgs* args, cudaStream_t stream) {
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int32_t N = kVectorWidth<T>;
    if (args->hidden % N == 0) {
      combine_kernel<T, N><<<args->tokens, threads_for(args->hidden / N, 256), 0, stream>>>(*args);
    } else {
      combine_kernel<T, 1><<<args->tokens, threads_for(args->hidden, 256), 0, stream>>>(*args);
    }
  });
}
