// Attention of decodes over an FP8 cache: one query a sequence, whose heads that share a KV head are computed together.
//
// FlashInfer's kernel on tensor cores converts keys and values to 16 bits in registers that are arranged for 16-bit
// elements, which costs shuffles. Here the order of elements is chosen so that a word of four e4m3 values becomes two
// operands of `mma` by shifts and masks alone:
//
// - Scores are q k^T, where keys are the columns. The sum over a head may take its elements in any order, so each lane
//   takes the four adjacent values that a row of `ldmatrix` gives it, and the query is arranged likewise.
// - Outputs are computed transposed, v^T p^T. The transposed rows of `ldmatrix` give each lane two adjacent elements of
//   two keys. They belong to two rows of v^T, an even and an odd one.
//
// The bits of an e4m3 value, shifted to the exponent and mantissa of the 16-bit type, are the value times a power of two,
// exactly (`Fp8Bits`).
// Other factors make up for it, so that no number is multiplied.
//
// A warp computes units of 16 keys, and keeps the copies of its next units in flight. The four warps of a block take turns
// in the units of a piece, and add their results at its end. Each block has an equal share of all units of the step,
// whatever the lengths of sequences are. A sequence that is divided among blocks leaves partial results, which the merge
// kernel of ordered_attention.cu adds.

#include "async_copy.cuh"
#include "tensor_core.cuh"

