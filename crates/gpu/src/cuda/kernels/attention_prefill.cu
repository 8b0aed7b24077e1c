// Attention for any mixture of decodes and prefill chunks over the paged cache, on tensor cores.

#include "attention.cuh"

#include <flashinfer/attention/prefill.cuh>

namespace candlepower {
inline namespace CANDLEPOWER_PER_HEAD_DIM(head_dim_) {

// The element types are T for queries and outputs, and C for the cache.
template <typename T, typename C>
using PrefillParams = Scaled<flashinfer::BatchPrefillPagedParams<T, C, T, int32_t>>;

// Blocks of a part that has any context. FlashInfer multiplies them by the positions of a block, in 32 bits.
constexpr int32_t kMostBlocks = 1 << 20;

cudaError_t plan_prefill(const PlanArgs& args, cudaStream_t stream) {
  const AttentionShape& shape = args.shape;
  flashinfer::PrefillPlanInfo plan;
  // A fixed launch is a decode bucket of a CUDA graph: every sequence has the same number of queries.
  const int64_t uniform_queries = shape.fixed_launch != 0 ? shape.tokens / shape.seqs : 0;
  // For fixed launches the planner always splits the context, so a merge kernel runs in each layer, even for short
  // contexts: the grid must not depend on the lengths. Source: FlashInfer, scheduler.cuh, PrefillBinarySearchKVChunkSize.
  // It does not split contexts that have one part of a given number of blocks.
  const int32_t split_size = shape.whole_contexts != 0 ? kMostBlocks : -1;
  const cudaError_t status = flashinfer::PrefillPlan<int32_t>(
      args.buffers.partials, args.buffers.partials_bytes, args.buffers.schedule, args.buffers.host,
      args.buffers.schedule_bytes, plan, args.query_start, args.page_start, shape.tokens, shape.seqs,
      shape.heads, shape.kv_heads, kHeadDim, kHeadDim, shape.block_size, shape.fixed_launch != 0,
      /*sizeof_dtype_o=*/2, shape.window_left, split_size, /*disable_split_kv=*/false,
      /*num_colocated_ctas=*/0, uniform_queries, stream,
      /*kv_dtype_bytes=*/shape.fp8_cache != 0 ? 1 : 2);
  const std::vector<int64_t> words = plan.ToVector();
  std::copy(words.begin(), words.end(), args.plan);
  return status;
}

template <typename T, typename C>
cudaError_t run_prefill(const RunArgs& args, cudaStream_t stream) {
  constexpr size_t kWords = 15;
  flashinfer::PrefillPlanInfo plan;
  plan.FromVector(std::vector<int64_t>(args.plan, args.plan + kWords));
  const AttentionShape& shape = args.shape;
  PrefillParams<T, C> params(static_cast<T*>(const_cast<void*>(args.q)), paged_cache<C>(args),
                          /*custom_mask=*/nullptr, const_cast<int32_t*>(args.query_start),
                          /*mask_indptr=*/nullptr, /*q_rope_offset=*/nullptr,
                          static_cast<T*>(args.out), args.lse, /*alibi_slopes=*/nullptr,
                          shape.heads, shape.heads * kHeadDim, kHeadDim, shape.window_left,
                          args.softcap, args.scale, /*rope_scale=*/1.0f, /*rope_theta=*/1.0f);
  params.v_scale = args.value_scale;
  void* schedule = args.buffers.schedule;
  params.padded_batch_size = static_cast<uint32_t>(plan.padded_batch_size);
  params.max_total_num_rows = static_cast<uint32_t>(plan.total_num_rows);
  params.request_indices = at<int32_t>(schedule, plan.request_indices_offset);
  params.qo_tile_indices = at<int32_t>(schedule, plan.qo_tile_indices_offset);
  params.kv_tile_indices = at<int32_t>(schedule, plan.kv_tile_indices_offset);
  params.o_indptr = at<int32_t>(schedule, plan.o_indptr_offset);
  params.kv_chunk_size_ptr = at<int32_t>(schedule, plan.kv_chunk_size_ptr_offset);
  T* partial_values = nullptr;
  float* partial_sums = nullptr;
  if (plan.split_kv) {
    partial_values = at<T>(args.buffers.partials, plan.v_offset);
    partial_sums = at<float>(args.buffers.partials, plan.s_offset);
    params.merge_indptr = at<int32_t>(schedule, plan.merge_indptr_offset);
  }
  if (plan.enable_cuda_graph) {
    params.block_valid_mask = at<bool>(schedule, plan.block_valid_mask_offset);
    params.total_num_rows = at<uint32_t>(schedule, plan.total_num_rows_offset);
  }
  const auto run = [&](auto tile) {
    return flashinfer::BatchPrefillWithPagedKVCacheDispatched<
        /*SAME_KV_STRIDES=*/true, decltype(tile)::value, kHeadDim, kHeadDim,
        flashinfer::PosEncodingMode::kNone, /*USE_FP16_QK_REDUCTION=*/false,
        flashinfer::MaskMode::kCausal, PagedScores>(params, partial_values, partial_sums,
                                                    kEarlyLaunches, stream);
  };
  switch (plan.cta_tile_q) {
    case 16: return run(std::integral_constant<uint32_t, 16>{});
    // Other tile sizes depend on the head dimension: FlashInfer plans fewer queries for wider heads. Its tiles are used
    // unchanged on compute capability 8.0 and 8.9 too: those that fit into shared memory there spill at most 64 bytes.
    case 32:
      if constexpr (kHeadDim >= 512) return run(std::integral_constant<uint32_t, 32>{});
      break;
    case 64:
      if constexpr (kHeadDim < 512) return run(std::integral_constant<uint32_t, 64>{});
      break;
    case 128:
      if constexpr (kHeadDim < 256) return run(std::integral_constant<uint32_t, 128>{});
      break;
    default: break;
  }
  return cudaErrorInvalidConfiguration;
}

}  // inline namespace
}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t CANDLEPOWER_PER_HEAD_DIM(candlepower_plan_prefill_)(const PlanArgs* args,
                                                                 cudaStream_t stream) {
  return guarded(args->message,
                 [&] { return static_cast<int32_t>(plan_prefill(*args, stream)); });
}

extern "C" int32_t CANDLEPOWER_PER_HEAD_DIM(candlepower_run_prefill_)(const RunArgs* args,
                                                                cudaStream_t stream) {
  return guarded(args->message, [&] {
    int32_t status = cudaSuccess;
    const int32_t launched = with_types(args->shape, [&](auto zero, auto cached) {
      status = run_prefill<decltype(zero), decltype(cached)>(*args, stream);
    });
    return status != cudaSuccess ? status : launched;
  });
}
