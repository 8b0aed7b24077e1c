// The product of a quantized matrix and few rows by one block.
#pragma once

#include "packed_tiles.cuh"

namespace candlepower {

// What the warps of a block have, and then what they have found of each output.
template <Codes kCodes, int32_t kWarps, int32_t kRows, int32_t kCut>
union PackedShared {
  PackedTile<bits_of(kCodes), kCut> coming[kWarps][kPackedStages<kCodes>];
  float partial[kWarps][kTileOutputs][kRows];
};
template <Codes kCodes, int32_t kWarps, int32_t kRows>
union PackedShared<kCodes, kWarps, kRows, kAnyLayout> {  // or where nothing is on its way in shared memory
  float partial[kWarps][kTileOutputs][kRows];
};

// A block computes 16 outputs, those from `first_output` on, of all rows; each of its `kWarps` warps has a run of the inputs, and their
// sums are added in their order: a row's result depends on its own values and the shape of `w` alone. `row_of` says where in x
// a row of the tile begins, or null, but for the first; `take` gets the row, the output and the sum of each that there is. Waits for what
// the kernel before writes when the matrix is on its way. Where `kLong`, warps have long runs.
template <typename T, Codes kCodes, int32_t kWarps, int32_t kRowTiles, int32_t kCut, bool kLong, typename RowOf, typename Take>
__device__ __forceinline__ void multiply_packed(const PackedMatrix& w, int32_t first_output, RowOf row_of, Take take) {
  constexpr int32_t kRows = kRowTiles * kTileRows;
  constexpr bool kScaled = kCodes != Codes::kTable;
  __shared__ PackedShared<kCodes, kWarps, kRows, kLong ? kAnyLayout : kCut> shared;
  __shared__ T tables[kScaled ? 1 : kTileOutputs * kTableNumbers];
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  if constexpr (!kScaled) {
    const float* numbers = w.scales + static_cast<int64_t>(first_output) * kTableNumbers;
    for (int32_t i = threadIdx.x; i < kTileOutputs * kTableNumbers; i += blockDim.x) tables[i] = T(numbers[i]);
    __syncthreads();
  }
  // Rows that there are not have the first one's numbers, and nobody takes their sums.
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
    multiply_any<T, kCodes>(w, first_output, run, tables, x[0], totals[0]);
  } else if constexpr (kLong) {
    multiply_long<T, kCodes, kRowTiles, kCut>(w, first_output, run, tables, x, totals);
  } else {
    multiply_short<T, kCodes, kRowTiles, kCut>(w, first_output, run, tables, shared.coming[warp], x, totals);
  }
  let_next_start();
  // Results lie where tiles were.
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
    for (int32_t part = 0; part < kWarps; ++part) sum += shared.partial[part][i % kTileOutputs][row];
    take(row, output, sum + sparse_sum(w, of_row, output));
  }
}

// Calls `launch` with the layout of a matrix: into how many parts groups cut a tile, which tables have none of.
template <Codes kCodes, typename Launch>
void with_cut(int32_t cut, Launch launch) {
  if (cut == kAnyLayout) return launch(std::integral_constant<int32_t, kAnyLayout>{});
  if constexpr (kCodes != Codes::kTable) {
    if (cut == 1) return launch(std::integral_constant<int32_t, 1>{});
    if (cut == 2) return launch(std::integral_constant<int32_t, 2>{});
  }
  launch(std::integral_constant<int32_t, 0>{});
}

}  // namespace candlepower