namespace candlepower {

// Units of one sequence that a block computes.
struct Fp8DecodePiece {
  uint32_t seq;
  uint32_t first_page;  // index of the sequence's first page among the page indices
  uint32_t first_unit;
  uint32_t end_unit;
  uint32_t context;     // positions in the cache
  uint32_t part;        // place of the result among the partial results, or kWholeSequence
  uint32_t padding[2];
};
static_assert(sizeof(Fp8DecodePiece) == 32, "as in src/operands/decode_pieces.rs");

// The piece's result is the output.
constexpr uint32_t kWholeSequence = 0xffffffffu;

struct Fp8DecodeArgs {
  const void* q;                 // [seqs, heads, head_dim]
  const uint8_t* keys;           // e4m3 [num_blocks, kv_heads, block_size, head_dim]
  const uint8_t* values;         // the same shape
  void* out;                     // [seqs, heads, head_dim]
  float* lse;                    // [seqs, heads]: base-2 logarithms of the softmax denominators; null: not needed
  float* partials;               // [parts, kv_heads, 16, head_dim], then [parts, kv_heads, 16, 2]
  const uint32_t* page_indices;
  const uint32_t* starts;        // [workers + 1]: the first piece of each worker
  const Fp8DecodePiece* pieces;
  int64_t partial_rows;          // rows of all partial results
  int32_t workers;               // blocks for a KV head
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t block_size;            // a multiple of 16
  int32_t dtype;
  int32_t window;                // a query sees this many positions up to its own; 0: all
  float scale;                   // factor on the products of queries with keys as stored
  float softcap;                 // 0: none
  float value_scale;             // factor on the values as stored
};
static_assert(sizeof(Fp8DecodeArgs) == 120, "as in src/cuda/attention/fp8_decode.rs");

// A kind of layers, and how many blocks run at once for it.
struct Fp8DecodeRoom {
  int32_t head_dim;
  int32_t group;
  int32_t dtype;
  int32_t blocks;  // written
};
static_assert(sizeof(Fp8DecodeRoom) == 16, "as in src/cuda/attention/fp8_decode.rs");

// The conversion of e4m3 values to elements of T. Bits 0 to 6 are exponent and mantissa, and move to the lowest bit of T's exponent.
// The result is too small by the difference of both exponent biases, 120 or 8. It is exact below the normal range of e4m3,
// too: there the result is below the normal range of T, which tensor cores keep. NaN becomes 480.
//
// In bf16 the query is multiplied by 2^60, and so are softmax weights. Scores and outputs are too small by 2^60 then, far
// from both ends of the range of f32. Queries must be below 2^67.
template <typename T>
struct Fp8Bits;

template <>
struct Fp8Bits<__nv_bfloat16> {
  static constexpr int32_t kShift = 4;
  static constexpr uint32_t kNumber = 0x07f007f0u;
  static constexpr float kQueryFactor = 0x1p60f;
  static constexpr float kScoreFactor = 0x1p60f;
  static constexpr float kWeightExponent = 60.0f;
  static constexpr uint32_t kWeightUnits = 0x21802180u;  // two elements of 2^-60
  static constexpr float kOutputFactor = 0x1p60f;
};

template <>
struct Fp8Bits<__half> {
  static constexpr int32_t kShift = 1;
  static constexpr uint32_t kNumber = 0x3f803f80u;
  static constexpr float kQueryFactor = 1.0f;
  static constexpr float kScoreFactor = 0x1p8f;
  static constexpr float kWeightExponent = 8.0f;
  static constexpr uint32_t kWeightUnits = 0x1c001c00u;  // two elements of 2^-8
  static constexpr float kOutputFactor = 1.0f;
};

// Converts four e4m3 values: the first and the third to `even`, the others to `odd`.
template <typename T>
__device__ __forceinline__ void widen_values(uint32_t bytes, uint32_t& even, uint32_t& odd) {
  using Bits = Fp8Bits<T>;
  constexpr uint32_t kSigns = 0x80008000u;
  even = (bytes << 8 & kSigns) | (bytes << (8 - Bits::kShift) & Bits::kNumber);
  odd = (bytes & kSigns) | (bytes >> Bits::kShift & Bits::kNumber);
}

// 2^x, or zero below the normal range of f32.
__device__ __forceinline__ float power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

constexpr int32_t kUnitKeys = 16;
constexpr int32_t kUnitWarps = 4;
constexpr float kLog2OfE = 1.44269504f;

// Shared memory of a block for heads of `kDim` elements, of which up to 8 `kHeadTiles` share a KV head: the units of each warp,
// keys before values; and the sums of all warps.
template <int32_t kDim, int32_t kHeadTiles>
struct Fp8DecodeShape {
  static constexpr int32_t kThreads = kUnitWarps * kWarp;
  static constexpr int32_t kHeads = 8 * kHeadTiles;
  static constexpr int32_t kChunks = kDim / 16;  // 16 bytes each, in a key
  static constexpr int32_t kUnitBytes = kUnitKeys * kDim;
  // A narrow unit has few bytes, so more of them are in flight. Wide ones leave no room for more.
  static constexpr int32_t kStages = kDim == 64 ? 4 : kDim == 128 ? 3 : 2;
  static constexpr int32_t kStageBytes = 2 * kUnitBytes;
  // Sums of four heads in the same columns lie in different banks.
  static constexpr int32_t kRowStride = kDim + 4;
  static constexpr int32_t kTotalsAt = kUnitWarps * kStages * kStageBytes;
  static constexpr int32_t kMaximaAt = kTotalsAt + kHeads * kRowStride * 4;
  // Maxima of each warp, then a maximum and a denominator of each head.
  static constexpr int32_t kBytes = kMaximaAt + (kUnitWarps + 2) * kHeads * 4;
  static_assert(kBytes <= 99 << 10);
  // Blocks of a multiprocessor that registers must leave room for. Shared memory leaves it on Hopper.
  static constexpr int32_t kBlocks = kDim == 64 ? (kHeadTiles == 1 ? 6 : 4) : (kDim == 128 ? 5 : 4) - kHeadTiles;
};

// The bits that change the places of a row's chunks.
template <int32_t kChunks>
__device__ __forceinline__ int32_t row_bits(int32_t row) {
  return kChunks == 4 ? row / 2 % 4 : row % 8;
}

// Index of a chunk of 16 bytes in rows of `kChunks`. Eight rows' chunks of one number lie in different banks.
template <int32_t kChunks>
__device__ __forceinline__ int32_t value_chunk(int32_t row, int32_t chunk) {
  return row * kChunks + (chunk ^ row_bits<kChunks>(row));
}

template <typename T, int32_t kDim, int32_t kHeadTiles>
__global__ void __launch_bounds__(Fp8DecodeShape<kDim, kHeadTiles>::kThreads, Fp8DecodeShape<kDim, kHeadTiles>::kBlocks)
    fp8_decode_kernel(Fp8DecodeArgs args) {
  using Shape = Fp8DecodeShape<kDim, kHeadTiles>;
  using Bits = Fp8Bits<T>;
  constexpr int32_t kChunks = Shape::kChunks;
  constexpr int32_t kStages = Shape::kStages;
  // Operands of the query: 16 elements of 16 heads, or 32 elements of 8 heads.
  constexpr int32_t kQueries = kDim / 32 * kHeadTiles;
  constexpr uint32_t kAll = 0xffffffffu;
  extern __shared__ uint4 memory[];
  auto* const bytes = reinterpret_cast<char*>(memory);
  auto* const totals = reinterpret_cast<float*>(bytes + Shape::kTotalsAt);
  auto* const maxima = reinterpret_cast<float*>(bytes + Shape::kMaximaAt);
  float* const tops = maxima + kUnitWarps * Shape::kHeads;
  float* const denominators = tops + Shape::kHeads;
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const int32_t group = args.heads / args.kv_heads;
  const uint32_t kv_head = blockIdx.y;
  const uint32_t stages = shared_address(bytes) + warp * kStages * Shape::kStageBytes;
  const uint32_t own_place = value_chunk<kChunks>(lane / kChunks, lane % kChunks) * 16;
  const uint32_t end = args.starts[blockIdx.x + 1];
  const uint32_t begin = args.starts[blockIdx.x];

  // The warp's next unit to be copied, in the order in which it will be computed. Its page is loaded a unit ahead.
  const uint32_t page_units = args.block_size / kUnitKeys;
  const uint32_t* pages = args.page_indices;
  uint32_t next_piece = begin;
  uint32_t next_unit = 0;
  uint32_t next_end = 0;
  uint32_t next_page = 0;
  const auto find_unit = [&] {
    while (next_unit >= next_end && next_piece < end) {
      const Fp8DecodePiece& piece = args.pieces[next_piece];
      pages = args.page_indices + piece.first_page;
      next_unit = piece.first_unit + warp;
      next_end = piece.end_unit;
      ++next_piece;
    }
    if (next_unit < next_end) next_page = pages[page_units == 1 ? next_unit : next_unit / page_units];
  };
  const auto copy_unit = [&](int32_t stage) {
    if (next_unit < next_end) {
      const uint32_t in_page = page_units == 1 ? 0 : next_unit % page_units;
      const int64_t unit = (static_cast<int64_t>(next_page) * args.kv_heads + kv_head) * page_units + in_page;
      const int64_t from = unit * Shape::kUnitBytes + lane * 16;
      const uint8_t* const keys = args.keys + from;
      const uint8_t* const values = args.values + from;
      const uint32_t to = stages + stage * Shape::kStageBytes;
      constexpr int32_t kCopyBytes = 16 * kWarp;
#pragma unroll
      for (int32_t i = 0; i < Shape::kUnitBytes / kCopyBytes; ++i) {
        // `value_chunk` of chunk `i * kWarp + lane`: the rows of earlier copies change bits of the place alone.
        const uint32_t place = to + i * kCopyBytes + (own_place ^ row_bits<kChunks>(i * kWarp / kChunks) * 16);
        copy_chunk(place, keys + i * kCopyBytes);
        copy_chunk(place + Shape::kUnitBytes, values + i * kCopyBytes);
      }
      next_unit += kUnitWarps;
      find_unit();
    }
    end_copies();
  };

  // The tables were written before the step.
  find_unit();
  wait_for_inputs();
  for (int32_t stage = 0; stage + 1 < kStages; ++stage) copy_unit(stage);

  const bool capped = args.softcap > 0.0f;
  // Scores are compared as they are, and multiplied where they become exponents of two.
  const float score_factor = capped ? 1.0f : Bits::kScoreFactor;
  const float factor = (capped ? args.softcap : args.scale * Bits::kScoreFactor) * kLog2OfE;
  const float before_cap = capped ? args.scale * Bits::kScoreFactor / args.softcap : 0.0f;
  int32_t stage = 0;
  for (uint32_t index = begin; index < end; ++index) {
    const Fp8DecodePiece piece = args.pieces[index];
    const int64_t first_row = static_cast<int64_t>(piece.seq) * args.heads + kv_head * group;
    const int32_t context = static_cast<int32_t>(piece.context);
    const int32_t lowest = args.window > 0 && context > args.window ? context - args.window : 0;

    // The query in the order of elements that `widen_values` gives keys. Missing heads are zero.
    uint32_t query[kQueries][4];
#pragma unroll
    for (int32_t i = 0; i < kDim / 16 * kHeadTiles; ++i) {
      // With up to 8 heads, the lower rows of an operand have 16 elements of them, and the upper rows the next 16.
      const int32_t at = i / 2;
      const int32_t half = i % 2;
      const int32_t head = lane / 4 + (kHeadTiles == 2 ? 8 * half : 0);
      const int32_t chunk = kHeadTiles == 2 ? at : i;
      query[at][half] = query[at][2 + half] = 0;
      if (head >= group) continue;
      const T* from = static_cast<const T*>(args.q) + (first_row + head) * kDim;
      const Vector<T, 4> four = load<4>(from + chunk * 16 + lane % 4 * 4);
      const auto scaled = [&](int32_t j) { return T(static_cast<float>(four.at[j]) * Bits::kQueryFactor); };
      query[at][half] = pair_bits(scaled(0), scaled(2));
      query[at][2 + half] = pair_bits(scaled(1), scaled(3));
    }

    // The maxima of heads `lane / 4` and 8 further.
    float max[kHeadTiles];
    // Transposed outputs, and weights, of heads `lane % 4 * 2` and the next.
    float sums[kDim / 16][kHeadTiles][4] = {};
    float weights[kHeadTiles][4] = {};
#pragma unroll
    for (int32_t tile = 0; tile < kHeadTiles; ++tile) max[tile] = -INFINITY;

    for (uint32_t unit = piece.first_unit + warp; unit < piece.end_unit; unit += kUnitWarps) {
      wait_for_copies<kStages - 2>();
      // All lanes' copies are there, and all lanes are done with the unit before, whose place is taken now.
      __syncwarp();
      copy_unit(stage == 0 ? kStages - 1 : stage - 1);
      const uint32_t keys = stages + stage * Shape::kStageBytes;
      const uint32_t values = keys + Shape::kUnitBytes;
      stage = stage + 1 == kStages ? 0 : stage + 1;

      float scores[2][4] = {};
      // Half of the sums of an operand with 32 elements of 8 heads. Its other half has products of elements that do not belong
      // together.
      float upper[2][4] = {};
#pragma unroll
      for (int32_t step = 0; step < kDim / 32; ++step) {
        uint32_t loaded[4];
        load_matrices(loaded, keys + value_chunk<kChunks>(lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2) * 16);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          uint32_t operand[2];
          widen_values<T>(loaded[i], operand[0], operand[1]);
          if constexpr (kHeadTiles == 2) {
            multiply(scores[i / 2], query[2 * step + i % 2], operand, T());
          } else {
            multiply(i % 2 == 0 ? scores[i / 2] : upper[i / 2], query[step], operand, T());
          }
        }
      }
      if constexpr (kHeadTiles == 1) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) scores[i / 2][i % 2] += upper[i / 2][2 + i % 2];
      }

