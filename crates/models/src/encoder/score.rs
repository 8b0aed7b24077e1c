//! The head of a cross-encoder: from one hidden state to one score.

use std::collections::HashMap;

use candle_core::Tensor;
use candle_nn::{LayerNorm, Linear, Module};
use candlepower_checkpoint::{EncoderSpec, HeadAct, ScoreHead};

use crate::error::Result;

/// The head with its weights.
pub(crate) struct Head {
    spec: ScoreHead,
    dense: Linear,
    norm: Option<LayerNorm>,
    out: Linear,
}

/// `act(x)`.
pub(crate) fn activate(x: &Tensor, act: HeadAct) -> Result<Tensor> {
    Ok(match act {
        HeadAct::Tanh => x.tanh()?,
        HeadAct::Relu => x.relu()?,
        HeadAct::Gelu => x.gelu_erf()?,
    })
}

impl Head {
    /// Takes the head's tensors, by their slots.
    pub(crate) fn new(
        encoder: &EncoderSpec,
        spec: ScoreHead,
        tensors: &mut HashMap<String, Tensor>,
    ) -> Result<Self> {
        let mut take = |name: &str| {
            let tensor = tensors.remove(&format!("score.{name}"));
            tensor.expect("every planned tensor was found")
        };
        let bias = spec.dense_bias.then(|| take("dense.bias"));
        let norm = spec.norm.then(|| LayerNorm::new_no_bias(take("norm.weight"), encoder.norm_eps));
        Ok(Self {
            spec,
            dense: Linear::new(take("dense.weight"), bias),
            norm,
            out: Linear::new(take("out.weight"), Some(take("out.bias"))),
        })
    }

    /// How the head gets its one hidden state.
    pub(crate) fn spec(&self) -> ScoreHead {
        self.spec
    }

    /// The scores of pooled states `[texts, hidden]`.
    pub(crate) fn forward(&self, pooled: &Tensor) -> Result<Vec<f32>> {
        let x = self.dense.forward(pooled)?;
        let x = activate(&x, self.spec.act)?;
        let x = match &self.norm {
            Some(norm) => norm.forward(&x)?,
            None => x,
        };
        let scores = self.out.forward(&x)?.flatten_all()?;
        let scores = match self.spec.sigmoid {
            true => candle_nn::ops::sigmoid(&scores)?,
            false => scores,
        };
        Ok(scores.to_vec1()?)
    }
}
