//! The recurrent state: memory of sequences between steps in layers without attention.

use std::ops::Range;

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Tensor};

use crate::{ConvDims, Error, LinearAttentionDims, Result};

/// The dimensions of a [`RecurrentState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateConfig {
    /// Layers that have a state.
    pub num_layers: usize,
    /// Number of sequences that have a state at the same time.
    pub num_slots: usize,
    /// Dimensions of every layer's state.
    pub dims: StateDims,
}

/// Kinds of layers with a recurrent state, with their dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateDims {
    /// Linear attention or an SSM, which keeps the inputs of its convolution and a matrix for each head.
    LinearAttention(LinearAttentionDims),
    /// A gated short convolution, which keeps its inputs.
    Conv(ConvDims),
}

impl From<LinearAttentionDims> for StateDims {
    fn from(dims: LinearAttentionDims) -> Self {
        Self::LinearAttention(dims)
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
            Self::LinearAttention(dims) => dims.check(),
            Self::Conv(dims) => dims.check(),
        }
    }

    /// Length of the convolution's kernel, and number of channels.
    fn conv(&self) -> (usize, usize) {
        match self {
            Self::LinearAttention(dims) => (dims.kernel, dims.channels()),
            Self::Conv(dims) => (dims.kernel, dims.channels),
        }
    }

    /// Number of heads, elements of a key and elements of a value of the matrices.
    fn heads(&self) -> Option<[usize; 3]> {
        match self {
            Self::LinearAttention(dims) => Some([dims.value_heads, dims.key_dim, dims.value_dim]),
            Self::Conv(_) => None,
        }
    }

    /// Number of elements of the conv state of a sequence: `[kernel - 1, channels]`.
    #[must_use]
    pub fn kept(&self) -> usize {
        let (kernel, channels) = self.conv();
        (kernel - 1) * channels
    }

    /// Number of elements of a sequence's state matrices.
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
        // A step's operands have slots of 32 bits.
        if u32::try_from(self.num_slots).is_err() {
            let (parameter, value) = ("num_slots", self.num_slots);
            return Err(Error::Parameter { parameter, value, expected: "an integer of 32 bits" });
        }
        Ok(())
    }

    /// Fails unless the layers have the dimensions `dims`.
    ///
    /// # Errors
    /// They have others.
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

    /// Dimensions of a layer's conv state, and of its matrices if it has some.
    #[must_use]
    pub fn layer_dims(&self) -> ([usize; 3], Option<[usize; 4]>) {
        let (kernel, channels) = self.dims.conv();
        let matrices = self
            .dims
            .heads()
            .map(|[heads, key_dim, value_dim]| [self.num_slots, heads, key_dim, value_dim]);
        ([self.num_slots, kernel - 1, channels], matrices)
    }

    /// A layer of zeros: its conv state in `dtype`, and its matrices if it has some.
    ///
    /// # Errors
    /// The memory does not suffice.
    pub fn zeros(&self, dtype: DType, device: &Device) -> Result<(Tensor, Option<Tensor>)> {
        let (inputs, matrices) = self.layer_dims();
        let matrices = matrices.map(|dims| Tensor::zeros(&dims, DType::F32, device)).transpose()?;
        Ok((Tensor::zeros(&inputs, dtype, device)?, matrices))
    }

    /// The layer `layer` of `layers`.
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

/// Assignment of a step's tokens to sequences, and the slots of their states.
#[derive(Clone, Copy, Debug)]
pub struct StateRows<'a> {
    /// `[seqs + 1]`: sequence `i` has the tokens `query_start[i]..query_start[i + 1]`.
    pub query_start: &'a [u32],
    /// `[seqs]`: number of a sequence's tokens so far, this step's included. If all of them are this step's, the
    /// sequence starts with a state of zeros, whatever its slot holds.
    pub context_len: &'a [u32],
    /// `[seqs]`: slot of the sequence's state. No two sequences have the same.
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
    /// The sequences that have tokens, after a check of all fields.
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
            let expected = "one more than that of slots, and the first entry 0";
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
                return refuse("query_start", end, "at least the entry before it");
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
            // A sequence without tokens keeps its state.
            if start < end {
                let begins = context_len == end - start;
                sequences.push(Sequence { tokens: start..end, slot, begins });
            }
        }
        Ok(sequences)
    }
}

/// The recurrent states of all layers for `num_slots` sequences, in f32.
///
/// The memory is reserved at once, and the system provides pages when they are first written. Writing goes through
/// `&self`, like with any candle tensor: each tensor is locked while it is written.
#[derive(Debug)]
pub struct RecurrentState {
    config: StateConfig,
    layers: Vec<StateLayer>,
}

/// The states of one layer.
#[derive(Debug)]
pub(crate) struct StateLayer {
    /// Conv state, `[num_slots, kernel - 1, channels]`: the convolution's inputs of the newest tokens, the oldest
    /// first.
    pub(crate) inputs: Tensor,
    /// State matrices, `[num_slots, value_heads, key_dim, value_dim]`.
    matrices: Option<Tensor>,
}

impl StateLayer {
    /// The matrices of a linear-attention or SSM layer.
    pub(crate) fn matrices(&self) -> &Tensor {
        self.matrices.as_ref().expect("linear attention and SSMs have matrices")
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

    /// The dimensions of the states.
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

/// Copies whole states `(source, destination)` in all layers, in order. It is used when a sequence continues from
/// another one's state.
///
/// # Errors
/// There is no such slot.
pub fn copy_states(state: &RecurrentState, copies: &[(u32, u32)]) -> Result<()> {
    let StateConfig { num_slots: bound, dims, .. } = state.config;
    // Checked before the first copy, so that a refused call changes nothing.
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

/// Checked copies between slots in one tensor, `len` elements each.
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

/// Updates the conv state of each sequence of a checked step with its newest inputs.
pub(crate) struct SaveInputs<'a> {
    pub(crate) dims: StateDims,
    /// Writes the convolution's inputs of one of the step's tokens.
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
            // Inputs that are still needed move to the front.
            kept.copy_within(new * channels.., 0);
            let (older, newest) = kept.split_at_mut(len - new * channels);
            // A new sequence has no older inputs, but its slot may hold another's.
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
