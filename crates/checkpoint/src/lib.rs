//! Description of a checkpoint, read without its tensors: its files, its architecture as a [`ModelSpec`] or an [`EncoderSpec`],
//! the names of its weights, its quantization, its end-of-sequence ids, and its need of memory.

mod arch;
mod bytes;
mod choice;
mod config;
mod deterministic;
mod encoder;
mod ends;
mod error;
mod files;
mod generation;
mod gguf;
mod memory;
mod pooling;
mod quantization;
mod rope;
mod shard;
mod slot;
mod spec;
mod unread;
mod vision;
mod vocabulary;
mod weights;

use std::borrow::Cow;

pub use arch::{Arch, supported_architectures};
pub use bytes::Bytes;
pub use candlepower_layout::{
    Activation, ActivationScales, DEVICE_HEAD_DIMS, Dtype, ExpertGroups, GatingFunction,
    GroupScore, LATENT_PARTIALS_BYTES, LINEAR_ATTENTION_CHUNK, LOGITS_ROWS, MatrixForm, Packed,
    attention_partials_bytes, device_head_dim, device_latent_dims, device_latent_tokens,
    device_logits_rows,
};
pub use choice::{Choice, DTYPES};
pub use config::HfConfig;
use config::UnreadKey;
pub use encoder::{
    DenseSpec, EncoderCheckpoint, EncoderKind, EncoderMemory, EncoderMemoryRequest, EncoderSpec,
    EncoderTensor, HeadAct, ScoreHead, SentenceSettings, supported_encoders,
};
pub use ends::ends_by_name;
pub use error::{Error, Result};
pub use files::{CheckpointFiles, NamedWeights, WeightFiles};
pub use generation::{GenerationConfig, SamplingDefaults};
pub use gguf::{Gguf, GgufTensor, ReadRange};
pub use memory::{
    BATCHED_TOKENS, Counted, DeviceKind, DeviceMemory, DeviceWidths, GPU_MEMORY_UTILIZATION,
    ImageMemory, KvDtype, MemoryPlan, MemoryRequest,
};
pub use pooling::Pooling;
pub use quantization::{
    Awq, CompressedInt, Fp8, GgufType, Gptq, Mxfp4, Nvfp4, OnLoad, Quantization,
    QuantizationMethod, Recoded, Scheme, SqueezeLlm, StoredKind, StoredTensor,
};
pub use rope::{QueryGrowth, RopeScaling, RopeSections, RopeSpec};
pub use shard::Shard;
pub use slot::{HeadAxis, Init, Slot, SlotInfo, SlotQuantization, SlotShard};
pub use spec::{
    AttentionSpec, EmbedSpec, ExpertsSpec, FfnSpec, GatingSpec, HeadSpec, KvKind, KvLayer,
    LatentSpec, LayerSpec, LinearAttentionSpec, Mixer, MlpSpec, ModelSpec, NormKind, NormSpec,
    PerLayerSpec, QkNormSpan, QkNormSpec, Residual, ShortConvSpec, UpdateRuleSpec,
};
pub use vision::{
    Between, ImageGrid, ImageTokens, MergeKind, MergerSpec, PatchLimit, PatchOrder, PatchPositions,
    PatchSpec, ProjectorSpec, TokenTexts, TowerLayerSpec, TowerPart, TowerPiece, VisionRule,
    VisionSlot, VisionSpec, VisionTensor, WrittenImage,
};
pub use weights::{RowOrder, SlotRows, Take, TensorPlan, WeightRule};

/// The model of a folder.
#[expect(clippy::large_enum_variant, reason = "there is one of them, not many")]
#[derive(Debug)]
pub enum Description {
    /// A model that continues texts.
    Decoder(Checkpoint),
    /// A model that gives vectors or scores.
    Encoder(EncoderCheckpoint),
}

impl Description {
    /// Reads the description of a model of either kind.
    ///
    /// # Errors
    /// Those of [`Checkpoint::open`].
    pub fn open(files: CheckpointFiles) -> Result<Self> {
        let config = read_config(&files)?;
        match EncoderCheckpoint::open(&files, &config)? {
            Some(encoder) => Ok(Self::Encoder(encoder)),
            None => Checkpoint::from_config(files, &config).map(Self::Decoder),
        }
    }

