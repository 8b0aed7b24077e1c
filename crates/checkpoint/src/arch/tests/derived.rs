//! Architectures that are others with a few settings.

use candlepower_layout::{Activation, GatingFunction};

use super::*;

/// Which layers have a rope, and which a window.
pub(super) fn ropes_and_windows(m: &ModelSpec) -> (Vec<bool>, Vec<Option<usize>>) {
    let attention = || m.layers.iter().map(|layer| layer.attention().unwrap());
    (attention().map(|a| a.rope.is_some()).collect(), attention().map(|a| a.window).collect())
}

/// google/gemma-2b, whose `hidden_act` is not what it says.
#[test]
fn gemma() {
    let text = r#"{"architectures": ["GemmaForCausalLM"], "model_type": "gemma", "attention_bias": false, "head_dim": 256,
        "hidden_act": "gelu", "hidden_size": 2048, "intermediate_size": 16384, "max_position_embeddings": 8192,
        "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1, "rms_norm_eps": 1e-06,
        "rope_scaling": null, "rope_theta": 10000.0, "vocab_size": 256000}"#;
    let m = spec(text);
    assert_eq!(m.num_parameters(), 2_506_172_416);
    assert_eq!(
        (m.layers[0].ffn.mlp().unwrap().act, m.layers[0].residual),
        (Activation::GeluTanh, Residual::PreNorm)
    );
    assert!(m.head.tied && m.embed.rounded && m.final_norm.kind == NormKind::RmsPlusOne);
    // google/gemma-1.1-2b-it says it.
    let expected = with(
        text,
        r#"{"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}"#,
    );
    assert_eq!(spec(&expected), m);
}

