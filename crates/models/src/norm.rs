//! A norm with its weights.

use candle_core::Tensor;
use candlepower_gpu::NormWeight;

/// A norm over the last dimension.
pub(crate) struct Norm {
    /// `[dim]`, or `[heads, dim]` of norms of heads.
    pub(crate) weight: Tensor,
    pub(crate) form: NormForm,
    pub(crate) eps: f32,
}

/// Which norm.
pub(crate) enum NormForm {
    /// RMSNorm, and the form of its weight: always the plain form on the CPU.
    Rms(NormWeight),
    /// LayerNorm, with the bias `[dim]` where there is one.
    Layer(Option<Tensor>),
}

impl Norm {
    pub(crate) fn num_bytes(&self) -> usize {
        let bias = match &self.form {
            NormForm::Layer(Some(bias)) => tensor_bytes(bias),
            _ => 0,
        };
        tensor_bytes(&self.weight) + bias
    }
}

/// Bytes of a tensor.
pub(crate) fn tensor_bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}
