//! A matrix times the norm of one or two rows, which each block computes anew.

use super::gemv::{GemvArgs, GemvForm, gemv_args};
use super::launch::{Address, CUstream, Launch};
use crate::operands::{NormedRows, has_normed_rows};
use candle_core::Tensor;
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Error, Result};

/// Computes `sum = (residual + x) * scale` and `out = rms_norm(sum) @ w^T + bias`, for one or two rows of at most 2,048 inputs.
///
/// Shapes are `[rows, k]` for `x`, `residual` and `sum`, `[n, k]` for `w`, `[n]` for `bias`, and `[rows, n]` for `out`. With gates,
/// `out` is `[rows, n / 2]`. All are bf16 or f16. `sum` must not overlap the residual. The bits are those of
/// [`add_rms_norm`](super::add_rms_norm) and [`gemv_as`](super::gemv_as).
///
/// # Errors
/// Same as [`gemv_as`](super::gemv_as) and [`add_rms_norm`](super::add_rms_norm); or a row has more than 2,048 inputs.
pub fn normed_gemv(
    form: &GemvForm,
    rows: &NormedRows<'_>,
    w: &Tensor,
    bias: Option<&Tensor>,
    out: &Tensor,
) -> Result<()> {
    const KERNEL: &str = "normed gemv";
    let launch = Launch::new(KERNEL, "x", rows.x)?;
    let (count, k) = Operand::new(KERNEL, "x", rows.x).dims2("[rows, k]")?;
    if !has_normed_rows(count, k) {
        let expected = "1 or 2 rows of at most 2,048 inputs, a multiple of 8";
        return Err(Error::Parameter { parameter: "k", value: k, expected });
    }
    let NormedRows { residual, sum, scale, norm, .. } = rows;
    let args = NormedGemvArgs {
        product: gemv_args(&launch, form, rows.x, w, bias, out)?,
        residual: launch.elements(("residual", residual), "[rows, k]", &[count, k])?,
        sum: launch.elements(("sum", sum), "[rows, k]", &[count, k])?,
        weight: launch.elements(("weight", norm.weight), "[k]", &[k])?,
        eps: norm.eps,
        weight_offset: norm.form.offset(),
        residual_scale: *scale,
        padding: 0,
    };
    let apart = args.sum.addr().abs_diff(args.residual.addr());
    if apart < count * k * size_of::<u16>() {
        let expected = "memory that does not overlap the residual";
        return Err(Error::Parameter { parameter: "sum", value: apart, expected });
    }
    if w.elem_count() == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say.
    unsafe { launch.run(candlepower_normed_gemv, &args) }
}

/// Mirrors `NormedGemvArgs` in normed_gemv.cu.
#[repr(C)]
struct NormedGemvArgs {
    product: GemvArgs,
    residual: Address,
    sum: Address,
    weight: Address,
    eps: f32,
    weight_offset: f32,
    residual_scale: f32,
    padding: i32,
}
const _: () = assert!(size_of::<NormedGemvArgs>() == 96);

unsafe extern "C" {
    fn candlepower_normed_gemv(args: *const NormedGemvArgs, stream: CUstream) -> i32;
}
