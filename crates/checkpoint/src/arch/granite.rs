//! Granite 3: Llama with four fixed factors; some models have experts, a few also a shared expert. Granite 4 has Mamba-2 in place of
//! most attentions in some models.
//! Source: transformers `models/granite`, `models/granitemoe`, `models/granitemoeshared`, `models/granitemoehybrid`.

use super::{Arch, recurrent};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{GatingSpec, MAX_WIDTH, Mixer, ModelSpec},
    weights::{Slot, WeightRule, expert_rows, joined, rows, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "GraniteForCausalLM",
    model_type: "granite",
    reads: &[
        "attention_bias",
        "mlp_bias",
        "embedding_multiplier",
        "attention_multiplier",
        "residual_multiplier",
        "logits_scaling",
    ],
    spec,
    ..Arch::LIKE_LLAMA
};

const OF_EXPERTS: Arch = Arch {
    reads: &[
        "attention_bias",
        "num_local_experts",
        "embedding_multiplier",
        "attention_multiplier",
        "residual_multiplier",
        "logits_scaling",
        "layer_types",
    ],
    weights: &WEIGHTS,
    ..ARCH
};

pub(super) const MOE: Arch =
    Arch { name: "GraniteMoeForCausalLM", model_type: "granitemoe", spec: moe, ..OF_EXPERTS };

pub(super) const SHARED: Arch = Arch {
    name: "GraniteMoeSharedForCausalLM",
    model_type: "granitemoeshared",
    spec: shared,
    ..OF_EXPERTS
};

pub(super) const HYBRID: Arch = Arch {
    name: "GraniteMoeHybridForCausalLM",
    model_type: "granitemoehybrid",
    spec: hybrid,
    weights: &OF_HYBRIDS,
    ..OF_EXPERTS
};

const OF_HYBRIDS: [WeightRule; 26] = joined(WEIGHTS, recurrent::MAMBA);

const WEIGHTS: [WeightRule; 10] = [
    whole(Slot::Router, "model.layers.{i}.block_sparse_moe.router.layer.weight"),
    expert_rows(Slot::ExpertGate(0), "model.layers.{i}.block_sparse_moe.input_linear.weight"),
    expert_rows(Slot::ExpertUp(0), "model.layers.{i}.block_sparse_moe.input_linear.weight"),
    expert_rows(Slot::ExpertDown(0), "model.layers.{i}.block_sparse_moe.output_linear.weight"),
    rows(Slot::SharedGate, "model.layers.{i}.shared_mlp.input_linear.weight"),
    rows(Slot::SharedUp, "model.layers.{i}.shared_mlp.input_linear.weight"),
    whole(Slot::SharedDown, "model.layers.{i}.shared_mlp.output_linear.weight"),
    rows(Slot::Gate, "model.layers.{i}.shared_mlp.input_linear.weight"),
    rows(Slot::Up, "model.layers.{i}.shared_mlp.input_linear.weight"),
    whole(Slot::Down, "model.layers.{i}.shared_mlp.output_linear.weight"),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(c)?;
    let factor = |key: &str| c.factor_or(key, 1.0);
    let attention = factor("attention_multiplier")?;
    // The factor takes the place of the usual one and does not multiply it.
    m.each_attention(|_, a| a.scale = attention);
    // Granite divides its logits, where Cohere multiplies them.
    m.head.scale = 1.0 / factor("logits_scaling")?;
    m.embed.scale = factor("embedding_multiplier")?;
    m.scale_branches(factor("residual_multiplier")?);
    Ok(m)
}

fn moe(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = spec(c)?;
    m.set_experts(c, "intermediate_size", GatingSpec::softmax(true), |_| true)?;
    Ok(m)
}

fn shared(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = moe(c)?;
    const KEY: &str = "shared_intermediate_size";
    let width = c.index_or(KEY, 0)?;
    m.set_shared_width(c, KEY, |_| width)?;
    Ok(m)
}

fn hybrid(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = match c.index_or("num_local_experts", 8)? {
        0 => {
            // Without experts the shared feed-forward is the layer's only one.
            let width = c.bounded("shared_intermediate_size", MAX_WIDTH)?;
            spec(&c.without(&["intermediate_size"]).with_default("intermediate_size", width))?
        }
        _ => shared(c)?,
    };
    match c.text_opt("position_embedding_type")? {
        Some("rope") => {}
        None | Some("nope") => m.each_attention(|_, a| a.rope = None),
        Some(other) => {
            let key = "position_embedding_type";
            return Err(c.unsupported(key, &other.into(), "; rope and nope are"));
        }
    }
    let key = recurrent::layers_key(c);
    let kinds = [&["attention", "full_attention"][..], &["mamba", "linear_attention"]];
    // Without a list all layers are Mamba-2, which `set_mixers` refuses.
    let of_attention = m.layer_kinds(c, key, kinds, |_| false)?;
    let is_mamba: Vec<bool> = of_attention.iter().map(|of_attention| !of_attention).collect();
    if is_mamba.contains(&true) {
        let mamba = recurrent::mamba2(c)?;
        m.set_mixers(c, key, &is_mamba, &Mixer::LinearAttention(mamba))?;
    }
    Ok(m)
}
