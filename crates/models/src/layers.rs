//! The walk over a model's layers, once for all devices: what is computed in which order.

use std::ops::Range;

use candle_core::Tensor;
use candlepower_checkpoint::{
    AttentionSpec, EmbedSpec, KvPlace, LayerSpec, Mixer as MixerSpec, ModelSpec, NormSpec,
    PerLayerSpec, QkNormSpan, Residual, RopeSpec, Slot,
};
use candlepower_gpu::NormWeight;
use candlepower_kernels::{Activation, Experts, PagedAttention, RopeTable};

use crate::{
    error::Result,
    latent_attention::LatentAttention,
    parts::{Matrix, Parts},
    recurrence::Recurrence,
    rope::rope_table,
    short_conv::ShortConv,
};

mod ffn;

use ffn::Ffn;

/// The operations that the walk is made of. Each returns a tensor that holds its result until the same operation, or
/// one that writes to the same place, is asked for again: a new tensor, or a buffer.
pub(crate) trait Ops {
    /// How this device keeps matrices.
    type Matrix: Matrix;

    /// The embeddings of the step's tokens, `[tokens, hidden]`, with those of their positions where the model has such:
    /// the first residual.
    fn embed(&self, table: &Self::Matrix, positions: Option<&Self::Matrix>) -> Result<Tensor>;
    /// What each layer gets of the step's tokens beside the residual, `[tokens, layers * width]`, of their embeddings.
    fn per_layer(&self, x: &Tensor, of: &PerLayer<Self::Matrix>) -> Result<Tensor>;
    /// `act(x)` times as many columns of `per_layer`, from `first` on, in place of `x`.
    fn times(&self, x: Tensor, act: Activation, per_layer: &Tensor, first: usize)
    -> Result<Tensor>;
    /// The operations on the wanted tokens alone, of which `tokens` are the rows, where not all are wanted; `None` of these where
    /// none is.
    fn of_wanted(&self, tokens: &Tokens) -> Result<Wanted<Self>>
    where
        Self: Sized;
    /// What [`Layers::forward`] is to return where not all tokens are wanted: on the CPU their rows among those of all, the others zeros; on a
    /// device the rows themselves. `None` where there are none.
    fn among_all(&self, wanted: Option<&Tensor>) -> Result<Tensor>;
    /// The norm of the residual.
    fn norm(&self, residual: &Tensor, norm: &Norm) -> Result<Tensor>;
    /// The norm of what is about to be added to the residual.
    fn post_norm(&self, x: Tensor, norm: &Norm) -> Result<Tensor>;
    /// `(residual + x) * scale`.
    fn add(&self, residual: Tensor, x: &Tensor, scale: f32) -> Result<Tensor>;
    /// `(residual + x) * scale`, and its norm.
    fn add_norm(
        &self,
        residual: Tensor,
        x: &Tensor,
        scale: f32,
        norm: &Norm,
    ) -> Result<(Tensor, Tensor)>;
    /// `x W^T + b`.
    fn linear(&self, x: &Tensor, linear: &Linear<Self::Matrix>, place: Place) -> Result<Tensor>;
    /// From the rows of q, k and v, or of q alone, to the attended rows `[tokens, heads * head_dim]`; writes keys and values to the
    /// cache.
    fn attend(&self, qkv: &Tensor, attention: &Attention<Self::Matrix>) -> Result<Tensor>;
    /// From the rows of queries and of latents to the attended rows `[tokens, heads * value_dim]`; writes latents to the cache.
    fn attend_latents(
        &self,
        q: &Tensor,
        latents: &Tensor,
        attention: &LatentAttention<Self::Matrix>,
    ) -> Result<Tensor>;
    /// From the rows `[q, k, v, z]` of a recurrence and what steers its states to what comes out, `[tokens, values]`; moves on the states.
    fn recurrence(
        &self,
        rows: &Tensor,
        gates: &Tensor,
        net: &Recurrence<Self::Matrix>,
    ) -> Result<Tensor>;
    /// From the rows `[b, c, x]` of a short convolution to what comes out, `[tokens, channels]`; keeps what later tokens see.
    fn short_conv(&self, rows: &Tensor, conv: &ShortConv<Self::Matrix>) -> Result<Tensor>;
    /// The norm of each group of `x`, `[tokens, groups * dim]`, where the norm has weights `[groups, dim]`.
    fn norm_groups(&self, x: Tensor, norm: &Norm) -> Result<Tensor>;
    /// `x * sigmoid(gate)`, where `gate` is as wide as `x` or has one number for each row.
    fn gate(&self, x: Tensor, gate: &Tensor) -> Result<Tensor>;
    /// `act(gate) * up`, where `[gate, up]` are the rows of `x W^T + b`.
    fn gated(&self, x: &Tensor, linear: &Linear<Self::Matrix>, act: Activation) -> Result<Tensor>;
    /// `act(x)`.
    fn activate(&self, x: &Tensor, act: Activation) -> Result<Tensor>;
    /// Finds by `scored` which experts the tokens go to: what [`Self::experts`] is to be told.
    fn route(&self, scored: &Tensor, layer: &RoutedExperts<Self::Matrix>) -> Result<Tensor>;
    /// What the experts make of the rows that they get, in [`Place::Branch`] or [`Place::Aside`]; with `shared`, what [`Place::Part`] has.
    fn experts(
        &self,
        x: &Tensor,
        routes: &Tensor,
        layer: &RoutedExperts<Self::Matrix>,
        shared: Option<Tensor>,
        place: Place,
    ) -> Result<Tensor>;
}

