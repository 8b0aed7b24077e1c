//! Gemma 4, whose layers differ in heads, caches and what they read.

use super::derived::ropes_and_windows;
use super::*;
use crate::{KvDtype, KvKind, KvLayer, Shard};

/// google/gemma-4-E2B-it, the part for texts.
const E2B: &str = r#"{"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
    "tie_word_embeddings": true, "vision_config": {}, "audio_config": {}, "text_config": {"attention_bias": false,
    "attention_k_eq_v": false, "enable_moe_block": false, "final_logit_softcapping": 30.0, "global_head_dim": 512,
    "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1536, "hidden_size_per_layer_input": 256,
    "intermediate_size": 6144, "max_position_embeddings": 131072, "model_type": "gemma4_text",
    "moe_intermediate_size": null, "num_attention_heads": 8, "num_experts": null, "num_global_key_value_heads": null,
    "num_hidden_layers": 35, "num_key_value_heads": 1, "num_kv_shared_layers": 20, "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
    "sliding_window": 512, "top_k_experts": null, "use_bidirectional_attention": null, "use_double_wide_mlp": true,
    "vocab_size": 262144, "vocab_size_per_layer_input": 262144, "layer_types": [LAYERS]}}"#;

/// google/gemma-4-26B-A4B-it, likewise.
const A4B: &str = r#"{"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
    "tie_word_embeddings": true, "vision_config": {}, "text_config": {"attention_bias": false,
    "attention_k_eq_v": true, "enable_moe_block": true, "final_logit_softcapping": 30.0, "global_head_dim": 512,
    "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2816, "hidden_size_per_layer_input": 0,
    "intermediate_size": 2112, "max_position_embeddings": 262144, "model_type": "gemma4_text",
    "moe_intermediate_size": 704, "num_attention_heads": 16, "num_experts": 128, "num_global_key_value_heads": 2,
    "num_hidden_layers": 30, "num_key_value_heads": 8, "num_kv_shared_layers": 0, "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
    "sliding_window": 1024, "top_k_experts": 8, "use_bidirectional_attention": "vision", "use_double_wide_mlp": false,
    "vocab_size": 262144, "vocab_size_per_layer_input": 262144, "layer_types": [LAYERS]}}"#;

/// google/gemma-4-12B-it, likewise: what differs from [`A4B`].
const UNIFIED: &str = r#"{"enable_moe_block": false, "hidden_size": 3840, "intermediate_size": 15360,
    "moe_intermediate_size": null, "num_experts": null, "num_global_key_value_heads": 1, "num_hidden_layers": 48,
    "top_k_experts": null}"#;

/// With so many layers, every `period`-th of which is global.
fn layers(text: &str, count: usize, period: usize) -> String {
    let kinds = (1..=count).map(|i| match i.is_multiple_of(period) {
        true => "\"full_attention\"",
        false => "\"sliding_attention\"",
    });
    text.replace("LAYERS", &kinds.collect::<Vec<_>>().join(", "))
}

