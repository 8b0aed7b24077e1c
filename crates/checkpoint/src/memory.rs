//! How much memory a model needs, and which context fits.

use crate::spec::{Dtype, ModelSpec};

/// Whether and how a model fits into some memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// Bytes of keys and values for one token.
    pub kv_bytes_per_token: u64,
    /// The longest context that fits beside the weights, at most the longest the model allows, in
    /// tokens; 0 where not even the weights fit.
    pub max_model_len: usize,
}

impl ModelSpec {
    /// Count of all weights.
    pub fn num_parameters(&self) -> u64 {
        self.slots().map(|(_, _, shape)| shape.iter().product::<usize>() as u64).sum()
    }

    /// Bytes of the weights with the matrices in `dtype`; norms and biases are always F32.
    pub fn weight_bytes(&self, dtype: Dtype) -> u64 {
        let bytes = |shape: Vec<usize>| match shape.len() {
            1 => shape[0] * Dtype::F32.size(),
            _ => shape.iter().product::<usize>() * dtype.size(),
        };
        self.slots().map(|(_, _, shape)| bytes(shape) as u64).sum()
    }

    /// Bytes of keys and values that one token takes in all layers.
    pub fn kv_bytes_per_token(&self, dtype: Dtype) -> u64 {
        let numbers: usize =
            self.layers.iter().map(|l| 2 * l.attention.kv_heads * l.attention.head_dim).sum();
        (numbers * dtype.size()) as u64
    }

    /// What fits into `memory_bytes` for weights and KV cache together.
    pub fn fit(&self, memory_bytes: u64, weights: Dtype, kv: Dtype) -> Fit {
        let weight_bytes = self.weight_bytes(weights);
        let kv_bytes_per_token = self.kv_bytes_per_token(kv);
        let tokens = memory_bytes.saturating_sub(weight_bytes) / kv_bytes_per_token;
        let max_model_len = tokens.min(self.max_positions as u64) as usize;
        Fit { weight_bytes, kv_bytes_per_token, max_model_len }
    }
}
