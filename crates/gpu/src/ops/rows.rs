//! Row-wise operations: sums, norms, activations, gathers, the softcap, and token ids that only the device knows.

use candle_core::Tensor;
use candlepower_kernels::operands::{ACTIVATION_TIMES, Operand, times_width};
use candlepower_kernels::{
    Activation, Result, VocabPart, activation_reference, activation_times_reference,
    add_rms_norm_reference, gated_activation_reference, layer_norm_reference, rms_norm_reference,
};

use super::fp8::write_rows;
use super::launch_on_gpu;
use super::packed::rounded;
use super::reference::Reference;
use crate::operands::{LayerNorm, Matrix, RmsNorm, RowsOut};

/// Computes `out = x / sqrt(mean(x^2) + eps) * weight` over the last dimension, in f32 and rounded once.
///
/// `x` and `out` are bf16 or f16 `[.., dim]`; `out` may be `x`. If they are `[.., groups, dim]`, the weight may have a
/// row for each group. Rows in FP8 are `[rows, dim]`, with groups of all of a row or of 128. The reference implementation is
/// [`candlepower_kernels::rms_norm_reference`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
///
/// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
pub fn rms_norm(x: &Tensor, norm: &RmsNorm<'_>, out: impl Into<RowsOut>) -> Result<()> {
    let out = out.into();
    launch_on_gpu!(x, crate::cuda::rms_norm(x, norm, &out));
    let reference = Reference::new("rms_norm", "x", x)?;
    let values = reference.elements(("x", x), "[.., dim]", x.dims())?;
    let (factors, dim) = (factors(&reference, x, norm)?, last_dim("rms_norm", x)?);
    let weights = factors.chunks_exact(dim).cycle();
    let normed: Vec<f32> = values
        .chunks_exact(dim)
        .zip(weights)
        .flat_map(|(row, weight)| rms_norm_reference(row, weight, norm.eps))
        .collect();
    write_rows(&reference, &out, "x's shape", x.dims(), &normed)
}

/// Computes `residual = (residual + x) * scale`, then `out = rms_norm(residual)`. Shapes as in [`rms_norm`].
///
/// The norm is taken of the sum as it is stored, rounded to the element type. The reference implementation is
/// [`candlepower_kernels::add_rms_norm_reference`].
///
/// # Errors
/// Same as [`rms_norm`].
pub fn add_rms_norm(
    residual: &Tensor,
    x: &Tensor,
    scale: f32,
    norm: &RmsNorm<'_>,
    out: impl Into<RowsOut>,
) -> Result<()> {
    let out = out.into();
    launch_on_gpu!(x, crate::cuda::add_rms_norm(residual, x, scale, norm, &out));
    let reference = Reference::new("add_rms_norm", "x", x)?;
    let dims = x.dims();
    let added = reference.elements(("x", x), "[.., dim]", dims)?;
    let before = reference.elements(("residual", residual), "x's shape", dims)?;
    let weight = factors(&reference, x, norm)?;
    let (sum, _) = add_rms_norm_reference(&before, &added, scale, &weight, norm.eps);
    reference.write(("residual", residual), "x's shape", dims, &sum)?;
    // The norm reads the sum back, because it is taken of the rounded values.
    rms_norm(residual, norm, &out)
}

/// Computes `residual = (residual + x) * scale`, rounded once; both are bf16 or f16 of one shape.
///
/// # Errors
/// Same as [`rms_norm`].
pub fn add(residual: &Tensor, x: &Tensor, scale: f32) -> Result<()> {
    launch_on_gpu!(x, crate::cuda::add(residual, x, scale));
    let reference = Reference::new("add", "x", x)?;
    let added = reference.elements(("x", x), "any shape", x.dims())?;
    let mut sum = reference.elements(("residual", residual), "x's shape", x.dims())?;
    sum.iter_mut().zip(added).for_each(|(sum, added)| *sum = (*sum + added) * scale);
    reference.write(("residual", residual), "x's shape", x.dims(), &sum)
}

/// Computes `out = (x - mean) / sqrt(variance + eps) * weight + bias` over the last dimension, rounded once.
///
/// `x` and `out` are bf16 or f16 `[.., dim]`; `out` may be `x`. The reference implementation is
/// [`candlepower_kernels::layer_norm_reference`].
///
/// # Errors
/// Same as [`rms_norm`].
///
/// Source: "Layer Normalization", 2016, arXiv 1607.06450.
pub fn layer_norm(x: &Tensor, norm: &LayerNorm<'_>, out: &Tensor) -> Result<()> {
    launch_on_gpu!(x, crate::cuda::layer_norm(x, norm, out));
    let reference = Reference::new("layer_norm", "x", x)?;
    let dim = last_dim("layer_norm", x)?;
    let values = reference.elements(("x", x), "[.., dim]", x.dims())?;
    let weight = reference.elements(("weight", norm.weight), "[dim]", &[dim])?;
    let bias =
        norm.bias.map(|bias| reference.elements(("bias", bias), "[dim]", &[dim])).transpose()?;
    let normed = layer_norm_reference(&values, &weight, bias.as_deref(), norm.eps);
    reference.write(("out", out), "x's shape", x.dims(), &normed)
}

