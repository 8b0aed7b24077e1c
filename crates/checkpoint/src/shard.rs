//! One rank's part of a model: which heads, which columns of the feed-forward, which tokens of the vocabulary it has.
//!
//! Matrices whose outputs are heads, columns of the feed-forward or tokens are split by rows; those whose inputs are, by
//! columns. Every rank has a part of each expert, shared ones too, and all routers. Norms are on every rank, but for weights that heads have of their
//! own; so is all that makes of a token what each layer gets beside the residual. A bias that is added to a sum over the ranks is rank 0's alone.

use std::ops::Range;

use crate::{
    Checkpoint,
    spec::{Mixer, ModelSpec, QkNormSpan, RuleSpec},
    weights::{Slot, SlotRows, TensorPlan},
};

/// One of the ranks over which a model is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which one, from 0 on.
    pub rank: usize,
    /// How many there are; [`ModelSpec::check_tensor_parallel`] says which numbers there can be.
    pub ranks: usize,
}

impl Shard {
    /// The whole model.
    pub const WHOLE: Self = Self { rank: 0, ranks: 1 };

    /// This rank's part of `count` things, which the ranks divide.
    fn part(self, count: usize) -> Range<usize> {
        let part = count / self.ranks;
        self.rank * part..(self.rank + 1) * part
    }

    /// This rank's part of `count` heads of keys and values; where there are more ranks than heads, several ranks have the same.
    fn kv_heads(self, count: usize) -> Range<usize> {
        let first = self.rank * count / self.ranks;
        first..first + count.div_ceil(self.ranks)
    }
}

impl ModelSpec {
    /// The model as one of `ranks` ranks computes it, with its heads, its width of the feed-forward and its vocabulary.
    pub fn shard(&self, ranks: usize) -> Self {
        let mut part = self.clone();
        part.vocab_size = part.vocab_size.div_ceil(ranks);
        for layer in &mut part.layers {
            match &mut layer.mixer {
                Mixer::Attention(attention) => {
                    attention.heads = attention.heads.div_ceil(ranks);
                    attention.kv_heads = attention.kv_heads.div_ceil(ranks);
                }
                Mixer::Recurrence(net) => *net = net.shard(ranks),
                Mixer::ShortConv(conv) => conv.channels = conv.channels.div_ceil(ranks),
            }
            for mlp in layer.ffn.mlps_mut() {
                mlp.inner = mlp.inner.div_ceil(ranks);
            }
        }
        part
    }
}

impl Checkpoint {
    /// What one rank takes of a plan for the whole model: the same tensors, of which some may fill nothing.
    pub fn shard_plan(&self, shard: Shard, mut plan: Vec<TensorPlan>) -> Vec<TensorPlan> {
        if shard == Shard::WHOLE {
            return plan;
        }
        for tensor in &mut plan {
            tensor.slots.retain(|slot| shard.rank == 0 || !is_added_once(slot.slot));
            tensor.slots = rank_rows(self.spec(), shard, &tensor.slots);
            let splits_columns = tensor.slots.iter().any(|slot| is_split_by_columns(slot.slot));
            if let (true, &[_, columns]) = (splits_columns, tensor.shape.as_slice()) {
                tensor.columns = Some(shard.part(columns));
            }
        }
        plan
    }
}

/// Whether the inputs are what the ranks have parts of.
pub(crate) fn is_split_by_columns(slot: Slot) -> bool {
    matches!(
        slot,
        Slot::O
            | Slot::RecurrentOut
            | Slot::ConvOut
            | Slot::Down
            | Slot::SharedDown
            | Slot::ExpertDown(_)
    )
}

/// Whether a bias is added to a sum to which every rank gives its part.
fn is_added_once(slot: Slot) -> bool {
    matches!(slot, Slot::OBias | Slot::DownBias | Slot::ExpertDownBias(_))
}

/// The tensor's rows that a rank takes.
fn rank_rows(spec: &ModelSpec, shard: Shard, slots: &[SlotRows]) -> Vec<SlotRows> {
    let of_slot = |own: &SlotRows| {
        let same = slots.iter().filter(|other| (other.layer, other.slot) == (own.layer, own.slot));
        let part = slot_rows(spec, shard, own, same.map(|other| other.rows.len()).sum());
        let end = part.end.min(own.first + own.rows.len());
        let first = part.start.max(own.first).min(end);
        let start = own.rows.start + first - own.first;
        SlotRows {
            rows: start..start + end - first,
            first: first.saturating_sub(part.start),
            ..own.clone()
        }
    };
    let taken = slots.iter().map(of_slot);
    taken.filter(|slot| !slot.rows.is_empty()).collect()
}

