//! Causal self-attention over the paged cache.

use std::sync::Arc;

use candle_core::Tensor;
use candlepower_checkpoint::AttentionSpec;
use candlepower_kernels::{
    KvCache, PagedAttention, RopeTable, paged_attention, reshape_and_cache, rope,
};

use crate::{
    decoder::ForwardInput,
    error::Result,
    linear::Linear,
    norm::Norm,
    parts::{Part, Parts},
};

/// One layer's attention.
pub(crate) struct Attention {
    layer: usize,
    qkv: Linear,
    q_norm: Option<Norm>,
    k_norm: Option<Norm>,
    rope: Arc<RopeTable>,
    params: PagedAttention,
    out: Linear,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Attention {
    /// Takes a layer's attention.
    pub(crate) fn take(
        parts: &mut Parts,
        layer: usize,
        spec: &AttentionSpec,
        rope: Arc<RopeTable>,
    ) -> Self {
        let mut qk_norm =
            |part| spec.qk_norm.and_then(|norm| Norm::take(parts, Some(layer), part, &norm));
        Self {
            layer,
            q_norm: qk_norm(Part::QNorm),
            k_norm: qk_norm(Part::KNorm),
            qkv: Linear::take(parts, layer, Part::Qkv, Part::QkvBias),
            rope,
            params: PagedAttention {
                scale: spec.scale as f32,
                window: spec.window,
                softcap: spec.softcap.map(|cap| cap as f32),
            },
            out: Linear::take(parts, layer, Part::Out, Part::OutBias),
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
        }
    }

    /// `[tokens, hidden]` -> `[tokens, hidden]`; writes the tokens' keys and values to the cache.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        input: &ForwardInput,
        cache: &KvCache,
    ) -> Result<Tensor> {
        let qkv = self.qkv.forward(x)?;
        let tokens = qkv.dim(0)?;
        let heads_of = |first: usize, heads: usize| {
            let part = qkv.narrow(1, first * self.head_dim, heads * self.head_dim)?;
            part.contiguous()?.reshape((tokens, heads, self.head_dim))
        };
        let q = heads_of(0, self.heads)?;
        let k = heads_of(self.heads, self.kv_heads)?;
        let v = heads_of(self.heads + self.kv_heads, self.kv_heads)?;
        let q = self.position(&q, self.q_norm.as_ref(), input)?;
        let k = self.position(&k, self.k_norm.as_ref(), input)?;
        reshape_and_cache(&k, &v, cache, self.layer, &input.slot_mapping)?;
        let out = paged_attention(&q, cache, self.layer, &input.attention, &self.params)?;
        self.out.forward(&out.reshape((tokens, self.heads * self.head_dim))?)
    }

    /// Norms each head where the model does, and rotates it to its token's position.
    fn position(&self, x: &Tensor, norm: Option<&Norm>, input: &ForwardInput) -> Result<Tensor> {
        match norm {
            Some(norm) => Ok(rope(&norm.forward(x)?, &self.rope, &input.positions)?),
            None => Ok(rope(x, &self.rope, &input.positions)?),
        }
    }

    /// Bytes of the weights.
    pub(crate) fn num_bytes(&self) -> usize {
        let norms = self.q_norm.iter().chain(&self.k_norm).map(Norm::num_bytes);
        self.qkv.num_bytes() + self.out.num_bytes() + norms.sum::<usize>()
    }
}
