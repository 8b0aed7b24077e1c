// The chunkwise form, second part: the outputs of a sequence's whole chunks, and the state behind them.
//
// With the state S [keys, values] before a chunk, and what `parts_kernel` has computed for it:
//
// - delta: U = solution (V - exp(g) K S); Mamba-2: U = V;
// - outputs: exp(g) Q S + weights U;
// - the next state: exp(g of the last token) S + K^T (exp(g of the last token - g) U).
//
// All matrices with values are transposed here: a warp has 16 values, as rows of tensor core products, and all keys or
// tokens. The sums of one product are then the first operand of the next one, lane by lane. So the state and all
// results stay in registers, and the warps of a block share only copies of what does not depend on values.
#pragma once

#include "linear_attention.cuh"
#include "split_product.cuh"

namespace candlepower {

// Number of values of a warp.
constexpr int32_t kWarpValues = 16;
// Number of sums of products with the tokens of a chunk, eight tokens each.
constexpr int32_t kTokenTiles = kChunkTokens / 8;

// Whether a multiprocessor has memory for two chunks' keys (sizes: CUDA C++ Programming Guide, technical specifications).
constexpr bool kHasLargeMemory = CANDLEPOWER_COMPUTE_CAP == 80 || CANDLEPOWER_COMPUTE_CAP == 90 || CANDLEPOWER_COMPUTE_CAP == 100;

// The shared memory of a block. Matrices are images of upper and of lower parts.
template <int32_t kKeyDim, UpdateRule kUpdateRule, int32_t kKeyBuffers>
struct ScanMemory {
  __nv_bfloat16 keys[kKeyBuffers][2][kChunkTokens * kKeyDim];
  __nv_bfloat16 queries[2][kChunkTokens * kKeyDim];
  __nv_bfloat16 solution[kUpdateRule == UpdateRule::kDelta ? 2 : 1][kUpdateRule == UpdateRule::kDelta ? kChunkTokens * kChunkTokens : 8];
  __nv_bfloat16 weights[2][kChunkTokens * kChunkTokens];
  // Decays of a chunk and of the next one.
  float from_start[2][kChunkTokens];
  float to_end[2][kChunkTokens];
};

template <int32_t kColumns>
__device__ __forceinline__ SplitImage<kColumns> split_image(const __nv_bfloat16* parts) {
  return {shared_address(parts), shared_address(parts + kChunkTokens * kColumns)};
}

// sums += a m^T, where m is a lower triangular matrix over the tokens of a chunk, and `of_block` returns 16 columns of a.
template <typename OfBlock>
__device__ __forceinline__ void multiply_triangle(float (&sums)[kTokenTiles][4], const SplitImage<kChunkTokens>& m, int32_t lane, OfBlock of_block) {
#pragma unroll
  for (int32_t column = 0; column < kChunkTokens; column += 16) {
    const SplitRows a = of_block(column);
#pragma unroll
    for (int32_t row = column; row < kChunkTokens; row += 16) {
      multiply_split(sums[row / 8], sums[row / 8 + 1], a, m.transposed(row, column, lane));
    }
  }
}

// One block per kWarps * kWarpValues values of a value head, and sequence. While a chunk is computed, the operands of the
// next one are copied: each as soon as all warps have finished with its predecessor.
template <int32_t kKeyDim, UpdateRule kUpdateRule, int32_t kWarps, int32_t kKeyBuffers>
__global__ void __launch_bounds__(kWarps * kWarp) scan_kernel(Window args) {
  constexpr bool kIsDelta = kUpdateRule == UpdateRule::kDelta;
  constexpr int32_t kThreads = kWarps * kWarp;
  constexpr int32_t kKeyTiles = kKeyDim / 8;
  extern __shared__ __align__(16) unsigned char bytes[];
  auto& memory = *reinterpret_cast<ScanMemory<kKeyDim, kUpdateRule, kKeyBuffers>*>(bytes);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % kWarp;
  const auto head = static_cast<int32_t>(blockIdx.y);
  wait_for_inputs();
  const Sequence sequence = sequence_of(args, blockIdx.z);
  if (sequence.count == 0 || sequence.slot >= args.num_slots) return;
  const Chunks chunks = chunks_of(args, sequence);
  if (chunks.count == 0) return;
  const int32_t first_slot = (chunks.first - args.first) / kChunkTokens;
  const int32_t key_head = args.key_head_of(head);

  const auto copy_keys_or_queries = [&](__nv_bfloat16* to, int32_t chunk, bool is_query) {
    if (chunk < chunks.count) {
      constexpr int32_t kOfBoth = 2 * kChunkTokens * kKeyDim;
      const __nv_bfloat16* from = args.rows_of_chunk(first_slot + chunk, key_head) + (is_query ? kOfBoth : 0) + thread * 8;
      const uint32_t own = shared_address(to) + thread * 16;
#pragma unroll
      for (int32_t i = 0; i < kOfBoth / 8; i += kThreads) copy_chunk(own + i * 16, from + i * 8);
    }
  };
  const auto copy_keys = [&](int32_t chunk) {
    copy_keys_or_queries(memory.keys[chunk % kKeyBuffers][0], chunk, false);
    end_copies();
  };
  const auto copy_queries = [&](int32_t chunk) {
    copy_keys_or_queries(memory.queries[0], chunk, true);
    if (chunk < chunks.count && thread < kChunkTokens / 2) {
      const HeadPart& part = args.part_of(first_slot + chunk, head);
      const bool is_end = thread >= kChunkTokens / 4;
      const int32_t token = thread % (kChunkTokens / 4) * 4;
      copy_chunk((is_end ? memory.to_end : memory.from_start)[chunk % 2] + token, (is_end ? part.to_end : part.from_start) + token);
    }
    end_copies();
  };
  // Without the blocks above the diagonal. A thread has the same columns in all rows, since these are eight apart.
  const auto copy_triangle = [&](__nv_bfloat16* to, const __nv_bfloat16* from) {
    constexpr int32_t kGroups = kChunkTokens / 8;
    constexpr int32_t kOfBlock = 16 * kGroups;
    static_assert(kThreads % kChunkTokens == 0 && kThreads <= kOfBlock);
    const int32_t block = (thread % kGroups ^ thread / kGroups % 8) / 2;
    const uint32_t own = shared_address(to) + thread * 16;
    from += thread * 8;
#pragma unroll
    for (int32_t i = 0; i < 2 * kChunkTokens * kGroups; i += kThreads) {
      if (block <= i / kOfBlock % (kChunkTokens / 16)) copy_chunk(own + i * 16, from + i * 8);
    }
  };
  const auto copy_solution = [&](int32_t chunk) {
    if constexpr (kIsDelta) {
      if (chunk < chunks.count) copy_triangle(memory.solution[0], args.part_of(first_slot + chunk, head).solution[0]);
    }
    end_copies();
  };
  const auto copy_weights = [&](int32_t chunk) {
    copy_triangle(memory.weights[0], args.part_of(first_slot + chunk, head).weights[0]);
    end_copies();
  };
  copy_keys(0);
  copy_queries(0);
  copy_solution(0);

  // A lane has two values, eight apart, and in each tile of eight keys or tokens two neighbours.
  const int32_t value = (static_cast<int32_t>(blockIdx.x) * kWarps + thread / kWarp) * kWarpValues + lane / 4;
  // `value_dim` is a multiple of 16, so that all values of a warp exist or none.
  const bool has_values = value < args.value_dim;
  const int32_t neighbour = lane % 4 * 2;
  const int64_t place = static_cast<int64_t>(sequence.slot) * args.value_heads + head;
  float* states = args.states + (place * kKeyDim + neighbour) * args.value_dim + value;
  const bool continues = !sequence.begins || chunks.first > sequence.start;
  // Calls `apply` with each element of the state and its address.
  float state[kKeyTiles][4];
  const auto for_states = [&](auto apply) {
#pragma unroll
    for (int32_t tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) apply(state[tile][i], states + (tile * 8 + i % 2) * args.value_dim + i / 2 * 8);
    }
  };
  for_states([&](float& element, const float* at) { element = continues && has_values ? *at : 0.0f; });

