//! Gated delta nets: linear attention whose memory of a sequence is one matrix per head, which each token corrects.

mod columns;
mod heads;
mod reference;
mod state;
#[cfg(test)]
mod tests;

pub use self::reference::{DeltaState, gated_delta_net_reference};
pub use self::state::{RecurrentState, StateConfig, copy_states};

use std::ops::Range;
use std::sync::OnceLock;

use candle_core::{CpuStorage, InplaceOp1, Layout, Tensor};

use self::heads::{Heads, Scratch};
use self::state::SaveInputs;
use crate::parallel::SharedMut;
use crate::simd::Isa;
use crate::tensor::{CpuSlice, Operand, from_vec};
use crate::{Error, Result, parallel, threads};

const KERNEL: &str = "gated_delta_net";

/// The heads of a layer, and its convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaDims {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, each with a state of its own: a multiple of `key_heads`. As many neighbours have the same keys.
    pub value_heads: usize,
    /// Elements of a query or a key, a multiple of 16.
    pub key_dim: usize,
    /// Elements of a value, a multiple of 16.
    pub value_dim: usize,
    /// Taps of the convolution, the newest token's among them: 2 to 8.
    pub kernel: usize,
}

impl DeltaDims {
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

    /// Numbers of a token's gates: `b`, then `a` of each value head.
    #[must_use]
    pub fn gates(&self) -> usize {
        2 * self.value_heads
    }

    /// Numbers of a token's keys.
    pub(crate) fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Numbers of a sequence's inputs that are kept: `[kernel - 1, channels]`.
    pub(crate) fn kept(&self) -> usize {
        (self.kernel - 1) * self.channels()
    }

    /// Numbers of a sequence's matrices: `[value_heads, key_dim, value_dim]`.
    pub(crate) fn matrices(&self) -> usize {
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

/// The weights of one layer, f32 on every device.
#[derive(Clone, Debug)]
pub struct DeltaNet {
    /// Its heads.
    pub dims: DeltaDims,
    /// `[channels, kernel]`: the taps of each channel, the oldest token's first.
    pub conv: Tensor,
    /// `[value_heads]`: the logarithm of how fast a state is forgotten.
    pub a_log: Tensor,
    /// `[value_heads]`: what is added to `a`.
    pub dt_bias: Tensor,
    /// `[value_dim]`: the weight of the norm of each head's result.
    pub norm: Tensor,
    /// Added to the mean square in that norm.
    pub eps: f32,
}

/// What is read of a [`DeltaNet`] on the CPU.
struct Weights<'a> {
    conv: CpuSlice<'a, f32>,
    a_log: CpuSlice<'a, f32>,
    dt_bias: CpuSlice<'a, f32>,
    norm: CpuSlice<'a, f32>,
}

impl DeltaNet {
    fn weights(&self) -> Result<Weights<'_>> {
        let DeltaDims { value_heads, value_dim, kernel, .. } = self.dims;
        let read = |name, tensor, axes, dims: &[usize]| {
            let operand = Operand::new(KERNEL, name, tensor);
            operand.expect_dims(axes, dims)?;
            operand.f32s()
        };
        let channels = self.dims.channels();
        Ok(Weights {
            conv: read("conv", &self.conv, "[channels, kernel]", &[channels, kernel])?,
            a_log: read("a_log", &self.a_log, "[value_heads]", &[value_heads])?,
            dt_bias: read("dt_bias", &self.dt_bias, "[value_heads]", &[value_heads])?,
            norm: read("norm", &self.norm, "[value_dim]", &[value_dim])?,
        })
    }
}

/// Which tokens of a step belong to which sequence, and where its state is.
#[derive(Clone, Copy, Debug)]
pub struct StateRows<'a> {
    /// `[seqs + 1]`: sequence `i` has the tokens `query_start[i]..query_start[i + 1]`.
    pub query_start: &'a [u32],
    /// `[seqs]`: its tokens so far, this step's included. Where all are this step's it begins, and what its slot held does not count.
    pub context_len: &'a [u32],
    /// `[seqs]`: where its state is. No two have the same.
    pub slots: &'a [u32],
}

/// One sequence of a step.
#[derive(Clone, Debug)]
struct Sequence {
    tokens: Range<usize>,
    slot: usize,
    begins: bool,
}

