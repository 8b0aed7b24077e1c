// Attention whose sums have one order, whatever else is in the step (`--deterministic`).
//
// A query's output depends on its own sequence up to its position alone, to the bit. Keys are taken in tiles of 32 and in
// ranges of 256, whose borders are absolute positions. A range has a softmax of its own, and the results of ranges are
// added from first to last. So it does not matter whether one block computes all ranges of a query, or several blocks
// leave results for `merge_kernel`. Neither does it matter which queries share a block: each is a row of tensor core
// products, which nothing of other rows enters. Keys that a query must not see have weight zero, and zeros change no
// sum. Factors and sums that the compiler could fuse are written as `fmaf`, so that all instances round alike.

#include "async_copy.cuh"
#include "tensor_core.cuh"

namespace candlepower {

// A piece of work: ranges of keys for the rows of a block. A row is a query and one of the heads that share a KV head.
// For a merge it is the results to be added.
struct OrderedItem {
  uint32_t seq;
  uint32_t first_row;    // among the rows of the sequence
  uint32_t first_range;
  uint32_t end_range;
  uint32_t part;         // place of the range's result among the partial results, or kWhole
  uint32_t padding[3];
};
static_assert(sizeof(OrderedItem) == 32, "as in src/cuda/attention/ordered.rs");

// The item's result is the output.
constexpr uint32_t kWhole = 0xffffffffu;

struct OrderedAttentionArgs {
  const void* q;                // [tokens, heads, head_dim]
  const void* keys;             // [num_blocks, kv_heads, block_size, head_dim]
  const void* values;           // the same shape
  void* out;                    // [tokens, heads, head_dim]
  float* lse;                   // [tokens, heads]: base-2 logarithms of the softmax denominators; null: not needed
  float* partials;              // [parts, kv_heads, 16, head_dim], then [parts, kv_heads, 16, 2]
  const uint32_t* query_start;  // [seqs + 1]
  const uint32_t* page_start;   // [seqs + 1]
  const uint32_t* page_indices;
  const uint32_t* last_page_len;  // [seqs]
  const uint32_t* counts;       // number of items in each of the three lists
  const OrderedItem* narrow;    // items of 16 rows
  const OrderedItem* wide;      // items of 64 rows
  const OrderedItem* merges;
  int64_t partial_rows;         // rows of all partial results
  int32_t narrow_blocks;        // 0: none are launched
  int32_t wide_blocks;
  int32_t merge_blocks;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t block_size;
  int32_t dtype;
  int32_t window;  // a query sees this many positions up to its own; 0: all
  float scale;
  float softcap;   // 0: none
  int32_t merge_rows;  // rows of an item that has partial results, at most 16
};
static_assert(sizeof(OrderedAttentionArgs) == 168, "as in src/cuda/attention/ordered.rs");

constexpr int32_t kTileKeys = 32;
constexpr int32_t kRangeTiles = 8;
constexpr int32_t kWarpRows = 16;
constexpr float kLog2E = 1.44269504f;

// Rows of `kWarps` warps, which share the tiles of keys and values. Two tiles of both are in shared memory. Behind them
// are the queries and the sums over all ranges so far. Registers hold the queries of narrow heads, whose place the sums
// then take.
template <int32_t kDim, int32_t kWarps>
struct OrderedShape {
  static constexpr int32_t kThreads = kWarps * kWarp;
  static constexpr int32_t kRows = kWarps * kWarpRows;
  static constexpr int32_t kChunks = kDim / 8;
  static constexpr int32_t kTileBytes = kTileKeys * kDim * 2;
  static constexpr int32_t kStageBytes = 2 * kTileBytes;
  static constexpr bool kKeepsQueries = kDim <= 128;
  static constexpr int32_t kQueriesAt = 2 * kStageBytes;
  static constexpr int32_t kTotalsAt = kQueriesAt + (kKeepsQueries ? 0 : kRows * kDim * 2);
  static constexpr int32_t kBytes = kTotalsAt + kRows * kDim * 4;
  static_assert(kBytes <= 99 << 10);
};

// The total after the result of a range, where both are weighed anew.
__device__ __forceinline__ float add_range(float total, float kept, float of_range, float added) {
  return fmaf(of_range, added, total * kept);
}

// Weights of the total so far and of a range, by their greatest scores. Both are -inf for rows that have seen no key yet.
struct RangeWeights {
  float max;
  float kept;
  float added;
};

__device__ __forceinline__ RangeWeights weigh_range(float total_max, float range_max, float factor) {
  const float max = fmaxf(total_max, range_max);
  const float base = max == -INFINITY ? 0.0f : max;
  return {max, exp2f((total_max - base) * factor), exp2f((range_max - base) * factor)};
}

// Index of a chunk of 16 bytes in rows of `kChunks`. Eight rows' chunks of one number lie in different banks.
template <int32_t kChunks>
__device__ __forceinline__ int32_t chunk_index(int32_t row, int32_t chunk) {
  return row * kChunks + (chunk ^ row % 8);
}

// Positions and heads of a sequence's rows.
struct OrderedRows {
  uint32_t first_token;
  uint32_t queries;
  uint32_t group;    // heads of a KV head
  uint32_t context;  // positions in the cache

