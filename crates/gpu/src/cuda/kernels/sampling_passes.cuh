// The kernels before the last one of sampling: a block of each handles a part of a row.
//
// 1. `adjust_kernel`: penalties, logit bias and grammar mask give scores, and the largest of them.
// 2. `first_digit_kernel`: a histogram of the keys' first digit. It has weights for top_p, and numbers of tokens for top_k.
//    If all tokens are kept, the weight of the part suffices.
// 3. `second_digit_kernel`: the same of the second digit, within the bin in which top_p ends. For top_k it lists the
//    tokens up to the first digit's bin, of which there are few unless the row is flat.
// 4. `third_digit_kernel`: the same of the third digit, for top_p.
//
// All kernels are launched for each batch, since the parameters are on the device. Those that no row needs end at once.
#pragma once

#include "sampling_parts.cuh"

namespace candlepower {

// A block's sample and part.
struct Place {
  int32_t sample;
  int32_t part;
};

__device__ __forceinline__ Place place_of_block(const SampleArgs& args) {
  const int32_t parts = num_parts(args.vocab);
  const auto block = static_cast<int32_t>(blockIdx.x);
  return {block / parts, block % parts};
}

// Padding rows of a CUDA graph sample nothing.
__device__ __forceinline__ bool is_padding(const SampleArgs& args, const SamplerRow& params) {
  return params.logits_row >= static_cast<uint32_t>(args.rows);
}

template <typename T>
__device__ __forceinline__ const T* logits_of(const SampleArgs& args, const SamplerRow& params) {
  return static_cast<const T*>(args.logits) + static_cast<int64_t>(params.logits_row) * args.vocab;
}

__device__ __forceinline__ float* scores_of(const SampleArgs& args, int32_t sample) {
  return args.scores + static_cast<int64_t>(sample) * args.vocab;
}

// Whether the sample has scores, and not the logits themselves.
__device__ __forceinline__ bool is_adjusted(const SampleArgs& args, const SamplerRow& params) {
  return params.counts_slot < static_cast<uint32_t>(args.slots) ||
         params.mask_row < static_cast<uint32_t>(args.mask_rows) || params.bias_begin < params.bias_end;
}

// Calls `use` with the values of the sample as a `Row`.
template <typename T, typename Use>
__device__ __forceinline__ void with_row(const SampleArgs& args, const SamplerRow& params, int32_t sample, float max,
                                         Use use) {
  if (is_adjusted(args, params)) {
    use(Row<float>{scores_of(args, sample), args.vocab, max});
  } else {
    use(Row<T>{logits_of<T>(args, params), args.vocab, max});
  }
}

// ---- Scores ----------------------------------------------------------------------------------------

// Fills a part of the row of scores: penalties, then logit bias, then grammar mask. Returns the largest score.
template <typename T>
__device__ Best adjust(const SampleArgs& args, const SamplerRow& params, const T* logits, float* scores, Range part) {
  const bool counted = args.counts != nullptr && params.counts_slot < static_cast<uint32_t>(args.slots);
  const bool masked = params.mask_row < static_cast<uint32_t>(args.mask_rows);
  const uint32_t* counts = counted ? args.counts + static_cast<int64_t>(params.counts_slot) * args.vocab : nullptr;
  const uint32_t* mask = masked ? args.masks + static_cast<int64_t>(params.mask_row) * args.mask_words : nullptr;
  // Number of ids per thread whose inputs are loaded before the first score is computed, to have more loads in flight.
  constexpr int32_t kTogether = 8;
  Best best{};
  for (int32_t first = part.begin + threadIdx.x; first < part.end; first += kTogether * kPartThreads) {
    float of_id[kTogether];
    uint32_t count[kTogether] = {};
    bool is_allowed[kTogether];
#pragma unroll
    for (int32_t i = 0; i < kTogether; ++i) {
      const int32_t id = first + i * kPartThreads;
      if (id >= part.end) break;
      of_id[i] = static_cast<float>(logits[id]);
      if (counted) count[i] = counts[id];
      is_allowed[i] = !masked || allowed(mask, args.mask_words, id);
    }
#pragma unroll
    for (int32_t i = 0; i < kTogether; ++i) {
      const int32_t id = first + i * kPartThreads;
      if (id >= part.end) break;
      const float score = is_allowed[i] ? penalized(of_id[i], count[i], params) : -INFINITY;
      best.take(id, score);
      scores[id] = score;
    }
  }
  if (params.bias_begin >= params.bias_end) return best_together(best);
  // A banned token may also have a bias. Adding minus infinity bans it in either order.
  __syncthreads();
  for (uint32_t i = params.bias_begin + threadIdx.x; i < params.bias_end; i += kPartThreads) {
    if (i >= static_cast<uint32_t>(args.num_biases)) break;
    const uint32_t id = args.bias_ids[i];
    if (id >= static_cast<uint32_t>(part.begin) && id < static_cast<uint32_t>(part.end)) {
      atomicAdd(&scores[id], args.biases[i]);
    }
  }
  __syncthreads();
  return best_value(scores, part);
}

template <typename T>
__global__ void __launch_bounds__(kPartThreads) adjust_kernel(SampleArgs args) {
  wait_for_inputs();
  let_next_start();
  const Place at = place_of_block(args);
  const SamplerRow params = args.samples[at.sample];
  if (is_padding(args, params)) return;
  const T* logits = logits_of<T>(args, params);
  const Range part = ids_of_part(args.vocab, at.part);
  const Best best = is_adjusted(args, params) ? adjust(args, params, logits, scores_of(args, at.sample), part)
                                              : best_value(logits, part);
  if (threadIdx.x == 0) Parts(args, at.sample).best[at.part] = best.rank;
}

// ---- Digits ----------------------------------------------------------------------------------------

// Blocks of the kernels below that a multiprocessor runs at once, which limits their registers.
constexpr int32_t kDigitBlocksAtOnce = 2;
// Blocks of these kernels, at most: about twice what 132 multiprocessors run at once. Each block handles several parts in
// turn. With a block per part, a kernel that no row of a large batch needs would take as long as its blocks take to
// start.
constexpr int32_t kDigitBlocks = 512;

// A part of a row, for the kernels below.
struct Step {
  Place at;
  SamplerRow params;
  Parts parts;
  Best best;
  Way way;
  float scale;
  uint32_t limit;  // the largest key that min_p keeps
  Range ids;

