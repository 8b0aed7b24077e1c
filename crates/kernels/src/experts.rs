//! MoE layers: the router's choice of experts for each token, and the experts' products for their tokens.

use candle_core::Tensor;
use candlepower_layout::MAX_EXPERT_GROUPS;
pub use candlepower_layout::{ExpertGroups, GatingFunction, GroupScore};

use crate::tensor::{Operand, from_vec};
use crate::{
    Activation, Error, Result, Weight, activation, activation_reference,
    gated_activation_reference, gated_linear, linear, linear_reference,
};

/// An MoE layer, in which each expert computes `down(act(gate(x)) * up(x))`, or `down(act(up(x)))` without a gate.
/// Its matrices have the type `M`, and `All` holds one of them for each expert.
#[derive(Clone, Debug)]
pub struct Experts<M, All = Vec<M>> {
    /// Weights of the router, which scores the experts: `[experts, hidden]`.
    pub router: M,
    /// Bias of the router's scores, `[experts]`. Like the other biases it has the dtype of activations.
    pub router_bias: Option<Tensor>,
    /// Gate and up of each expert as one matrix, `[2 * inner, hidden]`, or up alone, `[inner, hidden]`.
    pub gate_up: All,
    /// Bias of `gate_up`, `[experts, 2 * inner]` or `[experts, inner]`.
    pub gate_up_bias: Option<Tensor>,
    /// Down projection of each expert, `[hidden, inner]`.
    pub down: All,
    /// Bias of `down`, `[experts, hidden]`.
    pub down_bias: Option<Tensor>,
    /// Number of experts for each token, at least one.
    pub top_k: usize,
    /// Choice of the experts and of their shares.
    pub gating: Gating,
    /// Whether the experts have gates.
    pub gated: bool,
    /// Activation of every expert's gate, or of `up` without a gate.
    pub activation: Activation,
}

/// Computation of the experts' shares from the router's scores.
#[derive(Clone, Debug)]
pub struct Gating {
    /// Function from scores to shares.
    pub function: GatingFunction,
    /// Bias that is added to the shares for the choice of experts, and only for it: f32 `[experts]`.
    pub bias: Option<Tensor>,
    /// Whether the shares of the chosen experts are divided by their sum.
    pub renormalize: bool,
    /// Factor on the shares after that.
    pub scale: f32,
    /// Factors on the share of each expert after all of that: f32 `[experts]`.
    pub scales: Option<Tensor>,
    /// Groups of experts, if a token's experts are chosen within some groups only.
    pub groups: Option<ExpertGroups>,
}

/// Fails unless `top_k` of `experts` experts can be chosen from some of these groups.
///
/// # Errors
/// They cannot.
pub fn check_groups(groups: &ExpertGroups, experts: usize, top_k: usize) -> Result<()> {
    let ExpertGroups { count, chosen, .. } = *groups;
    let error = |parameter, value, expected| Err(Error::Parameter { parameter, value, expected });
    if count == 0 || count > MAX_EXPERT_GROUPS || !experts.is_multiple_of(count) {
        return error("groups", count, "at most 32, and a divisor of the number of experts");
    }
    if chosen == 0 || chosen > count || chosen * (experts / count) < top_k {
        return error("chosen groups", chosen, "enough for top_k, and at most all of them");
    }
    Ok(())
}

/// Whether each group is chosen, by the scores `ranks` of its experts. The first of equal groups wins.
fn chosen_groups(groups: &ExpertGroups, ranks: &[f32]) -> Vec<bool> {
    let scores: Vec<f32> = ranks
        .chunks_exact(ranks.len() / groups.count)
        .map(|ranks| {
            let mut ranks = ranks.to_vec();
            ranks.sort_by(|a, b| b.total_cmp(a));
            match groups.score {
                GroupScore::Best => ranks[0],
                GroupScore::BestTwo => ranks.iter().take(2).sum(),
            }
        })
        .collect();
    // The sort is stable, so the first of equal groups comes first.
    let mut order: Vec<usize> = (0..groups.count).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    (0..groups.count).map(|group| order[..groups.chosen].contains(&group)).collect()
}

/// Bias and scale of each expert, read to CPU memory.
#[derive(Debug, Default)]
pub struct OfExperts {
    /// Bias that is added to the shares for the choice of experts.
    pub bias: Option<Vec<f32>>,
    /// Factors on the shares of the chosen experts.
    pub scales: Option<Vec<f32>>,
}

