//! ModernBERT.

use serde_json::Value;

use super::{
    EncoderArch, EncoderKind, EncoderSpec, HeadAct, Pooling, ScoreHead, TensorList, expect,
};
use crate::{config::HfConfig, error::Result, spec::MAX_LAYERS};

pub(super) const ARCH: EncoderArch =
    EncoderArch { name: "ModernBertModel", prefix: "model.", spec, head: None, tensors };

pub(super) const SCORE: EncoderArch = EncoderArch {
    name: "ModernBertForSequenceClassification",
    head: Some(head),
    tensors: |spec, list| {
        tensors(spec, list);
        let hidden = spec.hidden_size;
        list.head("score.dense.weight", "head.dense.weight", &[hidden, hidden]);
        list.head("score.norm.weight", "head.norm.weight", &[hidden]);
        list.head("score.out.weight", "classifier.weight", &[1, hidden]);
        list.head("score.out.bias", "classifier.bias", &[1]);
    },
    ..ARCH
};

fn head(config: &HfConfig) -> Result<ScoreHead> {
    config.refuse("classifier_bias")?;
    expect(config, "classifier_activation", "gelu".into())?;
    let pooling = match config.text_opt("classifier_pooling")?.unwrap_or("cls") {
        "cls" => Pooling::Cls,
        "mean" => Pooling::Mean,
        other => {
            return Err(config.unsupported(
                "classifier_pooling",
                &other.into(),
                "; cls and mean are",
            ));
        }
    };
    Ok(ScoreHead { pooling, act: HeadAct::Gelu, dense_bias: false, norm: true, sigmoid: true })
}

fn spec(config: &HfConfig) -> Result<EncoderSpec> {
    for key in ["attention_bias", "mlp_bias", "norm_bias"] {
        config.refuse(key)?;
    }
    expect(config, "hidden_activation", "gelu".into())?;
    let num_layers = config.bounded("num_hidden_layers", MAX_LAYERS)?;
    let (global_theta, local_theta) = thetas(config)?;
    let kind = EncoderKind::ModernBert {
        global_every: global_every(config, num_layers)?,
        // Half of the window lies to each side, which the computation divides by.
        window: config.count("local_attention")?,
        global_theta,
        local_theta,
    };
    EncoderSpec::read(&config.renamed(&[("layer_norm_eps", "norm_eps")]), kind)
}

/// transformers 4 writes the distance between two layers without a window, 5 the kind of each layer.
fn global_every(config: &HfConfig, num_layers: usize) -> Result<usize> {
    let Some(types) = config.texts_opt("layer_types")? else {
        return config.count("global_attn_every_n_layers");
    };
    let is_global = |i: usize| types.get(i) == Some(&"full_attention");
    let every = (1..num_layers).find(|i| is_global(*i)).unwrap_or(num_layers);
    // One number describes the layers only where global ones repeat at equal distances.
    let regular = types.len() == num_layers
        && (0..num_layers).all(|i| {
            types[i] == if i % every == 0 { "full_attention" } else { "sliding_attention" }
        });
    if regular {
        return Ok(every);
    }
    let hint = "; full_attention at equal distances from the first layer on is";
    Err(config.unsupported("layer_types", &Value::from(types), hint))
}

/// The ropes' bases, without and with a window, as transformers 4 or 5 writes them.
fn thetas(config: &HfConfig) -> Result<(f64, f64)> {
    let Some(ropes) = config.section("rope_parameters")? else {
        config.refuse("rope_scaling")?;
        let global = config.float("global_rope_theta")?;
        // null: the same for all layers.
        return Ok((global, config.float_or_null("local_rope_theta")?.unwrap_or(global)));
    };
    let theta = |layers: &str| {
        let rope =
            ropes.section(layers)?.ok_or_else(|| ropes.missing(layers, "a rope's settings"))?;
        expect(&rope, "rope_type", "default".into())?;
        rope.float("rope_theta")
    };
    Ok((theta("full_attention")?, theta("sliding_attention")?))
}

fn tensors(spec: &EncoderSpec, list: &mut TensorList) {
    let (hidden, inner) = (spec.hidden_size, spec.intermediate_size);
    let mut weight = |name: &str, shape: &[usize]| {
        list.own(&format!("model.{name}.weight"), &format!("{name}.weight"), shape);
    };
    weight("embeddings.tok_embeddings", &[spec.vocab_size, hidden]);
    weight("embeddings.norm", &[hidden]);
    weight("final_norm", &[hidden]);
    for i in 0..spec.num_layers {
        // The embedding's norm stands for that of the first layer.
        if i > 0 {
            weight(&format!("layers.{i}.attn_norm"), &[hidden]);
        }
        weight(&format!("layers.{i}.attn.Wqkv"), &[3 * hidden, hidden]);
        weight(&format!("layers.{i}.attn.Wo"), &[hidden, hidden]);
        weight(&format!("layers.{i}.mlp_norm"), &[hidden]);
        weight(&format!("layers.{i}.mlp.Wi"), &[2 * inner, hidden]);
        weight(&format!("layers.{i}.mlp.Wo"), &[hidden, inner]);
    }
}
