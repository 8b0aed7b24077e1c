//! GLM-4.5 and 4.6: experts chosen by sigmoids beside one that every token goes to, behind a few dense layers; half of each head is
//! rotated. Source: transformers `models/glm4_moe`.

use super::Arch;
use crate::{
    config::HfConfig,
    error::Result,
    spec::{GatingSpec, ModelSpec, QkNormSpan},
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
    // Experts may be chosen in two steps, by groups and then in these.
    if let Some(groups) = c.count_opt("n_group")?.filter(|groups| *groups > 1) {
        return Err(c.unsupported("n_group", &groups.into(), "; 1 is"));
    }
    let gating = GatingSpec {
        scales: false,
        sigmoid: true,
        bias: true,
        renormalize: c.flag_or("norm_topk_prob", true)?,
        scale: c.float_opt("routed_scaling_factor")?.unwrap_or(1.0),
    };
    let dense = c.index_or("first_k_dense_replace", 1)?;
    m.set_experts(c, "moe_intermediate_size", gating, |i| i >= dense)?;
    m.set_shared_experts(c, "n_shared_experts", 1)?;
    Ok(m)
}
