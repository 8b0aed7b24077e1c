// Decode attention: one query per sequence. The context of a sequence is divided among blocks, and a block handles all
// query heads of a group together.

#include "attention.cuh"

#include <flashinfer/attention/decode.cuh>

namespace candlepower {
inline namespace CANDLEPOWER_PER_HEAD_DIM(head_dim_) {

// The element types are T for queries and outputs, and C for the cache.
template <typename T, typename C>
using DecodeParams = Scaled<flashinfer::BatchDecodeParams<T, C, T, int32_t>>;
constexpr auto kNoRope = flashinfer::PosEncodingMode::kNone;

template <typename T, typename C>
cudaError_t plan_decode(const PlanArgs& args, cudaStream_t stream) {
  const AttentionShape& shape = args.shape;
  const auto group = static_cast<uint32_t>(shape.heads / shape.kv_heads);
  flashinfer::DecodePlanInfo plan;
  cudaError_t status = cudaErrorInvalidValue;
  DISPATCH_GQA_GROUP_SIZE(group, GROUP_SIZE, {
    status = flashinfer::DecodePlan<kHeadDim, kNoRope, PagedScores, DecodeParams<T, C>>(
        args.buffers.partials, args.buffers.partials_bytes, args.buffers.schedule, args.buffers.host,
        args.buffers.schedule_bytes, plan, args.page_start, shape.seqs, shape.heads, shape.block_size,
        shape.fixed_launch != 0, stream,
        flashinfer::BatchDecodeWithPagedKVCacheWorkEstimationDispatched<GROUP_SIZE, kHeadDim, kNoRope,
                                                                        PagedScores, DecodeParams<T, C>>);
  });
  const std::vector<int64_t> words = plan.ToVector();
  std::copy(words.begin(), words.end(), args.plan);
  return status;
}

template <typename T, typename C>
cudaError_t run_decode(const RunArgs& args, cudaStream_t stream) {
  constexpr size_t kWords = 10;
  flashinfer::DecodePlanInfo plan;
  plan.FromVector(std::vector<int64_t>(args.plan, args.plan + kWords));
  const AttentionShape& shape = args.shape;
  DecodeParams<T, C> params(static_cast<T*>(const_cast<void*>(args.q)), /*q_rope_offset=*/nullptr,
                         paged_cache<C>(args), static_cast<T*>(args.out), args.lse,
                         /*alibi_slopes=*/nullptr, shape.heads, shape.heads * kHeadDim, kHeadDim,
                         shape.window_left, args.softcap, args.scale, /*rope_scale=*/1.0f,
                         /*rope_theta=*/1.0f);
  params.v_scale = args.value_scale;
  void* schedule = args.buffers.schedule;
  params.padded_batch_size = static_cast<uint32_t>(plan.padded_batch_size);
  params.request_indices = at<int32_t>(schedule, plan.request_indices_offset);
  params.kv_tile_indices = at<int32_t>(schedule, plan.kv_tile_indices_offset);
  params.o_indptr = at<int32_t>(schedule, plan.o_indptr_offset);
  params.kv_chunk_size_ptr = at<int32_t>(schedule, plan.kv_chunk_size_ptr_offset);
  T* partial_values = nullptr;
  float* partial_sums = nullptr;
  if (plan.split_kv) {
    partial_values = at<T>(args.buffers.partials, plan.v_offset);
    partial_sums = at<float>(args.buffers.partials, plan.s_offset);
    if (plan.enable_cuda_graph) {
      params.block_valid_mask = at<bool>(schedule, plan.block_valid_mask_offset);
    }
  }
  return flashinfer::BatchDecodeWithPagedKVCacheDispatched<kHeadDim, kNoRope, PagedScores>(
      params, partial_values, partial_sums, kEarlyLaunches, stream);
}

}  // inline namespace
}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t CANDLEPOWER_PER_HEAD_DIM(candlepower_plan_decode_)(const PlanArgs* args,
                                                                cudaStream_t stream) {
  return guarded(args->message, [&] {
    int32_t status = cudaSuccess;
    const int32_t launched = with_types(args->shape, [&](auto zero, auto cached) {
      status = plan_decode<decltype(zero), decltype(cached)>(*args, stream);
    });
    return status != cudaSuccess ? status : launched;
  });
}

extern "C" int32_t CANDLEPOWER_PER_HEAD_DIM(candlepower_run_decode_)(const RunArgs* args,
                                                               cudaStream_t stream) {
  return guarded(args->message, [&] {
    int32_t status = cudaSuccess;
    const int32_t launched = with_types(args->shape, [&](auto zero, auto cached) {
      status = run_decode<decltype(zero), decltype(cached)>(*args, stream);
    });
    return status != cudaSuccess ? status : launched;
  });
}
