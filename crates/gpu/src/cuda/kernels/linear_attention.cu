// Gated delta nets and Mamba-2: kernels for the convolution of queries, keys and values, for the update of the states, and
// for the norm and gate of the outputs. The first and the last compute all tokens at once. The update goes token by token,
// or by whole chunks of tokens on tensor cores (linear_attention_parts.cuh, linear_attention_scan.cuh).

#include "async_copy.cuh"
#include "linear_attention_parts.cuh"
#include "linear_attention_scan.cuh"

namespace candlepower {

// Largest number of conv kernel weights per channel. The CPU kernels have the same limit.
constexpr int32_t kMaxConvKernel = 8;
// Largest number of elements of a value, MAX_VALUE_DIM in src/operands/state.rs.
constexpr int32_t kMaxValueDim = 256;
// Added to the sums of squares that normalize queries and keys. The CPU's name for it is NORM_EPS.
constexpr float kNormEps = 1e-6f;
// Number of neighbouring elements that a thread of the first and of the third kernel has. The dimensions of heads are
// multiples of 16.
constexpr int32_t kElements = 4;

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// ---- Convolution and gates -------------------------------------------------------------------------

constexpr int32_t kConvThreads = 128;
// Number of neighbouring rows of a thread, which share the weights of its channels.
constexpr int32_t kConvRows = 4;

// Computes the gates of all heads for the rows from `first` to before `end`.
template <typename T, UpdateRule kUpdateRule>
__device__ __forceinline__ void compute_gates(const Window& args, int32_t first, int32_t end) {
  constexpr int32_t kGates = kUpdateRule == UpdateRule::kDelta ? 2 : 1;
  const int32_t heads = args.value_heads;
  for (int32_t i = threadIdx.x; i < (end - first) * heads; i += kConvThreads) {
    const int32_t row = first + i / heads;
    const int32_t head = i % heads;
    const T* gate = static_cast<const T*>(args.gates) + static_cast<int64_t>(row) * kGates * heads + head;
    const float x = static_cast<float>(gate[(kGates - 1) * heads]) + args.dt_bias[head];
    // For x > 20, softplus(x) and x are the same f32, and for large x e^x would be infinite.
    const float softplus = x > 20.0f ? x : log1pf(expf(x));
    const float log = -expf(args.a_log[head]) * softplus;
    const float factor = kUpdateRule == UpdateRule::kDelta ? 1.0f / (1.0f + expf(-static_cast<float>(gate[0]))) : softplus;
    args.gates_of(head)[row] = make_float2(expf(log), factor);
    args.logs_of(head)[row] = log;
  }
}

// A thread convolves kElements neighbouring channels of kConvRows rows, and the queries and keys of delta nets are
// normalized. Rows of sequences without a slot are left out. The last block of each group of rows computes the gates.
//
// `kKernel` is 4 or kMaxConvKernel. A convolution with fewer weights is padded with zeros at the front, and the inputs
// of the padding are not read.
template <typename T, int32_t kKeyDim, UpdateRule kUpdateRule, int32_t kKernel>
__global__ void __launch_bounds__(kConvThreads, 4) convolve_kernel(Window args) {
  const int32_t first = args.first + static_cast<int32_t>(blockIdx.y) * kConvRows;
  const int32_t end = min(first + kConvRows, args.first + args.rows);
  if (blockIdx.x == gridDim.x - 1) {
    wait_for_inputs();
    let_next_start();
    compute_gates<T, kUpdateRule>(args, first, end);
    return;
  }
  const int32_t channel = (static_cast<int32_t>(blockIdx.x) * kConvThreads + static_cast<int32_t>(threadIdx.x)) * kElements;
  const int64_t channels = args.channels();
  const int64_t width = args.width();
  // Threads beyond the last channel take part in the sums of their warps.
  const bool exists = channel < channels;
  const int32_t none = kKernel - args.kernel;
  float weights[kKernel][kElements];
  float bias[kElements];
#pragma unroll
  for (int32_t e = 0; e < kElements; ++e) {
    bias[e] = args.conv_bias == nullptr || !exists ? 0.0f : args.conv_bias[channel + e];
#pragma unroll
    for (int32_t j = 0; j < kKernel; ++j) {
      const bool has_weight = j >= none && exists;
      weights[j][e] = has_weight ? args.conv[static_cast<int64_t>(channel + e) * args.kernel + j - none] : 0.0f;
    }
  }
  wait_for_inputs();
  // The update asks for the states meanwhile.
  let_next_start();
  // The inputs of the rows and of those before them are all requested at once. Whether one belongs to a row's sequence
  // is known later.
  Words<T, kElements> window[kKernel - 1 + kConvRows];
#pragma unroll
  for (int32_t i = 0; i < kKernel - 1 + kConvRows; ++i) {
    const int32_t row = first + i - (kKernel - 1);
    const bool is_read = exists && i >= none && row >= 0 && row < end;
    window[i] = is_read ? load_words<kElements>(static_cast<const T*>(args.input) + row * width + channel) : Words<T, kElements>{};
  }
  Sequence sequence{};
#pragma unroll
  for (int32_t r = 0; r < kConvRows; ++r) {
    const int32_t row = first + r;
    if (row >= end) break;
    if (r == 0 || row >= sequence.start + sequence.count) sequence = owner_of(args, row);
    if (sequence.count == 0 || sequence.slot >= args.num_slots) continue;
    const int32_t before = row - sequence.start;
    const T* kept = static_cast<const T*>(args.kept) + static_cast<int64_t>(sequence.slot) * (args.kernel - 1) * channels + channel;
    Vector<T, kElements> inputs[kKernel];
#pragma unroll
    for (int32_t j = 0; j < kKernel; ++j) {
      const int32_t back = kKernel - 1 - j;
#pragma unroll
      for (int32_t e = 0; e < kElements; ++e) inputs[j].at[e] = T(0.0f);
      if (j < none || !exists) continue;
      if (back <= before) {
        inputs[j] = elements<T, kElements>(window[r + j]);
      } else if (!sequence.begins) {
        // Kept inputs are in the order of their tokens, the newest last.
        inputs[j] = load<kElements>(kept + (args.kernel - 1 - (back - before)) * channels);
      }
    }
    Vector<float, kElements> results;
    float squares = 0.0f;
#pragma unroll
    for (int32_t e = 0; e < kElements; ++e) {
      float sum = bias[e];
#pragma unroll
      for (int32_t j = 0; j < kKernel; ++j) sum += weights[j][e] * static_cast<float>(inputs[j].at[e]);
      results.at[e] = silu(sum);
      squares += results.at[e] * results.at[e];
    }
    if constexpr (kUpdateRule == UpdateRule::kDelta) {
      // A head is in neighbouring lanes of one warp, because the number of channels of a warp is a multiple of kKeyDim.
#pragma unroll
      for (int32_t offset = kKeyDim / kElements / 2; offset > 0; offset /= 2) {
        squares += __shfl_xor_sync(0xffffffffu, squares, offset);
      }
      if (channel < 2 * args.keys()) {
        const bool is_key = channel >= args.keys();
        const float scale = rsqrtf(squares + kNormEps) * (is_key ? 1.0f : rsqrtf(static_cast<float>(kKeyDim)));
#pragma unroll
        for (int32_t e = 0; e < kElements; ++e) results.at[e] *= scale;
      }
    }
    if (exists) store<kElements>(args.row(row) + channel, results);
  }
}

// ---- Update of the states --------------------------------------------------------------------------

// Number of columns of the state that a block has.
constexpr int32_t kColumns = 32;
// Number of threads that share two columns. Each has a part of the elements of a key.
constexpr int32_t kParts = 8;
constexpr int32_t kUpdateThreads = kColumns / 2 * kParts;
// Number of tokens that are copied to shared memory together.
constexpr int32_t kGroup = 16;

// The operands of kGroup tokens for one block, in shared memory.
template <int32_t kKeyDim>
struct Group {
  float queries[kGroup][kKeyDim];
  float keys[kGroup][kKeyDim];  // delta: those of each token's successor
  float values[kGroup][kColumns];
  float2 gates[kGroup];
};

// The shared memory of a block. The state passes through the memory of a group that is not in use then.
template <int32_t kKeyDim>
struct UpdateMemory {
  Group<kKeyDim> first;
  union {
    Group<kKeyDim> second;
    float state[kKeyDim][kColumns];
  };
};

// The position of four columns of a row of the state in shared memory. A warp accesses eight rows, which are four apart,
// and one group of four columns or two. The groups of a row are exchanged so that it touches each bank equally often.
__device__ __forceinline__ int32_t state_column(int32_t row, int32_t four) { return (four ^ (row / 4 % 8)) * 4; }

// a * b. The compiler does not fuse it with an addition.
__device__ __forceinline__ float rounded_product(float a, float b) {
#ifdef __CUDACC__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

// The part of two columns of a head's state that a thread keeps in registers: the elements 32 i + 4 part + (0 to 3) of
// the keys.
template <int32_t kKeyDim, UpdateRule kUpdateRule>
struct StatePart {
  static constexpr bool kIsDelta = kUpdateRule == UpdateRule::kDelta;
  static constexpr int32_t kKeys = kKeyDim / kParts;

  float state[kKeys][2];
  float key[kKeys];    // delta: that of the next token
  float known[2];      // delta: the thread's part of S^T k for the next token, before its decay
  float results[2]{};  // the thread's part of S^T q of the last token

  // Begins with a key.
  __device__ __forceinline__ void begin(const float* key_part) {
    known[0] = known[1] = 0.0f;
#pragma unroll
    for (int32_t i = 0; i < kKeys; i += 4) {
      const Vector<float, 4> k = load<4>(key_part + i * kParts);
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        key[i + j] = k.at[j];
#pragma unroll
        for (int32_t c = 0; c < 2; ++c) known[c] += state[i + j][c] * k.at[j];
      }
    }
  }

  // Sums `known` over the threads of the columns, and returns the sum of one column's result of the last token: half of
  // the threads sum the left one, half the right one. All sums are in one function, so that they wait together.
  __device__ __forceinline__ float reduce(int32_t part) {
    const bool is_right = part >= kParts / 2;
    float result = is_right ? results[1] : results[0];
    const float other = is_right ? results[0] : results[1];
#pragma unroll
    for (int32_t offset = kParts / 2; offset > 0; offset /= 2) {
      result += __shfl_xor_sync(0xffffffffu, offset == kParts / 2 ? other : result, offset);
      if constexpr (kIsDelta) {
        // All threads get the same sum, because each addition has the same two operands in both threads.
        known[0] += __shfl_xor_sync(0xffffffffu, known[0], offset);
        known[1] += __shfl_xor_sync(0xffffffffu, known[1], offset);
      }
    }
    return result;
  }

  // Applies a token after `reduce`. `query_part` and `key_part` are the first of the thread's elements: the query, and
  // the key; delta: the key of the next token. `own_results` are the first summands of the results.
  __device__ __forceinline__ void apply(const float* query_part, const float* key_part, float2 value, float2 gates,
                                        float2 own_results) {
    const float decay = gates.x;
    float delta[2] = {value.x, value.y};
    results[0] = own_results.x;
    results[1] = own_results.y;
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      if constexpr (kIsDelta) {
        delta[c] -= known[c] * decay;
        known[c] = 0.0f;
      }
      delta[c] *= gates.y;
    }
#pragma unroll
    for (int32_t i = 0; i < kKeys; i += 4) {
      const Vector<float, 4> q = load<4>(query_part + i * kParts);
      const Vector<float, 4> next = load<4>(key_part + i * kParts);
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        const float k = kIsDelta ? key[i + j] : next.at[j];
#pragma unroll
        for (int32_t c = 0; c < 2; ++c) {
          // The decayed state does not depend on `known`, so it is computed while the sums of that are waited for.
          state[i + j][c] = k * delta[c] + rounded_product(state[i + j][c], decay);
          results[c] += state[i + j][c] * q.at[j];
          if constexpr (kIsDelta) known[c] += state[i + j][c] * next.at[j];
        }
        if constexpr (kIsDelta) key[i + j] = next.at[j];
      }
    }
  }
};