  const auto channels = static_cast<int32_t>(args.channels());
  // Values are replaced by outputs. A lane has the same two tokens of each eight.
  float* rows = args.row(chunks.first + neighbour) + 2 * args.keys() + head * args.value_dim + value;
  for (int32_t chunk = 0; chunk < chunks.count; ++chunk) {
    // The copies of keys and queries have ended, and all warps have finished with the previous chunk.
    wait_for_copies<kKeyBuffers == 2 ? 1 : 0>();
    __syncthreads();
    copy_weights(chunk);
    if constexpr (kKeyBuffers == 2) copy_keys(chunk + 1);

    float values[kTokenTiles][4];
    const float* from = rows;
#pragma unroll
    for (int32_t tile = 0; tile < kTokenTiles; ++tile, from += 8 * channels) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) values[tile][i] = has_values ? from[(i % 2 == 0 ? 0 : channels) + i / 2 * 8] : 0.0f;
    }
    const SplitImage<kKeyDim> keys = split_image<kKeyDim>(memory.keys[chunk % kKeyBuffers][0]);
    const SplitImage<kKeyDim> queries = split_image<kKeyDim>(memory.queries[0]);
    float known[kTokenTiles][4]{};  // K S, and then U
    float outputs[kTokenTiles][4]{};
#pragma unroll
    for (int32_t tile = 0; tile < kKeyTiles; tile += 2) {
      const SplitRows of_state(state[tile], state[tile + 1]);
#pragma unroll
      for (int32_t token = 0; token < kChunkTokens; token += 16) {
        if constexpr (kIsDelta) {
          multiply_split(known[token / 8], known[token / 8 + 1], of_state, keys.transposed(token, tile * 8, lane));
        }
        multiply_split(outputs[token / 8], outputs[token / 8 + 1], of_state, queries.transposed(token, tile * 8, lane));
      }
    }
    const float* from_start = memory.from_start[chunk % 2];
