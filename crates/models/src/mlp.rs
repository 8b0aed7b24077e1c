//! The gated feed-forward.

use candle_core::Tensor;
use candlepower_checkpoint::{Act, MlpSpec};
use candlepower_kernels::{Activation, gated_activation};

use crate::{
    error::Result,
    linear::Linear,
    parts::{Part, Parts},
};

/// `down(act(gate(x)) * up(x))`, with gate and up as one weight.
pub(crate) struct Mlp {
    gate_up: Linear,
    activation: Activation,
    down: Linear,
}

impl Mlp {
    /// Takes a layer's feed-forward.
    pub(crate) fn take(parts: &mut Parts, layer: usize, spec: &MlpSpec) -> Self {
        Self {
            gate_up: Linear::take(parts, layer, Part::GateUp, Part::GateUpBias),
            activation: match spec.act {
                Act::Silu => Activation::Silu,
                Act::Gelu => Activation::Gelu,
                Act::GeluTanh => Activation::GeluTanh,
            },
            down: Linear::take(parts, layer, Part::Down, Part::DownBias),
        }
    }

    /// `[tokens, hidden]` -> `[tokens, hidden]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let gate_up = self.gate_up.forward(x)?;
        self.down.forward(&gated_activation(&gate_up, self.activation)?)
    }

    /// Bytes of the weights.
    pub(crate) fn num_bytes(&self) -> usize {
        self.gate_up.num_bytes() + self.down.num_bytes()
    }
}
