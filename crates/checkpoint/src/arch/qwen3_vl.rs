//! Qwen3-VL: the decoder of Qwen3 without windows, dense or with experts, and a tower. Tokens of an image rotate by row and column.
//! Source: transformers `models/qwen3_vl`, `models/qwen3_vl_moe`.

use super::{Arch, Around, FOR_IMAGES, qwen2_moe, qwen3};
use crate::{config::HfConfig, error::Result, spec::ModelSpec, vision::qwen};

pub(super) const ARCH: Arch = Arch {
    name: "Qwen3VLForConditionalGeneration",
    model_type: "qwen3_vl",
    reads: &["attention_bias"],
    spec,
    around: Around::Images(FOR_IMAGES),
    vision: Some(qwen::qwen3_vl),
    ..Arch::LIKE_LLAMA
};

/// Published files have the matrices of all experts of a layer in one tensor, each transposed.
pub(super) const MOE: Arch = Arch {
    name: "Qwen3VLMoeForConditionalGeneration",
    model_type: "qwen3_vl_moe",
    reads: &["attention_bias", "num_experts", "num_local_experts"],
    spec: moe,
    ..ARCH
};

/// Source: transformers `Qwen3VLTextConfig`.
const THETA: f64 = 5e5;

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    qwen3::base(&c.with_default("rope_theta", THETA))
}

fn moe(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = spec(c)?;
    // The class always renormalizes.
    qwen2_moe::set_experts(&mut m, c, true)?;
    Ok(m)
}
