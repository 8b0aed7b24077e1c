//! A matrix times a few rows, an alternative to cuBLAS.

use candle_core::Tensor;

use super::launch::{Address, CUstream, Launch, VECTOR};
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Error, Result};

/// Maximum number of rows of x that [`gemv`] takes.
pub const GEMV_MAX_ROWS: usize = 8;

/// Computes `out = x @ w^T + bias`: `x` `[rows, k]` with 1 to 8 rows, `w` `[n, k]`, `bias` `[n]`, `out` `[rows, n]`,
/// all bf16 or f16, with sums in f32.
///
/// A row's result depends on its own values and the shape of `w` alone. The CPU's reference implementation of one
/// output is [`candlepower_kernels::linear_reference`], which adds in another order.
///
/// # Errors
/// `x` has more than 8 rows or `k` is no multiple of 8; an operand has the wrong dtype, shape, layout or device; or
/// CUDA refused the launch.
pub fn gemv(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, out: &Tensor) -> Result<()> {
    const KERNEL: &str = "gemv";
    let launch = Launch::new(KERNEL, "x", x)?;
    let (rows, k) = Operand::new(KERNEL, "x", x).dims2("[rows, k]")?;
    let (n, _) = Operand::new(KERNEL, "w", w).dims2("[n, k]")?;
    let error = |parameter, value, expected| Err(Error::Parameter { parameter, value, expected });
    if !(1..=GEMV_MAX_ROWS).contains(&rows) {
        return error("rows", rows, "1 to 8; use a matmul for more");
    }
    if k == 0 || !k.is_multiple_of(VECTOR) {
        return error("k", k, "a positive multiple of 8");
    }
    let args = GemvArgs {
        x: launch.elements(("x", x), "[rows, k]", &[rows, k])?,
        weight: launch.elements(("w", w), "[n, k]", &[n, k])?,
        bias: match bias {
            Some(bias) => launch.elements(("bias", bias), "[n]", &[n])?,
            None => std::ptr::null_mut(),
        },
        out: launch.elements(("out", out), "[rows, n]", &[rows, n])?,
        rows: rows as i32,
        n: n as i32,
        k: k as i32,
        dtype: launch.dtype_code(),
    };
    if n == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say.
    unsafe { launch.run(candlepower_gemv, &args) }
}

/// Mirrors `GemvArgs` in gemv.cu.
#[repr(C)]
struct GemvArgs {
    x: Address,
    weight: Address,
    bias: Address,
    out: Address,
    rows: i32,
    n: i32,
    k: i32,
    dtype: i32,
}
const _: () = assert!(size_of::<GemvArgs>() == 48);

unsafe extern "C" {
    fn candlepower_gemv(args: *const GemvArgs, stream: CUstream) -> i32;
}
