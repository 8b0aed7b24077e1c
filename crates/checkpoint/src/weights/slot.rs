//! The tensors of a model.

/// One of our tensors: a matrix `[out, in]` or a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// Token embedding `[vocab, hidden]`.
    Embed,
    /// Vectors of tokens for all layers `[vocab, layers * width]`.
    PerLayerEmbed,
    /// What the embedding becomes beside them `[layers * width, hidden]`.
    PerLayerProjection,
    /// Norm of what it becomes `[width]`.
    PerLayerNorm,
    /// Position embedding `[positions, hidden]`.
    Positions,
    /// Norm before the head.
    FinalNorm,
    /// Its bias.
    FinalNormBias,
    /// Projection to logits `[vocab, hidden]`, where it is not tied.
    Head,
    /// Its bias.
    HeadBias,
    /// Norm before the attention.
    AttnNorm,
    /// Its bias.
    AttnNormBias,
    /// Norm after the attention.
    AttnPostNorm,
    /// Norm before the feed-forward.
    FfnNorm,
    /// Its bias.
    FfnNormBias,
    /// Norm after the feed-forward.
    FfnPostNorm,
    /// Factor on what comes out of the layer `[1]`.
    LayerScale,
    /// Gate of the layer's vector of a token `[width, hidden]`.
    PerLayerGate,
    /// What that becomes `[hidden, width]`.
    PerLayerOut,
    /// Norm after it.
    PerLayerPostNorm,
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
    /// Norm of q `[head_dim]`, or with a weight for each head `[heads * head_dim]`.
    QNorm,
    /// Norm of k.
    KNorm,
    /// What latents of queries are made by `[q_rank, hidden]`.
    QLatent,
    /// Their norm `[q_rank]`.
    QLatentNorm,
    /// What queries are made of them by `[heads * q_dim, q_rank]`.
    QUp,
    /// What latents of keys and values are made by, and then the part of keys that is rotated `[head_dim, hidden]`.
    KvLatent,
    /// Norm of latents of keys and values `[rank]`.
    KvLatentNorm,
    /// What makes each head's keys of them `[heads * key_dim, rank]`; in some files `[heads * rank, key_dim]`.
    KeyUp,
    /// What makes each head's values of them `[heads * value_dim, rank]`.
    ValueUp,
    /// Scores of the heads' sinks `[heads]`.
    Sinks,
    /// Gate of what comes out of the heads `[heads * head_dim, hidden]`.
    AttnGate,
    /// Queries of a recurrence `[key_heads * key_dim, hidden]`.
    RecurrentQ,
    /// Its keys `[key_heads * key_dim, hidden]`.
    RecurrentK,
    /// Its values `[value_heads * value_dim, hidden]`.
    RecurrentV,
    /// The gate of what comes out of it `[value_heads * value_dim, hidden]`.
    RecurrentGate,
    /// How strongly each head writes to its state `[value_heads, hidden]`.
    RecurrentBeta,
    /// How fast each head's state decays `[value_heads, hidden]`.
    RecurrentDecay,
    /// Its output `[hidden, value_heads * value_dim]`.
    RecurrentOut,
    /// Taps of the convolution of queries `[key_heads * key_dim * taps]`.
    RecurrentTapsQ,
    /// Of keys `[key_heads * key_dim * taps]`.
    RecurrentTapsK,
    /// Of values `[value_heads * value_dim * taps]`.
    RecurrentTapsV,
    /// Logarithm of each head's rate of decay `[value_heads]`, or the rate negated: see [`crate::RecurrenceSpec::log_rates`].
    RecurrentLogRate,
    /// What is added to [`Self::RecurrentDecay`] `[value_heads]`.
    RecurrentDecayBias,
    /// What is added to the convolution of queries `[key_heads * key_dim]`.
    RecurrentBiasQ,
    /// To that of keys `[key_heads * key_dim]`.
    RecurrentBiasK,
    /// To that of values `[value_heads * value_dim]`.
    RecurrentBiasV,
    /// How much of each head's values is added to what comes out `[value_heads]`.
    RecurrentSkip,
    /// Norm of each head that comes out `[value_dim]`, or of all of it `[value_heads * value_dim]`.
    RecurrentNorm,
    /// What a short convolution's `x` is multiplied by `[channels, hidden]`.
    ConvB,
    /// The gate of what comes out of it `[channels, hidden]`.
    ConvC,
    /// What is convolved `[channels, hidden]`.
    ConvX,
    /// Taps of the convolution `[channels * taps]`.
    ConvTaps,
    /// Its output `[hidden, channels]`.
    ConvOut,
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
    /// Scores of the experts `[experts, hidden]`.
    Router,
    /// Bias of the scores `[experts]`.
    RouterBias,
    /// What is added to the experts' shares where they are chosen `[experts]`.
    RouterCorrection,
    /// Factors on the experts' shares `[experts]`.
    RouterScales,
    /// Norm before the router; stored without the factor `1 / sqrt(hidden)` that it has.
    RouterNorm,
    /// Norm before the experts, where the one beside them has its own.
    ExpertsNorm,
    /// Norm after the experts, likewise.
    ExpertsPostNorm,
    /// Norm after the one beside them.
    SharedPostNorm,
    /// Score of the expert that every token goes to `[1, hidden]`.
    SharedScore,
    /// Gate of the expert that every token goes to `[inner, hidden]`.
    SharedGate,
    /// What that gates `[inner, hidden]`.
    SharedUp,
    /// That expert's output `[hidden, inner]`.
    SharedDown,
    /// An expert's gate `[inner, hidden]`.
    ExpertGate(usize),
    /// What an expert's gate gates `[inner, hidden]`.
    ExpertUp(usize),
    /// An expert's output `[hidden, inner]`.
    ExpertDown(usize),
    /// Bias of an expert's gate.
    ExpertGateBias(usize),
    /// Bias of what an expert's gate gates.
    ExpertUpBias(usize),
    /// Bias of an expert's output.
    ExpertDownBias(usize),
}

