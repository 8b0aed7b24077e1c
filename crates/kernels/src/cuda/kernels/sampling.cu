// Draws one token per row of logits, each row by its own parameters, one block of threads per draw.
//
// Penalties, bias and mask make a row of f32 scores; min_p, top_k and top_p become one cut in the order of
// tokens, found by radix selection instead of a sort; the draw is the inverse of the cumulative weight by id.

#include "common.cuh"
#include "sampling_math.cuh"

namespace candlepower {

struct SampleArgs {
  const void* logits;        // [rows, vocab]
  const SamplerRow* draws;   // [draws]
  uint32_t* counts;          // [slots, vocab], may be null
  const uint32_t* bias_ids;  // [biases]
  const float* biases;       // [biases]
  const uint32_t* masks;     // [mask_rows, mask_words]
  float* scores;             // [draws, vocab], overwritten
  uint32_t* token_ids;       // [draws], kNone: no token is allowed and finite
  uint32_t* report;          // [draws, 2 + 2 * max_top]: token, its log-probability, then pairs alike
  int32_t num_draws;
  int32_t rows;
  int32_t vocab;
  int32_t slots;
  int32_t num_biases;
  int32_t mask_rows;
  int32_t mask_words;
  int32_t max_top;
  int32_t dtype;
  int32_t padding;
};
static_assert(sizeof(SampleArgs) == 112, "as in src/cuda/sampling.rs");

constexpr int32_t kThreads = 1024;
constexpr int32_t kWarps = kThreads / kWarp;
constexpr int32_t kMaxTop = 32;
using Unsigned = unsigned long long;  // What atomicAdd takes.

struct Shared {
  uint64_t bins[kBins];
  uint64_t warp_weights[kWarps];
  uint64_t warp_ties[kWarps];
  uint64_t target;
  uint64_t ties_left;
  Bin bin;
  uint32_t token;
  uint32_t chosen_warp;
  uint32_t found;
  uint32_t top_keys[kMaxTop];
  uint32_t top_ids[kMaxTop];
};

// A row of values and what the order of its tokens needs.
template <typename V>
struct Row {
  const V* values;
  int32_t vocab;
  float max;

  __device__ uint32_t key(int32_t id) const {
    return distance_key(static_cast<float>(values[id]), max);
  }
};

template <typename V>
__device__ float maximum(const V* values, int32_t vocab) {
  float max = -INFINITY;
  // fmaxf passes over NaN.
  for (int32_t id = threadIdx.x; id < vocab; id += kThreads) {
    max = fmaxf(max, static_cast<float>(values[id]));
  }
  return block_max(max);
}

// The lowest id of at least `from` whose key is `key`, kNone if there is none.
template <typename V>
__device__ uint32_t first_with_key(const Row<V>& row, uint32_t key, uint32_t from, Shared& shared) {
  if (threadIdx.x == 0) shared.found = kNone;
  __syncthreads();
  for (uint32_t id = threadIdx.x; id < static_cast<uint32_t>(row.vocab); id += kThreads) {
    if (id >= from && row.key(id) == key) {
      atomicMin(&shared.found, id);
      break;
    }
  }
  __syncthreads();
  const uint32_t found = shared.found;
  __syncthreads();
  return found;
}

// find_bin with all threads: each warp sums a run of bins, then one thread walks through the run that holds
// the target.
__device__ void find_bin_together(int32_t digit, uint64_t before, uint64_t target, Shared& shared) {
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t run = (1 << digit_width(digit)) / kWarps;
  uint64_t sum = 0;
  for (int32_t i = threadIdx.x % kWarp; i < run; i += kWarp) sum += shared.bins[warp * run + i];
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) shared.warp_weights[warp] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    const Bin chosen = find_bin(shared.warp_weights, 0, kWarps, before, target);
    const int32_t end = chosen.index == kWarps ? kWarps * run : (chosen.index + 1) * run;
    shared.bin = find_bin(shared.bins, chosen.index * run, end, chosen.before, target);
  }
  __syncthreads();
}

