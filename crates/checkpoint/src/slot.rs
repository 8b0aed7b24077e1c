//! The table of weight slots: one row per tensor of a model, with the facts that loading, sharding, quantization and memory
//! planning need.

use SlotQuantization::{
    Down, Embedding, GateUp, Head, InFiles, MixerOut, Never, PerLayerEmbedding, Projection,
};
use SlotShard::{Columns, FirstRank, KvHeads, Replicated, Rows};

/// Facts about a slot that do not depend on the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    /// Slot of the tensor that this one is loaded into: q, k and v become one matrix, gate and up another. `None`: a tensor of its own.
    pub fused_into: Option<Slot>,
    /// Bias of a norm with this weight.
    pub bias: Option<Slot>,
    /// Part that a rank loads.
    pub shard: SlotShard,
    /// Axis along which the tensor consists of attention heads.
    pub heads: HeadAxis,
    /// Use of the matrix, which decides about its quantization.
    pub quantization: SlotQuantization,
    /// Initial values of dummy weights.
    pub init: Init,
    /// Whether it belongs to the feed-forward, not to the mixer.
    pub is_ffn: bool,
}

/// Part of a slot that each rank loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotShard {
    /// All of it, on every rank.
    Replicated,
    /// All of it, on rank 0 alone: a bias on a sum over the ranks must be added once.
    FirstRank,
    /// An equal number of rows.
    Rows,
    /// Rows of the rank's KV heads; several ranks share a head if there are more ranks than heads.
    KvHeads,
    /// [`Self::Rows`] if each query head has norm weights of its own, otherwise all of it.
    QNorm,
    /// [`Self::KvHeads`] if each KV head has norm weights of its own, otherwise all of it.
    KNorm,
    /// All of it for a delta net, whose heads share their norm weights; equal numbers of rows for Mamba-2.
    LinearAttnNorm,
    /// All rows, with an equal number of columns.
    Columns,
}

/// Axis along which a tensor consists of attention heads, which a GPU may pad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadAxis {
    /// None.
    None,
    /// Rows; latent attention has no heads there.
    Rows,
    /// Columns; likewise.
    Columns,
    /// The tensor is loaded as one matrix per head. They are not quantized, since keys are multiplied by the transposed matrix.
    Matrices,
}

/// Use of a matrix, which decides whether files or loading quantize it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotQuantization {
    /// Never quantized: vectors and small matrices.
    Never,
    /// Quantized in files, but not while loading.
    InFiles,
    /// Token embedding: quantized while loading if it is the head, too.
    Embedding,
    /// Per-layer embeddings: quantized while loading.
    PerLayerEmbedding,
    /// Output head: quantized while loading, and by some methods in files.
    Head,
    /// Projection from the residual.
    Projection,
    /// Output of a mixer, added to the residual.
    MixerOut,
    /// Output of a feed-forward, added to the residual.
    Down,
    /// Gate and up projections of a feed-forward.
    GateUp,
}

/// Initial values of dummy weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {
    /// A norm's weight: a factor of one.
    Norm,
    /// A weight of the norm of q or k: likewise.
    QkNorm,
    /// One.
    One,
    /// A bias or a similar small value.
    Small,
    /// A projection: its outputs spread as its inputs do.
    FanIn,
    /// A projection whose outputs are added to the residual: smaller the more layers there are.
    Residual,
    /// Token embedding.
    Embedding,
    /// Per-layer embeddings.
    PerLayerEmbedding,
    /// Output head.
    Head,
    /// Kernel weights of a short convolution.
    Conv,
    /// Decay rate of a recurrent state.
    LogRate,
    /// Bias of a decay rate.
    DecayBias,
}

const fn row(shard: SlotShard, quantization: SlotQuantization, init: Init) -> SlotInfo {
    SlotInfo {
        fused_into: None,
        bias: None,
        shard,
        heads: HeadAxis::None,
        quantization,
        init,
        is_ffn: false,
    }
}

const fn matrix(shard: SlotShard, quantization: SlotQuantization) -> SlotInfo {
    row(shard, quantization, Init::FanIn)
}

/// A matrix whose outputs are added to the residual, where the ranks' products are summed.
const fn out(quantization: SlotQuantization) -> SlotInfo {
    row(Columns, quantization, Init::Residual)
}

const fn vector(shard: SlotShard, init: Init) -> SlotInfo {
    row(shard, Never, init)
}

const fn norm() -> SlotInfo {
    vector(Replicated, Init::Norm)
}

const fn small(shard: SlotShard) -> SlotInfo {
    vector(shard, Init::Small)
}

impl SlotInfo {
    const fn into(self, slot: Slot) -> Self {
        Self { fused_into: Some(slot), ..self }
    }