impl Slot {
    /// Whether it has a matrix for each head, which is not kept as codes: one of them is multiplied by transposed.
    pub fn is_of_heads(self) -> bool {
        matches!(self, Self::KeyUp | Self::ValueUp)
    }

    /// Whether it belongs to what follows a layer's mixer.
    pub(crate) fn is_of_ffn(self) -> bool {
        matches!(
            self,
            Self::FfnNorm
                | Self::FfnNormBias
                | Self::FfnPostNorm
                | Self::Gate
                | Self::Up
                | Self::Down
                | Self::GateBias
                | Self::UpBias
                | Self::DownBias
                | Self::Router
                | Self::RouterBias
                | Self::RouterCorrection
                | Self::RouterScales
                | Self::RouterNorm
                | Self::ExpertsNorm
                | Self::ExpertsPostNorm
                | Self::SharedPostNorm
                | Self::SharedScore
                | Self::SharedGate
                | Self::SharedUp
                | Self::SharedDown
        ) || self.expert().is_some()
    }

    /// The expert that it belongs to.
    pub(super) fn expert(self) -> Option<usize> {
        match self {
            Self::ExpertGate(expert)
            | Self::ExpertUp(expert)
            | Self::ExpertDown(expert)
            | Self::ExpertGateBias(expert)
            | Self::ExpertUpBias(expert)
            | Self::ExpertDownBias(expert) => Some(expert),
            _ => None,
        }
    }

    /// The slot under which the matrix that this one is loaded into is known: q, k and v are one, gate and up are one.
    pub(crate) fn fused(self) -> Self {
        match self {
            Self::K | Self::V => Self::Q,
            Self::RecurrentK | Self::RecurrentV | Self::RecurrentGate => Self::RecurrentQ,
            Self::RecurrentDecay => Self::RecurrentBeta,
            Self::ConvC | Self::ConvX => Self::ConvB,
            Self::Up => Self::Gate,
            Self::SharedUp => Self::SharedGate,
            Self::ExpertUp(expert) => Self::ExpertGate(expert),
            other => other,
        }
    }

    /// The slot as rules name it, which are the same for all experts.
    pub(crate) fn of_any_expert(self) -> Self {
        match self {
            Self::ExpertGate(_) => Self::ExpertGate(0),
            Self::ExpertUp(_) => Self::ExpertUp(0),
            Self::ExpertDown(_) => Self::ExpertDown(0),
            Self::ExpertGateBias(_) => Self::ExpertGateBias(0),
            Self::ExpertUpBias(_) => Self::ExpertUpBias(0),
            Self::ExpertDownBias(_) => Self::ExpertDownBias(0),
            other => other,
        }
    }
}
