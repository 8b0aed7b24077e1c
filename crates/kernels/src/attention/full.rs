//! Attention of encoders: every token sees all tokens of its text, and no keys and values are kept.

use candle_core::Tensor;

use crate::parallel::{SharedMut, for_ranges};
use crate::simd::{Isa, LANES, Simd, WithSimd, math};
use crate::tensor::{Operand, from_vec};
use crate::{Error, Result};

/// Queries that are computed together, so that a key or value is loaded once for all of them.
const QUERIES: usize = 4;
/// Padding of the keys, and of the elements of a head: two vectors.
const STEP: usize = 2 * LANES;
/// Fewest heads of texts per thread, so that waking a thread is worth its time.
const LEAST_TASKS: usize = 4;

/// Parameters of the attention between the tokens of a text.
#[derive(Clone, Copy, Debug)]
pub struct FullAttention<'a> {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Size of the sliding window: a token sees itself and `window - 1` tokens on each side. `None` is the whole
    /// text.
    pub window: Option<usize>,
    /// Bias that is added to a score by the distance of the two tokens.
    pub bias: Option<&'a DistanceBias>,
}

/// A bias for each head and each distance from a query to a key.
#[derive(Clone, Debug)]
pub struct DistanceBias {
    /// `[heads, 2 * most + 1]`, for distances from `-most` (the key precedes the query) to `most`.
    values: Vec<f32>,
    /// Largest distance with a bias of its own. Larger ones have the same bias.
    most: usize,
}

impl DistanceBias {
    /// Collects the biases that `of` gives for each head and each distance up to `most`.
    #[must_use]
    pub fn new(heads: usize, most: usize, of: impl Fn(usize, isize) -> f32) -> Self {
        let most_signed = most as isize;
        let of = &of;
        let values = (0..heads)
            .flat_map(|head| (-most_signed..=most_signed).map(move |distance| of(head, distance)));
        Self { values: values.collect(), most }
    }

    /// The bias of a head and a distance.
    #[inline(always)]
    fn of(&self, head: usize, query: usize, key: usize) -> f32 {
        let shifted = (key + self.most).saturating_sub(query).min(2 * self.most);
        self.values[head * (2 * self.most + 1) + shifted]
    }
}

/// `softmax(scale * q k^T + bias) v` for each head of each text, over the tokens that a token sees.
///
/// `qkv` is f32 `[tokens, (heads + 2 * kv_heads) * head_dim]`: queries, keys and values of all heads. `starts` has
/// the first token of each text and, as its last entry, the number of tokens. The result is f32 `[tokens, heads *
/// head_dim]`. A text's result does not depend on the others.
///
/// # Errors
/// `qkv` is not a contiguous f32 CPU matrix of such a width, heads or biases do not fit, or `starts` does not
/// increase from 0 to the number of rows.
///
/// Source: Vaswani et al., "Attention Is All You Need", 2017.
pub fn full_attention(
    qkv: &Tensor,
    attention: &FullAttention<'_>,
    starts: &[u32],
) -> Result<Tensor> {
    let FullAttention { heads, kv_heads, .. } = *attention;
    let qkv = Operand::new("full_attention", "qkv", qkv);
    let (tokens, width) = qkv.dims2("[tokens, (heads + 2 * kv_heads) * head_dim]")?;
    let parts = heads + 2 * kv_heads;
    let is_grouped = kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads);
    let has_bias_of_all =
        attention.bias.is_none_or(|bias| bias.values.len() == heads * (2 * bias.most + 1));
    if !is_grouped || !has_bias_of_all || width == 0 || !width.is_multiple_of(parts) {
        return Err(qkv.shape_error(format!("[tokens, ({heads} + 2 * {kv_heads}) * head_dim]")));
    }
    if attention.window == Some(0) {
        return Err(Error::Metadata("a window has one token at least".to_owned()));
    }
    let goes_up = starts.windows(2).all(|pair| pair[0] <= pair[1]);
    if starts.first() != Some(&0)
        || starts.last().map(|end| *end as usize) != Some(tokens)
        || !goes_up
    {
        return Err(Error::Metadata(format!("starts must go up from 0 to {tokens}")));
    }
    let data = qkv.f32s()?;
    let data: &[f32] = &data;
    let head_dim = width / parts;
    let hidden = heads * head_dim;
    let mut out = Vec::with_capacity(tokens * hidden);
    let shared = SharedMut::new(&mut out.spare_capacity_mut()[..tokens * hidden]);
    let isa = Isa::detect();
    for_ranges((starts.len() - 1) * heads, LEAST_TASKS, |tasks| {
        for task in tasks {
            let (text, head) = (task / heads, task % heads);
            let (first, end) = (starts[text] as usize, starts[text + 1] as usize);
            let len = end - first;
            isa.run(Head { qkv: data, attention, first, len, head_dim, head, out: shared });
        }
    });
    // SAFETY: the tasks have written every head of every token.
    unsafe { out.set_len(tokens * hidden) };
    from_vec(out, &[tokens, hidden])
}

