//! Attention on the CPU: causal attention over the paged cache, for decodes and prefill chunks in one call, and the
//! attention of encoders.

mod full;
mod group;
mod paged;
#[cfg(test)]
mod tests;
mod tile;

pub use full::{DistanceBias, FullAttention, full_attention, full_attention_reference};

use std::ops::Range;

use candle_core::{DType, Tensor};
use half::bf16;

use self::tile::{Fp8, Plain};
use crate::kv_cache::reshape_and_cache_reference;
use crate::parallel::SharedMut;
use crate::simd::Isa;
use crate::tensor::{Operand, from_vec};
use crate::{CacheOrder, Error, KvCache, KvCacheConfig, KvLayer, Result};

/// Parameters of a model's attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PagedAttention {
    /// Factor of the dot products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Size of the sliding window: a query at position `p` sees the positions above `p - window` only.
    pub window: Option<usize>,
    /// Soft limit of the scores, which become `softcap * tanh(score / softcap)` after scaling.
    pub softcap: Option<f32>,
}

impl PagedAttention {
    /// Range of the positions that a query at `position` sees. Within a range of `mutual`, which is sorted, it sees up to
    /// the end of this range. The window bounds the positions before the query alone.
    fn visible(&self, position: usize, mutual: &[Range<usize>]) -> Range<usize> {
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let next = mutual.partition_point(|range| range.end <= position);
        match mutual.get(next).filter(|range| range.start <= position) {
            Some(range) => first..range.end,
            None => first..position + 1,
        }
    }
}

/// Assignment of queries to sequences, and the block tables of these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttentionMetadata {
    /// `[seqs + 1]`: the queries of sequence `i` are the tokens `query_start[i]..query_start[i + 1]`.
    pub query_start: Vec<u32>,
    /// `[seqs]`: number of positions in the cache, this step's included. The last query is at `context_len - 1`.
    pub context_len: Vec<u32>,
    /// `[seqs, max_blocks]`, row-major. Entry `j` of a row is the block of the positions from `j * block_size` on.
    pub block_tables: Vec<u32>,
    /// Row length of `block_tables`.
    pub max_blocks: usize,
    /// `[seqs]`: sorted ranges of positions that see each other both ways, such as the tokens of an image, as far as the
    /// window reaches back. All queries of a range are in one step. Empty if no sequence has such a range.
    pub mutual: Vec<Vec<Range<usize>>>,
}

impl AttentionMetadata {
    /// The queries and the cache of each sequence, after a check of the metadata against `tokens` queries and the
    /// cache's dimensions.
    ///
    /// # Errors
    /// The metadata contradicts itself, the tokens or the cache.
    pub fn sequences(&self, tokens: usize, cache: &KvCacheConfig) -> Result<Vec<SequenceView<'_>>> {
        let error = |message: String| Err(Error::Metadata(message));
        let seqs = self.context_len.len();
        if self.query_start.len() != seqs + 1 || self.query_start[0] != 0 {
            return error(format!("query_start must have length {} and begin with 0", seqs + 1));
        }
        if self.query_start[seqs] as usize != tokens {
            return error(format!(
                "query_start ends with {}, but q has {tokens} tokens",
                self.query_start[seqs]
            ));
        }
        if self.block_tables.len() != seqs * self.max_blocks {
            return error(format!(
                "block_tables has length {}, it must hold {seqs} rows of {}",
                self.block_tables.len(),
                self.max_blocks
            ));
        }
        if !self.mutual.is_empty() && self.mutual.len() != seqs {
            return error(format!("mutual has {} lists for {seqs} sequences", self.mutual.len()));
        }
        let mut views = Vec::with_capacity(seqs);
        for seq in 0..seqs {
            let (start, end) = (self.query_start[seq] as usize, self.query_start[seq + 1] as usize);
            let context_len = self.context_len[seq] as usize;
            if start > end || end - start > context_len {
                return error(format!(
                    "sequence {seq} has queries {start}..{end} but only {context_len} positions in the cache"
                ));
            }
            let blocks = context_len.div_ceil(cache.block_size);
            if blocks > self.max_blocks {
                return error(format!(
                    "sequence {seq} needs {blocks} blocks, but a row of block_tables holds {}",
                    self.max_blocks
                ));
            }
            let block_table = &self.block_tables[seq * self.max_blocks..][..blocks];
            if let Some(block) =
                block_table.iter().find(|block| **block as usize >= cache.num_blocks)
            {
                return error(format!(
                    "sequence {seq} names block {block}, but the cache has {} blocks",
                    cache.num_blocks
                ));
            }
            let mutual = self.mutual.get(seq).map_or(&[][..], Vec::as_slice);
            let first_position = context_len - (end - start);
            let mut before = first_position;
            for range in mutual {
                if range.start < before || range.is_empty() || range.end > context_len {
                    return error(format!(
                        "sequence {seq} has a mutual range {range:?}, outside of the queries or not in order"
                    ));
                }
                before = range.end;
            }
            views.push(SequenceView {
                first_token: start,
                num_queries: end - start,
                first_position,
                block_table,
                mutual,
            });
        }
        Ok(views)
    }
}

