//! Layer normalisation, alone and fused with the residual addition before it.

use candle_core::Tensor;

use crate::norm::{last_dim, sum, weight_rows};
use crate::tensor::{Operand, from_vec};
use crate::{Result, parallel};

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over the last dimension. The variance is the biased one, a
/// mean over all elements.
///
/// `x` is f32 of any rank with last dimension `dim`, and `weight` and `bias` are f32 `[dim]`. For `x` `[.., heads,
/// dim]` the weight may have a row for each head, `[heads, dim]`.
///
/// # Errors
/// An operand is not a contiguous f32 CPU tensor, or `weight` or `bias` has another shape.
///
/// Source: "Layer Normalization", 2016, arXiv 1607.06450.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, eps: f32) -> Result<Tensor> {
    let x = Operand::new("layer_norm", "x", x);
    let data = x.f32s()?;
    let data: &[f32] = &data;
    norm_rows(&x, weight, bias, eps, |range, out| out.copy_from_slice(&data[range]))
}

/// [`layer_norm`] of `residual + x`, which have the same shape.
///
/// # Errors
/// The errors of [`layer_norm`], and different shapes of `residual` and `x`.
pub fn add_layer_norm(
    residual: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    eps: f32,
) -> Result<Tensor> {
    let residual = Operand::new("add_layer_norm", "residual", residual);
    let x = Operand::new("add_layer_norm", "x", x);
    x.expect_dims("the residual's shape", residual.tensor.dims())?;
    let (a, b) = (residual.f32s()?, x.f32s()?);
    let (a, b): (&[f32], &[f32]) = (&a, &b);
    norm_rows(&residual, weight, bias, eps, |range, out| {
        for ((out, a), b) in out.iter_mut().zip(&a[range.clone()]).zip(&b[range]) {
            *out = a + b;
        }
    })
}

/// The reference for [`layer_norm`] for rows of `weight.len()` elements, computed in f64.
#[must_use]
pub fn layer_norm_reference(x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32) -> Vec<f32> {
    let dim = weight.len() as f64;
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(weight.len()) {
        let mean = row.iter().map(|v| f64::from(*v)).sum::<f64>() / dim;
        let variance = row.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / dim;
        let scale = 1.0 / (variance + f64::from(eps)).sqrt();
        out.extend(row.iter().zip(weight).enumerate().map(|(i, (v, w))| {
            let bias = bias.map_or(0.0, |bias| f64::from(bias[i]));
            ((f64::from(*v) - mean) * scale * f64::from(*w) + bias) as f32
        }));
    }
    out
}

/// Normalises the rows that `fill` writes.
fn norm_rows(
    shape: &Operand<'_>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    eps: f32,
    fill: impl Fn(std::ops::Range<usize>, &mut [f32]) + Sync,
) -> Result<Tensor> {
    let dims = shape.tensor.dims();
    let dim = last_dim(shape)?;
    let weight = Operand::new(shape.kernel, "weight", weight);
    let heads = weight_rows(&weight, dims)?;
    let weight = weight.f32s()?;
    let weight: &[f32] = &weight;
    let bias = bias.map(|bias| {
        let bias = Operand::new(shape.kernel, "bias", bias);
        bias.expect_dims("[dim]", &[dim])?;
        bias.f32s()
    });
    let bias = bias.transpose()?;
    let bias = bias.as_deref();
    let rows = shape.tensor.elem_count() / dim;
    let out = parallel::build_rows(rows, dim, |row, out| {
        fill(row * dim..(row + 1) * dim, out);
        normalize(out, &weight[row % heads * dim..][..dim], bias, eps);
    });
    from_vec(out, dims)
}

