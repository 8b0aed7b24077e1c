// The products of unquantized weights with the rows of each expert, where rows consist of whole 16-byte chunks.
#pragma once

#include "expert_rows.cuh"

namespace candlepower {

// Copies the inputs of a block's tile to shared memory, a stage at a time: 64 inputs of its rows of x, then of its rows
// of weights. A thread copies the same chunk of every `kCopyRows`th row, so the addresses need no arithmetic but
// additions. Rows that do not exist are not copied, since nothing that exists depends on them.
template <typename T, typename Shape>
struct TileCopies {
  // Number of rows that all threads copy together, 16 bytes each.
  static constexpr int32_t kCopyRows = Shape::kThreads / kRowChunks;
  static constexpr int32_t kXCopies = Shape::kRows / kCopyRows;
  static constexpr int32_t kWeightCopies = Shape::kOutputs / kCopyRows;
  static constexpr int32_t kLineBytes = kStageInputs * 2;
  static_assert(Shape::kRows % kCopyRows == 0 && Shape::kOutputs % kCopyRows == 0 && kCopyRows % kRowChunks == 0);

  const T* x[kXCopies];
  const T* weights;
  int64_t weight_stride;  // from one of the thread's rows of weights to the next
  uint32_t to;
  int32_t rows;     // number of rows of x from the thread's first one on
  int32_t outputs;  // the same of the weights
  int32_t inputs;   // number of inputs from the thread's chunk of the next stage on

  __device__ __forceinline__ TileCopies(const ExpertProductArgs& args, const BlockTile& tile, uint32_t memory) {
    const int32_t chunk = threadIdx.x % kRowChunks;
    const int32_t row = threadIdx.x / kRowChunks;
    const int32_t first_input = chunk * kVectorWidth<T>;
    const T* matrix = static_cast<const T* const*>(args.weights)[tile.rows.expert];
#pragma unroll
    for (int32_t i = 0; i < kXCopies; ++i) {
      const int32_t pair = max(tile.rows.pair(args, row + i * kCopyRows), 0);
      x[i] = static_cast<const T*>(args.x) + static_cast<int64_t>(pair / args.pairs_per_row) * args.x_stride + first_input;
    }
    weights = matrix + static_cast<int64_t>(tile.first_output + row) * args.k + first_input;
    weight_stride = static_cast<int64_t>(kCopyRows) * args.k;
    to = memory + swizzled(row, chunk) * 16;
    rows = tile.rows.count(args) - row;
    outputs = args.n - tile.first_output - row;
    inputs = args.k - first_input;
  }

  // Starts the copies of the next stage, which lies `offset` bytes after the first one. Inputs beyond the last one
  // become zeros.
  __device__ __forceinline__ void start(uint32_t offset) {
    const bool within = inputs > 0;
#pragma unroll
    for (int32_t i = 0; i < kXCopies; ++i) {
      if (i * kCopyRows < rows) copy_chunk(to + offset + i * kCopyRows * kLineBytes, x[i], within);
      x[i] += kStageInputs;
    }
    const T* row = weights;
#pragma unroll
    for (int32_t i = 0; i < kWeightCopies; ++i) {
      if (i * kCopyRows < outputs) copy_chunk(to + offset + (Shape::kRows + i * kCopyRows) * kLineBytes, row, within);
      row += weight_stride;
    }
    weights += kStageInputs;
    inputs -= kStageInputs;
  }
};

// Writes the outputs of a warp, after adding the biases. They pass through shared memory, so that a lane writes eight
// neighbouring outputs of a row. `line` is where the warp's first row of outputs begins.
template <typename T, typename Shape>
struct WarpOutputs {
  static constexpr int32_t kVector = kVectorWidth<T>;
  // Elements of a row in shared memory. The padding keeps the stores of a warp in different banks.
  static constexpr int32_t kLine = Shape::kOutputTiles * 8 + kVector;
  static constexpr int32_t kElements = Shape::kRowTiles * 16 * kLine;
  static_assert(Shape::kThreads / kWarp * kElements * 2 <= Shape::kBytes);

  const ExpertProductArgs& args;
  int32_t expert;
  int32_t first_output;
  T* line;

  __device__ __forceinline__ float bias(int32_t output) const {
    return output < args.n ? bias_of<T>(args, expert, output) : 0.0f;
  }

