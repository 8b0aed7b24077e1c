//! The dequantized values of matrices on a device: the reference implementation of the kernels that multiply them.

use candle_core::{DType, Tensor};
use candlepower_kernels::operands::{E2M1, TABLE, e4m3_part};
use candlepower_kernels::{QuantFormat, Result};
use candlepower_layout::DEVICE_TILE as TILE;
use half::{bf16, f16};

use super::reference::Reference;
use crate::operands::{E2M1_FACTOR, Matrix, PackedMatrix, quant_index};

impl Matrix {
    /// The matrix's values `[n, k]` for a reference implementation, dequantized if necessary, and `k`.
    pub(super) fn elements(
        &self,
        reference: &Reference,
        name: &'static str,
    ) -> Result<(Vec<f32>, usize)> {
        match self {
            Self::Rows(rows) => {
                let (n, k) = reference.operand(name, rows).dims2("[n, k]")?;
                Ok((reference.elements((name, rows), "[n, k]", &[n, k])?, k))
            }
            Self::Packed(packed) => Ok((packed.dequantized()?, packed.width)),
            Self::Fp8(matrix) => Ok((matrix.dequantized()?, matrix.k)),
        }
    }
}

impl PackedMatrix {
    /// The dequantized values `[n, width]` of a matrix on the CPU: the reference implementation of the kernels that
    /// dequantize.
    ///
    /// # Errors
    /// The matrix is on another device.
    pub fn dequantized(&self) -> Result<Vec<f32>> {
        const KERNEL: &str = "packed";
        let reference = Reference::integers(KERNEL);
        let integers = |name, tensor: &Tensor| {
            reference.u32s((name, tensor), "any length", &[tensor.elem_count()])
        };
        let floats = |name, tensor: &Tensor| {
            reference.f32s((name, tensor), "any length", &[tensor.elem_count()])
        };
        let (words, scales) =
            (integers("quantized weights", &self.words)?, floats("scales", &self.scales)?);
        let inputs = self.inputs.as_ref().map(|inputs| integers("inputs", inputs)).transpose()?;
        let (bits, outputs) = (self.format.device_bits(), self.n.next_multiple_of(TILE[0]));
        let mut values = vec![0f32; self.n * self.width];
        for (row, values) in values.chunks_exact_mut(self.width).enumerate() {
            for column in 0..self.k {
                let (word, shift) = quant_index(row, column, self.k, bits);
                let quant = (words[word] >> shift & ((1 << bits) - 1)) as u8;
                // Scales lie as `[groups][outputs in whole tiles]`, each with its offset.
                let at = (column / self.group * outputs + row) * 2;
                let input = inputs.as_ref().map_or(column, |inputs| inputs[column] as usize);
                values[input] = match self.format {
                    QuantFormat::E4m3 => e4m3_part(quant).mul_add(scales[at], scales[at + 1]),
                    QuantFormat::E2m1 => {
                        // The factor is in the scales, since kernels read the bits as a half.
                        let part = E2M1[usize::from(quant)] / E2M1_FACTOR;
                        part.mul_add(scales[at], scales[at + 1])
                    }
                    QuantFormat::Table => scales[row * TABLE + usize::from(quant)],
                    _ => f32::from(quant).mul_add(scales[at], scales[at + 1]),
                };
            }
        }
        let Some(sparse) = &self.sparse else { return Ok(values) };
        let starts = integers("starts", &sparse.starts)?;
        let inputs = integers("sparse inputs", &sparse.inputs)?;
        let added = floats("sparse values", &sparse.values)?;
        for (row, bounds) in starts.windows(2).enumerate() {
            for at in bounds[0] as usize..bounds[1] as usize {
                values[row * self.width + inputs[at] as usize] += added[at];
            }
        }
        Ok(values)
    }
}

/// The value that `value` has after rounding to `dtype`.
pub(super) fn rounded(value: f32, dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => bf16::from_f32(value).to_f32(),
        DType::F16 => f16::from_f32(value).to_f32(),
        _ => value,
    }
}
