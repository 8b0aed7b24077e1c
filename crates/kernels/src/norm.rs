//! The residual addition, and RMS normalisation alone and fused with it.

use candle_core::Tensor;

use crate::tensor::{Operand, from_vec};
use crate::{Result, parallel};

/// `residual + x`, two f32 tensors of one shape.
///
/// # Errors
/// An operand is not a contiguous f32 CPU tensor, or the shapes differ.
pub fn add(residual: &Tensor, x: &Tensor) -> Result<Tensor> {
    add_scaled(residual, x, 1.0)
}

/// `(residual + x) * scale`, two f32 tensors of one shape: the sum of a layer whose output has a factor.
///
/// # Errors
/// The errors of [`add`].
pub fn add_scaled(residual: &Tensor, x: &Tensor, scale: f32) -> Result<Tensor> {
    let residual = Operand::new("add", "residual", residual);
    let x = Operand::new("add", "x", x);
    let dim = last_dim(&residual)?;
    x.expect_dims("the residual's shape", residual.tensor.dims())?;
    let (a, b) = (residual.f32s()?, x.f32s()?);
    from_vec(sum_rows(&a, &b, scale, dim), residual.tensor.dims())
}

/// `x / sqrt(mean(x^2) + eps) * weight` over the last dimension.
///
/// `x` is f32 of any rank with last dimension `dim`: `[tokens, hidden]`, or `[tokens, heads, head_dim]` for a norm
/// per head. `weight` is f32 `[dim]`. For `x` `[.., groups, dim]` it may have a row for each group, `[groups, dim]`.
///
/// # Errors
/// An operand is not a contiguous f32 CPU tensor, or `weight` has another shape.
///
/// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let x = Operand::new("rms_norm", "x", x);
    let weight = Operand::new("rms_norm", "weight", weight);
    let dim = last_dim(&x)?;
    let groups = weight_rows(&weight, x.tensor.dims())?;
    let (data, weight) = (x.f32s()?, weight.f32s()?);
    let (data, weight): (&[f32], &[f32]) = (&data, &weight);
    let out = parallel::build_rows(data.len() / dim, dim, |row, out| {
        let weight = &weight[row % groups * dim..][..dim];
        normalize(&data[row * dim..(row + 1) * dim], weight, eps, out);
    });
    from_vec(out, x.tensor.dims())
}

/// `sum(x^2)` of each row of `x`, f32 `[rows, dim]`: `[rows]`. Ranks that have shards of a row add their sums up.
///
/// # Errors
/// `x` is not a contiguous f32 CPU tensor of two dimensions.
pub fn square_sums(x: &Tensor) -> Result<Tensor> {
    let x = Operand::new("square_sums", "x", x);
    let (rows, dim) = x.dims2("[rows, dim]")?;
    let data = x.f32s()?;
    from_vec(data.chunks_exact(dim.max(1)).map(squares).collect(), &[rows])
}

/// [`rms_norm`] of a shard `[rows, dim]` of longer rows. `sums` `[rows]` are the [`square_sums`] of the whole rows,
/// which have `width` elements each. `weight` `[dim]` belongs to the shard.
///
/// # Errors
/// The errors of [`rms_norm`], and a shape of `sums` that is not `[rows]`.
pub fn rms_norm_part(
    x: &Tensor,
    weight: &Tensor,
    eps: f32,
    (sums, width): (&Tensor, usize),
) -> Result<Tensor> {
    let x = Operand::new("rms_norm_part", "x", x);
    let weight = Operand::new("rms_norm_part", "weight", weight);
    let sums = Operand::new("rms_norm_part", "sums", sums);
    let (rows, dim) = x.dims2("[rows, dim]")?;
    weight.expect_dims("[dim]", &[dim])?;
    sums.expect_dims("[rows]", &[rows])?;
    let (data, weight, sums) = (x.f32s()?, weight.f32s()?, sums.f32s()?);
    let (data, weight, sums): (&[f32], &[f32], &[f32]) = (&data, &weight, &sums);
    let out = parallel::build_rows(rows, dim, |row, out| {
        let scale = 1.0 / (sums[row] / width as f32 + eps).sqrt();
        scaled(&data[row * dim..(row + 1) * dim], scale, weight, out);
    });
    from_vec(out, x.tensor.dims())
}

