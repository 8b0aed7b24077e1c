//! Which part each slot goes to, and where in it.

use candlepower_checkpoint::{
    AttentionSpec, LayerSpec, MlpSpec, ModelSpec, NormKind, QkNormSpan, RecurrenceSpec, Slot,
};

use super::Layout;

/// One tensor of the running model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    Embed,
    PerLayerEmbed,
    PerLayerProjection,
    PerLayerNorm,
    Positions,
    FinalNorm,
    FinalNormBias,
    Head,
    HeadBias,
    AttnNorm,
    AttnNormBias,
    AttnPostNorm,
    FfnNorm,
    FfnNormBias,
    FfnPostNorm,
    LayerScale,
    PerLayerGate,
    PerLayerOut,
    PerLayerPostNorm,
    /// q, k and v; or q alone.
    Qkv,
    QkvBias,
    QLatent,
    QLatentNorm,
    KvLatent,
    KvLatentNorm,
    /// Of all heads, as the next.
    KeyUp,
    ValueUp,
    QNorm,
    KNorm,
    Sinks,
    AttnGate,
    RecurrentIn,
    RecurrentGates,
    RecurrentTaps,
    RecurrentTapsBias,
    RecurrentSkip,
    RecurrentLogRate,
    RecurrentDecayBias,
    RecurrentNorm,
    /// `b`, `c` and `x`.
    ConvIn,
    ConvTaps,
    Out,
    OutBias,
    GateUp,
    GateUpBias,
    Down,
    DownBias,
    Router,
    RouterBias,
    RouterCorrection,
    RouterScales,
    RouterNorm,
    ExpertsNorm,
    ExpertsPostNorm,
    SharedPostNorm,
    SharedScore,
    SharedGateUp,
    SharedDown,
    ExpertGateUp(usize),
    ExpertDown(usize),
    /// Of all experts, as the next.
    ExpertGateUpBias,
    ExpertDownBias,
}

impl Part {
    /// The part with a norm's bias.
    pub(super) fn bias(self) -> Self {
        match self {
            Self::AttnNorm => Self::AttnNormBias,
            Self::FfnNorm => Self::FfnNormBias,
            Self::FinalNorm => Self::FinalNormBias,
            other => unreachable!("{other:?} has no bias"),
        }
    }
}

/// Where a slot's rows go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) part: Part,
    /// The part's row that the slot's first row becomes.
    pub(super) first_row: usize,
    /// Rows of the whole part.
    pub(super) rows: usize,
    /// They are a norm's weight.
    pub(super) norm: Option<NormKind>,
    /// What they are multiplied by after that.
    pub(super) factor: f32,
    /// The rows are those of heads, of so many elements each, which the device may pad.
    pub(super) head_dim: Option<usize>,
    /// The columns are.
    pub(super) head_columns: Option<usize>,
}

