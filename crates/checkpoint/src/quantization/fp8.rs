//! FP8: weights of eight bits, of which four are the exponent and three the mantissa, with a scale per tensor, per output
//! or per block. Source: transformers `FineGrainedFP8Config`; compressed-tensors' format `float-quantized`.

use candlepower_layout::{ActivationScales, Packed, QuantFormat};

use serde_json::Value;

use super::{StoredKind, StoredTensor, check_weights};
use crate::{config::HfConfig, error::Result};

/// Storage of FP8 matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fp8 {
    /// Outputs and inputs that share a scale; `None` where a tensor or an output has one.
    pub block: Option<[usize; 2]>,
    /// Scales of activations, which are rounded to FP8, too; `None` if they are not rounded.
    pub activations: Option<ActivationScales>,
    /// The last part of the name of the scales.
    scale: &'static str,
}

/// Names of the scale of a matrix's activations, where the checkpoint has it: those of most tools, and of transformers.
const INPUT_SCALES: [&str; 2] = ["input_scale", "activation_scale"];

impl Fp8 {
    pub(super) fn read(c: &HfConfig) -> Result<Self> {
        if let Some(format) = c.text_opt("fmt")?
            // The other format of eight bits, e5m2, has no kernels here.
            && !["e4m3", "float8_e4m3fn"].contains(&format)
        {
            return Err(c.unsupported("fmt", &format.into(), "; e4m3 is"));
        }
        let block = block(c, "weight_block_size")?;
        let activations = activation_scheme(c, block)?;
        // transformers, which writes the size of blocks also where a tensor has one scale, has a name of its own for scales.
        let scale = match c.contains("weight_block_size") {
            true => "weight_scale_inv",
            false => "weight_scale",
        };
        Ok(Self { block, activations, scale })
    }

    /// Reads ModelOpt's description, whose files have a scale of activations for each matrix.
    pub(super) fn read_modelopt(c: &HfConfig) -> Result<Self> {
        let read = Self::read(c)?;
        Ok(Self { activations: Some(ActivationScales::Fixed), ..read })
    }

    /// Reads the descriptions of the weights of all linear layers, and of their activations.
    pub(super) fn read_compressed_tensors(
        w: &HfConfig,
        activations: Option<&HfConfig>,
    ) -> Result<Self> {
        let wanted = [
            ("num_bits", &[8.into()][..]),
            ("type", &["float".into()]),
            ("strategy", &["tensor".into(), "channel".into(), "block".into()]),
        ];
        check_weights(w, &wanted, ", but 8 bits of float per tensor, channel or block")?;
        let block = match w.text_opt("strategy")? {
            Some("block") => block(w, "block_structure")?,
            _ => None,
        };
        let activations = activations.map(input_activations).transpose()?;
        Ok(Self { block, activations, scale: "weight_scale" })
    }

    /// Columns that share a scale, of `k`.
    pub fn group(&self, k: usize) -> usize {
        self.block.map_or(k, |[_, columns]| columns.min(k))
    }

    pub(super) fn packed(&self, k: usize) -> Packed {
        Packed::without_offsets(QuantFormat::E4m3, self.group(k)).with_activations(self.activations)
    }

    pub(super) fn tensors(&self, module: &str, n: usize, k: usize) -> Vec<StoredTensor> {
        let shapes = match self.block {
            Some([rows, columns]) => vec![vec![n.div_ceil(rows), k.div_ceil(columns)]],
            // A scale of the whole matrix is a scalar or a vector of one. One per output is a vector or a column.
            None => vec![vec![], vec![1], vec![n], vec![n, 1]],
        };
        let scale = StoredTensor::new(format!("{module}.{}", self.scale), &[], StoredKind::Plain);
        let mut tensors = vec![
            StoredTensor::new(format!("{module}.weight"), &[n, k], StoredKind::E4m3),
            StoredTensor { shapes, ..scale },
        ];
        if self.activations == Some(ActivationScales::Fixed) {
            tensors.extend(INPUT_SCALES.map(|name| {
                let scale = StoredTensor::new(format!("{module}.{name}"), &[], StoredKind::Plain);
                // One of the two names is there, which the loader checks.
                StoredTensor { shapes: vec![vec![], vec![1]], required: false, ..scale }
            }));
        }
        tensors
    }
}

/// The scales of `activation_scheme`, which is transformers' "dynamic" if it is not said. With blocks, the inputs of a
/// block share a scale.
fn activation_scheme(c: &HfConfig, block: Option<[usize; 2]>) -> Result<Option<ActivationScales>> {
    const KEY: &str = "activation_scheme";
    match c.text_opt(KEY)? {
        None | Some("dynamic") => Ok(Some(match block {
            Some([_, columns]) => ActivationScales::Group(columns),
            None => ActivationScales::Row,
        })),
        Some("static") => Ok(Some(ActivationScales::Fixed)),
        Some(other) => Err(c.unsupported(KEY, &other.into(), "; dynamic and static are")),
    }
}

/// The scales of compressed-tensors' `input_activations`. A scale that is computed from all rows of a step would make a
/// row depend on the others, so each row has its own instead, which is finer.
fn input_activations(a: &HfConfig) -> Result<ActivationScales> {
    const HINT: &str = ", but 8 bits of float per tensor, token or group";
    for (key, wanted) in [("num_bits", Value::from(8)), ("type", Value::from("float"))] {
        let found = a.raw(key).ok_or_else(|| a.missing(key, "a description of the activations"))?;
        if *found != wanted {
            return Err(a.unsupported(key, found, HINT));
        }
    }
    if !a.flag_or("symmetric", true)? {
        return Err(a.unsupported("symmetric", &false.into(), "; true is"));
    }
    let is_dynamic = a.flag_or("dynamic", false)?;
    match (is_dynamic, a.text_opt("strategy")?.unwrap_or("tensor")) {
        (true, "token" | "tensor") => Ok(ActivationScales::Row),
        (true, "group") => match a.count("group_size")? {
            0 => Err(a.unsupported("group_size", &0.into(), HINT)),
            size => Ok(ActivationScales::Group(size)),
        },
        (false, "tensor") => Ok(ActivationScales::Fixed),
        (_, other) => Err(a.unsupported("strategy", &other.into(), HINT)),
    }
}

/// Outputs and inputs of a block, if it is given.
fn block(c: &HfConfig, key: &str) -> Result<Option<[usize; 2]>> {
    let Some(value) = c.raw(key) else { return Ok(None) };
    let size = |i: usize| {
        let size = value.get(i)?.as_u64().and_then(|size| usize::try_from(size).ok())?;
        (size > 0).then_some(size)
    };
    match (value.as_array().map(Vec::len), size(0), size(1)) {
        (Some(2), Some(rows), Some(columns)) if columns % 2 == 0 => Ok(Some([rows, columns])),
        _ => Err(c.ill_typed(key, value, "a list of two numbers, the second of them even")),
    }
}
