//! GGUF files: a whole model in one file or in several, which is read as if it were a model folder. The contents of
//! `config.json`, `tokenizer.json` and `tokenizer_config.json` are made from the metadata.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    ops::Range,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    config::HfConfig,
    error::{Error, Result},
    quantization::{GgufType, Scheme},
    spec::{Mixer, ModelSpec, NormKind},
    weights::{TensorPlan, WeightRule},
};

mod arch;
mod config;
mod header;
mod keys;
mod names;
mod tokenizer;

use arch::GgufArch;
use header::{Header, Place};

/// Most values of a tensor that is read with the configuration: the divisors of the RoPE frequencies.
// Llama 3.1's has 64 values, half of its head's width. The
// bound keeps a damaged file from being read into memory whole.
const MAX_DIVISORS: u64 = 1 << 12;
/// Fewest and most bytes of a header that are read at once.
// The first piece holds the header of most small models. The upper bound limits memory,
// and the growth limits the requests to a hub for a vocabulary of many megabytes.
const PIECE_BYTES: Range<u64> = 1 << 20..16 << 20;

/// Reads a range of the bytes of the file of a name; what lies beyond its end may be left out.
pub type ReadRange<'a> = dyn FnMut(&str, Range<u64>) -> io::Result<Vec<u8>> + 'a;

/// A model in GGUF files, whose headers are read.
#[derive(Debug)]
pub struct Gguf {
    folder: PathBuf,
    /// The files' names, in order.
    files: Vec<String>,
    /// Metadata of the first file.
    metadata: HfConfig,
    arch: &'static GgufArch,
    tensors: HashMap<String, GgufTensor>,
    /// Divisors of the RoPE frequencies, if tensors have them.
    divisors: HashMap<&'static str, Vec<f64>>,
}

/// A tensor in a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufTensor {
    /// Index of its file.
    pub file: usize,
    /// Start of its bytes in the file.
    pub offset: u64,
    /// `[rows, columns]`, or `[rows]` of a vector.
    pub shape: Vec<usize>,
    /// Type of its values.
    pub kind: GgufType,
}

