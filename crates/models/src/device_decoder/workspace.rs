//! The memory of steps on a device, which is reserved once.

use std::cell::RefCell;

use candle_core::{DType, Tensor};
use candlepower_checkpoint::{
    ExpertsSpec, KvKind, KvLayer, LATENT_PARTIALS_BYTES, attention_partials_bytes,
    device_latent_tokens,
};
use candlepower_gpu::{
    AttentionPlan, AttentionSpec, AttentionStep, DecodeKernelOfFp8, Fp8DecodeChoice, Fusions,
    Matmul, PagedCache, PlanCapacity, PrefillChoice, PrefillKernel, Routing, StatePool,
    fp8_decode_kernel,
};
use candlepower_kernels::KvCacheConfig;
use serde::{Deserialize, Serialize};

use super::{
    DeviceDecoder,
    generations::{Generations, Region},
};
use crate::{
    error::{Error, Result},
    ops::Buffer,
    states::state_config,
};

/// The memory of steps: intermediate results, schedules of attention, the cache, and the states of sequences.
pub struct Workspace {
    /// One for each of the model's `kv_kinds`.
    pub(super) caches: Vec<PagedCache>,
    /// The recurrent states, where layers have such.
    pub(super) states: Option<StatePool>,
    /// Planned again within a step where not all tokens are output tokens.
    pub(super) plans: RefCell<Vec<PlanOf>>,
    /// The kernels for the prompts of these plans.
    pub(super) prefill: Vec<PrefillChoice>,
    /// The kernel for decodes over an FP8 cache, likewise.
    pub(super) fp8_decodes: Vec<Fp8DecodeChoice>,
    pub(super) matmul: Matmul,
    /// The validity of results in the buffers below.
    pub(super) generations: Generations,
    /// `[max_tokens, hidden]`.
    pub(super) residual: Tensor,
    /// `[max_tokens, hidden]`.
    pub(super) normed: Tensor,
    /// `[max_tokens, hidden]`: rows that are added to the residual.
    pub(super) branch: Tensor,
    /// `max_tokens` rows of q, k and v, of a delta net, of gate and up, or of the experts of a token.
    pub(super) wide: Tensor,
    /// `max_tokens` rows of q, of decay and beta inputs, of activated gates, or of the scores of experts.
    pub(super) inner: Tensor,
    /// `max_tokens` rows of heads, or of the routed experts where a shared expert has the branch.
    pub(super) attended: Tensor,
    /// `max_tokens` rows of per-layer embeddings, where the model has such.
    pub(super) per_layer: Option<Tensor>,
    /// `[max_rows, hidden]`.
    pub(super) last: Tensor,
    /// `[max_rows, vocab]`.
    pub(super) logits: Tensor,
    /// f32 `[max_tokens, 2]`, where norms of q and k are over all heads.
    pub(super) square_sums: Option<Tensor>,
    /// The routing tables, where there are experts.
    pub(super) routing: Option<Routing>,
    /// Gathered logits, where there are ranks.
    pub(super) gathered: Option<Gathered>,
}

/// The plan of the attentions that have one cache and one window.
pub(super) struct PlanOf {
    kind: usize,
    window: Option<usize>,
    plan: AttentionPlan,
}

/// Buffers for the logits of all ranks.
pub(super) struct Gathered {
    /// This rank's logits, `[max_rows, tokens]`.
    pub(super) own: Tensor,
    /// The logits of each rank, one after the other.
    pub(super) all: Tensor,
}

/// The largest step, and the size of the cache.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
pub struct WorkspaceSize {
    /// Tokens of a step.
    pub max_tokens: usize,
    /// Sequences of a step.
    pub max_seqs: usize,
    /// Rows of logits that exist at a time.
    pub max_rows: usize,
    /// Recurrent states, where layers have such.
    pub num_states: usize,
    /// Blocks of the cache.
    pub num_blocks: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Whether keys and values are kept in FP8 (e4m3), or in the model's dtype.
    pub fp8_cache: bool,
    /// Whether a token's results depend on its own sequence alone, to the bit: not on the other tokens of a step.
    pub deterministic: bool,
}