  __device__ __forceinline__ OrderedRows(const OrderedAttentionArgs& args, uint32_t seq)
      : first_token(args.query_start[seq]),
        queries(args.query_start[seq + 1] - first_token),
        group(args.heads / args.kv_heads),
        context(0) {
    const uint32_t pages = args.page_start[seq + 1] - args.page_start[seq];
    if (pages > 0) context = (pages - 1) * args.block_size + args.last_page_len[seq];
  }
  __device__ __forceinline__ bool exists(uint32_t row) const { return row / group < queries; }
  __device__ __forceinline__ int32_t position(uint32_t row) const {
    return static_cast<int32_t>(context - queries + row / group);
  }
  // Index among the rows of q.
  __device__ __forceinline__ int64_t index(const OrderedAttentionArgs& args, uint32_t row, uint32_t kv_head) const {
    return static_cast<int64_t>(first_token + row / group) * args.heads + kv_head * group + row % group;
  }
};

template <typename T, int32_t kDim, int32_t kWarps>
__device__ __forceinline__ void attend_item(const OrderedAttentionArgs& args, const OrderedItem& item, char* memory) {
  using Shape = OrderedShape<kDim, kWarps>;
  constexpr int32_t kChunks = Shape::kChunks;
  constexpr int32_t kSteps = kDim / 16;
  constexpr int32_t kTiles = kDim / 8;
  const int32_t warp = threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp;
  const uint32_t kv_head = blockIdx.y;
  const OrderedRows rows(args, item.seq);
  const uint32_t warp_row = item.first_row + warp * kWarpRows;
  const uint32_t* pages = args.page_indices + args.page_start[item.seq];

  const uint32_t stages = shared_address(memory);
  const uint32_t queries = stages + Shape::kQueriesAt + warp * kWarpRows * kDim * 2;
  auto* const totals = reinterpret_cast<float2*>(memory + Shape::kTotalsAt);
  const T* q = static_cast<const T*>(args.q);
  for (int32_t i = lane; i < kWarpRows * kChunks; i += kWarp) {
    const uint32_t row = warp_row + i / kChunks;
    const bool exists = rows.exists(row);
    const T* from = exists ? q + rows.index(args, row, kv_head) * kDim + i % kChunks * 8 : q;
    copy_chunk(queries + chunk_index<kChunks>(i / kChunks, i % kChunks) * 16, from, exists);
  }

  // Each lane finds the memory of one key, and all copy the keys row by row.
  const auto copy_tile = [&](int32_t tile) {
    const int32_t own = tile * kTileKeys + lane;
    int64_t offset = -1;
    if (own < static_cast<int32_t>(rows.context)) {
      const int64_t page = pages[own / args.block_size];
      offset = ((page * args.kv_heads + kv_head) * args.block_size + own % args.block_size) * kDim;
    }
    const uint32_t to = stages + tile % 2 * Shape::kStageBytes;
    const T* keys = static_cast<const T*>(args.keys);
    const T* values = static_cast<const T*>(args.values);
#pragma unroll 4
    for (int32_t i = threadIdx.x; i < kTileKeys * kChunks; i += Shape::kThreads) {
      const int32_t row = i / kChunks;
      const int32_t chunk = i % kChunks;
      const int64_t from = __shfl_sync(0xffffffffu, offset, row);
      const int64_t at = from < 0 ? 0 : from + chunk * 8;
      const uint32_t place = to + chunk_index<kChunks>(row, chunk) * 16;
      copy_chunk(place, keys + at, from >= 0);
      copy_chunk(place + Shape::kTileBytes, values + at, from >= 0);
    }
  };

  // The block's last row that exists sees the most keys, and its first row has the earliest window.
  const uint32_t all_rows = rows.queries * rows.group;
  const uint32_t end_row = item.first_row + Shape::kRows < all_rows ? item.first_row + Shape::kRows : all_rows;
  const int32_t last_position = rows.position(end_row - 1);
  const int32_t first_position = rows.position(item.first_row);
  const int32_t lowest = args.window > 0 && first_position >= args.window ? first_position - args.window + 1 : 0;
  int32_t begin = static_cast<int32_t>(item.first_range) * kRangeTiles;
  begin = lowest / kTileKeys > begin ? lowest / kTileKeys : begin;
  int32_t end = static_cast<int32_t>(item.end_range) * kRangeTiles;
  end = last_position / kTileKeys + 1 < end ? last_position / kTileKeys + 1 : end;

  // This lane's rows: `lane / 4`, and 8 further. Rows that do not exist see no key.
  int32_t position[2];
#pragma unroll
  for (int32_t r = 0; r < 2; ++r) {
    const uint32_t row = warp_row + lane / 4 + 8 * r;
    position[r] = rows.exists(row) ? rows.position(row) : -1;
  }
  const bool capped = args.softcap > 0.0f;
  // Scores are compared as they are, and multiplied where they become exponents of two.
  const float factor = (capped ? args.softcap : args.scale) * kLog2E;
  const float before_cap = capped ? args.scale / args.softcap : 0.0f;

  uint32_t a[Shape::kKeepsQueries ? kSteps : 1][4];
  const auto load_query = [&](int32_t step, uint32_t (&to)[4]) {
    load_matrices(to, queries + chunk_index<kChunks>(lane % 16, 2 * step + lane / 16) * 16);
  };
  float sums[kTiles][4] = {};
  float max[2] = {-INFINITY, -INFINITY};
  float weight[2] = {};
  float total_max[2] = {-INFINITY, -INFINITY};
  float total_weight[2] = {};
  bool has_total = false;

  if (begin < end) copy_tile(begin);
  end_copies();
  for (int32_t tile = begin; tile < end; ++tile) {
    wait_for_copies<0>();
    // The barrier makes the tile visible to all warps, and says that all are done with the tile before it.
    __syncthreads();
    if (tile + 1 < end) copy_tile(tile + 1);
    end_copies();
    if constexpr (Shape::kKeepsQueries) {
      if (tile == begin) {
#pragma unroll
        for (int32_t step = 0; step < kSteps; ++step) load_query(step, a[step]);
        // The sums take the place of the queries.
        __syncthreads();
      }
    }
    const uint32_t keys = stages + tile % 2 * Shape::kStageBytes;
    const uint32_t values = keys + Shape::kTileBytes;

    float scores[kTileKeys / 8][4] = {};
#pragma unroll
    for (int32_t step = 0; step < kSteps; ++step) {
      uint32_t loaded[4];
      if constexpr (!Shape::kKeepsQueries) load_query(step, loaded);
#pragma unroll
      for (int32_t half = 0; half < kTileKeys / 16; ++half) {
        uint32_t b[4];
        const int32_t key = half * 16 + lane / 16 * 8 + lane % 8;
        load_matrices(b, keys + chunk_index<kChunks>(key, 2 * step + lane / 8 % 2) * 16);
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {
          const uint32_t operand[2] = {b[2 * i], b[2 * i + 1]};
          if constexpr (Shape::kKeepsQueries) {
            multiply(scores[2 * half + i], a[step], operand, T());
          } else {
            multiply(scores[2 * half + i], loaded, operand, T());
          }
        }
      }
    }

    float tile_max[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int32_t i = 0; i < kTileKeys / 8; ++i) {
#pragma unroll
      for (int32_t at = 0; at < 4; ++at) {
        const int32_t key = tile * kTileKeys + i * 8 + lane % 4 * 2 + at % 2;
        const int32_t own = position[at / 2];
        const bool seen = key <= own && (args.window <= 0 || key > own - args.window);
        const float score = capped ? tanhf(scores[i][at] * before_cap) : scores[i][at];
        scores[i][at] = seen ? score : -INFINITY;
        tile_max[at / 2] = fmaxf(tile_max[at / 2], scores[i][at]);
      }
    }
    float kept[2];
    float shift[2];
#pragma unroll
    for (int32_t r = 0; r < 2; ++r) {
      // The four lanes of a row.
      tile_max[r] = fmaxf(tile_max[r], __shfl_xor_sync(0xffffffffu, tile_max[r], 1));
      tile_max[r] = fmaxf(tile_max[r], __shfl_xor_sync(0xffffffffu, tile_max[r], 2));
      const RangeWeights weights = weigh_range(max[r], tile_max[r], factor);
      max[r] = weights.max;
      shift[r] = weights.max == -INFINITY ? 0.0f : weights.max * factor;
      kept[r] = weights.kept;
#pragma unroll
      for (int32_t i = 0; i < kTiles; ++i) {
        sums[i][2 * r] *= kept[r];
        sums[i][2 * r + 1] *= kept[r];
      }
    }
    // Weights are rounded for the product, and the denominator is the sum of the rounded weights.
    uint32_t p[kTileKeys / 16][4];
    float tile_weight[2] = {};
#pragma unroll
    for (int32_t i = 0; i < kTileKeys / 8; ++i) {
#pragma unroll
      for (int32_t r = 0; r < 2; ++r) {
        const T first = T(exp2f(fmaf(scores[i][2 * r], factor, -shift[r])));
        const T second = T(exp2f(fmaf(scores[i][2 * r + 1], factor, -shift[r])));
        tile_weight[r] += static_cast<float>(first) + static_cast<float>(second);
        p[i / 2][i % 2 * 2 + r] = pair_bits(first, second);
      }
    }
#pragma unroll
    for (int32_t r = 0; r < 2; ++r) weight[r] = fmaf(weight[r], kept[r], tile_weight[r]);
#pragma unroll
    for (int32_t half = 0; half < kTileKeys / 16; ++half) {
#pragma unroll
      for (int32_t i = 0; i < kTiles / 2; ++i) {
        uint32_t b[4];
        load_transposed(b, values + chunk_index<kChunks>(half * 16 + lane % 16, 2 * i + lane / 16) * 16);
        const uint32_t low[2] = {b[0], b[1]};
        const uint32_t high[2] = {b[2], b[3]};
        multiply(sums[2 * i], p[half], low, T());
        multiply(sums[2 * i + 1], p[half], high, T());
      }
    }

    const bool is_last = tile + 1 == end;
    if (!is_last && (tile + 1) % kRangeTiles != 0) continue;
    // The end of a range.
#pragma unroll
    for (int32_t r = 0; r < 2; ++r) {
      weight[r] += __shfl_xor_sync(0xffffffffu, weight[r], 1);
      weight[r] += __shfl_xor_sync(0xffffffffu, weight[r], 2);
    }
#pragma unroll
    for (int32_t r = 0; r < 2; ++r) {
      const uint32_t row = warp_row + lane / 4 + 8 * r;
      if (item.part != kWhole) {
        if (!rows.exists(row)) continue;
        const int64_t at = (static_cast<int64_t>(item.part) * args.kv_heads + kv_head) * kWarpRows + lane / 4 + 8 * r;
#pragma unroll
        for (int32_t i = 0; i < kTiles; ++i) {
          auto* to = reinterpret_cast<float2*>(args.partials + at * kDim + i * 8) + lane % 4;
          *to = {sums[i][2 * r], sums[i][2 * r + 1]};
        }
        if (lane % 4 == 0) {
          *reinterpret_cast<float2*>(args.partials + args.partial_rows * kDim + at * 2) = {max[r], weight[r]};
        }
        continue;
      }
      const RangeWeights weights = weigh_range(total_max[r], max[r], factor);
      total_max[r] = weights.max;
      total_weight[r] = add_range(total_weight[r], weights.kept, weight[r], weights.added);
#pragma unroll
      for (int32_t i = 0; i < kTiles; ++i) {
        // Only this thread reads and writes these totals.
        float2& place = totals[(i * 2 + r) * Shape::kThreads + threadIdx.x];
        const float2 before = has_total ? place : float2{0.0f, 0.0f};
        const float2 after = {add_range(before.x, weights.kept, sums[i][2 * r], weights.added),
                              add_range(before.y, weights.kept, sums[i][2 * r + 1], weights.added)};
        place = after;
        sums[i][2 * r] = after.x;
        sums[i][2 * r + 1] = after.y;
      }
      if (is_last && rows.exists(row)) {
        const int64_t index = rows.index(args, row, kv_head);
#pragma unroll
        for (int32_t i = 0; i < kTiles; ++i) {
          const Vector<T, 2> pair{{T(sums[i][2 * r] / total_weight[r]), T(sums[i][2 * r + 1] / total_weight[r])}};
          store<2>(static_cast<T*>(args.out) + index * kDim + i * 8 + lane % 4 * 2, pair);
        }
        if (args.lse != nullptr && lane % 4 == 0) {
          args.lse[index] = fmaf(total_max[r], factor, log2f(total_weight[r]));
        }
      }
      max[r] = -INFINITY;
      weight[r] = 0.0f;
#pragma unroll
      for (int32_t i = 0; i < kTiles; ++i) sums[i][2 * r] = sums[i][2 * r + 1] = 0.0f;
    }
    has_total = true;
  }
  wait_for_copies<0>();
  // The next item overwrites the queries and the tiles.
  __syncthreads();
}

template <typename T, int32_t kDim, int32_t kWarps>
__global__ void __launch_bounds__(OrderedShape<kDim, kWarps>::kThreads) ordered_attention_kernel(OrderedAttentionArgs args) {
  extern __shared__ uint4 memory[];
  wait_for_inputs();
  const OrderedItem* items = kWarps == 1 ? args.narrow : args.wide;
  const uint32_t count = args.counts[kWarps == 1 ? 0 : 1];
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    attend_item<T, kDim, kWarps>(args, items[i], reinterpret_cast<char*>(memory));
  }
  let_next_start();
}

