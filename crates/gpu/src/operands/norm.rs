//! Operations on rows: sums, norms, activations, gathers, the soft cap, and tokens that only the device knows.

use candle_core::Tensor;

/// How the weight of a norm enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormWeight {
    /// The normalised row is multiplied by `weight`.
    Plain,
    /// It is multiplied by `1 + weight`, as Gemma's checkpoints store it.
    OnePlus,
}

impl NormWeight {
    /// The offset that is added to the weight.
    pub(crate) fn offset(self) -> f32 {
        match self {
            Self::Plain => 0.0,
            Self::OnePlus => 1.0,
        }
    }
}

/// The parameters of one norm.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm<'a> {
    /// `[dim]`, bf16 or f16; of [`rms_norm`](crate::rms_norm) also `[groups, dim]`.
    pub weight: &'a Tensor,
    /// How it enters.
    pub form: NormWeight,
    /// Added to the mean square.
    pub eps: f32,
}

/// The parameters of one layer norm.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm<'a> {
    /// `[dim]`, bf16 or f16.
    pub weight: &'a Tensor,
    /// `[dim]`, bf16 or f16, if the model has it.
    pub bias: Option<&'a Tensor>,
    /// Added to the variance.
    pub eps: f32,
}
