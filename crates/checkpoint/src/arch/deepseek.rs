//! Models with multi-head latent attention, and MoE layers with shared experts behind some dense layers: DeepSeek V2, and V3 with R1,
//! Moonlight and Kimi K2; GLM-4.7-Flash; Mistral 4. Youtu and MiniCPM3 have no experts.
//! Source: transformers `models/deepseek_v2`, `deepseek_v3`, `glm4_moe_lite`, `mistral4`, `youtu` and `minicpm3`.

use candlepower_layout::{ExpertGroups, GatingFunction, GroupScore, MAX_EXPERT_GROUPS};

use super::Arch;
use crate::{
    config::HfConfig,
    error::Result,
    spec::{AttentionSpec, GatingSpec, LatentSpec, MAX_HEAD_DIM, MAX_WIDTH, ModelSpec},
};

pub(super) const V2: Arch = Arch {
    name: "DeepseekV2ForCausalLM",
    model_type: "deepseek_v2",
    reads: &["num_experts"],
    spec: v2,
    ..Arch::LIKE_LLAMA
};

pub(super) const V3: Arch = Arch {
    name: "DeepseekV3ForCausalLM",
    model_type: "deepseek_v3",
    reads: &["num_local_experts"],
    spec: v3,
    predicts_more: true,
    ..Arch::LIKE_LLAMA
};

pub(super) const GLM_LITE: Arch = Arch {
    name: "Glm4MoeLiteForCausalLM",
    model_type: "glm4_moe_lite",
    reads: &["num_local_experts"],
    spec: glm_lite,
    predicts_more: true,
    ..Arch::LIKE_LLAMA
};

pub(super) const MISTRAL4: Arch = Arch {
    name: "Mistral4ForCausalLM",
    model_type: "mistral4",
    reads: &["num_local_experts"],
    spec: mistral4,
    ..Arch::LIKE_LLAMA
};

pub(super) const YOUTU: Arch = Arch {
    name: "YoutuForCausalLM",
    model_type: "youtu",
    reads: &["mlp_bias"],
    spec: latent_llama,
    ..Arch::LIKE_LLAMA
};

pub(super) const MINICPM3: Arch = Arch {
    name: "MiniCPM3ForCausalLM",
    model_type: "minicpm3",
    reads: &["mlp_bias"],
    spec: minicpm3,
    ..Arch::LIKE_LLAMA
};

/// Epsilon of the norms of latents, independent of `rms_norm_eps`. Source: `DeepseekV3RMSNorm`'s default.
const LATENT_EPS: f64 = 1e-6;

fn v2(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = latent_llama(c)?;
    expect(c, "scoring_func", "softmax")?;
    let groups = match c.text_opt("topk_method")? {
        None | Some("greedy") => None,
        Some("group_limited_greedy") => groups(c, GroupScore::Best)?,
        Some(other) => {
            let hint = "; greedy and group_limited_greedy are";
            return Err(c.unsupported("topk_method", &other.into(), hint));
        }
    };
    // DeepSeek's own code and transformers differ in what it does; no published model sets it.
    c.refuse("norm_topk_prob")?;
    let scale = c.float_opt("routed_scaling_factor")?.unwrap_or(1.0);
    let gating = GatingSpec { scale, groups, ..GatingSpec::softmax(false) };
    add_experts(&mut m, c, gating, [0, 2])?;
    Ok(m)
}

fn v3(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = latent_llama(c)?;
    expect(c, "scoring_func", "sigmoid")?;
    expect(c, "topk_method", "noaux_tc")?;
    // These are the defaults of `DeepseekV3Config`, which differ from those of its relatives.
    let of_files = c.with_default("n_group", 8).with_default("topk_group", 4);
    let gating = biased_sigmoids(&of_files.with_default("routed_scaling_factor", 2.5))?;
    add_experts(&mut m, c, gating, [3, 1])?;
    Ok(m)
}

