//! Encoders: models that give a text one vector, or a pair of texts one score.

mod bert;
mod modern_bert;
mod nomic_bert;
mod sentence;
#[cfg(test)]
mod tests;

pub use sentence::{DenseSpec, SentenceSettings};

use candlepower_layout::{Activation, Dtype};

use crate::{
    bytes::Bytes,
    check_unread,
    config::{HfConfig, UnreadKey},
    error::{Error, Result},
    files::{CheckpointFiles, WeightFiles},
    memory::longest_that_fits,
    pooling::Pooling,
    quantization::Quantization,
    spec::{MAX_HEADS, MAX_LAYERS, MAX_TOKENS, MAX_WIDTH},
    unread::unread,
};

/// A text encoder, as data.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderSpec {
    /// The form of its layers.
    pub kind: EncoderKind,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the hidden states.
    pub hidden_size: usize,
    /// Number of layers.
    pub num_layers: usize,
    /// Attention heads, each of `hidden_size / heads` elements.
    pub heads: usize,
    /// Width inside the feed-forward.
    pub intermediate_size: usize,
    /// Longest input, in tokens.
    pub max_positions: usize,
    /// Rows of the table of token types; 0 where there is no such table.
    pub token_types: usize,
    /// Added to the variance in every norm.
    pub norm_eps: f64,
    /// The feed-forward's activation.
    pub act: Activation,
    /// The head that makes a score of the hidden states; `None` for a model that gives vectors.
    pub head: Option<ScoreHead>,
}

impl EncoderSpec {
    /// Reads the sizes by BERT's names. The rest is what most encoders have: GELU, and neither token types nor a head.
    fn read(config: &HfConfig, kind: EncoderKind) -> Result<Self> {
        let hidden_size = config.bounded("hidden_size", MAX_WIDTH)?;
        let heads = config.bounded("num_attention_heads", MAX_HEADS)?;
        // A head has a whole number of elements. It is checked here, where the configuration still knows the file's own names.
        if !hidden_size.is_multiple_of(heads) {
            return Err(config.unsupported(
                "num_attention_heads",
                &heads.into(),
                &format!("; a number that divides the hidden size of {hidden_size} is"),
            ));
        }
        Ok(Self {
            kind,
            vocab_size: config.bounded("vocab_size", MAX_TOKENS)?,
            hidden_size,
            num_layers: config.bounded("num_hidden_layers", MAX_LAYERS)?,
            heads,
            intermediate_size: config.bounded("intermediate_size", MAX_WIDTH)?,
            max_positions: config.bounded("max_position_embeddings", MAX_TOKENS)?,
            token_types: 0,
            norm_eps: config.float("layer_norm_eps")?,
            act: Activation::Gelu,
            head: None,
        })
    }
}

/// The form of an encoder's layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EncoderKind {
    /// Learned positions, norms after attention and feed-forward: BERT, RoBERTa, XLM-RoBERTa, DistilBERT, MPNet.
    Bert {
        /// The row of the table of positions that the first token gets.
        first_position: usize,
        /// Classes of distances, each of which has a bias of each head; 0 where there are none.
        distance_classes: usize,
    },
    /// Rotary positions, norms before, a gated feed-forward, windows in most layers.
    ModernBert {
        /// Every so many layers one attends to the whole text, the first included.
        global_every: usize,
        /// Width of the window of the other layers: half of it to each side.
        window: usize,
        /// Base of the rope of the layers without a window.
        global_theta: f64,
        /// Base of the rope of the others.
        local_theta: f64,
    },
    /// Rotary positions, norms after, a gated feed-forward.
    NomicBert {
        /// Base of the rope.
        theta: f64,
        /// Pairs of the rope are neighbours instead of halves.
        interleaved: bool,
        /// Projections of the attention have biases.
        qkv_bias: bool,
        /// The gate and what is gated have biases.
        fc1_bias: bool,
        /// The feed-forward's output has a bias.
        fc2_bias: bool,
    },
}

