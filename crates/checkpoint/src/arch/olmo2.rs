//! OLMo 2: Llama with norms after each block only, and q and k normed across all heads.
//! Source: transformers `models/olmo2`.

use super::Arch;
use crate::{
    config::HfConfig,
    error::Result,
    spec::{ModelSpec, QkNormSpan, Residual},
    weights::{Slot, WeightRule, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "Olmo2ForCausalLM",
    model_type: "olmo2",
    reads: &["attention_bias"],
    spec,
    weights: WEIGHTS,
    outer: None,
};

const WEIGHTS: &[WeightRule] = &[
    whole(Slot::AttnPostNorm, "model.layers.{i}.post_attention_layernorm.weight"),
    whole(Slot::FfnPostNorm, "model.layers.{i}.post_feedforward_layernorm.weight"),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(c)?;
    m.layers.iter_mut().for_each(|l| l.residual = Residual::PostNorm);
    m.set_qk_norm(m.final_norm, QkNormSpan::AllHeads);
    Ok(m)
}
