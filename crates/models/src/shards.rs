//! The weight files of a checkpoint, safetensors or GGUF, mapped piece by piece.
//!
//! Only a piece is mapped at a time, and unmapped after use: the resident set never holds the file
//! and the packed weights together.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    fs::File,
    ops::Deref,
};

use candle_core::{DType, Device, Tensor};
use candlepower_checkpoint::{
    Checkpoint, CheckpointFiles, Gguf, GgufType, StoredKind, StoredTensor, TensorPlan,
    VisionTensor, WeightFiles,
};
use memmap2::{Mmap, MmapOptions};
use safetensors::SafeTensors;

use crate::error::{Error, Result};

/// The weight files, opened, their headers read and checked against the model.
pub(crate) struct Shards {
    files: Vec<Shard>,
    tensors: HashMap<String, InFile>,
}

/// A tensor in one of the files.
#[derive(Clone, Debug)]
pub(crate) struct InFile {
    file: usize,
    /// The offset of its bytes in the file.
    offset: u64,
    shape: Vec<usize>,
    dtype: StoredDtype,
}

/// The dtype of a stored tensor, by its file.
#[derive(Clone, Copy, Debug)]
enum StoredDtype {
    Safetensors(safetensors::Dtype),
    Gguf(GgufType),
}

impl StoredDtype {
    /// Its name in such files.
    fn name(self) -> String {
        match self {
            Self::Safetensors(dtype) => format!("{dtype:?}"),
            Self::Gguf(kind) => kind.as_str().to_owned(),
        }
    }

    /// Bytes of `count` values.
    fn num_bytes(self, count: usize) -> usize {
        match self {
            Self::Safetensors(dtype) => count * dtype.bitsize() / 8,
            Self::Gguf(kind) => count / kind.block() * kind.block_bytes(),
        }
    }
}

impl Shards {
    /// Opens the checkpoint's weight files and reads their headers.
    pub(crate) fn open(checkpoint: &Checkpoint) -> Result<Self> {
        let names = checkpoint.weight_files()?;
        if let Some(gguf) = checkpoint.files().gguf() {
            return Self::open_gguf(checkpoint.files(), gguf, &names);
        }
        Self::open_safetensors(checkpoint.files(), &names, &|name| checkpoint.planned_name(name))
    }

    /// Opens safetensors files, whose tensors keep their names, and reads their headers.
    pub(crate) fn open_files(files: &CheckpointFiles, names: &WeightFiles) -> Result<Self> {
        Self::open_safetensors(files, names, &|name| Cow::Borrowed(name))
    }

