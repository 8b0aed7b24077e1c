//! A layer's gated delta net: its parts, and what is computed of them.

use candle_core::Tensor;
use candlepower_checkpoint::{DeltaNetSpec, NormSpec};
use candlepower_kernels::DeltaDims;

use crate::{
    error::Result,
    layers::{Linear, Ops, Place, tensor_bytes},
    parts::{Matrix, Part, Parts},
};

/// One layer's gated delta net.
pub(crate) struct DeltaNet<M> {
    /// Which of the layers that keep a state it is.
    pub(crate) layer: usize,
    rows: Linear<M>,
    gates: Linear<M>,
    pub(crate) net: candlepower_kernels::DeltaNet,
    out: Linear<M>,
}

impl<M: Matrix> DeltaNet<M> {
    /// Takes the parts of the `index`-th layer that keeps a state, which is layer `layer`.
    pub(crate) fn take(
        parts: &mut Parts<M>,
        (layer, index): (usize, usize),
        spec: &DeltaNetSpec,
        norm: &NormSpec,
    ) -> Result<Self> {
        let mut exact = |part| -> Result<Tensor> {
            Ok(parts.exact(layer, part)?.expect("the plan holds every vector of the spec"))
        };
        let net = candlepower_kernels::DeltaNet {
            dims: delta_dims(spec),
            conv: exact(Part::DeltaTaps)?.reshape((spec.channels(), spec.taps))?,
            a_log: exact(Part::DeltaLogRate)?,
            dt_bias: exact(Part::DeltaDecayBias)?,
            norm: exact(Part::DeltaNorm)?,
            eps: norm.eps as f32,
        };
        let mut linear = |part| Linear::without_bias(parts, layer, part);
        Ok(Self {
            layer: index,
            rows: linear(Part::DeltaIn),
            gates: linear(Part::DeltaGates),
            out: linear(Part::Out),
            net,
        })
    }

    /// `[tokens, hidden]` -> `[tokens, hidden]`.
    pub(crate) fn forward<O: Ops<Matrix = M>>(&self, ops: &O, x: &Tensor) -> Result<Tensor> {
        let rows = ops.linear(x, &self.rows, Place::Wide)?;
        let gates = ops.linear(x, &self.gates, Place::Narrow)?;
        ops.linear(&ops.delta_net(&rows, &gates, self)?, &self.out, Place::Branch)
    }

    pub(crate) fn num_bytes(&self) -> usize {
        let candlepower_kernels::DeltaNet { conv, a_log, dt_bias, norm, .. } = &self.net;
        let vectors = [conv, a_log, dt_bias, norm].map(tensor_bytes).iter().sum::<usize>();
        let matrices = [&self.rows, &self.gates, &self.out].map(Linear::num_bytes);
        matrices.iter().sum::<usize>() + vectors
    }
}

/// The dimensions of a delta net as kernels take them.
pub(crate) fn delta_dims(spec: &DeltaNetSpec) -> DeltaDims {
    DeltaDims {
        key_heads: spec.key_heads,
        value_heads: spec.value_heads,
        key_dim: spec.key_dim,
        value_dim: spec.value_dim,
        kernel: spec.taps,
    }
}
