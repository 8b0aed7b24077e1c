// Gated delta nets and Mamba-2: the short convolution of each token's queries, keys and values, the update of each
// head's state, and the norm and gate of its output. A second kernel keeps the newest inputs of the convolution.

#include "sequences.cuh"

namespace candlepower {

// Number of tokens whose queries, keys and values are in a block's shared memory at the same time.
constexpr int32_t kChunk = 16;
// Largest number of conv kernel weights per channel. The CPU kernels have the same limit.
constexpr int32_t kMaxConvKernel = 8;
// Largest number of elements of a value, MAX_VALUE_DIM in src/operands/state.rs.
constexpr int32_t kMaxValueDim = 256;
// Added to the sums of squares that normalize queries and keys. The CPU's name for it is NORM_EPS.
constexpr float kNormEps = 1e-6f;

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
};
static_assert(sizeof(LinearAttentionArgs) == 152, "as in src/cuda/linear_attention.rs");

__device__ __forceinline__ int32_t channels_of(const LinearAttentionArgs& args) {
  return 2 * args.key_heads * args.key_dim + args.value_heads * args.value_dim;
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// Inputs of the convolution of one channel: those of the step, and those kept before it.
template <typename T>
struct Channel {
  const T* input;  // input of the sequence's first token in the step
  const T* kept;   // [kernel - 1]; null if the step begins with the sequence's first token
  int64_t width;
  int64_t channels;

  // The input `token` tokens after the step's first token. A negative `token` is one of an earlier step.
  __device__ __forceinline__ float at(int32_t token, int32_t kernel) const {
    if (token >= 0) return static_cast<float>(input[token * width]);
    return kept == nullptr ? 0.0f : static_cast<float>(kept[(kernel - 1 + token) * channels]);
  }
};

// Number of tokens that a thread convolves together, so that their loads are in flight at the same time.
constexpr int32_t kGroup = 4;

// Computes silu(convolution + added) of one channel for `count` tokens from `first` on. Results are written `distance`
// elements apart.
template <typename T>
__device__ __forceinline__ void convolve(const Channel<T>& channel, const float* conv_weights, float added, int32_t kernel,
                                         int32_t first, int32_t count, float* to, int32_t distance) {
  // A convolution with fewer than kMaxConvKernel weights is padded with zeros at the front, and the inputs of the padding
  // are not read. The loops thus have constant bounds, and inputs and weights stay in registers.
  float weight[kMaxConvKernel];
  float x[kMaxConvKernel - 1 + kGroup];
  const int32_t none = kMaxConvKernel - kernel;
#pragma unroll
  for (int32_t j = 0; j < kMaxConvKernel; ++j) weight[j] = j < none ? 0.0f : conv_weights[j - none];
#pragma unroll
  for (int32_t j = 0; j < kMaxConvKernel - 1; ++j) {
    x[j] = j < none ? 0.0f : channel.at(first + j - (kMaxConvKernel - 1), kernel);
  }
#pragma unroll 1
  for (int32_t done = 0; done < count; done += kGroup) {
#pragma unroll
    for (int32_t t = 0; t < kGroup; ++t) {
      x[kMaxConvKernel - 1 + t] = done + t < count ? channel.at(first + done + t, kernel) : 0.0f;
    }
#pragma unroll
    for (int32_t t = 0; t < kGroup; ++t) {
      float sum = added;
#pragma unroll
      for (int32_t j = 0; j < kMaxConvKernel; ++j) sum += weight[j] * x[t + j];
      if (done + t < count) to[(done + t) * distance] = silu(sum);
    }
#pragma unroll
    for (int32_t j = 0; j < kMaxConvKernel - 1; ++j) x[j] = x[j + kGroup];
  }
}

// A chunk of tokens in a block's shared memory.
struct Chunk {
  float* q;       // [kChunk, key_dim]
  float* k;       // [kChunk, key_dim]
  float* v;       // [kChunk, value_dim]; the thread that has read an element replaces it by the output
  float* decays;  // [kChunk]: factors on the state
  float* counts;  // [kChunk]: factors on what a token adds to the state; delta: beta
};

// Convolves queries, keys and values of `count` tokens from `first` on, for the block's head.
template <typename T, int32_t kKeyDim, UpdateRule kUpdateRule>
__device__ __forceinline__ void read_chunk(const LinearAttentionArgs& args, const Sequence& sequence, int32_t first, int32_t count,
                                           const Chunk& chunk) {
  const int32_t value_dim = args.value_dim;
  const int32_t head = blockIdx.x;
  const int32_t keys = args.key_heads * kKeyDim;
  const int32_t key_head = args.tiled ? head % args.key_heads : head / (args.value_heads / args.key_heads);
  const int64_t channels = channels_of(args);
  const int64_t width = channels + static_cast<int64_t>(args.value_heads) * value_dim;
  const T* input = static_cast<const T*>(args.input) + sequence.start * width;
  const T* kept = static_cast<const T*>(args.kept) + sequence.slot * (args.kernel - 1) * channels;
#pragma unroll 1
  for (int32_t i = threadIdx.x; i < 2 * kKeyDim + value_dim; i += blockDim.x) {
    const bool is_value = i >= 2 * kKeyDim;
    const int32_t part = i / kKeyDim;
    const int32_t element = is_value ? i - 2 * kKeyDim : i % kKeyDim;
    const int32_t channel = is_value ? 2 * keys + head * value_dim + element : part * keys + key_head * kKeyDim + element;
    float* to = (is_value ? chunk.v : part == 0 ? chunk.q : chunk.k) + element;
    const Channel<T> source{input + channel, sequence.begins ? nullptr : kept + channel, width, channels};
    const float* conv_weights = args.conv + static_cast<int64_t>(channel) * args.kernel;
    const float added = args.conv_bias == nullptr ? 0.0f : args.conv_bias[channel];
    convolve(source, conv_weights, added, args.kernel, first, count, to, is_value ? value_dim : kKeyDim);
  }
  if (threadIdx.x < count) {
    constexpr int32_t kGates = kUpdateRule == UpdateRule::kDelta ? 2 : 1;
    const int64_t token = static_cast<int64_t>(sequence.start) + first + threadIdx.x;
    const T* gate = static_cast<const T*>(args.gates) + token * kGates * args.value_heads + head;
    const float x = static_cast<float>(gate[(kGates - 1) * args.value_heads]) + args.dt_bias[head];
    // For x > 20, softplus(x) and x are the same f32, and for large x e^x would be infinite.
    const float softplus = x > 20.0f ? x : log1pf(expf(x));
    chunk.decays[threadIdx.x] = expf(-expf(args.a_log[head]) * softplus);
    chunk.counts[threadIdx.x] = kUpdateRule == UpdateRule::kDelta ? 1.0f / (1.0f + expf(-static_cast<float>(gate[0]))) : softplus;
  }
}

// Normalizes the queries and keys of a chunk, one per warp.
template <int32_t kKeyDim>
__device__ __forceinline__ void normalize_chunk(int32_t count, const Chunk& chunk) {
  const int32_t lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (int32_t row = threadIdx.x / kWarp; row < 2 * count; row += blockDim.x / kWarp) {
    const bool is_key = row >= count;
    float* x = is_key ? chunk.k + (row - count) * kKeyDim : chunk.q + row * kKeyDim;
    float squares = 0.0f;
#pragma unroll
    for (int32_t i = lane; i < kKeyDim; i += kWarp) squares += x[i] * x[i];
    const float scale = rsqrtf(warp_sum(squares) + kNormEps) * (is_key ? 1.0f : rsqrtf(static_cast<float>(kKeyDim)));
#pragma unroll
    for (int32_t i = lane; i < kKeyDim; i += kWarp) x[i] *= scale;
  }
}

// Writes a chunk's outputs, one token per warp. Outputs of delta nets are normed, and all are multiplied by their gates.
template <typename T, UpdateRule kUpdateRule>
__device__ __forceinline__ void write_chunk(const LinearAttentionArgs& args, const Sequence& sequence, int32_t first, int32_t count,
                                            const Chunk& chunk) {
  const int32_t value_dim = args.value_dim;
  const int32_t lane = threadIdx.x % kWarp;
  const int64_t channels = channels_of(args);
  const int64_t values = static_cast<int64_t>(args.value_heads) * value_dim;
#pragma unroll 1
  for (int32_t t = threadIdx.x / kWarp; t < count; t += blockDim.x / kWarp) {
    const float* x = chunk.v + t * value_dim;
    float scale = 1.0f;
    if constexpr (kUpdateRule == UpdateRule::kDelta) {
      float squares = 0.0f;
      for (int32_t i = lane; i < value_dim; i += kWarp) squares += x[i] * x[i];
      scale = rsqrtf(warp_sum(squares) / value_dim + args.eps);
    }
    const int64_t token = static_cast<int64_t>(sequence.start) + first + t;
    const T* z = static_cast<const T*>(args.input) + token * (channels + values) + channels + blockIdx.x * value_dim;
    T* out = static_cast<T*>(args.out) + token * values + blockIdx.x * value_dim;
    for (int32_t i = lane; i < value_dim; i += kWarp) {
      const float weight = kUpdateRule == UpdateRule::kDelta ? scale * args.result[i] : 1.0f;
      out[i] = T(x[i] * weight * silu(static_cast<float>(z[i])));
    }
  }
}

// Applies the update rule for the tokens of a chunk to one column of the state. Each output replaces the value in
// shared memory.
template <int32_t kKeyDim, UpdateRule kUpdateRule>
__device__ __forceinline__ void change_state(float (&state)[kKeyDim], int32_t count, const Chunk& chunk, int32_t value_dim,
                                             float skip) {
  const float* key = chunk.k;
  const float* query = chunk.q;
  float* value = chunk.v + threadIdx.x;
  // S^T k of the next token, before its decay. Two partial sums, even and odd, halve the chain of dependent additions.
  float known[2] = {};
  if constexpr (kUpdateRule == UpdateRule::kDelta) {
#pragma unroll
    for (int32_t i = 0; i < kKeyDim; i += 4) {
      const Vector<float, 4> k = load<4>(key + i);
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) known[j % 2] += state[i + j] * k.at[j];
    }
  }
#pragma unroll 1
  for (int32_t t = 0; t < count; ++t) {
    const float decay = chunk.decays[t];
    const float v = *value;
    const float delta = (v - (known[0] + known[1]) * decay) * chunk.counts[t];
    // The last token has no successor; its own key is read instead, and the result is not used.
    const float* next = t + 1 < count ? key + kKeyDim : key;
    float result[2] = {};
    known[0] = known[1] = 0.0f;
#pragma unroll
    for (int32_t i = 0; i < kKeyDim; i += 4) {
      const Vector<float, 4> k = load<4>(key + i);
      const Vector<float, 4> q = load<4>(query + i);
      Vector<float, 4> n{};
      if constexpr (kUpdateRule == UpdateRule::kDelta) n = load<4>(next + i);
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        state[i + j] = state[i + j] * decay + k.at[j] * delta;
        result[j % 2] += state[i + j] * q.at[j];
        if constexpr (kUpdateRule == UpdateRule::kDelta) known[j % 2] += state[i + j] * n.at[j];
      }
    }
    *value = result[0] + result[1] + (kUpdateRule == UpdateRule::kMamba2 ? skip * v : 0.0f);
    key = next;
    query += kKeyDim;
    value += value_dim;
  }
}

