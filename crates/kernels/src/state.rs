//! What layers without attention keep of each sequence between steps.

use std::ops::Range;

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Tensor};

use crate::{ConvDims, Error, RecurrenceDims, Result};

/// The dimensions of a [`RecurrentState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateConfig {
    /// Layers that have a state.
    pub num_layers: usize,
    /// Sequences that have one at the same time.
    pub num_slots: usize,
    /// Those of every layer.
    pub dims: StateDims,
}

/// What a layer is that keeps a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateDims {
    /// A recurrence over matrices, which keeps inputs of its convolution and a matrix of each head.
    Recurrence(RecurrenceDims),
    /// A gated short convolution, which keeps its inputs.
    Conv(ConvDims),
}

impl From<RecurrenceDims> for StateDims {
    fn from(dims: RecurrenceDims) -> Self {
        Self::Recurrence(dims)
    }
}

impl From<ConvDims> for StateDims {
    fn from(dims: ConvDims) -> Self {
        Self::Conv(dims)
    }
}

impl StateDims {
    fn check(&self) -> Result<()> {
        match self {
            Self::Recurrence(dims) => dims.check(),
            Self::Conv(dims) => dims.check(),
        }
    }

    /// Taps of the convolution, and numbers of an input.
    fn conv(&self) -> (usize, usize) {
        match self {
            Self::Recurrence(dims) => (dims.kernel, dims.channels()),
            Self::Conv(dims) => (dims.kernel, dims.channels),
        }
    }

    /// Heads, elements of a key and elements of a value of the matrices.
    fn heads(&self) -> Option<[usize; 3]> {
        match self {
            Self::Recurrence(dims) => Some([dims.value_heads, dims.key_dim, dims.value_dim]),
            Self::Conv(_) => None,
        }
    }

    /// Numbers of a sequence's inputs that are kept: `[kernel - 1, channels]`.
    #[must_use]
    pub fn kept(&self) -> usize {
        let (kernel, channels) = self.conv();
        (kernel - 1) * channels
    }

    /// Numbers of a sequence's matrices.
    #[must_use]
    pub fn matrices(&self) -> usize {
        self.heads().map_or(0, |heads| heads.iter().product())
    }
}

impl StateConfig {
    /// Checks the dimensions.
    ///
    /// # Errors
    /// One is zero or not the required multiple, or there are too many slots.
    pub fn check(&self) -> Result<()> {
        self.dims.check()?;
        if u32::try_from(self.num_slots).is_err() {
            let (parameter, value) = ("num_slots", self.num_slots);
            return Err(Error::Parameter { parameter, value, expected: "a number of 32 bits" });
        }
        Ok(())
    }

    /// Fails unless the layers are these.
    ///
    /// # Errors
    /// They are others.
    pub fn check_dims(&self, kernel: &'static str, dims: StateDims) -> Result<()> {
        if self.dims == dims {
            return Ok(());
        }
        let of = |dims: &StateDims| {
            let (kernel, channels) = dims.conv();
            [kernel, channels].into_iter().chain(dims.heads().into_iter().flatten()).collect()
        };
        let expected: Vec<usize> = of(&self.dims);
        Err(Error::Shape {
            kernel,
            operand: "net",
            expected: format!("[kernel, channels, heads, key_dim, value_dim] = {expected:?}"),
            found: of(&dims),
        })
    }

    /// The dimensions of a layer's inputs, and of its matrices where it has them.
    #[must_use]
    pub fn layer_dims(&self) -> ([usize; 3], Option<[usize; 4]>) {
        let (kernel, channels) = self.dims.conv();
        let matrices = self
            .dims
            .heads()
            .map(|[heads, key_dim, value_dim]| [self.num_slots, heads, key_dim, value_dim]);
        ([self.num_slots, kernel - 1, channels], matrices)
    }

    /// Zeros of one layer: its inputs in `dtype`, and its matrices where it has them.
    ///
    /// # Errors
    /// Memory does not suffice.
    pub fn zeros(&self, dtype: DType, device: &Device) -> Result<(Tensor, Option<Tensor>)> {
        let (inputs, matrices) = self.layer_dims();
        let matrices = matrices.map(|dims| Tensor::zeros(&dims, DType::F32, device)).transpose()?;
        Ok((Tensor::zeros(&inputs, dtype, device)?, matrices))
    }