      const int32_t first_key = static_cast<int32_t>(unit) * kUnitKeys;
      if (capped) {
#pragma unroll
        for (int32_t i = 0; i < 4 * kHeadTiles; ++i) {
          float& score = scores[i % 2][i / 2];
          score = tanhf(score * before_cap);
        }
      }
      if (first_key < lowest || first_key + kUnitKeys > context) {
#pragma unroll
        for (int32_t i = 0; i < 4 * kHeadTiles; ++i) {
          const int32_t key = first_key + i % 2 * 8 + lane % 4 * 2 + i / 2 % 2;
          if (key < lowest || key >= context) scores[i % 2][i / 2] = -INFINITY;
        }
      }

      float grown[kHeadTiles];
      bool is_greater = false;
#pragma unroll
      for (int32_t tile = 0; tile < kHeadTiles; ++tile) {
        float most = fmaxf(fmaxf(scores[0][2 * tile], scores[0][2 * tile + 1]), fmaxf(scores[1][2 * tile], scores[1][2 * tile + 1]));
        // The four lanes of a head.
        most = fmaxf(most, __shfl_xor_sync(kAll, most, 1));
        most = fmaxf(most, __shfl_xor_sync(kAll, most, 2));
        grown[tile] = fmaxf(max[tile], most);
        is_greater |= grown[tile] > max[tile];
      }
      if (__any_sync(kAll, is_greater)) {
#pragma unroll
        for (int32_t tile = 0; tile < kHeadTiles; ++tile) {
          const float kept = power_of_two((max[tile] - grown[tile]) * factor);
          max[tile] = grown[tile];
          const float of_columns[2] = {__shfl_sync(kAll, kept, lane % 4 * 8), __shfl_sync(kAll, kept, lane % 4 * 8 + 4)};
#pragma unroll
          for (int32_t at = 0; at < 4; ++at) {
            weights[tile][at] *= of_columns[at % 2];
#pragma unroll
            for (int32_t i = 0; i < kDim / 16; ++i) sums[i][tile][at] *= of_columns[at % 2];
          }
        }
      }