// One block per value head and sequence, with one thread per element of a value. The thread keeps its column of the
// state in registers for all tokens: for keys of 128 elements that is 248 registers of a thread, without spills.
//
// Tokens are processed in chunks. All threads convolve the inputs into shared memory, each thread then applies them to
// its column, and finally warps write the outputs. Threads that only fill up the last warp have no column.
//
// The update is sequential over the tokens, and a prompt alone has only one block per value head. On an H200, a layer
// takes 3.8 ms (delta net, 32 heads) or 4.1 ms (Mamba-2) for a prompt of 2,048 tokens. A decode of 64 sequences reads
// and writes its states at 1.7 and 2.0 TB/s, of 4.2 TB/s for a copy.
template <typename T, int32_t kKeyDim, UpdateRule kUpdateRule>
__global__ void __launch_bounds__(kMaxValueDim) linear_attention_kernel(LinearAttentionArgs args) {
  extern __shared__ __align__(16) float memory[];
  __shared__ float decays[kChunk];
  __shared__ float counts[kChunk];
  // In shared memory, and read again after each barrier, so that values derived from it occupy no registers while the
  // state does.
  __shared__ Sequence sequence;
  const int32_t value_dim = args.value_dim;
  const int32_t column = threadIdx.x;
  const bool has_column = column < value_dim;
  const Chunk chunk{memory, memory + kChunk * kKeyDim, memory + 2 * kChunk * kKeyDim, decays, counts};
  if (threadIdx.x == 0) sequence = sequence_of(args, blockIdx.y);
  __syncthreads();
  if (sequence.slot >= args.num_slots) {
    if (!has_column) return;
    const T nothing = T(sequence.slot == kNoSlot ? 0.0f : NAN);
    T* out = static_cast<T*>(args.out) + static_cast<int64_t>(blockIdx.x) * value_dim + column;
    const int64_t values = static_cast<int64_t>(args.value_heads) * value_dim;
    for (int32_t t = 0; t < sequence.count; ++t) out[(sequence.start + t) * values] = nothing;
    return;
  }

  const int64_t place = static_cast<int64_t>(sequence.slot) * args.value_heads + blockIdx.x;
  float* states = args.states + place * kKeyDim * value_dim + column;
  float state[kKeyDim];
#pragma unroll
  for (int32_t i = 0; i < kKeyDim; ++i) state[i] = sequence.begins || !has_column ? 0.0f : states[i * value_dim];
  const float skip = kUpdateRule == UpdateRule::kMamba2 ? args.result[blockIdx.x] : 0.0f;

  for (int32_t first = 0; first < sequence.count; first += kChunk) {
    const int32_t count = min(sequence.count - first, kChunk);
    read_chunk<T, kKeyDim, kUpdateRule>(args, sequence, first, count, chunk);
    __syncthreads();
    if constexpr (kUpdateRule == UpdateRule::kDelta) {
      normalize_chunk<kKeyDim>(count, chunk);
      __syncthreads();
    }
    if (has_column) change_state<kKeyDim, kUpdateRule>(state, count, chunk, value_dim, skip);
    __syncthreads();
    write_chunk<T, kUpdateRule>(args, sequence, first, count, chunk);
    // The next chunk overwrites this one, so all threads must have finished with it.
    __syncthreads();
  }

  if (!has_column) return;
  // The compiler does not know this distance. Otherwise it would keep all addresses in registers from the loads of the
  // state until here.
  int64_t distance = value_dim;
  asm volatile("" : "+l"(distance));
#pragma unroll
  for (int32_t i = 0; i < kKeyDim; ++i) states[i * distance] = state[i];
}

