//! The decoder on the CPU: packed weights, f32 activations.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use candlepower_checkpoint::{EmbedSpec, ModelSpec};
use candlepower_comm::Comm;
use candlepower_kernels::{
    Activation, AttentionMetadata, KvCache, KvCacheConfig, VocabPart, Weight, add_rms_norm,
    embedding_part, gated_activation, linear, paged_attention, reshape_and_cache, rms_norm, rope,
};
use half::{bf16, f16};

use crate::{
    collectives::{all_gather_columns, all_reduce},
    error::Result,
    layers::{Attention, Layers, Linear, Norm, Ops, Place},
    parts::Parts,
};

/// What one step computes: some tokens of some sequences, one sequence after the other.
pub struct ForwardInput {
    /// `[tokens]` u32.
    pub token_ids: Tensor,
    /// `[tokens]` u32: each token's position in its sequence.
    pub positions: Tensor,
    /// `[tokens]` u32: where each token's key and value go, `block * block_size + offset`.
    pub slot_mapping: Tensor,
    /// Which tokens are whose, and where each sequence's keys and values lie.
    pub attention: AttentionMetadata,
}

/// A decoder-only language model with its weights.
pub struct Decoder {
    /// What this rank computes.
    spec: ModelSpec,
    comm: Arc<Comm>,
    max_model_len: usize,
    device: Device,
    embed_scale: f32,
    layers: Layers<Weight>,
}

impl Decoder {
    /// Builds the model from its parts, with rope tables for `max_model_len` positions.
    pub(crate) fn new(
        spec: ModelSpec,
        parts: Parts<Weight>,
        max_model_len: usize,
        comm: Arc<Comm>,
    ) -> Result<Self> {
        let device = parts.layout().device.clone();
        let layers = Layers::take(&spec, parts, max_model_len)?;
        let embed_scale = embed_scale(&spec.embed, layers.embed.dtype());
        Ok(Self { spec, comm, max_model_len, device, embed_scale, layers })
    }

    /// Runs the layers on a step's tokens and writes their keys and values to the cache. Returns
    /// the hidden states `[tokens, hidden]` f32 after the final norm.
    ///
    /// # Errors
    /// The input's tensors do not fit together or to the cache, or a token id or position is beyond
    /// the model's.
    pub fn forward(&self, input: &ForwardInput, cache: &KvCache) -> Result<Tensor> {
        self.layers.forward(&CpuOps {
            input,
            cache,
            embed_scale: self.embed_scale,
            comm: &self.comm,
        })
    }

    /// The logits `[rows, vocab]` f32 of some hidden states `[rows, hidden]`.
    ///
    /// # Errors
    /// `hidden` has another width.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let mut logits = linear(hidden, &self.layers.head.weight, None)?;
        let head = &self.spec.head;
        if head.scale != 1.0 {
            logits = (logits * head.scale)?;
        }
        if let Some(cap) = head.softcap {
            logits = ((logits / cap)?.tanh()? * cap)?;
        }
        all_gather_columns(&self.comm, logits)
    }

    /// The description of what this rank computes: the whole model, where there is one rank.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The ranks of the model.
    pub fn comm(&self) -> &Arc<Comm> {
        &self.comm
    }

    /// How many positions the model was loaded for, in tokens.
    pub fn max_model_len(&self) -> usize {
        self.max_model_len
    }

    /// Where the model is.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes of the weights as loaded: matrices packed, in their dtype; norms and biases in f32. What
    /// `ModelSpec::rank_weight_bytes` says beforehand, but for the few biases that only rank 0 has.
    pub fn weight_bytes(&self) -> usize {
        self.layers.num_bytes()
    }

    /// The dtype of the embedding, which most matrices share.
    pub fn weight_dtype(&self) -> DType {
        self.layers.embed.dtype()
    }

    /// An empty cache of `num_blocks` blocks of `block_size` tokens for this model.
    ///
    /// # Errors
    /// The memory cannot be had, or the sizes are not what the kernels take.
    pub fn new_kv_cache(&self, num_blocks: usize, block_size: usize) -> Result<KvCache> {
        let attention = &self.spec.layers[0].attention;
        let config = KvCacheConfig {
            num_layers: self.spec.layers.len(),
            num_blocks,
            block_size,
            num_kv_heads: attention.kv_heads,
            head_dim: attention.head_dim,
        };
        Ok(KvCache::new(config, &self.device)?)
    }
}

