//! A model's weights, layer by layer.

use candlepower_checkpoint::{
    EmbedSpec, LayerSpec, Mixer as MixerSpec, ModelSpec, NormSpec, PerLayerSpec, Residual,
    RopeSpec, Slot,
};
use candlepower_kernels::{Activation, RopeTable};

use crate::{
    attention::{Attention, CachedLayer},
    error::Result,
    latent_attention::LatentAttention,
    linear::Linear,
    linear_attention::LinearAttention,
    norm::Norm,
    parts::{Matrix, Parts},
    rope::rope_table,
    short_conv::ShortConv,
};

mod ffn;

pub(crate) use ffn::{Ffn, Mlp, RoutedExperts};

/// A model's weights in the order of their use.
pub(crate) struct Layers<M: Matrix> {
    pub(crate) embed: M,
    pub(crate) positions: Option<M>,
    pub(crate) per_layer: Option<PerLayer<M>>,
    pub(crate) layers: Vec<Layer<M>>,
    /// From this layer on, all layers read keys of earlier layers. Their results for a token are of no use to other tokens.
    pub(crate) first_reader: usize,
    pub(crate) final_norm: Norm,
    pub(crate) head: Linear<M>,
    pub(crate) tied: bool,
}

/// The weights of per-layer embeddings.
pub(crate) struct PerLayer<M> {
    /// The table `[vocab, layers * width]`.
    pub(crate) table: M,
    /// The factor on the table's rows.
    pub(crate) embed: EmbedSpec,
    /// The projection of the embedding, `[layers * width, hidden]`.
    pub(crate) projection: M,
    /// The norm of the projection, of each layer's values on their own.
    pub(crate) norm: Norm,
    pub(crate) width: usize,
    pub(crate) activation: Activation,
}

/// The weights with which a layer takes its per-layer embeddings.
pub(crate) struct OfLayer<M> {
    pub(crate) gate: Linear<M>,
    pub(crate) out: Linear<M>,
    pub(crate) norm: Norm,
}

/// One layer. The norm before the attention is computed with the sum before it, as one kernel.
pub(crate) struct Layer<M: Matrix> {
    pub(crate) attn_norm: Option<Norm>,
    pub(crate) mixer: Mixer<M>,
    pub(crate) attn_post_norm: Option<Norm>,
    pub(crate) ffn_norm: Option<Norm>,
    pub(crate) ffn: Option<Ffn<M>>,
    pub(crate) ffn_post_norm: Option<Norm>,
    pub(crate) per_layer: Option<OfLayer<M>>,
    /// The factor on the residual behind the layer.
    pub(crate) scale: f32,
    /// Whether the feed-forward reads the attention's input, or a norm of the same residual.
    pub(crate) parallel: bool,
}

/// The mixer of a layer.
pub(crate) enum Mixer<M: Matrix> {
    Attention(Attention<M>),
    Latent(LatentAttention<M>),
    LinearAttention(LinearAttention<M>),
    ShortConv(ShortConv<M>),
}

impl<M: Matrix> Layers<M> {
    /// Takes the model's weights, with rope tables for `max_model_len` positions.
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
                    let kv_layer = spec.kv_layer(i).expect("the layer has an attention");
                    let at = CachedLayer { index: i, kv_layer };
                    match attention.latent {
                        None => {
                            Mixer::Attention(Attention::take(&mut parts, at, attention, table)?)
                        }
                        Some(_) => {
                            let latent = LatentAttention::take(&mut parts, at, attention, table)?;
                            Mixer::Latent(latent)
                        }
                    }
                }
                MixerSpec::LinearAttention(net) => {
                    let index = states.next().expect("the range has no end");
                    Mixer::LinearAttention(LinearAttention::take(&mut parts, i, index, net)?)
                }
                MixerSpec::ShortConv(conv) => {
                    let index = states.next().expect("the range has no end");
                    Mixer::ShortConv(ShortConv::take(&mut parts, i, index, conv)?)
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

    /// The matrix that alone reads the normed input of layer `i`, if nothing else does.
    pub(crate) fn input_reader(&self, i: usize) -> Option<&M> {
        // The first layer that reads earlier layers' keys may have fewer tokens than the layer before, so its input is gathered.
        let layer = self.layers.get(i).filter(|_| i != self.first_reader)?;
        let is_read_by_ffn = layer.parallel && layer.ffn_norm.is_none();
        if is_read_by_ffn { None } else { layer.mixer.input_reader() }
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

impl<M: Matrix> PerLayer<M> {
    fn take(parts: &mut Parts<M>, spec: &PerLayerSpec, model: &ModelSpec) -> Result<Self> {
        let table = parts.matrix(None, Slot::PerLayerEmbed);
        // The model scales the projection before its norm. The norm removes that factor again, except from its epsilon.
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
    /// The matrix that alone reads the mixer's input, if there is one.
    fn input_reader(&self) -> Option<&M> {
        match self {
            Self::Attention(attention) if attention.gate.is_none() => Some(&attention.qkv.weight),
            Self::ShortConv(conv) => Some(&conv.rows.weight),
            // Several matrices read it.
            Self::Attention(_) | Self::Latent(_) | Self::LinearAttention(_) => None,
        }
    }

    fn num_bytes(&self) -> usize {
        match self {
            Self::Attention(attention) => attention.num_bytes(),
            Self::Latent(attention) => attention.num_bytes(),
            Self::LinearAttention(net) => net.num_bytes(),
            Self::ShortConv(conv) => conv.num_bytes(),
        }
    }
}
