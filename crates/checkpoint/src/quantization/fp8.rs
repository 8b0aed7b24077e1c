//! FP8: weights of eight bits, of which four are the exponent and three the mantissa, with a scale per tensor, per output
//! or per block. Source: transformers `FineGrainedFP8Config`; compressed-tensors' format `float-quantized`.

use candlepower_layout::{Packed, QuantFormat};

use super::{StoredKind, StoredTensor, check_weights};
use crate::{config::HfConfig, error::Result};

/// Storage of FP8 matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fp8 {
    /// Outputs and inputs that share a scale; `None` where a tensor or an output has one.
    pub block: Option<[usize; 2]>,
    /// The last part of the name of the scales.
    scale: &'static str,
}

impl Fp8 {
    pub(super) fn read(c: &HfConfig) -> Result<Self> {
        if let Some(format) = c.text_opt("fmt")?
            // The other format of eight bits, e5m2, has no kernels here.
            && !["e4m3", "float8_e4m3fn"].contains(&format)
        {
            return Err(c.unsupported("fmt", &format.into(), "; e4m3 is"));
        }
        let block = block(c, "weight_block_size")?;
        // transformers, which writes the size of blocks also where a tensor has one scale, has a name of its own for scales.
        let scale = match c.contains("weight_block_size") {
            true => "weight_scale_inv",
            false => "weight_scale",
        };
        Ok(Self { block, scale })
    }

    /// Reads the description of the weights of all linear layers.
    pub(super) fn read_compressed_tensors(w: &HfConfig) -> Result<Self> {
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
        Ok(Self { block, scale: "weight_scale" })
    }

    /// Columns that share a scale, of `k`.
    pub fn group(&self, k: usize) -> usize {
        self.block.map_or(k, |[_, columns]| columns.min(k))
    }

    pub(super) fn packed(&self, k: usize) -> Packed {
        Packed::without_offsets(QuantFormat::E4m3, self.group(k))
    }

    pub(super) fn tensors(&self, module: &str, n: usize, k: usize) -> Vec<StoredTensor> {
        let shapes = match self.block {
            Some([rows, columns]) => vec![vec![n.div_ceil(rows), k.div_ceil(columns)]],
            // A scale of the whole matrix is a scalar or a vector of one. One per output is a vector or a column.
            None => vec![vec![], vec![1], vec![n], vec![n, 1]],
        };
        let scale = StoredTensor::new(format!("{module}.{}", self.scale), &[], StoredKind::Plain);
        vec![
            StoredTensor::new(format!("{module}.weight"), &[n, k], StoredKind::E4m3),
            StoredTensor { shapes, ..scale },
        ]
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
