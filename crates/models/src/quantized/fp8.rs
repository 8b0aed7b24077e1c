//! FP8: a byte a weight, with a scale per tensor, per output or per block.
//! Source: transformers `FineGrainedFP8Config`; compressed-tensors' format `float-quantized`.

use std::ops::Range;

use candlepower_checkpoint::{ActivationScales, Fp8, Packed};

use super::{Stored, Tensors};
use crate::{
    error::{Error, Result},
    shards::MappedBytes,
};

/// A matrix as FP8 checkpoints store it.
pub(crate) struct Fp8Matrix {
    k: usize,
    packed: Packed,
    /// The first of the rows that are mapped.
    first_row: usize,
    /// `[rows][k]`.
    quants: MappedBytes,
    /// `[blocks of outputs][groups]`.
    scales: Vec<f32>,
    /// Outputs that share scales.
    block_rows: usize,
}

impl Fp8Matrix {
    /// Maps the rows `rows`, for reads of these rows alone.
    pub(super) fn open(
        tensors: &Tensors<'_>,
        scheme: Fp8,
        packed: Packed,
        rows: Range<usize>,
    ) -> Result<Self> {
        let (n, k, first_row) = (tensors.n, tensors.k, rows.start);
        let quants = tensors.shards.bytes(tensors.name(0), first_row * k, rows.len() * k)?;
        // E4M3 has no infinity, and all exponent and mantissa bits together mean NaN.
        if quants.iter().any(|quant| quant & 0x7f == 0x7f) {
            return Err(tensors.damaged(0, "it holds NaN"));
        }
        let scales = tensors.values(1)?;
        let block_rows = match scheme.block {
            Some([rows, _]) => rows,
            None if scales.len() == 1 => n,
            None => 1,
        };
        Ok(Self { k, packed, first_row, quants, scales, block_rows })
    }
}

/// The scale of the matrix's activations, where the checkpoint fixes it. It lies in one of the tensors behind the weights and
/// their scales.
///
/// # Errors
/// No such tensor is there, or it has an impossible value.
pub(super) fn fixed_scale(tensors: &Tensors<'_>, scheme: Fp8) -> Result<Option<f32>> {
    if scheme.activations != Some(ActivationScales::Fixed) {
        return Ok(None);
    }
    let names = tensors.names.iter().enumerate().skip(2);
    let mut present = names.filter(|(_, name)| tensors.shards.contains(name));
    let Some((index, _)) = present.next() else {
        return Err(Error::FixedScaleMissing { name: tensors.name(2).to_owned() });
    };
    match tensors.values(index)?[..] {
        [scale] if scale > 0.0 => Ok(Some(scale)),
        _ => Err(tensors.damaged(index, "it is no positive scale")),
    }
}

impl Stored for Fp8Matrix {
    fn packed(&self) -> Packed {
        self.packed
    }

    fn quant(&self, row: usize, input: usize) -> u8 {
        self.quants[(row - self.first_row) * self.k + input]
    }

    fn quants_from(&self, row: usize, input: usize, quants: &mut [u8]) {
        let first = (row - self.first_row) * self.k + input;
        quants.copy_from_slice(&self.quants[first..first + quants.len()]);
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        self.scales[row / self.block_rows * self.k.div_ceil(self.packed.group) + group]
    }

    fn value(&self, row: usize, input: usize) -> f32 {
        e4m3(self.quant(row, input)) * self.scale(row, input / self.packed.group)
    }
}

/// The dequantized value before scaling. Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
pub(super) fn e4m3(quant: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(quant >> 3 & 15), f32::from(quant & 7) / 8.0);
    let size = match exponent {
        0 => mantissa * 2f32.powi(-6),
        _ => (1.0 + mantissa) * 2f32.powi(exponent - 7),
    };
    if quant & 0x80 == 0 { size } else { -size }
}
