//! Architectures with linear attention, an SSM or convolutions in place of some attentions.

use super::{Config, GgufArch, Layers, biases, dense, experts, has_qkv_biases, layer_types, set};
use crate::{
    error::Result,
    gguf::{keys::Keys, names},
};

pub(super) const QWEN3_NEXT: GgufArch = GgufArch {
    name: "qwen3next",
    class: "Qwen3NextForCausalLM",
    rules: names::QWEN3_NEXT,
    own: |keys, config| {
        delta_nets(keys, config)?;
        qwen_experts(keys, config)
    },
    ..GgufArch::BASE
};

pub(super) const QWEN3_5: GgufArch = GgufArch {
    name: "qwen35",
    class: "Qwen3_5ForCausalLM",
    rules: names::QWEN3_NEXT,
    tiled: true,
    own: delta_nets,
    ..GgufArch::BASE
};

pub(super) const QWEN3_5_MOE: GgufArch = GgufArch {
    name: "qwen35moe",
    class: "Qwen3_5MoeForCausalLM",
    own: |keys, config| {
        delta_nets(keys, config)?;
        qwen_experts(keys, config)
    },
    ..QWEN3_5
};

pub(super) const LFM2: GgufArch = GgufArch {
    name: "lfm2",
    class: "Lfm2ForCausalLM",
    rules: names::LFM2,
    layers: Layers::OrNothing,
    own: lfm2,
    ..GgufArch::BASE
};

pub(super) const LFM2_MOE: GgufArch = GgufArch {
    name: "lfm2moe",
    class: "Lfm2MoeForCausalLM",
    own: |keys, config| {
        lfm2(keys, config)?;
        experts::sigmoids(keys)?;
        experts::width(keys, config)?;
        experts::renormalize(keys, config, true)?;
        let dense = keys.index("leading_dense_block_count")?;
        let scale = keys.float_opt("expert_weights_scale")?.unwrap_or(1.0);
        set(
            config,
            [
                ("num_experts", keys.count("expert_count")?.into()),
                ("num_experts_per_tok", keys.count("expert_used_count")?.into()),
                ("num_dense_layers", dense.into()),
                ("routed_scaling_factor", scale.into()),
            ],
        );
        Ok(())
    },
    ..LFM2
};

/// Granite 4 H, and Bamba, which has no factors.
pub(super) const GRANITE_HYBRID: GgufArch = GgufArch {
    name: "granitehybrid",
    class: "GraniteMoeHybridForCausalLM",
    rules: names::MAMBA,
    pairs: true,
    layers: Layers::OrNothing,
    own: granite_hybrid,
    ..GgufArch::BASE
};

pub(super) const NEMOTRON_H: GgufArch = GgufArch {
    name: "nemotron_h",
    class: "NemotronHForCausalLM",
    rules: names::NEMOTRON_H,
    layers: Layers::OrNothing,
    own: |keys, config| nemotron_h(keys, config, "mlp"),
    ..GgufArch::BASE
};

/// Nemotron 3.
pub(super) const NEMOTRON_H_MOE: GgufArch = GgufArch {
    name: "nemotron_h_moe",
    own: |keys, config| {
        nemotron_h(keys, config, "moe")?;
        experts::sigmoids(keys)?;
        experts::some_shared(keys, config)?;
        experts::shared_width(keys, config, "moe_shared_expert_intermediate_size")
    },
    ..NEMOTRON_H
};

/// The rows of linear attention: its heads and their widths.
struct Heads {
    keys: usize,
    values: usize,
    key_dim: usize,
    value_dim: usize,
    kernel_size: usize,
}

impl Heads {
    fn read(keys: &Keys<'_>) -> Result<Self> {
        const WIDTH: &str = "ssm.inner_size";
        let (width, values) = (keys.count(WIDTH)?, keys.count("ssm.time_step_rank")?);
        if !width.is_multiple_of(values) {
            return Err(keys.unsupported(WIDTH, "; a multiple of ssm.time_step_rank is"));
        }
        Ok(Self {
            keys: keys.count("ssm.group_count")?,
            values,
            key_dim: keys.count("ssm.state_size")?,
            value_dim: width / values,
            kernel_size: keys.count("ssm.conv_kernel")?,
        })
    }
}

/// The layers without KV heads, which have no attention.
fn without_attention(keys: &Keys<'_>) -> Result<Vec<bool>> {
    const KEY: &str = "attention.head_count_kv";
    let heads = keys.counts_of_layers(KEY)?;
    match heads.len() == keys.layers()? {
        true => Ok(heads.iter().map(|heads| *heads == 0).collect()),
        false => Err(keys.unsupported(KEY, "; a number for each layer is")),
    }
}

