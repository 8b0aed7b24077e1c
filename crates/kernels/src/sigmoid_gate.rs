//! The output gate of a layer, such as attention's gate in Qwen3-Next and the gate of its shared expert.

use candle_core::Tensor;

use crate::simd::{Isa, LANES, Simd, WithSimd, math};
use crate::tensor::{Operand, from_vec};
use crate::{Result, parallel};

/// `x * sigmoid(gate)`, where `x` is f32 `[rows, width]`. `gate` has the same shape, or one value for each row:
/// `[rows, 1]`.
///
/// # Errors
/// An operand is not a contiguous f32 CPU matrix, or `gate` has another shape.
pub fn sigmoid_gate(x: &Tensor, gate: &Tensor) -> Result<Tensor> {
    let x = Operand::new("sigmoid_gate", "x", x);
    let gate = Operand::new("sigmoid_gate", "gate", gate);
    let (rows, width) = x.dims2("[rows, width]")?;
    let (_, gates) = gate.dims2("[rows, width] or [rows, 1]")?;
    let axes = if gates == 1 { "[rows, 1]" } else { "[rows, width]" };
    gate.expect_dims(axes, &[rows, if gates == 1 { 1 } else { width }])?;
    let (data, gate) = (x.f32s()?, gate.f32s()?);
    let (data, gate): (&[f32], &[f32]) = (&data, &gate);
    let isa = Isa::detect();
    let out = parallel::build_rows(rows, width, |row, out| {
        let x = &data[row * width..(row + 1) * width];
        isa.run(Gate { x, gate: &gate[row * gates..(row + 1) * gates], out });
    });
    from_vec(out, &[rows, width])
}

/// The reference for [`sigmoid_gate`] for one row; `gate` has its length, or length 1.
#[must_use]
pub fn sigmoid_gate_reference(x: &[f32], gate: &[f32]) -> Vec<f32> {
    let sigmoid = |gate: f32| 1.0 / (1.0 + (-f64::from(gate)).exp());
    let gates = gate.iter().cycle();
    x.iter().zip(gates).map(|(x, gate)| (f64::from(*x) * sigmoid(*gate)) as f32).collect()
}

/// Operands of one row.
struct Gate<'a> {
    x: &'a [f32],
    gate: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        let Self { x, gate, out } = self;
        let of_row = [gate[0]; LANES];
        for start in (0..out.len()).step_by(LANES) {
            let len = LANES.min(out.len() - start);
            let gate = if gate.len() == 1 { &of_row[..len] } else { &gate[start..start + len] };
            // A short end goes through whole vectors on the stack, so that every element is computed alike.
            let (mut x_end, mut gate_end, mut out_end) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
            let (x, gate, target) = if len == LANES {
                (
                    x[start..start + len].as_ptr(),
                    gate.as_ptr(),
                    out[start..start + len].as_mut_ptr(),
                )
            } else {
                x_end[..len].copy_from_slice(&x[start..]);
                gate_end[..len].copy_from_slice(gate);
                (x_end.as_ptr(), gate_end.as_ptr(), out_end.as_mut_ptr())
            };
            // SAFETY: all three point to sixteen elements.
            unsafe {
                let gated = s.mul(s.load(x), math::sigmoid(s, s.load(gate)));
                s.store(target, gated);
            }
            if len < LANES {
                out[start..].copy_from_slice(&out_end[..len]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::Error;

    fn test_values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed) % 10_007) as f32 / 500.0 - 10.0).collect()
    }

    #[test]
    fn matches_the_definition_for_any_width() {
        for (rows, width) in [(1, 1), (3, 15), (2, 16), (4, 50), (300, 130)] {
            for gates in [width, 1] {
                let (x, gate) = (test_values(rows * width, 5), test_values(rows * gates, 77));
                let on = |values: &[f32], width| {
                    Tensor::from_slice(values, (rows, width), &Device::Cpu).unwrap()
                };
                let out = sigmoid_gate(&on(&x, width), &on(&gate, gates)).unwrap();
                assert_eq!(out.dims(), [rows, width]);
                let out: Vec<Vec<f32>> = out.to_vec2().unwrap();
                for ((x, gate), out) in x.chunks(width).zip(gate.chunks(gates)).zip(&out) {
                    for (got, want) in out.iter().zip(sigmoid_gate_reference(x, gate)) {
                        assert!((got - want).abs() <= 1e-6 * want.abs(), "{got} is not {want}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let (x, gate) = (test_values(37, 5), test_values(37, 77));
        let gated = |isa: Isa| {
            let mut out = vec![0.0; 37];
            isa.run(Gate { x: &x, gate: &gate, out: &mut out });
            out
        };
        let all: Vec<_> = Isa::all().into_iter().map(gated).collect();
        assert!(all.iter().all(|out| *out == all[0]));
    }

    #[test]
    fn refuses_bad_operands() {
        let zeros = |dims: (usize, usize)| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
        let wrong = sigmoid_gate(&zeros((2, 4)), &zeros((2, 3)));
        assert!(matches!(wrong, Err(Error::Shape { operand: "gate", .. })));
        let wrong = sigmoid_gate(&zeros((2, 4)), &zeros((1, 1)));
        assert!(matches!(wrong, Err(Error::Shape { operand: "gate", .. })));
        let halves = zeros((2, 4)).to_dtype(DType::F16).unwrap();
        assert!(matches!(sigmoid_gate(&halves, &halves), Err(Error::DType { .. })));
    }
}
