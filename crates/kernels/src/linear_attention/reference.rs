//! The reference for linear attention and SSMs, written to be read.

use super::{LinearAttention, LinearAttentionDims, UpdateRuleWeights};
use crate::{Result, activation_reference, rms_norm_reference};

/// Added to the sum of squares of queries and keys when they are normalised.
pub(super) const NORM_EPS: f32 = 1e-6;

/// State of one sequence in one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceState {
    /// Conv state: the newest tokens' queries, keys and values before the convolution, the oldest first, `[kernel -
    /// 1, channels]`.
    pub inputs: Vec<f32>,
    /// State matrices, `[value_heads, key_dim, value_dim]`.
    pub matrices: Vec<f32>,
}

impl SequenceState {
    /// The state of a sequence without tokens.
    #[must_use]
    pub fn zeros(dims: &LinearAttentionDims) -> Self {
        Self { inputs: vec![0.0; dims.kept()], matrices: vec![0.0; dims.matrices()] }
    }
}

/// The reference for [`linear_attention`](crate::linear_attention()) for consecutive tokens of one sequence. `input` is `[tokens,
/// width]`, `gates` is `[tokens, gates]`, and the result is `[tokens, values]`.
///
/// # Errors
/// A weight has the wrong dtype, shape, layout or device.
///
/// Source: `Qwen3NextGatedDeltaNet`, `torch_recurrent_gated_delta_rule` and `BambaMixer` of Hugging Face's transformers.
pub fn linear_attention_reference(
    input: &[f32],
    gates: &[f32],
    net: &LinearAttention,
    state: &mut SequenceState,
) -> Result<Vec<f32>> {
    let LinearAttentionDims { value_heads, key_dim, value_dim, kernel, .. } = net.dims;
    let (keys, channels) = (net.dims.keys(), net.dims.channels());
    let weights = net.weights()?;
    let silu = |x: f32| activation_reference(x, crate::Activation::Silu);
    let mut out = Vec::new();
    let gates = gates.chunks_exact(net.gates());
    for (input, gates) in input.chunks_exact(net.dims.width()).zip(gates) {
        let (input, z) = input.split_at(channels);
        state.inputs.extend(input);
        let convolved = |channel: usize| {
            let weight = |j: usize| weights.conv[channel * kernel + j];
            let sum: f32 =
                (0..kernel).map(|j| weight(j) * state.inputs[j * channels + channel]).sum();
            silu(sum + weights.conv_bias.as_ref().map_or(0.0, |bias| bias[channel]))
        };
        let row: Vec<f32> = (0..channels).map(convolved).collect();
        state.inputs.drain(..channels);
        let (q, rest) = row.split_at(keys);
        let (k, v) = rest.split_at(keys);
        let times = &gates[gates.len() - value_heads..];
        for head in 0..value_heads {
            let key_head = net.dims.key_head(head) * key_dim;
            let (q, k) = (&q[key_head..][..key_dim], &k[key_head..][..key_dim]);
            let v = &v[head * value_dim..][..value_dim];
            let z = &z[head * value_dim..][..value_dim];
            let matrix = &mut state.matrices[head * key_dim * value_dim..][..key_dim * value_dim];
            let time = softplus(times[head] + weights.dt_bias[head]);
            let decay = decay(time, weights.a_log[head].exp());
            matrix.iter_mut().for_each(|s| *s *= decay);
            match &weights.rule {
                UpdateRuleWeights::Delta { norm, eps } => {
                    let scale = 1.0 / (key_dim as f32).sqrt();
                    let q: Vec<f32> = normalized(q).iter().map(|q| q * scale).collect();
                    let k = normalized(k);
                    let beta = sigmoid(gates[head]);
                    let known = product(matrix, &k, value_dim);
                    let delta = v.iter().zip(known).map(|(v, known)| (v - known) * beta);
                    add_product(matrix, &k, &delta.collect::<Vec<_>>());
                    let result = rms_norm_reference(&product(matrix, &q, value_dim), norm, *eps);
                    out.extend(result.into_iter().zip(z).map(|(x, z)| x * silu(*z)));
                }
                UpdateRuleWeights::Mamba2 { skip } => {
                    add_product(matrix, k, &v.iter().map(|v| v * time).collect::<Vec<_>>());
                    let result = product(matrix, q, value_dim).into_iter().zip(v).zip(z);
                    out.extend(result.map(|((x, v), z)| (x + skip[head] * v) * silu(*z)));
                }
            }
        }
    }
    Ok(out)
}

/// `S = S + k v^T`.
fn add_product(matrix: &mut [f32], k: &[f32], v: &[f32]) {
    for (row, k) in matrix.chunks_exact_mut(v.len()).zip(k) {
        row.iter_mut().zip(v).for_each(|(s, v)| *s += k * v);
    }
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

/// The decay of a head's state for a token with this time step.
pub(super) fn decay(time: f32, rate: f32) -> f32 {
    (-rate * time).exp()
}

/// `ln(1 + e^x)`.
pub(super) fn softplus(x: f32) -> f32 {
    // Beyond 20 both are the same f32, and further on e^x is infinite.
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `1 / (1 + e^-x)`.
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
