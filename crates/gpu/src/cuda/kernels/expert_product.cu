// The products of experts with the tokens routed to them, for unquantized and quantized weights.

#include "expert_tiles.cuh"

namespace candlepower {

// ---- Quantized weights, few rows -------------------------------------------------------------------

// A block computes 16 outputs of a row tile, like a product of one matrix with a few rows.
template <typename T, QuantFormat kFormat, int32_t kCut>
__global__ void __launch_bounds__(kFewPackedWarps* kWarp) packed_expert_kernel(ExpertProductArgs args) {
  __shared__ int32_t pairs[kFewRows];
  // The routing is written by the preceding kernel, so even the weights' addresses are unknown before it has ended.
  wait_for_inputs();
  const uint32_t output_tiles = tiles_of(args.n, kTileOutputs);
  const uint32_t tile = blockIdx.x / output_tiles;
  if (tile >= num_tiles(args)) return;
  const RowTile rows = row_tile(args, tile);
  if (threadIdx.x < kFewRows) pairs[threadIdx.x] = rows.pair(args, threadIdx.x);
  __syncthreads();
  const PackedMatrix w = static_cast<const PackedMatrix*>(args.weights)[rows.expert];
  const T* x = static_cast<const T*>(args.x);
  T* out = static_cast<T*>(args.out);
  const int32_t first_output = static_cast<int32_t>(blockIdx.x % output_tiles) * kTileOutputs;
  // Computes the rows of the tile from `first` on.
  const auto multiply_from = [&](int32_t first, auto row_tiles) {
    const auto row_of = [&](int32_t row) {
      const int32_t pair = pairs[first + row];
      return pair < 0 ? nullptr : x + static_cast<int64_t>(pair / args.pairs_per_row) * args.x_stride;
    };
    const auto take = [&](int32_t row, int32_t output, float sum) {
      out[static_cast<int64_t>(pairs[first + row]) * args.out_stride + output] =
          T(sum + bias_of<T>(args, rows.expert, output));
    };
    multiply_packed<T, kFormat, kFewPackedWarps, decltype(row_tiles)::value, kCut, false>(w, first_output, 1, row_of, take);
  };
  using One = std::integral_constant<int32_t, 1>;
  const bool has_second = pairs[kTileRows] >= 0;
  if constexpr (kCut == kAnyLayout) {
    multiply_from(0, One{});
    __syncthreads();
    if (has_second) multiply_from(kTileRows, One{});
  } else if (has_second) {
    multiply_from(0, std::integral_constant<int32_t, kFewRows / kTileRows>{});
  } else {
    multiply_from(0, One{});
  }
}

// ---- Quantized weights, more rows ------------------------------------------------------------------

// A block computes 128 outputs of 64 rows. A row tile has 64 or 128 rows. Copies to shared memory replaced loads into
// registers here too: on an H200, 2,048 tokens take 596 instead of 2,384 us.
template <typename T, QuantFormat kFormat, int32_t kCut>
__global__ void __launch_bounds__(kPackedWarps* kWarp) packed_expert_rows_kernel(ExpertProductArgs args) {
  using Shape = RowsShape<kMoreRows, 1, bits_of(kFormat), kCut>;
  extern __shared__ uint4 stages[];
  __shared__ int32_t pairs[kMoreRows];
  __shared__ const T* of_rows[kMoreRows];
  wait_for_inputs();
  const uint32_t output_tiles = tiles_of(args.n, Shape::kOutputs);
  const uint32_t parts = args.tile_rows / kMoreRows;
  const uint32_t tile = blockIdx.x / (output_tiles * parts);
  if (tile >= num_tiles(args)) return;
  const RowTile rows = row_tile(args, tile);
  const int32_t first = static_cast<int32_t>(blockIdx.x / output_tiles % parts) * kMoreRows;
  if (rows.pair(args, first) < 0) return;
  for (int32_t i = threadIdx.x; i < kMoreRows; i += Shape::kThreads) {
    const int32_t pair = rows.pair(args, first + i);
    const T* x = static_cast<const T*>(args.x);
    pairs[i] = pair;
    of_rows[i] = pair < 0 ? nullptr : x + static_cast<int64_t>(pair / args.pairs_per_row) * args.x_stride;
  }
  __syncthreads();
  const PackedMatrix w = static_cast<const PackedMatrix*>(args.weights)[rows.expert];
  T* out = static_cast<T*>(args.out);
  const auto row_of = [&](int32_t row) { return of_rows[row]; };
  const auto take = [&](int32_t row, int32_t output, float sum) {
    out[static_cast<int64_t>(pairs[row]) * args.out_stride + output] = T(sum + bias_of<T>(args, rows.expert, output));
  };
  const int32_t first_output = static_cast<int32_t>(blockIdx.x % output_tiles) * Shape::kOutputs;
  multiply_rows<T, kFormat, kMoreRows, 1, kCut>(w, first_output, reinterpret_cast<char*>(stages), row_of, take);
}

// ---- Quantized weights with many rows, and unquantized weights with incomplete chunks ---------------

// Loads four matrices of 8 by 8 elements. Lane `l` passes the address of row `l % 8` of matrix `l / 8`.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const uint4* row) {
  load_matrices(to, shared_address(row));
}

