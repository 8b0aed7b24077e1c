//! The files of a checkpoint: in a folder, in GGUF files, or embedded in the program.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fmt,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::Value;

use crate::{
    config::HfConfig,
    error::{Error, Result},
    gguf::{Gguf, is_gguf},
    vocabulary,
};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

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

/// The beginning of the pointers that git-lfs keeps in place of large files until they are fetched.
const LFS_POINTER: &[u8] = b"version https://git-lfs";
/// A mark that some editors write at the beginning of a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The contents of a file; `None` where there is none.
fn read_file(path: PathBuf) -> Result<Option<Vec<u8>>> {
    match std::fs::read(&path) {
        Ok(bytes) if bytes.starts_with(LFS_POINTER) => Err(Error::LfsPointer { path }),
        Ok(mut bytes) => {
            if bytes.starts_with(BYTE_ORDER_MARK) {
                bytes.drain(..BYTE_ORDER_MARK.len());
            }
            Ok(Some(bytes))
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { path, source }),
    }
}

/// The contents of a file that is not there, from a folder's vocabulary of another kind.
fn from_vocabulary(folder: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let read = |name: &str| read_file(folder.join(name));
    let json = match name {
        TOKENIZER => vocabulary::tokenizer(&read)?,
        TOKENIZER_CONFIG => vocabulary::tokenizer_config(&read)?,
        _ => None,
    };
    Ok(json.map(|json| json.to_string().into_bytes()))
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
        match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => {}
            // Relative paths may also be ids of the hub, so their errors say nothing.
            Err(source)
                if path.is_absolute()
                    && !matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Err(Error::Io { path: path.to_owned(), source });
            }
            _ => return Ok(None),
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
            Self::Folder(folder) => {
                let bytes = read_file(folder.join(name))?;
                let bytes = match bytes {
                    None => from_vocabulary(folder, name)?,
                    bytes => bytes,
                };
                Ok(bytes.map(Cow::Owned))
            }
        }
    }

    /// The JSON object in a file, or `None` if there is no such file.
    ///
    /// # Errors
    /// The file cannot be read or is not a JSON object.
    pub fn json(&self, name: &str) -> Result<Option<HfConfig>> {
        let shown = self.shown_name(name);
        self.read(name)?.map(|bytes| HfConfig::parse(shown, &bytes)).transpose()
    }

    /// Remarks for users on the tokenizer, in a line each.
    pub fn remarks(&self) -> Vec<String> {
        self.gguf().map(Gguf::remarks).unwrap_or_default()
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

    /// The path of a weight file, unless it is embedded.
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
                .filter_map(|entry| entry.ok())
                // Reading anything else, such as a pipe, might never end.
                .filter(|entry| entry.path().is_file())
                .filter_map(|entry| entry.file_name().into_string().ok())
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
        let names = files.names();
        let named = Self::named(names.iter().map(String::as_str));
        let index = match named.ok_or_else(|| no_weights(files))? {
            NamedWeights::Files(names) => return Self::of_names(files, names),
            NamedWeights::Index(index) => index,
        };
        let Some(index) = files.json(&index)? else { return Err(no_weights(files)) };
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
        Self::of_names(files, names.into_iter().collect())
    }

    /// These files, unless one of them is a pointer of git-lfs.
    fn of_names(files: &CheckpointFiles, names: Vec<String>) -> Result<Self> {
        for path in names.iter().filter_map(|name| files.path(name)) {
            if is_lfs_pointer(&path) {
                return Err(Error::LfsPointer { path });
            }
        }
        Ok(match <[String; 1]>::try_from(names) {
            Ok([name]) => Self::Single(name),
            Err(names) => Self::Sharded(names),
        })
    }

    /// The files that hold the weights, among files of these names: `model.safetensors` or its index, or else the only index. Without
    /// these it is the only safetensors file, or all parts of the only set of them.
    pub fn named<'a>(names: impl Iterator<Item = &'a str>) -> Option<NamedWeights> {
        let names: Vec<&str> = names.filter(|name| !name.contains('/')).collect();
        let (single, index) = (names.contains(&SINGLE), names.contains(&INDEX));
        if single || index {
            let file = || NamedWeights::Files(vec![SINGLE.to_owned()]);
            return Some(if single { file() } else { NamedWeights::Index(INDEX.to_owned()) });
        }
        let indices: Vec<&&str> = names.iter().filter(|name| name.ends_with(INDEX_END)).collect();
        if let [index] = indices[..] {
            return Some(NamedWeights::Index((*index).to_owned()));
        }
        if names.iter().any(|name| name.starts_with(PICKLED)) {
            // The weights are in another format, and a safetensors file of another name is something else.
            return None;
        }
        let mut files: Vec<&str> = names.into_iter().filter(|name| is_weights(name)).collect();
        files.sort_unstable();
        let parts = files.first().and_then(|first| Some(Part::of(first)?.parts));
        let is_whole = match parts {
            Some(parts) => {
                let stem = Part::of(files[0]).map(|part| part.stem);
                let part = |(i, name): (usize, &&str)| {
                    Part::of(name).is_some_and(|part| (Some(part.stem), part.part) == (stem, i + 1))
                };
                files.len() == parts && files.iter().enumerate().all(part)
            }
            None => files.len() == 1,
        };
        is_whole.then(|| NamedWeights::Files(files.into_iter().map(str::to_owned).collect()))
    }
}

