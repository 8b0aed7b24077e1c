//! Quantized matrices on a device: quantized weights in the order in which the lanes of a warp multiply them.

use candle_core::{Device, Tensor};
use candlepower_kernels::operands::{IQ4_ZERO, TABLE, counted_iq4};
use candlepower_kernels::{Error, Fp8Rounding, QuantFormat, Result, Weight};
use candlepower_layout::{DEVICE_STEP as STEP_INPUTS, DEVICE_TILE as TILE};
use rayon::prelude::*;

use super::Fp8Matrix;

/// Factor by which a [`QuantFormat::E2m1`] value is too small when its bits are read as a half: the exponent biases, 15 and
/// 1, differ by 14.
pub(crate) const E2M1_FACTOR: f32 = 16_384.0;

/// A matrix `[n, k]` on a device.
#[derive(Clone, Debug)]
pub enum Matrix {
    /// Unquantized weights, row by row, in bf16 or f16.
    Rows(Tensor),
    /// Quantized weights.
    Packed(PackedMatrix),
    /// FP8 weights for products with activations in FP8.
    Fp8(Fp8Matrix),
}

impl Matrix {
    /// Number of outputs (rows of the checkpoint's matrix).
    #[must_use]
    pub fn n(&self) -> usize {
        match self {
            Self::Rows(rows) => rows.dims().first().copied().unwrap_or(0),
            Self::Packed(packed) => packed.n,
            Self::Fp8(matrix) => matrix.n,
        }
    }

    /// Bytes of device memory, padding included.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        match self {
            Self::Rows(rows) => tensor_bytes(rows),
            Self::Packed(packed) => packed.num_bytes(),
            Self::Fp8(matrix) => tensor_bytes(&matrix.codes) + tensor_bytes(&matrix.scales),
        }
    }
}

/// Padding of activations that consist of heads, each filled up with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadPadding {
    /// Elements of a head without padding.
    pub len: usize,
    /// Elements of a head with padding.
    pub padded: usize,
}

/// The quantized weights of a matrix with their scales, in tensors on a device.
///
/// Weights are stored in tiles of 16 outputs and 64 columns, in the order of `quant_index` in index.cuh; missing outputs
/// and columns are zeros. Weights of two and three bits take four bits here, and those of five and six take eight.
///
/// Dequantized values are those of [`candlepower_kernels::QuantizedRows`]: `weight * scale + offset`, rounded once. The
/// scales of [`QuantFormat::E2m1`] include a factor, because the kernels read E2M1 bits as halves.
#[derive(Clone, Debug)]
pub struct PackedMatrix {
    pub(crate) n: usize,
    /// Number of columns.
    pub(crate) k: usize,
    /// Inputs of a row of activations. There may be fewer columns than inputs.
    pub(crate) width: usize,
    pub(crate) group: usize,
    pub(crate) format: QuantFormat,
    /// u32 `[n / 16][k / 64][32 lanes]`, with four or eight words for each lane.
    pub(crate) words: Tensor,
    /// f32 `[groups][n in whole tiles][scale, offset]`; for tables `[n in whole tiles][16]`.
    pub(crate) scales: Tensor,
    /// u32 `[k]`: the input of each column, if columns are in another order than inputs.
    pub(crate) inputs: Option<Tensor>,
    pub(crate) sparse: Option<PackedSparse>,
    /// How activations are rounded to FP8 before a product, if they are.
    pub(crate) activations: Option<Fp8Rounding>,
    /// Padding of the activations.
    pub(crate) padding: Option<HeadPadding>,
}

/// The sparse part of a matrix in CSR form, which is added to the dequantized weights.
#[derive(Clone, Debug)]
pub(crate) struct PackedSparse {
    /// u32 `[n + 1]`: where the entries of each output begin.
    pub(crate) starts: Tensor,
    /// u32: the input of each entry.
    pub(crate) inputs: Tensor,
    /// f32: the value of each entry.
    pub(crate) values: Tensor,
}

