//! Activation functions of the feed-forward layers, alone and gated.

use candle_core::Tensor;
pub use candlepower_layout::Activation;

use crate::simd::{Isa, LANES, Simd, WithSimd, math};
use crate::tensor::{Operand, from_vec};
use crate::{Result, parallel};

/// Bound of both halves of [`Activation::SwigluOai`].
const SWIGLU_LIMIT: f32 = 7.0;
/// Factor in its sigmoid.
const SWIGLU_ALPHA: f32 = 1.702;

/// `act(gate) * up`, or the formula of [`Activation::SwigluOai`], for `gate_up` `[tokens, 2 * inner]` f32. The gate
/// is the first half of each row. Returns `[tokens, inner]`.
///
/// # Errors
/// `gate_up` is not a contiguous f32 CPU matrix, or its rows are of odd length.
pub fn gated_activation(gate_up: &Tensor, act: Activation) -> Result<Tensor> {
    let gate_up = Operand::new("gated_activation", "gate_up", gate_up);
    let (tokens, width) = gate_up.dims2("[tokens, 2 * inner]")?;
    if !width.is_multiple_of(2) {
        return Err(gate_up.shape_error("[tokens, 2 * inner]"));
    }
    let inner = width / 2;
    let data = gate_up.f32s()?;
    let data: &[f32] = &data;
    let isa = Isa::detect();
    let out = parallel::build_rows(tokens, inner, |token, out| {
        let (gate, up) = data[token * width..(token + 1) * width].split_at(inner);
        isa.run(Activate { x: gate, up: Some(up), act, out });
    });
    from_vec(out, &[tokens, inner])
}

/// `act(x) * by`, column by column: `out[t, j] = act(x[t, j]) * by[t, first + j]`. `x` is f32 `[tokens, inner]`, and
/// `by` is f32 `[tokens, width]`, whose other columns may belong to other layers. Returns `[tokens, inner]`. For
/// [`Activation::SwigluOai`] `by` is `up`.
///
/// # Errors
/// An operand is not a contiguous f32 CPU matrix, or `by` has other rows, or fewer than `first + inner` columns.
pub fn activation_times(x: &Tensor, act: Activation, by: &Tensor, first: usize) -> Result<Tensor> {
    let x = Operand::new(TIMES, "x", x);
    let by = Operand::new(TIMES, "by", by);
    let (tokens, inner) = x.dims2("[tokens, inner]")?;
    let width = times_width(&by, [tokens, inner], first)?;
    let (data, factors) = (x.f32s()?, by.f32s()?);
    let (data, factors): (&[f32], &[f32]) = (&data, &factors);
    let isa = Isa::detect();
    let out = parallel::build_rows(tokens, inner, |token, out| {
        let x = &data[token * inner..(token + 1) * inner];
        let up = Some(&factors[token * width + first..][..inner]);
        isa.run(Activate { x, up, act, out });
    });
    from_vec(out, &[tokens, inner])
}

/// Name of [`activation_times`] in errors, on every device.
pub const TIMES: &str = "activation_times";

/// Number of columns of `by`, if it has as many rows as `x` and enough columns.
///
/// # Errors
/// `by` has other rows or too few columns.
pub fn times_width(by: &Operand<'_>, [tokens, inner]: [usize; 2], first: usize) -> Result<usize> {
    let columns = first + inner;
    match by.dims2("[tokens, width]")? {
        (rows, width) if rows == tokens && width >= columns => Ok(width),
        _ => Err(by.shape_error(format!("[{tokens}, at least {columns}]"))),
    }
}

/// `act(x)` element by element, for a feed-forward layer without a gate. `x` is f32 `[tokens, inner]`.
///
/// # Errors
/// `x` is not a contiguous f32 CPU matrix.
pub fn activation(x: &Tensor, act: Activation) -> Result<Tensor> {
    let x = Operand::new("activation", "x", x);
    let (tokens, inner) = x.dims2("[tokens, inner]")?;
    let data = x.f32s()?;
    let data: &[f32] = &data;
    let isa = Isa::detect();
    let out = parallel::build_rows(tokens, inner, |token, out| {
        let x = &data[token * inner..(token + 1) * inner];
        isa.run(Activate { x, up: None, act, out });
    });
    from_vec(out, &[tokens, inner])
}

/// One row: `out = act(x) * up`, all of the same length.
pub(crate) struct Activate<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) up: Option<&'a [f32]>,
    pub(crate) act: Activation,
    pub(crate) out: &'a mut [f32],
}

