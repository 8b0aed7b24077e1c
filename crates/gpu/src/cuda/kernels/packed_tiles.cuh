// The product of one warp with a range of tiles of a quantized matrix.
#pragma once

#include "packed_operands.cuh"

namespace candlepower {

// Shared memory of a warp for one tile of 16 outputs: the quantized weights, of `kWords` bits each, and scales and
// offsets of the outputs for each of the tile's 2^`kCut` parts.
template <int32_t kWords, int32_t kCut>
struct PackedTile {
  uint4 quants[kWords / 4][kWarp];
  float2 scales[1 << kCut][kTileOutputs];
};

// Iterator over the tiles in a warp's range of 16 outputs, which copies them to shared memory.
//
// The matrix must consist of whole tiles. A tile has 2^`kCut` groups, or a group has 2^n tiles. Each lane copies the
// quantized weights that it multiplies itself. For each part, eight lanes copy the scales of two outputs each.
template <QuantFormat kFormat, int32_t kCut>
struct PackedTiles {
  static constexpr int32_t kWords = bits_of(kFormat);
  using Tile = PackedTile<kWords, kCut>;
  const uint4* quants;
  const float2* scales;
  int64_t scale_stride;
  int32_t tile;
  int32_t end;
  int32_t of_group;  // mask for a tile's index within its group; all bits set if there is one group
  uint32_t quants_at;
  uint32_t scales_at;
  bool has_scales;

  __device__ __forceinline__ PackedTiles(const PackedMatrix& w, int32_t first_output, Range run, int32_t lane) {
    const int64_t before = static_cast<int64_t>(first_output / kTileOutputs) * (w.k / kTileInputs) + run.begin;
    quants = reinterpret_cast<const uint4*>(w.quants) + before * kWords * 8 + lane;
    const bool one_group = w.group >= w.k;
    of_group = one_group ? -1 : w.group / kTileInputs - 1;
    const int32_t part = lane / 8;
    const int32_t group = kCut != 0 ? (run.begin << kCut) + part : (one_group ? 0 : run.begin / (of_group + 1));
    scales = reinterpret_cast<const float2*>(w.scales) + group * static_cast<int64_t>(w.whole_outputs()) + first_output +
             lane % 8 * 2;
    scale_stride = static_cast<int64_t>(w.whole_outputs()) << kCut;
    tile = run.begin;
    end = run.end;
    quants_at = lane * 16;
    scales_at = sizeof(Tile::quants) + lane * 16;
    has_scales = kFormat != QuantFormat::kTable && part < 1 << kCut;
  }

  // Starts the copy of the next tile, if there is one. `to` is its address in shared memory.
  __device__ __forceinline__ void copy(uint32_t to) {
    if (tile >= end) return;
#pragma unroll
    for (int32_t i = 0; i < kWords / 4; ++i) copy_chunk(to + quants_at + i * kWarp * 16, quants + i * kWarp);
    if (has_scales) copy_chunk(to + scales_at, scales);
    quants += kWords * 8;
    tile += 1;
    if (kCut != 0 || (tile & of_group) == 0) scales += scale_stride;
  }
};

// Number of tiles that are in shared memory or being copied there. It is limited by the static shared memory of a
// block.
template <QuantFormat kFormat>
constexpr int32_t kPackedStages = is_narrow(kFormat) ? 4 : 3;

// Constants of the product of a tile, which stay in registers.
template <typename T>
struct TileConstants {
  uint32_t offset = kept(Pairs<T>::kOffset);
  uint32_t ones[4];

  __device__ __forceinline__ TileConstants() {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) ones[i] = kept(Pairs<T>::kOnes);
  }
};

// Adds the product of a tile to `totals`. `words` holds a lane's quantized weights, `scale_of` returns scale and offset
// of one of its outputs in a part, and `x` points to the lane's first element of each row. A lane reads four elements
// in each step.
template <typename T, QuantFormat kFormat, int32_t kRowTiles, int32_t kCut, typename ScaleOf>
__device__ __forceinline__ void multiply_tile(const uint4* words, ScaleOf scale_of, const T* tables,
                                              const TileConstants<T>& constants, const T* const (&x)[kRowTiles],
                                              int32_t tile, float (&totals)[kRowTiles][4]) {
  constexpr bool kScaled = kFormat != QuantFormat::kTable;
  constexpr int32_t kPartSteps = kTileInputs / kStepInputs >> kCut;
#pragma unroll
  for (int32_t part = 0; part < 1 << kCut; ++part) {
    float sums[kRowTiles][4] = {};
    float inputs[kRowTiles][4] = {};
#pragma unroll
    for (int32_t step = part * kPartSteps; step < (part + 1) * kPartSteps; ++step) {
      uint32_t a[4];
      widen<T, kFormat>(reinterpret_cast<const uint32_t*>(words), step, tables, constants.offset, a);
#pragma unroll
      for (int32_t rows = 0; rows < kRowTiles; ++rows) {
        const auto pairs = *reinterpret_cast<const uint2*>(x[rows] + tile * kTileInputs + step * kStepInputs);
        const uint32_t b[2] = {pairs.x, pairs.y};
        multiply(kScaled ? sums[rows] : totals[rows], a, b, T());
        if constexpr (kScaled) multiply(inputs[rows], constants.ones, b, T());
      }
    }
    if constexpr (kScaled) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const float2 scale = scale_of(part, i / 2);
#pragma unroll
        for (int32_t rows = 0; rows < kRowTiles; ++rows) {
          totals[rows][i] = fmaf(sums[rows][i], scale.x, fmaf(inputs[rows][i], scale.y, totals[rows][i]));
        }
      }
    }
  }
}