/// A head that makes one score of the last hidden states: a pooled state, a dense layer, its activation, perhaps a norm, and a
/// projection to one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreHead {
    /// The hidden state that it reads: the first, or the mean.
    pub pooling: Pooling,
    /// The activation behind the dense layer.
    pub act: HeadAct,
    /// The dense layer has a bias.
    pub dense_bias: bool,
    /// A norm without a bias follows the activation.
    pub norm: bool,
    /// Scores go through a sigmoid, so that they lie between 0 and 1.
    pub sigmoid: bool,
}

/// The activation of a [`ScoreHead`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadAct {
    /// tanh.
    Tanh,
    /// max(x, 0).
    Relu,
    /// GELU with the exact normal distribution function.
    Gelu,
}

/// A tensor of an encoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderTensor {
    /// Its name in BERT, ModernBERT or NomicBERT; names of the head begin with `score.`.
    pub slot: String,
    /// The names under which it may be stored; exactly one of them is there.
    pub names: Vec<String>,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// A supported encoder.
#[derive(Debug)]
struct EncoderArch {
    /// Hugging Face's class name.
    name: &'static str,
    /// Prefix of the names of the encoder's own tensors; may be empty.
    prefix: &'static str,
    spec: fn(&HfConfig) -> Result<EncoderSpec>,
    /// The head of a class for sequence classification.
    head: Option<fn(&HfConfig) -> Result<ScoreHead>>,
    tensors: fn(&EncoderSpec, &mut TensorList),
}

const ALL: &[EncoderArch] = &[
    bert::BERT,
    bert::BERT_SCORE,
    bert::ROBERTA,
    bert::ROBERTA_SCORE,
    bert::XLM_ROBERTA,
    bert::XLM_ROBERTA_SCORE,
    bert::DISTIL_BERT,
    bert::DISTIL_BERT_SCORE,
    bert::MPNET,
    bert::MPNET_SCORE,
    modern_bert::ARCH,
    modern_bert::SCORE,
    nomic_bert::ARCH,
];

/// The class names of all supported encoders.
pub fn supported_encoders() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|arch| arch.name)
}

/// The encoder that a configuration means: by its class, or by its `model_type` where files of sentence-transformers are beside
/// it, whose models were often stored with the head that they were trained with.
fn find(files: &CheckpointFiles, config: &HfConfig) -> Result<Option<&'static EncoderArch>> {
    let name = config.texts_opt("architectures")?.and_then(|list| list.first().copied());
    let by_name = |name: &str| ALL.iter().find(|arch| arch.name == name);
    if let Some(arch) = name.and_then(by_name) {
        return Ok(Some(arch));
    }
    let Some(class) = config.text_opt("model_type")?.and_then(class_of) else { return Ok(None) };
    let is_beside = SentenceSettings::FILES.iter().any(|file| files.contains(file));
    Ok(by_name(class).filter(|_| is_beside || name.is_none()))
}

/// The class of an encoder without a head, by its `model_type`.
fn class_of(model_type: &str) -> Option<&'static str> {
    Some(match model_type {
        "bert" => "BertModel",
        "roberta" => "RobertaModel",
        "xlm-roberta" => "XLMRobertaModel",
        "distilbert" => "DistilBertModel",
        "modernbert" => "ModernBertModel",
        "nomic_bert" => "NomicBertModel",
        "mpnet" => "MPNetModel",
        _ => return None,
    })
}

/// An encoder's folder whose description was read and understood. Nothing of the weights is read.
#[derive(Debug)]
pub struct EncoderCheckpoint {
    files: CheckpointFiles,
    arch: &'static EncoderArch,
    spec: EncoderSpec,
    sentence: SentenceSettings,
    dtype: Option<Dtype>,
    quantization: Option<Quantization>,
    unread: Vec<UnreadKey>,
}

