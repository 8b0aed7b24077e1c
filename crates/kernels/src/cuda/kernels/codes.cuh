// Quantized matrices: their numbers, and their product with few rows, computed from the codes.
//
// The product is that of tensor cores, 16 outputs by 16 inputs by 8 rows at a time. Codes become elements by a few
// operations on bits, two at a time, and are multiplied as they are: what they count for, a scale and a minimum of
// their group, is applied to the group's sum in f32: sum(x * (code * scale + min)) = scale * sum(x * code) + min *
// sum(x), where the second sum is a product with ones. Source of the idea of laying codes out for the lanes that
// multiply them: Frantar et al., "MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on LLMs", 2024.
#pragma once

#include <type_traits>

#include "async_copy.cuh"
#include "tensor_core.cuh"

namespace candlepower {

// What codes mean; the values are those of `code_kind` in src/cuda/packed.rs.
enum class Codes : int32_t { kU4 = 0, kU8 = 1, kE4m3 = 2, kTable = 3, kE2m1 = 4 };

struct PackedMatrix {
  const uint32_t* codes;          // as `code_place` says
  const float* scales;            // [groups][n in whole tiles][scale, minimum]; of tables [n in whole tiles][16]
  const uint32_t* inputs;         // [k]: the input of each column; null where they are in order
  const uint32_t* sparse_starts;  // [n + 1]: where the entries of each output begin; null where there are none
  const uint32_t* sparse_inputs;
  const float* sparse_numbers;
  int32_t n;
  int32_t k;
  int32_t width;  // inputs of a row, of which columns may leave some out
  int32_t group;
  int32_t kind;
  int32_t padding;

  CANDLEPOWER_HD int32_t whole_outputs() const {
    return (n + kTileOutputs - 1) / kTileOutputs * kTileOutputs;
  }
};

constexpr bool is_narrow(Codes codes) { return codes == Codes::kU4 || codes == Codes::kTable || codes == Codes::kE2m1; }
constexpr int32_t bits_of(Codes codes) { return is_narrow(codes) ? 4 : 8; }

// ---- Numbers ---------------------------------------------------------------------------------------

// A code of eight bits as a half, but for a factor of 256 that scales have: the exponent has one bit more.
__device__ __forceinline__ float e4m3_part(uint32_t code) {
  const uint32_t bits = (code & 0x80u) << 8 | (code & 0x7fu) << 7;
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// A code of a sign, two bits of exponent and one of mantissa as a half, but for a factor of 2^14 that scales have.
__device__ __forceinline__ float e2m1_part(uint32_t code) {
  const uint32_t bits = (code & 8u) << 12 | (code & 7u) << 9;
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// What a code that is multiplied by a scale is.
template <Codes kCodes>
__device__ __forceinline__ float code_part(uint32_t code) {
  if constexpr (kCodes == Codes::kE4m3) return e4m3_part(code);
  if constexpr (kCodes == Codes::kE2m1) return e2m1_part(code);
  return static_cast<float>(code);
}

// Columns whose numbers are unpacked together.
constexpr int32_t kUnpacked = 8;

// The numbers of an output in the columns from `column` on, a multiple of 8, each rounded once; zeros beyond the last column.
template <typename T, Codes kCodes>
__device__ __forceinline__ Vector<T, kUnpacked> unpacked(const PackedMatrix& w, int32_t output, int32_t column) {
  constexpr int32_t kBits = bits_of(kCodes);
  float2 scale = {1.0f, 0.0f};
  if constexpr (kCodes != Codes::kTable) {
    const int64_t group = column / w.group;
    scale = reinterpret_cast<const float2*>(w.scales)[group * w.whole_outputs() + output];
  }
  const CodePlace first = code_place(output, column, w.k, kBits);
  Vector<T, kUnpacked> numbers{};
#pragma unroll
  for (int32_t i = 0; i < kUnpacked; ++i) {
    if (column + i >= w.k) break;
    const CodePlace place = place_after(first, i, kBits);
    const uint32_t code = w.codes[place.word] >> place.shift & ((1u << kBits) - 1);
    if constexpr (kCodes == Codes::kTable) {
      numbers.at[i] = T(w.scales[int64_t(output) * kTableNumbers + code]);
    } else {
      numbers.at[i] = T(fmaf(code_part<kCodes>(code), scale.x, scale.y));
    }
  }
  return numbers;
}

// What the numbers beside the codes add to an output, for a row of x.
template <typename T>
__device__ __forceinline__ float sparse_sum(const PackedMatrix& w, const T* x, int32_t output) {
  float sum = 0.0f;
  if (w.sparse_starts == nullptr) return sum;
  for (uint32_t at = w.sparse_starts[output]; at < w.sparse_starts[output + 1]; ++at) {
    sum += static_cast<float>(x[w.sparse_inputs[at]]) * w.sparse_numbers[at];
  }
  return sum;
}

// ---- Product ---------------------------------------------------------------------------------------

// Of a block.
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

// Two numbers below 16, each in the low bits of its half of a word, as two elements: exactly.
template <typename T>
__device__ __forceinline__ uint32_t small_numbers(uint32_t word) {
  const uint32_t offset = Pairs<T>::kOffset;
  return as_bits(__hsub2(as_pair<T>((word & 0x000f000fu) | offset), as_pair<T>(offset)));
}

// The codes of a lane in step `kStep` of a tile, as the operand of tensor cores: the two of register 0 belong to output
// `lane / 4` and inputs 0 and 1, of register 1 to the output 8 further, of registers 2 and 3 to inputs 2 and 3.
template <typename T, Codes kCodes>
__device__ __forceinline__ void widen(const uint32_t* words, int32_t step, const T* tables, uint32_t (&a)[4]) {
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    if constexpr (kCodes == Codes::kU4) {
      a[i] = small_numbers<T>(words[step] >> (4 * i));
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
        const auto high = as_pair<T>(small_numbers<T>(codes >> 4));
        const auto low = as_pair<T>(small_numbers<T>(codes));
        a[i] = as_bits(__hfma2(high, as_pair<T>(Pairs<T>::kSixteen), low));
      }
    }
  }
}

// What the columns from `column` on, at most four, meet in a row of x; zeros beyond the last column, and where there is no row.
// Where `kOrdered`, columns are in the order of the inputs, and rows of x are whole vectors of four.
template <typename T, bool kOrdered>
__device__ __forceinline__ void load_inputs(const PackedMatrix& w, const T* x, int32_t column, uint32_t (&b)[2]) {
  Vector<T, 4> values{};
  if constexpr (kOrdered) {
    if (x != nullptr && column < w.k) values = load<4>(x + column);
  } else if (x != nullptr) {
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      const int32_t at = column + j;
      if (at < w.k) values.at[j] = x[w.inputs == nullptr ? at : static_cast<int32_t>(w.inputs[at])];
    }
  }
  const auto* pairs = reinterpret_cast<const uint32_t*>(&values);
  b[0] = pairs[0];
  b[1] = pairs[1];
}

