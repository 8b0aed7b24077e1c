//! The vocabulary in which every decoder is described.

use std::collections::{BTreeMap, BTreeSet};

use candlepower_layout::{
    Activation, Dtype, ExpertGroups, GatingFunction, Packed, device_head_dim, device_latent_dims,
};

use crate::{
    config::HfConfig,
    error::{Error, Result},
    rope::{RopeScaling, RopeSpec},
    slot::Slot,
    vision::VisionSpec,
};

mod activation;
mod edits;
mod linear_attention;
mod rounding;

pub(crate) use activation::{activation, activation_of};
pub use linear_attention::{LinearAttentionSpec, ShortConvSpec, UpdateRuleSpec};

/// A decoder-only language model, as data.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Rows of the embedding and columns of the logits.
    pub vocab_size: usize,
    /// Width of the hidden states.
    pub hidden_size: usize,
    /// The model's own context length, in tokens: what it gets where nobody asks for another.
    pub max_model_len: usize,
    /// The longest context that may be asked for, in tokens.
    pub max_positions: usize,
    /// The token embedding.
    pub embed: EmbedSpec,
    /// The layers, each spelled out: windows and the like are just different entries.
    pub layers: Vec<LayerSpec>,
    /// Stored layer indices of each layer's mixer and feed-forward, if these are stored as layers of their own. Else empty.
    pub stored_apart: Vec<[usize; 2]>,
    /// The norm before the head.
    pub final_norm: NormSpec,
    /// The projection to logits.
    pub head: HeadSpec,
    /// Per-layer embeddings, if layers get them.
    pub per_layer: Option<PerLayerSpec>,
    /// The form of each quantized matrix, by layer and slot; the others are not quantized.
    pub quantized: BTreeMap<(Option<usize>, Slot), Packed>,
    /// The matrices that are quantized in files and dequantized while loading: [`Slot::is_per_head`].
    pub widened: BTreeSet<(Option<usize>, Slot)>,
    /// The part for images, where it is served.
    pub vision: Option<Box<VisionSpec>>,
}

/// The token embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbedSpec {
    /// Factor on each row.
    pub scale: f64,
    /// The factor is rounded to the embedding's dtype first.
    pub rounded: bool,
    /// Number of learned position embeddings, if the model has them.
    pub positions: Option<usize>,
}

/// The projection to logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadSpec {
    /// The embedding's weight is used.
    pub tied: bool,
    /// Whether there is a bias.
    pub bias: bool,
    /// Factor on the logits, before the soft cap.
    pub scale: f64,
    /// `softcap * tanh(logits / softcap)`.
    pub softcap: Option<f64>,
}

/// Per-layer embeddings: `(norm(projection(embedding)) + row of a table of its own) / sqrt(2)` for each token and layer. A layer adds
/// `norm(out(act(gate(x)) * vector))` to its residual.
/// Source: transformers `models/gemma4`, `Gemma4TextModel`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerLayerSpec {
    /// Rows of the table.
    pub vocab_size: usize,
    /// Values of a token for one layer.
    pub width: usize,
    /// Factor on the rows of the table, rounded as [`EmbedSpec::rounded`] says.
    pub scale: f64,
    /// Added to the mean square of what is projected.
    pub eps: f64,
    /// The activation of the layers' gates.
    pub act: Activation,
}

/// One layer: what mixes the tokens of a sequence, then a feed-forward.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Position of the norms.
    pub residual: Residual,
    /// The form of all the layer's norms, except those of q and k.
    pub norm: NormSpec,
    /// The part that mixes the tokens.
    pub mixer: Mixer,
    /// The feed-forward.
    pub ffn: FfnSpec,
    /// The layer's output is multiplied by a factor of the checkpoint.
    pub scaled: bool,
}