fn glm_lite(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = latent_llama(c)?;
    let dense = c.index_or("first_k_dense_replace", 1)?;
    let kinds = [&["sparse"][..], &["dense"]];
    let has_experts = m.layer_kinds(c, "mlp_layer_types", kinds, |i| i >= dense)?;
    let gating = biased_sigmoids(&c.with_default("routed_scaling_factor", 1.8))?;
    m.set_experts(c, "moe_intermediate_size", gating, |i| has_experts[i])?;
    m.set_shared_experts(c, "n_shared_experts", 1)?;
    Ok(m)
}

/// Part of a model of texts and images, too.
pub(super) fn mistral4(c: &HfConfig) -> Result<ModelSpec> {
    let heads = c.bounded("qk_nope_head_dim", MAX_HEAD_DIM)?;
    // Mistral 4's `partial_rotary_factor` is a share of the whole key, rotated or not.
    let mut m = with_latents(c, heads + c.bounded("qk_rope_head_dim", MAX_HEAD_DIM)?)?;
    add_experts(&mut m, c, renormalized(c)?, [0, 1])?;
    Ok(m)
}

fn minicpm3(c: &HfConfig) -> Result<ModelSpec> {
    let (hidden, heads) = (c.count("hidden_size")?, c.count("num_attention_heads")?);
    let mut m = latent_llama(&c.with_default("v_head_dim", hidden / heads))?;
    // RoPE pairs the two halves of the rotated part, unless a file says otherwise.
    let interleaved = c.flag_or("rope_interleave", false)?;
    // DeepSeek's default is the other order, which `latent_llama` has set.
    m.each_attention(|_, a| a.rope.iter_mut().for_each(|rope| rope.interleaved = interleaved));
    m.embed.scale = c.factor_or("scale_emb", 12.0)?;
    m.head.scale = c.factor_or("dim_model_base", 256.0)? / hidden as f64;
    m.scale_branches(c.factor_or("scale_depth", 1.4)? / (m.layers.len() as f64).sqrt());
    Ok(m)
}

/// Gives the layers behind the dense ones routed experts and shared experts, by these default counts.
fn add_experts(
    m: &mut ModelSpec,
    c: &HfConfig,
    gating: GatingSpec,
    [dense, shared]: [usize; 2],
) -> Result<()> {
    let dense = c.index_or("first_k_dense_replace", dense)?;
    m.set_experts(c, "moe_intermediate_size", gating, |i| i >= dense)?;
    m.set_shared_experts(c, "n_shared_experts", shared)
}

/// Experts chosen by sigmoids and a bias, otherwise as [`renormalized`].
pub(super) fn biased_sigmoids(c: &HfConfig) -> Result<GatingSpec> {
    Ok(GatingSpec { function: GatingFunction::Sigmoid, bias: true, ..renormalized(c)? })
}

/// Experts chosen by softmax, in some models among those of the best groups.
fn renormalized(c: &HfConfig) -> Result<GatingSpec> {
    Ok(GatingSpec {
        scale: c.float_opt("routed_scaling_factor")?.unwrap_or(1.0),
        groups: groups(c, GroupScore::BestTwo)?,
        ..GatingSpec::softmax(c.flag_or("norm_topk_prob", true)?)
    })
}

/// The groups from some of which experts are chosen.
fn groups(c: &HfConfig, score: GroupScore) -> Result<Option<ExpertGroups>> {
    let count = c.count_opt("n_group")?.unwrap_or(1);
    let chosen = c.count_opt("topk_group")?.unwrap_or(1);
    let ill = |key: &str, needed| {
        let found = c.raw(key).cloned().unwrap_or_default();
        Err(c.ill_typed(key, &found, needed))
    };
    if count == 1 {
        return Ok(None);
    }
    let experts = c.count(c.counts_experts_by())?;
    if count > MAX_EXPERT_GROUPS || !experts.is_multiple_of(count) {
        return ill("n_group", "at most 32, and a divisor of the number of experts");
    }
    // The chosen groups must have as many experts as a token uses.
    if chosen > count || chosen * (experts / count) < c.count("num_experts_per_tok")? {
        return ill("topk_group", "at most n_group, with num_experts_per_tok experts or more");
    }
    Ok(Some(ExpertGroups { count, chosen, score }))
}