/// The factors of a norm: its weight, plus 1 if the model stores it so.
fn factors(reference: &Reference, x: &Tensor, norm: &RmsNorm<'_>) -> Result<Vec<f32>> {
    last_dim("rms_norm", x)?;
    candlepower_kernels::operands::weight_rows(
        &Operand::new("rms_norm", "weight", norm.weight),
        x.dims(),
    )?;
    let dims = norm.weight.dims();
    let weight = reference.elements(("weight", norm.weight), "[groups, dim]", dims)?;
    Ok(weight.iter().map(|weight| weight + norm.form.offset()).collect())
}

fn last_dim(kernel: &'static str, x: &Tensor) -> Result<usize> {
    candlepower_kernels::operands::last_dim(&Operand::new(kernel, "x", x))
}

/// Computes `out = act(x)`, in f32 and rounded once; both are bf16 or f16 of one shape. The reference implementation is
/// [`candlepower_kernels::activation_reference`].
///
/// # Errors
/// Same as [`rms_norm`].
pub fn activation(x: &Tensor, act: Activation, out: &Tensor) -> Result<()> {
    launch_on_gpu!(x, crate::cuda::activation(x, act, out));
    let reference = Reference::new("activation", "x", x)?;
    let values = reference.elements(("x", x), "any shape", x.dims())?;
    let activated: Vec<f32> =
        values.into_iter().map(|value| activation_reference(value, act)).collect();
    reference.write(("out", out), "x's shape", x.dims(), &activated)
}

/// Computes `out = act(gate) * up` for `gate_up` `[tokens, 2 * inner]`, where the gate is the first half of each row.
///
/// `out` is `[tokens, inner]`; both are bf16 or f16, and the computation is in f32. Rows in FP8 have groups of all of a row or
/// of 128. The reference implementation is [`candlepower_kernels::gated_activation_reference`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn gated_activation(gate_up: &Tensor, act: Activation, out: impl Into<RowsOut>) -> Result<()> {
    gated_activation_before(None, gate_up, act, &out.into())
}

/// Same as [`gated_activation`]. A GPU requests the first bytes of `next`, the matrix of a later product, for the L2 cache
/// meanwhile.
pub(super) fn gated_activation_before(
    next: Option<&Tensor>,
    gate_up: &Tensor,
    act: Activation,
    out: &RowsOut,
) -> Result<()> {
    launch_on_gpu!(gate_up, crate::cuda::gated_activation(gate_up, act, next, out));
    // The CPU has no such requests.
    let _ = next;
    let reference = Reference::new("gated_activation", "gate_up", gate_up)?;
    let operand = Operand::new("gated_activation", "gate_up", gate_up);
    let (tokens, width) = operand.dims2("[tokens, 2 * inner]")?;
    let values =
        reference.elements(("gate_up", gate_up), "[tokens, 2 * inner]", &[tokens, width])?;
    let activated: Vec<f32> =
        values.chunks(width).flat_map(|row| gated_activation_reference(row, act)).collect();
    write_rows(&reference, out, "[tokens, inner]", &[tokens, width / 2], &activated)
}

/// Computes `out[t, j] = act(x[t, j]) * by[t, first + j]`, in f32 and rounded once. `x` and `out` are
/// `[tokens, inner]`, `by` is `[tokens, width]`, all bf16 or f16; `out` may be `x`. The reference implementation is
/// [`candlepower_kernels::activation_times_reference`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn activation_times(
    x: &Tensor,
    act: Activation,
    by: &Tensor,
    first: usize,
    out: &Tensor,
) -> Result<()> {
    launch_on_gpu!(x, crate::cuda::activation_times(x, act, by, first, out));
    let reference = Reference::new(ACTIVATION_TIMES, "x", x)?;
    let (tokens, inner) = Operand::new(ACTIVATION_TIMES, "x", x).dims2("[tokens, inner]")?;
    let width = times_width(&Operand::new(ACTIVATION_TIMES, "by", by), [tokens, inner], first)?;
    let values = reference.elements(("x", x), "[tokens, inner]", &[tokens, inner])?;
    let factors = reference.elements(("by", by), "[tokens, width]", &[tokens, width])?;
    let rows = values.chunks(inner.max(1)).zip(factors.chunks(width.max(1)));
    let products =
        rows.flat_map(|(x, by)| activation_times_reference(x, &by[first..][..inner], act));
    let products: Vec<f32> = products.collect();
    reference.write(("out", out), "[tokens, inner]", &[tokens, inner], &products)
}

