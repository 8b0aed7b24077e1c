//! BERT and what is built like it: RoBERTa, XLM-RoBERTa, DistilBERT, MPNet.

use super::{
    EncoderArch, EncoderKind, EncoderSpec, HeadAct, Pooling, ScoreHead, TensorList, expect,
};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{MAX_TOKENS, activation},
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
    let kind = EncoderKind::Bert { first_position, distance_classes: 0 };
    let spec = EncoderSpec::read(config, kind)?;
    // The positions before the first are those of padding, which no text uses.
    if spec.max_positions <= first_position {
        let hint = format!("; more than the first {first_position} positions are");
        let found = spec.max_positions.into();
        return Err(config.unsupported("max_position_embeddings", &found, &hint));
    }
    Ok(EncoderSpec {
        max_positions: spec.max_positions - first_position,
        token_types: config.bounded("type_vocab_size", MAX_TOKENS)?,
        act: activation(config)?,
        ..spec
    })
}

const DISTIL_BERT_NAMES: &[(&str, &str)] = &[
    ("hidden_size", "dim"),
    ("num_hidden_layers", "n_layers"),
    ("num_attention_heads", "n_heads"),
    ("intermediate_size", "hidden_dim"),
];

fn distil_bert(config: &HfConfig) -> Result<EncoderSpec> {
    expect(config, "activation", "gelu".into())?;
    // Source: transformers `modeling_distilbert.py`, which has no key for the norms' number.
    let config = config.without(&["layer_norm_eps"]).with_default("layer_norm_eps", 1e-12);
    let kind = EncoderKind::Bert { first_position: 0, distance_classes: 0 };
    EncoderSpec::read(&config.renamed(DISTIL_BERT_NAMES), kind)
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
    embedding_tensors(spec, list);
    let table = "encoder.relative_attention_bias.weight";
    list.own(table, table, &[distance_classes, spec.heads]);
    layer_tensors(
        spec,
        list,
        "encoder.layer",
        [
            "attention.attn.q",
            "attention.attn.k",
            "attention.attn.v",
            "attention.attn.o",
            "attention.LayerNorm",
            "intermediate.dense",
            "output.dense",
            "output.LayerNorm",
        ],
    );
}

fn bert_tensors(spec: &EncoderSpec, list: &mut TensorList) {
    embedding_tensors(spec, list);
    layer_tensors(spec, list, "encoder.layer", LAYER_SLOTS);
}

fn distil_bert_tensors(spec: &EncoderSpec, list: &mut TensorList) {
    embedding_tensors(spec, list);
    layer_tensors(
        spec,
        list,
        "transformer.layer",
        [
            "attention.q_lin",
            "attention.k_lin",
            "attention.v_lin",
            "attention.out_lin",
            "sa_layer_norm",
            "ffn.lin1",
            "ffn.lin2",
            "output_layer_norm",
        ],
    );
}

/// The slots of a layer, which are BERT's names.
const LAYER_SLOTS: [&str; 8] = [
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
];

/// The tensors of all layers. `names` are those of [`LAYER_SLOTS`] in a class whose layers begin with `prefix`.
fn layer_tensors(spec: &EncoderSpec, list: &mut TensorList, prefix: &str, names: [&str; 8]) {
    let (hidden, inner) = (spec.hidden_size, spec.intermediate_size);
    for i in 0..spec.num_layers {
        for (slot, name) in LAYER_SLOTS.into_iter().zip(names) {
            let (ours, theirs) =
                (format!("encoder.layer.{i}.{slot}"), format!("{prefix}.{i}.{name}"));
            match slot {
                "attention.output.LayerNorm" | "output.LayerNorm" => {
                    list.norm(&ours, &theirs, hidden);
                }
                "intermediate.dense" => list.affine(&ours, &theirs, [inner, hidden]),
                "output.dense" => list.affine(&ours, &theirs, [hidden, inner]),
                _ => list.affine(&ours, &theirs, [hidden, hidden]),
            }
        }
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
