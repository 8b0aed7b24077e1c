//! Feed-forward layers of experts.

use candle_core::Tensor;

use super::Matrix;
use super::reference::Reference;
use crate::tensor::Operand;
use crate::{Error, Expert, Experts, Result, experts_reference};

/// `out = sum of p[e] * expert_e(x)` over the experts that each row of `x` goes to, summed in f32 and rounded once.
///
/// `x` and `out` are `[tokens, hidden]`, and they and the matrices, but for codes, are bf16 or f16. The definition is
/// [`crate::experts_reference`]. No GPU kernel has it yet.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or `top_k` is zero or above the number of experts.
pub fn experts(x: &Tensor, layer: &Experts<Matrix>, out: &Tensor) -> Result<()> {
    const KERNEL: &str = "experts";
    let reference = Reference::new(KERNEL, "x", x)?;
    let (tokens, hidden) = Operand::new(KERNEL, "x", x).dims2("[tokens, hidden]")?;
    let count = layer.experts.len();
    let router = &layer.router;
    crate::experts::check(layer.top_k, router.n(), count)?;
    let rows = reference.elements(("x", x), "[tokens, hidden]", &[tokens, hidden])?;
    let matrix =
        |name, matrix: &Matrix, dims: [usize; 2]| match matrix.elements(&reference, name)? {
            (numbers, k) if [matrix.n(), k] == dims => Ok(numbers),
            (_, k) => Err(Error::Shape {
                kernel: KERNEL,
                operand: name,
                expected: format!("[outputs, inputs] = {dims:?}"),
                found: vec![matrix.n(), k],
            }),
        };
    let expert = |expert: &Expert<Matrix>| -> Result<Expert<Vec<f32>>> {
        let inner = expert.gate_up.n() / 2;
        Ok(Expert {
            gate_up: matrix("gate_up", &expert.gate_up, [2 * inner, hidden])?,
            down: matrix("down", &expert.down, [hidden, inner])?,
        })
    };
    let layer = Experts {
        router: matrix("router", router, [count, hidden])?,
        experts: layer.experts.iter().map(expert).collect::<Result<_>>()?,
        top_k: layer.top_k,
        renormalize: layer.renormalize,
        activation: layer.activation,
    };
    let results: Vec<f32> =
        rows.chunks(hidden.max(1)).flat_map(|row| experts_reference(row, &layer)).collect();
    reference.write(("out", out), "[tokens, hidden]", &[tokens, hidden], &results)
}