// Sums over a short range of tiles of 16 outputs, added to `totals`. The matrix must have the layout that PackedTiles
// asks for.
//
// Tiles are copied to `coming` in shared memory, because loads into registers did not overlap here: nvcc gave all loads
// between branches one scoreboard, so each wait was for the newest. On an H200, the product of 4-bit experts with 8
// tokens takes 51 instead of 110 us this way.
template <typename T, QuantFormat kFormat, int32_t kRowTiles, int32_t kCut>
__device__ __forceinline__ void multiply_short(const PackedMatrix& w, int32_t first_output, Range run, const T* tables,
                                               PackedTile<bits_of(kFormat), kCut>* coming, const T* const (&x)[kRowTiles],
                                               float (&totals)[kRowTiles][4]) {
  constexpr int32_t kWords = bits_of(kFormat);
  constexpr int32_t kStages = kPackedStages<kFormat>;
  const auto lane = static_cast<int32_t>(kept(threadIdx.x % kWarp));
  PackedTiles<kFormat, kCut> matrix(w, first_output, run, lane);
  const uint32_t tiles_at = shared_address(coming);
#pragma unroll
  for (int32_t i = 0; i < kStages; ++i) {
    matrix.copy(tiles_at + i * sizeof(*coming));
    end_copies();
  }
  const TileConstants<T> constants;
  wait_for_inputs();
  int32_t stage = 0;
#pragma unroll 1
  for (int32_t tile = run.begin; tile < run.end; ++tile) {
    const PackedTile<kWords, kCut>& of = coming[stage];
    wait_for_copies<kStages - 1>();
    __syncwarp();
    uint4 words[kWords / 4];
#pragma unroll
    for (int32_t i = 0; i < kWords / 4; ++i) words[i] = of.quants[i][lane];
    const auto scale_of = [&](int32_t part, int32_t output) { return of.scales[part][lane / 4 + output * 8]; };
    multiply_tile<T, kFormat, kRowTiles, kCut>(words, scale_of, tables, constants, x, tile, totals);
    __syncwarp();
    matrix.copy(tiles_at + stage * sizeof(*coming));
    end_copies();
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
}

// Number of tiles that are being loaded into a lane's registers. It is limited by the number of registers.
template <int32_t kWords, int32_t kCut>
constexpr int32_t kPackedAhead = kCut == 2 || (kWords == 8 && kCut == 1) ? 2 : 4;

// The same for long ranges. Tiles are loaded into registers, several ahead of their use. Unlike in `multiply_short`, these
// loads do overlap, because the main loop has no branches. The rows of x are read from global memory in between.
template <typename T, QuantFormat kFormat, int32_t kRowTiles, int32_t kCut>
__device__ __forceinline__ void multiply_long(const PackedMatrix& w, int32_t first_output, Range run, const T* tables,
                                              const T* const (&x)[kRowTiles], float (&totals)[kRowTiles][4]) {
  constexpr int32_t kWords = bits_of(kFormat);
  constexpr int32_t kAhead = kPackedAhead<kWords, kCut>;
  constexpr int32_t kParts = 1 << kCut;
  const int32_t lane = threadIdx.x % kWarp;
  const int64_t before = static_cast<int64_t>(first_output / kTileOutputs) * (w.k / kTileInputs);
  const uint4* quants = reinterpret_cast<const uint4*>(w.quants) + before * kWords * 8 + lane;
  const float2* scales = reinterpret_cast<const float2*>(w.scales) + first_output + lane / 4;
  const int64_t outputs = w.whole_outputs();
  const int32_t of_group = w.group >= w.k ? 31 : 31 - __clz(w.group / kTileInputs);
  struct Tile {
    uint4 quants[kWords / 4];
    float2 scales[kParts][2];
  };
  const auto ask = [&](Tile& to, int32_t tile) {
#pragma unroll
    for (int32_t i = 0; i < kWords / 4; ++i) to.quants[i] = __ldcs(quants + (tile * (kWords / 4) + i) * kWarp);
    if constexpr (kFormat != QuantFormat::kTable) {
      const int32_t group = kCut == 0 ? tile >> of_group : tile << kCut;
#pragma unroll
      for (int32_t part = 0; part < kParts; ++part) {
        to.scales[part][0] = __ldg(scales + (group + part) * outputs);
        to.scales[part][1] = __ldg(scales + (group + part) * outputs + 8);
      }
    }
  };
  const TileConstants<T> constants;
  const auto multiply_one = [&](const Tile& of, int32_t tile) {
    const auto scale_of = [&](int32_t part, int32_t output) { return of.scales[part][output]; };
    multiply_tile<T, kFormat, kRowTiles, kCut>(of.quants, scale_of, tables, constants, x, tile, totals);
  };

  Tile coming[kAhead];
#pragma unroll
  for (int32_t i = 0; i < kAhead; ++i) {
    if (run.begin + i < run.end) ask(coming[i], run.begin + i);
  }
  wait_for_inputs();
  int32_t tile = run.begin;
  // No branches in the loop, so that loads do not wait for each other.
#pragma unroll 1
  for (; tile + 2 * kAhead <= run.end; tile += kAhead) {
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i) {
      multiply_one(coming[i], tile + i);
      ask(coming[i], tile + kAhead + i);
    }
  }
  // The tiles already loaded, and then at most as many again.
#pragma unroll 1
  for (int32_t part = 0; part < 2; ++part, tile += kAhead) {
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i) {
      if (tile + i >= run.end) continue;
      multiply_one(coming[i], tile + i);
      if (tile + kAhead + i < run.end) ask(coming[i], tile + kAhead + i);
    }
  }
}