// One block per kColumns columns of a value head's state, and sequence. The columns do not depend on each other. Eight
// threads share two columns, so that the blocks of one prompt occupy all multiprocessors and a token's chain of
// dependent operations is short. A sum over the elements of a key has a fixed order: each thread sums its elements from
// first to last, and the eight sums are added pairwise. So tokens may be divided over launches in any way.
//
// Where the chunkwise form computes a part of a sequence, there is a launch for the tokens before that part, and one for those
// behind it.
//
// The operands of the next group are copied while a group is computed.
struct UpdateArgs : Window {
  bool is_behind;
};

template <int32_t kKeyDim, UpdateRule kUpdateRule>
__global__ void __launch_bounds__(kUpdateThreads, 4) update_kernel(UpdateArgs args) {
  constexpr bool kIsDelta = kUpdateRule == UpdateRule::kDelta;
  // A row of the state, and of values, has kFours groups of four columns, which are copied together.
  constexpr int32_t kFours = kColumns / 4;
  extern __shared__ __align__(16) unsigned char bytes[];
  auto& memory = *reinterpret_cast<UpdateMemory<kKeyDim>*>(bytes);
  const int32_t thread = threadIdx.x;
  const int32_t part = thread % kParts;
  const int32_t pair = thread / kParts;
  const int32_t head = blockIdx.y;
  const int32_t value_dim = args.value_dim;
  const int32_t first_column = static_cast<int32_t>(blockIdx.x) * kColumns;
  // A multiple of 16, so that all columns of a warp exist or none.
  const int32_t columns = min(kColumns, value_dim - first_column);
  const bool has_columns = 2 * pair < columns;
  const int32_t four = thread % kFours;
  const bool has_four = four * 4 < columns;

  // Reading the tables and states before the wait is safe. Only the convolution and the parts of chunks may still run,
  // which write neither: they have let this one start after their own wait. The chunkwise form writes states.
  if (args.is_behind) wait_for_inputs();
  const Sequence sequence = sequence_of(args, blockIdx.z);
  const Chunks chunks = chunks_of(args, sequence);
  const int32_t end = min(sequence.start + sequence.count, args.first + args.rows);
  const int32_t begin = args.is_behind ? chunks.first + chunks.count * kChunkTokens : max(sequence.start, args.first);
  const int32_t count = (chunks.count > 0 ? (args.is_behind ? end : chunks.first) : (args.is_behind ? begin : end)) - begin;
  const bool continues = !sequence.begins || begin > sequence.start;
  if (count <= 0 || sequence.slot >= args.num_slots) {
    // Without the wait, the next kernel could begin before the first has ended.
    wait_for_inputs();
    return;
  }
  const int64_t place = static_cast<int64_t>(sequence.slot) * args.value_heads + head;
  float* states = args.states + place * kKeyDim * value_dim + first_column;
  if (continues && has_four) {
#pragma unroll
    for (int32_t row = thread / kFours; row < kKeyDim; row += kUpdateThreads / kFours) {
      copy_chunk(&memory.state[row][state_column(row, four)], states + row * value_dim + four * 4);
    }
  }
  end_copies();
  wait_for_inputs();

  // 32 bits are enough for a place in the scratch memory, which the wrapper checks.
  const auto channels = static_cast<int32_t>(args.channels());
  const int32_t key_head = args.key_head_of(head);
  float* rows = args.row(begin);
  const int32_t query_at = key_head * kKeyDim;
  const int32_t key_at = query_at + args.key_heads * kKeyDim;
  const int32_t value_at = 2 * args.key_heads * kKeyDim + head * value_dim + first_column;
  const float2* gates = args.gates_of(head) + begin;
  const auto copy_tokens = [&](Group<kKeyDim>& group, int32_t first) {
    constexpr int32_t kOfRow = kKeyDim / 4;
    const int32_t element = thread % kOfRow * 4;
#pragma unroll
    for (int32_t of_group = thread / kOfRow; of_group < kGroup; of_group += kUpdateThreads / kOfRow) {
      const int32_t token = first + of_group;
      if (token < count) {
        copy_chunk(&group.queries[of_group][element], rows + token * channels + query_at + element);
        // The last token has no successor. Its own key is read instead, and what it gives is not used.
        const int32_t of_key = kIsDelta ? min(token + 1, count - 1) : token;
        copy_chunk(&group.keys[of_group][element], rows + of_key * channels + key_at + element);
      }
    }
    static_assert(kGroup * kFours == kUpdateThreads, "a thread copies four values");
    const int32_t of_group = thread / kFours;
    const int32_t token = first + of_group;
    if (token < count) {
      if (has_four) copy_chunk(&group.values[of_group][four * 4], rows + token * channels + value_at + four * 4);
      if (four == 0) copy_pair(&group.gates[of_group], gates + token);
    }
    end_copies();
  };
  copy_tokens(memory.first, 0);

  StatePart<kKeyDim, kUpdateRule> state_part;
  wait_for_copies<1>();
  __syncthreads();
  // Two of the four columns that the position is for.
  const auto state_at = [&](int32_t row) { return &memory.state[row][state_column(row, pair / 2) + pair % 2 * 2]; };
  const auto row_of = [&](int32_t i) { return i / 4 * (4 * kParts) + part * 4 + i % 4; };
#pragma unroll
  for (int32_t i = 0; i < kKeyDim / kParts; ++i) {
    const Vector<float, 2> two = continues && has_columns ? load<2>(state_at(row_of(i))) : Vector<float, 2>{};
    state_part.state[i][0] = two.at[0];
    state_part.state[i][1] = two.at[1];
  }
  if constexpr (kIsDelta) state_part.begin(rows + key_at + part * 4);
  // One of the threads adds the skip connection.
  const float skip = kIsDelta || part != 0 ? 0.0f : args.result[head];

  // A result is complete, and written in the place of its value, while the next token is applied.
  float* out = rows + value_at + 2 * pair + (part >= kParts / 2 ? 1 : 0) - channels;
  const bool writes = has_columns && part % (kParts / 2) == 0;
  for (int32_t first = 0; first < count; first += kGroup) {
    const bool is_second = first / kGroup % 2 != 0;
    Group<kKeyDim>& group = is_second ? memory.second : memory.first;
    wait_for_copies<0>();
    // The group is complete, and all threads have finished with the other one.
    __syncthreads();
    if (first + kGroup < count) copy_tokens(is_second ? memory.first : memory.second, first + kGroup);
    if (!has_columns) continue;
    const int32_t tokens = min(count - first, kGroup);
    // In pairs, so that keys need not be moved between registers.
#pragma unroll 2
    for (int32_t t = 0; t < tokens; ++t) {
      const float2 gate = group.gates[t];
      const auto value = *reinterpret_cast<const float2*>(&group.values[t][2 * pair]);
      const float result = state_part.reduce(part);
      if (writes && first + t > 0) *out = result;
      out += channels;
      state_part.apply(&group.queries[t][part * 4], &group.keys[t][part * 4], value, gate,
                       kIsDelta ? float2{} : make_float2(skip * value.x, skip * value.y));
    }
  }
  const float result = state_part.reduce(part);
  if (writes) *out = result;

  let_next_start();
  __syncthreads();
  if (has_columns) {
#pragma unroll
    for (int32_t i = 0; i < kKeyDim / kParts; ++i) {
      store<2>(state_at(row_of(i)), Vector<float, 2>{state_part.state[i][0], state_part.state[i][1]});
    }
  }
  __syncthreads();
  if (has_four) {
#pragma unroll
    for (int32_t row = thread / kFours; row < kKeyDim; row += kUpdateThreads / kFours) {
      store<4>(states + row * value_dim + four * 4, load<4>(&memory.state[row][state_column(row, four)]));
    }
  }
}

