//! Activations that are rounded to FP8 before a product.

use candle_core::Tensor;
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Fp8Rounding, Result};

use super::launch_on_gpu;
use super::reference::Reference;
use crate::operands::{HeadPadding, Matrix};

/// Sets `out` to the rows of `x`, `[rows, k]`, rounded to FP8 by `rounding` and then to the element type. Both are bf16 or
/// f16, and may be the same tensor. With `padding` the rows are padded heads: groups of inputs are counted without the
/// padding, which keeps its content in `out`.
///
/// The reference implementation is [`Fp8Rounding::round_rows`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn round_activations(
    x: &Tensor,
    rounding: &Fp8Rounding,
    padding: Option<HeadPadding>,
    out: &Tensor,
) -> Result<()> {
    const KERNEL: &str = "round activations";
    launch_on_gpu!(x, crate::cuda::round_activations(x, rounding, padding, out));
    let reference = Reference::new(KERNEL, "x", x)?;
    let (rows, k) = Operand::new(KERNEL, "x", x).dims2("[rows, k]")?;
    let mut values = reference.elements(("x", x), "[rows, k]", &[rows, k])?;
    round_padded(&mut values, k, rounding, padding);
    reference.write(("out", out), "[rows, k]", &[rows, k], &values)
}

/// Rounds rows of `k` values, whose padding between heads stays.
pub(super) fn round_padded(
    values: &mut [f32],
    k: usize,
    rounding: &Fp8Rounding,
    padding: Option<HeadPadding>,
) {
    let Some(HeadPadding { len, padded }) = padding else {
        return rounding.round_rows(values, k);
    };
    for row in values.chunks_exact_mut(k) {
        let mut own: Vec<f32> = row.chunks(padded).flat_map(|head| head[..len].to_vec()).collect();
        let width = own.len();
        rounding.round_rows(&mut own, width);
        for (head, own) in row.chunks_mut(padded).zip(own.chunks(len)) {
            head[..len].copy_from_slice(own);
        }
    }
}

impl Matrix {
    /// How activations are rounded to FP8 before a product with the matrix, if they are.
    #[must_use]
    pub fn activations(&self) -> Option<Fp8Rounding> {
        match self {
            Self::Rows(_) => None,
            Self::Packed(packed) => packed.activations,
            Self::Fp8(matrix) => Some(matrix.activations),
        }
    }
}
