//! FP8 matrices whose activations are rounded to FP8, too (W8A8), and the table of the GPUs that multiply them.

use candle_core::{DType, Device, Tensor};
use candlepower_kernels::{Fp8Rounding, QuantFormat, Result, Weight};
use candlepower_layout::ActivationScales;
use float8::F8E4M3;
use rayon::prelude::*;

/// Outputs and inputs of a block of weights that cuBLASLt scales together, and inputs of a row that it does.
pub(crate) const FP8_BLOCK: usize = 128;
/// Number of outputs and of inputs of a matrix must be a multiple of this for cuBLASLt.
const FP8_MULTIPLE: usize = 16;
/// Scales of a row of blocks lie at a multiple of this distance from those of the next. Source: NVIDIA, cuBLAS, "128x128
/// block scaling".
const BLOCK_SCALES_MULTIPLE: usize = 4;
/// Factor of a scale in [`Weight`] to the scale of an e4m3 value: see [`candlepower_kernels::operands::e4m3_part`].
const PART_FACTOR: f32 = 256.0;

/// Scales of a product of FP8 weights and FP8 activations by cuBLASLt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8Product {
    /// One scale for the weights, one for all activations.
    Tensor,
    /// A scale for each output, and one for each row of activations.
    Rows,
    /// A scale for each block of 128 outputs and 128 inputs, and one for each 128 inputs of a row of activations.
    Blocks,
}

/// Scales of FP8 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8Weights {
    /// One scale.
    Tensor,
    /// A scale for each output.
    Outputs,
    /// A scale for each block of 128 outputs and 128 inputs.
    Blocks,
}

/// The scales with which GPUs of a compute capability multiply FP8 weights and FP8 activations by cuBLASLt. `None`: a kernel
/// multiplies the weights, and activations are rounded before it.
///
/// Scales of rows and of blocks need Hopper; the others have one scale for each matrix. Source: NVIDIA, cuBLAS 13,
/// `cublasLtMatmulMatrixScale_t`.
#[must_use]
pub fn fp8_product(
    capability: (u32, u32),
    weights: Fp8Weights,
    activations: ActivationScales,
) -> Option<Fp8Product> {
    let has_tensor_cores = capability >= (8, 9);
    let is_hopper = capability == (9, 0);
    match (weights, activations) {
        (Fp8Weights::Blocks, ActivationScales::Group(FP8_BLOCK)) if is_hopper => {
            Some(Fp8Product::Blocks)
        }
        (Fp8Weights::Blocks, _) | (_, ActivationScales::Group(_)) => None,
        // A scale for all rows is one for each row, of the same value.
        _ if is_hopper => Some(Fp8Product::Rows),
        (Fp8Weights::Tensor, ActivationScales::Fixed) if has_tensor_cores => {
            Some(Fp8Product::Tensor)
        }
        _ => None,
    }
}

/// Rows of activations in FP8 on a device, as products read them.
#[derive(Clone, Debug)]
pub struct Fp8Rows {
    /// e4m3 `[rows, k]`.
    pub codes: Tensor,
    /// f32 `[groups, rows]`: those of all rows for the first inputs first.
    pub scales: Tensor,
    /// How the rows are rounded.
    pub rounding: Fp8Rounding,
}

/// Rows that an operation writes.
#[derive(Clone, Debug)]
pub enum RowsOut {
    /// Rows in the element type.
    Plain(Tensor),
    /// Rows in FP8, for products that alone read them. Values are rounded to the element type first, so the bits are those of
    /// rows in the element type that are rounded before a product.
    Fp8(Fp8Rows),
}

impl RowsOut {
    /// The rows as [`Matmul::run`](crate::Matmul::run) takes them: in the element type, or e4m3.
    #[must_use]
    pub fn tensor(&self) -> &Tensor {
        match self {
            Self::Plain(rows) => rows,
            Self::Fp8(rows) => &rows.codes,
        }
    }
}

impl From<&Tensor> for RowsOut {
    fn from(rows: &Tensor) -> Self {
        Self::Plain(rows.clone())
    }
}

impl From<&Fp8Rows> for RowsOut {
    fn from(rows: &Fp8Rows) -> Self {
        Self::Fp8(rows.clone())
    }
}

impl From<&Self> for RowsOut {
    fn from(rows: &Self) -> Self {
        rows.clone()
    }
}

