//! ERNIE 4.5: Llama with ropes of neighbours, and biases everywhere or nowhere. Source: transformers `models/ernie4_5`.

use super::Arch;
use crate::{config::HfConfig, error::Result, spec::ModelSpec};

pub(super) const ARCH: Arch = Arch {
    name: "Ernie4_5ForCausalLM",
    model_type: "ernie4_5",
    reads: &[],
    spec,
    ..Arch::LIKE_LLAMA
};

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    // Absent, it would be 128, not hidden_size / num_attention_heads.
    c.count("head_dim")?;
    let mut m = ModelSpec::llama(&c.with_default("rope_theta", 500_000.0))?;
    m.interleave_ropes();
    m.head.tied = c.flag_or("tie_word_embeddings", true)?;
    let bias = c.flag_or("use_bias", false)?;
    m.each_attention(|_, a| (a.qkv_bias, a.out_bias) = (bias, bias));
    m.each_mlp(|mlp| mlp.bias = bias);
    Ok(m)
}
