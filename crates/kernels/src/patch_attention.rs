//! Attention of vision towers: every patch of a picture sees all of them.
//!
//! A picture has thousands of patches, so scores and mixtures are matrix products, and they run as those of
//! [`linear`](crate::linear()). The keys and the values of each head are packed like weights, once for all queries.

use std::ops::Range;

use candle_core::{DType, Tensor};
use candlepower_layout::PATCH_QUERIES;

use crate::linear::product_of_rows;
use crate::parallel::{self, SharedMut, for_ranges};
use crate::simd::{Isa, LANES, Simd, WithSimd, math};
use crate::tensor::{Operand, from_vec};
use crate::{Result, Weight};

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
    packed: Vec<Packed>,
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
        let head_dim = width / (3 * heads);
        let data = operand.f32s()?;
        let picture = Picture::new(&data, heads, head_dim, scale);
        let packed = parallel::map(heads, |head| picture.pack(head, dtype));
        let packed = packed.into_iter().collect::<Result<_>>()?;
        drop(data);
        Ok(Self { qkv, heads, head_dim, scale, packed })
    }

    /// The results `[rows, heads * head_dim]` f32 of `rows` patches from `first` on.
    ///
    /// # Errors
    /// There are fewer patches.
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
        for_ranges(self.heads * groups, 1, |tasks| {
            for task in tasks {
                let (head, group) = (task / groups, task % groups);
                let begin = first + group * PATCH_QUERIES;
                let queries = begin..end.min(begin + PATCH_QUERIES);
                picture.attend(head, queries, &self.packed[head], begin - first, shared);
            }
        });
        // SAFETY: the tasks have written every head of every patch.
        unsafe { out.set_len(len) };
        from_vec(out, &[rows, self.heads * self.head_dim])
    }
}

/// Keys and values of a head.
struct Packed {
    /// `[patches, head_dim]`.
    keys: Weight,
    /// Transposed, `[head_dim, patches]`.
    values: Weight,
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

    fn pack(&self, head: usize, dtype: DType) -> Result<Packed> {
        let (dim, patches) = (self.head_dim, self.patches);
        let key = |patch, element: usize| self.part(1, head, patch)[element];
        let value = |element: usize, patch| self.part(2, head, patch)[element];
        let keys = Weight::of_values(patches, dim, dtype, key)?;
        Ok(Packed { keys, values: Weight::of_values(dim, patches, dtype, value)? })
    }

    /// Computes the head of a group of patches, into the rows of `out` from `first_row` on.
    fn attend(
        &self,
        head: usize,
        group: Range<usize>,
        packed: &Packed,
        first_row: usize,
        out: SharedMut<'_>,
    ) {
        let dim = self.head_dim;
        let queries = group.flat_map(|patch| self.part(0, head, patch));
        let queries: Vec<f32> = queries.copied().collect();
        let mut scores = product_of_rows(&queries, &packed.keys);
        let isa = Isa::detect();
        let rows = scores.chunks_exact_mut(self.patches);
        let sums: Vec<f32> = rows.map(|row| isa.run(Softmax { row, scale: self.scale })).collect();
        let mixed = product_of_rows(&scores, &packed.values);
        for ((row, values), sum) in (first_row..).zip(mixed.chunks_exact(dim)).zip(sums) {
            let index = (row * self.heads + head) * dim;
            let factor = 1.0 / sum;
            // SAFETY: this task alone writes this head of this row, and nobody reads it before all is written.
            let target = unsafe { out.at(index, dim) };
            for (element, value) in values.iter().enumerate() {
                // SAFETY: `at` has given `dim` elements.
                unsafe { target.add(element).write(value * factor) };
            }
        }
    }
}

/// Replaces the scores of a row by `e^(scale * (score - most))`, and gives their sum.
struct Softmax<'a> {
    row: &'a mut [f32],
    scale: f32,
}

impl WithSimd for Softmax<'_> {
    type Output = f32;

    #[inline(always)]
    fn with<S: Simd>(self, s: S) -> f32 {
        let lowest = s.splat(f32::NEG_INFINITY);
        let (chunks, rest) = self.row.as_chunks_mut::<LANES>();
        let mut last = [f32::NEG_INFINITY; LANES];
        last[..rest.len()].copy_from_slice(rest);
        let mut most = lowest;
        for chunk in chunks.iter() {
            // SAFETY: a chunk has sixteen elements.
            most = s.max(most, unsafe { s.load(chunk.as_ptr()) });
        }
        // SAFETY: the array has sixteen elements.
        let most = s.splat(s.reduce_max(s.max(most, unsafe { s.load(last.as_ptr()) })));
        let scale = s.splat(self.scale);
        let mut sum = s.splat(0.0);
        for chunk in chunks {
            // SAFETY: a chunk has sixteen elements.
            unsafe {
                let above = s.sub(s.load(chunk.as_ptr()), most);
                let weights = math::exp(s, s.mul(above, scale));
                sum = s.add(sum, weights);
                s.store(chunk.as_mut_ptr(), weights);
            }
        }
        let mut lanes = [0f32; LANES];
        // SAFETY: the arrays have sixteen elements.
        unsafe {
            let above = s.sub(s.load(last.as_ptr()), most);
            let weights = math::exp(s, s.mul(above, scale));
            s.store(last.as_mut_ptr(), weights);
            s.store(lanes.as_mut_ptr(), s.add(sum, weights));
        }
        rest.copy_from_slice(&last[..rest.len()]);
        lanes.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::{Error, FullAttention, full_attention_reference};

    fn numbers(count: usize) -> Vec<f32> {
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
            let data = numbers(patches * 3 * heads * dim);
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
        let data = numbers(patches * 3 * heads * dim);
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
        let data = numbers(patches * 3 * heads * dim);
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
        for len in [1, 15, 16, 17, 100] {
            let softmax = |isa: Isa| {
                let mut row = numbers(len);
                let sum = isa.run(Softmax { row: &mut row, scale: 3.0 });
                let total: f32 = row.iter().sum();
                assert!((total - sum).abs() <= 1e-5 * total, "{total} is not {sum}");
                (row, sum)
            };
            let all: Vec<_> = Isa::all().into_iter().map(softmax).collect();
            assert!(all.iter().all(|found| *found == all[0]), "{len} scores");
        }
    }

    #[test]
    fn refuses_bad_operands() {
        let qkv = Tensor::zeros((4, 24), DType::F32, &Device::Cpu).unwrap();
        for heads in [0, 3, 5] {
            let refused = PatchAttention::new(qkv.clone(), heads, 1.0, DType::F32);
            assert!(matches!(refused, Err(Error::Shape { .. })), "{heads} heads");
        }
        let refused = PatchAttention::new(qkv.clone(), 2, 1.0, DType::U8);
        assert!(matches!(refused, Err(Error::DType { .. })));
        let attention = PatchAttention::new(qkv, 2, 1.0, DType::F32).unwrap();
        for (first, rows) in [(0, 5), (4, 1), (3, 2), (usize::MAX, 2)] {
            let refused = attention.attend(first, rows);
            assert!(matches!(refused, Err(Error::Shape { .. })), "{rows} from {first}");
        }
    }
}
