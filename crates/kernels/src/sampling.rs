//! Draws one token per row of logits, each row by its own parameters, and reports log-probabilities.
//!
//! The order of operations is the field's: penalties, bias, grammar mask, temperature, then `min_p`,
//! `top_k`, `top_p`, then the draw. Log-probabilities are those of the model's own distribution,
//! before any of it. A row's token depends on its own logits and parameters only.

use std::{borrow::Cow, cmp::Ordering, collections::HashMap};

use candle_core::Tensor;

use crate::tensor::Operand;
use crate::{Error, Result, parallel};

/// How one row's token is drawn.
#[derive(Clone, Debug)]
pub struct SamplingRow<'a> {
    /// 0 is greedy: the most likely token, the lowest id among equals.
    pub temperature: f32,
    /// Keep the k most likely tokens.
    pub top_k: Option<usize>,
    /// Keep the most likely tokens whose probabilities sum to at least this.
    pub top_p: f32,
    /// Keep tokens at least this times as likely as the most likely one.
    pub min_p: f32,
    /// Decides the draw; uniform in [0, 1).
    pub uniform: f64,
    /// Penalties on tokens already seen.
    pub penalties: Option<Penalties<'a>>,
    /// Added to these tokens' logits.
    pub logit_bias: &'a [(u32, f32)],
    /// Tokens that must not be drawn.
    pub banned: Vec<u32>,
    /// Grammar mask: bit `id % 32` of word `id / 32` allows the token; shorter masks allow nothing beyond.
    pub mask: Option<&'a [u32]>,
    /// Report the drawn token's log-probability, and so many most likely tokens.
    pub logprobs: Option<usize>,
}

impl SamplingRow<'_> {
    /// The most likely token, with nothing else asked for.
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

/// Penalties and the tokens that they fall on.
#[derive(Clone, Copy, Debug)]
pub struct Penalties<'a> {
    /// Divides positive and multiplies negative logits of every token in `seen`. Source: CTRL, arXiv 1909.05858.
    pub repetition: f32,
    /// Subtracted once from tokens that were generated.
    pub presence: f32,
    /// Subtracted per time that the token was generated.
    pub frequency: f32,
    /// Tokens of prompt and output with how often each was generated (prompt tokens: 0).
    pub seen: &'a HashMap<u32, u32>,
}

/// What one row drew.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledRow {
    /// The token, or `None` if no token is allowed and finite.
    pub token_id: Option<u32>,
    /// Present if asked for and a token was drawn.
    pub logprobs: Option<RowLogprobs>,
}

/// Log-probabilities of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct RowLogprobs {
    /// Of the token in question.
    pub logprob: f32,
    /// The most likely tokens, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// Draws a token for each pair of a row index of `logits` (`[rows, vocab]` f32) and its parameters.
