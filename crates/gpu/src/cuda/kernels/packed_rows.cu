// The product of a quantized matrix with 9 to 128 rows.
//
// Sums are those of packed.cu, to the bit: tensor cores multiply unscaled quantized weights, and the sums over each part
// of a tile are scaled and added in f32. Eight ranges of the inputs have sums of their own, which are added in order. So a
// row has the same result alone and among 127 others, and weights are never rounded.

#include "packed_product.cuh"

namespace candlepower {

struct PackedRowsArgs {
  PackedProductArgs of;
  float* partial;         // memory for the sums of each part: [parts, rows, n in whole tiles]
  int64_t partial_bytes;  // size of that memory
};
static_assert(sizeof(PackedRowsArgs) == 120, "as in src/cuda/packed.rs");

// Distance between rows of x in shared memory. The padding of 32 bytes makes four rows of the same columns cover all
// banks once.
constexpr int32_t kRowBytes = kTileInputs * 2 + 32;

// Outputs of a warp, as tiles of 16. Each operand of x that a warp loads from shared memory serves both.
constexpr int32_t kWarpTiles = 2;
constexpr int32_t kOutputWarps = kPartOutputs / kTileOutputs / kWarpTiles;
constexpr int32_t kBlockTiles = kOutputWarps * kWarpTiles;

// Shared memory of a block. Two blocks fit into a multiprocessor of an H100, and one into those of compute capability
// 8.6, 8.9 and 12.0, where a block may use 99 KiB.
constexpr int32_t kRowsBytes = 96 << 10;
constexpr int32_t kMaxStages = 5;

// Shape of a block, which computes 128 outputs of `kRows` rows. Shared memory has `kStages` stages with a tile of the
// inputs each: rows of x, then quantized weights and scales. Behind the stages are the sums of each row's inputs, for
// this tile and for the next.
template <int32_t kRows, int32_t kWords, int32_t kCut>
struct RowsBlock {
  static constexpr int32_t kRowWarps = kRows > 32 ? 2 : 1;
  static constexpr int32_t kWarps = kOutputWarps * kRowWarps;
  static constexpr int32_t kThreads = kWarps * kWarp;
  static constexpr int32_t kRowTiles = kRows / kRowWarps / kTileRows;
  static constexpr int32_t kXBytes = kRows * kRowBytes;
  static constexpr int32_t kTileBytes = sizeof(PackedTile<kWords, kCut>);
  static constexpr int32_t kStageBytes = kXBytes + kBlockTiles * kTileBytes;
  static constexpr int32_t kInputBytes = 2 * (1 << kCut) * kRows * 4;
  static constexpr int32_t kFitting = (kRowsBytes - kInputBytes) / kStageBytes;
  static constexpr int32_t kStages = kFitting < kMaxStages ? kFitting : kMaxStages;
  // The padding keeps the stores of a warp in different banks.
  static constexpr int32_t kSumStride = kPartOutputs + 4;
  static constexpr int32_t kSumBytes = kRows * kSumStride * 4;
  static constexpr int32_t kUsedBytes = kStages * kStageBytes + kInputBytes;
  static constexpr int32_t kBytes = kUsedBytes > kSumBytes ? kUsedBytes : kSumBytes;
  static_assert(kStages >= 4 && kBytes <= kRowsBytes);
};

// A block computes one of gridDim.z parts of the inputs, which consists of whole ranges.
template <typename T, QuantFormat kFormat, int32_t kRows, int32_t kCut>
__global__ void __launch_bounds__(RowsBlock<kRows, bits_of(kFormat), kCut>::kThreads, 2) packed_rows_kernel(PackedRowsArgs args) {
  constexpr int32_t kWords = bits_of(kFormat);
  using Block = RowsBlock<kRows, kWords, kCut>;
  constexpr int32_t kPartSteps = kTileInputs / kStepInputs >> kCut;
  extern __shared__ uint4 memory[];
  char* const stages = reinterpret_cast<char*>(memory);
  const PackedMatrix& w = args.of.w;
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t first_output = static_cast<int32_t>(blockIdx.y) * kPartOutputs;
  const ProductRows<T> rows{args.of, static_cast<int32_t>(blockIdx.x) * kRows};

  // The same ranges as those of the warps in packed.cu.
  const int32_t tiles = w.k / kTileInputs;
  const auto each = static_cast<int32_t>(tiles_of(tiles, kPackedWarps));
  const int32_t part_tiles = each * (kPackedWarps / static_cast<int32_t>(gridDim.z));
  const int32_t begin = static_cast<int32_t>(blockIdx.z) * part_tiles;
  const Range run = {begin < tiles ? begin : tiles, begin + part_tiles < tiles ? begin + part_tiles : tiles};
  const int32_t count = run.end - run.begin;

  // A warp copies one or two of the tiles of outputs. Tiles beyond the last output repeat the last tile, and their sums
  // are not stored.
  constexpr int32_t kCopies = kBlockTiles / Block::kWarps;
  const auto tiles_from = [&](int32_t i) {
    const int32_t last = w.whole_outputs() - kTileOutputs;
    const int32_t outputs = first_output + (warp + i * Block::kWarps) * kTileOutputs;
    return PackedTiles<kFormat, kCut>(w, outputs < last ? outputs : last, run, lane);
  };
  PackedTiles<kFormat, kCut> matrix[2] = {tiles_from(0), tiles_from(kCopies - 1)};
  const uint32_t tiles_at = shared_address(stages) + Block::kXBytes + warp * Block::kTileBytes;
  const auto copy_weights = [&](int32_t stage) {
#pragma unroll
    for (int32_t i = 0; i < kCopies; ++i) {
      matrix[i].copy(tiles_at + stage * Block::kStageBytes + i * Block::kWarps * Block::kTileBytes);
    }
  };
  // The weights are constant, so they are requested before the wait; x is written by the preceding kernel.
#pragma unroll
  for (int32_t i = 0; i < Block::kStages - 1; ++i) copy_weights(i);
  wait_for_inputs();

  // A thread copies the same chunk of one row, or of two. Missing rows become zeros.
  constexpr int32_t kChunks = kTileInputs * 2 / 16;
  constexpr int32_t kCopyRows = Block::kThreads / kChunks;
  const int32_t copy_row = threadIdx.x / kChunks;
  const int32_t chunk = threadIdx.x % kChunks;
  const uint32_t rows_at = shared_address(stages) + copy_row * kRowBytes + chunk * 16;
  const auto copy_x = [&](int32_t tile, int32_t stage) {
    if (tile < count) {
#pragma unroll
      for (int32_t i = 0; i < kRows / kCopyRows; ++i) {
        const T* row = rows.at(copy_row + i * kCopyRows);
        const T* from = (row == nullptr ? rows.at(0) : row) + (run.begin + tile) * kTileInputs + chunk * 8;
        copy_chunk(rows_at + stage * Block::kStageBytes + i * kCopyRows * kRowBytes, from, row != nullptr);
      }
    }
    end_copies();
  };
#pragma unroll
  for (int32_t i = 0; i < Block::kStages - 1; ++i) copy_x(i, i);

  const uint32_t offset = kept(Pairs<T>::kOffset);
  auto* const input_sums = reinterpret_cast<float2*>(stages + Block::kStages * Block::kStageBytes);
  // Eight rows' sums over the inputs of each part of a tile, by one warp for all warps of the block.
  const auto sum_inputs = [&](int32_t tile, int32_t stage) {
    if (tile >= count || warp >= kRows / kTileRows) return;
    const char* x = stages + stage * Block::kStageBytes + (warp * kTileRows + lane / 4) * kRowBytes + lane % 4 * 8;
    constexpr uint32_t kOnes = Pairs<T>::kOnes;
    const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
#pragma unroll
    for (int32_t part = 0; part < 1 << kCut; ++part) {
      float sums[4] = {};
#pragma unroll
      for (int32_t step = part * kPartSteps; step < (part + 1) * kPartSteps; ++step) {
        const auto pairs = *reinterpret_cast<const uint2*>(x + step * kStepInputs * 2);
        const uint32_t b[2] = {pairs.x, pairs.y};
        multiply(sums, ones, b, T());
      }
      // All rows of the product with ones are equal.
      const int32_t at = ((tile & 1) << kCut) + part;
      if (lane < 4) input_sums[(at * kRows + warp * kTileRows) / 2 + lane] = {sums[0], sums[1]};
    }
  };

  const int32_t warp_tile = warp / Block::kRowWarps * kWarpTiles;
  const int32_t warp_row = warp % Block::kRowWarps * Block::kRowTiles * kTileRows;
  float folded[kWarpTiles][Block::kRowTiles][4] = {};
  float totals[kWarpTiles][Block::kRowTiles][4] = {};
  const auto multiply_tile = [&](int32_t tile, int32_t stage) {
    const char* x = stages + stage * Block::kStageBytes + (warp_row + lane / 4) * kRowBytes + lane % 4 * 8;
    const auto* of = reinterpret_cast<const PackedTile<kWords, kCut>*>(stages + stage * Block::kStageBytes + Block::kXBytes) + warp_tile;
    uint4 words[kWarpTiles][kWords / 4];
#pragma unroll
    for (int32_t i = 0; i < kWarpTiles; ++i) {
#pragma unroll
      for (int32_t j = 0; j < kWords / 4; ++j) words[i][j] = of[i].quants[j][lane];
    }
#pragma unroll
    for (int32_t part = 0; part < 1 << kCut; ++part) {
      float sums[kWarpTiles][Block::kRowTiles][4] = {};
#pragma unroll
      for (int32_t step = part * kPartSteps; step < (part + 1) * kPartSteps; ++step) {
        uint32_t a[kWarpTiles][4];
#pragma unroll
        for (int32_t i = 0; i < kWarpTiles; ++i) {
          widen<T, kFormat>(reinterpret_cast<const uint32_t*>(words[i]), step, static_cast<const T*>(nullptr), offset, a[i]);
        }
#pragma unroll
        for (int32_t j = 0; j < Block::kRowTiles; ++j) {
          const auto pairs = *reinterpret_cast<const uint2*>(x + j * kTileRows * kRowBytes + step * kStepInputs * 2);
          const uint32_t b[2] = {pairs.x, pairs.y};
#pragma unroll
          for (int32_t i = 0; i < kWarpTiles; ++i) multiply(sums[i][j], a[i], b, T());
        }
      }
      const float2* inputs = input_sums + ((((tile & 1) << kCut) + part) * kRows + warp_row) / 2 + lane % 4;
      float2 scales[kWarpTiles][2];
#pragma unroll
      for (int32_t i = 0; i < kWarpTiles; ++i) {
        scales[i][0] = of[i].scales[part][lane / 4];
        scales[i][1] = of[i].scales[part][lane / 4 + 8];
      }
#pragma unroll
      for (int32_t j = 0; j < Block::kRowTiles; ++j) {
        const float2 of_rows = inputs[j * kTileRows / 2];
#pragma unroll
        for (int32_t i = 0; i < kWarpTiles; ++i) {
#pragma unroll
          for (int32_t at = 0; at < 4; ++at) {
            const float2 scale = scales[i][at / 2];
            const float added = at % 2 == 0 ? of_rows.x : of_rows.y;
            totals[i][j][at] = fmaf(sums[i][j][at], scale.x, fmaf(added, scale.y, totals[i][j][at]));
          }
        }
      }
    }
  };

  // The sums of inputs are computed a tile ahead, so that one barrier per tile suffices.
  wait_for_copies<Block::kStages - 2>();
  __syncthreads();
  sum_inputs(0, 0);
  int32_t stage = 0;
  int32_t next = Block::kStages - 1;
  int32_t left = each;
#pragma unroll 1
  for (int32_t tile = 0; tile < count; ++tile) {
    // This tile and the next have arrived.
    wait_for_copies<Block::kStages - 3>();
    // The barrier makes them and the sums of this tile's inputs visible to all warps, and says that all are done with the
    // stage and the sums that are overwritten next.
    __syncthreads();
    copy_weights(next);
    copy_x(tile + Block::kStages - 1, next);
    const int32_t after = stage + 1 == Block::kStages ? 0 : stage + 1;
    sum_inputs(tile + 1, after);
    multiply_tile(tile, stage);
    left -= 1;
    if (left == 0 || tile + 1 == count) {
      left = each;
#pragma unroll
      for (int32_t i = 0; i < kWarpTiles; ++i) {
#pragma unroll
        for (int32_t j = 0; j < Block::kRowTiles; ++j) {
#pragma unroll
          for (int32_t at = 0; at < 4; ++at) {
            folded[i][j][at] += totals[i][j][at];
            totals[i][j][at] = 0.0f;
          }
        }
      }
    }
    next = stage;
    stage = after;
  }

  let_next_start();
  wait_for_copies<0>();
  __syncthreads();
  // The sums overwrite the stages, so that neighbouring threads store neighbouring outputs.
  auto* shared_sums = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int32_t i = 0; i < kWarpTiles; ++i) {
#pragma unroll
    for (int32_t j = 0; j < Block::kRowTiles; ++j) {
#pragma unroll
      for (int32_t at = 0; at < 4; ++at) {
        const int32_t row = warp_row + j * kTileRows + lane % 4 * 2 + at % 2;
        const int32_t output = (warp_tile + i) * kTileOutputs + lane / 4 + at / 2 * 8;
        shared_sums[row * Block::kSumStride + output] = folded[i][j][at];
      }
    }
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; i < kRows * kPartOutputs; i += Block::kThreads) {
    const int32_t row = i / kPartOutputs;
    const int32_t output = first_output + i % kPartOutputs;
    const T* x = rows.at(row);
    if (x == nullptr || output >= w.n) continue;
    const float sum = shared_sums[row * Block::kSumStride + i % kPartOutputs];
    if (gridDim.z == 1) {
      rows.take(row, output, sum + sparse_sum(w, x, output));
    } else {
      const int64_t at = static_cast<int64_t>(blockIdx.z) * args.of.rows + rows.first + row;
      args.partial[at * w.whole_outputs() + output] = sum;
    }
  }
}

