//! `x @ w^T + bias` over packed weights.
//!
//! Every output is one chain of fused multiply-adds over increasing `k`, on every path: a result does
//! not depend on the number of rows, the number of threads or the instruction set. Where the weight is bf16 the
//! activations are rounded to bf16 too, which halves the work of a CPU with dot products of bf16. Codes are widened to the
//! numbers that they mean, in registers or a block at a time; a weight that keeps its inputs in another order
//! (act-order) gets the activations in that order, and the chain follows it. What a weight's sparse part adds comes last.
//!
//! Two things do depend on the CPU: dot products of bf16 take numbers below 2^-126 for zero, and a CPU with a matrix unit
//! (AMX) adds products of bf16 in the order of [`tile_sum`](crate::simd::tile_sum), 32 steps of `k` at a time, however many rows there are.

mod format;
mod gemv;
#[cfg(test)]
mod tests;
mod tile;
mod tiled;

use std::borrow::Cow;

use candle_core::Tensor;

use self::format::in_format;
use self::gemv::Gemv;
use self::tiled::Tiled;
use crate::parallel::SharedMut;
use crate::simd::{Isa, Simd, WithSimd};
use crate::tensor::{Operand, from_vec};
use crate::weight::ElementOrder;
use crate::{Result, Weight};

/// `x @ w^T + bias`: `x` `[tokens, k]` f32, `w` `[n, k]`, `bias` `[n]` f32, result `[tokens, n]` f32.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device.
pub fn linear(x: &Tensor, w: &Weight, bias: Option<&Tensor>) -> Result<Tensor> {
    let x = Operand::new("linear", "x", x);
    let (n, k) = (w.n(), w.k());
    let (tokens, found_k) = x.dims2("[tokens, k]")?;
    if found_k != k {
        return Err(x.shape_error(format!("[tokens, k = {k}]")));
    }
    let data = x.f32s()?;
    let bias = bias.map(|bias| {
        let bias = Operand::new("linear", "bias", bias);
        bias.expect_dims("[n]", &[n])?;
        bias.f32s()
    });
    let bias = bias.transpose()?;
    let mut out = multiply(Isa::detect(), &in_order(&data, w), w, bias.as_deref());
    if let Some(sparse) = w.sparse() {
        sparse.add_products(&data, k, &mut out);
    }
    from_vec(out, &[tokens, n])
}

/// The activations in the order in which `w` keeps its inputs.
fn in_order<'a>(x: &'a [f32], w: &Weight) -> Cow<'a, [f32]> {
    let Some(inputs) = w.inputs() else { return Cow::Borrowed(x) };
    let row = |x: &'a [f32]| inputs.iter().map(|&input| x[input as usize]);
    Cow::Owned(x.chunks_exact(w.k()).flat_map(row).collect())
}

/// The definition of one output of [`linear`]: products summed with fused multiply-adds in one chain
/// of increasing `k`, then the bias. `x` and `w` are one row of each matrix, in the order of the weight's inputs, `x` rounded to
/// bf16 where the weight is. Every path of [`linear`] gives exactly these bits, but for a matrix unit's.
#[must_use]
pub fn linear_reference(x: &[f32], w: &[f32], bias: Option<f32>) -> f32 {
    let sum = x.iter().zip(w).fold(0f32, |sum, (x, w)| x.mul_add(*w, sum));
    bias.map_or(sum, |bias| sum + bias)
}

/// How a product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// Few rows: several streams of weights, bound by memory.
    Gemv,
    /// Many rows, or a matrix unit: tiles of accumulators in registers over blocks of `k`.
    Tiled,
}

impl Path {
    fn choose<S: Simd>(p: &Product<'_>) -> Self {
        let matrix_unit = S::BF16_TILES && p.w.layout().order == ElementOrder::Bf16;
        if matrix_unit || p.rows > S::GEMV_ROWS { Self::Tiled } else { Self::Gemv }
    }
}

/// Operands of a product, checked by [`multiply`]: `x` is `[rows, k]` (`[rows, words]` once it is in the weight's format), `y`
/// `[rows, n]`, `bias` `[n]`.
#[derive(Clone, Copy)]
struct Product<'a> {
    x: &'a [f32],
    w: &'a Weight,
    bias: Option<&'a [f32]>,
    y: SharedMut<'a>,
    rows: usize,
}

/// `[rows, n]`, with the instruction set `isa`.
fn multiply(isa: Isa, x: &[f32], w: &Weight, bias: Option<&[f32]>) -> Vec<f32> {
    let (n, k) = (w.n(), w.k());
    let rows = x.len() / k;
    assert!(x.len() == rows * k && bias.is_none_or(|bias| bias.len() == n), "checked by linear");
    let mut out = Vec::with_capacity(rows * n);
    let y = SharedMut::new(&mut out.spare_capacity_mut()[..rows * n]);
    if rows > 0 {
        isa.run_with_tiles(Multiply(Product { x, w, bias, y, rows }));
    }
    // SAFETY: both paths write every element of `y`.
    unsafe { out.set_len(rows * n) };
    out
}

/// [`Product`] as work for an instruction set.
struct Multiply<'a>(Product<'a>);

impl WithSimd for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        match Path::choose::<S>(&self.0) {
            Path::Gemv => in_format(s, &self.0, Gemv),
            Path::Tiled => in_format(s, &self.0, Tiled),
        }
    }
}
