//! Samples one token per row of logits by the row's own parameters, and reports log-probabilities.
//!
//! The order of operations is the usual one: penalties, bias, grammar mask, temperature, then `min_p`, `top_k`,
//! `top_p`, then the choice. Log-probabilities are those of the model's own distribution, before any of these. A
//! row's token depends on its own logits and parameters only.

use std::{borrow::Cow, collections::HashMap};

use candle_core::Tensor;

use self::rows::{BLOCK, Kept, STEPS, Steps, Token, Weigher, at_least, descending, maximum};
use crate::tensor::Operand;
use crate::{Error, Result, parallel};

mod rows;

/// Sampling parameters of one row.
#[derive(Clone, Debug)]
pub struct SamplingRow<'a> {
    /// Temperature. 0 is greedy: the most likely token, and the lowest id among equals.
    pub temperature: f32,
    /// Number of most likely tokens that are kept.
    pub top_k: Option<usize>,
    /// Probability that the kept tokens, the most likely ones, must reach together.
    pub top_p: f32,
    /// Smallest probability that is kept, as a factor of the most likely token's.
    pub min_p: f32,
    /// Random value, uniform in [0, 1), that determines the token.
    pub uniform: f64,
    /// Penalties on tokens that occurred.
    pub penalties: Option<Penalties<'a>>,
    /// Pairs of a token and the bias that is added to its logit.
    pub logit_bias: &'a [(u32, f32)],
    /// Tokens that must not be sampled.
    pub banned: Vec<u32>,
    /// Grammar mask: bit `id % 32` of word `id / 32` allows the token; shorter masks allow nothing beyond.
    pub mask: Option<&'a [u32]>,
    /// Number of most likely tokens to report with log-probabilities, besides the sampled token; `None` reports none.
    pub logprobs: Option<usize>,
}

impl SamplingRow<'_> {
    /// Parameters for the most likely token and nothing else.
    #[must_use]
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            uniform: 0.0,
            penalties: None,
            logit_bias: &[],
            banned: Vec::new(),
            mask: None,
            logprobs: None,
        }
    }
}

/// Penalties and the tokens to which they apply.
#[derive(Clone, Copy, Debug)]
pub struct Penalties<'a> {
    /// Divides positive and multiplies negative logits of every token in `seen`. Source: CTRL, arXiv 1909.05858.
    pub repetition: f32,
    /// Subtracted once from the logit of tokens that were generated.
    pub presence: f32,
    /// Subtracted from a token's logit for each time that it was generated.
    pub frequency: f32,
    /// Tokens of prompt and output, each with the number of times that it was generated (prompt tokens: 0).
    pub seen: &'a HashMap<u32, u32>,
}

/// Result of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledRow {
    /// The token, or `None` if no token is allowed and finite.
    pub token_id: Option<u32>,
    /// Present if requested and if a token was sampled.
    pub logprobs: Option<RowLogprobs>,
}

/// Log-probabilities of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct RowLogprobs {
    /// Log-probability of the token in question.
    pub logprob: f32,
    /// One more than the number of likelier tokens. A token that cannot be sampled has the vocabulary's size.
    pub rank: usize,
    /// The most likely tokens, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// Samples a token for each pair of a row index of `logits` (`[rows, vocab]` f32) and its parameters. Several pairs
