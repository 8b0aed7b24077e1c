// Tiles of the rows that are routed to each expert: the arguments of the product, and the blocks' tiles.
#pragma once

#include "packed_rows.cuh"

namespace candlepower {

struct ExpertProductArgs {
  const void* x;           // [pairs / pairs_per_row, x_stride]
  const void* weights;     // [experts]: the address of each matrix [n, k], or a PackedMatrix each
  const void* bias;        // [experts, n]; null: none
  const uint32_t* sorted;  // this and the next two as in RouteArgs; null: every token uses every expert, in their order
  const uint32_t* starts;
  const uint32_t* tiles;
  void* out;  // [pairs, out_stride]
  int32_t pairs;
  int32_t pairs_per_row;
  int32_t experts;
  int32_t n;
  int32_t k;
  int32_t tile_rows;
  int32_t dtype;
  int32_t format;   // kUnquantized, or the format of all matrices
  int32_t cut;      // PackedMatrix::cut, the same for all matrices
  int32_t x_stride;    // the first k elements of a row are read
  int32_t out_stride;  // the first n elements of a row are written
  int32_t padding;
};
static_assert(sizeof(ExpertProductArgs) == 104, "as in src/cuda/experts.rs");

constexpr int32_t kUnquantized = -1;

// Number of rows of each expert if every token uses every expert.
__device__ __forceinline__ uint32_t tokens_of_all(const ExpertProductArgs& args) {
  return static_cast<uint32_t>(args.pairs) / args.experts;
}

// Number of row tiles of all experts.
__device__ __forceinline__ uint32_t num_tiles(const ExpertProductArgs& args) {
  if (args.sorted == nullptr) return args.experts * tiles_of(tokens_of_all(args), args.tile_rows);
  return args.tiles[args.experts];
}

// A tile of rows of one expert. The host does not know the routing, so the grid has room for the largest possible
// number of tiles.
struct RowTile {
  int32_t expert;
  uint32_t first_row;

  // Number of rows that exist.
  __device__ __forceinline__ int32_t count(const ExpertProductArgs& args) const {
    const uint32_t end = args.sorted == nullptr ? tokens_of_all(args) : args.starts[expert + 1];
    return min(args.tile_rows, static_cast<int32_t>(end - first_row));
  }

  // The pair of token and expert in row `row` of the tile, or -1.
  __device__ __forceinline__ int32_t pair(const ExpertProductArgs& args, int32_t row) const {
    if (row >= args.tile_rows) return -1;
    const uint32_t at = first_row + row;
    if (args.sorted == nullptr) {
      return at < tokens_of_all(args) ? static_cast<int32_t>(at) * args.experts + expert : -1;
    }
    return at < args.starts[expert + 1] ? static_cast<int32_t>(args.sorted[at]) : -1;
  }
};

// `tile` must be below `num_tiles(args)`.
__device__ __forceinline__ RowTile row_tile(const ExpertProductArgs& args, uint32_t tile) {
  if (args.sorted == nullptr) {
    const uint32_t of_expert = tiles_of(tokens_of_all(args), args.tile_rows);
    return {static_cast<int32_t>(tile / of_expert), tile % of_expert * args.tile_rows};
  }
  const int32_t expert = expert_of_tile(args.tiles, args.experts, tile);
  return {expert, args.starts[expert] + (tile - args.tiles[expert]) * args.tile_rows};
}

// A block's tile of rows, and its first output.
struct BlockTile {
  RowTile rows;
  int32_t first_output;
};

// The blocks of an expert are neighbours, and among them those that read the same weights. So the weights come from
// memory once, and from the L2 cache for the other row tiles. `block` must be below `num_tiles(args) * output_tiles`.
__device__ __forceinline__ BlockTile block_tile(const ExpertProductArgs& args, uint32_t block, uint32_t output_tiles,
                                                int32_t outputs) {
  RowTile rows = row_tile(args, block / output_tiles);
  uint32_t first = 0;
  uint32_t count = 0;
  uint32_t first_row = 0;
  if (args.sorted == nullptr) {
    count = tiles_of(tokens_of_all(args), args.tile_rows);
    first = rows.expert * count;
  } else {
    first = args.tiles[rows.expert];
    count = args.tiles[rows.expert + 1] - first;
    first_row = args.starts[rows.expert];
  }
  const uint32_t of_expert = block - first * output_tiles;
  rows.first_row = first_row + of_expert % count * args.tile_rows;
  return {rows, static_cast<int32_t>(of_expert / count) * outputs};
}

// The bias of an output, or zero if there is none.
template <typename T>
__device__ __forceinline__ float bias_of(const ExpertProductArgs& args, int32_t expert, int32_t output) {
  if (args.bias == nullptr) return 0.0f;
  return static_cast<float>(static_cast<const T*>(args.bias)[static_cast<int64_t>(expert) * args.n + output]);
}

// Rows of a tile: for experts with few rows, with more, and with many.
constexpr int32_t kFewRows = 16;
constexpr int32_t kMoreRows = 64;
constexpr int32_t kManyRows = 128;

// Number of inputs in one stage of shared memory, which is the length of the stage's rows.
constexpr int32_t kStageInputs = 64;

// Shape of a block: rows and outputs of its tile, the numbers of warps that divide them, and the number of stages in
// shared memory.
template <int32_t kTileRows, int32_t kTileColumns, int32_t kWarpsOfRows, int32_t kWarpsOfOutputs, int32_t kNumStages>
struct TileShape {
  static constexpr int32_t kRows = kTileRows;
  static constexpr int32_t kOutputs = kTileColumns;
  static constexpr int32_t kStages = kNumStages;
  static constexpr int32_t kOutputWarps = kWarpsOfOutputs;
  static constexpr int32_t kThreads = kWarpsOfRows * kWarpsOfOutputs * kWarp;
  static constexpr int32_t kStageChunks = (kRows + kOutputs) * kRowChunks;
  static constexpr int32_t kBytes = kStages * kStageChunks * 16;
  // Tensor core products of one warp, of 16 rows and 8 outputs each.
  static constexpr int32_t kRowTiles = kRows / kWarpsOfRows / 16;
  static constexpr int32_t kOutputTiles = kOutputs / kWarpsOfOutputs / 8;
};

// Shapes for few, more and many rows of each expert. Few rows are bound by reading the weights, and many by arithmetic.
// ManyRows has only three stages, because these are 96 KiB and a block may use 99 KiB on GPUs of compute capability 8.6,
// 8.9 and 12.0.
using FewRows = TileShape<kFewRows, 64, 1, 4, 4>;
using MoreRows = TileShape<kMoreRows, 128, 2, 4, 4>;
using ManyRows = TileShape<kManyRows, 128, 2, 4, 3>;

// Where a block may use 163 KiB, it has twice as many outputs for many rows, and a warp 64 of 64 rows. Then operands in
// shared memory serve twice as many products, and fewer blocks read the same rows.
constexpr bool kHasLargeBlocks =
    CANDLEPOWER_COMPUTE_CAP == 80 || CANDLEPOWER_COMPUTE_CAP == 90 || CANDLEPOWER_COMPUTE_CAP == 100;
using LargeBlock = TileShape<kManyRows, 256, 2, 4, CANDLEPOWER_COMPUTE_CAP == 80 ? 3 : 4>;

}  // namespace candlepower
