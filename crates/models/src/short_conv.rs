//! A layer's gated short convolution: its weights and its dimensions.

use candle_core::Device;
use candlepower_checkpoint::{ShortConvSpec, Slot};
use candlepower_kernels::ConvDims;

use crate::{
    error::Result,
    linear::Linear,
    norm::tensor_bytes,
    parts::{Matrix, Parts},
};

/// One layer's gated short convolution.
pub(crate) struct ShortConv<M> {
    /// Its index among the layers with recurrent states.
    pub(crate) layer: usize,
    pub(crate) rows: Linear<M>,
    pub(crate) conv: candlepower_kernels::ShortConv,
    pub(crate) out: Linear<M>,
}

impl<M: Matrix> ShortConv<M> {
    /// Takes the weights of the `index`-th layer with recurrent states, which is layer `layer`.
    pub(crate) fn take(
        parts: &mut Parts<M>,
        layer: usize,
        index: usize,
        spec: &ShortConvSpec,
    ) -> Result<Self> {
        let weights = parts.exact(layer, Slot::ConvKernel)?;
        let weights = weights.expect("the plan holds the conv kernel weights");
        // Transposed on the CPU, because we have no GPU kernel for it.
        let of_channels =
            weights.to_device(&Device::Cpu)?.reshape((spec.channels, spec.kernel_size))?;
        let conv_weights = of_channels.t()?.contiguous()?.to_device(weights.device())?;
        Ok(Self {
            layer: index,
            rows: Linear::without_bias(parts, layer, Slot::ConvB),
            conv: candlepower_kernels::ShortConv { dims: conv_dims(spec), conv_weights },
            out: Linear::without_bias(parts, layer, Slot::ConvOut),
        })
    }

    pub(crate) fn num_bytes(&self) -> usize {
        self.rows.num_bytes() + tensor_bytes(&self.conv.conv_weights) + self.out.num_bytes()
    }
}

/// The dimensions of a short convolution for the kernels.
pub(crate) fn conv_dims(spec: &ShortConvSpec) -> ConvDims {
    ConvDims { channels: spec.channels, kernel: spec.kernel_size }
}