  __device__ __forceinline__ void store_rounded(const float (&sums)[Shape::kRowTiles][Shape::kOutputTiles][4]) const {
    const int32_t lane = threadIdx.x % kWarp;
#pragma unroll
    for (int32_t j = 0; j < Shape::kOutputTiles; ++j) {
      const int32_t at = j * 8 + lane % 4 * 2;
      const float biases[2] = {bias(first_output + at), bias(first_output + at + 1)};
#pragma unroll
      for (int32_t i = 0; i < Shape::kRowTiles * 2; ++i) {
        const float* sum = sums[i / 2][j] + i % 2 * 2;
        store<2>(line + (i * 8 + lane / 4) * kLine + at, Vector<T, 2>{{T(sum[0] + biases[0]), T(sum[1] + biases[1])}});
      }
    }
  }

  // `pairs` are those of the warp's rows, of which `rows` may exist.
  __device__ __forceinline__ void write(const int32_t* pairs, int32_t rows) const {
    const bool whole = args.n % kVector == 0 && args.out_stride % kVector == 0;
    for (int32_t i = threadIdx.x % kWarp; i < rows * Shape::kOutputTiles; i += kWarp) {
      const int32_t row = i / Shape::kOutputTiles;
      const int32_t at = i % Shape::kOutputTiles * kVector;
      const int32_t output = first_output + at;
      if (pairs[row] < 0 || output >= args.n) continue;
      T* out = static_cast<T*>(args.out) + static_cast<int64_t>(pairs[row]) * args.out_stride + output;
      const T* from = line + row * kLine + at;
      if (whole) {
        store(out, load<kVector>(from));
      } else {
        for (int32_t j = 0; j < min(kVector, args.n - output); ++j) out[j] = from[j];
      }
    }
  }
};

// A block computes the outputs of a tile. Products are summed in f32 in the order of the inputs, whatever the shape of
// the tile, so a row's result depends on its own values and the expert alone.
//
// Each warp loads the operands of the next 16 inputs before it multiplies the current ones. It multiplies only rows that
// exist, 16 at a time, because the last tile of an expert may have a single row.
template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads) expert_tiles_kernel(ExpertProductArgs args) {
  using Copies = TileCopies<T, Shape>;
  constexpr uint32_t kStageBytes = Shape::kStageChunks * 16;
  constexpr int32_t kSteps = kStageInputs / 16;
  extern __shared__ uint4 stages[];
  __shared__ int32_t pairs[Shape::kRows];  // -1 beyond the last row
  wait_for_inputs();
  const uint32_t output_tiles = tiles_of(args.n, Shape::kOutputs);
  if (blockIdx.x / output_tiles >= num_tiles(args)) return;
  const BlockTile tile = block_tile(args, blockIdx.x, output_tiles, Shape::kOutputs);
  const uint32_t memory = shared_address(stages);
  Copies copies(args, tile, memory);
  const int32_t num_stages = static_cast<int32_t>(tiles_of(args.k, kStageInputs));
  // One group of copies per stage, even if it is empty, so that the number of pending groups is always the same.
#pragma unroll
  for (int32_t stage = 0; stage < Shape::kStages - 1; ++stage) {
    if (stage < num_stages) copies.start(stage * kStageBytes);
    end_copies();
  }
  for (int32_t i = threadIdx.x; i < Shape::kRows; i += Shape::kThreads) pairs[i] = tile.rows.pair(args, i);

  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t warp_row = warp / Shape::kOutputWarps * Shape::kRowTiles * 16;
  const int32_t warp_output = warp % Shape::kOutputWarps * Shape::kOutputTiles * 8;
  // Row tiles of this warp that have a row.
  int32_t active = min(static_cast<int32_t>(tiles_of(max(tile.rows.count(args) - warp_row, 0), 16)), Shape::kRowTiles);
  if (tile.first_output + warp_output >= args.n) active = 0;
  // The lane's rows of both operands. They are multiples of 8 away from `lane % 8`, so all have the same swizzle, and
  // only the two bits above the lowest of a chunk's index depend on the step.
  const uint32_t of_x = (warp_row + lane % 16) * Copies::kLineBytes;
  const uint32_t of_weights = (Shape::kRows + warp_output + lane / 16 * 8 + lane % 8) * Copies::kLineBytes;
  const uint32_t x_chunk = (lane / 16 ^ lane % 8) * 16;
  const uint32_t weight_chunk = (lane / 8 % 2 ^ lane % 8) * 16;
  float sums[Shape::kRowTiles][Shape::kOutputTiles][4] = {};
  uint32_t a[2][Shape::kRowTiles][4];
  uint32_t b[2][Shape::kOutputTiles / 2][4];
  const auto load_operands = [&](int32_t to, uint32_t stage, int32_t step) {
    if (active == 0) return;
    const uint32_t a_at = stage + of_x + (x_chunk ^ step * 32);
    const uint32_t b_at = stage + of_weights + (weight_chunk ^ step * 32);
#pragma unroll
    for (int32_t i = 0; i < Shape::kRowTiles; ++i) {
      if (i < active) load_matrices(a[to][i], a_at + i * 16 * Copies::kLineBytes);
    }
#pragma unroll
    for (int32_t i = 0; i < Shape::kOutputTiles / 2; ++i) {
      load_matrices(b[to][i], b_at + i * 16 * Copies::kLineBytes);
    }
  };
  const auto multiply_row_tile = [&](int32_t from, int32_t i) {
#pragma unroll
    for (int32_t j = 0; j < Shape::kOutputTiles; ++j) {
      const uint32_t operand[2] = {b[from][j / 2][j % 2 * 2], b[from][j / 2][j % 2 * 2 + 1]};
      multiply(sums[i][j], a[from][i], operand, T());
    }
  };
  const auto multiply_operands = [&](int32_t from) {
    // Without branches where all rows exist.
    if (active == Shape::kRowTiles) {
#pragma unroll
      for (int32_t i = 0; i < Shape::kRowTiles; ++i) multiply_row_tile(from, i);
      return;
    }
#pragma unroll
    for (int32_t i = 0; i < Shape::kRowTiles - 1; ++i) {
      if (i < active) multiply_row_tile(from, i);
    }
  };

  wait_for_copies<Shape::kStages - 2>();
  __syncthreads();
  uint32_t read = memory;
  uint32_t write = (Shape::kStages - 1) * kStageBytes;
  load_operands(0, read, 0);
#pragma unroll 1
  for (int32_t stage = 0; stage < num_stages; ++stage) {
#pragma unroll
    for (int32_t step = 0; step < kSteps; ++step) {
      if (step + 1 < kSteps) {
        load_operands((step + 1) % 2, read, step + 1);
      } else if (stage + 1 < num_stages) {
        wait_for_copies<Shape::kStages - 2>();
        // The barrier makes the awaited stage visible to all warps, and says that all have loaded the operands of the
        // stage that is overwritten next.
        __syncthreads();
        read = read == memory + (Shape::kStages - 1) * kStageBytes ? memory : read + kStageBytes;
        load_operands(0, read, 0);
      }
      if (step == 0) {
        if (stage + Shape::kStages - 1 < num_stages) copies.start(write);
        end_copies();
        write = write == (Shape::kStages - 1) * kStageBytes ? 0 : write + kStageBytes;
      }
      multiply_operands(step % 2);
    }
  }

  let_next_start();
  // All warps are done with the stages, which the outputs overwrite.
  __syncthreads();
  if (active == 0) return;
  using Outputs = WarpOutputs<T, Shape>;
  T* line = reinterpret_cast<T*>(stages) + warp * Outputs::kElements;
  const Outputs outputs{args, tile.rows.expert, tile.first_output + warp_output, line};
  outputs.store_rounded(sums);
  __syncwarp();
  outputs.write(pairs + warp_row, active * 16);
}