// Adds the results of the ranges of a row, from first to last, as a block does that computes all of them. A thread has one
// element of the row.
template <typename T, int32_t kDim>
__global__ void __launch_bounds__(kDim) merge_kernel(OrderedAttentionArgs args) {
  wait_for_inputs();
  const uint32_t count = args.counts[2];
  const uint32_t kv_head = blockIdx.y;
  const float factor = (args.softcap > 0.0f ? args.softcap : args.scale) * kLog2E;
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const OrderedItem item = args.merges[i];
    const OrderedRows rows(args, item.seq);
    const uint32_t row = item.first_row + blockIdx.z;
    if (!rows.exists(row)) continue;
    const int64_t stride = static_cast<int64_t>(args.kv_heads) * kWarpRows;
    const int64_t first = item.part * stride + kv_head * kWarpRows + blockIdx.z;
    const float* values = args.partials + first * kDim + threadIdx.x;
    const auto* weights_at = reinterpret_cast<const float2*>(args.partials + args.partial_rows * kDim) + first;
    float max = -INFINITY;
    float weight = 0.0f;
    float total = 0.0f;
    const int32_t ranges = static_cast<int32_t>(item.end_range - item.first_range);
    // The loads of several ranges are in flight at once.
#pragma unroll 8
    for (int32_t range = 0; range < ranges; ++range) {
      const float2 of_range = weights_at[range * stride];
      const float value = values[range * stride * kDim];
      const RangeWeights weights = weigh_range(max, of_range.x, factor);
      max = weights.max;
      weight = add_range(weight, weights.kept, of_range.y, weights.added);
      total = add_range(total, weights.kept, value, weights.added);
    }
    const int64_t index = rows.index(args, row, kv_head);
    static_cast<T*>(args.out)[index * kDim + threadIdx.x] = T(total / weight);
    if (args.lse != nullptr && threadIdx.x == 0) args.lse[index] = fmaf(max, factor, log2f(weight));
  }
  let_next_start();
}