/// google/gemma-3-4b-it and 12b-it: what is as transformers has it by default is not written.
#[test]
fn gemma3_of_texts_and_images() {
    let text = r#"{"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106],
        "image_token_index": 262144, "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
            "model_type": "gemma3_text", "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024}, "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152}}"#;
    let m = spec(text);
    assert_eq!(m.num_parameters(), 3_880_263_168);
    assert_eq!(m.max_model_len, 131_072);
    let a = m.layers[0].attention().unwrap();
    assert_eq!(
        (a.heads, a.kv_heads, a.head_dim, a.scale, a.window),
        (8, 4, 256, 0.0625, Some(1024))
    );
    assert_eq!((rope(&m, 0).theta, rope(&m, 5).theta), (1e4, 1e6));
    assert_eq!(rope(&m, 5).scaling, RopeScaling::Linear { factor: 8.0 });

    let checkpoint = open(text);
    assert_eq!(
        (checkpoint.dtype(), checkpoint.architecture()),
        (Some(Dtype::Bf16), "Gemma3ForConditionalGeneration")
    );
    assert_eq!(checkpoint.generation().eos_token_ids, [1, 106]);
    for stored in ["language_model.model.norm.weight", "model.language_model.norm.weight"] {
        assert_eq!(checkpoint.planned_name(stored), "model.norm.weight");
    }
    for (name, may_skip) in [
        ("vision_tower.vision_model.post_layernorm.weight", true),
        ("model.multi_modal_projector.mm_input_projection_weight", true),
        ("lm_head.weight", true),
        ("model.audio_tower.norm.weight", false),
    ] {
        assert_eq!(checkpoint.may_skip_tensor(&checkpoint.planned_name(name)), may_skip, "{name}");
    }
    let none = with(text, r#"{"text_config": null}"#);
    assert!(
        error(&none).contains("`text_config` is missing; an object is needed"),
        "{}",
        error(&none)
    );
    let wrong = with(text, r#"{"text_config": {"hidden_size": "wide"}}"#);
    assert!(error(&wrong).contains("`text_config.hidden_size` is \"wide\""), "{}", error(&wrong));
}

/// mistralai/Mistral-Small-3.1-24B-Instruct-2503.
#[test]
fn mistral3() {
    let text = r#"{"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "image_token_index": 10,
        "multimodal_projector_bias": false, "spatial_merge_size": 2, "text_config": {"attention_dropout": 0.0,
            "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 32768,
            "max_position_embeddings": 131072, "model_type": "mistral", "num_attention_heads": 32,
            "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0,
            "sliding_window": null, "vocab_size": 131072}, "torch_dtype": "bfloat16", "vision_feature_layer": -1}"#;
    let m = spec(text);
    assert_eq!((m.num_parameters(), m.head.tied), (23_572_403_200, false));
    assert!(spec(&with(text, r#"{"tie_word_embeddings": true}"#)).head.tied);
    // mistralai/Ministral-3-3B-Instruct-2512.
    let ministral = with(
        text,
        r#"{"text_config": {"head_dim": 128, "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 9216,
            "max_position_embeddings": 262144, "model_type": "ministral3", "num_attention_heads": 32,
            "num_hidden_layers": 26, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_parameters": {
                "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
                "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1000000.0,
                "rope_type": "yarn", "type": "yarn"},
            "sliding_window": null, "tie_word_embeddings": true, "vocab_size": 131072}}"#,
    );
    let m = spec(&ministral);
    assert_eq!((m.num_parameters(), m.head.tied, m.max_model_len), (3_429_006_336, true, 262_144));
    let growth = QueryGrowth { beta: 0.1, original: 16_384 };
    assert_eq!(rope(&m, 0).query_growth, Some(growth));
    assert!(matches!(rope(&m, 0).scaling, RopeScaling::Yarn { attention_factor: 1.0, .. }));

    let other = with(text, r#"{"text_config": {"model_type": "mamba"}}"#);
    assert!(error(&other).contains("`text_config.model_type` = \"mamba\""), "{}", error(&other));
}

/// THUDM/glm-4-9b-chat-hf.
#[test]
fn glm() {
    let text = with(
        LLAMA_3_1_8B,
        r#"{"architectures": ["GlmForCausalLM"], "model_type": "glm", "attention_bias": true, "mlp_bias": null,
            "head_dim": 128, "intermediate_size": 13696, "num_hidden_layers": 40, "num_key_value_heads": 2,
            "rms_norm_eps": 1.5625e-07, "rope_scaling": null, "rope_theta": 10000.0, "vocab_size": 151552}"#,
    );
    let m = spec(&text);
    assert_eq!(m.num_parameters(), 9_399_951_360);
    assert_eq!((rope(&m, 0).dim, rope(&m, 0).interleaved), (64, true));
    assert_eq!(m.layers[0].residual, Residual::PreNorm);
}

/// allenai/Olmo-3-7B-Instruct: layers with a window are not stretched.
#[test]
fn olmo3() {
    let text = with(
        LLAMA_3_1_8B,
        r#"{"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "num_key_value_heads": 32, "vocab_size": 100278,
            "intermediate_size": 11008, "max_position_embeddings": 65536, "mlp_bias": null, "sliding_window": 4096,
            "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1, "factor": 8.0,
                "original_max_position_embeddings": 8192, "rope_type": "yarn"}}"#,
    );
    let m = spec(&text);
    assert_eq!((m.num_parameters(), m.max_model_len), (7_298_011_136, 65_536));
    let (_, windows) = ropes_and_windows(&m);
    assert_eq!(windows[..4], [Some(4096), Some(4096), Some(4096), None]);
    assert_eq!((rope(&m, 0).theta, &rope(&m, 0).scaling), (500_000.0, &RopeScaling::None));
    assert!(matches!(rope(&m, 3).scaling, RopeScaling::Yarn { factor: 8.0, .. }));
}

/// allenai/OLMoE-1B-7B-0924.
#[test]
fn olmoe() {
    let text = with(
        LLAMA_3_1_8B,
        r#"{"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "clip_qkv": null, "hidden_size": 2048,
            "intermediate_size": 1024, "mlp_bias": null, "norm_topk_prob": false, "num_attention_heads": 16,
            "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16, "num_key_value_heads": 16,
            "rope_scaling": null, "vocab_size": 50304}"#,
    );
    let m = spec(&text);
    assert_eq!(m.num_parameters(), 6_919_161_856);
    assert!(m.norms_all_heads() && !m.layers[0].ffn.experts().unwrap().gating.renormalize);
    let clipped = with(&text, r#"{"clip_qkv": 8.0}"#);
    assert!(error(&clipped).contains("`clip_qkv` = 8.0 is not supported by this architecture"));
}

