//! Settings in the sentence-transformers files beside a checkpoint: pooling, dense layers, normalization, prompts, the longest input.

use std::collections::BTreeMap;

use serde_json::Value;

use super::HeadAct;
use crate::{
    config::HfConfig,
    error::{Error, Result},
    files::CheckpointFiles,
    pooling::Pooling,
    spec::MAX_WIDTH,
};

const MODULES: &str = "modules.json";
/// Folder with the settings of the pooling.
const USUAL_FOLDER: &str = "1_Pooling";
const POOLING: &str = "1_Pooling/config.json";
/// The transformer's settings; which name it is does not depend on the model alone.
const TRANSFORMER: [&str; 4] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_xlm-roberta_config.json",
];
const PROMPTS: &str = "config_sentence_transformers.json";

/// A dense layer behind the pooling: `act(x W^T + b)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseSpec {
    /// The safetensors file with its weights, `linear.weight` and `linear.bias`.
    pub file: String,
    /// Elements of a vector before it.
    pub inputs: usize,
    /// Elements of a vector behind it.
    pub outputs: usize,
    /// It has a bias.
    pub bias: bool,
    /// Its activation; `None` where it is linear.
    pub act: Option<HeadAct>,
}

/// Settings in the sentence-transformers files; empty without such files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentenceSettings {
    /// The pooling of hidden states into one vector.
    pub pooling: Option<Pooling>,
    /// Dense layers that vectors go through, in this order, before they are normalized.
    pub dense: Vec<DenseSpec>,
    /// Vectors are divided by their length.
    pub normalize: bool,
    /// Longest input, in tokens.
    pub max_seq_length: Option<usize>,
    /// Texts are turned into lower case before they are tokenized.
    pub lower_case: bool,
    /// Texts that stand before an input, by name.
    pub prompts: BTreeMap<String, String>,
    /// The name of the prompt that inputs get where nobody names one.
    pub default_prompt: Option<String>,
}

impl SentenceSettings {
    /// Files that say that a model gives vectors.
    pub(super) const FILES: [&str; 3] = [MODULES, POOLING, TRANSFORMER[0]];

    /// Reads the files.
    ///
    /// # Errors
    /// One is damaged, or asks for something that is not supported.
    pub fn read(files: &CheckpointFiles) -> Result<Self> {
        let mut settings = Self::default();
        match files.read(MODULES)? {
            Some(bytes) => settings.read_modules(files, &bytes)?,
            None if files.contains(POOLING) => {
                settings.pooling = Some(read_pooling(files, USUAL_FOLDER)?);
            }
            None => {}
        }
        // Only one of the names is there. It is the model's class in the oldest versions of sentence-transformers.
        if let Some(name) = TRANSFORMER.into_iter().find(|name| files.contains(name))
            && let Some(config) = files.json(name)?
        {
            settings.max_seq_length = config.count_opt("max_seq_length")?;
            settings.lower_case = config.flag_or("do_lower_case", false)?;
        }
        if let Some(config) = files.json(PROMPTS)? {
            settings.read_prompts(&config)?;
        }
        Ok(settings)
    }

    /// Takes the pooling of a GGUF file. llama.cpp gives vectors of length one.
    pub(crate) fn set_pooling(&mut self, pooling: Option<Pooling>) {
        self.pooling = pooling;
        self.normalize = pooling.is_some();
    }

    /// Bytes of the dense layers' weights.
    pub fn dense_bytes(&self) -> u64 {
        self.dense.iter().map(DenseSpec::num_bytes).sum()
    }

    fn read_modules(&mut self, files: &CheckpointFiles, bytes: &[u8]) -> Result<()> {
        let damaged = |reason: String| Error::Json { file: MODULES.to_owned(), reason };
        let modules: Vec<Value> =
            serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        for (i, module) in modules.iter().enumerate() {
            let text = |key: &str| module.get(key).and_then(Value::as_str);
            let kind = text("type").ok_or_else(|| damaged(format!("module {i} has no type")))?;
            // The class: where it lives changes from version to version.
            match kind.rsplit('.').next().unwrap_or(kind) {
                "Transformer" if i == 0 => {}
                "Pooling" => {
                    let folder = text("path").unwrap_or_default();
                    self.pooling = Some(read_pooling(files, folder)?);
                }
                // The order is fixed: a dense layer behind the normalization would give other vectors.
                "Dense" if self.pooling.is_some() && !self.normalize => {
                    let folder = text("path").unwrap_or_default();
                    let dense = DenseSpec::read(files, folder, self.dense.last())?;
                    self.dense.push(dense);
                }
                "Normalize" => self.normalize = true,
                other => {
                    return Err(Error::Unsupported {
                        file: MODULES.to_owned(),
                        key: format!("[{i}].type"),
                        value: other.to_owned(),
                        hint: "; Transformer, Pooling, then Dense, then Normalize are".to_owned(),
                    });
                }
            }
        }
        Ok(())
    }

    fn read_prompts(&mut self, config: &HfConfig) -> Result<()> {
        if let Some(prompts) = config.section("prompts")? {
            for (name, prompt) in prompts.entries() {
                let prompt =
                    prompt.as_str().ok_or_else(|| prompts.ill_typed(name, prompt, "a text"))?;
                self.prompts.insert(name.to_owned(), prompt.to_owned());
            }
        }
        // A name that is no prompt would only fail at the first request.
        self.default_prompt = match config.text_opt("default_prompt_name")? {
            Some(name) if !self.prompts.contains_key(name) => {
                let hint = "; a name among the `prompts` is";
                return Err(config.unsupported("default_prompt_name", &name.into(), hint));
            }
            name => name.map(str::to_owned),
        };
        Ok(())
    }
}

