// The chunkwise form, first part: what the chunks of a step need that does not depend on states. All chunks are computed at once.
//
// With g_i the sum of the logarithms of the decays up to token i of a chunk, and G_ij = exp(g_i - g_j) for j <= i, else 0:
//
// - weights of the outputs: W_ij = G_ij (q_i . k_j), for Mamba-2 times the factor of j, and with the skip connection on the
//   diagonal;
// - delta: A_ij = beta_i G_ij (k_i . k_j) for j < i, and the solution (I + A)^-1 diag(beta).
//
// The sums g are pairs of f32, since differences of large sums count.
#pragma once

#include "linear_attention.cuh"
#include "split_product.cuh"

namespace candlepower {

// The least number of elements of a key for which the chunkwise form is compiled.
constexpr int32_t kMinChunkKeyDim = 64;
constexpr int32_t kPartsThreads = 128;
// Value heads of one key head that a block computes, at most.
constexpr int32_t kPartsHeads = 4;
// Logarithms of decays below this are decays of zero in f32. Without a limit, infinite ones would have no difference.
constexpr float kLeastLog = -128.0f;
// Rows and columns of a block of (I + A) that is inverted by substitution.
constexpr int32_t kBlock = 16;
constexpr int32_t kBlocks = kChunkTokens / kBlock;

// Four elements more than a chunk, so that eight rows' elements of one column lie in different banks.
using ChunkMatrix = float[kChunkTokens][kChunkTokens + 4];

template <int32_t kKeyDim>
struct PartsMemory {
  union {
    // The upper and lower parts of the keys, and of the queries.
    __nv_bfloat16 images[4][kChunkTokens * kKeyDim];
    struct {
      ChunkMatrix system;   // A, below its diagonal
      ChunkMatrix inverse;  // the inverse of I + A
      ChunkMatrix weights;
    };
  };
  float2 sums[kChunkTokens];  // sums of logarithms: rounded, and the rest
  float factors[kChunkTokens];
  double of_first_half;
};

// exp(g_i - g_j).
__device__ __forceinline__ float decay_between(float2 of_i, float2 of_j) {
  return expf((of_i.x - of_j.x) + (of_i.y - of_j.y));
}

// Sums the logarithms of a head's decays, and reads its factors. All threads call it.
template <typename Memory>
__device__ __forceinline__ void sum_logarithms(const Window& args, int32_t head, int32_t start, Memory& memory) {
  const int32_t token = threadIdx.x;
  const int32_t lane = token % kWarp;
  double sum = 0.0;
  if (token < kChunkTokens) {
    memory.factors[token] = args.gates_of(head)[start + token].y;
    sum = static_cast<double>(fmaxf(args.logs_of(head)[start + token], kLeastLog));
#pragma unroll
    for (int32_t offset = 1; offset < kWarp; offset *= 2) {
      const double before = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += before;
    }
    if (token == kWarp - 1) memory.of_first_half = sum;
  }
  __syncthreads();
  if (token < kChunkTokens) {
    if (token >= kWarp) sum += memory.of_first_half;
    const auto rounded = static_cast<float>(sum);
    memory.sums[token] = make_float2(rounded, static_cast<float>(sum - static_cast<double>(rounded)));
  }
  __syncthreads();
}

// Inverts I + A, where A is below the diagonal of `system`. First each block on the diagonal, a column in each thread. Then
// rows of blocks from above: the inverse's row is minus the block on the diagonal's inverse times A times the inverse above.
template <typename Memory>
__device__ __forceinline__ void invert(Memory& memory) {
  const int32_t thread = threadIdx.x;
  const int32_t lane = thread % kWarp;
  const int32_t warp = thread / kWarp;
  const int32_t corner = warp * kBlock;
  const int32_t own = lane % kBlock;
  float solved[kBlock];
#pragma unroll
  for (int32_t i = 0; i < kBlock; ++i) {
    float value = i == own ? 1.0f : 0.0f;
#pragma unroll
    for (int32_t j = 0; j < i; ++j) value -= memory.system[corner + i][corner + j] * solved[j];
    solved[i] = value;
  }
  // Half of the lanes write the block. The others write zeros above every second one, which the products below read.
  if (lane < kBlock) {
#pragma unroll
    for (int32_t i = 0; i < kBlock; ++i) memory.inverse[corner + i][corner + own] = solved[i];
  } else if (warp % 2 == 1) {
#pragma unroll
    for (int32_t i = 0; i < kBlock; ++i) memory.inverse[corner - kBlock + i][corner + own] = 0.0f;
  }
  __syncthreads();

  // A thread has half of the rows of one column.
  constexpr int32_t kRows = kBlock / 2;
  const int32_t column = thread % kChunkTokens;
  const int32_t half = thread / kChunkTokens * kRows;
  // A warp has the columns of two blocks.
  const int32_t first = column / kWarp * kWarp;
#pragma unroll 1
  for (int32_t block = 1; block < kBlocks; ++block) {
    const int32_t row = block * kBlock;
    const bool is_below = column / kBlock < block;
    float sums[kRows]{};
    for (int32_t k = first; k < row; k += 4) {
      float above[4];
#pragma unroll
      for (int32_t e = 0; e < 4; ++e) above[e] = memory.inverse[k + e][column];
#pragma unroll
      for (int32_t r = 0; r < kRows; ++r) {
        const Vector<float, 4> of_row = load<4>(&memory.system[row + half + r][k]);
#pragma unroll
        for (int32_t e = 0; e < 4; ++e) sums[r] += of_row.at[e] * above[e];
      }
    }
    // The sums of both halves pass through the place of the result.
    if (is_below) {
#pragma unroll
      for (int32_t r = 0; r < kRows; ++r) memory.inverse[row + half + r][column] = sums[r];
    }
    __syncthreads();
    float results[kRows]{};
    if (is_below) {
#pragma unroll
      for (int32_t k = 0; k < kBlock; ++k) {
        const float sum = memory.inverse[row + k][column];
#pragma unroll
        for (int32_t r = 0; r < kRows; ++r) results[r] -= memory.inverse[row + half + r][row + k] * sum;
      }
    }
    __syncthreads();
    if (is_below) {
#pragma unroll
      for (int32_t r = 0; r < kRows; ++r) memory.inverse[row + half + r][column] = results[r];
    }
    __syncthreads();
  }
}

// Writes the images of a matrix, whose columns are multiplied by `factors` if there are some. Blocks above the diagonal are
// left out.
__device__ __forceinline__ void write_images(const ChunkMatrix& matrix, const float* factors,
                                             __nv_bfloat16 (&images)[2][kChunkTokens * kChunkTokens]) {
  constexpr int32_t kGroups = kChunkTokens / 8;
#pragma unroll
  for (int32_t i = threadIdx.x; i < kChunkTokens * kGroups; i += kPartsThreads) {
    const int32_t row = i / kGroups;
    const int32_t column = (i % kGroups ^ row % 8) * 8;
    if (column / kBlock > row / kBlock) continue;
    uint4 upper;
    uint4 lower;
    uint32_t* upper_words[4] = {&upper.x, &upper.y, &upper.z, &upper.w};
    uint32_t* lower_words[4] = {&lower.x, &lower.y, &lower.z, &lower.w};
#pragma unroll
    for (int32_t e = 0; e < 8; e += 2) {
      const float first = matrix[row][column + e] * (factors == nullptr ? 1.0f : factors[column + e]);
      const float second = matrix[row][column + e + 1] * (factors == nullptr ? 1.0f : factors[column + e + 1]);
      split(first, second, *upper_words[e / 2], *lower_words[e / 2]);
    }
    reinterpret_cast<uint4*>(images[0])[i] = upper;
    reinterpret_cast<uint4*>(images[1])[i] = lower;
  }
}

// One block per chunk, key head, and kPartsHeads value heads of it. A warp has 16 tokens.
template <int32_t kKeyDim, UpdateRule kUpdateRule>
__global__ void __launch_bounds__(kPartsThreads, 3) parts_kernel(Window args) {
  constexpr bool kIsDelta = kUpdateRule == UpdateRule::kDelta;
  extern __shared__ __align__(16) unsigned char bytes[];
  auto& memory = *reinterpret_cast<PartsMemory<kKeyDim>*>(bytes);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % kWarp;
  const int32_t warp = thread / kWarp;
  const auto slot = static_cast<int32_t>(blockIdx.x);
  const auto key_head = static_cast<int32_t>(blockIdx.y);
  wait_for_inputs();
  let_next_start();
  // A chunk that begins in the rows of its slot has the last of them.
  const int32_t row = args.first + slot * kChunkTokens + kChunkTokens - 1;
  const Sequence sequence = owner_of(args, row);
  if (sequence.count == 0 || sequence.slot >= args.num_slots) return;
  const Chunks chunks = chunks_of(args, sequence);
  if (row < chunks.first || row >= chunks.first + chunks.count * kChunkTokens) return;
  const int32_t start = row - (row - chunks.first) % kChunkTokens;

  constexpr int32_t kGroups = kKeyDim / 8;
  const int64_t keys = args.keys();
  uint4* kept = reinterpret_cast<uint4*>(args.rows_of_chunk(slot, key_head));
#pragma unroll 4
  for (int32_t i = thread; i < 2 * kChunkTokens * kGroups; i += kPartsThreads) {
    const int32_t which = i / (kChunkTokens * kGroups);
    const int32_t at = i % (kChunkTokens * kGroups);
    const int32_t token = at / kGroups;
    const int32_t element = (at % kGroups ^ token % 8) * 8;
    // Keys are first in the images, and second in a row.
    const float* from = args.row(start + token) + (which == 0 ? keys : 0) + key_head * kKeyDim + element;
    const Vector<float, 4> left = load<4>(from);
    const Vector<float, 4> right = load<4>(from + 4);
    uint4 upper;
    uint4 lower;
    split(left.at[0], left.at[1], upper.x, lower.x);
    split(left.at[2], left.at[3], upper.y, lower.y);
    split(right.at[0], right.at[1], upper.z, lower.z);
    split(right.at[2], right.at[3], upper.w, lower.w);
    const int32_t image = which * 2 * kChunkTokens * kGroups + at;
    const int32_t of_lower = image + kChunkTokens * kGroups;
    reinterpret_cast<uint4*>(memory.images)[image] = upper;
    reinterpret_cast<uint4*>(memory.images)[of_lower] = lower;
    if (blockIdx.z == 0) {
      kept[image] = upper;
      kept[of_lower] = lower;
    }
  }
  __syncthreads();

  const auto image_of = [&](int32_t which) {
    return SplitImage<kKeyDim>{shared_address(memory.images[2 * which]), shared_address(memory.images[2 * which + 1])};
  };
  const SplitImage<kKeyDim> key_image = image_of(0);
  const SplitImage<kKeyDim> query_image = image_of(1);
  // Products of the warp's tokens (rows) with all keys up to theirs.
  float by_keys[kIsDelta ? kChunkTokens / 8 : 1][4]{};
  float by_queries[kChunkTokens / 8][4]{};
#pragma unroll 1
  for (int32_t element = 0; element < kKeyDim; element += 16) {
    const SplitRows queries = query_image.rows(warp * 16, element, lane);
    SplitRows of_keys;
    if constexpr (kIsDelta) of_keys = key_image.rows(warp * 16, element, lane);
#pragma unroll
    for (int32_t block = 0; block < kBlocks; ++block) {
      if (block > warp) break;
      const SplitColumns others = key_image.transposed(block * 16, element, lane);
      multiply_split(by_queries[2 * block], by_queries[2 * block + 1], queries, others);
      if constexpr (kIsDelta) multiply_split(by_keys[2 * block], by_keys[2 * block + 1], of_keys, others);
    }
  }

  const int32_t of_key = args.value_heads / args.key_heads;
  const int32_t first_head = static_cast<int32_t>(blockIdx.z) * kPartsHeads;
  for (int32_t index = first_head; index < min(first_head + kPartsHeads, of_key); ++index) {
    const int32_t head = args.tiled ? index * args.key_heads + key_head : key_head * of_key + index;
    HeadPart& part = args.part_of(slot, head);
    // Among its barriers is the one behind the last use of the memory.
    sum_logarithms(args, head, start, memory);
    const float2 last = memory.sums[kChunkTokens - 1];
    if (thread < kChunkTokens) {
      const float2 sum = memory.sums[thread];
      const float to_end = decay_between(last, sum);
      part.from_start[thread] = expf(sum.x + sum.y);
      part.to_end[thread] = kIsDelta ? to_end : to_end * memory.factors[thread];
    }
    const float skip = kIsDelta ? 0.0f : args.result[head];
#pragma unroll
    for (int32_t r = 0; r < 2; ++r) {
      const int32_t i = warp * 16 + r * 8 + lane / 4;
      const float2 of_i = memory.sums[i];
      const float beta = memory.factors[i];
#pragma unroll
      for (int32_t tile = 0; tile < kChunkTokens / 8; ++tile) {
        if (tile / 2 > warp) break;
#pragma unroll
        for (int32_t c = 0; c < 2; ++c) {
          const int32_t j = tile * 8 + lane % 4 * 2 + c;
          const float decay = j <= i ? decay_between(of_i, memory.sums[j]) : 0.0f;
          float weight = decay * by_queries[tile][2 * r + c];
          if constexpr (!kIsDelta) weight = weight * memory.factors[j] + (i == j ? skip : 0.0f);
          memory.weights[i][j] = j <= i ? weight : 0.0f;
          if constexpr (kIsDelta) memory.system[i][j] = j < i ? beta * decay * by_keys[tile][2 * r + c] : 0.0f;
        }
      }
    }
    __syncthreads();
    write_images(memory.weights, nullptr, part.weights);
    if constexpr (kIsDelta) {
      invert(memory);
      write_images(memory.inverse, memory.factors, part.solution);
    }
    __syncthreads();
  }
}

template <int32_t kKeyDim, UpdateRule kUpdateRule>
void launch_parts(const Window& args, cudaStream_t stream) {
  constexpr auto kernel = parts_kernel<kKeyDim, kUpdateRule>;
  constexpr auto kBytes = static_cast<int32_t>(sizeof(PartsMemory<kKeyDim>));
  // The result is ignored, since a launch with more memory than allowed reports it.
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const int32_t groups = (args.value_heads / args.key_heads + kPartsHeads - 1) / kPartsHeads;
  const dim3 grid(args.rows / kChunkTokens, args.key_heads, groups);
  launch_early(kernel, grid, kPartsThreads, stream, args, kBytes);
}

}  // namespace candlepower