// A block computes a row tile of one expert. Products are summed in f32 in the order of the inputs, whatever the shape
// of the tile, so a row's result depends on its own values and the expert alone.
//
// If `kKind` is a quantized format, weights are dequantized into shared memory, each rounded once. `kWhole` says that
// rows of x and of unquantized weights consist of whole 16-byte chunks.
template <typename T, typename Shape, int32_t kKind, bool kWhole>
__global__ void __launch_bounds__(Shape::kThreads) expert_product_kernel(ExpertProductArgs args) {
  extern __shared__ uint4 stages[];
  __shared__ int32_t pairs[Shape::kRows];  // -1 beyond the last row
  __shared__ int32_t rows_of_x[Shape::kRows];
  wait_for_inputs();
  const uint32_t output_tiles = tiles_of(args.n, Shape::kOutputs);
  const uint32_t tile = blockIdx.x / output_tiles;
  if (tile >= num_tiles(args)) return;
  const RowTile rows = row_tile(args, tile);
  const int32_t first_output = static_cast<int32_t>(blockIdx.x % output_tiles) * Shape::kOutputs;
  for (int32_t i = threadIdx.x; i < Shape::kRows; i += Shape::kThreads) {
    pairs[i] = rows.pair(args, i);
    rows_of_x[i] = pairs[i] < 0 ? -1 : pairs[i] / args.pairs_per_row;
  }
  __syncthreads();

  const T* x = static_cast<const T*>(args.x);
  PackedMatrix w{};
  const T* rows_of_weights = nullptr;
  if constexpr (kKind == kUnquantized) {
    rows_of_weights = static_cast<const T* const*>(args.weights)[rows.expert];
  } else {
    w = static_cast<const PackedMatrix*>(args.weights)[rows.expert];
  }
  // The columns of a quantized matrix may be in another order than its inputs.
  const bool whole = kWhole && (kKind == kUnquantized || w.inputs == nullptr);
  // Loads 8 columns of a matrix row, from `column` on. Missing columns become zeros.
  const auto load_chunk = [&](uint4* to, const T* matrix, int32_t stride, int32_t row, bool exists, int32_t column) {
    if (exists) matrix += static_cast<int64_t>(row) * stride;
    if (whole) {
      const bool within = exists && column < args.k;
      copy_chunk(to, within ? matrix + column : matrix, within);
      return;
    }
    Vector<T, kVectorWidth<T>> values{};
    for (int32_t j = 0; j < kVectorWidth<T>; ++j) {
      const int32_t at = column + j;
      if (exists && at < args.k) values.at[j] = matrix[w.inputs == nullptr ? at : static_cast<int32_t>(w.inputs[at])];
    }
    *reinterpret_cast<Vector<T, kVectorWidth<T>>*>(to) = values;
  };
  const auto load_stage = [&](int32_t step) {
    uint4* stage = stages + step % Shape::kStages * Shape::kStageChunks;
#pragma unroll
    for (int32_t i = threadIdx.x; i < Shape::kStageChunks; i += Shape::kThreads) {
      const int32_t row = i / kRowChunks;
      const int32_t chunk = i % kRowChunks;
      const int32_t column = step * kStageInputs + chunk * kVectorWidth<T>;
      uint4* to = stage + swizzled(row, chunk);
      if (row < Shape::kRows) {
        load_chunk(to, x, args.x_stride, rows_of_x[row], rows_of_x[row] >= 0, column);
        continue;
      }
      const int32_t output = first_output + row - Shape::kRows;
      if constexpr (kKind == kUnquantized) {
        load_chunk(to, rows_of_weights, args.k, output, output < args.n, column);
      } else {
        Vector<T, kUnpacked> values{};
        if (output < args.n && column < w.k) values = unpacked<T, static_cast<QuantFormat>(kKind)>(w, output, column);
        *reinterpret_cast<Vector<T, kUnpacked>*>(to) = values;
      }
    }
  };

  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t warp_row = warp / Shape::kOutputWarps * Shape::kRowTiles * 16;
  const int32_t warp_output = warp % Shape::kOutputWarps * Shape::kOutputTiles * 8;
  float sums[Shape::kRowTiles][Shape::kOutputTiles][4] = {};
  const int32_t steps = (args.k + kStageInputs - 1) / kStageInputs;
  // One group of copies per step, even if it is empty, so that the number of pending groups is the same in every step.
  for (int32_t step = 0; step < Shape::kStages - 1; ++step) {
    if (step < steps) load_stage(step);
    end_copies();
  }
  for (int32_t step = 0; step < steps; ++step) {
    wait_for_copies<Shape::kStages - 2>();
    // The barrier makes the awaited stage visible to all warps, and says that all are done with the stage that is
    // overwritten next.
    __syncthreads();
    if (step + Shape::kStages - 1 < steps) load_stage(step + Shape::kStages - 1);
    end_copies();
    const uint4* stage = stages + step % Shape::kStages * Shape::kStageChunks;
#pragma unroll
    for (int32_t chunk = 0; chunk < kRowChunks; chunk += 2) {
      uint32_t a[Shape::kRowTiles][4];
      uint32_t b[Shape::kOutputTiles / 2][4];
#pragma unroll
      for (int32_t i = 0; i < Shape::kRowTiles; ++i) {
        load_matrices(a[i], stage + swizzled(warp_row + i * 16 + lane % 16, chunk + lane / 16));
      }
#pragma unroll
      for (int32_t i = 0; i < Shape::kOutputTiles / 2; ++i) {
        const int32_t row = Shape::kRows + warp_output + i * 16 + lane / 16 * 8 + lane % 8;
        load_matrices(b[i], stage + swizzled(row, chunk + lane / 8 % 2));
      }
#pragma unroll
      for (int32_t i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
        for (int32_t j = 0; j < Shape::kOutputTiles; ++j) {
          const uint32_t operand[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
          multiply(sums[i][j], a[i], operand, T());
        }
      }
    }
  }

  let_next_start();
#pragma unroll
  for (int32_t i = 0; i < Shape::kRowTiles * 2; ++i) {
    const int32_t pair = pairs[warp_row + i * 8 + lane / 4];
    if (pair < 0) continue;
    T* out = static_cast<T*>(args.out) + static_cast<int64_t>(pair) * args.out_stride;
    const T* of_pair = x + static_cast<int64_t>(pair / args.pairs_per_row) * args.x_stride;
#pragma unroll
    for (int32_t j = 0; j < Shape::kOutputTiles; ++j) {
      const int32_t output = first_output + warp_output + j * 8 + lane % 4 * 2;
      float* sum = sums[i / 2][j] + i % 2 * 2;
      if constexpr (kKind != kUnquantized) {
        if (output < args.n) sum[0] += sparse_sum(w, of_pair, output);
        if (output + 1 < args.n) sum[1] += sparse_sum(w, of_pair, output + 1);
      }
      if (output < args.n) sum[0] += bias_of<T>(args, rows.expert, output);
      if (output + 1 < args.n) sum[1] += bias_of<T>(args, rows.expert, output + 1);
      if (args.n % 2 == 0 && args.out_stride % 2 == 0) {
        if (output < args.n) store<2>(out + output, Vector<T, 2>{{T(sum[0]), T(sum[1])}});
      } else {
        if (output < args.n) out[output] = T(sum[0]);
        if (output + 1 < args.n) out[output + 1] = T(sum[1]);
      }
    }
  }
}

template <typename T, typename Shape, int32_t kKind>
void launch_tiles(const ExpertProductArgs& args, cudaStream_t stream) {
  auto kernel = expert_product_kernel<T, Shape, kKind, false>;
  // `launch_whole` takes whole rows of unquantized weights.
  if constexpr (kKind != kUnquantized) {
    const bool is_whole = args.k % kVectorWidth<T> == 0 && args.x_stride % kVectorWidth<T> == 0;
    if (is_whole) kernel = expert_product_kernel<T, Shape, kKind, true>;
  }
  // The result is ignored because the launch fails with the same error.
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes);
  const uint32_t tiles = most_tiles(args.pairs, args.experts, args.tile_rows);
  launch_early(kernel, tiles * tiles_of(args.n, Shape::kOutputs), Shape::kThreads, stream, args, Shape::kBytes);
}

