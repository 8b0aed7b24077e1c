//! Recurrences over matrices: gated delta nets and Mamba-2, whose memory of a sequence is one matrix per head, which each token changes.

mod columns;
mod heads;
mod reference;
#[cfg(test)]
mod tests;

pub use self::reference::{SequenceState, recurrence_reference};

use std::sync::OnceLock;

use candle_core::{CpuStorage, InplaceOp1, Layout, Tensor};

use self::heads::{Heads, Scratch};
use crate::parallel::SharedMut;
use crate::simd::Isa;
use crate::state::{self, RecurrentState, SaveInputs, Sequence, StateRows};
use crate::tensor::{CpuSlice, Operand, from_vec};
use crate::{Error, Result, parallel, threads};

const KERNEL: &str = "recurrence";

/// The heads of a layer, and its convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrenceDims {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, each with a state of its own: a multiple of `key_heads`.
    pub value_heads: usize,
    /// Those with the same keys are `key_heads` apart, not neighbours.
    pub tiled: bool,
    /// Elements of a query or a key, a multiple of 16.
    pub key_dim: usize,
    /// Elements of a value, a multiple of 16.
    pub value_dim: usize,
    /// Taps of the convolution, the newest token's among them: 2 to 8.
    pub kernel: usize,
}

impl RecurrenceDims {
    /// Numbers of a token that the convolution is over: its queries, keys and values.
    #[must_use]
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Numbers of a token's values, and of its result.
    #[must_use]
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Numbers of a token's input: queries, keys, values, and the gates `z` of the result.
    #[must_use]
    pub fn width(&self) -> usize {
        self.channels() + self.values()
    }

    /// The head of keys that a head of values has.
    #[must_use]
    pub fn key_head(&self, head: usize) -> usize {
        match self.tiled {
            true => head % self.key_heads,
            false => head / (self.value_heads / self.key_heads),
        }
    }

    /// Numbers of a token's keys.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Numbers of a sequence's inputs that are kept: `[kernel - 1, channels]`.
    #[must_use]
    pub fn kept(&self) -> usize {
        (self.kernel - 1) * self.channels()
    }

    /// Numbers of a sequence's matrices: `[value_heads, key_dim, value_dim]`.
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

/// How a token changes a head's state `S` `[key_dim, value_dim]`, and what becomes of `S^T q`.
#[derive(Clone, Debug)]
pub enum Rule {
    /// The gated delta rule: what `S` knows of the key is corrected. A token has two gates of each head, `b` and `a`; queries and keys are
    /// normalised, queries divided by `sqrt(key_dim)` too. `S = exp(g) S`, then `S = S + k (beta (v - S^T k))^T`, where `beta = sigmoid(b)`
    /// and `g = -exp(a_log) softplus(a + dt_bias)`. Of the result the RMS norm is taken, times `silu(z)`.
    ///
    /// Source: Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024, arXiv 2412.06464.
    Delta {
        /// `[value_dim]`: the weight of the norm.
        norm: Tensor,
        /// Added to the mean square in that norm.
        eps: f32,
    },
    /// Mamba-2: the value is added, for a time `dt`. A token has one gate of each head. `S = exp(-exp(a_log) dt) S + k (dt v)^T`, where
    /// `dt = softplus(gate + dt_bias)`; the result is `(S^T q + skip v) silu(z)`.
    ///
    /// Source: Dao and Gu, "Transformers are SSMs", 2024, arXiv 2405.21060, where `q`, `k` and `v` are called C, B and X.
    Mamba2 {
        /// `[value_heads]`: how much of a value is added to the result.
        skip: Tensor,
    },
}

/// The weights of one layer, f32 on every device.
#[derive(Clone, Debug)]
pub struct Recurrence {
    /// Its heads.
    pub dims: RecurrenceDims,
    /// `[channels, kernel]`: the taps of each channel, the oldest token's first.
    pub conv: Tensor,
    /// `[channels]`: what is added to the convolution.
    pub conv_bias: Option<Tensor>,
    /// `[value_heads]`: the logarithm of how fast a state is forgotten.
    pub a_log: Tensor,
    /// `[value_heads]`: what is added to the gate that says for how long.
    pub dt_bias: Tensor,
    /// How states change.
    pub rule: Rule,
}

/// What is read of a [`Recurrence`] on the CPU.
struct Weights<'a> {
    conv: CpuSlice<'a, f32>,
    conv_bias: Option<CpuSlice<'a, f32>>,
    a_log: CpuSlice<'a, f32>,
    dt_bias: CpuSlice<'a, f32>,
    rule: RuleWeights<'a>,
}

