//! Where each of our tensors is found in a checkpoint, and which shape it has.

use std::{collections::HashMap, ops::Range};

use crate::{
    error::Result,
    quantization::{MatrixForm, Scheme, StoredTensor},
    spec::{LayerSpec, ModelSpec, Residual},
};

/// One of our tensors: a matrix `[out, in]` or a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// Token embedding `[vocab, hidden]`.
    Embed,
    /// Norm before the head.
    FinalNorm,
    /// Projection to logits `[vocab, hidden]`, where it is not tied.
    Head,
    /// Norm before the attention.
    AttnNorm,
    /// Norm after the attention (sandwich).
    AttnPostNorm,
    /// Norm before the feed-forward.
    FfnNorm,
    /// Norm after the feed-forward (sandwich).
    FfnPostNorm,
    /// Queries `[heads * head_dim, hidden]`.
    Q,
    /// Keys `[kv_heads * head_dim, hidden]`.
    K,
    /// Values `[kv_heads * head_dim, hidden]`.
    V,
    /// Attention's output `[hidden, heads * head_dim]`.
    O,
    /// Bias of q.
    QBias,
    /// Bias of k.
    KBias,
    /// Bias of v.
    VBias,
    /// Bias of the attention's output.
    OBias,
    /// Norm of each head of q `[head_dim]`.
    QNorm,
    /// Norm of each head of k `[head_dim]`.
    KNorm,
    /// The gate `[inner, hidden]`.
    Gate,
    /// What is gated `[inner, hidden]`.
    Up,
    /// Feed-forward's output `[hidden, inner]`.
    Down,
    /// Bias of the gate.
    GateBias,
    /// Bias of what is gated.
    UpBias,
    /// Bias of the feed-forward's output.
    DownBias,
}

/// How a slot's numbers lie in the checkpoint's tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// They are the whole tensor.
    Whole,
    /// Slots with the same name lie in one tensor, rows after rows, in the order of [`Slot`].
    Rows,
}

/// A rule: our slot <- the checkpoint's name, where `{i}` is the layer, and how to take it.
#[derive(Clone, Copy, Debug)]
pub struct WeightRule {
    /// What it fills.
    pub slot: Slot,
    /// The name, with `{i}` for the layer.
    pub name: &'static str,
    /// How to take it.
    pub take: Take,
}

pub(crate) const fn whole(slot: Slot, name: &'static str) -> WeightRule {
    WeightRule { slot, name, take: Take::Whole }
}

pub(crate) const fn rows(slot: Slot, name: &'static str) -> WeightRule {
    WeightRule { slot, name, take: Take::Rows }
}

/// The layout most checkpoints share; an architecture's own rules are looked up first.
const LLAMA: &[WeightRule] = &[
    whole(Slot::Embed, "model.embed_tokens.weight"),
    whole(Slot::FinalNorm, "model.norm.weight"),
    whole(Slot::Head, "lm_head.weight"),
    whole(Slot::AttnNorm, "model.layers.{i}.input_layernorm.weight"),
    whole(Slot::FfnNorm, "model.layers.{i}.post_attention_layernorm.weight"),
    whole(Slot::Q, "model.layers.{i}.self_attn.q_proj.weight"),
    whole(Slot::K, "model.layers.{i}.self_attn.k_proj.weight"),
    whole(Slot::V, "model.layers.{i}.self_attn.v_proj.weight"),
    whole(Slot::O, "model.layers.{i}.self_attn.o_proj.weight"),
    whole(Slot::QBias, "model.layers.{i}.self_attn.q_proj.bias"),
    whole(Slot::KBias, "model.layers.{i}.self_attn.k_proj.bias"),
    whole(Slot::VBias, "model.layers.{i}.self_attn.v_proj.bias"),
    whole(Slot::OBias, "model.layers.{i}.self_attn.o_proj.bias"),
    whole(Slot::QNorm, "model.layers.{i}.self_attn.q_norm.weight"),
    whole(Slot::KNorm, "model.layers.{i}.self_attn.k_norm.weight"),
    whole(Slot::Gate, "model.layers.{i}.mlp.gate_proj.weight"),
    whole(Slot::Up, "model.layers.{i}.mlp.up_proj.weight"),
    whole(Slot::Down, "model.layers.{i}.mlp.down_proj.weight"),
    whole(Slot::GateBias, "model.layers.{i}.mlp.gate_proj.bias"),
    whole(Slot::UpBias, "model.layers.{i}.mlp.up_proj.bias"),
    whole(Slot::DownBias, "model.layers.{i}.mlp.down_proj.bias"),
];

/// A tensor of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorPlan {
    /// The checkpoint's name; of a quantized matrix the one that it would have as plain numbers.
    pub name: String,
    /// `[rows, columns]`, or `[rows]` of a vector.
    pub shape: Vec<usize>,
    /// What it fills, from its first row to its last.
    pub slots: Vec<SlotRows>,
    /// The columns that are taken; all of them where `None`.
    pub columns: Option<Range<usize>>,
    /// How it is stored, where it is quantized.
    pub scheme: Option<Scheme>,
}