    const fn with_bias(self, slot: Slot) -> Self {
        Self { bias: Some(slot), ..self }
    }

    const fn heads(self, heads: HeadAxis) -> Self {
        Self { heads, ..self }
    }

    const fn init(self, init: Init) -> Self {
        Self { init, ..self }
    }

    const fn ffn(self) -> Self {
        Self { is_ffn: true, ..self }
    }
}

/// Makes [`Slot`] and its look-ups of a table with one row per slot: first the slots that a model or a layer has once, then those
/// of each expert.
macro_rules! slots {
    (
        once { $($(#[$doc:meta])+ $slot:ident => $info:expr,)+ }
        per_expert { $($(#[$expert_doc:meta])+ $expert_slot:ident($expert:pat) => $expert_info:expr,)+ }
    ) => {
        /// One of our tensors: a matrix `[out, in]` or a vector. Slots that are fused lie in their tensor in the order of this list.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Slot {
            $($(#[$doc])+ $slot,)+
            $($(#[$expert_doc])+ $expert_slot(usize),)+
        }

        impl Slot {
            /// Every slot, of the first expert where experts have it.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$slot,)+ $(Self::$expert_slot(0),)+];

            /// The slot's row of the table.
            pub const fn info(self) -> SlotInfo {
                match self {
                    $(Self::$slot => $info,)+
                    $(Self::$expert_slot($expert) => $expert_info.ffn(),)+
                }
            }

            /// The expert that it belongs to.
            pub fn expert(self) -> Option<usize> {
                match self {
                    $(Self::$slot)|+ => None,
                    $(Self::$expert_slot(expert))|+ => Some(expert),
                }
            }

            /// The slot as weight rules name it, which are the same for all experts.
            pub(crate) fn of_any_expert(self) -> Self {
                match self {
                    $(Self::$slot)|+ => self,
                    $(Self::$expert_slot(_) => Self::$expert_slot(0),)+
                }
            }
        }
    };
}

slots! {
    once {
        /// Token embedding `[vocab, hidden]`.
        Embed => matrix(Rows, Embedding).init(Init::Embedding),
        /// Per-layer embeddings `[vocab, layers * width]`.
        PerLayerEmbed => matrix(Replicated, PerLayerEmbedding).init(Init::PerLayerEmbedding),
        /// Projection of the token embedding, added to the per-layer embeddings `[layers * width, hidden]`.
        PerLayerProjection => matrix(Replicated, Projection),
        /// Norm of that projection `[width]`.
        PerLayerNorm => norm(),
        /// Position embedding `[positions, hidden]`.
        Positions => matrix(Replicated, Never).init(Init::Small),
        /// Norm before the head.
        FinalNorm => norm().with_bias(Slot::FinalNormBias),
        /// Its bias.
        FinalNormBias => small(Replicated),
        /// Projection to logits `[vocab, hidden]`, unless it is tied to the embedding.
        Head => matrix(Rows, Head).init(Init::Head),
        /// Its bias.
        HeadBias => small(Rows),
        /// Norm before the attention.
        AttnNorm => norm().with_bias(Slot::AttnNormBias),
        /// Its bias.
        AttnNormBias => small(Replicated),
        /// Norm after the attention.
        AttnPostNorm => norm(),
        /// Norm before the feed-forward.
        FfnNorm => norm().with_bias(Slot::FfnNormBias).ffn(),
        /// Its bias.
        FfnNormBias => small(Replicated).ffn(),
        /// Norm after the feed-forward.
        FfnPostNorm => norm().ffn(),
        /// Factor on the output of the layer `[1]`.
        LayerScale => vector(Replicated, Init::One),
        /// Gate of the layer's per-layer embedding `[width, hidden]`.
        PerLayerGate => matrix(Replicated, Projection),
        /// Projection of the gated per-layer embedding to the residual `[hidden, width]`.
        PerLayerOut => matrix(Replicated, Projection),
        /// Norm after it.
        PerLayerPostNorm => norm(),
        /// Queries `[heads * head_dim, hidden]`.
        Q => matrix(Rows, Projection).heads(HeadAxis::Rows),
        /// Keys `[kv_heads * head_dim, hidden]`.
        K => matrix(KvHeads, Projection).heads(HeadAxis::Rows).into(Slot::Q),
        /// Values `[kv_heads * head_dim, hidden]`.
        V => matrix(KvHeads, Projection).heads(HeadAxis::Rows).into(Slot::Q),
        /// Attention's output `[hidden, heads * head_dim]`.
        O => out(MixerOut).heads(HeadAxis::Columns),
        /// Bias of q.
        QBias => small(Rows).heads(HeadAxis::Rows),
        /// Bias of k.
        KBias => small(KvHeads).heads(HeadAxis::Rows).into(Slot::QBias),
        /// Bias of v.
        VBias => small(KvHeads).heads(HeadAxis::Rows).into(Slot::QBias),
        /// Bias of the attention's output.
        OBias => small(FirstRank),
        /// Norm of q `[head_dim]`, or with a weight for each head `[heads * head_dim]`.
        QNorm => vector(SlotShard::QNorm, Init::QkNorm).heads(HeadAxis::Rows),
        /// Norm of k.
        KNorm => vector(SlotShard::KNorm, Init::QkNorm).heads(HeadAxis::Rows),
        /// Down projection to the latents of queries `[q_rank, hidden]`.
        QLatent => matrix(Replicated, Projection),
        /// Their norm `[q_rank]`.
        QLatentNorm => vector(Replicated, Init::One),
        /// Up projection of those latents to queries `[heads * q_dim, q_rank]`.
        QUp => matrix(Rows, Projection),
        /// Down projection to the latents of keys and values, followed by the rotated part of keys `[head_dim, hidden]`.
        KvLatent => matrix(Replicated, Projection),
        /// Norm of latents of keys and values `[rank]`.
        KvLatentNorm => vector(Replicated, Init::One),
        /// Up projection of latents to each head's keys `[heads * key_dim, rank]`; in some files `[heads * rank, key_dim]`.
        KeyUp => matrix(Rows, InFiles).heads(HeadAxis::Matrices),
        /// Up projection of latents to each head's values `[heads * value_dim, rank]`.
        ValueUp => matrix(Rows, InFiles).heads(HeadAxis::Matrices),
        /// Attention sink logits `[heads]`.
        Sinks => small(Rows),
        /// Gate of the heads' output `[heads * head_dim, hidden]`.
        AttnGate => matrix(Rows, Projection).heads(HeadAxis::Rows),
        /// Queries of linear attention `[key_heads * key_dim, hidden]`.
        LinearAttnQ => matrix(Rows, Projection),
        /// Its keys `[key_heads * key_dim, hidden]`.
        LinearAttnK => matrix(Rows, Projection).into(Slot::LinearAttnQ),
        /// Its values `[value_heads * value_dim, hidden]`.
        LinearAttnV => matrix(Rows, Projection).into(Slot::LinearAttnQ),
        /// Gate of its output `[value_heads * value_dim, hidden]`.
        LinearAttnGate => matrix(Rows, Projection).into(Slot::LinearAttnQ),
        // Beta and decay have one row for each head: hardly any memory, and the state depends on their precision.
        /// Beta of each head `[value_heads, hidden]`.
        LinearAttnBeta => matrix(Rows, InFiles),
        /// Decay of each head's state `[value_heads, hidden]`.
        LinearAttnDecay => matrix(Rows, InFiles).into(Slot::LinearAttnBeta),
        /// Output projection of linear attention `[hidden, value_heads * value_dim]`.
        LinearAttnOut => out(MixerOut),
        /// Conv kernel weights of queries `[key_heads * key_dim * kernel_size]`.
        LinearAttnConvQ => vector(Rows, Init::Conv),
        /// Conv kernel weights of keys `[key_heads * key_dim * kernel_size]`.
        LinearAttnConvK => vector(Rows, Init::Conv).into(Slot::LinearAttnConvQ),
        /// Conv kernel weights of values `[value_heads * value_dim * kernel_size]`.
        LinearAttnConvV => vector(Rows, Init::Conv).into(Slot::LinearAttnConvQ),
        /// Logarithm of each head's decay rate `[value_heads]`, or the rate negated: see [`crate::LinearAttentionSpec::log_rates`].
        LinearAttnLogRate => vector(Rows, Init::LogRate),
        /// Bias of [`Self::LinearAttnDecay`] `[value_heads]`.
        LinearAttnDecayBias => vector(Rows, Init::DecayBias),
        /// Bias of the convolution of queries `[key_heads * key_dim]`.
        LinearAttnBiasQ => small(Rows),
        /// Bias of the convolution of keys `[key_heads * key_dim]`.
        LinearAttnBiasK => small(Rows).into(Slot::LinearAttnBiasQ),
        /// Bias of the convolution of values `[value_heads * value_dim]`.
        LinearAttnBiasV => small(Rows).into(Slot::LinearAttnBiasQ),
        /// Factor of each head with which its values are added to its output `[value_heads]`.
        LinearAttnSkip => vector(Rows, Init::One),
        /// Norm of each head's output `[value_dim]`, or of all of it `[value_heads * value_dim]`.
        LinearAttnNorm => vector(SlotShard::LinearAttnNorm, Init::One),
        /// Factor of a short convolution's `x` `[channels, hidden]`.
        ConvB => matrix(Rows, Projection),
        /// Gate of its output `[channels, hidden]`.
        ConvC => matrix(Rows, Projection).into(Slot::ConvB),
        /// Input of the convolution `[channels, hidden]`.
        ConvX => matrix(Rows, Projection).into(Slot::ConvB),
        /// Conv kernel weights `[channels * kernel_size]`.
        ConvKernel => vector(Rows, Init::Conv),
        /// Output projection of a short convolution `[hidden, channels]`.
        ConvOut => out(MixerOut),
        /// Gate projection of a feed-forward `[inner, hidden]`.
        Gate => matrix(Rows, GateUp).ffn(),
        /// Up projection, multiplied by the activated gate `[inner, hidden]`.
        Up => matrix(Rows, GateUp).into(Slot::Gate).ffn(),
        /// Output projection of a feed-forward `[hidden, inner]`.
        Down => out(Down).ffn(),
        /// Bias of the gate projection.
        GateBias => small(Rows).ffn(),
        /// Bias of the up projection.
        UpBias => small(Rows).into(Slot::GateBias).ffn(),
        /// Bias of the feed-forward's output.
        DownBias => small(FirstRank).ffn(),
        /// Router: scores of the experts `[experts, hidden]`.
        Router => matrix(Replicated, Never).ffn(),
        /// Bias of the scores `[experts]`.
        RouterBias => small(Replicated).ffn(),
        /// Correction of the experts' probabilities, which counts for their choice alone `[experts]`.
        RouterCorrection => small(Replicated).ffn(),
        /// Factors on the weights of the chosen experts `[experts]`.
        RouterScales => vector(Replicated, Init::One).ffn(),
        /// Norm before the router; stored without its factor `1 / sqrt(hidden)`.
        RouterNorm => norm().ffn(),
        /// Norm before the experts, if the shared expert has another.
        ExpertsNorm => norm().ffn(),
        /// Norm after the experts, likewise.
        ExpertsPostNorm => norm().ffn(),
        /// Norm after the shared expert.
        SharedPostNorm => norm().ffn(),
        /// Score of the shared expert `[1, hidden]`.
        SharedScore => matrix(Replicated, Never).ffn(),
        /// Gate projection of the shared expert `[inner, hidden]`.
        SharedGate => matrix(Rows, GateUp).ffn(),
        /// Up projection of the shared expert `[inner, hidden]`.
        SharedUp => matrix(Rows, GateUp).into(Slot::SharedGate).ffn(),
        /// Output projection of the shared expert `[hidden, inner]`.
        SharedDown => out(Down).ffn(),
    }
    per_expert {
        /// Gate projection of an expert `[inner, hidden]`.
        ExpertGate(_) => matrix(Rows, GateUp),
        /// Up projection of an expert `[inner, hidden]`.
        ExpertUp(expert) => matrix(Rows, GateUp).into(Slot::ExpertGate(expert)),
        /// Output projection of an expert `[hidden, inner]`.
        ExpertDown(_) => out(Down),
        // The biases of all experts become one tensor.
        /// Bias of an expert's gate projection.
        ExpertGateBias(_) => small(Rows).into(Slot::ExpertGateBias(0)),
        /// Bias of an expert's up projection.
        ExpertUpBias(_) => small(Rows).into(Slot::ExpertGateBias(0)),
        /// Bias of an expert's output.
        ExpertDownBias(_) => small(FirstRank).into(Slot::ExpertDownBias(0)),
    }
}

impl Slot {
    /// The slot that names the tensor which this one is loaded into.
    pub fn fused(self) -> Self {
        self.info().fused_into.unwrap_or(self)
    }

    /// Whether it is loaded as one matrix per head.
    pub fn is_per_head(self) -> bool {
        self.info().heads == HeadAxis::Matrices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fused_slots_name_the_first_of_their_tensor_and_share_its_use() {
        for slot in Slot::ALL {
            let (own, first) = (slot.info(), slot.fused());
            assert_eq!(first.fused(), first, "{slot:?}");
            assert!(first <= *slot, "{slot:?}");
            assert_eq!(own.quantization, first.info().quantization, "{slot:?}");
            assert_eq!(own.is_ffn, first.info().is_ffn, "{slot:?}");
        }
    }

    #[test]
    fn biases_of_norms_are_on_every_rank_as_the_norms() {
        for norm in Slot::ALL {
            let Some(bias) = norm.info().bias else { continue };
            assert_eq!(norm.info().init, Init::Norm, "{norm:?}");
            assert_eq!((bias.info().shard, bias.info().init), (Replicated, Init::Small));
        }
    }
}
