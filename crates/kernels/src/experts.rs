//! Feed-forward layers of experts: which of them each token goes to, and their products for the tokens that they get.

use candle_core::Tensor;

use crate::tensor::{Operand, from_vec};
use crate::{
    Activation, Error, Result, Weight, gated_activation_reference, gated_linear, linear,
    linear_reference,
};

/// A feed-forward layer of experts, `down(act(gate(x)) * up(x))` each, over matrices of type `M`, and `All` for one of each
/// expert.
#[derive(Clone, Debug)]
pub struct Experts<M, All = Vec<M>> {
    /// The scores of the experts, `[experts, hidden]`.
    pub router: M,
    /// Gate and up of each expert as one matrix, `[2 * inner, hidden]`.
    pub gate_up: All,
    /// `[hidden, inner]` of each expert.
    pub down: All,
    /// How many of them each token goes to; at least one.
    pub top_k: usize,
    /// What the chosen experts count for sums to one.
    pub renormalize: bool,
    /// The activation of every expert's gate.
    pub activation: Activation,
}

/// `sum of p[e] * expert_e(x)` over the `top_k` experts with the highest `p = softmax(router(x))`, for each row of `x`
/// `[tokens, hidden]` f32; `[tokens, hidden]`.
///
/// Each expert computes the rows of all its tokens as one product. A token's sum is in the order of the experts, so it
/// does not depend on the other tokens.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or `top_k` is zero or above the number of experts.
///
/// Source: Jiang et al., "Mixtral of Experts", 2024.
pub fn experts(x: &Tensor, layer: &Experts<Weight>) -> Result<Tensor> {
    let operand = Operand::new("experts", "x", x);
    let (tokens, hidden) = operand.dims2("[tokens, hidden]")?;
    let count = layer.router.n();
    check(layer.top_k, count, [layer.gate_up.len(), layer.down.len()])?;
    let scores = linear(x, &layer.router, None)?;
    let scores = Operand::new("experts", "scores", &scores).f32s()?;
    // The rows of each expert, with what it counts for in them.
    let mut rows: Vec<Vec<(usize, f32)>> = vec![Vec::new(); count];
    for (token, scores) in scores.chunks_exact(count).enumerate() {
        for (expert, share) in route(scores, layer.top_k, layer.renormalize) {
            rows[expert].push((token, share));
        }
    }
    let data = operand.f32s()?;
    let mut out = vec![0f32; tokens * hidden];
    for (expert, rows) in rows.iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
        let (gate_up, down) = (&layer.gate_up[expert], &layer.down[expert]);
        let mut gathered = Vec::with_capacity(rows.len() * hidden);
        rows.iter().for_each(|(token, _)| gathered.extend(&data[token * hidden..][..hidden]));
        let gathered = from_vec(gathered, &[rows.len(), hidden])?;
        let inner = gated_linear(&gathered, gate_up, None, layer.activation)?;
        let results = linear(&inner, down, None)?;
        let results = Operand::new("experts", "down", &results);
        results.expect_dims("[rows, hidden]", &[rows.len(), hidden])?;
        for ((token, share), result) in rows.iter().zip(results.f32s()?.chunks_exact(hidden)) {
            for (out, value) in out[token * hidden..][..hidden].iter_mut().zip(result) {
                *out += share * value;
            }
        }
    }
    from_vec(out, &[tokens, hidden])
}

/// Fails unless a token can go to `top_k` of the experts, of which there are as many matrices of each kind as scores.
fn check(top_k: usize, experts: usize, matrices: [usize; 2]) -> Result<()> {
    if let Some(&value) = matrices.iter().find(|matrices| **matrices != experts) {
        let expected = "as many as the router has outputs";
        return Err(Error::Parameter { parameter: "matrices of experts", value, expected });
    }
    check_top_k(top_k, experts)
}

/// Fails unless a token can go to `top_k` of the experts.
pub(crate) fn check_top_k(top_k: usize, experts: usize) -> Result<()> {
    if top_k == 0 || top_k > experts {
        let expected = "at least 1 and at most the number of experts";
        return Err(Error::Parameter { parameter: "top_k", value: top_k, expected });
    }
    Ok(())
}

/// The experts that a token goes to, in their order, each with what it counts for: its part of the softmax over all
/// scores, or of those of the chosen ones. Of equal scores the first is higher.
pub(crate) fn route(scores: &[f32], top_k: usize, renormalize: bool) -> Vec<(usize, f32)> {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut shares: Vec<(usize, f32)> =
        scores.iter().map(|score| (score - max).exp()).enumerate().collect();
    let all: f32 = shares.iter().map(|(_, share)| share).sum();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    shares.truncate(top_k);
    let chosen: f32 = shares.iter().map(|(_, share)| share).sum();
    let total = if renormalize { chosen } else { all };
    shares.iter_mut().for_each(|(_, share)| *share /= total);
    shares.sort_by_key(|(expert, _)| *expert);
    shares
}

