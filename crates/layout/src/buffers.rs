//! Sizes of buffers that the memory plan counts and the runtime reserves.

use crate::head_dims;

/// Head widths that attention on a GPU is compiled for, in ascending order. Other heads are padded with zeros to the next width.
pub const DEVICE_HEAD_DIMS: [usize; 4] = head_dims::DEVICE_HEAD_DIMS;
/// Widest head that attention on a GPU is compiled for.
pub const MAX_DEVICE_HEAD_DIM: usize = DEVICE_HEAD_DIMS[DEVICE_HEAD_DIMS.len() - 1];
/// Elements of a latent that attention on a GPU is compiled for, and of a row with the rotated part of keys behind it. Shorter
/// latents are padded with zeros.
pub const DEVICE_LATENT_DIMS: (usize, usize) = (512, 576);
/// Rows of logits that exist at once on the CPU, at most. It bounds their memory: rows * vocabulary * 4 bytes.
pub const LOGITS_ROWS: usize = 128;
/// Patches of a picture whose scores a thread of the CPU keeps at once.
pub const PATCH_QUERIES: usize = 256;
/// Patches for which it keeps these scores. They take 256 KiB, which stay in the second-level cache.
pub const PATCH_KEYS: usize = 256;
/// Rows of logits that exist at once on a GPU, at most.
const MAX_DEVICE_LOGITS_ROWS: usize = 256;
/// Bytes of a schedule of attention, and of its pinned copy on the host.
pub const SCHEDULE_BYTES: usize = 8 << 20;
/// Schedules of a step for each kind of window: one of decodes, and one of prompts.
pub const SCHEDULES: usize = 2;
/// Bytes of partial results of attention for heads of 128 elements, for each kind of window. Source: FlashInfer's own callers.
const PARTIALS_BYTES: usize = 128 << 20;
/// Bytes of partial results of attention over latents: two tiles of 128 queries for each pair of multiprocessors, of which no GPU
/// has more than 120 pairs. Source: FlashInfer's `MLAPlan`.
pub const LATENT_PARTIALS_BYTES: usize = 64 << 20;
/// Rows of a step that a layer of linear attention computes at once on a GPU, at most. It bounds their memory. Longer steps are
/// computed part by part.
const LINEAR_ATTENTION_ROWS: usize = 2048;
/// Tokens of a chunk that a GPU computes by matrix products in linear attention, `kChunkTokens` in `linear_attention.cuh`. A chunk
/// begins at a position that is a multiple of it.
pub const LINEAR_ATTENTION_CHUNK: usize = 64;
/// Groups of experts, at most: on a GPU each lane of a warp has one.
pub const MAX_EXPERT_GROUPS: usize = 32;

/// Width of a head of `head_dim` elements in the memory of a GPU.
pub fn device_head_dim(head_dim: usize) -> usize {
    DEVICE_HEAD_DIMS.into_iter().find(|dim| *dim >= head_dim).unwrap_or(head_dim)
}

/// Elements of a latent of `rank` elements in the memory of a GPU, and of a row with the `rotated` elements behind it.
pub fn device_latent_dims(rank: usize, rotated: usize) -> (usize, usize) {
    let (latent, row) = DEVICE_LATENT_DIMS;
    match rank <= latent && rotated <= row - latent {
        // The padded form needs both parts to fit. Otherwise the plan counts the plain sizes.
        true => (latent, row),
        false => (rank, rank + rotated),
    }
}

/// Number of tokens that a step may have on a GPU, with `max_seqs` sequences, if `heads` heads read latents.
///
/// Attention has room for 16,384 tiles of 128 rows, each of a token and a head. Multiprocessors and the ends of sequences take
/// some of them. Source: FlashInfer's `MLAPlan`.
pub fn device_latent_tokens(heads: usize, max_seqs: usize) -> usize {
    const TILES: usize = 16_384 - 512;
    TILES.saturating_sub(max_seqs).max(1) * (128 / heads.max(1)).max(1)
}

/// Bytes of the partial results of attention over heads of `head_dim` elements, as a GPU has them, for each kind of window.
///
/// The widest heads are computed in shorter tiles. Decodes that are launched as CUDA graphs are always split, and need some for
/// each sequence. Source: FlashInfer's `PrefillPlan`, tiles of 16 queries.
pub fn attention_partials_bytes(head_dim: usize, kv_heads: usize, max_seqs: usize) -> usize {
    // 16 queries of 4 bytes a value. The additional value is the logarithm of the softmax's denominator.
    let of_graphs = 64 * (head_dim + 1) * kv_heads * max_seqs;
    (PARTIALS_BYTES * head_dim.min(256).div_ceil(128).max(1)).max(of_graphs)
}