/// What goes from layer to layer.
#[derive(Clone)]
pub(crate) struct Tokens {
    /// The residual, `[tokens, hidden]`.
    pub(crate) x: Tensor,
    /// What the next block reads of it.
    pub(crate) input: Tensor,
    /// What [`Ops::per_layer`] has made.
    pub(crate) per_layer: Option<Tensor>,
}

/// Of which tokens the hidden states are wanted.
pub(crate) enum Wanted<O> {
    All,
    Some(O, Tokens),
    None,
}

/// Where a product goes: on a device with buffers to one of them, and among ranks to this one alone or to a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Rows wider than the model: q, k and v, or gate and up, or a gate of what is elsewhere.
    Wide,
    /// A few numbers for each row, which are read together with rows in [`Self::Wide`].
    Narrow,
    /// Rows as wide as the model, to be added to the residual.
    Branch,
    /// As [`Self::Branch`], but what a rank makes stays its own: the sum is made of it and of something else, or all ranks make the same.
    Part,
    /// As [`Self::Branch`], where the attended rows were, so that what is in the other place stays.
    Aside,
}

/// A layer's experts, over a device's matrices.
pub(crate) type RoutedExperts<M> = Experts<M, <M as Matrix>::All>;

/// A model's weights in the order of their use.
pub(crate) struct Layers<M: Matrix> {
    pub(crate) embed: M,
    positions: Option<M>,
    per_layer: Option<PerLayer<M>>,
    layers: Vec<Layer<M>>,
    /// From this layer on, all have queries alone: what they make of a token is of no use to others.
    first_reader: usize,
    final_norm: Norm,
    pub(crate) head: Linear<M>,
    tied: bool,
}

/// What makes of a token what each layer gets beside the residual.
pub(crate) struct PerLayer<M> {
    /// Its rows `[vocab, layers * width]`.
    pub(crate) table: M,
    /// The factor on these.
    pub(crate) embed: EmbedSpec,
    /// What the embedding becomes `[layers * width, hidden]`.
    pub(crate) projection: M,
    /// The norm of that, for each layer's numbers.
    pub(crate) norm: Norm,
    width: usize,
    activation: Activation,
}

/// Where a layer takes its part of them.
struct OfLayer<M> {
    gate: Linear<M>,
    out: Linear<M>,
    norm: Norm,
}

/// One layer. The norm before the attention belongs to the sum before it, so that the two are one
/// kernel.
struct Layer<M: Matrix> {
    attn_norm: Option<Norm>,
    mixer: Mixer<M>,
    attn_post_norm: Option<Norm>,
    ffn_norm: Option<Norm>,
    ffn: Option<Ffn<M>>,
    ffn_post_norm: Option<Norm>,
    per_layer: Option<OfLayer<M>>,
    /// What the residual behind it is multiplied by.
    scale: f32,
    /// The feed-forward reads what the attention read, or a norm of the same residual.
    parallel: bool,
}

