//! Activations of the feed-forward layers, alone and gated.

use candle_core::Tensor;

use super::launch::{Address, CUstream, Launch};
use crate::tensor::Operand;
use crate::{Activation, Result};

/// `out = act(gate) * up` for `gate_up` `[tokens, 2 * inner]`, the gate in the first half of each row.
///
/// `out` is `[tokens, inner]`; both are bf16 or f16, computed in f32. The CPU's definition is
/// [`crate::gated_activation_reference`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn gated_activation(gate_up: &Tensor, act: Activation, out: &Tensor) -> Result<()> {
    const KERNEL: &str = "gated_activation";
    let launch = Launch::new(KERNEL, "gate_up", gate_up)?;
    let operand = Operand::new(KERNEL, "gate_up", gate_up);
    let (tokens, width) = operand.dims2("[tokens, 2 * inner]")?;
    if !width.is_multiple_of(2) {
        return Err(operand.shape_error("[tokens, 2 * inner]"));
    }
    let inner = width / 2;
    let args = GatedActivationArgs {
        gate_up: launch.elements(("gate_up", gate_up), "[tokens, 2 * inner]", &[tokens, width])?,
        out: launch.elements(("out", out), "[tokens, inner]", &[tokens, inner])?,
        tokens: tokens as i64,
        inner: inner as i32,
        dtype: launch.dtype_code(),
        activation: code(act),
        padding: 0,
    };
    if tokens * inner == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say.
    unsafe { launch.run(candlepower_gated_activation, &args) }
}

/// `out = act(x)`, in f32 and rounded once; both are bf16 or f16 of one shape. The CPU's definition is
/// [`crate::activation_reference`].
///
/// # Errors
/// As [`gated_activation`].
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

/// As `Activation` in rows.cu.
fn code(act: Activation) -> i32 {
    match act {
        Activation::Silu => 0,
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
        Activation::SwigluOai => 3,
    }
}

/// As `GatedActivationArgs` in rows.cu.
#[repr(C)]
struct GatedActivationArgs {
    gate_up: Address,
    out: Address,
    tokens: i64,
    inner: i32,
    dtype: i32,
    activation: i32,
    padding: i32,
}
const _: () = assert!(size_of::<GatedActivationArgs>() == 40);

/// As `ActivationArgs` in rows.cu.
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