// The same for matrices of any layout and 8 rows, with columns in any order and groups of whole steps. `x` points to
// the beginning of a row.
//
// This is a separate function because its branches slowed the other variants down: registers were spilled with 17 to 32
// rows, and nvcc could not move loads of activations ahead.
template <typename T, QuantFormat kFormat>
__device__ __forceinline__ void multiply_any(const PackedMatrix& w, int32_t first_output, Range run, const T* tables,
                                             const T* x, float (&totals)[4]) {
  constexpr int32_t kWords = bits_of(kFormat);
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t tiles = tiles_of(w.k, kTileInputs);
  const uint4* quants =
      reinterpret_cast<const uint4*>(w.quants) + static_cast<int64_t>(first_output / kTileOutputs) * tiles * kWords * 8 + lane;
  const uint32_t ones[4] = {Pairs<T>::kOnes, Pairs<T>::kOnes, Pairs<T>::kOnes, Pairs<T>::kOnes};
  wait_for_inputs();
  for (int32_t tile = run.begin; tile < run.end; ++tile) {
    uint4 words[kWords / 4];
#pragma unroll
    for (int32_t i = 0; i < kWords / 4; ++i) words[i] = quants[(tile * (kWords / 4) + i) * kWarp];
#pragma unroll
    for (int32_t step = 0; step < kTileInputs / kStepInputs; ++step) {
      const int32_t first = tile * kTileInputs + step * kStepInputs;
      if (first >= w.k) break;
      uint32_t a[4];
      widen<T, kFormat>(reinterpret_cast<const uint32_t*>(words), step, tables, Pairs<T>::kOffset, a);
      Vector<T, 4> values{};
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        const int32_t column = first + lane % 4 * 4 + j;
        if (column < w.k) values.at[j] = x[w.inputs == nullptr ? column : static_cast<int32_t>(w.inputs[column])];
      }
      const auto* pairs = reinterpret_cast<const uint32_t*>(&values);
      const uint32_t b[2] = {pairs[0], pairs[1]};
      if constexpr (kFormat == QuantFormat::kTable) {
        multiply(totals, a, b, T());
        continue;
      }
      float sums[4] = {};
      float inputs[4] = {};
      multiply(sums, a, b, T());
      multiply(inputs, ones, b, T());
      const auto* scales = reinterpret_cast<const float2*>(w.scales) +
                           static_cast<int64_t>(first / w.group) * w.whole_outputs() + first_output + lane / 4;
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const float2 scale = scales[i / 2 * 8];
        totals[i] = fmaf(sums[i], scale.x, fmaf(inputs[i], scale.y, totals[i]));
      }
    }
  }
}

}  // namespace candlepower
