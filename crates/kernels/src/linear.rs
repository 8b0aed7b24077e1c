//! `x @ w^T + bias` over packed weights.
//!
//! The order of summation is fixed, so that tests compare results bit for bit. Every output is one chain of fused
//! multiply-adds over increasing `k`, on every path. So a result does not depend on the number of rows, the number of
//! threads or the instruction set.
//!
//! Activations are rounded to bf16 if the weight is bf16. A CPU with dot products of bf16 then does half the work: 16
//! to 512 rows take half to two thirds of the time of widened weights.
//!
//! Quantized weights are small integers, or floats of few bits, and exact in bf16. So they are multiplied before they
//! are scaled:
//! - The chain begins at zero for each group, and for each 128 steps of a longer group.
//! - Its sum times the scale is added to the output.
//! - The sum of the group's activations times the offset is added last.
//!
//! Activations for quantized weights are rounded to bf16 if the weight says so
//! ([`WeightBuilder::with_rounded_activations`](crate::WeightBuilder::with_rounded_activations)). A weight with
//! reordered inputs (act-order) gets the activations in its order, and the chain follows that order. A weight's
//! sparse part is added last.
//!
//! Activations for FP8 weights are rounded to FP8 first if the weight says so ([`Fp8Rounding`]). Where they are rounded
//! to bf16 as well, that comes second.
//!
//! Over lookup tables an output is sixteen chains, each of every sixteenth step from zero. Their sums are added by
//! halves ([`Simd::reduce_add`]). So one permutation of a register looks up sixteen steps of one table.
//!
//! Two details do depend on the CPU. Dot products of bf16 flush values below 2^-126 to zero. A CPU with a matrix unit
//! (AMX) adds products of bf16 in the order of [`tile_sum`](crate::simd::tile_sum), 32 steps of `k` at a time, for
//! any number of rows.

mod format;
mod gemv;
mod packed;
mod scales;
mod tables;
#[cfg(test)]
mod tests;
mod tile;
mod tiled;

use std::borrow::Cow;

use candle_core::Tensor;

use self::format::in_format;
use self::gemv::Gemv;
pub(crate) use self::packed::PackedRows;
use self::tiled::Tiled;
use crate::parallel::SharedMut;
use crate::simd::{Isa, Simd, TILE_LINE, WithSimd};
use crate::tensor::{Operand, from_vec};
use crate::weight::{ElementOrder, Layout, PANEL};
use crate::{Activation, Fp8Rounding, QuantFormat, Result, Weight, gated_activation};

/// `x @ w^T + bias`: `x` `[tokens, k]` f32, `w` `[n, k]`, `bias` `[n]` f32, result `[tokens, n]` f32.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device.
pub fn linear(x: &Tensor, w: &Weight, bias: Option<&Tensor>) -> Result<Tensor> {
    product(x, w, bias, None)
}

/// `act(gate) * up`, where the rows of `x @ w^T + bias` are `[gate.., up..]`, of the same length. The result,
/// `[tokens, n / 2]` f32, has the same bits as [`linear`] followed by [`gated_activation`].
///
/// # Errors
/// Those of [`linear`] and [`gated_activation`].
pub fn gated_linear(
    x: &Tensor,
    w: &Weight,
    bias: Option<&Tensor>,
    act: Activation,
) -> Result<Tensor> {
    // With few rows the product is bound by reading the weights, and the fused gate saves nothing.
    let few_rows = x.dims().first().is_none_or(|rows| *rows < 2 * TILE_LINE);
    // Tables and sparse parts have no fused gate, which works on whole panels of both halves.
    let is_plain = w.sparse().is_none() && !has_tables(w);
    if few_rows || !is_plain || !w.n().is_multiple_of(2 * PANEL) {
        return gated_activation(&linear(x, w, bias)?, act);
    }
    product(x, w, bias, Some(act))
}

fn product(
    x: &Tensor,
    w: &Weight,
    bias: Option<&Tensor>,
    gate: Option<Activation>,
) -> Result<Tensor> {
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
    let out = computed(&data, w, bias.as_deref(), gate);
    from_vec(out, &[tokens, if gate.is_some() { n / 2 } else { n }])
}

/// [`linear`] of checked rows `[rows, k]`, without a bias.
pub(crate) fn product_of_rows(x: &[f32], w: &Weight) -> Vec<f32> {
    computed(x, w, None, None)
}

fn computed(x: &[f32], w: &Weight, bias: Option<&[f32]>, gate: Option<Activation>) -> Vec<f32> {
    let x = &*Fp8Rounding::rounded(w.activations(), x, w.k());
    // Copied once for all outputs, which then read activations and weights in the same order.
    let mut out = multiply(Isa::detect(), &in_order(x, w), w, bias, gate);
    if let Some(sparse) = w.sparse() {
        sparse.add_products(x, w.k(), &mut out);
    }
    out
}

/// The activations in the order of the weight's inputs.
fn in_order<'a>(x: &'a [f32], w: &Weight) -> Cow<'a, [f32]> {
    let Some(inputs) = w.inputs() else { return Cow::Borrowed(x) };
    let row = |x: &'a [f32]| inputs.iter().map(|&input| x[input as usize]);
    Cow::Owned(x.chunks_exact(w.k()).flat_map(row).collect())
}

