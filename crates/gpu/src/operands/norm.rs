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
