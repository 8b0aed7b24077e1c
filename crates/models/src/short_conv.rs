//! A layer's gated short convolution: its parts, and what is computed of them.

use candle_core::{Device, Tensor};
use candlepower_checkpoint::{ShortConvSpec, Slot};
use candlepower_kernels::ConvDims;

use crate::{
    error::Result,
    layers::{Linear, Ops, Place, tensor_bytes},
    parts::{Matrix, Parts},
};

/// One layer's gated short convolution.
pub(crate) struct ShortConv<M> {
    /// Which of the layers that keep a state it is.
    pub(crate) layer: usize,
    rows: Linear<M>,
    pub(crate) conv: candlepower_kernels::ShortConv,
    out: Linear<M>,
}

impl<M: Matrix> ShortConv<M> {
    /// Takes the parts of the `index`-th layer that keeps a state, which is layer `layer`.
    pub(crate) fn take(
        parts: &mut Parts<M>,
        (layer, index): (usize, usize),
        spec: &ShortConvSpec,
    ) -> Result<Self> {
        let taps = parts.exact(layer, Slot::ConvKernel)?.expect("the plan holds the taps");
        // On the host: a GPU has no kernel of ours for it.
        let of_channels =
            taps.to_device(&Device::Cpu)?.reshape((spec.channels, spec.kernel_size))?;
        let taps = of_channels.t()?.contiguous()?.to_device(taps.device())?;
        Ok(Self {
            layer: index,
            rows: Linear::without_bias(parts, layer, Slot::ConvB),
            conv: candlepower_kernels::ShortConv { dims: conv_dims(spec), taps },
            out: Linear::without_bias(parts, layer, Slot::ConvOut),
        })
    }

    /// `[tokens, hidden]` -> `[tokens, hidden]`.
    pub(crate) fn forward<O: Ops<Matrix = M>>(&self, ops: &O, x: &Tensor) -> Result<Tensor> {
        let rows = ops.linear(x, &self.rows, Place::Wide)?;
        ops.linear(&ops.short_conv(&rows, self)?, &self.out, Place::Branch)
    }

    pub(crate) fn num_bytes(&self) -> usize {
        self.rows.num_bytes() + tensor_bytes(&self.conv.taps) + self.out.num_bytes()
    }
}

/// The dimensions of a short convolution as kernels take them.
pub(crate) fn conv_dims(spec: &ShortConvSpec) -> ConvDims {
    ConvDims { channels: spec.channels, kernel: spec.kernel_size }
}