    fn open_safetensors(
        checkpoint: &CheckpointFiles,
        names: &WeightFiles,
        planned_name: &dyn for<'a> Fn(&'a str) -> Cow<'a, str>,
    ) -> Result<Self> {
        let mut files = Vec::new();
        let mut tensors: HashMap<String, InFile> = HashMap::new();
        for name in names.names() {
            let shard = Shard::open(checkpoint, name, names)?;
            for (tensor, stored) in shard.header(files.len())? {
                let tensor = planned_name(&tensor).into_owned();
                if let Some(other) = tensors.insert(tensor.clone(), stored) {
                    let first = files.get(other.file).map_or(name, |f: &Shard| &f.name).clone();
                    return Err(Error::TensorTwice { name: tensor, first, second: name.clone() });
                }
            }
            files.push(shard);
        }
        Ok(Self { files, tensors })
    }

    /// The names of all tensors, in no order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The tensors that the model takes from these files.
    pub(crate) fn plan(&self, checkpoint: &Checkpoint) -> Vec<TensorPlan> {
        let mut plan = checkpoint.plan_of_stored(&|name| self.tensors.contains_key(name));
        for tensor in &mut plan {
            if let Some(stored) = self.tensors.get(&tensor.name) {
                tensor.fit(&stored.shape);
            }
        }
        plan
    }

    /// Opens GGUF files, whose headers are read already.
    fn open_gguf(files: &CheckpointFiles, gguf: &Gguf, names: &WeightFiles) -> Result<Self> {
        let open = |name: &String| Shard::open(files, name, names);
        let files = names.names().iter().map(open).collect::<Result<Vec<_>>>()?;
        let mut tensors = HashMap::new();
        for (name, tensor) in gguf.tensors() {
            let stored = InFile {
                file: tensor.file,
                offset: tensor.offset,
                shape: tensor.shape.clone(),
                dtype: StoredDtype::Gguf(tensor.kind),
            };
            // The file may be shorter than when its header was read.
            let shard = &files[stored.file];
            let bytes = stored.dtype.num_bytes(stored.shape.iter().product());
            if stored.offset + bytes as u64 > shard.len {
                return Err(shard.damaged(format!("tensor {name} lies beyond its end")));
            }
            tensors.insert(name.clone(), stored);
        }
        Ok(Self { files, tensors })
    }

    /// Checks that the files hold exactly the planned tensors and those of the part for images, each in its shape and in a supported dtype.
    pub(crate) fn check(&self, checkpoint: &Checkpoint, plan: &[TensorPlan]) -> Result<()> {
        let mut stored = Vec::new();
        for tensor in plan {
            stored.extend(tensor.stored()?);
        }
        stored.extend(checkpoint.vision_tensors().iter().map(VisionTensor::stored));
        let missing: Vec<&str> = stored
            .iter()
            .filter(|t| t.required && !self.contains(&t.name))
            .map(|t| t.name.as_str())
            .collect();
        if !missing.is_empty() {
            return Err(Error::TensorsMissing { count: missing.len(), names: first_of(missing) });
        }
        let planned: HashSet<&str> = stored.iter().map(|t| t.name.as_str()).collect();
        let mut unknown: Vec<&str> = self
            .names()
            .filter(|name| !planned.contains(name) && !checkpoint.may_skip_tensor(name))
            .collect();
        if !unknown.is_empty() {
            unknown.sort_unstable();
            return Err(Error::TensorsUnknown {
                count: unknown.len(),
                names: first_of(unknown),
                architecture: checkpoint.architecture(),
                file: checkpoint.config_file().to_owned(),
            });
        }
        stored.iter().try_for_each(|tensor| self.check_tensor(checkpoint, tensor))
    }

    fn check_tensor(&self, checkpoint: &Checkpoint, expected: &StoredTensor) -> Result<()> {
        let Some(found) = self.tensors.get(&expected.name) else { return Ok(()) };
        let name = &expected.name;
        let any = expected.shapes.is_empty() && found.shape.len() == 1;
        if !any && !expected.shapes.contains(&found.shape) {
            return Err(Error::TensorShape {
                name: name.clone(),
                found: found.shape.clone(),
                expected: expected.shapes.last().cloned().unwrap_or_default(),
                file: checkpoint.config_file().to_owned(),
            });
        }
        use StoredDtype::{Gguf, Safetensors};
        use safetensors::Dtype::{F8_E4M3, I8, I32, U8, U32};
        let wrong = |expected| {
            let found = found.dtype.name();
            Err(Error::TensorDtype { name: name.clone(), found, expected })
        };
        match (expected.kind, found.dtype) {
            (StoredKind::Plain, _) => self.dtype(name).map(|_| ()),
            (StoredKind::Integers, Safetensors(I32 | U32))
            | (StoredKind::E4m3, Safetensors(F8_E4M3))
            | (StoredKind::SignedBytes, Safetensors(I8))
            | (StoredKind::Bytes, Safetensors(U8)) => Ok(()),
            (StoredKind::Blocks(planned), Gguf(found)) if planned == found => Ok(()),
            (StoredKind::Integers, _) => wrong("I32 is"),
            (StoredKind::E4m3, _) => wrong("F8_E4M3 is"),
            (StoredKind::SignedBytes, _) => wrong("I8 is"),
            (StoredKind::Bytes, _) => wrong("U8 is"),
            (StoredKind::Blocks(planned), _) => wrong(planned.as_str()),
        }
    }

    /// Whether the files hold a tensor.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The whole of a tensor that [`Self::check`] has seen.
    pub(crate) fn whole(&self, name: &str) -> Result<MappedBytes> {
        self.bytes(name, 0, self.num_bytes(name))
    }

    /// Bytes of a tensor; none where it is not there.
    pub(crate) fn num_bytes(&self, name: &str) -> usize {
        let bytes = |t: &InFile| t.dtype.num_bytes(t.shape.iter().product());
        self.tensors.get(name).map_or(0, bytes)
    }

    /// The shape of a tensor, where the files hold it.
    pub(crate) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|stored| stored.shape.as_slice())
    }

    /// A whole tensor of plain values on the CPU, as f32.
    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor> {
        let (dtype, shape) = (self.dtype(name)?, &self.tensors[name].shape);
        let stored = Tensor::from_raw_buffer(&self.whole(name)?, dtype, shape, &Device::Cpu)?;
        Ok(stored.to_dtype(DType::F32)?)
    }

    /// The dtype of a tensor that [`Self::check`] has seen.
    pub(crate) fn dtype(&self, name: &str) -> Result<DType> {
        use StoredDtype::{Gguf, Safetensors};
        match self.tensors[name].dtype {
            Safetensors(safetensors::Dtype::F32) | Gguf(GgufType::F32) => Ok(DType::F32),
            Safetensors(safetensors::Dtype::F16) | Gguf(GgufType::F16) => Ok(DType::F16),
            Safetensors(safetensors::Dtype::BF16) | Gguf(GgufType::Bf16) => Ok(DType::BF16),
            other => Err(Error::TensorDtype {
                name: name.to_owned(),
                found: other.name(),
                expected: "F32, F16 and BF16 are",
            }),
        }
    }

    /// The file and the offset of a tensor. Sorting by it reads the files from beginning to end.
    pub(crate) fn position(&self, name: &str) -> (usize, u64) {
        let stored = &self.tensors[name];
        (stored.file, stored.offset)
    }

    /// Maps `len` bytes of a tensor, from its byte `start` on.
    pub(crate) fn bytes(&self, name: &str, start: usize, len: usize) -> Result<MappedBytes> {
        let stored = &self.tensors[name];
        self.files[stored.file].map(stored.offset + start as u64, len)
    }
}

