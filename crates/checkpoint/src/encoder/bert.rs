//! BERT and what is built like it: RoBERTa, XLM-RoBERTa, DistilBERT, MPNet.

use candlepower_layout::Activation;

use super::{
    EncoderArch, EncoderKind, EncoderSpec, HeadAct, Pooling, ScoreHead, TensorList, expect,
};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{MOST_HEADS, MOST_LAYERS, MOST_TOKENS, MOST_WIDTH, activation},
};

pub(super) const BERT: EncoderArch = EncoderArch {
    name: "BertModel",
    prefix: "bert.",
    spec: |config| bert(config, 0),
    head: None,
    tensors: bert_tensors,
};

pub(super) const BERT_SCORE: EncoderArch = EncoderArch {
    name: "BertForSequenceClassification",
    head: Some(|_| Ok(head(HeadAct::Tanh))),
    tensors: |spec, list| {
        bert_tensors(spec, list);
        let hidden = spec.hidden_size;
        list.affine("score.dense", "pooler.dense", [hidden, hidden]);
        list.head("score.out.weight", "classifier.weight", &[1, hidden]);
        list.head("score.out.bias", "classifier.bias", &[1]);
    },
    ..BERT
};

pub(super) const ROBERTA: EncoderArch = EncoderArch {
    name: "RobertaModel",
    prefix: "roberta.",
    // The first token stands behind the position of padding.
    spec: |config| bert(config, config.index("pad_token_id")?.saturating_add(1)),
    head: None,
    tensors: bert_tensors,
};

pub(super) const ROBERTA_SCORE: EncoderArch = EncoderArch {
    name: "RobertaForSequenceClassification",
    head: Some(|_| Ok(head(HeadAct::Tanh))),
    tensors: |spec, list| {
        bert_tensors(spec, list);
        score_tensors(spec, list, "classifier.dense", "classifier.out_proj");
    },
    ..ROBERTA
};

pub(super) const XLM_ROBERTA: EncoderArch = EncoderArch { name: "XLMRobertaModel", ..ROBERTA };

pub(super) const XLM_ROBERTA_SCORE: EncoderArch =
    EncoderArch { name: "XLMRobertaForSequenceClassification", ..ROBERTA_SCORE };

pub(super) const DISTIL_BERT: EncoderArch = EncoderArch {
    name: "DistilBertModel",
    prefix: "distilbert.",
    spec: distil_bert,
    head: None,
    tensors: distil_bert_tensors,
};

pub(super) const DISTIL_BERT_SCORE: EncoderArch = EncoderArch {
    name: "DistilBertForSequenceClassification",
    head: Some(|_| Ok(head(HeadAct::Relu))),
    tensors: |spec, list| {
        distil_bert_tensors(spec, list);
        score_tensors(spec, list, "pre_classifier", "classifier");
    },
    ..DISTIL_BERT
};

pub(super) const MPNET: EncoderArch = EncoderArch {
    name: "MPNetModel",
    prefix: "mpnet.",
    spec: mpnet,
    head: None,
    tensors: mpnet_tensors,
};

pub(super) const MPNET_SCORE: EncoderArch = EncoderArch {
    name: "MPNetForSequenceClassification",
    head: Some(|_| Ok(head(HeadAct::Tanh))),
    tensors: |spec, list| {
        mpnet_tensors(spec, list);
        score_tensors(spec, list, "classifier.dense", "classifier.out_proj");
    },
    ..MPNET
};

fn head(act: HeadAct) -> ScoreHead {
    ScoreHead { pooling: Pooling::Cls, act, dense_bias: true, norm: false, sigmoid: true }
}

fn bert(config: &HfConfig, first_position: usize) -> Result<EncoderSpec> {
    expect(config, "position_embedding_type", "absolute".into())?;
    config.refuse("is_decoder")?;
    config.refuse("add_cross_attention")?;
    let positions = config.bounded("max_position_embeddings", MOST_TOKENS)?;
    // The positions before the first are those of padding, which no text uses.
    if positions <= first_position {
        let hint = format!("; more than the first {first_position} positions are");
        return Err(config.unsupported("max_position_embeddings", &positions.into(), &hint));
    }
    Ok(EncoderSpec {
        kind: EncoderKind::Bert { first_position, distance_classes: 0 },
        vocab_size: config.bounded("vocab_size", MOST_TOKENS)?,
        hidden_size: config.bounded("hidden_size", MOST_WIDTH)?,
        num_layers: config.bounded("num_hidden_layers", MOST_LAYERS)?,
        heads: config.bounded("num_attention_heads", MOST_HEADS)?,
        intermediate_size: config.bounded("intermediate_size", MOST_WIDTH)?,
        max_positions: positions - first_position,
        token_types: config.bounded("type_vocab_size", MOST_TOKENS)?,
        norm_eps: config.float("layer_norm_eps")?,
        act: activation(config)?,
        head: None,
    })
}

fn distil_bert(config: &HfConfig) -> Result<EncoderSpec> {
    expect(config, "activation", "gelu".into())?;
    Ok(EncoderSpec {
        kind: EncoderKind::Bert { first_position: 0, distance_classes: 0 },
        vocab_size: config.bounded("vocab_size", MOST_TOKENS)?,
        hidden_size: config.bounded("dim", MOST_WIDTH)?,
        num_layers: config.bounded("n_layers", MOST_LAYERS)?,
        heads: config.bounded("n_heads", MOST_HEADS)?,
        intermediate_size: config.bounded("hidden_dim", MOST_WIDTH)?,
        max_positions: config.bounded("max_position_embeddings", MOST_TOKENS)?,
        token_types: 0,
        // Source: transformers `modeling_distilbert.py`, which has no key for it.
        norm_eps: 1e-12,
        act: Activation::Gelu,
        head: None,
    })
}