impl LayerSpec {
    /// The attention, where it is one.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        match &self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::LinearAttention(_) | Mixer::ShortConv(_) => None,
        }
    }

    /// Linear attention or an SSM, if the mixer is one.
    pub fn linear_attention(&self) -> Option<&LinearAttentionSpec> {
        match &self.mixer {
            Mixer::LinearAttention(net) => Some(net),
            Mixer::Attention(_) | Mixer::ShortConv(_) => None,
        }
    }

    /// Whether it keeps a state of one size of each sequence.
    pub fn keeps_state(&self) -> bool {
        self.attention().is_none()
    }
}

/// The part of a layer that mixes the tokens of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Attention, which keeps keys and values of every token.
    Attention(Box<AttentionSpec>),
    /// A gated delta net or Mamba-2, which keep a state of one size.
    LinearAttention(LinearAttentionSpec),
    /// A gated short convolution, which keeps the few tokens that it sees.
    ShortConv(ShortConvSpec),
}

/// Position of the norms around attention and feed-forward `f`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// `x + f(norm(x))`
    PreNorm,
    /// `x + norm(f(norm(x)))`
    Sandwich,
    /// `x + norm(f(x))`
    PostNorm,
    /// `x + attention(norm(x)) + feed_forward(norm(x))`, with one norm for both.
    Parallel,
    /// The same with a norm for each.
    ParallelNorms,
}

/// A norm over the last dimension.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// Its kind.
    pub kind: NormKind,
    /// Added to the mean square, or to the variance.
    pub eps: f64,
}

/// Kind of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// RMSNorm: `x / rms(x) * weight`.
    Rms,
    /// RMSNorm whose stored weight is the difference from one (Gemma).
    RmsPlusOne,
    /// LayerNorm: `(x - mean) / deviation * weight`.
    Layer {
        /// A bias is added. Norms after a block and norms of q and k have none.
        bias: bool,
    },
    /// LayerNorm with a bias, whose stored weight is the difference from one (Nemotron).
    LayerPlusOne,
}

impl NormKind {
    /// Whether a bias is added, but after a block.
    pub(crate) fn has_bias(self) -> bool {
        matches!(self, Self::Layer { bias: true } | Self::LayerPlusOne)
    }
}

/// Self-attention with grouped key and value heads, causal unless it is both ways.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of each head.
    pub head_dim: usize,
    /// Factor on the scores.
    pub scale: f64,
    /// q, k and v have biases.
    pub qkv_bias: bool,
    /// The output projection has a bias.
    pub out_bias: bool,
    /// Norm of q and k, before rope.
    pub qk_norm: Option<QkNormSpec>,
    /// The rotary embedding, where there is one.
    pub rope: Option<RopeSpec>,
    /// A token sees itself and this many less one before it.
    pub window: Option<usize>,
    /// A token sees what is behind it, too, as far as what is before it: the model gives vectors and continues no text.
    pub both_ways: bool,
    /// `softcap * tanh(scores / softcap)`.
    pub softcap: Option<f64>,
    /// Each head has a score of its own beside those of the tokens, which takes a part of the weights to nothing.
    pub sinks: bool,
    /// The heads' output is multiplied by the sigmoid of a gate of its width.
    pub gated: bool,
    /// Each head of v is divided by its root mean square, to which so much is added, before it is kept.
    pub v_norm: Option<f64>,
    /// Values are what the rows of keys make, before those are normed and rotated.
    pub values_are_keys: bool,
    /// The earlier layer whose keys and values it reads; it has queries alone.
    pub keys_of: Option<usize>,
    /// Keys and values are made of a latent of each token, which is kept in their place.
    pub latent: Option<LatentSpec>,
}