    /// Calls [`Checkpoint::check_keys`], or the encoder's.
    ///
    /// # Errors
    /// The first of such keys.
    pub fn check_keys(&self, ignored: &[String]) -> Result<()> {
        match self {
            Self::Decoder(checkpoint) => checkpoint.check_keys(ignored),
            Self::Encoder(checkpoint) => checkpoint.check_keys(ignored),
        }
    }

    /// Remarks for users on the configuration, in a line each.
    pub fn remarks(&self) -> Vec<String> {
        match self {
            Self::Decoder(checkpoint) => checkpoint.remarks(),
            Self::Encoder(checkpoint) => checkpoint.remarks(),
        }
    }
}

/// Refuses the first unread key that may change answers and is not `ignored`, by its whole name or its last part.
fn check_unread(unread: &[UnreadKey], ignored: &[String]) -> Result<()> {
    let is_ignored =
        |key: &UnreadKey| ignored.iter().any(|name| *name == key.key || name == key.name());
    unread.iter().filter(|key| !is_ignored(key)).try_for_each(UnreadKey::check)
}

fn read_config(files: &CheckpointFiles) -> Result<HfConfig> {
    files.json("config.json")?.ok_or_else(|| match files::adapter(files) {
        Some(adapter) => adapter,
        None => Error::FileMissing { file: "config.json", place: files.to_string() },
    })
}

/// A model folder (or an embedded one) whose configuration was read and understood.
///
/// Nothing of the weights is read: a checkpoint without weight files opens too, so that its
/// memory can be computed before a download and dummy weights can be made.
#[derive(Debug)]
pub struct Checkpoint {
    files: CheckpointFiles,
    arch: &'static Arch,
    spec: ModelSpec,
    dtype: Option<Dtype>,
    quantization: Option<Quantization>,
    on_load: Option<OnLoad>,
    generation: GenerationConfig,
    sentence: SentenceSettings,
    /// The class has no head.
    headless: bool,
    unread: Vec<UnreadKey>,
    /// Unread keys of the part for images.
    unread_of_tower: Vec<UnreadKey>,
    /// The reason why images are refused, where the model has a part for them.
    no_vision: Option<String>,
}

impl Checkpoint {
    /// Reads `config.json`, and also, if they are there, `generation_config.json`, `quantize_config.json` or `hf_quant_config.json`, and
    /// the files of sentence-transformers.
    ///
    /// # Errors
    /// Each names its cause: `config.json` is missing or damaged, a key is missing or ill-typed, or an architecture, rope type or
    /// activation is unknown. Others are an unsupported key that changes the computation, and a matrix that cannot be quantized in the
    /// format that it names.
    pub fn open(files: CheckpointFiles) -> Result<Self> {
        let config = read_config(&files)?;
        Self::from_config(files, &config)
    }

    fn from_config(files: CheckpointFiles, config: &HfConfig) -> Result<Self> {
        let arch = arch::find(config)?;
        let text = arch.config_of_text(config)?;
        let mut checkpoint = Self {
            spec: arch.describe(&text)?,
            arch,
            dtype: config.dtype()?.or(text.dtype()?),
            quantization: match files.gguf() {
                Some(gguf) => gguf.scheme().map(Quantization::gguf),
                None => Quantization::read(config, &|name| files.json(name))?,
            },
            on_load: None,
            generation: GenerationConfig::read(&files, &[config, &text])?,
            sentence: SentenceSettings::read(&files)?,
            headless: arch::is_without_head(config)?,
            unread: Vec::new(),
            unread_of_tower: Vec::new(),
            no_vision: None,
            files,
        };
        if let Some(gguf) = checkpoint.files.gguf() {
            gguf.adjust(&mut checkpoint.spec);
            checkpoint.sentence.set_pooling(gguf.pooling()?);
        }
        if checkpoint.headless {
            // No weight of its own is looked for, whatever the configuration says.
            (checkpoint.spec.head.tied, checkpoint.spec.head.bias) = (true, false);
        }
        let known = checkpoint.spec.vocab_size;
        checkpoint.generation.eos_token_ids.retain(|id| (*id as usize) < known);
        checkpoint.note_quantized()?;
        checkpoint.read_vision(config);
        // Now everything is read that will be.
        checkpoint.unread = match checkpoint.files.gguf() {
            Some(gguf) => gguf.unread_keys()?,
            None => unread::unread(config, arch.text_part(&text)),
        };
        Ok(checkpoint)
    }