impl PackedMatrix {
    /// Copies a quantized weight to `device`. With `padding`, the matrix takes activations of padded heads.
    ///
    /// # Errors
    /// The weight is not quantized; its groups are neither multiples of 16 columns nor the whole row; or memory does
    /// not suffice.
    pub fn new(weight: &Weight, padding: Option<HeadPadding>, device: &Device) -> Result<Self> {
        let (n, k) = (weight.n(), weight.k());
        let Some((format, group)) = weight.quant_format() else {
            return Err(Error::QuantizedRows("the weight is not quantized"));
        };
        if group < k && !group.is_multiple_of(STEP_INPUTS) {
            return Err(Error::Parameter {
                parameter: "weight group",
                value: group,
                expected: "a multiple of 16, or all inputs",
            });
        }
        let bits = format.device_bits();
        let outputs = n.next_multiple_of(TILE[0]);
        let tile_row_words = TILE[0] * k.next_multiple_of(TILE[1]) * bits / 32;
        let mut words = vec![0u32; outputs / TILE[0] * tile_row_words];
        // Each row of tiles is written by one thread, so or-ing bits into shared words is no race.
        words.par_chunks_exact_mut(tile_row_words).enumerate().for_each(|(tile_row, words)| {
            let first = tile_row * TILE[0];
            for row in first..n.min(first + TILE[0]) {
                for column in 0..k {
                    let (word, shift) = quant_index(row - first, column, k, bits);
                    let quant = weight.quant(row, column);
                    let quant = if format == QuantFormat::Iq4 { counted_iq4(quant) } else { quant };
                    words[word] |= u32::from(quant) << shift;
                }
            }
        });
        let groups = k.div_ceil(group);
        let scales = match format {
            QuantFormat::Table => {
                let mut tables = vec![0f32; outputs * TABLE];
                for (row, table) in tables.chunks_exact_mut(TABLE).enumerate().take(n) {
                    table.copy_from_slice(&weight.table(row));
                }
                tables
            }
            _ => {
                let mut scales = vec![0f32; groups * outputs * 2];
                // Scales lie group by group, with the outputs of one group beside one another.
                for (at, scale) in scales.chunks_exact_mut(2).enumerate() {
                    let (in_group, row) = (at / outputs, at % outputs);
                    if row < n {
                        scale.copy_from_slice(&weight.scale(row, in_group));
                        match format {
                            QuantFormat::E2m1 => scale[0] *= E2M1_FACTOR,
                            // The stored integers begin at 0, so their zero-point moves into the offset.
                            QuantFormat::Iq4 => scale[1] -= f32::from(IQ4_ZERO) * scale[0],
                            _ => {}
                        }
                    }
                }
                scales
            }
        };
        // Weights name inputs without padding, and activations arrive with it.
        let padded = |input: u32| match padding {
            Some(HeadPadding { len, padded }) => {
                let input = input as usize;
                (input / len * padded + input % len) as u32
            }
            None => input,
        };
        let inputs: Option<Vec<u32>> = match (weight.inputs(), padding) {
            (None, None) => None,
            (Some(inputs), _) => Some(inputs.iter().map(|input| padded(*input)).collect()),
            (None, Some(_)) => Some((0..k as u32).map(padded).collect()),
        };
        let on_device = |values: Vec<u32>| {
            let len = values.len();
            Tensor::from_vec(values, len, device)
        };
        let sparse = weight.sparse().map(|sparse| -> Result<_> {
            let (mut starts, mut inputs, mut values) = (vec![0u32], Vec::new(), Vec::new());
            for row in 0..n {
                inputs.extend(sparse.row(row).iter().map(|(input, _)| padded(*input)));
                values.extend(sparse.row(row).iter().map(|(_, value)| *value));
                starts.push(inputs.len() as u32);
            }
            let count = values.len();
            Ok(PackedSparse {
                starts: on_device(starts)?,
                inputs: on_device(inputs)?,
                values: Tensor::from_vec(values, count, device)?,
            })
        });
        let count = scales.len();
        Ok(Self {
            n,
            k,
            width: padding.map_or(k, |heads| k / heads.len * heads.padded),
            group,
            // The table's integers were made unsigned above.
            format: if format == QuantFormat::Iq4 { QuantFormat::U8 } else { format },
            words: on_device(words)?,
            scales: Tensor::from_vec(scales, count, device)?,
            inputs: inputs.map(on_device).transpose()?,
            sparse: sparse.transpose()?,
            activations: weight.activations(),
            padding,
        })
    }

    fn num_bytes(&self) -> usize {
        let sparse = self.sparse.iter().flat_map(|s| [&s.starts, &s.inputs, &s.values]);
        let all = [&self.words, &self.scales].into_iter().chain(&self.inputs).chain(sparse);
        all.map(tensor_bytes).sum()
    }
}

/// Word and shift of the quantized weight of an output and a column. `quant_index` in index.cuh is the same function.
pub(crate) fn quant_index(
    output: usize,
    column: usize,
    columns: usize,
    bits: usize,
) -> (usize, usize) {
    let tile = output / TILE[0] * columns.div_ceil(TILE[1]) + column / TILE[1];
    // A lane has four neighbouring columns. Tensor cores expect two pairs eight columns apart, but a sum's order
    // is free if x is read in the same order.
    let lane = output % 8 * 4 + column % STEP_INPUTS / 4;
    let step = column % TILE[1] / STEP_INPUTS;
    let part = output % TILE[0] / 8 + column % 4 / 2 * 2;
    let (word, shift) = match bits {
        4 => (step, 4 * part),
        _ => (2 * step + part / 2, 8 * (part % 2)),
    };
    // Neighbouring columns lie in the two halves of a word, from which one operation makes a pair of halves.
    (tile * 32 * bits + (word / 4 * 32 + lane) * 4 + word % 4, column % 2 * 16 + shift)
}

fn tensor_bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}
