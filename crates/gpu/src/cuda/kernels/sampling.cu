// Samples one token per row of logits, each by its own parameters, with one block per sample.
//
// Penalties, logit bias and grammar mask give a row of f32 scores. min_p, top_k and top_p become one cut in the order
// of tokens, which radix selection finds without a sort. The token is sampled by inverting the cumulative weight in the
// order of ids.

#include "sampling_values.cuh"

namespace candlepower {

struct SampleArgs {
  const void* logits;         // [rows, vocab]
  const SamplerRow* samples;  // [num_samples]
  uint32_t* counts;           // [slots, vocab], may be null
  const uint32_t* bias_ids;   // [biases]
  const float* biases;        // [biases]
  const uint32_t* masks;      // [mask_rows, mask_words]
  float* scores;              // [num_samples, vocab], overwritten
  uint32_t* token_ids;        // [num_samples]; kNone: no token is both allowed and finite
  uint32_t* report;           // [num_samples, 3 + 2 * max_top]: token, its log-probability and rank; then pairs of token and log-probability
  int32_t num_samples;
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

constexpr int32_t kMaxTop = 32;
// Number of words of the report before the top tokens: token, log-probability, rank.
constexpr int32_t kReportHead = 3;

struct Shared {
  uint64_t bins[kBins];
  uint64_t warp_weights[kWarps];
  uint64_t warp_ties[kWarps];
  uint64_t target;
  uint64_t ties_left;
  Bin bin;
  uint32_t token;
  uint32_t chosen_warp;
  uint32_t top_keys[kMaxTop];
  uint32_t top_ids[kMaxTop];
};

// A row of values, and the maximum that keys are relative to.
template <typename V>
struct Row {
  const V* values;
  int32_t vocab;
  float max;