// The smallest key such that the tokens up to it (and up to `limit`) amount to `target`, and the amount
// before it. `amount` gives a token's share from its key. kNone if all together amount to less.
struct Selected {
  uint32_t key;
  uint64_t before;
};

template <typename V, typename Amount>
__device__ Selected select(const Row<V>& row, uint32_t limit, uint64_t target, Amount amount,
                           Shared& shared) {
  uint32_t prefix = 0;
  uint64_t before = 0;
  for (int32_t digit = 0; digit < kDigits; ++digit) {
    for (int32_t i = threadIdx.x; i < kBins; i += kThreads) shared.bins[i] = 0;
    __syncthreads();
    for (int32_t id = threadIdx.x; id < row.vocab; id += kThreads) {
      const uint32_t key = row.key(id);
      if (key > limit) continue;
      const int32_t bin = digit_bin(key, digit, prefix);
      if (bin < 0) continue;
      const uint64_t share = amount(key);
      if (share != 0) atomicAdd(reinterpret_cast<Unsigned*>(&shared.bins[bin]), Unsigned(share));
    }
    __syncthreads();
    find_bin_together(digit, before, target, shared);
    const Bin bin = shared.bin;
    __syncthreads();
    if (bin.index == 1 << digit_width(digit)) return {kNone, bin.before};
    prefix = prefix << digit_width(digit) | static_cast<uint32_t>(bin.index);
    before = bin.before;
  }
  return {prefix, before};
}

// What min_p, top_k and top_p keep.
template <typename V>
__device__ Cut find_cut(const Row<V>& row, const SamplerRow& draw, float scale, Shared& shared) {
  Cut cut{min_p_limit(draw.min_p, scale), kAllTies};
  if (draw.top_k > 0 && draw.top_k < static_cast<uint32_t>(row.vocab)) {
    const Selected kth =
        select(row, cut.key, draw.top_k, [](uint32_t) { return uint64_t(1); }, shared);
    if (kth.key != kNone) cut = {kth.key, draw.top_k - kth.before};
  }
  if (draw.top_p >= 1.0f) return cut;
  uint64_t below = 0;
  uint64_t ties = 0;
  for (int32_t id = threadIdx.x; id < row.vocab; id += kThreads) {
    const uint32_t key = row.key(id);
    if (key < cut.key) below += weight_of(key, scale);
    if (key == cut.key) ++ties;
  }
  below = block_sum(below);
  ties = block_sum(ties);
  const uint64_t kept_ties = ties < cut.ties ? ties : cut.ties;
  const uint64_t total = below + kept_ties * weight_of(cut.key, scale);
  const uint64_t target = top_p_target(draw.top_p, total);
  const Selected last = select(
      row, cut.key, target, [scale](uint32_t key) { return weight_of(key, scale); }, shared);
  if (last.key == kNone) return cut;
  const uint64_t needed = top_p_ties(target, last.before, weight_of(last.key, scale));
  return {last.key, last.key == cut.key && kept_ties < needed ? kept_ties : needed};
}