/// The first five names, in words.
pub(crate) fn first_of(names: Vec<&str>) -> String {
    let rest = names.len().saturating_sub(5);
    let shown = names.into_iter().take(5).collect::<Vec<_>>().join(", ");
    if rest == 0 { shown } else { format!("{shown} and {rest} more") }
}

/// One weight file.
struct Shard {
    name: String,
    len: u64,
    content: Content,
}

enum Content {
    File(File),
    Embedded(&'static [u8]),
}

/// Bytes of a weight file; unmapped when dropped.
pub(crate) enum MappedBytes {
    Mapped(Mmap),
    Embedded(&'static [u8]),
}

impl Deref for MappedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Embedded(bytes) => bytes,
        }
    }
}

impl Shard {
    fn open(files: &CheckpointFiles, name: &str, all: &WeightFiles) -> Result<Self> {
        let io_error = |source: std::io::Error| match (source.kind(), all) {
            (std::io::ErrorKind::NotFound, WeightFiles::Sharded(_)) => {
                Error::ShardMissing { file: name.to_owned() }
            }
            _ => Error::Io { file: name.to_owned(), source },
        };
        let (len, content) = match files.path(name) {
            Some(path) => {
                let file = File::open(path).map_err(io_error)?;
                (file.metadata().map_err(io_error)?.len(), Content::File(file))
            }
            None => {
                let bytes = files
                    .embedded(name)
                    .ok_or_else(|| Error::ShardMissing { file: name.to_owned() })?;
                (bytes.len() as u64, Content::Embedded(bytes))
            }
        };
        Ok(Self { name: name.to_owned(), len, content })
    }

    /// The tensors of the file, which is the checkpoint's `index`-th.
    fn header(&self, index: usize) -> Result<Vec<(String, InFile)>> {
        if self.len < 8 {
            return Err(self.damaged("shorter than any header".to_owned()));
        }
        // The whole file is mapped, but only the header's pages are read.
        let bytes = self.map(0, self.len as usize)?;
        let (header_len, metadata) = SafeTensors::read_metadata(&bytes).map_err(|e| {
            use safetensors::SafeTensorError as E;
            self.damaged(match e {
                E::MetadataIncompleteBuffer => "its header promises another length".to_owned(),
                E::InvalidHeaderLength | E::HeaderTooLarge => "its header is cut off".to_owned(),
                other => other.to_string(),
            })
        })?;
        let tensors = metadata.tensors().into_iter().map(|(name, info)| {
            let stored = InFile {
                file: index,
                offset: (8 + header_len + info.data_offsets.0) as u64,
                shape: info.shape.clone(),
                dtype: StoredDtype::Safetensors(info.dtype),
            };
            (name, stored)
        });
        Ok(tensors.collect())
    }

    fn map(&self, offset: u64, len: usize) -> Result<MappedBytes> {
        match &self.content {
            Content::Embedded(bytes) => {
                let start = offset as usize;
                Ok(MappedBytes::Embedded(&bytes[start..start + len]))
            }
            Content::File(file) => {
                // SAFETY: the file is mapped read-only and privately. Like every
                // program that maps weights, this one relies on nobody shortening or rewriting it
                // meanwhile. The map lives only while a piece of a tensor is copied out of it.
                let map = unsafe { MmapOptions::new().offset(offset).len(len).map(file) };
                map.map(MappedBytes::Mapped)
                    .map_err(|source| Error::Io { file: self.name.clone(), source })
            }
        }
    }

    fn damaged(&self, reason: String) -> Error {
        Error::Damaged { file: self.name.clone(), len: self.len, reason }
    }
}
