//! What happens between the qkv product and attention, in one operation.

use candle_core::Tensor;

use super::launch_on_gpu;
use super::reference::Reference;
use super::{NormWeight, PagedCache};
use crate::tensor::Operand;
use crate::{
    CacheOrder, KvCacheConfig, Result, RopeTable, layer_norm_reference,
    reshape_and_cache_reference, rms_norm_reference, rope_reference,
};

/// A slot that is no place in the cache: such a token's key and value are not written. The padding tokens
/// of a CUDA graph have it.
pub const NO_SLOT: u32 = u32::MAX;

/// The norms of q and k.
#[derive(Clone, Copy, Debug)]
pub struct QkNorm<'a> {
    /// Of q, bf16 or f16: `[head_dim]`, or what `span` says.
    pub q_weight: &'a Tensor,
    /// Of k.
    pub k_weight: &'a Tensor,
    /// What is normalised together.
    pub span: QkNormSpan,
    /// How both weights enter.
    pub form: NormWeight,
    /// Added to the mean square, or to the variance.
    pub eps: f32,
}

/// What the norms of q and k normalise together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNormSpan {
    /// Each head: RMSNorm with one weight for all of them.
    Head,
    /// All heads of a token: RMSNorm with a weight `[heads * head_dim]`.
    AllHeads,
    /// The first `len` elements of each head, of which the others are zeros: LayerNorm with a weight for each,
    /// `[heads * head_dim]`.
    EachHead {
        /// Elements of a head that are not padding.
        len: usize,
    },
}

/// The operands of [`qkv_to_cache`] beside the qkv rows.
#[derive(Clone, Copy, Debug)]
pub struct QkvToCache<'a> {
    /// The norms of the heads of q and k, if the model has them.
    pub qk_norm: Option<QkNorm<'a>>,
    /// The table of positions, on the device ([`RopeTable::to_device`]).
    pub rope: &'a RopeTable,
    /// u32 `[tokens]`. A position beyond the table makes its token's q and k NaN.
    pub positions: &'a Tensor,
    /// u32 `[tokens]`, each `block * block_size + offset`, or [`NO_SLOT`].
    pub slot_mapping: &'a Tensor,
    /// Where keys and values go.
    pub cache: &'a PagedCache,
    /// In which layer.
    pub layer: usize,
}

/// Splits `qkv` `[tokens, (heads + 2 * kv_heads) * head_dim]`: norms the heads of q and k if the model does,
/// rotates them, writes k and v into the paged cache and q to `q_out` `[tokens, heads, head_dim]`.
///
/// All in f32 from load to store, rounded once, in the cache to its own dtype. The definitions, one after the other:
/// [`crate::rms_norm_reference`] (per head where nothing else is asked for), [`crate::rope_reference`] and
/// [`crate::reshape_and_cache_reference`], whose place of values is that of keys and values here.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device; `rot_dim > head_dim`; there is no such layer;
/// or CUDA refused the launch.
pub fn qkv_to_cache(qkv: &Tensor, operands: &QkvToCache<'_>, q_out: &Tensor) -> Result<()> {
    launch_on_gpu!(qkv, crate::cuda::qkv_to_cache(qkv, operands, q_out));
    const KERNEL: &str = "qkv_to_cache";
    let reference = Reference::new(KERNEL, "qkv", qkv)?;
    let config = operands.cache.config();
    let (kv_heads, head_dim) = (config.num_kv_heads, config.head_dim);
    let (tokens, heads, _) =
        Operand::new(KERNEL, "q_out", q_out).dims3("[tokens, heads, head_dim]")?;
    let width = (heads + 2 * kv_heads) * head_dim;
    let axes = "[tokens, (heads + 2 kv_heads) * head_dim]";
    let rows = reference.elements(("qkv", qkv), axes, &[tokens, width])?;
    let positions = reference.u32s(("positions", operands.positions), "[tokens]", &[tokens])?;
    let slots = reference.u32s(("slot_mapping", operands.slot_mapping), "[tokens]", &[tokens])?;
    let turn = Rotation::read(&reference, operands, heads, config)?;
    let layer = operands.cache.layer(operands.layer)?;
    let dims = PagedCache::dims(config);
    let axes = "[num_blocks, kv_heads, block_size, head_dim]";
    let mut keys = reference.cached(("keys", &layer.keys), axes, &dims)?;
    let mut values = reference.cached(("values", &layer.values), axes, &dims)?;
    let mut q = Vec::with_capacity(tokens * heads * head_dim);
    let num_slots = config.num_blocks * config.block_size;
    for (token, row) in rows.chunks(width).enumerate() {
        let position = positions[token] as usize;
        let slot = slots[token] as usize;
        let (q_row, kv_row) = row.split_at(heads * head_dim);
        let (k_row, v_row) = kv_row.split_at(kv_heads * head_dim);
        q.extend(turn.apply(q_row, turn.q_norm.as_deref(), position));
        if slot >= num_slots {
            continue;
        }
        let k_row = turn.apply(k_row, turn.k_norm.as_deref(), position);
        for (target, row) in [(&mut keys, &k_row[..]), (&mut values, v_row)] {
            for (kv_head, head) in row.chunks(head_dim).enumerate() {
                let (_, at) =
                    reshape_and_cache_reference(config, CacheOrder::Single, slot, (kv_head, 0));
                target[at..at + head_dim].copy_from_slice(head);
            }
        }
    }
    reference.write_cached(("keys", &layer.keys), axes, &dims, &keys)?;
    reference.write_cached(("values", &layer.values), axes, &dims, &values)?;
    reference.write(("q_out", q_out), "[tokens, heads, head_dim]", &[tokens, heads, head_dim], &q)
}

