//! Names and shapes of our tensors in a checkpoint.

use std::{collections::HashMap, ops::Range};

use candlepower_layout::MatrixForm;

use crate::{
    error::Result,
    quantization::{Mxfp4, Quantization, Recoded, Scheme, StoredTensor},
    spec::{
        AttentionSpec, FfnSpec, LatentSpec, LayerSpec, LinearAttentionSpec, Mixer, MlpSpec,
        ModelSpec, PerLayerSpec, QkNormSpan, Residual, ShortConvSpec, UpdateRuleSpec,
    },
};

mod names;

pub(crate) use crate::slot::Slot;

/// Position of a slot's values in the checkpoint's tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// The whole tensor.
    Whole,
    /// Slots with the same name lie in one tensor, rows after rows, in the order of [`Slot`].
    Rows,
    /// [`Self::Rows`] head by head: the first head's rows of each slot, then the second's. Heads are KV heads with all queries that
    /// read one or, if the tensor has no keys, query heads.
    Heads,
    /// The whole tensor without so many rows at its start.
    Behind(usize),
    /// [`Self::Rows`] in a tensor that is stored transposed, `[in, out]`.
    Transposed,
    /// [`Self::Rows`] of vectors that are stored as `[rows, 1, kernel_size]`.
    ConvKernel,
    /// The vector is stored as a matrix with a row for each head.
    RowOfEachHead,
    /// The vector is stored as a matrix of one row.
    Row,
    /// [`Self::Rows`] in a tensor `[experts, in, out]` of the matrices of all experts, each transposed unless it is quantized, or
    /// `[experts, out]` of their vectors; if `alternating`, with rows of gate and up in turn.
    Experts {
        /// Rows of two slots in turn, not those of one after those of the other.
        alternating: bool,
    },
    /// [`Self::Rows`] in a tensor `[experts, out, in]` of the matrices of all experts, unless [`TensorPlan::fit`] finds otherwise.
    ExpertRows,
}

/// A rule: our slot <- the checkpoint's name, where `{i}` is the layer and `{e}` the expert, and how to take it.
#[derive(Clone, Copy, Debug)]
pub struct WeightRule {
    /// The slot that it fills.
    pub slot: Slot,
    /// The name, with `{i}` for the layer and `{e}` for the expert.
    pub name: &'static str,
    /// Position of the slot in the tensor.
    pub take: Take,
}

pub(crate) const fn whole(slot: Slot, name: &'static str) -> WeightRule {
    WeightRule { slot, name, take: Take::Whole }
}

pub(crate) const fn rows(slot: Slot, name: &'static str) -> WeightRule {
    WeightRule { slot, name, take: Take::Rows }
}

pub(crate) const fn transposed(slot: Slot, name: &'static str) -> WeightRule {
    WeightRule { slot, name, take: Take::Transposed }
}

pub(crate) const fn experts(slot: Slot, name: &'static str) -> WeightRule {
    WeightRule { slot, name, take: Take::Experts { alternating: false } }
}

pub(crate) const fn alternating(slot: Slot, name: &'static str) -> WeightRule {
    WeightRule { slot, name, take: Take::Experts { alternating: true } }
}

pub(crate) const fn expert_rows(slot: Slot, name: &'static str) -> WeightRule {
    WeightRule { slot, name, take: Take::ExpertRows }
}

pub(crate) const fn heads(slot: Slot, name: &'static str) -> WeightRule {
    WeightRule { slot, name, take: Take::Heads }
}

pub(crate) const fn behind(rows: usize, slot: Slot, name: &'static str) -> WeightRule {
    WeightRule { slot, name, take: Take::Behind(rows) }
}

pub(crate) const fn conv_kernel(slot: Slot, name: &'static str) -> WeightRule {
    WeightRule { slot, name, take: Take::ConvKernel }
}

pub(crate) const fn row_of_each_head(slot: Slot, name: &'static str) -> WeightRule {
    WeightRule { slot, name, take: Take::RowOfEachHead }
}

