// Quantized matrices: their product with few rows, computed from the codes.
//
// It is that of tensor cores, 16 outputs by 16 inputs by 8 rows at a time. Codes become elements by a few
// operations on bits, two at a time, and are multiplied as they are: what they count for, a scale and a minimum of
// their group, is applied to the group's sum in f32: sum(x * (code * scale + min)) = scale * sum(x * code) + min *
// sum(x), where the second sum is a product with ones. Source of the idea of laying codes out for the lanes that
// multiply them: Frantar et al., "MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on LLMs", 2024.
#pragma once

#include "async_copy.cuh"
#include "codes.cuh"
#include "tensor_core.cuh"

namespace candlepower {

struct PackedProductArgs {
  PackedMatrix w;
  const void* x;     // [rows, width]
  const void* bias;  // [n], may be null
  void* out;         // [rows, n]
  int32_t rows;
  int32_t dtype;
};
static_assert(sizeof(PackedProductArgs) == 104, "as in src/cuda/packed.rs");

// Of a block, where there are many outputs and where there are few: they share the inputs.
constexpr int32_t kFewPackedWarps = 4;
constexpr int32_t kPackedWarps = 8;
// Rows of one product of tensor cores.
constexpr int32_t kTileRows = 8;

template <typename T>
struct Pairs;

template <>
struct Pairs<__nv_bfloat16> {
  using Pair = __nv_bfloat162;
  static constexpr uint32_t kOnes = 0x3f803f80u;
  // 128, of whose mantissa the last bits count ones.
  static constexpr uint32_t kOffset = 0x43004300u;
  static constexpr uint32_t kSixteen = 0x41804180u;

  // The seven bits begin where the exponent does, whose bias is 120 more: 2^112 leaves the factor of 256.
  static __device__ __forceinline__ uint32_t e4m3_parts(uint32_t codes);
  static __device__ __forceinline__ uint32_t e2m1_parts(uint32_t codes);
};

template <>
struct Pairs<__half> {
  using Pair = __half2;
  static constexpr uint32_t kOnes = 0x3c003c00u;
  // 1024, likewise.
  static constexpr uint32_t kOffset = 0x64006400u;
  static constexpr uint32_t kSixteen = 0x4c004c00u;

  static __device__ __forceinline__ uint32_t e4m3_parts(uint32_t codes);
  static __device__ __forceinline__ uint32_t e2m1_parts(uint32_t codes);
};

template <typename T>
__device__ __forceinline__ typename Pairs<T>::Pair as_pair(uint32_t bits) {
  return *reinterpret_cast<typename Pairs<T>::Pair*>(&bits);
}

template <typename Pair>
__device__ __forceinline__ uint32_t as_bits(Pair pair) {
  return *reinterpret_cast<uint32_t*>(&pair);
}

__device__ __forceinline__ uint32_t Pairs<__nv_bfloat16>::e4m3_parts(uint32_t codes) {
  const uint32_t small = (codes & 0x00800080u) << 8 | (codes & 0x007f007fu) << 4;
  return as_bits(__hmul2(as_pair<__nv_bfloat16>(small), as_pair<__nv_bfloat16>(0x77807780u)));
}

__device__ __forceinline__ uint32_t Pairs<__half>::e4m3_parts(uint32_t codes) {
  return (codes & 0x00800080u) << 8 | (codes & 0x007f007fu) << 7;
}

// Likewise: three bits, and the factor of 2^14 that is left.
__device__ __forceinline__ uint32_t Pairs<__nv_bfloat16>::e2m1_parts(uint32_t codes) {
  const uint32_t small = (codes & 0x00080008u) << 12 | (codes & 0x00070007u) << 6;
  return as_bits(__hmul2(as_pair<__nv_bfloat16>(small), as_pair<__nv_bfloat16>(0x77807780u)));
}

__device__ __forceinline__ uint32_t Pairs<__half>::e2m1_parts(uint32_t codes) {
  return (codes & 0x00080008u) << 12 | (codes & 0x00070007u) << 9;
}

// A constant that stays in a register: the compiler would otherwise write it anew wherever it is read.
__device__ __forceinline__ uint32_t kept(uint32_t constant) {
  uint32_t word;
  asm volatile("mov.u32 %0, %1;" : "=r"(word) : "r"(constant));
  return word;
}

// Two numbers below 16, each in the low bits of its half of a word, as two elements: exactly. `offset` is `Pairs<T>::kOffset`.
template <typename T>
__device__ __forceinline__ uint32_t small_numbers(uint32_t word, uint32_t offset) {
  uint32_t bits;
  // (word & 0x000f000f) | offset
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(word), "r"(0x000f000fu), "r"(offset));
  return as_bits(__hsub2(as_pair<T>(bits), as_pair<T>(Pairs<T>::kOffset)));
}