/// One sequence of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct SequenceView<'a> {
    /// Index of its first query among the tokens of the step.
    pub first_token: usize,
    /// Number of queries in this step.
    pub num_queries: usize,
    /// Position of its first query.
    pub first_position: usize,
    /// Blocks of its cache, in the order of the positions.
    pub block_table: &'a [u32],
    /// Ranges of positions that see each other both ways.
    pub mutual: &'a [Range<usize>],
}

/// Attention of this step's queries over their sequences' caches.
///
/// `q` is f32 `[tokens, heads, head_dim]`, `heads` a multiple of the cache's `kv_heads` (grouped
/// queries: head `h` reads key-value head `h / (heads / kv_heads)`). The keys and values of this
/// step's tokens must be in the cache already. Returns `[tokens, heads, value_dim]`.
///
/// `sinks`, f32 `[heads]`, are attention sink logits: each joins its head's softmax and has no value, so that it
/// lowers the other weights.
/// All operands are f32, with one exception. With a cache in bf16, the operands of both products are bf16: `q` and
/// the softmax's weights are rounded. Prompts then take a fifth to a third less time than with f32, and decodes a
/// third to a half.
///
/// # Errors
/// `q` has the wrong dtype, shape, layout or device; there is no such layer; the metadata contradicts
/// itself, `q` or the cache.
pub fn paged_attention(
    q: &Tensor,
    cache: &KvCache,
    layer: usize,
    meta: &AttentionMetadata,
    params: &PagedAttention,
    sinks: Option<&Tensor>,
) -> Result<Tensor> {
    let q = Operand::new("paged_attention", "q", q);
    let config = *cache.config();
    let (tokens, heads, head_dim) = q.dims3("[tokens, heads, head_dim]")?;
    if head_dim != config.head_dim || heads == 0 || !heads.is_multiple_of(config.num_kv_heads) {
        return Err(q.shape_error(format!(
            "[tokens, heads = a multiple of {}, head_dim = {}]",
            config.num_kv_heads, config.head_dim
        )));
    }
    if params.window == Some(0) {
        return Err(Error::Parameter {
            parameter: "window",
            value: 0,
            expected: "at least 1, or absent",
        });
    }
    let sinks = match sinks {
        Some(sinks) => {
            let sinks = Operand::new("paged_attention", "sinks", sinks);
            sinks.expect_dims("[heads]", &[heads])?;
            Some(sinks.f32s()?)
        }
        None => None,
    };
    let sequences = meta.sequences(tokens, &config)?;
    let layer = cache.layer(layer)?;
    let queries = q.f32s()?;
    let elements = tokens * heads * config.value_dim();
    let mut out = Vec::with_capacity(elements);
    let shared = SharedMut::new(&mut out.spare_capacity_mut()[..elements]);
    let (params, scales) = (*params, layer.scales);
    let sinks = sinks.as_deref();
    let step = paged::Step { q: &queries, config, heads, params, sinks, scales, out: shared };
    attend_layer(Isa::detect(), step, layer, &sequences)?;
    // SAFETY: the sequences hold all `tokens` queries, and `attend` writes every head of each.
    unsafe { out.set_len(elements) };
    from_vec(out, &[tokens, heads, config.value_dim()])
}