/// The settings of Qwen3-Next and Qwen3.5.
fn delta_nets(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    let heads = Heads::read(keys)?;
    let interval = keys.count_opt("full_attention_interval")?.unwrap_or(4);
    if let Some(recurrent) = keys.flags_of_layers("attention.recurrent_layers")? {
        let kinds = ["linear_attention", "full_attention"];
        set(config, [("layer_types", layer_types(&recurrent, kinds))]);
    }
    set(
        config,
        [
            ("full_attention_interval", interval.into()),
            ("linear_num_key_heads", heads.keys.into()),
            ("linear_num_value_heads", heads.values.into()),
            ("linear_key_head_dim", heads.key_dim.into()),
            ("linear_value_head_dim", heads.value_dim.into()),
            ("linear_conv_kernel_dim", heads.kernel_size.into()),
        ],
    );
    Ok(())
}

/// Experts in all layers, and a shared expert.
fn qwen_experts(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    experts::chosen(keys, config)?;
    experts::width(keys, config)?;
    experts::shared_width(keys, config, "shared_expert_intermediate_size")?;
    experts::renormalize(keys, config, true)
}

fn lfm2(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    let eps = config.remove("rms_norm_eps").unwrap_or_default();
    let is_conv = without_attention(keys)?;
    set(
        config,
        [
            ("norm_eps", eps),
            // The file has the width as adjusted already.
            ("block_auto_adjust_ff_dim", false.into()),
            ("conv_L_cache", keys.count("shortconv.l_cache")?.into()),
            ("layer_types", layer_types(&is_conv, ["conv", "full_attention"])),
        ],
    );
    Ok(())
}

/// Mamba-2 by Bamba's keys.
fn mamba(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    let heads = Heads::read(keys)?;
    set(
        config,
        [
            ("mamba_n_heads", heads.values.into()),
            ("mamba_n_groups", heads.keys.into()),
            ("mamba_d_state", heads.key_dim.into()),
            ("mamba_d_head", heads.value_dim.into()),
            ("mamba_d_conv", heads.kernel_size.into()),
            ("mamba_conv_bias", keys.has_in_layers("ssm_conv1d.bias").into()),
        ],
    );
    Ok(())
}

fn granite_hybrid(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    mamba(keys, config)?;
    let is_mamba = without_attention(keys)?;
    // The key is about other things in files of other architectures.
    let rope = match keys.flag_or("rope.scaling.finetuned", true)? {
        true => "rope",
        false => "nope",
    };
    let count = keys.count_opt("expert_count")?;
    if count.is_some() {
        experts::chosen(keys, config)?;
        experts::shared_width(keys, config, "shared_intermediate_size")?;
    } else {
        // Where the width has a key of its own it is the same.
        keys.count_opt("expert_shared_feed_forward_length")?;
        let width = keys.count_of_layers("feed_forward_length")?;
        set(config, [("num_local_experts", 0.into()), ("shared_intermediate_size", width.into())]);
    }
    set(
        config,
        [
            ("layer_types", layer_types(&is_mamba, ["mamba", "attention"])),
            ("position_embedding_type", rope.into()),
            ("attention_bias", has_qkv_biases(keys)),
        ],
    );
    if keys.float_opt("attention.scale")?.is_some() {
        return dense::granite_factors(keys, config);
    }
    // Bamba has no factors, so the scale is the usual one.
    let scale = (keys.head_dim()? as f64).powf(-0.5);
    set(config, [("attention_multiplier", scale.into())]);
    Ok(())
}

/// Layers of which each is one thing: a mixer, or what follows one.
fn nemotron_h(keys: &Keys<'_>, config: &mut Config, ffn: &str) -> Result<()> {
    const WIDTHS: &str = "feed_forward_length";
    mamba(keys, config)?;
    biases(keys, config)?;
    let (no_attention, widths) = (without_attention(keys)?, keys.counts_of_layers(WIDTHS)?);
    if widths.len() != no_attention.len() {
        return Err(keys.unsupported(WIDTHS, "; a number for each layer is"));
    }
    // Attention has KV heads and no width, a feed-forward has a width, and Mamba-2 has neither.
    let kind = |(no_attention, width): (&bool, &usize)| match (no_attention, width) {
        (true, 0) => "mamba",
        (false, 0) => "attention",
        _ => ffn,
    };
    let kinds: Vec<&str> = no_attention.iter().zip(&widths).map(kind).collect();
    let (eps, head_dim) = (config.remove("rms_norm_eps"), config.remove("head_dim"));
    // Nemotron-H's class has its own default, the squared ReLU.
    config.remove("hidden_act");
    set(
        config,
        [
            ("layers_block_type", kinds.into()),
            ("layer_norm_epsilon", eps.unwrap_or_default()),
            ("attention_head_dim", head_dim.unwrap_or_default()),
        ],
    );
    Ok(())
}
