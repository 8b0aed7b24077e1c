// The product of a matrix with any number of rows, on tensor cores, made for 1 to 128 rows.
//
// The time of such a product is that of reading the matrix, and its sums do not depend on the number of rows. So a row
// has the same bits alone and among others. More than 128 rows are computed by several blocks of 128 rows.

#include "activation.cuh"
#include "async_copy.cuh"
#include "tensor_core.cuh"

namespace candlepower {

struct RowsProductArgs {
  const void* x;       // [rows, k]
  const void* weight;  // [n, k]; with gates [2 n, k]: the rows of the gates, then those that they are multiplied by
  const void* bias;    // one value for each row of `weight`, may be null
  void* out;           // [rows, n]
  float* partial;      // memory for the sums of each part: [parts, rows, sums of a row]
  int64_t partial_bytes;  // size of that memory; for the kernels, the size that is used
  int32_t rows;
  int32_t n;
  int32_t k;
  int32_t dtype;
  int32_t activation;  // that of the gates; kNoGates: there are none
  int32_t padding;
};
static_assert(sizeof(RowsProductArgs) == 72, "as in src/cuda/rows_product.rs");

constexpr int32_t kNoGates = -1;
constexpr int32_t kMaxRows = 128;
constexpr int32_t kProductWarps = 4;
constexpr int32_t kProductThreads = kProductWarps * kWarp;
// Number of inputs in one stage of shared memory. A stage's rows of 128 bytes are whole cache lines.
constexpr int32_t kStageInputs = 64;
// Number of rows of a stage that all threads copy together, 16 bytes each.
constexpr int32_t kCopyRows = kProductThreads / kRowChunks;
// Shared memory of a block. Two blocks fit into a multiprocessor of an H100, and one into those of compute capability
// 8.6, 8.9 and 12.0, where a block may use 99 KiB.
constexpr int32_t kProductBytes = 96 << 10;
// More stages would ask for more of the matrix than the latency of memory needs.
constexpr int32_t kMaxStages = 5;

// Shape of a block: `kRows` rows and `kOutputs` outputs. Each of its warps computes several tensor core products of 16
// outputs and 8 rows in each step of 16 inputs. The weights are the first operand, so that each row is a column of the
// result, whose sums nothing of other rows enters.
template <int32_t kRows, int32_t kOutputs>
struct ProductShape {
  static constexpr int32_t kRowWarps = kRows > 64 ? 2 : 1;
  static constexpr int32_t kOutputTiles = kOutputs * kRowWarps / kProductWarps / 16;
  static constexpr int32_t kRowTiles = kRows / kRowWarps / 8;
  static constexpr int32_t kLineBytes = kStageInputs * 2;
  static constexpr int32_t kStageBytes = (kOutputs + kRows) * kLineBytes;
  static constexpr int32_t kFitting = kProductBytes / kStageBytes;
  static constexpr int32_t kStages = kFitting < kMaxStages ? kFitting : kMaxStages;
  // Distance between the rows of sums in shared memory. The padding keeps the stores of a warp in different banks.
  static constexpr int32_t kSumStride = kOutputs + 4;
  static constexpr int32_t kSumBytes = kRows * kSumStride * 4;
  static constexpr int32_t kBytes = kStages * kStageBytes > kSumBytes ? kStages * kStageBytes : kSumBytes;
  static_assert(kStages >= 3 && kBytes <= kProductBytes);
};

// Four sums of neighbouring rows of the matrix, from `first` on, rounded to the element type after adding the bias. The
// first `present` of them exist.
template <typename T>
__device__ __forceinline__ Vector<T, 4> rounded_sums(const RowsProductArgs& args, int32_t first, int32_t present, float4 sums) {
  const float values[4] = {sums.x, sums.y, sums.z, sums.w};
  const T* bias = static_cast<const T*>(args.bias);
  Vector<T, 4> rounded{};
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    const float added = bias != nullptr && i < present ? static_cast<float>(bias[first + i]) : 0.0f;
    rounded.at[i] = T(values[i] + added);
  }
  return rounded;
}