/// The rules of two architectures that have parts in common.
pub(crate) const fn joined<const A: usize, const B: usize, const ALL: usize>(
    first: [WeightRule; A],
    second: [WeightRule; B],
) -> [WeightRule; ALL] {
    assert!(A + B == ALL, "the length of both");
    let mut all = [first[0]; ALL];
    let mut i = 0;
    while i < ALL {
        all[i] = if i < A { first[i] } else { second[i - A] };
        i += 1;
    }
    all
}

pub(crate) const fn row(slot: Slot, name: &'static str) -> WeightRule {
    WeightRule { slot, name, take: Take::Row }
}

/// A tensor of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorPlan {
    /// The checkpoint's name; for a quantized matrix the name of its unquantized form.
    pub name: String,
    /// `[rows, columns]`, or `[rows]` of a vector.
    pub shape: Vec<usize>,
    /// Its shape in the weight files, where it is not quantized: `[columns, rows]` of a transposed one.
    pub stored_shape: Vec<usize>,
    /// Position of its slots in it.
    pub take: Take,
    /// The slots that it fills, from its first row to its last; rows of one slot may be apart.
    pub slots: Vec<SlotRows>,
    /// The columns that are taken; all of them where `None`.
    pub columns: Option<Range<usize>>,
    /// Its scheme, if it is stored quantized.
    pub scheme: Option<Scheme>,
    /// Its form after quantization on load, if it is stored unquantized.
    pub on_load: Option<Recoded>,
}

impl TensorPlan {
    /// The tensors that hold it in the weight files.
    ///
    /// # Errors
    /// The matrix cannot be stored as its quantization says.
    pub fn stored(&self) -> Result<Vec<StoredTensor>> {
        match (&self.scheme, self.shape.as_slice()) {
            (Some(scheme), &[n, k]) => scheme.tensors(&self.name, n, k),
            _ => Ok(vec![StoredTensor::plain(&self.name, &self.stored_shape)]),
        }
    }

    /// Takes the experts of one tensor as transposed where its stored shape shows that they are. Where both forms have the same shape,
    /// they are not. Source: transformers `core_model_loading.py`, `Transpose` with `check_dims`.
    pub fn fit(&mut self, stored: &[usize]) {
        let &[experts, out, inner] = self.stored_shape.as_slice() else { return };
        let transposed = [experts, inner, out];
        if self.take == Take::ExpertRows && stored == transposed && stored != self.stored_shape {
            self.take = Take::Experts { alternating: false };
            self.stored_shape = transposed.to_vec();
        }
    }

    /// Its scheme in files of this quantization; `None` if it is not quantized.
    pub(crate) fn scheme_of(&self, quantization: &Quantization) -> Option<Scheme> {
        let module = self.name.strip_suffix(".weight").unwrap_or(&self.name);
        let scheme = quantization.scheme_of(module, self.slots.first()?.slot)?;
        match (scheme, self.take) {
            (Scheme::Mxfp4(_), Take::Experts { .. }) => {
                Some(Scheme::Mxfp4(Mxfp4 { experts: self.experts() }))
            }
            (Scheme::Mxfp4(_), _) => None,
            (scheme, _) => Some(scheme),
        }
    }

    /// Its form in memory.
    pub fn form(&self) -> MatrixForm {
        match (&self.scheme, self.columns()) {
            (Some(_), Some(_)) if self.is_per_head() => MatrixForm::Widened,
            (Some(scheme), Some(columns)) => MatrixForm::Quantized(scheme.packed(columns.len())),
            _ => self
                .on_load
                .map_or(MatrixForm::Plain, |recoded| MatrixForm::Quantized(recoded.packed())),
        }
    }

    /// Whether it has matrices of heads: see [`Slot::is_per_head`].
    pub fn is_per_head(&self) -> bool {
        self.slots.iter().any(|slot| slot.slot.is_per_head())
    }

    /// The order of its rows in the stored tensor.
    pub fn row_order(&self) -> RowOrder {
        let alternates = self.take == Take::Experts { alternating: true };
        // Two slots of each expert have as many rows.
        RowOrder { half: alternates.then(|| self.shape[0] / self.experts() / 2) }
    }

