// The product of a quantized matrix with more rows than one tile has: codes become numbers in registers, each rounded once, and meet
// rows of x that all warps of a block read from shared memory.

#include "async_copy.cuh"
#include "packed_product.cuh"

namespace candlepower {

// From row to row of x in shared memory: what four rows have in the same columns lies in all banks.
constexpr int32_t kRowBytes = kTileInputs * 2 + 32;
// Tiles of inputs of x that are in shared memory or on their way.
constexpr int32_t kRowStages = 4;

// A block has `kRows` rows; `kSplit` groups of its warps have a run of the inputs each.
template <int32_t kRows, int32_t kSplit>
struct RowsShape {
  static constexpr int32_t kOutputWarps = kPackedWarps / kSplit;
  static constexpr int32_t kOutputs = kOutputWarps * kTileOutputs;
  static constexpr int32_t kThreads = kPackedWarps * kWarp;
  static constexpr int32_t kStageBytes = kRows * kRowBytes;
  static constexpr int32_t kCopyBytes = kSplit * kRowStages * kStageBytes;
  static constexpr int32_t kSumBytes = kSplit * kRows * kOutputs * 4;
  static constexpr int32_t kBytes = kCopyBytes > kSumBytes ? kCopyBytes : kSumBytes;
};

__device__ __forceinline__ float2 floats(__nv_bfloat162 pair) { return __bfloat1622float2(pair); }
__device__ __forceinline__ float2 floats(__half2 pair) { return __half22float2(pair); }
__device__ __forceinline__ uint32_t rounded(float2 pair, __nv_bfloat16) { return as_bits(__float22bfloat162_rn(pair)); }
__device__ __forceinline__ uint32_t rounded(float2 pair, __half) { return as_bits(__float22half2_rn(pair)); }

// The groups of a matrix in whole tiles cut each into 2^`kCut` parts, as in `multiply_tiles`.
template <typename T, Codes kCodes, int32_t kRows, int32_t kSplit, int32_t kCut>
__global__ void __launch_bounds__(kPackedWarps* kWarp) packed_rows_kernel(PackedProductArgs args) {
  using Shape = RowsShape<kRows, kSplit>;
  constexpr int32_t kWords = bits_of(kCodes);
  constexpr int32_t kParts = 1 << kCut;
  constexpr int32_t kPartSteps = kTileInputs / kStepInputs / kParts;
  constexpr int32_t kAhead = kPackedAhead<kWords, kCut>;
  extern __shared__ uint4 memory[];
  let_next_start();
  const PackedMatrix& w = args.w;
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t of_run = warp / Shape::kOutputWarps;
  const int32_t of_outputs = warp % Shape::kOutputWarps * kTileOutputs;
  const auto first_row = static_cast<int32_t>(blockIdx.x) * kRows;
  const auto first_output = static_cast<int32_t>(blockIdx.y) * Shape::kOutputs;
  // Warps beyond the last output compute what others do, and write none of it.
  const int32_t last = w.whole_outputs() - kTileOutputs;
  const int32_t outputs = first_output + of_outputs < last ? first_output + of_outputs : last;
  const int32_t tiles = w.k / kTileInputs;
  const Range run = split_range(tiles, 1, of_run, kSplit);
  const int32_t count = run.end - run.begin;
  // Of the longest run: all warps meet at the end of each.
  const int32_t rounds = (tiles + kSplit - 1) / kSplit;
  const PackedTiles<kWords, kParts> matrix(w, outputs, run.begin);
  const uint32_t offset = kept(Pairs<T>::kOffset);

  PackedTile<kWords, kParts> coming[kAhead];
#pragma unroll
  for (int32_t i = 0; i < kAhead; ++i) {
    if (i < count) matrix.template ask<true>(coming[i], i);
  }
  wait_for_inputs();

  char* stages = reinterpret_cast<char*>(memory) + of_run * kRowStages * Shape::kStageBytes;
  const T* x = static_cast<const T*>(args.x);
  const auto copy_rows = [&](int32_t tile) {
    constexpr int32_t kThreads = Shape::kThreads / kSplit;
    constexpr int32_t kChunks = kTileInputs * 2 / 16;
    if (tile < count) {
      char* stage = stages + tile % kRowStages * Shape::kStageBytes;
#pragma unroll
      for (int32_t i = threadIdx.x % kThreads; i < kRows * kChunks; i += kThreads) {
        const int32_t row = first_row + i / kChunks;
        const bool exists = row < args.rows;
        const T* from = x + static_cast<int64_t>(exists ? row : first_row) * w.width + (run.begin + tile) * kTileInputs;
        copy_chunk(stage + i / kChunks * kRowBytes + i % kChunks * 16, from + i % kChunks * 8, exists);
      }
    }
    end_copies();
  };
  float totals[kRows / kTileRows][4] = {};
  const auto multiply_tile = [&](const PackedTile<kWords, kParts>& of, int32_t tile) {
    const auto* words = reinterpret_cast<const uint32_t*>(of.codes);
    const char* stage = stages + tile % kRowStages * Shape::kStageBytes + lane / 4 * kRowBytes + lane % 4 * 8;
#pragma unroll
    for (int32_t step = 0; step < kTileInputs / kStepInputs; ++step) {
      uint32_t a[4];
      widen<T, kCodes>(words, step, static_cast<const T*>(nullptr), offset, a);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const float2 scale = of.scales[step / kPartSteps][i % 2];
        const float2 codes = floats(as_pair<T>(a[i]));
        a[i] = rounded({fmaf(codes.x, scale.x, scale.y), fmaf(codes.y, scale.x, scale.y)}, T());
      }
#pragma unroll
      for (int32_t rows = 0; rows < kRows / kTileRows; ++rows) {
        const auto pairs = *reinterpret_cast<const uint2*>(stage + rows * kTileRows * kRowBytes + step * kStepInputs * 2);
        const uint32_t b[2] = {pairs.x, pairs.y};
        multiply(totals[rows], a, b, T());
      }
    }
  };

