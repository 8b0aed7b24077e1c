// Rounding of activations to FP8 (e4m3) before a product: for products in FP8 the bits and the scales, for other products the
// rounded values in the activations' own type. The reference implementation is `Fp8Rounding` in crates/kernels.

#include "fp8_rows.cuh"

namespace candlepower {

struct RoundArgs {
  const void* x;  // [rows, k]
  void* out;      // [rows, k] of x's type, may be x itself; null if `codes` is not
  uint8_t* codes; // e4m3 [rows, k]; null if `out` is not
  float* scales;  // [groups, rows]; null without `codes`
  int32_t rows;
  int32_t k;
  int32_t group;  // inputs that share a scale, not counting padding
  float fixed;    // the scale of all rows; 0: each group's is computed
  // Elements of a head without and with padding; both are k without heads. Padding becomes zero.
  int32_t head;
  int32_t padded_head;
  int32_t dtype;
  int32_t padding;
};
static_assert(sizeof(RoundArgs) == 64, "as in src/cuda/fp8.rs");

constexpr int32_t kRoundThreads = 256;

// The value of e4m3 nearest to `value`, ties to even, as `e4m3_rounded` in Rust.
__device__ __forceinline__ float e4m3_rounded(float value) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t size = bits & 0x7fffffffu;
  if (size > kInfinity) return value;
  float rounded;
  if (size < 0x3c800000u) {  // 2^-6: smaller values have a step of 2^-9
    rounded = rintf(__uint_as_float(size) * 512.0f) / 512.0f;
  } else {
    rounded = __uint_as_float((size + 0x7ffffu + (size >> 20 & 1)) >> 20 << 20);
  }
  return copysignf(fminf(rounded, kE4m3Max), value);
}

// A block rounds a row. All its threads share a group of a whole row; otherwise each warp has groups of its own. With
// `kWidth` elements of an access, groups and rows are whole accesses, and there is no padding.
template <typename T, int32_t kWidth, bool kWholeRow>
__global__ void __launch_bounds__(kRoundThreads) round_kernel(RoundArgs args) {
  const int32_t row = blockIdx.x;
  const int32_t heads = args.k / args.padded_head;
  const int32_t own = heads * args.head;  // elements that are no padding
  const int32_t groups = (own + args.group - 1) / args.group;
  const int64_t first_of_row = static_cast<int64_t>(row) * args.k;
  const T* x = static_cast<const T*>(args.x) + first_of_row;
  const int32_t team = kWholeRow ? 0 : threadIdx.x / kWarp;
  const int32_t teams = kWholeRow ? 1 : kRoundThreads / kWarp;
  const int32_t member = kWholeRow ? threadIdx.x : threadIdx.x % kWarp;
  constexpr int32_t kMembers = kWholeRow ? kRoundThreads : kWarp;
  const auto place = [&](int32_t element) {
    if constexpr (kWidth > 1) return element;
    return element / args.head * args.padded_head + element % args.head;
  };

  wait_for_inputs();
  for (int32_t group = team; group < groups; group += teams) {
    const int32_t begin = group * args.group;
    const int32_t end = begin + args.group < own ? begin + args.group : own;
    uint32_t largest = 0;
    for (int32_t i = begin + member * kWidth; i < end; i += kMembers * kWidth) {
      largest = with_largest(largest, load<kWidth>(x + place(i)));
    }
    largest = kWholeRow ? block_largest(largest) : warp_largest(largest);
    const float scale = scale_of(largest, args.fixed);
    if (args.codes != nullptr && member == 0) {
      args.scales[static_cast<int64_t>(group) * args.rows + row] = stored_scale(largest, scale);
    }
    for (int32_t i = begin + member * kWidth; i < end; i += kMembers * kWidth) {
      const Vector<T, kWidth> values = load<kWidth>(x + place(i));
      if (args.codes != nullptr) {
        store_codes(args.codes + first_of_row + place(i), values, scale);
        continue;
      }
      Vector<T, kWidth> rounded;
#pragma unroll
      for (int32_t j = 0; j < kWidth; ++j) {
        rounded.at[j] = T(e4m3_rounded(static_cast<float>(values.at[j]) / scale) * scale);
      }
      store<kWidth>(static_cast<T*>(args.out) + first_of_row + place(i), rounded);
    }
  }
  if constexpr (kWidth == 1) {
    // A product with dequantized weights multiplies the padding by what lies in their memory.
    const int32_t rest = args.padded_head - args.head;
    for (int32_t i = threadIdx.x; i < heads * rest; i += kRoundThreads) {
      const int64_t at = first_of_row + i / rest * args.padded_head + args.head + i % rest;
      if (args.codes != nullptr) {
        args.codes[at] = 0;
      } else {
        static_cast<T*>(args.out)[at] = T(0.0f);
      }
    }
  }
  let_next_start();
}

template <typename T>
void launch_round(const RoundArgs& args, cudaStream_t stream) {
  constexpr int32_t N = kVectorWidth<T>;
  const bool is_whole = args.group >= args.k / args.padded_head * args.head;
  const bool in_vectors = args.head == args.padded_head && args.k % N == 0 && (is_whole || args.group % N == 0);
  const auto grid = static_cast<uint32_t>(args.rows);
  if (in_vectors) {
    launch_early(is_whole ? round_kernel<T, N, true> : round_kernel<T, N, false>, grid, kRoundThreads, stream, args);
  } else {
    launch_early(is_whole ? round_kernel<T, 1, true> : round_kernel<T, 1, false>, grid, kRoundThreads, stream, args);
  }
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_round_fp8(const RoundArgs* args, cudaStream_t stream) {
  if (args->group <= 0 || args->head <= 0 || args->padded_head < args->head || args->k % args->padded_head != 0) {
    return cudaErrorInvalidValue;
  }
  return with_half_type(args->dtype, [&](auto zero) { launch_round<decltype(zero)>(*args, stream); });
}
