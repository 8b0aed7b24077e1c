//! The parts of MLA outside of attention: the latent that is kept of a token, and the products of each head with its
//! own matrix.

use candle_core::Tensor;
use candlepower_kernels::{
    CacheOrder, KvCacheConfig, Result, linear_reference, reshape_and_cache_reference,
    rms_norm_reference, rope_reference,
};

use super::launch_on_gpu;
use super::reference::Reference;
use crate::operands::{
    ExpertMatrices, HEAD_PRODUCT, HeadShape, LATENTS, LatentShape, LatentsToCache, PagedCache,
};

/// Prepares queries and latents for attention over latents:
///
/// - `latents` `[tokens, rank + rot_dim]`: the first `rank` elements are normed, the others are rotated, and both are
///   written to the cache.
/// - `q` `[tokens, heads, q_dim]`: the last `rot_dim` elements of each head are rotated and written to `q_out`
///   `[tokens, heads, head_dim]`.
///
/// In `q_out` the rotated elements follow the first `latent` elements of a head, which must be there already. If the
/// RoPE table scales queries, all of `q_out` is scaled. Zeros pad a latent to `latent` elements in the cache. They also
/// pad the rotated elements to the end of a row, in the cache and in `q_out`.
///
/// The computation is in f32 from load to store and rounded once, in the cache to its own dtype after division by the
/// keys' scale. The reference implementations, one after the other, are [`rms_norm_reference`], [`rope_reference`] and
/// [`reshape_and_cache_reference`], whose position of values is that of keys here.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device; the cache keeps no latents, or shorter ones; there is no
/// such layer; or CUDA refused the launch.
///
/// Source: DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model", 2024, 2.1.
pub fn latents_to_cache(
    q: &Tensor,
    latents: &Tensor,
    operands: &LatentsToCache<'_>,
    q_out: &Tensor,
) -> Result<()> {
    launch_on_gpu!(q, crate::cuda::latents_to_cache(q, latents, operands, q_out));
    let reference = Reference::new(LATENTS, "q", q)?;
    let shape = LatentShape::of(q, operands)?;
    let LatentShape { tokens, heads, q_dim, rank, rotated, latent, head_dim } = shape;
    let queries =
        reference.elements(("q", q), "[tokens, heads, q_dim]", &[tokens, heads, q_dim])?;
    let (axes, width) = ("[tokens, rank + rot_dim]", rank + rotated);
    let rows = reference.elements(("latents", latents), axes, &[tokens, width])?;
    let positions = reference.u32s(("positions", operands.positions), "[tokens]", &[tokens])?;
    let slots = reference.u32s(("slot_mapping", operands.slot_mapping), "[tokens]", &[tokens])?;
    let weight = reference.elements(("weight", operands.norm.weight), "[rank]", &[rank])?;
    let weight: Vec<f32> = weight.iter().map(|w| w + operands.norm.form.offset()).collect();
    let (cos, sin, style) = operands.rope.parts();
    let (table_axes, dims) = ("[max_len, rot_dim / 2]", [operands.rope.max_len(), rotated / 2]);
    let cos = reference.f32s(("cos", cos), table_axes, &dims)?;
    let sin = reference.f32s(("sin", sin), table_axes, &dims)?;
    let rotate = |part: &[f32], token: usize| -> Vec<f32> {
        let at = positions[token] as usize * rotated / 2;
        let at = at..at + rotated / 2;
        // A position beyond the table has no slice there.
        let mut out = match (cos.get(at.clone()), sin.get(at)) {
            (Some(cos), Some(sin)) => rope_reference(part, cos, sin, style),
            _ => vec![f32::NAN; rotated],
        };
        out.resize(head_dim - latent, 0.0);
        out
    };
    let scales = match operands.rope.query_scales() {
        Some(scales) => Some(reference.f32s(("query_scales", scales), "[max_len]", &dims[..1])?),
        None => None,
    };
    let scale_at = |token: usize| {
        let of_position = |scales: &Vec<f32>| scales.get(positions[token] as usize).copied();
        scales.as_ref().and_then(of_position).unwrap_or(1.0)
    };
    let (out_axes, out_dims) = ("[tokens, heads, head_dim]", [tokens, heads, head_dim]);
    let mut rotated_q = reference.elements(("q_out", q_out), out_axes, &out_dims)?;
    for (head, q) in queries.chunks(q_dim).enumerate() {
        let token = head / heads;
        let target = &mut rotated_q[head * head_dim..(head + 1) * head_dim];
        target[latent..].copy_from_slice(&rotate(&q[q_dim - rotated..], token));
        target.iter_mut().for_each(|number| *number *= scale_at(token));
    }
    reference.write(("q_out", q_out), out_axes, &out_dims, &rotated_q)?;
    let (cache, layer) = operands.cache;
    let (config, layer) = (cache.config(), cache.layer(layer)?);
    let (axes, dims) = ("[num_blocks, 1, block_size, head_dim]", PagedCache::dims(config));
    let mut kept = reference.cached(("keys", &layer.keys), axes, &dims)?;
    // On the device, keys have the order that values of the same width have in the reference.
    let config = KvCacheConfig { latent: None, ..*config };
    for (token, row) in rows.chunks(width).enumerate() {
        let slot = slots[token] as usize;
        // Padding tokens have `NO_SLOT`, which is beyond any cache.
        if slot >= config.num_blocks * config.block_size {
            continue;
        }
        let mut numbers = rms_norm_reference(&row[..rank], &weight, operands.norm.eps);
        numbers.resize(latent, 0.0);
        numbers.extend(rotate(&row[rank..], token));
        let (_, at) = reshape_and_cache_reference(&config, CacheOrder::Single, slot, (0, 0));
        for (place, number) in kept[at..at + head_dim].iter_mut().zip(numbers) {
            *place = number / layer.scales.key;
        }
    }
    reference.write_cached(("keys", &layer.keys), axes, &dims, &kept)
}

/// Computes `out[t, h] = w[h] x[t, h]` for each head. `x` is `[tokens, heads, at least k]`, of which the first `k`
/// elements of each head are read. `out` is `[tokens, heads, at least n]`, of which the first `n` are written. There is
/// one matrix `[n, k]` for each head.
///
/// All tensors are bf16 or f16, and sums are f32. A row's result depends on its own values and its head alone. The
/// reference implementation of one output is [`linear_reference`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn head_product(x: &Tensor, weights: &ExpertMatrices, out: &Tensor) -> Result<()> {
    launch_on_gpu!(x, crate::cuda::head_product(x, weights, out));
    let reference = Reference::new(HEAD_PRODUCT, "x", x)?;
    let HeadShape { tokens, heads, n, k, x_width, out_width } = HeadShape::of(x, weights, out)?;
    let axes = "[tokens, heads, at least k]";
    let numbers = reference.elements(("x", x), axes, &[tokens, heads, x_width])?;
    let (axes, dims) = ("[tokens, heads, at least n]", [tokens, heads, out_width]);
    let mut results = reference.elements(("out", out), axes, &dims)?;
    for (head, matrix) in weights.matrices.iter().enumerate() {
        let (matrix, _) = matrix.elements(&reference, "weights")?;
        for token in 0..tokens {
            let row = token * heads + head;
            let x = &numbers[row * x_width..][..k];
            let outputs = matrix.chunks_exact(k).map(|matrix| linear_reference(x, matrix, None));
            let results = results[row * out_width..][..n].iter_mut();
            results.zip(outputs).for_each(|(result, output)| *result = output);
        }
    }
    reference.write(("out", out), axes, &dims, &results)
}
