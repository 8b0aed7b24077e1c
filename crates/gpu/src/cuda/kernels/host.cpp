// The kernels' index arithmetic and sampling for the CPU. src/cuda_arithmetic.rs compiles this file with the host's
// compiler and compares it with the Rust references. The loops are those of sampling.cu with one thread; all decisions
// are in the shared headers.

#include <cstring>
#include <vector>

#include "index.cuh"
#include "sampling_math.cuh"

using namespace candlepower;

namespace {

struct Scores {
  const float* values;
  int32_t vocab;
  float max;

  uint32_t key(int32_t id) const { return distance_key(values[id], max); }
};

struct Selected {
  uint32_t key;
  uint64_t before;
};

template <typename Amount>
Selected select(const Scores& row, uint32_t limit, uint64_t target, Amount amount) {
  uint32_t prefix = 0;
  uint64_t before = 0;
  for (int32_t digit = 0; digit < kDigits; ++digit) {
    std::vector<uint64_t> bins(kBins, 0);
    for (int32_t id = 0; id < row.vocab; ++id) {
      const uint32_t key = row.key(id);
      const int32_t bin = key > limit ? -1 : digit_bin(key, digit, prefix);
      if (bin >= 0) bins[bin] += amount(key);
    }
    const int32_t end = 1 << digit_width(digit);
    const Bin bin = find_bin(bins.data(), 0, end, before, target);
    if (bin.index == end) return {kNone, bin.before};
    prefix = prefix << digit_width(digit) | static_cast<uint32_t>(bin.index);
    before = bin.before;
  }
  return {prefix, before};
}

Cut find_cut(const Scores& row, const SamplerRow& params, float scale) {
  Cut cut{min_p_limit(params.min_p, scale), kAllTies};
  if (params.top_k > 0 && params.top_k < static_cast<uint32_t>(row.vocab)) {
    const Selected kth = select(row, cut.key, params.top_k, [](uint32_t) { return uint64_t(1); });
    if (kth.key != kNone) cut = {kth.key, params.top_k - kth.before};
  }
  if (params.top_p >= 1.0f) return cut;
  uint64_t below = 0;
  uint64_t ties = 0;
  for (int32_t id = 0; id < row.vocab; ++id) {
    if (row.key(id) < cut.key) below += weight_of(row.key(id), scale);
    if (row.key(id) == cut.key) ++ties;
  }
  const uint64_t kept_ties = ties < cut.ties ? ties : cut.ties;
  const uint64_t total = below + kept_ties * weight_of(cut.key, scale);
  const uint64_t target = top_p_target(params.top_p, total);
  const Selected last =
      select(row, cut.key, target, [scale](uint32_t key) { return weight_of(key, scale); });
  if (last.key == kNone) return cut;
  const uint64_t needed = top_p_ties(target, last.before, weight_of(last.key, scale));
  return {last.key, last.key == cut.key && kept_ties < needed ? kept_ties : needed};
}

uint32_t sample_token(const Scores& row, const Cut& cut, float scale, double uniform) {
  const auto weights = [&] {
    uint64_t ties_left = cut.ties;
    std::vector<uint64_t> weights(row.vocab);
    for (int32_t id = 0; id < row.vocab; ++id) {
      const uint32_t key = row.key(id);
      const bool kept = key < cut.key || (key == cut.key && ties_left > 0);
      if (key == cut.key && kept) --ties_left;
      weights[id] = kept ? weight_of(key, scale) : 0;
    }
    return weights;
  }();
  uint64_t total = 0;
  for (const uint64_t weight : weights) total += weight;
  const uint64_t target = sample_target(uniform, total);
  uint64_t cumulative = 0;
  for (int32_t id = 0; id < row.vocab; ++id) {
    cumulative += weights[id];
    if (cumulative > target) return id;
  }
  return kNone;
}

}  // namespace