/// Multi-head latent attention. A token has a latent and a part of a key that is rotated, for all heads; a head has a matrix that makes
/// the rest of its key of the latent, and one that makes its value. A query is multiplied by the first of them, and what comes out by the
/// second: so attention is over latents, as over one head of keys of which the first `rank` elements are values. The attention's
/// `kv_heads`, `head_dim` and `rope` are those of that head: `head_dim` is `rank` and the elements that are rotated, of a query its
/// last ones.
/// Source: DeepSeek-AI, "DeepSeek-V2", 2024, arXiv 2405.04434, 2.1; transformers `models/deepseek_v3`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentSpec {
    /// Elements of a latent.
    pub rank: usize,
    /// Elements of a head's key that are made of it.
    pub key_dim: usize,
    /// Elements of a head's value.
    pub value_dim: usize,
    /// Queries are made of a latent of so many elements, too.
    pub q_rank: Option<usize>,
    /// Added to the mean squares of latents, which are normed.
    pub eps: f64,
    /// The matrices that make keys are stored transposed, as they are used.
    pub transposed_keys: bool,
}

/// Attentions whose keys and values lie in one cache: as many heads, of one width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvKind {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of each head.
    pub head_dim: usize,
    /// Values are the first so many elements of the keys.
    pub latent: Option<usize>,
    /// Number of attentions with such a cache.
    pub layers: usize,
}

impl KvKind {
    /// Values of a token for one head of one layer, with the CPU's order, in which values lie apart from keys.
    pub(crate) fn values(&self) -> usize {
        self.head_dim + self.latent.unwrap_or(self.head_dim)
    }

    /// The same as a GPU keeps them: heads padded, and values that are a part of keys with these.
    pub fn on_device(&self) -> Self {
        match self.latent {
            None => Self { head_dim: device_head_dim(self.head_dim), ..*self },
            Some(rank) => {
                let (latent, head_dim) = device_latent_dims(rank, self.head_dim - rank);
                Self { head_dim, latent: Some(latent), ..*self }
            }
        }
    }
}

/// Layer of the KV cache that has an attention's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// Index into [`ModelSpec::kv_kinds`].
    pub kind: usize,
    /// Index of the layer in this cache.
    pub layer: usize,
}

impl AttentionSpec {
    /// Whether all heads of q, and all of k, are normalised together.
    pub fn norms_all_heads(&self) -> bool {
        self.qk_norm.is_some_and(|norm| norm.span == QkNormSpan::AllHeads)
    }

    /// The cache for its keys and values alone.
    fn kv_kind(&self) -> KvKind {
        let latent = self.latent.map(|latent| latent.rank);
        KvKind { kv_heads: self.kv_heads, head_dim: self.head_dim, latent, layers: 1 }
    }

    /// Whether its keys and values lie in such a cache.
    fn keeps(&self, kind: &KvKind) -> bool {
        KvKind { layers: kind.layers, ..self.kv_kind() } == *kind
    }

    /// Elements of a head of queries as the projection makes them.
    pub fn q_dim(&self) -> usize {
        self.latent.map_or(self.head_dim, |latent| latent.key_dim + self.head_dim - latent.rank)
    }

    /// Elements of a head of what comes out.
    pub fn out_dim(&self) -> usize {
        self.latent.map_or(self.head_dim, |latent| latent.value_dim)
    }
}

/// The norm of q and k.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNormSpec {
    /// Its kind.
    pub norm: NormSpec,
    /// Elements that are normalized together.
    pub span: QkNormSpan,
}

/// Elements that the norm of q and k normalizes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNormSpan {
    /// Each head, with one weight for all of them.
    Head,
    /// All heads of q, and all heads of k.
    AllHeads,
    /// Each head, with a weight of its own.
    EachHead,
}

/// The part of a layer behind the mixer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FfnSpec {
    /// The next layer.
    Nothing,
    /// One feed-forward for all tokens.
    Dense(MlpSpec),
    /// Several, of which each token goes to some.
    Experts(ExpertsSpec),
}

/// A feed-forward: `down(act(gate(x)) * up(x))`, or without a gate `down(act(up(x)))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlpSpec {
    /// Width between.
    pub inner: usize,
    /// The activation.
    pub act: Activation,
    /// Whether there is a gate.
    pub gated: bool,
    /// All projections have biases.
    pub bias: bool,
}