/// Computes `out[t] = table[token_ids[t]] * scale`, rounded once. Dequantized values are rounded before the scaling
/// too.
///
/// `table` is `[vocab, hidden]` and `out` `[tokens, hidden]`, bf16 or f16 except a quantized `table`; `token_ids` is
/// u32 `[tokens]`. If `table` is a shard, `part` of the vocabulary, the rows of other tokens are zeros. An id beyond
/// the vocabulary gives a row of NaN. The reference implementation is [`candlepower_kernels::embedding_reference`].
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn embedding(
    token_ids: &Tensor,
    table: &Matrix,
    scale: f32,
    part: VocabPart,
    out: &Tensor,
) -> Result<()> {
    launch_on_gpu!(
        out,
        match table {
            Matrix::Rows(table) => crate::cuda::embedding(token_ids, table, scale, part, out),
            Matrix::Packed(table) => {
                crate::cuda::packed_embedding(token_ids, table, scale, part, out)
            }
            Matrix::Fp8(_) => Err(candlepower_kernels::Error::QuantizedRows(
                "an embedding has no form for products in FP8",
            )),
        }
    );
    let reference = Reference::new("embedding", "out", out)?;
    let (mut numbers, hidden) = table.elements(&reference, "table")?;
    if matches!(table, Matrix::Packed(_)) {
        numbers.iter_mut().for_each(|number| *number = rounded(*number, reference.dtype()));
    }
    gather(&reference, ("token_ids", token_ids), (&numbers, hidden), (scale, part), out)
}

/// Computes `out[i] = x[rows[i]]`, for example for the rows whose logits are computed.
///
/// `x` is `[tokens, dim]` and `out` `[count, dim]`, bf16 or f16; `rows` is u32 `[count]`. An index beyond the rows of
/// `x` gives a row of NaN. The reference implementation is [`candlepower_kernels::gather_rows_reference`].
///
/// # Errors
/// Same as [`embedding`].
pub fn gather_rows(x: &Tensor, rows: &Tensor, out: &Tensor) -> Result<()> {
    launch_on_gpu!(x, crate::cuda::gather_rows(x, rows, out));
    let reference = Reference::new("gather_rows", "x", x)?;
    let (count, dim) = Operand::new("gather_rows", "x", x).dims2("[rows, dim]")?;
    let values = reference.elements(("x", x), "[rows, dim]", &[count, dim])?;
    gather(&reference, ("rows", rows), (&values, dim), (1.0, VocabPart::all_rows(count)), out)
}

fn gather(
    reference: &Reference,
    rows: (&'static str, &Tensor),
    (values, dim): (&[f32], usize),
    (scale, part): (f32, VocabPart),
    out: &Tensor,
) -> Result<()> {
    let count = rows.1.elem_count();
    let gathered: Vec<f32> = reference
        .u32s(rows, "[count]", &[count])?
        .into_iter()
        .flat_map(|row| match (row as usize) < part.vocab_size {
            true => match part.row(row as usize, values.len() / dim) {
                Some(row) => values[row * dim..][..dim].iter().map(|v| v * scale).collect(),
                None => vec![0.0; dim],
            },
            false => vec![f32::NAN; dim],
        })
        .collect();
    reference.write(("out", out), "[count, dim]", &[count, dim], &gathered)
}

/// Computes `x = scale * x`, and then, with a cap, `x = cap * tanh(x / cap)`, in f32 and rounded once. `x` is bf16 or
/// f16 of any shape.
///
/// # Errors
/// `x` has another dtype or layout, or CUDA refused the launch.
///
/// Source: Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size", 2024.
pub fn scale_and_cap(x: &Tensor, scale: f32, cap: Option<f32>) -> Result<()> {
    launch_on_gpu!(x, crate::cuda::scale_and_cap(x, scale, cap));
    let reference = Reference::new("scale_and_cap", "x", x)?;
    let values = reference.elements(("x", x), "any shape", x.dims())?;
    let capped = |value: f32| cap.map_or(value, |cap| cap * (value / cap).tanh());
    let values: Vec<f32> = values.iter().map(|value| capped(scale * value)).collect();
    reference.write(("x", x), "any shape", x.dims(), &values)
}

/// Replaces each element of `tokens` that has its highest bit set, `1 << 31 | i`, by `sampled[i]`: a token that the
/// previous step sampled and that the host need not know. Both are u32 vectors; an `i` beyond `sampled` gives `u32::MAX`.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device, or CUDA refused the launch.
pub fn resolve_tokens(tokens: &Tensor, sampled: &Tensor) -> Result<()> {
    launch_on_gpu!(tokens, crate::cuda::resolve_tokens(tokens, sampled));
    let reference = Reference::integers("resolve_tokens");
    let (count, known) = (tokens.elem_count(), sampled.elem_count());
    let sampled = reference.u32s(("sampled", sampled), "[samples]", &[known])?;
    let resolve = |token: u32| match token >> 31 {
        0 => token,
        _ => sampled.get((token & (u32::MAX >> 1)) as usize).copied().unwrap_or(u32::MAX),
    };
    let resolved: Vec<u32> =
        reference.u32s(("tokens", tokens), "[count]", &[count])?.into_iter().map(resolve).collect();
    reference.write_u32s(("tokens", tokens), "[count]", &[count], &resolved)
}