      // Weights are rounded for the product, and the denominator is the sum of the rounded weights.
      uint32_t rounded[kHeadTiles][2];
#pragma unroll
      for (int32_t tile = 0; tile < kHeadTiles; ++tile) {
        const float shift = fmaf(-max[tile], factor, Bits::kWeightExponent);
#pragma unroll
        for (int32_t half = 0; half < 2; ++half) {
          const float first = power_of_two(fmaf(scores[half][2 * tile], factor, shift));
          const float second = power_of_two(fmaf(scores[half][2 * tile + 1], factor, shift));
          rounded[tile][half] = pair_bits(T(first), T(second));
        }
        const uint32_t units[4] = {Bits::kWeightUnits, Bits::kWeightUnits, Bits::kWeightUnits, Bits::kWeightUnits};
        multiply(weights[tile], units, rounded[tile], T());
      }
#pragma unroll
      for (int32_t step = 0; step < kDim / 32; ++step) {
        uint32_t loaded[4];
        load_transposed(loaded, values + value_chunk<kChunks>(lane % 16, 2 * step + lane / 16) * 16);
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {
          uint32_t operand[4];
          widen_values<T>(loaded[2 * i], operand[0], operand[1]);
          widen_values<T>(loaded[2 * i + 1], operand[2], operand[3]);
#pragma unroll
          for (int32_t tile = 0; tile < kHeadTiles; ++tile) multiply(sums[2 * step + i][tile], operand, rounded[tile], T());
        }
      }
    }

    // The end of a piece: the warps add their sums one after the other.
    if (lane % 4 == 0) {
#pragma unroll
      for (int32_t tile = 0; tile < kHeadTiles; ++tile) maxima[warp * Shape::kHeads + lane / 4 + 8 * tile] = max[tile];
    }
    __syncthreads();
    const uint32_t units = piece.end_unit - piece.first_unit;
    const int32_t turns = units < kUnitWarps ? static_cast<int32_t>(units) : kUnitWarps;
    for (int32_t turn = 0; turn < turns; ++turn) {
      if (turn == warp) {
#pragma unroll
        for (int32_t i = 0; i < 2 * kHeadTiles; ++i) {
          const int32_t tile = i / 2;
          const int32_t head = 8 * tile + lane % 4 * 2 + i % 2;
          if (head >= group) continue;
          float top = maxima[head];
          for (int32_t other = 1; other < turns; ++other) top = fmaxf(top, maxima[other * Shape::kHeads + head]);
          const float weight = power_of_two((maxima[warp * Shape::kHeads + head] - top) * factor);
#pragma unroll
          for (int32_t j = 0; j < kDim / 16; ++j) {
            auto* place = reinterpret_cast<float2*>(totals + head * Shape::kRowStride + j * 16 + lane / 4 * 2);
            const float2 before = turn == 0 ? float2{0.0f, 0.0f} : *place;
            *place = {fmaf(sums[j][tile][i % 2], weight, before.x), fmaf(sums[j][tile][2 + i % 2], weight, before.y)};
          }
          if (lane / 4 == 0) {
            denominators[head] = fmaf(weights[tile][i % 2], weight, turn == 0 ? 0.0f : denominators[head]);
            if (turn == 0) tops[head] = top;
          }
        }
      }
      __syncthreads();
    }
    const int64_t part_row = (static_cast<int64_t>(piece.part) * args.kv_heads + kv_head) * 16;
    for (int32_t i = threadIdx.x; i < group * (kDim / 4); i += Shape::kThreads) {
      const int32_t head = i / (kDim / 4);
      const int32_t dim = i % (kDim / 4) * 4;
      float4 sum = *reinterpret_cast<const float4*>(totals + head * Shape::kRowStride + dim);
      const float denominator = piece.part == kWholeSequence ? denominators[head] : 1.0f;
      const float to_value = Bits::kOutputFactor * args.value_scale / denominator;
      sum = {sum.x * to_value, sum.y * to_value, sum.z * to_value, sum.w * to_value};
      if (piece.part == kWholeSequence) {
        store<4>(static_cast<T*>(args.out) + (first_row + head) * kDim + dim, Vector<T, 4>{{T(sum.x), T(sum.y), T(sum.z), T(sum.w)}});
      } else {
        *reinterpret_cast<float4*>(args.partials + (part_row + head) * kDim + dim) = sum;
      }
    }
    if (static_cast<int32_t>(threadIdx.x) < group) {
      const int32_t head = threadIdx.x;
      if (piece.part != kWholeSequence) {
        auto* to = reinterpret_cast<float2*>(args.partials + args.partial_rows * kDim + (part_row + head) * 2);
        *to = {tops[head] * score_factor, denominators[head]};
      } else if (args.lse != nullptr) {
        args.lse[first_row + head] = fmaf(tops[head], factor, log2f(denominators[head]));
      }
    }
    // The next piece writes these sums behind its first barrier, which no thread passes before all have read them.
  }
  wait_for_copies<0>();
  let_next_start();
}

