// Index arithmetic of the kernels, compiled for the device and for the host: src/cuda_arithmetic.rs
// runs it on the CPU against the Rust references.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define CANDLEPOWER_HD __host__ __device__ __forceinline__
#else
#define CANDLEPOWER_HD inline
#endif

namespace candlepower {

// ---- Rotary embedding ------------------------------------------------------------------------------

// Which two elements of a head form a rotated pair; the values are RopeStyle's in Rust.
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

// What is normalised together; the values are those of QkNormSpan in Rust.
enum class NormSpan : int32_t { kHead = 0, kAllHeads = 1, kEachHead = 2 };

// Of the heads of q, or of k, of one token: over how many elements the mean that normalises a head is taken, and where that
// head's weights begin.
struct NormRange {
  int32_t count;
  int32_t weight;
};

// For head `index` of `heads` heads of `head_dim` elements, of which the first `head_len` are not padding.
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
  int32_t index;  // among the heads of its kind
};

CANDLEPOWER_HD Head fused_head(int32_t head, int32_t heads, int32_t kv_heads) {
  if (head < heads) return {HeadKind::kQuery, head};
  if (head < heads + kv_heads) return {HeadKind::kKey, head - heads};
  return {HeadKind::kValue, head - heads - kv_heads};
}

// A slot that is no place in the cache: the padding tokens of a CUDA graph write nothing.
constexpr uint32_t kNoSlot = 0xffffffffu;

// Where the head of the token in `slot` begins, in elements, in keys or values
// [num_blocks, kv_heads, block_size, head_dim] (FlashInfer's HND).
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

// Part `part` of `parts` of 0..length, in steps of `step`; the parts are in order and cover it once.
CANDLEPOWER_HD Range split_range(int32_t length, int32_t step, int32_t part, int32_t parts) {
  const int32_t steps = (length + step - 1) / step;
  const int32_t each = (steps + parts - 1) / parts;
  const int32_t begin = part * each * step;
  const int32_t end = begin + each * step;
  return {begin < length ? begin : length, end < length ? end : length};
}

// Warps that share one output: as many as it takes to have `wanted` warps in all, at most `most`.
CANDLEPOWER_HD int32_t warps_per_output(int32_t outputs, int32_t wanted, int32_t most) {
  int32_t warps = 1;
  while (warps < most && static_cast<int64_t>(outputs) * warps < wanted) warps *= 2;
  return warps;
}

// ---- Packed codes ----------------------------------------------------------------------------------

// A quantized matrix lies in tiles of 16 outputs and 64 inputs, in four steps of 16 inputs. A lane of the warp that
// multiplies a tile has 16 bytes of it, or twice 16 of codes of eight bits, and loads them as one.
constexpr int32_t kTileOutputs = 16;
constexpr int32_t kTileInputs = 64;
constexpr int32_t kStepInputs = 16;
// Numbers of an output whose codes name one of them.
constexpr int32_t kTableNumbers = 16;

struct CodePlace {
  uint64_t word;
  int32_t shift;
};

// Where the code of an output and a column lies in a matrix of `columns` columns, in codes of `bits` bits, 4 or 8.
// Lane `4 * (output % 8) + t` has four columns of each step, those from `4 * t` on, of two outputs, 8 apart.
CANDLEPOWER_HD CodePlace code_place(int32_t output, int32_t column, int32_t columns, int32_t bits) {
  const int32_t tiles = (columns + kTileInputs - 1) / kTileInputs;
  const uint64_t tile = static_cast<uint64_t>(output / kTileOutputs) * tiles + column / kTileInputs;
  const int32_t lane = output % 8 * 4 + column % kStepInputs / 4;
  const int32_t step = column % kTileInputs / kStepInputs;
  // The register of tensor cores that has the code in its low or its high half.
  const int32_t part = output % kTileOutputs / 8 + column % 4 / 2 * 2;
  const int32_t word = bits == 4 ? step : 2 * step + part / 2;
  const int32_t shift = column % 2 * 16 + (bits == 4 ? 4 * part : 8 * (part % 2));
  return {tile * 32 * bits + (word / 4 * 32 + lane) * 4 + word % 4, shift};
}

// Where the code `i` columns further lies, of the eight columns from the one at `first` on, whose number is a multiple of 8.
CANDLEPOWER_HD CodePlace place_after(CodePlace first, int32_t i, int32_t bits) {
  // Four columns of an output are the same lane's, in one word or two; the next lane's begin four words further.
  const int32_t pair = i % 4 / 2;
  const int32_t words = i / 4 * 4 + (bits == 4 ? 0 : pair);
  return {first.word + words, first.shift + i % 2 * 16 + (bits == 4 ? 8 * pair : 0)};
}

// ---- Experts ---------------------------------------------------------------------------------------

// Bits in the order of the numbers that the bits of an f32 mean, NaN among them.
CANDLEPOWER_HD uint32_t rank_bits(uint32_t bits) { return bits >> 31 != 0 ? ~bits : bits | 0x80000000u; }

// Whether an expert is chosen before another: the one with the higher rank, of equal ones the first.
CANDLEPOWER_HD bool chosen_before(uint32_t rank, int32_t expert, uint32_t other_rank, int32_t other) {
  return rank != other_rank ? rank > other_rank : expert < other;
}

// Tiles of `tile_rows` rows that `rows` rows take.
CANDLEPOWER_HD uint32_t tiles_of(uint32_t rows, uint32_t tile_rows) {
  return (rows + tile_rows - 1) / tile_rows;
}

// The most tiles that `rows` rows take, however many of them each expert has.
CANDLEPOWER_HD uint32_t most_tiles(uint32_t rows, uint32_t experts, uint32_t tile_rows) {
  const uint32_t chosen = rows < experts ? rows : experts;
  return (rows + chosen * (tile_rows - 1)) / tile_rows;
}

// The expert that `tile` belongs to; its tiles are those from `tiles[expert]` on, and `tile` is below `tiles[experts]`.
CANDLEPOWER_HD int32_t expert_of_tile(const uint32_t* tiles, int32_t experts, uint32_t tile) {
  int32_t low = 0;
  int32_t high = experts;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (tiles[middle] <= tile ? low : high) = middle;
  }
  return low;
}

// Chunks of 16 bytes in a row of a tile in shared memory: all of its banks.
constexpr int32_t kRowChunks = 8;

// Where a chunk of a row lies, in chunks: the same ones of eight rows, and all of one row, lie in different banks.
CANDLEPOWER_HD int32_t swizzled(int32_t row, int32_t chunk) {
  return row * kRowChunks + (chunk ^ row % kRowChunks);
}

}  // namespace candlepower