    /// Number of experts whose rows it holds together; otherwise one.
    pub fn experts(&self) -> usize {
        match self.take {
            Take::Experts { .. } => self.stored_shape[0],
            _ => 1,
        }
    }

    /// The columns that are taken of a matrix.
    pub fn columns(&self) -> Option<Range<usize>> {
        let &[_, columns] = self.shape.as_slice() else { return None };
        Some(self.columns.clone().unwrap_or(0..columns))
    }
}

/// Order of rows in a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowOrder {
    /// Rows of each of two slots, if they are stored in turn.
    half: Option<usize>,
}

impl RowOrder {
    /// The stored row of a row.
    pub fn stored(self, row: usize) -> usize {
        let alternating = |half| row / (2 * half) * (2 * half) + row % half * 2 + row / half % 2;
        self.half.map_or(row, alternating)
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
    /// Index of the first of them among the slot's rows.
    pub first: usize,
}

/// Every tensor of the model in its unquantized form, first those outside the layers. `is_stored` says which of several possible names
/// is that of a tensor.
pub(crate) fn plan(
    spec: &ModelSpec,
    own_rules: &[WeightRule],
    is_stored: &dyn Fn(&str) -> bool,
) -> Vec<TensorPlan> {
    plan_named(spec, own_rules, names::LLAMA, is_stored)
}

/// The same as [`plan`], with the names in `common` for slots without a rule in `own_rules`.
pub(crate) fn plan_named(
    spec: &ModelSpec,
    own_rules: &[WeightRule],
    common: &[WeightRule],
    is_stored: &dyn Fn(&str) -> bool,
) -> Vec<TensorPlan> {
    let named = |rule: &WeightRule, layer: Option<usize>, slot: Slot| {
        let name = match layer {
            Some(i) => rule.name.replace("{i}", &spec.stored_layer(i, slot).to_string()),
            None => rule.name.to_owned(),
        };
        match slot.expert() {
            Some(expert) => name.replace("{e}", &expert.to_string()),
            None => name,
        }
    };
    // The first rule whose tensor is there wins, or else the first.
    let rule = |slot: Slot, layer: Option<usize>| {
        let any = slot.of_any_expert();
        let mut rules = own_rules.iter().chain(common).filter(|r| r.slot == any);
        let first = rules.next().expect("the common rules have every slot");
        let name = named(first, layer, slot);
        let mut others = rules.map(|rule| (rule, named(rule, layer, slot)));
        match is_stored(&name) {
            true => (first, name),
            false => others.find(|(_, name)| is_stored(name)).unwrap_or((first, name)),
        }
    };
    let mut tensors: Vec<TensorPlan> = Vec::new();
    let mut by_name: HashMap<String, usize> = HashMap::new();
    for (layer, slot, mut shape) in spec.slots() {
        let attention = layer.and_then(|layer| spec.layers[layer].attention());
        if slot == Slot::V && attention.is_some_and(|attention| attention.values_are_keys) {
            let at = by_name[&rule(Slot::K, layer).1];
            let rows = tensors[at].slots[0].rows.clone();
            tensors[at].slots.push(SlotRows { slot, layer, rows, first: 0 });
            continue;
        }
        let (rule, name) = rule(slot, layer);
        let take = rule.take;
        match by_name.get(&name) {
            Some(&at) if !matches!(take, Take::Whole | Take::RowOfEachHead | Take::Row) => {
                let tensor = &mut tensors[at];
                let rows = tensor.shape[0]..tensor.shape[0] + shape[0];
                tensor.shape[0] = rows.end;
                tensor.slots.push(SlotRows { slot, layer, rows, first: 0 });
            }
            _ => {
                by_name.insert(name.clone(), tensors.len());
                let before = if let Take::Behind(rows) = take { rows } else { 0 };
                shape[0] += before;
                let slots = vec![SlotRows { slot, layer, rows: before..shape[0], first: 0 }];
                tensors.push(TensorPlan {
                    name,
                    shape,
                    stored_shape: Vec::new(),
                    take,
                    slots,
                    columns: None,
                    scheme: None,
                    on_load: None,
                });
            }
        }
    }
    for tensor in &mut tensors {
        let experts = tensor.slots.iter().filter_map(|slot| slot.slot.expert());
        let experts = experts.max().map_or(1, |last| last + 1);
        tensor.stored_shape = match (tensor.take, tensor.shape.as_slice()) {
            (Take::Transposed, &[n, k]) => vec![k, n],
            (Take::RowOfEachHead, &[n]) => {
                let attention = spec.layer_of(&tensor.slots[0]).attention();
                let head_dim = attention.expect("norms of heads are an attention's").head_dim;
                vec![n / head_dim, head_dim]
            }
            (Take::ConvKernel, &[n]) => {
                let kernel_size = match &spec.layer_of(&tensor.slots[0]).mixer {
                    Mixer::LinearAttention(net) => net.kernel_size,
                    Mixer::ShortConv(conv) => conv.kernel_size,
                    Mixer::Attention(_) => unreachable!("only convolutions have such a kernel"),
                };
                vec![n / kernel_size, 1, kernel_size]
            }
            (Take::Row, &[n]) => vec![1, n],
            (Take::Experts { .. }, &[n]) => vec![experts, n / experts],
            (Take::Experts { .. }, &[n, k]) => vec![experts, k, n / experts],
            (Take::ExpertRows, &[n, k]) => vec![experts, n / experts, k],
            (_, shape) => shape.to_vec(),
        };
        if tensor.take == Take::Heads {
            let keys = |rows: &SlotRows| matches!(rows.slot, Slot::K | Slot::KBias);
            let heads = match &spec.layer_of(&tensor.slots[0]).mixer {
                Mixer::Attention(a) if tensor.slots.iter().any(keys) => a.kv_heads,
                Mixer::Attention(attention) => attention.heads,
                Mixer::LinearAttention(net) => net.key_heads,
                Mixer::ShortConv(_) => unreachable!("convolutions have no heads"),
            };
            tensor.slots = head_by_head(&tensor.slots, heads);
        }
    }
    tensors
}

/// Slots whose rows lie one after the other, with the rows of each of `heads` heads together instead.
fn head_by_head(slots: &[SlotRows], heads: usize) -> Vec<SlotRows> {
    let mut start = 0;
    let runs = (0..heads).flat_map(|head| slots.iter().map(move |slot| (head, slot)));
    let runs = runs.map(|(head, slot)| {
        let len = slot.rows.len() / heads;
        let rows = start..start + len;
        start = rows.end;
        SlotRows { rows, first: head * len, ..slot.clone() }
    });
    runs.collect()
}

/// Whether a tensor that no rule names may be left out. Old checkpoints stored RoPE frequencies and causal masks. Others have a copy of
/// the embedding as the head of a tied model, or keys and values of layers that read those of others.
pub(crate) fn may_skip(spec: &ModelSpec, name: &str) -> bool {
    let is_unused = || {
        let of_layer = name.strip_prefix("model.layers.").or_else(|| name.strip_prefix("blk."));
        let rest = of_layer.and_then(|rest| rest.split_once('.'));
        rest.is_some_and(|(layer, part)| {
            let layer = layer.parse().ok().and_then(|layer: usize| spec.layers.get(layer));
            let attention = layer.and_then(LayerSpec::attention);
            let reads_others = attention.is_some_and(|attention| attention.keys_of.is_some());
            reads_others && KEYS.iter().any(|keys| part.starts_with(keys))
        })
    };
    let is_mask = || MASKS.iter().any(|mask| name.ends_with(mask));
    name.ends_with(".rotary_emb.inv_freq")
        || (spec.head.tied && name == "lm_head.weight")
        || is_mask()
        || is_unused()
}

/// Causal masks in old checkpoints of GPTs.
const MASKS: [&str; 4] =
    [".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias"];

/// Parts of an attention that one which reads the keys and values of another does not use.
const KEYS: [&str; 7] = [
    "self_attn.k_proj.",
    "self_attn.v_proj.",
    "self_attn.k_norm.",
    "self_attn.v_norm.",
    // In GGUF files.
    "attn_k.",
    "attn_v.",
    "attn_k_norm.",
];

impl ModelSpec {
    /// The layer that rows belong to, which are a layer's.
    fn layer_of(&self, rows: &SlotRows) -> &LayerSpec {
        &self.layers[rows.layer.expect("mixers are in layers")]
    }