impl EncoderCheckpoint {
    /// Reads the description of an encoder; `None` where `config.json` names no class of [`supported_encoders`].
    ///
    /// # Errors
    /// A key is missing, ill-typed or changes the computation in a way that is not supported.
    pub(crate) fn open(files: &CheckpointFiles, config: &HfConfig) -> Result<Option<Self>> {
        let Some(arch) = find(files, config)? else { return Ok(None) };
        let mut spec = (arch.spec)(config)?;
        if let Some(head) = arch.head {
            check_one_label(config)?;
            spec.head = Some(ScoreHead { sigmoid: sigmoid(config)?, ..head(config)? });
        }
        let (sentence, quantization) =
            (SentenceSettings::read(files)?, Quantization::read(config, &|name| files.json(name))?);
        // Encoders are computed in f32, so a dtype that is not known does not matter.
        let dtype = config.dtype().ok().flatten();
        let unread = unread(config, None);
        Ok(Some(Self { sentence, dtype, quantization, files: files.clone(), arch, spec, unread }))
    }

    /// Checks as [`crate::Checkpoint::check_keys`] does.
    ///
    /// # Errors
    /// The first of such keys.
    pub fn check_keys(&self, ignored: &[String]) -> Result<()> {
        check_unread(&self.unread, ignored)
    }

    /// Remarks for users on the configuration, in a line each.
    pub fn remarks(&self) -> Vec<String> {
        self.unread.iter().map(UnreadKey::remark).collect()
    }

    /// The checkpoint's files.
    pub fn files(&self) -> &CheckpointFiles {
        &self.files
    }

    /// The Hugging Face class name, for example `BertModel`.
    pub fn architecture(&self) -> &'static str {
        self.arch.name
    }

    /// The architecture as data.
    pub fn spec(&self) -> &EncoderSpec {
        &self.spec
    }

    /// The settings of the sentence-transformers files.
    pub fn sentence(&self) -> &SentenceSettings {
        &self.sentence
    }

    /// The quantization found in `config.json`.
    pub fn quantization(&self) -> Option<&Quantization> {
        self.quantization.as_ref()
    }

    /// The longest input in tokens: what is asked for, else what the sentence-transformers files say, else all positions.
    ///
    /// # Errors
    /// More is asked for than the model has positions.
    pub fn max_model_len(&self, asked: Option<usize>) -> Result<usize> {
        let limit = self.spec.max_positions;
        match asked {
            Some(asked) if asked > limit => Err(Error::MaxModelLen { asked, limit }),
            Some(asked) => Ok(asked),
            None => Ok(self.sentence.max_seq_length.map_or(limit, |own| own.min(limit))),
        }
    }

    /// Every tensor that the weight files must hold.
    pub fn tensors(&self) -> Vec<EncoderTensor> {
        // The order is that of loading; names of one tensor are tried one after another.
        let mut list = TensorList { prefix: self.arch.prefix, tensors: Vec::new() };
        (self.arch.tensors)(&self.spec, &mut list);
        list.tensors
    }

    /// Whether a tensor outside [`Self::tensors`] may be there: the heads with which encoders are trained and stored, and
    /// buffers that follow from the configuration.
    pub fn may_skip_tensor(&self, name: &str) -> bool {
        let name = name.strip_prefix(self.arch.prefix).unwrap_or(name);
        const HEADS: [&str; 9] = [
            "cls.",
            "decoder.",
            "embeddings.position_ids",
            "head.",
            "lm_head.",
            "pooler.",
            "vocab_layer_norm.",
            "vocab_projector.",
            "vocab_transform.",
        ];
        HEADS.iter().any(|head| name.starts_with(head)) || name.ends_with("rotary_emb.inv_freq")
    }

    /// The safetensors files: `model.safetensors`, or the shards its index names.
    ///
    /// # Errors
    /// Neither is there, or the index is damaged.
    pub fn weight_files(&self) -> Result<WeightFiles> {
        WeightFiles::find(&self.files)
    }

    /// Count of weights.
    pub fn num_parameters(&self) -> u64 {
        let count =
            |tensor: &EncoderTensor| tensor.shape.iter().map(|n| *n as u64).product::<u64>();
        self.tensors().iter().map(count).sum()
    }

    /// The dtype that `config.json` names; tensors may still differ from it.
    pub fn dtype(&self) -> Option<Dtype> {
        self.dtype
    }

    /// The longest input for which the server would start, in tokens, at most the longest that the model allows; 0 where
    /// none would. `max_model_len` of the request does not matter.
    pub fn max_model_len_that_fits(&self, request: EncoderMemoryRequest) -> usize {
        longest_that_fits(self.spec.max_positions, |max_model_len| {
            self.memory(EncoderMemoryRequest { max_model_len, ..request }).fits
        })
    }

    /// Divides the memory for batches of `max_num_batched_tokens` tokens and texts of `max_model_len`.
    pub fn memory(&self, request: EncoderMemoryRequest) -> EncoderMemory {
        let spec = &self.spec;
        // The largest sizes exceed 64 bits together. Nothing that large fits, so the products may stop there.
        let tokens = request.max_num_batched_tokens.max(request.max_model_len) as u64;
        // Hidden states, the residual, q, k, v and their transposes; the feed-forward before and after its activation.
        let width = 10 * spec.hidden_size + 4 * spec.intermediate_size;
        let scores = (3 * spec.heads as u64).saturating_mul(request.max_model_len as u64);
        let weights_bytes = self.num_parameters() * F32_BYTES + self.sentence.dense_bytes();
        let activation_bytes = (request.num_threads as u64)
            .saturating_mul(tokens)
            .saturating_mul(scores.saturating_add(width as u64))
            .saturating_mul(F32_BYTES);
        EncoderMemory::new(weights_bytes, activation_bytes, request.available_bytes)
    }
}

