//! Checks of sigmoid gates, which follow some linear attention layers.

use candle_core::Tensor;
use candlepower_kernels::Result;
use candlepower_kernels::operands::Operand;

pub(crate) const SIGMOID_GATE: &str = "sigmoid_gate";

pub(crate) const GATE_AXES: &str = "[rows, width] or [rows, 1]";

/// Rows and width of `x`, and the required width of `gate`, which is 1 or that of `x`.
pub(crate) fn gate_dims(x: &Tensor, gate: &Tensor) -> Result<[usize; 3]> {
    let (rows, width) = Operand::new(SIGMOID_GATE, "x", x).dims2("[rows, width]")?;
    let (_, gates) = Operand::new(SIGMOID_GATE, "gate", gate).dims2(GATE_AXES)?;
    Ok([rows, width, if gates == 1 { 1 } else { width }])
}
