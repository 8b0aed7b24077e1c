//! Causal attention over the paged cache: planned once a step on the host, then run for each layer.

use candle_core::{DType, Device, Tensor};

use super::PagedLayer;
use super::reference::Reference;
use crate::attention::SequenceView;
use crate::{
    AttentionMetadata, CacheOrder, CacheView, Error, KvCacheConfig, PagedAttention, Result,
    paged_attention_reference, reshape_and_cache_reference,
};

const KERNEL: &str = "paged_attention";

/// Room of an [`AttentionPlan`], reserved once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanCapacity {
    /// Sequences of a step.
    pub max_seqs: usize,
    /// Blocks of all sequences of a step together, shared blocks counted each time.
    pub max_pages: usize,
    /// Bytes for partial results of sequences that are split. 64 MiB suffice for up to 132 multiprocessors, whatever the heads, but
    /// for fixed launches that FlashInfer's prefill kernel serves (with a window, or groups of four heads and more):
    /// each sequence takes `64 * kv_heads * head_dim` bytes there. A plan that needs more says so.
    pub partials_bytes: usize,
    /// Tokens of a step whose heads have sinks; zero where they have none.
    pub sink_tokens: usize,
}

/// The attention of a model's layers that one plan serves: those with the same heads and the same window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// A query at position `p` sees the positions above `p - window` only.
    pub window: Option<usize>,
    /// Element type of q and output: bf16 or f16.
    pub dtype: DType,
    /// Element type of the cache: the same, or FP8 (e4m3).
    pub cache_dtype: DType,
}

/// Whether the launch may depend on the lengths of the sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchShape {
    /// As many blocks as the step needs.
    Fitted,
    /// Depends on the number of sequences and tokens alone, so that a CUDA graph can be replayed after
    /// another `prepare`. Every sequence has the same number of queries.
    Fixed,
}

/// A step as the planner sees it.
#[derive(Clone, Copy, Debug)]
pub struct AttentionStep<'a> {
    /// Queries and cache of each sequence.
    pub meta: &'a AttentionMetadata,
    /// Rows of q.
    pub tokens: usize,
    /// How it is launched.
    pub launch: LaunchShape,
}

/// Memory and schedule of the attention of one step: `prepare` once, then `attend` for each layer. All of its memory
/// is reserved in `new`.
#[derive(Debug)]
pub enum AttentionPlan {
    /// By the definition, on the CPU.
    Reference(ReferencePlan),
    /// By FlashInfer's kernels.
    #[cfg(feature = "cuda")]
    Cuda(Box<crate::cuda::AttentionPlan>),
}

impl AttentionPlan {
    /// Reserves the memory of plans for a cache of these dimensions.
    ///
    /// # Errors
    /// `spec` does not fit the cache, `head_dim` is none that the device's kernels have, or memory does not suffice.
    pub fn new(
        device: &Device,
        spec: AttentionSpec,
        cache: &KvCacheConfig,
        capacity: PlanCapacity,
    ) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if device.is_cuda() {
            let plan = crate::cuda::AttentionPlan::new(device, spec, cache, capacity)?;
            return Ok(Self::Cuda(Box::new(plan)));
        }
        if !device.is_cpu() {
            let device = device.location();
            return Err(Error::UnsupportedDevice { kernel: KERNEL, operand: "device", device });
        }
        check_spec(&spec, cache)?;
        Ok(Self::Reference(ReferencePlan { spec, cache: *cache, capacity, prepared: None }))
    }

    /// Plans a step and queues its schedule.
    ///
    /// # Errors
    /// The metadata contradicts itself or the cache, the step is larger than the capacity, or CUDA refused.
    pub fn prepare(&mut self, step: &AttentionStep<'_>) -> Result<()> {
        match self {
            Self::Reference(plan) => plan.prepare(step),
            #[cfg(feature = "cuda")]
            Self::Cuda(plan) => plan.prepare(step),
        }
    }

    /// Attention of the planned step in one layer: `out` = softmax(q k^T * scale) v over each query's
    /// sequence, causal, with the plan's window and `params.softcap`; with `sinks`, f32 `[heads]`, the softmax has a score of each
    /// head beside the others, whose part goes to nothing.
    ///
    /// `q` is `[tokens, heads, head_dim]`, `out` `[tokens, heads, value_dim]`; head `h` reads key-value head `h / (heads /
    /// kv_heads)`. This step's keys and values must be in the cache. The definition is
    /// [`crate::paged_attention_reference`].
    ///
    /// # Errors
    /// Nothing was prepared; `params.window` is not the plan's; an operand has the wrong dtype, shape,
    /// layout or device; or CUDA refused.
    pub fn attend(
        &self,
        q: &Tensor,
        layer: &PagedLayer,
        params: &PagedAttention,
        sinks: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        match self {
            Self::Reference(plan) => plan.attend(q, layer, params, sinks, out),
            #[cfg(feature = "cuda")]
            Self::Cuda(plan) => plan.attend(q, layer, params, sinks, out),
        }
    }
}

/// A plan that remembers its step.
#[derive(Debug)]
pub struct ReferencePlan {
    spec: AttentionSpec,
    cache: KvCacheConfig,
    capacity: PlanCapacity,
    prepared: Option<(AttentionMetadata, usize)>,
}

impl ReferencePlan {
    fn prepare(&mut self, step: &AttentionStep<'_>) -> Result<()> {
        self.prepared = None;
        check_step(step, self.spec.heads, &self.cache, &self.capacity)?;
        self.prepared = Some((step.meta.clone(), step.tokens));
        Ok(())
    }

