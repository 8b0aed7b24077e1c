//! GLM-4.5 and 4.6: experts chosen by sigmoids beside one that every token goes to, behind a few dense layers; half of each head is
//! rotated. Source: transformers `models/glm4_moe`.

use super::{Arch, deepseek::biased_sigmoids};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{ModelSpec, QkNormSpan},
};

pub(super) const ARCH: Arch = Arch {
    name: "Glm4MoeForCausalLM",
    model_type: "glm4_moe",
    reads: &["attention_bias", "use_qk_norm", "num_local_experts"],
    spec,
    predicts_more: true,
    ..Arch::LIKE_LLAMA
};

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(&c.with_default("partial_rotary_factor", 0.5))?;
    m.each_attention(|_, a| a.out_bias = false);
    if c.flag_or("use_qk_norm", false)? {
        m.set_qk_norm(m.final_norm, QkNormSpan::Head);
    }
    let gating = biased_sigmoids(c)?;
    let dense = c.index_or("first_k_dense_replace", 1)?;
    m.set_experts(c, "moe_intermediate_size", gating, |i| i >= dense)?;
    m.set_shared_experts(c, "n_shared_experts", 1)?;
    Ok(m)
}