/// Several draws may share a row.
///
/// # Errors
/// If `logits` is not a contiguous f32 matrix on the CPU, or a row index is out of range.
pub fn sample(logits: &Tensor, draws: &[(usize, SamplingRow<'_>)]) -> Result<Vec<SampledRow>> {
    let operand = Operand::new("sample", "logits", logits);
    let (rows, vocab) = operand.dims2("[rows, vocab]")?;
    let values = operand.f32s()?;
    let values: &[f32] = &values;
    if let Some(&(row, _)) = draws.iter().find(|(row, _)| *row >= rows) {
        return Err(Error::OutOfRange { kernel: "sample", index: "row", value: row, bound: rows });
    }
    Ok(parallel::map(draws.len(), |draw| {
        let (row, params) = &draws[draw];
        sample_row(&values[row * vocab..][..vocab], params)
    }))
}

/// Log-probabilities of given tokens, one per row of `logits` (`[rows, vocab]` f32), with the `top` most
/// likely ones.
///
/// # Errors
/// If `logits` is not a contiguous f32 matrix on the CPU with a row per token, or a token is outside it.
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

/// The number in [0, 1) by which a token is drawn. It depends on the seed and the token's place in the output alone,
/// so that neither the rest of the batch nor a recomputation changes it.
///
/// Source: SplitMix64, Steele et al., "Fast Splittable Pseudorandom Number Generators", 2014.
#[must_use]
pub fn uniform(seed: u64, place: u64) -> f64 {
    let mix = |z: u64| {
        let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    (mix(mix(seed) ^ place) >> 11) as f64 / (1u64 << 53) as f64
}

/// The definition of [`sample`] for one row, by full sort and in f64: slow, written to be read.
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
    let drawn = order.iter().find(|&&id| {
        left -= weight(id);
        left < 0.0
    });
    drawn.or(order.last()).map(|&id| id as u32)
}

fn sample_row(logits: &[f32], params: &SamplingRow<'_>) -> SampledRow {
    let adjusted = adjust(logits, params);
    let token_id = draw(&adjusted, params);
    let logprobs = match (token_id, params.logprobs) {
        (Some(id), Some(top)) => Some(row_logprobs(logits, id, top)),
        _ => None,
    };
    SampledRow { token_id, logprobs }
}

/// Logits after mask, penalties and bias; the row itself where there are none.
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
            for (bit, logit) in logits.iter_mut().enumerate() {
                if allowed >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
    adjusted
}

fn draw(logits: &[f32], params: &SamplingRow<'_>) -> Option<u32> {
    let max = maximum(logits);
    if !max.is_finite() {
        return None;
    }
    if params.temperature == 0.0 {
        return logits.iter().position(|&logit| logit == max).map(|id| id as u32);
    }
    let scale = params.temperature.recip();
    if !scale.is_finite() {
        return logits.iter().position(|&logit| logit == max).map(|id| id as u32);
    }
    let least = least_kept(logits, max, scale, params);
    let keeps = |id: usize, logit: f32| match least {
        None => true,
        Some(least) => descending(&(logit, id as u32), &least) != Ordering::Greater,
    };
    let weight = |id: usize, logit: f32| {
        if keeps(id, logit) { exp_nonpositive((logit - max) * scale) } else { 0.0 }
    };
    let sums: Vec<f64> = logits
        .chunks(BLOCK)
        .enumerate()
        .map(|(block, logits)| match least {
            None => sum_exp(logits, max, scale),
            Some(_) => {
                (block * BLOCK..).zip(logits).map(|(id, &logit)| f64::from(weight(id, logit))).sum()
            }
        })
        .collect();
    let mut left = params.uniform * sums.iter().sum::<f64>();
    let mut last = None;
    for (block, logits) in logits.chunks(BLOCK).enumerate() {
        if left >= sums[block] && block + 1 < sums.len() {
            left -= sums[block];
            continue;
        }
        for (id, &logit) in (block * BLOCK..).zip(logits) {
            let weight = weight(id, logit);
            if weight > 0.0 {
                last = Some(id as u32);
                left -= f64::from(weight);
                if left < 0.0 {
                    return last;
                }
            }
        }
    }
    // Rounding left a trifle beyond the last token.
    last.or_else(|| logits.iter().position(|&logit| logit == max).map(|id| id as u32))
}

/// The last token, by descending logit and then ascending id, that min_p, top_k and top_p keep;
/// `None` if they keep all.
fn least_kept(
    logits: &[f32],
    max: f32,
    scale: f32,
    params: &SamplingRow<'_>,
) -> Option<(f32, u32)> {
    let top_k = params.top_k.filter(|&k| k < logits.len());
    if top_k.is_none() && params.top_p >= 1.0 && params.min_p <= 0.0 {
        return None;
    }
    let threshold = if params.min_p > 0.0 {
        max + params.min_p.min(1.0).ln() / scale
    } else {
        f32::NEG_INFINITY
    };
    let finite = |logit: f32| logit > f32::NEG_INFINITY && logit >= threshold;
    let tokens = (0..).zip(logits).filter(|&(_, &logit)| finite(logit));
    let tokens = tokens.map(|(id, &logit)| (logit, id));
    let weight = |logit: f32| f64::from(exp_nonpositive((logit - max) * scale));
    // What is left to sort, and the weight of it that is kept.
    let (mut kept, mut wanted): (Vec<(f32, u32)>, f64) = match top_k {
        None if params.top_p < 1.0 => {
            let step = |logit: f32| ((max - logit) * scale * STEPS_PER_NAT) as usize;
            last_step(tokens, step, weight, params.top_p)
        }
        _ => {
            let mut kept: Vec<(f32, u32)> = tokens.collect();
            if let Some(k) = top_k.filter(|&k| k < kept.len()) {
                kept.select_nth_unstable_by(k - 1, descending);
                kept.truncate(k);
            }
            if params.top_p >= 1.0 {
                return kept.into_iter().max_by(descending);
            }
            let total: f64 = kept.iter().map(|&(logit, _)| weight(logit)).sum();
            (kept, f64::from(params.top_p) * total)
        }
    };
    let mut sorted = 0;
    // The tokens that make up top_p are usually few: sort a short prefix, and a longer one if need be.
    for prefix in (0..).map(|i| 64usize << (3 * i)) {
        let end = prefix.min(kept.len());
        if end < kept.len() {
            kept[sorted..].select_nth_unstable_by(end - sorted, descending);
        }
        kept[sorted..end].sort_unstable_by(descending);
        for &(logit, id) in &kept[sorted..end] {
            wanted -= weight(logit);
            if wanted <= 0.0 {
                return Some((logit, id));
            }
        }
        if end == kept.len() {
            break;
        }
        sorted = end;
    }
    kept.last().copied()
}

/// Those of some tokens among which is the last one that top_p keeps, and how much of their weight it keeps: of tokens whose
/// log-probabilities lie close together, in one step, the sums are enough to find out.
fn last_step(
    tokens: impl Iterator<Item = (f32, u32)> + Clone,
    step: impl Fn(f32) -> usize,
    weight: impl Fn(f32) -> f64,
    top_p: f32,
) -> (Vec<(f32, u32)>, f64) {
    let step = |logit: f32| step(logit).min(STEPS - 1);
    let mut sums = vec![0.0; STEPS];
    for (logit, _) in tokens.clone() {
        sums[step(logit)] += weight(logit);
    }
    let mut wanted = f64::from(top_p) * sums.iter().sum::<f64>();
    // Rounding must not lead beyond the tokens that there are.
    let end = sums.iter().rposition(|sum| *sum > 0.0).unwrap_or(0);
    let mut last = 0;
    while wanted > sums[last] && last < end {
        wanted -= sums[last];
        last += 1;
    }
    (tokens.filter(|&(logit, _)| step(logit) == last).collect(), wanted)
}

fn descending(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

pub(crate) fn row_logprobs(logits: &[f32], token_id: u32, top: usize) -> RowLogprobs {
    let max = maximum(logits);
    let sum: f64 = logits.chunks(BLOCK).map(|block| sum_exp(block, max, 1.0)).sum();
    let normalizer = max + sum.ln() as f32;
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(top + 1);
    for (id, &logit) in (0..).zip(logits) {
        if top > 0 && (best.len() < top || logit > best[best.len() - 1].0) {
            let place =
                best.partition_point(|entry| descending(entry, &(logit, id)) == Ordering::Less);
            best.insert(place, (logit, id));
            best.truncate(top);
        }
    }
    RowLogprobs {
        logprob: logits[token_id as usize] - normalizer,
        top: best.into_iter().map(|(logit, id)| (id, logit - normalizer)).collect(),
    }
}

/// Steps of a nat, counted from the most likely token's log-probability down.
const STEPS_PER_NAT: f32 = 64.0;
/// Steps that are told apart: 32 nats, below which all tokens together weigh less than rounding.
const STEPS: usize = 2048;
/// Logits per partial sum: a draw skips whole blocks.
const BLOCK: usize = 1024;
/// Independent accumulators, so that the compiler can use vector registers.
const LANES: usize = 16;

fn maximum(logits: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = logits.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    rest.iter()
        .chain(&lanes)
        .fold(f32::NEG_INFINITY, |max, &logit| if logit > max { logit } else { max })
}

fn sum_exp(logits: &[f32], max: f32, scale: f32) -> f64 {
    let mut lanes = [0.0f32; LANES];
    let chunks = logits.chunks_exact(LANES);
    let rest: f32 =
        chunks.remainder().iter().map(|&logit| exp_nonpositive((logit - max) * scale)).sum();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane += exp_nonpositive((logit - max) * scale);
        }
    }
    lanes.iter().map(|&lane| f64::from(lane)).sum::<f64>() + f64::from(rest)
}

/// e^x for x <= 0 within 2e-7, relative; 0 below -87. Written without branches, so that it vectorises.
/// Source: 2^n * e^r with n = round(x / ln 2), e^r by a polynomial as in Cephes' expf.
fn exp_nonpositive(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    let clamped = if x > -87.0 { x } else { -87.0 };
    let n = (clamped * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = (clamped - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let p = 1.987_569_1e-4f32;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let e = p * r * r + r + 1.0;
    let power = f32::from_bits(((n as i32 + 127) << 23) as u32);
    if x > -87.0 { e * power } else { 0.0 }
}

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
    fn draws_are_uniform_and_differ_by_seed_and_place() {
        let draws: Vec<f64> = (0..10_000).map(|i| uniform(i % 100, i / 100)).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        assert!(draws.iter().all(|draw| (0.0..1.0).contains(draw)));
        assert_ne!(uniform(1, 2), uniform(2, 1));
        assert_eq!(uniform(5, 6), uniform(5, 6));
    }

    #[test]
    fn exponential_is_close() {
        for i in 0..87_000 {
            let x = -(i as f32) / 1000.0;
            let (got, want) = (f64::from(exp_nonpositive(x)), f64::from(x).exp());
            assert!((got / want - 1.0).abs() < 3e-7, "{x}: {got} {want}");
        }
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
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
        // f32 and f64 sums may part where `uniform` falls on a border.
        assert!(differing <= 2, "{differing} of 4000 differ");
    }

    #[test]
    fn draws_follow_the_distribution() {
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
    fn a_row_without_an_allowed_token_draws_none() {
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
}