// ---- Outputs and kept inputs -----------------------------------------------------------------------

constexpr int32_t kFinishThreads = 256;
// Number of outputs of Mamba-2, which have no norm of their own, that a warp has.
constexpr int32_t kMambaOutputs = kWarp * kElements;

// Writes the outputs of one head and row: a warp per head. For Mamba-2 it is kMambaOutputs outputs of a row. Outputs of
// delta nets are normed, and all are multiplied by their gates.
template <typename T, UpdateRule kUpdateRule>
__device__ __forceinline__ void write_outputs(const Window& args, int32_t index) {
  constexpr bool kIsDelta = kUpdateRule == UpdateRule::kDelta;
  constexpr int32_t kVectors = kIsDelta ? kMaxValueDim / (kWarp * kElements) : 1;
  const int64_t values = args.values();
  const int32_t length = kIsDelta ? args.value_dim : kMambaOutputs;
  const auto of_row = static_cast<int32_t>((values + length - 1) / length);
  const int32_t row = args.first + index / of_row;
  const int32_t begin = index % of_row * length;
  if (row >= args.first + args.rows) return;
  const Sequence sequence = owner_of(args, row);
  // Rows that belong to no sequence keep their content.
  if (sequence.count == 0) return;
  const int32_t lane = threadIdx.x % kWarp;
  const auto exists = [&](int32_t at) { return kIsDelta ? at < length : begin + at < values; };
  T* out = static_cast<T*>(args.out) + row * values + begin;
  if (sequence.slot >= args.num_slots) {
    Vector<T, kElements> nothing;
#pragma unroll
    for (int32_t e = 0; e < kElements; ++e) nothing.at[e] = T(sequence.slot == kNoSlot ? 0.0f : NAN);
    for (int32_t at = lane * kElements; at < length && exists(at); at += kWarp * kElements) store<kElements>(out + at, nothing);
    return;
  }
  const float* results = args.row(row) + 2 * args.keys() + begin;
  const T* z = static_cast<const T*>(args.input) + row * args.width() + args.channels() + begin;
  Vector<float, kElements> x[kVectors];
  Words<T, kElements> gates[kVectors];
  float squares = 0.0f;
#pragma unroll
  for (int32_t i = 0; i < kVectors; ++i) {
    const int32_t at = (i * kWarp + lane) * kElements;
    x[i] = Vector<float, kElements>{};
    if (!exists(at)) continue;
    x[i] = load<kElements>(results + at);
    gates[i] = load_words<kElements>(z + at);
#pragma unroll
    for (int32_t e = 0; e < kElements; ++e) squares += x[i].at[e] * x[i].at[e];
  }
  const float scale = kIsDelta ? rsqrtf(warp_sum(squares) / length + args.eps) : 1.0f;
#pragma unroll
  for (int32_t i = 0; i < kVectors; ++i) {
    const int32_t at = (i * kWarp + lane) * kElements;
    if (!exists(at)) continue;
    const Vector<T, kElements> gate = elements<T, kElements>(gates[i]);
    Vector<T, kElements> rounded;
#pragma unroll
    for (int32_t e = 0; e < kElements; ++e) {
      const float weight = kIsDelta ? scale * args.result[at + e] : 1.0f;
      rounded.at[e] = T(x[i].at[e] * weight * silu(static_cast<float>(gate.at[e])));
    }
    store<kElements>(out + at, rounded);
  }
}

