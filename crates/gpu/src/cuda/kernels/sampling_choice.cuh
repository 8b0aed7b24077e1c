// The choice of a token by one block: the cut of min_p, top_k and top_p in a row or list, and the token at a place of
// the cumulative weight.
#pragma once

#include "sampling_parts.cuh"

namespace candlepower {

// Threads of a block that handles a whole row.
constexpr int32_t kThreads = 1024;
constexpr int32_t kWarps = kThreads / kWarp;

constexpr int32_t kMaxTop = 32;

struct Shared {
  uint64_t bins[kBins];
  uint64_t warp_weights[kWarps];
  uint64_t warp_ties[kWarps];
  uint64_t target;
  uint64_t ties_left;
  Bin bin;
  Found found;
  int32_t place;
  int32_t chosen;
  uint32_t top_count;
  uint32_t top_keys[kMaxTop];
  uint32_t top_ids[kMaxTop];
  uint32_t candidate_keys[kMaxCandidates];
};

// ---- The cut ---------------------------------------------------------------------------------------

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

template <typename Source, typename Amount>
__device__ Selected select(const Source& source, uint32_t limit, uint64_t target, Amount amount, Shared& shared) {
  uint32_t prefix = 0;
  uint64_t before = 0;
#pragma unroll 1
  for (int32_t digit = 0; digit < kDigits; ++digit) {
    for (int32_t i = threadIdx.x; i < kBins; i += kThreads) shared.bins[i] = 0;
    __syncthreads();
    source.each_key({0, source.count}, threadIdx.x, kThreads, [&](int32_t, uint32_t key) {
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

// The tokens that top_k and then top_p keep, up to the key `limit`.
template <typename Source>
__device__ Cut find_cut(const Source& source, const SamplerRow& params, uint32_t limit, float scale, Shared& shared) {
  Cut cut{limit, kAllTies};
  const Selected kth = select(source, cut.key, params.top_k, [](uint32_t) { return uint64_t(1); }, shared);
  if (kth.key != kNone) cut = {kth.key, params.top_k - kth.before};
  if (params.top_p >= 1.0f) return cut;
  uint64_t below = 0;
  uint64_t ties = 0;
  source.each_key({0, source.count}, threadIdx.x, kThreads, [&](int32_t, uint32_t key) {
    if (key < cut.key) below += weight_of(key, scale);
    if (key == cut.key) ++ties;
  });
  below = block_sum(below);
  ties = block_sum(ties);
  const uint64_t kept_ties = ties < cut.ties ? ties : cut.ties;
  const uint64_t total = below + kept_ties * weight_of(cut.key, scale);
  const uint64_t target = top_p_target(params.top_p, total);
  const Selected last =
      select(source, cut.key, target, [scale](uint32_t key) { return weight_of(key, scale); }, shared);
  if (last.key == kNone) return cut;
  const uint64_t needed = top_p_ties(target, last.before, weight_of(last.key, scale));
  return {last.key, last.key == cut.key && kept_ties < needed ? kept_ties : needed};
}

// ---- The token -------------------------------------------------------------------------------------

// Adds the weight of the kept ties to the weight of each range of ids, and replaces a range's number of ties by the
// number that is left at its beginning. Returns the total weight.
__device__ uint64_t weigh_ranges(uint64_t* weights, uint64_t* ties, int32_t ranges, const Cut& cut, uint64_t of_tie) {
  uint64_t left = cut.ties;
  uint64_t total = 0;
#pragma unroll 4
  for (int32_t i = 0; i < ranges; ++i) {
    const uint64_t kept = ties[i] < left ? ties[i] : left;
    ties[i] = left;
    left -= kept;
    weights[i] += kept * of_tie;
    total += weights[i];
  }
  return total;
}

// Chooses the range that contains the target, which becomes relative to it.
__device__ void choose_range(const uint64_t* weights, const uint64_t* ties, int32_t ranges, uint64_t target,
                             Shared& shared) {
  int32_t chosen = 0;
  while (chosen + 1 < ranges && target >= weights[chosen]) target -= weights[chosen++];
  shared.chosen = chosen;
  shared.target = target;
  shared.ties_left = ties[chosen];
}

// Divides a range among the warps, and returns the part that contains the target. If `uniform` is not null, the range is
// the whole source and the target is that fraction of its weight; else the target and the ties that are left are those
// in `shared`.
template <typename Source>
__device__ Range narrow(const Source& source, Range range, const Cut& cut, float scale, const double* uniform,
                        Shared& shared) {
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  uint64_t weight = 0;
  uint64_t ties = 0;
  source.each_key(part_of_warp(range, warp, kWarps), lane, kWarp, [&](int32_t, uint32_t key) {
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
    const Cut left{cut.key, uniform != nullptr ? cut.ties : shared.ties_left};
    const uint64_t total =
        weigh_ranges(shared.warp_weights, shared.warp_ties, kWarps, left, weight_of(cut.key, scale));
    const uint64_t target = uniform != nullptr ? sample_target(*uniform, total) : shared.target;
    choose_range(shared.warp_weights, shared.warp_ties, kWarps, target, shared);
  }
  __syncthreads();
  return part_of_warp(range, shared.chosen, kWarps);
}

// The place in `range` at which the cumulative weight exceeds the target in `shared`. Warp 0 searches, 32 places at a
// time.
template <typename Source>
__device__ int32_t find_place(const Source& source, Range range, const Cut& cut, float scale, Shared& shared) {
  const int32_t lane = threadIdx.x % kWarp;
  if (threadIdx.x < kWarp) {
    const uint64_t of_tie = weight_of(cut.key, scale);
    uint64_t target = shared.target;
    uint64_t ties_left = shared.ties_left;
    int32_t found = -1;
    for (int32_t first = range.begin; first < range.end; first += kWarp) {
      const int32_t place = first + lane;
      const uint32_t key = place < range.end ? source.key_at(place) : kNone;
      const uint32_t tied = __ballot_sync(0xffffffffu, key == cut.key);
      const bool kept_tie = key == cut.key && __popc(tied & ((1u << lane) - 1)) < ties_left;
      const uint64_t cumulative = warp_scan(key < cut.key ? weight_of(key, scale) : (kept_tie ? of_tie : 0));
      const uint32_t beyond = __ballot_sync(0xffffffffu, cumulative > target);
      if (beyond != 0) {
        found = first + __ffs(beyond) - 1;
        break;
      }
      target -= __shfl_sync(0xffffffffu, cumulative, kWarp - 1);
      const uint64_t used = __popc(tied);
      ties_left -= used < ties_left ? used : ties_left;
    }
    if (lane == 0) shared.place = found;
  }
  __syncthreads();
  return shared.place;
}

// The token at which the cumulative weight, by id, exceeds the fraction `uniform` of the whole.
//
// Each warp sums a part of the source. The part with the target is divided among the warps again if it is long, and warp
// 0 searches what is left. For a vocabulary of 128,256 tokens that takes four steps one after the other. With a single
// division it took 126.
template <typename Source>
__device__ uint32_t sample_token(const Source& source, const Cut& cut, float scale, double uniform, Shared& shared) {
  Range range = narrow(source, {0, source.count}, cut, scale, &uniform, shared);
  if (range.end - range.begin > 8 * kWarp) range = narrow(source, range, cut, scale, nullptr, shared);
  const int32_t place = find_place(source, range, cut, scale, shared);
  return place < 0 ? kNone : source.id_at(place);
}

}  // namespace candlepower
