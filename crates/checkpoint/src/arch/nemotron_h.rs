//! Nemotron-H, Nemotron Nano 2 and Nemotron 3: layers that are Mamba-2, attention without rotation, a feed-forward of squared ReLUs or
//! experts of such; here a layer is one of the former two and what follows it.
//! Source: transformers `models/nemotron_h`; NVIDIA, "Nemotron-H", 2025, arXiv 2504.03624.

use super::{Arch, deepseek, recurrent};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{FfnSpec, LinearAttentionSpec, MAX_LAYERS, MAX_WIDTH, Mixer, ModelSpec},
    weights::{Slot, WeightRule, joined, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "NemotronHForCausalLM",
    model_type: "nemotron_h",
    reads: &["attention_bias", "mlp_bias", "layer_types"],
    spec,
    weights: &WEIGHTS,
    predicts_more: true,
    ..Arch::LIKE_LLAMA
};

const WEIGHTS: [WeightRule; 38] = joined(
    [
        whole(Slot::Embed, "backbone.embeddings.weight"),
        whole(Slot::FinalNorm, "backbone.norm_f.weight"),
        whole(Slot::AttnNorm, "backbone.layers.{i}.norm.weight"),
        whole(Slot::FfnNorm, "backbone.layers.{i}.norm.weight"),
        whole(Slot::Q, "backbone.layers.{i}.mixer.q_proj.weight"),
        whole(Slot::K, "backbone.layers.{i}.mixer.k_proj.weight"),
        whole(Slot::V, "backbone.layers.{i}.mixer.v_proj.weight"),
        whole(Slot::O, "backbone.layers.{i}.mixer.o_proj.weight"),
        whole(Slot::QBias, "backbone.layers.{i}.mixer.q_proj.bias"),
        whole(Slot::KBias, "backbone.layers.{i}.mixer.k_proj.bias"),
        whole(Slot::VBias, "backbone.layers.{i}.mixer.v_proj.bias"),
        whole(Slot::OBias, "backbone.layers.{i}.mixer.o_proj.bias"),
        whole(Slot::Up, "backbone.layers.{i}.mixer.up_proj.weight"),
        whole(Slot::Down, "backbone.layers.{i}.mixer.down_proj.weight"),
        whole(Slot::UpBias, "backbone.layers.{i}.mixer.up_proj.bias"),
        whole(Slot::DownBias, "backbone.layers.{i}.mixer.down_proj.bias"),
        whole(Slot::Router, "backbone.layers.{i}.mixer.gate.weight"),
        whole(Slot::RouterCorrection, "backbone.layers.{i}.mixer.gate.e_score_correction_bias"),
        whole(Slot::SharedUp, "backbone.layers.{i}.mixer.shared_experts.up_proj.weight"),
        whole(Slot::SharedDown, "backbone.layers.{i}.mixer.shared_experts.down_proj.weight"),
        whole(Slot::ExpertUp(0), "backbone.layers.{i}.mixer.experts.{e}.up_proj.weight"),
        whole(Slot::ExpertDown(0), "backbone.layers.{i}.mixer.experts.{e}.down_proj.weight"),
    ],
    recurrent::MIXER,
);

const NAMES: &[(&str, &str)] = &[
    ("rms_norm_eps", "layer_norm_epsilon"),
    ("hidden_act", "mlp_hidden_act"),
    ("mamba_n_heads", "mamba_num_heads"),
    ("mamba_n_groups", "n_groups"),
    ("mamba_d_state", "ssm_state_size"),
    ("mamba_d_head", "mamba_head_dim"),
    ("mamba_d_conv", "conv_kernel"),
    ("mamba_conv_bias", "use_conv_bias"),
];

/// Kind of a stored layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Mamba,
    Attention,
    Dense,
    Experts,
}

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    c.refuse("moe_latent_size")?;
    // Published files have these beside the name that is read.
    let c = c.without(&["norm_eps", "rms_norm_eps"]);
    let c = &c.renamed(NAMES).with_default("hidden_act", "relu2").with_default("rope_theta", 1e4);
    let (kinds, key) = stored_kinds(c)?;
    let (layers, apart) = pairs(c, &kinds, key)?;
    // No layer of some models is a dense feed-forward, and they need not say how wide it would be.
    let c = &c.without(&["num_hidden_layers"]).with_default("num_hidden_layers", layers.len());
    let head_dim = c.raw("attention_head_dim").cloned().unwrap_or_else(|| 128.into());
    let base = c.with_default("intermediate_size", 1).with_default("head_dim", head_dim);
    let mut m = ModelSpec::llama(&base)?;
    m.stored_apart = apart;
    // Nemotron-H's attention learns positions from the Mamba-2 layers before it.
    m.each_attention(|_, a| a.rope = None);
    m.each_mlp(|mlp| mlp.gated = false);
    let has_experts = |i: usize| layers[i].1 == Some(Kind::Experts);
    if (0..layers.len()).any(has_experts) {
        m.set_experts(c, "moe_intermediate_size", deepseek::biased_sigmoids(c)?, has_experts)?;
        set_shared(&mut m, c)?;
    }
    if layers.iter().any(|(_, ffn)| *ffn == Some(Kind::Dense)) {
        c.bounded("intermediate_size", MAX_WIDTH)?;
    }
    let mamba =
        layers.iter().any(|(mixer, _)| *mixer == Kind::Mamba).then(|| mamba(c)).transpose()?;
    for (layer, (mixer, ffn)) in m.layers.iter_mut().zip(layers) {
        if let (Kind::Mamba, Some(mamba)) = (mixer, mamba) {
            layer.mixer = Mixer::LinearAttention(mamba);
        }
        if ffn.is_none() {
            layer.ffn = FfnSpec::Nothing;
        }
    }
    Ok(m)
}

