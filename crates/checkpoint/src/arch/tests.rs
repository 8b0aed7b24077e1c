//! Real-world `config.json`s of every architecture, cut to what is read.

use candlepower_layout::Activation;

use super::*;
use crate::{
    Checkpoint, CheckpointFiles, Dtype, QueryGrowth, RopeScaling, RopeSpec,
    spec::{FfnSpec, GatingSpec, MlpSpec, NormKind, QkNormSpan, QkNormSpec, Residual},
    weights::{self, Slot, TensorPlan},
};

mod deepseek;
mod derived;
mod gemma4;
mod gpts;
mod hybrid;
mod vectors;

fn config(text: &str) -> HfConfig {
    HfConfig::parse("config.json", text.as_bytes()).unwrap()
}

fn describe(text: &str) -> Result<ModelSpec> {
    let config = config(text);
    let arch = find(&config)?;
    arch.describe(&arch.config_of_text(&config)?)
}

fn spec(text: &str) -> ModelSpec {
    describe(text).unwrap()
}

fn rope(spec: &ModelSpec, layer: usize) -> &RopeSpec {
    spec.layers[layer].attention().unwrap().rope.as_ref().unwrap()
}

/// The tensors that a model of the configuration has.
fn plan(spec: &ModelSpec, rules: &[WeightRule]) -> Vec<TensorPlan> {
    weights::plan(spec, rules, &|_| false)
}

/// The checkpoint with this configuration, and nothing else.
fn open(config: &str) -> Checkpoint {
    let files: Vec<(&'static str, &'static [u8])> =
        vec![("config.json", config.to_owned().leak().as_bytes())];
    Checkpoint::open(CheckpointFiles::Embedded(files.leak())).unwrap()
}

fn error(text: &str) -> String {
    describe(text).unwrap_err().to_string()
}

/// The configuration with some keys set; `null` removes a key.
fn with(text: &str, edits: &str) -> String {
    let mut root: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).unwrap();
    let edits: serde_json::Map<String, serde_json::Value> = serde_json::from_str(edits).unwrap();
    for (key, value) in edits {
        if value.is_null() {
            root.remove(&key);
        } else {
            root.insert(key, value);
        }
    }
    serde_json::to_string(&root).unwrap()
}

/// meta-llama/Llama-3.1-8B-Instruct.
const LLAMA_3_1_8B: &str = r#"{
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "use_cache": true, "vocab_size": 128256}"#;

/// mistralai/Mistral-7B-v0.1.
const MISTRAL_7B: &str = r#"{
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "vocab_size": 32000}"#;

/// Qwen/Qwen2.5-0.5B-Instruct.
const QWEN2_5: &str = r#"{
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2",
    "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true,
    "use_sliding_window": false, "vocab_size": 151936}"#;

/// Qwen/Qwen3-0.6B.
const QWEN3: &str = r#"{
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
    "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
    "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "use_sliding_window": false, "vocab_size": 151936}"#;

/// google/gemma-2-2b-it.
const GEMMA_2_2B: &str = r#"{
    "architectures": ["Gemma2ForCausalLM"], "attention_bias": false,
    "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid",
    "eos_token_id": [1, 107], "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304, "intermediate_size": 9216, "max_position_embeddings": 8192,
    "model_type": "gemma2", "num_attention_heads": 8, "num_hidden_layers": 26,
    "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "bfloat16",
    "vocab_size": 256000}"#;

/// microsoft/Phi-3-mini-4k-instruct.
const PHI_3_MINI: &str = r#"{
    "architectures": ["Phi3ForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "bos_token_id": 1,
    "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072,
    "intermediate_size": 8192, "max_position_embeddings": 4096, "model_type": "phi3",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "attention_bias": false, "vocab_size": 32064}"#;

#[test]
fn llama_3_1() {
    let m = spec(LLAMA_3_1_8B);
    let a = m.layers[31].attention().unwrap();
    assert_eq!((m.vocab_size, m.hidden_size, m.layers.len()), (128_256, 4096, 32));
    assert_eq!((a.heads, a.kv_heads, a.head_dim, a.window), (32, 8, 128, None));
    assert!((a.scale - 1.0 / 128f64.sqrt()).abs() < 1e-15);
    assert!(!a.qkv_bias && !a.out_bias && !m.layers[0].ffn.mlp().unwrap().bias && !m.head.tied);
    assert_eq!(m.max_model_len, 131_072);
    let rope = rope(&m, 31);
    assert_eq!(rope.theta, 500_000.0);
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original: 8192,
    };
    assert_eq!(rope.scaling, scaling);
}