// Keeps the newest inputs of kElements channels of a sequence, after all convolutions of the step.
template <typename T>
__device__ __forceinline__ void keep_inputs(const Window& args, int64_t index) {
  const int64_t channels = args.channels();
  const int64_t vectors = channels / kElements;
  if (index >= vectors * args.seqs) return;
  const Sequence sequence = sequence_of(args, static_cast<int32_t>(index / vectors));
  if (sequence.count == 0 || sequence.slot >= args.num_slots) return;
  const int64_t channel = index % vectors * kElements;
  const int64_t width = args.width();
  const T* input = static_cast<const T*>(args.input) + sequence.start * width + channel;
  const int32_t rows = args.kernel - 1;
  T* kept = static_cast<T*>(args.kept) + static_cast<int64_t>(sequence.slot) * rows * channels + channel;
  for (int32_t row = 0; row < rows; ++row) {
    // In-place shift: kept inputs are read from a later row, which has not been overwritten yet.
    const int32_t token = sequence.count - rows + row;
    Vector<T, kElements> inputs;
    if (token >= 0) {
      inputs = load<kElements>(input + token * width);
    } else if (!sequence.begins) {
      inputs = load<kElements>(kept + (row + sequence.count) * channels);
    } else {
#pragma unroll
      for (int32_t e = 0; e < kElements; ++e) inputs.at[e] = T(0.0f);
    }
    store<kElements>(kept + row * channels, inputs);
  }
}

