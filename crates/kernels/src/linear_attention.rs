//! Linear attention and SSMs: gated delta nets and Mamba-2. The state of a sequence is one matrix per head, which
//! each token updates.

mod columns;
mod heads;
mod reference;
#[cfg(test)]
mod tests;

pub use self::reference::{SequenceState, linear_attention_reference};

use std::sync::OnceLock;

use candle_core::{CpuStorage, InplaceOp1, Layout, Tensor};

use self::heads::{Heads, Scratch};
use crate::parallel::SharedMut;
use crate::simd::Isa;
use crate::state::{self, RecurrentState, SaveInputs, Sequence, StateRows};
use crate::tensor::{CpuSlice, Operand, from_vec};
use crate::{Error, Result, parallel, threads};

const KERNEL: &str = "linear_attention";

/// Dimensions of a linear-attention or SSM layer and of its short convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearAttentionDims {
    /// Number of heads of queries and keys.
    pub key_heads: usize,
    /// Number of heads of values, each with a state of its own: a multiple of `key_heads`.
    pub value_heads: usize,
    /// Whether value heads that share a key head are `key_heads` apart, instead of neighbours.
    pub tiled: bool,
    /// Elements of a query or a key, a multiple of 16.
    pub key_dim: usize,
    /// Elements of a value, a multiple of 16.
    pub value_dim: usize,
    /// Length of the convolution's kernel, from 2 to 8. Its last weight is the newest token's.
    pub kernel: usize,
}

impl LinearAttentionDims {
    /// Number of channels of the convolution: a token's queries, keys and values.
    #[must_use]
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Number of elements of a token's values, and of its result.
    #[must_use]
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Number of elements of a token's input: queries, keys, values, and the output gates `z`.
    #[must_use]
    pub fn width(&self) -> usize {
        self.channels() + self.values()
    }

    /// The key head of a value head.
    #[must_use]
    pub fn key_head(&self, head: usize) -> usize {
        match self.tiled {
            true => head % self.key_heads,
            false => head / (self.value_heads / self.key_heads),
        }
    }

    /// Number of elements of a token's keys.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Number of elements of the conv state of a sequence: `[kernel - 1, channels]`.
    #[must_use]
    pub fn kept(&self) -> usize {
        (self.kernel - 1) * self.channels()
    }

    /// Number of elements of a sequence's state matrices: `[value_heads, key_dim, value_dim]`.
    #[must_use]
    pub fn matrices(&self) -> usize {
        self.values() * self.key_dim
    }

    pub(crate) fn check(&self) -> Result<()> {
        let rules = [
            ("key_heads", self.key_heads, 1, "at least 1"),
            ("value_heads", self.value_heads, self.key_heads.max(1), "a multiple of key_heads"),
            ("key_dim", self.key_dim, 16, "a positive multiple of 16"),
            ("value_dim", self.value_dim, 16, "a positive multiple of 16"),
        ];
        for (parameter, value, multiple, expected) in rules {
            if value == 0 || !value.is_multiple_of(multiple) {
                return Err(Error::Parameter { parameter, value, expected });
            }
        }
        if !(2..=8).contains(&self.kernel) {
            let (parameter, value) = ("kernel", self.kernel);
            return Err(Error::Parameter { parameter, value, expected: "2 to 8" });
        }
        Ok(())
    }
}

/// The update rule of a head's state `S` `[key_dim, value_dim]`, and the computation of the result from `S^T q`.
#[derive(Clone, Debug)]
pub enum UpdateRule {
    /// The gated delta rule, which corrects the value that `S` predicts for the key. A token has two inputs for each
    /// head: `b`, which gives beta, and `a`, which gives the decay. Queries and keys are normalised, and queries are
    /// divided by `sqrt(key_dim)`. Then `S = exp(g) S` and `S = S + k (beta (v - S^T k))^T`, where `beta =
    /// sigmoid(b)` and `g = -exp(a_log) softplus(a + dt_bias)`. The result is the RMS norm of `S^T q`, times
    /// `silu(z)`.
    ///
    /// Source: Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024, arXiv 2412.06464.
    Delta {
        /// Weight of the norm, `[value_dim]`.
        norm: Tensor,
        /// Epsilon of the norm, which is added to the mean square.
        eps: f32,
    },
    /// Mamba-2, which adds the value over a time step `dt`. A token has one input for each head, which gives `dt`.
    /// Then `S = exp(-exp(a_log) dt) S + k (dt v)^T`, where `dt = softplus(input + dt_bias)`. The result is `(S^T q +
    /// skip v) silu(z)`.
    ///
    /// Source: Dao and Gu, "Transformers are SSMs", 2024, arXiv 2405.21060, where `q`, `k` and `v` are called C, B and X.
    Mamba2 {
        /// Factor of the value that is added to the result, `[value_heads]`.
        skip: Tensor,
    },
}

