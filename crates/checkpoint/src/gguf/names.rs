//! ggml's names for the tensors of a model. Source: `gguf-py/gguf/constants.py` of llama.cpp.

use crate::weights::{Slot, WeightRule, experts, heads, rows, whole};

/// The names that all architectures have in common; an architecture's own rules are looked up first.
// A slot may have several rules. The first one whose tensor is
// in the file applies, so rules for older names stay last.
pub(super) const COMMON: &[WeightRule] = &[
    whole(Slot::Embed, "token_embd.weight"),
    whole(Slot::FinalNorm, "output_norm.weight"),
    whole(Slot::FinalNormBias, "output_norm.bias"),
    whole(Slot::Head, "output.weight"),
    whole(Slot::AttnNorm, "blk.{i}.attn_norm.weight"),
    whole(Slot::AttnNormBias, "blk.{i}.attn_norm.bias"),
    whole(Slot::AttnPostNorm, "blk.{i}.post_attention_norm.weight"),
    whole(Slot::FfnNorm, "blk.{i}.ffn_norm.weight"),
    whole(Slot::FfnNormBias, "blk.{i}.ffn_norm.bias"),
    whole(Slot::FfnPostNorm, "blk.{i}.post_ffw_norm.weight"),
    whole(Slot::Q, "blk.{i}.attn_q.weight"),
    whole(Slot::K, "blk.{i}.attn_k.weight"),
    whole(Slot::V, "blk.{i}.attn_v.weight"),
    whole(Slot::O, "blk.{i}.attn_output.weight"),
    whole(Slot::QBias, "blk.{i}.attn_q.bias"),
    whole(Slot::KBias, "blk.{i}.attn_k.bias"),
    whole(Slot::VBias, "blk.{i}.attn_v.bias"),
    // All three in one.
    rows(Slot::Q, "blk.{i}.attn_qkv.weight"),
    rows(Slot::K, "blk.{i}.attn_qkv.weight"),
    rows(Slot::V, "blk.{i}.attn_qkv.weight"),
    rows(Slot::QBias, "blk.{i}.attn_qkv.bias"),
    rows(Slot::KBias, "blk.{i}.attn_qkv.bias"),
    rows(Slot::VBias, "blk.{i}.attn_qkv.bias"),
    whole(Slot::OBias, "blk.{i}.attn_output.bias"),
    whole(Slot::AttnGate, "blk.{i}.attn_gate.weight"),
    whole(Slot::QNorm, "blk.{i}.attn_q_norm.weight"),
    whole(Slot::KNorm, "blk.{i}.attn_k_norm.weight"),
    whole(Slot::Gate, "blk.{i}.ffn_gate.weight"),
    whole(Slot::Up, "blk.{i}.ffn_up.weight"),
    whole(Slot::Down, "blk.{i}.ffn_down.weight"),
    whole(Slot::GateBias, "blk.{i}.ffn_gate.bias"),
    whole(Slot::UpBias, "blk.{i}.ffn_up.bias"),
    whole(Slot::DownBias, "blk.{i}.ffn_down.bias"),
    whole(Slot::Router, "blk.{i}.ffn_gate_inp.weight"),
    whole(Slot::RouterCorrection, "blk.{i}.exp_probs_b.bias"),
    whole(Slot::SharedScore, "blk.{i}.ffn_gate_inp_shexp.weight"),
    whole(Slot::SharedGate, "blk.{i}.ffn_gate_shexp.weight"),
    whole(Slot::SharedUp, "blk.{i}.ffn_up_shexp.weight"),
    whole(Slot::SharedDown, "blk.{i}.ffn_down_shexp.weight"),
    // The matrices of all experts of a layer, one behind the other.
    rows(Slot::ExpertGate(0), "blk.{i}.ffn_gate_exps.weight"),
    rows(Slot::ExpertUp(0), "blk.{i}.ffn_up_exps.weight"),
    rows(Slot::ExpertDown(0), "blk.{i}.ffn_down_exps.weight"),
    // Gate and up in one, expert by expert.
    rows(Slot::ExpertGate(0), "blk.{i}.ffn_gate_up_exps.weight"),
    rows(Slot::ExpertUp(0), "blk.{i}.ffn_gate_up_exps.weight"),
    rows(Slot::LinearAttnConvQ, "blk.{i}.ssm_conv1d.weight"),
    rows(Slot::LinearAttnConvK, "blk.{i}.ssm_conv1d.weight"),
    rows(Slot::LinearAttnConvV, "blk.{i}.ssm_conv1d.weight"),
    rows(Slot::LinearAttnBiasQ, "blk.{i}.ssm_conv1d.bias"),
    rows(Slot::LinearAttnBiasK, "blk.{i}.ssm_conv1d.bias"),
    rows(Slot::LinearAttnBiasV, "blk.{i}.ssm_conv1d.bias"),
    whole(Slot::LinearAttnLogRate, "blk.{i}.ssm_a"),
    whole(Slot::LinearAttnDecayBias, "blk.{i}.ssm_dt.bias"),
    whole(Slot::LinearAttnSkip, "blk.{i}.ssm_d"),
    whole(Slot::LinearAttnNorm, "blk.{i}.ssm_norm.weight"),
    whole(Slot::LinearAttnOut, "blk.{i}.ssm_out.weight"),
];

/// Layers with one norm between attention and feed-forward, which has the name of a norm after the attention.
pub(super) const NORM_AFTER_ATTENTION: &[WeightRule] =
    &[whole(Slot::FfnNorm, "blk.{i}.post_attention_norm.weight")];

