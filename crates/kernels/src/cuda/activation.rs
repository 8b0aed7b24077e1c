//! Gated activations of the feed-forward layers.

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
        activation: match act {
            Activation::Silu => 0,
            Activation::Gelu => 1,
            Activation::GeluTanh => 2,
        },
        padding: 0,
    };
    if tokens * inner == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say.
    unsafe { launch.run(candlepower_gated_activation, &args) }
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

unsafe extern "C" {
    fn candlepower_gated_activation(args: *const GatedActivationArgs, stream: CUstream) -> i32;
}