impl Gating {
    /// The softmax of the scores, unchanged.
    pub const SOFTMAX: Self = Self {
        function: GatingFunction::Softmax,
        bias: None,
        renormalize: false,
        scale: 1.0,
        scales: None,
        groups: None,
    };

    /// The bias and the scale of each of `experts` experts.
    fn of_experts(&self, experts: usize) -> Result<OfExperts> {
        let read = |name, tensor: &Option<Tensor>| -> Result<Option<Vec<f32>>> {
            let Some(tensor) = tensor else { return Ok(None) };
            let operand = Operand::new("experts", name, tensor);
            operand.expect_dims("[experts]", &[experts])?;
            Ok(Some(operand.f32s()?.to_vec()))
        };
        Ok(OfExperts { bias: read("bias", &self.bias)?, scales: read("scales", &self.scales)? })
    }

    /// The experts of a token with these scores, sorted by index, each with its share. The first of equal experts
    /// ranks higher.
    #[must_use]
    pub fn route(&self, scores: &[f32], of_experts: &OfExperts, top_k: usize) -> Vec<(usize, f32)> {
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let share = |score: &f32| match self.function {
            // The highest score becomes 1, so no exponential overflows.
            GatingFunction::Softmax => (score - max).exp(),
            GatingFunction::Sigmoid => 1.0 / (1.0 + (-score).exp()),
        };
        let shares: Vec<f32> = scores.iter().map(share).collect();
        let all = match self.function {
            GatingFunction::Softmax => shares.iter().sum(),
            GatingFunction::Sigmoid => 1.0,
        };
        // A bias is added to whole shares. Without one, the divisor that all experts share changes no order.
        let rank = |expert: usize| match &of_experts.bias {
            Some(bias) => shares[expert] / all + bias[expert],
            None => shares[expert],
        };
        let ranks: Vec<f32> = (0..shares.len()).map(rank).collect();
        let mut chosen: Vec<usize> = (0..shares.len()).collect();
        if let Some(groups) = &self.groups {
            let are_chosen = chosen_groups(groups, &ranks);
            chosen.retain(|expert| are_chosen[expert / (ranks.len() / groups.count)]);
        }
        // The sort is stable, too.
        chosen.sort_by(|&a, &b| ranks[b].total_cmp(&ranks[a]));
        chosen.truncate(top_k);
        let total = match self.renormalize {
            true => chosen.iter().map(|&expert| shares[expert]).sum(),
            false => all,
        };
        chosen.sort_unstable();
        let counts_for = |expert: usize| {
            let share = self.scale * shares[expert] / total;
            of_experts.scales.as_ref().map_or(share, |scales| share * scales[expert])
        };
        chosen.into_iter().map(|expert| (expert, counts_for(expert))).collect()
    }
}