/// RoBERTa without types of tokens, whose attention has biases for distances beside the learned positions.
/// Source: transformers `models/mpnet`, which counts positions from behind row 1, whatever the padding token is.
fn mpnet(config: &HfConfig) -> Result<EncoderSpec> {
    expect(config, "relative_attention_num_buckets", DISTANCE_CLASSES.into())?;
    // There is no table of types, whatever a configuration says of it;
    // the default only satisfies the reader of BERT's keys.
    let config = &config.without(&["type_vocab_size"]).with_default("type_vocab_size", 1);
    let spec = bert(&config.with_default("layer_norm_eps", 1e-12), 2)?;
    let kind = EncoderKind::Bert { first_position: 2, distance_classes: DISTANCE_CLASSES };
    Ok(EncoderSpec { kind, token_types: 0, ..spec })
}

/// Transformers looks up the classes of as many, whatever the configuration says.
const DISTANCE_CLASSES: usize = 32;

fn mpnet_tensors(spec: &EncoderSpec, list: &mut TensorList) {
    let EncoderKind::Bert { distance_classes, .. } = spec.kind else {
        unreachable!("only the descriptions of this file are asked for these tensors")
    };
    let (hidden, inner) = (spec.hidden_size, spec.intermediate_size);
    embedding_tensors(spec, list);
    let table = "encoder.relative_attention_bias.weight";
    list.own(table, table, &[distance_classes, spec.heads]);
    for i in 0..spec.num_layers {
        let name = |name: &str| format!("encoder.layer.{i}.{name}");
        for (ours, theirs, shape) in [
            ("attention.self.query", "attention.attn.q", [hidden, hidden]),
            ("attention.self.key", "attention.attn.k", [hidden, hidden]),
            ("attention.self.value", "attention.attn.v", [hidden, hidden]),
            ("attention.output.dense", "attention.attn.o", [hidden, hidden]),
            ("intermediate.dense", "intermediate.dense", [inner, hidden]),
            ("output.dense", "output.dense", [hidden, inner]),
        ] {
            list.affine(&name(ours), &name(theirs), shape);
        }
        for (ours, theirs) in [
            ("attention.output.LayerNorm", "attention.LayerNorm"),
            ("output.LayerNorm", "output.LayerNorm"),
        ] {
            list.norm(&name(ours), &name(theirs), hidden);
        }
    }
}

fn bert_tensors(spec: &EncoderSpec, list: &mut TensorList) {
    let (hidden, inner) = (spec.hidden_size, spec.intermediate_size);
    embedding_tensors(spec, list);
    for i in 0..spec.num_layers {
        let mut affine = |name: &str, shape| {
            let name = format!("encoder.layer.{i}.{name}");
            list.affine(&name, &name, shape);
        };
        affine("attention.self.query", [hidden, hidden]);
        affine("attention.self.key", [hidden, hidden]);
        affine("attention.self.value", [hidden, hidden]);
        affine("attention.output.dense", [hidden, hidden]);
        affine("intermediate.dense", [inner, hidden]);
        affine("output.dense", [hidden, inner]);
        for name in ["attention.output.LayerNorm", "output.LayerNorm"] {
            let name = format!("encoder.layer.{i}.{name}");
            list.norm(&name, &name, hidden);
        }
    }
}

fn distil_bert_tensors(spec: &EncoderSpec, list: &mut TensorList) {
    let (hidden, inner) = (spec.hidden_size, spec.intermediate_size);
    embedding_tensors(spec, list);
    for i in 0..spec.num_layers {
        let slot = |name: &str| format!("encoder.layer.{i}.{name}");
        let name = |name: &str| format!("transformer.layer.{i}.{name}");
        for (ours, theirs, shape) in [
            ("attention.self.query", "attention.q_lin", [hidden, hidden]),
            ("attention.self.key", "attention.k_lin", [hidden, hidden]),
            ("attention.self.value", "attention.v_lin", [hidden, hidden]),
            ("attention.output.dense", "attention.out_lin", [hidden, hidden]),
            ("intermediate.dense", "ffn.lin1", [inner, hidden]),
            ("output.dense", "ffn.lin2", [hidden, inner]),
        ] {
            list.affine(&slot(ours), &name(theirs), shape);
        }
        list.norm(&slot("attention.output.LayerNorm"), &name("sa_layer_norm"), hidden);
        list.norm(&slot("output.LayerNorm"), &name("output_layer_norm"), hidden);
    }
}

fn embedding_tensors(spec: &EncoderSpec, list: &mut TensorList) {
    let EncoderKind::Bert { first_position, .. } = spec.kind else {
        unreachable!("only the descriptions of this file are asked for these tensors")
    };
    let mut table = |name: &str, rows: usize| {
        let name = format!("embeddings.{name}.weight");
        list.own(&name, &name, &[rows, spec.hidden_size]);
    };
    table("word_embeddings", spec.vocab_size);
    table("position_embeddings", first_position + spec.max_positions);
    if spec.token_types > 0 {
        table("token_type_embeddings", spec.token_types);
    }
    list.norm("embeddings.LayerNorm", "embeddings.LayerNorm", spec.hidden_size);
}

fn score_tensors(spec: &EncoderSpec, list: &mut TensorList, dense: &str, out: &str) {
    let hidden = spec.hidden_size;
    list.head("score.dense.weight", &format!("{dense}.weight"), &[hidden, hidden]);
    list.head("score.dense.bias", &format!("{dense}.bias"), &[hidden]);
    list.head("score.out.weight", &format!("{out}.weight"), &[1, hidden]);
    list.head("score.out.bias", &format!("{out}.bias"), &[1]);
}
