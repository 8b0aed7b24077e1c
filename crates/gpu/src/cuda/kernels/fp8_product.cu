// A matrix of FP8 weights times a few rows of FP8 activations, on tensor cores of 16 bits. The time is that of reading the
// matrix once. For more rows cuBLASLt is used, whose products in FP8 have twice the speed.
//
// An e4m3 value is exact in f16, and so is a product of two of them in f32. Scales are applied to sums: of all inputs, or of
// each block of 128 inputs.

#include "tensor_core.cuh"

namespace candlepower {

struct Fp8ProductArgs {
  const uint8_t* x;       // e4m3 [rows, k]
  const float* x_scales;  // [groups, rows]
  const uint8_t* weight;  // e4m3 [n, k]
  const float* scales;    // scales of the weights: [1], [n], or [n / 128, stride]
  const void* bias;       // [n], may be null
  void* out;              // [rows, n]
  int32_t rows;
  int32_t n;
  int32_t k;              // a multiple of 16
  int32_t stride;         // distance of rows of block scales; 0: a scale for each output; -1: one scale
  int32_t dtype;
  int32_t padding;
};
static_assert(sizeof(Fp8ProductArgs) == 72, "as in src/cuda/fp8.rs");

constexpr int32_t kFp8Warps = 8;
constexpr int32_t kFp8Rows = 8;      // rows of x in one tensor core product
constexpr int32_t kFp8Outputs = 16;  // outputs of a block
constexpr int32_t kFp8Step = 64;     // inputs of a step: four lanes read 16 of each output
constexpr int32_t kFp8Block = 128;   // inputs of a block that share a scale
// Steps that are loaded ahead of their use. A step is 1 KiB for a warp.
constexpr int32_t kFp8Ahead = 4;

// The two e4m3 values in the low half of `pair`, each divided by 256, as two halves. The exponent of a half is one bit wider,
// and its bias is larger by 8.
__device__ __forceinline__ uint32_t halves_of(uint32_t pair) {
  const uint32_t apart = (pair & 0xffu) | (pair & 0xff00u) << 8;
  return (apart & 0x00800080u) << 8 | (apart & 0x007f007fu) << 7;
}

__device__ __forceinline__ uint32_t word_of(const uint4& words, int32_t at) {
  return at == 0 ? words.x : at == 1 ? words.y : at == 2 ? words.z : words.w;
}

template <typename T, bool kBlocks>
__global__ void __launch_bounds__(kFp8Warps* kWarp) fp8_product_kernel(Fp8ProductArgs args) {
  __shared__ float partial[kFp8Warps][kFp8Outputs][kFp8Rows];
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t first_output = blockIdx.x * kFp8Outputs;
  const int32_t first_row = blockIdx.y * kFp8Rows;
  const int32_t in_tile = lane / 4;  // output of the first half, and row of x
  const int32_t row = first_row + in_tile;
  // Ranges of whole blocks, so that each sum of a block is one warp's.
  const Range run = split_range(args.k, kFp8Block, warp, kFp8Warps);
  const int32_t begin = run.begin + lane % 4 * 16;
  const int32_t steps = run.begin < run.end ? (run.end - run.begin + kFp8Step - 1) / kFp8Step : 0;
  const uint4 none{};
  const uint8_t* weight = args.weight + static_cast<int64_t>(first_output + in_tile) * args.k;
  const uint8_t* x = args.x + static_cast<int64_t>(row) * args.k;
  const auto load_half = [&](int32_t step, int32_t half) {
    const int32_t column = begin + step * kFp8Step;
    if (column >= run.end || first_output + in_tile + half * 8 >= args.n) return none;
    return __ldcs(reinterpret_cast<const uint4*>(weight + static_cast<int64_t>(half) * 8 * args.k + column));
  };

  uint4 coming[kFp8Ahead][2];
#pragma unroll
  for (int32_t ahead = 0; ahead < kFp8Ahead; ++ahead) {
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) coming[ahead][half] = ahead < steps ? load_half(ahead, half) : none;
  }
  // The weights are constant, so they are loaded before the wait; x is written by the preceding kernel.
  wait_for_inputs();
  float total[4] = {};
  float sum[4] = {};
#pragma unroll 1
  for (int32_t base = 0; base < steps; base += kFp8Ahead) {
#pragma unroll
    for (int32_t ahead = 0; ahead < kFp8Ahead; ++ahead) {
      const int32_t step = base + ahead;
      if (step < steps) {
        const int32_t column = begin + step * kFp8Step;
        const bool has_x = row < args.rows && column < run.end;
        const uint4 values = has_x ? *reinterpret_cast<const uint4*>(x + column) : none;
#pragma unroll
        for (int32_t word = 0; word < 4; ++word) {
          const uint32_t low = word_of(coming[ahead][0], word);
          const uint32_t high = word_of(coming[ahead][1], word);
          const uint32_t own = word_of(values, word);
          const uint32_t a[4] = {halves_of(low), halves_of(high), halves_of(low >> 16), halves_of(high >> 16)};
          const uint32_t b[2] = {halves_of(own), halves_of(own >> 16)};
          multiply(sum, a, b, __half{});
        }
        if (step + kFp8Ahead < steps) {
#pragma unroll
          for (int32_t half = 0; half < 2; ++half) coming[ahead][half] = load_half(step + kFp8Ahead, half);
        }
        if constexpr (kBlocks) {
          // Two steps are a block. The last block may be one step.
          if (step % 2 == 1 || step + 1 == steps) {
            const int32_t block = run.begin / kFp8Block + step / 2;
            const float of_weights = args.scales[first_output / kFp8Block * args.stride + block];
#pragma unroll
            for (int32_t i = 0; i < 4; ++i) {
              const int32_t of_row = first_row + lane % 4 * 2 + i % 2;
              const float of_x =
                  of_row < args.rows ? args.x_scales[static_cast<int64_t>(block) * args.rows + of_row] : 0.0f;
              total[i] += sum[i] * (of_weights * of_x);
              sum[i] = 0.0f;
            }
          }
        }
      }
    }
  }
  let_next_start();
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    partial[warp][in_tile + i / 2 * 8][lane % 4 * 2 + i % 2] = kBlocks ? total[i] : sum[i];
  }
  __syncthreads();
  if (threadIdx.x >= kFp8Outputs * kFp8Rows) return;
  const int32_t output = first_output + threadIdx.x % kFp8Outputs;
  const int32_t of_row = first_row + threadIdx.x / kFp8Outputs;
  if (output >= args.n || of_row >= args.rows) return;
  float result = 0.0f;