impl Place {
    pub(super) fn of(
        spec: &ModelSpec,
        layout: &Layout,
        layer: Option<usize>,
        slot: Slot,
        slot_rows: usize,
    ) -> Self {
        let whole = |part| Self {
            part,
            first_row: 0,
            rows: slot_rows,
            norm: None,
            factor: 1.0,
            head_dim: None,
            head_columns: None,
        };
        let Some(layer) = layer else {
            return match slot {
                Slot::Embed => whole(Part::Embed),
                Slot::PerLayerEmbed => whole(Part::PerLayerEmbed),
                Slot::PerLayerProjection => whole(Part::PerLayerProjection),
                Slot::PerLayerNorm => whole(Part::PerLayerNorm).norm(spec.final_norm.kind),
                Slot::Head => whole(Part::Head),
                Slot::HeadBias => whole(Part::HeadBias),
                Slot::Positions => whole(Part::Positions),
                Slot::FinalNormBias => whole(Part::FinalNormBias),
                _ => whole(Part::FinalNorm).norm(spec.final_norm.kind),
            };
        };
        let LayerSpec { norm, ffn, .. } = &spec.layers[layer];
        // Where a gate is stored, what it gates follows it.
        let gate_rows = |mlp: Option<&MlpSpec>| mlp.filter(|mlp| mlp.gated).map_or(0, |m| m.inner);
        let inner = ffn.mlp().map_or(0, |mlp| mlp.inner);
        let up_row = gate_rows(ffn.mlp());
        let gate_up = |part, first_row| Self { first_row, rows: up_row + inner, ..whole(part) };
        let shared = |first_row| {
            let inner = ffn.shared().expect("the plan has a shared expert only where it is").inner;
            let rows = gate_rows(ffn.shared()) + inner;
            Self { first_row, rows, ..whole(Part::SharedGateUp) }
        };
        let of_expert = |part, expert: usize, first_row: usize| {
            let rows = if part == Part::ExpertDownBias { slot_rows } else { up_row + inner };
            let experts = ffn.experts().map_or(1, |experts| experts.count);
            Self { first_row: expert * rows + first_row, rows: experts * rows, ..whole(part) }
        };
        match slot {
            Slot::Embed
            | Slot::PerLayerEmbed
            | Slot::PerLayerProjection
            | Slot::PerLayerNorm
            | Slot::Positions
            | Slot::Head
            | Slot::HeadBias
            | Slot::FinalNorm
            | Slot::FinalNormBias => unreachable!("not in a layer"),
            Slot::AttnNorm => whole(Part::AttnNorm).norm(norm.kind),
            Slot::AttnNormBias => whole(Part::AttnNormBias),
            Slot::FfnNormBias => whole(Part::FfnNormBias),
            Slot::AttnPostNorm => whole(Part::AttnPostNorm).norm(norm.kind),
            Slot::FfnNorm => whole(Part::FfnNorm).norm(norm.kind),
            Slot::FfnPostNorm => whole(Part::FfnPostNorm).norm(norm.kind),
            Slot::LayerScale => whole(Part::LayerScale),
            Slot::PerLayerGate => whole(Part::PerLayerGate),
            Slot::PerLayerOut => whole(Part::PerLayerOut),
            Slot::PerLayerPostNorm => whole(Part::PerLayerPostNorm).norm(norm.kind),
            Slot::Q
            | Slot::K
            | Slot::V
            | Slot::QBias
            | Slot::KBias
            | Slot::VBias
            | Slot::QNorm
            | Slot::KNorm
            | Slot::Sinks
            | Slot::AttnGate
            | Slot::O
            | Slot::OBias => {
                let attention = spec.layers[layer].attention();
                let attention = attention.expect("the plan has its slots only where it is");
                Self::in_attention(attention, layout, slot, whole)
            }
            Slot::QUp => whole(Part::Qkv),
            Slot::QLatent => whole(Part::QLatent),
            Slot::QLatentNorm => whole(Part::QLatentNorm),
            Slot::KvLatent => whole(Part::KvLatent),
            Slot::KvLatentNorm => whole(Part::KvLatentNorm),
            Slot::KeyUp => whole(Part::KeyUp),
            Slot::ValueUp => whole(Part::ValueUp),
            Slot::RecurrentQ
            | Slot::RecurrentK
            | Slot::RecurrentV
            | Slot::RecurrentGate
            | Slot::RecurrentBeta
            | Slot::RecurrentDecay
            | Slot::RecurrentOut
            | Slot::RecurrentTapsQ
            | Slot::RecurrentTapsK
            | Slot::RecurrentTapsV
            | Slot::RecurrentLogRate
            | Slot::RecurrentDecayBias
            | Slot::RecurrentBiasQ
            | Slot::RecurrentBiasK
            | Slot::RecurrentBiasV
            | Slot::RecurrentSkip
            | Slot::RecurrentNorm => {
                let net = spec.layers[layer].recurrence();
                let net = net.expect("the plan has its slots only where it is");
                Self::in_recurrence(net, slot, whole)
            }
            Slot::ConvB | Slot::ConvC | Slot::ConvX => {
                let of_slot = [Slot::ConvB, Slot::ConvC, Slot::ConvX];
                let before = of_slot.iter().position(|other| *other == slot).unwrap_or(0);
                let conv = spec.layers[layer].short_conv();
                let rows = conv.expect("the plan has its slots only where it is").channels;
                Self { first_row: before * rows, rows: 3 * rows, ..whole(Part::ConvIn) }
            }
            Slot::ConvTaps => whole(Part::ConvTaps),
            Slot::ConvOut => whole(Part::Out),
            Slot::Gate => gate_up(Part::GateUp, 0),
            Slot::Up => gate_up(Part::GateUp, up_row),
            Slot::GateBias => gate_up(Part::GateUpBias, 0),
            Slot::UpBias => gate_up(Part::GateUpBias, up_row),
            Slot::Down => whole(Part::Down),
            Slot::DownBias => whole(Part::DownBias),
            Slot::Router => whole(Part::Router),
            Slot::RouterBias => whole(Part::RouterBias),
            Slot::RouterCorrection => whole(Part::RouterCorrection),
            Slot::RouterScales => whole(Part::RouterScales),
            // What the router reads has this factor, too.
            Slot::RouterNorm => Self {
                factor: (spec.hidden_size as f64).powf(-0.5) as f32,
                ..whole(Part::RouterNorm).norm(norm.kind)
            },
            Slot::ExpertsNorm => whole(Part::ExpertsNorm).norm(norm.kind),
            Slot::ExpertsPostNorm => whole(Part::ExpertsPostNorm).norm(norm.kind),
            Slot::SharedPostNorm => whole(Part::SharedPostNorm).norm(norm.kind),
            Slot::SharedScore => whole(Part::SharedScore),
            Slot::SharedGate => shared(0),
            Slot::SharedUp => shared(gate_rows(ffn.shared())),
            Slot::SharedDown => whole(Part::SharedDown),
            Slot::ExpertGate(expert) => gate_up(Part::ExpertGateUp(expert), 0),
            Slot::ExpertUp(expert) => gate_up(Part::ExpertGateUp(expert), up_row),
            Slot::ExpertDown(expert) => whole(Part::ExpertDown(expert)),
            Slot::ExpertGateBias(expert) => of_expert(Part::ExpertGateUpBias, expert, 0),
            Slot::ExpertUpBias(expert) => of_expert(Part::ExpertGateUpBias, expert, up_row),
            Slot::ExpertDownBias(expert) => of_expert(Part::ExpertDownBias, expert, 0),
        }
    }