/// The embedding's factor; Gemma's is in the embedding's dtype: transformers casts it so, and models trained in bfloat16
/// expect the rounded one. Source: transformers `Gemma2TextScaledWordEmbedding`.
pub(crate) fn embed_scale(spec: &EmbedSpec, dtype: DType) -> f32 {
    match dtype {
        DType::BF16 if spec.rounded => bf16::from_f64(spec.scale).to_f32(),
        DType::F16 if spec.rounded => f16::from_f64(spec.scale).to_f32(),
        _ => spec.scale as f32,
    }
}

/// The operations on the CPU, over one step; each makes its result.
struct CpuOps<'a> {
    input: &'a ForwardInput,
    cache: &'a KvCache,
    embed_scale: f32,
    comm: &'a Comm,
}

impl Ops for CpuOps<'_> {
    type Matrix = Weight;

    fn embed(&self, table: &Weight) -> Result<Tensor> {
        let part = VocabPart {
            first: self.comm.rank() * table.n(),
            vocab_size: self.comm.size() * table.n(),
        };
        let found = embedding_part(&self.input.token_ids, table, self.embed_scale, part)?;
        all_reduce(self.comm, found)
    }

    fn norm(&self, residual: &Tensor, norm: &Norm) -> Result<Tensor> {
        Ok(rms_norm(residual, &norm.weight, norm.eps)?)
    }

    fn post_norm(&self, x: Tensor, norm: &Norm) -> Result<Tensor> {
        self.norm(&x, norm)
    }

    fn add_norm(&self, residual: Tensor, x: &Tensor, norm: &Norm) -> Result<(Tensor, Tensor)> {
        Ok(add_rms_norm(&residual, x, &norm.weight, norm.eps)?)
    }

    fn linear(&self, x: &Tensor, layer: &Linear<Weight>, place: Place) -> Result<Tensor> {
        let product = linear(x, &layer.weight, layer.bias.as_ref())?;
        match place {
            // Each rank has outputs of its own.
            Place::Wide => Ok(product),
            // Each rank has some of the inputs.
            Place::Branch => all_reduce(self.comm, product),
        }
    }

    fn attend(&self, qkv: &Tensor, a: &Attention<Weight>) -> Result<Tensor> {
        let tokens = qkv.dim(0)?;
        let heads_of = |first: usize, heads: usize| {
            let part = qkv.narrow(1, first * a.head_dim, heads * a.head_dim)?;
            part.contiguous()?.reshape((tokens, heads, a.head_dim))
        };
        // Norms each head where the model does, and rotates it to its token's position.
        let position = |x: Tensor, norm: &Option<Norm>| -> Result<Tensor> {
            let x = norm.as_ref().map_or(Ok(x.clone()), |norm| self.norm(&x, norm))?;
            Ok(rope(&x, &a.rope, &self.input.positions)?)
        };
        let q = position(heads_of(0, a.heads)?, &a.q_norm)?;
        let k = position(heads_of(a.heads, a.kv_heads)?, &a.k_norm)?;
        let v = heads_of(a.heads + a.kv_heads, a.kv_heads)?;
        reshape_and_cache(&k, &v, self.cache, a.layer, &self.input.slot_mapping)?;
        let out = paged_attention(&q, self.cache, a.layer, &self.input.attention, &a.params)?;
        Ok(out.reshape((tokens, a.heads * a.head_dim))?)
    }

    fn activate(&self, gate_up: &Tensor, act: Activation) -> Result<Tensor> {
        Ok(gated_activation(gate_up, act)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gemma 2 9B's factor, sqrt(3584).
    #[test]
    fn the_embedding_factor_is_rounded_as_the_weights_are() {
        let scale = 3584f64.sqrt();
        let of = |rounded, dtype| embed_scale(&EmbedSpec { scale, rounded }, dtype);
        assert_eq!(of(true, DType::BF16), 59.75);
        assert_eq!(of(true, DType::F16), 59.875);
        assert_eq!(of(true, DType::F32), scale as f32);
        assert_eq!(of(false, DType::BF16), scale as f32);
    }
}