// Calls `call` with the kernel and its shape.
template <typename T, typename Call>
void with_fp8_decode(int32_t head_dim, int32_t group, Call call) {
  const auto of_dim = [&](auto dim) {
    constexpr int32_t kDim = decltype(dim)::value;
    if (group <= 8) {
      call(fp8_decode_kernel<T, kDim, 1>, Fp8DecodeShape<kDim, 1>());
    } else {
      call(fp8_decode_kernel<T, kDim, 2>, Fp8DecodeShape<kDim, 2>());
    }
  };
  switch (head_dim) {
    case 64: return of_dim(std::integral_constant<int32_t, 64>());
    case 128: return of_dim(std::integral_constant<int32_t, 128>());
    default: return of_dim(std::integral_constant<int32_t, 256>());
  }
}

// Lets a kernel's blocks have the shared memory that the launch asks for, and a multiprocessor as many of them as it can hold:
// the launch relies on all blocks running at once.
template <typename Shape, typename Kernel>
cudaError_t allow_shared(Kernel kernel, Shape) {
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes);
  if (status != cudaSuccess) return status;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

inline bool has_fp8_decode(int32_t head_dim, int32_t group) {
  return (head_dim == 64 || head_dim == 128 || head_dim == 256) && group >= 1 && group <= 16;
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_fp8_decode(const Fp8DecodeArgs* args, cudaStream_t stream) {
  if (args->kv_heads < 1 || args->heads % args->kv_heads != 0 || args->workers < 1) return cudaErrorInvalidValue;
  const int32_t group = args->heads / args->kv_heads;
  if (!has_fp8_decode(args->head_dim, group)) return cudaErrorInvalidValue;
  if (args->block_size < kUnitKeys || args->block_size % kUnitKeys != 0) return cudaErrorInvalidValue;
  return with_half_type(args->dtype, [&](auto zero) {
    with_fp8_decode<decltype(zero)>(args->head_dim, group, [&](auto kernel, auto shape) {
      using Shape = decltype(shape);
      // The result is ignored because the launch fails with the same error.
      (void)allow_shared(kernel, shape);
      launch_early(kernel, dim3(args->workers, args->kv_heads), Shape::kThreads, stream, *args, Shape::kBytes);
    });
  });
}

// Finds how many blocks run at once on the current device.
extern "C" int32_t candlepower_fp8_decode_room(Fp8DecodeRoom* room, cudaStream_t) {
  if (!has_fp8_decode(room->head_dim, room->group)) return cudaErrorInvalidValue;
  int32_t device = 0;
  int32_t multiprocessors = 0;
  int32_t blocks = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  const int32_t launched = with_half_type(room->dtype, [&](auto zero) {
    with_fp8_decode<decltype(zero)>(room->head_dim, room->group, [&](auto kernel, auto shape) {
      using Shape = decltype(shape);
      status = allow_shared(kernel, shape);
      if (status != cudaSuccess) return;
      status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, Shape::kThreads, Shape::kBytes);
    });
  });
  room->blocks = blocks * multiprocessors;
  return status != cudaSuccess ? status : launched;
}