/// Feed-forwards of which each token goes to some, by a router's scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// Number of experts.
    pub count: usize,
    /// Number of experts that a token uses; at least 1 and at most `count`.
    pub top_k: usize,
    /// Choice and weights of these experts.
    pub gating: GatingSpec,
    /// The router's scores have a bias.
    pub router_bias: bool,
    /// Each of them.
    pub expert: MlpSpec,
    /// The shared expert, whose output counts once.
    pub shared: Option<MlpSpec>,
    /// The shared expert's weight is the sigmoid of a score of its own.
    pub shared_gate: bool,
    /// The residual is normed separately for the router, the experts and the shared expert. The outputs of the latter two are normed
    /// before they are added up.
    pub separate_norms: bool,
}

/// Function from a router's scores to the weights of the chosen experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatingSpec {
    /// From scores to probabilities.
    pub function: GatingFunction,
    /// Experts are chosen by what they count for and a number of their own, which is added to it.
    pub bias: bool,
    /// The weights of the chosen experts sum to one.
    pub renormalize: bool,
    /// Factor on it after that.
    pub scale: f64,
    /// Each expert has a factor of its own, too.
    pub scales: bool,
    /// Experts are chosen among those of some groups.
    pub groups: Option<ExpertGroups>,
}

impl GatingSpec {
    /// The softmax of the scores.
    pub(crate) fn softmax(renormalize: bool) -> Self {
        Self {
            function: GatingFunction::Softmax,
            bias: false,
            renormalize,
            scale: 1.0,
            scales: false,
            groups: None,
        }
    }
}

/// Bounds that no model comes near to, so that no arithmetic on their products overflows.
pub(crate) const MAX_WIDTH: usize = 1 << 20;
pub(crate) const MAX_HEADS: usize = 1 << 12;
pub(crate) const MAX_HEAD_DIM: usize = 1 << 12;
pub(crate) const MAX_LAYERS: usize = 1 << 12;
/// Most experts of all layers together.
const MAX_EXPERTS: usize = 1 << 16;
pub(crate) const MAX_TOKENS: usize = 1 << 24;

impl ModelSpec {
    /// Llama as in `LlamaForCausalLM`: the base from which the other architectures state their
    /// differences.
    pub fn llama(c: &HfConfig) -> Result<Self> {
        let hidden_size = c.bounded("hidden_size", MAX_WIDTH)?;
        let heads = c.bounded("num_attention_heads", MAX_HEADS)?;
        let kv_heads = c.count_opt("num_key_value_heads")?.unwrap_or(heads);
        // transformers accepts other divisions and fails while it computes.
        if !heads.is_multiple_of(kv_heads) {
            let found = c.raw("num_key_value_heads").cloned().unwrap_or_default();
            return Err(c.ill_typed(
                "num_key_value_heads",
                &found,
                "a divisor of num_attention_heads",
            ));
        }
        let head_dim = match c.bounded_opt("head_dim", MAX_HEAD_DIM)? {
            Some(head_dim) => head_dim,
            None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
            None => {
                return Err(c.missing("head_dim", "the heads do not divide hidden_size, so it"));
            }
        };
        let norm = NormSpec { kind: NormKind::Rms, eps: c.float("rms_norm_eps")? };
        let bias = c.flag_or("attention_bias", false)?;
        let rope = RopeSpec::read(c, head_dim)?;
        let max_positions = rope.max_positions(c.count("max_position_embeddings")?);
        let max_model_len = match &rope.scaling {
            // Beyond the original context LongRoPE takes other factors for all positions. That must be asked for.
            RopeScaling::LongRope { original, .. } => max_positions.min(*original),
            _ => max_positions,
        };
        let layer = LayerSpec {
            residual: Residual::PreNorm,
            norm,
            mixer: Mixer::Attention(Box::new(AttentionSpec {
                heads,
                kv_heads,
                head_dim,
                scale: (head_dim as f64).powf(-0.5),
                qkv_bias: bias,
                out_bias: bias,
                qk_norm: None,
                rope: Some(rope),
                window: None,
                both_ways: false,
                softcap: None,
                sinks: false,
                gated: false,
                v_norm: None,
                values_are_keys: false,
                keys_of: None,
                latent: None,
            })),
            ffn: FfnSpec::Dense(MlpSpec {
                inner: c.bounded("intermediate_size", MAX_WIDTH)?,
                act: activation(c)?,
                gated: true,
                bias: c.flag_or("mlp_bias", false)?,
            }),
            scaled: false,
        };
        Ok(Self {
            vocab_size: c.bounded("vocab_size", MAX_TOKENS)?,
            hidden_size,
            max_model_len,
            max_positions,
            embed: EmbedSpec { scale: 1.0, rounded: false, positions: None },
            layers: vec![layer; c.bounded("num_hidden_layers", MAX_LAYERS)?],
            stored_apart: Vec::new(),
            final_norm: norm,
            head: HeadSpec {
                tied: c.flag_or("tie_word_embeddings", false)?,
                bias: false,
                scale: 1.0,
                softcap: None,
            },
            per_layer: None,
            quantized: BTreeMap::new(),
            widened: BTreeSet::new(),
            vision: None,
        })
    }

