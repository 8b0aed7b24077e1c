//! The metadata of a GGUF file as the `config.json` of the same model.
//! Source: `convert_hf_to_gguf.py` of llama.cpp, which goes the other way, and `src/llama-model.cpp` for what is not written.

use serde_json::{Map, Value, json};

use super::{Gguf, names};
use crate::{
    config::HfConfig,
    error::{Error, Result},
    weights::WeightRule,
};

/// Tensors that are a part of the configuration: what the rope's frequencies are divided by.
pub(super) const DIVISORS: [&str; 3] =
    ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

/// An architecture that GGUF files have.
#[derive(Debug)]
pub(super) struct GgufArch {
    /// As `general.architecture` has it.
    name: &'static str,
    /// The Hugging Face class name.
    class: &'static str,
    /// Where its tensors have other names than most.
    pub(super) rules: &'static [WeightRule],
    /// The rows of q and k are in the order of pairs of neighbours.
    pub(super) pairs: bool,
    /// Adds what is the architecture's own.
    own: fn(&Keys<'_>, &mut Map<String, Value>) -> Result<()>,
}

impl GgufArch {
    /// Whether it is the one of this name.
    pub(super) fn is(&self, name: &str) -> bool {
        self.name == name
    }
}

const fn arch(
    name: &'static str,
    class: &'static str,
    own: fn(&Keys<'_>, &mut Map<String, Value>) -> Result<()>,
) -> GgufArch {
    GgufArch { name, class, rules: &[], pairs: false, own }
}

const ALL: &[GgufArch] = &[
    GgufArch { pairs: true, ..arch("llama", "LlamaForCausalLM", biases) },
    MIXTRAL,
    arch("qwen2", "Qwen2ForCausalLM", |_, _| Ok(())),
    arch("qwen3", "Qwen3ForCausalLM", biases),
    GgufArch { rules: names::EXPERTS, ..arch("qwen3moe", "Qwen3MoeForCausalLM", qwen3_moe) },
    GgufArch { rules: names::EXPERTS, ..arch("olmoe", "OlmoeForCausalLM", olmoe) },
    GgufArch { rules: names::GPT_OSS, ..arch("gpt-oss", "GptOssForCausalLM", gpt_oss) },
    arch("gemma2", "Gemma2ForCausalLM", gemma2),
    arch("gemma3", "Gemma3ForCausalLM", gemma3),
    GgufArch { rules: names::GEMMA4, ..arch("gemma4", "Gemma4ForCausalLM", gemma4) },
    GgufArch { rules: names::DEEPSEEK2, ..arch(DEEPSEEK, "DeepseekV2ForCausalLM", deepseek2) },
    DEEPSEEK_V3,
    GgufArch { rules: names::PHI3, ..arch("phi3", "Phi3ForCausalLM", window) },
    GgufArch { pairs: true, ..arch("granite", "GraniteForCausalLM", granite) },
];

/// Llama with experts, which has no name of its own.
const MIXTRAL: GgufArch =
    GgufArch { pairs: true, rules: names::EXPERTS, ..arch("llama", "MixtralForCausalLM", experts) };

const DEEPSEEK: &str = "deepseek2";

/// DeepSeek V3 and what is like it, by the same name as V2.
const DEEPSEEK_V3: GgufArch =
    GgufArch { rules: names::DEEPSEEK2, ..arch(DEEPSEEK, "DeepseekV3ForCausalLM", deepseek2) };

/// Keys of an architecture that are read here, or that say nothing of the computation. Any other that is set is refused.
const KNOWN: &[&str] = &[
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "block_count",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.finetuned",
];

/// The architecture of a file.
pub(super) fn find(metadata: &HfConfig) -> Result<&'static GgufArch> {
    const KEY: &str = "general.architecture";
    let name = metadata.text_opt(KEY)?;
    let name = name.ok_or_else(|| metadata.missing(KEY, "the name of an architecture"))?;
    if name == MIXTRAL.name && metadata.index_or("llama.expert_count", 0)? > 0 {
        return Ok(&MIXTRAL);
    }
    if name == DEEPSEEK && has_sigmoids(metadata)? {
        return Ok(&DEEPSEEK_V3);
    }
    ALL.iter().find(|arch| arch.name == name).ok_or_else(|| {
        let mut names: Vec<&str> = ALL.iter().map(|arch| arch.name).collect();
        names.dedup();
        metadata.unsupported(KEY, &name.into(), &format!("; {} are", names.join(", ")))
    })
}

/// Whether DeepSeek's experts are chosen by sigmoids. GLM-4.7-Flash does not say so: its layers and its vocabulary do.
fn has_sigmoids(metadata: &HfConfig) -> Result<bool> {
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

/// The keys that belong to the architecture.
struct Keys<'a> {
    gguf: &'a Gguf,
    metadata: &'a HfConfig,
    arch: &'static str,
}

impl Keys<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    fn count(&self, key: &str) -> Result<usize> {
        self.metadata.count(&self.key(key))
    }

