//! QK norm, RoPE and the cache write between the qkv product and attention, in one kernel.

use candle_core::Tensor;

use super::launch::{Address, CUstream, Launch, is_fp8};
use super::prefetch::Prefetch;
use crate::operands::{
    PagedCache, QKV_AXES, QkNormOperands, QkvShape, QkvToCache, SQUARE_SUMS, head_dim_of,
};
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Error, KvScales, Result, RopeStyle};
use candlepower_layout::MAX_DEVICE_HEAD_DIM;

/// See [`crate::qkv_to_cache`].
///
/// # Errors
/// Same as [`crate::qkv_to_cache`]; also if heads have more than 512 elements.
pub fn qkv_to_cache(qkv: &Tensor, operands: &QkvToCache<'_>, q_out: &Tensor) -> Result<()> {
    const KERNEL: &str = "qkv_to_cache";
    let launch = Launch::new(KERNEL, "qkv", qkv)?;
    let shape = QkvShape::of(KERNEL, operands, q_out)?;
    let QkvShape { tokens, heads, kv_heads, head_dim } = shape;
    if head_dim > MAX_DEVICE_HEAD_DIM {
        return Err(Error::Parameter {
            parameter: "head_dim",
            value: head_dim,
            expected: "at most 512",
        });
    }
    let (cos, sin, style) = operands.rope.parts();
    let (max_len, rot_dim) = (operands.rope.max_len(), operands.rope.rot_dim());
    if rot_dim > head_dim {
        let expected = format!("[tokens, heads, head_dim >= rot_dim = {rot_dim}]");
        return Err(Operand::new(KERNEL, "q_out", q_out).shape_error(expected));
    }
    let qk_norm = operands.qk_norm;
    let span = qk_norm.map_or(QkNormOperands::Head, |norm| norm.span);
    // Without sums the number of ranks is unused, and 1 keeps the kernel's division valid.
    let no_sums = (std::ptr::null_mut(), 1);
    let (norm_span, head_len, (square_sums, ranks)) = match span {
        QkNormOperands::Head => (0, head_dim, no_sums),
        QkNormOperands::AllHeads { square_sums, ranks } => {
            let sums = launch.f32s(("square_sums", square_sums), "[tokens, 2]", &[tokens, 2])?;
            (1, head_dim, (sums, ranks))
        }
        QkNormOperands::EachHead { len } => (2, len, no_sums),
    };
    let norm = |name, heads: usize, weight: Option<&Tensor>| match (weight, span) {
        (None, _) => Ok(std::ptr::null_mut()),
        (Some(weight), QkNormOperands::Head) => {
            launch.elements((name, weight), "[head_dim]", &[head_dim])
        }
        (Some(weight), _) => {
            launch.elements((name, weight), "[heads * head_dim]", &[heads * head_dim])
        }
    };
    let cache = match operands.cache {
        Some((cache, layer)) => Cache::of(&launch, cache, layer)?,
        None => Cache::NONE,
    };
    let slots = match operands.cache {
        Some(_) => launch.u32s(("slot_mapping", operands.slot_mapping), "[tokens]", &[tokens])?,
        None => std::ptr::null_mut(),
    };
    // A layer that reads the keys of another has no heads of its own, whatever the checkpoint stores.
    let k_weight = qk_norm.and_then(|norm| norm.k_weight).filter(|_| kv_heads > 0);
    let half_axes = "[max_len, rot_dim / 2]";
    let args = QkvArgs {
        qkv: launch.elements(("qkv", qkv), QKV_AXES, &[tokens, shape.width()])?,
        q_norm: norm("q_weight", heads, qk_norm.map(|norm| norm.q_weight))?,
        k_norm: norm("k_weight", kv_heads, k_weight)?,
        cos: launch.f32s(("cos", cos), half_axes, &[max_len, rot_dim / 2])?,
        sin: launch.f32s(("sin", sin), half_axes, &[max_len, rot_dim / 2])?,
        query_scales: match operands.rope.query_scales() {
            Some(scales) => launch.f32s(("query_scales", scales), "[max_len]", &[max_len])?,
            None => std::ptr::null_mut(),
        },
        positions: launch.u32s(("positions", operands.positions), "[tokens]", &[tokens])?,
        slots,
        square_sums,
        q: launch.elements(
            ("q_out", q_out),
            "[tokens, heads, head_dim]",
            &[tokens, heads, head_dim],
        )?,
        keys: cache.keys,
        values: cache.values,
        tokens: tokens as i64,
        heads: heads as i32,
        kv_heads: kv_heads as i32,
        head_dim: head_dim as i32,
        rot_dim: rot_dim as i32,
        max_len: max_len as i32,
        block_size: cache.block_size as i32,
        num_slots: cache.num_slots as u32,
        rope_style: match style {
            RopeStyle::Neox => 0,
            RopeStyle::Interleaved => 1,
        },
        dtype: launch.dtype_code(),
        eps: qk_norm.map_or(0.0, |norm| norm.eps),
        weight_offset: qk_norm.map_or(0.0, |norm| norm.form.offset()),
        fp8_cache: i32::from(cache.fp8),
        norm_span,
        head_len: head_len as i32,
        ranks: ranks as i32,
        key_scale: cache.scales.key,
        value_scale: cache.scales.value,
        value_len: operands.v_norm.map_or(0, |norm| norm.len) as i32,
        value_eps: operands.v_norm.map_or(0.0, |norm| norm.eps),
        blocks: 0,
        next: Prefetch::of(&launch, operands.next)?,
    };
    if tokens == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say; the kernel compares
    // positions with `max_len` and slots with `num_slots` before it uses them.
    unsafe { launch.run(candlepower_qkv, &args) }
}

