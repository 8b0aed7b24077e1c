//! Linear attention and SSM layers, and copies of their states.

use candle_core::Tensor;

use super::launch::{Address, CUstream, Launch};
use crate::operands::{INPUTS_AXES, MATRICES_AXES, StatePool, StateTables};
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{LinearAttention, LinearAttentionDims, Result, UpdateRule};
use candlepower_layout::{
    linear_attention_chunk_values, linear_attention_chunks, linear_attention_row_values,
};

/// See [`crate::linear_attention`].
///
/// # Errors
/// Same as [`crate::linear_attention`].
pub fn linear_attention(
    (input, gates): (&Tensor, &Tensor),
    net: &LinearAttention,
    (pool, layer): (&StatePool, usize),
    tables: &StateTables<'_>,
    out: &Tensor,
) -> Result<()> {
    const KERNEL: &str = "linear_attention";
    let launch = Launch::new(KERNEL, "input", input)?;
    let dims = net.dims;
    let LinearAttentionDims { key_heads, value_heads, tiled, key_dim, value_dim, kernel } = dims;
    pool.config().check_dims(KERNEL, dims.into())?;
    let layer = pool.layer(KERNEL, layer)?;
    let (tokens, _) = Operand::new(KERNEL, "input", input).dims2("[tokens, width]")?;
    let (seqs, channels) = (tables.slots.elem_count(), dims.channels());
    let (kept_dims, states_dims) = pool.config().layer_dims();
    // `check_dims` has refused a pool of convolutions, which alone has no matrices.
    let states_dims = states_dims.expect("linear attention has matrices");
    let (result, eps) = match &net.rule {
        UpdateRule::Delta { norm, eps } => {
            (launch.f32s(("norm", norm), "[value_dim]", &[value_dim])?, *eps)
        }
        UpdateRule::Mamba2 { skip } => {
            (launch.f32s(("skip", skip), "[value_heads]", &[value_heads])?, 0.0)
        }
    };
    let scratch = pool.scratch.as_ref().expect("a pool on a GPU has scratch memory");
    let scratch_values = linear_attention_row_values(channels, value_heads) * scratch.rows;
    let chunk_slots = linear_attention_chunks(scratch.rows);
    let chunk_values = linear_attention_chunk_values(dims.keys(), value_heads) * chunk_slots;
    let chunks = match &scratch.chunks {
        Some(chunks) => launch.f32s(("chunks", chunks), "[values]", &[chunk_values])?,
        None => std::ptr::null_mut(),
    };
    let min_chunks = if scratch.chunks.is_some() { scratch.min_chunks } else { 0 };
    let starts = ("query_start", tables.query_start);
    let args = LinearAttentionArgs {
        input: launch.elements(("input", input), "[tokens, width]", &[tokens, dims.width()])?,
        gates: launch.elements(("gates", gates), "[tokens, gates]", &[tokens, net.gates()])?,
        out: launch.elements(("out", out), "[tokens, values]", &[tokens, dims.values()])?,
        kept: launch.elements(("inputs", &layer.inputs), INPUTS_AXES, &kept_dims)?,
        states: launch.f32s(("matrices", layer.matrices()), MATRICES_AXES, &states_dims)?,
        conv: launch.f32s(("conv", &net.conv), "[channels, kernel]", &[channels, kernel])?,
        conv_bias: match &net.conv_bias {
            Some(bias) => launch.f32s(("conv_bias", bias), "[channels]", &[channels])?,
            None => std::ptr::null_mut(),
        },
        a_log: launch.f32s(("a_log", &net.a_log), "[value_heads]", &[value_heads])?,
        dt_bias: launch.f32s(("dt_bias", &net.dt_bias), "[value_heads]", &[value_heads])?,
        result,
        query_start: launch.u32s(starts, "[seqs + 1]", &[seqs + 1])?,
        slots: launch.u32s(("slots", tables.slots), "[seqs]", &[seqs])?,
        positions: launch.u32s(("positions", tables.positions), "[tokens]", &[tokens])?,
        scratch: launch.f32s(("scratch", &scratch.values), "[values]", &[scratch_values])?,
        chunks,
        tokens: tokens as i32,
        seqs: seqs as i32,
        key_heads: key_heads as i32,
        value_heads: value_heads as i32,
        key_dim: key_dim as i32,
        value_dim: value_dim as i32,
        kernel: kernel as i32,
        num_slots: pool.config().num_slots as u32,
        eps,
        rule: update_rule_kind(&net.rule),
        dtype: launch.dtype_code(),
        tiled: tiled.into(),
        scratch_rows: scratch.rows as i32,
        chunk_slots: chunk_slots as i32,
        min_chunks: min_chunks as i32,
        padding: 0,
    };
    if tokens * seqs == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say, and `StatePool::new`
    // limited these to what the kernel is compiled for; the kernel compares the tables' entries with `tokens` and
    // `num_slots` before it uses them.
    unsafe { launch.run(candlepower_linear_attention, &args) }
}