/// The reference for [`full_attention`] for the query head `head` of one text, computed in f64. `q`, `k` and `v` are
/// `[len, head_dim]`.
#[must_use]
pub fn full_attention_reference(
    [q, k, v]: [&[f32]; 3],
    head_dim: usize,
    attention: &FullAttention<'_>,
    head: usize,
) -> Vec<f32> {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let mut out = Vec::with_capacity(q.len());
    for (query, q) in q.chunks_exact(head_dim).enumerate() {
        let scores = k.chunks_exact(head_dim).enumerate().map(|(key, k)| {
            let is_seen = attention.window.is_none_or(|window| key.abs_diff(query) < window);
            let bias = attention.bias.map_or(0.0, |bias| {
                let most = bias.most as isize;
                let distance = (key as isize - query as isize).clamp(-most, most);
                bias.values[head * (2 * bias.most + 1) + (distance + most) as usize]
            });
            let score = dot(q, k) * f64::from(attention.scale) + f64::from(bias);
            if is_seen { score } else { f64::NEG_INFINITY }
        });
        let scores: Vec<f64> = scores.collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for element in 0..head_dim {
            let values = v.iter().skip(element).step_by(head_dim);
            let mixed: f64 = weights.iter().zip(values).map(|(w, v)| w * f64::from(*v)).sum();
            out.push((mixed / sum) as f32);
        }
    }
    out
}

/// One head of one text.
struct Head<'a> {
    qkv: &'a [f32],
    attention: &'a FullAttention<'a>,
    /// The text's first token.
    first: usize,
    /// Number of its tokens.
    len: usize,
    head_dim: usize,
    /// The query head.
    head: usize,
    out: SharedMut<'a>,
}

impl WithSimd for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        let (len, dim) = (self.len, self.head_dim);
        let (keys, elements) = (len.next_multiple_of(STEP), dim.next_multiple_of(STEP));
        // Keys transposed and values unchanged, both padded with zeros.
        let mut k = vec![0f32; dim * keys];
        let mut v = vec![0f32; len * elements];
        for token in 0..len {
            for (element, value) in self.part(1, token).iter().enumerate() {
                k[element * keys + token] = *value;
            }
            v[token * elements..][..dim].copy_from_slice(self.part(2, token));
        }
        let scale = self.attention.scale;
        let hidden = self.attention.heads * dim;
        let mut q = vec![0f32; QUERIES * dim];
        let mut weights = vec![0f32; QUERIES * keys];
        let mut mixed = vec![0f32; QUERIES * elements];
        for tile in (0..len).step_by(QUERIES) {
            let queries = QUERIES.min(len - tile);
            for (query, q) in q.chunks_exact_mut(dim).take(queries).enumerate() {
                for (q, value) in q.iter_mut().zip(self.part(0, tile + query)) {
                    *q = value * scale;
                }
            }
            dots(s, &q, &k, keys, &mut weights);
            self.place(&mut weights, keys, tile, queries);
            let mut factors = [0f32; QUERIES];
            for (factor, row) in factors.iter_mut().zip(weights.chunks_exact_mut(keys)) {
                *factor = 1.0 / softmax(s, row, len);
            }
            mix(s, &weights, keys, &v, elements, len, &mut mixed);
            for (query, row) in mixed.chunks_exact(elements).take(queries).enumerate() {
                let index = (self.first + tile + query) * hidden + self.head * dim;
                // SAFETY: this task alone writes this head of this text, and nobody reads it before all is written.
                let out = unsafe { self.out.at(index, dim) };
                for (element, value) in row[..dim].iter().enumerate() {
                    // SAFETY: `at` has given `dim` elements.
                    unsafe { out.add(element).write(value * factors[query]) };
                }
            }
        }
    }
}