// The codes of a lane in step `kStep` of a tile, as the operand of tensor cores: the two of register 0 belong to output
// `lane / 4` and inputs 0 and 1, of register 1 to the output 8 further, of registers 2 and 3 to inputs 2 and 3.
template <typename T, Codes kCodes>
__device__ __forceinline__ void widen(const uint32_t* words, int32_t step, const T* tables, uint32_t offset, uint32_t (&a)[4]) {
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    if constexpr (kCodes == Codes::kU4) {
      a[i] = small_numbers<T>(words[step] >> (4 * i), offset);
    } else if constexpr (kCodes == Codes::kE2m1) {
      a[i] = Pairs<T>::e2m1_parts(words[step] >> (4 * i));
    } else if constexpr (kCodes == Codes::kTable) {
      const uint32_t codes = words[step] >> (4 * i);
      const T* table = tables + (threadIdx.x % kWarp / 4 + i % 2 * 8) * kTableNumbers;
      const Vector<T, 2> pair{{table[codes & 15], table[codes >> 16 & 15]}};
      a[i] = *reinterpret_cast<const uint32_t*>(&pair);
    } else {
      const uint32_t codes = words[2 * step + i / 2] >> (8 * (i % 2));
      if constexpr (kCodes == Codes::kE4m3) {
        a[i] = Pairs<T>::e4m3_parts(codes & 0x00ff00ffu);
      } else {
        const auto high = as_pair<T>(small_numbers<T>(codes >> 4, offset));
        const auto low = as_pair<T>(small_numbers<T>(codes, offset));
        a[i] = as_bits(__hfma2(high, as_pair<T>(Pairs<T>::kSixteen), low));
      }
    }
  }
}

// What a warp has of a tile of 16 outputs in shared memory: codes of `kWords` bits, and scales and minima of the outputs in each of 2^`kCut`
// parts.
template <int32_t kWords, int32_t kCut>
struct PackedTile {
  uint4 codes[kWords / 4][kWarp];
  float2 scales[1 << kCut][kTileOutputs];
};

// The tiles of a warp's run of 16 outputs that it has not asked for, in a matrix of whole tiles whose groups cut each into 2^`kCut` parts, or
// consist of 2^n tiles. Each lane copies its own codes; eight lanes for each part have the scales of two outputs each.
template <Codes kCodes, int32_t kCut>
struct PackedTiles {
  static constexpr int32_t kWords = bits_of(kCodes);
  using Tile = PackedTile<kWords, kCut>;
  const uint4* codes;
  const float2* scales;
  int64_t scale_stride;
  int32_t tile;
  int32_t end;
  int32_t of_group;  // the bits of a tile's number that say which of its group it is; all where there is one group
  uint32_t codes_at;
  uint32_t scales_at;
  bool has_scales;