    /// A count; zero is none.
    fn count_opt(&self, key: &str) -> Result<Option<usize>> {
        let key = self.key(key);
        match self.metadata.raw(&key).is_some_and(|value| *value == json!(0)) {
            true => Ok(None),
            false => self.metadata.count_opt(&key),
        }
    }

    /// What a key says of each layer: one number for all, or a list.
    fn counts_of_layers(&self, key: &str) -> Result<Vec<usize>> {
        let full = self.key(key);
        let Some(Value::Array(list)) = self.metadata.raw(&full) else {
            return Ok(self.count_opt(key)?.into_iter().collect());
        };
        let layers = self.count("block_count")?;
        let counts: Option<Vec<usize>> = list
            .iter()
            .map(|count| usize::try_from(count.as_u64()?).ok().filter(|count| *count > 0))
            .collect();
        counts.filter(|counts| counts.len() == layers).ok_or_else(|| {
            self.metadata.ill_typed(&full, &list.clone().into(), "a number for each layer")
        })
    }

    /// What a key says of the first layer, where its architecture takes different ones, and otherwise of all layers alike.
    fn count_of_layers(&self, key: &str) -> Result<Option<usize>> {
        let counts = self.counts_of_layers(key)?;
        let differ = counts.iter().any(|count| *count != counts[0]);
        match differ && self.arch != "gemma4" {
            true => Err(self.unsupported(key, "; the same number for all layers is")),
            false => Ok(counts.first().copied()),
        }
    }

    fn float(&self, key: &str) -> Result<f64> {
        self.metadata.float(&self.key(key))
    }

    fn float_opt(&self, key: &str) -> Result<Option<f64>> {
        self.metadata.float_opt(&self.key(key))
    }

    fn unsupported(&self, key: &str, hint: &str) -> Error {
        let key = self.key(key);
        let value = self.metadata.raw(&key).cloned().unwrap_or_default();
        self.metadata.unsupported(&key, &value, hint)
    }

    fn has_tensor(&self, name: &str) -> bool {
        self.gguf.tensors.contains_key(name)
    }

    fn head_dim(&self) -> Result<usize> {
        if self.arch == DEEPSEEK {
            // Of the part that is turned; the widths of keys are another matter.
            return self.count("rope.dimension_count");
        }
        let (hidden, heads) =
            (self.count("embedding_length")?, self.count("attention.head_count")?);
        match self.count_opt("attention.key_length")? {
            Some(head_dim) => Ok(head_dim),
            None if hidden.is_multiple_of(heads) => Ok(hidden / heads),
            None => {
                let key = self.key("attention.key_length");
                Err(self.metadata.missing(&key, "as the heads do not divide embedding_length, it"))
            }
        }
    }
}

