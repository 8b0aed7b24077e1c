//! Gated short convolutions over the states of their sequences on a device.

use candle_core::Tensor;
use candlepower_kernels::operands::SHORT_CONV as KERNEL;
use candlepower_kernels::{ConvDims, Result, ShortConv, short_conv_reference};

use super::launch_on_gpu;
use super::packed::rounded;
use super::reference::Reference;
use crate::operands::{INPUTS_AXES, NO_SLOT, StatePool, StateTables};

/// Computes one layer for the tokens of a step, each of which is kept in the state of its sequence in `pool` for the
/// tokens after it. The computation is in f32, except that the products that are convolved are rounded to the dtype in
/// which they are kept.
///
/// `input` is `[tokens, 3 * channels]` and `out` `[tokens, channels]`, bf16 or f16.
///
/// A sequence in [`NO_SLOT`], which is padding of a graph, gives rows of zeros. A slot outside the pool gives rows of
/// NaN. Nothing is written for tokens that belong to no sequence. The reference implementation is
/// [`candlepower_kernels::short_conv_reference`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device; `conv` has other dimensions than `pool`; there is no such
/// layer; or CUDA refused the launch.
pub fn short_conv(
    input: &Tensor,
    conv: &ShortConv,
    pool: &StatePool,
    layer: usize,
    tables: &StateTables<'_>,
    out: &Tensor,
) -> Result<()> {
    launch_on_gpu!(input, crate::cuda::short_conv(input, conv, (pool, layer), tables, out));
    let reference = Reference::new(KERNEL, "input", input)?;
    let ConvDims { channels, kernel } = conv.dims;
    let width = conv.dims.width();
    pool.config().check_dims(KERNEL, conv.dims.into())?;
    let layer = pool.layer(KERNEL, layer)?;
    let (tokens, _) = reference.operand("input", input).dims2("[tokens, 3 * channels]")?;
    let seqs = tables.slots.elem_count();
    let dtype = input.dtype();
    let input = ("input", input);
    let input = reference.elements(input, "[tokens, 3 * channels]", &[tokens, width])?;
    let conv_weights = reference.f32s(
        ("conv_weights", &conv.conv_weights),
        "[kernel, channels]",
        &[kernel, channels],
    )?;
    let starts = ("query_start", tables.query_start);
    let starts = reference.u32s(starts, "[seqs + 1]", &[seqs + 1])?;
    let slots = reference.u32s(("slots", tables.slots), "[seqs]", &[seqs])?;
    let positions = reference.u32s(("positions", tables.positions), "[tokens]", &[tokens])?;
    let (kept_dims, _) = pool.config().layer_dims();
    let mut kept = reference.elements(("inputs", &layer.inputs), INPUTS_AXES, &kept_dims)?;
    // Rows that belong to no sequence keep their content.
    let out_dims = [tokens, channels];
    let mut results = reference.elements(("out", out), "[tokens, channels]", &out_dims)?;
    let round = |x| rounded(x, dtype);
    for (bounds, &slot) in starts.windows(2).zip(&slots) {
        let (start, end) = (bounds[0] as usize, bounds[1] as usize);
        if start >= end || end > tokens {
            continue;
        }
        let results = &mut results[start * channels..end * channels];
        if slot as usize >= pool.config().num_slots {
            results.fill(if slot == NO_SLOT { 0.0 } else { f32::NAN });
            continue;
        }
        let of_slot = (kernel - 1) * channels;
        let kept = &mut kept[slot as usize * of_slot..][..of_slot];
        let mut state = if positions[start] == 0 { vec![0.0; of_slot] } else { kept.to_vec() };
        let rows = &input[start * width..end * width];
        results.copy_from_slice(&short_conv_reference(
            rows,
            &conv_weights,
            conv.dims,
            &mut state,
            round,
        ));
        kept.copy_from_slice(&state);
    }
    reference.write(("inputs", &layer.inputs), INPUTS_AXES, &kept_dims, &kept)?;
    reference.write(("out", out), "[tokens, channels]", &out_dims, &results)
}
