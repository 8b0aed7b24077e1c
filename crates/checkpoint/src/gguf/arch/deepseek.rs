//! DeepSeek V2 and V3, and what is like them: latent attention and experts.

use serde_json::{Value, json};

use super::{Config, GgufArch, experts, set};
use crate::{
    config::HfConfig,
    error::Result,
    gguf::{keys::Keys, names},
};

pub(in crate::gguf) const NAME: &str = "deepseek2";

pub(super) const V2: GgufArch = GgufArch {
    name: NAME,
    class: "DeepseekV2ForCausalLM",
    rules: names::DEEPSEEK2,
    own: |keys, config| {
        latents(keys, config)?;
        let renormalize = keys.flag_or("expert_weights_norm", false)?;
        set(config, [("norm_topk_prob", renormalize.into())]);
        // V2's two ways of choosing experts differ by groups alone, and the file does not name them.
        if config["n_group"] != json!(1) {
            set(config, [("topk_method", "group_limited_greedy".into())]);
        }
        Ok(())
    },
    ..GgufArch::BASE
};

/// V3 and what is like it, by the same name as V2.
pub(super) const V3: GgufArch = GgufArch { class: "DeepseekV3ForCausalLM", own: latents, ..V2 };

/// Whether DeepSeek's experts are chosen by sigmoids. GLM-4.7-Flash does not say so: its layers and its vocabulary do.
pub(super) fn has_sigmoids(metadata: &HfConfig) -> Result<bool> {
    const KEY: &str = "deepseek2.expert_gating_func";
    const GLM_LAYERS: [usize; 2] = [47, 48];
    const GLM_VOCABULARY: usize = 154_880;
    match metadata.count_opt(KEY)? {
        Some(1) => Ok(false),
        Some(2) => Ok(true),
        Some(other) => {
            Err(metadata.unsupported(KEY, &other.into(), "; 1, softmax, and 2, sigmoids, are"))
        }
        None => Ok(GLM_LAYERS.contains(&metadata.index_or("deepseek2.block_count", 0)?)
            && metadata.index_or("deepseek2.vocab_size", 0)? == GLM_VOCABULARY),
    }
}

/// Widths of heads have keys of their own where others are those of what attention is over, of latents.
fn latents(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    let width = |mla: &str, older: &str| match keys.count_opt(mla)? {
        Some(width) => Ok(width),
        None => keys.count(older),
    };
    let key_dim = width("attention.key_length_mla", "attention.key_length")?;
    let rotated = keys.count("rope.dimension_count")?;
    let Some(key_dim) = key_dim.checked_sub(rotated).filter(|dim| *dim > 0) else {
        return Err(keys.unsupported("rope.dimension_count", "; a part of the width of keys is"));
    };
    // V2 has no sigmoids; `find` has seen that.
    // The key counts as read, so that it is no unknown one.
    keys.count_opt("expert_gating_func")?;
    experts::some_shared(keys, config)?;
    set(
        config,
        [
            ("q_lora_rank", json!(keys.count_opt("attention.q_lora_rank")?)),
            ("kv_lora_rank", keys.count("attention.kv_lora_rank")?.into()),
            ("qk_nope_head_dim", key_dim.into()),
            ("qk_rope_head_dim", rotated.into()),
            ("v_head_dim", width("attention.value_length_mla", "attention.value_length")?.into()),
        ],
    );
    // transformers takes `mscale_all_dim`, of which llama.cpp's converter writes a tenth for DeepSeek.
    // The scores alone are multiplied by a temperature.
    let temperature = keys.float_opt("rope.scaling.yarn_log_multiplier")?;
    if let Some(Value::Object(rope)) = config.get_mut("rope_parameters")
        && rope["rope_type"] == json!("yarn")
    {
        let temperature = 10.0 * temperature.unwrap_or(0.0);
        set(rope, [("mscale_all_dim", temperature.into()), ("attention_factor", 1.0.into())]);
    }
    Ok(())
}