template <typename T, int32_t kDim, int32_t kWarps>
void launch_items(const OrderedAttentionArgs& args, int32_t blocks, cudaStream_t stream) {
  using Shape = OrderedShape<kDim, kWarps>;
  if (blocks == 0) return;
  const auto kernel = ordered_attention_kernel<T, kDim, kWarps>;
  // The result is ignored because the launch fails with the same error.
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes);
  launch_early(kernel, dim3(blocks, args.kv_heads), Shape::kThreads, stream, args, Shape::kBytes);
}

template <typename T, int32_t kDim>
void launch_all(const OrderedAttentionArgs& args, cudaStream_t stream) {
  launch_items<T, kDim, 1>(args, args.narrow_blocks, stream);
  // Heads of 256 elements would need more shared memory for blocks of 64 rows than some GPUs have.
  if constexpr (kDim <= 128) launch_items<T, kDim, 4>(args, args.wide_blocks, stream);
  if (args.merge_blocks > 0) {
    const dim3 blocks(args.merge_blocks, args.kv_heads, args.merge_rows);
    launch_early(merge_kernel<T, kDim>, blocks, kDim, stream, args);
  }
}

}  // namespace candlepower

using namespace candlepower;

extern "C" int32_t candlepower_ordered_attention(const OrderedAttentionArgs* args, cudaStream_t stream) {
  if (args->heads < 1 || args->kv_heads < 1 || args->heads % args->kv_heads != 0 || args->block_size < 1) {
    return cudaErrorInvalidValue;
  }
  if (args->head_dim != 64 && args->head_dim != 128 && args->head_dim != 256) return cudaErrorInvalidValue;
  if (args->head_dim == 256 && args->wide_blocks != 0) return cudaErrorInvalidValue;
  return with_half_type(args->dtype, [&](auto zero) {
    using T = decltype(zero);
    switch (args->head_dim) {
      case 64: launch_all<T, 64>(*args, stream); break;
      case 128: launch_all<T, 128>(*args, stream); break;
      default: launch_all<T, 256>(*args, stream); break;
    }
  });
}