/// What mixes the tokens of a sequence.
enum Mixer<M: Matrix> {
    Attention(Attention<M>),
    Latent(LatentAttention<M>),
    Recurrence(Recurrence<M>),
    ShortConv(ShortConv<M>),
}

/// One layer's attention.
pub(crate) struct Attention<M> {
    /// Where its keys and values lie.
    pub(crate) place: KvPlace,
    /// Whether it makes them: else there are queries alone.
    pub(crate) has_keys: bool,
    qkv: Linear<M>,
    /// The gate of what comes out.
    gate: Option<Linear<M>>,
    pub(crate) q_norm: Option<Norm>,
    pub(crate) k_norm: Option<Norm>,
    /// What the two norm together.
    pub(crate) norm_span: QkNormSpan,
    pub(crate) rope: RopeTable,
    pub(crate) params: PagedAttention,
    /// Tokens see what is behind them, too.
    pub(crate) both_ways: bool,
    /// What is added to the mean square of each head of v, where those are normed.
    pub(crate) v_norm: Option<f32>,
    /// f32 `[heads]`: scores of the heads' sinks.
    pub(crate) sinks: Option<Tensor>,
    out: Linear<M>,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// Elements of a head as the cache has them.
    pub(crate) head_dim: usize,
    /// Elements of a head that are not padding.
    pub(crate) head_len: usize,
}

/// `x W^T + b`.
pub(crate) struct Linear<M> {
    /// `[out, in]`; shared with the embedding where the head is tied to it.
    pub(crate) weight: M,
    /// `[out]`.
    pub(crate) bias: Option<Tensor>,
}

/// A norm over the last dimension.
pub(crate) struct Norm {
    /// `[dim]`, or `[heads, dim]` of norms of heads.
    pub(crate) weight: Tensor,
    pub(crate) form: NormForm,
    pub(crate) eps: f32,
}

/// Which norm.
pub(crate) enum NormForm {
    /// RMSNorm, and how the weight enters: always plainly on the CPU.
    Rms(NormWeight),
    /// LayerNorm, with the bias `[dim]` where there is one.
    Layer(Option<Tensor>),
}

impl<M: Matrix> Layers<M> {
    /// Takes the model's parts, with rope tables for `max_model_len` positions.
    pub(crate) fn take(
        spec: &ModelSpec,
        mut parts: Parts<M>,
        max_model_len: usize,
    ) -> Result<Self> {
        let embed = parts.matrix(None, Slot::Embed);
        let head = match spec.head.tied {
            true => embed.clone(),
            false => parts.matrix(None, Slot::Head),
        };
        let positions = spec.embed.positions.map(|_| parts.matrix(None, Slot::Positions));
        let per_layer = spec.per_layer.as_ref();
        let per_layer = per_layer.map(|of| PerLayer::take(&mut parts, of, spec)).transpose()?;
        let final_norm = parts.norm(None, Slot::FinalNorm, &spec.final_norm)?;
        let mut tables: Vec<(&Option<RopeSpec>, RopeTable)> = Vec::new();
        let mut layers = Vec::with_capacity(spec.layers.len());
        let mut states = 0..;
        for (i, layer) in spec.layers.iter().enumerate() {
            let mixer = match &layer.mixer {
                MixerSpec::Attention(attention) => {
                    let rope = &attention.rope;
                    let table = match tables.iter().find(|(same, _)| *same == rope) {
                        Some((_, table)) => table.clone(),
                        None => {
                            let table = rope_table(rope.as_ref(), max_model_len)?;
                            let table = table.to_device(&parts.layout().device)?;
                            tables.push((rope, table.clone()));
                            table
                        }
                    };
                    let place = spec.kv_place(i).expect("the layer has an attention");
                    let at = (i, place);
                    match &attention.latent {
                        None => {
                            Mixer::Attention(Attention::take(&mut parts, at, attention, table)?)
                        }
                        Some(latent) => {
                            let of = (&**attention, latent);
                            Mixer::Latent(LatentAttention::take(&mut parts, at, of, table)?)
                        }
                    }
                }
                MixerSpec::Recurrence(net) => {
                    let index = states.next().expect("there is no end of numbers");
                    Mixer::Recurrence(Recurrence::take(&mut parts, (i, index), net)?)
                }
                MixerSpec::ShortConv(conv) => {
                    let index = states.next().expect("there is no end of numbers");
                    Mixer::ShortConv(ShortConv::take(&mut parts, (i, index), conv)?)
                }
            };
            layers.push(Layer::take(&mut parts, i, layer, mixer)?);
        }
        Ok(Self {
            embed,
            positions,
            per_layer,
            layers,
            first_reader: spec.first_reader(),
            final_norm: final_norm.expect("the plan holds the final norm"),
            head: Linear { weight: head, bias: parts.vector(None, Slot::HeadBias)? },
            tied: spec.head.tied,
        })
    }