/// HuggingFaceTB/SmolLM3-3B.
#[test]
fn smollm3() {
    let text = with(
        LLAMA_3_1_8B,
        r#"{"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "hidden_size": 2048,
            "intermediate_size": 11008, "max_position_embeddings": 65536, "no_rope_layer_interval": 4,
            "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4, "rope_scaling": null,
            "rope_theta": 5000000.0, "sliding_window": null, "tie_word_embeddings": null, "use_sliding_window": false}"#,
    );
    let m = spec(&text);
    assert_eq!((m.num_parameters(), m.head.tied), (3_075_098_624, true));
    assert_eq!(ropes_and_windows(&m).0[..5], [true, true, true, false, true]);
    let listed = r#"{"no_rope_layers": [0, 1, 1, 1], "num_hidden_layers": 4}"#;
    assert_eq!(ropes_and_windows(&spec(&with(&text, listed))).0, [false, true, true, true]);
    let windowed = r#"{"use_sliding_window": true, "sliding_window": 512}"#;
    assert_eq!(ropes_and_windows(&spec(&with(&text, windowed))).1[2..5], [None, Some(512), None]);
    let short = error(&with(&text, r#"{"no_rope_layers": [0, 1, 1, 1]}"#));
    assert!(
        short.contains("`no_rope_layers` is [0,1,1,1], but an entry for each layer"),
        "{short}"
    );
}

/// ByteDance-Seed/Seed-OSS-36B-Instruct.
#[test]
fn seed_oss() {
    let text = with(
        LLAMA_3_1_8B,
        r#"{"architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "attention_bias": true,
            "attention_out_bias": false, "head_dim": 128, "hidden_size": 5120, "intermediate_size": 27648,
            "num_attention_heads": 80, "num_hidden_layers": 64, "num_key_value_heads": 8, "rope_scaling": null,
            "rope_theta": 10000000.0, "vocab_size": 155136}"#,
    );
    let m = spec(&text);
    assert_eq!(m.num_parameters(), 36_151_104_512);
    assert_eq!(
        (m.layers[0].attention().unwrap().qkv_bias, m.layers[0].attention().unwrap().out_bias),
        (true, false)
    );
}

/// baidu/ERNIE-4.5-0.3B-PT.
#[test]
fn ernie() {
    let text = with(
        LLAMA_3_1_8B,
        r#"{"architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "attention_bias": null, "head_dim": 128,
            "hidden_size": 1024, "intermediate_size": 3072, "mlp_bias": null, "num_attention_heads": 16,
            "num_hidden_layers": 18, "num_key_value_heads": 2, "rope_scaling": null, "tie_word_embeddings": true,
            "use_bias": false, "vocab_size": 103424}"#,
    );
    let m = spec(&text);
    assert_eq!((m.num_parameters(), rope(&m, 0).interleaved), (360_748_032, true));
}

