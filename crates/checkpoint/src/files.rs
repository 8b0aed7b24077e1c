//! Where a checkpoint's files are: a folder, or bytes embedded in the program.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::Value;

use crate::{
    config::HfConfig,
    error::{Error, Result},
    gguf::{Gguf, is_gguf},
    tiktoken,
};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const TOKENIZER: &str = "tokenizer.json";

/// The files of a checkpoint.
#[derive(Clone)]
pub enum CheckpointFiles {
    /// A model folder in the Hugging Face layout.
    Folder(PathBuf),
    /// Names and contents, embedded in the program.
    Embedded(&'static [(&'static str, &'static [u8])]),
    /// GGUF files, whose metadata is read as what a folder would hold.
    Gguf(Arc<Gguf>),
}

/// The contents of a file; `None` where there is none.
fn read_file(path: PathBuf) -> Result<Option<Vec<u8>>> {
    match std::fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { path, source }),
    }
}

/// The `tokenizer.json` that a vocabulary in tiktoken's format says, where a folder has such.
fn from_tiktoken(folder: &Path) -> Result<Option<Vec<u8>>> {
    let Some(vocabulary) = read_file(folder.join(tiktoken::FILE))? else { return Ok(None) };
    let config = read_file(folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let tokenizer = tiktoken::tokenizer(&vocabulary, &config)?;
    Ok(Some(tokenizer.to_string().into_bytes()))
}

impl CheckpointFiles {
    /// The model at a path: a folder, a GGUF file, or a folder with one and without safetensors; `None` where there is
    /// neither.
    ///
    /// # Errors
    /// A GGUF file that cannot be read, or several where none is named.
    pub fn find(path: &Path) -> Result<Option<Self>> {
        if is_gguf(path) {
            return Ok(Some(Self::Gguf(Arc::new(Gguf::open(path)?))));
        }
        if !path.is_dir() {
            return Ok(None);
        }
        let folder = Self::Folder(path.to_owned());
        if folder.contains(SINGLE) || folder.contains(INDEX) {
            return Ok(Some(folder));
        }
        let gguf = Gguf::in_folder(path)?;
        Ok(Some(gguf.map_or(folder, |gguf| Self::Gguf(Arc::new(gguf)))))
    }

    /// The contents of a file, or `None` where there is no such file.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>> {
        match self {
            Self::Embedded(_) => Ok(self.embedded(name).map(Cow::Borrowed)),
            Self::Gguf(gguf) => Ok(gguf.folder_file(name)?.map(Cow::Owned)),
            Self::Folder(folder) => Ok(match (read_file(folder.join(name))?, name) {
                (None, TOKENIZER) => from_tiktoken(folder)?.map(Cow::Owned),
                (bytes, _) => bytes.map(Cow::Owned),
            }),
        }
    }

    /// Whether there is such a file.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::Folder(folder) => folder.join(name).is_file(),
            Self::Embedded(_) => self.embedded(name).is_some(),
            Self::Gguf(gguf) => gguf.files().iter().any(|file| file == name),
        }
    }

    /// The folder, where it is one.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(folder) => Some(folder),
            Self::Embedded(_) | Self::Gguf(_) => None,
        }
    }

    /// Where a weight file lies, unless it is embedded.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        match self {
            Self::Folder(folder) => Some(folder.join(name)),
            Self::Gguf(gguf) => Some(gguf.folder().join(name)),
            Self::Embedded(_) => None,
        }
    }

    /// The GGUF files, where it is they.
    pub fn gguf(&self) -> Option<&Gguf> {
        match self {
            Self::Gguf(gguf) => Some(gguf),
            Self::Folder(_) | Self::Embedded(_) => None,
        }
    }

    /// In which file people find what the file `name` says.
    pub(crate) fn shown_name<'a>(&'a self, name: &'a str) -> &'a str {
        self.gguf().map_or(name, |gguf| &gguf.files()[0])
    }

    /// The contents of an embedded file.
    pub fn embedded(&self, name: &str) -> Option<&'static [u8]> {
        match self {
            Self::Folder(_) | Self::Gguf(_) => None,
            Self::Embedded(files) => {
                files.iter().find(|(n, _)| *n == name).map(|(_, bytes)| *bytes)
            }
        }
    }

    fn names(&self) -> Vec<String> {
        match self {
            Self::Embedded(files) => files.iter().map(|(n, _)| n.to_string()).collect(),
            Self::Gguf(gguf) => gguf.files().to_vec(),
            Self::Folder(folder) => std::fs::read_dir(folder)
                .into_iter()
                .flatten()
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .collect(),
        }
    }
}

