//! Element-wise operations: sums, gates, scaling of logits, and token ids that only the device knows.

use candle_core::Tensor;

use super::launch::{Address, CUstream, Launch};
use crate::operands::{GATE_AXES, SIGMOID_GATE, gate_dims};
use candlepower_kernels::Result;

/// See [`crate::add`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn add(residual: &Tensor, x: &Tensor, scale: f32) -> Result<()> {
    let launch = Launch::new("add", "x", x)?;
    let args = AddArgs {
        residual: launch.elements(("residual", residual), "x's shape", x.dims())?,
        x: launch.elements(("x", x), "any shape", x.dims())?,
        count: x.elem_count() as i64,
        dtype: launch.dtype_code(),
        scale,
    };
    if args.count == 0 {
        return Ok(());
    }
    // SAFETY: both addresses were checked above to hold `count` elements.
    unsafe { launch.run(candlepower_add, &args) }
}

/// See [`crate::scale_and_cap`].
///
/// # Errors
/// `x` has another dtype or layout, or CUDA refused the launch.
pub fn scale_and_cap(x: &Tensor, scale: f32, cap: Option<f32>) -> Result<()> {
    let launch = Launch::new("scale_and_cap", "x", x)?;
    let args = ScaleArgs {
        x: launch.elements(("x", x), "any shape", x.dims())?,
        count: x.elem_count() as i64,
        scale,
        cap: cap.unwrap_or(0.0),
        dtype: launch.dtype_code(),
    };
    if args.count == 0 {
        return Ok(());
    }
    // SAFETY: the address was checked above to hold `count` elements.
    unsafe { launch.run(candlepower_scale_and_cap, &args) }
}

/// See [`crate::sigmoid_gate`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn sigmoid_gate(x: &Tensor, gate: &Tensor) -> Result<()> {
    let launch = Launch::new(SIGMOID_GATE, "x", x)?;
    let [rows, width, gates] = gate_dims(x, gate)?;
    let args = SigmoidGateArgs {
        x: launch.elements(("x", x), "[rows, width]", &[rows, width])?,
        gate: launch.elements(("gate", gate), GATE_AXES, &[rows, gates])?,
        rows: rows as i64,
        width: width as i32,
        gates: gates as i32,
        dtype: launch.dtype_code(),
        padding: 0,
    };
    if rows * width == 0 {
        return Ok(());
    }
    // SAFETY: the addresses were checked above to hold `rows` rows of `width` and of `gates` elements.
    unsafe { launch.run(candlepower_sigmoid_gate, &args) }
}

/// See [`crate::resolve_tokens`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn resolve_tokens(tokens: &Tensor, sampled: &Tensor) -> Result<()> {
    let launch = Launch::of_any("resolve_tokens", "tokens", tokens)?;
    let (count, known) = (tokens.elem_count(), sampled.elem_count());
    let args = ResolveArgs {
        tokens: launch.u32s(("tokens", tokens), "[count]", &[count])?,
        sampled: launch.u32s(("sampled", sampled), "[samples]", &[known])?,
        count: count as i32,
        num_sampled: known as i32,
    };
    if count == 0 {
        return Ok(());
    }
    // SAFETY: the addresses were checked above to hold `count` and `num_sampled` elements; the kernel compares each index
    // with `num_sampled` before it reads.
    unsafe { launch.run(candlepower_resolve_tokens, &args) }
}

/// Mirrors `AddArgs` in elements.cu.
#[repr(C)]
struct AddArgs {
    residual: Address,
    x: Address,
    count: i64,
    dtype: i32,
    scale: f32,
}
const _: () = assert!(size_of::<AddArgs>() == 32);

/// Mirrors `ScaleArgs` in elements.cu.
#[repr(C)]
struct ScaleArgs {
    x: Address,
    count: i64,
    scale: f32,
    /// 0: no cap.
    cap: f32,
    dtype: i32,
}
const _: () = assert!(size_of::<ScaleArgs>() == 32);

/// Mirrors `SigmoidGateArgs` in elements.cu.
#[repr(C)]
struct SigmoidGateArgs {
    x: Address,
    gate: Address,
    rows: i64,
    width: i32,
    gates: i32,
    dtype: i32,
    padding: i32,
}
const _: () = assert!(size_of::<SigmoidGateArgs>() == 40);

/// Mirrors `ResolveArgs` in elements.cu.
#[repr(C)]
struct ResolveArgs {
    tokens: *mut u32,
    sampled: *mut u32,
    count: i32,
    num_sampled: i32,
}
const _: () = assert!(size_of::<ResolveArgs>() == 24);

unsafe extern "C" {
    fn candlepower_add(args: *const AddArgs, stream: CUstream) -> i32;
    fn candlepower_scale_and_cap(args: *const ScaleArgs, stream: CUstream) -> i32;
    fn candlepower_sigmoid_gate(args: *const SigmoidGateArgs, stream: CUstream) -> i32;
    fn candlepower_resolve_tokens(args: *const ResolveArgs, stream: CUstream) -> i32;
}