/// The weights of one linear-attention or SSM layer, f32 on every device.
#[derive(Clone, Debug)]
pub struct LinearAttention {
    /// Dimensions of the layer.
    pub dims: LinearAttentionDims,
    /// Conv kernel weights of each channel, the oldest token's first: `[channels, kernel]`.
    pub conv: Tensor,
    /// Bias of the convolution, `[channels]`.
    pub conv_bias: Option<Tensor>,
    /// Logarithm of the decay rate of each head's state, `[value_heads]`.
    pub a_log: Tensor,
    /// Bias of the decay input, `[value_heads]`.
    pub dt_bias: Tensor,
    /// Update rule of the states.
    pub rule: UpdateRule,
}

/// The weights of a [`LinearAttention`], read to CPU memory.
struct Weights<'a> {
    conv: CpuSlice<'a, f32>,
    conv_bias: Option<CpuSlice<'a, f32>>,
    a_log: CpuSlice<'a, f32>,
    dt_bias: CpuSlice<'a, f32>,
    rule: UpdateRuleWeights<'a>,
}

/// The weights of a [`UpdateRule`], read to CPU memory.
enum UpdateRuleWeights<'a> {
    Delta { norm: CpuSlice<'a, f32>, eps: f32 },
    Mamba2 { skip: CpuSlice<'a, f32> },
}

impl LinearAttention {
    /// Number of a token's beta and decay inputs: `b` of each value head if the update rule has beta, and then the
    /// decay input of each.
    #[must_use]
    pub fn gates(&self) -> usize {
        match self.rule {
            UpdateRule::Delta { .. } => 2 * self.dims.value_heads,
            UpdateRule::Mamba2 { .. } => self.dims.value_heads,
        }
    }

    fn weights(&self) -> Result<Weights<'_>> {
        let LinearAttentionDims { value_heads, value_dim, kernel, .. } = self.dims;
        let read = |name, tensor, axes, dims: &[usize]| {
            let operand = Operand::new(KERNEL, name, tensor);
            operand.expect_dims(axes, dims)?;
            operand.f32s()
        };
        let channels = self.dims.channels();
        let bias = self.conv_bias.as_ref();
        Ok(Weights {
            conv: read("conv", &self.conv, "[channels, kernel]", &[channels, kernel])?,
            conv_bias: bias
                .map(|bias| read("conv_bias", bias, "[channels]", &[channels]))
                .transpose()?,
            a_log: read("a_log", &self.a_log, "[value_heads]", &[value_heads])?,
            dt_bias: read("dt_bias", &self.dt_bias, "[value_heads]", &[value_heads])?,
            rule: match &self.rule {
                UpdateRule::Delta { norm, eps } => {
                    let norm = read("norm", norm, "[value_dim]", &[value_dim])?;
                    UpdateRuleWeights::Delta { norm, eps: *eps }
                }
                UpdateRule::Mamba2 { skip } => UpdateRuleWeights::Mamba2 {
                    skip: read("skip", skip, "[value_heads]", &[value_heads])?,
                },
            },
        })
    }
}

/// One linear-attention or SSM layer for the tokens of a step. Each token updates the state of its sequence in
/// `state`.
///
/// `input` is f32 `[tokens, width]`: queries, keys, values and the output gates `z` of each token. `gates` is f32
/// `[tokens, gates]`: the beta and decay inputs. Queries, keys and values go through a causal convolution over their
/// sequence's tokens and silu. Then each head updates its state and computes its result by the [`UpdateRule`]. Returns
/// `[tokens, values]`.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device; `net` has other dimensions than `state`; there is no such
/// layer. `rows` contradict themselves or the operands, name a slot that is not there, or name one twice.
pub fn linear_attention(
    input: &Tensor,
    gates: &Tensor,
    net: &LinearAttention,
    state: &RecurrentState,
    layer: usize,
    rows: &StateRows<'_>,
) -> Result<Tensor> {
    run(Isa::detect(), (input, gates), net, (state, layer), rows)
}