/// Encoders compute in f32.
const F32_BYTES: u64 = 4;

/// Input of an [`EncoderMemory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderMemoryRequest {
    /// Longest input, in tokens.
    pub max_model_len: usize,
    /// Most tokens in one batch.
    pub max_num_batched_tokens: usize,
    /// Batches that are computed at the same time.
    pub num_threads: usize,
    /// Free bytes; `None` where nobody knows.
    pub available_bytes: Option<u64>,
}

/// Memory of a model that gives vectors or scores, and whether it fits. There is no KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderMemory {
    /// Bytes of the weights; an encoder's are in f32.
    pub weights_bytes: u64,
    /// Bytes of a batch's intermediate results: an estimate from above.
    pub activation_bytes: u64,
    /// Both together.
    pub needed_bytes: u64,
    /// Free bytes; `None` where nobody knows.
    pub available_bytes: Option<u64>,
    /// Whether the server would start so.
    pub fits: bool,
}

impl EncoderMemory {
    pub(crate) fn new(
        weights_bytes: u64,
        activation_bytes: u64,
        available_bytes: Option<u64>,
    ) -> Self {
        let needed_bytes = weights_bytes.saturating_add(activation_bytes);
        let fits = available_bytes.is_none_or(|free| needed_bytes <= free);
        Self { weights_bytes, activation_bytes, needed_bytes, available_bytes, fits }
    }

    /// Refuses what does not fit.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], with what the memory is needed for.
    pub fn check(&self) -> Result<()> {
        match self.available_bytes {
            Some(free) if !self.fits => Err(Error::OutOfMemory {
                needed: self.needed_bytes,
                free,
                max_model_len: 0,
                parts: format!(
                    "weights {}, activations {}",
                    Bytes(self.weights_bytes),
                    Bytes(self.activation_bytes)
                ),
                ways_out:
                    "lower --max-model-len or --max-num-batched-tokens, or take a smaller model"
                        .to_owned(),
            }),
            _ => Ok(()),
        }
    }
}