/// The same model as transformers 5 writes it.
#[test]
fn both_spellings_give_the_same_model() {
    let five = with(
        LLAMA_3_1_8B,
        r#"{"rope_scaling": null, "rope_theta": null, "torch_dtype": null, "dtype": "bfloat16",
            "head_dim": 128, "rope_parameters": {"factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
            "rope_theta": 500000.0, "rope_type": "llama3"}}"#,
    );
    assert_eq!(spec(&five), spec(LLAMA_3_1_8B));
    for text in [&five, LLAMA_3_1_8B] {
        assert_eq!(config(text).dtype().unwrap(), Some(Dtype::Bf16));
    }
}

/// Llama 1 and 2 were written before rope_theta and num_key_value_heads existed.
#[test]
fn an_old_llama() {
    let old = with(
        LLAMA_3_1_8B,
        r#"{"rope_scaling": null, "rope_theta": null, "num_key_value_heads": null,
            "attention_bias": null, "mlp_bias": null}"#,
    );
    let m = spec(&old);
    let a = m.layers[0].attention().unwrap();
    let rope = a.rope.as_ref().unwrap();
    assert_eq!((a.kv_heads, rope.theta, &rope.scaling), (32, 10_000.0, &RopeScaling::None));
}

#[test]
fn llama_biases() {
    let biased = with(LLAMA_3_1_8B, r#"{"attention_bias": true, "mlp_bias": true}"#);
    let m = spec(&biased);
    let names: Vec<String> = plan(&m, &[]).into_iter().map(|t| t.name).collect();
    for name in ["self_attn.k_proj.bias", "self_attn.o_proj.bias", "mlp.down_proj.bias"] {
        assert!(names.contains(&format!("model.layers.7.{name}")), "{name}");
    }
}

#[test]
fn mistral() {
    assert!(spec(MISTRAL_7B).layers.iter().all(|l| l.attention().unwrap().window == Some(4096)));
    let v3 = MISTRAL_7B.replace(r#""sliding_window": 4096"#, r#""sliding_window": null"#);
    assert!(spec(&v3).layers.iter().all(|l| l.attention().unwrap().window.is_none()));
    let nemo = with(MISTRAL_7B, r#"{"hidden_size": 5120, "head_dim": 128}"#);
    assert_eq!(spec(&nemo).layers[0].attention().unwrap().head_dim, 128);
    let silent = with(MISTRAL_7B, r#"{"sliding_window": null}"#);
    assert!(error(&silent).contains("`sliding_window` is missing"));
}

#[test]
fn qwen2() {
    let m = spec(QWEN2_5);
    assert!(m.head.tied);
    assert!(m.layers.iter().all(|l| l.attention().unwrap().window.is_none()));
    assert!(
        m.layers
            .iter()
            .all(|l| l.attention().unwrap().qkv_bias && !l.attention().unwrap().out_bias)
    );
    let windowed = with(QWEN2_5, r#"{"use_sliding_window": true}"#);
    let windows =
        spec(&windowed).layers.iter().filter(|l| l.attention().unwrap().window.is_some()).count();
    assert_eq!(windows, 3, "from layer 21 of 24 on");
    let all = with(&windowed, r#"{"max_window_layers": 0}"#);
    assert!(spec(&all).layers.iter().all(|l| l.attention().unwrap().window == Some(32_768)));
}

/// The setting that the model card recommends, in both spellings.
#[test]
fn qwen2_yarn_extends_the_context() {
    let yarn = r#""factor": 4.0, "original_max_position_embeddings": 32768"#;
    let four = format!(r#"{{"rope_scaling": {{"type": "yarn", {yarn}}}}}"#);
    let five = format!(
        r#"{{"rope_theta": null,
             "rope_parameters": {{"rope_type": "yarn", "rope_theta": 1000000.0, {yarn}}}}}"#
    );
    for text in [four, five] {
        let m = spec(&with(QWEN2_5, &text));
        assert_eq!((m.max_model_len, m.max_positions), (131_072, 131_072));
        let RopeScaling::Yarn { attention_factor, beta_fast, truncate, .. } = rope(&m, 0).scaling
        else {
            panic!("not yarn")
        };
        assert!((attention_factor - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
        assert_eq!((beta_fast, truncate), (32.0, true));
    }
}

#[test]
fn qwen3() {
    let m = spec(QWEN3);
    let a = m.layers[0].attention().unwrap();
    assert_eq!((a.heads * a.head_dim, m.hidden_size), (2048, 1024));
    assert_eq!(a.qk_norm, Some(QkNormSpec { norm: m.final_norm, span: QkNormSpan::Head }));
    let norm = plan(&m, &[]).into_iter().find(|t| t.slots[0].slot == Slot::KNorm).unwrap();
    assert_eq!(
        (norm.name.as_str(), norm.shape),
        ("model.layers.0.self_attn.k_norm.weight", vec![128])
    );
    assert!(error(&with(QWEN3, r#"{"head_dim": null}"#)).contains("`head_dim` is missing"));
}

#[test]
fn gemma2() {
    let m = spec(GEMMA_2_2B);
    let windows: Vec<_> = m.layers[..3].iter().map(|l| l.attention().unwrap().window).collect();
    assert_eq!(windows, [Some(4096), None, Some(4096)]);
    assert_eq!(m.embed.scale, 48.0);
    assert_eq!((m.head.tied, m.head.softcap), (true, Some(30.0)));
    let l = &m.layers[25];
    assert_eq!((l.residual, l.norm.kind), (Residual::Sandwich, NormKind::RmsPlusOne));
    assert_eq!(
        (l.ffn.mlp().unwrap().act, l.attention().unwrap().softcap),
        (Activation::GeluTanh, Some(50.0))
    );
    assert_eq!(l.attention().unwrap().scale, 1.0 / 16.0);

    // transformers 5 spells the layers out; they win over the pattern.
    let full = vec!["full_attention"; 26];
    let listed = with(GEMMA_2_2B, &serde_json::json!({"layer_types": full}).to_string());
    assert!(spec(&listed).layers.iter().all(|l| l.attention().unwrap().window.is_none()));
    let odd = with(GEMMA_2_2B, r#"{"layer_types": ["linear_attention"]}"#);
    assert!(error(&odd).contains("linear_attention"));
    let short = with(GEMMA_2_2B, r#"{"layer_types": ["full_attention"]}"#);
    assert!(error(&short).contains("an entry for each layer"));
    let silent = with(GEMMA_2_2B, r#"{"attn_logit_softcapping": null}"#);
    assert!(error(&silent).contains("`attn_logit_softcapping` is missing"));
}

#[test]
fn gemma2_names_its_four_norms() {
    let m = spec(GEMMA_2_2B);
    let config = config(GEMMA_2_2B);
    let plan = plan(&m, find(&config).unwrap().weights);
    let name = |slot| &plan.iter().find(|t| t.slots[0].slot == slot).unwrap().name;
    assert_eq!(name(Slot::AttnPostNorm), "model.layers.0.post_attention_layernorm.weight");
    assert_eq!(name(Slot::FfnNorm), "model.layers.0.pre_feedforward_layernorm.weight");
    assert_eq!(plan.len(), 2 + 26 * 11);
}

#[test]
fn phi3_stores_qkv_and_gate_up_fused() {
    let config = config(PHI_3_MINI);
    let m = spec(PHI_3_MINI);
    assert!(m.layers.iter().all(|l| l.attention().unwrap().window == Some(2047)));
    let plan = plan(&m, find(&config).unwrap().weights);
    let qkv = plan.iter().find(|t| t.name == "model.layers.3.self_attn.qkv_proj.weight").unwrap();
    assert_eq!(qkv.shape, [9216, 3072]);
    let rows: Vec<_> = qkv.slots.iter().map(|s| (s.slot, s.rows.clone())).collect();
    assert_eq!(rows, [(Slot::Q, 0..3072), (Slot::K, 3072..6144), (Slot::V, 6144..9216)]);
    let gate_up = plan.iter().find(|t| t.name.ends_with("0.mlp.gate_up_proj.weight")).unwrap();
    assert_eq!(gate_up.shape, [16_384, 3072]);
}

/// microsoft/Phi-4-mini-instruct: LongRoPE over three quarters of each head.
#[test]
fn phi4_mini_longrope() {
    let factors = vec![1.5; 48];
    let edits = serde_json::json!({
        "max_position_embeddings": 131_072, "partial_rotary_factor": 0.75,
        "num_attention_heads": 24, "num_key_value_heads": 8,
        "rope_scaling": {"type": "longrope", "long_factor": factors, "short_factor": factors},
    });
    let m = spec(&with(PHI_3_MINI, &edits.to_string()));
    let rope = rope(&m, 0);
    assert_eq!(rope.dim, 96);
    assert_eq!((m.max_model_len, m.max_positions), (4096, 131_072));
    let RopeScaling::LongRope { original, attention_factor, .. } = rope.scaling else {
        panic!("not longrope")
    };
    assert_eq!(original, 4096);
    assert!((attention_factor - (1.0 + 32f64.ln() / 4096f64.ln()).sqrt()).abs() < 1e-12);

    let few = with(
        PHI_3_MINI,
        r#"{"rope_scaling": {"type": "su", "long_factor": [1.0], "short_factor": [1.0]}}"#,
    );
    assert!(error(&few).contains("`rope_scaling.short_factor` is [1.0]"));
    let yarn = with(PHI_3_MINI, r#"{"rope_scaling": {"type": "yarn", "factor": 2.0}}"#);
    assert!(error(&yarn).contains("`rope_scaling.rope_type` = \"yarn\" is not supported by Phi-3"));
}

/// google/gemma-3-1b-it, as transformers 4 wrote it and as 5 writes it.
#[test]
fn gemma3() {
    let four = with(
        GEMMA_2_2B,
        r#"{"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": 256, "hidden_size": 1152,
            "num_attention_heads": 4, "num_key_value_heads": 1, "attn_logit_softcapping": null,
            "final_logit_softcapping": null, "rope_local_base_freq": 10000, "rope_scaling": null,
            "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
            "max_position_embeddings": 32768}"#,
    );
    let m = spec(&four);
    let windows: Vec<_> = m.layers.iter().map(|l| l.attention().unwrap().window).collect();
    assert_eq!(windows[..6], [[Some(512); 5].as_slice(), &[None]].concat());
    let thetas: Vec<_> = (4..7).map(|i| rope(&m, i).theta).collect();
    assert_eq!(thetas, [1e4, 1e6, 1e4]);
    assert!(m.layers[0].attention().unwrap().qk_norm.is_some() && m.embed.rounded);
    assert_eq!((m.head.softcap, m.layers[0].attention().unwrap().softcap), (None, None));

    // The larger models stretch their global layers alone; bases that are not written have defaults.
    let edit = r#"{"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_theta": null,
        "rope_local_base_freq": null}"#;
    let stretched = spec(&with(&four, edit));
    let scaling = |i: usize| rope(&stretched, i).scaling.clone();
    assert_eq!((scaling(0), scaling(5)), (RopeScaling::None, RopeScaling::Linear { factor: 8.0 }));
    assert_eq!(rope(&stretched, 5).theta, 1e6);

    let nested = r#"{"rope_theta": null, "rope_local_base_freq": null, "sliding_window_pattern": null,
        "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}"#;
    assert_eq!(spec(&with(&four, nested)), stretched);
    let half = r#"{"rope_parameters": {"full_attention": {"rope_type": "default"}}}"#;
    assert!(error(&with(&four, half)).contains("`rope_parameters.sliding_attention` is missing"));
}

/// zai-org/GLM-4-9B-0414.
#[test]
fn glm4() {
    let text = with(
        LLAMA_3_1_8B,
        r#"{"architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "attention_bias": true, "head_dim": 128,
            "num_key_value_heads": 2, "partial_rotary_factor": 0.5, "rope_scaling": null, "mlp_bias": null}"#,
    );
    let m = spec(&text);
    let a = m.layers[31].attention().unwrap();
    let rope = rope(&m, 31);
    assert_eq!((rope.dim, rope.interleaved), (64, true));
    assert!(a.qkv_bias && !a.out_bias);
    assert_eq!(spec(&with(&text, r#"{"partial_rotary_factor": null, "attention_bias": null}"#)), m);
    let plan = plan(&m, find(&config(&text)).unwrap().weights);
    let name = |slot| &plan.iter().find(|t| t.slots[0].slot == slot).unwrap().name;
    assert_eq!(name(Slot::AttnPostNorm), "model.layers.0.post_self_attn_layernorm.weight");
    assert_eq!(name(Slot::FfnNorm), "model.layers.0.post_attention_layernorm.weight");
}

/// ibm-granite/granite-3.3-2b-instruct.
#[test]
fn granite() {
    let text = with(
        LLAMA_3_1_8B,
        r#"{"architectures": ["GraniteForCausalLM"], "model_type": "granite", "attention_multiplier": 0.015625,
            "embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.25,
            "rope_scaling": null}"#,
    );
    let m = spec(&text);
    assert_eq!((m.embed.scale, m.embed.rounded, m.head.scale), (48.0, false, 0.125));
    assert_eq!(m.layers[0].attention().unwrap().scale, 1.0 / 64.0);
    assert_eq!((m.final_norm.eps, m.layers[0].norm.eps), (1.6e-4, 1.6e-4));
    let none = with(&text, r#"{"residual_multiplier": 0.0}"#);
    assert!(error(&none).contains("`residual_multiplier` is 0.0"));
}

/// allenai/OLMo-2-1124-7B.
#[test]
fn olmo2() {
    let text = with(
        LLAMA_3_1_8B,
        r#"{"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "num_key_value_heads": 32,
            "rope_scaling": null, "mlp_bias": null}"#,
    );
    let m = spec(&text);
    assert_eq!(m.layers[0].residual, Residual::PostNorm);
    let plan = plan(&m, find(&config(&text)).unwrap().weights);
    let shape = |name: &str| plan.iter().find(|t| t.name == name).map(|t| t.shape.clone());
    assert_eq!(shape("model.layers.0.self_attn.k_norm.weight"), Some(vec![4096]));
    assert_eq!(shape("model.layers.0.input_layernorm.weight"), None);
    assert!(shape("model.layers.0.post_feedforward_layernorm.weight").is_some());
    assert_eq!(m.tensor_parallel_sizes(), [1, 2, 4, 8, 16, 32]);
    assert!(m.norms_all_heads());
}

/// bigcode/starcoder2-3b.
const STARCODER2: &str = r#"{
    "architectures": ["Starcoder2ForCausalLM"], "attention_dropout": 0.1, "bos_token_id": 0,
    "embedding_dropout": 0.1, "eos_token_id": 0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072,
    "intermediate_size": 12288, "layer_norm_epsilon": 1e-05, "max_position_embeddings": 16384,
    "mlp_type": "default", "model_type": "starcoder2", "norm_epsilon": 1e-05, "norm_type": "layer_norm",
    "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2,
    "rope_theta": 999999.4420358813, "sliding_window": 4096, "use_bias": true, "vocab_size": 49152}"#;

#[test]
fn starcoder2() {
    let m = spec(STARCODER2);
    let l = &m.layers[29];
    assert_eq!(l.norm.kind, NormKind::Layer { bias: true });
    assert_eq!(
        (l.attention().unwrap().window, l.attention().unwrap().out_bias, m.head.tied),
        (Some(4096), true, true)
    );
    assert_eq!((l.ffn.mlp().unwrap().gated, l.ffn.mlp().unwrap().bias), (false, true));
    // The count of the published checkpoint.
    assert_eq!(m.num_parameters(), 3_030_371_328);
    let unbiased = spec(&with(STARCODER2, r#"{"use_bias": false}"#));
    assert!(
        !unbiased.layers[0].attention().unwrap().qkv_bias
            && !unbiased.layers[0].ffn.mlp().unwrap().bias
    );
}

/// openai-community/gpt2.
const GPT2: &str = r#"{
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
    "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257}"#;

#[test]
fn gpt2() {
    let m = spec(GPT2);
    assert_eq!((m.max_model_len, m.embed.positions, m.head.tied), (1024, Some(1024), true));
    assert_eq!(
        (m.layers[0].ffn.mlp().unwrap().inner, m.layers[0].ffn.mlp().unwrap().act),
        (3072, Activation::GeluTanh)
    );
    assert_eq!(m.num_parameters(), 124_439_808);
    let plan = plan(&m, find(&config(GPT2)).unwrap().weights);
    let qkv = plan.iter().find(|t| t.name == "h.11.attn.c_attn.weight").unwrap();
    assert_eq!((&qkv.shape[..], &qkv.stored_shape[..]), (&[2304, 768][..], &[768, 2304][..]));
    assert_eq!(qkv.slots[2].rows, 1536..2304);
    let scaled = spec(&with(GPT2, r#"{"scale_attn_by_inverse_layer_idx": true}"#));
    assert_eq!(scaled.layers[3].attention().unwrap().scale, 1.0 / 8.0 / 4.0);
    for (edit, message) in [
        (r#"{"n_head": 7}"#, "`n_head` is 7, but a divisor of the hidden states' width is needed"),
        (r#"{"n_positions": 4294967295}"#, "`n_positions` = 4294967295 is not supported"),
        (r#"{"add_cross_attention": true}"#, "`add_cross_attention` = true"),
        (r#"{"activation_function": "mish"}"#, "`activation_function` = \"mish\""),
    ] {
        assert!(error(&with(GPT2, edit)).contains(message), "{edit}");
    }
}

/// CohereForAI/c4ai-command-r-plus, and c4ai-command-r7b-12-2024.
#[test]
fn cohere() {
    let text = with(
        LLAMA_3_1_8B,
        r#"{"architectures": ["CohereForCausalLM"], "model_type": "cohere", "hidden_size": 12288, "rms_norm_eps": null,
            "num_attention_heads": 96, "layer_norm_eps": 1e-05, "logit_scale": 0.8333333333333334, "use_qk_norm": true,
            "rope_theta": 75000000.0, "rope_scaling": null, "tie_word_embeddings": null, "mlp_bias": null}"#,
    );
    let m = spec(&text);
    let l = &m.layers[0];
    assert_eq!((l.residual, l.norm.kind), (Residual::Parallel, NormKind::Layer { bias: false }));
    assert!(rope(&m, 0).interleaved && m.head.tied);
    let norm = |m: &ModelSpec| m.layers[0].attention().unwrap().qk_norm;
    assert_eq!(norm(&m).unwrap().span, QkNormSpan::EachHead);
    let plan = plan(&m, find(&config(&text)).unwrap().weights);
    let norm_plan = plan.iter().find(|t| t.slots[0].slot == Slot::KNorm).unwrap();
    assert_eq!((&norm_plan.shape[..], &norm_plan.stored_shape[..]), (&[1024][..], &[8, 128][..]));
    assert_eq!(norm(&spec(&with(&text, r#"{"use_qk_norm": false}"#))), None);
    assert!(error(&with(&text, r#"{"logit_scale": 0}"#)).contains("a number above 0"));

    let second = with(
        &text,
        r#"{"architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2", "use_qk_norm": null,
            "sliding_window": 4096, "sliding_window_pattern": 4, "logit_scale": 0.25}"#,
    );
    let m = spec(&second);
    let layers: Vec<_> = m.layers[2..5]
        .iter()
        .map(|l| (l.attention().unwrap().window, l.attention().unwrap().rope.is_some()))
        .collect();
    assert_eq!(layers, [(Some(4096), true), (None, false), (Some(4096), true)]);
}

/// mistralai/Mixtral-8x7B-Instruct-v0.1.
#[test]
fn mixtral() {
    let text = with(
        MISTRAL_7B,
        r#"{"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_experts_per_tok": 2,
            "num_local_experts": 8, "rope_theta": 1000000.0, "sliding_window": null}"#,
    );
    let m = spec(&text);
    let FfnSpec::Experts(experts) = &m.layers[31].ffn else { panic!("no experts") };
    assert_eq!((experts.count, experts.top_k, experts.gating.renormalize), (8, 2, true));
    // The count of the published checkpoint; norms are kept in f32, and the 8 rows of a router in a panel of 32.
    assert_eq!(m.num_parameters(), 46_702_792_704);
    let routers = 32 * (32 - 8) * 4096 * 2;
    assert_eq!(m.weight_bytes(Dtype::Bf16), 46_702_792_704 * 2 + 65 * 4096 * 2 + routers);
    let plan = plan(&m, find(&config(&text)).unwrap().weights);
    let up = plan.iter().find(|t| t.slots[0].slot == Slot::ExpertUp(7)).unwrap();
    assert_eq!(up.name, "model.layers.0.block_sparse_moe.experts.7.w3.weight");
    for (edit, message) in [
        (
            r#"{"num_local_experts": 0}"#,
            "`num_local_experts` is 0, but a whole number of at least 1",
        ),
        (
            r#"{"num_local_experts": 1e9}"#,
            "`num_local_experts` = 1000000000.0 is not supported; at most 2048",
        ),
        (
            r#"{"num_experts_per_tok": 0}"#,
            "`num_experts_per_tok` is 0, but a whole number of at least 1",
        ),
        (
            r#"{"num_experts_per_tok": 9}"#,
            "`num_experts_per_tok` is 9, but at most the number of experts",
        ),
        (r#"{"num_experts_per_tok": null}"#, "`num_experts_per_tok` is missing"),
    ] {
        let e = error(&with(&text, edit));
        assert!(e.contains(message), "{edit}: {e}");
    }
}

/// Qwen/Qwen3-30B-A3B.
#[test]
fn qwen3_moe() {
    let text = with(
        QWEN3,
        r#"{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
            "num_attention_heads": 32, "num_key_value_heads": 4, "num_hidden_layers": 48, "head_dim": 128,
            "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
            "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936,
            "tie_word_embeddings": false}"#,
    );
    let m = spec(&text);
    assert_eq!(m.num_parameters(), 30_532_122_624);
    let five = r#"{"num_experts": null, "num_local_experts": 128}"#;
    assert_eq!(spec(&with(&text, five)), m);
    let neither = error(&with(&text, r#"{"num_experts": null}"#));
    assert!(neither.contains("`num_experts` is missing"), "{neither}");
    let mixed = spec(&with(&text, r#"{"decoder_sparse_step": 2, "mlp_only_layers": [3]}"#));
    let experts: Vec<_> =
        mixed.layers[..6].iter().map(|l| matches!(l.ffn, FfnSpec::Experts(_))).collect();
    assert_eq!(experts, [false, true, false, false, false, true]);
    assert_eq!(
        (mixed.layers[0].ffn.mlp().unwrap().inner, mixed.layers[1].ffn.mlp().unwrap().inner),
        (6144, 768)
    );
    assert!(error(&with(&text, r#"{"mlp_only_layers": "none"}"#)).contains("`mlp_only_layers`"));
    let none = with(QWEN3, r#"{"num_experts": 8}"#);
    assert!(error(&none).contains("`num_experts` = 8 is not supported by this architecture"));
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let cases = [
        (
            r#"{"rope_scaling": {"type": "dynamic", "factor": 2.0}}"#,
            "`rope_scaling.rope_type` = \"dynamic\" is not supported; default, linear, llama3, yarn, longrope and proportional are",
        ),
        (r#"{"hidden_act": "relu6"}"#, "`hidden_act` = \"relu6\" is not supported"),
        (r#"{"attn_logit_softcapping": 50.0}"#, "`attn_logit_softcapping` = 50.0"),
        (
            r#"{"sliding_window": 4096}"#,
            "`sliding_window` = 4096 is not supported by this architecture",
        ),
        (r#"{"torch_dtype": "float8_e4m3fn"}"#, "float8_e4m3fn"),
        (r#"{"hidden_size": null}"#, "`hidden_size` is missing"),
        (r#"{"num_key_value_heads": 5}"#, "a divisor of num_attention_heads"),
        (
            r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}"#,
            "`rope_scaling.low_freq_factor` is missing",
        ),
        (r#"{"partial_rotary_factor": 2.0}"#, "`partial_rotary_factor` is 2.0"),
    ];
    for (edit, message) in cases {
        let text: &'static str = with(LLAMA_3_1_8B, edit).leak();
        let files =
            CheckpointFiles::Embedded(Box::leak(Box::new([("config.json", text.as_bytes())])));
        let e = Checkpoint::open(files).unwrap_err().to_string();
        assert!(e.starts_with("config.json: ") && e.contains(message), "{edit}: {e}");
    }
    let biased = with(MISTRAL_7B, r#"{"attention_bias": true}"#);
    assert!(
        error(&biased).contains("`attention_bias` = true is not supported by this architecture")
    );
}

#[test]
fn an_unknown_architecture_gets_the_list_and_the_nearest() {
    let typo = with(LLAMA_3_1_8B, r#"{"architectures": ["Llama2ForCausalLM"]}"#);
    assert_eq!(
        error(&typo),
        "architecture `Llama2ForCausalLM` is not supported (the nearest is `LlamaForCausalLM`); supported: \
         LlamaForCausalLM, MistralForCausalLM, Ministral3ForCausalLM, Mistral3ForConditionalGeneration, HeliumForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, \
         GemmaForCausalLM, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3ForConditionalGeneration, Gemma4ForCausalLM, \
         Gemma4ForConditionalGeneration, Gemma4UnifiedForConditionalGeneration, PhiForCausalLM, Phi3ForCausalLM, \
         GlmForCausalLM, Glm4ForCausalLM, GraniteForCausalLM, GraniteMoeForCausalLM, GraniteMoeSharedForCausalLM, GraniteMoeHybridForCausalLM, Olmo2ForCausalLM, Olmo3ForCausalLM, SmolLM3ForCausalLM, \
         SeedOssForCausalLM, Ernie4_5ForCausalLM, Ernie4_5_MoeForCausalLM, Exaone4ForCausalLM, StableLmForCausalLM, Starcoder2ForCausalLM, \
         GPT2LMHeadModel, GPTBigCodeForCausalLM, GPTJForCausalLM, GPTNeoForCausalLM, GPTNeoXForCausalLM, OPTForCausalLM, \
         FalconForCausalLM, NemotronForCausalLM, ArceeForCausalLM, Jais2ForCausalLM, NemotronHForCausalLM, BambaForCausalLM, CohereForCausalLM, Cohere2ForCausalLM, MixtralForCausalLM, OlmoeForCausalLM, Qwen2MoeForCausalLM, \
         Qwen3MoeForCausalLM, Qwen3VLForConditionalGeneration, Qwen3VLMoeForConditionalGeneration, Qwen3NextForCausalLM, Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration, Qwen3_5MoeForCausalLM, \
         Qwen3_5MoeForConditionalGeneration, Lfm2ForCausalLM, Lfm2MoeForCausalLM, Glm4MoeForCausalLM, SolarOpenForCausalLM, Dots1ForCausalLM, AfmoeForCausalLM, DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, Glm4MoeLiteForCausalLM, Mistral4ForCausalLM, YoutuForCausalLM, MiniCPM3ForCausalLM, MiniMaxM2ForCausalLM, GptOssForCausalLM, \
         BertModel, BertForSequenceClassification, RobertaModel, RobertaForSequenceClassification, XLMRobertaModel, \
         XLMRobertaForSequenceClassification, DistilBertModel, DistilBertForSequenceClassification, MPNetModel, \
         MPNetForSequenceClassification, ModernBertModel, ModernBertForSequenceClassification, NomicBertModel"
    );
    let far = with(LLAMA_3_1_8B, r#"{"architectures": ["T5EncoderModel"]}"#);
    assert!(
        error(&far).starts_with("architecture `T5EncoderModel` is not supported; supported: Llama")
    );
    let encoder = with(LLAMA_3_1_8B, r#"{"architectures": ["BertModels"]}"#);
    assert!(error(&encoder).contains("(the nearest is `BertModel`)"));
}

#[test]
fn model_type_serves_where_architectures_is_missing() {
    let m = spec(&with(QWEN3, r#"{"architectures": null}"#));
    assert!(m.layers[0].attention().unwrap().qk_norm.is_some());
    let neither = with(QWEN3, r#"{"architectures": null, "model_type": null}"#);
    assert!(error(&neither).contains("`architectures` is missing"));
}

#[test]
fn memory_of_llama_3_1_8b() {
    let m = spec(LLAMA_3_1_8B);
    assert_eq!(m.num_parameters(), 8_030_261_248);
    assert_eq!(m.kv_bytes_per_token(Dtype::Bf16), 2 * 32 * 8 * 128 * 2);
    assert_eq!(m.kv_bytes_per_token(Dtype::F32), 262_144);
    // 65 norms of 4096 values are kept in f32: two more bytes for each value.
    assert_eq!(m.weight_bytes(Dtype::Bf16), 8_030_261_248 * 2 + 65 * 4096 * 2);
    assert_eq!(m.weight_bytes(Dtype::F32), 8_030_261_248 * 4);
}

#[test]
fn memory_of_a_tied_model_counts_the_embedding_once() {
    let m = spec(QWEN2_5);
    assert_eq!(m.num_parameters(), 494_032_768);
    assert_eq!(m.kv_bytes_per_token(Dtype::F32), 2 * 24 * 2 * 64 * 4);
}

#[test]
fn quantization_is_found() {
    let text: &'static str = with(
        LLAMA_3_1_8B,
        r#"{"quantization_config": {"quant_method": "AWQ", "bits": 4, "group_size": 128}}"#,
    )
    .leak();
    let files = CheckpointFiles::Embedded(Box::leak(Box::new([("config.json", text.as_bytes())])));
    let checkpoint = Checkpoint::open(files).unwrap();
    let quantization = checkpoint.quantization().unwrap();
    assert_eq!(quantization.method, "awq");
    assert_eq!(checkpoint.generation().eos_token_ids, [128_001, 128_008, 128_009]);
    assert_eq!(checkpoint.architecture(), "LlamaForCausalLM");
    // Embedding and head stay in bf16; of the rest 128 weights have 4 bits each, a scale of 16 bits and a zero point of 8.
    let plain = 2 * 128_256 * 4096;
    let codes = (8_030_261_248 - plain - 65 * 4096) / 2 * (128 + 6) / 128;
    assert_eq!(checkpoint.weight_bytes(None), plain * 2 + codes + 65 * 4096 * 4);
    let message = checkpoint.weight_files().unwrap_err().to_string();
    assert!(message.starts_with("no weights in the embedded model"), "{message}");
}