// The first `output_blocks` blocks write outputs. The others, which only the step's last window has, keep the inputs of
// the convolution.
struct FinishArgs : Window {
  int32_t output_blocks;
};

template <typename T, UpdateRule kUpdateRule>
__global__ void __launch_bounds__(kFinishThreads, 4) finish_kernel(FinishArgs args) {
  wait_for_inputs();
  let_next_start();
  const auto block = static_cast<int32_t>(blockIdx.x);
  if (block < args.output_blocks) {
    write_outputs<T, kUpdateRule>(args, block * (kFinishThreads / kWarp) + static_cast<int32_t>(threadIdx.x) / kWarp);
  } else {
    keep_inputs<T>(args, static_cast<int64_t>(block - args.output_blocks) * kFinishThreads + threadIdx.x);
  }
}

template <typename T, int32_t kKeyDim, UpdateRule kUpdateRule>
void launch_window(const Window& args, cudaStream_t stream) {
  const auto blocks = [](int64_t items, int64_t of_block) { return static_cast<int32_t>((items + of_block - 1) / of_block); };
  const int64_t values = static_cast<int64_t>(args.value_heads) * args.value_dim;
  const int64_t vectors = (2 * static_cast<int64_t>(args.key_heads) * kKeyDim + values) / kElements;

  const dim3 convolutions(blocks(vectors, kConvThreads) + 1, blocks(args.rows, kConvRows));
  const auto convolve = args.kernel <= 4 ? convolve_kernel<T, kKeyDim, kUpdateRule, 4> : convolve_kernel<T, kKeyDim, kUpdateRule, kMaxConvKernel>;
  launch_early(convolve, convolutions, kConvThreads, stream, args);

  const dim3 updates(blocks(args.value_dim, kColumns), args.value_heads, args.seqs);
  const auto update = [&](bool is_behind) {
    constexpr auto kBytes = sizeof(UpdateMemory<kKeyDim>);
    launch_early(update_kernel<kKeyDim, kUpdateRule>, updates, kUpdateThreads, stream, UpdateArgs{args, is_behind}, kBytes);
  };
  if (args.min_chunks > 0) {
    if constexpr (kKeyDim >= kMinChunkKeyDim) {
      launch_parts<kKeyDim, kUpdateRule>(args, stream);
      update(false);
      launch_scan<kKeyDim, kUpdateRule>(args, stream);
      update(true);
    }
  } else {
    update(false);
  }

  const int64_t of_row = kUpdateRule == UpdateRule::kDelta ? args.value_heads : blocks(values, kMambaOutputs);
  const int32_t output_blocks = blocks(of_row * args.rows, kFinishThreads / kWarp);
  const bool is_last = args.first + args.rows == args.tokens;
  const int32_t keep_blocks = is_last ? blocks(vectors * args.seqs, kFinishThreads) : 0;
  launch_early(finish_kernel<T, kUpdateRule>, dim3(output_blocks + keep_blocks), kFinishThreads, stream, FinishArgs{args, output_blocks});
}

