// The product of one block with a quantized matrix and a few rows.
#pragma once

#include "packed_tiles.cuh"

namespace candlepower {

// Shared memory of a block: the tiles that its warps multiply, and afterwards each warp's partial sum of each output.
template <QuantFormat kFormat, int32_t kWarps, int32_t kRows, int32_t kCut>
union PackedShared {
  PackedTile<bits_of(kFormat), kCut> coming[kWarps][kPackedStages<kFormat>];
  float partial[kWarps][kTileOutputs][kRows];
};
template <QuantFormat kFormat, int32_t kWarps, int32_t kRows>
union PackedShared<kFormat, kWarps, kRows, kAnyLayout> {  // the variant without tiles in shared memory
  float partial[kWarps][kTileOutputs][kRows];
};

// Computes 16 outputs, from `first_output` on, of all rows. Each of the block's `kWarps` warps sums a range of the
// inputs. Their sums are added in a fixed order: those of each of `parts` parts first, which divide the warps evenly. So
// a row's result depends on its own values and the shape of `w` alone.
//
// `row_of` returns the beginning of a row in x, or null if there is no such row; the first row must exist. `take` is
// called with row, output and sum for each result. `wait_for_inputs` is called after the first loads of the matrix have
// been started. `kLong` selects the variant for long ranges.
template <typename T, QuantFormat kFormat, int32_t kWarps, int32_t kRowTiles, int32_t kCut, bool kLong, typename RowOf, typename Take>
__device__ __forceinline__ void multiply_packed(const PackedMatrix& w, int32_t first_output, int32_t parts, RowOf row_of, Take take) {
  constexpr int32_t kRows = kRowTiles * kTileRows;
  constexpr bool kScaled = kFormat != QuantFormat::kTable;
  __shared__ PackedShared<kFormat, kWarps, kRows, kLong ? kAnyLayout : kCut> shared;
  __shared__ T tables[kScaled ? 1 : kTileOutputs * kTableEntries];
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  if constexpr (!kScaled) {
    const float* entries = w.scales + static_cast<int64_t>(first_output) * kTableEntries;
    for (int32_t i = threadIdx.x; i < kTileOutputs * kTableEntries; i += blockDim.x) tables[i] = T(entries[i]);
    __syncthreads();
  }
  // Missing rows are replaced by the first row. Their sums are computed but not stored.
  const T* x[kRowTiles];
#pragma unroll
  for (int32_t tile = 0; tile < kRowTiles; ++tile) {
    const T* row = row_of(tile * kTileRows + lane / 4);
    x[tile] = (row == nullptr ? row_of(0) : row) + (kCut == kAnyLayout ? 0 : lane % 4 * 4);
  }
  const Range run = split_range(tiles_of(w.k, kTileInputs), 1, warp, kWarps);
  float totals[kRowTiles][4] = {};
  if constexpr (kCut == kAnyLayout) {
    static_assert(kRowTiles == 1);
    multiply_any<T, kFormat>(w, first_output, run, tables, x[0], totals[0]);
  } else if constexpr (kLong) {
    multiply_long<T, kFormat, kRowTiles, kCut>(w, first_output, run, tables, x, totals);
  } else {
    multiply_short<T, kFormat, kRowTiles, kCut>(w, first_output, run, tables, shared.coming[warp], x, totals);
  }
  let_next_start();
  // The partial sums overwrite the tiles, so all warps must have finished with them.
  __syncthreads();
#pragma unroll
  for (int32_t tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      shared.partial[warp][lane / 4 + i / 2 * 8][tile * kTileRows + lane % 4 * 2 + i % 2] = totals[tile][i];
    }
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; i < kTileOutputs * kRows; i += blockDim.x) {
    const int32_t output = first_output + i % kTileOutputs;
    const int32_t row = i / kTileOutputs;
    const T* of_row = row_of(row);
    if (output >= w.n || of_row == nullptr) continue;
    float sum = 0.0f;
    for (int32_t part = 0; part < parts; ++part) {
      float of_part = 0.0f;
      for (int32_t at = 0; at < kWarps / parts; ++at) {
        of_part += shared.partial[part * (kWarps / parts) + at][i % kTileOutputs][row];
      }
      sum += of_part;
    }
    take(row, output, sum + sparse_sum(w, of_row, output));
  }
}

// Calls `launch` with the matrix's `cut` as a compile-time constant. Tables have no groups, so for kTable it is 0 or
// kAnyLayout.
template <QuantFormat kFormat, typename Launch>
void with_cut(int32_t cut, Launch launch) {
  if (cut == kAnyLayout) return launch(std::integral_constant<int32_t, kAnyLayout>{});
  if constexpr (kFormat != QuantFormat::kTable) {
    if (cut == 1) return launch(std::integral_constant<int32_t, 1>{});
    if (cut == 2) return launch(std::integral_constant<int32_t, 2>{});
  }
  launch(std::integral_constant<int32_t, 0>{});
}

}  // namespace candlepower