    /// Every tensor of the model: its layer, slot and shape.
    pub fn slots(&self) -> impl Iterator<Item = (Option<usize>, Slot, Vec<usize>)> + '_ {
        let (vocab, hidden) = (self.vocab_size, self.hidden_size);
        let mut outside = vec![(Slot::Embed, vec![vocab, hidden]), (Slot::FinalNorm, vec![hidden])];
        if self.final_norm.kind.has_bias() {
            outside.push((Slot::FinalNormBias, vec![hidden]));
        }
        if let Some(positions) = self.embed.positions {
            outside.push((Slot::Positions, vec![positions, hidden]));
        }
        if let Some(PerLayerSpec { vocab_size, width, .. }) = self.per_layer {
            let all = self.layers.len() * width;
            outside.extend([
                (Slot::PerLayerEmbed, vec![vocab_size, all]),
                (Slot::PerLayerProjection, vec![all, hidden]),
                (Slot::PerLayerNorm, vec![width]),
            ]);
        }
        if !self.head.tied {
            outside.push((Slot::Head, vec![vocab, hidden]));
        }
        if self.head.bias {
            outside.push((Slot::HeadBias, vec![vocab]));
        }
        let width = self.per_layer.map(|per_layer| per_layer.width);
        let layers = self.layers.iter().enumerate().flat_map(move |(i, layer)| {
            layer_slots(layer, hidden, width)
                .into_iter()
                .map(move |(slot, shape)| (Some(i), slot, shape))
        });
        outside.into_iter().map(|(slot, shape)| (None, slot, shape)).chain(layers)
    }
}

