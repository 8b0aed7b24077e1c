//! Architectures with experts in layers.

use serde_json::{Value, json};

use super::{Config, GgufArch, dense, has_qkv_biases, set, window};
use crate::{
    error::Result,
    gguf::{keys::Keys, names},
};

/// Llama with experts, which has no name of its own.
pub(super) const MIXTRAL: GgufArch =
    GgufArch { class: "MixtralForCausalLM", own: chosen, ..dense::LLAMA };

pub(super) const QWEN2_MOE: GgufArch = GgufArch {
    name: "qwen2moe",
    class: "Qwen2MoeForCausalLM",
    own: |keys, config| {
        chosen(keys, config)?;
        width(keys, config)?;
        shared_width(keys, config, "shared_expert_intermediate_size")?;
        renormalize(keys, config, false)
    },
    ..GgufArch::BASE
};

pub(super) const QWEN3_MOE: GgufArch = GgufArch {
    name: "qwen3moe",
    class: "Qwen3MoeForCausalLM",
    own: |keys, config| {
        set(config, [("attention_bias", has_qkv_biases(keys))]);
        chosen(keys, config)?;
        width(keys, config)?;
        renormalize(keys, config, true)
    },
    ..GgufArch::BASE
};

pub(super) const OLMOE: GgufArch = GgufArch {
    name: "olmoe",
    class: "OlmoeForCausalLM",
    own: |keys, config| {
        chosen(keys, config)?;
        renormalize(keys, config, false)?;
        // OLMoE's class calls the width of an expert `intermediate_size`.
        if let Some(inner) = keys.count_opt("expert_feed_forward_length")? {
            set(config, [("intermediate_size", inner.into())]);
        }
        Ok(())
    },
    ..GgufArch::BASE
};

/// RoPE settings that files do not have are those of the published models.
pub(super) const GPT_OSS: GgufArch = GgufArch {
    name: "gpt-oss",
    class: "GptOssForCausalLM",
    rules: names::GPT_OSS,
    own: gpt_oss,
    ..GgufArch::BASE
};

/// With or without a shared expert.
pub(super) const GRANITE_MOE: GgufArch = GgufArch {
    name: "granitemoe",
    class: "GraniteMoeSharedForCausalLM",
    pairs: true,
    own: |keys, config| {
        dense::granite_factors(keys, config)?;
        set(config, [("attention_bias", has_qkv_biases(keys))]);
        chosen(keys, config)?;
        shared_width(keys, config, "shared_intermediate_size")
    },
    ..GgufArch::BASE
};

/// GLM-4.5 and later.
pub(super) const GLM4_MOE: GgufArch = GgufArch {
    name: "glm4moe",
    class: "Glm4MoeForCausalLM",
    rules: names::NORM_AFTER_ATTENTION,
    own: |keys, config| {
        let has_norms = keys.has_in_layers("attn_q_norm.weight");
        set(config, [("use_qk_norm", has_norms.into()), ("attention_bias", has_qkv_biases(keys))]);
        sigmoids(keys)?;
        some_shared(keys, config)
    },
    ..GgufArch::BASE
};

pub(super) const ERNIE4_5_MOE: GgufArch = GgufArch {
    name: "ernie4_5-moe",
    class: "Ernie4_5_MoeForCausalLM",
    own: |keys, config| {
        // The files' width of the shared experts is not true.
        keys.count_opt("expert_shared_feed_forward_length")?;
        width(keys, config)?;
        let step = keys.count_opt("interleave_moe_layer_step")?.unwrap_or(1);
        set(
            config,
            [
                ("moe_num_experts", keys.count("expert_count")?.into()),
                ("moe_k", keys.count("expert_used_count")?.into()),
                ("moe_layer_interval", step.into()),
                ("moe_layer_start_index", keys.index("leading_dense_block_count")?.into()),
                ("moe_num_shared_experts", keys.index("expert_shared_count")?.into()),
            ],
        );
        Ok(())
    },
    ..GgufArch::BASE
};

pub(super) const MINIMAX_M2: GgufArch = GgufArch {
    name: "minimax-m2",
    class: "MiniMaxM2ForCausalLM",
    own: |keys, config| {
        sigmoids(keys)?;
        chosen(keys, config)?;
        let inner = keys.count("expert_feed_forward_length")?;
        set(config, [("intermediate_size", inner.into())]);
        Ok(())
    },
    ..GgufArch::BASE
};

