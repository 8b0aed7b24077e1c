// Attention of prompts over the paged cache on Hopper: FlashInfer's kernel whose tensor cores read shared memory
// themselves, for bf16, causal, without window, soft cap and sinks.
//
// A warp group copies keys and values to shared memory, and two or three others multiply. Their number of registers
// changes at run time, and they wait for barriers in memory, so another compute capability has no such kernel. There, and
// without CUTLASS's headers, the functions below refuse.
//
// The planner divides tiles of 128 queries (192 for heads of 64 elements) of each head among the multiprocessors. It never
// splits a context. So the kernel needs no partial results, and is slow for a few queries after a long context.

#include "attention_args.cuh"

// build.rs defines this for compute capability 9.0. One instance shows that everything compiles, where programs are only
// linked.
#if defined(CANDLEPOWER_HOPPER_ATTENTION) && !(defined(CANDLEPOWER_LINK_ONLY) && CANDLEPOWER_HEAD_DIM != 64)
#define CANDLEPOWER_HAS_KERNEL

// This header of FlashInfer includes all of CUTLASS, with host programs that the wheel has elsewhere. The kernel needs what
// its other headers include.
#define FLASHINFER_CUTLASS_UTILS_CUH_
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#endif

namespace candlepower {
inline namespace CANDLEPOWER_PER_HEAD_DIM(head_dim_) {

#ifdef CANDLEPOWER_HAS_KERNEL

// Words of FlashInfer's plan.
constexpr size_t kHopperPlanWords = 9;

// Score function with a factor on the values, which the kernel multiplies by the reciprocal of the softmax's denominator.
struct PromptScores {
  float sm_scale_log2;
  float scale_pv;

  template <typename Params, typename Tile>
  __device__ PromptScores(const Params& params, const Tile& /*tile*/)
      : sm_scale_log2(params.additional_params.sm_scale * flashinfer::math::log2e),
        scale_pv(params.additional_params.value_scale) {}

  template <int kRows>
  __device__ auto GetAttentionUpdater() {
    return flashinfer::OnlineSoftmax<kRows, /*WITH_SCALE=*/true>(sm_scale_log2);
  }

  REGISTER_LOGITS_TRANSFORM(params, logits, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx,
                            { return logits; })
};

// The members that FlashInfer's launcher reads. Its own struct has the name of another one, which attention_prefill.cu
// uses.
struct PromptParams {
  using DTypeQ = cutlass::bfloat16_t;
  using DTypeKV = cutlass::bfloat16_t;
  using DTypeO = cutlass::bfloat16_t;
  using IdType = int32_t;

  struct AdditionalParams {
    float sm_scale;
    float value_scale;
  } additional_params;

  DTypeQ* q_ptr;
  DTypeKV* k_ptr;
  DTypeKV* v_ptr;
  DTypeO* o_ptr;
  float* lse_ptr;
  IdType *qo_tile_indices, *qo_indptr, *kv_indptr, *kv_indices, *qo_lens, *kv_lens, *head_indices,
      *work_indptr, *batch_indices;
  int64_t q_stride_n, k_stride_n, v_stride_n, o_stride_n;
  int64_t q_stride_h, k_stride_h, v_stride_h, o_stride_h;
  int64_t nnz_qo;
  int64_t k_page_stride, v_page_stride;
  int num_qo_heads, num_kv_heads, page_size, window_left;
};

cudaError_t plan_hopper(const PlanArgs& args, cudaStream_t stream) {
  const AttentionShape& shape = args.shape;
  flashinfer::PrefillPlanSM90Info plan;
  const cudaError_t status = flashinfer::PrefillSM90Plan<int32_t>(
      args.buffers.partials, args.buffers.partials_bytes, args.buffers.schedule, args.buffers.host,
      args.buffers.schedule_bytes, plan, args.query_start, args.page_start,
      const_cast<int32_t*>(args.context_len), shape.tokens, shape.seqs, shape.heads, shape.kv_heads,
      kHeadDim, kHeadDim, shape.block_size, /*causal=*/true, /*enable_cuda_graph=*/false,
      /*sizeof_dtype_o=*/2, stream);
  // With that many tiles FlashInfer wants another kernel. The wrapper plans such steps for attention_prefill.cu.
  if (status == cudaSuccess && plan.same_schedule_for_all_heads) return cudaErrorInvalidConfiguration;
  const std::vector<int64_t> words = plan.ToVector();
  std::copy(words.begin(), words.end(), args.plan);
  return status;
}

// Whether the driver makes descriptors of tensors in memory. CUTLASS aborts the process if it does not.
bool driver_describes_tensors() {
  static const bool found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t status = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
    return status == cudaSuccess && result == cudaDriverEntryPointSuccess && function != nullptr;
  }();
  return found;
}

cudaError_t run_hopper(const RunArgs& args, cudaStream_t stream) {
  const AttentionShape& shape = args.shape;
  if (!driver_describes_tensors()) return cudaErrorNotSupported;
  // CUTLASS aborts the process for other descriptors.
  const bool describable =
      shape.tokens >= 1 && shape.heads >= 1 && reinterpret_cast<uintptr_t>(args.q) % 16 == 0;
  const bool computes = shape.dtype == 0 && shape.fp8_cache == 0 && shape.window_left < 0 &&
                        shape.fixed_launch == 0 && args.softcap == 0.0f;
  if (!describable || !computes) return cudaErrorInvalidValue;
  flashinfer::PrefillPlanSM90Info plan;
  plan.FromVector(std::vector<int64_t>(args.plan, args.plan + kHopperPlanWords));
  const auto elements = [](const void* address) {
    return static_cast<cutlass::bfloat16_t*>(const_cast<void*>(address));
  };
  void* schedule = args.buffers.schedule;
  const int64_t row = static_cast<int64_t>(shape.heads) * kHeadDim;
  const int64_t head_of_page = static_cast<int64_t>(shape.block_size) * kHeadDim;
  PromptParams params{};
  params.additional_params = {args.scale, args.value_scale};
  params.q_ptr = elements(args.q);
  params.k_ptr = elements(args.keys);
  params.v_ptr = elements(args.values);
  params.o_ptr = elements(args.out);
  params.lse_ptr = args.lse;
  params.qo_tile_indices = at<int32_t>(schedule, plan.qo_tile_indices_offset);
  params.qo_indptr = at<int32_t>(schedule, plan.qo_indptr_offset);
  params.kv_indptr = at<int32_t>(schedule, plan.kv_indptr_offset);
  params.kv_indices = const_cast<int32_t*>(args.page_indices);
  params.qo_lens = at<int32_t>(schedule, plan.qo_len_offset);
  params.kv_lens = at<int32_t>(schedule, plan.kv_len_offset);
  params.head_indices = at<int32_t>(schedule, plan.head_indices_offset);
  params.work_indptr = at<int32_t>(schedule, plan.work_indptr_offset);
  params.batch_indices = at<int32_t>(schedule, plan.batch_indices_offset);
  params.q_stride_n = params.o_stride_n = row;
  params.q_stride_h = params.o_stride_h = kHeadDim;
  params.k_stride_n = params.v_stride_n = kHeadDim;
  params.k_stride_h = params.v_stride_h = head_of_page;
  params.k_page_stride = params.v_page_stride = shape.kv_heads * head_of_page;
  params.nnz_qo = shape.tokens;
  params.num_qo_heads = shape.heads;
  params.num_kv_heads = shape.kv_heads;
  params.page_size = shape.block_size;
  params.window_left = -1;
  // The result is that of `cudaGetLastError`, which has the errors of all calls in there.
  return flashinfer::BatchPrefillWithPagedKVCacheDispatched<
      kHeadDim, kHeadDim, flashinfer::MaskMode::kCausal, /*LEFT_SLIDING_WINDOW=*/false,
      /*SAME_SCHEDULE_FOR_ALL_HEADS=*/false, PromptScores>(params, /*enable_pdl=*/false, stream);
}

#else

cudaError_t plan_hopper(const PlanArgs&, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t run_hopper(const RunArgs&, cudaStream_t) { return cudaErrorNotSupported; }

#endif

}  // inline namespace
}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t CANDLEPOWER_PER_HEAD_DIM(candlepower_plan_hopper_)(const PlanArgs* args,
                                                                cudaStream_t stream) {
  return guarded(args->message,
                 [&] { return static_cast<int32_t>(plan_hopper(*args, stream)); });
}

extern "C" int32_t CANDLEPOWER_PER_HEAD_DIM(candlepower_run_hopper_)(const RunArgs* args,
                                                               cudaStream_t stream) {
  return guarded(args->message, [&] { return static_cast<int32_t>(run_hopper(*args, stream)); });
}