/// `width` is that of what layers get beside the residual.
fn layer_slots(layer: &LayerSpec, hidden: usize, width: Option<usize>) -> Vec<(Slot, Vec<usize>)> {
    let norms: &[Slot] = match layer.residual {
        Residual::PreNorm if layer.ffn == FfnSpec::Nothing => &[Slot::AttnNorm],
        Residual::PreNorm | Residual::ParallelNorms => &[Slot::AttnNorm, Slot::FfnNorm],
        Residual::Sandwich => {
            &[Slot::AttnNorm, Slot::FfnNorm, Slot::AttnPostNorm, Slot::FfnPostNorm]
        }
        Residual::PostNorm => &[Slot::AttnPostNorm, Slot::FfnPostNorm],
        Residual::Parallel => &[Slot::AttnNorm],
    };
    let mut slots: Vec<_> = norms.iter().map(|norm| (*norm, vec![hidden])).collect();
    if layer.norm.kind.has_bias() {
        let biases = norms.iter().filter_map(|norm| norm.info().bias);
        slots.extend(biases.map(|bias| (bias, vec![hidden])));
    }
    if layer.scaled {
        slots.push((Slot::LayerScale, vec![1]));
    }
    if let Some(width) = width {
        slots.extend([
            (Slot::PerLayerGate, vec![width, hidden]),
            (Slot::PerLayerOut, vec![hidden, width]),
            (Slot::PerLayerPostNorm, vec![hidden]),
        ]);
    }
    slots.extend(match &layer.mixer {
        Mixer::Attention(attention) => attention_slots(attention, hidden),
        Mixer::LinearAttention(net) => linear_attention_slots(net, hidden),
        Mixer::ShortConv(conv) => short_conv_slots(conv, hidden),
    });
    match &layer.ffn {
        FfnSpec::Nothing => {}
        FfnSpec::Dense(mlp) => slots.extend(mlp_slots(mlp, hidden)),
        FfnSpec::Experts(experts) => {
            let inner = experts.expert.inner;
            slots.push((Slot::Router, vec![experts.count, hidden]));
            if experts.router_bias {
                slots.push((Slot::RouterBias, vec![experts.count]));
            }
            if experts.gating.bias {
                slots.push((Slot::RouterCorrection, vec![experts.count]));
            }
            if experts.gating.scales {
                slots.push((Slot::RouterScales, vec![experts.count]));
            }
            if experts.separate_norms {
                let norms = [
                    Slot::RouterNorm,
                    Slot::ExpertsNorm,
                    Slot::ExpertsPostNorm,
                    Slot::SharedPostNorm,
                ];
                slots.extend(norms.map(|norm| (norm, vec![hidden])));
            }
            if let Some(MlpSpec { inner, .. }) = experts.shared {
                if experts.shared_gate {
                    slots.push((Slot::SharedScore, vec![1, hidden]));
                }
                if experts.expert.gated {
                    slots.push((Slot::SharedGate, vec![inner, hidden]));
                }
                slots.extend([
                    (Slot::SharedUp, vec![inner, hidden]),
                    (Slot::SharedDown, vec![hidden, inner]),
                ]);
            }
            slots.extend((0..experts.count).flat_map(|expert| {
                let gate = (Slot::ExpertGate(expert), vec![inner, hidden]);
                let others = [
                    (Slot::ExpertUp(expert), vec![inner, hidden]),
                    (Slot::ExpertDown(expert), vec![hidden, inner]),
                ];
                experts.expert.gated.then_some(gate).into_iter().chain(others)
            }));
            if experts.expert.bias {
                slots.extend((0..experts.count).flat_map(|expert| {
                    [
                        (Slot::ExpertGateBias(expert), vec![inner]),
                        (Slot::ExpertUpBias(expert), vec![inner]),
                        (Slot::ExpertDownBias(expert), vec![hidden]),
                    ]
                }));
            }
        }
    }
    slots
}