impl Gguf {
    /// The model's `config.json`.
    pub(super) fn config(&self) -> Result<Value> {
        let keys = Keys { gguf: self, metadata: &self.metadata, arch: self.arch.name };
        let head_dim = keys.head_dim()?;
        let value_length = keys.count_opt("attention.value_length")?;
        if self.arch.name != DEEPSEEK && value_length.is_some_and(|found| found != head_dim) {
            return Err(keys.unsupported("attention.value_length", "; the width of keys is"));
        }
        let embedding = "token_embd.weight";
        let Some(embedding) = self.tensors.get(embedding).filter(|t| t.shape.len() == 2) else {
            let reason = format!("there is no matrix {embedding} in it");
            return Err(Error::Gguf { file: self.files[0].clone(), reason });
        };
        let config = json!({
            "architectures": [self.arch.class],
            "vocab_size": embedding.shape[0],
            "hidden_size": keys.count("embedding_length")?,
            "intermediate_size": keys.count_of_layers("feed_forward_length")?,
            "num_hidden_layers": keys.count("block_count")?,
            "num_attention_heads": keys.count("attention.head_count")?,
            "num_key_value_heads": keys.count_of_layers("attention.head_count_kv")?,
            "head_dim": head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": keys.float("attention.layer_norm_rms_epsilon")?,
            "max_position_embeddings": keys.count("context_length")?,
            "tie_word_embeddings": !keys.has_tensor("output.weight"),
            "rope_parameters": rope(&keys, head_dim)?,
            "eos_token_id": self.end_ids()?,
            "suppress_tokens": self.metadata.token_ids("tokenizer.ggml.suppress_tokens")?,
            "dtype": self.plain_dtype(),
        });
        let Value::Object(mut config) = config else { unreachable!("it is written as an object") };
        (self.arch.own)(&keys, &mut config)?;
        refuse_others(&keys)?;
        Ok(config.into())
    }

    /// The dtype of the matrices that are plain numbers: of most of their bytes.
    fn plain_dtype(&self) -> &'static str {
        let bytes = |kind| {
            let tensors = self.tensors.values().filter(|t| t.shape.len() == 2 && t.kind == kind);
            tensors.map(|t| t.shape.iter().product::<usize>() * kind.block_bytes()).sum::<usize>()
        };
        use super::GgufType::{Bf16, F16, F32};
        let dtypes = [(F32, "float32"), (F16, "float16"), (Bf16, "bfloat16")];
        dtypes.into_iter().rev().max_by_key(|(kind, _)| bytes(*kind)).expect("there are three").1
    }
}

/// Refuses keys that may change the computation and that nobody has read.
fn refuse_others(keys: &Keys<'_>) -> Result<()> {
    let own: &[&str] = match keys.arch {
        "gemma2" => &[
            "attention.sliding_window",
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "attention.scale",
        ],
        "gemma3" => &[
            "attention.sliding_window",
            "attention.sliding_window_pattern",
            "rope.freq_base_swa",
            "final_logit_softcapping",
            "attention.scale",
        ],
        "gemma4" => &[
            "attention.sliding_window",
            "attention.sliding_window_pattern",
            "attention.shared_kv_layers",
            "attention.key_length_swa",
            "attention.value_length_swa",
            "rope.freq_base_swa",
            "rope.dimension_count_swa",
            "final_logit_softcapping",
            "embedding_length_per_layer_input",
            "expert_count",
            "expert_used_count",
            "expert_feed_forward_length",
        ],
        "phi3" => &["attention.sliding_window"],
        "llama" => &["expert_count", "expert_used_count"],
        "qwen3moe" | "olmoe" => &[
            "expert_count",
            "expert_used_count",
            "expert_feed_forward_length",
            "expert_weights_norm",
        ],
        "gpt-oss" => &[
            "attention.sliding_window",
            "expert_count",
            "expert_used_count",
            "expert_feed_forward_length",
        ],
        DEEPSEEK => &[
            "attention.q_lora_rank",
            "attention.kv_lora_rank",
            "attention.key_length_mla",
            "attention.value_length_mla",
            "leading_dense_block_count",
            "expert_count",
            "expert_used_count",
            "expert_shared_count",
            "expert_feed_forward_length",
            "expert_weights_scale",
            "expert_weights_norm",
            "expert_gating_func",
            "expert_group_count",
            "expert_group_used_count",
            "rope.scaling.yarn_log_multiplier",
        ],
        "granite" => &["embedding_scale", "residual_scale", "logit_scale", "attention.scale"],
        _ => &[],
    };
    let prefix = format!("{}.", keys.arch);
    for (key, value) in keys.metadata.entries() {
        let Some(key) = key.strip_prefix(&prefix) else { continue };
        let says_nothing =
            [json!(0), json!(false), json!(0.0)].contains(value) || value.is_string();
        if !KNOWN.contains(&key) && !own.contains(&key) && !says_nothing {
            return Err(keys.unsupported(key, " by this architecture in GGUF files"));
        }
    }
    Ok(())
}

