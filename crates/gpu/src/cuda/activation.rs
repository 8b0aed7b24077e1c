//! Activations of the feed-forward layers, alone and gated.

use candle_core::Tensor;

use super::fp8::Fp8RowsArgs;
use super::launch::{Address, CUstream, Launch};
use super::prefetch::Prefetch;
use crate::operands::RowsOut;
use candlepower_kernels::operands::Operand;
use candlepower_kernels::operands::{ACTIVATION_TIMES, times_width};
use candlepower_kernels::{Activation, Result};

/// Computes `out = act(gate) * up` for `gate_up` `[tokens, 2 * inner]`, where the gate is the first half of each row.
///
/// `out` is `[tokens, inner]`; both are bf16 or f16, and the computation is in f32. Rows in FP8 have groups of all of a row or
/// of 128. The CPU's reference implementation is [`candlepower_kernels::gated_activation_reference`]. The first bytes of
/// `next`, the matrix of a later product, are requested for the L2 cache meanwhile.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn gated_activation(
    gate_up: &Tensor,
    act: Activation,
    next: Option<&Tensor>,
    out: impl Into<RowsOut>,
) -> Result<()> {
    const KERNEL: &str = "gated_activation";
    let launch = Launch::new(KERNEL, "gate_up", gate_up)?;
    let operand = Operand::new(KERNEL, "gate_up", gate_up);
    let (tokens, width) = operand.dims2("[tokens, 2 * inner]")?;
    if !width.is_multiple_of(2) {
        return Err(operand.shape_error("[tokens, 2 * inner]"));
    }
    let inner = width / 2;
    let gate = launch.elements(("gate_up", gate_up), "[tokens, 2 * inner]", &[tokens, width])?;
    let (out, fp8) = Fp8RowsArgs::of(&launch, &out.into(), "[tokens, inner]", &[tokens, inner])?;
    let args = GatedActivationArgs {
        gate,
        up: columns_from(gate, inner),
        out,
        tokens: tokens as i64,
        inner: inner as i32,
        gate_width: width as i32,
        up_width: width as i32,
        dtype: launch.dtype_code(),
        activation: code(act),
        blocks: 0,
        fp8,
        next: Prefetch::of(&launch, next)?,
    };
    // CUDA refuses a launch without blocks.
    if tokens * inner == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say.
    unsafe { launch.run(candlepower_gated_activation, &args) }
}

/// See [`crate::activation_times`].
///
/// # Errors
/// Same as [`crate::activation_times`].
pub fn activation_times(
    x: &Tensor,
    act: Activation,
    by: &Tensor,
    first: usize,
    out: &Tensor,
) -> Result<()> {
    let launch = Launch::new(ACTIVATION_TIMES, "x", x)?;
    let (tokens, inner) = Operand::new(ACTIVATION_TIMES, "x", x).dims2("[tokens, inner]")?;
    let width = times_width(&Operand::new(ACTIVATION_TIMES, "by", by), [tokens, inner], first)?;
    let factors = launch.elements(("by", by), "[tokens, width]", &[tokens, width])?;
    let args = GatedActivationArgs {
        gate: launch.elements(("x", x), "[tokens, inner]", &[tokens, inner])?,
        up: columns_from(factors, first),
        out: launch.elements(("out", out), "[tokens, inner]", &[tokens, inner])?,
        tokens: tokens as i64,
        inner: inner as i32,
        gate_width: inner as i32,
        up_width: width as i32,
        dtype: launch.dtype_code(),
        activation: code(act),
        blocks: 0,
        fp8: Fp8RowsArgs::NONE,
        next: Prefetch::NONE,
    };
    if tokens * inner == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say, and `by` to have `inner`
    // columns from `first` on.
    unsafe { launch.run(candlepower_gated_activation, &args) }
}

/// The same rows from column `first` on. Elements have 16 bits.
fn columns_from(rows: Address, first: usize) -> Address {
    rows.wrapping_byte_add(first * size_of::<u16>())
}

/// Computes `out = act(x)`, in f32 and rounded once; both are bf16 or f16 of one shape. The CPU's reference
/// implementation is [`candlepower_kernels::activation_reference`].
///
/// # Errors
/// Same as [`gated_activation`].
pub fn activation(x: &Tensor, act: Activation, out: &Tensor) -> Result<()> {
    let launch = Launch::new("activation", "x", x)?;
    let args = ActivationArgs {
        x: launch.elements(("x", x), "any shape", x.dims())?,
        out: launch.elements(("out", out), "x's shape", x.dims())?,
        count: x.elem_count() as i64,
        dtype: launch.dtype_code(),
        activation: code(act),
    };
    if args.count == 0 {
        return Ok(());
    }
    // SAFETY: both addresses were checked above to hold `count` elements.
    unsafe { launch.run(candlepower_activation, &args) }
}

/// The values are those of `Activation` in activation.cu.
pub(super) fn code(act: Activation) -> i32 {
    match act {
        Activation::Silu => 0,
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
        Activation::SwigluOai => 3,
        Activation::Relu => 4,
        Activation::ReluSquared => 5,
    }
}

/// Mirrors `GatedActivationArgs` in activation.cu.
#[repr(C)]
struct GatedActivationArgs {
    gate: Address,
    up: Address,
    out: Address,
    tokens: i64,
    inner: i32,
    gate_width: i32,
    up_width: i32,
    dtype: i32,
    activation: i32,
    blocks: u32,
    fp8: Fp8RowsArgs,
    next: Prefetch,
}
// activation.cu asserts the same size, but neither side would see two fields of one type swapped.
const _: () = assert!(size_of::<GatedActivationArgs>() == 96);

/// Mirrors `ActivationArgs` in activation.cu.
#[repr(C)]
struct ActivationArgs {
    x: Address,
    out: Address,
    count: i64,
    dtype: i32,
    activation: i32,
}
const _: () = assert!(size_of::<ActivationArgs>() == 32);

unsafe extern "C" {
    fn candlepower_activation(args: *const ActivationArgs, stream: CUstream) -> i32;
    fn candlepower_gated_activation(args: *const GatedActivationArgs, stream: CUstream) -> i32;
}