fn attention_slots(a: &AttentionSpec, hidden: usize) -> Vec<(Slot, Vec<usize>)> {
    if let Some(latent) = &a.latent {
        return latent_slots(a, latent, hidden);
    }
    let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
    let mut slots = vec![(Slot::Q, vec![q, hidden])];
    if a.keys_of.is_none() {
        slots.extend([(Slot::K, vec![kv, hidden]), (Slot::V, vec![kv, hidden])]);
    }
    slots.push((Slot::O, vec![hidden, q]));
    if a.gated {
        slots.insert(1, (Slot::AttnGate, vec![q, hidden]));
    }
    if a.qkv_bias {
        slots.extend([(Slot::QBias, vec![q]), (Slot::KBias, vec![kv]), (Slot::VBias, vec![kv])]);
    }
    let has_keys = |slot: &(Slot, Vec<usize>)| slot.0 != Slot::KNorm || a.keys_of.is_none();
    if a.out_bias {
        slots.push((Slot::OBias, vec![hidden]));
    }
    match a.qk_norm.map(|norm| norm.span) {
        None => {}
        Some(QkNormSpan::Head) => {
            let norms = [(Slot::QNorm, vec![a.head_dim]), (Slot::KNorm, vec![a.head_dim])];
            slots.extend(norms.into_iter().filter(has_keys));
        }
        Some(QkNormSpan::AllHeads | QkNormSpan::EachHead) => {
            slots.extend([(Slot::QNorm, vec![q]), (Slot::KNorm, vec![kv])]);
        }
    }
    if a.sinks {
        slots.push((Slot::Sinks, vec![a.heads]));
    }
    slots
}