#pragma unroll
  for (int32_t part = 0; part < kFp8Warps; ++part) {
    result += partial[part][threadIdx.x % kFp8Outputs][threadIdx.x / kFp8Outputs];
  }
  // Both factors of 256.
  result *= 65536.0f;
  if constexpr (!kBlocks) result *= args.x_scales[of_row] * args.scales[args.stride < 0 ? 0 : output];
  if (args.bias != nullptr) result += static_cast<float>(static_cast<const T*>(args.bias)[output]);
  static_cast<T*>(args.out)[static_cast<int64_t>(of_row) * args.n + output] = T(result);
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_fp8_product(const Fp8ProductArgs* args, cudaStream_t stream) {
  constexpr int64_t kMaxGridY = 65535;
  const int64_t tiles = (static_cast<int64_t>(args->rows) + kFp8Rows - 1) / kFp8Rows;
  if (args->rows <= 0 || args->n <= 0 || args->k <= 0 || args->k % 16 != 0 || tiles > kMaxGridY) {
    return cudaErrorInvalidValue;
  }
  const dim3 grid(static_cast<uint32_t>((args->n + kFp8Outputs - 1) / kFp8Outputs), static_cast<uint32_t>(tiles));
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_early(args->stride > 0 ? fp8_product_kernel<T, true> : fp8_product_kernel<T, false>, grid, kFp8Warps * kWarp,
                 stream, *args);
  });
}