/// Gate and what it gates in one tensor.
pub(super) const FUSED_GATES: &[WeightRule] =
    &[rows(Slot::Gate, "blk.{i}.ffn_up.weight"), rows(Slot::Up, "blk.{i}.ffn_up.weight")];

/// Qwen3-Next's and Qwen3.5's; each head's queries lie beside the gate of what it makes. Older files have the rows of each head of keys together.
pub(super) const QWEN3_NEXT: &[WeightRule] = &[
    whole(Slot::FfnNorm, "blk.{i}.post_attention_norm.weight"),
    heads(Slot::Q, "blk.{i}.attn_q.weight"),
    heads(Slot::AttnGate, "blk.{i}.attn_q.weight"),
    rows(Slot::LinearAttnQ, "blk.{i}.attn_qkv.weight"),
    rows(Slot::LinearAttnK, "blk.{i}.attn_qkv.weight"),
    rows(Slot::LinearAttnV, "blk.{i}.attn_qkv.weight"),
    whole(Slot::LinearAttnGate, "blk.{i}.attn_gate.weight"),
    whole(Slot::LinearAttnBeta, "blk.{i}.ssm_beta.weight"),
    heads(Slot::LinearAttnQ, "blk.{i}.ssm_in.weight"),
    heads(Slot::LinearAttnK, "blk.{i}.ssm_in.weight"),
    heads(Slot::LinearAttnV, "blk.{i}.ssm_in.weight"),
    heads(Slot::LinearAttnGate, "blk.{i}.ssm_in.weight"),
    heads(Slot::LinearAttnBeta, "blk.{i}.ssm_ba.weight"),
    whole(Slot::LinearAttnDecay, "blk.{i}.ssm_alpha.weight"),
    heads(Slot::LinearAttnDecay, "blk.{i}.ssm_ba.weight"),
];

/// LFM2's.
pub(super) const LFM2: &[WeightRule] = &[
    // LFM2's class in transformers calls its final norm `embedding_norm`, and ggml's name follows it.
    whole(Slot::FinalNorm, "token_embd_norm.weight"),
    rows(Slot::ConvB, "blk.{i}.shortconv.in_proj.weight"),
    rows(Slot::ConvC, "blk.{i}.shortconv.in_proj.weight"),
    rows(Slot::ConvX, "blk.{i}.shortconv.in_proj.weight"),
    rows(Slot::ConvKernel, "blk.{i}.shortconv.conv.weight"),
    whole(Slot::ConvOut, "blk.{i}.shortconv.out_proj.weight"),
];

/// Mamba-2's.
pub(super) const MAMBA: &[WeightRule] =
    &[MAMBA_IN[0], MAMBA_IN[1], MAMBA_IN[2], MAMBA_IN[3], MAMBA_IN[4]];

// The rows of Mamba-2's `in_proj` are z, x, B, C and dt. In the
// terms of linear attention x are values, B keys, C queries.
const MAMBA_IN: [WeightRule; 5] = [
    rows(Slot::LinearAttnGate, "blk.{i}.ssm_in.weight"),
    rows(Slot::LinearAttnV, "blk.{i}.ssm_in.weight"),
    rows(Slot::LinearAttnK, "blk.{i}.ssm_in.weight"),
    rows(Slot::LinearAttnQ, "blk.{i}.ssm_in.weight"),
    rows(Slot::LinearAttnDecay, "blk.{i}.ssm_in.weight"),
];

/// Nemotron-H's, of which each stored layer has one norm.
pub(super) const NEMOTRON_H: &[WeightRule] = &[
    whole(Slot::FfnNorm, "blk.{i}.attn_norm.weight"),
    // Slices cannot be joined in a constant, so the five rules are listed one by one.
    MAMBA_IN[0],
    MAMBA_IN[1],
    MAMBA_IN[2],
    MAMBA_IN[3],
    MAMBA_IN[4],
];

/// Experts of gpt-oss, with biases; the norm before them has another name.
pub(super) const GPT_OSS: &[WeightRule] = &[
    whole(Slot::FfnNorm, "blk.{i}.post_attention_norm.weight"),
    whole(Slot::Sinks, "blk.{i}.attn_sinks.weight"),
    whole(Slot::RouterBias, "blk.{i}.ffn_gate_inp.bias"),
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
];

/// Gemma 4's.
pub(super) const GEMMA4: &[WeightRule] = &[
    whole(Slot::PerLayerEmbed, "per_layer_token_embd.weight"),
    whole(Slot::PerLayerProjection, "per_layer_model_proj.weight"),
    whole(Slot::PerLayerNorm, "per_layer_proj_norm.weight"),
    whole(Slot::LayerScale, "blk.{i}.layer_output_scale.weight"),
    whole(Slot::PerLayerGate, "blk.{i}.inp_gate.weight"),
    whole(Slot::PerLayerOut, "blk.{i}.proj.weight"),
    whole(Slot::PerLayerPostNorm, "blk.{i}.post_norm.weight"),
    // A layer's dense feed-forward runs beside its experts, which is what a shared expert does.
    whole(Slot::SharedGate, "blk.{i}.ffn_gate.weight"),
    whole(Slot::SharedUp, "blk.{i}.ffn_up.weight"),
    whole(Slot::SharedDown, "blk.{i}.ffn_down.weight"),
    whole(Slot::SharedPostNorm, "blk.{i}.post_ffw_norm_1.weight"),
    whole(Slot::RouterNorm, "blk.{i}.ffn_gate_inp.scale"),
    whole(Slot::RouterScales, "blk.{i}.ffn_down_exps.scale"),
    whole(Slot::ExpertsNorm, "blk.{i}.pre_ffw_norm_2.weight"),
    whole(Slot::ExpertsPostNorm, "blk.{i}.post_ffw_norm_2.weight"),
];
