//! OLMo 2: Llama with norms after each block only, and q and k normed across all heads. OLMo 3 has windows, too, and stretches the
//! ropes of layers without one only. Source: transformers `models/olmo2`, `models/olmo3`.

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
    ..Arch::LIKE_LLAMA
};

pub(super) const OLMO3: Arch = Arch {
    name: "Olmo3ForCausalLM",
    model_type: "olmo3",
    reads: &["attention_bias", "sliding_window", "layer_types"],
    spec: olmo3,
    ..ARCH
};

const OLMO3_THETA: f64 = 500_000.0;

pub(super) const WEIGHTS: &[WeightRule] = &[
    whole(Slot::AttnPostNorm, "model.layers.{i}.post_attention_layernorm.weight"),
    whole(Slot::FfnPostNorm, "model.layers.{i}.post_feedforward_layernorm.weight"),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(c)?;
    m.layers.iter_mut().for_each(|l| l.residual = Residual::PostNorm);
    m.set_qk_norm(m.final_norm, QkNormSpan::AllHeads);
    Ok(m)
}

fn olmo3(c: &HfConfig) -> Result<ModelSpec> {
    // A file of transformers 5 has settings for each kind of layer, an older one those of the full layers.
    let full = c.with_rope_of("full_attention")?.unwrap_or_else(|| c.clone());
    let mut m = spec(&full.with_default("rope_theta", OLMO3_THETA))?;
    m.set_windows(c, c.count("sliding_window")?, |i| (i + 1) % 4 != 0)?;
    let windowed = match c.with_rope_of("sliding_attention")? {
        Some(own) => own,
        None => {
            let theta = c.rope_parameters()?.float_opt("rope_theta")?.unwrap_or(OLMO3_THETA);
            let plain = c.without(&["rope_scaling", "rope_parameters", "rope_theta"]);
            plain.with_default("rope_theta", theta)
        }
    };
    m.set_ropes_of_windowed_layers(&windowed.with_default("rope_theta", OLMO3_THETA))?;
    Ok(m)
}