fn rope(keys: &Keys<'_>, head_dim: usize) -> Result<Value> {
    let rotated = keys.count_opt("rope.dimension_count")?.unwrap_or(head_dim);
    let mut rope = json!({
        "rope_theta": keys.float_opt("rope.freq_base")?.unwrap_or(10_000.0),
        "rope_type": "default",
    });
    if rotated != head_dim {
        // Half an element more: the product with the width is cut to a whole number.
        rope["partial_rotary_factor"] = ((rotated as f64 + 0.5) / head_dim as f64).into();
    }
    let original = keys.count_opt("rope.scaling.original_context_length")?;
    let attn_factor = keys.float_opt("rope.scaling.attn_factor")?;
    let kind = keys.metadata.text_opt(&keys.key("rope.scaling.type"))?.unwrap_or("none");
    let divisors = |name| keys.gguf.divisors.get(name).cloned();
    if let Some(all) = divisors("rope_freqs.weight") {
        if kind != "none" || attn_factor.is_some() {
            return Err(keys.unsupported("rope.scaling.type", " beside rope_freqs.weight"));
        }
        // Llama 3.1's, which are the same for every length of a context.
        rope["rope_type"] = "longrope".into();
        rope["short_factor"] = all.clone().into();
        rope["long_factor"] = all.into();
        rope["original_max_position_embeddings"] = keys.count("context_length")?.into();
        rope["attention_factor"] = 1.0.into();
    } else if let Some(long) = divisors("rope_factors_long.weight") {
        let short = divisors("rope_factors_short.weight").unwrap_or_default();
        rope["rope_type"] = "longrope".into();
        rope["short_factor"] = short.into();
        rope["long_factor"] = long.into();
        rope["original_max_position_embeddings"] =
            keys.count("rope.scaling.original_context_length")?.into();
        rope["attention_factor"] = attn_factor.into();
    } else {
        match kind {
            "none" => {}
            "linear" => rope["factor"] = keys.float("rope.scaling.factor")?.into(),
            "yarn" => {
                rope["factor"] = keys.float("rope.scaling.factor")?.into();
                rope["original_max_position_embeddings"] = original.into();
                if keys.arch == DEEPSEEK {
                    // The scores alone are multiplied by a temperature.
                    let temperature = keys.float_opt("rope.scaling.yarn_log_multiplier")?;
                    rope["mscale_all_dim"] = (10.0 * temperature.unwrap_or(0.0)).into();
                    rope["attention_factor"] = 1.0.into();
                }
            }
            _ => return Err(keys.unsupported("rope.scaling.type", "; none, linear and yarn are")),
        }
        if kind != "none" {
            rope["rope_type"] = kind.into();
        }
        if attn_factor.is_some_and(|factor| factor != 1.0) {
            return Err(keys.unsupported("rope.scaling.attn_factor", "; 1 is"));
        }
    }
    Ok(rope)
}

fn biases(keys: &Keys<'_>, config: &mut Map<String, Value>) -> Result<()> {
    config.insert("attention_bias".into(), keys.has_tensor("blk.0.attn_q.bias").into());
    if keys.arch == "llama" || keys.arch == "granite" {
        config.insert("mlp_bias".into(), keys.has_tensor("blk.0.ffn_gate.bias").into());
    }
    Ok(())
}

