//! Attention of vision towers: every patch of a picture sees all of them.
//!
//! A picture has thousands of patches, so scores and mixtures are matrix products, and they run as those of
//! [`linear`](crate::linear()). Both have the queries as columns: the keys of a head are the rows of the first product, and the
//! elements of its values those of the second. So a vector holds a score of sixteen queries, and the width of a head, which is
//! rarely a multiple of the 32 columns of a panel, fills whole tiles of rows.
//!
//! Keys are taken in groups, so that their scores stay in the second-level cache between the two products. A query keeps its
//! largest score and its sum so far. Earlier results are scaled when a group has a larger score.
//!
//! Source: Dao et al., "FlashAttention", 2022.

use std::ops::Range;
use std::sync::OnceLock;

use candle_core::{DType, Tensor};
use candlepower_layout::{PATCH_KEYS, PATCH_QUERIES};

use crate::linear::PackedRows;
use crate::parallel::{self, SharedMut, for_ranges};
use crate::simd::{Isa, LANES, Simd, WithSimd, math};
use crate::tensor::{Operand, from_vec};
use crate::weight::PANEL;
use crate::{Error, Result, Weight};

/// Attention of all patches of a picture, whose keys and values are packed.
///
/// The result of a patch is `softmax(scale * q k^T) v` for each head, over all patches. Products are computed as
/// [`linear`](crate::linear()) does with a weight of the dtype that is given: with bf16, queries, keys, values and the weights of the
/// softmax are rounded. The bits depend neither on the number of threads nor on the groups that are asked for.
///
/// Source: Vaswani et al., "Attention Is All You Need", 2017.
pub struct PatchAttention {
    /// `[patches, 3 * heads * head_dim]`.
    qkv: Tensor,
    heads: usize,
    head_dim: usize,
    scale: f32,
    dtype: DType,
    /// Keys and values of each head.
    operands: Vec<Vec<KeyGroup>>,
}

impl PatchAttention {
    /// `qkv` is f32 `[patches, 3 * heads * head_dim]`: queries, keys and values of all heads.
    ///
    /// # Errors
    /// `qkv` is not a contiguous f32 CPU matrix of such a width, `dtype` is not f32 or bf16, or memory cannot be reserved.
    pub fn new(qkv: Tensor, heads: usize, scale: f32, dtype: DType) -> Result<Self> {
        let operand = Operand::new("patch_attention", "qkv", &qkv);
        let (_, width) = operand.dims2("[patches, 3 * heads * head_dim]")?;
        if heads == 0 || width == 0 || !width.is_multiple_of(3 * heads) {
            return Err(operand.shape_error(format!("[patches, 3 * {heads} * head_dim]")));
        }
        if !matches!(dtype, DType::F32 | DType::BF16) {
            let (kernel, operand, expected) = ("patch_attention", "dtype", "f32 or bf16");
            return Err(Error::DType { kernel, operand, expected, found: dtype });
        }
        let head_dim = width / (3 * heads);
        let data = operand.f32s()?;
        let picture = Picture::new(&data, heads, head_dim, scale);
        let operands = parallel::map(heads, |head| picture.head(head, dtype));
        let operands = operands.into_iter().collect::<Result<_>>()?;
        drop(data);
        Ok(Self { qkv, heads, head_dim, scale, dtype, operands })
    }

    /// The results `[rows, heads * head_dim]` f32 of `rows` patches from `first` on.
    ///
    /// # Errors
    /// There are fewer patches, or memory cannot be reserved.
    pub fn attend(&self, first: usize, rows: usize) -> Result<Tensor> {
        let operand = Operand::new("patch_attention", "qkv", &self.qkv);
        let data = operand.f32s()?;
        let picture = Picture::new(&data, self.heads, self.head_dim, self.scale);
        let end = first.checked_add(rows).filter(|end| *end <= picture.patches);
        let Some(end) = end else {
            return Err(operand.shape_error(format!("patches from {first}, {rows} of them")));
        };
        let len = rows * self.heads * self.head_dim;
        let mut out = Vec::with_capacity(len);
        let shared = SharedMut::new(&mut out.spare_capacity_mut()[..len]);
        let groups = rows.div_ceil(PATCH_QUERIES);
        let failure = OnceLock::new();
        for_ranges(self.heads * groups, 1, |tasks| {
            for task in tasks {
                let (head, group) = (task / groups, task % groups);
                let begin = first + group * PATCH_QUERIES;
                let queries = begin..end.min(begin + PATCH_QUERIES);
                match picture.attend(head, queries.clone(), &self.operands[head], self.dtype) {
                    Ok(results) => {
                        picture.put(head, queries.len(), &results, begin - first, shared)
                    }
                    Err(error) => drop(failure.set(error)),
                }
            }
        });
        if let Some(error) = failure.into_inner() {
            return Err(error);
        }
        // SAFETY: the tasks have written every head of every patch.
        unsafe { out.set_len(len) };
        from_vec(out, &[rows, self.heads * self.head_dim])
    }
}