impl WithSimd for Activate<'_> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        // Without `up` the factor is 1, so that both forms are the same loop.
        let ones = [1.0; LANES];
        let mut x = self.x.chunks(LANES);
        let gates = self.up.is_some();
        let mut up = self.up.map(|up| up.chunks(LANES));
        for out in self.out.chunks_mut(LANES) {
            let x = x.next().expect("x is as long as out");
            let up = up.as_mut().map_or(&ones[..], |up| up.next().expect("up is as long as out"));
            // A short end goes through whole vectors on the stack, so that every element is computed alike.
            let (mut x_end, mut up_end, mut out_end) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
            let (x, up, target) = if out.len() == LANES {
                (x.as_ptr(), up.as_ptr(), out.as_mut_ptr())
            } else {
                x_end[..x.len()].copy_from_slice(x);
                up_end[..out.len()].copy_from_slice(&up[..out.len()]);
                (x_end.as_ptr(), up_end.as_ptr(), out_end.as_mut_ptr())
            };
            // SAFETY: all three point to sixteen elements.
            unsafe {
                let x = s.load(x);
                // The match stands here, since a function that is passed as an argument may be compiled without the
                // instruction set.
                let y = match self.act {
                    Activation::Silu => math::silu(s, x),
                    Activation::Gelu => math::gelu(s, x),
                    Activation::GeluTanh => math::gelu_tanh(s, x),
                    Activation::Relu => s.max(x, s.splat(0.0)),
                    Activation::ReluSquared => {
                        let x = s.max(x, s.splat(0.0));
                        s.mul(x, x)
                    }
                    Activation::SwigluOai => {
                        // The gate has no lower bound. `up` has both.
                        let x = s.min(x, s.splat(SWIGLU_LIMIT));
                        let exp = math::exp(s, s.mul(x, s.splat(-SWIGLU_ALPHA)));
                        s.div(x, s.add(exp, s.splat(1.0)))
                    }
                };
                let mut up = s.load(up);
                // A factor of 1 must not be clamped and shifted.
                if gates && self.act == Activation::SwigluOai {
                    let limit = s.splat(SWIGLU_LIMIT);
                    up = s.max(s.min(up, limit), s.splat(-SWIGLU_LIMIT));
                    up = s.add(up, s.splat(1.0));
                }
                s.store(target, s.mul(y, up));
            }
            if out.len() < LANES {
                out.copy_from_slice(&out_end[..out.len()]);
            }
        }
    }
}

/// The reference for [`activation`] for one element, computed in f64.
///
/// Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016 (both forms of gelu, and silu).
#[must_use]
pub fn activation_reference(x: f32, act: Activation) -> f32 {
    let x = f64::from(x);
    let y = match act {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => {
            0.5 * x * (1.0 + candle_core::cpu::erf::erf_f64(x / std::f64::consts::SQRT_2))
        }
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::SwigluOai => {
            let x = x.min(f64::from(SWIGLU_LIMIT));
            x / (1.0 + (-f64::from(SWIGLU_ALPHA) * x).exp())
        }
    };
    y as f32
}

/// The reference for [`gated_activation`] for one row `[gate.., up..]`.
#[must_use]
pub fn gated_activation_reference(gate_up: &[f32], act: Activation) -> Vec<f32> {
    let (gate, up) = gate_up.split_at(gate_up.len() / 2);
    activation_times_reference(gate, up, act)
}