impl fmt::Debug for CheckpointFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for CheckpointFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "{}", folder.display()),
            Self::Embedded(_) => write!(f, "the embedded model"),
            Self::Gguf(gguf) => write!(f, "{}", gguf.folder().join(&gguf.files()[0]).display()),
        }
    }
}

/// The files that hold the weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightFiles {
    /// One file.
    Single(String),
    /// Several, as the index names them, in the order of their names.
    Sharded(Vec<String>),
}

impl WeightFiles {
    /// The files' names.
    pub fn names(&self) -> &[String] {
        match self {
            Self::Single(name) => std::slice::from_ref(name),
            Self::Sharded(names) => names,
        }
    }

    /// Finds them: `model.safetensors`, or the shards that the index names, which need not be there.
    ///
    /// # Errors
    /// Neither is there, or the index is damaged.
    pub fn find(files: &CheckpointFiles) -> Result<Self> {
        if let Some(gguf) = files.gguf() {
            return Ok(match gguf.files() {
                [single] => Self::Single(single.clone()),
                several => Self::Sharded(several.to_vec()),
            });
        }
        if files.contains(SINGLE) {
            return Ok(Self::Single(SINGLE.to_owned()));
        }
        let Some(index) = HfConfig::read(files, INDEX)? else {
            return Err(no_weights(files));
        };
        let map = index.section("weight_map")?.ok_or_else(|| index.missing("weight_map", MAP))?;
        let mut names = BTreeSet::new();
        for (tensor, file) in map.entries() {
            let name = file.as_str().ok_or_else(|| map.ill_typed(tensor, file, "a file name"))?;
            // A name with a folder in it could leave the checkpoint.
            if Path::new(name).file_name() != Some(name.as_ref()) {
                return Err(map.ill_typed(tensor, file, "a file name without a folder"));
            }
            names.insert(name.to_owned());
        }
        if names.is_empty() {
            return Err(index.ill_typed("weight_map", &Value::Object(Default::default()), MAP));
        }
        Ok(Self::Sharded(names.into_iter().collect()))
    }
}

const MAP: &str = "an object from tensor names to files";

fn no_weights(files: &CheckpointFiles) -> Error {
    let mut others: Vec<String> = files
        .names()
        .into_iter()
        .filter(|n| [".bin", ".pt", ".pth", ".h5"].iter().any(|end| n.ends_with(end)))
        .collect();
    others.sort();
    others.truncate(3);
    let others = if others.is_empty() {
        String::new()
    } else {
        format!(" (found {}; convert them to safetensors)", others.join(", "))
    };
    Error::NoWeights { place: files.to_string(), others }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(text: &'static str) -> CheckpointFiles {
        CheckpointFiles::Embedded(Box::leak(Box::new([(INDEX, text.as_bytes())])))
    }

    #[test]
    fn an_index_names_each_shard_once() {
        let files =
            index(r#"{"metadata": {}, "weight_map": {"a": "2.st", "b": "1.st", "c": "2.st"}}"#);
        let found = WeightFiles::find(&files).unwrap();
        assert_eq!(found.names(), ["1.st", "2.st"]);
    }

    #[test]
    fn an_index_may_not_leave_the_folder() {
        let e = WeightFiles::find(&index(r#"{"weight_map": {"a": "../secret"}}"#)).unwrap_err();
        assert_eq!(
            e.to_string(),
            "model.safetensors.index.json: `weight_map.a` is \"../secret\", but a file name without a folder is needed"
        );
    }

    #[test]
    fn other_formats_are_named() {
        let files =
            CheckpointFiles::Embedded(&[("pytorch_model.bin", b""), ("config.json", b"{}")]);
        let e = WeightFiles::find(&files).unwrap_err().to_string();
        assert!(e.contains("pytorch_model.bin"), "{e}");
    }
}