// Writes up to four neighbouring outputs of a row. `sums_of(up)` gives their sums: with gates, those of the gates or those
// that they are multiplied by.
template <typename T, bool kGated, typename Sums>
__device__ __forceinline__ void store_outputs(const RowsProductArgs& args, int32_t row, int32_t output, Sums sums_of) {
  const int32_t present = args.n - output;
  T* out = static_cast<T*>(args.out) + static_cast<int64_t>(row) * args.n + output;
  Vector<T, 4> values = rounded_sums<T>(args, output, present, sums_of(false));
  if constexpr (kGated) {
    const Vector<T, 4> up = rounded_sums<T>(args, args.n + output, present, sums_of(true));
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) values.at[i] = gated_element(args.activation, values.at[i], up.at[i]);
  }
  if (args.n % 4 == 0) {
    store<4>(out, values);
    return;
  }
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    if (i < present) out[i] = values.at[i];
  }
}

// Vectors of four partial sums of `n` outputs of a row: whole ones, and with gates those of the gates first.
CANDLEPOWER_HD int32_t sum_vectors(int32_t n, bool is_gated) { return (n + 3) / 4 * (is_gated ? 2 : 1); }

// A block computes `kOutputs` sums of all rows, for one part of the inputs. The parts depend on the matrix's shape
// alone. Sums are in f32, in the order of the inputs. With gates, an output has two sums, and a block computes both.
template <typename T, int32_t kRows, int32_t kOutputs, bool kGated>
__global__ void __launch_bounds__(kProductThreads) rows_product_kernel(RowsProductArgs args) {
  using Shape = ProductShape<kRows, kOutputs>;
  constexpr int32_t kOwnOutputs = kGated ? kOutputs / 2 : kOutputs;
  extern __shared__ uint4 stages[];
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t first_row = static_cast<int32_t>(blockIdx.x) * kRows;
  const int32_t own_rows = args.rows - first_row < kRows ? args.rows - first_row : kRows;
  const int32_t first_output = static_cast<int32_t>(blockIdx.y) * kOwnOutputs;
  const Range run = split_range(args.k, kStageInputs, blockIdx.z, gridDim.z);
  const int32_t steps = (run.end - run.begin + kStageInputs - 1) / kStageInputs;

  // A stage has the block's rows of the matrix, then those of x. A thread copies the same chunk of every 16th row.
  // Chunks beyond the matrix, the rows or the part become zeros.
  const uint32_t memory = shared_address(stages);
  const int32_t chunk = threadIdx.x % kRowChunks;
  const int32_t copy_row = threadIdx.x / kRowChunks;
  const int32_t first_input = run.begin + chunk * kVectorWidth<T>;
  const uint32_t copy_to = memory + swizzled(copy_row, chunk) * 16;
  const auto copy_rows = [&](const T* from, int32_t present, int32_t step, uint32_t to, auto count) {
    constexpr int32_t kCount = decltype(count)::value;
    const bool within = first_input + step * kStageInputs < run.end;
    const T* at = from + static_cast<int64_t>(copy_row) * args.k + first_input + step * kStageInputs;
#pragma unroll
    for (int32_t i = 0; i < (kCount + kCopyRows - 1) / kCopyRows; ++i) {
      if (kCount < kCopyRows && copy_row >= kCount) break;
      const bool exists = within && copy_row + i * kCopyRows < present;
      copy_chunk(to + i * kCopyRows * Shape::kLineBytes, exists ? at : from, exists);
      at += static_cast<int64_t>(kCopyRows) * args.k;
    }
  };
  const T* weights = static_cast<const T*>(args.weight) + static_cast<int64_t>(first_output) * args.k;
  const auto copy_weights = [&](int32_t step, int32_t stage) {
    if (step >= steps) return;
    const std::integral_constant<int32_t, kOwnOutputs> count;
    const uint32_t to = copy_to + stage * Shape::kStageBytes;
    copy_rows(weights, args.n - first_output, step, to, count);
    if constexpr (kGated) {
      const T* up = weights + static_cast<int64_t>(args.n) * args.k;
      copy_rows(up, args.n - first_output, step, to + kOwnOutputs * Shape::kLineBytes, count);
    }
  };
  const T* x = static_cast<const T*>(args.x) + static_cast<int64_t>(first_row) * args.k;
  const auto copy_x = [&](int32_t step, int32_t stage) {
    if (step >= steps) return;
    copy_rows(x, own_rows, step,
              copy_to + stage * Shape::kStageBytes + kOutputs * Shape::kLineBytes, std::integral_constant<int32_t, kRows>{});
  };
  // The weights are constant, so they are requested before the wait; x is written by the preceding kernel.
#pragma unroll
  for (int32_t i = 0; i < Shape::kStages - 1; ++i) copy_weights(i, i);
  wait_for_inputs();
#pragma unroll
  for (int32_t i = 0; i < Shape::kStages - 1; ++i) {
    copy_x(i, i);
    end_copies();
  }

  const int32_t warp_output = warp / Shape::kRowWarps * Shape::kOutputTiles * 16;
  const int32_t warp_row = warp % Shape::kRowWarps * Shape::kRowTiles * 8;
  // The lane's rows in the two kinds of operands. They are multiples of 8 away from `lane % 8`, so all have the same
  // swizzle.
  const uint32_t of_weights = memory + (warp_output + lane % 16) * Shape::kLineBytes;
  const uint32_t of_x = memory + (kOutputs + warp_row + (Shape::kRowTiles > 1 ? lane / 16 * 8 : 0) + lane % 8) * Shape::kLineBytes;
  const int32_t swizzle = lane % kRowChunks;
  float sums[Shape::kOutputTiles][Shape::kRowTiles][4] = {};
  const auto multiply_stage = [&](int32_t stage) {
    const uint32_t a_at = of_weights + stage * Shape::kStageBytes;
    const uint32_t b_at = of_x + stage * Shape::kStageBytes;
    uint32_t b[(Shape::kRowTiles + 1) / 2][4];
#pragma unroll
    for (int32_t step = 0; step < kStageInputs / 16; ++step) {
      uint32_t a[Shape::kOutputTiles][4];
#pragma unroll
      for (int32_t i = 0; i < Shape::kOutputTiles; ++i) {
        load_matrices(a[i], a_at + ((2 * step + lane / 16) ^ swizzle) * 16 + i * 16 * Shape::kLineBytes);
      }
      if constexpr (Shape::kRowTiles == 1) {
        // Eight rows fill two of the four matrices that are loaded at once, so a load has the inputs of two steps.
        if (step % 2 == 0) load_matrices(b[0], b_at + ((2 * step + lane / 8) ^ swizzle) * 16);
      } else {
#pragma unroll
        for (int32_t i = 0; i < Shape::kRowTiles / 2; ++i) {
          load_matrices(b[i], b_at + ((2 * step + lane / 8 % 2) ^ swizzle) * 16 + i * 16 * Shape::kLineBytes);
        }
      }
#pragma unroll
      for (int32_t i = 0; i < Shape::kOutputTiles; ++i) {
#pragma unroll
        for (int32_t j = 0; j < Shape::kRowTiles; ++j) {
          const int32_t half = Shape::kRowTiles == 1 ? step % 2 : j % 2;
          const uint32_t operand[2] = {b[j / 2][half * 2], b[j / 2][half * 2 + 1]};
          multiply(sums[i][j], a[i], operand, T());
        }
      }
    }
  };
  int32_t stage = 0;
  int32_t next = Shape::kStages - 1;
#pragma unroll 1
  for (int32_t step = 0; step < steps; ++step) {
    wait_for_copies<Shape::kStages - 2>();
    // The barrier makes the awaited stage visible to all warps, and says that all are done with the stage that is
    // overwritten next.
    __syncthreads();
    copy_weights(step + Shape::kStages - 1, next);
    copy_x(step + Shape::kStages - 1, next);
    // One group of copies per step, even if it is empty, so that the number of pending groups is the same in every step.
    end_copies();
    multiply_stage(stage);
    next = stage;
    stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
  }

  let_next_start();
  wait_for_copies<0>();
  __syncthreads();
  // The sums overwrite the stages, so that each thread stores neighbouring outputs.
  auto* shared_sums = reinterpret_cast<float*>(stages);
#pragma unroll
  for (int32_t i = 0; i < Shape::kOutputTiles; ++i) {
#pragma unroll
    for (int32_t j = 0; j < Shape::kRowTiles; ++j) {
#pragma unroll
      for (int32_t at = 0; at < 4; ++at) {
        const int32_t row = warp_row + j * 8 + lane % 4 * 2 + at % 2;
        const int32_t output = warp_output + i * 16 + lane / 4 + at / 2 * 8;
        shared_sums[row * Shape::kSumStride + output] = sums[i][j][at];
      }
    }
  }
  __syncthreads();
  constexpr int32_t kVectors = kOwnOutputs / 4;
  for (int32_t i = threadIdx.x; i < own_rows * kVectors; i += kProductThreads) {
    const int32_t row = first_row + i / kVectors;
    const int32_t output = first_output + i % kVectors * 4;
    if (output >= args.n) continue;
    const float* of_outputs = shared_sums + i / kVectors * Shape::kSumStride + i % kVectors * 4;
    const auto sums_of = [&](bool up) {
      return *reinterpret_cast<const float4*>(of_outputs + (up ? kOwnOutputs : 0));
    };
    if (gridDim.z == 1) {
      store_outputs<T, kGated>(args, row, output, sums_of);
      continue;
    }
    const int64_t vectors = sum_vectors(args.n, kGated);
    const int64_t at = (static_cast<int64_t>(blockIdx.z) * args.rows + row) * vectors + output / 4;
    auto* partial = reinterpret_cast<float4*>(args.partial) + at;
    partial[0] = sums_of(false);
    if constexpr (kGated) partial[vectors / 2] = sums_of(true);
  }
}

