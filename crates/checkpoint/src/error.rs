//! Errors in a checkpoint's description, in words that say what to do.

use std::path::PathBuf;

use crate::bytes::Bytes;

/// Result with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A checkpoint that cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that every checkpoint has is not there.
    #[error("{file} is missing in {place}: is this a Hugging Face model folder?")]
    FileMissing {
        /// The file's name.
        file: &'static str,
        /// The folder, in words.
        place: String,
    },
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's own error.
        source: std::io::Error,
    },
    /// A file was not fetched from git-lfs.
    #[error(
        "{} is a pointer of git-lfs and not the file itself: fetch it with `git lfs pull`, or download the model again",
        path.display()
    )]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// A folder holds what is added to a model and no model.
    #[error(
        "{place} holds an adapter (LoRA) of {base}: merge it into that model and serve the merged one"
    )]
    Adapter {
        /// The folder, in words.
        place: String,
        /// The model that it belongs to.
        base: String,
    },
    /// A file is not the JSON object it should be.
    #[error("{file} is damaged, it is not a JSON object: {reason}")]
    Json {
        /// The file's name.
        file: String,
        /// The parser's own words.
        reason: String,
    },
    /// A key is absent.
    #[error("{file}: `{key}` is missing; {expected} is needed")]
    KeyMissing {
        /// The file's name.
        file: String,
        /// The key, with the names of the objects around it.
        key: String,
        /// The value that should be there.
        expected: &'static str,
    },
    /// A key has a value of the wrong type or out of range.
    #[error("{file}: `{key}` is {found}, but {expected} is needed")]
    KeyType {
        /// The file's name.
        file: String,
        /// The key, with the names of the objects around it.
        key: String,
        /// The value that is there.
        found: String,
        /// The value that should be there.
        expected: &'static str,
    },
    /// A value that would change the computation and is not implemented.
    #[error("{file}: `{key}` = {value} is not supported{hint}")]
    Unsupported {
        /// The file's name.
        file: String,
        /// The key, with the names of the objects around it.
        key: String,
        /// The value that is there.
        value: String,
        /// Supported values, with the punctuation before them; may be empty.
        hint: String,
    },
    /// A key that may change the computation, and that nobody knows.
    #[error(
        "{file}: `{key}` = {value} is not known, and may change what the model answers; start with --ignore-config-key {key} if it does not"
    )]
    UnknownKey {
        /// The file's name.
        file: String,
        /// The key, with the names of the objects around it.
        key: String,
        /// Its value.
        value: String,
    },
    /// The architecture is not in the table.
    #[error("architecture `{name}` is not supported{nearest}; supported: {supported}")]
    UnknownArchitecture {
        /// The class name or model type found.
        name: String,
        /// The most similar supported name, in words; empty where none is similar.
        nearest: String,
        /// All supported names.
        supported: String,
    },
    /// A matrix that cannot be packed as its quantization says.
    #[error(
        "config.json: {module} has {count} {what}, which the quantization packs in units of {unit}; list it in modules_to_not_convert if it is stored unquantized"
    )]
    QuantizedShape {
        /// The module.
        module: String,
        /// Inputs or outputs.
        what: &'static str,
        /// Their number.
        count: usize,
        /// Number of values that are packed together.
        unit: usize,
    },
    /// Quantization on load was asked of a checkpoint that is quantized already.
    #[error(
        "--quantize-on-load {asked} is for weights that are not quantized, and {file} says `{method}`: leave the flag out, or take the model that is not quantized"
    )]
    AlreadyQuantized {
        /// The format that was asked for.
        asked: &'static str,
        /// The file with the configuration.
        file: String,
        /// The method by which they are quantized.
        method: String,
    },
    /// A vocabulary in a file of its own kind cannot be used.
    #[error(
        "{file} cannot be read as a tokenizer: {reason}; name a folder with the model's own tokenizer.json by --tokenizer"
    )]
    Vocabulary {
        /// The file's name.
        file: &'static str,
        /// The fault.
        reason: String,
    },
    /// A GGUF file is not what it should be.
    #[error("{file} is damaged, or no GGUF file: {}; download it again", one_line(reason))]
    Gguf {
        /// The file's name.
        file: String,
        /// The contents that were found, in words.
        reason: String,
    },
    /// A GGUF file says what cannot be, so that another download of it helps nothing.
    #[error("{file} cannot be used: {}; take another version of the model", one_line(reason))]
    GgufContents {
        /// The file's name.
        file: String,
        /// The reason, in words.
        reason: String,
    },
    /// A tensor of a GGUF file is of a type that is not computed with.
    #[error(
        "{file}: tensor {tensor} is stored as {found}, which is not supported; {served} are: take a version of the model in one of these"
    )]
    GgufTensorType {
        /// The file's name.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// The type's name.
        found: String,
        /// The names of the types that are computed with.
        served: String,
    },
    /// Several models in a folder.
    #[error("{place} holds several models, {names}; name one of the files")]
    SeveralModels {
        /// The folder.
        place: String,
        /// The files.
        names: String,
    },
    /// No weight file was found.
    #[error(
        "no weights in {place}: neither model.safetensors nor model.safetensors.index.json nor a GGUF file is there{others}"
    )]
    NoWeights {
        /// The folder, in words.
        place: String,
        /// Weight files in other formats that are there, in words; may be empty.
        others: String,
    },
    /// Weights, activations and the KV cache do not fit the memory.
    #[error(
        "out of memory: {} are needed ({parts}) and {} are free; {ways_out}", Bytes(*.needed), Bytes(*.free)
    )]
    OutOfMemory {
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// The longest context that would fit, in tokens; 0 where none would.
        max_model_len: usize,
        /// The parts that need memory, in words.
        parts: String,
        /// Settings that would fit, in words.
        ways_out: String,
    },
    /// A context longer than the model's positions.
    #[error(
        "max_model_len {asked} is beyond the model's {limit} positions; ask for at most {limit}"
    )]
    MaxModelLen {
        /// The context that was asked for, in tokens.
        asked: usize,
        /// The longest that the model allows, in tokens.
        limit: usize,
    },
    /// One sequence of `max_model_len` does not fit the KV cache.
    #[error(
        "the KV cache cannot hold one sequence of max_model_len {max_model_len}: that needs {needed} bytes and it has \
         {available}; give --kv-cache-memory at least {needed}{}", shorter(*.fits)
    )]
    KvCacheTooSmall {
        /// Longest sequence asked for.
        max_model_len: usize,
        /// Bytes that one such sequence needs.
        needed: u64,
        /// Bytes that the cache has.
        available: u64,
        /// Longest sequence that fits.
        fits: usize,
    },
    /// The layers cannot be split over so many ranks.
    #[error("tensor_parallel_size {asked} does not divide the model's {what}; choose {possible}")]
    TensorParallel {
        /// Ranks asked for.
        asked: usize,
        /// The count that does not divide, and its name.
        what: String,
        /// Numbers of ranks that divide everything, in words.
        possible: String,
    },
    /// The processor of images, or its settings.
    #[error(transparent)]
    Images(candlepower_media::Error),
    /// The processor makes pictures that the tower does not take.
    #[error(
        "the settings for images make {problem}: correct the size in preprocessor_config.json and the patch in processor_config.json, or copy both from the model's source"
    )]
    ProcessorSize {
        /// The sizes of both, in words.
        problem: String,
    },
    /// The tokenizer lacks a token that stands between the embeddings of an image.
    #[error(
        "the tokenizer has no token {text:?}, which images need: copy its files from the model's source"
    )]
    ImageToken {
        /// The token's text.
        text: String,
    },
    /// The tokenizer has another id for the placeholder of images than the configuration.
    #[error(
        "the token {text:?} has the id {found} in the tokenizer and {expected} in config.json: copy both from the model's source"
    )]
    ImagePlaceholder {
        /// The token's text.
        text: String,
        /// Its id in the tokenizer.
        found: u32,
        /// Its id in the configuration.
        expected: u32,
    },
    /// A part of the model has no kernel on a GPU whose results are independent of other sequences.
    #[error("deterministic is not possible on a GPU with {part}: {advice}")]
    NotDeterministic {
        /// The part or the setting.
        part: String,
        /// The other possibilities.
        advice: &'static str,
    },
    /// Keys and values cannot be kept so.
    #[error(
        "--kv-cache-dtype {asked} is not possible on {device} with these weights: choose one of auto, {others}, fp8"
    )]
    KvDtype {
        /// The dtype that was asked for.
        asked: &'static str,
        /// The device, in words.
        device: &'static str,
        /// Dtypes that would work, beside FP8.
        others: &'static str,
    },
}

/// The other way out of a cache that is too small, where there is one.
fn shorter(fits: usize) -> String {
    if fits == 0 { String::new() } else { format!(", or lower --max-model-len to {fits}") }
}

/// A text of which a file wrote a part, without characters that would break the line.
fn one_line(text: &str) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    text.chars().map(escaped).collect()
}