// The token at which the cumulative weight, by id, exceeds a fraction of the whole. Each warp has a run of
// ids; the run that holds the token is then gone through 32 ids at a time.
template <typename V>
__device__ uint32_t draw_token(const Row<V>& row, const Cut& cut, float scale, double uniform,
                               Shared& shared) {
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const Range run = split_range(row.vocab, kWarp, warp, kWarps);
  const uint64_t cut_weight = weight_of(cut.key, scale);
  uint64_t weight = 0;
  uint64_t ties = 0;
  for (int32_t id = run.begin + lane; id < run.end; id += kWarp) {
    const uint32_t key = row.key(id);
    if (key < cut.key) weight += weight_of(key, scale);
    if (key == cut.key) ++ties;
  }
  weight = warp_sum(weight);
  ties = warp_sum(ties);
  if (lane == 0) {
    shared.warp_weights[warp] = weight;
    shared.warp_ties[warp] = ties;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    uint64_t left = cut.ties;
    uint64_t total = 0;
    for (int32_t i = 0; i < kWarps; ++i) {
      const uint64_t kept = shared.warp_ties[i] < left ? shared.warp_ties[i] : left;
      shared.warp_ties[i] = left;  // From here on: the ties that are left where the run begins.
      left -= kept;
      shared.warp_weights[i] += kept * cut_weight;
      total += shared.warp_weights[i];
    }
    uint64_t target = draw_target(uniform, total);
    uint32_t chosen = 0;
    while (chosen + 1 < kWarps && target >= shared.warp_weights[chosen]) {
      target -= shared.warp_weights[chosen++];
    }
    shared.chosen_warp = chosen;
    shared.target = target;
    shared.ties_left = shared.warp_ties[chosen];
    shared.token = kNone;
  }
  __syncthreads();
  if (warp == static_cast<int32_t>(shared.chosen_warp)) {
    uint64_t target = shared.target;
    uint64_t ties_left = shared.ties_left;
    for (int32_t first = run.begin; first < run.end; first += kWarp) {
      const int32_t id = first + lane;
      const uint32_t key = id < run.end ? row.key(id) : kNone;
      const uint32_t tied = __ballot_sync(0xffffffffu, key == cut.key);
      const bool kept_tie = key == cut.key && __popc(tied & ((1u << lane) - 1)) < ties_left;
      uint64_t cumulative = key < cut.key ? weight_of(key, scale) : (kept_tie ? cut_weight : 0);
      for (int32_t offset = 1; offset < kWarp; offset *= 2) {
        const uint64_t before = __shfl_up_sync(0xffffffffu, cumulative, offset);
        if (lane >= offset) cumulative += before;
      }
      const uint32_t beyond = __ballot_sync(0xffffffffu, cumulative > target);
      if (beyond != 0) {
        if (lane == __ffs(beyond) - 1) shared.token = id;
        break;
      }
      target -= __shfl_sync(0xffffffffu, cumulative, kWarp - 1);
      const uint64_t used = __popc(tied);
      ties_left -= used < ties_left ? used : ties_left;
    }
  }
  __syncthreads();
  return shared.token;
}

// Fills the row of scores: penalties, then bias, then the mask.
template <typename T>
__device__ void adjust(const SampleArgs& args, const SamplerRow& draw, const T* logits, float* scores) {
  const bool counted = args.counts != nullptr && draw.counts_slot < static_cast<uint32_t>(args.slots);
  const bool masked = draw.mask_row < static_cast<uint32_t>(args.mask_rows);
  const uint32_t* counts = counted ? args.counts + int64_t(draw.counts_slot) * args.vocab : nullptr;
  const uint32_t* mask = masked ? args.masks + int64_t(draw.mask_row) * args.mask_words : nullptr;
  for (int32_t id = threadIdx.x; id < args.vocab; id += kThreads) {
    float score = static_cast<float>(logits[id]);
    if (counted) score = penalized(score, counts[id], draw);
    if (masked && !allowed(mask, args.mask_words, id)) score = -INFINITY;
    scores[id] = score;
  }
  __syncthreads();
  // A token may have a bias and be banned: adding minus infinity bans it in either order.
  for (uint32_t i = draw.bias_begin + threadIdx.x; i < draw.bias_end; i += kThreads) {
    if (i >= static_cast<uint32_t>(args.num_biases)) break;
    const uint32_t id = args.bias_ids[i];
    if (id < static_cast<uint32_t>(args.vocab)) atomicAdd(&scores[id], args.biases[i]);
  }
  __syncthreads();
}