constexpr int32_t kSumThreads = 128;

// Adds the partial sums of all parts, in the order of the inputs. A thread computes four outputs of a row.
template <typename T, bool kGated>
__global__ void __launch_bounds__(kSumThreads) sum_parts_kernel(RowsProductArgs args) {
  wait_for_inputs();
  let_next_start();
  const int32_t of_outputs = sum_vectors(args.n, false);
  const int32_t of_row = sum_vectors(args.n, kGated);
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (item >= static_cast<int64_t>(args.rows) * of_outputs) return;
  const auto row = static_cast<int32_t>(item / of_outputs);
  const auto vector = static_cast<int32_t>(item % of_outputs);
  const int64_t of_part = static_cast<int64_t>(args.rows) * of_row;
  const auto parts = static_cast<int32_t>(args.partial_bytes / (of_part * 16));
  const auto* partial = reinterpret_cast<const float4*>(args.partial) + static_cast<int64_t>(row) * of_row + vector;
  store_outputs<T, kGated>(args, row, vector * 4, [&](bool up) {
    const float4* from = partial + (up ? of_outputs : 0);
    float4 sum = from[0];
#pragma unroll 4
    for (int32_t part = 1; part < parts; ++part) {
      const float4 next = from[part * of_part];
      sum = {sum.x + next.x, sum.y + next.y, sum.z + next.z, sum.w + next.w};
    }
    return sum;
  });
}