    /// Runs the layers over a step's tokens. Returns the hidden states `[tokens, hidden]` after the final norm, of those that are wanted.
    pub(crate) fn forward<O: Ops<Matrix = M>>(&self, ops: &O) -> Result<Tensor> {
        let x = ops.embed(&self.embed, self.positions.as_ref())?;
        let per_layer = self.per_layer.as_ref().map(|of| ops.per_layer(&x, of)).transpose()?;
        let Some(first) = self.layers.first() else { return ops.norm(&x, &self.final_norm) };
        let input = match &first.attn_norm {
            Some(norm) => ops.norm(&x, norm)?,
            None => x.clone(),
        };
        let tokens = Tokens { x, input, per_layer };
        let tokens = self.walk(ops, 0..self.first_reader, tokens)?;
        let readers = self.first_reader..self.layers.len();
        if readers.is_empty() {
            return Ok(tokens.input);
        }
        match ops.of_wanted(&tokens)? {
            Wanted::All => Ok(self.walk(ops, readers, tokens)?.input),
            Wanted::Some(of_wanted, tokens) => {
                let hidden = self.walk(&of_wanted, readers, tokens)?.input;
                ops.among_all(Some(&hidden))
            }
            Wanted::None => ops.among_all(None),
        }
    }

    /// Runs some of the layers.
    fn walk<O: Ops<Matrix = M>>(
        &self,
        ops: &O,
        layers: Range<usize>,
        tokens: Tokens,
    ) -> Result<Tokens> {
        let Tokens { mut x, mut input, per_layer } = tokens;
        for i in layers {
            let layer = &self.layers[i];
            let next_norm = match self.layers.get(i + 1) {
                Some(next) => next.attn_norm.as_ref(),
                None => Some(&self.final_norm),
            };
            let y = layer.mixer.forward(ops, &input)?;
            let y = optional(ops, &layer.attn_post_norm, y)?;
            let Some(ffn) = &layer.ffn else {
                (x, input) = add_norm(ops, x, &y, layer.scale, next_norm)?;
                continue;
            };
            if layer.parallel {
                if let Some(norm) = &layer.ffn_norm {
                    input = ops.norm(&x, norm)?;
                }
                x = ops.add(x, &y, 1.0)?;
            } else {
                (x, input) = add_norm(ops, x, &y, 1.0, layer.ffn_norm.as_ref())?;
            }
            let y = ffn.forward(ops, &input, &x)?;
            let mut y = optional(ops, &layer.ffn_post_norm, y)?;
            let of_model = self.per_layer.as_ref().zip(per_layer.as_ref());
            if let Some((own, (of, all))) = layer.per_layer.as_ref().zip(of_model) {
                x = ops.add(x, &y, 1.0)?;
                let gate = ops.linear(&x, &own.gate, Place::Narrow)?;
                let part = ops.times(gate, of.activation, all, i * of.width)?;
                y = ops.post_norm(ops.linear(&part, &own.out, Place::Part)?, &own.norm)?;
            }
            (x, input) = add_norm(ops, x, &y, layer.scale, next_norm)?;
        }
        Ok(Tokens { x, input, per_layer })
    }

    /// Bytes of the weights as loaded.
    pub(crate) fn num_bytes(&self) -> usize {
        let layers = self.layers.iter().map(Layer::num_bytes);
        let shared = if self.tied { self.head.weight.num_bytes() } else { 0 };
        let head = self.head.num_bytes() - shared;
        let positions = self.positions.as_ref().map_or(0, M::num_bytes);
        let per_layer = self.per_layer.as_ref().map_or(0, PerLayer::num_bytes);
        self.embed.num_bytes()
            + positions
            + per_layer
            + head
            + self.final_norm.num_bytes()
            + layers.sum::<usize>()
    }
}