/// One row of [`layer_norm`], in place.
fn normalize(x: &mut [f32], weight: &[f32], bias: Option<&[f32]>, eps: f32) {
    let mean = sum(x, |v| v) / x.len() as f32;
    // Taken around the mean, since the difference of the mean square and the squared mean would lose most digits.
    let variance = sum(x, |v| (v - mean) * (v - mean)) / x.len() as f32;
    let scale = 1.0 / (variance + eps).sqrt();
    let Some(bias) = bias else {
        x.iter_mut().zip(weight).for_each(|(v, w)| *v = (*v - mean) * scale * w);
        return;
    };
    for ((v, w), b) in x.iter_mut().zip(weight).zip(bias) {
        *v = (*v - mean) * scale * w + b;
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::Error;

    fn test_values(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + 13) % 10_007) as f32 / 977.0 - 4.0).collect()
    }

    fn tensor(values: &[f32], dims: &[usize]) -> Tensor {
        Tensor::from_slice(values, dims, &Device::Cpu).unwrap()
    }

    fn flat(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn matches_the_definition_for_any_width_and_batch() {
        for (rows, dim) in [(1, 1), (3, 31), (2, 64), (5, 100), (200, 384)] {
            let both = test_values(2 * rows * dim);
            let (x, residual) = both.split_at(rows * dim);
            let (weight, bias) = (test_values(dim), test_values(dim + 7).split_off(7));
            let (tx, tr) = (tensor(x, &[rows, dim]), tensor(residual, &[rows, dim]));
            let (tw, tb) = (tensor(&weight, &[dim]), tensor(&bias, &[dim]));
            let normed = flat(&layer_norm(&tx, &tw, Some(&tb), 1e-5).unwrap());
            let want = layer_norm_reference(x, &weight, Some(&bias), 1e-5);
            let sum: Vec<f32> = x.iter().zip(residual).map(|(a, b)| a + b).collect();
            let fused = flat(&add_layer_norm(&tr, &tx, &tw, Some(&tb), 1e-5).unwrap());
            let want_fused = layer_norm_reference(&sum, &weight, Some(&bias), 1e-5);
            for (got, want) in normed.iter().chain(&fused).zip(want.iter().chain(&want_fused)) {
                assert!((got - want).abs() <= 1e-4 * want.abs().max(1.0), "{got} is not {want}");
            }
            let last = tensor(&x[(rows - 1) * dim..], &[1, dim]);
            let alone = flat(&layer_norm(&last, &tw, Some(&tb), 1e-5).unwrap());
            assert_eq!(alone, normed[(rows - 1) * dim..], "a row alone");
        }
    }

    #[test]
    fn normalises_each_head_by_its_own_weight() {
        let (tokens, heads, dim) = (3, 4, 20);
        let (x, weight) = (test_values(tokens * heads * dim), test_values(heads * dim));
        let (tx, tw) = (tensor(&x, &[tokens, heads, dim]), tensor(&weight, &[heads, dim]));
        let normed = layer_norm(&tx, &tw, None, 1e-5).unwrap();
        assert_eq!(normed.dims(), [tokens, heads, dim]);
        for (row, got) in flat(&normed).chunks(dim).enumerate() {
            let weight = &weight[row % heads * dim..][..dim];
            let want = layer_norm_reference(&x[row * dim..][..dim], weight, None, 1e-5);
            for (got, want) in got.iter().zip(&want) {
                assert!((got - want).abs() <= 1e-4 * want.abs().max(1.0), "{got} is not {want}");
            }
        }
        let other = tensor(&weight, &[2 * heads, dim / 2]);
        assert!(matches!(layer_norm(&tx, &other, None, 1e-5), Err(Error::Shape { .. })));
    }

    #[test]
    fn refuses_bad_operands() {
        let (x, weight) = (tensor(&test_values(6), &[2, 3]), tensor(&test_values(3), &[3]));
        let short = tensor(&[1.0, 2.0], &[2]);
        assert!(matches!(layer_norm(&x, &weight, Some(&short), 1e-6), Err(Error::Shape { .. })));
        assert!(matches!(layer_norm(&x, &short, None, 1e-6), Err(Error::Shape { .. })));
        let error = add_layer_norm(&x, &weight, &weight, None, 1e-6).unwrap_err();
        assert!(matches!(error, Error::Shape { operand: "x", .. }));
    }
}
