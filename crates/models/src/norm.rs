//! RMSNorm as a layer: a weight and an epsilon.

use candle_core::Tensor;
use candlepower_checkpoint::NormSpec;
use candlepower_kernels::{add_rms_norm, rms_norm};

use crate::{
    error::Result,
    parts::{Part, Parts},
};

/// RMSNorm over the last dimension.
pub(crate) struct Norm {
    /// `[dim]` f32.
    weight: Tensor,
    eps: f32,
}

impl Norm {
    /// Takes the norm's weight; `None` where the model has no such norm.
    pub(crate) fn take(
        parts: &mut Parts,
        layer: Option<usize>,
        part: Part,
        spec: &NormSpec,
    ) -> Option<Self> {
        Some(Self { weight: parts.vector(layer, part)?, eps: spec.eps as f32 })
    }

    /// Bytes of the weight.
    pub(crate) fn num_bytes(&self) -> usize {
        self.weight.elem_count() * size_of::<f32>()
    }

    /// Norms the last dimension of `x`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(rms_norm(x, &self.weight, self.eps)?)
    }

    /// `residual + x`, and its norm.
    pub(crate) fn add_forward(&self, residual: &Tensor, x: &Tensor) -> Result<(Tensor, Tensor)> {
        Ok(add_rms_norm(residual, x, &self.weight, self.eps)?)
    }
}
