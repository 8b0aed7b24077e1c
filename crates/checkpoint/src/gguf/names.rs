//! What ggml calls the tensors of a model. Source: `gguf-py/gguf/constants.py` of llama.cpp.

use crate::weights::{Slot, WeightRule, experts, heads, rows, whole};

/// The names that all architectures have in common; an architecture's own rules are looked up first.
pub(super) const COMMON: &[WeightRule] = &[
    whole(Slot::Embed, "token_embd.weight"),
    whole(Slot::FinalNorm, "output_norm.weight"),
    whole(Slot::Head, "output.weight"),
    whole(Slot::AttnNorm, "blk.{i}.attn_norm.weight"),
    whole(Slot::AttnPostNorm, "blk.{i}.post_attention_norm.weight"),
    whole(Slot::FfnNorm, "blk.{i}.ffn_norm.weight"),
    whole(Slot::FfnPostNorm, "blk.{i}.post_ffw_norm.weight"),
    whole(Slot::Q, "blk.{i}.attn_q.weight"),
    whole(Slot::K, "blk.{i}.attn_k.weight"),
    whole(Slot::V, "blk.{i}.attn_v.weight"),
    whole(Slot::O, "blk.{i}.attn_output.weight"),
    whole(Slot::QBias, "blk.{i}.attn_q.bias"),
    whole(Slot::KBias, "blk.{i}.attn_k.bias"),
    whole(Slot::VBias, "blk.{i}.attn_v.bias"),
    whole(Slot::OBias, "blk.{i}.attn_output.bias"),
    whole(Slot::QNorm, "blk.{i}.attn_q_norm.weight"),
    whole(Slot::KNorm, "blk.{i}.attn_k_norm.weight"),
    whole(Slot::Gate, "blk.{i}.ffn_gate.weight"),
    whole(Slot::Up, "blk.{i}.ffn_up.weight"),
    whole(Slot::Down, "blk.{i}.ffn_down.weight"),
    whole(Slot::GateBias, "blk.{i}.ffn_gate.bias"),
    whole(Slot::UpBias, "blk.{i}.ffn_up.bias"),
    whole(Slot::DownBias, "blk.{i}.ffn_down.bias"),
];

/// The matrices of all experts of a layer, one behind the other.
pub(super) const EXPERTS: &[WeightRule] = &[
    whole(Slot::Router, "blk.{i}.ffn_gate_inp.weight"),
    rows(Slot::ExpertGate(0), "blk.{i}.ffn_gate_exps.weight"),
    rows(Slot::ExpertUp(0), "blk.{i}.ffn_up_exps.weight"),
    rows(Slot::ExpertDown(0), "blk.{i}.ffn_down_exps.weight"),
];

/// Those of gpt-oss, with biases; the norm before them has another name.
pub(super) const GPT_OSS: &[WeightRule] = &[
    whole(Slot::FfnNorm, "blk.{i}.post_attention_norm.weight"),
    whole(Slot::Sinks, "blk.{i}.attn_sinks.weight"),
    whole(Slot::Router, "blk.{i}.ffn_gate_inp.weight"),
    whole(Slot::RouterBias, "blk.{i}.ffn_gate_inp.bias"),
    rows(Slot::ExpertGate(0), "blk.{i}.ffn_gate_exps.weight"),
    rows(Slot::ExpertUp(0), "blk.{i}.ffn_up_exps.weight"),
    rows(Slot::ExpertDown(0), "blk.{i}.ffn_down_exps.weight"),
    experts(Slot::ExpertGateBias(0), "blk.{i}.ffn_gate_exps.bias"),
    experts(Slot::ExpertUpBias(0), "blk.{i}.ffn_up_exps.bias"),
    experts(Slot::ExpertDownBias(0), "blk.{i}.ffn_down_exps.bias"),
];

