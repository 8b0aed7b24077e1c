//! One sequence's tokens for value heads with the same keys: the convolution, the norms and the update rule.

use std::ops::Range;

use super::columns::{Tokens, block_len};
use super::reference::{NORM_EPS, decay, sigmoid, softplus};
use super::{LinearAttention, LinearAttentionDims, UpdateRuleWeights, Weights};
use crate::parallel::SharedMut;
use crate::simd::{LANES, Simd, WithSimd, math};

/// Tokens that are computed together, so that their queries, keys and values stay in the cache.
const CHUNK: usize = 32;

/// Longest kernel of a convolution, and the length in most models, which is compiled as a constant.
const MAX_CONV_KERNEL: usize = 8;
const USUAL_CONV_KERNEL: usize = 4;

/// Distance in tokens between an input's prefetch and its use. The rows of inputs are too far apart for a CPU's own
/// prefetcher.
const AHEAD: usize = 4;

/// Buffers of a thread, for [`CHUNK`] tokens of a head.
pub(super) struct Scratch {
    /// `[kernel + 1, 2 * key_dim + heads * value_dim]`: conv kernel weights of some heads' channels, and the bias.
    conv_weights: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    out: Vec<f32>,
    block: Vec<f32>,
    factors: Vec<(f32, f32)>,
}

impl Scratch {
    /// Buffers for `heads` heads that are computed together.
    pub(super) fn new(dims: &LinearAttentionDims, heads: usize) -> Self {
        let zeros = |count| vec![0.0; count];
        let (keys, values) = (CHUNK * dims.key_dim, CHUNK * dims.value_dim);
        Self {
            conv_weights: zeros((dims.kernel + 1) * (2 * dims.key_dim + heads * dims.value_dim)),
            q: zeros(keys),
            k: zeros(keys),
            v: zeros(values),
            out: zeros(values),
            block: zeros(block_len(dims.key_dim)),
            factors: Vec::with_capacity(CHUNK),
        }
    }
}

/// The tokens of one sequence, and neighbouring value heads with the same keys.
pub(super) struct Heads<'a> {
    pub(super) net: &'a LinearAttention,
    pub(super) weights: &'a Weights<'a>,
    pub(super) heads: Range<usize>,
    /// `[tokens, width]`.
    pub(super) input: &'a [f32],
    /// `[tokens, gates]`.
    pub(super) gates: &'a [f32],
    /// Conv state before these tokens, `[kernel - 1, channels]`: zeros at the start of a sequence.
    pub(super) kept: &'a [f32],
    /// `[heads, key_dim, value_dim]`.
    pub(super) matrices: &'a mut [f32],
    /// Results `[tokens, values]` of all sequences, and the index of this sequence's first token.
    pub(super) out: (SharedMut<'a>, usize),
    pub(super) scratch: &'a mut Scratch,
}

