//! The definition of a gated delta net, written to be read.

use super::{DeltaDims, DeltaNet};
use crate::{Result, activation_reference, rms_norm_reference};

/// Added to the sum of squares where queries and keys are normalised.
pub(super) const NORM_EPS: f32 = 1e-6;

/// What one layer keeps of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaState {
    /// `[kernel - 1, channels]`: its newest tokens' queries, keys and values before the convolution, the oldest first.
    pub inputs: Vec<f32>,
    /// `[value_heads, key_dim, value_dim]`.
    pub matrices: Vec<f32>,
}

impl DeltaState {
    /// That of a sequence without tokens.
    #[must_use]
    pub fn zeros(dims: &DeltaDims) -> Self {
        Self { inputs: vec![0.0; dims.kept()], matrices: vec![0.0; dims.matrices()] }
    }
}

/// The definition of [`gated_delta_net`](crate::gated_delta_net) for tokens of one sequence that follow each other: `input` is
/// `[tokens, width]`, `gates` `[tokens, 2 * value_heads]`, and the result `[tokens, values]`.
///
/// # Errors
/// A weight has the wrong dtype, shape, layout or device.
///
/// Source: `Qwen3NextGatedDeltaNet` and `torch_recurrent_gated_delta_rule` of Hugging Face's transformers.
pub fn gated_delta_net_reference(
    input: &[f32],
    gates: &[f32],
    net: &DeltaNet,
    state: &mut DeltaState,
) -> Result<Vec<f32>> {
    let DeltaDims { key_heads, value_heads, key_dim, value_dim, kernel } = net.dims;
    let (keys, channels) = (net.dims.keys(), net.dims.channels());
    let weights = net.weights()?;
    let mut out = Vec::new();
    for (input, gates) in
        input.chunks_exact(net.dims.width()).zip(gates.chunks_exact(net.dims.gates()))
    {
        let (input, z) = input.split_at(channels);
        state.inputs.extend(input);
        let convolved = |channel: usize| {
            let tap = |j: usize| weights.conv[channel * kernel + j];
            let sum = (0..kernel).map(|j| tap(j) * state.inputs[j * channels + channel]).sum();
            activation_reference(sum, crate::Activation::Silu)
        };
        let row: Vec<f32> = (0..channels).map(convolved).collect();
        state.inputs.drain(..channels);
        let (q, rest) = row.split_at(keys);
        let (k, v) = rest.split_at(keys);
        for head in 0..value_heads {
            let key_head = head / (value_heads / key_heads) * key_dim;
            let scale = 1.0 / (key_dim as f32).sqrt();
            let q: Vec<f32> =
                normalized(&q[key_head..][..key_dim]).iter().map(|q| q * scale).collect();
            let k = normalized(&k[key_head..][..key_dim]);
            let matrix = &mut state.matrices[head * key_dim * value_dim..][..key_dim * value_dim];
            let decay = decay(
                gates[value_heads + head],
                (weights.a_log[head].exp(), weights.dt_bias[head]),
            );
            matrix.iter_mut().for_each(|s| *s *= decay);
            let beta = sigmoid(gates[head]);
            let known = product(matrix, &k, value_dim);
            let v = &v[head * value_dim..][..value_dim];
            let delta: Vec<f32> =
                v.iter().zip(known).map(|(v, known)| (v - known) * beta).collect();
            for (row, k) in matrix.chunks_exact_mut(value_dim).zip(&k) {
                row.iter_mut().zip(&delta).for_each(|(s, delta)| *s += k * delta);
            }
            let result =
                rms_norm_reference(&product(matrix, &q, value_dim), &weights.norm, net.eps);
            let z = &z[head * value_dim..][..value_dim];
            let gated = |(x, z): (f32, &f32)| x * activation_reference(*z, crate::Activation::Silu);
            out.extend(result.into_iter().zip(z).map(gated));
        }
    }
    Ok(out)
}

/// `x / |x|`.
fn normalized(x: &[f32]) -> Vec<f32> {
    let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f32>() + NORM_EPS).sqrt();
    x.iter().map(|x| x * scale).collect()
}

/// `S^T x` for `S` `[x.len(), value_dim]`.
fn product(matrix: &[f32], x: &[f32], value_dim: usize) -> Vec<f32> {
    let mut sums = vec![0.0; value_dim];
    for (row, x) in matrix.chunks_exact(value_dim).zip(x) {
        sums.iter_mut().zip(row).for_each(|(sum, s)| *sum += s * x);
    }
    sums
}

/// What a head's state is multiplied by before a token with the gate `a`: `exp(-rate softplus(a + bias))`.
pub(super) fn decay(a: f32, (rate, bias): (f32, f32)) -> f32 {
    let x = a + bias;
    // Beyond 20 the two are the same number, and further on e^x is infinite.
    let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
    (-rate * softplus).exp()
}

/// `1 / (1 + e^-x)`.
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