impl<'a> Head<'a> {
    /// The query (`which` 0), key (1) or value (2) of a token of the text.
    #[inline(always)]
    fn part(&self, which: usize, token: usize) -> &'a [f32] {
        let FullAttention { heads, kv_heads, .. } = *self.attention;
        let kv_head = self.head / (heads / kv_heads);
        let head = match which {
            0 => self.head,
            1 => heads + kv_head,
            _ => heads + kv_heads + kv_head,
        };
        let row = (self.first + token) * (heads + 2 * kv_heads);
        &self.qkv[(row + head) * self.head_dim..][..self.head_dim]
    }

    /// Applies the window and the distance biases to the scores of `queries` queries from `tile` on.
    #[inline(always)]
    fn place(&self, scores: &mut [f32], keys: usize, tile: usize, queries: usize) {
        let FullAttention { window, bias, .. } = *self.attention;
        for (query, row) in (tile..tile + queries).zip(scores.chunks_exact_mut(keys)) {
            if let Some(bias) = bias {
                for (key, score) in row[..self.len].iter_mut().enumerate() {
                    *score += bias.of(self.head, query, key);
                }
            }
            if let Some(window) = window {
                row[..(query + 1).saturating_sub(window)].fill(f32::NEG_INFINITY);
                row[query.saturating_add(window).min(self.len)..self.len].fill(f32::NEG_INFINITY);
            }
        }
    }
}

/// `out[query][key] = q[query] . k[key]`: `q` `[QUERIES, dim]`, `k` `[dim, keys]`, `out` `[QUERIES, keys]`.
#[inline(always)]
fn dots<S: Simd>(s: S, q: &[f32], k: &[f32], keys: usize, out: &mut [f32]) {
    let dim = q.len() / QUERIES;
    assert!(keys.is_multiple_of(STEP) && k.len() == dim * keys && out.len() == QUERIES * keys);
    for first in (0..keys).step_by(STEP) {
        let mut sums = [[s.splat(0.0); 2]; QUERIES];
        for element in 0..dim {
            // SAFETY: two vectors lie within row `element` of `k`, whose length is a multiple of that.
            let key = unsafe {
                let key = k.as_ptr().add(element * keys + first);
                [s.load(key), s.load(key.add(LANES))]
            };
            for (query, sums) in sums.iter_mut().enumerate() {
                let value = s.splat(q[query * dim + element]);
                sums[0] = s.fma(value, key[0], sums[0]);
                sums[1] = s.fma(value, key[1], sums[1]);
            }
        }
        for (query, sums) in sums.into_iter().enumerate() {
            // SAFETY: as above, for row `query` of `out`.
            unsafe {
                let out = out.as_mut_ptr().add(query * keys + first);
                s.store(out, sums[0]);
                s.store(out.add(LANES), sums[1]);
            }
        }
    }
}

