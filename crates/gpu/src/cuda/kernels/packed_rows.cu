// The product of a quantized matrix with 9 to 128 rows.

#include "packed_rows.cuh"

namespace candlepower {

template <typename T, QuantFormat kFormat, int32_t kRows, int32_t kSplit, int32_t kCut>
__global__ void __launch_bounds__(kPackedWarps* kWarp) packed_rows_kernel(PackedProductArgs args) {
  extern __shared__ uint4 memory[];
  const ProductRows<T> rows{args, static_cast<int32_t>(blockIdx.x) * kRows};
  const auto row_of = [&](int32_t row) { return rows.at(row); };
  const auto take = [&](int32_t row, int32_t output, float sum) { rows.take(row, output, sum); };
  const auto first_output = static_cast<int32_t>(blockIdx.y) * RowsShape<kRows, kSplit, bits_of(kFormat), kCut>::kOutputs;
  multiply_rows<T, kFormat, kRows, kSplit, kCut>(args.w, first_output, reinterpret_cast<char*>(memory), row_of, take);
}

// Number of blocks that fills the GPU. With fewer blocks, the inputs are divided among the warps of a block.
constexpr int32_t kEnoughBlocks = 128;

// GPUs without the large shared memory of those for data centers. A block may use 99 KiB there, and at least 163 KiB
// elsewhere. Source: NVIDIA, CUDA C++ Programming Guide, Compute Capabilities.
constexpr bool kSmallMemory =
    CANDLEPOWER_COMPUTE_CAP == 86 || CANDLEPOWER_COMPUTE_CAP == 89 || CANDLEPOWER_COMPUTE_CAP == 120;
constexpr int32_t kMaxBytes = (kSmallMemory ? 99 : 163) << 10;
constexpr int32_t kMaxSplit = kSmallMemory ? 2 : 4;

template <typename T, QuantFormat kFormat, int32_t kRows, int32_t kSplit, int32_t kCut>
void launch(const PackedProductArgs& args, cudaStream_t stream) {
  using Shape = RowsShape<kRows, kSplit, bits_of(kFormat), kCut>;
  static_assert(Shape::kBytes <= kMaxBytes);
  const auto kernel = packed_rows_kernel<T, kFormat, kRows, kSplit, kCut>;
  // The result is ignored because the launch fails with the same error.
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes);
  const dim3 blocks(tiles_of(args.rows, kRows), tiles_of(args.w.n, Shape::kOutputs));
  launch_early(kernel, blocks, Shape::kThreads, stream, args, Shape::kBytes);
}

template <typename T, QuantFormat kFormat, int32_t kRows, int32_t kCut>
void launch_split(const PackedProductArgs& args, cudaStream_t stream) {
  if (tiles_of(args.w.n, kPackedWarps * kTileOutputs) >= kEnoughBlocks) {
    launch<T, kFormat, kRows, 1, kCut>(args, stream);
  } else {
    launch<T, kFormat, kRows, kMaxSplit, kCut>(args, stream);
  }
}

constexpr int32_t kFewRows = 16;
constexpr int32_t kManyRows = 64;

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_packed_rows(const PackedProductArgs* args, cudaStream_t stream) {
  if (args->rows < 1 || args->w.cut == kAnyLayout || args->w.kind == static_cast<int32_t>(QuantFormat::kTable)) {
    return cudaErrorInvalidValue;
  }
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    with_format(args->w.kind, [&](auto format) {
      constexpr QuantFormat kFormat = format();
      if constexpr (kFormat != QuantFormat::kTable) {
        with_cut<kFormat>(args->w.cut, [&](auto cut) {
          constexpr int32_t kCut = decltype(cut)::value;
          if constexpr (kCut != kAnyLayout) {
            if (args->rows <= kFewRows) {
              launch_split<T, kFormat, kFewRows, kCut>(*args, stream);
            } else {
              launch_split<T, kFormat, kManyRows, kCut>(*args, stream);
            }
          }
        });
      }
    });
  });
}