    /// The number that a layer has in names of tensors, where it has this slot.
    pub fn stored_layer(&self, layer: usize, slot: Slot) -> usize {
        let [mixer, ffn] = self.stored_apart.get(layer).copied().unwrap_or([layer; 2]);
        if slot.info().is_ffn { ffn } else { mixer }
    }

    /// Number of layers that the tensors' names count.
    pub fn num_stored_layers(&self) -> usize {
        let last = self.stored_apart.iter().flatten().max();
        last.map_or(self.layers.len(), |last| last + 1)
    }

    /// The context that is asked for, or else the model's own, in tokens.
    ///
    /// # Errors
    /// [`Error::MaxModelLen`] if the model has not so many positions.
    pub fn max_model_len(&self, asked: Option<usize>) -> Result<usize> {
        match asked {
            Some(asked) if asked > self.max_positions => {
                Err(Error::MaxModelLen { asked, limit: self.max_positions })
            }
            asked => Ok(asked.unwrap_or(self.max_model_len)),
        }
    }

    /// Whether tokens see what is behind them, so that the model gives vectors and continues no text.
    pub fn sees_both_ways(&self) -> bool {
        self.attentions().any(|attention| attention.both_ways)
    }

    /// The layers' attentions, in order.
    pub fn attentions(&self) -> impl Iterator<Item = &AttentionSpec> {
        self.layers.iter().filter_map(LayerSpec::attention)
    }

    /// The kinds of caches of keys and values, in the order of the first layer that has each.
    pub fn kv_kinds(&self) -> Vec<KvKind> {
        let mut kinds: Vec<KvKind> = Vec::new();
        for attention in self.attentions().filter(|attention| attention.keys_of.is_none()) {
            match kinds.iter_mut().find(|kind| attention.keeps(kind)) {
                Some(kind) => kind.layers += 1,
                None => kinds.push(attention.kv_kind()),
            }
        }
        kinds
    }

    /// Where the keys and values of a layer's attention lie: of [`Self::kv_kinds`]' caches the layer that it, or the one whose keys it
    /// reads, writes to. `None` of a layer without attention.
    pub fn kv_layer(&self, layer: usize) -> Option<KvLayer> {
        let attention = self.layers[layer].attention()?;
        let owner = attention.keys_of.unwrap_or(layer);
        let before = self.layers[..owner].iter().filter_map(LayerSpec::attention);
        // A reader's cache has the form of the one that it reads, so the reader's own description finds it.
        let kept = before.filter(|a| a.keys_of.is_none() && a.keeps(&attention.kv_kind()));
        let kinds = self.kv_kinds();
        let kind = kinds.iter().position(|kind| attention.keeps(kind))?;
        Some(KvLayer { kind, layer: kept.count() })
    }