    /// Reads the part for images. Where that is not possible, the model is served as a text model.
    fn read_vision(&mut self, config: &HfConfig) {
        if !self.arch.has_images() || self.files.gguf().is_some() {
            return;
        }
        match vision::read(self.arch.vision, config, &self.files, &self.spec) {
            Ok((spec, tower)) => {
                self.unread_of_tower = unread::unread_of_tower(&tower);
                self.spec.vision = Some(Box::new(spec));
            }
            Err(reason) => self.no_vision = Some(reason.to_string()),
        }
    }

    /// Refuses what the configuration says that nobody knows and that may change answers, but for the keys that are `ignored`.
    ///
    /// # Errors
    /// The first of such keys.
    pub fn check_keys(&self, ignored: &[String]) -> Result<()> {
        check_unread(&self.unread, ignored)?;
        check_unread(&self.unread_of_tower, ignored)
    }

    /// Remarks for users on the configuration, in a line each.
    pub fn remarks(&self) -> Vec<String> {
        let unread = self.unread.iter().chain(&self.unread_of_tower).map(UnreadKey::remark);
        let images = self.no_vision.iter().map(|reason| format!("images are refused: {reason}"));
        unread.chain(images).collect()
    }

    /// Adds tokens that end a text, which its tokenizer knows of.
    pub fn add_ends(&mut self, ids: impl IntoIterator<Item = u32>) {
        let known = self.spec.vocab_size;
        self.generation.add_ends(ids.into_iter().filter(|id| (*id as usize) < known));
    }

    /// Has the matrices quantized while they are loaded.
    ///
    /// # Errors
    /// The matrices are stored quantized.
    pub fn quantize_on_load(&mut self, on_load: OnLoad) -> Result<()> {
        if let Some(Quantization { method, .. }) = &self.quantization {
            let (file, method) = (self.config_file().to_owned(), method.clone());
            return Err(Error::AlreadyQuantized { asked: on_load.as_str(), file, method });
        }
        self.on_load = Some(on_load);
        self.note_quantized()
    }

    /// Notes in the specification which slots are kept quantized.
    fn note_quantized(&mut self) -> Result<()> {
        for tensor in self.tensor_plan() {
            let form = tensor.form();
            if form == MatrixForm::Plain {
                continue;
            }
            tensor.stored()?;
            let slots = tensor.slots.iter().map(|slot| (slot.layer, slot.slot));
            match form {
                MatrixForm::Quantized(packed) => {
                    self.spec.quantized.extend(slots.map(|slot| (slot, packed)));
                }
                _ => self.spec.widened.extend(slots),
            }
        }
        Ok(())
    }

    /// The file in which people find what the configuration says: `config.json`, or a GGUF file.
    pub fn config_file(&self) -> &str {
        self.files.shown_name("config.json")
    }

    /// The checkpoint's files.
    pub fn files(&self) -> &CheckpointFiles {
        &self.files
    }