  __device__ __forceinline__ PackedTiles(const PackedMatrix& w, int32_t first_output, Range run, int32_t lane) {
    const int64_t before = static_cast<int64_t>(first_output / kTileOutputs) * (w.k / kTileInputs) + run.begin;
    codes = reinterpret_cast<const uint4*>(w.codes) + before * kWords * 8 + lane;
    const bool one_group = w.group >= w.k;
    of_group = one_group ? -1 : w.group / kTileInputs - 1;
    const int32_t part = lane / 8;
    const int32_t group = kCut != 0 ? (run.begin << kCut) + part : (one_group ? 0 : run.begin / (of_group + 1));
    scales = reinterpret_cast<const float2*>(w.scales) + group * static_cast<int64_t>(w.whole_outputs()) + first_output +
             lane % 8 * 2;
    scale_stride = static_cast<int64_t>(w.whole_outputs()) << kCut;
    tile = run.begin;
    end = run.end;
    codes_at = lane * 16;
    scales_at = sizeof(Tile::codes) + lane * 16;
    has_scales = kCodes != Codes::kTable && part < 1 << kCut;
  }

  // Asks for the next one, if there is one; `to` is its address in shared memory.
  __device__ __forceinline__ void copy(uint32_t to) {
    if (tile >= end) return;
#pragma unroll
    for (int32_t i = 0; i < kWords / 4; ++i) copy_chunk(to + codes_at + i * kWarp * 16, codes + i * kWarp);
    if (has_scales) copy_chunk(to + scales_at, scales);
    codes += kWords * 8;
    tile += 1;
    if (kCut != 0 || (tile & of_group) == 0) scales += scale_stride;
  }
};

// Tiles that are in shared memory or on their way to a warp: as many as a block's has room for.
template <Codes kCodes>
constexpr int32_t kPackedStages = is_narrow(kCodes) ? 4 : 3;

// What the warps of a block have, and then what they have found of each output.
template <Codes kCodes, int32_t kWarps, int32_t kRows, int32_t kCut>
union PackedShared {
  PackedTile<bits_of(kCodes), kCut> coming[kWarps][kPackedStages<kCodes>];
  float partial[kWarps][kTileOutputs][kRows];
};
template <Codes kCodes, int32_t kWarps, int32_t kRows>
union PackedShared<kCodes, kWarps, kRows, kAnyLayout> {
  float partial[kWarps][kTileOutputs][kRows];
};

// The sums of a run of tiles of 16 outputs, in `totals`, of a matrix as PackedTiles has them, by way of `coming`. `x` is where a row begins for
// this lane: four elements for each lane of four.
template <typename T, Codes kCodes, int32_t kRowTiles, int32_t kCut>
__device__ __forceinline__ void multiply_tiles(const PackedMatrix& w, int32_t first_output, Range run, const T* tables,
                                               PackedTile<bits_of(kCodes), kCut>* coming, const T* const (&x)[kRowTiles],
                                               float (&totals)[kRowTiles][4]) {
  constexpr int32_t kWords = bits_of(kCodes);
  constexpr int32_t kStages = kPackedStages<kCodes>;
  constexpr bool kScaled = kCodes != Codes::kTable;
  constexpr int32_t kParts = 1 << kCut;
  constexpr int32_t kPartSteps = kTileInputs / kStepInputs / kParts;
  const auto lane = static_cast<int32_t>(kept(threadIdx.x % kWarp));
  PackedTiles<kCodes, kCut> matrix(w, first_output, run, lane);
  const uint32_t tiles_at = shared_address(coming);
#pragma unroll
  for (int32_t i = 0; i < kStages; ++i) {
    matrix.copy(tiles_at + i * sizeof(*coming));
    end_copies();
  }
  const uint32_t offset = kept(Pairs<T>::kOffset);
  uint32_t ones[4];
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) ones[i] = kept(Pairs<T>::kOnes);
  wait_for_inputs();
  int32_t stage = 0;