impl DeviceDecoder {
    /// Reserves the memory for steps of up to this size, with an empty cache. A cache in FP8 has the checkpoint's scales of keys and
    /// values, if there are any.
    ///
    /// # Errors
    /// Memory does not suffice, the sizes are not what the kernels take, or the scales cannot be used.
    pub fn workspace(&self, size: WorkspaceSize) -> Result<Workspace> {
        // FlashInfer's plan has a fixed number of tiles, each of some tokens and heads.
        for attention in self.spec.attentions().filter(|attention| attention.latent.is_some()) {
            let (asked, most) =
                (size.max_tokens, device_latent_tokens(attention.heads, size.max_seqs));
            if asked > most {
                return Err(Error::LatentTokens { asked, most });
            }
        }
        let config = |kind: &KvKind| KvCacheConfig {
            num_layers: kind.layers,
            num_blocks: size.num_blocks,
            block_size: size.block_size,
            num_kv_heads: kind.kv_heads,
            head_dim: kind.on_device().head_dim,
            latent: kind.on_device().latent,
        };
        let has_sinks = self.spec.attentions().any(|attention| attention.sinks);
        let capacity = |of: &KvCacheConfig| PlanCapacity {
            max_seqs: size.max_seqs,
            // Each sequence may be as long as the context, and its last block may be partly full.
            max_pages: size.max_seqs * self.max_model_len.div_ceil(size.block_size),
            partials_bytes: match of.latent {
                Some(_) => LATENT_PARTIALS_BYTES,
                None => attention_partials_bytes(of.head_dim, of.num_kv_heads, size.max_seqs),
            },
            sink_tokens: if has_sinks { size.max_tokens } else { 0 },
        };
        let cache_dtype = if size.fp8_cache { DType::F8E4M3 } else { self.dtype };
        let kinds = self.spec.kv_kinds();
        let mut caches = Vec::with_capacity(kinds.len());
        for (i, kind) in kinds.iter().enumerate() {
            let mut cache = PagedCache::new(config(kind), cache_dtype, &self.device)?;
            if size.fp8_cache {
                cache = cache.with_scales(&self.kv_scales.of_kind(&self.spec, i)?)?;
            }
            caches.push(cache);
        }
        let mut plans: Vec<PlanOf> = Vec::new();
        let (mut prefill, mut fp8_decodes) = (Vec::new(), Vec::new());
        for (layer, spec) in self.spec.layers.iter().enumerate() {
            let Some((attention, kv_layer)) = spec.attention().zip(self.spec.kv_layer(layer))
            else {
                continue;
            };
            let (kind, window) = (kv_layer.kind, attention.window);
            // Layers with the same cache and the same window have the same schedule.
            if plans.iter().any(|plan| (plan.kind, plan.window) == (kind, window)) {
                continue;
            }
            let spec =
                AttentionSpec { heads: attention.heads, window, dtype: self.dtype, cache_dtype };
            let config = config(&kinds[kind]);
            let new = match size.deterministic {
                true => AttentionPlan::in_fixed_order,
                false => AttentionPlan::new,
            };
            let mut plan = new(&self.device, spec, &config, capacity(&config))?;
            if !size.deterministic {
                let decode = fp8_decode_kernel(&self.device, &spec, &config)?;
                if decode.kernel == DecodeKernelOfFp8::Own {
                    plan = plan.with_fp8_decode()?;
                }
                fp8_decodes.push(decode);
                let choice = self.prefill_kernel(spec, &config, kv_layer.kind)?;
                if choice.kernel == PrefillKernel::Hopper {
                    plan = plan.with_hopper_prefill()?;
                }
                prefill.push(choice);
            }
            plans.push(PlanOf { kind, window, plan });
        }
        let buffer =
            // The buffers are flat: each result takes the first elements in its own shape.
            |rows: usize, width: usize| Tensor::zeros(rows * width, self.dtype, &self.device);
        let gathered = match self.ranks {
            Some(_) => Some(Gathered {
                own: buffer(size.max_rows, self.spec.vocab_size)?,
                all: buffer(size.max_rows, self.vocab_size())?,
            }),
            None => None,
        };
        let (tokens, hidden) = (size.max_tokens, self.spec.hidden_size);
        // All MoE layers have the same number of experts.
        let experts = self.spec.layers.iter().find_map(|layer| layer.ffn.experts());
        let routing = |experts: &ExpertsSpec| {
            Routing::new(tokens, experts.count, experts.top_k, &self.device)
        };
        let square_sums = || Tensor::zeros(2 * tokens, DType::F32, &self.device);
        let widths = self.spec.device_widths(1);
        let states = state_config(&self.spec, None, size.num_states);
        let states = states.map(|config| StatePool::new(config, tokens, self.dtype, &self.device));
        let matmul = Matmul::new(
            &self.device,
            // The layers multiply rows of tokens, the head rows of logits.
            tokens.max(size.max_rows),
            self.dtype,
            self.spec.device_unpacked_bytes(),
            self.spec.device_fp8_width(1),
        )?;
        Ok(Workspace {
            caches,
            states: states.transpose()?,
            plans: RefCell::new(plans),
            prefill,
            fp8_decodes,
            generations: Generations::default(),
            matmul: if size.deterministic { matmul.with_fixed_order() } else { matmul },
            residual: buffer(tokens, hidden)?,
            normed: buffer(tokens, hidden)?,
            branch: buffer(tokens, hidden)?,
            wide: buffer(tokens, widths.wide)?,
            inner: buffer(tokens, widths.inner)?,
            attended: buffer(tokens, widths.attended)?,
            per_layer: match &self.spec.per_layer {
                Some(of) => Some(buffer(tokens, of.width * self.spec.layers.len())?),
                None => None,
            },
            last: buffer(size.max_rows, hidden)?,
            logits: buffer(size.max_rows, self.vocab_size())?,
            square_sums: self.spec.norms_all_heads().then(square_sums).transpose()?,
            routing: experts.map(routing).transpose()?,
            gathered,
        })
    }
}

