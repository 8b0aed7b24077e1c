//! The operation between the qkv product and attention: norms, RoPE, and the write into the cache.

use candle_core::Tensor;
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{
    CacheOrder, KvScales, Result, RopeTable, layer_norm_reference, reshape_and_cache_reference,
    rms_norm_reference, rope_reference,
};

use super::launch_on_gpu;
use super::reference::Reference;
use crate::operands::{
    PagedCache, QKV_AXES, QkNorm, QkNormOperands, QkvShape, QkvToCache, SQUARE_SUMS, ValueNorm,
    head_dim_of,
};

/// Computes the sums of squares over all heads of q, and over all heads of k. `qkv` is
/// `[tokens, (heads + 2 kv_heads) * head_dim]`, bf16 or f16, and `out` f32 `[tokens, 2]`. On a single rank, these are
/// the sums for [`QkNormOperands::AllHeads`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, heads have an odd number of elements, or CUDA refused the
/// launch.
pub fn square_sums(qkv: &Tensor, heads: [usize; 2], out: &Tensor) -> Result<()> {
    launch_on_gpu!(qkv, crate::cuda::square_sums(qkv, heads, out));
    let reference = Reference::new(SQUARE_SUMS, "qkv", qkv)?;
    let (tokens, width) = Operand::new(SQUARE_SUMS, "qkv", qkv).dims2(QKV_AXES)?;
    let head_dim = head_dim_of(SQUARE_SUMS, qkv, heads)?;
    let rows = reference.elements(("qkv", qkv), QKV_AXES, &[tokens, width])?;
    let [q, k] = heads.map(|heads| heads * head_dim);
    let squares = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>();
    let sums = rows.chunks(width).flat_map(|row| [squares(&row[..q]), squares(&row[q..q + k])]);
    reference.write_f32s(("out", out), "[tokens, 2]", &[tokens, 2], &sums.collect::<Vec<_>>())
}

/// Splits `qkv` `[tokens, (heads + 2 * kv_heads) * head_dim]` into heads. Heads of q and k are normed if the model has
/// QK norm, and rotated; q is scaled if the RoPE table has scales, and heads of v are normed if the model does that. k
/// and v are written into the paged cache, and q to `q_out` `[tokens, heads, head_dim]`. Without a cache the rows are q
/// alone, `[tokens, heads * head_dim]`.
///
/// The computation is in f32 from load to store and rounded once, in the cache to its own dtype. The reference
/// implementations, one after the other, are [`candlepower_kernels::rms_norm_reference`] (per head, unless another span
/// is requested), [`candlepower_kernels::rope_reference`] and [`candlepower_kernels::reshape_and_cache_reference`],
/// whose position of values is that of keys and values here.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device; `rot_dim > head_dim`; there is no such layer; the weight of
/// k's norm is missing; the norm is over all heads and there is no k; or CUDA refused the launch.
pub fn qkv_to_cache(qkv: &Tensor, operands: &QkvToCache<'_>, q_out: &Tensor) -> Result<()> {
    launch_on_gpu!(qkv, crate::cuda::qkv_to_cache(qkv, operands, q_out));
    const KERNEL: &str = "qkv_to_cache";
    let reference = Reference::new(KERNEL, "qkv", qkv)?;
    let shape = QkvShape::of(KERNEL, operands, q_out)?;
    let QkvShape { tokens, heads, kv_heads, head_dim } = shape;
    let width = shape.width();
    let rows = reference.elements(("qkv", qkv), QKV_AXES, &[tokens, width])?;
    let positions = reference.u32s(("positions", operands.positions), "[tokens]", &[tokens])?;
    let turn = Rotation::read(&reference, operands, &shape)?;
    let q_width = heads * head_dim;
    let of_token = rows.chunks(width.max(1)).zip(&positions).enumerate();
    let q = of_token.flat_map(|(token, (row, position))| {
        turn.apply(&row[..q_width], (token, Q), *position as usize)
    });
    let q: Vec<f32> = q.collect();
    let q_dims = [tokens, heads, head_dim];
    reference.write(("q_out", q_out), "[tokens, heads, head_dim]", &q_dims, &q)?;
    let Some((cache, layer)) = operands.cache else { return Ok(()) };
    let slots = reference.u32s(("slot_mapping", operands.slot_mapping), "[tokens]", &[tokens])?;
    let (config, layer) = (cache.config(), cache.layer(layer)?);
    let dims = PagedCache::dims(config);
    let axes = "[num_blocks, kv_heads, block_size, head_dim]";
    let mut keys = reference.cached(("keys", &layer.keys), axes, &dims)?;
    let mut values = reference.cached(("values", &layer.values), axes, &dims)?;
    let num_slots = config.num_blocks * config.block_size;
    for (token, row) in rows.chunks(width).enumerate() {
        let position = positions[token] as usize;
        let slot = slots[token] as usize;
        let (k_row, v_row) = row[q_width..].split_at(kv_heads * head_dim);
        if slot >= num_slots {
            continue;
        }
        let k_row = turn.apply(k_row, (token, K), position);
        let v_row = match operands.v_norm {
            Some(norm) => v_row.chunks(head_dim).flat_map(|head| norm.apply(head)).collect(),
            None => v_row.to_vec(),
        };
        let KvScales { key, value } = layer.scales;
        for (target, row, scale) in [(&mut keys, k_row, key), (&mut values, v_row, value)] {
            for (kv_head, head) in row.chunks(head_dim).enumerate() {
                let (_, at) =
                    reshape_and_cache_reference(config, CacheOrder::Single, slot, (kv_head, 0));
                let place = target[at..at + head_dim].iter_mut();
                // Attention multiplies its scores and outputs by the scales that are divided out here.
                place.zip(head).for_each(|(place, number)| *place = number / scale);
            }
        }
    }
    reference.write_cached(("keys", &layer.keys), axes, &dims, &keys)?;
    reference.write_cached(("values", &layer.values), axes, &dims, &values)
}

