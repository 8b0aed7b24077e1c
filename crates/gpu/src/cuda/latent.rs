//! The parts of MLA outside of attention: the latent that is kept of a token, and the products of heads.

use candle_core::{Device, Tensor};

use super::experts::{ExpertProductArgs, UNQUANTIZED, candlepower_expert_product};
use super::launch::{Address, CUstream, Launch, is_fp8};
use crate::operands::{
    ExpertMatrices, HEAD_PRODUCT, HeadShape, LATENTS, LatentShape, LatentsToCache, Matrix,
    PagedCache, tile_rows,
};
use candlepower_kernels::{Error, KvCacheConfig, Result, RopeStyle};

/// Maximum length of a row of the cache. The kernel keeps a row per warp in shared memory.
const MAX_ROW: usize = 1024;

/// See [`crate::latents_to_cache`].
///
/// # Errors
/// Same as [`crate::latents_to_cache`]; also if rows of the cache have more than 1024 elements.
pub fn latents_to_cache(
    q: &Tensor,
    latents: &Tensor,
    operands: &LatentsToCache<'_>,
    q_out: &Tensor,
) -> Result<()> {
    let launch = Launch::new(LATENTS, "q", q)?;
    let shape = LatentShape::of(q, operands)?;
    let LatentShape { tokens, heads, q_dim, rank, rotated, latent, head_dim } = shape;
    if head_dim > MAX_ROW {
        let expected = "at most 1024";
        return Err(Error::Parameter { parameter: "head_dim", value: head_dim, expected });
    }
    let (cos, sin, style) = operands.rope.parts();
    let (table_axes, table) = ("[max_len, rot_dim / 2]", [operands.rope.max_len(), rotated / 2]);
    let (cache, layer) = operands.cache;
    let (config, layer) = (cache.config(), cache.layer(layer)?);
    let KvCacheConfig { num_blocks, block_size, .. } = *config;
    let cache_axes = "[num_blocks, 1, block_size, head_dim]";
    let (q_axes, out_axes) = ("[tokens, heads, q_dim]", "[tokens, heads, head_dim]");
    let latent_dims = [tokens, rank + rotated];
    let args = LatentArgs {
        q: launch.elements(("q", q), q_axes, &[tokens, heads, q_dim])?,
        latents: launch.elements(("latents", latents), "[tokens, rank + rot_dim]", &latent_dims)?,
        norm: launch.elements(("weight", operands.norm.weight), "[rank]", &[rank])?,
        cos: launch.f32s(("cos", cos), table_axes, &table)?,
        sin: launch.f32s(("sin", sin), table_axes, &table)?,
        positions: launch.u32s(("positions", operands.positions), "[tokens]", &[tokens])?,
        slots: launch.u32s(("slot_mapping", operands.slot_mapping), "[tokens]", &[tokens])?,
        query_scales: match operands.rope.query_scales() {
            Some(scales) => launch.f32s(("query_scales", scales), "[max_len]", &table[..1])?,
            None => std::ptr::null_mut(),
        },
        q_out: launch.elements(("q_out", q_out), out_axes, &[tokens, heads, head_dim])?,
        keys: launch.cached(("keys", &layer.keys), cache_axes, &PagedCache::dims(config))?,
        tokens: tokens as i64,
        heads: heads as i32,
        q_dim: q_dim as i32,
        rank: rank as i32,
        rot_dim: rotated as i32,
        latent: latent as i32,
        head_dim: head_dim as i32,
        max_len: table[0] as i32,
        block_size: block_size as i32,
        num_slots: (num_blocks * block_size) as u32,
        rope_style: match style {
            RopeStyle::Neox => 0,
            RopeStyle::Interleaved => 1,
        },
        dtype: launch.dtype_code(),
        eps: operands.norm.eps,
        weight_offset: operands.norm.form.offset(),
        fp8_cache: i32::from(is_fp8(&layer.keys)),
        key_scale: layer.scales.key,
        padding: 0,
    };
    if tokens == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say; the kernel compares
    // positions with `max_len` and slots with `num_slots` before it uses them.
    unsafe { launch.run(candlepower_latents_to_cache, &args) }
}

/// See [`crate::head_product`]. It uses the kernel for experts: heads are experts, and every token uses all of them.
///
/// # Errors
/// Same as [`crate::head_product`].
pub fn head_product(x: &Tensor, weights: &ExpertMatrices, out: &Tensor) -> Result<()> {
    let launch = Launch::new(HEAD_PRODUCT, "x", x)?;
    let HeadShape { tokens, heads, n, k, x_width, out_width } = HeadShape::of(x, weights, out)?;
    let (Some(Matrix::Rows(first)), Some(table)) = (weights.matrices.first(), &weights.table)
    else {
        let device = Device::Cpu.location();
        return Err(Error::NotOnGpu { kernel: HEAD_PRODUCT, operand: "weights", device });
    };
    // `expert_table` checked that the other matrices have the same shape and format.
    launch.elements(("weights", first), "[n, k]", &[n, k])?;
    let (x_axes, out_axes) = ("[tokens, heads, at least k]", "[tokens, heads, at least n]");
    let args = ExpertProductArgs {
        x: launch.elements(("x", x), x_axes, &[tokens, heads, x_width])?,
        weights: launch.u32s(("weights", &table.words), "[heads, words]", table.words.dims())?,
        bias: std::ptr::null_mut(),
        sorted: std::ptr::null_mut(),
        starts: std::ptr::null_mut(),
        tiles: std::ptr::null_mut(),
        out: launch.elements(("out", out), out_axes, &[tokens, heads, out_width])?,
        pairs: (tokens * heads) as i32,
        // Each head of a token is a row of its own.
        pairs_per_row: 1,
        experts: heads as i32,
        n: n as i32,
        k: k as i32,
        tile_rows: tile_rows(tokens * heads, heads) as i32,
        dtype: launch.dtype_code(),
        format: UNQUANTIZED,
        cut: 0,
        x_stride: x_width as i32,
        out_stride: out_width as i32,
        padding: 0,
    };
    if tokens * n == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say, those of the matrices by
    // `expert_table`; the routing tables are null, and the kernel reads none.
    unsafe { launch.run(candlepower_expert_product, &args) }
}

/// Mirrors `LatentArgs` in latent.cu.
#[repr(C)]
struct LatentArgs {
    q: Address,
    latents: Address,
    norm: Address,
    cos: *mut f32,
    sin: *mut f32,
    positions: *mut u32,
    slots: *mut u32,
    query_scales: *mut f32,
    q_out: Address,
    keys: Address,
    tokens: i64,
    heads: i32,
    q_dim: i32,
    rank: i32,
    rot_dim: i32,
    latent: i32,
    head_dim: i32,
    max_len: i32,
    block_size: i32,
    num_slots: u32,
    rope_style: i32,
    dtype: i32,
    eps: f32,
    weight_offset: f32,
    fp8_cache: i32,
    key_scale: f32,
    padding: i32,
}
const _: () = assert!(size_of::<LatentArgs>() == 152);

unsafe extern "C" {
    fn candlepower_latents_to_cache(args: *const LatentArgs, stream: CUstream) -> i32;
}
