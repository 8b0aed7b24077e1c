// A row of logits in parts: the arguments of sampling, the memory between its kernels, and histograms over all parts.
//
// A block handles a part of a row and leaves its results in memory. Each block of the next kernel adds those of all
// parts, so no kernel waits for other blocks, and nothing has to be reset. A histogram has the sum of each group of bins
// in front of the bins. A reader adds the sums of all parts and then the bins of one group alone, and the bins of a group
// whose sum is zero are not written.
#pragma once

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
  uint64_t* parts;            // [part_rows, part_words], overwritten
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
  int32_t part_words;
  int32_t part_rows;  // samples that are launched at once
  int32_t padding;
};
static_assert(sizeof(SampleArgs) == 128, "as in src/cuda/sampling.rs");

// Threads of a block that handles a part of a row.
constexpr int32_t kPartThreads = 512;
constexpr int32_t kPartWarps = kPartThreads / kWarp;

// ---- Memory of a sample ----------------------------------------------------------------------------

constexpr int32_t kGroupBins = 64;

constexpr int32_t groups_of(int32_t digit) { return (1 << digit_width(digit)) / kGroupBins; }
// Words of a part's histogram.
constexpr int32_t histogram_words(int32_t digit) { return groups_of(digit) * (1 + kGroupBins); }

// The histograms of all parts for one digit.
struct Histograms {
  uint64_t* words;
  int32_t groups;

  // The sum of each group of bins.
  __device__ __forceinline__ uint64_t* sums(int32_t part) const {
    return words + part * groups * (1 + kGroupBins);
  }
  // A lane's two bins of a group.
  __device__ __forceinline__ uint64_t* bins(int32_t part, int32_t group) const {
    return sums(part) + groups + group * kGroupBins + 2 * (static_cast<int32_t>(threadIdx.x) % kWarp);
  }
};

// The part of a selection that is known after a digit.
struct Selection {
  uint64_t target;
  uint64_t before;      // amount of the tokens below the prefix
  uint32_t prefix;
  uint32_t candidates;  // length of the list of candidates; kNone: there is none
};
constexpr int32_t kSelectionWords = sizeof(Selection) / 8;

// Words of memory per part: the histograms of the first and of the second digit, the best value, and the weights below
// the first digit and below the second. One word keeps the total even, so that pairs of bins stay aligned.
constexpr int32_t kPartWords = histogram_words(0) + histogram_words(1) + 4;
static_assert(kPartWords == 3124 && 2 * kSelectionWords == 6, "as in layout/src/buffers.rs");

// Most candidates of a row: their keys lie in shared memory.
constexpr int32_t kMaxCandidates = 4096;

// The memory of one sample.
struct Parts {
  int32_t count;
  uint64_t* wide;    // histograms of the first digit, then of the third
  uint64_t* narrow;  // histograms of the second digit, or the list of candidates
  uint64_t* best;    // [count]: Best::rank
  uint64_t* below;   // [2, count]: kept weight below the first digit's bin, and within it below the second's; for
                     // Way::kPlain the first row has the whole weight
  Selection* known;  // [2]: after the first digit, and after the second

  __device__ __forceinline__ Parts(const SampleArgs& args, int32_t sample) : count(num_parts(args.vocab)) {
    wide = args.parts + static_cast<int64_t>(sample) * args.part_words;
    narrow = wide + count * histogram_words(0);
    best = narrow + count * histogram_words(1);
    below = best + count;
    known = reinterpret_cast<Selection*>(below + 3 * count);
  }

  __device__ __forceinline__ Histograms digit(int32_t digit) const {
    return {digit == 1 ? narrow : wide, groups_of(digit)};
  }
  __device__ __forceinline__ Candidate* candidates() const { return reinterpret_cast<Candidate*>(narrow); }
  __device__ __forceinline__ int32_t max_candidates() const {
    return min(kMaxCandidates, count * histogram_words(1));
  }

  // The largest value of all parts. Each warp computes it, so that no thread waits for another warp.
  __device__ __forceinline__ Best best_of_all() const {
    uint64_t rank = 0;
    for (int32_t part = threadIdx.x % kWarp; part < count; part += kWarp) rank = max(rank, best[part]);
    return {warp_reduce(rank, [](uint64_t a, uint64_t b) { return a > b ? a : b; })};
  }
};

// ---- Histograms over parts -------------------------------------------------------------------------

// Sums of the lanes up to this one.
__device__ __forceinline__ uint64_t warp_scan(uint64_t value) {
  const int32_t lane = threadIdx.x % kWarp;
#pragma unroll
  for (int32_t offset = 1; offset < kWarp; offset *= 2) {
    const uint64_t before = __shfl_up_sync(0xffffffffu, value, offset);
    if (lane >= offset) value += before;
  }
  return value;
}