/// Keys and values of a head for [`PATCH_KEYS`] patches. They are packed once for all groups of queries.
struct KeyGroup {
    /// `[patches, head_dim]`.
    keys: PackedRows,
    /// `[head_dim, patches]`.
    values: PackedRows,
}

/// The operands of all heads.
struct Picture<'a> {
    qkv: &'a [f32],
    heads: usize,
    head_dim: usize,
    patches: usize,
    scale: f32,
}

impl<'a> Picture<'a> {
    fn new(qkv: &'a [f32], heads: usize, head_dim: usize, scale: f32) -> Self {
        Self { qkv, heads, head_dim, patches: qkv.len() / (3 * heads * head_dim), scale }
    }

    /// The query (`which` 0), key (1) or value (2) of a patch.
    fn part(&self, which: usize, head: usize, patch: usize) -> &[f32] {
        let first = (patch * 3 + which) * self.heads + head;
        &self.qkv[first * self.head_dim..][..self.head_dim]
    }

    /// Writes the queries (`which` 0) or values (2) of some patches as columns: `[head_dim, width]`.
    fn columns(
        &self,
        which: usize,
        head: usize,
        patches: Range<usize>,
        width: usize,
        columns: &mut [f32],
    ) {
        // Whole cache lines are written, because rows of 1 KiB would evict each other from the first-level cache.
        for first in patches.clone().step_by(LANES) {
            let together = first..patches.end.min(first + LANES);
            let mut parts = [[].as_slice(); LANES];
            let parts = &mut parts[..together.len()];
            for (part, patch) in parts.iter_mut().zip(together) {
                *part = self.part(which, head, patch);
            }
            for (element, row) in columns.chunks_exact_mut(width).enumerate() {
                let line = &mut row[first - patches.start..];
                line.iter_mut().zip(&*parts).for_each(|(value, part)| *value = part[element]);
            }
        }
    }

    fn head(&self, head: usize, dtype: DType) -> Result<Vec<KeyGroup>> {
        let dim = self.head_dim;
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let group = |first: usize| {
            let patches = first..self.patches.min(first + PATCH_KEYS);
            let count = patches.len();
            keys.clear();
            values.resize(count * dim, 0.0);
            patches.clone().for_each(|patch| keys.extend_from_slice(self.part(1, head, patch)));
            self.columns(2, head, patches, count, &mut values);
            let keys = PackedRows::new(&keys, dim, dtype)?;
            Ok(KeyGroup { keys, values: PackedRows::new(&values, count, dtype)? })
        };
        (0..self.patches).step_by(PATCH_KEYS).map(group).collect()
    }

    /// The results of a head for a group of patches, which are columns: `[head_dim, columns]`. Further columns fill whole panels.
    fn attend(
        &self,
        head: usize,
        group: Range<usize>,
        seen: &[KeyGroup],
        dtype: DType,
    ) -> Result<Vec<f32>> {
        let dim = self.head_dim;
        let count = group.len().next_multiple_of(PANEL);
        let mut queries = vec![0.0; dim * count];
        self.columns(0, head, group, count, &mut queries);
        let queries = Weight::of_columns(count, dim, dtype, &queries)?;
        let mut results = Mixture::new(dim, count, self.scale);
        let isa = Isa::detect();
        // Memory of scores, packed weights and mixtures is used again for each group of keys.
        let (mut scores, mut added) = (Vec::new(), Vec::new());
        let mut weights: Option<Weight> = None;
        for KeyGroup { keys, values } in seen {
            keys.multiply(&queries, &mut scores);
            isa.run(Softmax { of: &mut results, scores: &mut scores });
            let keys = scores.len() / count;
            match &mut weights {
                Some(weights) if weights.k() == keys => weights.set_columns(&scores),
                weights => *weights = Some(Weight::of_columns(count, keys, dtype, &scores)?),
            }
            let weights = weights.as_ref().expect("it was set");
            values.multiply(weights, &mut added);
            isa.run(Add { to: &mut results, values: &added });
        }
        Ok(results.finish())
    }