/// Rows of a step of up to `max_tokens` tokens that a layer of linear attention computes at once on a GPU.
pub fn linear_attention_rows(max_tokens: usize) -> usize {
    max_tokens.clamp(1, LINEAR_ATTENTION_ROWS)
}

/// Values in single precision that such a layer keeps for each of these rows: its convolved channels, and for each value head two
/// gates and the logarithm of one.
pub fn linear_attention_row_values(channels: usize, value_heads: usize) -> usize {
    channels + 3 * value_heads
}

/// Whole chunks that these rows can have.
pub fn linear_attention_chunks(max_tokens: usize) -> usize {
    linear_attention_rows(max_tokens) / LINEAR_ATTENTION_CHUNK
}

/// Values in single precision that such a layer keeps for each chunk, with `keys` elements of a token's keys. They are both halves of
/// queries and keys, and for each value head two matrices over the chunk's tokens and two vectors.
pub fn linear_attention_chunk_values(keys: usize, value_heads: usize) -> usize {
    const TOKENS: usize = LINEAR_ATTENTION_CHUNK;
    TOKENS * 2 * keys + value_heads * (2 * TOKENS * TOKENS + 2 * TOKENS)
}

/// Rows of logits that exist at once on a GPU.
pub fn device_logits_rows(max_num_seqs: usize) -> usize {
    max_num_seqs.clamp(1, MAX_DEVICE_LOGITS_ROWS)
}

/// Ids of a part of a row of logits that one block samples from, and the most parts of a row; `kPartIds` and `kMaxParts` in
/// `sampling_math.cuh`.
const SAMPLING_PART_IDS: usize = 8192;
const MAX_SAMPLING_PARTS: usize = 64;

/// Samples of a launch. More rows of a step take several launches, which use the same memory one after the other.
const SAMPLES_AT_ONCE: usize = 128;

/// Samples for which there is memory between the kernels of sampling, if a step has up to `max_samples`.
pub fn device_samples_at_once(max_samples: usize) -> usize {
    max_samples.clamp(1, SAMPLES_AT_ONCE)
}

/// Bytes between the kernels of sampling, for each of these samples: a histogram of 2,048 bins and one of 1,024 for each part of the vocabulary,
/// and the results of parts. `sampling_parts.cuh` describes them.
pub fn device_sampling_bytes(vocab: usize) -> usize {
    let least = vocab.div_ceil(SAMPLING_PART_IDS);
    let ids = SAMPLING_PART_IDS * least.div_ceil(MAX_SAMPLING_PARTS).max(1);
    // A group of 64 bins has its sum in front of it. Then four results of the part, and two of the sample with three words each.
    8 * (vocab.div_ceil(ids) * ((32 + 16) * 65 + 4) + 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latents_are_padded_where_both_parts_fit() {
        // DeepSeek's own size, a smaller one, and two that no kernel is compiled for.
        let dims = [(512, 64), (256, 32), (640, 64), (256, 128)];
        let rows = [(512, 576), (512, 576), (640, 704), (256, 384)];
        assert_eq!(dims.map(|(rank, rotated)| device_latent_dims(rank, rotated)), rows);
    }

    #[test]
    fn a_tile_of_latents_has_as_many_tokens_as_its_rows_have_room_for_heads() {
        let tiles = 16_384 - 512 - 100;
        let tokens = [16, 128, 500, 0].map(|heads| device_latent_tokens(heads, 100));
        assert_eq!(tokens, [tiles * 8, tiles, tiles, tiles * 128]);
        // A step has room for a token of each head at least.
        assert_eq!(device_latent_tokens(128, usize::MAX), 1);
    }

    #[test]
    fn parts_of_a_vocabulary_are_at_most_64() {
        let parts = |vocab| (device_sampling_bytes(vocab) / 8 - 6) / 3124;
        assert_eq!([0, 1, 8192, 8193, 128_256].map(parts), [0, 1, 1, 2, 16]);
        assert_eq!([524_288, 524_289, usize::MAX / 8].map(parts), [64, 33, 64]);
    }
}