/// DeepSeek's. Older files have keys and values of heads in one matrix; in others those of keys are transposed.
pub(super) const DEEPSEEK2: &[WeightRule] = &[
    whole(Slot::QLatent, "blk.{i}.attn_q_a.weight"),
    whole(Slot::QLatentNorm, "blk.{i}.attn_q_a_norm.weight"),
    whole(Slot::QUp, "blk.{i}.attn_q_b.weight"),
    whole(Slot::KvLatent, "blk.{i}.attn_kv_a_mqa.weight"),
    whole(Slot::KvLatentNorm, "blk.{i}.attn_kv_a_norm.weight"),
    whole(Slot::KeyUp, "blk.{i}.attn_k_b.weight"),
    heads(Slot::KeyUp, "blk.{i}.attn_kv_b.weight"),
    whole(Slot::ValueUp, "blk.{i}.attn_v_b.weight"),
    heads(Slot::ValueUp, "blk.{i}.attn_kv_b.weight"),
    whole(Slot::Router, "blk.{i}.ffn_gate_inp.weight"),
    whole(Slot::RouterCorrection, "blk.{i}.exp_probs_b.bias"),
    whole(Slot::SharedGate, "blk.{i}.ffn_gate_shexp.weight"),
    whole(Slot::SharedUp, "blk.{i}.ffn_up_shexp.weight"),
    whole(Slot::SharedDown, "blk.{i}.ffn_down_shexp.weight"),
    rows(Slot::ExpertGate(0), "blk.{i}.ffn_gate_exps.weight"),
    rows(Slot::ExpertUp(0), "blk.{i}.ffn_up_exps.weight"),
    rows(Slot::ExpertDown(0), "blk.{i}.ffn_down_exps.weight"),
];

/// Gemma 4's; experts of most files have gate and up in one tensor, expert by expert.
pub(super) const GEMMA4: &[WeightRule] = &[
    whole(Slot::PerLayerEmbed, "per_layer_token_embd.weight"),
    whole(Slot::PerLayerProjection, "per_layer_model_proj.weight"),
    whole(Slot::PerLayerNorm, "per_layer_proj_norm.weight"),
    whole(Slot::LayerScale, "blk.{i}.layer_output_scale.weight"),
    whole(Slot::PerLayerGate, "blk.{i}.inp_gate.weight"),
    whole(Slot::PerLayerOut, "blk.{i}.proj.weight"),
    whole(Slot::PerLayerPostNorm, "blk.{i}.post_norm.weight"),
    whole(Slot::SharedGate, "blk.{i}.ffn_gate.weight"),
    whole(Slot::SharedUp, "blk.{i}.ffn_up.weight"),
    whole(Slot::SharedDown, "blk.{i}.ffn_down.weight"),
    whole(Slot::SharedPostNorm, "blk.{i}.post_ffw_norm_1.weight"),
    whole(Slot::Router, "blk.{i}.ffn_gate_inp.weight"),
    whole(Slot::RouterNorm, "blk.{i}.ffn_gate_inp.scale"),
    whole(Slot::RouterScales, "blk.{i}.ffn_down_exps.scale"),
    whole(Slot::ExpertsNorm, "blk.{i}.pre_ffw_norm_2.weight"),
    whole(Slot::ExpertsPostNorm, "blk.{i}.post_ffw_norm_2.weight"),
    rows(Slot::ExpertGate(0), "blk.{i}.ffn_gate_up_exps.weight"),
    rows(Slot::ExpertGate(0), "blk.{i}.ffn_gate_exps.weight"),
    rows(Slot::ExpertUp(0), "blk.{i}.ffn_gate_up_exps.weight"),
    rows(Slot::ExpertUp(0), "blk.{i}.ffn_up_exps.weight"),
    rows(Slot::ExpertDown(0), "blk.{i}.ffn_down_exps.weight"),
];

/// Phi-3's fused tensors.
pub(super) const PHI3: &[WeightRule] = &[
    rows(Slot::Q, "blk.{i}.attn_qkv.weight"),
    rows(Slot::K, "blk.{i}.attn_qkv.weight"),
    rows(Slot::V, "blk.{i}.attn_qkv.weight"),
    rows(Slot::Gate, "blk.{i}.ffn_up.weight"),
    rows(Slot::Up, "blk.{i}.ffn_up.weight"),
];
