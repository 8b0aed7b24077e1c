//! A layer of a vision tower.

use candle_core::{DType, Tensor};
use candlepower_checkpoint::{TowerLayerSpec, VisionSlot as Slot};
use candlepower_kernels::{
    AxialRope, PatchAttention, Weight, activation, add, axial_rope, gated_linear, layer_norm,
    linear, rms_norm,
};

use super::weights::Loader;
use crate::{error::Result, linear::Linear, norm::tensor_bytes};

/// A norm of a tower.
pub(super) struct TowerNorm {
    /// `[width]`.
    pub(super) weight: Tensor,
    pub(super) kind: TowerNormKind,
    pub(super) eps: f32,
}

/// Kind of a norm, with the form of its weight that kernels take.
pub(super) enum TowerNormKind {
    Rms,
    /// LayerNorm, with its bias `[width]` where there is one.
    Layer(Option<Tensor>),
}

impl TowerNorm {
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(match &self.kind {
            TowerNormKind::Rms => rms_norm(x, &self.weight, self.eps)?,
            TowerNormKind::Layer(bias) => layer_norm(x, &self.weight, bias.as_ref(), self.eps)?,
        })
    }

    pub(super) fn num_bytes(&self) -> usize {
        let bias = match &self.kind {
            TowerNormKind::Layer(Some(bias)) => tensor_bytes(bias),
            _ => 0,
        };
        tensor_bytes(&self.weight) + bias
    }
}

/// `x W^T + b`.
pub(super) fn affine(x: &Tensor, by: &Linear<Weight>) -> Result<Tensor> {
    Ok(linear(x, &by.weight, by.bias.as_ref())?)
}

/// A layer: `x + attention(norm(x))`, then `x + feed-forward(norm(x))`. Each step but attention looks at one row alone.
pub(super) struct TowerLayer {
    spec: TowerLayerSpec,
    attention_norm: TowerNorm,
    /// Queries, keys and values `[3 * heads * head_dim, width]`.
    qkv: Linear<Weight>,
    out: Linear<Weight>,
    ffn_norm: TowerNorm,
    /// Gate and up `[2 * inner, width]`, or up alone.
    up: Linear<Weight>,
    down: Linear<Weight>,
}

impl TowerLayer {
    pub(super) fn load(loader: &Loader<'_>, layer: usize) -> Result<Self> {
        let spec = loader.spec().layer;
        let (at, norm) = (Some(layer), &spec.norm);
        let up: &[_] = match spec.gated {
            true => &[(Slot::Gate, Slot::GateBias), (Slot::Up, Slot::UpBias)],
            false => &[(Slot::Up, Slot::UpBias)],
        };
        let qkv: &[_] = match spec.fused_qkv {
            true => &[(Slot::Qkv, Slot::QkvBias)],
            false => &[(Slot::Q, Slot::QBias), (Slot::K, Slot::KBias), (Slot::V, Slot::VBias)],
        };
        Ok(Self {
            spec,
            attention_norm: loader.norm(at, norm, [Slot::AttnNorm, Slot::AttnNormBias])?,
            qkv: loader.linear(at, qkv)?,
            out: loader.linear(at, &[(Slot::O, Slot::OBias)])?,
            ffn_norm: loader.norm(at, norm, [Slot::FfnNorm, Slot::FfnNormBias])?,
            up: loader.linear(at, up)?,
            down: loader.linear(at, &[(Slot::Down, Slot::DownBias)])?,
        })
    }

    pub(super) fn num_bytes(&self) -> usize {
        let linears = [&self.qkv, &self.out, &self.up, &self.down];
        let norms = self.attention_norm.num_bytes() + self.ffn_norm.num_bytes();
        norms + linears.into_iter().map(Linear::num_bytes).sum::<usize>()
    }

    /// Queries, keys and values `[rows, 3 * heads * head_dim]` of patches from `first` on, with hidden states `x` `[rows, width]`.
    /// Queries and keys are rotated by the patches' places where the tower does so.
    pub(super) fn project(
        &self,
        x: &Tensor,
        first: usize,
        rope: Option<&AxialRope>,
    ) -> Result<Tensor> {
        let projected = affine(&self.attention_norm.forward(x)?, &self.qkv)?;
        match rope {
            Some(rope) => Ok(axial_rope(&projected, 2 * self.spec.heads, first, rope)?),
            None => Ok(projected),
        }
    }

    /// The attention of a picture, from the queries, keys and values of all patches.
    pub(super) fn attention(&self, qkv: Tensor) -> Result<PatchAttention> {
        let TowerLayerSpec { heads, head_dim, .. } = self.spec;
        // Rounded to bf16 as the other products of the layer, or not.
        let dtype = match self.qkv.weight.dtype() {
            DType::BF16 => DType::BF16,
            _ => DType::F32,
        };
        Ok(PatchAttention::new(qkv, heads, (head_dim as f32).powf(-0.5), dtype)?)
    }

    /// The next layer's hidden states `[rows, width]` of patches from `first` on, from their hidden states `x` of that shape.
    pub(super) fn attend(
        &self,
        x: &Tensor,
        first: usize,
        attention: &PatchAttention,
    ) -> Result<Tensor> {
        let (rows, _) = x.dims2()?;
        let x = add(x, &affine(&attention.attend(first, rows)?, &self.out)?)?;
        let branch = affine(&self.inner(&self.ffn_norm.forward(&x)?)?, &self.down)?;
        Ok(add(&x, &branch)?)
    }

    /// The activated rows of the feed-forward, `[rows, inner]`.
    fn inner(&self, x: &Tensor) -> Result<Tensor> {
        let Linear { weight, bias } = &self.up;
        Ok(match self.spec.gated {
            true => gated_linear(x, weight, bias.as_ref(), self.spec.act)?,
            false => activation(&affine(x, &self.up)?, self.spec.act)?,
        })
    }
}
