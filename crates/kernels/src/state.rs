//! What gated delta nets keep of each sequence between steps.

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Tensor};

use super::{DeltaDims, KERNEL, Sequence};
use crate::{Error, Result};

/// The dimensions of a [`RecurrentState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateConfig {
    /// Layers that have a state.
    pub num_layers: usize,
    /// Sequences that have one at the same time.
    pub num_slots: usize,
    /// The heads of every layer.
    pub dims: DeltaDims,
}

impl StateConfig {
    pub(crate) fn check(&self) -> Result<()> {
        self.dims.check()?;
        if u32::try_from(self.num_slots).is_err() {
            let (parameter, value) = ("num_slots", self.num_slots);
            return Err(Error::Parameter { parameter, value, expected: "a number of 32 bits" });
        }
        Ok(())
    }

    /// Fails unless the heads are these.
    pub(crate) fn check_dims(&self, dims: &DeltaDims) -> Result<()> {
        if self.dims == *dims {
            return Ok(());
        }
        let of = |dims: &DeltaDims| {
            [dims.key_heads, dims.value_heads, dims.key_dim, dims.value_dim, dims.kernel]
        };
        Err(Error::Shape {
            kernel: KERNEL,
            operand: "net",
            expected: format!(
                "[key_heads, value_heads, key_dim, value_dim, kernel] = {:?}",
                of(&self.dims)
            ),
            found: of(dims).to_vec(),
        })
    }

    /// The dimensions of a layer's inputs and matrices.
    pub(crate) fn layer_dims(&self) -> ([usize; 3], [usize; 4]) {
        let DeltaDims { value_heads, key_dim, value_dim, kernel, .. } = self.dims;
        (
            [self.num_slots, kernel - 1, self.dims.channels()],
            [self.num_slots, value_heads, key_dim, value_dim],
        )
    }

    /// The layer `layer` of as many.
    pub(crate) fn layer<'a, T>(&self, layers: &'a [T], layer: usize) -> Result<&'a T> {
        layers.get(layer).ok_or(Error::OutOfRange {
            kernel: KERNEL,
            index: "layer",
            value: layer,
            bound: self.num_layers,
        })
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
pub(super) struct StateLayer {
    /// `[num_slots, kernel - 1, channels]`: the newest tokens' queries, keys and values before the convolution, the oldest first.
    pub(super) inputs: Tensor,
    /// `[num_slots, value_heads, key_dim, value_dim]`.
    pub(super) matrices: Tensor,
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
        let (inputs, matrices) = config.layer_dims();
        let layer = || -> Result<StateLayer> {
            Ok(StateLayer {
                inputs: Tensor::zeros(&inputs, DType::F32, device)?,
                matrices: Tensor::zeros(&matrices, DType::F32, device)?,
            })
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

    pub(super) fn layer(&self, layer: usize) -> Result<&StateLayer> {
        self.config.layer(&self.layers, layer)
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
        layer.matrices.inplace_op1(&Copy { len: dims.matrices(), copies })?;
    }
    Ok(())
}

/// The elements of a state's tensor.
pub(super) fn elements<'a>(
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
pub(super) struct SaveInputs<'a> {
    pub(super) dims: DeltaDims,
    /// `[tokens, width]`.
    pub(super) input: &'a [f32],
    pub(super) sequences: &'a [Sequence],
}

impl InplaceOp1 for SaveInputs<'_> {
    fn name(&self) -> &'static str {
        KERNEL
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let data = elements(storage, layout)?;
        let (channels, width, len) = (self.dims.channels(), self.dims.width(), self.dims.kept());
        for Sequence { tokens, slot, begins } in self.sequences {
            let kept = &mut data[slot * len..][..len];
            let new = tokens.len().min(self.dims.kernel - 1);
            // What is not replaced moves to the front.
            kept.copy_within(new * channels.., 0);
            let (older, newest) = kept.split_at_mut(len - new * channels);
            if *begins {
                older.fill(0.0);
            }
            let rows = self.input[(tokens.end - new) * width..].chunks_exact(width);
            for (kept, row) in newest.chunks_exact_mut(channels).zip(rows) {
                kept.copy_from_slice(&row[..channels]);
            }
        }
        Ok(())
    }
}