// The sums of more parts would take longer than the parts save.
constexpr int32_t kMaxParts = 8;
// Blocks that suffice with `kPartOutputs` outputs each. With fewer, each has half of the outputs.
constexpr int32_t kEnoughBlocks = 128;
constexpr int32_t kFewOutputs = kPartOutputs / 2;

// Number of parts of the inputs. None is empty, whatever the rounding of their borders to whole stages.
int32_t parts_of(int32_t n, int32_t k) {
  const auto steps = static_cast<int32_t>(tiles_of(k, kStageInputs));
  const auto each = static_cast<int32_t>(tiles_of(steps, product_parts(n, k, kMaxParts)));
  return static_cast<int32_t>(tiles_of(steps, each));
}

template <typename T, bool kGated, int32_t kRows, int32_t kOutputs>
void launch_tiles(const RowsProductArgs& args, int32_t parts, cudaStream_t stream) {
  using Shape = ProductShape<kRows, kOutputs>;
  const auto kernel = rows_product_kernel<T, kRows, kOutputs, kGated>;
  // The result is ignored because the launch fails with the same error.
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes);
  // Blocks with the same outputs start one after the other, so that they read the matrix at about the same time.
  const dim3 blocks(tiles_of(args.rows, kRows), tiles_of(args.n, kGated ? kOutputs / 2 : kOutputs), parts);
  launch_early(kernel, blocks, kProductThreads, stream, args, Shape::kBytes);
}