/// Replaces the first `len` scores of a row by `e^(score - most)`, and the others by zeros. Returns the sum.
#[inline(always)]
fn softmax<S: Simd>(s: S, row: &mut [f32], len: usize) -> f32 {
    let lowest = s.splat(f32::NEG_INFINITY);
    let mut most = lowest;
    for (i, chunk) in row.chunks_exact(LANES).enumerate() {
        // SAFETY: a chunk has sixteen elements.
        let scores = unsafe { s.load(chunk.as_ptr()) };
        most = s.max(most, s.keep(scores, 0, len.saturating_sub(i * LANES).min(LANES), lowest));
    }
    let most = s.splat(s.reduce_max(most));
    let zero = s.splat(0.0);
    let mut sum = zero;
    for (i, chunk) in row.chunks_exact_mut(LANES).enumerate() {
        // SAFETY: a chunk has sixteen elements.
        unsafe {
            let weights = math::exp(s, s.sub(s.load(chunk.as_ptr()), most));
            let kept = s.keep(weights, 0, len.saturating_sub(i * LANES).min(LANES), zero);
            sum = s.add(sum, kept);
            s.store(chunk.as_mut_ptr(), kept);
        }
    }
    let mut lanes = [0f32; LANES];
    // SAFETY: the array has sixteen elements.
    unsafe { s.store(lanes.as_mut_ptr(), sum) };
    lanes.iter().sum()
}