fn latent_slots(a: &AttentionSpec, l: &LatentSpec, hidden: usize) -> Vec<(Slot, Vec<usize>)> {
    let q = a.heads * a.q_dim();
    let queries = match l.q_rank {
        None => vec![(Slot::Q, vec![q, hidden])],
        Some(rank) => vec![
            (Slot::QLatent, vec![rank, hidden]),
            (Slot::QLatentNorm, vec![rank]),
            (Slot::QUp, vec![q, rank]),
        ],
    };
    let others = [
        (Slot::KvLatent, vec![a.head_dim, hidden]),
        (Slot::KvLatentNorm, vec![l.rank]),
        match l.transposed_keys {
            true => (Slot::KeyUp, vec![a.heads * l.rank, l.key_dim]),
            false => (Slot::KeyUp, vec![a.heads * l.key_dim, l.rank]),
        },
        (Slot::ValueUp, vec![a.heads * l.value_dim, l.rank]),
        (Slot::O, vec![hidden, a.heads * l.value_dim]),
    ];
    queries.into_iter().chain(others).collect()
}

/// In the order in which tensors have the rows of several: that of Mamba-2 is the other way round.
fn linear_attention_slots(net: &LinearAttentionSpec, hidden: usize) -> Vec<(Slot, Vec<usize>)> {
    let (keys, values, heads) = (net.keys(), net.values(), net.value_heads);
    let matrix = |(slot, rows): (Slot, usize)| (slot, vec![rows, hidden]);
    let mut rows = [
        (Slot::LinearAttnQ, keys),
        (Slot::LinearAttnK, keys),
        (Slot::LinearAttnV, values),
        (Slot::LinearAttnGate, values),
    ];
    let mut convolved = [
        (Slot::LinearAttnConvQ, Slot::LinearAttnBiasQ, keys),
        (Slot::LinearAttnConvK, Slot::LinearAttnBiasK, keys),
        (Slot::LinearAttnConvV, Slot::LinearAttnBiasV, values),
    ];
    let of_rule = match net.rule {
        UpdateRuleSpec::Delta => {
            vec![
                (Slot::LinearAttnBeta, vec![heads, hidden]),
                (Slot::LinearAttnNorm, vec![net.value_dim]),
            ]
        }
        UpdateRuleSpec::Mamba2 { .. } => {
            rows.reverse();
            convolved.reverse();
            vec![(Slot::LinearAttnSkip, vec![heads]), (Slot::LinearAttnNorm, vec![values])]
        }
    };
    let has_bias = net.rule == UpdateRuleSpec::Mamba2 { conv_bias: true };
    let kernels = convolved.map(|(kernel, _, rows)| (kernel, vec![rows * net.kernel_size]));
    let biases = convolved.map(|(_, bias, rows)| (bias, vec![rows]));
    let others = [
        (Slot::LinearAttnDecay, vec![heads, hidden]),
        (Slot::LinearAttnOut, vec![hidden, values]),
        (Slot::LinearAttnLogRate, vec![heads]),
        (Slot::LinearAttnDecayBias, vec![heads]),
    ];
    let all = rows.map(matrix).into_iter().chain(of_rule).chain(others).chain(kernels);
    all.chain(biases.into_iter().filter(|_| has_bias)).collect()
}

fn short_conv_slots(conv: &ShortConvSpec, hidden: usize) -> Vec<(Slot, Vec<usize>)> {
    let ShortConvSpec { channels, kernel_size } = *conv;
    let rows = [Slot::ConvB, Slot::ConvC, Slot::ConvX].map(|slot| (slot, vec![channels, hidden]));
    let others =
        [(Slot::ConvKernel, vec![channels * kernel_size]), (Slot::ConvOut, vec![hidden, channels])];
    rows.into_iter().chain(others).collect()
}

fn mlp_slots(mlp: &MlpSpec, hidden: usize) -> Vec<(Slot, Vec<usize>)> {
    let inner = mlp.inner;
    let mut slots = vec![(Slot::Up, vec![inner, hidden]), (Slot::Down, vec![hidden, inner])];
    if mlp.gated {
        slots.insert(0, (Slot::Gate, vec![inner, hidden]));
    }
    if mlp.bias {
        if mlp.gated {
            slots.push((Slot::GateBias, vec![inner]));
        }
        slots.extend([(Slot::UpBias, vec![inner]), (Slot::DownBias, vec![hidden])]);
    }
    slots
}

#[cfg(test)]
mod tests;
