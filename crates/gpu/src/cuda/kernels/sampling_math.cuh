// Arithmetic of sampling, for device and host: src/cuda_arithmetic.rs samples with it on the CPU and compares with the
// Rust reference.
//
// The weight of a token is an integer, in units of 2^-40 of the most likely token's weight. Sums of integers do not
// depend on the order of additions. So the sampled token is a function of logits, parameters, seed and position,
// whatever the number of threads. Tokens are ordered by their distance below the largest logit, then by id.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "index.cuh"

namespace candlepower {

// Marks a missing token, row or report.
constexpr uint32_t kNone = 0xffffffffu;

// Parameters of one sample. SamplerRow in src/operands/sampling.rs describes the fields.
struct SamplerRow {
  uint32_t logits_row;
  float temperature;
  uint32_t top_k;  // 0: all
  float top_p;
  float min_p;
  float repetition;
  float presence;
  float frequency;
  uint32_t counts_slot;  // kNone: no penalties
  uint32_t bias_begin;
  uint32_t bias_end;
  uint32_t mask_row;      // kNone: no mask
  uint32_t top_logprobs;  // kNone: no log-probabilities
  uint32_t output_index;
  uint32_t seed_low;
  uint32_t seed_high;
};
static_assert(sizeof(SamplerRow) == 64, "as in src/cuda/sampling.rs");

// Flag in a token's count for tokens of the prompt. The other bits are the number of times the token was generated.
constexpr uint32_t kInPrompt = 0x80000000u;

// The logit after penalties. Source of the repetition penalty: CTRL, arXiv 1909.05858.
CANDLEPOWER_HD float penalized(float logit, uint32_t count, const SamplerRow& row) {
  if (count == 0) return logit;
  logit = logit > 0.0f ? logit / row.repetition : logit * row.repetition;
  const uint32_t times = count & ~kInPrompt;
  return times == 0 ? logit : logit - (row.presence + row.frequency * static_cast<float>(times));
}

// Whether the grammar mask allows the token. Ids beyond the end of the mask are not allowed.
CANDLEPOWER_HD bool allowed(const uint32_t* mask, int32_t words, int32_t id) {
  return id / 32 < words && (mask[id / 32] >> (id % 32) & 1u) != 0;
}

CANDLEPOWER_HD uint32_t float_bits(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

CANDLEPOWER_HD float bits_float(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

constexpr uint32_t kInfinityBits = 0x7f800000u;

// The largest value seen and the lowest id that has it, in one integer that can be compared. NaN is ignored, and both
// zeros are equal.
struct Best {
  uint64_t rank;  // 0: none

  CANDLEPOWER_HD void take(uint32_t id, float seen) {
    const uint32_t bits = float_bits(seen + 0.0f);
    const uint32_t ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
    const uint64_t of_seen = static_cast<uint64_t>(ordered) << 32 | (kNone - id);
    if (seen == seen && of_seen > rank) rank = of_seen;
  }

  // NaN if no value was seen.
  CANDLEPOWER_HD float value() const {
    const auto ordered = static_cast<uint32_t>(rank >> 32);
    return bits_float(ordered >> 31 != 0 ? ordered & 0x7fffffffu : ~ordered);
  }

  CANDLEPOWER_HD uint32_t id() const { return kNone - static_cast<uint32_t>(rank); }
};

// Distance of a logit below the largest one, as an integer of 31 bits with the same order. kNone for tokens that cannot
// be sampled (minus infinity, NaN).
CANDLEPOWER_HD uint32_t distance_key(float logit, float max) {
  const float distance = max - logit;
  return distance >= 0.0f && float_bits(distance) < kInfinityBits ? float_bits(distance) : kNone;
}

// e^x for x <= 0, with a relative error below 2e-7, and 0 below -87. The CPU uses the same polynomial.
CANDLEPOWER_HD float exp_nonpositive(float x) {
  const float clamped = x > -87.0f ? x : -87.0f;
  const float n = (clamped * 1.44269504f + 12582912.0f) - 12582912.0f;
  const float r = (clamped - n * 0.6933594f) + n * 2.1219444e-4f;
  float p = 1.9875691e-4f;
  p = p * r + 1.3981999e-3f;
  p = p * r + 8.333452e-3f;
  p = p * r + 4.1665796e-2f;
  p = p * r + 1.6666665e-1f;
  p = p * r + 0.5f;
  const float e = p * r * r + r + 1.0f;
  const float power = bits_float(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
  return x > -87.0f ? e * power : 0.0f;
}

// Weight of a token at this distance, in units of 2^-40. `scale` is 1 / temperature.
CANDLEPOWER_HD uint64_t weight_of(uint32_t key, float scale) {
  if (key >= kInfinityBits) return 0;
  return static_cast<uint64_t>(exp_nonpositive(-bits_float(key) * scale) * 1099511627776.0f);
}

// Largest distance that min_p keeps.
CANDLEPOWER_HD uint32_t min_p_limit(float min_p, float scale) {
  if (!(min_p > 0.0f)) return kInfinityBits - 1;
  if (min_p >= 1.0f) return 0;
  return float_bits(-logf(min_p) / scale);
}

// Kept tokens: all below `key`, and of those at `key` the `ties` lowest ids.
struct Cut {
  uint32_t key;
  uint64_t ties;
};
constexpr uint64_t kAllTies = ~0ull;

// Weight that top_p asks for, of a total that is not zero.
CANDLEPOWER_HD uint64_t top_p_target(float top_p, uint64_t total) {
  const double wanted = ceil(static_cast<double>(top_p) * static_cast<double>(total));
  const uint64_t target = wanted > 0.0 ? static_cast<uint64_t>(wanted) : 0;
  return target < 1 ? 1 : (target > total ? total : target);
}

// Number of tokens at the cut that top_p needs, if the tokens below it weigh `before`.
CANDLEPOWER_HD uint64_t top_p_ties(uint64_t target, uint64_t before, uint64_t weight) {
  return weight == 0 ? kAllTies : (target - before + weight - 1) / weight;
}

// Random bits from seed and position alone, the same as the engine's. Source: SplitMix64, Steele et al., OOPSLA 2014.
CANDLEPOWER_HD uint64_t splitmix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

CANDLEPOWER_HD double uniform_of(const SamplerRow& row) {
  const uint64_t seed = static_cast<uint64_t>(row.seed_high) << 32 | row.seed_low;
  return static_cast<double>(splitmix(splitmix(seed) ^ row.output_index) >> 11) / 9007199254740992.0;
}

// Target of inverse transform sampling: the first token, by id, whose cumulative weight exceeds it is sampled.
CANDLEPOWER_HD uint64_t sample_target(double uniform, uint64_t total) {
  const auto target = static_cast<uint64_t>(uniform * static_cast<double>(total));
  return target < total ? target : total - 1;
}

// ---- Parts of a row --------------------------------------------------------------------------------

// Number of ids that one block reads. The partition depends on the size of the vocabulary alone, so a launch has the
// same blocks for each row. Sums are integers, so no result depends on it.
constexpr int32_t kPartIds = 8192;
// Limits the sums over parts that each block repeats. Larger vocabularies than 524,288 tokens have larger parts.
constexpr int32_t kMaxParts = 64;

// Number of ids in each part but the last.
CANDLEPOWER_HD int32_t part_ids(int32_t vocab) {
  const int32_t least = (vocab + kPartIds - 1) / kPartIds;
  return kPartIds * ((least + kMaxParts - 1) / kMaxParts);
}

CANDLEPOWER_HD int32_t num_parts(int32_t vocab) { return (vocab + part_ids(vocab) - 1) / part_ids(vocab); }

CANDLEPOWER_HD Range ids_of_part(int32_t vocab, int32_t part) {
  const int32_t begin = part * part_ids(vocab);
  const int32_t end = begin + part_ids(vocab);
  return {begin, end < vocab ? end : vocab};
}

// How a row of logits becomes a token.
enum class Way : int32_t {
  kNothing,  // no token is both allowed and finite
  kGreedy,   // the best token
  kPlain,    // all tokens within the limit of min_p
  kTopP,     // those that top_p keeps of them
  kTopK      // those that top_k keeps of them, and top_p of these
};

CANDLEPOWER_HD Way way_of(const SamplerRow& row, float max, int32_t vocab) {
  if (!(fabsf(max) < INFINITY)) return Way::kNothing;
  if (row.temperature == 0.0f || !(1.0f / row.temperature < INFINITY)) return Way::kGreedy;
  if (row.top_k > 0 && row.top_k < static_cast<uint32_t>(vocab)) return Way::kTopK;
  return row.top_p >= 1.0f ? Way::kPlain : Way::kTopP;
}

// ---- Radix selection over the 31 bits of a key, most significant digit first -----------------------

constexpr int32_t kDigits = 3;
constexpr int32_t kBins = 1 << 11;
constexpr int32_t kKeyBits = 31;

CANDLEPOWER_HD constexpr int32_t digit_width(int32_t digit) { return digit == 0 ? 11 : 10; }

// Number of bits below this digit.
CANDLEPOWER_HD int32_t digit_shift(int32_t digit) { return digit == 0 ? 20 : (digit == 1 ? 10 : 0); }

// Bin of `key` at `digit` if the higher digits of `key` are `prefix`, else -1.
CANDLEPOWER_HD int32_t digit_bin(uint32_t key, int32_t digit, uint32_t prefix) {
  const int32_t shift = digit_shift(digit);
  const int32_t width = digit_width(digit);
  if (key >> (shift + width) != prefix) return -1;
  return static_cast<int32_t>(key >> shift & ((1u << width) - 1));
}

struct Bin {
  int32_t index;    // `end` if the target lies beyond the last bin
  uint64_t before;  // amount in all bins before it
};

// First bin of begin..end at which the cumulative amount reaches `target`. `before` is the amount in the bins before
// `begin`.
CANDLEPOWER_HD Bin find_bin(const uint64_t* bins, int32_t begin, int32_t end, uint64_t before,
                            uint64_t target) {
  int32_t index = begin;
  while (index < end && before + bins[index] < target) before += bins[index++];
  return {index, before};
}

}  // namespace candlepower
