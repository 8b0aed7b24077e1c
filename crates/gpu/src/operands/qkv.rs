//! The operands of the operation between the qkv product and attention: norms, RoPE, and the write into the cache.

use candle_core::Tensor;
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Error, Result, RopeTable};

use super::{NormWeight, PagedCache};

/// A slot outside the cache. The keys and values of a token with this slot are not written. Padding tokens of a CUDA
/// graph have it.
pub const NO_SLOT: u32 = u32::MAX;

/// The norms of q and k.
#[derive(Clone, Copy, Debug)]
pub struct QkNorm<'a> {
    /// Weight for q, bf16 or f16: `[head_dim]`, or the shape that `span` describes.
    pub q_weight: &'a Tensor,
    /// Weight for k, absent only if the rows are q alone.
    pub k_weight: Option<&'a Tensor>,
    /// The elements over which the norm is taken.
    pub span: QkNormOperands<'a>,
    /// How both weights are applied.
    pub form: NormWeight,
    /// Added to the mean square, or to the variance.
    pub eps: f32,
}

/// The elements over which the norms of q and k are taken.
#[derive(Clone, Copy, Debug)]
pub enum QkNormOperands<'a> {
    /// Each head: RMSNorm with one weight for all heads.
    Head,
    /// All heads of a token, on all ranks: RMSNorm with a weight `[heads * head_dim]`.
    AllHeads {
        /// f32 `[tokens, 2]`: the results of [`square_sums`](crate::square_sums), summed over all ranks.
        square_sums: &'a Tensor,
        /// Number of ranks, each of which has the same number of heads.
        ranks: usize,
    },
    /// The first `len` elements of each head, whose other elements are zeros: LayerNorm with a weight for each head,
    /// `[heads * head_dim]`.
    EachHead {
        /// Elements of a head that are not padding.
        len: usize,
    },
}

/// The norm of v: RMSNorm without a weight over each head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueNorm {
    /// Added to the mean square.
    pub eps: f32,
    /// Elements of a head that are not padding; the others become zeros.
    pub len: usize,
}

/// The operands of [`qkv_to_cache`](crate::qkv_to_cache), apart from the qkv rows.
#[derive(Clone, Copy, Debug)]
pub struct QkvToCache<'a> {
    /// The norms of the heads of q and k, if the model has them.
    pub qk_norm: Option<QkNorm<'a>>,
    /// The norm of the heads of v, if the model has it.
    pub v_norm: Option<ValueNorm>,
    /// The RoPE table, on the device ([`RopeTable::to_device`]).
    pub rope: &'a RopeTable,
    /// u32 `[tokens]`. For a position beyond the table, the token's q and k become NaN.
    pub positions: &'a Tensor,
    /// u32 `[tokens]`, each `block * block_size + offset`, or [`NO_SLOT`]. It is not read if `cache` is absent.
    pub slot_mapping: &'a Tensor,
    /// The cache that keys and values are written to, and the layer. If it is absent, the rows are q alone, in a layer
    /// that reads the keys and values of another layer.
    pub cache: Option<(&'a PagedCache, usize)>,
    /// Matrix of a later product, of the rows' element type. A GPU requests its first bytes for the L2 cache meanwhile, which
    /// changes no result. `None`: nothing is requested.
    pub next: Option<&'a Tensor>,
}

/// The dimensions of a row of q, k and v.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QkvShape {
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    /// Zero if the rows are q alone.
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl QkvShape {
    /// Derives the dimensions from `q_out` and the operands, and refuses norms that do not fit.
    pub(crate) fn of(
        kernel: &'static str,
        operands: &QkvToCache<'_>,
        q_out: &Tensor,
    ) -> Result<Self> {
        let error =
            |parameter, value, expected| Err(Error::Parameter { parameter, value, expected });
        let q_out = Operand::new(kernel, "q_out", q_out);
        let (tokens, heads, last) = q_out.dims3("[tokens, heads, head_dim]")?;
        let (kv_heads, head_dim) = match operands.cache {
            Some((cache, _)) => (cache.config().num_kv_heads, cache.config().head_dim),
            // The same condition as for the heads of a cache.
            None if last > 0 && last.is_multiple_of(8) => (0, last),
            None => return error("head_dim", last, "a positive multiple of 8"),
        };
        match operands.qk_norm {
            Some(QkNorm { k_weight: None, .. }) if kv_heads > 0 => {
                return error("the number of weights for k", 0, "1 where keys are written");
            }
            Some(QkNorm { span: QkNormOperands::AllHeads { .. }, .. }) if kv_heads == 0 => {
                return error(
                    "the number of heads of k",
                    0,
                    "at least 1 for a norm over all heads",
                );
            }
            Some(QkNorm { span: QkNormOperands::EachHead { len }, .. })
                if len == 0 || len > head_dim =>
            {
                return error("len", len, "at least one, and at most head_dim");
            }
            _ => {}
        }
        match operands.v_norm {
            Some(ValueNorm { len, .. }) if len == 0 || len > head_dim => {
                error("len", len, "at least one, and at most head_dim")
            }
            _ => Ok(Self { tokens, heads, kv_heads, head_dim }),
        }
    }

    /// Elements of a row.
    pub(crate) fn width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

pub(crate) const QKV_AXES: &str = "[tokens, (heads + 2 kv_heads) * head_dim]";

pub(crate) const SQUARE_SUMS: &str = "square_sums";

/// Elements of a head in rows of q, k and v with these numbers of heads of q and of k.
pub(crate) fn head_dim_of(
    kernel: &'static str,
    qkv: &Tensor,
    [heads, kv_heads]: [usize; 2],
) -> Result<usize> {
    let operand = Operand::new(kernel, "qkv", qkv);
    let (_, row) = operand.dims2(QKV_AXES)?;
    let all = heads + 2 * kv_heads;
    // Heads are read in pairs of elements, hence the factor of two.
    match row.is_multiple_of(2 * all.max(1)) && heads > 0 {
        true => Ok(row / all),
        false => Err(operand.shape_error(format!("[tokens, a multiple of {}]", 2 * all))),
    }
}
