// MoE layers: the router's choice of experts for each token, and the sum of their results. expert_product.cu has the
// products.

#include "common.cuh"

namespace candlepower {

// ---- Routing ---------------------------------------------------------------------------------------

struct RouteArgs {
  const void* scores;  // [tokens, experts]
  uint32_t* chosen;    // [tokens, top_k]: experts by ascending index
  float* shares;       // [tokens, top_k]: the weight of each expert's result
  uint32_t* sorted;    // [tokens * top_k]: indices into `chosen`, sorted by expert, then by token
  uint32_t* starts;    // [experts + 1]: where each expert's entries begin in `sorted`
  uint32_t* tiles;     // [experts + 1]: number of row tiles of all experts before each one
  const float* bias;   // [experts]: added to the shares to choose by, not to the weights; null: none
  const float* scales;  // [experts]: factors on the weights of results; null: none
  int32_t tokens;
  int32_t experts;
  int32_t top_k;
  int32_t renormalize;
  int32_t tile_rows;
  int32_t dtype;
  int32_t function;  // GatingFunction
  float scale;
  int32_t groups;  // number of expert groups of equal size, at most the lanes of a warp; 1: no groups
  int32_t chosen_groups;
  int32_t group_score;  // GroupScore
  int32_t padding;
};
static_assert(sizeof(RouteArgs) == 112, "as in src/cuda/experts.rs");

// The values are those of GatingFunction in Rust.
enum class GatingFunction : int32_t { kSoftmax = 0, kSigmoid = 1 };
// The values are those of GroupScore in Rust.
enum class GroupScore : int32_t { kBest = 0, kBestTwo = 1 };

constexpr int32_t kChooseWarps = 4;

// Bit mask of the groups whose experts a token may use: those with the highest scores, and among equal scores the first
// ones. `choose_by` returns an expert's score. Each lane scores one group.
template <typename ChooseBy>
__device__ uint32_t best_groups(const RouteArgs& args, ChooseBy choose_by) {
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t size = args.experts / args.groups;
  uint32_t rank = 0;
  if (lane < args.groups) {
    const int32_t first = lane * size;
    float best = choose_by(first);
    float second = 0.0f;
    for (int32_t i = 1; i < size; ++i) {
      const float found = choose_by(first + i);
      if (rank_bits(__float_as_uint(found)) > rank_bits(__float_as_uint(best))) {
        second = best;
        best = found;
      } else if (i == 1 || rank_bits(__float_as_uint(found)) > rank_bits(__float_as_uint(second))) {
        second = found;
      }
    }
    const bool of_two = static_cast<GroupScore>(args.group_score) == GroupScore::kBestTwo;
    rank = rank_bits(__float_as_uint(of_two ? best + second : best));
  }
  int32_t better = 0;
  for (int32_t group = 0; group < args.groups; ++group) {
    const uint32_t other = __shfl_sync(0xffffffffu, rank, group);
    better += chosen_before(other, group, rank, lane) ? 1 : 0;
  }
  return __ballot_sync(0xffffffffu, lane < args.groups && better < args.chosen_groups);
}

// One warp per token. It selects the next best expert `top_k` times.
template <typename T>
__global__ void __launch_bounds__(kChooseWarps* kWarp) choose_kernel(RouteArgs args) {
  const int32_t token = blockIdx.x * kChooseWarps + threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  if (token >= args.tokens) return;
  const T* scores = static_cast<const T*>(args.scores) + static_cast<int64_t>(token) * args.experts;
  const bool is_softmax = static_cast<GatingFunction>(args.function) == GatingFunction::kSoftmax;
  float max = -INFINITY;
  for (int32_t i = lane; i < args.experts; i += kWarp) max = fmaxf(max, static_cast<float>(scores[i]));
  max = warp_max(max);
  const auto share_of = [&](int32_t expert) {
    const float score = static_cast<float>(scores[expert]);
    return is_softmax ? expf(score - max) : 1.0f / (1.0f + expf(-score));
  };
  float all = 0.0f;
  for (int32_t i = lane; i < args.experts; i += kWarp) all += share_of(i);
  all = is_softmax ? warp_sum(all) : 1.0f;
  const auto choose_by = [&](int32_t expert) {
    const float share = share_of(expert);
    return args.bias == nullptr ? share : share / all + args.bias[expert];
  };
  const uint32_t groups = args.groups > 1 ? best_groups(args, choose_by) : 1u;
  const int32_t group_size = args.experts / args.groups;

  int32_t expert = args.experts;
  // The expert that was chosen last. The initial value precedes every expert.
  uint32_t last_rank = 0xffffffffu;
  int32_t last = -1;
  for (int32_t choice = 0; choice < args.top_k; ++choice) {
    uint32_t best_rank = 0;
    int32_t best = args.experts;
    for (int32_t i = lane; i < args.experts; i += kWarp) {
      if ((groups >> i / group_size & 1) == 0) continue;
      const uint32_t found = rank_bits(__float_as_uint(choose_by(i)));
      if (chosen_before(last_rank, last, found, i) && chosen_before(found, i, best_rank, best)) {
        best_rank = found;
        best = i;
      }
    }
    for (int32_t offset = kWarp / 2; offset > 0; offset /= 2) {
      const uint32_t other_rank = __shfl_xor_sync(0xffffffffu, best_rank, offset);
      const int32_t other = __shfl_xor_sync(0xffffffffu, best, offset);
      if (chosen_before(other_rank, other, best_rank, best)) {
        best_rank = other_rank;
        best = other;
      }
    }
    if (lane == choice) expert = best;
    last_rank = best_rank;
    last = best;
  }
  const float share = expert < args.experts ? share_of(expert) : 0.0f;

  const float total = args.renormalize != 0 ? warp_sum(share) : all;
  int32_t place = 0;
  for (int32_t choice = 0; choice < args.top_k; ++choice) {
    place += __shfl_sync(0xffffffffu, expert, choice) < expert ? 1 : 0;
  }
  if (lane >= args.top_k) return;
  const int64_t at = static_cast<int64_t>(token) * args.top_k + place;
  args.chosen[at] = static_cast<uint32_t>(expert);
  const float counts = args.scale * share / total;
  args.shares[at] = args.scales == nullptr ? counts : counts * args.scales[expert];
}

constexpr int32_t kSortThreads = 1024;

// One block per expert. Each block counts the tokens of all experts and sorts those of its own. Integer counts do not
// depend on the order of the atomic additions.
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
    // The second barrier is needed because the next round overwrites `of_warp`.
    __syncthreads();
  }
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
  int32_t add;  // 1: the sum is added to the content of `out`
  int32_t padding;
};
static_assert(sizeof(CombineArgs) == 48, "as in src/cuda/experts.rs");

// One block per token, which adds in the order of the experts.
template <typename T, int32_t N>
__global__ void combine_kernel(CombineArgs args) {
  const int64_t token = blockIdx.x;
  const T* results = static_cast<const T*>(args.results) + token * args.top_k * args.hidden;
  const float* shares = args.shares + token * args.top_k;
  T* out = static_cast<T*>(args.out) + token * args.hidden;
  for (int32_t i = threadIdx.x * N; i < args.hidden; i += blockDim.x * N) {
    float sums[N] = {};
    if (args.add != 0) {
      const Vector<T, N> before = load<N>(out + i);
      for (int32_t j = 0; j < N; ++j) sums[j] = static_cast<float>(before.at[j]);
    }
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