/// Fails where a key is there and says something else.
pub(super) fn expect(c: &HfConfig, key: &str, name: &str) -> Result<()> {
    match c.text_opt(key)? {
        Some(other) if other != name => {
            Err(c.unsupported(key, &other.into(), &format!("; {name} is")))
        }
        _ => Ok(()),
    }
}

/// Llama with multi-head latent attention, whose RoPE settings apply to the rotated part of each head.
fn latent_llama(c: &HfConfig) -> Result<ModelSpec> {
    with_latents(c, c.bounded("qk_rope_head_dim", MAX_HEAD_DIM)?)
}

/// The same, whose settings of ropes are of heads of `width` elements.
fn with_latents(c: &HfConfig, width: usize) -> Result<ModelSpec> {
    if let Some(every) = c.count_opt("moe_layer_freq")?.filter(|every| *every != 1) {
        return Err(c.unsupported("moe_layer_freq", &every.into(), "; 1 is"));
    }
    let rotated = c.bounded("qk_rope_head_dim", MAX_HEAD_DIM)?;
    // Latents are the only KV head, so the settings of KV heads do not apply.
    let base = c.without(&["head_dim", "num_key_value_heads"]).with_default("head_dim", width);
    let mut m = ModelSpec::llama(&base)?;
    let latent = LatentSpec {
        rank: c.bounded("kv_lora_rank", MAX_WIDTH)?,
        key_dim: c.bounded("qk_nope_head_dim", MAX_HEAD_DIM)?,
        value_dim: c.bounded("v_head_dim", MAX_HEAD_DIM)?,
        q_rank: c.bounded_opt("q_lora_rank", MAX_WIDTH)?,
        eps: LATENT_EPS,
        transposed_keys: false,
    };
    for (key, width) in [("kv_lora_rank", latent.rank), ("qk_rope_head_dim", rotated)] {
        // Kernels read latents and the rotated part in vectors of eight.
        if !width.is_multiple_of(8) {
            return Err(c.ill_typed(key, &width.into(), "a multiple of 8"));
        }
    }
    // RoPE must rotate all of the part that is kept apart for it.
    let whole = |a: &AttentionSpec| a.rope.as_ref().is_some_and(|r| r.dim == rotated);
    if !m.attentions().all(whole) {
        let found = c.raw("partial_rotary_factor").cloned().unwrap_or_default();
        return Err(c.unsupported("partial_rotary_factor", &found, "; all of qk_rope_head_dim is"));
    }
    let scale = ((latent.key_dim + rotated) as f64).powf(-0.5) * temperature(c)?.powi(2);
    m.each_attention(|_, a| {
        // All heads read one latent, so the cache has one head, whose first elements are the values.
        a.kv_heads = 1;
        a.head_dim = latent.rank + rotated;
        a.scale = scale;
        a.latent = Some(latent);
    });
    if c.flag_or("rope_interleave", true)? {
        m.interleave_ropes();
    }
    Ok(m)
}

/// The factor on queries and on keys where contexts are stretched. Source: `yarn_apply_mscale`.
fn temperature(c: &HfConfig) -> Result<f64> {
    let rope = c.rope_parameters()?;
    let is_stretched = rope.text_opt("rope_type")?.is_some_and(|kind| kind != "default");
    let Some(mscale) = rope.float_opt("mscale_all_dim")?.filter(|m| *m != 0.0 && is_stretched)
    else {
        return Ok(1.0);
    };
    let factor = rope.float("factor")?;
    Ok(if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 })
}