/// The rows that a rank takes of a slot of `all` rows.
fn slot_rows(spec: &ModelSpec, shard: Shard, slot: &SlotRows, all: usize) -> Range<usize> {
    // What norms of q and k have in common for all heads is not split.
    let attention = slot.layer.and_then(|layer| spec.layers[layer].attention());
    let norm_span = attention.and_then(|a| a.qk_norm).map(|norm| norm.span);
    let recurrence = slot.layer.and_then(|layer| spec.layers[layer].recurrence());
    match slot.slot {
        Slot::QNorm | Slot::KNorm if norm_span == Some(QkNormSpan::Head) => 0..all,
        Slot::Embed
        | Slot::Head
        | Slot::HeadBias
        | Slot::Q
        | Slot::QBias
        | Slot::QUp
        | Slot::KeyUp
        | Slot::ValueUp
        | Slot::Gate
        | Slot::GateBias
        | Slot::Up
        | Slot::UpBias
        | Slot::QNorm
        | Slot::SharedGate
        | Slot::SharedUp
        | Slot::Sinks
        | Slot::AttnGate
        | Slot::RecurrentQ
        | Slot::RecurrentK
        | Slot::RecurrentV
        | Slot::RecurrentGate
        | Slot::RecurrentBeta
        | Slot::RecurrentDecay
        | Slot::RecurrentTapsQ
        | Slot::RecurrentTapsK
        | Slot::RecurrentTapsV
        | Slot::RecurrentBiasQ
        | Slot::RecurrentBiasK
        | Slot::RecurrentBiasV
        | Slot::RecurrentLogRate
        | Slot::RecurrentDecayBias
        | Slot::RecurrentSkip
        | Slot::ConvB
        | Slot::ConvC
        | Slot::ConvX
        | Slot::ConvTaps
        | Slot::ExpertGate(_)
        | Slot::ExpertGateBias(_)
        | Slot::ExpertUp(_)
        | Slot::ExpertUpBias(_) => shard.part(all),
        Slot::K | Slot::KBias | Slot::V | Slot::VBias | Slot::KNorm => {
            let attention = attention.expect("heads are in layers");
            let heads = shard.kv_heads(attention.kv_heads);
            heads.start * attention.head_dim..heads.end * attention.head_dim
        }
        // A head's norm is every head's.
        Slot::RecurrentNorm => match recurrence.expect("it is a recurrence's").rule {
            RuleSpec::Delta => 0..all,
            RuleSpec::Mamba2 { .. } => shard.part(all),
        },
        Slot::Positions
        | Slot::PerLayerEmbed
        | Slot::PerLayerProjection
        | Slot::PerLayerNorm
        | Slot::LayerScale
        | Slot::PerLayerGate
        | Slot::PerLayerOut
        | Slot::PerLayerPostNorm
        | Slot::RouterScales
        | Slot::RouterNorm
        | Slot::ExpertsNorm
        | Slot::ExpertsPostNorm
        | Slot::SharedPostNorm
        | Slot::FinalNorm
        | Slot::FinalNormBias
        | Slot::AttnNorm
        | Slot::AttnNormBias
        | Slot::AttnPostNorm
        | Slot::FfnNorm
        | Slot::FfnNormBias
        | Slot::FfnPostNorm
        | Slot::O
        | Slot::OBias
        | Slot::QLatent
        | Slot::QLatentNorm
        | Slot::KvLatent
        | Slot::KvLatentNorm
        | Slot::RecurrentOut
        | Slot::ConvOut
        | Slot::Down
        | Slot::DownBias
        | Slot::Router
        | Slot::RouterBias
        | Slot::RouterCorrection
        | Slot::SharedScore
        | Slot::SharedDown
        | Slot::ExpertDown(_)
        | Slot::ExpertDownBias(_) => 0..all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_few_heads_are_shared() {
        let shard = |rank, ranks| Shard { rank, ranks };
        assert_eq!([0, 1, 2, 3].map(|rank| shard(rank, 4).part(12)), [0..3, 3..6, 6..9, 9..12]);
        assert_eq!([0, 1].map(|rank| shard(rank, 2).kv_heads(8)), [0..4, 4..8]);
        assert_eq!(
            [0, 1, 2, 3].map(|rank| shard(rank, 4).kv_heads(2)),
            [0..1, 0..1, 1..2, 1..2],
            "ranks 0 and 1 have the queries of the first head"
        );
    }
}