/// may share a row.
///
/// # Errors
/// `logits` is not a contiguous f32 matrix on the CPU, or a row index is out of range.
pub fn sample(logits: &Tensor, samples: &[(usize, SamplingRow<'_>)]) -> Result<Vec<SampledRow>> {
    let operand = Operand::new("sample", "logits", logits);
    let (rows, vocab) = operand.dims2("[rows, vocab]")?;
    let values = operand.f32s()?;
    let values: &[f32] = &values;
    if let Some(&(row, _)) = samples.iter().find(|(row, _)| *row >= rows) {
        return Err(Error::OutOfRange { kernel: "sample", index: "row", value: row, bound: rows });
    }
    Ok(parallel::map(samples.len(), |i| {
        let (row, params) = &samples[i];
        sample_row(&values[row * vocab..][..vocab], params)
    }))
}

/// Log-probabilities of given tokens, one per row of `logits` (`[rows, vocab]` f32), with the `top` most
/// likely ones.
///
/// # Errors
/// `logits` is not a contiguous f32 matrix on the CPU with a row per token, or a token is outside it.
pub fn logprobs_of(logits: &Tensor, token_ids: &[u32], top: usize) -> Result<Vec<RowLogprobs>> {
    let operand = Operand::new("logprobs_of", "logits", logits);
    let (_, vocab) = operand.dims2("[tokens, vocab]")?;
    operand.expect_dims("[tokens, vocab]", &[token_ids.len(), vocab])?;
    let values = operand.f32s()?;
    if let Some(&id) = token_ids.iter().find(|&&id| id as usize >= vocab) {
        return Err(Error::OutOfRange {
            kernel: "logprobs_of",
            index: "token id",
            value: id as usize,
            bound: vocab,
        });
    }
    Ok(parallel::map(token_ids.len(), |row| {
        row_logprobs(&values[row * vocab..][..vocab], token_ids[row], top)
    }))
}

/// The random value in [0, 1) by which a token is sampled. It depends on the seed and on the token's position in the
/// output alone, so that neither the rest of the batch nor a recomputation changes it.
///
/// Source: SplitMix64, Steele et al., "Fast Splittable Pseudorandom Number Generators", 2014.
#[must_use]
pub fn uniform(seed: u64, output_index: u64) -> f64 {
    let mix = |z: u64| {
        let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    // The seed is mixed before the index is added, so that neighbouring seeds do not repeat each other's values.
    // An f64 has 53 bits, so that no value is rounded up to 1.
    (mix(mix(seed) ^ output_index) >> 11) as f64 / (1u64 << 53) as f64
}

/// The reference for [`sample`] for one row, by a full sort and in f64: slow, written to be read.
pub fn sample_row_reference(logits: &[f32], params: &SamplingRow<'_>) -> Option<u32> {
    let adjusted = adjust(logits, params);
    let mut order: Vec<usize> =
        (0..adjusted.len()).filter(|&id| adjusted[id] > f32::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| adjusted[b].total_cmp(&adjusted[a]).then(a.cmp(&b)));
    let most_likely = *order.first()?;
    if params.temperature == 0.0 {
        return Some(most_likely as u32);
    }
    let weight = |id: usize| {
        ((f64::from(adjusted[id]) - f64::from(adjusted[most_likely]))
            / f64::from(params.temperature))
        .exp()
    };
    // The most likely token remains even if `min_p` is above 1.
    order.retain(|&id| id == most_likely || weight(id) >= f64::from(params.min_p));
    order.truncate(params.top_k.unwrap_or(usize::MAX));
    let total: f64 = order.iter().map(|&id| weight(id)).sum();
    let mut cumulative = 0.0;
    let enough = order.iter().position(|&id| {
        cumulative += weight(id);
        cumulative >= f64::from(params.top_p) * total
    });
    order.truncate(enough.map_or(usize::MAX, |last| last + 1));
    order.sort_unstable();
    let total: f64 = order.iter().map(|&id| weight(id)).sum();
    let mut left = params.uniform * total;
    let sampled = order.iter().find(|&&id| {
        left -= weight(id);
        left < 0.0
    });
    // Rounding may leave a remainder.
    sampled.or(order.last()).map(|&id| id as u32)
}

fn sample_row(logits: &[f32], params: &SamplingRow<'_>) -> SampledRow {
    let adjusted = adjust(logits, params);
    let token_id = sample_token(&adjusted, params);
    let logprobs = match (token_id, params.logprobs) {
        (Some(id), Some(top)) => Some(row_logprobs(logits, id, top)),
        _ => None,
    };
    SampledRow { token_id, logprobs }
}

/// Logits after mask, penalties and bias; the row itself if there are none.
fn adjust<'a>(logits: &'a [f32], params: &SamplingRow<'_>) -> Cow<'a, [f32]> {
    let mut adjusted = Cow::Borrowed(logits);
    if let Some(penalties) = &params.penalties {
        let adjusted = adjusted.to_mut();
        for (&id, &times) in penalties.seen {
            if let Some(logit) = adjusted.get_mut(id as usize) {
                *logit = if *logit > 0.0 {
                    *logit / penalties.repetition
                } else {
                    *logit * penalties.repetition
                };
                // A token of the prompt alone has been seen, but not generated.
                if times > 0 {
                    *logit -= penalties.presence + penalties.frequency * times as f32;
                }
            }
        }
    }
    for &(id, bias) in params.logit_bias {
        if let Some(logit) = adjusted.to_mut().get_mut(id as usize) {
            *logit += bias;
        }
    }
    for &id in &params.banned {
        if let Some(logit) = adjusted.to_mut().get_mut(id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
    if let Some(mask) = params.mask {
        for (word, logits) in adjusted.to_mut().chunks_mut(32).enumerate() {
            let allowed = mask.get(word).copied().unwrap_or(0);
            match allowed {
                0 => logits.fill(f32::NEG_INFINITY),
                u32::MAX => {}
                _ => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        if allowed >> bit & 1 == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }
    adjusted
}

fn sample_token(logits: &[f32], params: &SamplingRow<'_>) -> Option<u32> {
    let max = maximum(logits);
    // It is minus infinity if no token may be sampled. With plus infinity all weights would be NaN or zero.
    if !max.is_finite() {
        return None;
    }
    let most_likely = || {
        let mut ids = Vec::new();
        at_least(logits, max, 0, &mut ids);
        ids.first().copied()
    };
    let by = Weigher { max, scale: params.temperature.recip() };
    // The temperature is 0, or so small that its reciprocal is infinite.
    if !by.scale.is_finite() {
        return most_likely();
    }
    let kept = kept(logits, by, params);
    let sums = kept.sums();
    let mut left = params.uniform * sums.iter().sum::<f64>();
    let blocks = kept.blocks().zip(&sums).filter(|(_, sum)| **sum > 0.0);
    let mut last = None;
    for (block, sum) in blocks {
        last = Some(block);
        if left < *sum {
            break;
        }
        left -= sum;
    }
    // The weights of one block are computed again, instead of storing those of the vocabulary.
    let sampled = last.and_then(|block| {
        let mut weights = [0.0; BLOCK];
        kept.weigh(block.clone(), &mut weights);
        Some((block.start + place_of(&weights, left)?) as u32)
    });
    sampled.or_else(most_likely)
}

/// Index of the weight at which `left` is used up, or of the last weight if rounding leaves a remainder.
fn place_of(weights: &[f32], mut left: f64) -> Option<usize> {
    let mut last = None;
    for (place, &weight) in weights.iter().enumerate() {
        if weight > 0.0 {
            last = Some(place);
            left -= f64::from(weight);
            if left < 0.0 {
                break;
            }
        }
    }
    last
}

/// The tokens that remain after min_p, top_k and top_p.
fn kept<'a>(logits: &'a [f32], by: Weigher, params: &SamplingRow<'_>) -> Kept<'a> {
    let mut kept = Kept { logits, least: Kept::ALL, by };
    if params.min_p > 0.0 {
        // With the largest id, all tokens of the same logit are kept.
        kept.least = (by.max + params.min_p.min(1.0).ln() / by.scale, u32::MAX);
    }
    if let Some(top_k) = params.top_k.filter(|&k| k < logits.len()) {
        let tokens = most_likely(logits, top_k, kept.least.0);
        // The last in the order of likelihood is the least likely.
        kept.least = tokens.into_iter().max_by(descending).unwrap_or(kept.least);
    }
    if params.top_p < 1.0 {
        kept.least = nucleus(kept, params.top_p).unwrap_or(kept.least);
    }
    kept
}

/// The last token of the nucleus: the kept tokens down to it, most likely first, have `top_p` of all kept weight.
/// Sums over steps of likelihood suffice to find its step. So only the tokens of one step are sorted, not the
/// vocabulary.
fn nucleus(kept: Kept<'_>, top_p: f32) -> Option<Token> {
    for count in [NUCLEUS_STEPS, STEPS] {
        let Steps { weights, rest } = kept.steps(count);
        let mut wanted = f64::from(top_p) * (weights.iter().sum::<f64>() + rest);
        let mut steps = weights.iter().take(count).enumerate().filter(|(_, sum)| **sum > 0.0);
        let step = steps.find(|(_, sum)| {
            wanted -= *sum;
            wanted <= 0.0
        });
        if let Some((step, sum)) = step {
            // This is the weight that tokens of this step must reach.
            wanted += sum;
            let tokens = kept.of_step(step);
            let enough = tokens.iter().find(|token| {
                wanted -= kept.by.weight(token.0);
                wanted <= 0.0
            });
            return enough.or(tokens.last()).copied();
        }
    }
    // Rounding left a remainder, so the nucleus is all kept tokens.
    None
}

/// The `count` most likely tokens with logits of at least `bound`, in no order, or all of them if there are fewer.
fn most_likely(logits: &[f32], count: usize, mut bound: f32) -> Vec<Token> {
    if count == 0 {
        return Vec::new();
    }
    let (mut best, mut ids): (Vec<Token>, _) = (Vec::new(), Vec::new());
    for (block, of_block) in logits.chunks(BLOCK).enumerate() {
        let first = block * BLOCK;
        ids.clear();
        at_least(of_block, bound, first, &mut ids);
        best.extend(ids.iter().map(|&id| (logits[id as usize], id)));
        // Half of the tokens are dropped each time, so that each token is looked at a few times at most.
        let is_last = first + of_block.len() == logits.len();
        let most = if is_last { count } else { 2 * count };
        if best.len() > most {
            best.select_nth_unstable_by(count - 1, descending);
            best.truncate(count);
            // Less likely tokens need not be collected any more.
            bound = best[count - 1].0;
        }
    }
    best
}

/// The log-probability of a token, and the `top` most likely ones, of one row of logits.
#[must_use]
pub fn row_logprobs(logits: &[f32], token_id: u32, top: usize) -> RowLogprobs {
    let by = Weigher { max: maximum(logits), scale: 1.0 };
    let all = Kept { logits, least: Kept::ALL, by };
    let sum: f64 = all.sums().iter().sum();
    let normalizer = by.max + sum.ln() as f32;
    let mut best = most_likely(logits, top, all.least.0);
    best.sort_unstable_by(descending);
    let own = logits[token_id as usize];
    // The comparison is false for NaN, too.
    let rank = match own > f32::NEG_INFINITY {
        true => 1 + logits.iter().filter(|logit| **logit > own).count(),
        false => logits.len(),
    };
    RowLogprobs {
        logprob: own - normalizer,
        rank,
        top: best.into_iter().map(|(logit, id)| (id, logit - normalizer)).collect(),
    }
}

/// Steps that nearly always contain the nucleus: 8 nats. All less likely tokens are added to one sum, which is
/// cheaper than finding the step of each.
const NUCLEUS_STEPS: usize = 512;

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn params() -> SamplingRow<'static> {
        SamplingRow { temperature: 1.0, uniform: 0.5, ..SamplingRow::greedy() }
    }

    /// A small deterministic generator (SplitMix64).
    struct Random(u64);
    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }
        fn uniform(&mut self) -> f64 {
            (self.next() >> 11) as f64 / (1u64 << 53) as f64
        }
        fn logits(&mut self, vocab: usize, spread: f64) -> Vec<f32> {
            (0..vocab)
                .map(|_| ((self.uniform() + self.uniform() + self.uniform() - 1.5) * spread) as f32)
                .collect()
        }
    }

    fn one(logits: &[f32], params: SamplingRow<'_>) -> SampledRow {
        let tensor = Tensor::from_slice(logits, (1, logits.len()), &Device::Cpu).unwrap();
        sample(&tensor, &[(0, params)]).unwrap().remove(0)
    }

    #[test]
    fn random_values_are_uniform_and_differ_by_seed_and_index() {
        let values: Vec<f64> = (0..10_000).map(|i| uniform(i % 100, i / 100)).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        assert!(values.iter().all(|value| (0.0..1.0).contains(value)));
        assert_ne!(uniform(1, 2), uniform(2, 1));
        assert_eq!(uniform(5, 6), uniform(5, 6));
    }

    #[test]
    fn agrees_with_the_reference() {
        let mut random = Random(7);
        let mut differing = 0;
        for round in 0..4000 {
            let vocab = [1, 2, 17, 300, 5000][round % 5];
            let spread = [0.5, 5.0, 40.0][round % 3];
            let logits = random.logits(vocab, spread);
            let row = SamplingRow {
                temperature: [0.0, 0.3, 1.0, 2.0][random.next() as usize % 4],
                top_k: [None, Some(1), Some(7), Some(600)][random.next() as usize % 4],
                top_p: [1.0, 0.999_999, 0.9, 0.1, 1e-6][random.next() as usize % 5],
                min_p: [0.0, 0.05, 1.0][random.next() as usize % 3],
                uniform: random.uniform(),
                ..params()
            };
            let want = sample_row_reference(&logits, &row);
            if one(&logits, row).token_id != want {
                differing += 1;
            }
        }
        // f32 and f64 sums may differ if `uniform` falls on the border of two tokens.
        assert!(differing <= 2, "{differing} of 4000 differ");
    }

    #[test]
    fn sampled_tokens_follow_the_distribution() {
        let logits = [0.0, 1.0, 2.0, f32::NEG_INFINITY];
        let mut random = Random(3);
        let mut counts = [0u32; 4];
        for _ in 0..100_000 {
            let row = SamplingRow { uniform: random.uniform(), ..params() };
            counts[one(&logits, row).token_id.unwrap() as usize] += 1;
        }
        let total = 1.0 + 1f64.exp() + 2f64.exp();
        for (id, want) in [1.0, 1f64.exp(), 2f64.exp(), 0.0].into_iter().enumerate() {
            assert!((f64::from(counts[id]) / 1e5 - want / total).abs() < 0.006, "{counts:?}");
        }
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_ignores_nan() {
        let logits = [1.0, f32::NAN, 3.0, 3.0, 0.0];
        let greedy = SamplingRow { temperature: 0.0, ..params() };
        assert_eq!(one(&logits, greedy).token_id, Some(2));
    }

    #[test]
    fn a_row_without_an_allowed_token_samples_none() {
        assert_eq!(one(&[f32::NAN, f32::NEG_INFINITY], params()).token_id, None);
        let masked = SamplingRow { mask: Some(&[0]), ..params() };
        assert_eq!(one(&[1.0, 2.0], masked).token_id, None);
    }

    #[test]
    fn mask_ban_and_bias_decide() {
        let logits: Vec<f32> = (0..40).map(|id| id as f32).collect();
        let greedy =
            |row: SamplingRow<'_>| one(&logits, SamplingRow { temperature: 0.0, ..row }).token_id;
        assert_eq!(greedy(SamplingRow { mask: Some(&[1 << 5, 1 << 2]), ..params() }), Some(34));
        assert_eq!(greedy(SamplingRow { mask: Some(&[1 << 5]), ..params() }), Some(5));
        assert_eq!(greedy(SamplingRow { banned: vec![39, 38], ..params() }), Some(37));
        assert_eq!(
            greedy(SamplingRow { logit_bias: &[(3, 100.0), (900, 1.0)], ..params() }),
            Some(3)
        );
    }

    #[test]
    fn penalties_are_as_defined() {
        let seen = HashMap::from([(0, 0), (1, 2), (2, 1)]);
        let penalties = Penalties { repetition: 2.0, presence: 0.25, frequency: 0.5, seen: &seen };
        let row = SamplingRow { penalties: Some(penalties), ..params() };
        assert_eq!(*adjust(&[4.0, 4.0, -1.0, 4.0], &row), [2.0, 2.0 - 1.25, -2.0 - 0.75, 4.0]);
    }

    #[test]
    fn logprobs_are_of_the_unchanged_distribution() {
        let logits = [0.0f32, 2.0, 1.0];
        let row = SamplingRow { temperature: 0.0, banned: vec![1], logprobs: Some(2), ..params() };
        let got = one(&logits, row);
        let normalizer = (1.0 + 2f32.exp() + 1f32.exp()).ln();
        let logprobs = got.logprobs.unwrap();
        assert_eq!(got.token_id, Some(2));
        assert!((logprobs.logprob - (1.0 - normalizer)).abs() < 1e-6);
        assert_eq!(logprobs.top.iter().map(|top| top.0).collect::<Vec<_>>(), [1, 2]);
        let tensor = Tensor::from_slice(&logits, (1, 3), &Device::Cpu).unwrap();
        assert_eq!(logprobs_of(&tensor, &[2], 2).unwrap()[0], logprobs);
        assert!(logprobs_of(&tensor, &[3], 2).is_err());
    }

    #[test]
    fn ranks_count_likelier_tokens() {
        let (least, none) = (f32::NEG_INFINITY, f32::NAN);
        let logits = [1.0, 3.0, 3.0, least, 0.5, none, 7.0];
        let tensor = Tensor::from_slice(&logits, (1, logits.len()), &Device::Cpu).unwrap();
        let rank = |id| logprobs_of(&tensor, &[id], 0).unwrap()[0].rank;
        assert_eq!([0, 1, 2, 4, 6].map(rank), [4, 2, 2, 5, 1], "equals share a rank");
        assert_eq!([3, 5].map(rank), [7, 7], "a token that cannot be sampled comes last");
    }
}