constexpr int32_t kSaveThreads = 256;

// One thread per channel and sequence keeps the newest inputs. This is a separate kernel because all heads must have
// read the previous ones.
template <typename T>
__global__ void __launch_bounds__(kSaveThreads) save_kernel(LinearAttentionArgs args) {
  const int64_t channels = channels_of(args);
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kSaveThreads + threadIdx.x;
  const Sequence sequence = sequence_of(args, blockIdx.y);
  if (channel >= channels || sequence.count == 0 || sequence.slot >= args.num_slots) return;
  const int64_t width = channels + static_cast<int64_t>(args.value_heads) * args.value_dim;
  const T* input = static_cast<const T*>(args.input) + sequence.start * width + channel;
  const int32_t rows = args.kernel - 1;
  T* kept = static_cast<T*>(args.kept) + sequence.slot * rows * channels + channel;
  for (int32_t row = 0; row < rows; ++row) {
    // In-place shift: kept inputs are read from a later row, which has not been overwritten yet.
    const int32_t token = sequence.count - rows + row;
    T value = T(0.0f);
    if (token >= 0) {
      value = input[token * width];
    } else if (!sequence.begins) {
      value = kept[(row + sequence.count) * channels];
    }
    kept[row * channels] = value;
  }
}

template <typename T, int32_t kKeyDim>
void launch_linear_attention(const LinearAttentionArgs& args, cudaStream_t stream) {
  const dim3 grid(args.value_heads, args.seqs);
  const int32_t threads = (args.value_dim + kWarp - 1) / kWarp * kWarp;
  const size_t bytes = sizeof(float) * kChunk * (2 * kKeyDim + args.value_dim);
  if (static_cast<UpdateRule>(args.rule) == UpdateRule::kDelta) {
    linear_attention_kernel<T, kKeyDim, UpdateRule::kDelta><<<grid, threads, bytes, stream>>>(args);
  } else {
    linear_attention_kernel<T, kKeyDim, UpdateRule::kMamba2><<<grid, threads, bytes, stream>>>(args);
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
    const int32_t channels = 2 * args->key_heads * args->key_dim + args->value_heads * args->value_dim;
    const dim3 grid((channels + kSaveThreads - 1) / kSaveThreads, args->seqs);
    save_kernel<T><<<grid, kSaveThreads, 0, stream>>>(*args);
  });
}

extern "C" int32_t candlepower_copy_states(const CopyStatesArgs* args, cudaStream_t stream) {
  const dim3 grid(kMaxCopyBlocks, static_cast<uint32_t>(args->count), 2);
  copy_states_kernel<<<grid, kCopyThreads, 0, stream>>>(*args);
  return cudaGetLastError();
}
