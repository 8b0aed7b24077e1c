//! Models of delta nets and attention, and what came with them.

use candlepower_layout::{Activation, GatingFunction};

use super::*;
use crate::{
    KvDtype, Shard,
    spec::{FfnSpec, LinearAttentionSpec, UpdateRuleSpec},
    weights::SlotRows,
};

/// Qwen/Qwen3-Next-80B-A3B-Instruct.
const QWEN3_NEXT: &str = r#"{"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "attention_bias": false,
    "decoder_sparse_step": 1, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 5120, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [],
    "moe_intermediate_size": 512, "norm_topk_prob": true, "num_attention_heads": 16, "num_experts": 512,
    "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2, "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000, "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936}"#;

/// The text part of a Qwen3.5 with experts.
const QWEN3_5_MOE: &str = r#"{"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
    "tie_word_embeddings": false, "vision_config": {}, "text_config": {"attn_output_gate": true, "head_dim": 256,
    "hidden_act": "silu", "hidden_size": 2048, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144, "model_type": "qwen3_5_moe_text",
    "moe_intermediate_size": 512, "mtp_num_hidden_layers": 1, "num_attention_heads": 16, "num_experts": 256,
    "num_experts_per_tok": 8, "num_hidden_layers": 40, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
    "rope_theta": 10000000, "rope_type": "default"}, "shared_expert_intermediate_size": 512, "vocab_size": 248320}}"#;

#[test]
fn qwen3_next() {
    let m = spec(QWEN3_NEXT);
    let net = LinearAttentionSpec {
        key_heads: 16,
        value_heads: 32,
        key_dim: 128,
        value_dim: 128,
        kernel_size: 4,
        rule: UpdateRuleSpec::Delta,
        tiled: false,
        log_rates: true,
        eps: 1e-6,
    };
    assert_eq!((m.linear_attentions().count(), m.linear_attentions().next()), (36, Some(&net)));
    assert_eq!((net.channels(), net.width()), (8192, 12_288));
    let attention = m.layers[3].attention().unwrap();
    assert!(attention.gated && m.layers[4].attention().is_none());
    assert_eq!((rope(&m, 47).dim, m.final_norm.kind), (64, NormKind::RmsPlusOne));
    let experts = m.layers[0].ffn.experts().unwrap();
    assert!(experts.gating.renormalize && experts.shared_gate);
    assert_eq!(experts.shared.unwrap().inner, 512);
    // The published model has one more layer, which predicts a further token: attention and experts behind a projection of two rows.
    let of_layer = |i: usize| -> usize {
        let slots = m.slots().filter(|(layer, ..)| *layer == Some(i));
        slots.map(|(_, _, shape)| shape.iter().product::<usize>()).sum()
    };
    let beside = 2 * 2048 * 2048 + 3 * 2048;
    assert_eq!(m.num_parameters() as usize + of_layer(3) + beside, 81_324_862_720);
    // Keys and values of one layer in four; states of the others, whatever the length.
    assert_eq!(m.kv_bytes_per_token(KvDtype::Plain(Dtype::Bf16)), 12 * 2 * 2 * 256 * 2);
    assert_eq!(m.state_bytes(Dtype::Bf16, 1), 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2));
    assert_eq!(m.tensor_parallel_sizes(), [1, 2, 4, 8, 16]);
}

