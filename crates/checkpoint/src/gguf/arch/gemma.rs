//! Gemma 1 to 4. Norms are stored with the one that their own checkpoints leave out.

use serde_json::{Map, Value, json};

use super::{Config, GgufArch, Layers, has_qkv_biases, set, set_ropes_of_windows, windowed_layers};
use crate::{
    error::{Error, Result},
    gguf::{keys::Keys, names},
};

pub(super) const GEMMA: GgufArch = GgufArch {
    name: "gemma",
    class: "GemmaForCausalLM",
    own: |_, config| {
        set(config, [("hidden_act", "gelu_pytorch_tanh".into())]);
        Ok(())
    },
    ..GgufArch::BASE
};

pub(super) const GEMMA2: GgufArch =
    GgufArch { name: "gemma2", class: "Gemma2ForCausalLM", own: gemma2, ..GgufArch::BASE };

pub(super) const GEMMA3: GgufArch =
    GgufArch { name: "gemma3", class: "Gemma3ForCausalLM", own: gemma3, ..GgufArch::BASE };

/// EmbeddingGemma: Gemma 3's layers, whose tokens see both ways.
pub(super) const GEMMA_EMBEDDING: GgufArch = GgufArch {
    name: "gemma-embedding",
    class: "Gemma3TextModel",
    own: |keys, config| {
        gemma3(keys, config)?;
        // Its files say that it is not causal, which goes without saying.
        keys.key("attention.causal");
        set(config, [("use_bidirectional_attention", true.into())]);
        Ok(())
    },
    ..GgufArch::BASE
};

pub(super) const GEMMA4: GgufArch = GgufArch {
    name: "gemma4",
    class: "Gemma4ForCausalLM",
    rules: names::GEMMA4,
    layers: Layers::Different,
    own: gemma4,
    ..GgufArch::BASE
};

fn gelu(config: &mut Config) {
    config.remove("hidden_act");
    set(config, [("hidden_activation", "gelu_pytorch_tanh".into())]);
}

/// The common settings of Gemma 2 and 3. The factor on the scores is not written: it is that of the heads' width, except for
/// the 27B models, which are recognized by their `by_heads` layers.
fn gemma(keys: &Keys<'_>, config: &mut Config, by_heads: usize) -> Result<()> {
    gelu(config);
    let scalar = match keys.float_opt("attention.scale")? {
        // transformers takes the number whose inverse root is the scale.
        Some(scale) => scale.powi(-2),
        None if keys.count("block_count")? == by_heads => {
            keys.count("embedding_length")? as f64 / keys.count("attention.head_count")? as f64
        }
        None => keys.head_dim()? as f64,
    };
    let window = keys.count("attention.sliding_window")?;
    set(config, [("query_pre_attn_scalar", scalar.into()), ("sliding_window", window.into())]);
    let cap = keys.float_opt("final_logit_softcapping")?;
    set(
        config,
        [("attention_bias", has_qkv_biases(keys)), ("final_logit_softcapping", cap.into())],
    );
    Ok(())
}

fn gemma2(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    // Gemma 2 of 27B has 46 layers, and Gemma 3 of 27B has 62.
    gemma(keys, config, 46)?;
    keys.float("final_logit_softcapping")?;
    let cap = keys.float("attn_logit_softcapping")?;
    set(config, [("attn_logit_softcapping", cap.into())]);
    Ok(())
}

fn gemma3(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    gemma(keys, config, 62)?;
    set_ropes_of_windows(keys, config, 1e4)?;
    if windowed_layers(keys, config)?.is_none() {
        let key = keys.key("attention.sliding_window_pattern");
        // The key is a number in some files and a list in others. Five
        // local layers and a global one are Gemma 3's default.
        let every = keys.metadata.count_opt(&key)?.unwrap_or(6);
        set(config, [("sliding_window_pattern", every.into())]);
    }
    Ok(())
}