  for (int32_t i = 0; i < kRowStages - 1; ++i) copy_rows(i);
#pragma unroll 1
  for (int32_t first = 0; first < rounds; first += kAhead) {
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i) {
      const int32_t tile = first + i;
      if (tile >= rounds) break;
      wait_for_copies<kRowStages - 2>();
      // All have what they wait for, and are done with the stage that is written next.
      __syncthreads();
      copy_rows(tile + kRowStages - 1);
      if (tile < count) multiply_tile(coming[i], tile);
      if (tile + kAhead < count) matrix.template ask<true>(coming[i], tile + kAhead);
    }
  }

  wait_for_copies<0>();
  __syncthreads();
  // Sums lie where stages were, and are added in the order of the inputs.
  float* sums = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int32_t rows = 0; rows < kRows / kTileRows; ++rows) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t row = rows * kTileRows + lane % 4 * 2 + i % 2;
      sums[(of_run * kRows + row) * Shape::kOutputs + of_outputs + lane / 4 + i / 2 * 8] = totals[rows][i];
    }
  }
  __syncthreads();
  const T* bias = static_cast<const T*>(args.bias);
  for (int32_t i = threadIdx.x; i < kRows * Shape::kOutputs; i += Shape::kThreads) {
    const int32_t row = first_row + i / Shape::kOutputs;
    const int32_t output = first_output + i % Shape::kOutputs;
    if (row >= args.rows || output >= w.n) continue;
    float sum = 0.0f;
#pragma unroll
    for (int32_t part = 0; part < kSplit; ++part) sum += sums[part * kRows * Shape::kOutputs + i];
    sum += sparse_sum(w, x + static_cast<int64_t>(row) * w.width, output);
    if (bias != nullptr) sum += static_cast<float>(bias[output]);
    static_cast<T*>(args.out)[static_cast<int64_t>(row) * w.n + output] = T(sum);
  }
}

// So many blocks of all outputs suffice without a split.
constexpr int32_t kEnoughBlocks = 128;

template <typename T, Codes kCodes, int32_t kRows, int32_t kSplit, int32_t kCut>
void launch(const PackedProductArgs& args, cudaStream_t stream) {
  using Shape = RowsShape<kRows, kSplit>;
  const auto kernel = packed_rows_kernel<T, kCodes, kRows, kSplit, kCut>;
  // What it says no to, the launch says no to.
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes);
  const dim3 blocks(tiles_of(args.rows, kRows), tiles_of(args.w.n, Shape::kOutputs));
  launch_early(kernel, blocks, Shape::kThreads, stream, args, Shape::kBytes);
}

template <typename T, Codes kCodes, int32_t kRows, int32_t kCut>
void launch_split(const PackedProductArgs& args, cudaStream_t stream) {
  if (tiles_of(args.w.n, RowsShape<kRows, 1>::kOutputs) >= kEnoughBlocks) {
    launch<T, kCodes, kRows, 1, kCut>(args, stream);
  } else {
    launch<T, kCodes, kRows, 4, kCut>(args, stream);
  }
}

constexpr int32_t kFewRows = 16;
constexpr int32_t kManyRows = 64;

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_packed_rows(const PackedProductArgs* args, cudaStream_t stream) {
  if (args->rows < 1 || args->w.cut == kAnyLayout || args->w.kind == static_cast<int32_t>(Codes::kTable)) {
    return cudaErrorInvalidValue;
  }
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    with_codes(args->w.kind, [&](auto codes) {
      constexpr Codes kCodes = codes();
      if constexpr (kCodes != Codes::kTable) {
        with_cut<kCodes>(args->w.cut, [&](auto cut) {
          constexpr int32_t kCut = decltype(cut)::value;
          if constexpr (kCut != kAnyLayout) {
            if (args->rows <= kFewRows) {
              launch_split<T, kCodes, kFewRows, kCut>(*args, stream);
            } else {
              launch_split<T, kCodes, kManyRows, kCut>(*args, stream);
            }
          }
        });
      }
    });
  });
}
