//! FP8: a byte per number, with a scale per tensor, per output or per block.
//! Source: transformers `FineGrainedFP8Config`; compressed-tensors' format `float-quantized`.

use candlepower_checkpoint::Fp8;
use candlepower_kernels::Codes;

use super::{Stored, Tensors};
use crate::{error::Result, shards::MappedBytes};

/// A matrix as FP8 checkpoints store it.
pub(crate) struct Fp8Matrix {
    k: usize,
    group: usize,
    /// `[n][k]`.
    codes: MappedBytes,
    /// `[blocks of outputs][groups]`.
    scales: Vec<f32>,
    /// Outputs that share scales.
    block_rows: usize,
}

impl Fp8Matrix {
    pub(super) fn open(tensors: &Tensors<'_>, scheme: Fp8) -> Result<Self> {
        let (n, k) = (tensors.n, tensors.k);
        let codes = tensors.shards.whole(tensors.name(0))?;
        if codes.iter().any(|code| code & 0x7f == 0x7f) {
            return Err(tensors.damaged(0, "it holds NaN"));
        }
        let scales = tensors.numbers(1)?;
        let block_rows = match scheme.block {
            Some([rows, _]) => rows,
            None if scales.len() == 1 => n,
            None => 1,
        };
        Ok(Self { k, group: scheme.group(k), codes, scales, block_rows })
    }

    /// The scales of an output.
    fn row_scales(&self, row: usize) -> &[f32] {
        let groups = self.k.div_ceil(self.group);
        &self.scales[row / self.block_rows * groups..][..groups]
    }
}

impl Stored for Fp8Matrix {
    fn codes(&self) -> Codes {
        Codes::E4m3
    }

    fn group(&self) -> usize {
        self.group
    }

    fn code(&self, row: usize, input: usize) -> u8 {
        self.codes[row * self.k + input]
    }

    fn scales(&self, row: usize, scales: &mut Vec<f32>, _mins: &mut Vec<f32>) {
        scales.extend_from_slice(self.row_scales(row));
    }

    fn number(&self, row: usize, input: usize) -> f32 {
        e4m3(self.code(row, input)) * self.row_scales(row)[input / self.group]
    }
}

/// The number that a code without a scale is. Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
    let size = match exponent {
        0 => mantissa * 2f32.powi(-6),
        _ => (1.0 + mantissa) * 2f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { size } else { -size }
}
