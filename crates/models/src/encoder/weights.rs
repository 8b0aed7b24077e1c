//! The weight files of an encoder: every tensor is read once, straight to where it stays, in f32.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    os::unix::fs::FileExt,
};

use candle_core::{DType, Device, Tensor};
use candlepower_checkpoint::{CheckpointFiles, EncoderCheckpoint, EncoderTensor};
use safetensors::tensor::Metadata;

use super::error::{Error, Result};
use crate::LoadProgress;

/// Bytes before the header, which say how long it is.
const LENGTH_BYTES: u64 = 8;
/// A longer header is none; the safetensors library has the same limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The tensors that weight files must hold.
struct Planned<'a> {
    tensors: &'a [EncoderTensor],
    /// Whether one that is not among them may be there.
    may_skip: &'a dyn Fn(&str) -> bool,
    /// What they belong to, in words.
    of: &'static str,
}

/// Reads all tensors of the checkpoint, by their slots.
///
/// # Errors
/// A file is missing, damaged or cannot be read; a tensor is missing, unknown, misshapen or of another kind.
pub(crate) fn read(
    checkpoint: &EncoderCheckpoint,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<HashMap<String, Tensor>> {
    let files = checkpoint.weight_files()?;
    let planned = Planned {
        tensors: &checkpoint.tensors(),
        may_skip: &|name| checkpoint.may_skip_tensor(name),
        of: checkpoint.architecture(),
    };
    read_planned(checkpoint.files(), files.names(), &planned, progress)
}

/// Reads a file that holds exactly the tensors of a dense layer, by their slots.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_file(
    files: &CheckpointFiles,
    name: &str,
    tensors: &[EncoderTensor],
) -> Result<HashMap<String, Tensor>> {
    let planned = Planned { tensors, may_skip: &|_| false, of: "a dense layer" };
    read_planned(files, &[name.to_owned()], &planned, &mut |_| {})
}

fn read_planned(
    files: &CheckpointFiles,
    names: &[String],
    planned: &Planned<'_>,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<HashMap<String, Tensor>> {
    let files = names.iter().map(|name| WeightFile::open(files, name));
    let files = files.collect::<Result<Vec<_>>>()?;
    let mut stored = HashMap::new();
    for file in &files {
        for (name, tensor) in &file.tensors {
            if stored.insert(name.as_str(), (file, tensor)).is_some() {
                return Err(Error::TensorTwice { name: name.clone() });
            }
        }
    }
    let found = find(planned, &stored)?;
    let bytes_total = found.iter().map(|(name, _)| stored[name].1.len() as u64).sum();
    let mut bytes_done = 0;
    let mut tensors = HashMap::new();
    for (name, planned) in found {
        progress(LoadProgress { bytes_done, bytes_total });
        let (file, tensor) = stored[name];
        tensors.insert(planned.slot.clone(), file.read_tensor(name, tensor)?);
        bytes_done += tensor.len() as u64;
    }
    progress(LoadProgress { bytes_done, bytes_total });
    Ok(tensors)
}

/// The stored name of each planned tensor. Nothing else may be stored but what may be skipped.
fn find<'a, 'b>(
    planned: &Planned<'b>,
    stored: &HashMap<&'a str, (&WeightFile, &StoredTensor)>,
) -> Result<Vec<(&'a str, &'b EncoderTensor)>> {
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for tensor in planned.tensors {
        let mut names = tensor.names.iter().filter_map(|name| stored.get_key_value(name.as_str()));
        let Some((name, (_, is))) = names.next() else {
            missing.push(tensor.names[0].as_str());
            continue;
        };
        if is.shape != tensor.shape {
            return Err(Error::TensorShape {
                name: (*name).to_owned(),
                found: is.shape.clone(),
                expected: tensor.shape.clone(),
            });
        }
        found.push((*name, tensor));
    }
    if !missing.is_empty() {
        return Err(Error::TensorsMissing { count: missing.len(), names: first_of(missing) });
    }
    let used: HashSet<&str> = found.iter().map(|(name, _)| *name).collect();
    let is_unknown = |name: &&str| !used.contains(name) && !(planned.may_skip)(name);
    let mut unknown: Vec<&str> = stored.keys().copied().filter(is_unknown).collect();
    if unknown.is_empty() {
        return Ok(found);
    }
    unknown.sort_unstable();
    Err(Error::TensorsUnknown {
        count: unknown.len(),
        names: first_of(unknown),
        architecture: planned.of,
    })
}