/// What is read of a [`Rule`].
enum RuleWeights<'a> {
    Delta { norm: CpuSlice<'a, f32>, eps: f32 },
    Mamba2 { skip: CpuSlice<'a, f32> },
}

impl Recurrence {
    /// Numbers of a token's gates: of each value head `b`, where there is such, and then of each the one that says for how long.
    #[must_use]
    pub fn gates(&self) -> usize {
        match self.rule {
            Rule::Delta { .. } => 2 * self.dims.value_heads,
            Rule::Mamba2 { .. } => self.dims.value_heads,
        }
    }

    fn weights(&self) -> Result<Weights<'_>> {
        let RecurrenceDims { value_heads, value_dim, kernel, .. } = self.dims;
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
                Rule::Delta { norm, eps } => {
                    let norm = read("norm", norm, "[value_dim]", &[value_dim])?;
                    RuleWeights::Delta { norm, eps: *eps }
                }
                Rule::Mamba2 { skip } => RuleWeights::Mamba2 {
                    skip: read("skip", skip, "[value_heads]", &[value_heads])?,
                },
            },
        })
    }
}

/// One layer for the tokens of a step, each of which changes the state of its sequence in `state`.
///
/// `input` is f32 `[tokens, width]`: queries, keys, values and the gates `z` of each token, and `gates` f32 `[tokens, gates]`. Queries,
/// keys and values go through a causal convolution over their sequence's tokens and silu; each head then changes its state and makes its
/// result as the [`Rule`] says. Returns `[tokens, values]`.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device; `net` has other dimensions than `state`; there is no such layer;
/// `rows` contradict themselves or the operands, name a slot that is not there, or one twice.
pub fn recurrence(
    input: &Tensor,
    gates: &Tensor,
    net: &Recurrence,
    state: &RecurrentState,
    layer: usize,
    rows: &StateRows<'_>,
) -> Result<Tensor> {
    run(Isa::detect(), (input, gates), net, (state, layer), rows)
}

/// [`recurrence`] with one instruction set.
fn run(
    isa: Isa,
    (input, gates): (&Tensor, &Tensor),
    net: &Recurrence,
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
    // Every head has read what the last step kept.
    let (width, channels) = (dims.width(), dims.channels());
    let save = |token: usize, kept: &mut [f32]| {
        kept.copy_from_slice(&input[token * width..][..channels]);
    };
    let of_step = SaveInputs { dims: dims.into(), input: &save, sequences: &sequences };
    layer.inputs.inplace_op1(&of_step)?;
    from_vec(out, &[tokens, dims.values()])
}

/// A checked step, which changes the matrices of one layer.
struct Step<'a> {
    isa: Isa,
    net: &'a Recurrence,
    weights: &'a Weights<'a>,
    /// `[tokens, width]`.
    input: &'a [f32],
    /// `[tokens, gates]`.
    gates: &'a [f32],
    sequences: &'a [Sequence],
    /// `[slots, kernel - 1, channels]`: the inputs before this step's.
    kept: &'a [f32],
    /// `[tokens, values]`, when it is done.
    out: OnceLock<Vec<f32>>,
}

impl InplaceOp1 for Step<'_> {
    fn name(&self) -> &'static str {
        KERNEL
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let matrices = state::elements(storage, layout)?;
        self.out.get_or_init(|| self.run(matrices));
        Ok(())
    }
}

impl Step<'_> {
    /// The results `[tokens, values]`; `matrices` are those of all slots.
    fn run(&self, matrices: &mut [f32]) -> Vec<f32> {
        let (dims, gates) = (self.net.dims, self.net.gates());
        let zeros = vec![0.0; dims.kept()];
        let len = self.gates.len() / gates * dims.values();
        let mut out = Vec::with_capacity(len);
        let shared_out = SharedMut::new(&mut out.spare_capacity_mut()[..len]);
        let matrices = SharedMut::of(matrices);
        // Neighbours that have the same keys share the work for them, as many as leave each thread some of these.
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