/// [`linear_attention`] with one instruction set.
fn run(
    isa: Isa,
    (input, gates): (&Tensor, &Tensor),
    net: &LinearAttention,
    (state, layer): (&RecurrentState, usize),
    rows: &StateRows<'_>,
) -> Result<Tensor> {
    let dims = net.dims;
    let input = Operand::new(KERNEL, "input", input);
    let gates = Operand::new(KERNEL, "gates", gates);
    let (tokens, _) = input.dims2("[tokens, width]")?;
    input.expect_dims("[tokens, width]", &[tokens, dims.width()])?;
    gates.expect_dims("[tokens, gates]", &[tokens, net.gates()])?;
    state.config().check_dims(KERNEL, dims.into())?;
    let sequences = rows.sequences(KERNEL, tokens, state.config().num_slots)?;
    let layer = state.layer(KERNEL, layer)?;
    let (weights, input, gates) = (net.weights()?, input.f32s()?, gates.f32s()?);
    let out = {
        // The guard on the conv state is dropped with this block, since `inplace_op1` below locks it for writing.
        let kept = Operand::new(KERNEL, "state", &layer.inputs).f32s()?;
        let step = Step {
            isa,
            net,
            weights: &weights,
            input: &input,
            gates: &gates,
            sequences: &sequences,
            kept: &kept,
            out: OnceLock::new(),
        };
        layer.matrices().inplace_op1(&step)?;
        step.out.into_inner().expect("the operation has run")
    };
    // Only now may the conv state be overwritten, since every head has read it.
    let (width, channels) = (dims.width(), dims.channels());
    let save = |token: usize, kept: &mut [f32]| {
        kept.copy_from_slice(&input[token * width..][..channels]);
    };
    let of_step = SaveInputs { dims: dims.into(), input: &save, sequences: &sequences };
    layer.inputs.inplace_op1(&of_step)?;
    from_vec(out, &[tokens, dims.values()])
}

/// A checked step, which updates the matrices of one layer.
struct Step<'a> {
    isa: Isa,
    net: &'a LinearAttention,
    weights: &'a Weights<'a>,
    /// `[tokens, width]`.
    input: &'a [f32],
    /// `[tokens, gates]`.
    gates: &'a [f32],
    sequences: &'a [Sequence],
    /// Conv state before this step, `[slots, kernel - 1, channels]`.
    kept: &'a [f32],
    /// `[tokens, values]`, once it is computed.
    out: OnceLock<Vec<f32>>,
}

impl InplaceOp1 for Step<'_> {
    fn name(&self) -> &'static str {
        KERNEL
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let matrices = state::elements(storage, layout)?;
        // The operation has only `&self`, so its result leaves through a cell.
        self.out.get_or_init(|| self.run(matrices));
        Ok(())
    }
}

impl Step<'_> {
    /// The results `[tokens, values]`. `matrices` are those of all slots.
    fn run(&self, matrices: &mut [f32]) -> Vec<f32> {
        let (dims, gates) = (self.net.dims, self.net.gates());
        let zeros = vec![0.0; dims.kept()];
        let len = self.gates.len() / gates * dims.values();
        let mut out = Vec::with_capacity(len);
        let shared_out = SharedMut::new(&mut out.spare_capacity_mut()[..len]);
        let matrices = SharedMut::of(matrices);
        // Neighbouring heads with the same keys share the convolution and norm of these. The largest number of heads
        // is chosen that leaves at least two units of work to each thread.
        let per_key = if dims.tiled { 1 } else { dims.value_heads / dims.key_heads };
        let suffices = |together: &usize| {
            let units = self.sequences.len() * (dims.value_heads / together);
            per_key.is_multiple_of(*together) && units >= 2 * threads::available()
        };
        let together = (1..=per_key).rev().find(suffices).unwrap_or(1);
        let of_sequence = dims.value_heads / together;
        parallel::for_ranges(self.sequences.len() * of_sequence, 1, |units| {
            let mut scratch = Scratch::new(&dims, together);
            for unit in units {
                let Sequence { tokens, slot, begins } = &self.sequences[unit / of_sequence];
                let first = unit % of_sequence * together;
                let matrix = dims.key_dim * dims.value_dim;
                // SAFETY: no other unit has these heads of this slot, which no other sequence has.
                let matrices = unsafe {
                    let (place, len) = (slot * dims.matrices() + first * matrix, together * matrix);
                    std::slice::from_raw_parts_mut(matrices.at(place, len), len)
                };
                if *begins {
                    matrices.fill(0.0);
                }
                let kept = if *begins { &zeros } else { &self.kept[slot * dims.kept()..] };
                self.isa.run(Heads {
                    net: self.net,
                    weights: self.weights,
                    heads: first..first + together,
                    input: &self.input[tokens.start * dims.width()..tokens.end * dims.width()],
                    gates: &self.gates[tokens.start * gates..tokens.end * gates],
                    kept: &kept[..dims.kept()],
                    matrices,
                    out: (shared_out, tokens.start),
                    scratch: &mut scratch,
                });
            }
        });
        // SAFETY: each unit has written its heads of the tokens of its sequence, and the sequences have all tokens.
        unsafe { out.set_len(len) };
        out
    }
}