impl StateRows<'_> {
    /// The sequences that have tokens, after checking all of it.
    fn sequences(&self, tokens: usize, num_slots: usize) -> Result<Vec<Sequence>> {
        let refuse =
            |parameter, value, expected| Err(Error::Parameter { parameter, value, expected });
        let seqs = self.slots.len();
        if self.query_start.len() != seqs + 1 || self.query_start[0] != 0 {
            let expected = "one number more than slots, of which the first is 0";
            return refuse("the length of query_start", self.query_start.len(), expected);
        }
        if self.query_start[seqs] as usize != tokens {
            let last = self.query_start[seqs] as usize;
            return refuse("the end of query_start", last, "the number of tokens");
        }
        if self.context_len.len() != seqs {
            return refuse("the length of context_len", self.context_len.len(), "that of slots");
        }
        let mut taken = vec![false; num_slots];
        let mut sequences = Vec::with_capacity(seqs);
        for (seq, &slot) in self.slots.iter().enumerate() {
            let (start, end) = (self.query_start[seq] as usize, self.query_start[seq + 1] as usize);
            if start > end {
                return refuse("query_start", end, "at least the number before it");
            }
            let context_len = self.context_len[seq] as usize;
            if context_len < end - start {
                return refuse("context_len", context_len, "at least the sequence's tokens");
            }
            let slot = slot as usize;
            let Some(taken) = taken.get_mut(slot) else {
                return Err(Error::OutOfRange {
                    kernel: KERNEL,
                    index: "slot",
                    value: slot,
                    bound: num_slots,
                });
            };
            if std::mem::replace(taken, true) {
                return refuse("slot", slot, "the slot of one sequence only");
            }
            if start < end {
                let begins = context_len == end - start;
                sequences.push(Sequence { tokens: start..end, slot, begins });
            }
        }
        Ok(sequences)
    }
}

/// One layer for the tokens of a step, each of which changes the state of its sequence in `state`.
///
/// `input` is f32 `[tokens, width]`: queries, keys, values and the gates `z` of each token, and `gates` f32
/// `[tokens, 2 * value_heads]`: its `b`, then its `a`. Queries, keys and values go through a causal convolution over their
/// sequence's tokens and silu; queries and keys are then normalised. A head's state `S` `[key_dim, value_dim]` is
/// `S = exp(g) S`, then `S = S + k (beta (v - S^T k))^T`, where `beta = sigmoid(b)` and
/// `g = -exp(a_log) softplus(a + dt_bias)`; of its result `S^T q` the RMS norm is taken, times `silu(z)`. Returns
/// `[tokens, values]`.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device; `net` has other dimensions than `state`; there is no such layer;
/// `rows` contradict themselves or the operands, name a slot that is not there, or one twice.
///
/// Source: Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024, arXiv 2412.06464.
pub fn gated_delta_net(
    input: &Tensor,
    gates: &Tensor,
    net: &DeltaNet,
    state: &RecurrentState,
    layer: usize,
    rows: &StateRows<'_>,
) -> Result<Tensor> {
    run(Isa::detect(), (input, gates), net, (state, layer), rows)
}

/// [`gated_delta_net`] with one instruction set.
fn run(
    isa: Isa,
    (input, gates): (&Tensor, &Tensor),
    net: &DeltaNet,
    (state, layer): (&RecurrentState, usize),
    rows: &StateRows<'_>,
) -> Result<Tensor> {
    let dims = net.dims;
    let input = Operand::new(KERNEL, "input", input);
    let gates = Operand::new(KERNEL, "gates", gates);
    let (tokens, _) = input.dims2("[tokens, width]")?;
    input.expect_dims("[tokens, width]", &[tokens, dims.width()])?;
    gates.expect_dims("[tokens, 2 * value_heads]", &[tokens, dims.gates()])?;
    state.config().check_dims(&dims)?;
    let sequences = rows.sequences(tokens, state.config().num_slots)?;
    let layer = state.layer(layer)?;
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
        layer.matrices.inplace_op1(&step)?;
        step.out.into_inner().expect("the operation has run")
    };
    // Every head has read what the last step kept.
    layer.inputs.inplace_op1(&SaveInputs { dims, input: &input, sequences: &sequences })?;
    from_vec(out, &[tokens, dims.values()])
}

/// A checked step, which changes the matrices of one layer.
struct Step<'a> {
    isa: Isa,
    net: &'a DeltaNet,
    weights: &'a Weights<'a>,
    /// `[tokens, width]`.
    input: &'a [f32],
    /// `[tokens, 2 * value_heads]`.
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
        let dims = self.net.dims;
        let zeros = vec![0.0; dims.kept()];
        let len = self.gates.len() / dims.gates() * dims.values();
        let mut out = Vec::with_capacity(len);
        let shared_out = SharedMut::new(&mut out.spare_capacity_mut()[..len]);
        let matrices = SharedMut::of(matrices);
        // Heads that have the same keys share the work for them, where each thread gets some of these.
        let shares_keys = dims.key_heads >= 2 * threads::available();
        let together = if shares_keys { dims.value_heads / dims.key_heads } else { 1 };
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
                    gates: &self.gates[tokens.start * dims.gates()..tokens.end * dims.gates()],
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