impl ValueNorm {
    /// Norms one head.
    fn apply(&self, head: &[f32]) -> Vec<f32> {
        let mut normed = rms_norm_reference(&head[..self.len], &vec![1.0; self.len], self.eps);
        normed.resize(head.len(), 0.0);
        normed
    }
}

const Q: usize = 0;

const K: usize = 1;

/// The norms and the rotation of the heads of q and k.
struct Rotation<'a> {
    table: &'a RopeTable,
    head_dim: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
    query_scales: Option<Vec<f32>>,
    /// Weights of the norms of q and of k.
    norms: [Option<Vec<f32>>; 2],
    span: QkNormOperands<'a>,
    /// `[tokens, 2]`, if norms are over all heads.
    square_sums: Vec<f32>,
    eps: f32,
}

impl<'a> Rotation<'a> {
    fn read(
        reference: &Reference,
        operands: &QkvToCache<'a>,
        &QkvShape { tokens, heads, kv_heads, head_dim }: &QkvShape,
    ) -> Result<Self> {
        let table = operands.rope;
        let (cos, sin, _) = table.parts();
        let dims = [table.max_len(), table.rot_dim() / 2];
        if table.rot_dim() > head_dim {
            let expected = format!("[max_len, at most {}]", head_dim / 2);
            return Err(Operand::new("qkv_to_cache", "cos", cos).shape_error(expected));
        }
        let qk_norm = operands.qk_norm;
        let norm = |name, heads: usize, norm: QkNorm<'_>, weight: &Tensor| -> Result<Vec<f32>> {
            let (axes, width) = match norm.span {
                QkNormOperands::Head => ("[head_dim]", head_dim),
                _ => ("[heads * head_dim]", heads * head_dim),
            };
            let weight = reference.elements((name, weight), axes, &[width])?;
            Ok(weight.iter().map(|weight| weight + norm.form.offset()).collect())
        };
        let span = qk_norm.map_or(QkNormOperands::Head, |norm| norm.span);
        Ok(Self {
            table,
            cos: reference.f32s(("cos", cos), "[max_len, rot_dim / 2]", &dims)?,
            sin: reference.f32s(("sin", sin), "[max_len, rot_dim / 2]", &dims)?,
            query_scales: match table.query_scales() {
                Some(scales) => {
                    Some(reference.f32s(("query_scales", scales), "[max_len]", &dims[..1])?)
                }
                None => None,
            },
            head_dim,
            norms: [
                qk_norm.map(|n| norm("q_weight", heads, n, n.q_weight)).transpose()?,
                match qk_norm.and_then(|n| Some((n, n.k_weight?))) {
                    Some((n, weight)) if kv_heads > 0 => {
                        Some(norm("k_weight", kv_heads, n, weight)?)
                    }
                    _ => None,
                },
            ],
            span,
            square_sums: match span {
                QkNormOperands::AllHeads { square_sums, .. } => {
                    reference.f32s(("square_sums", square_sums), "[tokens, 2]", &[tokens, 2])?
                }
                _ => Vec::new(),
            },
            eps: qk_norm.map_or(0.0, |norm| norm.eps),
        })
    }

    /// The heads of q or k of one token, normed if the model does that, and rotated.
    fn apply(&self, row: &[f32], of: (usize, usize), position: usize) -> Vec<f32> {
        let half = self.table.rot_dim() / 2;
        // A position beyond the table has no slice there.
        let at = position * half..(position + 1) * half;
        let (Some(cos), Some(sin)) = (self.cos.get(at.clone()), self.sin.get(at)) else {
            return vec![f32::NAN; row.len()];
        };
        let normed = self.normalize(row, of);
        let rotate = |head| rope_reference(head, cos, sin, self.table.style());
        // Ministral 3 and Mistral 4 scale queries by their position, and never keys.
        let scale = match (of, &self.query_scales) {
            ((_, Q), Some(scales)) => scales[position],
            _ => 1.0,
        };
        normed.chunks(self.head_dim).flat_map(rotate).map(|x| x * scale).collect()
    }

    fn normalize(&self, row: &[f32], (token, kind): (usize, usize)) -> Vec<f32> {
        let Some(weight) = &self.norms[kind] else { return row.to_vec() };
        match self.span {
            QkNormOperands::Head => rms_norm_reference(row, weight, self.eps),
            QkNormOperands::AllHeads { ranks, .. } => {
                // A head that is replicated on several ranks is counted once per rank in the sum.
                let mean = self.square_sums[2 * token + kind] / (ranks * row.len()) as f32;
                let scale = 1.0 / (mean + self.eps).sqrt();
                row.iter().zip(weight).map(|(x, weight)| x * scale * weight).collect()
            }
            QkNormOperands::EachHead { len } => {
                let heads = row.chunks(self.head_dim).zip(weight.chunks(self.head_dim));
                let normalize = |(head, weight): (&[f32], &[f32])| {
                    let (head_len, eps) = (head.len(), self.eps);
                    let mut normed = layer_norm_reference(&head[..len], &weight[..len], None, eps);
                    normed.resize(head_len, 0.0);
                    normed
                };
                heads.flat_map(normalize).collect()
            }
        }
    }
}