/// The kind of each stored layer, and the key that lists them.
fn stored_kinds(c: &HfConfig) -> Result<(Vec<Kind>, &'static str)> {
    const PATTERN: &str = "hybrid_override_pattern";
    let key = recurrent::layers_key(c);
    let kind = |name: &str| match name {
        "M" | "mamba" | "mamba2" | "linear_attention" => Some(Kind::Mamba),
        "*" | "attention" | "full_attention" => Some(Kind::Attention),
        "-" | "mlp" => Some(Kind::Dense),
        "E" | "moe" => Some(Kind::Experts),
        _ => None,
    };
    let read = |key: &'static str, names: Vec<&str>| {
        let unknown = |name: &str| {
            let hint = "; mamba (M), attention (*), mlp (-) and moe (E) are";
            c.unsupported(key, &name.into(), hint)
        };
        let kinds: Result<Vec<Kind>> =
            names.iter().map(|name| kind(name).ok_or_else(|| unknown(name))).collect();
        Ok((kinds?, key))
    };
    match (c.texts_opt(key)?, c.text_opt(PATTERN)?) {
        // The list of transformers 5 wins where both are there.
        (Some(names), _) => read(key, names),
        (None, Some(pattern)) => {
            // An empty pattern separates all letters, and gives an empty text at both ends.
            read(PATTERN, pattern.split("").filter(|s| !s.is_empty()).collect())
        }
        (None, None) => Err(c.missing(PATTERN, "a letter for each layer")),
    }
}

/// A mixer, and what follows it.
type Pair = (Kind, Option<Kind>);

/// Each mixer with its feed-forward, and the stored layer indices of both.
fn pairs(c: &HfConfig, kinds: &[Kind], key: &str) -> Result<(Vec<Pair>, Vec<[usize; 2]>)> {
    let (mut layers, mut numbers): (Vec<Pair>, Vec<[usize; 2]>) = (Vec::new(), Vec::new());
    for (i, &kind) in kinds.iter().enumerate() {
        match (kind, layers.last_mut().zip(numbers.last_mut())) {
            // A new mixer closes the layer before it, even if nothing followed that one.
            (Kind::Mamba | Kind::Attention, _) => {
                layers.push((kind, None));
                numbers.push([i, i]);
            }
            (_, Some(((_, ffn @ None), [_, number]))) => (*ffn, *number) = (Some(kind), i),
            _ => {
                let found = c.raw(key).cloned().unwrap_or_default();
                let hint = format!(
                    "; feed-forwards that follow a mixer each are, and layer {i} follows none"
                );
                return Err(c.unsupported(key, &found, &hint));
            }
        }
    }
    if !(1..=MAX_LAYERS).contains(&layers.len())
        || !layers.iter().any(|(mixer, _)| *mixer == Kind::Attention)
    {
        let found = c.raw(key).cloned().unwrap_or_default();
        return Err(c.ill_typed(
            key,
            &found,
            "some thousands of layers at most, one of them attention",
        ));
    }
    Ok((layers, numbers))
}

fn mamba(c: &HfConfig) -> Result<LinearAttentionSpec> {
    c.refuse("use_bias")?;
    deepseek::expect(c, "mamba_hidden_act", "silu")?;
    // Bamba's default is another one.
    c.count("mamba_d_head")?;
    recurrent::mamba2(c)
}

/// Sets the shared expert.
fn set_shared(m: &mut ModelSpec, c: &HfConfig) -> Result<()> {
    const KEY: &str = "moe_shared_expert_intermediate_size";
    match c.index_or("n_shared_experts", 1)? {
        0 => Ok(()),
        1 => {
            let width = c.bounded(KEY, MAX_WIDTH)?;
            m.set_shared_width(c, KEY, |_| width)
        }
        other => Err(c.unsupported("n_shared_experts", &other.into(), "; 0 and 1 are")),
    }
}