/// The definition of [`experts`] for one row, with each matrix row by row: expert by expert, output by output.
#[must_use]
pub fn experts_reference(x: &[f32], layer: &Experts<Vec<f32>>) -> Vec<f32> {
    let product = |x: &[f32], matrix: &[f32]| -> Vec<f32> {
        matrix.chunks_exact(x.len()).map(|row| linear_reference(x, row, None)).collect()
    };
    let mut out = vec![0f32; x.len()];
    for (expert, share) in route(&product(x, &layer.router), layer.top_k, layer.renormalize) {
        let inner =
            gated_activation_reference(&product(x, &layer.gate_up[expert]), layer.activation);
        let result = product(&inner, &layer.down[expert]);
        out.iter_mut().zip(result).for_each(|(out, value)| *out += share * value);
    }
    out
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::WeightRows;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| (((i + seed) * 7919 + 13) % 10_007) as f32 / 5003.0 - 1.0).collect()
    }

    fn weight(numbers: &[f32], k: usize) -> Weight {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let mut builder = Weight::builder(numbers.len() / k, k, DType::F32).unwrap();
        builder.write_rows(0, WeightRows { dtype: DType::F32, bytes: &bytes }).unwrap();
        builder.finish().unwrap()
    }

    fn layer(hidden: usize, inner: usize, count: usize) -> Experts<Vec<f32>> {
        Experts {
            router: numbers(count * hidden, 3),
            gate_up: (0..count).map(|i| numbers(2 * inner * hidden, 31 * i)).collect(),
            down: (0..count).map(|i| numbers(hidden * inner, 17 * i + 5)).collect(),
            top_k: 2,
            renormalize: true,
            activation: Activation::Silu,
        }
    }

    fn packed(layer: &Experts<Vec<f32>>, hidden: usize, inner: usize) -> Experts<Weight> {
        let weights = |all: &[Vec<f32>], k| all.iter().map(|numbers| weight(numbers, k)).collect();
        Experts {
            router: weight(&layer.router, hidden),
            gate_up: weights(&layer.gate_up, hidden),
            down: weights(&layer.down, inner),
            top_k: layer.top_k,
            renormalize: layer.renormalize,
            activation: layer.activation,
        }
    }

    #[test]
    fn matches_the_definition_for_any_batch_and_a_row_alone_has_the_same_bits() {
        let (hidden, inner) = (40, 24);
        for (count, top_k, renormalize) in
            [(1, 1, true), (5, 2, true), (8, 8, false), (9, 3, false)]
        {
            let reference = Experts { top_k, renormalize, ..layer(hidden, inner, count) };
            let packed = packed(&reference, hidden, inner);
            for tokens in [1, 2, 7, 40] {
                let x = numbers(tokens * hidden, 99);
                let tensor = Tensor::from_slice(&x, (tokens, hidden), &Device::Cpu).unwrap();
                let found: Vec<Vec<f32>> = experts(&tensor, &packed).unwrap().to_vec2().unwrap();
                for (row, found) in x.chunks(hidden).zip(&found) {
                    let expected = experts_reference(row, &reference);
                    for (found, expected) in found.iter().zip(&expected) {
                        let error = (found - expected).abs();
                        assert!(error <= 2e-5 * expected.abs().max(1.0), "{found}, not {expected}");
                    }
                }
                let last = tensor.narrow(0, tokens - 1, 1).unwrap();
                let alone: Vec<Vec<f32>> = experts(&last, &packed).unwrap().to_vec2().unwrap();
                assert_eq!(alone[0], found[tokens - 1]);
            }
        }
    }

    #[test]
    fn a_token_goes_to_the_highest_scores() {
        let scores = [1f32.ln(), 4f32.ln(), 2f32.ln(), 3f32.ln()];
        let close = |found: Vec<(usize, f32)>, expected: &[(usize, f32)]| {
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                assert!(found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-6, "{found:?}");
            }
        };
        close(route(&scores, 2, false), &[(1, 0.4), (3, 0.3)]);
        close(route(&scores, 2, true), &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]);
        close(route(&[0.5; 4], 2, true), &[(0, 0.5), (1, 0.5)]);
    }

    #[test]
    fn refuses_bad_operands() {
        let layer = packed(&layer(8, 6, 3), 8, 6);
        let x = Tensor::zeros((2, 8), DType::F32, &Device::Cpu).unwrap();
        for top_k in [0, 4] {
            let wrong = Experts { top_k, ..layer.clone() };
            assert!(matches!(
                experts(&x, &wrong),
                Err(Error::Parameter { parameter: "top_k", .. })
            ));
        }
        let wrong = Experts { down: layer.down[..2].to_vec(), ..layer.clone() };
        assert!(matches!(experts(&x, &wrong), Err(Error::Parameter { .. })));
        let narrow = Tensor::zeros((2, 7), DType::F32, &Device::Cpu).unwrap();
        assert!(matches!(experts(&narrow, &layer), Err(Error::Shape { .. })));
    }
}