    /// The Hugging Face class name, for example `LlamaForCausalLM`.
    pub fn architecture(&self) -> &'static str {
        self.arch.name
    }

    /// The architecture as data.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The part for images, where the model has one that is supported.
    pub fn vision(&self) -> Option<&VisionSpec> {
        self.spec.vision.as_deref()
    }

    /// The processor that makes pictures for [`Self::vision`]; `None` where there is no such part.
    ///
    /// # Errors
    /// Settings that are missing, damaged or not supported, with the file and the key; or pictures that the tower does not take.
    pub fn image_processor(&self) -> Result<Option<candlepower_media::Processor>> {
        self.vision().map(|spec| vision::processor(&self.files, spec)).transpose()
    }

    /// Sets the tokens between the embeddings of an image, whose ids the tokenizer knows. `id_of` gives the id of a token's whole
    /// text. Without this call, such tokens are missing in [`VisionSpec::tokens`].
    ///
    /// # Errors
    /// The tokenizer has no such token, or another placeholder than the configuration.
    pub fn set_image_tokens(&mut self, id_of: &dyn Fn(&str) -> Option<u32>) -> Result<()> {
        let Some(spec) = &mut self.spec.vision else { return Ok(()) };
        let VisionSpec { tokens, token_texts, .. } = &mut **spec;
        token_texts.as_ref().map_or(Ok(()), |texts| tokens.set_ids(texts, id_of))
    }

    /// Leaves the part for images out: the model is served as a text model.
    pub fn without_vision(&mut self) {
        self.spec.vision = None;
        self.unread_of_tower.clear();
    }

    /// The dtype `config.json` names; tensors may still differ from it.
    pub fn dtype(&self) -> Option<Dtype> {
        self.dtype
    }

    /// The quantization found in `config.json`, `quantize_config.json` or `hf_quant_config.json`.
    pub fn quantization(&self) -> Option<&Quantization> {
        self.quantization.as_ref()
    }

    /// The format that matrices are quantized to on load.
    pub fn on_load(&self) -> Option<OnLoad> {
        self.on_load
    }

    /// End-of-sequence ids and the model's own sampling values.
    pub fn generation(&self) -> &GenerationConfig {
        &self.generation
    }

    /// The settings of the sentence-transformers files; empty without them.
    pub fn sentence(&self) -> &SentenceSettings {
        &self.sentence
    }

    /// Whether the model gives vectors without being asked to: its files name a pooling, it has no head, or its tokens see what
    /// is behind them.
    pub fn gives_vectors(&self) -> bool {
        self.sentence.pooling.is_some() || self.headless || self.spec.sees_both_ways()
    }

    /// The longest text that becomes a vector, in tokens: what is asked for, else what the sentence-transformers files say,
    /// else the model's context.
    ///
    /// # Errors
    /// More is asked for than the model's context.
    pub fn max_input_len(&self, asked: Option<usize>) -> Result<usize> {
        let limit = self.spec.max_model_len(asked)?;
        let own = self.sentence.max_seq_length.filter(|_| asked.is_none());
        Ok(own.map_or(limit, |own| own.min(limit)))
    }

    /// Memory of the model if it makes vectors of texts, with matrices in `dtype`: weights, and the intermediate results of a batch,
    /// including the keys and values of one layer.
    pub fn pooling_memory(&self, dtype: Dtype, request: EncoderMemoryRequest) -> EncoderMemory {
        let tokens = request.max_num_batched_tokens.max(request.max_model_len);
        let batch = self.spec.batch_bytes(tokens, request.max_model_len);
        let activation_bytes = batch.saturating_mul(request.num_threads as u64);
        let weights_bytes =
            self.spec.weight_bytes(dtype).saturating_add(self.sentence.dense_bytes());
        EncoderMemory::new(weights_bytes, activation_bytes, request.available_bytes)
    }

    /// Every tensor of the model, with its shape, its slots and its quantization. Tensors that checkpoints store in different ways are
    /// planned in the most frequent way.
    pub fn tensor_plan(&self) -> Vec<TensorPlan> {
        self.plan_of_stored(&|_| false)
    }

    /// The same as [`Self::tensor_plan`], where `is_stored` knows the tensors that are there, by the names of [`Self::planned_name`].
    pub fn plan_of_stored(&self, is_stored: &dyn Fn(&str) -> bool) -> Vec<TensorPlan> {
        let mut plan = match self.files.gguf() {
            Some(gguf) => weights::plan_named(
                &self.spec,
                gguf.weight_rules(),
                Gguf::common_rules(),
                // Its header is there whenever the configuration is.
                &|name| gguf.tensors().contains_key(name),
            ),
            None => weights::plan(&self.spec, self.arch.weights, is_stored),
        };
        let recoded = self.on_load.map(|kind| kind.of(&self.spec)).unwrap_or_default();
        for tensor in &mut plan {
            tensor.scheme = match (self.files.gguf(), &self.quantization) {
                (Some(gguf), _) => gguf.scheme_of(&tensor.name),
                (None, Some(quantization)) => tensor.scheme_of(quantization),
                (None, None) => None,
            };
            if let Some(gguf) = self.files.gguf() {
                gguf.set_stored_shape(tensor);
            }
            let first = tensor.slots.first().filter(|_| tensor.columns().is_some());
            tensor.on_load =
                first.and_then(|first| recoded.get(&(first.layer, first.slot))).copied();
        }
        plan
    }

    /// The name that a stored tensor has in [`Self::tensor_plan`].
    pub fn planned_name<'a>(&self, stored: &'a str) -> Cow<'a, str> {
        self.arch.planned_name(stored)
    }

    /// The tensors of the part for images, where that is served. They are stored beside those of [`Self::tensor_plan`].
    pub fn vision_tensors(&self) -> Vec<VisionTensor> {
        self.vision().map(VisionSpec::tensors).unwrap_or_default()
    }

    /// Whether a tensor outside [`Self::tensor_plan`] and [`Self::vision_tensors`] may be there. It is a buffer that follows from the
    /// configuration, a copy of a tied weight, a scale of activations, a part for predicting more tokens, or a part for images that is
    /// not served.
    pub fn may_skip_tensor(&self, name: &str) -> bool {
        if self.arch.is_for_images(name) {
            return self.vision().is_none_or(|spec| spec.may_skip(name));
        }
        weights::may_skip(&self.spec, name)
            || self.arch.is_ignored(name, self.spec.num_stored_layers())
            || self
                .files
                .gguf()
                .is_some_and(|gguf| gguf.is_ignored(name, self.spec.num_stored_layers()))
            || self.quantization.as_ref().is_some_and(|quantization| quantization.may_skip(name))
    }

    /// The weight files: `model.safetensors`, or the shards its index names, or those in GGUF.
    ///
    /// # Errors
    /// Neither is there, or the index is damaged.
    pub fn weight_files(&self) -> Result<WeightFiles> {
        WeightFiles::find(&self.files)
    }

    /// Bytes of the weights as loaded in `dtype`, or in the checkpoint's own where that is `None`
    /// (F32 where the configuration does not say).
    pub fn weight_bytes(&self, dtype: Option<Dtype>) -> u64 {
        let dtype = self.weights_dtype(dtype);
        let vision = self.vision().map_or(0, |spec| spec.weight_bytes(dtype));
        self.spec.weight_bytes(dtype) + vision
    }

    /// The dtype that the matrices get where `dtype` is asked for, or, where that is `None`, their own as far as the
    /// configuration tells it.
    pub fn weights_dtype(&self, dtype: Option<Dtype>) -> Dtype {
        dtype.or(self.dtype).unwrap_or(Dtype::F32)
    }

    /// The same as [`Self::weights_dtype`], on a GPU, whose kernels compute with 16 bits: matrices stored in 32 bits get bfloat16.
    pub fn device_dtype(&self, dtype: Option<Dtype>) -> Dtype {
        dtype.unwrap_or(match self.weights_dtype(None) {
            Dtype::F32 => Dtype::Bf16,
            stored => stored,
        })
    }

    /// The dtype of keys and values on `device`, with matrices in `weights` and the setting `dtype`, which wins if it is given.
    ///
    /// Without it a GPU uses the weights' dtype. The CPU uses bfloat16 if activations are rounded to it before products, otherwise
    /// float32. They are rounded beside weights in bfloat16 and, unless a wider dtype was asked for, beside quantized weights with scales.
    ///
    /// # Errors
    /// [`Error::KvDtype`]: a GPU's kernels take keys and values in the weights' dtype or in FP8, the CPU's none in float16.
    pub fn kv_dtype(
        &self,
        device: DeviceKind,
        asked: Option<KvDtype>,
        dtype: Option<Dtype>,
        weights: Dtype,
    ) -> Result<KvDtype> {
        let scaled = self
            .spec
            .quantized
            .values()
            .any(|packed| packed.format != candlepower_layout::QuantFormat::Table);
        let rounded = scaled && matches!(dtype, None | Some(Dtype::Bf16));
        match device {
            DeviceKind::Cpu if rounded => device.kv_dtype(asked, Dtype::Bf16),
            _ => device.kv_dtype(asked, weights),
        }
    }
}