fn gemma4(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    gelu(config);
    let pattern = keys.key(PATTERN);
    let missing = || keys.metadata.missing(&pattern, "a list of true and false");
    let windowed = windowed_layers(keys, config)?.ok_or_else(missing)?;
    let (wide, narrow) = (keys.head_dim()?, keys.count("attention.key_length_swa")?);
    for (key, width) in [
        ("attention.value_length_swa", narrow),
        ("rope.dimension_count", wide),
        ("rope.dimension_count_swa", narrow),
    ] {
        if keys.count_opt(key)?.is_some_and(|found| found != width) {
            return Err(keys.unsupported(key, "; the width of keys is"));
        }
    }
    let heads = keys.counts_of_layers("attention.head_count_kv")?;
    // Files with one number for all layers have no list.
    let heads_of = |layer: usize| heads.get(layer).or(heads.first()).copied();
    let of_kind = |kind: bool| {
        let layers = windowed.iter().enumerate();
        layers.filter(move |(_, windowed)| **windowed == kind).map(|(layer, _)| layer)
    };
    // Global layers are wider and have other heads, so each is described in `per_layer_config`.
    let own = of_kind(false)
        .map(|i| (i.to_string(), json!({"head_dim": wide, "num_key_value_heads": heads_of(i)})));
    let own: Map<String, Value> = own.collect();
    let (global, local) = (of_kind(false).next(), of_kind(true).next());
    let shared = keys.index("attention.shared_kv_layers")?;
    // A global layer without a matrix of values uses its keys as values.
    let values = global.map(|i| format!("blk.{i}.attn_v.weight"));
    let experts = keys.count_opt("expert_count")?;
    let of_layers = keys.gguf.tensors.get("per_layer_token_embd.weight");
    let of_layers = of_layers.and_then(|tensor| tensor.shape.first().copied());
    let entries = [
        ("head_dim", json!(narrow)),
        ("num_key_value_heads", local.and_then(heads_of).or(heads_of(0)).into()),
        ("per_layer_config", own.into()),
        ("attention_k_eq_v", values.is_some_and(|values| !keys.has_tensor(&values)).into()),
        ("num_kv_shared_layers", shared.into()),
        ("use_double_wide_mlp", is_wide_at_the_end(keys, shared)?.into()),
        ("hidden_size_per_layer_input", keys.index("embedding_length_per_layer_input")?.into()),
        ("vocab_size_per_layer_input", of_layers.into()),
        ("sliding_window", keys.count("attention.sliding_window")?.into()),
        ("final_logit_softcapping", keys.float_opt("final_logit_softcapping")?.into()),
        ("enable_moe_block", experts.is_some().into()),
        ("num_experts", experts.into()),
        ("top_k_experts", keys.count_opt("expert_used_count")?.into()),
        ("moe_intermediate_size", keys.count_opt("expert_feed_forward_length")?.into()),
        (
            "rope_parameters",
            json!({
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": keys.float_opt("rope.freq_base")?.unwrap_or(1e6),
                    "partial_rotary_factor": rotated_part(keys, wide)?,
                },
                "sliding_attention": {
                    "rope_type": "default",
                    "rope_theta": keys.float_opt("rope.freq_base_swa")?.unwrap_or(1e4),
                },
            }),
        ),
    ];
    set(config, entries);
    Ok(())
}

/// Whether the feed-forwards of the last `shared` layers are twice as wide as those before.
fn is_wide_at_the_end(keys: &Keys<'_>, shared: usize) -> Result<bool> {
    const KEY: &str = "feed_forward_length";
    let widths = keys.counts_of_layers(KEY)?;
    let (Some(first), Some(last)) = (widths.first(), widths.last()) else { return Ok(false) };
    let wide = first != last;
    // A layer without keys of its own has twice the width in some of Gemma 4's models.
    let width = |i: usize| if wide && i + shared >= widths.len() { 2 * first } else { *first };
    match widths.iter().enumerate().all(|(i, found)| *found == width(i)) {
        true => Ok(wide),
        false => {
            Err(keys.unsupported(KEY, "; layers that share keys and values twice as wide are"))
        }
    }
}

/// The share of the pairs of a head that are rotated: the divisors of the other frequencies leave nothing of them.
fn rotated_part(keys: &Keys<'_>, head_dim: usize) -> Result<f64> {
    const NAME: &str = "rope_freqs.weight";
    let Some(divisors) = keys.gguf.divisors.get(NAME) else { return Ok(1.0) };
    let rotated = divisors.iter().take_while(|divisor| **divisor == 1.0).count();
    let rest = &divisors[rotated..];
    // llama.cpp's converter writes 1e30 for pairs that are not rotated: their frequency becomes almost zero.
    if divisors.len() != head_dim / 2 || rest.iter().any(|divisor| *divisor < 1e20) {
        let reason = format!("{NAME} does not turn the first pairs of a head and leave the others");
        return Err(Error::Gguf { file: keys.gguf.files[0].clone(), reason });
    }
    // Half an element more: the product with the width is cut to a whole number.
    Ok((rotated as f64 + 0.25) / (head_dim / 2) as f64)
}
