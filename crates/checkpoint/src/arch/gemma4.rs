//! Gemma 4: Gemma 3 with normed values, unscaled scores, a scale for each layer's output, and wider but fewer KV heads in its global
//! layers. Smaller models have per-layer embeddings, and layers that read the keys and values of others. One model has experts.
//! Source: transformers `models/gemma4`.

use std::collections::HashMap;

use super::{Arch, Around, gemma2};
use crate::{
    config::HfConfig,
    error::Result,
    rope::RopeSpec,
    spec::{
        AttentionSpec, EmbedSpec, FfnSpec, GatingSpec, MAX_HEAD_DIM, MAX_HEADS, MAX_WIDTH,
        ModelSpec, PerLayerSpec, QkNormSpan, Residual, activation,
    },
    weights::{Slot, WeightRule, expert_rows, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "Gemma4ForCausalLM",
    model_type: "gemma4_text",
    reads: &[
        "sliding_window",
        "layer_types",
        "final_logit_softcapping",
        "use_bidirectional_attention",
        "num_experts",
    ],
    spec,
    weights: WEIGHTS,
    ..Arch::LIKE_LLAMA
};

/// The published form with images and sounds, which are refused.
pub(super) const OF_IMAGES: Arch = Arch {
    name: "Gemma4ForConditionalGeneration",
    model_type: "gemma4",
    around: Around::Images(&["vision_tower.", "audio_tower.", "embed_vision.", "embed_audio."]),
    ..ARCH
};

/// The one whose parts for images and sounds are single layers.
pub(super) const UNIFIED: Arch = Arch {
    name: "Gemma4UnifiedForConditionalGeneration",
    model_type: "gemma4_unified",
    around: Around::Images(&["vision_embedder.", "embed_vision.", "embed_audio."]),
    ..OF_IMAGES
};

const WEIGHTS: &[WeightRule] = &[
    gemma2::WEIGHTS[0],
    gemma2::WEIGHTS[1],
    gemma2::WEIGHTS[2],
    whole(Slot::SharedGate, "model.layers.{i}.mlp.gate_proj.weight"),
    whole(Slot::SharedUp, "model.layers.{i}.mlp.up_proj.weight"),
    whole(Slot::SharedDown, "model.layers.{i}.mlp.down_proj.weight"),
    whole(Slot::Router, "model.layers.{i}.router.proj.weight"),
    // Quantized checkpoints have a tensor for each expert, others one for all of a layer.
    whole(Slot::ExpertGate(0), "model.layers.{i}.experts.{e}.gate_proj.weight"),
    whole(Slot::ExpertUp(0), "model.layers.{i}.experts.{e}.up_proj.weight"),
    whole(Slot::ExpertDown(0), "model.layers.{i}.experts.{e}.down_proj.weight"),
    expert_rows(Slot::ExpertGate(0), "model.layers.{i}.experts.gate_up_proj"),
    expert_rows(Slot::ExpertUp(0), "model.layers.{i}.experts.gate_up_proj"),
    expert_rows(Slot::ExpertDown(0), "model.layers.{i}.experts.down_proj"),
];

const KINDS: [&[&str]; 2] = [&["sliding_attention"], &["full_attention"]];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    if c.text_opt("use_bidirectional_attention")? == Some("all") {
        return Err(c.unsupported("use_bidirectional_attention", &"all".into(), "; vision is"));
    }
    // Absent, it would be 256, not hidden_size / num_attention_heads.
    let head_dim = c.count("head_dim")?;
    let windowed = rope_of(c, KINDS[0][0], "default", (1e4, 1.0))?;
    let global = rope_of(c, KINDS[1][0], "proportional", (1e6, 0.25))?;
    let mut m = ModelSpec::llama(&windowed)?;
    m.embed = EmbedSpec { scale: (m.hidden_size as f64).sqrt(), rounded: true, positions: None };
    m.head.tied = c.flag_or("tie_word_embeddings", true)?;
    m.head.softcap = c.float_or_null("final_logit_softcapping")?;
    m.set_qk_norm(m.final_norm, QkNormSpan::Head);
    let mut is_windowed = m.layer_kinds(c, "layer_types", KINDS, |i| (i + 1) % 6 != 0)?;
    // transformers makes the last layer global, too, regardless of the list.
    is_windowed.pop();
    is_windowed.push(false);
    set_attentions(&mut m, c, &is_windowed, head_dim, &global)?;
    for layer in &mut m.layers {
        (layer.residual, layer.scaled) = (Residual::Sandwich, true);
    }
    share_keys(&mut m, c, &is_windowed)?;
    m.per_layer = per_layer(&m, c)?;
    if c.flag_or("enable_moe_block", false)? {
        set_experts(&mut m, c)?;
    }
    Ok(m)
}