/// Of every layer.
fn experts(keys: &Keys<'_>, config: &mut Map<String, Value>) -> Result<()> {
    config.insert("num_local_experts".into(), keys.count("expert_count")?.into());
    config.insert("num_experts_per_tok".into(), keys.count("expert_used_count")?.into());
    Ok(())
}

fn qwen3_moe(keys: &Keys<'_>, config: &mut Map<String, Value>) -> Result<()> {
    biases(keys, config)?;
    experts(keys, config)?;
    let inner = keys.count("expert_feed_forward_length")?;
    config.insert("moe_intermediate_size".into(), inner.into());
    renormalize(keys, config, true)
}

/// Whether what experts count for is renormalised, which older files do not say.
fn renormalize(keys: &Keys<'_>, config: &mut Map<String, Value>, unless_told: bool) -> Result<()> {
    let renormalize = keys.metadata.flag_or(&keys.key("expert_weights_norm"), unless_told)?;
    config.insert("norm_topk_prob".into(), renormalize.into());
    Ok(())
}

fn olmoe(keys: &Keys<'_>, config: &mut Map<String, Value>) -> Result<()> {
    experts(keys, config)?;
    renormalize(keys, config, false)?;
    if let Some(inner) = keys.count_opt("expert_feed_forward_length")? {
        config.insert("intermediate_size".into(), inner.into());
    }
    Ok(())
}

fn window(keys: &Keys<'_>, config: &mut Map<String, Value>) -> Result<()> {
    config.insert("sliding_window".into(), keys.count_opt("attention.sliding_window")?.into());
    Ok(())
}