constexpr int32_t kSumThreads = 256;

// Adds the partial sums in the order of the inputs. A thread computes one output of a row.
template <typename T>
__global__ void __launch_bounds__(kSumThreads) sum_parts_kernel(PackedRowsArgs args) {
  const PackedMatrix& w = args.of.w;
  const int32_t parts = product_parts(w.n, w.k, kPackedWarps);
  const int32_t outputs = w.whole_outputs();
  wait_for_inputs();
  let_next_start();
  const auto item = static_cast<int32_t>(blockIdx.x * kSumThreads + threadIdx.x);
  const int32_t output = item % outputs;
  const ProductRows<T> rows{args.of, item / outputs};
  const T* x = rows.at(0);
  if (x == nullptr || output >= w.n) return;
  const int64_t stride = static_cast<int64_t>(args.of.rows) * outputs;
  float sum = args.partial[item];
  for (int32_t part = 1; part < parts; ++part) sum += args.partial[part * stride + item];
  rows.take(0, output, sum + sparse_sum(w, x, output));
}

template <typename T, QuantFormat kFormat, int32_t kRows, int32_t kCut>
void launch_rows(const PackedRowsArgs& args, int32_t parts, cudaStream_t stream) {
  using Block = RowsBlock<kRows, bits_of(kFormat), kCut>;
  const auto kernel = packed_rows_kernel<T, kFormat, kRows, kCut>;
  // The result is ignored because the launch fails with the same error.
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Block::kBytes);
  const dim3 blocks(tiles_of(args.of.rows, kRows), tiles_of(args.of.w.n, kPartOutputs), parts);
  launch_early(kernel, blocks, Block::kThreads, stream, args, Block::kBytes);
}

