//! A matrix with its bias.

use candle_core::Tensor;
use candlepower_checkpoint::Slot;

use crate::{
    error::Result,
    norm::tensor_bytes,
    parts::{Matrix, Parts},
};

/// `x W^T + b`.
pub(crate) struct Linear<M> {
    /// `[out, in]`; shared with the embedding where the head is tied to it.
    pub(crate) weight: M,
    /// `[out]`.
    pub(crate) bias: Option<Tensor>,
}

impl<M: Matrix> Linear<M> {
    /// Takes a layer's weight, and its bias where the model has one.
    pub(crate) fn take(
        parts: &mut Parts<M>,
        layer: usize,
        weight: Slot,
        bias: Slot,
    ) -> Result<Self> {
        let layer = Some(layer);
        Ok(Self { weight: parts.matrix(layer, weight), bias: parts.vector(layer, bias)? })
    }

    pub(crate) fn without_bias(parts: &mut Parts<M>, layer: usize, weight: Slot) -> Self {
        Self { weight: parts.matrix(Some(layer), weight), bias: None }
    }

    pub(crate) fn num_bytes(&self) -> usize {
        self.weight.num_bytes() + self.bias.as_ref().map_or(0, tensor_bytes)
    }
}