/// The reference for [`activation_times`] for one row of `x` and the columns of `by` that multiply it.
#[must_use]
pub fn activation_times_reference(x: &[f32], by: &[f32], act: Activation) -> Vec<f32> {
    let gated = |(x, by): (&f32, &f32)| {
        let by = match act {
            Activation::SwigluOai => by.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT) + 1.0,
            _ => *by,
        };
        activation_reference(*x, act) * by
    };
    x.iter().zip(by).map(gated).collect()
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::Error;

    fn flat(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn gated_and_plain_match_the_definition_for_any_width() {
        for (tokens, inner) in [(1, 1), (3, 15), (2, 16), (4, 50), (300, 130)] {
            let count = tokens * 2 * inner;
            let values: Vec<f32> =
                (0..count).map(|i| ((i * 7919 + 13) % 10_007) as f32 / 600.0 - 8.0).collect();
            let x = Tensor::from_slice(&values, (tokens, 2 * inner), &Device::Cpu).unwrap();
            for act in Activation::ALL {
                let gated = gated_activation(&x, act).unwrap();
                assert_eq!(gated.dims(), [tokens, inner]);
                let want = values
                    .chunks_exact(2 * inner)
                    .flat_map(|row| gated_activation_reference(row, act));
                for (got, want) in flat(&gated).into_iter().zip(want) {
                    assert!(
                        (got - want).abs() <= 2e-6 * want.abs().max(1.0),
                        "{act:?}: {got} is not {want}"
                    );
                }
                let plain = flat(&activation(&x, act).unwrap());
                for (got, x) in plain.into_iter().zip(&values) {
                    let want = activation_reference(*x, act);
                    assert!(
                        (got - want).abs() <= 1e-6 * want.abs().max(1.0),
                        "{act:?}({x}) = {got}"
                    );
                }
                let row = x.narrow(0, tokens - 1, 1).unwrap();
                let alone = flat(&gated_activation(&row, act).unwrap());
                assert_eq!(alone, flat(&gated)[(tokens - 1) * inner..], "a row alone");
            }
        }
    }

    /// The factors are columns of wider rows, whose other columns belong to another layer.
    #[test]
    fn columns_of_wider_rows_are_factors() {
        for (tokens, inner, width, first) in
            [(1, 1, 1, 0), (3, 15, 40, 25), (2, 16, 48, 16), (300, 130, 300, 7)]
        {
            let numbers = |count: usize, seed: usize| -> Vec<f32> {
                (0..count).map(|i| ((i * 7919 + seed) % 10_007) as f32 / 600.0 - 8.0).collect()
            };
            let (x, by) = (numbers(tokens * inner, 13), numbers(tokens * width, 77));
            let on = |values: &[f32], width| {
                Tensor::from_slice(values, (tokens, width), &Device::Cpu).unwrap()
            };
            for act in Activation::ALL {
                let out = activation_times(&on(&x, inner), act, &on(&by, width), first).unwrap();
                assert_eq!(out.dims(), [tokens, inner]);
                let rows = x.chunks(inner).zip(by.chunks(width));
                let want = rows
                    .flat_map(|(x, by)| activation_times_reference(x, &by[first..][..inner], act));
                for (got, want) in flat(&out).into_iter().zip(want) {
                    assert!(
                        (got - want).abs() <= 2e-6 * want.abs().max(1.0),
                        "{act:?}: {got} is not {want}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_reference_knows_published_values() {
        // Values of torch.nn.functional.silu, gelu and gelu(approximate="tanh") at 1, and of sigmoid at 1.702.
        let values = Activation::ALL.map(|act| activation_reference(1.0, act));
        let expected = [0.731_058_6, 0.841_344_7, 0.841_192, 1.0, 1.0, 0.845_795_8];
        for (got, want) in values.into_iter().zip(expected) {
            assert!((got - want).abs() < 1e-6, "{got} is not {want}");
        }
        let squared = [-2.0, 3.0].map(|x| activation_reference(x, Activation::ReluSquared));
        assert_eq!(squared, [0.0, 9.0]);
        // Source: transformers' GptOssExperts._apply_gate, which clamps both halves.
        let gated = gated_activation_reference(&[9.0, 1.0, -9.0, 2.0], Activation::SwigluOai);
        for (got, want) in gated.into_iter().zip([-41.999_72, 2.537_387_3]) {
            assert!((got - want).abs() < 1e-5, "{got} is not {want}");
        }
    }

    #[test]
    fn refuses_bad_operands() {
        let odd = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
        assert!(matches!(gated_activation(&odd, Activation::Silu), Err(Error::Shape { .. })));
        let halves = Tensor::zeros((2, 4), DType::F16, &Device::Cpu).unwrap();
        assert!(matches!(gated_activation(&halves, Activation::Silu), Err(Error::DType { .. })));
        assert!(matches!(
            activation(&odd.t().unwrap(), Activation::Gelu),
            Err(Error::NotContiguous { .. })
        ));
        for (rows, width, first) in [(3, 8, 0), (2, 2, 0), (2, 8, 6)] {
            let by = Tensor::zeros((rows, width), DType::F32, &Device::Cpu).unwrap();
            let refused = activation_times(&odd, Activation::GeluTanh, &by, first);
            assert!(matches!(refused, Err(Error::Shape { operand: "by", .. })));
        }
    }
}