/// `sum of p[e] * expert_e(x)` over the `top_k` experts with the highest `p = softmax(router(x))`, or what else
/// [`Gating`] says, for each row of `x` `[tokens, hidden]` f32; `[tokens, hidden]`. The router reads the rows of `scored`
/// `[tokens, hidden]` instead, which in most models are those of `x`.
///
/// Each expert computes the rows of all its tokens as one product, so that its weights are read once. A token's sum
/// is in the order of the experts, so that it does not depend on the other tokens.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or `top_k` is zero or above the number of experts.
///
/// Source: Jiang et al., "Mixtral of Experts", 2024; DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024 (sigmoid and bias).
pub fn experts(x: &Tensor, scored: &Tensor, layer: &Experts<Weight>) -> Result<Tensor> {
    let operand = Operand::new("experts", "x", x);
    let (tokens, hidden) = operand.dims2("[tokens, hidden]")?;
    Operand::new("experts", "scored", scored).expect_dims("x's shape", &[tokens, hidden])?;
    let count = layer.router.n();
    check(layer.top_k, count, [layer.gate_up.len(), layer.down.len()])?;
    layer.gating.groups.map_or(Ok(()), |groups| check_groups(&groups, count, layer.top_k))?;
    let scores = linear(scored, &layer.router, layer.router_bias.as_ref())?;
    let scores = Operand::new("experts", "scores", &scores).f32s()?;
    // The rows of each expert, with the expert's share in them.
    let mut rows: Vec<Vec<(usize, f32)>> = vec![Vec::new(); count];
    let of_experts = layer.gating.of_experts(count)?;
    for (token, scores) in scores.chunks_exact(count).enumerate() {
        for (expert, share) in layer.gating.route(scores, &of_experts, layer.top_k) {
            rows[expert].push((token, share));
        }
    }
    let data = operand.f32s()?;
    let mut out = vec![0f32; tokens * hidden];
    // Each expert's products are launched alone, on small matrices, which has a cost. Two of eight experts read as
    // much as a dense layer, but took 1.7 times as long for a token and 1.4 times for a prompt.
    for (expert, rows) in rows.iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
        let (gate_up, down) = (&layer.gate_up[expert], &layer.down[expert]);
        let mut gathered = Vec::with_capacity(rows.len() * hidden);
        rows.iter().for_each(|(token, _)| gathered.extend(&data[token * hidden..][..hidden]));
        let gathered = from_vec(gathered, &[rows.len(), hidden])?;
        let bias_of =
            |biases: &Option<Tensor>| biases.as_ref().map(|all| all.get(expert)).transpose();
        let (gate_up_bias, down_bias) = (bias_of(&layer.gate_up_bias)?, bias_of(&layer.down_bias)?);
        let bias = gate_up_bias.as_ref();
        let inner = match layer.gated {
            true => gated_linear(&gathered, gate_up, bias, layer.activation)?,
            false => activation(&linear(&gathered, gate_up, bias)?, layer.activation)?,
        };
        let results = linear(&inner, down, down_bias.as_ref())?;
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

/// Fails unless a token can go to `top_k` of the experts, and each kind of matrices has one for each expert.
fn check(top_k: usize, experts: usize, matrices: [usize; 2]) -> Result<()> {
    if let Some(&value) = matrices.iter().find(|matrices| **matrices != experts) {
        let expected = "the number of the router's outputs";
        return Err(Error::Parameter { parameter: "matrices of experts", value, expected });
    }
    check_top_k(top_k, experts)
}

/// Fails unless a token can go to `top_k` of the experts.
///
/// # Errors
/// `top_k` is zero, or above the number of experts.
pub fn check_top_k(top_k: usize, experts: usize) -> Result<()> {
    if top_k == 0 || top_k > experts {
        let expected = "at least 1 and at most the number of experts";
        return Err(Error::Parameter { parameter: "top_k", value: top_k, expected });
    }
    Ok(())
}

/// The reference for [`experts`] for one row of `x` and of `scored`, with row-major matrices. It computes expert by
/// expert and output by output.
#[must_use]
pub fn experts_reference(x: &[f32], scored: &[f32], layer: &Experts<Vec<f32>>) -> Vec<f32> {
    let product = |x: &[f32], matrix: &[f32], bias: &[f32]| -> Vec<f32> {
        let rows = matrix.chunks_exact(x.len()).enumerate();
        rows.map(|(i, row)| linear_reference(x, row, bias.get(i).copied())).collect()
    };
    let numbers = |tensor: Tensor| -> Vec<f32> {
        tensor.flatten_all().and_then(|numbers| numbers.to_vec1()).expect("biases are f32")
    };
    let of_expert = |biases: &Option<Tensor>, expert: usize| {
        biases.as_ref().map_or(Vec::new(), |all| numbers(all.get(expert).expect("a bias of each")))
    };
    let mut out = vec![0f32; x.len()];
    let scores =
        product(scored, &layer.router, &layer.router_bias.clone().map_or(Vec::new(), numbers));
    let of_experts = layer.gating.of_experts(scores.len()).expect("values for each expert");
    for (expert, share) in layer.gating.route(&scores, &of_experts, layer.top_k) {
        let (gate_up_bias, down_bias) =
            (of_expert(&layer.gate_up_bias, expert), of_expert(&layer.down_bias, expert));
        let gate_up = product(x, &layer.gate_up[expert], &gate_up_bias);
        let inner = match layer.gated {
            true => gated_activation_reference(&gate_up, layer.activation),
            false => gate_up.iter().map(|x| activation_reference(*x, layer.activation)).collect(),
        };
        let result = product(&inner, &layer.down[expert], &down_bias);
        out.iter_mut().zip(result).for_each(|(out, value)| *out += share * value);
    }
    out
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::WeightRows;

    fn test_values(count: usize, seed: usize) -> Vec<f32> {
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
            router: test_values(count * hidden, 3),
            router_bias: None,
            gate_up_bias: None,
            down_bias: None,
            gate_up: (0..count).map(|i| test_values(2 * inner * hidden, 31 * i)).collect(),
            down: (0..count).map(|i| test_values(hidden * inner, 17 * i + 5)).collect(),
            top_k: 2,
            gating: Gating { renormalize: true, ..Gating::SOFTMAX },
            gated: true,
            activation: Activation::Silu,
        }
    }

    fn packed(layer: &Experts<Vec<f32>>, hidden: usize, inner: usize) -> Experts<Weight> {
        let weights = |all: &[Vec<f32>], k| all.iter().map(|numbers| weight(numbers, k)).collect();
        Experts {
            router: weight(&layer.router, hidden),
            router_bias: layer.router_bias.clone(),
            gate_up_bias: layer.gate_up_bias.clone(),
            down_bias: layer.down_bias.clone(),
            gate_up: weights(&layer.gate_up, hidden),
            down: weights(&layer.down, inner),
            top_k: layer.top_k,
            gating: layer.gating.clone(),
            gated: layer.gated,
            activation: layer.activation,
        }
    }

    #[test]
    fn matches_the_definition_for_any_batch_and_a_row_alone_has_the_same_bits() {
        let (hidden, inner) = (40, 24);
        for (count, top_k, renormalize) in
            [(1, 1, true), (5, 2, true), (8, 8, false), (9, 3, false)]
        {
            let gating = Gating { renormalize, ..gating(count) };
            let mut reference = Experts { top_k, gating, ..layer(hidden, inner, count) };
            if count == 5 {
                // Without a gate, the same matrix is `up` with twice the width.
                reference.gated = false;
                reference.activation = Activation::ReluSquared;
                reference.down =
                    (0..count).map(|i| test_values(hidden * 2 * inner, 17 * i + 5)).collect();
            }
            if count == 8 {
                let bias = |dims: &[usize], seed| {
                    let numbers = test_values(dims.iter().product(), seed);
                    Some(Tensor::from_vec(numbers, dims, &Device::Cpu).unwrap())
                };
                reference.router_bias = bias(&[count], 11);
                reference.gate_up_bias = bias(&[count, 2 * inner], 12);
                reference.down_bias = bias(&[count, hidden], 13);
                reference.activation = Activation::SwigluOai;
            }
            let down = if reference.gated { inner } else { 2 * inner };
            let packed = packed(&reference, hidden, down);
            for tokens in [1, 2, 7, 40] {
                let x = test_values(tokens * hidden, 99);
                let tensor = Tensor::from_slice(&x, (tokens, hidden), &Device::Cpu).unwrap();
                // The router may read other rows.
                let scored = if count == 9 { test_values(tokens * hidden, 7) } else { x.clone() };
                let router_reads =
                    Tensor::from_slice(&scored, (tokens, hidden), &Device::Cpu).unwrap();
                let found = experts(&tensor, &router_reads, &packed).unwrap();
                let found: Vec<Vec<f32>> = found.to_vec2().unwrap();
                let rows = x.chunks(hidden).zip(scored.chunks(hidden));
                for ((row, scored), found) in rows.zip(&found) {
                    let expected = experts_reference(row, scored, &reference);
                    for (found, expected) in found.iter().zip(&expected) {
                        let error = (found - expected).abs();
                        assert!(error <= 2e-5 * expected.abs().max(1.0), "{found}, not {expected}");
                    }
                }
                let last = |rows: &Tensor| rows.narrow(0, tokens - 1, 1).unwrap();
                let alone = experts(&last(&tensor), &last(&router_reads), &packed).unwrap();
                assert_eq!(alone.to_vec2::<f32>().unwrap()[0], found[tokens - 1]);
            }
        }
    }

    /// The softmax of an even number of experts, and the sigmoid with a bias and scales of an odd number.
    fn gating(count: usize) -> Gating {
        if count.is_multiple_of(2) {
            return Gating::SOFTMAX;
        }
        let [bias, scales] = [7, 8].map(|seed| {
            Some(Tensor::from_vec(test_values(count, seed), count, &Device::Cpu).unwrap())
        });
        let function = GatingFunction::Sigmoid;
        let groups = match count {
            9 => Some(ExpertGroups { count: 3, chosen: 2, score: GroupScore::BestTwo }),
            5 => Some(ExpertGroups { count: 5, chosen: 3, score: GroupScore::Best }),
            _ => None,
        };
        Gating { function, bias, renormalize: false, scale: 2.5, scales, groups }
    }

    #[test]
    fn a_token_goes_to_experts_of_its_best_groups() {
        let scores = [0.9f32, 0.1, 0.6, 0.5, 0.7, 0.3].map(f32::ln);
        let of = |groups: ExpertGroups, top_k| -> Vec<usize> {
            let gating = Gating { groups: Some(groups), ..Gating::SOFTMAX };
            let chosen = gating.route(&scores, &OfExperts::default(), top_k);
            chosen.into_iter().map(|(expert, _)| expert).collect()
        };
        let groups = |chosen, score| ExpertGroups { count: 3, chosen, score };
        assert_eq!(of(groups(1, GroupScore::Best), 2), [0, 1]);
        assert_eq!(of(groups(2, GroupScore::Best), 2), [0, 4]);
        assert_eq!(of(groups(1, GroupScore::BestTwo), 2), [2, 3]);
        assert_eq!(of(groups(2, GroupScore::BestTwo), 2), [0, 2], "of equal groups the first");
        assert_eq!(of(groups(3, GroupScore::Best), 3), [0, 2, 4]);
        let refused = |groups: ExpertGroups| check_groups(&groups, 6, 3).is_err();
        assert!(refused(groups(1, GroupScore::Best)) && refused(groups(4, GroupScore::Best)));
        assert!(refused(ExpertGroups { count: 4, ..groups(2, GroupScore::Best) }));
        assert!(!refused(groups(2, GroupScore::Best)));
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
        let none = OfExperts::default();
        let renormalized = Gating { renormalize: true, ..Gating::SOFTMAX };
        close(Gating::SOFTMAX.route(&scores, &none, 2), &[(1, 0.4), (3, 0.3)]);
        close(renormalized.route(&scores, &none, 2), &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]);
        close(renormalized.route(&[0.5; 4], &none, 2), &[(0, 0.5), (1, 0.5)]);
        // A bias changes the choice, and not the shares. The sigmoids of the scores 1, 4, 2 and 3 are 1/2, 4/5, 2/3
        // and 3/4.
        let bias = OfExperts { bias: Some(vec![0.1, -0.9, 0.3, 0.0]), scales: None };
        close(Gating::SOFTMAX.route(&scores, &bias, 2), &[(2, 0.2), (3, 0.3)]);
        let sigmoid = Gating { function: GatingFunction::Sigmoid, scale: 2.0, ..renormalized };
        close(sigmoid.route(&scores, &bias, 2), &[(2, 16.0 / 17.0), (3, 18.0 / 17.0)]);
        let plain = Gating { renormalize: false, ..sigmoid };
        close(plain.route(&scores, &none, 1), &[(1, 1.6)]);
        // Scales change the shares after the choice and after the renormalization.
        let scales = OfExperts { bias: None, scales: Some(vec![9.0, 0.5, 100.0, -1.0]) };
        let found = Gating { renormalize: true, ..Gating::SOFTMAX }.route(&scores, &scales, 2);
        close(found, &[(1, 2.0 / 7.0), (3, -3.0 / 7.0)]);
    }

    #[test]
    fn refuses_bad_operands() {
        let layer = packed(&layer(8, 6, 3), 8, 6);
        let x = Tensor::zeros((2, 8), DType::F32, &Device::Cpu).unwrap();
        for top_k in [0, 4] {
            let wrong = Experts { top_k, ..layer.clone() };
            assert!(matches!(
                experts(&x, &x, &wrong),
                Err(Error::Parameter { parameter: "top_k", .. })
            ));
        }
        let bias = Some(Tensor::zeros(2, DType::F32, &Device::Cpu).unwrap());
        let wrong = Experts { gating: Gating { bias, ..Gating::SOFTMAX }, ..layer.clone() };
        assert!(matches!(experts(&x, &x, &wrong), Err(Error::Shape { operand: "bias", .. })));
        let wrong = Experts { down: layer.down[..2].to_vec(), ..layer.clone() };
        assert!(matches!(experts(&x, &x, &wrong), Err(Error::Parameter { .. })));
        let narrow = Tensor::zeros((2, 7), DType::F32, &Device::Cpu).unwrap();
        assert!(matches!(experts(&narrow, &narrow, &layer), Err(Error::Shape { .. })));
        let wrong = experts(&x, &narrow, &layer);
        assert!(matches!(wrong, Err(Error::Shape { operand: "scored", .. })));
        let scales = Some(Tensor::zeros(2, DType::F32, &Device::Cpu).unwrap());
        let wrong = Experts { gating: Gating { scales, ..Gating::SOFTMAX }, ..layer.clone() };
        assert!(matches!(experts(&x, &x, &wrong), Err(Error::Shape { operand: "scales", .. })));
    }
}
