//! A linear layer: a packed weight and perhaps a bias.

use std::sync::Arc;

use candle_core::Tensor;
use candlepower_kernels::{Weight, linear};

use crate::{
    error::Result,
    parts::{Part, Parts},
};

/// `x W^T + b`.
pub(crate) struct Linear {
    /// `[out, in]`; shared with the embedding where the head is tied to it.
    weight: Arc<Weight>,
    /// `[out]` f32.
    bias: Option<Tensor>,
}

impl Linear {
    /// A layer without a bias.
    pub(crate) fn new(weight: Arc<Weight>) -> Self {
        Self { weight, bias: None }
    }

    /// Takes a layer's weight, and its bias where the model has one.
    pub(crate) fn take(parts: &mut Parts, layer: usize, weight: Part, bias: Part) -> Self {
        let layer = Some(layer);
        Self { weight: Arc::new(parts.weight(layer, weight)), bias: parts.vector(layer, bias) }
    }

    /// `[tokens, in]` -> `[tokens, out]` f32.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(linear(x, &self.weight, self.bias.as_ref())?)
    }

    /// Bytes of the weight and the bias.
    pub(crate) fn num_bytes(&self) -> usize {
        self.weight.num_bytes() + self.bias.as_ref().map_or(0, |b| 4 * b.elem_count())
    }
}
