//! Products of FP8 weights and activations: rounding of activations, a kernel for few rows, and the choice between it and
//! cuBLASLt.

use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};
use candle_core::{DType, Tensor};
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Error, Fp8Rounding, Result};
use candlepower_layout::ActivationScales;

use super::cublas_lt::{CublasLt, ScaledProduct};
use super::launch::{Address, CUstream, Launch, VECTOR};
use crate::operands::{FP8_BLOCK, Fp8Matrix, Fp8Product, Fp8Rows, HeadPadding, RowsOut};

/// Maximum number of rows that the kernel in fp8_product.cu multiplies instead of cuBLASLt. It reads the matrix once for 8
/// rows, in one launch that may begin before the previous kernel ends. Tiles of cuBLASLt have 64 rows and more.
const MAX_FEW_ROWS: usize = 8;

/// See [`crate::round_activations`].
///
/// # Errors
/// Same as [`crate::round_activations`].
pub fn round_activations(
    x: &Tensor,
    rounding: &Fp8Rounding,
    padding: Option<HeadPadding>,
    out: &Tensor,
) -> Result<()> {
    let launch = Launch::new("round activations", "x", x)?;
    let (rows, k) = Operand::new(launch.kernel(), "x", x).dims2("[rows, k]")?;
    let out = launch.elements(("out", out), "[rows, k]", &[rows, k])?;
    let args = RoundArgs { out, ..RoundArgs::new(&launch, x, rounding, padding)? };
    // SAFETY: the addresses were checked to hold rows * k elements; the launcher checks the heads.
    if rows * k == 0 { Ok(()) } else { unsafe { launch.run(candlepower_round_fp8, &args) } }
}

/// Sets `out` to the rows of `x` in FP8. A row of a fixed scale with NaN gets the scale NaN.
///
/// # Errors
/// Same as [`crate::round_activations`].
pub fn quantize_activations(x: &Tensor, out: &Fp8Rows) -> Result<()> {
    let launch = Launch::new("quantize activations", "x", x)?;
    let (rows, k) = Operand::new(launch.kernel(), "x", x).dims2("[rows, k]")?;
    let own = RoundArgs::new(&launch, x, &out.rounding, None)?;
    let Fp8RowsArgs { codes, scales, .. } = Fp8RowsArgs::new(&launch, out, [rows, k])?;
    let args = RoundArgs { codes, scales, ..own };
    // SAFETY: as in `round_activations`, and the scales were checked to be those of all groups.
    if rows * k == 0 { Ok(()) } else { unsafe { launch.run(candlepower_round_fp8, &args) } }
}

/// Computes `out = x @ w^T + bias`, with `bias` `[n]` and `out` `[rows, n]` bf16 or f16, and sums in f32. A row's result depends
/// on its own values and the matrix alone.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn fp8_product(x: &Fp8Rows, w: &Fp8Matrix, bias: Option<&Tensor>, out: &Tensor) -> Result<()> {
    let launch = Launch::new("fp8 product", "out", out)?;
    let (rows, k) = Operand::new(launch.kernel(), "codes", &x.codes).dims2("[rows, k]")?;
    let groups = k.div_ceil(w.group());
    let count = w.scales.elem_count();
    let args = Fp8ProductArgs {
        x: launch.own(("codes", &x.codes), "[rows, k]", &[rows, w.k])?,
        x_scales: launch.f32s(("scales", &x.scales), "[groups, rows]", &[groups, rows])?,
        weight: launch.own(("weights", &w.codes), "[n, k]", &[w.n, w.k])?,
        scales: launch.f32s(("scales of weights", &w.scales), "[count]", &[count])?,
        bias: match bias {
            Some(bias) => launch.elements(("bias", bias), "[n]", &[w.n])?,
            None => std::ptr::null_mut(),
        },
        out: launch.elements(("out", out), "[rows, n]", &[rows, w.n])?,
        rows: rows as i32,
        n: w.n as i32,
        k: w.k as i32,
        stride: match w.product {
            Fp8Product::Tensor => -1,
            Fp8Product::Rows => 0,
            Fp8Product::Blocks => w.scale_stride() as i32,
        },
        dtype: launch.dtype_code(),
        padding: 0,
    };
    // SAFETY: every address was checked above to hold what the dimensions say; `Fp8Matrix::new` made the scales.
    if rows == 0 { Ok(()) } else { unsafe { launch.run(candlepower_fp8_product, &args) } }
}

/// The kernel for few rows or cuBLASLt computes `out = x @ w^T + bias`; without `lt`, the kernel always does. `lay_bias` copies a
/// bias into `out` and returns the factor on `out`.
pub(super) fn product(
    x: &Fp8Rows,
    w: &Fp8Matrix,
    bias: Option<&Tensor>,
    out: &Tensor,
    lt: Option<(&CublasLt, &CudaSlice<u8>)>,
    lay_bias: impl FnOnce() -> Result<f32>,
) -> Result<()> {
    let (rows, k) = Operand::new("matmul", "x", &x.codes).dims2("[rows, k]")?;
    let Some((lt, workspace)) = lt.filter(|_| rows > MAX_FEW_ROWS) else {
        return fp8_product(x, w, bias, out);
    };
    if !lt.has_product(w, rows, out.dtype())? {
        return fp8_product(x, w, bias, out);
    }
    let launch = Launch::new("matmul", "out", out)?;
    let scales = match &w.fixed {
        Some(fixed) => launch.f32s(("fixed scale", fixed), "[1]", &[1])?,
        None => launch.f32s(("scales", &x.scales), "[groups, rows]", x.scales.dims())?,
    };
    let product = ScaledProduct {
        x: launch.own(("codes", &x.codes), "[rows, k]", &[rows, k])?,
        x_scales: scales,
        w: launch.own(("weights", &w.codes), "[n, k]", &[w.n, k])?,
        w_scales: launch.f32s(("scales", &w.scales), "[count]", &[w.scales.elem_count()])?,
        out: launch.elements(("out", out), "[rows, n]", &[rows, w.n])?,
        workspace: workspace.device_ptr(workspace.stream()).0 as Address,
        workspace_bytes: workspace.len(),
        beta: lay_bias()?,
    };
    // SAFETY: every address was checked above to hold what the shape says.
    unsafe { lt.run(w, rows, out.dtype(), &product, launch.stream()?) }
}

