//! What happens between the qkv product and attention, in one kernel.

use candle_core::Tensor;

use super::launch::{Address, CUstream, Launch, is_fp8};
use crate::device::{PagedCache, QKV_AXES, QkNormSpan, QkvToCache, SQUARE_SUMS, head_dim_of};
use crate::tensor::Operand;
use crate::{Error, Result, RopeStyle};

/// The largest head that the kernel holds in shared memory.
const MAX_HEAD_DIM: usize = 512;

/// Splits `qkv` `[tokens, (heads + 2 * kv_heads) * head_dim]`: norms the heads of q and k if the model does,
/// rotates them, scales q where the table does, writes k and v into the paged cache and q to `q_out` `[tokens, heads, head_dim]`.
///
/// All in f32 from load to store, rounded once, in the cache to its own dtype. The CPU's definitions, one after the other:
/// [`crate::rms_norm_reference`] per head (or what [`QkNormSpan`] says), [`crate::rope_reference`] and
/// [`crate::reshape_and_cache_reference`], whose place of values is that of keys and values here.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device; `rot_dim > head_dim`; there is no such layer;
/// or CUDA refused the launch.
pub fn qkv_to_cache(qkv: &Tensor, operands: &QkvToCache<'_>, q_out: &Tensor) -> Result<()> {
    const KERNEL: &str = "qkv_to_cache";
    let launch = Launch::new(KERNEL, "qkv", qkv)?;
    let config = operands.cache.config();
    let (kv_heads, head_dim) = (config.num_kv_heads, config.head_dim);
    let q_operand = Operand::new(KERNEL, "q_out", q_out);
    let (tokens, heads, _) = q_operand.dims3("[tokens, heads, head_dim]")?;
    if head_dim > MAX_HEAD_DIM {
        return Err(Error::Parameter {
            parameter: "head_dim",
            value: head_dim,
            expected: "at most 512",
        });
    }
    let (cos, sin, style) = operands.rope.parts();
    let (max_len, rot_dim) = (operands.rope.max_len(), operands.rope.rot_dim());
    if rot_dim > head_dim {
        return Err(
            q_operand.shape_error(format!("[tokens, heads, head_dim >= rot_dim = {rot_dim}]"))
        );
    }
    let qk_norm = operands.qk_norm;
    let span = qk_norm.map_or(QkNormSpan::Head, |norm| norm.span);
    let no_sums = (std::ptr::null_mut(), 1);
    let (norm_span, head_len, (square_sums, ranks)) = match span {
        QkNormSpan::Head => (0, head_dim, no_sums),
        QkNormSpan::AllHeads { square_sums, ranks } => {
            let sums = launch.f32s(("square_sums", square_sums), "[tokens, 2]", &[tokens, 2])?;
            (1, head_dim, (sums, ranks))
        }
        QkNormSpan::EachHead { len } => (2, len, no_sums),
    };
    if head_len == 0 || head_len > head_dim {
        let expected = "at least one, and at most head_dim";
        return Err(Error::Parameter { parameter: "len", value: head_len, expected });
    }
    let norm = |name, heads: usize, weight: Option<&Tensor>| match (weight, span) {
        (None, _) => Ok(std::ptr::null_mut()),
        (Some(weight), QkNormSpan::Head) => {
            launch.elements((name, weight), "[head_dim]", &[head_dim])
        }
        (Some(weight), _) => {
            launch.elements((name, weight), "[heads * head_dim]", &[heads * head_dim])
        }
    };
    let row = (heads + 2 * kv_heads) * head_dim;
    let layer = operands.cache.layer(operands.layer)?;
    let cache_dims = PagedCache::dims(config);
    let cache_axes = "[num_blocks, kv_heads, block_size, head_dim]";
    let half_axes = "[max_len, rot_dim / 2]";
    let args = QkvArgs {
        qkv: launch.elements(("qkv", qkv), QKV_AXES, &[tokens, row])?,
        q_norm: norm("q_weight", heads, qk_norm.map(|norm| norm.q_weight))?,
        k_norm: norm("k_weight", kv_heads, qk_norm.map(|norm| norm.k_weight))?,
        cos: launch.f32s(("cos", cos), half_axes, &[max_len, rot_dim / 2])?,
        sin: launch.f32s(("sin", sin), half_axes, &[max_len, rot_dim / 2])?,
        query_scales: match operands.rope.query_scales() {
            Some(scales) => launch.f32s(("query_scales", scales), "[max_len]", &[max_len])?,
            None => std::ptr::null_mut(),
        },
        positions: launch.u32s(("positions", operands.positions), "[tokens]", &[tokens])?,
        slots: launch.u32s(("slot_mapping", operands.slot_mapping), "[tokens]", &[tokens])?,
        square_sums,
        q: launch.elements(
            ("q_out", q_out),
            "[tokens, heads, head_dim]",
            &[tokens, heads, head_dim],
        )?,
        keys: launch.cached(("keys", &layer.keys), cache_axes, &cache_dims)?,
        values: launch.cached(("values", &layer.values), cache_axes, &cache_dims)?,
        tokens: tokens as i64,
        heads: heads as i32,
        kv_heads: kv_heads as i32,
        head_dim: head_dim as i32,
        rot_dim: rot_dim as i32,
        max_len: max_len as i32,
        block_size: config.block_size as i32,
        num_slots: (config.num_blocks * config.block_size) as u32,
        rope_style: match style {
            RopeStyle::Neox => 0,
            RopeStyle::Interleaved => 1,
        },
        dtype: launch.dtype_code(),
        eps: qk_norm.map_or(0.0, |norm| norm.eps),
        weight_offset: qk_norm.map_or(0.0, |norm| norm.form.offset()),
        fp8_cache: i32::from(is_fp8(&layer.keys)),
        norm_span,
        head_len: head_len as i32,
        ranks: ranks as i32,
        key_scale: layer.scales.key,
        value_scale: layer.scales.value,
        padding: 0,
    };
    if is_fp8(&layer.keys) != is_fp8(&layer.values) {
        let (operand, found) = ("values", layer.values.dtype());
        return Err(Error::DType { kernel: KERNEL, operand, expected: "as the keys", found });
    }
    if tokens == 0 {
        return Ok(());
    }
    // SAFETY: every address was checked above to hold the elements that the dimensions say; the kernel
    // compares positions with `max_len` and slots with `num_slots` before it uses them.
    unsafe { launch.run(candlepower_qkv, &args) }
}

/// As `QkvArgs` in qkv.cu.
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
    padding: i32,
}
const _: () = assert!(size_of::<QkvArgs>() == 176);

/// As [`crate::device::square_sums`].
///
/// # Errors
/// As there.
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

/// As `SquareSumsArgs` in qkv.cu.
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