/// Collects the tensors of an encoder.
struct TensorList {
    prefix: &'static str,
    tensors: Vec<EncoderTensor>,
}

impl TensorList {
    /// A tensor of the encoder itself: stored as `name`, with or without the class's prefix.
    fn own(&mut self, slot: &str, name: &str, shape: &[usize]) {
        let mut names = vec![name.to_owned()];
        // The first BERT checkpoints have these names.
        if let Some(base) = name.strip_suffix("LayerNorm.weight") {
            names.push(format!("{base}LayerNorm.gamma"));
        } else if let Some(base) = name.strip_suffix("LayerNorm.bias") {
            names.push(format!("{base}LayerNorm.beta"));
        }
        names.extend(names.clone().iter().map(|name| format!("{}{name}", self.prefix)));
        self.tensors.push(EncoderTensor { slot: slot.to_owned(), names, shape: shape.to_vec() });
    }

    /// A matrix `[rows, columns]` and a vector `[rows]`.
    fn affine(&mut self, slot: &str, name: &str, shape: [usize; 2]) {
        self.own(&format!("{slot}.weight"), &format!("{name}.weight"), &shape);
        self.own(&format!("{slot}.bias"), &format!("{name}.bias"), &shape[..1]);
    }

    /// Weight and bias of a norm.
    fn norm(&mut self, slot: &str, name: &str, width: usize) {
        self.own(&format!("{slot}.weight"), &format!("{name}.weight"), &[width]);
        self.own(&format!("{slot}.bias"), &format!("{name}.bias"), &[width]);
    }

    /// A tensor of the head, whose name has no prefix.
    fn head(&mut self, slot: &str, name: &str, shape: &[usize]) {
        let names = vec![name.to_owned()];
        self.tensors.push(EncoderTensor { slot: slot.to_owned(), names, shape: shape.to_vec() });
    }
}

/// A cross-encoder gives one score; other classifiers give none.
fn check_one_label(config: &HfConfig) -> Result<()> {
    let by_name = config.section("id2label")?.map(|labels| labels.entries().count());
    // transformers makes two where nothing is said.
    let (key, found) = match by_name {
        Some(found) => ("id2label", found),
        // sentence-transformers trains cross-encoders with one label.
        None => ("num_labels", config.count_opt("num_labels")?.unwrap_or(2)),
    };
    if found == 1 {
        return Ok(());
    }
    let hint = "; a classifier with one label (a cross-encoder) is";
    Err(config.unsupported(key, &format!("{found} labels").into(), hint))
}

/// Whether scores go through a sigmoid, as sentence-transformers does unless the configuration names another function.
fn sigmoid(config: &HfConfig) -> Result<bool> {
    let section = config.section("sentence_transformers")?;
    let newer = match &section {
        Some(section) => section.text_opt("activation_fn")?,
        None => None,
    };
    let key = "sbert_ce_default_activation_function";
    // sentence-transformers takes the sigmoid for one label.
    let Some(function) = newer.or(config.text_opt(key)?) else { return Ok(true) };
    match function.rsplit('.').next().unwrap_or(function) {
        "Sigmoid" => Ok(true),
        "Identity" => Ok(false),
        _ => {
            let (config, key) = match (&section, newer) {
                (Some(section), Some(_)) => (section, "activation_fn"),
                _ => (config, key),
            };
            Err(config.unsupported(key, &function.into(), "; Sigmoid and Identity are"))
        }
    }
}

/// Refuses a key unless it has the value with which the layers are computed.
fn expect(config: &HfConfig, key: &str, value: serde_json::Value) -> Result<()> {
    match config.raw(key) {
        Some(found) if *found != value => {
            Err(config.unsupported(key, found, &format!("; {value} is")))
        }
        _ => Ok(()),
    }
}
