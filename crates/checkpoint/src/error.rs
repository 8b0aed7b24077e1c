//! What can be wrong with a checkpoint's description, in words that say what to do.

use std::path::PathBuf;

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
        /// What should be there.
        expected: &'static str,
    },
    /// A key has a value of the wrong type or out of range.
    #[error("{file}: `{key}` is {found}, but {expected} is needed")]
    KeyType {
        /// The file's name.
        file: String,
        /// The key, with the names of the objects around it.
        key: String,
        /// What is there.
        found: String,
        /// What should be there.
        expected: &'static str,
    },
    /// A value that would change the computation and is not implemented.
    #[error("{file}: `{key}` = {value} is not supported{hint}")]
    Unsupported {
        /// The file's name.
        file: String,
        /// The key, with the names of the objects around it.
        key: String,
        /// What is there.
        value: String,
        /// What would be supported, with the punctuation before it; may be empty.
        hint: String,
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
    /// No weight file was found.
    #[error(
        "no weights in {place}: neither model.safetensors nor model.safetensors.index.json is there{others}"
    )]
    NoWeights {
        /// The folder, in words.
        place: String,
        /// Weight files in other formats that are there, in words; may be empty.
        others: String,
    },
}