/// A module's `config.json`, which is called `usual` where it is not there.
fn module_config(files: &CheckpointFiles, folder: &str, usual: &'static str) -> Result<HfConfig> {
    // A path with more in it could leave the checkpoint.
    let is_plain = !folder.is_empty() && !folder.contains(['/', '\\']) && folder != "..";
    let config = match is_plain {
        true => files.json(&format!("{folder}/config.json"))?,
        false => None,
    };
    config.ok_or_else(|| Error::FileMissing { file: usual, place: files.to_string() })
}

/// Keys that name a dense layer's input and output, whose defaults alone are supported.
const FEATURES: [&str; 2] = ["module_input_name", "module_output_name"];

impl DenseSpec {
    /// Reads a dense module's `config.json`; `before` is the module whose vectors it gets.
    fn read(files: &CheckpointFiles, folder: &str, before: Option<&Self>) -> Result<Self> {
        let config = module_config(files, folder, "2_Dense/config.json")?;
        for key in FEATURES {
            match config.raw(key) {
                None | Some(Value::Null) => {}
                Some(name) if name == "sentence_embedding" => {}
                Some(other) => {
                    return Err(config.unsupported(key, other, "; sentence_embedding is"));
                }
            }
        }
        if config.flag_or("use_residual", false)? {
            return Err(config.unsupported("use_residual", &true.into(), "; false is"));
        }
        let function = config.text_opt("activation_function")?;
        // The default is that of the class `Dense` in sentence-transformers.
        let function = function.unwrap_or("torch.nn.modules.activation.Tanh");
        let act = match function.rsplit('.').next().unwrap_or(function) {
            "Identity" => None,
            "Tanh" => Some(HeadAct::Tanh),
            "ReLU" => Some(HeadAct::Relu),
            "GELU" => Some(HeadAct::Gelu),
            _ => {
                let hint = "; Identity, Tanh, ReLU and GELU are";
                return Err(config.unsupported("activation_function", &function.into(), hint));
            }
        };
        let inputs = config.bounded("in_features", MAX_WIDTH)?;
        if let Some(before) = before.filter(|before| before.outputs != inputs) {
            let hint = format!("; what the layer before it gives, {}, is", before.outputs);
            return Err(config.unsupported("in_features", &inputs.into(), &hint));
        }
        Ok(Self {
            file: format!("{folder}/model.safetensors"),
            inputs,
            outputs: config.bounded("out_features", MAX_WIDTH)?,
            bias: config.flag_or("bias", true)?,
            act,
        })
    }

    /// Bytes of its weights in f32.
    pub fn num_bytes(&self) -> u64 {
        (self.outputs * (self.inputs + usize::from(self.bias)) * size_of::<f32>()) as u64
    }
}

/// The switches of a pooling's configuration, and what they stand for.
const MODES: [(&str, Option<Pooling>); 6] = [
    ("pooling_mode_cls_token", Some(Pooling::Cls)),
    ("pooling_mode_mean_tokens", Some(Pooling::Mean)),
    ("pooling_mode_max_tokens", Some(Pooling::Max)),
    ("pooling_mode_lasttoken", Some(Pooling::Last)),
    ("pooling_mode_mean_sqrt_len_tokens", None),
    ("pooling_mode_weightedmean_tokens", None),
];

/// The pooling of a pooling module's `config.json`.
fn read_pooling(files: &CheckpointFiles, folder: &str) -> Result<Pooling> {
    let config = module_config(files, folder, POOLING)?;
    // Without the prompt's tokens the mean would be over a part of the text.
    if !config.flag_or("include_prompt", true)? {
        return Err(config.unsupported("include_prompt", &false.into(), "; true is"));
    }
    let mut chosen = None;
    // Every switch may be listed, so only true ones count.
    let mut modes = MODES.iter().filter(|(key, _)| config.raw(key) == Some(&true.into()));
    if let Some((key, mode)) = modes.next() {
        let mode = mode.ok_or_else(|| config.unsupported(key, &true.into(), ONE_MODE))?;
        chosen = Some(mode);
    }
    if let Some((key, _)) = modes.next() {
        return Err(config.unsupported(key, &true.into(), "; one mode alone is"));
    }
    // Newer versions write the mode's name.
    match (chosen, config.raw("pooling_mode")) {
        (Some(mode), _) => Ok(mode),
        (None, Some(Value::String(name))) => match name.as_str() {
            "cls" => Ok(Pooling::Cls),
            "mean" => Ok(Pooling::Mean),
            "max" => Ok(Pooling::Max),
            "lasttoken" => Ok(Pooling::Last),
            other => Err(config.unsupported("pooling_mode", &other.into(), ONE_MODE)),
        },
        (None, Some(other)) => Err(config.unsupported("pooling_mode", other, ONE_MODE)),
        (None, None) => Err(config.missing("pooling_mode", "the name of a pooling mode")),
    }
}

const ONE_MODE: &str = "; cls, mean, max or lasttoken is";