/// A layer of the cache.
struct Cache {
    keys: Address,
    values: Address,
    block_size: usize,
    num_slots: usize,
    fp8: bool,
    scales: KvScales,
}

impl Cache {
    /// Substitute for a missing cache. Its dimensions are never used as divisors.
    const NONE: Self = Self {
        keys: std::ptr::null_mut(),
        values: std::ptr::null_mut(),
        block_size: 1,
        num_slots: 0,
        fp8: false,
        scales: KvScales::ONE,
    };

    fn of(launch: &Launch, cache: &PagedCache, layer: usize) -> Result<Self> {
        let (config, layer) = (cache.config(), cache.layer(layer)?);
        let dims = PagedCache::dims(config);
        let axes = "[num_blocks, kv_heads, block_size, head_dim]";
        // The kernel has one flag for both.
        if is_fp8(&layer.keys) != is_fp8(&layer.values) {
            let (kernel, operand, found) = (launch.kernel(), "values", layer.values.dtype());
            return Err(Error::DType { kernel, operand, expected: "as the keys", found });
        }
        Ok(Self {
            keys: launch.cached(("keys", &layer.keys), axes, &dims)?,
            values: launch.cached(("values", &layer.values), axes, &dims)?,
            block_size: config.block_size,
            num_slots: config.num_blocks * config.block_size,
            fp8: is_fp8(&layer.keys),
            scales: layer.scales,
        })
    }
}

/// Mirrors `QkvArgs` in qkv.cu.
#[repr(C)]
struct QkvArgs {
    qkv: Address,
    q_norm: Address,
    k_norm: Address,
    cos: *mut f32,
    sin: *mut f32,
    query_scales: *mut f32,
    positions: *mut u32,
    slots: *mut u32,
    square_sums: *mut f32,
    q: Address,
    keys: Address,
    values: Address,
    tokens: i64,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    rot_dim: i32,
    max_len: i32,
    block_size: i32,
    num_slots: u32,
    rope_style: i32,
    dtype: i32,
    eps: f32,
    weight_offset: f32,
    fp8_cache: i32,
    norm_span: i32,
    head_len: i32,
    ranks: i32,
    key_scale: f32,
    value_scale: f32,
    value_len: i32,
    value_eps: f32,
    blocks: u32,
    next: Prefetch,
}
const _: () = assert!(size_of::<QkvArgs>() == 200);

/// See [`crate::square_sums`].
///
/// # Errors
/// Same as [`crate::square_sums`].
pub fn square_sums(qkv: &Tensor, [heads, kv_heads]: [usize; 2], out: &Tensor) -> Result<()> {
    let launch = Launch::new(SQUARE_SUMS, "qkv", qkv)?;
    let (tokens, row) = Operand::new(SQUARE_SUMS, "qkv", qkv).dims2(QKV_AXES)?;
    let head_dim = head_dim_of(SQUARE_SUMS, qkv, [heads, kv_heads])?;
    let args = SquareSumsArgs {
        qkv: launch.elements(("qkv", qkv), QKV_AXES, &[tokens, row])?,
        sums: launch.f32s(("out", out), "[tokens, 2]", &[tokens, 2])?,
        tokens: tokens as i64,
        q_width: (heads * head_dim) as i32,
        kv_width: (kv_heads * head_dim) as i32,
        dtype: launch.dtype_code(),
        padding: 0,
    };
    if tokens == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say.
    unsafe { launch.run(candlepower_square_sums, &args) }
}

/// Mirrors `SquareSumsArgs` in qkv.cu.
#[repr(C)]
struct SquareSumsArgs {
    qkv: Address,
    sums: *mut f32,
    tokens: i64,
    q_width: i32,
    kv_width: i32,
    dtype: i32,
    padding: i32,
}
const _: () = assert!(size_of::<SquareSumsArgs>() == 40);

unsafe extern "C" {
    fn candlepower_qkv(args: *const QkvArgs, stream: CUstream) -> i32;
    fn candlepower_square_sums(args: *const SquareSumsArgs, stream: CUstream) -> i32;
}