    fn attend(
        &self,
        q: &Tensor,
        layer: &PagedLayer,
        params: &PagedAttention,
        sinks: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        let Some((meta, tokens)) = &self.prepared else {
            return Err(Error::Metadata("prepare() comes before attend()".into()));
        };
        check_window(params, &self.spec)?;
        let reference = Reference::new(KERNEL, "q", q)?;
        if q.dtype() != self.spec.dtype {
            let (found, operand) = (q.dtype(), "q");
            let expected = "the plan's dtype";
            return Err(Error::DType { kernel: KERNEL, operand, expected, found });
        }
        let (heads, head_dim) = (self.spec.heads, self.cache.head_dim);
        let value_dim = self.cache.value_dim();
        let dims = [*tokens, heads, head_dim];
        let axes = "[tokens, heads, head_dim]";
        let queries = reference.elements(("q", q), axes, &dims)?;
        let cache_dims = super::PagedCache::dims(&self.cache);
        let cache_axes = "[num_blocks, kv_heads, block_size, head_dim]";
        check_cache(layer, &self.spec)?;
        let sinks = match sinks {
            Some(sinks) => Some(reference.f32s(("sinks", sinks), "[heads]", &[heads])?),
            None => None,
        };
        let mut keys = reference.cached(("keys", &layer.keys), cache_axes, &cache_dims)?;
        let mut values = reference.cached(("values", &layer.values), cache_axes, &cache_dims)?;
        keys.iter_mut().for_each(|key| *key *= layer.scales.key);
        match self.cache.latent {
            // They are a part of the keys, and have their scale.
            Some(_) => {
                let rows = keys.chunks(head_dim).flat_map(|row| &row[..value_dim]);
                values = rows.copied().collect();
            }
            None => values.iter_mut().for_each(|value| *value *= layer.scales.value),
        }
        let mut attended = Vec::with_capacity(queries.len());
        for seq in meta.sequences(*tokens, &self.cache)? {
            let own = Blocks::gather(&self.cache, seq.block_table, &keys, &values);
            for query in 0..seq.num_queries {
                let row = &queries[(seq.first_token + query) * heads * head_dim..];
                for (head, q) in row.chunks(head_dim).take(heads).enumerate() {
                    let sink = sinks.as_ref().map(|sinks| sinks[head]);
                    let head = head / (heads / self.cache.num_kv_heads);
                    let position = seq.first_position + query;
                    attended.extend(own.attend(q, (head, sink), position, params));
                }
            }
        }
        let (axes, dims) = ("[tokens, heads, value_dim]", [*tokens, heads, value_dim]);
        reference.write(("out", out), axes, &dims, &attended)
    }
}

/// The blocks of one sequence as the CPU's definition reads them: keys are `[head_dim, block_size]` in a block.
struct Blocks {
    config: KvCacheConfig,
    block_table: Vec<u32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Blocks {
    fn gather(cache: &KvCacheConfig, blocks: &[u32], keys: &[f32], values: &[f32]) -> Self {
        let config = KvCacheConfig { num_blocks: blocks.len(), num_layers: 1, ..*cache };
        let of = |all: &[f32], len: usize| -> Vec<f32> {
            let block = |block: &u32| all[*block as usize * len..][..len].to_vec();
            blocks.iter().flat_map(block).collect()
        };
        let by_position = of(keys, cache.block_elements());
        let values = of(values, cache.value_elements());
        let by_token = KvCacheConfig { latent: None, ..config };
        let mut keys = vec![0.0; by_position.len()];
        for slot in 0..config.num_blocks * config.block_size {
            for head in 0..config.num_kv_heads {
                for dim in 0..config.head_dim {
                    let order = CacheOrder::Single;
                    let (key, value) =
                        reshape_and_cache_reference(&by_token, order, slot, (head, dim));
                    keys[key] = by_position[value];
                }
            }
        }
        let block_table = (0..blocks.len() as u32).collect();
        Self { config, block_table, keys, values }
    }

    /// The values of one query, of which the head of keys and values is given, and the sink of its own head.
    fn attend(
        &self,
        q: &[f32],
        (head, sink): (usize, Option<f32>),
        position: usize,
        params: &PagedAttention,
    ) -> Vec<f32> {
        let view = CacheView {
            keys: &self.keys,
            values: &self.values,
            config: &self.config,
            order: CacheOrder::Single,
            head,
        };
        paged_attention_reference(q, &view, &self.block_table, position, params, sink)
    }
}

/// Refuses a step that a plan for so many heads cannot take; returns its sequences.
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
        // FlashInfer counts elements of all queries in 32 bits.
        ("numbers of a step's queries", step.tokens * heads * cache.head_dim, u32::MAX as usize),
    ] {
        if value > bound {
            return Err(Error::OutOfRange { kernel: KERNEL, index, value, bound: bound + 1 });
        }
    }
    if sequences.is_empty() || step.tokens == 0 {
        return Err(Error::Metadata("a step without queries has no plan".into()));
    }
    let uniform = sequences.iter().all(|seq| seq.num_queries == sequences[0].num_queries);
    if step.launch == LaunchShape::Fixed && !uniform {
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

/// Refuses a layer whose elements are not the plan's.
pub(crate) fn check_cache(layer: &PagedLayer, spec: &AttentionSpec) -> Result<()> {
    for (operand, tensor) in [("keys", &layer.keys), ("values", &layer.values)] {
        if tensor.dtype() != spec.cache_dtype {
            let (expected, found) = ("the plan's cache_dtype", tensor.dtype());
            return Err(Error::DType { kernel: KERNEL, operand, expected, found });
        }
    }
    Ok(())
}

/// Refuses an attention that no cache of these dimensions serves.
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
