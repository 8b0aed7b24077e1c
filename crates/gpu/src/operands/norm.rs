//! Parameters of the norms.

use candle_core::Tensor;

/// How the weight of a norm is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormWeight {
    /// The normalized row is multiplied by `weight`.
    Plain,
    /// The normalized row is multiplied by `1 + weight`, the form of Gemma's checkpoints.
    OnePlus,
}

impl NormWeight {
    /// Offset that is added to the weight.
    pub(crate) fn offset(self) -> f32 {
        match self {
            Self::Plain => 0.0,
            Self::OnePlus => 1.0,
        }
    }
}

/// Parameters of an RMS norm.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm<'a> {
    /// `[dim]`, bf16 or f16; for [`rms_norm`](crate::rms_norm) also `[groups, dim]`.
    pub weight: &'a Tensor,
    /// How the weight is applied.
    pub form: NormWeight,
    /// Added to the mean square.
    pub eps: f32,
    /// Matrix of a later product, of the rows' element type. A GPU requests its first bytes for the L2 cache meanwhile, which
    /// changes no result. `None`: nothing is requested.
    pub next: Option<&'a Tensor>,
}

/// Rows that are added to the residual, whose RMS norm is multiplied by a matrix.
#[derive(Clone, Copy, Debug)]
pub struct NormedRows<'a> {
    /// The residual before, `[rows, k]`, bf16 or f16.
    pub residual: &'a Tensor,
    /// `[rows, k]`: what is added to it.
    pub x: &'a Tensor,
    /// `[rows, k]`, written: `(residual + x) * scale`, in other memory than the residual.
    pub sum: &'a Tensor,
    /// The factor of the sum.
    pub scale: f32,
    /// The norm of the sum.
    pub norm: RmsNorm<'a>,
}

/// Most inputs of rows whose norm a product computes: each thread has eight of them. With longer rows, the reads of all blocks
/// would take longer than the norm's own kernel.
const MAX_NORMED_INPUTS: usize = 2048;

/// Whether a product computes the norm of `rows` rows of `k` inputs.
pub(crate) const fn has_normed_rows(rows: usize, k: usize) -> bool {
    rows >= 1 && rows <= 2 && k > 0 && k <= MAX_NORMED_INPUTS && k.is_multiple_of(8)
}

/// Parameters of a layer norm.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm<'a> {
    /// `[dim]`, bf16 or f16.
    pub weight: &'a Tensor,
    /// `[dim]`, bf16 or f16, if the model has a bias.
    pub bias: Option<&'a Tensor>,
    /// Added to the variance.
    pub eps: f32,
}
