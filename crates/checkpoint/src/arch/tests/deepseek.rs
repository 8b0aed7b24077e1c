//! Models with multi-head latent attention.

use candlepower_layout::{ExpertGroups, GatingFunction, GroupScore};

use super::*;
use crate::{
    KvDtype, MatrixForm, Shard, Slot,
    spec::{KvKind, LatentSpec},
    weights::TensorPlan,
};

/// deepseek-ai/DeepSeek-V2-Lite-Chat.
const V2_LITE: &str = r#"{"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "attention_bias": false,
    "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
    "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
    "num_key_value_heads": 16, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 1.0,
    "scoring_func": "softmax", "seq_aux": true, "tie_word_embeddings": false, "topk_group": 1, "topk_method": "greedy",
    "v_head_dim": 128, "vocab_size": 102400}"#;

/// deepseek-ai/DeepSeek-V3, which has a layer that predicts a further token behind the last one.
const V3: &str = r#"{"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "attention_bias": false, "ep_size": 1,
    "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
    "weight_block_size": [128, 128]}, "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40,
    "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000,
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 4,
    "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 129280}"#;

#[test]
fn deepseek_v2_lite() {
    let m = spec(V2_LITE);
    // The published count; there is nothing else.
    assert_eq!(m.num_parameters(), 15_706_484_224);
    let a = m.layers[26].attention().unwrap();
    let latent = LatentSpec {
        rank: 512,
        key_dim: 128,
        value_dim: 128,
        q_rank: None,
        eps: 1e-6,
        transposed_keys: false,
    };
    assert_eq!((a.latent, a.heads, a.kv_heads, a.head_dim), (Some(latent), 16, 1, 576));
    assert_eq!((a.q_dim(), a.out_dim()), (192, 128));
    let temperature = 0.1 * 0.707 * 40f64.ln() + 1.0;
    assert!((a.scale - temperature * temperature / 192f64.sqrt()).abs() < 1e-12);
    let rope = rope(&m, 0);
    assert!((rope.dim, rope.interleaved) == (64, true));
    assert!(matches!(rope.scaling, RopeScaling::Yarn { attention_factor: 1.0, .. }));
    assert!(matches!(m.layers[0].ffn, FfnSpec::Dense(MlpSpec { inner: 10_944, .. })));
    let experts = m.layers[1].ffn.experts().unwrap();
    assert_eq!((experts.count, experts.top_k, experts.shared.unwrap().inner), (64, 6, 2816));
    assert_eq!(experts.gating, GatingSpec::softmax(false));
    assert_eq!(m.max_model_len, 163_840);
    // A latent, and on the CPU what it is as values, lie once for all heads.
    let bf16 = KvDtype::Plain(Dtype::Bf16);
    let kind = KvKind { kv_heads: 1, head_dim: 576, latent: Some(512), layers: 27 };
    assert_eq!(m.kv_kinds(), [kind]);
    assert_eq!(m.kv_bytes_per_token(bf16), 27 * (576 + 512) * 2);
    assert_eq!(m.device_kv_bytes_per_token(bf16, 1), 27 * 576 * 2);
    assert_eq!(m.device_kv_bytes_per_token(bf16, 4), 27 * 576 * 2);
    assert_eq!(m.tensor_parallel_sizes(), [1, 2, 4, 8, 16]);
}

#[test]
fn deepseek_v3() {
    let m = spec(V3);
    // The routers' corrections are included.
    assert_eq!(m.num_parameters(), 671_026_404_352 + 58 * 256);
    let a = m.layers[3].attention().unwrap();
    assert_eq!(a.latent.unwrap().q_rank, Some(1536));
    let experts = m.layers[3].ffn.experts().unwrap();
    let groups = Some(ExpertGroups { count: 8, chosen: 4, score: GroupScore::BestTwo });
    let gating = GatingSpec {
        function: GatingFunction::Sigmoid,
        bias: true,
        scale: 2.5,
        groups,
        ..GatingSpec::softmax(true)
    };
    assert_eq!(experts.gating, gating);
    assert!(m.layers[2].ffn.experts().is_none());
    let checkpoint = open(V3);
    assert!(checkpoint.may_skip_tensor("model.layers.61.eh_proj.weight"));
    assert!(!checkpoint.may_skip_tensor("model.layers.60.eh_proj.weight"));
}

/// Keys and values of each head come from one matrix, which is dequantized while loading.
#[test]
fn matrices_of_heads_lie_head_by_head() {
    let checkpoint = open(V3);
    let whole = checkpoint.tensor_plan();
    let of = |plan: &[TensorPlan]| {
        let name = "model.layers.0.self_attn.kv_b_proj.weight";
        plan.iter().find(|tensor| tensor.name == name).unwrap().clone()
    };
    let tensor = of(&whole);
    assert_eq!((tensor.shape.as_slice(), tensor.slots.len()), (&[32_768, 512][..], 256));
    assert!(tensor.scheme.is_some() && tensor.form() == MatrixForm::Widened);
    let slot = &tensor.slots[3];
    assert_eq!((slot.slot, slot.rows.clone(), slot.first), (Slot::ValueUp, 384..512, 128));
    let part = of(&checkpoint.shard_plan(Shard { rank: 1, ranks: 8 }, whole));
    assert_eq!(part.slots.len(), 32);
    assert_eq!((part.slots[0].rows.clone(), part.slots[0].first), (4096..4224, 0));
    assert_eq!(checkpoint.spec().shard(8).layers[0].attention().unwrap().heads, 16);
}

