//! Attention of vision towers: every patch of a picture sees all of them.
//!
//! A picture has thousands of patches, so scores and mixtures are matrix products, and they run as those of
//! [`linear`](crate::linear()). The keys and the values of each head are packed like weights, once for all queries.

use candle_core::{DType, Tensor};
use candlepower_layout::PATCH_QUERIES;

use crate::linear::product_of_rows;
use crate::parallel::{self, SharedMut, for_ranges};
use crate::simd::{Isa, LANES, Simd, WithSimd, math};
use crate::tensor::{Operand, from_vec};
use crate::{Result, Weight};

/// `softmax(scale * q k^T) v` for each head, over all rows.
///
/// `qkv` is f32 `[patches, 3 * heads * head_dim]`: queries, keys and values of all heads. The result is f32 `[patches,
/// heads * head_dim]`. Products are computed as [`linear`](crate::linear()) does with a weight of `dtype`: with bf16, queries, keys,
/// values and the weights of the softmax are rounded. The bits do not depend on the number of threads.
///
/// # Errors
/// `qkv` is not a contiguous f32 CPU matrix of such a width, `dtype` is not f32 or bf16, or memory cannot be reserved.
///
/// Source: Vaswani et al., "Attention Is All You Need", 2017.
pub fn patch_attention(qkv: &Tensor, heads: usize, scale: f32, dtype: DType) -> Result<Tensor> {
    let qkv = Operand::new("patch_attention", "qkv", qkv);
    let (patches, width) = qkv.dims2("[patches, 3 * heads * head_dim]")?;
    if heads == 0 || width == 0 || !width.is_multiple_of(3 * heads) {
        return Err(qkv.shape_error(format!("[patches, 3 * {heads} * head_dim]")));
    }
    let data = qkv.f32s()?;
    let head_dim = width / (3 * heads);
    let picture = Picture { qkv: &data, heads, head_dim, patches, scale };
    if patches == 0 {
        return from_vec(Vec::new(), &[0, heads * head_dim]);
    }
    let packed = parallel::map(heads, |head| picture.pack(head, dtype));
    let packed: Vec<Packed> = packed.into_iter().collect::<Result<_>>()?;
    let len = patches * heads * head_dim;
    let mut out = Vec::with_capacity(len);
    let shared = SharedMut::new(&mut out.spare_capacity_mut()[..len]);
    let groups = patches.div_ceil(PATCH_QUERIES);
    for_ranges(heads * groups, 1, |tasks| {
        for task in tasks {
            let (head, group) = (task / groups, task % groups);
            picture.attend(head, group * PATCH_QUERIES, &packed[head], shared);
        }
    });
    // SAFETY: the tasks have written every head of every patch.
    unsafe { out.set_len(len) };
    from_vec(out, &[patches, heads * head_dim])
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

impl Picture<'_> {
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

    /// Computes a group of queries from `first` on.
    fn attend(&self, head: usize, first: usize, packed: &Packed, out: SharedMut<'_>) {
        let (dim, end) = (self.head_dim, self.patches.min(first + PATCH_QUERIES));
        let queries = (first..end).flat_map(|patch| self.part(0, head, patch));
        let queries: Vec<f32> = queries.copied().collect();
        let mut scores = product_of_rows(&queries, &packed.keys);
        let isa = Isa::detect();
        let rows = scores.chunks_exact_mut(self.patches);
        let sums: Vec<f32> = rows.map(|row| isa.run(Softmax { row, scale: self.scale })).collect();
        let mixed = product_of_rows(&scores, &packed.values);
        for ((patch, row), sum) in (first..end).zip(mixed.chunks_exact(dim)).zip(sums) {
            let index = (patch * self.heads + head) * dim;
            let factor = 1.0 / sum;
            // SAFETY: this task alone writes this head of this patch, and nobody reads it before all is written.
            let target = unsafe { out.at(index, dim) };
            for (element, value) in row.iter().enumerate() {
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
        let out = patch_attention(&qkv, heads, scale, dtype).unwrap();
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
            let refused = patch_attention(&qkv, heads, 1.0, DType::F32);
            assert!(matches!(refused, Err(Error::Shape { .. })), "{heads} heads");
        }
        let refused = patch_attention(&qkv, 2, 1.0, DType::U8);
        assert!(matches!(refused, Err(Error::DType { .. })));
    }
}