/// Writes the attention of every query of `sequences` over the keys and values of one layer.
fn attend_layer(
    isa: Isa,
    step: paged::Step<'_>,
    layer: &KvLayer,
    sequences: &[SequenceView<'_>],
) -> Result<()> {
    let keys = Operand::new("paged_attention", "keys", &layer.keys);
    let values = Operand::new("paged_attention", "values", &layer.values);
    match keys.tensor.dtype() {
        DType::F8E4M3 => {
            let (keys, values) = (keys.fp8s()?, values.fp8s()?);
            let cache = Fp8 { keys: &keys, values: &values };
            paged::attend(isa, &paged::Operands { step, cache }, sequences);
        }
        DType::BF16 => {
            let (keys, values) = (keys.bf16s()?, values.bf16s()?);
            let cache = Plain { keys: keys.as_chunks().0, values: values.as_chunks().0 };
            paged::attend::<Plain<'_, [bf16; 2]>>(isa, &paged::Operands { step, cache }, sequences);
        }
        _ => {
            let (keys, values) = (keys.f32s()?, values.f32s()?);
            let cache = Plain::<f32> { keys: &keys, values: &values };
            paged::attend(isa, &paged::Operands { step, cache }, sequences);
        }
    }
    Ok(())
}

/// One key-value head of one layer of the cache, as plain slices.
#[derive(Clone, Copy, Debug)]
pub struct CacheView<'a> {
    /// The keys of all blocks.
    pub keys: &'a [f32],
    /// The values of all blocks.
    pub values: &'a [f32],
    /// The dimensions.
    pub config: &'a KvCacheConfig,
    /// Order of the elements of both.
    pub order: CacheOrder,
    /// The key-value head.
    pub head: usize,
}

/// The reference for [`paged_attention`] for one query of one head at position `position` of `seq`. It is the sum of the
/// values of all visible positions, weighted with the softmax of their scores and of the attention sink logit,
/// computed in f64.
///
/// Source: Vaswani et al., "Attention Is All You Need", 2017; Kwon et al., "Efficient Memory Management
/// for Large Language Model Serving with PagedAttention", 2023; transformers' `models/gpt_oss` (sinks).
#[must_use]
pub fn paged_attention_reference(
    q: &[f32],
    cache: &CacheView<'_>,
    seq: &SequenceView<'_>,
    position: usize,
    params: &PagedAttention,
    sink: Option<f32>,
) -> Vec<f32> {
    let block_table = seq.block_table;
    let block_size = cache.config.block_size;
    let slot = |p: usize| block_table[p / block_size] as usize * block_size + p % block_size;
    let place = |slot: usize, dim: usize| {
        reshape_and_cache_reference(cache.config, cache.order, slot, (cache.head, dim))
    };
    let visible: Vec<usize> = params.visible(position, seq.mutual).map(slot).collect();
    let scores: Vec<f64> = visible
        .iter()
        .map(|&slot| {
            let products = q
                .iter()
                .enumerate()
                .map(|(dim, q)| f64::from(*q) * f64::from(cache.keys[place(slot, dim).0]));
            let score = products.sum::<f64>() * f64::from(params.scale);
            params.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        })
        .collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (f64::from(sink) - max).exp());
    let mut weighted = vec![0f64; cache.config.value_dim()];
    for (weight, &slot) in weights.iter().zip(&visible) {
        for (dim, total) in weighted.iter_mut().enumerate() {
            *total += weight * f64::from(cache.values[place(slot, dim).1]);
        }
    }
    weighted.into_iter().map(|total| (total / sum) as f32).collect()
}
