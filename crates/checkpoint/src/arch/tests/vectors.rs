//! Decoders that give vectors: without a causal mask, or without a head.

use super::*;
use crate::EncoderMemoryRequest;

/// google/embeddinggemma-300m: its class has no head, and a window is half before a token and half behind it.
#[test]
fn embedding_gemma() {
    let text = with(
        GEMMA_2_2B,
        r#"{"architectures": ["Gemma3TextModel"], "model_type": "gemma3_text", "head_dim": 256, "hidden_size": 768,
            "intermediate_size": 1152, "num_attention_heads": 3, "num_key_value_heads": 1, "num_hidden_layers": 24,
            "attn_logit_softcapping": null, "final_logit_softcapping": null, "rope_local_base_freq": 10000.0,
            "rope_theta": 1000000.0, "sliding_window": 512, "_sliding_window_pattern": 6, "query_pre_attn_scalar": 256,
            "max_position_embeddings": 2048, "use_bidirectional_attention": true, "vocab_size": 262144}"#,
    );
    let checkpoint = open(&text);
    assert!(checkpoint.gives_vectors());
    let m = checkpoint.spec();
    assert!(m.sees_both_ways() && m.attentions().all(|attention| attention.both_ways));
    let windows: Vec<_> = m.attentions().map(|attention| attention.window).collect();
    assert_eq!(windows[..6], [[Some(257); 5].as_slice(), &[None]].concat());
    // The published number, without the dense layers.
    assert_eq!(m.num_parameters(), 302_863_104);
    let capped = with(&text, r#"{"attn_logit_softcapping": 50.0}"#);
    assert!(error(&capped).contains("`attn_logit_softcapping` = 50.0 is not supported"));
    // Its decoder sees what is before a token alone.
    let causal = open(&with(&text, r#"{"use_bidirectional_attention": false}"#));
    assert!(causal.gives_vectors() && !causal.spec().sees_both_ways());
}

/// Nobody can give so much, but the settings can say it.
#[test]
fn memory_for_vectors_does_not_overflow() {
    let memory = open(LLAMA_3_1_8B).pooling_memory(
        Dtype::F32,
        EncoderMemoryRequest {
            max_model_len: 131_072,
            max_num_batched_tokens: usize::MAX,
            num_threads: 1 << 10,
            available_bytes: Some(1 << 40),
        },
    );
    assert!(!memory.fits && memory.needed_bytes == u64::MAX);
}

/// intfloat/e5-mistral-7b-instruct: the class without a head says of an embedding and a head that they differ.
#[test]
fn classes_without_a_head_give_vectors() {
    let text = with(
        LLAMA_3_1_8B,
        r#"{"architectures": ["MistralModel"], "model_type": "mistral", "sliding_window": 4096, "tie_word_embeddings": false}"#,
    );
    let checkpoint = open(&text);
    assert_eq!(checkpoint.architecture(), "MistralForCausalLM");
    assert!(checkpoint.gives_vectors() && checkpoint.spec().head.tied);
    assert!(!open(LLAMA_3_1_8B).gives_vectors());
    let unknown = with(&text, r#"{"architectures": ["WarpModel"]}"#);
    assert!(error(&unknown).contains("architecture `WarpModel` is not supported"));
}