  // Calls `visit` with each id and its key. The ids are divided among all threads of the block.
  template <typename Visit>
  __device__ __forceinline__ void each_key(Visit visit) const {
    each_value(values, {0, vocab}, threadIdx.x, kThreads,
               [&](int32_t id, float value) { visit(id, distance_key(value, max)); });
  }
};

// Lowest id from `from` on whose key is `key`, or kNone.
template <typename V>
__device__ uint32_t first_with_key(const Row<V>& row, uint32_t key, uint32_t from) {
  uint32_t found = kNone;
  row.each_key([&](uint32_t id, uint32_t of_id) {
    if (of_id == key && id >= from && id < found) found = id;
  });
  const auto of_warp = [](uint32_t id) {
    return warp_reduce(id, [](uint32_t a, uint32_t b) { return a < b ? a : b; });
  };
  return block_reduce(found, kNone, of_warp);
}

// find_bin with all threads: each warp sums a range of bins, then one thread searches the range that contains the
// target.
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

// The smallest key such that the tokens up to it amount to `target`, and the amount of the tokens before it. Tokens
// beyond `limit` do not count, and `amount` returns a token's share for its key. The key is kNone if all tokens
// together amount to less.
struct Selected {
  uint32_t key;
  uint64_t before;
};

template <typename V, typename Amount>
__device__ Selected select(const Row<V>& row, uint32_t limit, uint64_t target, Amount amount,
                           Shared& shared) {
  uint32_t prefix = 0;
  uint64_t before = 0;
#pragma unroll 1
  for (int32_t digit = 0; digit < kDigits; ++digit) {
    for (int32_t i = threadIdx.x; i < kBins; i += kThreads) shared.bins[i] = 0;
    __syncthreads();
    row.each_key([&](int32_t, uint32_t key) {
      const int32_t bin = key > limit ? -1 : digit_bin(key, digit, prefix);
      if (bin < 0) return;
      const uint64_t share = amount(key);
      if (share != 0) add_shared(&shared.bins[bin], share);
    });
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

// The tokens that min_p, top_k and top_p keep.
template <typename V>
__device__ Cut find_cut(const Row<V>& row, const SamplerRow& params, float scale, Shared& shared) {
  Cut cut{min_p_limit(params.min_p, scale), kAllTies};
  if (params.top_k > 0 && params.top_k < static_cast<uint32_t>(row.vocab)) {
    const Selected kth =
        select(row, cut.key, params.top_k, [](uint32_t) { return uint64_t(1); }, shared);
    if (kth.key != kNone) cut = {kth.key, params.top_k - kth.before};
  }
  if (params.top_p >= 1.0f) return cut;
  uint64_t below = 0;
  uint64_t ties = 0;
  row.each_key([&](int32_t, uint32_t key) {
    if (key < cut.key) below += weight_of(key, scale);
    if (key == cut.key) ++ties;
  });
  below = block_sum(below);
  ties = block_sum(ties);
  const uint64_t kept_ties = ties < cut.ties ? ties : cut.ties;
  const uint64_t total = below + kept_ties * weight_of(cut.key, scale);
  const uint64_t target = top_p_target(params.top_p, total);
  const Selected last = select(
      row, cut.key, target, [scale](uint32_t key) { return weight_of(key, scale); }, shared);
  if (last.key == kNone) return cut;
  const uint64_t needed = top_p_ties(target, last.before, weight_of(last.key, scale));
  return {last.key, last.key == cut.key && kept_ties < needed ? kept_ties : needed};
}

// Part of a range that a warp handles. Its boundaries are multiples of a warp's width.
__device__ Range part_of_warp(Range range, int32_t warp) {
  const Range part = split_range(range.end - range.begin, kWarp, warp, kWarps);
  return {range.begin + part.begin, range.begin + part.end};
}

// Returns the token at which the cumulative weight, by id, exceeds the fraction `uniform` of the whole.
//
// Each warp sums a part of the ids. The part with the target is divided among the warps again, and warp 0 searches what
// is left, 32 ids at a time. For a vocabulary of 128,256 tokens that takes four steps one after the other. With a single
// division it took 126.
template <typename V>
__device__ uint32_t sample_token(const Row<V>& row, const Cut& cut, float scale, double uniform,
                               Shared& shared) {
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const uint64_t cut_weight = weight_of(cut.key, scale);
  Range range{0, row.vocab};
#pragma unroll 1
  for (int32_t level = 0; level < 2; ++level) {
    uint64_t weight = 0;
    uint64_t ties = 0;
    each_value(row.values, part_of_warp(range, warp), lane, kWarp, [&](int32_t, float value) {
      const uint32_t key = distance_key(value, row.max);
      if (key < cut.key) weight += weight_of(key, scale);
      if (key == cut.key) ++ties;
    });
    weight = warp_sum(weight);
    ties = warp_sum(ties);
    if (lane == 0) {
      shared.warp_weights[warp] = weight;
      shared.warp_ties[warp] = ties;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      uint64_t left = level == 0 ? cut.ties : shared.ties_left;
      uint64_t total = 0;
      for (int32_t i = 0; i < kWarps; ++i) {
        const uint64_t kept = shared.warp_ties[i] < left ? shared.warp_ties[i] : left;
        shared.warp_ties[i] = left;  // From here on: the number of ties left at the beginning of the part.
        left -= kept;
        shared.warp_weights[i] += kept * cut_weight;
        total += shared.warp_weights[i];
      }
      uint64_t target = level == 0 ? sample_target(uniform, total) : shared.target;
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
    range = part_of_warp(range, static_cast<int32_t>(shared.chosen_warp));
  }
  if (warp == 0) {
    uint64_t target = shared.target;
    uint64_t ties_left = shared.ties_left;
    for (int32_t first = range.begin; first < range.end; first += kWarp) {
      const int32_t id = first + lane;
      const uint32_t key = id < range.end ? distance_key(static_cast<float>(row.values[id]), row.max) : kNone;
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

// Fills the row of scores: penalties, then logit bias, then grammar mask.
template <typename T>
__device__ Best adjust(const SampleArgs& args, const SamplerRow& params, const T* logits, float* scores) {
  const bool counted = args.counts != nullptr && params.counts_slot < static_cast<uint32_t>(args.slots);
  const bool masked = params.mask_row < static_cast<uint32_t>(args.mask_rows);
  const uint32_t* counts = counted ? args.counts + int64_t(params.counts_slot) * args.vocab : nullptr;
  const uint32_t* mask = masked ? args.masks + int64_t(params.mask_row) * args.mask_words : nullptr;
  // Number of ids per thread whose inputs are loaded before the first score is computed, to have more loads in flight.
  constexpr int32_t kTogether = 8;
  Best best{};
  for (int32_t first = threadIdx.x; first < args.vocab; first += kTogether * kThreads) {
    float of_id[kTogether];
    uint32_t count[kTogether] = {};
    bool is_allowed[kTogether];
#pragma unroll
    for (int32_t i = 0; i < kTogether; ++i) {
      const int32_t id = first + i * kThreads;
      if (id >= args.vocab) break;
      of_id[i] = static_cast<float>(logits[id]);
      if (counted) count[i] = counts[id];
      is_allowed[i] = !masked || allowed(mask, args.mask_words, id);
    }
#pragma unroll
    for (int32_t i = 0; i < kTogether; ++i) {
      const int32_t id = first + i * kThreads;
      if (id >= args.vocab) break;
      const float score = is_allowed[i] ? penalized(of_id[i], count[i], params) : -INFINITY;
      best.take(id, score);
      scores[id] = score;
    }
  }
  // The reduction has a barrier, after which all scores are visible to every thread.
  best = best_together(best);
  if (params.bias_begin >= params.bias_end) return best;
  // A banned token may also have a bias. Adding minus infinity bans it in either order.
  for (uint32_t i = params.bias_begin + threadIdx.x; i < params.bias_end; i += kThreads) {
    if (i >= static_cast<uint32_t>(args.num_biases)) break;
    const uint32_t id = args.bias_ids[i];
    if (id < static_cast<uint32_t>(args.vocab)) atomicAdd(&scores[id], args.biases[i]);
  }
  __syncthreads();
  return best_value(scores, args.vocab);
}

// Reports the log-probability and rank of `token`, and the log-probabilities of the most likely tokens. They refer to
// the model's distribution, before penalties and temperature.
template <typename T>
__device__ void report_logprobs(const SampleArgs& args, const SamplerRow& params, const T* logits,
                                uint32_t token, uint32_t* report, Shared& shared) {
  const Row<T> row{logits, args.vocab, best_value(logits, args.vocab).value()};
  float sum = 0.0f;
  each_value(logits, {0, args.vocab}, threadIdx.x, kThreads,
             [&](int32_t, float logit) { sum += exp_nonpositive(logit - row.max); });
  const double total = block_sum(static_cast<double>(sum));
  const float normalizer = row.max + static_cast<float>(log(total));
  const auto logprob = [&](uint32_t id) {
    return __float_as_uint(static_cast<float>(logits[id]) - normalizer);
  };
  const float own = static_cast<float>(logits[token]);
  uint64_t likelier = 0;
  each_value(logits, {0, args.vocab}, threadIdx.x, kThreads,
             [&](int32_t, float logit) { likelier += logit > own; });
  likelier = block_sum(likelier);
  if (threadIdx.x == 0) {
    report[1] = logprob(token);
    report[2] = own > -INFINITY ? static_cast<uint32_t>(likelier) + 1 : static_cast<uint32_t>(args.vocab);
  }
  const uint32_t most = args.max_top < kMaxTop ? args.max_top : kMaxTop;
  const uint32_t wanted = params.top_logprobs < most ? params.top_logprobs : most;
  if (wanted == 0) return;
  const Selected last = select(
      row, kInfinityBits - 1, wanted, [](uint32_t) { return uint64_t(1); }, shared);
  // With fewer finite logits than requested, all of them are reported.
  const uint32_t cut = last.key == kNone ? kInfinityBits : last.key;
  if (threadIdx.x == 0) shared.token = 0;
  __syncthreads();
  row.each_key([&](uint32_t id, uint32_t key) {
    if (key >= cut) return;
    const uint32_t place = atomicAdd(&shared.token, 1u);
    shared.top_keys[place] = key;
    shared.top_ids[place] = id;
  });
  __syncthreads();
  uint32_t count = shared.token;
  for (uint32_t from = 0; last.key != kNone && count < wanted; ++count) {
    const uint32_t id = first_with_key(row, cut, from);
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
    report[kReportHead + 2 * rank] = id;
    report[kReportHead + 1 + 2 * rank] = logprob(id);
  }
}

// The token sampled from these values, or kNone if none is finite.
template <typename V>
__device__ uint32_t sample_from(const V* values, Best best, const SampleArgs& args, const SamplerRow& params, Shared& shared) {
  const Row<V> row{values, args.vocab, best.value()};
  if (!(fabsf(row.max) < INFINITY)) return kNone;
  const float scale = 1.0f / params.temperature;
  if (params.temperature == 0.0f || !(scale < INFINITY)) return best.id();
  const Cut cut = find_cut(row, params, scale, shared);
  return sample_token(row, cut, scale, uniform_of(params), shared);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) sample_kernel(SampleArgs args) {
  __shared__ Shared shared;
  const SamplerRow params = args.samples[blockIdx.x];
  const int32_t width = kReportHead + 2 * args.max_top;
  uint32_t* report = args.report + int64_t(blockIdx.x) * width;
  for (int32_t i = threadIdx.x; i < width; i += kThreads) report[i] = kNone;
  if (threadIdx.x == 0) args.token_ids[blockIdx.x] = kNone;
  // Padding rows of a CUDA graph sample nothing.
  if (params.logits_row >= static_cast<uint32_t>(args.rows)) return;

  const T* logits = static_cast<const T*>(args.logits) + int64_t(params.logits_row) * args.vocab;
  const bool adjusted = params.counts_slot < static_cast<uint32_t>(args.slots) ||
                        params.mask_row < static_cast<uint32_t>(args.mask_rows) || params.bias_begin < params.bias_end;
  uint32_t token;
  if (adjusted) {
    float* scores = args.scores + int64_t(blockIdx.x) * args.vocab;
    const Best best = adjust(args, params, logits, scores);
    token = sample_from(scores, best, args, params, shared);
  } else {
    token = sample_from(logits, best_value(logits, args.vocab), args, params, shared);
  }
  if (token == kNone) return;
  if (threadIdx.x == 0) {
    args.token_ids[blockIdx.x] = token;
    report[0] = token;
    if (args.counts != nullptr && params.counts_slot < static_cast<uint32_t>(args.slots)) {
      args.counts[int64_t(params.counts_slot) * args.vocab + token] += 1;
    }
  }
  __syncthreads();
  if (params.top_logprobs != kNone) report_logprobs(args, params, logits, token, report, shared);
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_sample(const SampleArgs* args, cudaStream_t stream) {
  return with_float_type(args->dtype, [&](auto zero) {
    sample_kernel<decltype(zero)><<<args->num_samples, kThreads, 0, stream>>>(*args);
  });
}