    /// Writes the first `count` columns of the results of a head into the rows of `out` from `first_row` on.
    fn put(
        &self,
        head: usize,
        count: usize,
        results: &[f32],
        first_row: usize,
        out: SharedMut<'_>,
    ) {
        let dim = self.head_dim;
        let columns = results.len() / dim;
        // Whole cache lines are read, for the reason that `columns` gives.
        for first in (0..count).step_by(LANES) {
            let together = first..count.min(first + LANES);
            let index = |column: usize| ((first_row + column) * self.heads + head) * dim;
            for (element, row) in results.chunks_exact(columns).enumerate() {
                for (value, column) in row[together.clone()].iter().zip(together.clone()) {
                    // SAFETY: this task alone writes this head of this row, and nobody reads it before all is written.
                    unsafe { out.at(index(column) + element, 1).write(*value) };
                }
            }
        }
    }
}

/// The softmax of some queries and their mixtures of values, as far as keys were seen.
struct Mixture {
    scale: f32,
    /// Largest score of each query.
    most: Vec<f32>,
    /// Sum of `e^(scale * (score - most))` of each query.
    sums: Vec<f32>,
    /// Factors by which earlier sums and mixtures are multiplied.
    factors: Vec<f32>,
    /// `[head_dim, queries]`.
    values: Vec<f32>,
}

impl Mixture {
    /// `queries` is a multiple of [`PANEL`].
    fn new(dim: usize, queries: usize, scale: f32) -> Self {
        let zeros = || vec![0.0; queries];
        let (most, values) = (vec![f32::NEG_INFINITY; queries], vec![0.0; dim * queries]);
        Self { scale, most, sums: zeros(), factors: zeros(), values }
    }

    /// The mixtures divided by the sums.
    fn finish(mut self) -> Vec<f32> {
        self.sums.iter_mut().for_each(|sum| *sum = 1.0 / *sum);
        for row in self.values.chunks_exact_mut(self.sums.len()) {
            row.iter_mut().zip(&self.sums).for_each(|(value, factor)| *value *= factor);
        }
        self.values
    }
}

/// Vectors of queries that the softmax takes together: those of a panel. Two chains of additions hide their latency.
const VECTORS: usize = PANEL / LANES;

/// Replaces the scores of some more keys, `[keys, queries]`, by `e^(scale * (score - most))`, and adds these to the sums.
struct Softmax<'a> {
    of: &'a mut Mixture,
    scores: &'a mut [f32],
}