impl Gguf {
    /// Opens a file, and those that belong to it where its name ends in `-00001-of-00003.gguf`.
    ///
    /// # Errors
    /// A file is missing, damaged, or of an architecture or with tensors of a type that is not supported.
    pub fn open(path: &Path) -> Result<Self> {
        let folder = path.parent().unwrap_or_else(|| Path::new("")).to_owned();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut files = Vec::new();
        for name in Self::parts(&name) {
            let path = folder.join(&name);
            let len = path.metadata().map_err(|source| Error::Io { path, source })?.len();
            files.push((name, len));
        }
        let mut read = |name: &str, range: Range<u64>| {
            let mut file = File::open(folder.join(name))?;
            file.seek(SeekFrom::Start(range.start))?;
            let mut bytes = Vec::new();
            file.take(range.end - range.start).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        Self::read(folder.clone(), files, &mut read)
    }

    /// The same as [`Self::open`], for files that are perhaps not yet in their folder, each with its length in bytes. `read` reads the
    /// necessary parts of them, which are their headers and few other bytes.
    ///
    /// # Errors
    /// Those of `open`, and those of `read`.
    pub fn read(
        folder: PathBuf,
        files: Vec<(String, u64)>,
        read: &mut ReadRange<'_>,
    ) -> Result<Self> {
        let mut headers = Vec::new();
        for (name, len) in &files {
            headers.push(Header::read(name, Pieces::new(name, *len, read), *len)?);
        }
        let names = files.into_iter().map(|(name, _)| name).collect();
        // The divisors are read last: only the headers of all parts say in which file a tensor lies.
        let mut gguf = Self::of_headers(folder, names, headers)?;
        for name in config::DIVISORS {
            if let Some(divisors) = gguf.read_divisors(name, read)? {
                gguf.divisors.insert(name, divisors);
            }
        }
        Ok(gguf)
    }

    /// The names of all files of the model to which a file of this name belongs, in order.
    pub fn parts(name: &str) -> Vec<String> {
        Split::of(name).map_or_else(|| vec![name.to_owned()], |split| split.all())
    }

    /// The name, without its ending and the numbers of parts, of the model of which the file called `name` is the first or the only
    /// one; `None` for its other parts, for projectors of images, and for other files.
    pub fn model_name(name: &str) -> Option<&str> {
        let model = match Split::of(name) {
            Some(split) => (split.part == 1).then_some(split.base),
            None => without_ending(name),
        };
        let is_projector = |model: &str| {
            model.split(['-', '.', '_']).any(|word| word.eq_ignore_ascii_case("mmproj"))
        };
        model.filter(|model| !is_projector(model))
    }

    fn of_headers(folder: PathBuf, files: Vec<String>, headers: Vec<Header>) -> Result<Self> {
        let mut metadata = None;
        let mut tensors = HashMap::new();
        for (file, header) in headers.into_iter().enumerate() {
            let keys = HfConfig::from_entries(&files[file], header.metadata);
            // gguf-split counts parts from 0 in the metadata and from 1 in
            // names. A file that was never split has neither key.
            let (part, parts) = (keys.index_or("split.no", 0)?, keys.index_or("split.count", 0)?);
            if part != file || parts.max(1) != files.len() {
                let reason = format!(
                    "it is part {part} of {parts}, counted from 0, and its name says otherwise"
                );
                return Err(Error::Gguf { file: files[file].clone(), reason });
            }
            // gguf-split writes the model's metadata into the first part only.
            metadata.get_or_insert(keys);
            for (name, Place { kind, shape, offset, .. }) in header.tensors {
                let tensor = GgufTensor { file, offset, shape, kind };
                if tensors.insert(name.clone(), tensor).is_some() {
                    let reason = format!("the tensor {name:.80} is there twice");
                    return Err(Error::Gguf { file: files[file].clone(), reason });
                }
            }
        }
        let metadata = metadata.expect("there is at least one file");
        let arch = arch::find(&metadata)?;
        Ok(Self { folder, files, metadata, arch, tensors, divisors: HashMap::new() })
    }

    /// The only model in GGUF files of a folder; `None` where there is none.
    ///
    /// # Errors
    /// There are several, or as [`Self::open`].
    pub(crate) fn in_folder(folder: &Path) -> Result<Option<Self>> {
        let mut models: Vec<PathBuf> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                Self::model_name(&name).is_some() && path.is_file()
            })
            .collect();
        models.sort();
        match models.as_slice() {
            [] => Ok(None),
            [model] => Self::open(model).map(Some),
            several => Err(Error::SeveralModels {
                place: folder.display().to_string(),
                names: several
                    .iter()
                    .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
                    .collect::<Vec<_>>()
                    .join(", "),
            }),
        }
    }

    /// The folder of the files.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The first of the files: what [`Self::open`] finds them all by.
    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.files[0])
    }

    /// The files' names.
    pub(crate) fn files(&self) -> &[String] {
        &self.files
    }

    /// All tensors and their names.
    pub fn tensors(&self) -> &HashMap<String, GgufTensor> {
        &self.tensors
    }

    /// The contents that a file of a model folder would have, if the metadata has them.
    pub(crate) fn folder_file(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let value: Option<Value> = match name {
            "config.json" => Some(self.config()?.0),
            "tokenizer.json" => Some(self.tokenizer()?),
            "tokenizer_config.json" => Some(self.tokenizer_config()?),
            _ => None,
        };
        Ok(value.map(|value| value.to_string().into_bytes()))
    }

    /// The names of the architecture's tensors.
    pub(crate) fn weight_rules(&self) -> &'static [WeightRule] {
        self.arch.rules
    }

    /// The names that all architectures have in common.
    pub(crate) fn common_rules() -> &'static [WeightRule] {
        names::COMMON
    }

    /// Vectors may have further dimensions, such as one for each head.
    pub(crate) fn set_stored_shape(&self, plan: &mut TensorPlan) {
        let (Some(tensor), &[len]) = (self.tensors.get(&plan.name), plan.shape.as_slice()) else {
            return;
        };
        // The product is compared, not the shape: the file may store
        // one vector as `[heads, head_dim]`, in the same order.
        if tensor.shape.iter().product::<usize>() == len {
            plan.stored_shape.clone_from(&tensor.shape);
        }
    }

    /// The quantization of a matrix; `None` if it is not quantized.
    // Experts are matrices, too: the header's reader has already stacked their third dimension into rows.
    pub(crate) fn scheme_of(&self, tensor: &str) -> Option<Scheme> {
        let tensor = self.tensors.get(tensor).filter(|tensor| tensor.shape.len() == 2)?;
        tensor.kind.packed().map(|_| Scheme::Gguf(tensor.kind))
    }

    /// The scheme of most matrices, where any is quantized.
    pub(crate) fn scheme(&self) -> Option<Scheme> {
        let mut counts: BTreeMap<GgufType, usize> = BTreeMap::new();
        for (name, tensor) in &self.tensors {
            if self.scheme_of(name).is_some() {
                *counts.entry(tensor.kind).or_default() += 1;
            }
        }
        counts
            .into_iter()
            .max_by_key(|(kind, count)| (*count, *kind))
            .map(|(kind, _)| Scheme::Gguf(kind))
    }

    /// Whether a tensor is a part of the configuration, or of a layer behind the `layers` that are computed, where the file has such.
    pub(crate) fn is_ignored(&self, name: &str, layers: usize) -> bool {
        let is_behind = || {
            let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
            layer.and_then(|layer| layer.parse().ok()).is_some_and(|layer: usize| layer >= layers)
        };
        let predicts_more =
            self.metadata.contains(&format!("{}.nextn_predict_layers", self.arch.name));
        config::DIVISORS.contains(&name) || (predicts_more && is_behind())
    }

    /// Adjusts the description to what the files hold otherwise than the architecture's own checkpoints. Rows of q and k are in the
    /// order of pairs of neighbours. Norms that add one while they run have it added already. Linear attention has negated decay rates
    /// and another order of heads.
    pub(crate) fn adjust(&self, spec: &mut ModelSpec) {
        let plain = |kind: &mut NormKind| {
            if *kind == NormKind::RmsPlusOne {
                *kind = NormKind::Rms;
            }
        };
        plain(&mut spec.final_norm.kind);
        for layer in &mut spec.layers {
            plain(&mut layer.norm.kind);
            if let Mixer::LinearAttention(net) = &mut layer.mixer {
                // Tiled and grouped orders are the same where each key head has one value head.
                let differ = net.value_heads > net.key_heads;
                (net.log_rates, net.tiled) = (false, self.arch.tiled && differ);
            }
        }
        spec.each_attention(|_, attention| {
            attention.qk_norm.iter_mut().for_each(|own| plain(&mut own.norm.kind));
            if let Some(latent) = &mut attention.latent {
                // Only files with keys and values in tensors of their own have
                // the keys transposed. llama.cpp multiplies queries by them.
                latent.transposed_keys = self.tensors.contains_key("blk.0.attn_k_b.weight");
            }
            let rope = attention.rope.iter_mut();
            // An architecture whose own checkpoints have neighbouring pairs already, such as Cohere's, keeps them.
            rope.for_each(|rope| rope.interleaved |= self.arch.pairs);
        });
    }

    /// The values of a small tensor in single precision; `None` if there is no such tensor.
    fn read_divisors(&self, name: &str, read: &mut ReadRange<'_>) -> Result<Option<Vec<f64>>> {
        let Some(tensor) = self.tensors.get(name) else { return Ok(None) };
        let file = &self.files[tensor.file];
        let count = tensor.shape.iter().product::<usize>() as u64;
        if tensor.kind != GgufType::F32 || count > MAX_DIVISORS {
            let reason = format!("{name} is not a short vector of F32");
            return Err(Error::Gguf { file: file.clone(), reason });
        }
        let bytes = read(file, tensor.offset..tensor.offset + count * 4)
            .map_err(|source| Error::Io { path: self.folder.join(file), source })?;
        let number = |b: &[u8]| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Ok(Some(bytes.chunks_exact(4).map(number).collect()))
    }
}

