//! Norms of rows: RMS norm, alone and fused with the preceding residual addition, and layer norm.

use candle_core::Tensor;

use super::fp8::Fp8RowsArgs;
use super::launch::{Address, CUstream, Launch};
use super::prefetch::Prefetch;
use crate::operands::{LayerNorm, RmsNorm, RowsOut};
use candlepower_kernels::Result;
use candlepower_kernels::operands::Operand;

/// Computes `out = x / sqrt(mean(x^2) + eps) * weight` over the last dimension, in f32 and rounded once.
///
/// `x` and `out` are bf16 or f16 `[.., dim]`; `out` may be `x`. If they are `[.., groups, dim]`, the weight may be
/// `[groups, dim]`. Rows in FP8 are `[rows, dim]`, with groups of all of a row or of 128. The CPU's reference implementation is
/// [`candlepower_kernels::rms_norm_reference`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
///
/// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
pub fn rms_norm(x: &Tensor, norm: &RmsNorm<'_>, out: impl Into<RowsOut>) -> Result<()> {
    launch("rms_norm", None, x, norm, &out.into())
}

/// Computes `residual = (residual + x) * scale`, then `out = rms_norm(residual)`. Shapes as in [`rms_norm`].
///
/// The norm is taken of the sum as it is stored, rounded to the element type. The CPU's reference implementation is
/// [`candlepower_kernels::add_rms_norm_reference`].
///
/// # Errors
/// Same as [`rms_norm`].
pub fn add_rms_norm(
    residual: &Tensor,
    x: &Tensor,
    scale: f32,
    norm: &RmsNorm<'_>,
    out: impl Into<RowsOut>,
) -> Result<()> {
    launch("add_rms_norm", Some((residual, scale)), x, norm, &out.into())
}

fn launch(
    kernel: &'static str,
    residual: Option<(&Tensor, f32)>,
    x: &Tensor,
    norm: &RmsNorm<'_>,
    out: &RowsOut,
) -> Result<()> {
    let launch = Launch::new(kernel, "x", x)?;
    let dims = x.dims();
    let dim = candlepower_kernels::operands::last_dim(&Operand::new(kernel, "x", x))?;
    let rows = x.elem_count() / dim;
    let weight_dims = norm.weight.dims();
    let weight_rows = candlepower_kernels::operands::weight_rows(
        &Operand::new(kernel, "weight", norm.weight),
        dims,
    )?;
    let (out, fp8) = Fp8RowsArgs::of(&launch, out, "x's shape", dims)?;
    let args = RmsNormArgs {
        x: launch.elements(("x", x), "[.., dim]", dims)?,
        residual: match residual {
            Some((residual, _)) => launch.elements(("residual", residual), "x's shape", dims)?,
            None => std::ptr::null_mut(),
        },
        weight: launch.elements(("weight", norm.weight), "[groups, dim]", weight_dims)?,
        out,
        rows: rows as i64,
        dim: dim as i32,
        dtype: launch.dtype_code(),
        eps: norm.eps,
        weight_offset: norm.form.offset(),
        residual_scale: residual.map_or(1.0, |(_, scale)| scale),
        weight_rows: weight_rows as i32,
        fp8,
        next: Prefetch::of(&launch, norm.next)?,
    };
    // CUDA refuses a launch without blocks.
    if rows == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say.
    unsafe { launch.run(candlepower_rms_norm, &args) }
}

/// Computes `out = (x - mean) / sqrt(variance + eps) * weight + bias` over the last dimension, in f32 and rounded once.
///
/// `x` and `out` are bf16 or f16 `[.., dim]`; `out` may be `x`. The CPU's reference implementation is
/// [`candlepower_kernels::layer_norm_reference`].
///
/// # Errors
/// Same as [`rms_norm`].
///
/// Source: "Layer Normalization", 2016, arXiv 1607.06450.
pub fn layer_norm(x: &Tensor, norm: &LayerNorm<'_>, out: &Tensor) -> Result<()> {
    let launch = Launch::new("layer_norm", "x", x)?;
    let dims = x.dims();
    let dim = candlepower_kernels::operands::last_dim(&Operand::new("layer_norm", "x", x))?;
    let rows = x.elem_count() / dim;
    let args = LayerNormArgs {
        x: launch.elements(("x", x), "[.., dim]", dims)?,
        weight: launch.elements(("weight", norm.weight), "[dim]", &[dim])?,
        bias: match norm.bias {
            Some(bias) => launch.elements(("bias", bias), "[dim]", &[dim])?,
            None => std::ptr::null_mut(),
        },
        out: launch.elements(("out", out), "x's shape", dims)?,
        rows: rows as i64,
        dim: dim as i32,
        dtype: launch.dtype_code(),
        eps: norm.eps,
        padding: 0,
    };
    if rows == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say.
    unsafe { launch.run(candlepower_layer_norm, &args) }
}

/// Mirrors `RmsNormArgs` in rows.cu.
#[repr(C)]
struct RmsNormArgs {
    x: Address,
    residual: Address,
    weight: Address,
    out: Address,
    rows: i64,
    dim: i32,
    dtype: i32,
    eps: f32,
    weight_offset: f32,
    residual_scale: f32,
    weight_rows: i32,
    fp8: Fp8RowsArgs,
    next: Prefetch,
}
const _: () = assert!(size_of::<RmsNormArgs>() == 104);

/// Mirrors `LayerNormArgs` in rows.cu.
#[repr(C)]
struct LayerNormArgs {
    x: Address,
    weight: Address,
    bias: Address,
    out: Address,
    rows: i64,
    dim: i32,
    dtype: i32,
    eps: f32,
    padding: i32,
}
const _: () = assert!(size_of::<LayerNormArgs>() == 56);

unsafe extern "C" {
    fn candlepower_rms_norm(args: *const RmsNormArgs, stream: CUstream) -> i32;
    fn candlepower_layer_norm(args: *const LayerNormArgs, stream: CUstream) -> i32;
}