/// `(sum, normed)`: `sum = (residual + x) * scale`, `normed = rms_norm(sum)`. Shapes as in [`rms_norm`];
/// `residual` and `x` have the same shape.
///
/// # Errors
/// The errors of [`rms_norm`], and different shapes of `residual` and `x`.
pub fn add_rms_norm(
    residual: &Tensor,
    x: &Tensor,
    scale: f32,
    weight: &Tensor,
    eps: f32,
) -> Result<(Tensor, Tensor)> {
    let residual = Operand::new("add_rms_norm", "residual", residual);
    let x = Operand::new("add_rms_norm", "x", x);
    let weight = Operand::new("add_rms_norm", "weight", weight);
    let dim = last_dim(&residual)?;
    let dims = residual.tensor.dims();
    x.expect_dims("the residual's shape", dims)?;
    weight.expect_dims("[dim]", &[dim])?;
    let (a, b, weight) = (residual.f32s()?, x.f32s()?, weight.f32s()?);
    let (a, b, weight): (&[f32], &[f32], &[f32]) = (&a, &b, &weight);
    let rows = a.len() / dim;
    let sum = sum_rows(a, b, scale, dim);
    let normed = parallel::build_rows(rows, dim, |row, out| {
        normalize(&sum[row * dim..(row + 1) * dim], weight, eps, out);
    });
    Ok((from_vec(sum, dims)?, from_vec(normed, dims)?))
}

/// The reference for [`rms_norm`] for rows of `weight.len()` elements.
#[must_use]
pub fn rms_norm_reference(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let dim = weight.len();
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(dim) {
        let mean_square = row.iter().map(|v| v * v).sum::<f32>() / dim as f32;
        let scale = 1.0 / (mean_square + eps).sqrt();
        out.extend(row.iter().zip(weight).map(|(v, w)| v * scale * w));
    }
    out
}

/// The reference for [`add_rms_norm`].
#[must_use]
pub fn add_rms_norm_reference(
    residual: &[f32],
    x: &[f32],
    scale: f32,
    weight: &[f32],
    eps: f32,
) -> (Vec<f32>, Vec<f32>) {
    let sum: Vec<f32> = residual.iter().zip(x).map(|(a, b)| (a + b) * scale).collect();
    let normed = rms_norm_reference(&sum, weight, eps);
    (sum, normed)
}

/// `(a + b) * scale`, both rows of `dim` elements.
fn sum_rows(a: &[f32], b: &[f32], scale: f32, dim: usize) -> Vec<f32> {
    parallel::build_rows(a.len() / dim, dim, |row, out| {
        let range = row * dim..(row + 1) * dim;
        for ((out, a), b) in out.iter_mut().zip(&a[range.clone()]).zip(&b[range]) {
            *out = (a + b) * scale;
        }
    })
}

/// The last dimension of an operand of a norm.
///
/// # Errors
/// There is none, or it is zero.
pub fn last_dim(x: &Operand<'_>) -> Result<usize> {
    match x.tensor.dims().last() {
        Some(&dim) if dim > 0 => Ok(dim),
        _ => Err(x.shape_error("[.., dim] with dim > 0")),
    }
}

/// Number of rows of a norm's weight: one, or one for each group of an operand `[.., groups, dim]`.
///
/// # Errors
/// The weight has neither shape.
pub fn weight_rows(weight: &Operand<'_>, dims: &[usize]) -> Result<usize> {
    match (weight.tensor.dims(), dims) {
        ([_, _], &[.., groups, dim]) => {
            weight.expect_dims("[groups, dim]", &[groups, dim])?;
            Ok(groups.max(1))
        }
        (_, dims) => {
            weight.expect_dims("[dim]", &dims[dims.len().saturating_sub(1)..])?;
            Ok(1)
        }
    }
}

/// Number of interleaved partial sums. So many independent additions let the compiler vectorise the loop.
const LANES: usize = 32;

/// One row of [`rms_norm`].
fn normalize(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    scaled(x, 1.0 / (squares(x) / x.len() as f32 + eps).sqrt(), weight, out);
}

/// The sum of a row's squares.
fn squares(x: &[f32]) -> f32 {
    sum(x, |v| v * v)
}

fn scaled(x: &[f32], scale: f32, weight: &[f32], out: &mut [f32]) {
    for ((out, v), w) in out.iter_mut().zip(x).zip(weight) {
        *out = v * scale * w;
    }
}

