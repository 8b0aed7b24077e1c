// Arguments of linear attention, and the rows, sequences and chunks of a step.
#pragma once

#include "sequences.cuh"

namespace candlepower {

// The values are those of `update_rule_kind` in Rust.
enum class UpdateRule : int32_t { kDelta = 0, kMamba2 = 1 };

struct LinearAttentionArgs {
  const void* input;           // [tokens, width]: queries, keys, values and gates z
  const void* gates;           // delta: [tokens, 2 * value_heads], beta then decay inputs; Mamba-2: [tokens, value_heads], decay inputs
  void* out;                   // [tokens, value_heads * value_dim]
  void* kept;                  // [num_slots, kernel - 1, channels]: the newest inputs of earlier steps
  float* states;               // [num_slots, value_heads, key_dim, value_dim]
  const float* conv;           // [channels, kernel]
  const float* conv_bias;      // [channels]; null: none
  const float* a_log;          // [value_heads]
  const float* dt_bias;        // [value_heads]
  const float* result;         // delta: [value_dim], weights of the norm; Mamba-2: [value_heads], factors of the skip connection
  const uint32_t* query_start;  // [seqs + 1]
  const uint32_t* slots;       // [seqs]
  const uint32_t* positions;   // [tokens]
  float* scratch;              // [scratch_rows, channels], then [value_heads, scratch_rows, 2] and [value_heads, scratch_rows]; see `Window`
  void* chunks;                // memory of `chunk_slots` chunks; see `Window`
  int32_t tokens;
  int32_t seqs;
  int32_t key_heads;
  int32_t value_heads;
  int32_t key_dim;
  int32_t value_dim;
  int32_t kernel;
  uint32_t num_slots;
  float eps;
  int32_t rule;
  int32_t dtype;
  int32_t tiled;  // 1: value heads that share a key head are key_heads apart; 0: they are neighbours
  int32_t scratch_rows;
  int32_t chunk_slots;
  int32_t min_chunks;  // the chunkwise form computes sequences with this many whole chunks in a window; 0: none
  int32_t padding;
};
static_assert(sizeof(LinearAttentionArgs) == 184, "as in src/cuda/linear_attention.rs");

// Number of tokens of a chunk, LINEAR_ATTENTION_CHUNK in the crate layout. The position of a chunk's first token is divisible by it.
constexpr int32_t kChunkTokens = 64;

// A value head's part of a chunk. Matrices are images of two parts of each element (`image_index`), of which only the
// blocks of 16 by 16 elements that are not above the diagonal are written and read.
struct HeadPart {
  __nv_bfloat16 solution[2][kChunkTokens * kChunkTokens];  // delta: (I + A)^-1, whose columns are multiplied by beta
  __nv_bfloat16 weights[2][kChunkTokens * kChunkTokens];   // weight of each token (column) in the output of each (row)
  float from_start[kChunkTokens];  // the decay from the state before the chunk to each token
  float to_end[kChunkTokens];      // the decay from each token to the end of the chunk; Mamba-2: times its factor
};
static_assert(sizeof(HeadPart) == 33280, "as linear_attention_chunk_values counts in the crate layout");

// The rows of a step that are computed by one launch of each kernel. A step with more rows than the scratch memory takes
// several windows.
//
// A row of the scratch memory has the convolved queries, keys and values of a token. The update replaces the values by
// its outputs. Behind all rows are each head's gates: decay, and factor on what the token adds to the state. Behind these
// are the logarithms of the decays.
//
// A chunk of kChunkTokens tokens has a slot of its own in `chunks`: the place of its first row in the window, divided by
// the length of a chunk. All chunks' keys and queries come first, then what value heads have for each chunk (`HeadPart`).
struct Window : LinearAttentionArgs {
  int32_t first;
  int32_t rows;

  __device__ __forceinline__ int64_t channels() const { return 2 * keys() + values(); }
  __device__ __forceinline__ int64_t keys() const { return static_cast<int64_t>(key_heads) * key_dim; }
  __device__ __forceinline__ int64_t values() const { return static_cast<int64_t>(value_heads) * value_dim; }
  // Distance of two tokens in `input`.
  __device__ __forceinline__ int64_t width() const { return channels() + values(); }
  // The scratch memory of a row of the step.
  __device__ __forceinline__ float* row(int32_t token) const { return scratch + (token - first) * channels(); }
  __device__ __forceinline__ float2* gates_of(int32_t head) const {
    return reinterpret_cast<float2*>(scratch + scratch_rows * channels()) + static_cast<int64_t>(head) * scratch_rows - first;
  }
  // The logarithms of a head's decays.
  __device__ __forceinline__ float* logs_of(int32_t head) const {
    return scratch + scratch_rows * (channels() + 2 * value_heads) + static_cast<int64_t>(head) * scratch_rows - first;
  }
  // The key head of a value head.
  __device__ __forceinline__ int32_t key_head_of(int32_t head) const {
    return tiled ? head % key_heads : head / (value_heads / key_heads);
  }
  // The keys and queries of a chunk: images of the upper and lower parts of the keys, then of the queries.
  __device__ __forceinline__ __nv_bfloat16* rows_of_chunk(int32_t slot, int32_t key_head) const {
    const int64_t index = static_cast<int64_t>(slot) * key_heads + key_head;
    return static_cast<__nv_bfloat16*>(chunks) + index * 4 * kChunkTokens * key_dim;
  }
  __device__ __forceinline__ HeadPart& part_of(int32_t slot, int32_t head) const {
    auto* parts = reinterpret_cast<HeadPart*>(rows_of_chunk(chunk_slots, 0));
    return parts[static_cast<int64_t>(slot) * value_heads + head];
  }
};

// The sequence that a row of the step belongs to. Its count is 0 if there is none.
__device__ __forceinline__ Sequence owner_of(const Window& args, int32_t row) {
  const auto begins_before = [&](int32_t index) { return args.query_start[index] <= static_cast<uint32_t>(row); };
  int32_t low = 0;
  int32_t high = args.seqs;
  // In a step of decodes the row is the sequence's own number, and then one load finds it.
  if (row < args.seqs && begins_before(row)) {
    low = row;
    if (!begins_before(row + 1)) high = row + 1;
  }
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (begins_before(middle) ? low : high) = middle;
  }
  Sequence sequence = sequence_of(args, low);
  if (row < sequence.start || row >= sequence.start + sequence.count) sequence.count = 0;
  return sequence;
}

// The whole chunks of a sequence in a window, which the chunkwise form computes.
struct Chunks {
  int32_t first;  // row of the first token
  int32_t count;
};

__device__ __forceinline__ Chunks chunks_of(const Window& args, const Sequence& sequence) {
  const int32_t begin = max(sequence.start, args.first);
  const int32_t end = min(sequence.start + sequence.count, args.first + args.rows);
  if (args.min_chunks == 0 || end - begin < kChunkTokens) return {begin, 0};
  const uint32_t position = args.positions[sequence.start] + static_cast<uint32_t>(begin - sequence.start);
  const auto ahead = static_cast<int32_t>(-position % kChunkTokens);
  const int32_t count = (end - begin - ahead) / kChunkTokens;
  return {begin + ahead, count < args.min_chunks ? 0 : count};
}

}  // namespace candlepower