  __device__ __forceinline__ Step(const SampleArgs& args, Place place)
      : at(place), params(args.samples[place.sample]), parts(args, place.sample) {
    ids = ids_of_part(args.vocab, at.part);
    best = parts.best_of_all();
    way = is_padding(args, params) ? Way::kNothing : way_of(params, best.value(), args.vocab);
    scale = 1.0f / params.temperature;
    limit = min_p_limit(params.min_p, scale);
  }

  // Calls `visit` with the keys of the part.
  template <typename T, typename Visit>
  __device__ __forceinline__ void each_key(const SampleArgs& args, Visit visit) const {
    with_row<T>(args, params, at.sample, best.value(),
                [&](auto row) { row.each_key(ids, threadIdx.x, kPartThreads, visit); });
  }
};

// Calls `work` for each of the block's parts whose row has a way that `needs` accepts. All threads call it.
//
// The parameters are read before the wait. They are from before the step's sampling, and each kernel of it lets the next
// one start only after its own wait.
template <typename Needs, typename Work>
__device__ __forceinline__ void each_part(const SampleArgs& args, Needs needs, Work work) {
  const int32_t parts = num_parts(args.vocab);
  const int32_t count = args.num_samples * parts;
  const auto blocks = static_cast<int32_t>(gridDim.x);
  const auto first = static_cast<int32_t>(blockIdx.x);
  // Each lane looks at other rows, so a block without work ends after one load.
  bool any = false;
  for (int32_t i = first + static_cast<int32_t>(threadIdx.x) % kWarp * blocks; i < count; i += kWarp * blocks) {
    const SamplerRow& params = args.samples[i / parts];
    any |= !is_padding(args, params) && needs(way_of(params, 0.0f, args.vocab));
  }
  wait_for_inputs();
  let_next_start();
  if (!__any_sync(0xffffffffu, any)) return;
#pragma unroll 1
  for (int32_t i = first; i < count; i += blocks) {
    const Step step(args, {i / parts, i % parts});
    if (!needs(step.way)) continue;
    work(step);
    // The next part overwrites shared memory.
    __syncthreads();
  }
}

template <typename T>
__global__ void __launch_bounds__(kPartThreads, kDigitBlocksAtOnce) first_digit_kernel(SampleArgs args) {
  __shared__ OwnHistogram own;
  const auto needs = [](Way way) { return way == Way::kPlain || way == Way::kTopP || way == Way::kTopK; };
  each_part(args, needs, [&](const Step& step) {
    const float scale = step.scale;
    if (step.way == Way::kPlain) {
      uint64_t weight = 0;
      step.each_key<T>(args, [&](int32_t, uint32_t key) {
        if (key <= step.limit) weight += weight_of(key, scale);
      });
      weight = block_sum(weight);
      if (threadIdx.x == 0) step.parts.below[step.at.part] = weight;
      return;
    }
    const bool counts = step.way == Way::kTopK;
    own.clear(0);
    __syncthreads();
    step.each_key<T>(args, [&](int32_t, uint32_t key) {
      if (key > step.limit) return;
      uint64_t* bin = own.of_lane(digit_bin(key, 0, 0));
      if (counts) {
        add_count(bin);
      } else {
        const uint64_t weight = weight_of(key, scale);
        if (weight != 0) add_shared(bin, weight);
      }
    });
    __syncthreads();
    own.write(step.parts.digit(0), step.at.part, [](int32_t, uint64_t amount) { return amount; });
  });
}

// Lists the part's tokens whose first digit is at most `last` and whose key is at most `limit`, by ascending id. `first`
// is the number of such tokens in the parts before. Each warp has a range of ids.
template <typename R>
__device__ void list_candidates(const R& row, Range ids, int32_t last, uint32_t limit, uint64_t first,
                                Candidate* list) {
  __shared__ uint32_t of_warp[kPartWarps];
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const Range own = part_of_warp(ids, warp, kPartWarps);
  const auto candidate_at = [&](int32_t id) {
    const uint32_t key = id < own.end ? row.key_at(id) : kNone;
    return Candidate{key <= limit && digit_bin(key, 0, 0) <= last ? key : kNone, static_cast<uint32_t>(id)};
  };
  uint32_t count = 0;
#pragma unroll 8
  for (int32_t id = own.begin + lane; id - lane < own.end; id += kWarp) count += candidate_at(id).key != kNone;
  count = warp_sum(count);
  if (lane == 0) of_warp[warp] = count;
  __syncthreads();
  for (int32_t i = 0; i < warp; ++i) first += of_warp[i];
  if (count == 0) return;
#pragma unroll 4
  for (int32_t id = own.begin + lane; id - lane < own.end; id += kWarp) {
    const Candidate candidate = candidate_at(id);
    const uint32_t chosen = __ballot_sync(0xffffffffu, candidate.key != kNone);
    if (candidate.key != kNone) list[first + __popc(chosen & ((1u << lane) - 1))] = candidate;
    first += __popc(chosen);
  }
}

template <typename T>
__global__ void __launch_bounds__(kPartThreads, kDigitBlocksAtOnce) second_digit_kernel(SampleArgs args) {
  __shared__ OwnHistogram own;
  __shared__ Found found;
  __shared__ uint64_t candidates_before;
  const auto needs = [](Way way) { return way == Way::kTopP || way == Way::kTopK; };
  each_part(args, needs, [&](const Step& step) {
    const bool counts = step.way == Way::kTopK;
    const Parts& parts = step.parts;
    const Histograms first_digit = parts.digit(0);
    const int32_t part = step.at.part;
    if (threadIdx.x < kWarp) {
      const auto target_of = [&](uint64_t total) {
        return counts ? uint64_t(step.params.top_k) : top_p_target(step.params.top_p, total);
      };
      const Found bin = find_bin_of_parts(first_digit, parts.count, 0, target_of);
      // If fewer tokens than top_k are left, all are candidates, and the bin is the one after the last.
      const uint64_t before = counts ? amount_before(first_digit, 0, part, min(bin.bin + 1, kBins))
                                     : amount_before(first_digit, part, part + 1, bin.bin);
      if (threadIdx.x == 0) {
        found = bin;
        candidates_before = before;
        if (!counts) parts.below[part] = before;
        const uint64_t candidates = bin.before + bin.amount;
        const bool is_list = counts && candidates <= static_cast<uint64_t>(parts.max_candidates());
        if (part == 0) {
          parts.known[0] = {bin.target, bin.before, static_cast<uint32_t>(bin.bin),
                            is_list ? static_cast<uint32_t>(candidates) : kNone};
        }
      }
    }
    own.clear(1);
    __syncthreads();
    const Found bin = found;
    if (counts) {
      if (bin.before + bin.amount > static_cast<uint64_t>(parts.max_candidates())) return;
      with_row<T>(args, step.params, step.at.sample, step.best.value(), [&](auto row) {
        list_candidates(row, step.ids, bin.bin, step.limit, candidates_before, parts.candidates());
      });
      return;
    }
    const auto prefix = static_cast<uint32_t>(bin.bin);
    step.each_key<T>(args, [&](int32_t, uint32_t key) {
      const int32_t at = key > step.limit ? -1 : digit_bin(key, 1, prefix);
      if (at < 0) return;
      const uint64_t weight = weight_of(key, step.scale);
      if (weight != 0) add_shared(own.of_lane(at), weight);
    });
    __syncthreads();
    own.write(parts.digit(1), part, [](int32_t, uint64_t amount) { return amount; });
  });
}

template <typename T>
__global__ void __launch_bounds__(kPartThreads, kDigitBlocksAtOnce) third_digit_kernel(SampleArgs args) {
  __shared__ OwnHistogram own;
  __shared__ uint32_t prefix;
  const auto needs = [](Way way) { return way == Way::kTopP; };
  each_part(args, needs, [&](const Step& step) {
    const Parts& parts = step.parts;
    const int32_t part = step.at.part;
    if (threadIdx.x < kWarp) {
      const Selection known = parts.known[0];
      const Found bin =
          find_bin_of_parts(parts.digit(1), parts.count, known.before, [&](uint64_t) { return known.target; });
      const uint64_t below = amount_before(parts.digit(1), part, part + 1, bin.bin);
      if (threadIdx.x == 0) {
        prefix = known.prefix << digit_width(1) | static_cast<uint32_t>(bin.bin);
        parts.below[parts.count + part] = below;
        if (part == 0) parts.known[1] = {known.target, bin.before, prefix, kNone};
      }
    }
    own.clear(2);
    __syncthreads();
    // All tokens of a bin have the same key and so the same weight. It suffices to count them.
    step.each_key<T>(args, [&](int32_t, uint32_t key) {
      const int32_t at = key > step.limit ? -1 : digit_bin(key, 2, prefix);
      if (at >= 0) add_count(own.of_lane(at));
    });
    __syncthreads();
    own.write(parts.digit(2), part, [&](int32_t bin, uint64_t count) {
      return count * weight_of(prefix << digit_width(2) | static_cast<uint32_t>(bin), step.scale);
    });
  });
}

}  // namespace candlepower