// Calls the instance with the fewest rows that suffice. More than 64 rows are computed by two blocks, which read the
// weights at about the same time.
template <typename T, QuantFormat kFormat, int32_t kCut>
void launch(const PackedRowsArgs& args, int32_t parts, cudaStream_t stream) {
  if (args.of.rows <= 16) return launch_rows<T, kFormat, 16, kCut>(args, parts, stream);
  if (args.of.rows <= 32) return launch_rows<T, kFormat, 32, kCut>(args, parts, stream);
  launch_rows<T, kFormat, 64, kCut>(args, parts, stream);
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_packed_rows(const PackedRowsArgs* args, cudaStream_t stream) {
  const PackedMatrix& w = args->of.w;
  if (args->of.rows < 1 || w.cut == kAnyLayout || w.kind == static_cast<int32_t>(QuantFormat::kTable)) {
    return cudaErrorInvalidValue;
  }
  const int32_t parts = product_parts(w.n, w.k, kPackedWarps);
  const int64_t sums = static_cast<int64_t>(args->of.rows) * w.whole_outputs();
  if (parts > 1 && parts * sums * 4 > args->partial_bytes) return cudaErrorInvalidValue;
  return with_half_type(args->of.dtype, [&](auto zero) {
    using T = decltype(zero);
    with_format(w.kind, [&](auto format) {
      constexpr QuantFormat kFormat = format();
      if constexpr (kFormat != QuantFormat::kTable) {
        with_cut<kFormat>(w.cut, [&](auto cut) {
          constexpr int32_t kCut = decltype(cut)::value;
          if constexpr (kCut != kAnyLayout) launch<T, kFormat, kCut>(*args, parts, stream);
        });
      }
    });
    if (parts > 1) launch_early(sum_parts_kernel<T>, tiles_of(sums, kSumThreads), kSumThreads, stream, *args);
  });
}
