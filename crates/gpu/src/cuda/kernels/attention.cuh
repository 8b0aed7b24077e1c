// Score function of decode and prefill attention, and element types and cache as FlashInfer's kernels take them.
#pragma once

#include "attention_args.cuh"

#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/variants.cuh>
#include <flashinfer/pos_enc.cuh>

namespace candlepower {
inline namespace CANDLEPOWER_PER_HEAD_DIM(head_dim_) {

// Score function with window and soft cap as run-time parameters, so that one instance serves all models.
struct PagedScores : flashinfer::AttentionVariantBase {
  static constexpr bool use_softmax = true;

  uint32_t qo_len;
  uint32_t kv_len;
  uint32_t window_left;
  float sm_scale_log2;
  float before_tanh;

  template <typename Params>
  __device__ __host__ PagedScores(const Params& params, uint32_t seq, uint8_t* /*shared*/) {
    qo_len = params.get_qo_len(seq);
    kv_len = params.get_kv_len(seq);
    window_left = params.window_left >= 0 ? params.window_left : kv_len;
    const bool capped = params.logits_soft_cap > 0.0f;
    before_tanh = capped ? params.sm_scale / params.logits_soft_cap : 0.0f;
    sm_scale_log2 =
        flashinfer::math::log2e * (capped ? params.logits_soft_cap : params.sm_scale);
  }

  REGISTER_LOGITS_TRANSFORM(params, logits, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    return before_tanh > 0.0f ? T(flashinfer::math::tanh(float(logits) * before_tanh)) : logits;
  })

  REGISTER_LOGITS_MASK(params, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    return kv_idx + qo_len + window_left >= kv_len + qo_idx;
  })
};

// FlashInfer's parameters with a factor on the outputs: its variants look for a member of this name.
template <typename Params>
struct Scaled : Params {
  using Params::Params;
  float v_scale = 1.0f;
};

// Calls `run` with a value of q's element type and one of the cache's.
template <typename Run>
int32_t with_types(const AttentionShape& shape, Run run) {
#ifdef CANDLEPOWER_LINK_ONLY
  // For programs that are only linked, never run (scripts/cuda/fast_nvcc.py). Instances for the smallest heads and for
  // latents suffice to show that everything compiles.
  if constexpr (kHeadDim == 64 || kHeadDim == 576) run(__nv_bfloat16{}, __nv_bfloat16{});
  return cudaErrorNotSupported;
#else
  return with_half_type(shape.dtype, [&](auto zero) {
    if (shape.fp8_cache != 0) {
      run(zero, __nv_fp8_e4m3{});
    } else {
      run(zero, zero);
    }
  });
#endif
}

template <typename C>
flashinfer::paged_kv_t<C, int32_t> paged_cache(const RunArgs& args) {
  const auto pointer = [](const int32_t* p) { return const_cast<int32_t*>(p); };
  return {static_cast<uint32_t>(args.shape.kv_heads),
          static_cast<uint32_t>(args.shape.block_size),
          kHeadDim,
          static_cast<uint32_t>(args.shape.seqs),
          flashinfer::QKVLayout::kHND,
          static_cast<C*>(const_cast<void*>(args.keys)),
          static_cast<C*>(const_cast<void*>(args.values)),
          pointer(args.page_indices),
          pointer(args.page_start),
          pointer(args.last_page_len)};
}

}  // inline namespace
}  // namespace candlepower