/// The files that hold the weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedWeights {
    /// These files, in order.
    Files(Vec<String>),
    /// The files that this index names.
    Index(String),
}

/// End of an index's name.
const INDEX_END: &str = ".safetensors.index.json";
/// Weights as PyTorch pickles them, which are not read.
const PICKLED: &str = "pytorch_model";
/// Files in Mistral's own layout, which is not read.
const CONSOLIDATED: &str = "consolidated";

/// Whether a file's name may be that of weights: not of an adapter, and not in another layout.
fn is_weights(name: &str) -> bool {
    let others = [CONSOLIDATED, "adapter", "lora", "optimizer", "mmproj"];
    name.ends_with(".safetensors") && !others.iter().any(|other| name.starts_with(other))
}

/// A name `STEM-00002-of-00003.safetensors`.
struct Part<'a> {
    stem: &'a str,
    part: usize,
    parts: usize,
}

impl<'a> Part<'a> {
    fn of(name: &'a str) -> Option<Self> {
        let (rest, parts) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
        let (stem, part) = rest.rsplit_once('-')?;
        Some(Self { stem, part: part.parse().ok()?, parts: parts.parse().ok()? })
    }
}

/// Whether a file is a pointer of git-lfs to the one that is meant.
pub(crate) fn is_lfs_pointer(path: &Path) -> bool {
    let mut bytes = [0; LFS_POINTER.len()];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.is_ok() && bytes == *LFS_POINTER
}

const MAP: &str = "an object from tensor names to files";

/// The adapter's settings, beside an adapter's weights.
const ADAPTER: &str = "adapter_config.json";

/// The error for a folder that holds an adapter in place of a model; `None` for others.
pub(crate) fn adapter(files: &CheckpointFiles) -> Option<Error> {
    let config = files.json(ADAPTER).ok()??;
    let base = config.text_opt("base_model_name_or_path").ok()?.unwrap_or("another model");
    Some(Error::Adapter { place: files.to_string(), base: base.chars().take(200).collect() })
}