/// zai-org/GLM-4.7-Flash: heads that do not divide the width, and other norms than those of latents.
#[test]
fn glm4_moe_lite() {
    let text = r#"{"architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "attention_bias": false,
        "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10240, "kv_lora_rank": 512,
        "max_position_embeddings": 202752, "moe_intermediate_size": 1536, "n_group": 1, "n_routed_experts": 64,
        "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 20, "num_experts_per_tok": 4,
        "num_hidden_layers": 47, "num_key_value_heads": 20, "num_nextn_predict_layers": 1, "partial_rotary_factor": 1.0,
        "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": null,
        "rope_theta": 1000000, "routed_scaling_factor": 1.8, "tie_word_embeddings": false, "topk_group": 1,
        "topk_method": "noaux_tc", "v_head_dim": 256, "vocab_size": 154880}"#;
    let m = spec(text);
    let a = m.layers[0].attention().unwrap();
    let latent = a.latent.unwrap();
    assert_eq!((a.head_dim, a.q_dim(), a.out_dim(), latent.eps), (576, 256, 256, 1e-6));
    assert_eq!(m.final_norm.eps, 1e-5);
    assert!((a.scale - 1.0 / 16.0).abs() < 1e-12);
    assert_eq!(m.tensor_parallel_sizes(), [1, 2, 4]);
    let kinds = with(text, r#"{"mlp_layer_types": ["dense", "sparse"], "num_hidden_layers": 2}"#);
    assert!(spec(&kinds).layers[1].ffn.experts().is_some());
}

#[test]
fn what_latents_cannot_be_is_refused() {
    for (edit, said) in [
        (r#"{"kv_lora_rank": 500}"#, "`kv_lora_rank`"),
        (r#"{"qk_rope_head_dim": 36}"#, "`qk_rope_head_dim`"),
        (r#"{"topk_method": "noaux_tc"}"#, "greedy and group_limited_greedy are"),
        (r#"{"scoring_func": "sigmoid"}"#, "softmax is"),
        (r#"{"norm_topk_prob": true}"#, "`norm_topk_prob` = true is not supported"),
        (r#"{"moe_layer_freq": 2}"#, "`moe_layer_freq` = 2 is not supported; 1 is"),
        (r#"{"attention_bias": true}"#, "`attention_bias` = true is not supported"),
        (r#"{"partial_rotary_factor": 0.5}"#, "`partial_rotary_factor`"),
        (r#"{"topk_method": "group_limited_greedy", "n_group": 7}"#, "`n_group`"),
        (
            r#"{"topk_method": "group_limited_greedy", "n_group": 16, "topk_group": 1}"#,
            "`topk_group`",
        ),
    ] {
        let error = error(&with(V2_LITE, edit));
        assert!(error.contains(said), "{edit}: {error}");
    }
    let grouped = r#"{"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3}"#;
    let grouped = spec(&with(V2_LITE, grouped));
    let groups = grouped.layers[1].ffn.experts().unwrap().gating.groups;
    assert_eq!(groups, Some(ExpertGroups { count: 8, chosen: 3, score: GroupScore::Best }));
}

/// The text part of Mistral Small 4, a model of images.
#[test]
fn mistral4() {
    let text = r#"{"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "vision_config": {},
        "text_config": {"model_type": "mistral4", "attention_bias": false, "first_k_dense_replace": 0, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288, "kv_lora_rank": 256,
        "max_position_embeddings": 1048576, "moe_intermediate_size": 2048, "n_group": 1, "n_routed_experts": 128,
        "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts_per_tok": 4,
        "num_hidden_layers": 36, "num_key_value_heads": 32, "q_lora_rank": 1024, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06, "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 128.0,
        "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 8192,
        "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "yarn"}, "routed_scaling_factor": 1.0,
        "topk_group": 1, "v_head_dim": 128, "vocab_size": 131072}}"#;
    let m = spec(text);
    let a = m.layers[0].attention().unwrap();
    assert_eq!((a.head_dim, a.q_dim(), a.out_dim(), rope(&m, 0).dim), (320, 128, 128, 64));
    assert!(rope(&m, 0).query_growth.is_some());
    let experts = m.layers[0].ffn.experts().unwrap();
    assert_eq!((experts.gating, experts.shared), (GatingSpec::softmax(true), Some(experts.expert)));
    // On a GPU latents are padded.
    let bf16 = KvDtype::Plain(Dtype::Bf16);
    assert_eq!(m.device_kv_bytes_per_token(bf16, 1), 36 * 576 * 2);
}