/// The reference for one output of [`linear`] over values: products summed with fused multiply-adds in one chain of
/// increasing `k`, then the bias. `x` and `w` are one row of each matrix, in the order of the weight's inputs. `x` is
/// rounded to bf16 if the weight is. Every path of [`linear`] gives exactly these bits, except on a matrix unit.
#[must_use]
pub fn linear_reference(x: &[f32], w: &[f32], bias: Option<f32>) -> f32 {
    let sum = chain(x, w);
    bias.map_or(sum, |bias| sum + bias)
}

fn chain(x: &[f32], w: &[f32]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the CPU has fused multiply-adds.
        return unsafe { chain_with_fma(x, w) };
    }
    chain_anywhere(x, w)
}

/// The same bits with the CPU's own instruction, since the standard library calls a function for each multiply-add.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "fma")]
fn chain_with_fma(x: &[f32], w: &[f32]) -> f32 {
    chain_anywhere(x, w)
}

#[inline(always)]
fn chain_anywhere(x: &[f32], w: &[f32]) -> f32 {
    x.iter().zip(w).fold(0f32, |sum, (x, w)| x.mul_add(*w, sum))
}

/// The algorithm of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// Few rows: several streams of weights, bound by memory.
    Gemv,
    /// Many rows, or a matrix unit, or a gate, or packed rows: tiles of accumulators in registers over blocks of `k`.
    Tiled,
}

impl Path {
    fn choose<S: Simd>(p: &Product<'_>) -> Self {
        // Only tiles have a fused gate, or read packed rows. A matrix unit adds in an order of its own, which one row
        // must follow, too.
        let needs_tiles = S::BF16_TILES || p.gate.is_some() || p.packed.is_some();
        let is_tiled = needs_tiles || p.rows > S::GEMV_ROWS;
        if is_tiled { Self::Tiled } else { Self::Gemv }
    }
}

/// Whether `w` is quantized with lookup tables.
fn has_tables(w: &Weight) -> bool {
    matches!(w.quant_format(), Some((QuantFormat::Table, _)))
}

/// Whether a matrix unit computes with `w`: bf16, or quantized weights that meet rounded activations and whose groups
/// are whole lines.
fn fits_matrix_unit(w: &Weight) -> bool {
    let Layout { order, k, group, .. } = w.layout();
    match order {
        ElementOrder::Bf16 => true,
        ElementOrder::F32 | ElementOrder::F16 | ElementOrder::Quantized(QuantFormat::Table) => {
            false
        }
        ElementOrder::Quantized(_) => {
            // The unit sums 32 products at a time, so these must have the same scale.
            w.rounds_activations() && (group == k || group.is_multiple_of(2 * TILE_LINE))
        }
    }
}

/// Operands of a product, checked by [`multiply`]. `x` is `[rows, k]`, or `[rows, words]` once it is in the weight's
/// format. `y` is `[rows, n]`, or half as wide with a gate, and `bias` is `[n]`.
#[derive(Clone, Copy)]
struct Product<'a> {
    /// Empty if `packed` is given.
    x: &'a [f32],
    /// All rows in the order of tiles, if they were packed before.
    packed: Option<&'a [f32]>,
    w: &'a Weight,
    bias: Option<&'a [f32]>,
    gate: Option<Activation>,
    y: SharedMut<'a>,
    rows: usize,
}

/// `[rows, n]`, or half as wide with a gate (then `n` is twice some panels), with the instruction set `isa`.
fn multiply(
    isa: Isa,
    x: &[f32],
    w: &Weight,
    bias: Option<&[f32]>,
    gate: Option<Activation>,
) -> Vec<f32> {
    let (n, k) = (w.n(), w.k());
    let rows = x.len() / k;
    // The paths write through pointers, so lengths are checked in release builds, too.
    assert!(x.len() == rows * k && bias.is_none_or(|bias| bias.len() == n), "checked by linear");
    let takes_gate = n.is_multiple_of(2 * PANEL) && !has_tables(w);
    assert!(gate.is_none() || takes_gate, "checked by gated_linear");
    let len = rows * if gate.is_some() { n / 2 } else { n };
    let mut out = Vec::with_capacity(len);
    let y = SharedMut::new(&mut out.spare_capacity_mut()[..len]);
    if rows > 0 {
        let product = Product { x, packed: None, w, bias, gate, y, rows };
        if has_tables(w) {
            tables::multiply(isa, &product);
        } else {
            run(isa, w, Multiply(product));
        }
    }
    // SAFETY: all paths write every element of `y`.
    unsafe { out.set_len(len) };
    out
}

/// Runs `work` compiled for the instructions that multiply `w`, which has no lookup tables.
fn run(isa: Isa, w: &Weight, work: impl WithSimd<Output = ()>) {
    if fits_matrix_unit(w) {
        isa.run_with_tiles(work);
        // Dot products of bf16 take activations of bf16 only.
    } else if w.rounds_activations() {
        isa.run_with_dot(work);
    } else {
        isa.run(work);
    }
}

/// [`Product`] as work for an instruction set.
struct Multiply<'a>(Product<'a>);

impl WithSimd for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        // `if const` keeps the compiler from compiling code that a matrix unit never runs.
        if const { S::BF16_TILES } {
            return in_format(s, &self.0, Tiled);
        }
        match Path::choose::<S>(&self.0) {
            Path::Gemv => in_format(s, &self.0, Gemv),
            Path::Tiled => in_format(s, &self.0, Tiled),
        }
    }
}