/// The first five names, in words.
fn first_of(names: Vec<&str>) -> String {
    let rest = names.len().saturating_sub(5);
    let shown = names.into_iter().take(5).collect::<Vec<_>>().join(", ");
    if rest == 0 { shown } else { format!("{shown} and {rest} more") }
}

/// One weight file with its header.
struct WeightFile {
    name: String,
    content: Content,
    tensors: HashMap<String, StoredTensor>,
}

enum Content {
    File(File),
    Embedded(&'static [u8]),
}

/// A tensor in a file.
struct StoredTensor {
    shape: Vec<usize>,
    dtype: safetensors::Dtype,
    /// Where its bytes begin and end in the file.
    range: (u64, u64),
}

impl StoredTensor {
    fn len(&self) -> usize {
        (self.range.1 - self.range.0) as usize
    }
}

impl WeightFile {
    fn open(files: &CheckpointFiles, name: &str) -> Result<Self> {
        let io = |source| Error::Io { file: name.to_owned(), source };
        let (len, content) = match files.path(name) {
            Some(path) => {
                let file = File::open(path).map_err(io)?;
                (file.metadata().map_err(io)?.len(), Content::File(file))
            }
            None => {
                let missing = || io(std::io::ErrorKind::NotFound.into());
                let bytes = files.embedded(name).ok_or_else(missing)?;
                (bytes.len() as u64, Content::Embedded(bytes))
            }
        };
        let mut file = Self { name: name.to_owned(), content, tensors: HashMap::new() };
        file.tensors = file.header(len)?;
        Ok(file)
    }

    fn header(&self, len: u64) -> Result<HashMap<String, StoredTensor>> {
        let damaged = |reason: &str| Error::Damaged {
            file: self.name.clone(),
            len,
            reason: reason.to_owned(),
        };
        if len < LENGTH_BYTES {
            return Err(damaged("shorter than any header"));
        }
        let length = self.bytes(0, LENGTH_BYTES as usize)?;
        let length = length.try_into().expect("as many bytes were asked for");
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER_BYTES || length > len - LENGTH_BYTES {
            return Err(damaged("its header is cut off"));
        }
        let header = self.bytes(LENGTH_BYTES, length as usize)?;
        // Checks that the tensors lie one after the other, each as long as its shape says.
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| damaged(&error.to_string()))?;
        let start = LENGTH_BYTES + length;
        let mut tensors = HashMap::new();
        for (name, info) in metadata.tensors() {
            let (begin, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
            if end > len - start {
                return Err(damaged("its header promises another length"));
            }
            let range = (start + begin, start + end);
            tensors
                .insert(name, StoredTensor { shape: info.shape.clone(), dtype: info.dtype, range });
        }
        Ok(tensors)
    }

    fn read_tensor(&self, name: &str, tensor: &StoredTensor) -> Result<Tensor> {
        let dtype = match tensor.dtype {
            safetensors::Dtype::F32 => DType::F32,
            safetensors::Dtype::F16 => DType::F16,
            safetensors::Dtype::BF16 => DType::BF16,
            other => {
                return Err(Error::TensorDtype {
                    name: name.to_owned(),
                    found: format!("{other:?}"),
                });
            }
        };
        let bytes = self.bytes(tensor.range.0, tensor.len())?;
        let tensor = Tensor::from_raw_buffer(&bytes, dtype, &tensor.shape, &Device::Cpu)?;
        Ok(tensor.to_dtype(DType::F32)?)
    }

    fn bytes(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        match &self.content {
            Content::Embedded(bytes) => Ok(bytes[offset as usize..][..len].to_vec()),
            Content::File(file) => {
                let mut bytes = vec![0; len];
                file.read_exact_at(&mut bytes, offset)
                    .map_err(|source| Error::Io { file: self.name.clone(), source })?;
                Ok(bytes)
            }
        }
    }
}
