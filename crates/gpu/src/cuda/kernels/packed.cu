// Quantized matrices: the product with a few rows, and dequantization for cuBLAS and embeddings.

#include "packed_product.cuh"

namespace candlepower {

// ---- Dequantization --------------------------------------------------------------------------------

struct UnpackArgs {
  PackedMatrix w;
  const uint32_t* rows;  // [count]: row indices in the whole matrix; null: this shard's rows from `first` on
  void* out;             // [count, width]
  int32_t first;         // index of the shard's first row in the whole matrix
  int32_t all_rows;      // number of rows of the whole matrix
  int32_t count;
  int32_t dtype;
  float scale;
  int32_t padding;
};
static_assert(sizeof(UnpackArgs) == 112, "as in src/cuda/packed.rs");

// One block per row. A row index that no shard has gives NaN, and one that another rank's shard has gives zeros, as in
// `gather_kernel`. Inputs without a column keep the previous content of `out`, since activations are zero there.
template <typename T, QuantFormat kFormat>
__global__ void unpack_kernel(UnpackArgs args) {
  const PackedMatrix& w = args.w;
  const uint32_t first = args.first;
  const uint32_t row = args.rows == nullptr ? first + blockIdx.x : args.rows[blockIdx.x] - first;
  T* out = static_cast<T*>(args.out) + static_cast<int64_t>(blockIdx.x) * w.width;
  const bool exists = row < static_cast<uint32_t>(w.n);
  const T missing = T(row + first < static_cast<uint32_t>(args.all_rows) ? 0.0f : NAN);
  const bool whole = w.inputs == nullptr && w.width % kUnpacked == 0;
  for (int32_t column = threadIdx.x * kUnpacked; column < w.k; column += blockDim.x * kUnpacked) {
    Vector<T, kUnpacked> values{};
    if (exists) values = unpacked<T, kFormat>(w, row, column);
#pragma unroll
    for (int32_t i = 0; i < kUnpacked; ++i) {
      values.at[i] = exists ? T(static_cast<float>(values.at[i]) * args.scale) : missing;
    }
    if (whole) {
      store<kUnpacked>(out + column, values);
      continue;
    }
#pragma unroll
    for (int32_t i = 0; i < kUnpacked; ++i) {
      const int32_t at = column + i;
      if (at < w.k) out[w.inputs == nullptr ? at : static_cast<int32_t>(w.inputs[at])] = values.at[i];
    }
  }
  if (w.sparse_starts == nullptr || !exists) return;
  __syncthreads();
  for (uint32_t i = w.sparse_starts[row] + threadIdx.x; i < w.sparse_starts[row + 1]; i += blockDim.x) {
    T& value = out[w.sparse_inputs[i]];
    value = T(static_cast<float>(value) + w.sparse_values[i] * args.scale);
  }
}

// ---- Product ---------------------------------------------------------------------------------------

// A block computes one tile of rows, number `blockIdx.x`.
template <typename T, QuantFormat kFormat, int32_t kCut>
__global__ void __launch_bounds__(kPackedWarps* kWarp) packed_product_kernel(PackedProductArgs args) {
  const ProductRows<T> rows{args, static_cast<int32_t>(blockIdx.x) * kTileRows};
  const auto row_of = [&](int32_t row) { return rows.at(row); };
  const auto take = [&](int32_t row, int32_t output, float sum) { rows.take(row, output, sum); };
  // The parts of packed_rows.cu, so that more rows have the same sums.
  const int32_t parts = product_parts(args.w.n, args.w.k, kPackedWarps);
  multiply_packed<T, kFormat, kPackedWarps, 1, kCut, true>(args.w, blockIdx.y * kTileOutputs, parts, row_of, take);
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_packed_product(const PackedProductArgs* args, cudaStream_t stream) {
  if (args->rows < 1) return cudaErrorInvalidValue;
  return with_half_type(args->dtype, [&](auto zero) {
    with_format(args->w.kind, [&](auto format) {
      constexpr QuantFormat kFormat = format();
      with_cut<kFormat>(args->w.cut, [&](auto cut) {
        const dim3 blocks(tiles_of(args->rows, kTileRows), args->w.whole_outputs() / kTileOutputs);
        const auto kernel = packed_product_kernel<decltype(zero), kFormat, decltype(cut)::value>;
        launch_early(kernel, blocks, kPackedWarps * kWarp, stream, *args);
      });
    });
  });
}

extern "C" int32_t candlepower_unpack(const UnpackArgs* args, cudaStream_t stream) {
  return with_half_type(args->dtype, [&](auto zero) {
    const auto rows = static_cast<uint32_t>(args->count);
    const int32_t threads = threads_for((args->w.k + kUnpacked - 1) / kUnpacked, 256);
    with_format(args->w.kind, [&](auto format) {
      unpack_kernel<decltype(zero), format()><<<rows, threads, 0, stream>>>(*args);
    });
  });
}