// The first bin up to which the cumulative amount reaches the target.
struct Found {
  int32_t bin;      // the number of bins if all together amount to less
  uint64_t before;  // amount before the bin
  uint64_t amount;  // amount in the bin
  uint64_t target;
};

// Finds a bin over all parts, with one warp. `before` is the amount below all bins, and `target_of` returns the target
// for the total.
template <typename TargetOf>
__device__ Found find_bin_of_parts(const Histograms& all, int32_t parts, uint64_t before, TargetOf target_of) {
  const int32_t lane = threadIdx.x % kWarp;
  uint64_t sum = 0;
  if (lane < all.groups) {
#pragma unroll 4
    for (int32_t part = 0; part < parts; ++part) sum += all.sums(part)[lane];
  }
  uint64_t cumulative = warp_scan(sum);
  const uint64_t total = before + __shfl_sync(0xffffffffu, cumulative, kWarp - 1);
  const uint64_t target = target_of(total);
  uint32_t reached = __ballot_sync(0xffffffffu, before + cumulative >= target);
  if (reached == 0) return {all.groups * kGroupBins, total, 0, target};
  const int32_t group = __ffs(reached) - 1;
  before += __shfl_sync(0xffffffffu, cumulative - sum, group);
  uint64_t first = 0;
  uint64_t second = 0;
#pragma unroll 4
  for (int32_t part = 0; part < parts; ++part) {
    if (all.sums(part)[group] == 0) continue;
    const auto pair = load<2>(all.bins(part, group));
    first += pair.at[0];
    second += pair.at[1];
  }
  cumulative = warp_scan(first + second);
  reached = __ballot_sync(0xffffffffu, before + cumulative >= target);
  const int32_t owner = __ffs(reached) - 1;
  const uint64_t before_pair = before + cumulative - first - second;
  const bool in_second = before_pair + first < target;
  const uint64_t before_bin = in_second ? before_pair + first : before_pair;
  const uint64_t amount = in_second ? second : first;
  const int32_t bin = group * kGroupBins + 2 * owner + __shfl_sync(0xffffffffu, in_second ? 1 : 0, owner);
  return {bin, __shfl_sync(0xffffffffu, before_bin, owner), __shfl_sync(0xffffffffu, amount, owner), target};
}

// Amount of the bins before `bin` in the parts from `first` to `end`, with one warp.
__device__ uint64_t amount_before(const Histograms& all, int32_t first, int32_t end, int32_t bin) {
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t group = bin / kGroupBins;
  const int32_t at = group * kGroupBins + 2 * lane;
  uint64_t sum = 0;
#pragma unroll 4
  for (int32_t part = first; part < end; ++part) {
    const uint64_t* sums = all.sums(part);
    if (lane < group) sum += sums[lane];
    if (group == all.groups || sums[group] == 0) continue;
    const auto pair = load<2>(all.bins(part, group));
    if (at < bin) sum += pair.at[0];
    if (at + 1 < bin) sum += pair.at[1];
  }
  return warp_sum(sum);
}

// ---- A part's own histogram ------------------------------------------------------------------------

// Copies of a block's bins, which the lanes of a warp share. Many values lie in few bins, where the additions of a warp
// wait for each other. Copies of a bin lie beside each other, so in different banks.
constexpr int32_t kBinCopies = 2;

// A part's histogram in shared memory.
struct OwnHistogram {
  uint64_t bins[kBins * kBinCopies];

  // The block needs a barrier between each of these three and the next.
  __device__ __forceinline__ void clear(int32_t digit) {
    for (int32_t i = threadIdx.x; i < kBinCopies << digit_width(digit); i += kPartThreads) bins[i] = 0;
  }

  __device__ __forceinline__ uint64_t* of_lane(int32_t bin) { return &bins[bin * kBinCopies + threadIdx.x % kBinCopies]; }

  // Writes the histogram of `part`. `amount_of` returns a bin's amount for its content.
  template <typename AmountOf>
  __device__ void write(const Histograms& all, int32_t part, AmountOf amount_of) const {
    const int32_t lane = threadIdx.x % kWarp;
    for (int32_t group = threadIdx.x / kWarp; group < all.groups; group += kPartWarps) {
      const int32_t at = group * kGroupBins + 2 * lane;
      Vector<uint64_t, 2> pair{};
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        uint64_t content = 0;
#pragma unroll
        for (int32_t copy = 0; copy < kBinCopies; ++copy) content += bins[(at + i) * kBinCopies + copy];
        if (content != 0) pair.at[i] = amount_of(at + i, content);
      }
      const uint64_t sum = warp_sum(pair.at[0] + pair.at[1]);
      if (lane == 0) all.sums(part)[group] = sum;
      if (sum != 0) store(all.bins(part, group), pair);
    }
  }
};

}  // namespace candlepower
