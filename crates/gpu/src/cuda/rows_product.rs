//! A matrix times any number of rows on tensor cores, an alternative to cuBLAS whose sums do not depend on that number.

use candle_core::Tensor;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};

use super::gemv::{gate_code, gated_outputs};
use super::launch::{Address, CUstream, Launch, VECTOR};
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Activation, Error, Result};

/// Maximum number of rows that [`rows_product`] was made for. It takes more, but on a GPU cuBLAS is expected to be faster.
pub const MAX_PRODUCT_ROWS: usize = 128;

/// Whether [`rows_product`] was made for `rows` rows of `k` inputs.
pub(super) const fn has_rows_product(rows: usize, k: usize) -> bool {
    rows >= 1 && rows <= MAX_PRODUCT_ROWS && k > 0 && k.is_multiple_of(VECTOR)
}

/// Computes `out = x @ w^T + bias`: `x` `[rows, k]`, `w` `[n, k]`, `bias` `[n]`, `out` `[rows, n]`, all bf16 or f16,
/// with sums in f32. `partial` is memory for partial sums: 16 MiB suffice for any matrix. Rows whose partial sums do not fit
/// are computed one launch after the other.
///
/// A row's result depends on its own values and the shape of `w` alone: each row is a column of tensor core products
/// that go through the inputs in a fixed order. The reference implementation of one output is
/// [`candlepower_kernels::linear_reference`], which adds in another order.
///
/// With the activation of gates, the first half of the outputs are gates of the second half. `out` is `[rows, n / 2]` then,
/// and has the bits of the product and [`gated_activation`](super::gated_activation).
///
/// # Errors
/// `k` is no multiple of 8, or `n` is odd with gates; an operand has the wrong dtype, shape, layout or device; or
/// CUDA refused the launch.
pub(super) fn rows_product(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    gate: Option<Activation>,
    out: &Tensor,
    partial: &CudaSlice<u8>,
) -> Result<()> {
    const KERNEL: &str = "rows product";
    let launch = Launch::new(KERNEL, "x", x)?;
    let (rows, k) = Operand::new(KERNEL, "x", x).dims2("[rows, k]")?;
    let (n, _) = Operand::new(KERNEL, "w", w).dims2("[n, k]")?;
    if k == 0 || !k.is_multiple_of(VECTOR) {
        let expected = "a positive multiple of 8";
        return Err(Error::Parameter { parameter: "k", value: k, expected });
    }
    let outputs = gated_outputs(n, gate)?;
    let args = RowsProductArgs {
        x: launch.elements(("x", x), "[rows, k]", &[rows, k])?,
        weight: launch.elements(("w", w), "[n, k]", &[n, k])?,
        bias: match bias {
            Some(bias) => launch.elements(("bias", bias), "[n]", &[n])?,
            None => std::ptr::null_mut(),
        },
        out: launch.elements(("out", out), "[rows, outputs]", &[rows, outputs])?,
        partial: partial.device_ptr(partial.stream()).0 as *mut f32,
        partial_bytes: partial.len() as i64,
        rows: rows as i32,
        n: outputs as i32,
        k: k as i32,
        dtype: launch.dtype_code(),
        activation: gate_code(gate),
        padding: 0,
    };
    if rows == 0 || n == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say. The launcher compares the
    // memory for partial sums with what it needs.
    unsafe { launch.run(candlepower_rows_product, &args) }
}

/// Mirrors `RowsProductArgs` in rows_product.cu.
#[repr(C)]
struct RowsProductArgs {
    x: Address,
    weight: Address,
    bias: Address,
    out: Address,
    partial: *mut f32,
    partial_bytes: i64,
    rows: i32,
    n: i32,
    k: i32,
    dtype: i32,
    activation: i32,
    padding: i32,
}
const _: () = assert!(size_of::<RowsProductArgs>() == 72);

unsafe extern "C" {
    fn candlepower_rows_product(args: *const RowsProductArgs, stream: CUstream) -> i32;
}
