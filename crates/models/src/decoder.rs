//! The one decoder: a `ModelSpec` and its weights, run on the kernels.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use candlepower_checkpoint::{LayerSpec, ModelSpec};
use candlepower_kernels::{
    AttentionMetadata, KvCache, KvCacheConfig, RopeTable, Weight, embedding,
};
use half::{bf16, f16};

use crate::{
    attention::Attention,
    error::Result,
    linear::Linear,
    mlp::Mlp,
    norm::Norm,
    parts::{Part, Parts},
    rope::rope_table,
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
    spec: ModelSpec,
    max_model_len: usize,
    device: Device,
    embed: Arc<Weight>,
    embed_scale: f32,
    layers: Vec<DecoderLayer>,
    final_norm: Norm,
    head: Linear,
}

/// One layer. The norm before the attention belongs to the sum before it, so that the two are one
/// kernel.
struct DecoderLayer {
    attn_norm: Norm,
    attention: Attention,
    attn_post_norm: Option<Norm>,
    ffn_norm: Norm,
    mlp: Mlp,
    ffn_post_norm: Option<Norm>,
}

impl Decoder {
    /// Builds the model from its parts, with rope tables for `max_model_len` positions.
    pub(crate) fn new(
        spec: ModelSpec,
        mut parts: Parts,
        max_model_len: usize,
        device: Device,
    ) -> Result<Self> {
        let embed = Arc::new(parts.weight(None, Part::Embed));
        let head = match spec.head.tied {
            true => embed.clone(),
            false => Arc::new(parts.weight(None, Part::Head)),
        };
        let final_norm = Norm::take(&mut parts, None, Part::FinalNorm, &spec.final_norm);
        let mut tables: Vec<(usize, Arc<RopeTable>)> = Vec::new();
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (i, layer) in spec.layers.iter().enumerate() {
            let rope = &layer.attention.rope;
            let same = |(j, _): &&(usize, _)| spec.layers[*j].attention.rope == *rope;
            let table = match tables.iter().find(same) {
                Some((_, table)) => table.clone(),
                None => {
                    let table = Arc::new(rope_table(rope, max_model_len)?);
                    tables.push((i, table.clone()));
                    table
                }
            };
            layers.push(DecoderLayer::take(&mut parts, i, layer, table));
        }
        Ok(Self {
            max_model_len,
            device,
            embed_scale: round_to(embed.dtype(), spec.embed.scale),
            embed,
            layers,
            final_norm: final_norm.expect("the plan holds the final norm"),
            head: Linear::new(head),
            spec,
        })
    }

    /// Runs the layers on a step's tokens and writes their keys and values to the cache. Returns
    /// the hidden states `[tokens, hidden]` f32 after the final norm.
    ///
    /// # Errors
    /// The input's tensors do not fit together or to the cache, or a token id or position is beyond
    /// the model's.
    pub fn forward(&self, input: &ForwardInput, cache: &KvCache) -> Result<Tensor> {
        let mut x = embedding(&input.token_ids, &self.embed, self.embed_scale)?;
        let Some(first) = self.layers.first() else { return self.final_norm.forward(&x) };
        let mut normed = first.attn_norm.forward(&x)?;
        let next_norms = self.layers[1..].iter().map(|l| &l.attn_norm).chain([&self.final_norm]);
        for (layer, next_norm) in self.layers.iter().zip(next_norms) {
            let y = layer.attention.forward(&normed, input, cache)?;
            (x, normed) = layer.ffn_norm.add_forward(&x, &optional(&layer.attn_post_norm, y)?)?;
            let y = layer.mlp.forward(&normed)?;
            (x, normed) = next_norm.add_forward(&x, &optional(&layer.ffn_post_norm, y)?)?;
        }
        Ok(normed)
    }

    /// The logits `[rows, vocab]` f32 of some hidden states `[rows, hidden]`.
    ///
    /// # Errors
    /// `hidden` has another width.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let logits = self.head.forward(hidden)?;
        match self.spec.head.softcap {
            None => Ok(logits),
            Some(cap) => Ok(((logits / cap)?.tanh()? * cap)?),
        }
    }

    /// The model's description.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
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
    /// `ModelSpec::weight_bytes` says beforehand.
    pub fn weight_bytes(&self) -> usize {
        let layers = self.layers.iter().map(DecoderLayer::num_bytes);
        let head = if self.spec.head.tied { 0 } else { self.head.num_bytes() };
        self.embed.num_bytes() + head + self.final_norm.num_bytes() + layers.sum::<usize>()
    }

    /// The dtype of the embedding, which most matrices share.
    pub fn weight_dtype(&self) -> DType {
        self.embed.dtype()
    }

    /// An empty cache of `num_blocks` blocks of `block_size` tokens for this model.
    ///
    /// # Errors
    /// The memory cannot be had, or the sizes are not what the kernels take.
    pub fn new_kv_cache(&self, num_blocks: usize, block_size: usize) -> Result<KvCache> {
        let attention = &self.spec.layers[0].attention;
        let config = KvCacheConfig {
            num_layers: self.layers.len(),
            num_blocks,
            block_size,
            num_kv_heads: attention.kv_heads,
            head_dim: attention.head_dim,
        };
        Ok(KvCache::new(config, &self.device)?)
    }
}

/// The embedding's factor in the embedding's dtype: transformers casts it so, and models trained in
/// bfloat16 expect the rounded one. Source: transformers `Gemma2TextScaledWordEmbedding`.
fn round_to(dtype: DType, factor: f64) -> f32 {
    match dtype {
        DType::BF16 => bf16::from_f64(factor).to_f32(),
        DType::F16 => f16::from_f64(factor).to_f32(),
        _ => factor as f32,
    }
}

/// Applies a norm that not every model has.
fn optional(norm: &Option<Norm>, x: Tensor) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward(&x),
        None => Ok(x),
    }
}

impl DecoderLayer {
    fn take(parts: &mut Parts, i: usize, spec: &LayerSpec, rope: Arc<RopeTable>) -> Self {
        let mut norm = |part| Norm::take(parts, Some(i), part, &spec.norm);
        let attn_norm = norm(Part::AttnNorm).expect("the plan holds a norm before the attention");
        let ffn_norm = norm(Part::FfnNorm).expect("the plan holds a norm before the feed-forward");
        Self {
            attn_norm,
            attn_post_norm: norm(Part::AttnPostNorm),
            ffn_norm,
            ffn_post_norm: norm(Part::FfnPostNorm),
            attention: Attention::take(parts, i, &spec.attention, rope),
            mlp: Mlp::take(parts, i, &spec.mlp),
        }
    }

    /// Bytes of the layer's weights.
    fn num_bytes(&self) -> usize {
        let norms = [Some(&self.attn_norm), Some(&self.ffn_norm)]
            .into_iter()
            .chain([self.attn_post_norm.as_ref(), self.ffn_post_norm.as_ref()])
            .flatten()
            .map(Norm::num_bytes);
        self.attention.num_bytes() + self.mlp.num_bytes() + norms.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gemma 2 9B's factor, sqrt(3584).
    #[test]
    fn the_embedding_factor_is_rounded_as_the_weights_are() {
        let factor = 3584f64.sqrt();
        assert_eq!(round_to(DType::BF16, factor), 59.75);
        assert_eq!(round_to(DType::F16, factor), 59.875);
        assert_eq!(round_to(DType::F32, factor), factor as f32);
    }
}