impl WithSimd for Softmax<'_> {
    type Output = ();

    // No closures: they are not compiled for the instruction set.
    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        let Mixture { scale, most, sums, factors, .. } = self.of;
        let (count, scale) = (most.len(), s.splat(*scale));
        for first in (0..count).step_by(LANES * VECTORS) {
            // The largest scores of these queries, and then their sums, stay in registers.
            let (mut before, mut largest) = ([s.splat(0.0); VECTORS], [s.splat(0.0); VECTORS]);
            for i in 0..VECTORS {
                let at = first + i * LANES;
                // SAFETY: the slices have sixteen elements, here and below.
                before[i] = unsafe { s.load(most[at..][..LANES].as_ptr()) };
                largest[i] = before[i];
            }
            for scores in self.scores.chunks_exact(count) {
                let (scores, _) = scores[first..][..LANES * VECTORS].as_chunks::<LANES>();
                for i in 0..VECTORS {
                    // SAFETY: as above.
                    largest[i] = s.max(unsafe { s.load(scores[i].as_ptr()) }, largest[i]);
                }
            }
            let mut total = [s.splat(0.0); VECTORS];
            for i in 0..VECTORS {
                let at = first + i * LANES;
                // The first keys have nothing before them: e^(-inf) is 0.
                let by = math::exp(s, s.mul(s.sub(before[i], largest[i]), scale));
                // SAFETY: as above.
                unsafe {
                    s.store(most[at..][..LANES].as_mut_ptr(), largest[i]);
                    s.store(factors[at..][..LANES].as_mut_ptr(), by);
                    total[i] = s.mul(s.load(sums[at..][..LANES].as_ptr()), by);
                }
            }
            for scores in self.scores.chunks_exact_mut(count) {
                let (scores, _) = scores[first..][..LANES * VECTORS].as_chunks_mut::<LANES>();
                for i in 0..VECTORS {
                    // SAFETY: as above.
                    unsafe {
                        let below = s.sub(s.load(scores[i].as_ptr()), largest[i]);
                        let weights = math::exp(s, s.mul(below, scale));
                        s.store(scores[i].as_mut_ptr(), weights);
                        total[i] = s.add(total[i], weights);
                    }
                }
            }
            for i in 0..VECTORS {
                // SAFETY: as above.
                unsafe { s.store(sums[first + i * LANES..][..LANES].as_mut_ptr(), total[i]) };
            }
        }
    }
}

/// Multiplies the mixtures `[head_dim, queries]` by their factors, and adds those of some more keys.
struct Add<'a> {
    to: &'a mut Mixture,
    values: &'a [f32],
}

