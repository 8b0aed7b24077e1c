// The report about a sampled token: its log-probability and rank, and the most likely tokens.
#pragma once

#include "sampling_choice.cuh"

namespace candlepower {

// Number of words of the report before the top tokens: token, log-probability, rank.
constexpr int32_t kReportHead = 3;

// Lowest id from `from` on whose key is `key`, or kNone.
template <typename V>
__device__ uint32_t first_with_key(const Row<V>& row, uint32_t key, uint32_t from) {
  uint32_t found = kNone;
  row.each_key({0, row.count}, threadIdx.x, kThreads, [&](uint32_t id, uint32_t of_id) {
    if (of_id == key && id >= from && id < found) found = id;
  });
  const auto of_warp = [](uint32_t id) {
    return warp_reduce(id, [](uint32_t a, uint32_t b) { return a < b ? a : b; });
  };
  return block_reduce(found, kNone, of_warp);
}

// Reports the log-probability and rank of `token`, and the log-probabilities of the most likely tokens. They refer to
// the model's distribution, before penalties and temperature.
template <typename T>
__device__ void report_logprobs(const SampleArgs& args, const SamplerRow& params, const T* logits,
                                uint32_t token, uint32_t* report, Shared& shared) {
  const Range all{0, args.vocab};
  const Row<T> row{logits, args.vocab, best_value(logits, all).value()};
  float sum = 0.0f;
  each_value(logits, all, threadIdx.x, kThreads,
             [&](int32_t, float logit) { sum += exp_nonpositive(logit - row.max); });
  const double total = block_sum(static_cast<double>(sum));
  const float normalizer = row.max + static_cast<float>(log(total));
  const auto logprob = [&](uint32_t id) {
    return __float_as_uint(static_cast<float>(logits[id]) - normalizer);
  };
  const float own = static_cast<float>(logits[token]);
  uint64_t likelier = 0;
  each_value(logits, all, threadIdx.x, kThreads,
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
  if (threadIdx.x == 0) shared.top_count = 0;
  __syncthreads();
  row.each_key(all, threadIdx.x, kThreads, [&](uint32_t id, uint32_t key) {
    if (key >= cut) return;
    const uint32_t place = atomicAdd(&shared.top_count, 1u);
    shared.top_keys[place] = key;
    shared.top_ids[place] = id;
  });
  __syncthreads();
  uint32_t count = shared.top_count;
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

}  // namespace candlepower