impl WithSimd for Heads<'_> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        let (dims, weights) = (self.net.dims, self.weights);
        let LinearAttentionDims { value_heads, key_dim, value_dim, .. } = dims;
        let (width, channels) = (dims.width(), dims.channels());
        let first_q = dims.key_head(self.heads.start) * key_dim;
        let first_k = dims.keys() + first_q;
        let first_v = 2 * dims.keys() + self.heads.start * value_dim;
        let Scratch { conv_weights, q, k, v, out, block, factors } = self.scratch;
        let values = self.heads.len() * value_dim;
        let parts = [(first_q, key_dim), (first_k, key_dim), (first_v, values)];
        transpose_conv_weights(weights, dims.kernel, parts, conv_weights);
        let inputs = Inputs { dims, input: self.input, kept: self.kept, conv_weights };
        let (corrects, num_gates) =
            (matches!(weights.rule, UpdateRuleWeights::Delta { .. }), self.net.gates());
        let scale = 1.0 / (key_dim as f32).sqrt();

        let count = self.input.len() / width;
        for start in (0..count).step_by(CHUNK) {
            let chunk = start..count.min(start + CHUNK);
            let keys = q.chunks_exact_mut(key_dim).zip(k.chunks_exact_mut(key_dim));
            for (token, (q, k)) in chunk.clone().zip(keys) {
                inputs.convolve(s, token, (first_q, 0), q);
                inputs.convolve(s, token, (first_k, key_dim), k);
                if corrects {
                    normalize(s, q, scale);
                    normalize(s, k, 1.0);
                }
            }
            let matrices = self.matrices.chunks_exact_mut(key_dim * value_dim);
            for ((i, head), matrix) in self.heads.clone().enumerate().zip(matrices) {
                let (rate, bias) = (weights.a_log[head].exp(), weights.dt_bias[head]);
                factors.clear();
                for (token, v) in chunk.clone().zip(v.chunks_exact_mut(value_dim)) {
                    let place = i * value_dim;
                    inputs.convolve(s, token, (first_v + place, 2 * key_dim + place), v);
                    let gates = &self.gates[token * num_gates..][..num_gates];
                    // The decay inputs are a token's last ones. Beta's come before them, if there are any.
                    let time = softplus(gates[num_gates - value_heads + head] + bias);
                    let counts = if corrects { sigmoid(gates[head]) } else { time };
                    factors.push((decay(time, rate), counts));
                }
                Tokens { key_dim, value_dim, corrects, factors, q, k, v, out }
                    .run(s, matrix, block);
                let results = out.chunks_exact(value_dim).zip(v.chunks_exact(value_dim));
                for (token, (x, v)) in chunk.clone().zip(results) {
                    let z = token * width + channels + head * value_dim;
                    let ahead = self.input.as_ptr().wrapping_add(z + AHEAD * width);
                    for place in (0..value_dim).step_by(LANES) {
                        s.prefetch(ahead.wrapping_add(place).cast());
                    }
                    let z = &self.input[z..][..value_dim];
                    let place = (self.out.1 + token) * dims.values() + head * value_dim;
                    // SAFETY: these elements are this head's alone, and are written below.
                    let to = unsafe { self.out.0.at(place, value_dim) };
                    // SAFETY: `to` points to `value_dim` elements.
                    unsafe {
                        match &weights.rule {
                            UpdateRuleWeights::Delta { norm, eps } => {
                                gated_norm(s, x, (norm, *eps), z, to);
                            }
                            UpdateRuleWeights::Mamba2 { skip } => {
                                gated_sum(s, x, (v, skip[head]), z, to)
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Transposes the conv kernel weights `[channels, kernel]` of three ranges of channels to one line for each token of
/// the kernel, and writes the bias as one more line.
#[inline(always)]
fn transpose_conv_weights(
    weights: &Weights<'_>,
    kernel: usize,
    parts: [(usize, usize); 3],
    conv_weights: &mut [f32],
) {
    let line = conv_weights.len() / (kernel + 1);
    let (conv_weights, added) = conv_weights.split_at_mut(kernel * line);
    let mut place = 0;
    for (first, len) in parts {
        let conv = &weights.conv[first * kernel..(first + len) * kernel];
        for (index, conv_weights) in conv_weights.chunks_exact_mut(line).enumerate() {
            for (channel, to) in conv_weights[place..place + len].iter_mut().enumerate() {
                *to = conv[channel * kernel + index];
            }
        }
        // Without a bias the line has zeros.
        if let Some(bias) = &weights.conv_bias {
            added[place..place + len].copy_from_slice(&bias[first..first + len]);
        }
        place += len;
    }
}

/// Inputs of the convolution.
struct Inputs<'a> {
    dims: LinearAttentionDims,
    input: &'a [f32],
    kept: &'a [f32],
    conv_weights: &'a [f32],
}

impl Inputs<'_> {
    /// Writes to `out` silu of the convolution of the channels from `first` on, whose conv kernel weights begin at
    /// `line`.
    #[inline(always)]
    fn convolve<S: Simd>(
        &self,
        s: S,
        token: usize,
        (first, line): (usize, usize),
        out: &mut [f32],
    ) {
        let (kernel, width, channels) = (self.dims.kernel, self.dims.width(), self.dims.channels());
        let line_len = self.conv_weights.len() / (kernel + 1);
        let mut terms = [(out.as_ptr(), out.as_ptr()); MAX_CONV_KERNEL];
        for (index, term) in terms[..kernel].iter_mut().enumerate() {
            // Index of the token in the conv state and the step's tokens together.
            let before = token + index;
            let row = match before.checked_sub(kernel - 1) {
                Some(token) => &self.input[token * width + first..][..out.len()],
                None => &self.kept[before * channels + first..][..out.len()],
            };
            *term =
                (row.as_ptr(), self.conv_weights[index * line_len + line..][..out.len()].as_ptr());
        }
        let added = self.conv_weights[kernel * line_len + line..][..out.len()].as_ptr();
        let ahead = self.input.as_ptr().wrapping_add((token + AHEAD) * width + first);
        for place in (0..out.len()).step_by(LANES) {
            s.prefetch(ahead.wrapping_add(place).cast());
            // SAFETY: each points to `out.len()` elements, in whole vectors.
            unsafe {
                // With a constant length the compiler unrolls the loop.
                let added = s.load(added.add(place));
                let sum = match kernel {
                    USUAL_CONV_KERNEL => sum_products(s, added, &terms, USUAL_CONV_KERNEL, place),
                    _ => sum_products(s, added, &terms, kernel, place),
                };
                s.store(out.as_mut_ptr().add(place), math::silu(s, sum));
            }
        }
    }
}

/// The products of the rows with their conv kernel weights at `place`, added up on `added`.
///
/// # Safety
/// Every row and every line of weights has a vector at `place`.
#[inline(always)]
unsafe fn sum_products<S: Simd>(
    s: S,
    added: S::F32,
    terms: &[(*const f32, *const f32); MAX_CONV_KERNEL],
    kernel: usize,
    place: usize,
) -> S::F32 {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sum = added;
        for (row, conv_weights) in &terms[..kernel] {
            sum = s.fma(s.load(row.add(place)), s.load(conv_weights.add(place)), sum);
        }
        sum
    }
}

/// `x = scale * x / |x|`, for whole vectors.
#[inline(always)]
fn normalize<S: Simd>(s: S, x: &mut [f32], scale: f32) {
    let scale = s.splat(scale / (squares(s, x) + NORM_EPS).sqrt());
    for x in x.chunks_exact_mut(LANES) {
        // SAFETY: sixteen elements.
        unsafe { s.store(x.as_mut_ptr(), s.mul(s.load(x.as_ptr()), scale)) };
    }
}

/// The sum of the squares of whole vectors.
#[inline(always)]
fn squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut sum = s.splat(0.0);
    for x in x.chunks_exact(LANES) {
        // SAFETY: sixteen elements.
        let x = unsafe { s.load(x.as_ptr()) };
        sum = s.fma(x, x, sum);
    }
    s.reduce_add(sum)
}

/// `rms_norm(x) * silu(z)`, all of the same length in whole vectors.
///
/// # Safety
/// `to` points to `x.len()` writable elements.
#[inline(always)]
unsafe fn gated_norm<S: Simd>(
    s: S,
    x: &[f32],
    (weight, eps): (&[f32], f32),
    z: &[f32],
    to: *mut f32,
) {
    assert!(weight.len() == x.len() && z.len() == x.len());
    let scale = s.splat(1.0 / (squares(s, x) / x.len() as f32 + eps).sqrt());
    for place in (0..x.len()).step_by(LANES) {
        // SAFETY: all have the same length, in whole vectors; and the caller's promise.
        unsafe {
            let weight = s.load(weight.as_ptr().add(place));
            let gate = math::silu(s, s.load(z.as_ptr().add(place)));
            let normed = s.mul(s.mul(s.load(x.as_ptr().add(place)), scale), weight);
            s.store(to.add(place), s.mul(normed, gate));
        }
    }
}

/// `(x + skip * v) * silu(z)`, all of the same length in whole vectors.
///
/// # Safety
/// The contract of [`gated_norm`].
#[inline(always)]
unsafe fn gated_sum<S: Simd>(s: S, x: &[f32], (v, skip): (&[f32], f32), z: &[f32], to: *mut f32) {
    assert!(v.len() == x.len() && z.len() == x.len());
    let skip = s.splat(skip);
    for place in (0..x.len()).step_by(LANES) {
        // SAFETY: all have the same length, in whole vectors; and the caller's promise.
        unsafe {
            let gate = math::silu(s, s.load(z.as_ptr().add(place)));
            let v = s.load(v.as_ptr().add(place));
            let sum = s.fma(skip, v, s.load(x.as_ptr().add(place)));
            s.store(to.add(place), s.mul(sum, gate));
        }
    }
}