/// Applies a norm that not every model has.
fn optional<O: Ops>(ops: &O, norm: &Option<Norm>, x: Tensor) -> Result<Tensor> {
    match norm {
        Some(norm) => ops.post_norm(x, norm),
        None => Ok(x),
    }
}

/// `(residual + x) * scale`, and what the next block reads: its norm, or, where that has none before it, the sum itself.
fn add_norm<O: Ops>(
    ops: &O,
    residual: Tensor,
    x: &Tensor,
    scale: f32,
    norm: Option<&Norm>,
) -> Result<(Tensor, Tensor)> {
    match norm {
        Some(norm) => ops.add_norm(residual, x, scale, norm),
        None => {
            let sum = ops.add(residual, x, scale)?;
            Ok((sum.clone(), sum))
        }
    }
}

impl<M: Matrix> PerLayer<M> {
    fn take(parts: &mut Parts<M>, spec: &PerLayerSpec, model: &ModelSpec) -> Result<Self> {
        let table = parts.matrix(None, Slot::PerLayerEmbed);
        // What is projected has a factor before its norm, which the norm takes out again but for what it adds.
        let eps = spec.eps * model.hidden_size as f64;
        let norm = NormSpec { eps, ..model.final_norm };
        let norm = parts.norm(None, Slot::PerLayerNorm, &norm)?;
        Ok(Self {
            embed: EmbedSpec { scale: spec.scale, ..model.embed },
            table,
            projection: parts.matrix(None, Slot::PerLayerProjection),
            norm: norm.expect("the plan holds the norm"),
            width: spec.width,
            activation: spec.act,
        })
    }

    fn num_bytes(&self) -> usize {
        self.table.num_bytes() + self.projection.num_bytes() + self.norm.num_bytes()
    }
}

impl<M: Matrix> OfLayer<M> {
    fn take(parts: &mut Parts<M>, i: usize, spec: &LayerSpec) -> Result<Option<Self>> {
        let norm = parts.norm(Some(i), Slot::PerLayerPostNorm, &spec.norm)?;
        let mut linear = |part| Linear::without_bias(parts, i, part);
        Ok(norm.map(|norm| Self {
            gate: linear(Slot::PerLayerGate),
            out: linear(Slot::PerLayerOut),
            norm,
        }))
    }

    fn num_bytes(&self) -> usize {
        self.gate.num_bytes() + self.out.num_bytes() + self.norm.num_bytes()
    }
}

impl<M: Matrix> Layer<M> {
    fn take(parts: &mut Parts<M>, i: usize, spec: &LayerSpec, mixer: Mixer<M>) -> Result<Self> {
        let mut norm = |part| parts.norm(Some(i), part, &spec.norm);
        Ok(Self {
            attn_norm: norm(Slot::AttnNorm)?,
            attn_post_norm: norm(Slot::AttnPostNorm)?,
            ffn_norm: norm(Slot::FfnNorm)?,
            ffn_post_norm: norm(Slot::FfnPostNorm)?,
            parallel: matches!(spec.residual, Residual::Parallel | Residual::ParallelNorms),
            mixer,
            per_layer: OfLayer::take(parts, i, spec)?,
            scale: parts.number(i, Slot::LayerScale).unwrap_or(1.0),
            ffn: Ffn::take(parts, i, spec)?,
        })
    }

    fn num_bytes(&self) -> usize {
        let before = self.attn_norm.iter().chain(&self.ffn_norm);
        let norms = before.chain(&self.attn_post_norm).chain(&self.ffn_post_norm);
        let norms = norms.map(Norm::num_bytes);
        let per_layer = self.per_layer.as_ref().map_or(0, OfLayer::num_bytes);
        let ffn = self.ffn.as_ref().map_or(0, Ffn::num_bytes);
        self.mixer.num_bytes() + ffn + norms.sum::<usize>() + per_layer
    }
}