#pragma unroll 1
  for (int32_t tile = run.begin; tile < run.end; ++tile) {
    const PackedTile<kWords, kCut>& of = coming[stage];
    wait_for_copies<kStages - 1>();
    __syncwarp();
    uint4 words[kWords / 4];
#pragma unroll
    for (int32_t i = 0; i < kWords / 4; ++i) words[i] = of.codes[i][lane];
    const int32_t column = tile * kTileInputs;
#pragma unroll
    for (int32_t part = 0; part < kParts; ++part) {
      float sums[kRowTiles][4] = {};
      float inputs[kRowTiles][4] = {};
#pragma unroll
      for (int32_t step = part * kPartSteps; step < (part + 1) * kPartSteps; ++step) {
        uint32_t a[4];
        widen<T, kCodes>(reinterpret_cast<const uint32_t*>(words), step, tables, offset, a);
#pragma unroll
        for (int32_t rows = 0; rows < kRowTiles; ++rows) {
          const auto pairs = *reinterpret_cast<const uint2*>(x[rows] + column + step * kStepInputs);
          const uint32_t b[2] = {pairs.x, pairs.y};
          multiply(kScaled ? sums[rows] : totals[rows], a, b, T());
          if constexpr (kScaled) multiply(inputs[rows], ones, b, T());
        }
      }
      if constexpr (kScaled) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const float2 scale = of.scales[part][lane / 4 + i / 2 * 8];
#pragma unroll
          for (int32_t rows = 0; rows < kRowTiles; ++rows) {
            totals[rows][i] = fmaf(sums[rows][i], scale.x, fmaf(inputs[rows][i], scale.y, totals[rows][i]));
          }
        }
      }
    }
    __syncwarp();
    matrix.copy(tiles_at + stage * sizeof(*coming));
    end_copies();
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
}

// The same for any matrix, for 8 rows, with columns in any order and groups of whole steps: `x` is where a row begins.
template <typename T, Codes kCodes>
__device__ __forceinline__ void multiply_any(const PackedMatrix& w, int32_t first_output, Range run, const T* tables,
                                             const T* x, float (&totals)[4]) {
  constexpr int32_t kWords = bits_of(kCodes);
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t tiles = tiles_of(w.k, kTileInputs);
  const uint4* codes =
      reinterpret_cast<const uint4*>(w.codes) + static_cast<int64_t>(first_output / kTileOutputs) * tiles * kWords * 8 + lane;
  const uint32_t ones[4] = {Pairs<T>::kOnes, Pairs<T>::kOnes, Pairs<T>::kOnes, Pairs<T>::kOnes};
  wait_for_inputs();
  for (int32_t tile = run.begin; tile < run.end; ++tile) {
    uint4 words[kWords / 4];
#pragma unroll
    for (int32_t i = 0; i < kWords / 4; ++i) words[i] = codes[(tile * (kWords / 4) + i) * kWarp];
#pragma unroll
    for (int32_t step = 0; step < kTileInputs / kStepInputs; ++step) {
      const int32_t first = tile * kTileInputs + step * kStepInputs;
      if (first >= w.k) break;
      uint32_t a[4];
      widen<T, kCodes>(reinterpret_cast<const uint32_t*>(words), step, tables, Pairs<T>::kOffset, a);
      Vector<T, 4> values{};
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        const int32_t column = first + lane % 4 * 4 + j;
        if (column < w.k) values.at[j] = x[w.inputs == nullptr ? column : static_cast<int32_t>(w.inputs[column])];
      }
      const auto* pairs = reinterpret_cast<const uint32_t*>(&values);
      const uint32_t b[2] = {pairs[0], pairs[1]};
      if constexpr (kCodes == Codes::kTable) {
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

// A block computes 16 outputs, those from `first_output` on, of all rows; each of its `kWarps` warps has a run of the inputs, and their
// sums are added in their order: a row's result depends on its own values and the shape of `w` alone. `row_of` says where in x
// a row of the tile begins, or null, but for the first; `take` gets the row, the output and the sum of each that there is. Waits for what
// the kernel before writes when the matrix is on its way.
template <typename T, Codes kCodes, int32_t kWarps, int32_t kRowTiles, int32_t kCut, typename RowOf, typename Take>
__device__ __forceinline__ void multiply_packed(const PackedMatrix& w, int32_t first_output, RowOf row_of, Take take) {
  constexpr int32_t kRows = kRowTiles * kTileRows;
  constexpr bool kScaled = kCodes != Codes::kTable;
  __shared__ PackedShared<kCodes, kWarps, kRows, kCut> shared;
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
  } else {
    multiply_tiles<T, kCodes, kRowTiles, kCut>(w, first_output, run, tables, shared.coming[warp], x, totals);
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