/// See [`crate::copy_states`].
///
/// # Errors
/// Same as [`crate::copy_states`].
pub fn copy_states(pool: &StatePool, pairs: &Tensor) -> Result<()> {
    let launch = Launch::of_any("copy_states", "pairs", pairs)?;
    let count = pairs.elem_count() / 2;
    let pairs = launch.u32s(("pairs", pairs), "[count, 2]", &[count, 2])?;
    let dims = pool.config().dims;
    let (inputs_dims, matrices_dims) = pool.config().layer_dims();
    if count == 0 {
        return Ok(());
    }
    for layer in &pool.layers {
        let inputs = launch.own(("inputs", &layer.inputs), INPUTS_AXES, &inputs_dims)?;
        let matrices = match layer.matrices.as_ref().zip(matrices_dims) {
            Some((of_all, dims)) => launch.own(("matrices", of_all), MATRICES_AXES, &dims)?,
            None => std::ptr::null_mut(),
        };
        let args = CopyStatesArgs {
            tensors: [inputs, matrices],
            pairs,
            slot_bytes: [
                (dims.kept() * layer.inputs.dtype().size_in_bytes()) as i64,
                (dims.matrices() * size_of::<f32>()) as i64,
            ],
            count: count as i64,
            num_slots: pool.config().num_slots as u32,
            padding: 0,
        };
        // SAFETY: the addresses were checked to hold whole slots, whose bytes are a multiple of 16 because those of
        // heads are; the kernel compares slots with `num_slots` before it copies.
        unsafe { launch.run(candlepower_copy_states, &args)? };
    }
    Ok(())
}

/// Mirrors `LinearAttentionArgs` in linear_attention.cuh.
#[repr(C)]
struct LinearAttentionArgs {
    input: Address,
    gates: Address,
    out: Address,
    kept: Address,
    states: *mut f32,
    conv: *mut f32,
    conv_bias: *mut f32,
    a_log: *mut f32,
    dt_bias: *mut f32,
    result: *mut f32,
    query_start: *mut u32,
    slots: *mut u32,
    positions: *mut u32,
    scratch: *mut f32,
    chunks: *mut f32,
    tokens: i32,
    seqs: i32,
    key_heads: i32,
    value_heads: i32,
    key_dim: i32,
    value_dim: i32,
    kernel: i32,
    num_slots: u32,
    eps: f32,
    rule: i32,
    dtype: i32,
    tiled: i32,
    scratch_rows: i32,
    chunk_slots: i32,
    min_chunks: i32,
    padding: i32,
}
const _: () = assert!(size_of::<LinearAttentionArgs>() == 184);

/// The update rule in C: a value of `UpdateRule` in linear_attention.cuh.
fn update_rule_kind(rule: &UpdateRule) -> i32 {
    match rule {
        UpdateRule::Delta { .. } => 0,
        UpdateRule::Mamba2 { .. } => 1,
    }
}

/// Mirrors `CopyStatesArgs` in linear_attention.cu.
#[repr(C)]
struct CopyStatesArgs {
    tensors: [Address; 2],
    pairs: *mut u32,
    slot_bytes: [i64; 2],
    count: i64,
    num_slots: u32,
    padding: u32,
}
const _: () = assert!(size_of::<CopyStatesArgs>() == 56);

unsafe extern "C" {
    fn candlepower_linear_attention(args: *const LinearAttentionArgs, stream: CUstream) -> i32;
    fn candlepower_copy_states(args: *const CopyStatesArgs, stream: CUstream) -> i32;
}