impl<M: Matrix> Mixer<M> {
    /// `[tokens, hidden]` -> `[tokens, hidden]`.
    fn forward<O: Ops<Matrix = M>>(&self, ops: &O, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Attention(attention) => attention.forward(ops, x),
            Self::Latent(attention) => attention.forward(ops, x),
            Self::Recurrence(net) => net.forward(ops, x),
            Self::ShortConv(conv) => conv.forward(ops, x),
        }
    }

    fn num_bytes(&self) -> usize {
        match self {
            Self::Attention(attention) => attention.num_bytes(),
            Self::Latent(attention) => attention.num_bytes(),
            Self::Recurrence(net) => net.num_bytes(),
            Self::ShortConv(conv) => conv.num_bytes(),
        }
    }
}

impl<M: Matrix> Attention<M> {
    /// Takes the parts of the attention of layer `layer`, whose keys and values lie at `place`.
    fn take(
        parts: &mut Parts<M>,
        (layer, place): (usize, KvPlace),
        spec: &AttentionSpec,
        rope: RopeTable,
    ) -> Result<Self> {
        let head_dim = parts.layout().padded_head(spec.head_dim);
        let mut head_norm = |part| match &spec.qk_norm {
            Some(norm) => parts.head_norm(layer, part, norm, spec.head_dim),
            None => Ok(None),
        };
        let (q_norm, k_norm) = (head_norm(Slot::QNorm)?, head_norm(Slot::KNorm)?);
        let gate = || Linear::without_bias(parts, layer, Slot::AttnGate);
        Ok(Self {
            place,
            has_keys: spec.keys_of.is_none(),
            gate: spec.gated.then(gate),
            q_norm,
            k_norm,
            norm_span: spec.qk_norm.map_or(QkNormSpan::Head, |norm| norm.span),
            qkv: Linear::take(parts, layer, Slot::Q, Slot::QBias)?,
            rope,
            params: PagedAttention {
                scale: spec.scale as f32,
                window: spec.window,
                softcap: spec.softcap.map(|cap| cap as f32),
            },
            both_ways: spec.both_ways,
            v_norm: spec.v_norm.map(|eps| eps as f32),
            sinks: parts.exact(layer, Slot::Sinks)?,
            out: Linear::take(parts, layer, Slot::O, Slot::OBias)?,
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim,
            head_len: spec.head_dim,
        })
    }

    /// `[tokens, hidden]` -> `[tokens, hidden]`.
    fn forward<O: Ops<Matrix = M>>(&self, ops: &O, x: &Tensor) -> Result<Tensor> {
        let qkv = ops.linear(x, &self.qkv, Place::Wide)?;
        let mut attended = ops.attend(&qkv, self)?;
        if let Some(gate) = &self.gate {
            let gate = ops.linear(x, gate, Place::Wide)?;
            attended = ops.gate(attended, &gate)?;
        }
        ops.linear(&attended, &self.out, Place::Branch)
    }

    fn num_bytes(&self) -> usize {
        let norms = self.q_norm.iter().chain(&self.k_norm).map(Norm::num_bytes);
        let sinks = self.sinks.as_ref().map_or(0, tensor_bytes);
        let gate = self.gate.as_ref().map_or(0, Linear::num_bytes);
        self.qkv.num_bytes() + gate + self.out.num_bytes() + norms.sum::<usize>() + sinks
    }
}

impl<M: Matrix> Linear<M> {
    /// Takes a layer's weight, and its bias where the model has one.
    fn take(parts: &mut Parts<M>, layer: usize, weight: Slot, bias: Slot) -> Result<Self> {
        let layer = Some(layer);
        Ok(Self { weight: parts.matrix(layer, weight), bias: parts.vector(layer, bias)? })
    }

    pub(crate) fn without_bias(parts: &mut Parts<M>, layer: usize, weight: Slot) -> Self {
        Self { weight: parts.matrix(Some(layer), weight), bias: None }
    }

    pub(crate) fn num_bytes(&self) -> usize {
        self.weight.num_bytes() + self.bias.as_ref().map_or(0, tensor_bytes)
    }
}

impl Norm {
    pub(crate) fn num_bytes(&self) -> usize {
        let bias = match &self.form {
            NormForm::Layer(Some(bias)) => tensor_bytes(bias),
            _ => 0,
        };
        tensor_bytes(&self.weight) + bias
    }
}

/// Bytes of a tensor.
pub(crate) fn tensor_bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}