fn no_weights(files: &CheckpointFiles) -> Error {
    if let Some(error) = adapter(files) {
        return error;
    }
    let mut names = files.names();
    names.sort();
    let ends = |ends: &[&str]| {
        let found = names.iter().filter(|name| ends.iter().any(|end| name.ends_with(end)));
        found.take(3).cloned().collect::<Vec<_>>().join(", ")
    };
    let (safetensors, others) =
        (ends(&[".safetensors", INDEX_END]), ends(&[".bin", ".pt", ".pth", ".h5"]));
    let found = if safetensors.starts_with(CONSOLIDATED) {
        format!(
            " (found {safetensors}, in Mistral's own layout: take the version in that of transformers)"
        )
    } else if !others.is_empty() {
        format!(" (found {others}; convert them to safetensors)")
    } else if !safetensors.is_empty() {
        format!(
            " (found {safetensors}: which of them are the weights? Leave one, or all parts NAME-00001-of-00002.safetensors of one)"
        )
    } else {
        String::new()
    };
    Error::NoWeights { place: files.to_string(), others: found }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(text: &'static str) -> CheckpointFiles {
        CheckpointFiles::Embedded(Box::leak(Box::new([(INDEX, text.as_bytes())])))
    }

    #[test]
    fn a_folder_that_cannot_be_looked_at_is_not_said_to_be_missing() {
        let link = std::env::temp_dir().join(format!("candlepower-loop-{}", std::process::id()));
        std::os::unix::fs::symlink(&link, &link).unwrap();
        let error = CheckpointFiles::find(&link).unwrap_err().to_string();
        std::fs::remove_file(&link).unwrap();
        assert!(error.starts_with(&format!("cannot read {}: ", link.display())), "{error}");
        assert!(CheckpointFiles::find(&link.join("a")).unwrap().is_none());
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
    fn weights_are_found_under_other_names() {
        let named = |names: &[&str]| WeightFiles::named(names.iter().copied());
        let files = |names: &[&str]| {
            Some(NamedWeights::Files(names.iter().map(|name| (*name).to_owned()).collect()))
        };
        let gptq = "gptq_model-4bit-128g.safetensors";
        assert_eq!(named(&["config.json", gptq, "consolidated.safetensors"]), files(&[gptq]));
        let one = "model-00001-of-00001.safetensors";
        assert_eq!(named(&[one]), files(&[one]));
        let both = ["a-00001-of-00002.safetensors", "a-00002-of-00002.safetensors"];
        assert_eq!(named(&[both[1], both[0]]), files(&both));
        assert_eq!(named(&["a.safetensors", SINGLE]), files(&[SINGLE]));
        let index = "model.fp16.safetensors.index.json";
        assert_eq!(named(&[index, both[0]]), Some(NamedWeights::Index(index.to_owned())));
        for unclear in [
            &both[..1],
            &["a.safetensors", "b.safetensors"],
            &["adapter_model.safetensors"],
            &["consolidated.safetensors"],
            &["a-00001-of-00002.safetensors", "b-00002-of-00002.safetensors"],
            &["x/model.safetensors"],
        ] {
            assert_eq!(named(unclear), None, "{unclear:?}");
        }
    }

    #[test]
    fn what_is_there_instead_of_weights_is_named() {
        for (files, part) in [
            (
                &[("consolidated.safetensors", &b""[..])][..],
                "(found consolidated.safetensors, in Mistral's own layout",
            ),
            (
                &[("b.safetensors", b""), ("a.safetensors", b"")],
                "(found a.safetensors, b.safetensors: which of them",
            ),
            (
                &[("adapter_config.json", br#"{"base_model_name_or_path": "a/base"}"#)],
                "holds an adapter (LoRA) of a/base: merge it into that model and serve the merged one",
            ),
        ] {
            let files = CheckpointFiles::Embedded(Box::leak(files.to_vec().into_boxed_slice()));
            let line = WeightFiles::find(&files).unwrap_err().to_string();
            assert!(line.contains(part), "{line}");
        }
    }

    #[test]
    fn other_formats_are_named() {
        let files =
            CheckpointFiles::Embedded(&[("pytorch_model.bin", b""), ("config.json", b"{}")]);
        let e = WeightFiles::find(&files).unwrap_err().to_string();
        assert!(e.contains("pytorch_model.bin"), "{e}");
    }
}