/// The configuration with the RoPE settings of one type of layers, or with the type, base and rotated part that are their defaults.
fn rope_of(
    c: &HfConfig,
    kind: &str,
    rope_type: &str,
    (theta, rotated): (f64, f64),
) -> Result<HfConfig> {
    let by_default = serde_json::json!({
        "rope_type": rope_type, "rope_theta": theta, "partial_rotary_factor": rotated
    });
    Ok(match c.with_rope_of(kind)? {
        Some(own) => own,
        None => c.with_default("rope_parameters", by_default),
    })
}

/// Windows, and the heads and ropes of global layers.
fn set_attentions(
    m: &mut ModelSpec,
    c: &HfConfig,
    is_windowed: &[bool],
    head_dim: usize,
    global: &HfConfig,
) -> Result<()> {
    let window = c.count("sliding_window")?;
    let keys_as_values = c.flag_or("attention_k_eq_v", false)?;
    let global_dim = c.bounded_opt("global_head_dim", MAX_HEAD_DIM)?.unwrap_or(512);
    let global_heads = c.bounded_opt("num_global_key_value_heads", MAX_HEADS)?;
    // transformers 5 writes this in place of the two keys, for each layer that differs.
    let of_layers = c.section("per_layer_config")?.map(|all| by_layer(&all, is_windowed.len()));
    let of_layers = of_layers.transpose()?;
    let eps = m.final_norm.eps;
    for (i, &is_windowed) in is_windowed.iter().enumerate() {
        let Some(a) = m.attention_mut(i) else { continue };
        a.scale = 1.0;
        a.v_norm = Some(eps);
        a.window = is_windowed.then_some(window);
        a.values_are_keys = keys_as_values && !is_windowed;
        match &of_layers {
            Some(all) => {
                if let Some(own) = all.get(&i) {
                    a.head_dim = own.bounded_opt("head_dim", MAX_HEAD_DIM)?.unwrap_or(head_dim);
                    let heads = own.bounded_opt("num_key_value_heads", MAX_HEADS)?;
                    a.kv_heads = heads.unwrap_or(a.kv_heads);
                }
            }
            None if !is_windowed => {
                a.head_dim = global_dim;
                // transformers takes this number of heads only where keys are values.
                a.kv_heads = global_heads.filter(|_| keys_as_values).unwrap_or(a.kv_heads);
            }
            None => {}
        }
        if !a.heads.is_multiple_of(a.kv_heads) {
            let (key, found) = ("num_attention_heads", a.heads.into());
            let needed = "a multiple of the key and value heads of global layers";
            return Err(c.ill_typed(key, &found, needed));
        }
        if !is_windowed {
            a.rope = Some(RopeSpec::read(global, a.head_dim)?);
        }
    }
    Ok(())
}

/// The settings of single layers by layer index, which transformers writes with leading zeros.
fn by_layer(all: &HfConfig, layers: usize) -> Result<HashMap<usize, HfConfig>> {
    const KEYS: [&str; 2] = ["head_dim", "num_key_value_heads"];
    let of_key = |(key, value): (&str, &serde_json::Value)| {
        let layer = key.parse().ok().filter(|layer: &usize| *layer < layers);
        let own = layer.zip(all.section(key)?);
        let (layer, own) =
            own.ok_or_else(|| all.unsupported(key, value, "; numbers of layers are"))?;
        if let Some((key, value)) = own.entries().find(|(key, _)| !KEYS.contains(key)) {
            let hint = "; head_dim and num_key_value_heads of single layers are";
            return Err(own.unsupported(key, value, hint));
        }
        Ok((layer, own))
    };
    all.entries().map(of_key).collect()
}

