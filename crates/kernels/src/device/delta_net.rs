//! Gated delta nets, and the states of their sequences on a device.

use candle_core::{DType, Device, Tensor};

use super::reference::Reference;
use super::{NO_SLOT, launch_on_gpu};
use crate::tensor::Operand;
use crate::{
    DeltaDims, DeltaNet, DeltaState, Error, Result, StateConfig, StateDims,
    gated_delta_net_reference, sigmoid_gate_reference,
};

/// The elements of a key that the kernel is compiled for: a thread keeps a column of a state, as many numbers.
pub const DELTA_KEY_DIMS: &[usize] = &[32, 64, 128];

/// A block has a thread for each element of a value: whole warps, at most so many threads.
const MOST_VALUE_DIM: usize = 256;
const WARP: usize = 32;

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
    /// Those of a delta net.
    pub(crate) fn matrices(&self) -> &Tensor {
        self.matrices.as_ref().expect("delta nets have matrices")
    }
}

pub(crate) const INPUTS_AXES: &str = "[num_slots, kernel - 1, channels]";
pub(crate) const MATRICES_AXES: &str = "[num_slots, value_heads, key_dim, value_dim]";

impl StatePool {
    /// Zeros for every slot, beside activations of `dtype`: bf16 or f16 on a GPU, and f32 too on the CPU.
    ///
    /// # Errors
    /// A dimension is zero or not the required multiple; `key_dim` is none of [`DELTA_KEY_DIMS`]; `value_dim` is not a multiple
    /// of 32, or above 256; the dtype is another one; memory does not suffice.
    pub fn new(config: StateConfig, dtype: DType, device: &Device) -> Result<Self> {
        config.check()?;
        if let StateDims::Delta(DeltaDims { key_dim, value_dim, .. }) = config.dims {
            if !DELTA_KEY_DIMS.contains(&key_dim) {
                let (parameter, expected) = ("key_dim", "32, 64 or 128 on a GPU");
                return Err(Error::Parameter { parameter, value: key_dim, expected });
            }
            if !value_dim.is_multiple_of(WARP) || value_dim > MOST_VALUE_DIM {
                let (parameter, expected) = ("value_dim", "a multiple of 32 up to 256 on a GPU");
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
    /// u32 `[seqs]`: where its state is; no two have the same, but [`NO_SLOT`].
    pub slots: &'a Tensor,
    /// u32 `[tokens]`. A sequence whose first token here is at position 0 begins, and what its slot held does not count.
    pub positions: &'a Tensor,
}

/// One layer for the tokens of a step, each of which changes the state of its sequence in `pool`; computed in f32.
///
/// `input` is `[tokens, width]`, `gates` `[tokens, 2 * value_heads]` and `out` `[tokens, values]`, bf16 or f16. The rows of a
/// sequence in [`NO_SLOT`], which pads a graph, become zeros. A slot that is not there makes NaN of its sequence's rows, and of a
/// sequence whose tokens are not among these nothing is written. The definition is [`crate::gated_delta_net_reference`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device; `net` has other dimensions than `pool`; there is no such layer; or
/// CUDA refused the launch.
///
/// Source: Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024, arXiv 2412.06464.
pub fn gated_delta_net(
    input: &Tensor,
    gates: &Tensor,
    net: &DeltaNet,
    pool: &StatePool,
    layer: usize,
    tables: &StateTables<'_>,
    out: &Tensor,
) -> Result<()> {
    launch_on_gpu!(
        input,
        crate::cuda::gated_delta_net((input, gates), net, (pool, layer), tables, out)
    );
    const KERNEL: &str = "gated_delta_net";
    let reference = Reference::new(KERNEL, "input", input)?;
    let dims = net.dims;
    pool.config.check_dims(KERNEL, dims.into())?;
    let layer = pool.layer(KERNEL, layer)?;
    let (tokens, _) = reference.operand("input", input).dims2("[tokens, width]")?;
    let seqs = tables.slots.elem_count();
    let (width, values) = (dims.width(), dims.values());
    let input = reference.elements(("input", input), "[tokens, width]", &[tokens, width])?;
    let gates_dims = [tokens, dims.gates()];
    let gates = reference.elements(("gates", gates), "[tokens, 2 * value_heads]", &gates_dims)?;
    let starts = ("query_start", tables.query_start);
    let starts = reference.u32s(starts, "[seqs + 1]", &[seqs + 1])?;
    let slots = reference.u32s(("slots", tables.slots), "[seqs]", &[seqs])?;
    let positions = reference.u32s(("positions", tables.positions), "[tokens]", &[tokens])?;
    let (inputs_dims, matrices_dims) = pool.config.layer_dims();
    let matrices_dims = matrices_dims.expect("delta nets have matrices");
    let mut inputs = reference.elements(("inputs", &layer.inputs), INPUTS_AXES, &inputs_dims)?;
    let matrices = ("matrices", layer.matrices());
    let mut matrices = reference.f32s(matrices, MATRICES_AXES, &matrices_dims)?;
    // Rows of no sequence stay as they are.
    let mut results = reference.elements(("out", out), "[tokens, values]", &[tokens, values])?;
    for (bounds, &slot) in starts.windows(2).zip(&slots) {
        let (start, end) = (bounds[0] as usize, bounds[1] as usize);
        if start >= end || end > tokens {
            continue;
        }
        let results = &mut results[start * values..end * values];
        if slot as usize >= pool.config.num_slots {
            results.fill(if slot == NO_SLOT { 0.0 } else { f32::NAN });
            continue;
        }
        let slot = slot as usize;
        let inputs = &mut inputs[slot * dims.kept()..][..dims.kept()];
        let matrices = &mut matrices[slot * dims.matrices()..][..dims.matrices()];
        let mut state = match positions[start] {
            0 => DeltaState::zeros(&dims),
            _ => DeltaState { inputs: inputs.to_vec(), matrices: matrices.to_vec() },
        };
        let rows = &input[start * width..end * width];
        let gates = &gates[start * dims.gates()..end * dims.gates()];
        results.copy_from_slice(&gated_delta_net_reference(rows, gates, net, &mut state)?);
        inputs.copy_from_slice(&state.inputs);
        matrices.copy_from_slice(&state.matrices);
    }
    reference.write(("inputs", &layer.inputs), INPUTS_AXES, &inputs_dims, &inputs)?;
    reference.write_f32s(
        ("matrices", layer.matrices()),
        MATRICES_AXES,
        &matrices_dims,
        &matrices,
    )?;
    reference.write(("out", out), "[tokens, values]", &[tokens, values], &results)
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

/// `x = x * sigmoid(gate)`, in f32 and rounded once. Both are bf16 or f16, `x` is `[rows, width]` and `gate` has its shape, or one
/// number for each row: `[rows, 1]`. The definition is [`crate::sigmoid_gate_reference`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn sigmoid_gate(x: &Tensor, gate: &Tensor) -> Result<()> {
    launch_on_gpu!(x, crate::cuda::sigmoid_gate(x, gate));
    let reference = Reference::new(SIGMOID_GATE, "x", x)?;
    let [rows, width, gates] = gate_dims(x, gate)?;
    let gate = reference.elements(("gate", gate), GATE_AXES, &[rows, gates])?;
    let values = reference.elements(("x", x), "[rows, width]", &[rows, width])?;
    let gated: Vec<f32> = values
        .chunks(width.max(1))
        .zip(gate.chunks(gates.max(1)))
        .flat_map(|(x, gate)| sigmoid_gate_reference(x, gate))
        .collect();
    reference.write(("x", x), "[rows, width]", &[rows, width], &gated)
}

pub(crate) const SIGMOID_GATE: &str = "sigmoid_gate";
pub(crate) const GATE_AXES: &str = "[rows, width] or [rows, 1]";

/// Rows and width of `x`, and the width that `gate` must have of the two it may.
pub(crate) fn gate_dims(x: &Tensor, gate: &Tensor) -> Result<[usize; 3]> {
    let (rows, width) = Operand::new(SIGMOID_GATE, "x", x).dims2("[rows, width]")?;
    let (_, gates) = Operand::new(SIGMOID_GATE, "gate", gate).dims2(GATE_AXES)?;
    Ok([rows, width, if gates == 1 { 1 } else { width }])
}