// The number of outputs of a block changes no result.
template <typename T, bool kGated, int32_t kRows>
void launch_outputs(const RowsProductArgs& args, int32_t parts, cudaStream_t stream) {
  if constexpr (kRows > 16) {
    const auto blocks = static_cast<int32_t>(tiles_of(kGated ? 2 * args.n : args.n, kPartOutputs)) * parts;
    if (blocks >= kEnoughBlocks) return launch_tiles<T, kGated, kRows, kPartOutputs>(args, parts, stream);
  }
  launch_tiles<T, kGated, kRows, kFewOutputs>(args, parts, stream);
}

// Calls the instance with the fewest rows that suffice.
template <typename T, bool kGated, int32_t kRows = 8>
void launch_product(const RowsProductArgs& args, int32_t parts, cudaStream_t stream) {
  if constexpr (kRows < kMaxRows) {
    if (args.rows > kRows) return launch_product<T, kGated, kRows * 2>(args, parts, stream);
  }
  launch_outputs<T, kGated, kRows>(args, parts, stream);
}

// Multiplies the rows of one launch, and adds the sums of parts.
template <typename T, bool kGated>
void launch_parts(const RowsProductArgs& args, int32_t parts, cudaStream_t stream) {
  launch_product<T, kGated>(args, parts, stream);
  if (parts == 1) return;
  const auto items = static_cast<uint32_t>(args.rows) * sum_vectors(args.n, false);
  launch_early(sum_parts_kernel<T, kGated>, tiles_of(items, kSumThreads), kSumThreads, stream, args);
}

// Rows of one launch. The rows of x and a part of the matrix stay in the L2 cache while its blocks run.
constexpr int64_t kMaxLaunchRows = 8 * kMaxRows;

// Rows of one launch whose partial sums of `row_bytes` bytes a row fit into memory: whole blocks, if there is more than
// one. 0: not even one row fits.
int32_t launch_rows(const RowsProductArgs& args, int64_t row_bytes) {
  int64_t rows = args.rows < kMaxLaunchRows ? args.rows : kMaxLaunchRows;
  if (row_bytes > 0 && rows * row_bytes > args.partial_bytes) rows = args.partial_bytes / row_bytes;
  return static_cast<int32_t>(rows > kMaxRows ? rows / kMaxRows * kMaxRows : rows);
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_rows_product(const RowsProductArgs* args, cudaStream_t stream) {
  if (args->rows < 1 || args->n < 1 || args->k < 8 || args->k % 8 != 0) return cudaErrorInvalidValue;
  const bool is_gated = args->activation != kNoGates;
  if (is_gated && !is_activation(args->activation)) return cudaErrorInvalidValue;
  const int32_t parts = parts_of(is_gated ? 2 * args->n : args->n, args->k);
  const int64_t row_bytes = parts > 1 ? static_cast<int64_t>(parts) * sum_vectors(args->n, is_gated) * 16 : 0;
  const int32_t at_once = launch_rows(*args, row_bytes);
  if (at_once < 1) return cudaErrorInvalidValue;
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int32_t first = 0; first < args->rows; first += at_once) {
      RowsProductArgs own = *args;
      own.x = static_cast<const T*>(args->x) + static_cast<int64_t>(first) * args->k;
      own.out = static_cast<T*>(args->out) + static_cast<int64_t>(first) * args->n;
      own.rows = args->rows - first < at_once ? args->rows - first : at_once;
      own.partial_bytes = row_bytes * own.rows;
      is_gated ? launch_parts<T, true>(own, parts, stream) : launch_parts<T, false>(own, parts, stream);
    }
  });
}