template <typename T, int32_t kKeyDim>
void launch_linear_attention(const LinearAttentionArgs& args, cudaStream_t stream) {
  for (int32_t first = 0; first < args.tokens; first += args.scratch_rows) {
    Window window{args, first, min(args.tokens - first, args.scratch_rows)};
    // A window has a sequence with enough whole chunks only if it has their tokens beside one token of each other
    // sequence. So decodes launch no kernels for chunks.
    const bool has_few = window.rows < args.min_chunks * kChunkTokens;
    const bool is_short = args.tokens - args.seqs + 1 < args.min_chunks * kChunkTokens;
    if (has_few || is_short || kKeyDim < kMinChunkKeyDim) window.min_chunks = 0;
    if (static_cast<UpdateRule>(args.rule) == UpdateRule::kDelta) {
      launch_window<T, kKeyDim, UpdateRule::kDelta>(window, stream);
    } else {
      launch_window<T, kKeyDim, UpdateRule::kMamba2>(window, stream);
    }
  }
}

// ---- Copies ----------------------------------------------------------------------------------------

struct CopyStatesArgs {
  void* tensors[2];       // the two state tensors of one layer
  const uint32_t* pairs;  // [count, 2]: source, destination
  int64_t slot_bytes[2];  // bytes of a slot in each tensor, multiples of 16
  int64_t count;
  uint32_t num_slots;
  uint32_t padding;
};
static_assert(sizeof(CopyStatesArgs) == 56, "as in src/cuda/linear_attention.rs");