/// Rows of a tensor lie head by head, and so do those that a rank takes.
#[test]
fn rows_of_heads_lie_together() {
    let checkpoint = open(QWEN3_NEXT);
    let plan = checkpoint.tensor_plan();
    let find = |plan: &[TensorPlan], name: &str| {
        let name = format!("model.layers.{name}.weight");
        plan.iter().find(|tensor| tensor.name == name).unwrap().clone()
    };
    let rows = |slot, layer, rows, first| SlotRows { slot, layer: Some(layer), rows, first };
    let queries = find(&plan, "3.self_attn.q_proj");
    assert_eq!((&queries.shape, queries.slots.len()), (&vec![8192, 2048], 32));
    assert_eq!(
        queries.slots[2..4],
        [rows(Slot::Q, 3, 512..768, 256), rows(Slot::AttnGate, 3, 768..1024, 256)]
    );
    let mixed = find(&plan, "0.linear_attn.in_proj_qkvz");
    assert_eq!((&mixed.shape, &mixed.stored_shape), (&vec![12_288, 2048], &vec![12_288, 2048]));
    // The second key head: 128 rows of q and k, and two value heads of 128.
    assert_eq!(
        mixed.slots[4..8],
        [
            rows(Slot::LinearAttnQ, 0, 768..896, 128),
            rows(Slot::LinearAttnK, 0, 896..1024, 128),
            rows(Slot::LinearAttnV, 0, 1024..1280, 256),
            rows(Slot::LinearAttnGate, 0, 1280..1536, 256)
        ]
    );
    let kernel = find(&plan, "0.linear_attn.conv1d");
    assert_eq!((&kernel.shape, &kernel.stored_shape), (&vec![8192 * 4], &vec![8192, 1, 4]));

    let part = checkpoint.shard_plan(Shard { rank: 1, ranks: 8 }, plan);
    let mixed = find(&part, "0.linear_attn.in_proj_qkvz");
    assert_eq!(mixed.slots.len(), 8);
    assert_eq!(
        mixed.slots[4..6],
        [
            rows(Slot::LinearAttnQ, 0, 3 * 768..3 * 768 + 128, 128),
            rows(Slot::LinearAttnK, 0, 3 * 768 + 128..3 * 768 + 256, 128)
        ]
    );
    let kernel = find(&part, "0.linear_attn.conv1d");
    let of_keys = (2048 + 256) * 4..(2048 + 512) * 4;
    assert_eq!(kernel.slots[1], rows(Slot::LinearAttnConvK, 0, of_keys, 0));
    let out = find(&part, "0.linear_attn.out_proj");
    assert_eq!((out.columns, out.slots[0].rows.clone()), (Some(512..1024), 0..2048));
}

#[test]
fn qwen3_5_moe() {
    let m = spec(QWEN3_5_MOE);
    assert_eq!((m.linear_attentions().count(), m.attentions().count()), (30, 10));
    assert_eq!((rope(&m, 3).dim, m.layers[0].ffn.experts().unwrap().count), (64, 256));
    let checkpoint = open(QWEN3_5_MOE);
    let names = |is_stored: &dyn Fn(&str) -> bool| {
        let plan = checkpoint.plan_of_stored(is_stored).into_iter();
        plan.filter(|tensor| tensor.name.contains("layers.1.mlp.experts")).collect::<Vec<_>>()
    };
    assert_eq!(names(&|_| false).len(), 3 * 256, "a tensor for each expert");
    let fused =
        names(&|name| name.ends_with("gate_up_proj") || name.ends_with("experts.down_proj"));
    assert_eq!(fused.len(), 2);
    assert_eq!(
        (&fused[0].shape, &fused[0].stored_shape),
        (&vec![262_144, 2048], &vec![256, 1024, 2048])
    );
    assert_eq!(fused[0].slots[3].slot, Slot::ExpertUp(1));
    assert_eq!((fused[0].slots[3].rows.clone(), fused[0].slots[3].first), (1536..2048, 0));
    assert_eq!(
        checkpoint.planned_name("model.language_model.layers.0.linear_attn.A_log"),
        "model.layers.0.linear_attn.A_log"
    );
    assert!(checkpoint.may_skip_tensor("model.visual.pos_embed.weight"));
    assert!(checkpoint.may_skip_tensor("mtp.fc.weight"));
}