/// Mirrors `RoundArgs` in fp8.cu.
#[repr(C)]
struct RoundArgs {
    x: Address,
    out: Address,
    codes: *mut u8,
    scales: *mut f32,
    rows: i32,
    k: i32,
    group: i32,
    fixed: f32,
    head: i32,
    padded_head: i32,
    dtype: i32,
    padding: i32,
}
const _: () = assert!(size_of::<RoundArgs>() == 64);

impl RoundArgs {
    /// Arguments without results.
    fn new(
        launch: &Launch,
        x: &Tensor,
        rounding: &Fp8Rounding,
        padding: Option<HeadPadding>,
    ) -> Result<Self> {
        let (rows, k) = Operand::new(launch.kernel(), "x", x).dims2("[rows, k]")?;
        let HeadPadding { len, padded } = padding.unwrap_or(HeadPadding { len: k, padded: k });
        let own = k / padded.max(1) * len;
        Ok(Self {
            x: launch.elements(("x", x), "[rows, k]", &[rows, k])?,
            out: std::ptr::null_mut(),
            codes: std::ptr::null_mut(),
            scales: std::ptr::null_mut(),
            rows: rows as i32,
            k: k as i32,
            group: rounding.scales.group(own) as i32,
            fixed: fixed_of(rounding),
            head: len as i32,
            padded_head: padded as i32,
            dtype: launch.dtype_code(),
            padding: 0,
        })
    }
}

/// Mirrors `Fp8Rows` in fp8_rows.cuh.
#[repr(C)]
pub(super) struct Fp8RowsArgs {
    codes: *mut u8,
    scales: *mut f32,
    group: i32,
    fixed: f32,
}
const _: () = assert!(size_of::<Fp8RowsArgs>() == 24);

impl Fp8RowsArgs {
    /// No rows in FP8.
    pub(super) const NONE: Self =
        Self { codes: std::ptr::null_mut(), scales: std::ptr::null_mut(), group: 0, fixed: 0.0 };

    fn new(launch: &Launch, rows: &Fp8Rows, dims: [usize; 2]) -> Result<Self> {
        let Fp8Rows { codes, scales, rounding } = rows;
        let ([count, k], group) = (dims, rounding.scales.group(dims[1]));
        if codes.dtype() != DType::F8E4M3 {
            let (kernel, operand, found) = (launch.kernel(), "codes", codes.dtype());
            return Err(Error::DType { kernel, operand, expected: "f8e4m3", found });
        }
        let of_scales = [k.div_ceil(group.max(1)), count];
        Ok(Self {
            codes: launch.own(("codes", codes), "[rows, k]", &dims)?.cast(),
            scales: launch.f32s(("scales", scales), "[groups, rows]", &of_scales)?,
            group: group as i32,
            fixed: fixed_of(rounding),
        })
    }

    /// The rows that an operation writes: an address of rows `dims` in the launch's element type, or rows in FP8, `[rows, k]`.
    ///
    /// # Errors
    /// `out` has the wrong dtype, shape, layout or device. Rows in FP8 are no whole vectors, or have groups that no kernel has.
    pub(super) fn of(
        launch: &Launch,
        out: &RowsOut,
        axes: &str,
        dims: &[usize],
    ) -> Result<(Address, Self)> {
        let rows = match out {
            RowsOut::Plain(out) => {
                return Ok((launch.elements(("out", out), axes, dims)?, Self::NONE));
            }
            RowsOut::Fp8(rows) => rows,
        };
        let operand = Operand::new(launch.kernel(), "codes", &rows.codes);
        let &[count, k] = dims else { return Err(operand.shape_error(axes)) };
        let group = rows.rounding.scales.group(k);
        let fits = group >= k || group == FP8_BLOCK && k.is_multiple_of(FP8_BLOCK);
        if !fits || !k.is_multiple_of(VECTOR) {
            return Err(operand.shape_error("[rows, k], k in whole vectors and groups of 128"));
        }
        Ok((std::ptr::null_mut(), Self::new(launch, rows, [count, k])?))
    }
}

/// The fixed scale of a rounding, or 0.
fn fixed_of(rounding: &Fp8Rounding) -> f32 {
    match rounding.scales {
        ActivationScales::Fixed => rounding.fixed,
        ActivationScales::Row | ActivationScales::Group(_) => 0.0,
    }
}

/// Mirrors `Fp8ProductArgs` in fp8_product.cu.
#[repr(C)]
struct Fp8ProductArgs {
    x: Address,
    x_scales: *mut f32,
    weight: Address,
    scales: *mut f32,
    bias: Address,
    out: Address,
    rows: i32,
    n: i32,
    k: i32,
    stride: i32,
    dtype: i32,
    padding: i32,
}
const _: () = assert!(size_of::<Fp8ProductArgs>() == 72);

unsafe extern "C" {
    fn candlepower_round_fp8(args: *const RoundArgs, stream: CUstream) -> i32;
    fn candlepower_fp8_product(args: *const Fp8ProductArgs, stream: CUstream) -> i32;
}
