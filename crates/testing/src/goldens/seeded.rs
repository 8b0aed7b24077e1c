//! A file of seeds: small tensors as they are, and the seeds and scales of the large matrices.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::random::Noise;

/// More elements than any golden has. The limit keeps a damaged shape from allocating memory.
const MAX_ELEMENTS: usize = 1 << 24;

const DIGEST: &str = "sha256";

/// The content of model.seeded. scripts/goldens/seeded_weights.py describes its format.
pub(crate) struct Seeded<'a> {
    kept: SafeTensors<'a>,
    seed: u64,
    generated: BTreeMap<String, Matrix>,
    /// The metadata of the generated file, with the digest of its tensors.
    metadata: HashMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Matrix {
    dtype: Dtype,
    shape: Vec<usize>,
    factor: f32,
}

struct Tensor<'a> {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Seeded<'a> {
    /// Parses the file. The error describes the fault.
    pub(crate) fn read(file: &'a [u8]) -> Result<Self, String> {
        let kept = SafeTensors::deserialize(file).map_err(|error| error.to_string())?;
        let (_, header) = SafeTensors::read_metadata(file).map_err(|error| error.to_string())?;
        let mut metadata = header.metadata().clone().unwrap_or_default();
        let mut take = |key: &str| metadata.remove(key).ok_or(format!("it has no `{key}`"));
        let seed = take("seed")?.parse().map_err(|error| format!("`seed`: {error}"))?;
        let generated = serde_json::from_str(&take("generated")?)
            .map_err(|error| format!("`generated`: {error}"))?;
        match metadata.contains_key(DIGEST) {
            true => Ok(Self { kept, seed, generated, metadata }),
            false => Err(format!("it has no `{DIGEST}`")),
        }
    }

    /// Whether a weight file was generated from this one, and is complete.
    pub(crate) fn has_made(&self, weights: &[u8]) -> bool {
        let Ok((_, header)) = SafeTensors::read_metadata(weights) else { return false };
        header.metadata().as_ref() == Some(&self.metadata)
    }

    /// The safetensors file with all tensors.
    pub(crate) fn weights(&self) -> Result<Vec<u8>, String> {
        let mut tensors = BTreeMap::new();
        for (name, view) in self.kept.tensors() {
            let (dtype, shape) = (view.dtype(), view.shape().to_vec());
            tensors.insert(name, Tensor { dtype, shape, bytes: Cow::Borrowed(view.data()) });
        }
        for (name, matrix) in &self.generated {
            let bytes = Cow::Owned(matrix.generate(Noise::new(self.seed, name), name)?);
            let tensor = Tensor { dtype: matrix.dtype, shape: matrix.shape.clone(), bytes };
            if tensors.insert(name.clone(), tensor).is_some() {
                return Err(format!("`{name}` is both kept and generated"));
            }
        }
        if digest(&tensors) != self.metadata[DIGEST] {
            return Err("its tensors have another SHA-256 than it says".to_owned());
        }
        let views: Result<Vec<_>, _> = tensors
            .iter()
            .map(|(name, t)| Ok((name, TensorView::new(t.dtype, t.shape.clone(), &t.bytes)?)))
            .collect();
        views
            .and_then(|views| safetensors::serialize(views, Some(self.metadata.clone())))
            .map_err(|error| error.to_string())
    }
}

impl Matrix {
    fn generate(&self, noise: Noise, name: &str) -> Result<Vec<u8>, String> {
        let count = self.shape.iter().try_fold(1, |count: usize, n| count.checked_mul(*n));
        let Some(count) = count.filter(|count| *count <= MAX_ELEMENTS) else {
            return Err(format!("`{name}` has more than {MAX_ELEMENTS} elements"));
        };
        // Exact, since noise has 18 bits.
        let elements = (0..count as u64).map(|i| noise.at(i) as f32 * self.factor);
        match self.dtype {
            Dtype::F32 => Ok(elements.flat_map(f32::to_le_bytes).collect()),
            Dtype::F16 => Ok(elements.flat_map(|x| f16::from_f32(x).to_le_bytes()).collect()),
            Dtype::BF16 => Ok(elements.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect()),
            other => Err(format!("`{name}` is of {other}; F32, F16 and BF16 are generated")),
        }
    }
}

/// SHA-256 of the tensors, sorted by name. Each contributes a line with name, dtype and shape, then its bytes.
fn digest(tensors: &BTreeMap<String, Tensor<'_>>) -> String {
    let mut whole = Sha256::new();
    for (name, tensor) in tensors {
        whole.update(format!("{name} {} {:?}\n", tensor.dtype, tensor.shape));
        whole.update(&tensor.bytes);
    }
    whole.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
