//! A layer of a vision tower.

use candle_core::{DType, Tensor};
use candlepower_checkpoint::{TowerLayerSpec, VISION_ROWS, VisionSlot as Slot};
use candlepower_kernels::{
    AxialRope, Weight, activation, add, axial_rope, gated_linear, layer_norm, linear,
    patch_attention, rms_norm,
};

use super::{RowGroups, groups, weights::Loader};
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

/// A layer: `x + attention(norm(x))`, then `x + feed-forward(norm(x))`.
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

    /// From `x` `[patches, width]` to the next layer's, with the patches' places where queries and keys are rotated by them.
    ///
    /// Every kernel but attention looks at one row alone, so rows are computed in groups, which keeps intermediate results small.
    pub(super) fn forward(&self, x: Tensor, rope: Option<&AxialRope>) -> Result<Tensor> {
        let attended = self.attend(&x, rope)?;
        let (patches, width) = x.dims2()?;
        let mut out = RowGroups::new(patches, width);
        for (first, rows) in groups(patches, VISION_ROWS) {
            let branch = affine(&attended.narrow(0, first, rows)?, &self.out)?;
            let x = add(&x.narrow(0, first, rows)?, &branch)?;
            let branch = affine(&self.inner(&self.ffn_norm.forward(&x)?)?, &self.down)?;
            out.push(&add(&x, &branch)?)?;
        }
        out.finish()
    }

    /// Attention of all patches to all, `[patches, heads * head_dim]`.
    fn attend(&self, x: &Tensor, rope: Option<&AxialRope>) -> Result<Tensor> {
        let (patches, _) = x.dims2()?;
        let TowerLayerSpec { heads, head_dim, .. } = self.spec;
        let mut qkv = RowGroups::new(patches, 3 * heads * head_dim);
        for (first, rows) in groups(patches, VISION_ROWS) {
            let normed = self.attention_norm.forward(&x.narrow(0, first, rows)?)?;
            let projected = affine(&normed, &self.qkv)?;
            match rope {
                Some(rope) => qkv.push(&axial_rope(&projected, 2 * heads, first, rope)?)?,
                None => qkv.push(&projected)?,
            }
        }
        // Rounded to bf16 as the other products of the layer, or not.
        let dtype = match self.qkv.weight.dtype() {
            DType::BF16 => DType::BF16,
            _ => DType::F32,
        };
        let scale = (head_dim as f32).powf(-0.5);
        Ok(patch_attention(&qkv.finish()?, heads, scale, dtype)?)
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
