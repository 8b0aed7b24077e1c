//! A layer's multi-head latent attention: its weights and its dimensions.

use candlepower_checkpoint::{AttentionSpec, KvLayer, LatentSpec, NormKind, NormSpec, Slot};
use candlepower_kernels::{PagedAttention, RopeTable};

use crate::{
    attention::CachedLayer,
    error::Result,
    linear::Linear,
    norm::Norm,
    parts::{Matrix, Parts},
};

/// One layer's latent attention.
pub(crate) struct LatentAttention<M: Matrix> {
    /// The cache and the layer of its latents.
    pub(crate) kv_layer: KvLayer,
    /// The projection to latents of queries, and their norm.
    pub(crate) q_latent: Option<(Linear<M>, Norm)>,
    pub(crate) q: Linear<M>,
    pub(crate) kv_latent: Linear<M>,
    pub(crate) kv_norm: Norm,
    /// For each head the matrix `[latent, key_dim]` that makes queries as long as the cache's latents.
    pub(crate) key_up: M::All,
    /// For each head the matrix `[value_dim, latent]` that makes values of attended latents.
    pub(crate) value_up: M::All,
    pub(crate) rope: RopeTable,
    pub(crate) params: PagedAttention,
    pub(crate) out: Linear<M>,
    pub(crate) heads: usize,
    /// Elements of a head of queries, of which the last are rotated.
    pub(crate) q_dim: usize,
    pub(crate) spec: LatentSpec,
    /// Bytes of the matrices of heads.
    pub(crate) bytes: usize,
}

impl<M: Matrix> LatentAttention<M> {
    /// Takes the weights of a layer's attention, whose cache has latents.
    pub(crate) fn take(
        parts: &mut Parts<M>,
        CachedLayer { index: layer, kv_layer }: CachedLayer,
        attention: &AttentionSpec,
        rope: RopeTable,
    ) -> Result<Self> {
        let spec = attention.latent.as_ref().expect("only latent attention is taken here");
        let norm = NormSpec { kind: NormKind::Rms, eps: spec.eps };
        let mut norm_of = |part| -> Result<Norm> {
            let norm = parts.norm(Some(layer), part, &norm)?;
            Ok(norm.expect("the plan holds every norm of the spec"))
        };
        let kv_norm = norm_of(Slot::KvLatentNorm)?;
        let q_norm = spec.q_rank.map(|_| norm_of(Slot::QLatentNorm)).transpose()?;
        let mut linear = |part| Linear::without_bias(parts, layer, part);
        let q_latent = q_norm.map(|norm| (linear(Slot::QLatent), norm));
        let q = linear(if spec.q_rank.is_some() { Slot::QUp } else { Slot::Q });
        let (kv_latent, out) = (linear(Slot::KvLatent), linear(Slot::O));
        let (key_up, value_up) =
            (parts.of_heads(layer, Slot::KeyUp), parts.of_heads(layer, Slot::ValueUp));
        let bytes = key_up.iter().chain(&value_up).map(M::num_bytes).sum();
        Ok(Self {
            kv_layer,
            q_latent,
            q,
            kv_latent,
            kv_norm,
            key_up: M::all(key_up)?,
            value_up: M::all(value_up)?,
            rope,
            params: PagedAttention { scale: attention.scale as f32, window: None, softcap: None },
            out,
            heads: attention.heads,
            q_dim: attention.q_dim(),
            spec: *spec,
            bytes,
        })
    }

    pub(crate) fn num_bytes(&self) -> usize {
        let q_latent =
            self.q_latent.as_ref().map_or(0, |(down, norm)| down.num_bytes() + norm.num_bytes());
        let linears = [&self.q, &self.kv_latent, &self.out].map(Linear::num_bytes);
        q_latent + linears.iter().sum::<usize>() + self.kv_norm.num_bytes() + self.bytes
    }
}
