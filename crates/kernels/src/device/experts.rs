//! Feed-forward layers of experts.

use candle_core::Tensor;

use super::reference::Reference;
use crate::tensor::Operand;
use crate::{Expert, Experts, Result, experts_reference};

/// `out = sum of p[e] * expert_e(x)` over the experts that each row of `x` goes to, summed in f32 and rounded once.
///
/// `x` and `out` are `[tokens, hidden]`, and they and the matrices are bf16 or f16. The definition is
/// [`crate::experts_reference`]. No GPU kernel has it yet.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or `top_k` is zero or above the number of experts.
pub fn experts(x: &Tensor, layer: &Experts<Tensor>, out: &Tensor) -> Result<()> {
    const KERNEL: &str = "experts";
    let reference = Reference::new(KERNEL, "x", x)?;
    let (tokens, hidden) = Operand::new(KERNEL, "x", x).dims2("[tokens, hidden]")?;
    let count = layer.experts.len();
    let router = &layer.router;
    crate::experts::check(layer.top_k, router.elem_count() / hidden.max(1), count)?;
    let rows = reference.elements(("x", x), "[tokens, hidden]", &[tokens, hidden])?;
    let expert = |expert: &Expert<Tensor>| -> Result<Expert<Vec<f32>>> {
        let (_, inner) = Operand::new(KERNEL, "down", &expert.down).dims2("[hidden, inner]")?;
        let gate_up = ("gate_up", &expert.gate_up);
        Ok(Expert {
            gate_up: reference.elements(gate_up, "[2 * inner, hidden]", &[2 * inner, hidden])?,
            down: reference.elements(
                ("down", &expert.down),
                "[hidden, inner]",
                &[hidden, inner],
            )?,
        })
    };
    let layer = Experts {
        router: reference.elements(("router", router), "[experts, hidden]", &[count, hidden])?,
        experts: layer.experts.iter().map(expert).collect::<Result<_>>()?,
        top_k: layer.top_k,
        renormalize: layer.renormalize,
        activation: layer.activation,
    };
    let results: Vec<f32> =
        rows.chunks(hidden.max(1)).flat_map(|row| experts_reference(row, &layer)).collect();
    reference.write(("out", out), "[tokens, hidden]", &[tokens, hidden], &results)
}