constexpr int32_t kCopyThreads = 256;
// Number of blocks that copy the state of one layer together.
constexpr int32_t kMaxCopyBlocks = 32;

// No slot may be both a source and a destination.
__global__ void __launch_bounds__(kCopyThreads) copy_states_kernel(CopyStatesArgs args) {
  const uint32_t source = args.pairs[2 * blockIdx.y];
  const uint32_t destination = args.pairs[2 * blockIdx.y + 1];
  if (source >= args.num_slots || destination >= args.num_slots) return;
  const bool second = blockIdx.z != 0;
  const int64_t bytes = second ? args.slot_bytes[1] : args.slot_bytes[0];
  auto* all = static_cast<char*>(second ? args.tensors[1] : args.tensors[0]);
  const auto* from = reinterpret_cast<const uint4*>(all + source * bytes);
  auto* to = reinterpret_cast<uint4*>(all + destination * bytes);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kCopyThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x; i < bytes / 16; i += step) to[i] = from[i];
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_linear_attention(const LinearAttentionArgs* args, cudaStream_t stream) {
  if (args->value_dim > kMaxValueDim || args->kernel > kMaxConvKernel) return cudaErrorInvalidValue;
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    switch (args->key_dim) {
      case 32: launch_linear_attention<T, 32>(*args, stream); break;
      case 64: launch_linear_attention<T, 64>(*args, stream); break;
      // The wrapper accepts 32, 64 and 128 only.
      default: launch_linear_attention<T, 128>(*args, stream); break;
    }
  });
}

extern "C" int32_t candlepower_copy_states(const CopyStatesArgs* args, cudaStream_t stream) {
  const dim3 grid(kMaxCopyBlocks, static_cast<uint32_t>(args->count), 2);
  copy_states_kernel<<<grid, kCopyThreads, 0, stream>>>(*args);
  return cudaGetLastError();
}
