// Index arithmetic of the kernels. It is compiled for the device and for the host: src/cuda_arithmetic.rs compares it
// with the Rust references on the CPU.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define CANDLEPOWER_HD __host__ __device__ __forceinline__
#else
#define CANDLEPOWER_HD inline
#endif

namespace candlepower {

// ---- Rotary embedding ------------------------------------------------------------------------------

// Which two elements of a head form a rotated pair. The values are those of RopeStyle in Rust.
enum class RopeStyle : int32_t { kNeox = 0, kInterleaved = 1 };

struct RopePair {
  int32_t first;
  int32_t second;
};

// The elements of pair `i` of `half` pairs.
CANDLEPOWER_HD RopePair rope_pair(int32_t i, int32_t half, RopeStyle style) {
  return style == RopeStyle::kNeox ? RopePair{i, i + half} : RopePair{2 * i, 2 * i + 1};
}

// ---- Norms of q and k ------------------------------------------------------------------------------

// The elements over which a norm of q or k is taken. The values are those of QkNormOperands in Rust.
enum class NormSpan : int32_t { kHead = 0, kAllHeads = 1, kEachHead = 2 };

// Inputs of the norm of one head of q or k: the number of elements over which the mean is taken, and the offset of the
// head's weights.
struct NormRange {
  int32_t count;
  int32_t weight;
};

// The range for head `index` of `heads` heads, which have `head_dim` elements each. Elements from `head_len` on are
// padding.
CANDLEPOWER_HD NormRange norm_range(NormSpan span, int32_t index, int32_t heads, int32_t head_dim,
                                    int32_t head_len) {
  if (span == NormSpan::kAllHeads) return {heads * head_dim, index * head_dim};
  if (span == NormSpan::kEachHead) return {head_len, index * head_dim};
  return {head_dim, 0};
}

// ---- The fused qkv row and the paged cache ---------------------------------------------------------

enum class HeadKind : int32_t { kQuery = 0, kKey = 1, kValue = 2 };

// A head of the fused row [q heads | k heads | v heads].
struct Head {
  HeadKind kind;
  int32_t index;  // index among the heads of its kind
};

CANDLEPOWER_HD Head fused_head(int32_t head, int32_t heads, int32_t kv_heads) {
  if (head < heads) return {HeadKind::kQuery, head};
  if (head < heads + kv_heads) return {HeadKind::kKey, head - heads};
  return {HeadKind::kValue, head - heads - kv_heads};
}

// A slot outside the cache. Padding tokens of a CUDA graph have it, and kernels write nothing for them.
constexpr uint32_t kNoSlot = 0xffffffffu;

// Offset of a head of the token in `slot`, in elements. Keys and values have the shape [num_blocks, kv_heads,
// block_size, head_dim], which FlashInfer calls HND.
CANDLEPOWER_HD uint64_t cache_offset(uint32_t slot, int32_t head, int32_t kv_heads,
                                     int32_t block_size, int32_t head_dim) {
  const uint64_t block = slot / block_size;
  const uint64_t position = slot % block_size;
  return ((block * kv_heads + head) * block_size + position) * head_dim;
}

// ---- Matrix times few rows -------------------------------------------------------------------------

struct Range {
  int32_t begin;
  int32_t end;
};

// Range of part `part` if 0..length is divided into `parts` parts. The boundaries are multiples of `step`, and the
// parts cover the range once, in order.
CANDLEPOWER_HD Range split_range(int32_t length, int32_t step, int32_t part, int32_t parts) {
  const int32_t steps = (length + step - 1) / step;
  const int32_t each = (steps + parts - 1) / parts;
  const int32_t begin = part * each * step;
  const int32_t end = begin + each * step;
  return {begin < length ? begin : length, end < length ? end : length};
}

// Number of warps that share one output: the power of two that gives `wanted` warps in all, at most `most`.
CANDLEPOWER_HD int32_t warps_per_output(int32_t outputs, int32_t wanted, int32_t most) {
  int32_t warps = 1;
  while (warps < most && static_cast<int64_t>(outputs) * warps < wanted) warps *= 2;
  return warps;
}

// Number of blocks, at most `most`, among which `tiles` tiles are divided so that each has about the same number of them.
CANDLEPOWER_HD int32_t equal_shares(int32_t tiles, int32_t most) {
  const int32_t each = (tiles + most - 1) / most;
  return (tiles + each - 1) / each;
}

// Outputs of a block that multiplies up to 128 rows. Blocks with fewer outputs would read each row of x more often: with
// many rows, these reads from the L2 cache would take longer than those of the matrix.
constexpr int32_t kPartOutputs = 128;

// Number of parts, at most `most`, into which the inputs of a matrix are divided so that one with few outputs has enough
// blocks to keep the memory of the largest GPUs busy. It is a power of two. It depends on the shape of the matrix alone,
// so that a row's sums do not depend on the number of rows.
CANDLEPOWER_HD int32_t product_parts(int32_t n, int32_t k, int32_t most) {
  constexpr int32_t kEnoughBlocks = 128;
  constexpr int32_t kMinInputs = 256;
  const int32_t blocks = (n + kPartOutputs - 1) / kPartOutputs;
  int32_t parts = 1;
  while (parts < most && blocks * parts < kEnoughBlocks && k >= kMinInputs * 2 * parts) parts *= 2;
  return parts;
}

// ---- Quantized weights -----------------------------------------------------------------------------

// A quantized matrix is stored in tiles of 16 outputs and 64 inputs, each of which has four steps of 16 inputs. A lane
// of the warp that multiplies a tile needs 16 bytes of it for 4-bit weights, and twice 16 bytes for 8-bit weights. The
// layout makes these bytes contiguous, so that a lane fetches its weights with one or two 16-byte loads.
constexpr int32_t kTileOutputs = 16;
constexpr int32_t kTileInputs = 64;
constexpr int32_t kStepInputs = 16;
// Number of entries in the lookup table of an output, for formats whose quantized weights are table indices.
constexpr int32_t kTableEntries = 16;

struct QuantIndex {
  uint64_t word;
  int32_t shift;
};

// Position of a quantized weight of `bits` bits (4 or 8) in a matrix of `columns` columns.
//
// Lane `4 * (output % 8) + t` holds four columns of each step, from column `4 * t` on, of two outputs that are 8 apart.
CANDLEPOWER_HD QuantIndex quant_index(int32_t output, int32_t column, int32_t columns, int32_t bits) {
  const int32_t tiles = (columns + kTileInputs - 1) / kTileInputs;
  const uint64_t tile = static_cast<uint64_t>(output / kTileOutputs) * tiles + column / kTileInputs;
  const int32_t lane = output % 8 * 4 + column % kStepInputs / 4;
  const int32_t step = column % kTileInputs / kStepInputs;
  // Index of the tensor core's operand register that holds the quantized weight in its low or its high half.
  const int32_t part = output % kTileOutputs / 8 + column % 4 / 2 * 2;
  const int32_t word = bits == 4 ? step : 2 * step + part / 2;
  const int32_t shift = column % 2 * 16 + (bits == 4 ? 4 * part : 8 * (part % 2));
  return {tile * 32 * bits + (word / 4 * 32 + lane) * 4 + word % 4, shift};
}

// Position of the quantized weight `i` columns after `first`, for `i` below 8. The column of `first` must be a multiple
// of 8.
CANDLEPOWER_HD QuantIndex index_after(QuantIndex first, int32_t i, int32_t bits) {
  // The same lane holds four columns of an output, in one word or two. The words of the next lane begin four words
  // later.
  const int32_t pair = i % 4 / 2;
  const int32_t words = i / 4 * 4 + (bits == 4 ? 0 : pair);
  return {first.word + words, first.shift + i % 2 * 16 + (bits == 4 ? 8 * pair : 0)};
}

// ---- Experts ---------------------------------------------------------------------------------------

// Maps the bits of an f32 to an unsigned integer that sorts in the same order as the floats. NaN has a place in the
// order too.
CANDLEPOWER_HD uint32_t rank_bits(uint32_t bits) { return bits >> 31 != 0 ? ~bits : bits | 0x80000000u; }

// Whether the router chooses an expert before another: the higher rank wins, and among equal ranks the lower index.
CANDLEPOWER_HD bool chosen_before(uint32_t rank, int32_t expert, uint32_t other_rank, int32_t other) {
  return rank != other_rank ? rank > other_rank : expert < other;
}

// Number of tiles of `tile_rows` rows that `rows` rows need.
CANDLEPOWER_HD uint32_t tiles_of(uint32_t rows, uint32_t tile_rows) {
  return (rows + tile_rows - 1) / tile_rows;
}

// Largest number of tiles that `rows` rows can need, whatever the number of rows per expert.
CANDLEPOWER_HD uint32_t most_tiles(uint32_t rows, uint32_t experts, uint32_t tile_rows) {
  const uint32_t chosen = rows < experts ? rows : experts;
  return (rows + chosen * (tile_rows - 1)) / tile_rows;
}

// The expert that owns `tile`. The tiles of an expert begin at `tiles[expert]`, and `tile` must be below
// `tiles[experts]`.
CANDLEPOWER_HD int32_t expert_of_tile(const uint32_t* tiles, int32_t experts, uint32_t tile) {
  int32_t low = 0;
  int32_t high = experts;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (tiles[middle] <= tile ? low : high) = middle;
  }
  return low;
}

// Number of 16-byte chunks in a row of a shared-memory tile. One row covers all banks.
constexpr int32_t kRowChunks = 8;

// Index of a chunk in a swizzled tile. The same chunk of eight consecutive rows, and all chunks of one row, lie in
// different banks, so neither access pattern has bank conflicts.
CANDLEPOWER_HD int32_t swizzled(int32_t row, int32_t chunk) {
  return row * kRowChunks + (chunk ^ row % kRowChunks);
}

}  // namespace candlepower
