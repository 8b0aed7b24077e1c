//! The tensors of an encoder: planned by slots, found in the weight files, checked, and read as f32.

use std::collections::{HashMap, HashSet};

use candle_core::Tensor;
use candlepower_checkpoint::{CheckpointFiles, EncoderCheckpoint, EncoderTensor, WeightFiles};

use crate::{
    LoadProgress,
    error::{Error, Result},
    shards::{Shards, first_of},
};

/// The file that describes an encoder.
pub(super) const CONFIG_FILE: &str = "config.json";

/// The tensors that weight files must hold.
struct Planned<'a> {
    tensors: &'a [EncoderTensor],
    /// Whether a tensor that is not planned may be there.
    may_skip: &'a dyn Fn(&str) -> bool,
    /// Name of the model or layer that the tensors belong to.
    owner: &'static str,
}

/// Reads all tensors of the checkpoint, by their slots.
///
/// # Errors
/// A file is missing, damaged or cannot be read; a tensor is missing, unknown, misshapen or of another kind.
pub(super) fn read(
    checkpoint: &EncoderCheckpoint,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<HashMap<String, Tensor>> {
    let planned = Planned {
        tensors: &checkpoint.tensors(),
        may_skip: &|name| checkpoint.may_skip_tensor(name),
        owner: checkpoint.architecture(),
    };
    let shards = Shards::open_files(checkpoint.files(), &checkpoint.weight_files()?)?;
    read_planned(&shards, &planned, progress)
}

/// Reads a file that holds exactly the tensors of a dense layer, by their slots.
///
/// # Errors
/// The same as those of [`read`].
pub(super) fn read_file(
    files: &CheckpointFiles,
    name: &str,
    tensors: &[EncoderTensor],
) -> Result<HashMap<String, Tensor>> {
    let planned = Planned { tensors, may_skip: &|_| false, owner: "a dense layer" };
    let shards = Shards::open_files(files, &WeightFiles::Single(name.to_owned()))?;
    read_planned(&shards, &planned, &mut |_| {})
}

fn read_planned(
    shards: &Shards,
    planned: &Planned<'_>,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<HashMap<String, Tensor>> {
    let mut found = find(planned, shards)?;
    // The files are read from beginning to end.
    found.sort_by_key(|(name, _)| shards.position(name));
    let bytes_total = found.iter().map(|(name, _)| shards.num_bytes(name) as u64).sum();
    let mut bytes_done = 0;
    let mut tensors = HashMap::new();
    for (name, planned) in found {
        progress(LoadProgress { bytes_done, bytes_total });
        tensors.insert(planned.slot.clone(), shards.tensor(name)?);
        bytes_done += shards.num_bytes(name) as u64;
    }
    progress(LoadProgress { bytes_done, bytes_total });
    Ok(tensors)
}

/// The stored name of each planned tensor. No other tensor may be stored, except those that may be skipped.
fn find<'a>(planned: &Planned<'a>, shards: &Shards) -> Result<Vec<(&'a str, &'a EncoderTensor)>> {
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for tensor in planned.tensors {
        let stored =
            // Exactly one of the names is stored; a second one would be reported as unknown.
            tensor.names.iter().find_map(|name| Some((name.as_str(), shards.shape(name)?)));
        let Some((name, shape)) = stored else {
            missing.push(tensor.names[0].as_str());
            continue;
        };
        if shape != tensor.shape {
            return Err(Error::TensorShape {
                name: name.to_owned(),
                found: shape.to_vec(),
                expected: tensor.shape.clone(),
                file: CONFIG_FILE.to_owned(),
            });
        }
        found.push((name, tensor));
    }
    if !missing.is_empty() {
        return Err(Error::TensorsMissing { count: missing.len(), names: first_of(missing) });
    }
    let used: HashSet<&str> = found.iter().map(|(name, _)| *name).collect();
    let is_unknown = |name: &&str| !used.contains(name) && !(planned.may_skip)(name);
    let mut unknown: Vec<&str> = shards.names().filter(is_unknown).collect();
    if unknown.is_empty() {
        return Ok(found);
    }
    unknown.sort_unstable();
    Err(Error::TensorsUnknown {
        count: unknown.len(),
        names: first_of(unknown),
        architecture: planned.owner,
        file: CONFIG_FILE.to_owned(),
    })
}