    /// The layer from which on all read the keys and values of others: what they make of a token is of no use to other tokens. The number of
    /// layers, where there is none.
    pub fn first_reader(&self) -> usize {
        let reads = |layer: &LayerSpec| layer.attention().is_some_and(|a| a.keys_of.is_some());
        self.layers.iter().rposition(|layer| !reads(layer)).map_or(0, |last| last + 1)
    }

    /// The layers' linear attentions and SSMs, in order.
    pub fn linear_attentions(&self) -> impl Iterator<Item = &LinearAttentionSpec> {
        self.layers.iter().filter_map(LayerSpec::linear_attention)
    }

    /// Number of layers with a recurrent state for each sequence; they are all of one kind.
    pub fn num_states(&self) -> usize {
        self.layers.iter().filter(|layer| layer.keeps_state()).count()
    }

    /// Whether a norm of q and k goes over all heads in some layer.
    pub fn norms_all_heads(&self) -> bool {
        self.attentions().any(AttentionSpec::norms_all_heads)
    }
}

impl FfnSpec {
    /// The feed-forward, or each of the experts, where there are.
    pub fn mlp(&self) -> Option<&MlpSpec> {
        match self {
            Self::Nothing => None,
            Self::Dense(mlp) => Some(mlp),
            Self::Experts(experts) => Some(&experts.expert),
        }
    }

    /// The experts, where there are.
    pub fn experts(&self) -> Option<&ExpertsSpec> {
        match self {
            Self::Nothing | Self::Dense(_) => None,
            Self::Experts(experts) => Some(experts),
        }
    }

    /// The shared expert, if there is one.
    pub fn shared(&self) -> Option<&MlpSpec> {
        self.experts().and_then(|experts| experts.shared.as_ref())
    }

    /// [`Self::mlp`] and [`Self::shared`], to be changed.
    pub(crate) fn mlps_mut(&mut self) -> impl Iterator<Item = &mut MlpSpec> {
        let (mlp, shared) = match self {
            Self::Nothing => (None, None),
            Self::Dense(mlp) => (Some(mlp), None),
            Self::Experts(experts) => (Some(&mut experts.expert), experts.shared.as_mut()),
        };
        mlp.into_iter().chain(shared)
    }
}

impl HfConfig {
    /// The key that says how many experts a layer has. Mixtral has the first of three names, Qwen the last, GLM the other one;
    /// transformers 5 writes Mixtral's for some.
    pub(crate) fn counts_experts_by(&self) -> &'static str {
        let names = ["num_local_experts", "n_routed_experts"];
        names.into_iter().find(|name| self.contains(name)).unwrap_or("num_experts")
    }

    /// A factor, or `default` where there is none.
    pub(crate) fn factor_or(&self, key: &str, default: f64) -> Result<f64> {
        // NaN is no number above 0 either.
        match self.float_opt(key)?.unwrap_or(default) {
            factor if factor > 0.0 => Ok(factor),
            factor => Err(self.ill_typed(key, &factor.into(), "a number above 0")),
        }
    }

    /// Reads `dtype` (transformers 5) or `torch_dtype` (4).
    pub(crate) fn dtype(&self) -> Result<Option<Dtype>> {
        let key = if self.raw("dtype").is_some() { "dtype" } else { "torch_dtype" };
        // Python prints dtypes with this prefix.
        match self.text_opt(key)?.map(|name| name.strip_prefix("torch.").unwrap_or(name)) {
            None | Some("auto") => Ok(None),
            Some("float32" | "float") => Ok(Some(Dtype::F32)),
            Some("float16" | "half") => Ok(Some(Dtype::F16)),
            Some("bfloat16") => Ok(Some(Dtype::Bf16)),
            Some(other) => {
                Err(self.unsupported(key, &other.into(), "; float32, float16 and bfloat16 are"))
            }
        }
    }
}