impl Workspace {
    pub(super) fn buffer(&self, region: Region) -> &Tensor {
        match region {
            Region::Residual => &self.residual,
            Region::Normed => &self.normed,
            Region::PerLayer => {
                let buffer = self.per_layer.as_ref();
                buffer.expect("the workspace has a buffer for per-layer embeddings")
            }
            Region::Fp8 => unreachable!("`Matmul::fp8_rows` gives the buffer of rows in FP8"),
            Region::Of(Buffer::Wide) => &self.wide,
            Region::Of(Buffer::Inner) => &self.inner,
            Region::Of(Buffer::Branch) => &self.branch,
            Region::Of(Buffer::Attended) => &self.attended,
        }
    }

    /// Uses these fused kernels, whatever the environment says.
    #[cfg_attr(not(feature = "cuda"), allow(clippy::missing_const_for_fn))]
    pub fn set_fusions(&mut self, fusions: Fusions) {
        self.matmul.set_fusions(fusions);
    }

    /// Plans the attention of a step.
    ///
    /// # Errors
    /// The metadata contradicts itself or the cache, the step is too large, or CUDA refused.
    pub fn prepare(&mut self, step: &AttentionStep<'_>) -> Result<()> {
        plan_all(self.plans.get_mut(), step)
    }

    /// The caches of each of the model's `kv_kinds`. A block id names the same tokens in all of them.
    pub fn caches(&self) -> &[PagedCache] {
        &self.caches
    }

    /// The recurrent states, where layers have such.
    pub fn states(&self) -> Option<&StatePool> {
        self.states.as_ref()
    }
}

pub(super) fn plan_all(plans: &mut [PlanOf], step: &AttentionStep<'_>) -> Result<()> {
    plans.iter_mut().try_for_each(|of| Ok(of.plan.prepare(step)?))
}

pub(super) fn plan_of(
    plans: &[PlanOf],
    kv_layer: KvLayer,
    window: Option<usize>,
) -> &AttentionPlan {
    let same = |of: &&PlanOf| (of.kind, of.window) == (kv_layer.kind, window);
    let plan = plans.iter().find(same);
    &plan.expect("the workspace has a plan for each cache and window of the model").plan
}
