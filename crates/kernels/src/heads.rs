//! Products of each head with a matrix of its own.

use candle_core::Tensor;

use crate::tensor::{Operand, from_vec};
use crate::{Error, Result, Weight, linear};

/// `out[t, h] = w[h] x[t, h]`: `x` is f32 `[tokens, heads, at least k]`, of which the first `k` elements of each head are read; the
/// weights are `[n, k]`, one for each head. Result `[tokens, heads, n]` f32; each output is as [`linear`] computes it.
///
/// # Errors
/// `x` has the wrong dtype, shape, layout or device, or the weights differ in shape.
pub fn linear_heads(x: &Tensor, weights: &[Weight]) -> Result<Tensor> {
    const KERNEL: &str = "linear_heads";
    let operand = Operand::new(KERNEL, "x", x);
    let (tokens, heads, width) = operand.dims3("[tokens, heads, at least k]")?;
    let [n, k] = weights.first().map_or([0, 0], |first| [first.n(), first.k()]);
    if weights.len() != heads || weights.iter().any(|weight| [weight.n(), weight.k()] != [n, k]) {
        let (value, expected) = (weights.len(), "one of the same shape for each head");
        return Err(Error::Parameter { parameter: "weights of heads", value, expected });
    }
    if width < k {
        return Err(operand.shape_error(format!("[tokens, heads, at least {k}]")));
    }
    let data = operand.f32s()?;
    let mut out = vec![0f32; tokens * heads * n];
    for (head, weight) in weights.iter().enumerate() {
        let rows = (0..tokens).flat_map(|token| &data[(token * heads + head) * width..][..k]);
        let rows = from_vec(rows.copied().collect(), &[tokens, k])?;
        let results = linear(&rows, weight, None)?;
        let results = Operand::new(KERNEL, "results", &results).f32s()?;
        for (token, result) in results.chunks_exact(n).enumerate() {
            out[(token * heads + head) * n..][..n].copy_from_slice(result);
        }
    }
    from_vec(out, &[tokens, heads, n])
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::{WeightRows, linear_reference};

    fn weight(numbers: &[f32], k: usize) -> Weight {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let mut builder = Weight::builder(numbers.len() / k, k, DType::F32).unwrap();
        builder.write_rows(0, WeightRows { dtype: DType::F32, bytes: &bytes }).unwrap();
        builder.finish().unwrap()
    }

    #[test]
    fn each_head_has_its_own_matrix() {
        let (tokens, heads, n, k, width) = (3, 4, 5, 6, 9);
        let numbers = |count: usize, seed: usize| -> Vec<f32> {
            (0..count).map(|i| ((i + seed) * 7919 % 1009) as f32 / 500.0 - 1.0).collect()
        };
        let x = numbers(tokens * heads * width, 1);
        let matrices: Vec<Vec<f32>> = (0..heads).map(|head| numbers(n * k, 40 * head)).collect();
        let weights: Vec<Weight> = matrices.iter().map(|matrix| weight(matrix, k)).collect();
        let tensor = Tensor::from_slice(&x, (tokens, heads, width), &Device::Cpu).unwrap();
        let found = linear_heads(&tensor, &weights).unwrap();
        assert_eq!(found.dims(), [tokens, heads, n]);
        let found: Vec<f32> = found.flatten_all().unwrap().to_vec1().unwrap();
        for (row, found) in found.chunks(n).enumerate() {
            let x = &x[row * width..][..k];
            for (matrix, found) in matrices[row % heads].chunks(k).zip(found) {
                assert!((linear_reference(x, matrix, None) - found).abs() < 1e-5);
            }
        }
        let refused = linear_heads(&tensor, &weights[1..]);
        assert!(matches!(refused, Err(Error::Parameter { value: 3, .. })));
        let narrow = tensor.narrow(2, 0, 5).unwrap().contiguous().unwrap();
        assert!(matches!(linear_heads(&narrow, &weights), Err(Error::Shape { .. })));
    }
}