extern "C" {

void host_rope_pair(int32_t i, int32_t half, int32_t style, int32_t* pair) {
  const RopePair found = rope_pair(i, half, static_cast<RopeStyle>(style));
  pair[0] = found.first;
  pair[1] = found.second;
}

// Kind and index of a head of the fused row.
void host_fused_head(int32_t head, int32_t heads, int32_t kv_heads, int32_t* found) {
  const Head at = fused_head(head, heads, kv_heads);
  found[0] = static_cast<int32_t>(at.kind);
  found[1] = at.index;
}

uint64_t host_cache_offset(uint32_t slot, int32_t head, int32_t kv_heads, int32_t block_size,
                           int32_t head_dim) {
  return cache_offset(slot, head, kv_heads, block_size, head_dim);
}

void host_norm_range(int32_t span, int32_t index, int32_t heads, int32_t head_dim, int32_t head_len,
                     int32_t* range) {
  const NormRange found = norm_range(static_cast<NormSpan>(span), index, heads, head_dim, head_len);
  range[0] = found.count;
  range[1] = found.weight;
}

void host_split_range(int32_t length, int32_t step, int32_t part, int32_t parts, int32_t* range) {
  const Range found = split_range(length, step, part, parts);
  range[0] = found.begin;
  range[1] = found.end;
}

int32_t host_warps_per_output(int32_t outputs, int32_t wanted, int32_t most) {
  return warps_per_output(outputs, wanted, most);
}

int32_t host_equal_shares(int32_t tiles, int32_t most) { return equal_shares(tiles, most); }

uint64_t host_index_after(int32_t output, int32_t column, int32_t i, int32_t columns, int32_t bits, int32_t* shift) {
  const QuantIndex found = index_after(quant_index(output, column, columns, bits), i, bits);
  *shift = found.shift;
  return found.word;
}

uint64_t host_quant_index(int32_t output, int32_t column, int32_t columns, int32_t bits, int32_t* shift) {
  const QuantIndex found = quant_index(output, column, columns, bits);
  *shift = found.shift;
  return found.word;
}

// The expert that is chosen after `last`, by their `ranks`, or `count` if there is none. For the first choice, `last`
// is -1.
int32_t host_next_choice(const float* ranks, int32_t count, int32_t last) {
  const auto rank_of = [&](int32_t expert) {
    uint32_t bits;
    std::memcpy(&bits, ranks + expert, sizeof bits);
    return rank_bits(bits);
  };
  const uint32_t last_rank = last < 0 ? 0xffffffffu : rank_of(last);
  uint32_t best_rank = 0;
  int32_t best = count;
  for (int32_t i = 0; i < count; ++i) {
    const uint32_t rank = rank_of(i);
    if (chosen_before(last_rank, last, rank, i) && chosen_before(rank, i, best_rank, best)) {
      best_rank = rank;
      best = i;
    }
  }
  return best;
}

uint32_t host_tiles_of(uint32_t rows, uint32_t tile_rows) { return tiles_of(rows, tile_rows); }

uint32_t host_most_tiles(uint32_t rows, uint32_t experts, uint32_t tile_rows) {
  return most_tiles(rows, experts, tile_rows);
}

int32_t host_expert_of_tile(const uint32_t* tiles, int32_t experts, uint32_t tile) {
  return expert_of_tile(tiles, experts, tile);
}

int32_t host_swizzled(int32_t row, int32_t chunk) { return swizzled(row, chunk); }

// Number of parts of a vocabulary.
int32_t host_num_parts(int32_t vocab) { return num_parts(vocab); }

void host_ids_of_part(int32_t vocab, int32_t part, int32_t* range) {
  const Range found = ids_of_part(vocab, part);
  range[0] = found.begin;
  range[1] = found.end;
}

double host_uniform(const SamplerRow* row) { return uniform_of(*row); }

// Samples a token. The logits are adjusted in place, and `counts` and `mask` may be null.
uint32_t host_sample(float* logits, int32_t vocab, const SamplerRow* row, const uint32_t* counts,
                     const uint32_t* mask, int32_t mask_words) {
  Best best{};
  for (int32_t id = 0; id < vocab; ++id) {
    if (counts != nullptr) logits[id] = penalized(logits[id], counts[id], *row);
    if (mask != nullptr && !allowed(mask, mask_words, id)) logits[id] = -INFINITY;
    best.take(id, logits[id]);
  }
  if (!std::isfinite(best.value())) return kNone;
  const Scores scores{logits, vocab, best.value()};
  const float scale = 1.0f / row->temperature;
  if (row->temperature == 0.0f || !(scale < INFINITY)) return best.id();
  return sample_token(scores, find_cut(scores, *row, scale), scale, uniform_of(*row));
}

}  // extern "C"