/// What is done to the heads of q and k.
struct Rotation<'a> {
    table: &'a RopeTable,
    head_dim: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
    q_norm: Option<Vec<f32>>,
    k_norm: Option<Vec<f32>>,
    span: QkNormSpan,
    eps: f32,
}

impl<'a> Rotation<'a> {
    fn read(
        reference: &Reference,
        operands: &QkvToCache<'a>,
        heads: usize,
        config: &KvCacheConfig,
    ) -> Result<Self> {
        let (kv_heads, head_dim) = (config.num_kv_heads, config.head_dim);
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
                QkNormSpan::Head => ("[head_dim]", head_dim),
                _ => ("[heads * head_dim]", heads * head_dim),
            };
            let weight = reference.elements((name, weight), axes, &[width])?;
            Ok(weight.iter().map(|weight| weight + norm.form.offset()).collect())
        };
        Ok(Self {
            table,
            cos: reference.f32s(("cos", cos), "[max_len, rot_dim / 2]", &dims)?,
            sin: reference.f32s(("sin", sin), "[max_len, rot_dim / 2]", &dims)?,
            head_dim,
            q_norm: qk_norm.map(|n| norm("q_weight", heads, n, n.q_weight)).transpose()?,
            k_norm: qk_norm.map(|n| norm("k_weight", kv_heads, n, n.k_weight)).transpose()?,
            span: qk_norm.map_or(QkNormSpan::Head, |norm| norm.span),
            eps: qk_norm.map_or(0.0, |norm| norm.eps),
        })
    }

    /// The heads of one token, normalised where the model does, and rotated.
    fn apply(&self, row: &[f32], norm: Option<&[f32]>, position: usize) -> Vec<f32> {
        let half = self.table.rot_dim() / 2;
        let at = position * half..(position + 1) * half;
        let (Some(cos), Some(sin)) = (self.cos.get(at.clone()), self.sin.get(at)) else {
            return vec![f32::NAN; row.len()];
        };
        let normed = norm.map_or_else(|| row.to_vec(), |weight| self.normalize(row, weight));
        let rotate = |head| rope_reference(head, cos, sin, self.table.style());
        normed.chunks(self.head_dim).flat_map(rotate).collect()
    }

    fn normalize(&self, row: &[f32], weight: &[f32]) -> Vec<f32> {
        let QkNormSpan::EachHead { len } = self.span else {
            return rms_norm_reference(row, weight, self.eps);
        };
        let heads = row.chunks(self.head_dim).zip(weight.chunks(self.head_dim));
        let normalize = |(head, weight): (&[f32], &[f32])| {
            let mut normed = layer_norm_reference(&head[..len], &weight[..len], None, self.eps);
            normed.resize(head.len(), 0.0);
            normed
        };
        heads.flat_map(normalize).collect()
    }
}
