//! Products of each head with a matrix of its own, such as MLA's projections from and to latents.

use std::ops::Range;

use candle_core::Tensor;

use crate::linear::product_of_rows as product;
use crate::parallel::{self, SharedMut};
use crate::tensor::{Operand, from_vec};
use crate::threads::available;
use crate::{Error, Result, Weight};

/// `out[t, h] = w[h] x[t, h]`: `x` is f32 `[tokens, heads, at least k]`, of which the first `k` elements of each head
/// are read. There is a weight `[n, k]` for each head. The result is `[tokens, heads, n]` f32, and each output has
/// the bits of [`crate::linear`].
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
    let data: &[f32] = &data;
    let mut out = vec![0f32; tokens * heads * n];
    let shared = SharedMut::of(&mut out);
    let work = |heads_of_part: Range<usize>| {
        for head in heads_of_part {
            let row = |token: usize| token * heads + head;
            // The heads of a token lie side by side, but the rows of a product must be contiguous.
            let rows = (0..tokens).flat_map(|token| &data[row(token) * width..][..k]);
            let rows: Vec<f32> = rows.copied().collect();
            for (token, result) in product(&rows, &weights[head]).chunks_exact(n).enumerate() {
                // SAFETY: each head of each token is written once.
                unsafe { shared.at(row(token) * n, n).copy_from(result.as_ptr(), n) };
            }
        }
    };
    // A thread that works on a head computes its product alone. With fewer heads than threads the threads share each
    // product.
    match heads >= available() {
        true => parallel::for_ranges(heads, 1, work),
        false => work(0..heads),
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
        let test_values = |count: usize, seed: usize| -> Vec<f32> {
            (0..count).map(|i| ((i + seed) * 7919 % 1009) as f32 / 500.0 - 1.0).collect()
        };
        let x = test_values(tokens * heads * width, 1);
        let matrices: Vec<Vec<f32>> =
            (0..heads).map(|head| test_values(n * k, 40 * head)).collect();
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