/// An FP8 matrix `[n, k]` on a device, row by row, for products with activations in FP8.
#[derive(Clone, Debug)]
pub struct Fp8Matrix {
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// e4m3 `[n, k]`.
    pub(crate) codes: Tensor,
    /// f32 `[1]`, `[n]`, or `[n / 128, k / 128]` with rows padded to a multiple of four.
    pub(crate) scales: Tensor,
    pub(crate) product: Fp8Product,
    pub(crate) activations: Fp8Rounding,
    /// f32 `[1]`: the scale of activations of [`Fp8Product::Tensor`].
    #[cfg(feature = "cuda")]
    pub(crate) fixed: Option<Tensor>,
}

impl Fp8Matrix {
    /// Copies a weight to `device` if GPUs of the capability multiply it in FP8, and cuBLASLt takes its shape. `None` otherwise.
    ///
    /// # Errors
    /// Memory does not suffice.
    pub fn new(weight: &Weight, capability: (u32, u32), device: &Device) -> Result<Option<Self>> {
        let (n, k) = (weight.n(), weight.k());
        let (Some((QuantFormat::E4m3, group)), Some(activations)) =
            (weight.quant_format(), weight.activations())
        else {
            return Ok(None);
        };
        let is_whole = n.is_multiple_of(FP8_MULTIPLE) && k.is_multiple_of(FP8_MULTIPLE);
        if !is_whole || weight.inputs().is_some() || weight.sparse().is_some() {
            return Ok(None);
        }
        let Some((weights, scales)) = scales_of(weight, group) else { return Ok(None) };
        let Some(product) = fp8_product(capability, weights, activations.scales) else {
            return Ok(None);
        };
        // A scale of the whole matrix is one for each output where activations have scales of rows.
        let scales = match (product, weights) {
            (Fp8Product::Rows, Fp8Weights::Tensor) => vec![scales[0]; n],
            _ => scales,
        };
        let mut codes = vec![F8E4M3::from_bits(0); n * k];
        codes.par_chunks_exact_mut(k).enumerate().for_each(|(row, codes)| {
            for (column, code) in codes.iter_mut().enumerate() {
                *code = F8E4M3::from_bits(weight.quant(row, column));
            }
        });
        let count = scales.len();
        Ok(Some(Self {
            n,
            k,
            codes: Tensor::from_vec(codes, (n, k), device)?,
            scales: Tensor::from_vec(scales, count, device)?,
            product,
            activations,
            #[cfg(feature = "cuda")]
            fixed: match product {
                Fp8Product::Tensor => Some(Tensor::new(&[activations.fixed], device)?),
                Fp8Product::Rows | Fp8Product::Blocks => None,
            },
        }))
    }

    /// Same as [`Fp8Matrix::new`] for the capability of `device`, if cuBLASLt is there and passes a trial: `None` on the CPU.
    ///
    /// # Errors
    /// Same as [`Fp8Matrix::new`], or CUDA refused.
    pub fn on_device(weight: &Weight, device: &Device) -> Result<Option<Self>> {
        let Some(capability) = fp8_capability(device)? else { return Ok(None) };
        let made = Self::new(weight, capability, device)?;
        Ok(made.filter(|made| fp8_fault(device, made.product).is_none()))
    }

    /// The scales of the product.
    #[must_use]
    pub fn product(&self) -> Fp8Product {
        self.product
    }

    /// Inputs that share a scale of activations.
    pub(crate) fn group(&self) -> usize {
        match self.product {
            Fp8Product::Blocks => FP8_BLOCK,
            Fp8Product::Tensor | Fp8Product::Rows => self.k,
        }
    }

    /// Distance of the scales of a row of blocks from those of the next.
    pub(crate) fn scale_stride(&self) -> usize {
        block_stride(self.k)
    }

    /// Index of the scale of an output and an input.
    pub(crate) fn scale_index(&self, output: usize, input: usize) -> usize {
        match self.product {
            Fp8Product::Tensor => 0,
            Fp8Product::Rows => output,
            Fp8Product::Blocks => output / FP8_BLOCK * self.scale_stride() + input / FP8_BLOCK,
        }
    }

    /// The dequantized values `[n, k]` of a matrix on the CPU.
    ///
    /// # Errors
    /// The matrix is on another device.
    pub fn dequantized(&self) -> Result<Vec<f32>> {
        let codes: Vec<f32> = self.codes.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        let scales: Vec<f32> = self.scales.to_vec1()?;
        let value =
            |(at, code): (usize, f32)| code * scales[self.scale_index(at / self.k, at % self.k)];
        Ok(codes.into_iter().enumerate().map(value).collect())
    }
}