    /// The layer `layer` of as many.
    ///
    /// # Errors
    /// There is no such layer.
    pub fn layer<'a, T>(
        &self,
        kernel: &'static str,
        layers: &'a [T],
        layer: usize,
    ) -> Result<&'a T> {
        layers.get(layer).ok_or(Error::OutOfRange {
            kernel,
            index: "layer",
            value: layer,
            bound: self.num_layers,
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
pub(crate) struct Sequence {
    pub(crate) tokens: Range<usize>,
    pub(crate) slot: usize,
    pub(crate) begins: bool,
}

impl StateRows<'_> {
    /// The sequences that have tokens, after checking all of it.
    pub(crate) fn sequences(
        &self,
        kernel: &'static str,
        tokens: usize,
        num_slots: usize,
    ) -> Result<Vec<Sequence>> {
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
                    kernel,
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

/// The states of all layers for `num_slots` sequences, in f32.
///
/// The memory is reserved at once and touched only when used. Writing goes through `&self`, as with any candle tensor: each tensor
/// is locked while it is written.
#[derive(Debug)]
pub struct RecurrentState {
    config: StateConfig,
    layers: Vec<StateLayer>,
}

/// The states of one layer.
#[derive(Debug)]
pub(crate) struct StateLayer {
    /// `[num_slots, kernel - 1, channels]`: what the convolution is over of the newest tokens, the oldest first.
    pub(crate) inputs: Tensor,
    /// `[num_slots, value_heads, key_dim, value_dim]`.
    matrices: Option<Tensor>,
}

impl StateLayer {
    /// Those of a recurrence.
    pub(crate) fn matrices(&self) -> &Tensor {
        self.matrices.as_ref().expect("recurrences have matrices")
    }
}

impl RecurrentState {
    /// Zeros for every slot.
    ///
    /// # Errors
    /// A dimension is zero or not the required multiple, the device is not the CPU, or candle could not allocate.
    pub fn new(config: StateConfig, device: &Device) -> Result<Self> {
        config.check()?;
        if !matches!(device, Device::Cpu) {
            return Err(Error::UnsupportedDevice {
                kernel: "recurrent_state",
                operand: "device",
                device: device.location(),
            });
        }
        let layer = || -> Result<StateLayer> {
            let (inputs, matrices) = config.zeros(DType::F32, device)?;
            Ok(StateLayer { inputs, matrices })
        };
        let layers = (0..config.num_layers).map(|_| layer()).collect::<Result<_>>()?;
        Ok(Self { config, layers })
    }

    /// The dimensions it was made with.
    #[must_use]
    pub fn config(&self) -> &StateConfig {
        &self.config
    }

    /// Bytes reserved, all layers together.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        let StateConfig { num_layers, num_slots, dims } = self.config;
        num_layers * num_slots * (dims.kept() + dims.matrices()) * size_of::<f32>()
    }

    pub(crate) fn layer(&self, kernel: &'static str, layer: usize) -> Result<&StateLayer> {
        self.config.layer(kernel, &self.layers, layer)
    }
}

/// Copies whole states `(source, destination)` in all layers, in order. Used when a sequence goes on from where another is.
///
/// # Errors
/// A slot is not there.
pub fn copy_states(state: &RecurrentState, copies: &[(u32, u32)]) -> Result<()> {
    let StateConfig { num_slots: bound, dims, .. } = state.config;
    for slot in copies.iter().flat_map(|&(source, destination)| [source, destination]) {
        let value = slot as usize;
        if value >= bound {
            return Err(Error::OutOfRange { kernel: "copy_states", index: "slot", value, bound });
        }
    }
    if copies.is_empty() {
        return Ok(());
    }
    for layer in &state.layers {
        layer.inputs.inplace_op1(&Copy { len: dims.kept(), copies })?;
        if let Some(matrices) = &layer.matrices {
            matrices.inplace_op1(&Copy { len: dims.matrices(), copies })?;
        }
    }
    Ok(())
}

/// The elements of a state's tensor.
pub(crate) fn elements<'a>(
    storage: &'a mut CpuStorage,
    layout: &Layout,
) -> candle_core::Result<&'a mut [f32]> {
    let (start, end) = layout
        .contiguous_offsets()
        .ok_or(candle_core::Error::RequiresContiguous { op: "recurrent_state" })?;
    match storage {
        CpuStorage::F32(data) => Ok(&mut data[start..end]),
        _ => unreachable!("RecurrentState::new makes tensors of no other dtype"),
    }
}

/// Checked copies of what slots have in one tensor, `len` numbers each.
struct Copy<'a> {
    len: usize,
    copies: &'a [(u32, u32)],
}

impl InplaceOp1 for Copy<'_> {
    fn name(&self) -> &'static str {
        "copy_states"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let data = elements(storage, layout)?;
        for &(source, destination) in self.copies {
            let source = source as usize * self.len;
            data.copy_within(source..source + self.len, destination as usize * self.len);
        }
        Ok(())
    }
}

/// Keeps the newest inputs of each sequence of a checked step.
pub(crate) struct SaveInputs<'a> {
    pub(crate) dims: StateDims,
    /// Writes what the convolution is over of one of the step's tokens.
    pub(crate) input: &'a dyn Fn(usize, &mut [f32]),
    pub(crate) sequences: &'a [Sequence],
}

impl InplaceOp1 for SaveInputs<'_> {
    fn name(&self) -> &'static str {
        "save_inputs"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let data = elements(storage, layout)?;
        let ((kernel, channels), len) = (self.dims.conv(), self.dims.kept());
        for Sequence { tokens, slot, begins } in self.sequences {
            let kept = &mut data[slot * len..][..len];
            let new = tokens.len().min(kernel - 1);
            // What is not replaced moves to the front.
            kept.copy_within(new * channels.., 0);
            let (older, newest) = kept.split_at_mut(len - new * channels);
            if *begins {
                older.fill(0.0);
            }
            for (token, kept) in (tokens.end - new..).zip(newest.chunks_exact_mut(channels)) {
                (self.input)(token, kept);
            }
        }
        Ok(())
    }
}