/// `out[query] = sum over keys of weights[query][key] * v[key]`: `weights` `[QUERIES, keys]`, `v` `[len, elements]`, `out`
/// `[QUERIES, elements]`.
#[inline(always)]
fn mix<S: Simd>(
    s: S,
    weights: &[f32],
    keys: usize,
    v: &[f32],
    elements: usize,
    len: usize,
    out: &mut [f32],
) {
    assert!(elements.is_multiple_of(STEP) && v.len() == len * elements);
    assert!(weights.len() == QUERIES * keys && out.len() == QUERIES * elements && len <= keys);
    for first in (0..elements).step_by(STEP) {
        let mut sums = [[s.splat(0.0); 2]; QUERIES];
        for key in 0..len {
            // SAFETY: two vectors lie within row `key` of `v`, whose length is a multiple of that.
            let value = unsafe {
                let value = v.as_ptr().add(key * elements + first);
                [s.load(value), s.load(value.add(LANES))]
            };
            for (query, sums) in sums.iter_mut().enumerate() {
                let weight = s.splat(weights[query * keys + key]);
                sums[0] = s.fma(weight, value[0], sums[0]);
                sums[1] = s.fma(weight, value[1], sums[1]);
            }
        }
        for (query, sums) in sums.into_iter().enumerate() {
            // SAFETY: as above, for row `query` of `out`.
            unsafe {
                let out = out.as_mut_ptr().add(query * elements + first);
                s.store(out, sums[0]);
                s.store(out.add(LANES), sums[1]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn test_values(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + 13) % 10_007) as f32 / 2500.0 - 2.0).collect()
    }

    fn flat(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn plain(heads: usize, head_dim: usize) -> FullAttention<'static> {
        let scale = (head_dim as f32).powf(-0.5);
        FullAttention { heads, kv_heads: heads, scale, window: None, bias: None }
    }

    /// Compares the result with the reference, and that of each text alone bit for bit.
    fn check(attention: &FullAttention<'_>, dim: usize, lengths: &[usize]) {
        let FullAttention { heads, kv_heads, .. } = *attention;
        let (parts, hidden) = (heads + 2 * kv_heads, heads * dim);
        let tokens: usize = lengths.iter().sum();
        let data = test_values(tokens * parts * dim);
        let mut starts = vec![0u32];
        starts.extend(lengths.iter().scan(0, |end, len| {
            *end += *len as u32;
            Some(*end)
        }));
        let qkv = Tensor::from_slice(&data, (tokens, parts * dim), &Device::Cpu).unwrap();
        let out = flat(&full_attention(&qkv, attention, &starts).unwrap());
        for (text, len) in lengths.iter().enumerate() {
            let first = starts[text] as usize;
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                let part = |which: usize| -> Vec<f32> {
                    (first..first + len)
                        .flat_map(|t| &data[(t * parts + which) * dim..][..dim])
                        .copied()
                        .collect()
                };
                let (q, k) = (part(head), part(heads + kv_head));
                let v = part(heads + kv_heads + kv_head);
                let want = full_attention_reference([&q, &k, &v], dim, attention, head);
                for (i, want) in want.iter().enumerate() {
                    let got = out[(first + i / dim) * hidden + head * dim + i % dim];
                    assert!((got - want).abs() <= 2e-5, "{got} is not {want}");
                }
            }
            if *len > 0 {
                let alone = qkv.narrow(0, first, *len).unwrap();
                let alone = flat(&full_attention(&alone, attention, &[0, *len as u32]).unwrap());
                assert_eq!(alone, out[first * hidden..][..len * hidden], "a text alone");
            }
        }
    }

    #[test]
    fn matches_the_definition_for_texts_and_heads_of_any_size() {
        for (heads, dim, lengths) in [
            (1, 8, vec![1]),
            (12, 32, vec![3, 1, 40, 16]),
            (2, 64, vec![33, 70]),
            (3, 20, vec![5, 0, 9]),
            (2, 256, vec![19, 6]),
            (1, 512, vec![35]),
        ] {
            check(&plain(heads, dim), dim, &lengths);
        }
    }

    #[test]
    fn matches_the_definition_with_windows_groups_and_biases() {
        let bias = DistanceBias::new(4, 3, |head, distance| {
            (head as f32 - 1.5) * 0.7 + distance as f32 * 0.3 - if distance > 0 { 1.0 } else { 0.0 }
        });
        for window in [None, Some(1), Some(2), Some(17), Some(1000)] {
            for bias in [None, Some(&bias)] {
                for kv_heads in [1, 2, 4] {
                    let attention = FullAttention { heads: 4, kv_heads, scale: 0.2, window, bias };
                    check(&attention, 24, &[37, 1, 5, 64]);
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        for (head_dim, len) in [(20, 9), (256, 19), (512, 35)] {
            let qkv = test_values(len * 3 * head_dim);
            let attention = &plain(1, head_dim);
            let attended = |isa: Isa| {
                let mut out = vec![std::mem::MaybeUninit::new(f32::NAN); len * head_dim];
                let shared = SharedMut::new(&mut out);
                let (first, head) = (0, 0);
                isa.run(Head { qkv: &qkv, attention, first, len, head_dim, head, out: shared });
                // SAFETY: all elements were initialised with NaN.
                out.into_iter().map(|v| unsafe { v.assume_init() }).collect::<Vec<f32>>()
            };
            let all: Vec<Vec<f32>> = Isa::all().into_iter().map(attended).collect();
            assert!(all.iter().all(|out| *out == all[0]), "heads of {head_dim}");
        }
    }

    #[test]
    fn refuses_bad_operands() {
        let qkv = Tensor::zeros((4, 24), candle_core::DType::F32, &Device::Cpu).unwrap();
        for (heads, kv_heads) in [(5, 5), (0, 0), (2, 0), (3, 2)] {
            let attention = FullAttention { kv_heads, ..plain(heads, 4) };
            let refused = full_attention(&qkv, &attention, &[0, 4]);
            assert!(matches!(refused, Err(Error::Shape { .. })), "{heads} over {kv_heads}");
        }
        let bias = DistanceBias::new(1, 2, |_, _| 0.0);
        let of_others = FullAttention { bias: Some(&bias), ..plain(2, 4) };
        assert!(matches!(full_attention(&qkv, &of_others, &[0, 4]), Err(Error::Shape { .. })));
        let blind = FullAttention { window: Some(0), ..plain(2, 4) };
        assert!(matches!(full_attention(&qkv, &blind, &[0, 4]), Err(Error::Metadata(_))));
        for starts in [vec![], vec![0], vec![0, 3], vec![1, 4], vec![0, 3, 2, 4]] {
            let refused = full_attention(&qkv, &plain(2, 4), &starts);
            assert!(matches!(refused, Err(Error::Metadata(_))), "{starts:?}");
        }
    }
}
