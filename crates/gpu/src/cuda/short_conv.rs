//! Gated short convolutions.

use candle_core::Tensor;

use super::launch::{Address, CUstream, Launch};
use crate::operands::{INPUTS_AXES, StatePool, StateTables};
use candlepower_kernels::Result;
use candlepower_kernels::operands::Operand;
use candlepower_kernels::operands::SHORT_CONV as KERNEL;
use candlepower_kernels::{ConvDims, ShortConv};

/// See [`crate::short_conv`].
///
/// # Errors
/// Same as [`crate::short_conv`].
pub fn short_conv(
    input: &Tensor,
    conv: &ShortConv,
    (pool, layer): (&StatePool, usize),
    tables: &StateTables<'_>,
    out: &Tensor,
) -> Result<()> {
    let launch = Launch::new(KERNEL, "input", input)?;
    let ConvDims { channels, kernel } = conv.dims;
    pool.config().check_dims(KERNEL, conv.dims.into())?;
    let layer = pool.layer(KERNEL, layer)?;
    let (tokens, _) = Operand::new(KERNEL, "input", input).dims2("[tokens, 3 * channels]")?;
    let seqs = tables.slots.elem_count();
    let (kept_dims, _) = pool.config().layer_dims();
    let input_dims = [tokens, conv.dims.width()];
    let starts = ("query_start", tables.query_start);
    let args = ConvArgs {
        input: launch.elements(("input", input), "[tokens, 3 * channels]", &input_dims)?,
        conv_weights: launch.f32s(
            ("conv_weights", &conv.conv_weights),
            "[kernel, channels]",
            &[kernel, channels],
        )?,
        kept: launch.elements(("inputs", &layer.inputs), INPUTS_AXES, &kept_dims)?,
        out: launch.elements(("out", out), "[tokens, channels]", &[tokens, channels])?,
        query_start: launch.u32s(starts, "[seqs + 1]", &[seqs + 1])?,
        slots: launch.u32s(("slots", tables.slots), "[seqs]", &[seqs])?,
        positions: launch.u32s(("positions", tables.positions), "[tokens]", &[tokens])?,
        tokens: tokens as i32,
        seqs: seqs as i32,
        channels: channels as i32,
        kernel: kernel as i32,
        num_slots: pool.config().num_slots as u32,
        dtype: launch.dtype_code(),
    };
    if tokens * seqs == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say, and their rows are whole
    // vectors because channels are a multiple of 8; the kernel compares the tables' entries with `tokens` and
    // `num_slots` before it uses them.
    unsafe { launch.run(candlepower_short_conv, &args) }
}

/// Mirrors `ConvArgs` in short_conv.cu.
#[repr(C)]
struct ConvArgs {
    input: Address,
    conv_weights: *mut f32,
    kept: Address,
    out: Address,
    query_start: *mut u32,
    slots: *mut u32,
    positions: *mut u32,
    tokens: i32,
    seqs: i32,
    channels: i32,
    kernel: i32,
    num_slots: u32,
    dtype: i32,
}
const _: () = assert!(size_of::<ConvArgs>() == 80);

unsafe extern "C" {
    fn candlepower_short_conv(args: *const ConvArgs, stream: CUstream) -> i32;
}
