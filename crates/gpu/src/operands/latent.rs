//! The parts of MLA outside of attention: the latent that is kept of a token, and the products of each head with its
//! own matrix.

use candle_core::Tensor;
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Error, KvCacheConfig, Result, RopeTable};

use super::{ExpertMatrices, Matrix, PagedCache, RmsNorm};

pub(crate) const LATENTS: &str = "latents_to_cache";

pub(crate) const HEAD_PRODUCT: &str = "head_product";

/// The operands of [`latents_to_cache`](crate::latents_to_cache), apart from the rows.
#[derive(Clone, Copy, Debug)]
pub struct LatentsToCache<'a> {
    /// The norm of a token's latent.
    pub norm: RmsNorm<'a>,
    /// The RoPE table, on the device ([`RopeTable::to_device`]).
    pub rope: &'a RopeTable,
    /// u32 `[tokens]`. For a position beyond the table, the rotated elements become NaN.
    pub positions: &'a Tensor,
    /// u32 `[tokens]`, each `block * block_size + offset`, or [`super::NO_SLOT`].
    pub slot_mapping: &'a Tensor,
    /// The cache that latents are written to, and the layer.
    pub cache: (&'a PagedCache, usize),
}

/// Dimensions of latents, of their rotated part, and of queries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatentShape {
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    /// Elements of a head of q, of which the last [`Self::rotated`] are rotated.
    pub(crate) q_dim: usize,
    /// Elements of a latent that are not padding.
    pub(crate) rank: usize,
    pub(crate) rotated: usize,
    /// Elements of a latent in the cache.
    pub(crate) latent: usize,
    /// Elements of a row of the cache, and of a head of q as attention reads it.
    pub(crate) head_dim: usize,
}

impl LatentShape {
    /// Derives the dimensions from the operands, and refuses operands that do not fit together.
    pub(crate) fn of(q: &Tensor, operands: &LatentsToCache<'_>) -> Result<Self> {
        let operand = Operand::new(LATENTS, "q", q);
        let (tokens, heads, q_dim) = operand.dims3("[tokens, heads, q_dim]")?;
        let KvCacheConfig { head_dim, latent, .. } = *operands.cache.0.config();
        let error =
            |parameter, value, expected| Err(Error::Parameter { parameter, value, expected });
        let Some(latent) = latent else {
            return error("latent", 0, "some: the cache is one of keys and values");
        };
        let (rank, rotated) = (operands.norm.weight.elem_count(), operands.rope.rot_dim());
        if rank == 0 || rank > latent {
            return error("rank", rank, "at least 1, and at most the cache's latent");
        }
        if rotated > head_dim - latent {
            return error("rot_dim", rotated, "at most the cache's head_dim without its latent");
        }
        if q_dim < rotated {
            return Err(operand.shape_error(format!("[tokens, heads, q_dim >= {rotated}]")));
        }
        Ok(Self { tokens, heads, q_dim, rank, rotated, latent, head_dim })
    }
}

/// Dimensions of [`head_product`](crate::head_product).
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadShape {
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) x_width: usize,
    pub(crate) out_width: usize,
}

impl HeadShape {
    /// Derives the dimensions from the operands, and refuses operands that do not fit together.
    pub(crate) fn of(x: &Tensor, weights: &ExpertMatrices, out: &Tensor) -> Result<Self> {
        let operand = Operand::new(HEAD_PRODUCT, "x", x);
        let (tokens, heads, x_width) = operand.dims3("[tokens, heads, at least k]")?;
        let out_operand = Operand::new(HEAD_PRODUCT, "out", out);
        let (_, _, out_width) = out_operand.dims3("[tokens, heads, at least n]")?;
        let refused = || {
            let (value, expected) = (weights.matrices.len(), "unquantized, one per head");
            Err(Error::Parameter { parameter: "matrices of heads", value, expected })
        };
        let (n, k) = match weights.matrices.first() {
            Some(Matrix::Rows(first)) if weights.matrices.len() == heads => {
                Operand::new(HEAD_PRODUCT, "weights", first).dims2("[n, k]")?
            }
            _ => return refused(),
        };
        for matrix in &weights.matrices {
            let Matrix::Rows(rows) = matrix else { return refused() };
            Operand::new(HEAD_PRODUCT, "weights", rows).expect_dims("[n, k]", &[n, k])?;
        }
        if x_width < k {
            return Err(operand.shape_error(format!("[tokens, heads, at least {k}]")));
        }
        if out_width < n {
            return Err(out_operand.shape_error(format!("[tokens, heads, at least {n}]")));
        }
        out_operand.expect_dims("[tokens, heads, at least n]", &[tokens, heads, out_width])?;
        Ok(Self { tokens, heads, n, k, x_width, out_width })
    }
}
