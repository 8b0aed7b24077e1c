//! Causal attention over the paged cache: planned once per step on the host, then run for each layer.

use candle_core::DType;
use candlepower_kernels::operands::SequenceView;
use candlepower_kernels::{AttentionMetadata, Error, KvCacheConfig, PagedAttention, Result};

use super::PagedLayer;

pub(crate) const KERNEL: &str = "paged_attention";

/// Capacity of an [`AttentionPlan`](crate::AttentionPlan), reserved once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanCapacity {
    /// Maximum number of sequences in a step.
    pub max_seqs: usize,
    /// Maximum number of blocks of all sequences in a step, where a shared block counts once per sequence.
    pub max_pages: usize,
    /// Bytes for partial results of sequences that are split.
    ///
    /// [`attention_partials_bytes`](candlepower_layout::attention_partials_bytes) suffice for up to 132
    /// multiprocessors, and [`LATENT_PARTIALS_BYTES`](candlepower_layout::LATENT_PARTIALS_BYTES) for latents. A plan
    /// that needs more bytes returns an error.
    pub partials_bytes: usize,
    /// Maximum number of tokens in a step of a model with attention sinks; zero for other models.
    pub sink_tokens: usize,
}

/// The layers of a model that one plan serves: those with the same heads and the same window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionSpec {
    /// Number of query heads.
    pub heads: usize,
    /// A query at position `p` attends only to positions above `p - window`.
    pub window: Option<usize>,
    /// Element type of q and output: bf16 or f16.
    pub dtype: DType,
    /// Element type of the cache: the same, or FP8 (e4m3). By FlashInfer's kernels it saves memory but no time. On an H200, 256
    /// sequences decode at 15,970 tokens/s with an FP8 cache, and at 16,230 with a bf16 cache.
    pub cache_dtype: DType,
}

/// Whether launch parameters may depend on the lengths of the sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaunchShape {
    /// The launch has the blocks that the step needs.
    Fitted,
    /// The launch depends only on the numbers of sequences and tokens, so a CUDA graph can be replayed after another
    /// `prepare`. Every sequence must have the same number of queries.
    Fixed,
    /// The same, but FlashInfer's kernel on tensor cores does not divide contexts among thread blocks. No kernel has to merge
    /// parts then, which saves time where contexts are short. Other kernels take it as [`LaunchShape::Fixed`].
    FixedWhole,
}

impl LaunchShape {
    /// Whether the launch depends only on the numbers of sequences and tokens.
    #[must_use]
    pub fn is_fixed(self) -> bool {
        self != Self::Fitted
    }
}

/// The planner's input for one step.
#[derive(Clone, Copy, Debug)]
pub struct AttentionStep<'a> {
    /// Queries and cache blocks of each sequence.
    pub meta: &'a AttentionMetadata,
    /// Number of rows of q.
    pub tokens: usize,
    /// How the attention is launched.
    pub launch: LaunchShape,
}

/// Refuses a step that exceeds a plan's capacity or FlashInfer's limits. Returns the step's sequences.
pub(crate) fn check_step<'a>(
    step: &AttentionStep<'a>,
    heads: usize,
    cache: &KvCacheConfig,
    capacity: &PlanCapacity,
) -> Result<Vec<SequenceView<'a>>> {
    let sequences = step.meta.sequences(step.tokens, cache)?;
    let pages: usize = sequences.iter().map(|seq| seq.block_table.len()).sum();
    for (index, value, bound) in [
        ("sequences of a step", sequences.len(), capacity.max_seqs),
        ("blocks of a step", pages, capacity.max_pages),
        // FlashInfer's index over the elements of all queries has 32 bits.
        ("elements of a step's queries", step.tokens * heads * cache.head_dim, u32::MAX as usize),
    ] {
        if value > bound {
            return Err(Error::OutOfRange { kernel: KERNEL, index, value, bound: bound + 1 });
        }
    }
    if sequences.is_empty() || step.tokens == 0 {
        return Err(Error::Metadata("a step without queries has no plan".into()));
    }
    let uniform = sequences.iter().all(|seq| seq.num_queries == sequences[0].num_queries);
    if step.launch.is_fixed() && !uniform {
        return Err(Error::Metadata(
            "a fixed launch needs the same number of queries in every sequence".into(),
        ));
    }
    Ok(sequences)
}

/// Refuses a layer whose window is not the plan's.
pub(crate) fn check_window(params: &PagedAttention, spec: &AttentionSpec) -> Result<()> {
    match params.window == spec.window {
        true => Ok(()),
        false => Err(Error::Metadata(format!(
            "the plan is for window {:?}, the layer has {:?}",
            spec.window, params.window
        ))),
    }
}

/// Refuses a layer whose dtype is not the plan's.
pub(crate) fn check_cache(layer: &PagedLayer, spec: &AttentionSpec) -> Result<()> {
    for (operand, tensor) in [("keys", &layer.keys), ("values", &layer.values)] {
        if tensor.dtype() != spec.cache_dtype {
            let (expected, found) = ("the plan's cache_dtype", tensor.dtype());
            return Err(Error::DType { kernel: KERNEL, operand, expected, found });
        }
    }
    Ok(())
}

/// Refuses a specification that does not fit the cache's dimensions.
pub(crate) fn check_spec(spec: &AttentionSpec, cache: &KvCacheConfig) -> Result<()> {
    cache.check()?;
    let error = |parameter, value, expected| Err(Error::Parameter { parameter, value, expected });
    if spec.heads == 0 || !spec.heads.is_multiple_of(cache.num_kv_heads) {
        return error("heads", spec.heads, "a positive multiple of the cache's kv_heads");
    }
    if spec.cache_dtype != spec.dtype && spec.cache_dtype != DType::F8E4M3 {
        let (operand, expected) = ("cache_dtype", "the dtype of q, or f8e4m3");
        return Err(Error::DType { kernel: KERNEL, operand, expected, found: spec.cache_dtype });
    }
    if cache.latent.is_some() && spec.window.is_some() {
        return error("window", spec.window.unwrap_or(0), "absent where latents are kept");
    }
    match spec.window {
        Some(0) => error("window", 0, "at least 1, or absent"),
        _ => Ok(()),
    }
}
