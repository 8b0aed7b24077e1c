//! GPTs and their like, and other models whose feed-forwards have no gate.

use super::{derived::ropes_and_windows, *};

/// facebook/opt-125m, and what the one with 350 million weights has otherwise.
#[test]
fn opt() {
    let text = r#"{"architectures": ["OPTForCausalLM"], "model_type": "opt", "_remove_final_layer_norm": false,
        "activation_function": "relu", "do_layer_norm_before": true, "ffn_dim": 3072, "hidden_size": 768,
        "max_position_embeddings": 2048, "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
        "vocab_size": 50272, "word_embed_proj_dim": 768}"#;
    let m = spec(text);
    // Two rows of the published table are of no position.
    assert_eq!(m.num_parameters(), 125_239_296 - 2 * 768);
    assert_eq!(
        (m.layers[0].ffn.mlp().unwrap().act, m.embed.positions),
        (Activation::Relu, Some(2048))
    );
    let plan = plan(&m, find(&config(text)).unwrap().weights);
    let positions = plan.iter().find(|t| t.name == "decoder.embed_positions.weight").unwrap();
    assert_eq!((&positions.shape[..], &positions.slots[0].rows), (&[2050, 768][..], &(2..2050)));
    for (edit, message) in [
        (r#"{"do_layer_norm_before": false}"#, "`do_layer_norm_before` = false is not supported"),
        (r#"{"word_embed_proj_dim": 512}"#, "`word_embed_proj_dim` = 512"),
        (r#"{"ffn_dim": "wide"}"#, "`ffn_dim` is \"wide\""),
        (
            r#"{"layer_norm_elementwise_affine": false}"#,
            "`layer_norm_elementwise_affine` = false is not supported; true is",
        ),
    ] {
        assert!(error(&with(text, edit)).contains(message), "{edit}");
    }
}

/// EleutherAI/gpt-neo-125m.
#[test]
fn gpt_neo() {
    let text = r#"{"architectures": ["GPTNeoForCausalLM"], "model_type": "gpt_neo", "activation_function": "gelu_new",
        "attention_types": [[["global", "local"], 6]], "hidden_size": 768, "intermediate_size": null,
        "layer_norm_epsilon": 1e-05, "max_position_embeddings": 2048, "num_heads": 12, "num_layers": 12,
        "vocab_size": 50257, "window_size": 256}"#;
    let m = spec(text);
    assert_eq!(m.num_parameters(), 125_198_592);
    let (ropes, windows) = ropes_and_windows(&m);
    assert_eq!((ropes[0], &windows[..3]), (false, &[None, Some(256), None][..]));
    assert_eq!(m.layers[0].attention().unwrap().scale, 1.0);
    assert_eq!(spec(&with(text, r#"{"attention_types": null}"#)), m);
    // Pairs without types give no layers, and take no time.
    let empty = r#"{"attention_types": [[[], 18446744073709551615], [["global", "local"], 6]]}"#;
    assert_eq!(spec(&with(text, empty)), m);
    for types in [
        r#"[[["global", "local"], 7]]"#,
        r#"[[["global", "local"], 18446744073709551615]]"#,
        "[[[], 18446744073709551615]]",
        "[[[\"wide\"], 12]]",
        "[[[\"global\"], 5]]",
        "3",
    ] {
        let edit = format!(r#"{{"attention_types": {types}}}"#);
        assert!(error(&with(text, &edit)).contains("`attention_types` is"), "{types}");
    }
    assert!(error(&with(text, r#"{"num_heads": null}"#)).contains("`num_heads` is missing"));
}

/// EleutherAI/pythia-70m.
#[test]
fn gpt_neox() {
    let text = r#"{"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_act": "gelu", "hidden_size": 512,
        "intermediate_size": 2048, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "num_attention_heads": 8,
        "num_hidden_layers": 6, "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": false,
        "use_parallel_residual": true, "vocab_size": 50304}"#;
    let m = spec(text);
    assert_eq!((m.num_parameters(), rope(&m, 0).dim), (70_426_624, 16));
    assert_eq!(m.layers[0].residual, Residual::ParallelNorms);
    let serial = spec(&with(text, r#"{"use_parallel_residual": false}"#));
    assert_eq!(serial.layers[0].residual, Residual::PreNorm);
    let plan = plan(&m, find(&config(text)).unwrap().weights);
    let name = "layers.5.attention.query_key_value.weight";
    let qkv = plan.iter().find(|t| t.name == name).unwrap();
    let first: Vec<_> = qkv.slots[..4].iter().map(|s| (s.slot, s.rows.clone(), s.first)).collect();
    let expected = [
        (Slot::Q, 0..64, 0),
        (Slot::K, 64..128, 0),
        (Slot::V, 128..192, 0),
        (Slot::Q, 192..256, 64),
    ];
    assert_eq!(first, expected);
    let odd = error(&with(text, r#"{"rotary_pct": 3.0}"#));
    assert!(odd.contains("`rotary_pct` is 3.0"), "{odd}");
}

/// EleutherAI/gpt-j-6b.
#[test]
fn gpt_j() {
    let text = r#"{"architectures": ["GPTJForCausalLM"], "model_type": "gptj", "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-05, "n_embd": 4096, "n_head": 16, "n_inner": null, "n_layer": 28, "n_positions": 2048,
        "rotary": true, "rotary_dim": 64, "scale_attn_weights": true, "tie_word_embeddings": false, "vocab_size": 50400}"#;
    let m = spec(text);
    assert_eq!(m.num_parameters(), 6_050_882_784);
    assert_eq!((rope(&m, 0).dim, rope(&m, 0).interleaved, m.head.bias), (64, true, true));
    assert!(error(&with(text, r#"{"rotary_dim": 258}"#)).contains("`rotary_dim` is 258"));
}

/// bigcode/starcoderbase-1b.
#[test]
fn gpt_bigcode() {
    let text = r#"{"architectures": ["GPTBigCodeForCausalLM"], "model_type": "gpt_bigcode",
        "activation_function": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-05, "multi_query": true, "n_embd": 2048,
        "n_head": 16, "n_inner": 8192, "n_layer": 24, "n_positions": 8192, "scale_attn_weights": true, "vocab_size": 49152}"#;
    let m = spec(text);
    assert_eq!(m.num_parameters(), 1_137_207_296);
    assert_eq!(m.layers[0].attention().unwrap().kv_heads, 1);
    let heads = spec(&with(text, r#"{"multi_query": false}"#));
    assert_eq!(heads.layers[0].attention().unwrap().kv_heads, 16);
}

/// tiiuae/falcon-7b and falcon-40b.
#[test]
fn falcon() {
    let text = r#"{"architectures": ["FalconForCausalLM"], "model_type": "falcon", "alibi": false, "bias": false,
        "hidden_size": 4544, "layer_norm_epsilon": 1e-05, "multi_query": true, "new_decoder_architecture": false,
        "num_attention_heads": 71, "num_hidden_layers": 32, "parallel_attn": true, "vocab_size": 65024}"#;
    let m = spec(text);
    assert_eq!((m.num_parameters(), m.max_positions), (6_921_720_704, 2048));
    assert_eq!(m.layers[0].residual, Residual::Parallel);
    let larger = r#"{"hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8,
        "new_decoder_architecture": true}"#;
    let larger = spec(&with(text, larger));
    assert_eq!(larger.num_parameters(), 41_303_293_952);
    assert_eq!(larger.layers[0].residual, Residual::ParallelNorms);
    let serial =
        spec(&with(text, r#"{"parallel_attn": false, "multi_query": false, "bias": true}"#));
    assert_eq!(serial.layers[0].residual, Residual::PreNorm);
    let attention = serial.layers[0].attention().unwrap();
    assert_eq!((attention.kv_heads, attention.qkv_bias, attention.out_bias), (71, true, true));
    assert!(error(&with(text, r#"{"alibi": true}"#)).contains("`alibi` = true"));
}

/// nvidia/Nemotron-Mini-4B-Instruct.
#[test]
fn nemotron() {
    let text = r#"{"architectures": ["NemotronForCausalLM"], "model_type": "nemotron", "attention_bias": false, "head_dim": 128,
        "hidden_act": "relu2", "hidden_size": 3072, "intermediate_size": 9216, "max_position_embeddings": 4096,
        "mlp_bias": false, "norm_eps": 1e-05, "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "partial_rotary_factor": 0.5, "rope_theta": 10000, "tie_word_embeddings": false, "vocab_size": 256000}"#;
    let m = spec(text);
    assert_eq!((m.num_parameters(), rope(&m, 0).dim), (4_190_509_056, 64));
    assert_eq!(m.final_norm.kind, NormKind::LayerPlusOne);
    assert_eq!(
        (m.layers[0].ffn.mlp().unwrap().gated, m.layers[0].ffn.mlp().unwrap().act),
        (false, Activation::ReluSquared)
    );
}

/// ibm-granite/granite-3.0-1b-a400m-instruct, and granite-4.0-micro.
#[test]
fn granite_with_experts() {
    let text = r#"{"architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe", "attention_bias": false,
        "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "hidden_act": "silu", "hidden_size": 1024,
        "intermediate_size": 512, "logits_scaling": 6.0, "max_position_embeddings": 4096, "num_attention_heads": 16,
        "num_experts_per_tok": 8, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
        "residual_multiplier": 0.22, "rms_norm_eps": 1e-06, "rope_theta": 10000, "tie_word_embeddings": true,
        "vocab_size": 49155}"#;
    let m = spec(text);
    assert_eq!(m.num_parameters(), 1_334_628_352);
    let FfnSpec::Experts(experts) = m.layers[0].ffn else { panic!("no experts") };
    assert_eq!((experts.count, experts.top_k, experts.gating.renormalize), (32, 8, true));
    let dense = r#"{"architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "hidden_size": 2560,
        "intermediate_size": 8192, "shared_intermediate_size": 8192, "num_attention_heads": 40, "num_hidden_layers": 4,
        "num_local_experts": 0, "layer_types": ["attention", "attention", "attention", "attention"],
        "position_embedding_type": "rope", "max_position_embeddings": 131072, "vocab_size": 100352}"#;
    let dense = spec(&with(text, dense));
    assert_eq!(
        (dense.layers[3].ffn.experts(), dense.layers[3].ffn.mlp().unwrap().inner),
        (None, 8192)
    );
}