fn granite(keys: &Keys<'_>, config: &mut Map<String, Value>) -> Result<()> {
    biases(keys, config)?;
    for (key, name) in [
        ("embedding_scale", "embedding_multiplier"),
        ("attention.scale", "attention_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ] {
        config.insert(name.into(), keys.float(key)?.into());
    }
    Ok(())
}

/// Widths of heads have keys of their own where others are those of what attention is over, of latents.
fn deepseek2(keys: &Keys<'_>, config: &mut Map<String, Value>) -> Result<()> {
    let width = |mla: &str, older: &str| match keys.count_opt(mla)? {
        Some(width) => Ok(width),
        None => keys.count(older),
    };
    let key_dim = width("attention.key_length_mla", "attention.key_length")?;
    let turned = keys.count("rope.dimension_count")?;
    let Some(key_dim) = key_dim.checked_sub(turned).filter(|dim| *dim > 0) else {
        return Err(keys.unsupported("rope.dimension_count", "; a part of the width of keys is"));
    };
    let groups = keys.count_opt("expert_group_count")?.unwrap_or(1);
    let is_v2 = keys.gguf.arch.class != DEEPSEEK_V3.class;
    renormalize(keys, config, !is_v2)?;
    for (name, value) in [
        ("q_lora_rank", json!(keys.count_opt("attention.q_lora_rank")?)),
        ("kv_lora_rank", keys.count("attention.kv_lora_rank")?.into()),
        ("qk_nope_head_dim", key_dim.into()),
        ("qk_rope_head_dim", turned.into()),
        ("v_head_dim", width("attention.value_length_mla", "attention.value_length")?.into()),
        ("first_k_dense_replace", keys.count_opt("leading_dense_block_count")?.unwrap_or(0).into()),
        ("n_routed_experts", keys.count("expert_count")?.into()),
        ("num_experts_per_tok", keys.count("expert_used_count")?.into()),
        ("n_shared_experts", keys.count_opt("expert_shared_count")?.unwrap_or(0).into()),
        ("moe_intermediate_size", keys.count("expert_feed_forward_length")?.into()),
        ("routed_scaling_factor", keys.float_opt("expert_weights_scale")?.unwrap_or(1.0).into()),
        ("n_group", groups.into()),
        ("topk_group", keys.count_opt("expert_group_used_count")?.unwrap_or(groups).into()),
    ] {
        config.insert(name.into(), value);
    }
    if is_v2 && groups > 1 {
        config.insert("topk_method".into(), "group_limited_greedy".into());
    }
    Ok(())
}

/// What files do not say of the rope is as in the published models.
fn gpt_oss(keys: &Keys<'_>, config: &mut Map<String, Value>) -> Result<()> {
    experts(keys, config)?;
    window(keys, config)?;
    let inner = keys.count("expert_feed_forward_length")?;
    config.insert("intermediate_size".into(), inner.into());
    config.insert("attention_bias".into(), true.into());
    if let Some(Value::Object(rope)) = config.get_mut("rope_parameters") {
        rope.insert("truncate".into(), false.into());
    }
    Ok(())
}

/// What Gemma 2 and 3 have in common. The factor on the scores is not written: it is that of the heads' width, but for
/// the 27B models, where `by_heads` layers tell them.
fn gemma(keys: &Keys<'_>, config: &mut Map<String, Value>, by_heads: usize) -> Result<()> {
    config.remove("hidden_act");
    config.insert("hidden_activation".into(), "gelu_pytorch_tanh".into());
    let scalar = match keys.float_opt("attention.scale")? {
        Some(scale) => scale.powi(-2),
        None if keys.count("block_count")? == by_heads => {
            keys.count("embedding_length")? as f64 / keys.count("attention.head_count")? as f64
        }
        None => keys.head_dim()? as f64,
    };
    config.insert("query_pre_attn_scalar".into(), scalar.into());
    config.insert("sliding_window".into(), keys.count("attention.sliding_window")?.into());
    let bias = keys.has_tensor("blk.0.attn_q.bias");
    config.insert("attention_bias".into(), bias.into());
    let cap = keys.float_opt("final_logit_softcapping")?;
    config.insert("final_logit_softcapping".into(), cap.into());
    Ok(())
}

fn gemma2(keys: &Keys<'_>, config: &mut Map<String, Value>) -> Result<()> {
    gemma(keys, config, 46)?;
    keys.float("final_logit_softcapping")?;
    let cap = keys.float("attn_logit_softcapping")?;
    config.insert("attn_logit_softcapping".into(), cap.into());
    Ok(())
}

fn gemma3(keys: &Keys<'_>, config: &mut Map<String, Value>) -> Result<()> {
    gemma(keys, config, 62)?;
    let global = config.remove("rope_parameters").unwrap_or_default();
    let theta = keys.float_opt("rope.freq_base_swa")?.unwrap_or(1e4);
    let local = json!({"rope_type": "default", "rope_theta": theta});
    let ropes = json!({"full_attention": global, "sliding_attention": local});
    config.insert("rope_parameters".into(), ropes);
    match windowed_layers(keys)? {
        Some(kinds) => {
            config.insert("layer_types".into(), names_of_layers(&kinds));
        }
        None => {
            let key = keys.key("attention.sliding_window_pattern");
            let every = keys.metadata.count_opt(&key)?.unwrap_or(6);
            config.insert("sliding_window_pattern".into(), every.into());
        }
    }
    Ok(())
}

/// Which layers have a window, where the file has a list.
fn windowed_layers(keys: &Keys<'_>) -> Result<Option<Vec<bool>>> {
    let key = keys.key("attention.sliding_window_pattern");
    let Some(Value::Array(layers)) = keys.metadata.raw(&key) else { return Ok(None) };
    let kind = |layer: &Value| {
        let found = layer.as_bool();
        found.ok_or_else(|| keys.metadata.ill_typed(&key, layer, "a list of true and false"))
    };
    layers.iter().map(kind).collect::<Result<Vec<_>>>().map(Some)
}

fn names_of_layers(windowed: &[bool]) -> Value {
    let name = |windowed: &bool| match windowed {
        true => "sliding_attention",
        false => "full_attention",
    };
    windowed.iter().map(name).collect::<Vec<_>>().into()
}

fn gemma4(keys: &Keys<'_>, config: &mut Map<String, Value>) -> Result<()> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    config.remove("hidden_act");
    let pattern = keys.key(PATTERN);
    let missing = || keys.metadata.missing(&pattern, "a list of true and false");
    let windowed = windowed_layers(keys)?.ok_or_else(missing)?;
    if windowed.len() != keys.count("block_count")? {
        let found = keys.metadata.raw(&pattern).cloned().unwrap_or_default();
        return Err(keys.metadata.ill_typed(&pattern, &found, "an entry for each layer"));
    }
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
    let heads_of = |layer: usize| heads.get(layer).or(heads.first()).copied();
    let of_kind = |kind: bool| {
        let layers = windowed.iter().enumerate();
        layers.filter(move |(_, windowed)| **windowed == kind).map(|(layer, _)| layer)
    };
    let own = of_kind(false)
        .map(|i| (i.to_string(), json!({"head_dim": wide, "num_key_value_heads": heads_of(i)})));
    let own: Map<String, Value> = own.collect();
    let (global, local) = (of_kind(false).next(), of_kind(true).next());
    let shared = keys.count_opt("attention.shared_kv_layers")?.unwrap_or(0);
    let values = global.map(|i| format!("blk.{i}.attn_v.weight"));
    let experts = keys.count_opt("expert_count")?;
    let of_layers = keys.gguf.tensors.get("per_layer_token_embd.weight");
    let of_layers = of_layers.and_then(|tensor| tensor.shape.first().copied());
    for (name, value) in [
        ("hidden_activation", json!("gelu_pytorch_tanh")),
        ("layer_types", names_of_layers(&windowed)),
        ("head_dim", narrow.into()),
        ("num_key_value_heads", local.and_then(heads_of).or(heads_of(0)).into()),
        ("per_layer_config", own.into()),
        ("attention_k_eq_v", values.is_some_and(|values| !keys.has_tensor(&values)).into()),
        ("num_kv_shared_layers", shared.into()),
        ("use_double_wide_mlp", is_wide_at_the_end(keys, shared)?.into()),
        (
            "hidden_size_per_layer_input",
            keys.count_opt("embedding_length_per_layer_input")?.unwrap_or(0).into(),
        ),
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
                    "partial_rotary_factor": turned_part(keys, wide)?,
                },
                "sliding_attention": {
                    "rope_type": "default",
                    "rope_theta": keys.float_opt("rope.freq_base_swa")?.unwrap_or(1e4),
                },
            }),
        ),
    ] {
        config.insert(name.into(), value);
    }
    Ok(())
}