/// dots.llm1.
pub(super) const DOTS1: GgufArch = GgufArch {
    name: "dots1",
    class: "Dots1ForCausalLM",
    own: |keys, config| {
        set(config, [("attention_bias", has_qkv_biases(keys))]);
        window(keys, config)?;
        sigmoids(keys)?;
        some_shared(keys, config)
    },
    ..GgufArch::BASE
};

/// Trinity. Files do not say which layers have a window: three of four.
pub(super) const AFMOE: GgufArch = GgufArch {
    name: "afmoe",
    class: "AfmoeForCausalLM",
    own: |keys, config| {
        sigmoids(keys)?;
        chosen(keys, config)?;
        width(keys, config)?;
        window(keys, config)?;
        let scale = keys.float_opt("expert_weights_scale")?.unwrap_or(1.0);
        set(
            config,
            [
                ("num_dense_layers", keys.index("leading_dense_block_count")?.into()),
                ("num_shared_experts", keys.index("expert_shared_count")?.into()),
                ("route_norm", keys.flag_or("expert_weights_norm", true)?.into()),
                ("route_scale", scale.into()),
                // Trinity's embeddings are scaled by the root of their width, and files have no key for it.
                ("mup_enabled", true.into()),
            ],
        );
        Ok(())
    },
    ..GgufArch::BASE
};

/// The number of experts and the number that are chosen.
pub(super) fn chosen(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(
        config,
        [
            ("num_local_experts", keys.count("expert_count")?.into()),
            ("num_experts_per_tok", keys.count("expert_used_count")?.into()),
        ],
    );
    Ok(())
}

pub(super) fn width(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    let inner = keys.count("expert_feed_forward_length")?;
    set(config, [("moe_intermediate_size", inner.into())]);
    Ok(())
}

/// The width of the shared expert, which is 0 if there is none.
pub(super) fn shared_width(keys: &Keys<'_>, config: &mut Config, name: &'static str) -> Result<()> {
    let width = keys.index("expert_shared_feed_forward_length")?;
    set(config, [(name, width.into())]);
    Ok(())
}

/// Whether what experts count for is renormalised, which older files do not say.
pub(super) fn renormalize(keys: &Keys<'_>, config: &mut Config, unless_told: bool) -> Result<()> {
    let renormalize = keys.flag_or("expert_weights_norm", unless_told)?;
    set(config, [("norm_topk_prob", renormalize.into())]);
    Ok(())
}

/// Fails where experts are not chosen by sigmoids.
pub(super) fn sigmoids(keys: &Keys<'_>) -> Result<()> {
    const KEY: &str = "expert_gating_func";
    match keys.count_opt(KEY)? {
        None | Some(2) => Ok(()),
        Some(_) => Err(keys.unsupported(KEY, "; 2, sigmoids, is")),
    }
}

/// DeepSeek's experts behind some dense layers, its shared experts, and the weights of all of them.
pub(super) fn some_shared(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    let groups = keys.count_opt("expert_group_count")?.unwrap_or(1);
    let of_them = keys.count_opt("expert_group_used_count")?.unwrap_or(groups);
    let scale = keys.float_opt("expert_weights_scale")?.unwrap_or(1.0);
    width(keys, config)?;
    renormalize(keys, config, true)?;
    set(
        config,
        [
            ("n_routed_experts", keys.count("expert_count")?.into()),
            ("num_experts_per_tok", keys.count("expert_used_count")?.into()),
            ("n_shared_experts", keys.index("expert_shared_count")?.into()),
            ("first_k_dense_replace", keys.index("leading_dense_block_count")?.into()),
            ("routed_scaling_factor", json!(scale)),
            ("n_group", groups.into()),
            ("topk_group", of_them.into()),
        ],
    );
    Ok(())
}

fn gpt_oss(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    chosen(keys, config)?;
    window(keys, config)?;
    let inner = keys.count("expert_feed_forward_length")?;
    set(config, [("intermediate_size", inner.into()), ("attention_bias", true.into())]);
    // gpt-oss has YaRN with bounds that are not rounded to whole pairs, and files have no key for that.
    if let Some(Value::Object(rope)) = config.get_mut("rope_parameters") {
        set(rope, [("truncate", false.into())]);
    }
    Ok(())
}
