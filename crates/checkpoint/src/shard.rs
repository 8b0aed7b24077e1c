//! The shard of a model on one rank: its heads, its columns of the feed-forward, its tokens of the vocabulary.
//!
//! Matrices whose outputs are heads, columns of the feed-forward or tokens are split by rows; those whose inputs are, by columns.
//! Every rank has a shard of each expert, shared ones too, and all routers. Norms are on every rank, except weights of single heads.
//! Per-layer embeddings are on every rank, too. A bias on a sum over the ranks is on rank 0 alone.

use std::ops::Range;

use crate::{
    Checkpoint,
    slot::SlotShard,
    spec::{AttentionSpec, LayerSpec, Mixer, ModelSpec, QkNormSpan, UpdateRuleSpec},
    weights::{SlotRows, TensorPlan},
};

/// One of the ranks over which a model is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its index.
    pub rank: usize,
    /// Number of ranks; [`ModelSpec::check_tensor_parallel`] lists the possible counts.
    pub ranks: usize,
}

impl Shard {
    /// The whole model.
    pub const WHOLE: Self = Self { rank: 0, ranks: 1 };

    /// The rank's share of `count` things, which the ranks divide.
    fn part(self, count: usize) -> Range<usize> {
        let part = count / self.ranks;
        self.rank * part..(self.rank + 1) * part
    }

    /// The rank's share of `count` KV heads; if there are more ranks than heads, several ranks have the same.
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
                Mixer::LinearAttention(net) => *net = net.shard(ranks),
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
    /// The plan of one rank, from a plan for the whole model: the same tensors, of which some may fill nothing.
    pub fn shard_plan(&self, shard: Shard, mut plan: Vec<TensorPlan>) -> Vec<TensorPlan> {
        if shard == Shard::WHOLE {
            return plan;
        }
        for tensor in &mut plan {
            let is = |slot: &SlotRows, how| slot.slot.info().shard == how;
            tensor.slots.retain(|slot| shard.rank == 0 || !is(slot, SlotShard::FirstRank));
            tensor.slots = rank_rows(self.spec(), shard, &tensor.slots);
            let splits_columns = tensor.slots.iter().any(|slot| is(slot, SlotShard::Columns));
            if let (true, &[_, columns]) = (splits_columns, tensor.shape.as_slice()) {
                tensor.columns = Some(shard.part(columns));
            }
        }
        plan
    }
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
    let layer = slot.layer.map(|layer| &spec.layers[layer]);
    let attention =
        || layer.and_then(LayerSpec::attention).expect("attention slots are in such layers");
    // A norm whose weights all heads share is not split.
    let is_shared = || attention().qk_norm.is_some_and(|norm| norm.span == QkNormSpan::Head);
    let kv_heads = || {
        let AttentionSpec { kv_heads, head_dim, .. } = *attention();
        let heads = shard.kv_heads(kv_heads);
        heads.start * head_dim..heads.end * head_dim
    };
    match slot.slot.info().shard {
        SlotShard::Replicated | SlotShard::FirstRank | SlotShard::Columns => 0..all,
        SlotShard::Rows => shard.part(all),
        SlotShard::KvHeads => kv_heads(),
        SlotShard::QNorm | SlotShard::KNorm if is_shared() => 0..all,
        SlotShard::QNorm => shard.part(all),
        SlotShard::KNorm => kv_heads(),
        SlotShard::LinearAttnNorm => {
            let net = layer.and_then(LayerSpec::linear_attention);
            match net.expect("recurrent slots are in such layers").rule {
                UpdateRuleSpec::Delta => 0..all,
                UpdateRuleSpec::Mamba2 { .. } => shard.part(all),
            }
        }
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