/// Whether the feed-forwards of the last `shared` layers are twice as wide as those before.
fn is_wide_at_the_end(keys: &Keys<'_>, shared: usize) -> Result<bool> {
    const KEY: &str = "feed_forward_length";
    let widths = keys.counts_of_layers(KEY)?;
    let (Some(first), Some(last)) = (widths.first(), widths.last()) else { return Ok(false) };
    let wide = first != last;
    let width = |i: usize| if wide && i + shared >= widths.len() { 2 * first } else { *first };
    match widths.iter().enumerate().all(|(i, found)| *found == width(i)) {
        true => Ok(wide),
        false => {
            Err(keys.unsupported(KEY, "; layers that share keys and values twice as wide are"))
        }
    }
}

/// The part of the pairs of a head that is turned: the others' frequencies are divided by what leaves nothing.
fn turned_part(keys: &Keys<'_>, head_dim: usize) -> Result<f64> {
    const NAME: &str = "rope_freqs.weight";
    let Some(divisors) = keys.gguf.divisors.get(NAME) else { return Ok(1.0) };
    let turned = divisors.iter().take_while(|divisor| **divisor == 1.0).count();
    let rest = &divisors[turned..];
    if divisors.len() != head_dim / 2 || rest.iter().any(|divisor| *divisor < 1e20) {
        let reason = format!("{NAME} does not turn the first pairs of a head and leave the others");
        return Err(Error::Gguf { file: keys.gguf.files[0].clone(), reason });
    }
    // Half an element more: the product with the width is cut to a whole number.
    Ok((turned as f64 + 0.25) / (head_dim / 2) as f64)
}
