//! Linear attention and SSM layers, over the states of their sequences on a device; and the gates that follow some layers.

use candle_core::Tensor;
use candlepower_kernels::{
    LinearAttention, Result, SequenceState, linear_attention_reference, sigmoid_gate_reference,
};

use super::launch_on_gpu;
use super::reference::Reference;
use crate::operands::{
    GATE_AXES, INPUTS_AXES, MATRICES_AXES, NO_SLOT, SIGMOID_GATE, StatePool, StateTables, gate_dims,
};

/// Computes one layer for the tokens of a step, each of which updates the state of its sequence in `pool`. The
/// computation is in f32, except for whole chunks of long prompts on some GPUs, where each f32 operand is rounded to two
/// bf16 values ([`StatePool::with_min_chunks`]).
///
/// `input` is `[tokens, width]`, `gates` `[tokens, gates]` and `out` `[tokens, values]`, bf16 or f16.
///
/// A sequence in [`NO_SLOT`], which is padding of a graph, gives rows of zeros. A slot outside the pool gives rows of
/// NaN. Nothing is written for a sequence whose tokens are not in this step. The reference implementation is
/// [`candlepower_kernels::linear_attention_reference`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device; `net` has other dimensions than `pool`; there is no such
/// layer; or CUDA refused the launch.
pub fn linear_attention(
    input: &Tensor,
    gates: &Tensor,
    net: &LinearAttention,
    pool: &StatePool,
    layer: usize,
    tables: &StateTables<'_>,
    out: &Tensor,
) -> Result<()> {
    launch_on_gpu!(
        input,
        crate::cuda::linear_attention((input, gates), net, (pool, layer), tables, out)
    );
    const KERNEL: &str = "linear_attention";
    let reference = Reference::new(KERNEL, "input", input)?;
    let dims = net.dims;
    pool.config().check_dims(KERNEL, dims.into())?;
    let layer = pool.layer(KERNEL, layer)?;
    let (tokens, _) = reference.operand("input", input).dims2("[tokens, width]")?;
    let seqs = tables.slots.elem_count();
    let (width, values) = (dims.width(), dims.values());
    let input = reference.elements(("input", input), "[tokens, width]", &[tokens, width])?;
    let per_token = net.gates();
    let gates = reference.elements(("gates", gates), "[tokens, gates]", &[tokens, per_token])?;
    let starts = ("query_start", tables.query_start);
    let starts = reference.u32s(starts, "[seqs + 1]", &[seqs + 1])?;
    let slots = reference.u32s(("slots", tables.slots), "[seqs]", &[seqs])?;
    let positions = reference.u32s(("positions", tables.positions), "[tokens]", &[tokens])?;
    let (inputs_dims, matrices_dims) = pool.config().layer_dims();
    let matrices_dims = matrices_dims.expect("linear attention has matrices");
    let mut inputs = reference.elements(("inputs", &layer.inputs), INPUTS_AXES, &inputs_dims)?;
    let matrices = ("matrices", layer.matrices());
    let mut matrices = reference.f32s(matrices, MATRICES_AXES, &matrices_dims)?;
    // Rows that belong to no sequence keep their content.
    let mut results = reference.elements(("out", out), "[tokens, values]", &[tokens, values])?;
    for (bounds, &slot) in starts.windows(2).zip(&slots) {
        let (start, end) = (bounds[0] as usize, bounds[1] as usize);
        // Tables may hold anything on a device. A kernel skips such a sequence, and so does this.
        if start >= end || end > tokens {
            continue;
        }
        let results = &mut results[start * values..end * values];
        if slot as usize >= pool.config().num_slots {
            results.fill(if slot == NO_SLOT { 0.0 } else { f32::NAN });
            continue;
        }
        let slot = slot as usize;
        let inputs = &mut inputs[slot * dims.kept()..][..dims.kept()];
        let matrices = &mut matrices[slot * dims.matrices()..][..dims.matrices()];
        let mut state = match positions[start] {
            0 => SequenceState::zeros(&dims),
            _ => SequenceState { inputs: inputs.to_vec(), matrices: matrices.to_vec() },
        };
        let rows = &input[start * width..end * width];
        let gates = &gates[start * per_token..end * per_token];
        results.copy_from_slice(&linear_attention_reference(rows, gates, net, &mut state)?);
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

/// Computes `x = x * sigmoid(gate)`, in f32 and rounded once. Both are bf16 or f16. `x` is `[rows, width]`, and `gate`
/// has the same shape or one value for each row: `[rows, 1]`. The reference implementation is
/// [`candlepower_kernels::sigmoid_gate_reference`].
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
