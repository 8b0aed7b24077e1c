//! A layer's gated delta net or Mamba-2: its weights and its dimensions.

use candle_core::Tensor;
use candlepower_checkpoint::{NormKind, NormSpec, RecurrenceSpec, RuleSpec, Slot};
use candlepower_kernels::{RecurrenceDims, Rule};

use crate::{
    error::Result,
    linear::Linear,
    norm::{Norm, tensor_bytes},
    parts::{Matrix, Parts},
};

/// One layer's gated delta net or Mamba-2.
pub(crate) struct Recurrence<M> {
    /// Its index among the layers with recurrent states.
    pub(crate) layer: usize,
    pub(crate) rows: Linear<M>,
    pub(crate) gates: Linear<M>,
    pub(crate) net: candlepower_kernels::Recurrence,
    /// The norm of the result, in groups. Delta nets norm heads themselves.
    pub(crate) norm: Option<Norm>,
    pub(crate) out: Linear<M>,
}

impl<M: Matrix> Recurrence<M> {
    /// Takes the weights of the `index`-th layer with recurrent states, which is layer `layer`.
    pub(crate) fn take(
        parts: &mut Parts<M>,
        layer: usize,
        index: usize,
        spec: &RecurrenceSpec,
    ) -> Result<Self> {
        let mut exact = |part| -> Result<Tensor> {
            Ok(parts.exact(layer, part)?.expect("the plan holds every vector of the spec"))
        };
        let (conv, rates, dt_bias) = (
            exact(Slot::RecurrentConvQ)?.reshape((spec.channels(), spec.kernel_size))?,
            exact(Slot::RecurrentLogRate)?,
            exact(Slot::RecurrentDecayBias)?,
        );
        let a_log = if spec.log_rates { rates } else { rates.neg()?.log()? };
        let rule = match spec.rule {
            RuleSpec::Delta => {
                Rule::Delta { norm: exact(Slot::RecurrentNorm)?, eps: spec.eps as f32 }
            }
            RuleSpec::Mamba2 { .. } => Rule::Mamba2 { skip: exact(Slot::RecurrentSkip)? },
        };
        let conv_bias = parts.exact(layer, Slot::RecurrentBiasQ)?;
        let net = candlepower_kernels::Recurrence {
            dims: recurrence_dims(spec),
            conv,
            conv_bias,
            a_log,
            dt_bias,
            rule,
        };
        let norm = match spec.rule {
            RuleSpec::Delta => None,
            RuleSpec::Mamba2 { .. } => {
                let of_all = NormSpec { kind: NormKind::Rms, eps: spec.eps };
                let norm = parts.norm(Some(layer), Slot::RecurrentNorm, &of_all)?;
                let norm = norm.expect("the plan holds every vector of the spec");
                let weight = norm.weight.reshape((spec.key_heads, ()))?;
                Some(Norm { weight, ..norm })
            }
        };
        let mut linear = |part| Linear::without_bias(parts, layer, part);
        Ok(Self {
            layer: index,
            rows: linear(Slot::RecurrentQ),
            gates: linear(Slot::RecurrentBeta),
            out: linear(Slot::RecurrentOut),
            net,
            norm,
        })
    }

    pub(crate) fn num_bytes(&self) -> usize {
        let candlepower_kernels::Recurrence { conv, conv_bias, a_log, dt_bias, rule, .. } =
            &self.net;
        let of_rule = match rule {
            Rule::Delta { norm, .. } => norm,
            Rule::Mamba2 { skip } => skip,
        };
        let vectors = [conv, a_log, dt_bias, of_rule].into_iter().chain(conv_bias);
        let vectors = vectors.map(tensor_bytes).sum::<usize>();
        let norm = self.norm.as_ref().map_or(0, Norm::num_bytes);
        let matrices = [&self.rows, &self.gates, &self.out].map(Linear::num_bytes);
        matrices.iter().sum::<usize>() + vectors + norm
    }
}

/// The dimensions of a delta net or Mamba-2 for the kernels.
pub(crate) fn recurrence_dims(spec: &RecurrenceSpec) -> RecurrenceDims {
    RecurrenceDims {
        key_heads: spec.key_heads,
        value_heads: spec.value_heads,
        tiled: spec.tiled,
        key_dim: spec.key_dim,
        value_dim: spec.value_dim,
        kernel: spec.kernel_size,
    }
}
