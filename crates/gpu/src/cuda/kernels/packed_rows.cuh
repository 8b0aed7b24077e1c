// The product of a quantized matrix of an expert with more rows than one tensor core product has. Weights are
// dequantized in registers, each rounded once, and multiplied by rows of x, which all warps of a block read from shared
// memory. packed_rows.cu multiplies single matrices, and rounds no weights.
#pragma once

#include "packed_product.cuh"

namespace candlepower {

// Distance between rows of x in shared memory. The padding of 32 bytes makes four rows of the same columns cover all
// banks once.
constexpr int32_t kRowBytes = kTileInputs * 2 + 32;

// Shape of a block, which computes `kRows` rows. Its warps form `kSplit` groups, each of which sums a range of the
// inputs. Shared memory has `kStages` stages, and each holds a tile of the inputs: rows of x for each group, and
// quantized weights and scales for each warp.
template <int32_t kRows, int32_t kSplit, int32_t kWords, int32_t kCut>
struct RowsShape {
  static constexpr int32_t kThreads = kPackedWarps * kWarp;
  static constexpr int32_t kOutputWarps = kPackedWarps / kSplit;
  static constexpr int32_t kOutputs = kOutputWarps * kTileOutputs;
  static constexpr int32_t kStages = kSplit == 1 ? 4 : 3;
  static constexpr int32_t kXBytes = kRows * kRowBytes;
  static constexpr int32_t kWarpBytes = sizeof(PackedTile<kWords, kCut>);
  static constexpr int32_t kStageBytes = kSplit * kXBytes + kPackedWarps * kWarpBytes;
  static constexpr int32_t kSumBytes = kSplit * kRows * kOutputs * 4;
  static constexpr int32_t kBytes = kStages * kStageBytes > kSumBytes ? kStages * kStageBytes : kSumBytes;
};

__device__ __forceinline__ float2 floats(__nv_bfloat162 pair) { return __bfloat1622float2(pair); }
__device__ __forceinline__ float2 floats(__half2 pair) { return __half22float2(pair); }
__device__ __forceinline__ uint32_t rounded(float2 pair, __nv_bfloat16) { return as_bits(__float22bfloat162_rn(pair)); }
__device__ __forceinline__ uint32_t rounded(float2 pair, __half) { return as_bits(__float22half2_rn(pair)); }

// Computes `kRows` rows of the outputs from `first_output` on. The matrix must have the layout that PackedTiles asks
// for. A row's result depends on its own values and the shape of `w` alone.
//
// `memory` is the block's dynamic shared memory. `row_of` returns the beginning of a row in x, or null if there is no
// such row; the first row must exist. `take` is called with row, output and sum for each result. `wait_for_inputs` is
// called after the first copies of the matrix have been started.
template <typename T, QuantFormat kFormat, int32_t kRows, int32_t kSplit, int32_t kCut, typename RowOf, typename Take>
__device__ __forceinline__ void multiply_rows(const PackedMatrix& w, int32_t first_output, char* memory, RowOf row_of, Take take) {
  constexpr int32_t kWords = bits_of(kFormat);
  using Shape = RowsShape<kRows, kSplit, kWords, kCut>;
  constexpr int32_t kPartSteps = kTileInputs / kStepInputs >> kCut;
  const int32_t warp = threadIdx.x / kWarp;
  const auto lane = static_cast<int32_t>(kept(threadIdx.x % kWarp));
  const int32_t of_run = warp / Shape::kOutputWarps;
  const int32_t of_outputs = warp % Shape::kOutputWarps * kTileOutputs;
  // Warps beyond the last output repeat the last tile, because they take part in the barriers. They store nothing.
  const int32_t last = w.whole_outputs() - kTileOutputs;
  const int32_t outputs = first_output + of_outputs < last ? first_output + of_outputs : last;
  const int32_t tiles = w.k / kTileInputs;
  const Range run = split_range(tiles, 1, of_run, kSplit);
  // Length of the longest range. All warps iterate that often, since each round has a barrier.
  const int32_t rounds = (tiles + kSplit - 1) / kSplit;

  const int32_t count = run.end - run.begin;
  PackedTiles<kFormat, kCut> matrix(w, outputs, run, lane);
  char* of_warp = memory + kSplit * Shape::kXBytes + warp * Shape::kWarpBytes;
  const uint32_t tiles_at = shared_address(of_warp);
#pragma unroll
  for (int32_t i = 0; i < Shape::kStages - 1; ++i) matrix.copy(tiles_at + i * Shape::kStageBytes);
  wait_for_inputs();

  // A thread copies the same chunks of the same rows of x in each round. With fewer chunks than threads, some copy
  // none.
  constexpr int32_t kCopyThreads = Shape::kThreads / kSplit;
  constexpr int32_t kChunks = kTileInputs * 2 / 16;
  constexpr int32_t kCopies = kRows * kChunks < kCopyThreads ? 1 : kRows * kChunks / kCopyThreads;
  char* of_x = memory + of_run * Shape::kXBytes;
  const int32_t thread = threadIdx.x % kCopyThreads;
  const T* from[kCopies];
  uint32_t missing = 0;
#pragma unroll
  for (int32_t i = 0; i < kCopies; ++i) {
    const int32_t at = (thread + i * kCopyThreads) / kChunks;
    const T* row = at < kRows ? row_of(at) : nullptr;
    if (row == nullptr) missing |= 1u << i;
    from[i] = (row == nullptr ? row_of(0) : row) + run.begin * kTileInputs + thread % kChunks * 8;
  }
  const uint32_t rows_at = shared_address(of_x + thread / kChunks * kRowBytes + thread % kChunks * 16);
  const auto copy_rows = [&](int32_t tile, int32_t stage) {
    if (tile < count && thread < kRows * kChunks) {
      const uint32_t to = rows_at + stage * Shape::kStageBytes;
#pragma unroll
      for (int32_t i = 0; i < kCopies; ++i) {
        const bool exists = (missing >> i & 1) == 0;
        copy_chunk(to + i * (kCopyThreads / kChunks) * kRowBytes, from[i] + tile * kTileInputs, exists);
      }
    }
    end_copies();
  };
#pragma unroll
  for (int32_t i = 0; i < Shape::kStages - 1; ++i) copy_rows(i, i);

  const uint32_t offset = kept(Pairs<T>::kOffset);
  float totals[kRows / kTileRows][4] = {};
  const auto multiply_tile = [&](int32_t stage) {
    const auto& of = *reinterpret_cast<const PackedTile<kWords, kCut>*>(of_warp + stage * Shape::kStageBytes);
    const char* x = of_x + stage * Shape::kStageBytes + lane / 4 * kRowBytes + lane % 4 * 8;
    uint4 words[kWords / 4];
#pragma unroll
    for (int32_t i = 0; i < kWords / 4; ++i) words[i] = of.quants[i][lane];
#pragma unroll
    for (int32_t step = 0; step < kTileInputs / kStepInputs; ++step) {
      uint32_t a[4];
      widen<T, kFormat>(reinterpret_cast<const uint32_t*>(words), step, static_cast<const T*>(nullptr), offset, a);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const float2 scale = of.scales[step / kPartSteps][lane / 4 + i % 2 * 8];
        const float2 values = floats(as_pair<T>(a[i]));
        a[i] = rounded({fmaf(values.x, scale.x, scale.y), fmaf(values.y, scale.x, scale.y)}, T());
      }
#pragma unroll
      for (int32_t rows = 0; rows < kRows / kTileRows; ++rows) {
        const auto pairs = *reinterpret_cast<const uint2*>(x + rows * kTileRows * kRowBytes + step * kStepInputs * 2);
        const uint32_t b[2] = {pairs.x, pairs.y};
        multiply(totals[rows], a, b, T());
      }
    }
  };
  int32_t stage = 0;
  int32_t next = Shape::kStages - 1;
#pragma unroll 1
  for (int32_t tile = 0; tile < rounds; ++tile) {
    wait_for_copies<Shape::kStages - 2>();
    // The barrier makes the awaited stage visible to all warps, and says that all are done with the stage that is
    // overwritten next.
    __syncthreads();
    matrix.copy(tiles_at + next * Shape::kStageBytes);
    copy_rows(tile + Shape::kStages - 1, next);
    if (tile < count) multiply_tile(stage);
    next = stage;
    stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
  }

  let_next_start();
  wait_for_copies<0>();
  __syncthreads();
  // The partial sums overwrite the stages, and are added in the order of the inputs.
  auto* sums = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int32_t rows = 0; rows < kRows / kTileRows; ++rows) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t row = rows * kTileRows + lane % 4 * 2 + i % 2;
      sums[(of_run * kRows + row) * Shape::kOutputs + of_outputs + lane / 4 + i / 2 * 8] = totals[rows][i];
    }
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; i < kRows * Shape::kOutputs; i += Shape::kThreads) {
    const int32_t row = i / Shape::kOutputs;
    const int32_t output = first_output + i % Shape::kOutputs;
    const T* of_row = row_of(row);
    if (of_row == nullptr || output >= w.n) continue;
    float sum = 0.0f;
#pragma unroll
    for (int32_t part = 0; part < kSplit; ++part) sum += sums[part * kRows * Shape::kOutputs + i];
    take(row, output, sum + sparse_sum(w, of_row, output));
  }
}

}  // namespace candlepower
