// Samples one token per row of logits, each by its own parameters.
//
// Penalties, logit bias and grammar mask give a row of f32 scores. min_p, top_k and top_p become one cut in the order
// of tokens, which radix selection finds without a sort. The token is sampled by inverting the cumulative weight in the
// order of ids. Several blocks read each row, in the kernels of sampling_passes.cuh, and one block per sample finishes
// here.
//
// Before, one block did everything. One multiprocessor reads 128,256 logits slowly: on an H200, it took 13 us (greedy),
// 43 us (temperature), 74 us (top_k) or 152 us (top_p), for 1 to 64 rows.

#include <algorithm>

#include "sampling_logprobs.cuh"
#include "sampling_passes.cuh"

namespace candlepower {

// Chooses the part of the row that contains the token, and returns its ids. `weights` and `ties` have an entry per part.
__device__ Range choose_part(const SampleArgs& args, const SamplerRow& params, uint64_t* weights, uint64_t* ties,
                             const Cut& cut, float scale, Shared& shared) {
  __syncthreads();
  if (threadIdx.x == 0) {
    const int32_t parts = num_parts(args.vocab);
    const uint64_t total = weigh_ranges(weights, ties, parts, cut, weight_of(cut.key, scale));
    choose_range(weights, ties, parts, sample_target(uniform_of(params), total), shared);
  }
  __syncthreads();
  return ids_of_part(args.vocab, shared.chosen);
}

// The cut of top_p by the histograms of the third digit. Writes the kept weight below the cut and the number of ties of
// each part.
__device__ Cut finish_top_p(const Parts& parts, float scale, uint64_t* weights, uint64_t* ties, Shared& shared) {
  const int32_t warp = threadIdx.x / kWarp;
  const Histograms third = parts.digit(2);
  const Selection known = parts.known[1];
  if (warp == 0) {
    const Found found = find_bin_of_parts(third, parts.count, known.before, [&](uint64_t) { return known.target; });
    if (threadIdx.x == 0) shared.found = found;
  }
  __syncthreads();
  const Found found = shared.found;
  const uint32_t key = known.prefix << digit_width(2) | static_cast<uint32_t>(found.bin);
  const uint64_t of_tie = weight_of(key, scale);
  for (int32_t part = warp; part < parts.count; part += kWarps) {
    const uint64_t before = amount_before(third, part, part + 1, found.bin);
    const uint64_t upto = amount_before(third, part, part + 1, found.bin + 1);
    if (threadIdx.x % kWarp != 0) continue;
    weights[part] = parts.below[part] + parts.below[parts.count + part] + before;
    ties[part] = of_tie == 0 ? 0 : (upto - before) / of_tie;
  }
  return {key, top_p_ties(found.target, found.before, of_tie)};
}

// The token sampled from a row whose best value is finite, or kNone if no token has a weight.
template <typename V>
__device__ uint32_t sample_from(const Row<V>& row, Way way, const SampleArgs& args, const SamplerRow& params,
                                const Parts& parts, Shared& shared) {
  const float scale = 1.0f / params.temperature;
  const uint32_t limit = min_p_limit(params.min_p, scale);
  if (way == Way::kTopK) {
    const uint32_t count = parts.known[0].candidates;
    if (count == kNone) {
      // The row is too flat for a list, so this block reads all of it several times.
      const Cut cut = find_cut(row, params, limit, scale, shared);
      return sample_token(row, cut, scale, uniform_of(params), shared);
    }
    const Candidate* list = parts.candidates();
    for (uint32_t i = threadIdx.x; i < count; i += kThreads) shared.candidate_keys[i] = list[i].key;
    // `find_cut` has a barrier before it reads the keys.
    const Candidates source{shared.candidate_keys, list, static_cast<int32_t>(count)};
    const Cut cut = find_cut(source, params, limit, scale, shared);
    return sample_token(source, cut, scale, uniform_of(params), shared);
  }
  uint64_t* weights = shared.bins;
  uint64_t* ties = shared.bins + kMaxParts;
  Cut cut{limit, kAllTies};
  if (way == Way::kTopP) {
    cut = finish_top_p(parts, scale, weights, ties, shared);
  } else {
    for (int32_t part = threadIdx.x; part < parts.count; part += kThreads) {
      // Here the ties are in the weights.
      weights[part] = parts.below[part];
      ties[part] = 0;
    }
  }
  Range range = choose_part(args, params, weights, ties, cut, scale, shared);
  range = narrow(row, range, cut, scale, nullptr, shared);
  const int32_t place = find_place(row, range, cut, scale, shared);
  return place < 0 ? kNone : row.id_at(place);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) token_kernel(SampleArgs args) {
  __shared__ Shared shared;
  // The parameters are from before the step's sampling, and each kernel of it starts the next one after its own wait.
  const SamplerRow params = args.samples[blockIdx.x];
  const Parts parts(args, blockIdx.x);
  wait_for_inputs();
  let_next_start();
  const int32_t width = kReportHead + 2 * args.max_top;
  uint32_t* report = args.report + static_cast<int64_t>(blockIdx.x) * width;
  for (int32_t i = threadIdx.x; i < width; i += kThreads) report[i] = kNone;
  if (threadIdx.x == 0) args.token_ids[blockIdx.x] = kNone;
  if (is_padding(args, params)) return;
  const Best best = parts.best_of_all();
  const Way way = way_of(params, best.value(), args.vocab);
  if (way == Way::kNothing) return;
  uint32_t token = best.id();
  if (way != Way::kGreedy) {
    with_row<T>(args, params, blockIdx.x, best.value(),
                [&](auto row) { token = sample_from(row, way, args, params, parts, shared); });
  }
  if (token == kNone) return;
  if (threadIdx.x == 0) {
    args.token_ids[blockIdx.x] = token;
    report[0] = token;
    if (args.counts != nullptr && params.counts_slot < static_cast<uint32_t>(args.slots)) {
      args.counts[static_cast<int64_t>(params.counts_slot) * args.vocab + token] += 1;
    }
  }
  __syncthreads();
  if (params.top_logprobs != kNone) report_logprobs(args, params, logits_of<T>(args, params), token, report, shared);
}

template <typename T>
void launch_samples(const SampleArgs& args, cudaStream_t stream) {
  const int32_t parts = args.num_samples * num_parts(args.vocab);
  const int32_t blocks = std::min(parts, kDigitBlocks);
  launch_early(adjust_kernel<T>, parts, kPartThreads, stream, args);
  launch_early(first_digit_kernel<T>, blocks, kPartThreads, stream, args);
  launch_early(second_digit_kernel<T>, blocks, kPartThreads, stream, args);
  launch_early(third_digit_kernel<T>, blocks, kPartThreads, stream, args);
  launch_early(token_kernel<T>, args.num_samples, kThreads, stream, args);
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_sample(const SampleArgs* args, cudaStream_t stream) {
  const int32_t words = num_parts(args->vocab) * kPartWords + 2 * kSelectionWords;
  if (args->part_words != words || args->part_rows < 1) return cudaErrorInvalidValue;
  return with_float_type(args->dtype, [&](auto zero) {
    // More samples than there is memory for are sampled in several launches.
    for (int32_t first = 0; first < args->num_samples; first += args->part_rows) {
      SampleArgs own = *args;
      own.num_samples = std::min(args->part_rows, args->num_samples - first);
      own.samples += first;
      own.scores += static_cast<int64_t>(first) * args->vocab;
      own.token_ids += first;
      own.report += static_cast<int64_t>(first) * (kReportHead + 2 * args->max_top);
      launch_samples<decltype(zero)>(own, stream);
    }
  });
}