#pragma unroll
    for (int32_t tile = 0; tile < kTokenTiles; ++tile) {
      const auto decay = *reinterpret_cast<const float2*>(from_start + tile * 8 + neighbour);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const float of_token = i % 2 == 0 ? decay.x : decay.y;
        outputs[tile][i] *= of_token;
        if constexpr (kIsDelta) values[tile][i] -= of_token * known[tile][i];
      }
    }
    // The solution is there, and all warps have finished with the queries.
    wait_for_copies<kKeyBuffers == 2 ? 2 : 1>();
    __syncthreads();
    copy_queries(chunk + 1);
    if constexpr (kIsDelta) {
      float solved[kTokenTiles][4]{};
      multiply_triangle(solved, split_image<kChunkTokens>(memory.solution[0]), lane,
                        [&](int32_t token) { return SplitRows(values[token / 8], values[token / 8 + 1]); });
#pragma unroll
      for (int32_t tile = 0; tile < kTokenTiles; ++tile) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) values[tile][i] = solved[tile][i];
      }
    }
    // The weights are there, and all warps have finished with the solution.
    wait_for_copies<kKeyBuffers == 2 ? 2 : 1>();
    __syncthreads();
    copy_solution(chunk + 1);
    multiply_triangle(outputs, split_image<kChunkTokens>(memory.weights[0]), lane,
                      [&](int32_t token) { return SplitRows(values[token / 8], values[token / 8 + 1]); });
    if (has_values) {
      float* to = rows;
#pragma unroll
      for (int32_t tile = 0; tile < kTokenTiles; ++tile, to += 8 * channels) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) to[(i % 2 == 0 ? 0 : channels) + i / 2 * 8] = outputs[tile][i];
      }
    }
    const float decay = from_start[kChunkTokens - 1];
    const float* to_end = memory.to_end[chunk % 2];
#pragma unroll
    for (int32_t tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) state[tile][i] *= decay;
    }
#pragma unroll
    for (int32_t token = 0; token < kChunkTokens; token += 16) {
#pragma unroll
      for (int32_t tile = token / 8; tile < token / 8 + 2; ++tile) {
        const auto of_tokens = *reinterpret_cast<const float2*>(to_end + tile * 8 + neighbour);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) values[tile][i] *= i % 2 == 0 ? of_tokens.x : of_tokens.y;
      }
      const SplitRows added(values[token / 8], values[token / 8 + 1]);
#pragma unroll
      for (int32_t tile = 0; tile < kKeyTiles; tile += 2) {
        multiply_split(state[tile], state[tile + 1], added, keys.columns(token, tile * 8, lane));
      }
    }
    if constexpr (kKeyBuffers == 1) {
      __syncthreads();
      copy_keys(chunk + 1);
    }
    rows += kChunkTokens * channels;
  }
  let_next_start();
  if (has_values) {
    for_states([](float element, float* at) { *at = element; });
  }
}

template <int32_t kKeyDim, UpdateRule kUpdateRule, int32_t kWarps, int32_t kKeyBuffers>
void launch_scan_of(const Window& args, int32_t seqs, cudaStream_t stream) {
  constexpr auto kernel = scan_kernel<kKeyDim, kUpdateRule, kWarps, kKeyBuffers>;
  constexpr auto kBytes = static_cast<int32_t>(sizeof(ScanMemory<kKeyDim, kUpdateRule, kKeyBuffers>));
  static_assert(kKeyBuffers == 2 || kBytes <= 99 << 10, "the smallest GPUs have no more");
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  constexpr int32_t kValues = kWarps * kWarpValues;
  launch_early(kernel, dim3((args.value_dim + kValues - 1) / kValues, args.value_heads, seqs), kWarps * kWarp, stream, args, kBytes);
}

// Blocks of two warps spread the heads of one prompt over all multiprocessors. With more work, blocks of four warps share
// copies, and two blocks of a multiprocessor compute while the other one waits.
template <int32_t kKeyDim, UpdateRule kUpdateRule>
void launch_scan(const Window& args, cudaStream_t stream) {
  constexpr int32_t kMultiprocessors = 128;
  const int32_t prompts = min(args.seqs, args.rows / kChunkTokens);
  const int32_t blocks = prompts * args.value_heads * ((args.value_dim + 4 * kWarpValues - 1) / (4 * kWarpValues));
  if constexpr (kHasLargeMemory) {
    if (blocks < kMultiprocessors) return launch_scan_of<kKeyDim, kUpdateRule, 2, 2>(args, args.seqs, stream);
  }
  launch_scan_of<kKeyDim, kUpdateRule, 4, 1>(args, args.seqs, stream);
}

}  // namespace candlepower