template <typename T, QuantFormat kFormat, int32_t kCut>
void launch_rows(const ExpertProductArgs& args, cudaStream_t stream) {
  using Shape = RowsShape<kMoreRows, 1, bits_of(kFormat), kCut>;
  const auto kernel = packed_expert_rows_kernel<T, kFormat, kCut>;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes);
  const uint32_t tiles = most_tiles(args.pairs, args.experts, args.tile_rows) * (args.tile_rows / kMoreRows);
  launch_early(kernel, tiles * tiles_of(args.n, Shape::kOutputs), Shape::kThreads, stream, args, Shape::kBytes);
}

template <typename T, QuantFormat kFormat>
void launch_packed(const ExpertProductArgs& args, cudaStream_t stream) {
  with_cut<kFormat>(args.cut, [&](auto cut) {
    constexpr int32_t kCut = decltype(cut)::value;
    if (args.tile_rows == kFewRows) {
      const uint32_t blocks = most_tiles(args.pairs, args.experts, kFewRows) * tiles_of(args.n, kTileOutputs);
      launch_early(packed_expert_kernel<T, kFormat, kCut>, blocks, kFewPackedWarps * kWarp, stream, args);
    } else if constexpr (kCut == kAnyLayout || kFormat == QuantFormat::kTable) {
      launch_tiles<T, ManyRows, static_cast<int32_t>(kFormat)>(args, stream);
    } else {
      launch_rows<T, kFormat, kCut>(args, stream);
    }
  });
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_expert_product(const ExpertProductArgs* args, cudaStream_t stream) {
  if (args->tile_rows != kFewRows && args->tile_rows != kMoreRows && args->tile_rows != kManyRows) {
    return cudaErrorInvalidValue;
  }
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    if (args->format != kUnquantized) {
      with_format(args->format, [&](auto format) { launch_packed<T, format()>(*args, stream); });
    } else if (launch_whole<T>(*args, stream)) {
      return;
    } else if (args->tile_rows == kFewRows) {
      launch_tiles<T, FewRows, kUnquantized>(*args, stream);
    } else if (args->tile_rows == kMoreRows) {
      launch_tiles<T, MoreRows, kUnquantized>(*args, stream);
    } else {
      launch_tiles<T, ManyRows, kUnquantized>(*args, stream);
    }
  });
}