// The log-probabilities of `token` and of the most likely tokens, by the model's own distribution.
template <typename T>
__device__ void report_logprobs(const SampleArgs& args, const SamplerRow& draw, const T* logits,
                                uint32_t token, uint32_t* report, Shared& shared) {
  const Row<T> row{logits, args.vocab, maximum(logits, args.vocab)};
  float sum = 0.0f;
  for (int32_t id = threadIdx.x; id < args.vocab; id += kThreads) {
    sum += exp_nonpositive(static_cast<float>(logits[id]) - row.max);
  }
  const double total = block_sum(static_cast<double>(sum));
  const float normalizer = row.max + static_cast<float>(log(total));
  const auto logprob = [&](uint32_t id) {
    return __float_as_uint(static_cast<float>(logits[id]) - normalizer);
  };
  if (threadIdx.x == 0) report[1] = logprob(token);
  const uint32_t most = args.max_top < kMaxTop ? args.max_top : kMaxTop;
  const uint32_t wanted = draw.top_logprobs < most ? draw.top_logprobs : most;
  if (wanted == 0) return;
  const Selected last = select(
      row, kInfinityBits - 1, wanted, [](uint32_t) { return uint64_t(1); }, shared);
  // Fewer finite logits than wanted: all of them, which lie below the limit.
  const uint32_t cut = last.key == kNone ? kInfinityBits : last.key;
  if (threadIdx.x == 0) shared.token = 0;
  __syncthreads();
  for (int32_t id = threadIdx.x; id < args.vocab; id += kThreads) {
    const uint32_t key = row.key(id);
    if (key >= cut) continue;
    const uint32_t place = atomicAdd(&shared.token, 1u);
    shared.top_keys[place] = key;
    shared.top_ids[place] = id;
  }
  __syncthreads();
  uint32_t count = shared.token;
  for (uint32_t from = 0; last.key != kNone && count < wanted; ++count) {
    const uint32_t id = first_with_key(row, cut, from, shared);
    if (threadIdx.x == 0) {
      shared.top_keys[count] = cut;
      shared.top_ids[count] = id;
    }
    from = id + 1;
  }
  __syncthreads();
  if (threadIdx.x < count) {
    const uint32_t key = shared.top_keys[threadIdx.x];
    const uint32_t id = shared.top_ids[threadIdx.x];
    uint32_t rank = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t other = shared.top_keys[i];
      rank += other < key || (other == key && shared.top_ids[i] < id);
    }
    report[2 + 2 * rank] = id;
    report[3 + 2 * rank] = logprob(id);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) sample_kernel(SampleArgs args) {
  __shared__ Shared shared;
  const SamplerRow draw = args.draws[blockIdx.x];
  const int32_t width = 2 + 2 * args.max_top;
  uint32_t* report = args.report + int64_t(blockIdx.x) * width;
  for (int32_t i = threadIdx.x; i < width; i += kThreads) report[i] = kNone;
  if (threadIdx.x == 0) args.token_ids[blockIdx.x] = kNone;
  // The padding of a CUDA graph draws nothing.
  if (draw.logits_row >= static_cast<uint32_t>(args.rows)) return;

  const T* logits = static_cast<const T*>(args.logits) + int64_t(draw.logits_row) * args.vocab;
  float* scores = args.scores + int64_t(blockIdx.x) * args.vocab;
  adjust(args, draw, logits, scores);
  const Row<float> row{scores, args.vocab, maximum(scores, args.vocab)};
  if (!(fabsf(row.max) < INFINITY)) return;

  const float scale = 1.0f / draw.temperature;
  uint32_t token;
  if (draw.temperature == 0.0f || !(scale < INFINITY)) {
    token = first_with_key(row, 0, 0, shared);
  } else {
    const Cut cut = find_cut(row, draw, scale, shared);
    token = draw_token(row, cut, scale, uniform_of(draw), shared);
  }
  if (token == kNone) return;
  if (threadIdx.x == 0) {
    args.token_ids[blockIdx.x] = token;
    report[0] = token;
    if (args.counts != nullptr && draw.counts_slot < static_cast<uint32_t>(args.slots)) {
      args.counts[int64_t(draw.counts_slot) * args.vocab + token] += 1;
    }
  }
  __syncthreads();
  if (draw.top_logprobs != kNone) report_logprobs(args, draw, logits, token, report, shared);
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_sample(const SampleArgs* args, cudaStream_t stream) {
  return with_float_type(args->dtype, [&](auto zero) {
    sample_kernel<decltype(zero)><<<args->num_draws, kThreads, 0, stream>>>(*args);
  });
}