/// baidu/ERNIE-4.5-21B-A3B-PT.
#[test]
fn ernie_moe() {
    let text = with(
        LLAMA_3_1_8B,
        r#"{"architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "attention_bias": null,
            "hidden_size": 2560, "intermediate_size": 12288, "mlp_bias": null, "moe_intermediate_size": 1536, "moe_k": 6,
            "moe_layer_end_index": 27, "moe_layer_interval": 1, "moe_layer_start_index": 1, "moe_num_experts": 64,
            "moe_num_shared_experts": 2, "num_attention_heads": 20, "num_hidden_layers": 28, "num_key_value_heads": 4,
            "rope_scaling": null, "tie_word_embeddings": true, "use_bias": false, "vocab_size": 103424}"#,
    );
    let m = spec(&text);
    assert_eq!(m.num_parameters(), 21_825_437_888);
    let experts = m.layers[1].ffn.experts().unwrap();
    assert_eq!(
        (experts.shared.unwrap().inner, experts.gating.function),
        (3072, GatingFunction::Softmax)
    );
    assert!(m.layers[0].ffn.experts().is_none());
    let last = spec(&with(&text, r#"{"moe_layer_end_index": -1, "moe_layer_interval": 2}"#));
    let has = |i: usize| last.layers[i].ffn.experts().is_some();
    assert_eq!([0, 1, 2, 27].map(has), [false, true, false, true]);
    let biased = error(&with(&text, r#"{"use_bias": true}"#));
    assert!(biased.contains("`use_bias` = true is not supported; experts without"), "{biased}");
    assert!(open(&text).may_skip_tensor("model.mtp_block.0.mlp.up_proj.weight"));
}

/// LGAI-EXAONE/EXAONE-4.0-32B and 1.2B.
#[test]
fn exaone4() {
    let text = with(
        LLAMA_3_1_8B,
        r#"{"architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4", "attention_bias": null, "head_dim": 128,
            "hidden_size": 5120, "intermediate_size": 27392, "mlp_bias": null, "num_attention_heads": 40,
            "num_hidden_layers": 64, "num_key_value_heads": 8, "sliding_window": 4096, "sliding_window_pattern": 4,
            "vocab_size": 102400}"#,
    );
    let m = spec(&text);
    assert_eq!(m.num_parameters(), 32_003_216_384);
    let (ropes, windows) = ropes_and_windows(&m);
    assert_eq!((ropes[3], windows[3], ropes[2], windows[2]), (false, None, true, Some(4096)));
    let full = with(&text, r#"{"sliding_window_pattern": null}"#)
        .replace("\"sliding_window\":4096", "\"sliding_window\":null");
    let (ropes, windows) = ropes_and_windows(&spec(&full));
    assert!(ropes.iter().all(|rope| *rope) && windows.iter().all(Option::is_none));
    let letters = error(&with(&text, r#"{"sliding_window_pattern": "LLLG"}"#));
    assert!(letters.contains("`sliding_window_pattern` is \"LLLG\""), "{letters}");
}

/// stabilityai/stablelm-2-1_6b, and what stablelm-2-12b has.
#[test]
fn stablelm() {
    let text = with(
        LLAMA_3_1_8B,
        r#"{"architectures": ["StableLmForCausalLM"], "model_type": "stablelm", "attention_bias": null, "hidden_size": 2048,
            "intermediate_size": 5632, "layer_norm_eps": 1e-05, "max_position_embeddings": 4096, "mlp_bias": null,
            "num_attention_heads": 32, "num_hidden_layers": 24, "num_key_value_heads": 32, "partial_rotary_factor": 0.25,
            "rms_norm_eps": null, "rope_scaling": null, "rope_theta": 10000, "use_parallel_residual": false,
            "use_qkv_bias": true, "vocab_size": 100352}"#,
    );
    let m = spec(&text);
    assert_eq!((m.num_parameters(), rope(&m, 0).dim), (1_644_515_328, 16));
    let parallel = spec(&with(&text, r#"{"use_parallel_residual": true}"#));
    assert_eq!(parallel.layers[0].residual, Residual::Parallel);
    let normed = error(&with(&text, r#"{"qk_layernorm": true}"#));
    assert!(
        normed.contains("`qk_layernorm` = true is not supported by this architecture"),
        "{normed}"
    );
}

/// zai-org/GLM-4.5-Air, which has a layer that predicts a further token behind the last one.
#[test]
fn glm4_moe() {
    let text = r#"{"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "attention_bias": true, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "partial_rotary_factor": 0.5, "intermediate_size": 10944,
        "max_position_embeddings": 131072, "moe_intermediate_size": 1408, "norm_topk_prob": true,
        "num_attention_heads": 96, "n_group": 1, "topk_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
        "routed_scaling_factor": 1.0, "num_experts_per_tok": 8, "first_k_dense_replace": 1, "num_hidden_layers": 46,
        "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
        "rope_theta": 1000000, "tie_word_embeddings": false, "use_qk_norm": false, "vocab_size": 151552}"#;
    let m = spec(text);
    // The routers' corrections are included.
    assert_eq!(m.num_parameters(), 106_852_245_504 + 45 * 128);
    assert_eq!(m.tensor_parallel_sizes(), [1, 2, 4, 8, 16, 32]);
    assert!(matches!(m.layers[0].ffn, FfnSpec::Dense(MlpSpec { inner: 10_944, .. })));
    let experts = m.layers[1].ffn.experts().unwrap();
    assert_eq!((experts.count, experts.expert.inner), (128, 1408));
    assert_eq!(experts.shared, Some(experts.expert));
    let gating = GatingSpec {
        function: GatingFunction::Sigmoid,
        bias: true,
        renormalize: true,
        scale: 1.0,
        scales: false,
        groups: None,
    };
    assert_eq!(experts.gating, gating);
    let a = m.layers[1].attention().unwrap();
    assert_eq!((a.qkv_bias, a.out_bias, a.qk_norm, rope(&m, 1).dim), (true, false, None, 64));
    let checkpoint = open(text);
    for (name, may_skip) in [
        ("model.layers.46.eh_proj.weight", true),
        ("model.layers.45.eh_proj.weight", false),
        ("model.vision_tower.norm.weight", false),
    ] {
        assert_eq!(checkpoint.may_skip_tensor(name), may_skip, "{name}");
    }
    let larger = spec(&with(
        text,
        r#"{"use_qk_norm": true, "n_shared_experts": 2, "first_k_dense_replace": 3}"#,
    ));
    let shared = larger.layers[3].ffn.shared().unwrap();
    assert_eq!((shared.inner, larger.layers[2].ffn.experts()), (2816, None));
    assert!(larger.layers[0].attention().unwrap().qk_norm.is_some());
    let many = error(&with(text, r#"{"n_shared_experts": 18446744073709551615}"#));
    assert!(
        many.contains("`n_shared_experts` = 18446744073709551615 is not supported; at most"),
        "{many}"
    );
    let groups = error(&with(text, r#"{"n_group": 7}"#));
    assert!(groups.contains("`n_group` is 7, but at most 32"), "{groups}");
}

/// MiniMaxAI/MiniMax-M2.
#[test]
fn minimax_m2() {
    let text = r#"{"architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "attn_type_list": [1, 1],
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 1536,
        "max_position_embeddings": 196608, "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62,
        "num_key_value_heads": 8, "num_local_experts": 256, "qk_norm_type": "per_layer", "rms_norm_eps": 1e-06,
        "rope_theta": 5000000, "rotary_dim": 64, "scoring_func": "sigmoid", "shared_intermediate_size": 0,
        "tie_word_embeddings": false, "use_qk_norm": true, "use_routing_bias": true, "vocab_size": 200064}"#;
    let m = spec(text);
    assert_eq!(m.num_parameters(), 228_689_748_992 + 62 * 256);
    assert_eq!((rope(&m, 0).dim, m.norms_all_heads()), (64, true));
    for (edit, message) in [
        (r#"{"attn_type_list": [1, 0]}"#, "`attn_type_list` = [1,0] is not supported"),
        (
            r#"{"scoring_func": "softmax"}"#,
            "`scoring_func` = \"softmax\" is not supported; sigmoid is",
        ),
        (r#"{"use_routing_bias": false}"#, "`use_routing_bias` = false is not supported; true is"),
        (
            r#"{"shared_intermediate_size": 8}"#,
            "`shared_intermediate_size` = 8 is not supported; 0 is",
        ),
    ] {
        let found = error(&with(text, edit));
        assert!(found.contains(message), "{found}");
    }
}

/// openai/gpt-oss-20b, and gpt-oss-120b as far as it is larger.
#[test]
fn gpt_oss() {
    let text = r#"{"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": true, "experts_per_token": 4,
        "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880,
        "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 8, "num_local_experts": 32, "quantization_config": {"modules_to_not_convert":
        ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"},
        "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
        "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false}, "rope_theta": 150000,
        "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false, "vocab_size": 201088}"#;
    let m = spec(text);
    assert_eq!((m.num_parameters(), m.max_model_len), (20_914_757_184, 131_072));
    let windows: Vec<_> =
        m.layers[..3].iter().map(|layer| layer.attention().unwrap().window).collect();
    assert_eq!(windows, [Some(128), None, Some(128)]);
    assert!(
        m.layers
            .iter()
            .all(|layer| layer.attention().unwrap().sinks && layer.attention().unwrap().out_bias)
    );
    let experts = m.layers[0].ffn.experts().unwrap();
    assert_eq!(
        (experts.expert.act, experts.expert.bias, experts.router_bias),
        (Activation::SwigluOai, true, true)
    );
    let matrices = 24.0 * 32.0 * 3.0 * 2880.0 * 2880.0;
    assert!((m.share_of_experts() - matrices / 20_914_757_184.0).abs() < 0.001);
    let larger = r#"{"num_hidden_layers": 36, "num_local_experts": 128}"#;
    assert_eq!(spec(&with(text, larger)).num_parameters(), 116_829_156_672);
    let limit = error(&with(text, r#"{"swiglu_limit": 8.0}"#));
    assert!(limit.contains("`swiglu_limit` = 8.0 is not supported; 7 is"), "{limit}");

    // Experts are quantized, their biases are not; the two halves of a gate's tensor lie in turn.
    let plan = open(text).tensor_plan();
    let tensor = |name: &str| {
        let name = format!("model.layers.3.mlp.experts.{name}");
        plan.iter().find(|tensor| tensor.name == name).unwrap()
    };
    let stored = tensor("gate_up_proj").stored().unwrap();
    let names: Vec<&str> =
        stored.iter().map(|tensor| tensor.name.rsplit('.').next().unwrap()).collect();
    assert_eq!(names, ["gate_up_proj_blocks", "gate_up_proj_scales"]);
    assert_eq!(stored[0].shapes, [vec![32, 5760, 1440], vec![32, 5760, 90, 16]]);
    assert_eq!(stored[1].shapes, [[32, 5760, 90]]);
    let order = tensor("gate_up_proj").row_order();
    let rows = [0, 1, 2879, 2880, 2881, 5759, 5760, 8640];
    assert_eq!(rows.map(|row| order.stored(row)), [0, 2, 5758, 1, 3, 5759, 5760, 5761]);
    assert_eq!(tensor("down_proj").row_order().stored(2881), 2881);
    let bias = tensor("gate_up_proj_bias").stored().unwrap();
    assert_eq!(bias[0].shapes, [[32, 5760]]);
    // A group of 32 inputs is on one rank.
    assert_eq!(open(text).spec().tensor_parallel_sizes(), [1, 2]);
}

/// microsoft/phi-2.
#[test]
fn phi() {
    let text = r#"{"architectures": ["PhiForCausalLM"], "model_type": "phi", "hidden_act": "gelu_new", "hidden_size": 2560,
        "intermediate_size": 10240, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "partial_rotary_factor": 0.4, "qk_layernorm": false,
        "rope_scaling": null, "rope_theta": 10000.0, "tie_word_embeddings": false, "vocab_size": 51200}"#;
    let m = spec(text);
    assert_eq!((m.num_parameters(), rope(&m, 0).dim), (2_779_683_840, 32));
    let plan = plan(&m, find(&config(text)).unwrap().weights);
    let head = plan.iter().find(|tensor| tensor.name == "lm_head.bias").unwrap();
    assert_eq!((head.slots[0].slot, &head.shape), (Slot::HeadBias, &vec![51_200]));
    assert!(error(&with(text, r#"{"qk_layernorm": true}"#)).contains("`qk_layernorm` = true"));
}