impl TensorPlan {
    /// The tensors that hold it in the weight files.
    ///
    /// # Errors
    /// The matrix cannot be stored as its quantization says.
    pub fn stored(&self) -> Result<Vec<StoredTensor>> {
        match (&self.scheme, self.shape.as_slice()) {
            (Some(scheme), &[n, k]) => scheme.tensors(&self.name, n, k),
            _ => Ok(vec![StoredTensor::numbers(&self.name, &self.shape)]),
        }
    }

    /// How it is kept in memory.
    pub fn form(&self) -> MatrixForm {
        match (&self.scheme, self.columns()) {
            (Some(scheme), Some(columns)) => MatrixForm::Quantized(scheme.packed(columns.len())),
            _ => MatrixForm::Plain,
        }
    }

    /// The columns that are taken of a matrix.
    pub fn columns(&self) -> Option<Range<usize>> {
        let &[_, columns] = self.shape.as_slice() else { return None };
        Some(self.columns.clone().unwrap_or(0..columns))
    }
}

/// The part of a tensor that fills one slot.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotRows {
    /// The slot.
    pub slot: Slot,
    /// The layer, for slots that each layer has.
    pub layer: Option<usize>,
    /// The tensor's rows.
    pub rows: Range<usize>,
}

/// Every tensor of the model as plain numbers, first those outside the layers.
pub(crate) fn plan(spec: &ModelSpec, own_rules: &[WeightRule]) -> Vec<TensorPlan> {
    let rule = |slot: Slot| {
        let rule = own_rules.iter().chain(LLAMA).find(|r| r.slot == slot);
        rule.expect("LLAMA has a rule for every slot")
    };
    let mut tensors: Vec<TensorPlan> = Vec::new();
    let mut by_name: HashMap<String, usize> = HashMap::new();
    for (layer, slot, shape) in spec.slots() {
        let rule = rule(slot);
        let name = match layer {
            Some(i) => rule.name.replace("{i}", &i.to_string()),
            None => rule.name.to_owned(),
        };
        match by_name.get(&name) {
            Some(&at) if rule.take == Take::Rows => {
                let tensor = &mut tensors[at];
                let rows = tensor.shape[0]..tensor.shape[0] + shape[0];
                tensor.shape[0] = rows.end;
                tensor.slots.push(SlotRows { slot, layer, rows });
            }
            _ => {
                by_name.insert(name.clone(), tensors.len());
                let slots = vec![SlotRows { slot, layer, rows: 0..shape[0] }];
                tensors.push(TensorPlan { name, shape, slots, columns: None, scheme: None });
            }
        }
    }
    tensors
}

/// Whether a tensor that no rule names may be left out: rope's frequencies, which old checkpoints
/// stored, and a copy of the embedding as the head of a tied model.
pub(crate) fn may_skip(spec: &ModelSpec, name: &str) -> bool {
    name.ends_with(".rotary_emb.inv_freq") || (spec.head.tied && name == "lm_head.weight")
}

impl ModelSpec {
    /// Every tensor of the model: its layer, slot and shape.
    pub fn slots(&self) -> impl Iterator<Item = (Option<usize>, Slot, Vec<usize>)> + '_ {
        let (vocab, hidden) = (self.vocab_size, self.hidden_size);
        let mut outside = vec![(Slot::Embed, vec![vocab, hidden]), (Slot::FinalNorm, vec![hidden])];
        if !self.head.tied {
            outside.push((Slot::Head, vec![vocab, hidden]));
        }
        let layers = self.layers.iter().enumerate().flat_map(move |(i, layer)| {
            layer_slots(layer, hidden).into_iter().map(move |(slot, shape)| (Some(i), slot, shape))
        });
        outside.into_iter().map(|(slot, shape)| (None, slot, shape)).chain(layers)
    }
}

fn layer_slots(layer: &LayerSpec, hidden: usize) -> Vec<(Slot, Vec<usize>)> {
    let (a, inner) = (&layer.attention, layer.mlp.inner);
    let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
    let mut slots = vec![(Slot::AttnNorm, vec![hidden]), (Slot::FfnNorm, vec![hidden])];
    if layer.residual == Residual::Sandwich {
        slots.extend([(Slot::AttnPostNorm, vec![hidden]), (Slot::FfnPostNorm, vec![hidden])]);
    }
    slots.extend([
        (Slot::Q, vec![q, hidden]),
        (Slot::K, vec![kv, hidden]),
        (Slot::V, vec![kv, hidden]),
        (Slot::O, vec![hidden, q]),
    ]);
    if a.qkv_bias {
        slots.extend([(Slot::QBias, vec![q]), (Slot::KBias, vec![kv]), (Slot::VBias, vec![kv])]);
    }
    if a.out_bias {
        slots.push((Slot::OBias, vec![hidden]));
    }
    if a.qk_norm.is_some() {
        slots.extend([(Slot::QNorm, vec![a.head_dim]), (Slot::KNorm, vec![a.head_dim])]);
    }
    slots.extend([
        (Slot::Gate, vec![inner, hidden]),
        (Slot::Up, vec![inner, hidden]),
        (Slot::Down, vec![hidden, inner]),
    ]);
    if layer.mlp.bias {
        slots.extend([
            (Slot::GateBias, vec![inner]),
            (Slot::UpBias, vec![inner]),
            (Slot::DownBias, vec![hidden]),
        ]);
    }
    slots
}
