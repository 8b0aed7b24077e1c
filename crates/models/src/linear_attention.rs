//! A layer's gated delta net or Mamba-2: its weights and its dimensions.

use candle_core::Tensor;
use candlepower_checkpoint::{LinearAttentionSpec, NormKind, NormSpec, Slot, UpdateRuleSpec};
use candlepower_kernels::{LinearAttentionDims, UpdateRule};

use crate::{
    error::Result,
    linear::Linear,
    norm::{Norm, tensor_bytes},
    parts::{Matrix, Parts},
};

/// One layer's gated delta net or Mamba-2.
pub(crate) struct LinearAttention<M> {
    /// Its index among the layers with recurrent states.
    pub(crate) layer: usize,
    pub(crate) rows: Linear<M>,
    pub(crate) gates: Linear<M>,
    pub(crate) net: candlepower_kernels::LinearAttention,
    /// The norm of the result, in groups. Delta nets norm heads themselves.
    pub(crate) norm: Option<Norm>,
    pub(crate) out: Linear<M>,
}

impl<M: Matrix> LinearAttention<M> {
    /// Takes the weights of the `index`-th layer with recurrent states, which is layer `layer`.
    pub(crate) fn take(
        parts: &mut Parts<M>,
        layer: usize,
        index: usize,
        spec: &LinearAttentionSpec,
    ) -> Result<Self> {
        let mut exact = |part| -> Result<Tensor> {
            Ok(parts.exact(layer, part)?.expect("the plan holds every vector of the spec"))
        };
        let (conv, rates, dt_bias) = (
            exact(Slot::LinearAttnConvQ)?.reshape((spec.channels(), spec.kernel_size))?,
            exact(Slot::LinearAttnLogRate)?,
            exact(Slot::LinearAttnDecayBias)?,
        );
        let a_log = if spec.log_rates { rates } else { rates.neg()?.log()? };
        let rule = match spec.rule {
            UpdateRuleSpec::Delta => {
                UpdateRule::Delta { norm: exact(Slot::LinearAttnNorm)?, eps: spec.eps as f32 }
            }
            UpdateRuleSpec::Mamba2 { .. } => {
                UpdateRule::Mamba2 { skip: exact(Slot::LinearAttnSkip)? }
            }
        };
        let conv_bias = parts.exact(layer, Slot::LinearAttnBiasQ)?;
        let net = candlepower_kernels::LinearAttention {
            dims: linear_attention_dims(spec),
            conv,
            conv_bias,
            a_log,
            dt_bias,
            rule,
        };
        let norm = match spec.rule {
            UpdateRuleSpec::Delta => None,
            UpdateRuleSpec::Mamba2 { .. } => {
                let of_all = NormSpec { kind: NormKind::Rms, eps: spec.eps };
                let norm = parts.norm(Some(layer), Slot::LinearAttnNorm, &of_all)?;
                let norm = norm.expect("the plan holds every vector of the spec");
                let weight = norm.weight.reshape((spec.key_heads, ()))?;
                Some(Norm { weight, ..norm })
            }
        };
        let mut linear = |part| Linear::without_bias(parts, layer, part);
        Ok(Self {
            layer: index,
            rows: linear(Slot::LinearAttnQ),
            gates: linear(Slot::LinearAttnBeta),
            out: linear(Slot::LinearAttnOut),
            net,
            norm,
        })
    }

    pub(crate) fn num_bytes(&self) -> usize {
        let candlepower_kernels::LinearAttention { conv, conv_bias, a_log, dt_bias, rule, .. } =
            &self.net;
        let of_rule = match rule {
            UpdateRule::Delta { norm, .. } => norm,
            UpdateRule::Mamba2 { skip } => skip,
        };
        let vectors = [conv, a_log, dt_bias, of_rule].into_iter().chain(conv_bias);
        let vectors = vectors.map(tensor_bytes).sum::<usize>();
        let norm = self.norm.as_ref().map_or(0, Norm::num_bytes);
        let matrices = [&self.rows, &self.gates, &self.out].map(Linear::num_bytes);
        matrices.iter().sum::<usize>() + vectors + norm
    }
}

/// The dimensions of a delta net or Mamba-2 for the kernels.
pub(crate) fn linear_attention_dims(spec: &LinearAttentionSpec) -> LinearAttentionDims {
    LinearAttentionDims {
        key_heads: spec.key_heads,
        value_heads: spec.value_heads,
        tiled: spec.tiled,
        key_dim: spec.key_dim,
        value_dim: spec.value_dim,
        kernel: spec.kernel_size,
    }
}