// What is on its way to a warp: the codes of a tile, of `kWords` bits, and what those of its parts count for.
template <int32_t kWords>
struct PackedStage {
  uint4 codes[kWords / 4][kWarp];
  float2 scales[kTileInputs / kStepInputs][kTileOutputs];
};

// Tiles that are on their way to a warp: as many as a block's shared memory has room for.
template <int32_t kWords>
constexpr int32_t kPackedStages = kWords == 4 ? 4 : 3;

// What the warps of a block have, and then what they found.
template <int32_t kWords, int32_t kRows>
union PackedShared {
  PackedStage<kWords> coming[kPackedWarps][kPackedStages<kWords>];
  float partial[kPackedWarps][kTileOutputs][kRows];
};

// A block computes 16 outputs, those from `first_output` on, of all rows; each of its warps has a run of the inputs, and their
// sums are added in their order: a row's result depends on its own values and the shape of `w` alone. `row_of` says where in x
// a row of the tile begins, or null; `take` gets the row, the output and the sum of each that there is.
template <typename T, Codes kCodes, int32_t kRowTiles, bool kOrdered, typename RowOf, typename Take>
__device__ __forceinline__ void multiply_packed(const PackedMatrix& w, int32_t first_output, RowOf row_of, Take take) {
  constexpr int32_t kRows = kRowTiles * kTileRows;
  constexpr int32_t kWords = bits_of(kCodes);
  constexpr bool kScaled = kCodes != Codes::kTable;
  constexpr int32_t kStages = kPackedStages<kWords>;
  __shared__ PackedShared<kWords, kRows> shared;
  __shared__ T tables[kScaled ? 1 : kTileOutputs * kTableNumbers];
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  if constexpr (!kScaled) {
    const float* numbers = w.scales + static_cast<int64_t>(first_output) * kTableNumbers;
    for (int32_t i = threadIdx.x; i < kTileOutputs * kTableNumbers; i += blockDim.x) tables[i] = T(numbers[i]);
    __syncthreads();
  }

  const T* x[kRowTiles];
#pragma unroll
  for (int32_t tile = 0; tile < kRowTiles; ++tile) x[tile] = row_of(tile * kTileRows + lane / 4);
  float totals[kRowTiles][4] = {};
  float sums[kRowTiles][4] = {};
  float inputs[kRowTiles][4] = {};
  const uint32_t ones[4] = {Pairs<T>::kOnes, Pairs<T>::kOnes, Pairs<T>::kOnes, Pairs<T>::kOnes};
  const int32_t tiles = (w.k + kTileInputs - 1) / kTileInputs;
  const Range run = split_range(tiles, 1, warp, kPackedWarps);
  const uint4* codes = reinterpret_cast<const uint4*>(w.codes) + int64_t(first_output / kTileOutputs) * tiles * kWords * 8 + lane;
  // Into how many parts of whole steps groups cut a tile at most: a half is 1, a quarter 2.
  const int32_t cut = w.group >= w.k || w.group % kTileInputs == 0 ? 0 : (w.group % (kTileInputs / 2) == 0 ? 1 : 2);
  const auto ask_for = [&](int32_t tile, PackedStage<kWords>& stage) {
    if (tile < run.end) {
#pragma unroll
      for (int32_t i = 0; i < kWords / 4; ++i) {
        copy_chunk(&stage.codes[i][lane], codes + (int64_t(tile) * (kWords / 4) + i) * kWarp);
      }
      // Eight lanes have the scales of a part, each those of two outputs.
      const int32_t part = lane / 8;
      if (kScaled && part < 1 << cut) {
        const int32_t column = tile * kTileInputs + part * (kTileInputs >> cut);
        const int64_t group = (column < w.k ? column : w.k - 1) / w.group;
        const auto* of_group = reinterpret_cast<const float2*>(w.scales) + group * w.whole_outputs() + first_output;
        copy_chunk(&stage.scales[part][lane % 8 * 2], of_group + lane % 8 * 2);
      }
    }
    end_copies();
  };
  const auto multiply_tile = [&](int32_t tile, const PackedStage<kWords>& stage) {
    uint4 words[kWords / 4];
#pragma unroll
    for (int32_t i = 0; i < kWords / 4; ++i) words[i] = stage.codes[i][lane];
#pragma unroll
    for (int32_t step = 0; step < kTileInputs / kStepInputs; ++step) {
      const int32_t column = tile * kTileInputs + step * kStepInputs;
      if (column < w.k) {
        uint32_t a[4];
        widen<T, kCodes>(reinterpret_cast<const uint32_t*>(words), step, tables, a);
#pragma unroll
        for (int32_t rows = 0; rows < kRowTiles; ++rows) {
          uint32_t b[2];
          load_inputs<T, kOrdered>(w, x[rows], column + lane % 4 * 4, b);
          multiply(kScaled ? sums[rows] : totals[rows], a, b, T());
          if constexpr (kScaled) multiply(inputs[rows], ones, b, T());
        }
      }
      // At the end of a part its sums count for its scales.
      if (!kScaled || (step + 1) % (4 >> cut) != 0) continue;
      const float2* scales = stage.scales[step >> (2 - cut)] + lane / 4;
#pragma unroll
      for (int32_t rows = 0; rows < kRowTiles; ++rows) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const float2 scale = scales[i / 2 * 8];
          totals[rows][i] += fmaf(sums[rows][i], scale.x, inputs[rows][i] * scale.y);
          sums[rows][i] = 0.0f;
          inputs[rows][i] = 0.0f;
        }
      }
    }
  };
  // Codes and scales take a while to come from memory: those of the next tiles are on their way while a tile is multiplied.