/// Why products in FP8 with these scales are of no use on `device`, if cuBLASLt failed a trial with them.
pub fn fp8_fault(device: &Device, product: Fp8Product) -> Option<String> {
    #[cfg(feature = "cuda")]
    if device.is_cuda() {
        return crate::cuda::fp8_fault(device, product);
    }
    let _ = (device, product);
    None
}

/// The compute capability of a GPU on which cuBLASLt multiplies in FP8, if its scales are supported. `None` on the CPU, and
/// where cuBLASLt is missing or too old.
///
/// # Errors
/// CUDA refused.
#[cfg_attr(not(feature = "cuda"), allow(clippy::unnecessary_wraps))]
pub fn fp8_capability(device: &Device) -> Result<Option<(u32, u32)>> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(cuda) = device {
        let found = cuda.cuda_stream().context().compute_capability();
        let (major, minor) = found.map_err(|error| candlepower_kernels::Error::Cuda {
            kernel: "fp8",
            message: error.to_string(),
        })?;
        let capability = (major.unsigned_abs(), minor.unsigned_abs());
        return Ok(crate::cuda::has_fp8_matmul().then_some(capability));
    }
    let _ = device;
    Ok(None)
}

/// Distance of the scales of a row of blocks from those of the next, for `k` inputs.
pub(crate) fn block_stride(k: usize) -> usize {
    k.div_ceil(FP8_BLOCK).next_multiple_of(BLOCK_SCALES_MULTIPLE)
}

/// The scales of a weight as cuBLASLt reads them; `None` if groups of inputs share them that are no blocks of 128.
fn scales_of(weight: &Weight, group: usize) -> Option<(Fp8Weights, Vec<f32>)> {
    let (n, k) = (weight.n(), weight.k());
    let scale = |row: usize, index: usize| weight.scale(row, index)[0] * PART_FACTOR.recip();
    let by_output = weight.activations()?.scales != ActivationScales::Group(FP8_BLOCK);
    if group >= k && by_output {
        let scales: Vec<f32> = (0..n).map(|row| scale(row, 0)).collect();
        let is_one = scales.iter().all(|scale| *scale == scales[0]);
        return Some(match is_one {
            true => (Fp8Weights::Tensor, vec![scales[0]]),
            false => (Fp8Weights::Outputs, scales),
        });
    }
    if group != FP8_BLOCK || !k.is_multiple_of(FP8_BLOCK) {
        return None;
    }
    let (columns, stride) = (k.div_ceil(FP8_BLOCK), block_stride(k));
    let mut scales = vec![0f32; n.div_ceil(FP8_BLOCK) * stride];
    for row in 0..n {
        for column in 0..columns {
            let (found, at) = (scale(row, column), row / FP8_BLOCK * stride + column);
            if row % FP8_BLOCK == 0 {
                scales[at] = found;
            } else if scales[at] != found {
                // Matrices that are one begin within a block of another.
                return None;
            }
        }
    }
    Some((Fp8Weights::Blocks, scales))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_of_rows_and_blocks_need_hopper() {
        use ActivationScales::{Fixed, Group, Row};
        use Fp8Weights::{Blocks, Outputs, Tensor};
        let rows = Some(Fp8Product::Rows);
        let blocks = Some(Fp8Product::Blocks);
        let tensor = Some(Fp8Product::Tensor);
        for (weights, activations, ada, hopper) in [
            (Tensor, Fixed, tensor, rows),
            (Outputs, Fixed, None, rows),
            (Tensor, Row, None, rows),
            (Outputs, Row, None, rows),
            (Blocks, Group(128), None, blocks),
            (Blocks, Group(64), None, None),
            (Blocks, Row, None, None),
            (Outputs, Group(128), None, None),
        ] {
            let product = |capability| fp8_product(capability, weights, activations);
            assert_eq!(product((9, 0)), hopper, "{weights:?} {activations:?}");
            for newer in [(8, 9), (10, 0), (12, 0)] {
                assert_eq!(product(newer), ada, "{weights:?} {activations:?} on {newer:?}");
            }
            assert_eq!([product((8, 0)), product((8, 6))], [None, None]);
        }
    }
}