/// The last layers read the keys and values of the last layer of their kind before them.
fn share_keys(m: &mut ModelSpec, c: &HfConfig, is_windowed: &[bool]) -> Result<()> {
    const KEY: &str = "num_kv_shared_layers";
    let shared = c.index_or(KEY, 0)?;
    let Some(first) = m.layers.len().checked_sub(shared) else {
        return Err(c.ill_typed(KEY, &shared.into(), "at most the number of layers"));
    };
    let double = c.flag_or("use_double_wide_mlp", false)?;
    for (i, kind) in is_windowed.iter().enumerate().skip(first) {
        let Some(owner) = is_windowed[..first].iter().rposition(|other| other == kind) else {
            let needed = "such that a layer of each kind has keys and values of its own";
            return Err(c.ill_typed(KEY, &shared.into(), needed));
        };
        let heads = |a: &AttentionSpec| (a.head_dim, a.kv_heads);
        let of_owner = m.layers[owner].attention().map(heads);
        if let FfnSpec::Dense(mlp) = &mut m.layers[i].ffn
            && double
        {
            mlp.inner *= 2;
        }
        let Some(a) = m.attention_mut(i) else { continue };
        if Some(heads(a)) != of_owner {
            let found = c.raw("per_layer_config").cloned().unwrap_or_default();
            let needed = "equal heads of layers that share keys and values";
            return Err(c.ill_typed("per_layer_config", &found, needed));
        }
        // The owner's keys and values are normed already, and are read as they lie in the cache.
        (a.keys_of, a.v_norm, a.values_are_keys) = (Some(owner), None, false);
    }
    Ok(())
}

/// The per-layer embeddings of the smaller models.
fn per_layer(m: &ModelSpec, c: &HfConfig) -> Result<Option<PerLayerSpec>> {
    const ROWS: &str = "vocab_size_per_layer_input";
    let width = c.index_or("hidden_size_per_layer_input", 256)?;
    if width == 0 {
        return Ok(None);
    }
    if width > MAX_WIDTH / m.layers.len() {
        let hint = format!("; at most {MAX_WIDTH} for all layers together are");
        return Err(c.unsupported("hidden_size_per_layer_input", &width.into(), &hint));
    }
    // Rows beyond the vocabulary are allowed, since published tables are padded.
    let vocab_size = c.count_opt(ROWS)?.unwrap_or(m.vocab_size);
    if vocab_size < m.vocab_size {
        return Err(c.ill_typed(ROWS, &vocab_size.into(), "at least vocab_size"));
    }
    let act = activation(c)?;
    let scale = (width as f64).sqrt();
    Ok(Some(PerLayerSpec { vocab_size, width, scale, eps: m.final_norm.eps, act }))
}

/// Experts in every layer, each beside the feed-forward.
fn set_experts(m: &mut ModelSpec, c: &HfConfig) -> Result<()> {
    let beside = m.layers.iter().map(|layer| layer.ffn.mlp().copied()).collect::<Vec<_>>();
    let top_k = c.count("top_k_experts")?;
    let gating = GatingSpec { scales: true, ..GatingSpec::softmax(true) };
    let c = c.with_default("num_experts_per_tok", top_k);
    m.set_experts(&c, "moe_intermediate_size", gating, |_| true)?;
    for (layer, beside) in m.layers.iter_mut().zip(beside) {
        if let FfnSpec::Experts(experts) = &mut layer.ffn {
            // The layer's feed-forward takes the place of the shared expert, with norms of its own.
            (experts.shared, experts.separate_norms) = (beside, true);
        }
    }
    Ok(())
}