impl WithSimd for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        let Mixture { factors, values, .. } = self.to;
        let (factors, _) = factors.as_chunks::<LANES>();
        let rows = values.chunks_exact_mut(factors.len() * LANES);
        for (row, added) in rows.zip(self.values.chunks_exact(factors.len() * LANES)) {
            let (row, added) = (row.as_chunks_mut::<LANES>().0, added.as_chunks::<LANES>().0);
            for ((values, added), factors) in row.iter_mut().zip(added).zip(factors) {
                // SAFETY: chunks have sixteen elements.
                unsafe {
                    let scaled = s.fma(
                        s.load(values.as_ptr()),
                        s.load(factors.as_ptr()),
                        s.load(added.as_ptr()),
                    );
                    s.store(values.as_mut_ptr(), scaled);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::{FullAttention, full_attention_reference};

    fn test_values(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + 13) % 10_007) as f32 / 2500.0 - 2.0).collect()
    }

    fn attended(data: &[f32], patches: usize, heads: usize, scale: f32, dtype: DType) -> Vec<f32> {
        let qkv = Tensor::from_slice(data, (patches, data.len() / patches), &Device::Cpu).unwrap();
        let attention = PatchAttention::new(qkv, heads, scale, dtype).unwrap();
        let out = attention.attend(0, patches).unwrap();
        out.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn matches_the_definition_for_pictures_and_heads_of_any_size() {
        for (patches, heads, dim) in
            [(1, 1, 8), (2, 3, 4), (40, 2, 72), (129, 2, 64), (300, 1, 80), (257, 3, 24)]
        {
            let data = test_values(patches * 3 * heads * dim);
            let scale = (dim as f32).powf(-0.5);
            let exact = attended(&data, patches, heads, scale, DType::F32);
            let rounded = attended(&data, patches, heads, scale, DType::BF16);
            let attention =
                FullAttention { heads, kv_heads: heads, scale, window: None, bias: None };
            for head in 0..heads {
                let part = |which: usize| -> Vec<f32> {
                    let rows = (0..patches).map(|patch| (patch * 3 + which) * heads + head);
                    rows.flat_map(|row| &data[row * dim..][..dim]).copied().collect()
                };
                let [q, k, v] = [part(0), part(1), part(2)];
                let want = full_attention_reference([&q, &k, &v], dim, &attention, head);
                for (i, want) in want.iter().enumerate() {
                    let at = (i / dim * heads + head) * dim + i % dim;
                    assert!((exact[at] - want).abs() <= 2e-5, "{} is not {want}", exact[at]);
                    assert!((rounded[at] - want).abs() <= 3e-2, "{} is not {want}", rounded[at]);
                }
            }
        }
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let (patches, heads, dim) = (400, 3, 40);
        let data = test_values(patches * 3 * heads * dim);
        for dtype in [DType::F32, DType::BF16] {
            let on = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| attended(&data, patches, heads, 0.2, dtype))
            };
            let one = on(1);
            assert!(one == on(2) && one == on(5), "{dtype:?}");
            let mut team = crate::WarmThreads::new(3, || {}).unwrap();
            assert!(one == team.run(|| attended(&data, patches, heads, 0.2, dtype)), "{dtype:?}");
        }
    }

    #[test]
    fn groups_of_patches_have_the_bits_of_all_together() {
        let (patches, heads, dim) = (300, 2, 24);
        let data = test_values(patches * 3 * heads * dim);
        for dtype in [DType::F32, DType::BF16] {
            let whole = attended(&data, patches, heads, 0.3, dtype);
            let qkv = Tensor::from_slice(&data, (patches, 3 * heads * dim), &Device::Cpu).unwrap();
            let attention = PatchAttention::new(qkv, heads, 0.3, dtype).unwrap();
            for group in [1, 7, 128, 130, 299] {
                let starts = (0..patches).step_by(group);
                let parts = starts.flat_map(|first| {
                    let part = attention.attend(first, group.min(patches - first)).unwrap();
                    part.flatten_all().unwrap().to_vec1::<f32>().unwrap()
                });
                assert!(parts.eq(whole.iter().copied()), "{dtype:?} in groups of {group}");
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_softmax() {
        for (keys, queries) in [(1, 32), (15, 32), (16, 96), (100, 64)] {
            let softmax = |isa: Isa| {
                let mut of = Mixture::new(1, queries, 3.0);
                let mut scores = test_values(keys * queries);
                isa.run(Softmax { of: &mut of, scores: &mut scores });
                assert_eq!(of.factors, vec![0.0; queries], "nothing came before");
                // The same keys again: the same largest score, and twice the sum.
                isa.run(Softmax { of: &mut of, scores: &mut test_values(keys * queries) });
                assert_eq!(of.factors, vec![1.0; queries]);
                for query in 0..queries {
                    let weights = scores.iter().skip(query).step_by(queries);
                    let (total, found) = (2.0 * weights.sum::<f32>(), of.sums[query]);
                    assert!((total - found).abs() <= 1e-5 * total, "{total} is not {found}");
                }
                // A larger score makes the earlier results small.
                let mut larger: Vec<f32> = of.most.iter().map(|most| most + 1.0).collect();
                larger[0] -= 2.0;
                isa.run(Softmax { of: &mut of, scores: &mut larger });
                let want = |query: usize| if query == 0 { 1.0 } else { (-3f32).exp() };
                for (query, factor) in of.factors.iter().enumerate() {
                    assert!((factor - want(query)).abs() <= 1e-6, "{factor}");
                }
                (scores, of.most, of.sums)
            };
            let all: Vec<_> = Isa::all().into_iter().map(softmax).collect();
            assert!(all.iter().all(|found| *found == all[0]), "{keys} keys");
        }
    }

    #[test]
    fn refuses_bad_operands() {
        let qkv = Tensor::zeros((4, 24), DType::F32, &Device::Cpu).unwrap();
        for heads in [0, 3, 5] {
            let refused = PatchAttention::new(qkv.clone(), heads, 1.0, DType::F32);
            assert!(matches!(refused, Err(Error::Shape { .. })), "{heads} heads");
        }
        for dtype in [DType::U8, DType::F16] {
            let refused = PatchAttention::new(qkv.clone(), 2, 1.0, dtype);
            assert!(matches!(refused, Err(Error::DType { .. })));
        }
        let attention = PatchAttention::new(qkv, 2, 1.0, DType::F32).unwrap();
        for (first, rows) in [(0, 5), (4, 1), (3, 2), (usize::MAX, 2)] {
            let refused = attention.attend(first, rows);
            assert!(matches!(refused, Err(Error::Shape { .. })), "{rows} from {first}");
        }
    }
}
