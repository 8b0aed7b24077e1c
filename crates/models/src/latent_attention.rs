//! A layer's multi-head latent attention: its parts, and what is computed of them.

use candle_core::Tensor;
use candlepower_checkpoint::{AttentionSpec, KvPlace, LatentSpec, NormKind, NormSpec, Slot};
use candlepower_kernels::{PagedAttention, RopeTable};

use crate::{
    error::Result,
    layers::{Linear, Norm, Ops, Place},
    parts::{Matrix, Parts},
};

/// One layer's latent attention.
pub(crate) struct LatentAttention<M: Matrix> {
    /// Where its latents lie.
    pub(crate) place: KvPlace,
    /// What latents of queries are made by, and their norm.
    q_latent: Option<(Linear<M>, Norm)>,
    q: Linear<M>,
    kv_latent: Linear<M>,
    pub(crate) kv_norm: Norm,
    /// What queries of each head are multiplied by, as long as latents are in the cache `[latent, key_dim]`.
    pub(crate) key_up: M::All,
    /// What makes values of each head of latents as long `[value_dim, latent]`.
    pub(crate) value_up: M::All,
    pub(crate) rope: RopeTable,
    pub(crate) params: PagedAttention,
    out: Linear<M>,
    pub(crate) heads: usize,
    /// Elements of a head of queries, of which the last are rotated.
    pub(crate) q_dim: usize,
    pub(crate) spec: LatentSpec,
    /// Bytes of the matrices of heads.
    bytes: usize,
}

impl<M: Matrix> LatentAttention<M> {
    /// Takes the parts of the attention of layer `layer`, whose latents lie at `place`.
    pub(crate) fn take(
        parts: &mut Parts<M>,
        (layer, place): (usize, KvPlace),
        (attention, spec): (&AttentionSpec, &LatentSpec),
        rope: RopeTable,
    ) -> Result<Self> {
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
            place,
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

    /// `[tokens, hidden]` -> `[tokens, hidden]`.
    pub(crate) fn forward<O: Ops<Matrix = M>>(&self, ops: &O, x: &Tensor) -> Result<Tensor> {
        let q = match &self.q_latent {
            Some((down, norm)) => {
                let latents = ops.post_norm(ops.linear(x, down, Place::Narrow)?, norm)?;
                ops.linear(&latents, &self.q, Place::Wide)?
            }
            None => ops.linear(x, &self.q, Place::Wide)?,
        };
        let latents = ops.linear(x, &self.kv_latent, Place::Narrow)?;
        ops.linear(&ops.attend_latents(&q, &latents, self)?, &self.out, Place::Branch)
    }

    pub(crate) fn num_bytes(&self) -> usize {
        let q_latent =
            self.q_latent.as_ref().map_or(0, |(down, norm)| down.num_bytes() + norm.num_bytes());
        let linears = [&self.q, &self.kv_latent, &self.out].map(Linear::num_bytes);
        q_latent + linears.iter().sum::<usize>() + self.kv_norm.num_bytes() + self.bytes
    }
}
