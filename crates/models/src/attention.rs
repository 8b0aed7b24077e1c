//! A layer's attention: its weights and its dimensions.

use candle_core::Tensor;
use candlepower_checkpoint::{AttentionSpec, KvLayer, QkNormSpan, Slot};
use candlepower_kernels::{PagedAttention, RopeTable};

use crate::{
    error::Result,
    linear::Linear,
    norm::{Norm, tensor_bytes},
    parts::{Matrix, Parts},
};

/// A layer that has keys and values in a cache.
#[derive(Clone, Copy)]
pub(crate) struct CachedLayer {
    /// Its index in the model.
    pub(crate) index: usize,
    /// The cache and the layer of its keys and values there.
    pub(crate) kv_layer: KvLayer,
}

/// One layer's attention.
pub(crate) struct Attention<M> {
    /// The cache and the layer of its keys and values.
    pub(crate) kv_layer: KvLayer,
    /// Whether it computes keys and values. Otherwise it has queries alone, and reads those of another layer.
    pub(crate) has_keys: bool,
    pub(crate) qkv: Linear<M>,
    /// The gate of the attended rows.
    pub(crate) gate: Option<Linear<M>>,
    pub(crate) q_norm: Option<Norm>,
    pub(crate) k_norm: Option<Norm>,
    /// The elements that these norms norm together.
    pub(crate) norm_span: QkNormSpan,
    pub(crate) rope: RopeTable,
    pub(crate) params: PagedAttention,
    /// Tokens see later tokens, too.
    pub(crate) both_ways: bool,
    /// The epsilon of the norm of each head of v, where there is such a norm.
    pub(crate) v_norm: Option<f32>,
    /// f32 `[heads]`: the attention sink logits.
    pub(crate) sinks: Option<Tensor>,
    pub(crate) out: Linear<M>,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// Elements of a head in the cache, padding included.
    pub(crate) head_dim: usize,
    /// Elements of a head that are not padding.
    pub(crate) head_len: usize,
}

impl<M: Matrix> Attention<M> {
    /// Takes the weights of a layer's attention.
    pub(crate) fn take(
        parts: &mut Parts<M>,
        CachedLayer { index: layer, kv_layer }: CachedLayer,
        spec: &AttentionSpec,
        rope: RopeTable,
    ) -> Result<Self> {
        let head_dim = parts.layout().padded_head(spec.head_dim);
        let mut head_norm = |part| match &spec.qk_norm {
            Some(norm) => parts.head_norm(layer, part, norm, spec.head_dim),
            None => Ok(None),
        };
        let (q_norm, k_norm) = (head_norm(Slot::QNorm)?, head_norm(Slot::KNorm)?);
        let gate = || Linear::without_bias(parts, layer, Slot::AttnGate);
        Ok(Self {
            kv_layer,
            has_keys: spec.keys_of.is_none(),
            gate: spec.gated.then(gate),
            q_norm,
            k_norm,
            norm_span: spec.qk_norm.map_or(QkNormSpan::Head, |norm| norm.span),
            qkv: Linear::take(parts, layer, Slot::Q, Slot::QBias)?,
            rope,
            params: PagedAttention {
                scale: spec.scale as f32,
                window: spec.window,
                softcap: spec.softcap.map(|cap| cap as f32),
            },
            both_ways: spec.both_ways,
            v_norm: spec.v_norm.map(|eps| eps as f32),
            sinks: parts.exact(layer, Slot::Sinks)?,
            out: Linear::take(parts, layer, Slot::O, Slot::OBias)?,
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim,
            head_len: spec.head_dim,
        })
    }

    pub(crate) fn num_bytes(&self) -> usize {
        let norms = self.q_norm.iter().chain(&self.k_norm).map(Norm::num_bytes);
        let sinks = self.sinks.as_ref().map_or(0, tensor_bytes);
        let gate = self.gate.as_ref().map_or(0, Linear::num_bytes);
        self.qkv.num_bytes() + gate + self.out.num_bytes() + norms.sum::<usize>() + sinks
    }
}
