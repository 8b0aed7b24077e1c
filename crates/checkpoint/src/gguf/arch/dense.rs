//! Architectures whose layers are an attention and a feed-forward.

use serde_json::{Value, json};

use super::{
    Config, GgufArch, biases, has_qkv_biases, set, set_ropes_of_windows, window, windowed_layers,
};
use crate::{
    error::Result,
    gguf::{keys::Keys, names},
};

pub(super) const LLAMA: GgufArch = GgufArch {
    name: "llama",
    class: "LlamaForCausalLM",
    pairs: true,
    own: biases,
    ..GgufArch::BASE
};

pub(super) const QWEN3: GgufArch = GgufArch {
    name: "qwen3",
    class: "Qwen3ForCausalLM",
    own: |keys, config| {
        set(config, [("attention_bias", has_qkv_biases(keys))]);
        Ok(())
    },
    ..GgufArch::BASE
};

pub(super) const PHI3: GgufArch = GgufArch {
    name: "phi3",
    class: "Phi3ForCausalLM",
    rules: names::FUSED_GATES,
    own: window,
    ..GgufArch::BASE
};

pub(super) const GRANITE: GgufArch = GgufArch {
    name: "granite",
    class: "GraniteForCausalLM",
    pairs: true,
    own: granite,
    ..GgufArch::BASE
};

/// Mistral Small 3 and Ministral 3.
pub(super) const MISTRAL3: GgufArch = GgufArch {
    name: "mistral3",
    class: "Ministral3ForCausalLM",
    pairs: true,
    own: mistral3,
    ..GgufArch::BASE
};

pub(super) const GLM4: GgufArch = GgufArch {
    name: "glm4",
    class: "Glm4ForCausalLM",
    rules: names::FUSED_GATES,
    own: |keys, config| {
        set(config, [("attention_bias", has_qkv_biases(keys))]);
        Ok(())
    },
    ..GgufArch::BASE
};

pub(super) const OLMO2: GgufArch =
    GgufArch { name: "olmo2", class: "Olmo2ForCausalLM", ..GgufArch::BASE };

/// By the same name, with windows.
pub(super) const OLMO3: GgufArch = GgufArch { class: "Olmo3ForCausalLM", own: olmo3, ..OLMO2 };

pub(super) const SMOLLM3: GgufArch = GgufArch {
    name: "smollm3",
    class: "SmolLM3ForCausalLM",
    pairs: true,
    own: biases,
    ..GgufArch::BASE
};

pub(super) const SEED_OSS: GgufArch = GgufArch {
    name: "seed_oss",
    class: "SeedOssForCausalLM",
    rules: names::NORM_AFTER_ATTENTION,
    own: |keys, config| {
        biases(keys, config)?;
        let out = keys.has_in_layers("attn_output.bias");
        set(config, [("attention_out_bias", out.into())]);
        Ok(())
    },
    ..GgufArch::BASE
};

pub(super) const ERNIE4_5: GgufArch = GgufArch {
    name: "ernie4_5",
    class: "Ernie4_5ForCausalLM",
    own: |keys, config| {
        set(config, [("use_bias", has_qkv_biases(keys))]);
        Ok(())
    },
    ..GgufArch::BASE
};

pub(super) const EXAONE4: GgufArch = GgufArch {
    name: "exaone4",
    class: "Exaone4ForCausalLM",
    own: |keys, config| {
        window(keys, config)?;
        windowed_layers(keys, config)?;
        Ok(())
    },
    ..GgufArch::BASE
};

pub(super) const STARCODER2: GgufArch = GgufArch {
    name: "starcoder2",
    class: "Starcoder2ForCausalLM",
    layer_norms: true,
    own: |keys, config| {
        window(keys, config)?;
        let eps = config.remove("rms_norm_eps").unwrap_or_default();
        set(
            config,
            [
                ("hidden_act", "gelu_pytorch_tanh".into()),
                ("norm_epsilon", eps),
                ("use_bias", has_qkv_biases(keys)),
            ],
        );
        Ok(())
    },
    ..GgufArch::BASE
};

pub(super) const COMMAND_R: GgufArch = GgufArch {
    name: "command-r",
    class: "CohereForCausalLM",
    layer_norms: true,
    own: |keys, config| {
        set(config, [("use_qk_norm", keys.has_in_layers("attn_q_norm.weight").into())]);
        cohere(keys, config)
    },
    ..GgufArch::BASE
};

/// Three of four layers have a window, unless the file lists others.
pub(super) const COHERE2: GgufArch = GgufArch {
    name: "cohere2",
    class: "Cohere2ForCausalLM",
    layer_norms: true,
    own: |keys, config| {
        cohere(keys, config)?;
        window(keys, config)?;
        windowed_layers(keys, config)?;
        Ok(())
    },
    ..GgufArch::BASE
};

/// AFM, whose feed-forwards have no gate.
pub(super) const ARCEE: GgufArch = GgufArch {
    name: "arcee",
    class: "ArceeForCausalLM",
    pairs: true,
    own: |keys, config| {
        set(config, [("hidden_act", "relu2".into())]);
        biases(keys, config)
    },
    ..GgufArch::BASE
};

fn granite(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    biases(keys, config)?;
    granite_factors(keys, config)
}

/// Granite's factors.
pub(super) fn granite_factors(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    for (key, name) in [
        ("embedding_scale", "embedding_multiplier"),
        ("attention.scale", "attention_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ] {
        set(config, [(name, keys.float(key)?.into())]);
    }
    Ok(())
}

/// Ministral 3's queries grow with their positions.
fn mistral3(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    // Mistral's converter writes the factor as it is, where DeepSeek's writes a tenth of it.
    window(keys, config)?;
    let growth = keys.float_opt("attention.temperature_scale")?;
    let factor = keys.float_opt("rope.scaling.yarn_log_multiplier")?;
    if let Some(Value::Object(rope)) = config.get_mut("rope_parameters") {
        let (growth, factor) = (growth.map(Value::from), factor.map(Value::from));
        let both =
            [("mscale", &factor), ("mscale_all_dim", &factor), ("llama_4_scaling_beta", &growth)];
        set(rope, both.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
    }
    Ok(())
}

fn olmo3(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    window(keys, config)?;
    windowed_layers(keys, config)?;
    // Layers with a window have the same base, without YaRN.
    let theta = keys.float_opt("rope.freq_base")?.unwrap_or(1e4);
    set_ropes_of_windows(keys, config, theta)
}

/// The common settings of Command R and R7B.
fn cohere(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    let eps = config.remove("rms_norm_eps").unwrap_or_default();
    set(
        config,
        [
            ("layer_norm_eps", eps),
            ("logit_scale", json!(keys.float("logit_scale")?)),
            ("attention_bias", has_qkv_biases(keys)),
        ],
    );
    Ok(())
}
