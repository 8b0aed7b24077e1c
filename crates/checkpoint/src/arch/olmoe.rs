//! OLMoE: experts in every layer, and q and k normed across all heads. Source: transformers `models/olmoe`.

use super::Arch;
use crate::{
    config::HfConfig,
    error::Result,
    spec::{GatingSpec, ModelSpec, QkNormSpan},
};

pub(super) const ARCH: Arch = Arch {
    name: "OlmoeForCausalLM",
    model_type: "olmoe",
    reads: &["attention_bias", "num_experts", "num_local_experts"],
    spec,
    ..Arch::LIKE_LLAMA
};

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(c)?;
    m.set_qk_norm(m.final_norm, QkNormSpan::AllHeads);
    let gating = GatingSpec::softmax(c.flag_or("norm_topk_prob", false)?);
    m.set_experts(c, "intermediate_size", gating, |_| true)?;
    Ok(m)
}
