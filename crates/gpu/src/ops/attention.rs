//! Causal attention over the paged cache: planned once per step on the host, then run for each layer.

use candle_core::{Device, Tensor};
use candlepower_kernels::{
    AttentionMetadata, CacheOrder, CacheView, Error, KvCacheConfig, PagedAttention, Result,
    operands::SequenceView, paged_attention_reference, reshape_and_cache_reference,
};

use super::reference::Reference;
use crate::operands::{
    ATTENTION as KERNEL, AttentionSpec, AttentionStep, PagedCache, PagedLayer, PlanCapacity,
    check_cache, check_spec, check_step, check_window,
};

/// Memory and schedule of the attention of one step: call `prepare` once, then `attend` for each layer. All memory is
/// reserved in `new`.
#[derive(Debug)]
pub enum AttentionPlan {
    /// The reference implementation, on the CPU.
    Reference(ReferencePlan),
    /// FlashInfer's kernels.
    #[cfg(feature = "cuda")]
    Cuda(Box<crate::cuda::AttentionPlan>),
    /// The kernel whose sums have one order.
    #[cfg(feature = "cuda")]
    Ordered(Box<crate::cuda::OrderedAttentionPlan>),
}

impl AttentionPlan {
    /// Reserves the memory of plans for a cache of these dimensions.
    ///
    /// # Errors
    /// `spec` does not fit the cache, the device has no kernel for `head_dim`, or memory does not suffice.
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
        Self::reference(device, spec, cache, capacity)
    }

    /// Same as [`AttentionPlan::new`], but the output of a query depends on its own sequence up to its position alone, to
    /// the bit. The reference implementation has this property anyway.
    ///
    /// # Errors
    /// Same as [`AttentionPlan::new`]; or on a GPU, heads have more than 256 elements, or the cache is FP8 or has latents.
    pub fn in_fixed_order(
        device: &Device,
        spec: AttentionSpec,
        cache: &KvCacheConfig,
        capacity: PlanCapacity,
    ) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if device.is_cuda() {
            let plan = crate::cuda::OrderedAttentionPlan::new(device, spec, cache, capacity)?;
            return Ok(Self::Ordered(Box::new(plan)));
        }
        Self::reference(device, spec, cache, capacity)
    }

    /// Computes prompts by FlashInfer's kernel for Hopper where it is expected to be faster. Plans of the reference
    /// implementation, and those in a fixed order, stay as they are.
    ///
    /// # Errors
    /// The kernel was not compiled, or it does not support the plan's layers.
    #[cfg_attr(not(feature = "cuda"), allow(clippy::unnecessary_wraps))]
    pub fn with_hopper_prefill(self) -> Result<Self> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(plan) => Ok(Self::Cuda(Box::new(plan.with_hopper_prefill()?))),
            other => Ok(other),
        }
    }

    /// Computes decodes over an FP8 cache by `fp8_decode.cu`. Plans of the reference implementation stay as they are.
    ///
    /// # Errors
    /// The kernel does not support the plan's layers, or CUDA refused.
    #[cfg_attr(not(feature = "cuda"), allow(clippy::unnecessary_wraps))]
    pub fn with_fp8_decode(self) -> Result<Self> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda(plan) => Ok(Self::Cuda(Box::new(plan.with_fp8_decode()?))),
            other => Ok(other),
        }
    }

    fn reference(
        device: &Device,
        spec: AttentionSpec,
        cache: &KvCacheConfig,
        capacity: PlanCapacity,
    ) -> Result<Self> {
        if !device.is_cpu() {
            let device = device.location();
            return Err(Error::UnsupportedDevice { kernel: KERNEL, operand: "device", device });
        }
        check_spec(&spec, cache)?;
        Ok(Self::Reference(ReferencePlan { spec, cache: *cache, capacity, prepared: None }))
    }

    /// Plans a step and queues the copy of its schedule to the device.
    ///
    /// # Errors
    /// The metadata contradicts itself or the cache, the step is larger than the capacity, or CUDA refused.
    pub fn prepare(&mut self, step: &AttentionStep<'_>) -> Result<()> {
        match self {
            Self::Reference(plan) => plan.prepare(step),
            #[cfg(feature = "cuda")]
            Self::Cuda(plan) => plan.prepare(step),
            #[cfg(feature = "cuda")]
            Self::Ordered(plan) => plan.prepare(step),
        }
    }

    /// Computes the attention of the planned step in one layer: `out` = softmax(q k^T * scale) v over each query's
    /// sequence, causal, with the plan's window and `params.softcap`. `sinks`, f32 `[heads]`, are attention sink
    /// logits: each head's logit joins its softmax and has no value.
    ///
    /// `q` is `[tokens, heads, head_dim]`, `out` `[tokens, heads, value_dim]`; head `h` reads key-value head
    /// `h / (heads / kv_heads)`. This step's keys and values must be in the cache. The reference implementation is
    /// [`candlepower_kernels::paged_attention_reference`].
    ///
    /// # Errors
    /// Nothing was prepared; `params.window` is not the plan's; an operand has the wrong dtype, shape, layout or
    /// device; or CUDA refused.
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
            #[cfg(feature = "cuda")]
            Self::Ordered(plan) => plan.attend(q, layer, params, sinks, out),
        }
    }
}

/// The plan of the reference implementation, which only keeps the step.
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
        let cache_dims = PagedCache::dims(&self.cache);
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
            // The values are a part of the keys, and have the keys' scale.
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

/// The blocks of one sequence in the layout of the CPU's reference implementation: in a block, keys are
/// `[head_dim, block_size]`.
struct Blocks {
    config: KvCacheConfig,
    block_table: Vec<u32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Blocks {
    fn gather(cache: &KvCacheConfig, blocks: &[u32], keys: &[f32], values: &[f32]) -> Self {
        // The reference gets a cache of this sequence alone, whose blocks are numbered from 0.
        let config = KvCacheConfig { num_blocks: blocks.len(), num_layers: 1, ..*cache };
        let of = |all: &[f32], len: usize| -> Vec<f32> {
            let block = |block: &u32| all[*block as usize * len..][..len].to_vec();
            blocks.iter().flat_map(block).collect()
        };
        let by_position = of(keys, cache.block_elements());
        let values = of(values, cache.value_elements());
        // On a device keys lie as the reference has values, so that its index of a value finds the key.
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

    /// Output of one query head, for the given key-value head and the query head's sink logit.
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
        let seq = SequenceView { block_table: &self.block_table, ..SequenceView::default() };
        paged_attention_reference(q, &view, &seq, position, params, sink)
    }
}