/// A file from its beginning on, in pieces that grow: a header has some kilobytes or many megabytes, and each piece may be a request.
struct Pieces<'a, 'b> {
    file: &'a str,
    len: u64,
    read: &'a mut ReadRange<'b>,
    /// Start of the next piece.
    next: u64,
    piece: Vec<u8>,
    /// Bytes of the piece that are used up.
    used: usize,
}

impl<'a, 'b> Pieces<'a, 'b> {
    fn new(file: &'a str, len: u64, read: &'a mut ReadRange<'b>) -> Self {
        Self { file, len, read, next: 0, piece: Vec::new(), used: 0 }
    }
}

impl Read for Pieces<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.used == self.piece.len() && self.next < self.len {
            // Each piece is as long as all pieces before it together, within the bounds.
            let size = self.next.clamp(PIECE_BYTES.start, PIECE_BYTES.end);
            let end = self.len.min(self.next + size);
            self.piece = (self.read)(self.file, self.next..end)?;
            (self.next, self.used) = (end, 0);
        }
        let count = (&self.piece[self.used..]).read(buffer)?;
        self.used += count;
        Ok(count)
    }
}

/// Whether a path names a GGUF file, by its ending, or by its first bytes where it has another name or none.
pub(crate) fn is_gguf(path: &Path) -> bool {
    let by_name = || path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"));
    let by_magic = || {
        let mut magic = [0; 4];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
        read.is_ok() && magic == header::MAGIC
    };
    path.is_file() && (by_name() || by_magic())
}

/// A name without the ending of GGUF files, if it has it.
fn without_ending(name: &str) -> Option<&str> {
    let at = name.len().checked_sub(".gguf".len())?;
    name.get(at..)?.eq_ignore_ascii_case(".gguf").then(|| &name[..at])
}

/// The parts of a name `base-00002-of-00003.gguf`.
struct Split<'a> {
    base: &'a str,
    part: usize,
    parts: usize,
}

impl<'a> Split<'a> {
    fn of(name: &'a str) -> Option<Self> {
        let digits = |text: &str| {
            let all = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
            all.then(|| text.parse().ok()).flatten()
        };
        // gguf-split writes five digits. Another number of digits is a part of the model's own name.
        let (rest, parts) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (base, part) = rest.rsplit_once('-')?;
        let split = Self { base, part: digits(part)?, parts: digits(parts)? };
        (1..=split.parts).contains(&split.part).then_some(split)
    }

    /// The names of all parts.
    fn all(&self) -> Vec<String> {
        let name = |part| format!("{}-{part:05}-of-{:05}.gguf", self.base, self.parts);
        (1..=self.parts).map(name).collect()
    }
}

#[cfg(test)]
mod tests;
