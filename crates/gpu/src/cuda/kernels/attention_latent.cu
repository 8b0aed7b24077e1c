// Attention over the latents of MLA. All heads read one row per position. Its first 512 elements are keys and values,
// and the other 64 are keys alone.

// Length of a row. It also names the namespace.
#define CANDLEPOWER_HEAD_DIM 576

#include <stdexcept>

#include "attention.cuh"

#include <flashinfer/attention/mla.cuh>

namespace candlepower {
inline namespace CANDLEPOWER_PER_HEAD_DIM(head_dim_) {

constexpr uint32_t kLatent = 512;
// Rows of a FlashInfer thread block, each of which is one head of one query. If sequences have more rows on average,
// two blocks share a tile of twice as many rows.
constexpr int32_t kTileRows = 64;
// Capacity of FlashInfer's work list, which FlashInfer does not check.
constexpr int32_t kMaxWorks = 16384;

// The sequences of a step in the form that is passed to FlashInfer.
struct Parts {
  std::vector<int32_t> query_start{0};
  std::vector<int32_t> page_start;
  std::vector<int32_t> context_len;

  // Divides the sequences of a step into parts of at most `most_queries` queries. Each part is a sequence that ends
  // with its last query.
  Parts(const PlanArgs& args, int32_t most_queries) {
    for (int32_t seq = 0; seq < args.shape.seqs; ++seq) {
      const int32_t end = args.query_start[seq + 1];
      for (int32_t first = args.query_start[seq]; first < end; first = query_start.back()) {
        query_start.push_back(std::min(end - first, most_queries) + first);
        page_start.push_back(args.page_start[seq]);
        context_len.push_back(args.context_len[seq] - (end - query_start.back()));
      }
    }
  }

  int32_t count() const { return static_cast<int32_t>(context_len.size()); }

  // The tile size that FlashInfer chooses, by its own formula.
  int32_t tile_rows(int32_t heads) const {
    return query_start.back() * heads / count() > kTileRows ? 2 * kTileRows : kTileRows;
  }

  int32_t tiles(int32_t heads) const {
    int32_t tiles = 0;
    for (int32_t part = 0; part < count(); ++part) {
      tiles += tiles_of((query_start[part + 1] - query_start[part]) * heads, tile_rows(heads));
    }
    return tiles;
  }

  // Divides sequences so that the heads of a query never lie in two tiles. FlashInfer 0.7.2 handles such a query
  // wrongly: it skips the query's newest position, or writes outside of shared memory. This happens if the number of
  // heads does not divide a tile, such as the 20 heads of GLM-4.7-Flash.
  //
  // If all sequences have the same number of queries, the number of parts depends only on the numbers of sequences and
  // queries. Fixed launches rely on that.
  static Parts of(const PlanArgs& args) {
    const int32_t heads = args.shape.heads;
    if (kTileRows % heads == 0 || heads == 2 * kTileRows) return {args, INT32_MAX};
    const Parts large(args, std::max(2 * kTileRows / heads, 1));
    if (large.tile_rows(heads) > kTileRows) return large;
    return {args, std::max(kTileRows / heads, 1)};
  }
};

cudaError_t plan_latent(const PlanArgs& args, cudaStream_t stream) {
  const int32_t heads = args.shape.heads;
  Parts parts = Parts::of(args);
  int32_t device = 0;
  int32_t multiprocessors = 0;
  FLASHINFER_CUDA_CALL(cudaGetDevice(&device));
  FLASHINFER_CUDA_CALL(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  // FlashInfer splits tiles that exceed a multiprocessor's share of the step, which adds at most one part per
  // multiprocessor.
  if (parts.tiles(heads) + multiprocessors > kMaxWorks) {
    throw std::length_error("a step has more queries than attention over latents has room for: have fewer tokens in a step");
  }
  flashinfer::MLAPlanInfo plan;
  size_t bytes = 0;
  const cudaError_t status = flashinfer::MLAPlan<int32_t>(
      args.buffers.partials, args.buffers.partials_bytes, args.buffers.schedule, args.buffers.host,
      args.buffers.schedule_bytes, plan, bytes, parts.query_start.data(), parts.page_start.data(),
      parts.context_len.data(), parts.count(), heads, kLatent, /*causal=*/true, stream);
  if (status != cudaSuccess) return status;
  const std::vector<int64_t> words = plan.ToVector();
  std::copy(words.begin(), words.end(), args.plan);
  return cudaMemcpyAsync(args.buffers.schedule, args.buffers.host, bytes, cudaMemcpyHostToDevice, stream);
}

template <typename T, typename C>
cudaError_t run_latent(const RunArgs& args, cudaStream_t stream) {
  flashinfer::MLAPlanInfo plan;
  plan.FromVector(std::vector<int64_t>(args.plan, args.plan + kPlanWords));
  const AttentionShape& shape = args.shape;
  void* schedule = args.buffers.schedule;
  flashinfer::MLAParams<T, C, T, int32_t> params{};
  params.q_nope = static_cast<T*>(const_cast<void*>(args.q));
  params.q_pe = params.q_nope + kLatent;
  params.ckv = static_cast<C*>(const_cast<void*>(args.keys));
  params.kpe = params.ckv + kLatent;
  params.partial_o = at<T>(args.buffers.partials, plan.partial_o_offset);
  params.partial_lse = at<float>(args.buffers.partials, plan.partial_lse_offset);
  params.final_o = static_cast<T*>(args.out);
  params.q_indptr = at<int32_t>(schedule, plan.q_indptr_offset);
  params.kv_indptr = at<int32_t>(schedule, plan.kv_indptr_offset);
  params.partial_indptr = at<int32_t>(schedule, plan.partial_indptr_offset);
  params.merge_packed_offset_start = at<int32_t>(schedule, plan.merge_packed_offset_start_offset);
  params.merge_packed_offset_end = at<int32_t>(schedule, plan.merge_packed_offset_end_offset);
  params.merge_partial_packed_offset_start = at<int32_t>(schedule, plan.merge_partial_packed_offset_start_offset);
  params.merge_partial_packed_offset_end = at<int32_t>(schedule, plan.merge_partial_packed_offset_end_offset);
  params.merge_partial_stride = at<int32_t>(schedule, plan.merge_partial_stride_offset);
  params.kv_indices = const_cast<int32_t*>(args.page_indices);
  params.q_len = at<int32_t>(schedule, plan.q_len_offset);
  params.kv_len = at<int32_t>(schedule, plan.kv_len_offset);
  params.q_start = at<int32_t>(schedule, plan.q_start_offset);
  params.kv_start = at<int32_t>(schedule, plan.kv_start_offset);
  params.kv_end = at<int32_t>(schedule, plan.kv_end_offset);
  params.work_indptr = at<int32_t>(schedule, plan.work_indptr_offset);
  params.block_size = flashinfer::uint_fastdiv(shape.block_size);
  params.num_heads = flashinfer::uint_fastdiv(shape.heads);
  params.q_nope_stride_h = params.q_pe_stride_h = kHeadDim;
  params.q_nope_stride_n = params.q_pe_stride_n = shape.heads * kHeadDim;
  params.ckv_stride_n = params.kpe_stride_n = kHeadDim;
  params.ckv_stride_page = params.kpe_stride_page = shape.block_size * kHeadDim;
  params.o_stride_h = kLatent;
  params.o_stride_n = shape.heads * kLatent;
  params.sm_scale = args.scale;
  return flashinfer::mla::BatchMLAPagedAttention<flashinfer::MaskMode::kCausal, kLatent, kHeadDim - kLatent>(
      params, plan.num_blks_x, plan.num_blks_y, stream);
}

}  // inline namespace
}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_plan_latent(const PlanArgs* args, cudaStream_t stream) {
  return guarded(args->message, [&] { return static_cast<int32_t>(plan_latent(*args, stream)); });
}

extern "C" int32_t candlepower_run_latent(const RunArgs* args, cudaStream_t stream) {
  return guarded(args->message, [&] {
    int32_t status = cudaSuccess;
    const int32_t launched = with_types(args->shape, [&](auto zero, auto cached) {
      using T = decltype(zero);
      using C = decltype(cached);
      // FlashInfer converts e4m3 to bf16 only.
      if constexpr (std::is_same_v<T, C> || std::is_same_v<T, __nv_bfloat16>) {
        status = run_latent<T, C>(*args, stream);
      } else {
        status = cudaErrorNotSupported;
      }
    });
    return status != cudaSuccess ? status : launched;
  });
}
