//! Seed-OSS: Llama with biases on q, k and v. Source: transformers `models/seed_oss`.

use super::Arch;
use crate::{config::HfConfig, error::Result, spec::ModelSpec};

pub(super) const ARCH: Arch = Arch {
    name: "SeedOssForCausalLM",
    model_type: "seed_oss",
    reads: &["attention_bias", "mlp_bias"],
    spec,
    ..Arch::LIKE_LLAMA
};

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    // Absent, it would be 128, not hidden_size / num_attention_heads.
    c.count("head_dim")?;
    let mut m = ModelSpec::llama(&c.with_default("attention_bias", true))?;
    let out_bias = c.flag_or("attention_out_bias", false)?;
    m.each_attention(|_, a| a.out_bias = out_bias);
    Ok(m)
}