/// The configuration with an edit in the part for texts.
fn with_text(text: &str, edits: &str) -> String {
    let root: serde_json::Value = serde_json::from_str(text).unwrap();
    let inner = with(&root["text_config"].to_string(), edits);
    with(text, &format!(r#"{{"text_config": {inner}}}"#))
}

#[test]
fn e2b() {
    let text = layers(E2B, 35, 5);
    let m = spec(&text);
    // The first fifteen layers have keys and values of their own.
    let kinds = [
        KvKind { kv_heads: 1, head_dim: 256, latent: None, layers: 12 },
        KvKind { kv_heads: 1, head_dim: 512, latent: None, layers: 3 },
    ];
    assert_eq!(m.kv_kinds(), kinds);
    let place = |kind, layer| Some(KvLayer { kind, layer });
    assert_eq!([0, 3, 5].map(|i| m.kv_layer(i)), [place(0, 0), place(0, 3), place(0, 4)]);
    assert_eq!([4, 9, 14].map(|i| m.kv_layer(i)), [place(1, 0), place(1, 1), place(1, 2)]);
    // The others read those of layers 13 and 14, and have feed-forwards of twice the width.
    assert_eq!([15, 34].map(|i| m.kv_layer(i)), [place(0, 11), place(1, 2)]);
    let keys_of = |i: usize| m.layers[i].attention().unwrap().keys_of;
    assert_eq!([14, 15, 34].map(keys_of), [None, Some(13), Some(14)]);
    assert_eq!([14, 15].map(|i| m.layers[i].ffn.mlp().unwrap().inner), [6144, 12_288]);
    let bytes = (12 * 256 + 3 * 512) * 2 * 2;
    assert_eq!(m.kv_bytes_per_token(KvDtype::Plain(Dtype::Bf16)), bytes);
    let attention = m.layers[4].attention().unwrap();
    assert_eq!((attention.scale, attention.v_norm, attention.window), (1.0, Some(1e-6), None));
    let whole = RopeScaling::Proportional { rotated: 64, factor: 1.0 };
    assert_eq!((rope(&m, 4).dim, &rope(&m, 4).scaling, rope(&m, 4).theta), (512, &whole, 1e6));
    assert_eq!((rope(&m, 0).dim, &rope(&m, 0).scaling), (256, &RopeScaling::None));
    assert_eq!(m.layers[0].attention().unwrap().window, Some(512));
    let per_layer = m.per_layer.unwrap();
    assert_eq!((per_layer.width, per_layer.scale), (256, 16.0));
    assert_eq!((m.head.softcap, m.embed.scale), (Some(30.0), 1536f64.sqrt()));
    assert_eq!((m.num_parameters(), m.first_reader()), (4_628_569_379, 15));
    // A step reads some rows of the table of per-layer embeddings alone; the embedding is the head.
    assert_eq!(m.looked_up_bytes(Dtype::Bf16), 262_144 * 35 * 256 * 2);

    let checkpoint = open(&text);
    for unused in ["15.self_attn.k_proj.weight", "34.self_attn.v_norm.weight"] {
        assert!(checkpoint.may_skip_tensor(&format!("model.layers.{unused}")), "{unused}");
    }
    for used in ["14.self_attn.k_proj.weight", "15.self_attn.q_proj.weight"] {
        assert!(!checkpoint.may_skip_tensor(&format!("model.layers.{used}")), "{used}");
    }
    for beside in ["model.vision_tower.x", "model.audio_tower.x", "model.embed_audio.x"] {
        assert!(checkpoint.may_skip_tensor(beside), "{beside}");
    }
    let plan = checkpoint.tensor_plan();
    let names: Vec<&str> = plan.iter().map(|tensor| &tensor.name[..]).collect();
    assert!(names.contains(&"model.layers.14.self_attn.k_proj.weight"));
    assert!(!names.contains(&"model.layers.15.self_attn.k_proj.weight"));
    assert!(names.contains(&"model.embed_tokens_per_layer.weight"));
}

#[test]
fn a4b() {
    let text = layers(A4B, 30, 6);
    let m = spec(&text);
    let kinds = [
        KvKind { kv_heads: 8, head_dim: 256, latent: None, layers: 25 },
        KvKind { kv_heads: 2, head_dim: 512, latent: None, layers: 5 },
    ];
    assert_eq!((m.kv_kinds(), m.per_layer), (kinds.to_vec(), None));
    let experts = m.layers[0].ffn.experts().unwrap();
    assert!(experts.separate_norms && experts.gating.scales && experts.gating.renormalize);
    assert_eq!((experts.count, experts.top_k, experts.expert.inner), (128, 8, 704));
    assert_eq!(experts.shared.unwrap().inner, 2112);
    assert_eq!(m.num_parameters(), 25_233_141_790);
    assert_eq!(m.tensor_parallel_sizes(), [1, 2, 4, 8, 16]);

    // Values of global layers are made by the rows of keys.
    let checkpoint = open(&text);
    let plan = checkpoint.tensor_plan();
    let keys = "model.layers.5.self_attn.k_proj.weight";
    let of_keys = |plan: &[TensorPlan]| plan.iter().find(|tensor| tensor.name == keys).cloned();
    let both = of_keys(&plan).unwrap();
    let slots: Vec<_> = both.slots.iter().map(|slot| (slot.slot, slot.rows.clone())).collect();
    assert_eq!(slots, [(Slot::K, 0..1024), (Slot::V, 0..1024)]);
    assert!(plan.iter().all(|tensor| tensor.name != keys.replace("k_proj", "v_proj")));
    let part = of_keys(&checkpoint.shard_plan(Shard { rank: 3, ranks: 4 }, plan)).unwrap();
    let slots: Vec<_> = part.slots.iter().map(|slot| (slot.slot, slot.rows.clone())).collect();
    assert_eq!(slots, [(Slot::K, 512..1024), (Slot::V, 512..1024)]);
}

#[test]
fn unified() {
    let text = with_text(&layers(A4B, 48, 6), UNIFIED);
    let m = spec(&with(
        &text,
        r#"{"architectures": ["Gemma4UnifiedForConditionalGeneration"], "model_type": "gemma4_unified"}"#,
    ));
    assert_eq!((m.kv_kinds().len(), m.kv_kinds()[1].kv_heads), (2, 1));
    // The published file has 52 million more, in the layers for images and sounds.
    assert_eq!(m.num_parameters(), 11_907_350_320);
}

#[test]
fn what_newer_files_say_of_layers_is_read() {
    // transformers 5.23 writes what each global layer has in place of what all have.
    let all: Vec<String> = (5..30)
        .step_by(6)
        .map(|i| format!(r#""{i:02}": {{"head_dim": 512, "num_key_value_heads": 2}}"#))
        .collect();
    let own = all.join(", ");
    let edit = format!(
        r#"{{"per_layer_config": {{{own}}}, "global_head_dim": null, "num_global_key_value_heads": null}}"#
    );
    let text = layers(A4B, 30, 6);
    assert_eq!(spec(&with_text(&text, &edit)), spec(&text));
    // The last layer is global, whatever is written; without a list five of six layers are not.
    let last = layers(A4B, 30, 31);
    let windows = |text: &str| ropes_and_windows(&spec(text)).1;
    assert_eq!(windows(&last)[28..], [Some(1024), None]);
    let unlisted = with_text(&text, r#"{"layer_types": null, "rope_parameters": null}"#);
    assert_eq!(spec(&unlisted), spec(&text));
}

#[test]
fn what_cannot_be_is_refused() {
    let text = layers(E2B, 35, 5);
    for (edit, message) in [
        (r#"{"use_bidirectional_attention": "all"}"#, "`text_config.use_bidirectional_attention`"),
        (r#"{"num_kv_shared_layers": 36}"#, "at most the number of layers"),
        (r#"{"num_kv_shared_layers": 32}"#, "a layer of each kind has keys and values of its own"),
        (r#"{"vocab_size_per_layer_input": 1000}"#, "at least vocab_size"),
        (r#"{"hidden_size_per_layer_input": 100000}"#, "for all layers together are"),
        (r#"{"attention_bias": true}"#, "`text_config.attention_bias` = true is not supported"),
        (
            r#"{"per_layer_config": {"34": {"sliding_window": 5}}}"#,
            "`text_config.per_layer_config.34.sliding_window` = 5 is not supported; head_dim and",
        ),
        (
            r#"{"per_layer_config": {"35": {"head_dim": 512}}}"#,
            "`text_config.per_layer_config.35` = {\"head_dim\":512} is not supported; numbers of layers",
        ),
        (r#"{"head_dim": null}"#, "`text_config.head_dim` is missing"),
        (
            r#"{"per_layer_config": {"34": {"head_dim": 512, "num_key_value_heads": 3}}}"#,
            "a multiple of the key and value heads of global layers",
        ),
        (
            r#"{"per_layer_config": {"34": {"head_dim": 512}}}"#,
            "equal heads of layers that share keys and values",
        ),
    ] {
        let e = error(&with_text(&text, edit));
        assert!(e.contains(message), "{edit}: {e}");
    }
}
