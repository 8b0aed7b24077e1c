// Token counts of sequences with penalties. They are reset and filled when a sequence starts; sampling.cu adds each
// sampled token.

#include "common.cuh"
#include "sampling_math.cuh"

namespace candlepower {

constexpr int32_t kThreads = 256;

// Effect of CountArgs::operation on the counts. The values are those of src/cuda/sampling.rs.
enum class CountOperation : int32_t { kReset = 0, kPrompt = 1, kGenerated = 2 };

struct CountArgs {
  uint32_t* counts;           // [slots, vocab]
  const uint32_t* slot;       // [count]
  const uint32_t* token_ids;  // [count]; null for kReset
  int32_t count;
  int32_t slots;
  int32_t vocab;
  int32_t operation;
};
static_assert(sizeof(CountArgs) == 40, "as in src/cuda/sampling.rs");

__global__ void reset_counts_kernel(CountArgs args) {
  const uint32_t slot = args.slot[blockIdx.x];
  if (slot >= static_cast<uint32_t>(args.slots)) return;
  uint32_t* counts = args.counts + int64_t(slot) * args.vocab;
  for (int32_t id = threadIdx.x; id < args.vocab; id += blockDim.x) counts[id] = 0;
}

__global__ void count_tokens_kernel(CountArgs args) {
  const int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= args.count) return;
  const uint32_t slot = args.slot[i];
  const uint32_t token = args.token_ids[i];
  if (slot >= static_cast<uint32_t>(args.slots) || token >= static_cast<uint32_t>(args.vocab)) return;
  uint32_t* count = args.counts + int64_t(slot) * args.vocab + token;
  if (static_cast<CountOperation>(args.operation) == CountOperation::kPrompt) {
    atomicOr(count, kInPrompt);
  } else {
    atomicAdd(count, 1u);
  }
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_count_tokens(const CountArgs* args, cudaStream_t stream) {
  if (static_cast<CountOperation>(args->operation) == CountOperation::kReset) {
    reset_counts_kernel<<<args->count, kThreads, 0, stream>>>(*args);
  } else {
    count_tokens_kernel<<<(args->count + kThreads - 1) / kThreads, kThreads, 0, stream>>>(*args);
  }
  return cudaGetLastError();
}