#pragma unroll
  for (int32_t i = 0; i < kStages; ++i) ask_for(run.begin + i, shared.coming[warp][i]);
  int32_t at = 0;
  for (int32_t tile = run.begin; tile < run.end; ++tile) {
    PackedStage<kWords>& stage = shared.coming[warp][at];
    wait_for_copies<kStages - 1>();
    __syncwarp();
    multiply_tile(tile, stage);
    __syncwarp();
    ask_for(tile + kStages, stage);
    at = at + 1 == kStages ? 0 : at + 1;
  }

  // Results lie where stages were.
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
    for (int32_t part = 0; part < kPackedWarps; ++part) sum += shared.partial[part][i % kTileOutputs][row];
    take(row, output, sum + sparse_sum(w, of_row, output));
  }
}

// Calls `launch` with a type that has this kind of codes.
template <typename Launch>
void with_codes(int32_t kind, Launch launch) {
  switch (static_cast<Codes>(kind)) {
    case Codes::kU4: launch(std::integral_constant<Codes, Codes::kU4>{}); break;
    case Codes::kU8: launch(std::integral_constant<Codes, Codes::kU8>{}); break;
    case Codes::kE4m3: launch(std::integral_constant<Codes, Codes::kE4m3>{}); break;
    case Codes::kE2m1: launch(std::integral_constant<Codes, Codes::kE2m1>{}); break;
    case Codes::kTable: launch(std::integral_constant<Codes, Codes::kTable>{}); break;
  }
}

}  // namespace candlepower