    fn in_attention(
        a: &AttentionSpec,
        layout: &Layout,
        slot: Slot,
        whole: impl Fn(Part) -> Self,
    ) -> Self {
        if a.latent.is_some() {
            return whole(if slot == Slot::O { Part::Out } else { Part::Qkv });
        }
        let padded = layout.padded_head(a.head_dim);
        let kv_heads = if a.keys_of.is_some() { 0 } else { a.kv_heads };
        let (q, kv) = (a.heads * padded, kv_heads * padded);
        let head_dim = (padded != a.head_dim).then_some(a.head_dim);
        let qkv = |part, first_row| Self { first_row, rows: q + 2 * kv, head_dim, ..whole(part) };
        let heads = |part, heads: usize| {
            let norm = a.qk_norm.expect("the plan has norms of q and k only where they are");
            let weights = if norm.span == QkNormSpan::Head { 1 } else { heads };
            Self { rows: weights * padded, head_dim, ..whole(part) }.norm(norm.norm.kind)
        };
        match slot {
            Slot::Q => qkv(Part::Qkv, 0),
            Slot::K => qkv(Part::Qkv, q),
            Slot::V => qkv(Part::Qkv, q + kv),
            Slot::QBias => qkv(Part::QkvBias, 0),
            Slot::KBias => qkv(Part::QkvBias, q),
            Slot::VBias => qkv(Part::QkvBias, q + kv),
            Slot::QNorm => heads(Part::QNorm, a.heads),
            Slot::KNorm => heads(Part::KNorm, a.kv_heads),
            Slot::Sinks => whole(Part::Sinks),
            Slot::AttnGate => Self { rows: q, head_dim, ..whole(Part::AttnGate) },
            Slot::O => Self { head_columns: head_dim, ..whole(Part::Out) },
            Slot::OBias => whole(Part::OutBias),
            other => unreachable!("{other:?} is not an attention's"),
        }
    }

    fn in_recurrence(net: &RecurrenceSpec, slot: Slot, whole: impl Fn(Part) -> Self) -> Self {
        let (keys, values, heads) = (net.keys(), net.values(), net.value_heads);
        let part = |part, first_row, rows| Self { first_row, rows, ..whole(part) };
        let rows = |first_row| part(Part::RecurrentIn, first_row, net.width());
        let gates = |first_row| part(Part::RecurrentGates, first_row, net.gates());
        let added = |first_row| part(Part::RecurrentTapsBias, first_row, net.channels());
        let taps = |first_row: usize| {
            part(Part::RecurrentTaps, first_row * net.taps, net.channels() * net.taps)
        };
        match slot {
            Slot::RecurrentQ => rows(0),
            Slot::RecurrentK => rows(keys),
            Slot::RecurrentV => rows(2 * keys),
            Slot::RecurrentGate => rows(2 * keys + values),
            Slot::RecurrentBeta => gates(0),
            Slot::RecurrentDecay => gates(net.gates() - heads),
            Slot::RecurrentOut => whole(Part::Out),
            Slot::RecurrentTapsQ => taps(0),
            Slot::RecurrentTapsK => taps(keys),
            Slot::RecurrentTapsV => taps(2 * keys),
            Slot::RecurrentBiasQ => added(0),
            Slot::RecurrentBiasK => added(keys),
            Slot::RecurrentBiasV => added(2 * keys),
            Slot::RecurrentSkip => whole(Part::RecurrentSkip),
            Slot::RecurrentLogRate => whole(Part::RecurrentLogRate),
            Slot::RecurrentDecayBias => whole(Part::RecurrentDecayBias),
            Slot::RecurrentNorm => whole(Part::RecurrentNorm),
            other => unreachable!("{other:?} is not a recurrence's"),
        }
    }

    fn norm(self, kind: NormKind) -> Self {
        Self { norm: Some(kind), ..self }
    }

    /// Where a slot's row lies in the part.
    pub(super) fn row(&self, layout: &Layout, row: usize) -> usize {
        let padded =
            self.head_dim.map_or(row, |dim| row / dim * layout.padded_head(dim) + row % dim);
        self.first_row + padded
    }
}
