//! What layers keep of each sequence between steps, on a device.

use candle_core::{DType, Device, Tensor};

use super::launch_on_gpu;
use super::reference::Reference;
use crate::{Error, RecurrenceDims, Result, StateConfig, StateDims};

/// The elements of a key that the kernel is compiled for: a thread keeps a column of a state, as many numbers.
pub const RECURRENT_KEY_DIMS: &[usize] = &[32, 64, 128];

/// A block has a thread for each element of a value, at most so many.
const MOST_VALUE_DIM: usize = 256;

/// The states of all layers for `num_slots` sequences, as [`crate::RecurrentState`] has them, but that inputs are in the dtype of
/// activations. Cloning shares the memory.
#[derive(Clone, Debug)]
pub struct StatePool {
    config: StateConfig,
    layers: Vec<PoolLayer>,
}

/// The states of one layer.
#[derive(Clone, Debug)]
pub(crate) struct PoolLayer {
    /// `[num_slots, kernel - 1, channels]`: what the convolution is over of the newest tokens, the oldest first.
    pub(crate) inputs: Tensor,
    /// f32 `[num_slots, value_heads, key_dim, value_dim]`.
    pub(crate) matrices: Option<Tensor>,
}

impl PoolLayer {
    /// Those of a recurrence.
    pub(crate) fn matrices(&self) -> &Tensor {
        self.matrices.as_ref().expect("recurrences have matrices")
    }
}

pub(crate) const INPUTS_AXES: &str = "[num_slots, kernel - 1, channels]";
pub(crate) const MATRICES_AXES: &str = "[num_slots, value_heads, key_dim, value_dim]";

impl StatePool {
    /// Zeros for every slot, beside activations of `dtype`: bf16 or f16 on a GPU, and f32 too on the CPU.
    ///
    /// # Errors
    /// A dimension is zero or not the required multiple; `key_dim` is none of [`RECURRENT_KEY_DIMS`]; `value_dim` is above
    /// 256; the dtype is another one; memory does not suffice.
    pub fn new(config: StateConfig, dtype: DType, device: &Device) -> Result<Self> {
        config.check()?;
        if let StateDims::Recurrence(RecurrenceDims { key_dim, value_dim, .. }) = config.dims {
            if !RECURRENT_KEY_DIMS.contains(&key_dim) {
                let (parameter, expected) = ("key_dim", "32, 64 or 128 on a GPU");
                return Err(Error::Parameter { parameter, value: key_dim, expected });
            }
            if value_dim > MOST_VALUE_DIM {
                let (parameter, expected) = ("value_dim", "at most 256 on a GPU");
                return Err(Error::Parameter { parameter, value: value_dim, expected });
            }
        }
        let definitions_only = dtype == DType::F32 && device.is_cpu();
        if !matches!(dtype, DType::BF16 | DType::F16) && !definitions_only {
            return Err(Error::DType {
                kernel: "state_pool",
                operand: "dtype",
                expected: "bf16 or f16",
                found: dtype,
            });
        }
        let layer = || -> Result<PoolLayer> {
            let (inputs, matrices) = config.zeros(dtype, device)?;
            Ok(PoolLayer { inputs, matrices })
        };
        let layers = (0..config.num_layers).map(|_| layer()).collect::<Result<_>>()?;
        Ok(Self { config, layers })
    }

    /// The dimensions it was made with.
    #[must_use]
    pub fn config(&self) -> &StateConfig {
        &self.config
    }

    pub(crate) fn layer(&self, kernel: &'static str, layer: usize) -> Result<&PoolLayer> {
        self.config.layer(kernel, &self.layers, layer)
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn layers(&self) -> &[PoolLayer] {
        &self.layers
    }
}

/// Which tokens of a step belong to which sequence, and where its state is, on the device.
#[derive(Clone, Copy, Debug)]
pub struct StateTables<'a> {
    /// u32 `[seqs + 1]`: sequence `i` has the tokens `query_start[i]..query_start[i + 1]`.
    pub query_start: &'a Tensor,
    /// u32 `[seqs]`: where its state is; no two have the same, but [`NO_SLOT`](super::NO_SLOT).
    pub slots: &'a Tensor,
    /// u32 `[tokens]`. A sequence whose first token here is at position 0 begins, and what its slot held does not count.
    pub positions: &'a Tensor,
}

/// Copies whole states in all layers. `pairs` is u32 `[count, 2]`, source and destination of each; no destination may be a source
/// or named twice. A pair with a slot that is not there is left out. The CPU's counterpart is [`crate::copy_states`], which copies
/// in order.
///
/// # Errors
/// `pairs` has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn copy_states(pool: &StatePool, pairs: &Tensor) -> Result<()> {
    const KERNEL: &str = "copy_states";
    launch_on_gpu!(pairs, crate::cuda::copy_states(pool, pairs));
    let count = pairs.elem_count() / 2;
    let pairs = Reference::integers(KERNEL).u32s(("pairs", pairs), "[count, 2]", &[count, 2])?;
    let slots = pool.config.num_slots;
    let pairs = pairs.chunks(2).map(|pair| (pair[0] as usize, pair[1] as usize));
    let pairs: Vec<_> = pairs.filter(|pair| pair.0 < slots && pair.1 < slots).collect();
    let (inputs_dims, matrices_dims) = pool.config.layer_dims();
    for layer in &pool.layers {
        let matrices = layer.matrices.as_ref().zip(matrices_dims.as_ref());
        let matrices = matrices.map(|(tensor, dims)| (tensor, MATRICES_AXES, &dims[..]));
        let inputs = (&layer.inputs, INPUTS_AXES, &inputs_dims[..]);
        for (tensor, axes, dims) in std::iter::once(inputs).chain(matrices) {
            let reference = Reference::of_cache(KERNEL, tensor);
            let mut numbers = reference.elements(("state", tensor), axes, dims)?;
            let len = numbers.len() / slots.max(1);
            for &(source, destination) in &pairs {
                numbers.copy_within(source * len..(source + 1) * len, destination * len);
            }
            reference.write(("state", tensor), axes, dims, &numbers)?;
        }
    }
    Ok(())
}