/// The sum of `term(v)` over a row, in one fixed order.
#[inline(always)]
pub(crate) fn sum(x: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let chunks = x.chunks_exact(LANES);
    let tail = chunks.remainder();
    for chunk in chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane += term(*v);
        }
    }
    for (lane, v) in lanes.iter_mut().zip(tail) {
        *lane += term(*v);
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::Error;

    fn test_values(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + 13) % 10_007) as f32 / 977.0 - 5.0).collect()
    }

    fn tensor(values: &[f32], dims: &[usize]) -> Tensor {
        Tensor::from_slice(values, dims, &Device::Cpu).unwrap()
    }

    fn flat(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn assert_close(got: &[f32], want: &[f32]) {
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() <= 2e-6 * want.abs().max(1.0), "{got} is not {want}");
        }
    }

    #[test]
    fn matches_the_definition_for_any_width_and_batch() {
        // Rows shorter than the partial sums, and longer ones with and without a remainder.
        for (rows, dim) in [(1, 1), (3, 31), (2, 64), (5, 100), (200, 896)] {
            let (x, residual) =
                (test_values(rows * dim), test_values(2 * rows * dim).split_off(rows * dim));
            let weight = test_values(dim);
            let (tx, tr, tw) = (
                tensor(&x, &[rows, dim]),
                tensor(&residual, &[rows, dim]),
                tensor(&weight, &[dim]),
            );
            let normed = rms_norm(&tx, &tw, 1e-5).unwrap();
            assert_close(&flat(&normed), &rms_norm_reference(&x, &weight, 1e-5));
            for scale in [1.0, 0.37] {
                let (sum, fused) = add_rms_norm(&tr, &tx, scale, &tw, 1e-5).unwrap();
                let (want_sum, want) = add_rms_norm_reference(&residual, &x, scale, &weight, 1e-5);
                assert_eq!(flat(&sum), want_sum);
                assert_eq!(flat(&add_scaled(&tr, &tx, scale).unwrap()), want_sum);
                assert_close(&flat(&fused), &want);
                assert_eq!(
                    flat(&fused),
                    flat(&rms_norm(&sum, &tw, 1e-5).unwrap()),
                    "fused and plain agree"
                );
            }
            let sums: Vec<f32> = residual.iter().zip(&x).map(|(a, b)| a + b).collect();
            assert_eq!(flat(&add(&tr, &tx).unwrap()), sums);
            let last = tensor(&x[(rows - 1) * dim..], &[1, dim]);
            let alone = flat(&rms_norm(&last, &tw, 1e-5).unwrap());
            assert_eq!(alone, flat(&normed)[(rows - 1) * dim..], "a row alone");
        }
    }

    #[test]
    fn normalises_each_head() {
        let x = test_values(2 * 3 * 8);
        let weight = test_values(8);
        let normed = rms_norm(&tensor(&x, &[2, 3, 8]), &tensor(&weight, &[8]), 1e-6).unwrap();
        assert_eq!(normed.dims(), [2, 3, 8]);
        assert_close(&flat(&normed), &rms_norm_reference(&x, &weight, 1e-6));
    }

    #[test]
    fn refuses_bad_operands() {
        let x = tensor(&test_values(6), &[2, 3]);
        let weight = tensor(&test_values(3), &[3]);
        assert!(matches!(rms_norm(&x, &tensor(&[1., 2.], &[2]), 1e-6), Err(Error::Shape { .. })));
        assert!(matches!(
            rms_norm(&x.t().unwrap(), &tensor(&[1., 2.], &[2]), 1e-6),
            Err(Error::NotContiguous { .. })
        ));
        assert!(matches!(
            rms_norm(&x, &weight.to_dtype(DType::BF16).unwrap(), 1e-6),
            Err(Error::DType { .. })
        ));
        let other = tensor(&test_values(3), &[1, 3]);
        let error = add_rms_norm(&x, &other, 1.0, &weight, 1e-6).unwrap_err();
        assert!(matches!(error, Error::Shape { operand: "x", .. }));
        assert!(matches!(add(&x, &other), Err(Error::Shape { operand: "x", .. })));
    }

    /// Each of two shards has a half of every row.
    #[test]
    fn parts_of_rows_are_normed_as_the_whole() {
        let (rows, dim) = (3, 70);
        let (x, weight) = (test_values(rows * dim), test_values(dim));
        let half = |values: &[f32], first: usize| -> Vec<f32> {
            values.chunks(dim).flat_map(|row| row[first..first + dim / 2].to_vec()).collect()
        };
        let parts = [0, dim / 2].map(|first| {
            let dims = [rows, dim / 2];
            (tensor(&half(&x, first), &dims), tensor(&half(&weight, first), &dims[1..]), first)
        });
        let [left, right] = [0, 1].map(|i| square_sums(&parts[i].0).unwrap());
        let sums = (left + right).unwrap();
        let want = rms_norm_reference(&x, &weight, 1e-5);
        for (part, weight, first) in &parts {
            let found = rms_norm_part(part, weight, 1e-5, (&sums, dim)).unwrap();
            assert_close(&flat(&found), &half(&want, *first));
        }
        let (part, weight, _) = &parts[0];
        assert!(rms_norm_part(part, weight, 1e-5, (&tensor(&[1.0], &[1]), dim)).is_err());
    }
}