#[test]
fn what_delta_nets_cannot_be_is_refused() {
    for (edits, line) in [
        (
            r#"{"linear_value_head_dim": 100}"#,
            "`linear_value_head_dim` = 100 is not supported; multiples of 16 up to 256 are",
        ),
        (
            r#"{"linear_num_value_heads": 24}"#,
            "`linear_num_value_heads` is 24, but a multiple of linear_num_key_heads is needed",
        ),
        (
            r#"{"linear_conv_kernel_dim": 1}"#,
            "`linear_conv_kernel_dim` = 1 is not supported; 2 to 8 are",
        ),
        (r#"{"hidden_act": "gelu"}"#, "`hidden_act` = \"gelu\" is not supported; silu is"),
        (r#"{"attention_bias": true}"#, "`attention_bias` = true"),
        (r#"{"attn_output_gate": false}"#, "`attn_output_gate` = false is not supported; true is"),
        (r#"{"full_attention_interval": 64}"#, "full_attention in one layer at least"),
    ] {
        let found = error(&with(QWEN3_NEXT, edits));
        assert!(found.contains(line), "{edits}: {found}");
    }
}

/// Qwen3-Coder's form: no shared expert, and a key that changes nothing.
#[test]
fn qwen3_coder() {
    let text = r#"{"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5472, "max_position_embeddings": 262144,
        "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
        "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "qkv_bias": false, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000,
        "shared_expert_intermediate_size": 0, "sliding_window": null, "tie_word_embeddings": false, "use_qk_norm": true,
        "use_sliding_window": false, "vocab_size": 151936}"#;
    let m = spec(text);
    assert_eq!((m.num_parameters(), m.layers[0].ffn.shared()), (30_532_122_624, None));
    assert!(error(&with(text, r#"{"use_qk_norm": false}"#)).contains("`use_qk_norm` = false"));
}

/// Qwen/Qwen1.5-MoE-A2.7B.
#[test]
fn qwen2_moe() {
    let text = r#"{"architectures": ["Qwen2MoeForCausalLM"], "decoder_sparse_step": 1, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 5632, "max_position_embeddings": 8192, "max_window_layers": 21, "model_type": "qwen2_moe",
        "moe_intermediate_size": 1408, "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 60,
        "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "shared_expert_intermediate_size": 5632, "sliding_window": 32768,
        "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936}"#;
    let m = spec(text);
    assert_eq!(m.num_parameters(), 14_315_784_192);
    let experts = m.layers[0].ffn.experts().unwrap();
    assert!(m.layers[0].attention().unwrap().qkv_bias && !experts.gating.renormalize);
    assert_eq!((experts.shared.unwrap().inner, experts.shared_gate), (5632, true));
}

/// LiquidAI/LFM2-1.2B, and LFM2-8B-A1B.
#[test]
fn lfm2() {
    let text = r#"{"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "block_auto_adjust_ff_dim": true,
        "block_dim": 2048, "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256,
        "block_norm_eps": 1e-05, "conv_L_cache": 3, "conv_bias": false, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "hidden_size": 2048, "max_position_embeddings": 128000, "norm_eps": 1e-05, "num_attention_heads": 32,
        "num_hidden_layers": 16, "num_key_value_heads": 8, "rope_theta": 1000000.0, "tie_embedding": true,
        "vocab_size": 65536}"#;
    let m = spec(text);
    // The count of the published checkpoint.
    assert_eq!(m.num_parameters(), 1_170_340_608);
    assert_eq!((m.num_states(), m.attentions().count()), (10, 6));
    assert_eq!((m.layers[0].ffn.mlp().unwrap().inner, m.head.tied), (8192, true));
    let plan = plan(&m, find(&config(text)).unwrap().weights);
    let kernel = plan.iter().find(|t| t.name == "model.layers.0.conv.conv.weight").unwrap();
    assert_eq!((&kernel.shape[..], &kernel.stored_shape[..]), (&[6144][..], &[2048, 1, 3][..]));
    let rows = plan.iter().find(|t| t.name == "model.layers.0.conv.in_proj.weight").unwrap();
    let slots: Vec<_> = rows.slots.iter().map(|slot| (slot.slot, slot.rows.start)).collect();
    assert_eq!(slots, [(Slot::ConvB, 0), (Slot::ConvC, 2048), (Slot::ConvX, 4096)]);
    // Two products of each channel in each of ten layers.
    assert_eq!(m.state_bytes(Dtype::F32, 1), 10 * 2 * 2048 * 4);
    assert_eq!(open(text).spec().tensor_parallel_sizes(), [1, 2, 4, 8, 16, 32]);
    for (edit, message) in [
        (r#"{"conv_L_cache": 9}"#, "`conv_L_cache` = 9 is not supported; 2 to 8 are"),
        (r#"{"conv_bias": true}"#, "`conv_bias` = true"),
        (r#"{"layer_types": ["conv"]}"#, "an entry for each layer"),
        (r#"{"full_attn_idxs": []}"#, "full_attention in one layer at least"),
        (r#"{"norm_eps": "small"}"#, "`norm_eps` is \"small\""),
        (
            r#"{"hidden_size": 20, "num_attention_heads": 2, "num_key_value_heads": 2}"#,
            "`hidden_size` = 20 is not supported; multiples of 8 are",
        ),
    ] {
        assert!(error(&with(text, edit)).contains(message), "{edit}: {}", error(&with(text, edit)));
    }
    let moe = r#"{"architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "intermediate_size": 7168,
        "moe_intermediate_size": 1792, "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4,
        "num_hidden_layers": 24, "full_attn_idxs": [2, 6, 10, 14, 18, 21]}"#;
    let m = spec(&with(text, moe));
    let FfnSpec::Experts(experts) = m.layers[2].ffn else { panic!("no experts") };
    assert_eq!(experts.gating.function, GatingFunction::Sigmoid);
    assert!(experts.gating.bias && experts.gating.renormalize);
    assert_eq!((m.layers[1].ffn.mlp().unwrap().inner, experts.expert.inner), (7168, 1792));
    // The count of the published checkpoint, and biases of the choice.
    assert_eq!(m.num_parameters(), 8_339_929_856 + 22 * 32);
}

/// nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B, as far as it is read.
const NEMOTRON_3_NANO: &str = r#"{"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "attention_bias": false,
    "conv_kernel": 4, "expand": 2, "head_dim": 128, "hidden_size": 2688,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "intermediate_size": 1856,
    "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 64,
    "mamba_proj_bias": false, "max_position_embeddings": 262144, "mlp_bias": false, "mlp_hidden_act": "relu2",
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_groups": 8,
    "n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 32,
    "num_experts_per_tok": 6, "num_hidden_layers": 52, "num_key_value_heads": 2, "routed_scaling_factor": 2.5,
    "ssm_state_size": 128, "tie_word_embeddings": false, "time_step_limit": [0.0, Infinity], "topk_group": 1,
    "use_bias": false, "use_conv_bias": true, "vocab_size": 131072}"#;

/// Stored layers are mixers or feed-forwards; here a mixer and what follows it are one.
#[test]
fn nemotron_h() {
    let m = spec(NEMOTRON_3_NANO);
    assert_eq!(
        (m.layers.len(), m.linear_attentions().count(), m.attentions().count()),
        (29, 23, 6)
    );
    let alone = m.layers.iter().filter(|layer| layer.ffn == FfnSpec::Nothing).count();
    assert_eq!((alone, m.num_stored_layers()), (6, 52));
    // The first attention follows a Mamba-2 that nothing else follows.
    assert_eq!((m.stored_apart[2], m.stored_apart[3]), ([4, 4], [5, 6]));
    assert!(m.attentions().all(|attention| attention.rope.is_none()));
    let experts = m.layers[3].ffn.experts().unwrap();
    assert!(!experts.expert.gated && experts.expert.act == Activation::ReluSquared);
    assert_eq!((experts.shared.unwrap().inner, experts.gating.scale), (3712, 2.5));
    let net = *m.linear_attentions().next().unwrap();
    assert_eq!(net.rule, UpdateRuleSpec::Mamba2 { conv_bias: true });
    assert_eq!((net.channels(), net.width(), net.gates()), (6144, 10_240, 64));
    // 31.6 billion, as it is published.
    assert_eq!((m.num_parameters() as f64 / 1e8).round(), 316.0);
    assert_eq!(m.state_bytes(Dtype::Bf16, 1), 23 * (64 * 64 * 128 * 4 + 3 * 6144 * 2));
    let plan = open(NEMOTRON_3_NANO).tensor_plan();
    let find = |name: &str| plan.iter().find(|tensor| tensor.name == name).unwrap();
    assert_eq!(find("backbone.layers.4.mixer.in_proj.weight").shape, [10_304, 2688]);
    assert_eq!(find("backbone.layers.6.mixer.experts.127.up_proj.weight").shape, [1856, 2688]);
    assert_eq!(find("backbone.layers.6.norm.weight").slots[0].slot, Slot::FfnNorm);
    assert_eq!(find("backbone.layers.51.mixer.gate.weight").slots[0].layer, Some(28));
    assert_eq!(m.tensor_parallel_sizes(), [1, 2, 4, 8]);

    // Nemotron Nano 2, 9B, whose heads have 80 elements: 8.89 billion.
    let nano_2 = NEMOTRON_3_NANO
        .replace(
            "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        )
        .replace("\"hidden_size\": 2688", "\"hidden_size\": 4480")
        .replace("\"intermediate_size\": 1856,\n", "\"intermediate_size\": 15680,\n")
        .replace("\"mamba_head_dim\": 64", "\"mamba_head_dim\": 80")
        .replace("\"mamba_num_heads\": 64", "\"mamba_num_heads\": 128")
        .replace("_attention_heads\": 32", "_attention_heads\": 40")
        .replace("_value_heads\": 2", "_value_heads\": 8");
    let m = spec(&nano_2);
    assert_eq!((m.num_parameters() as f64 / 1e7).round(), 889.0);
}

/// With `to` in place of the first `from`, a configuration is refused for what `told` says.
fn assert_refused(config: &str, from: &str, to: &str, expected: &str) {
    let text = config.replacen(from, to, 1);
    assert_ne!(text, config);
    let found = error(&text);
    assert!(found.contains(expected), "{to}: {found}");
}

#[test]
fn what_nemotron_h_cannot_be_is_refused() {
    for (from, to, expected) in [
        ("\"MEMEM*E", "\"EMEMEM*E", "`hybrid_override_pattern` = "),
        ("\"MEMEM*E", "\"MEEMEM*E", "layer 2 follows none"),
        ("\"MEMEM*E", "\"MEXEM*E", "mamba (M), attention (*), mlp (-) and moe (E) are"),
        ("Infinity]", "0.1]", "`time_step_limit`"),
        ("\"use_bias\": false", "\"use_bias\": true", "`use_bias`"),
        ("\"conv_kernel\": 4", "\"conv_kernel\": 9", "`conv_kernel`"),
        ("\"n_groups\": 8", "\"n_groups\": 7", "`mamba_num_heads`"),
        ("\"n_shared_experts\": 1", "\"n_shared_experts\": 2", "`n_shared_experts`"),
        ("\"head_dim\": 128", "\"moe_latent_size\": 1024, \"head_dim\": 128", "`moe_latent_size`"),
    ] {
        assert_refused(NEMOTRON_3_NANO, from, to, expected);
    }
    let (key, pattern) =
        ("\"hybrid_override_pattern\"", "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME");
    assert_refused(NEMOTRON_3_NANO, key, "\"pattern\"", "`hybrid_override_pattern` is missing");
    let without = pattern.replace('*', "M");
    assert_refused(NEMOTRON_3_NANO, pattern, &without, "one of them attention");
    // Experts may be alone, without one that every token uses.
    let alone = NEMOTRON_3_NANO.replace("\"n_shared_experts\": 1", "\"n_shared_experts\": 0");
    assert!(spec(&alone).layers[3].ffn.experts().unwrap().shared.is_none());
}

/// ibm-granite/granite-4.0-h-tiny, as far as it is read.
const GRANITE_4_H_TINY: &str = r#"{"architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid",
    "attention_bias": false, "attention_multiplier": 0.0078125, "embedding_multiplier": 12, "hidden_act": "silu",
    "hidden_size": 1536, "intermediate_size": 512, "layer_types": ["mamba", "mamba", "mamba", "mamba", "mamba", "attention",
    "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba",
    "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba",
    "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba"], "logits_scaling": 6, "mamba_chunk_size": 256,
    "mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2,
    "mamba_n_groups": 1, "mamba_n_heads": 48, "mamba_proj_bias": false, "max_position_embeddings": 131072,
    "num_attention_heads": 12, "num_experts_per_tok": 6, "num_hidden_layers": 40, "num_key_value_heads": 4,
    "num_local_experts": 64, "position_embedding_type": "nope", "residual_multiplier": 0.22, "rms_norm_eps": 1e-05,
    "rope_theta": 10000, "shared_intermediate_size": 1024, "tie_word_embeddings": true, "vocab_size": 100352}"#;

#[test]
fn granite_4_with_mamba() {
    let m = spec(GRANITE_4_H_TINY);
    assert_eq!((m.linear_attentions().count(), m.attentions().count()), (36, 4));
    let net = *m.linear_attentions().next().unwrap();
    assert_eq!((net.channels(), net.gates(), net.eps), (3072 + 256, 48, 1e-5));
    assert_eq!((m.num_parameters() as f64 / 1e8).round(), 69.0);
    // Heads that are normed together are on one rank.
    assert_eq!(m.tensor_parallel_sizes(), [1]);
    let in_words = GRANITE_4_H_TINY.replace("\"mamba_d_head\": 64", "\"mamba_d_head\": \"auto\"");
    assert_eq!(spec(&in_words), m);
    for (from, to, expected) in [
        ("[\"mamba\", \"mamba\"", "[\"rwkv\", \"mamba\"", "attention and mamba are"),
        ("\"layer_types\": [\"mamba\", ", "\"layer_types\": [", "for each layer"),
        ("\"mamba_d_head\": 64", "\"mamba_d_head\": \"wide\"", "`mamba_d_head`"),
        ("\"mamba_proj_bias\": false", "\"mamba_proj_bias\": true", "`mamba_proj_bias`"),
        (
            "\"nope\"",
            "\"alibi\"",
            "`position_embedding_type` = \"alibi\" is not supported; rope and nope",
        ),
    ] {
        assert_refused(GRANITE_4_H_TINY, from, to, expected);
    }
}