template <typename T, typename Shape>
void launch_expert_tiles(const ExpertProductArgs& args, cudaStream_t stream) {
  const auto kernel = expert_tiles_kernel<T, Shape>;
  // The result is ignored because the launch fails with the same error.
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes);
  const uint32_t tiles = most_tiles(args.pairs, args.experts, args.tile_rows);
  launch_early(kernel, tiles * tiles_of(args.n, Shape::kOutputs), Shape::kThreads, stream, args, Shape::kBytes);
}

// Whether a block of the current GPU may use `bytes` of shared memory.
inline bool has_shared_memory(int32_t bytes) {
  int32_t device = 0;
  int32_t most = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess && bytes <= most;
}

// Launches the product of unquantized weights if rows of x and of the weights consist of whole chunks. Returns whether
// they do.
template <typename T>
bool launch_whole(const ExpertProductArgs& args, cudaStream_t stream) {
  if (args.k % kVectorWidth<T> != 0 || args.x_stride % kVectorWidth<T> != 0) return false;
  if (args.tile_rows == kFewRows) {
    launch_expert_tiles<T, FewRows>(args, stream);
  } else if (args.tile_rows == kMoreRows) {
    launch_expert_tiles<T, MoreRows>(args, stream);
  } else {
    if constexpr (kHasLargeBlocks) {
      // The rows' table is in shared memory too.
      if (args.n > ManyRows::kOutputs && has_shared_memory(LargeBlock::kBytes + 1024)) {
        launch_expert_tiles<T, LargeBlock>(args, stream);
        return true;
      }
    }
    launch_expert_tiles<T, ManyRows>(args, stream);
  }
  return true;
}

}  // namespace candlepower
