//! Picks rows of a matrix, for example the rows of the logits indices.

use candle_core::Tensor;

use crate::tensor::{Operand, from_vec};
use crate::{Error, Result, parallel};

/// The rows `rows` of `x` `[tokens, dim]` f32, in that order: `[rows.len(), dim]`.
///
/// # Errors
/// `x` is not a contiguous f32 CPU matrix, or a row is out of range.
pub fn gather_rows(x: &Tensor, rows: &[u32]) -> Result<Tensor> {
    let x = Operand::new("gather_rows", "x", x);
    let (tokens, dim) = x.dims2("[tokens, dim]")?;
    let data = x.f32s()?;
    if let Some(&row) = rows.iter().find(|&&row| row as usize >= tokens) {
        return Err(Error::OutOfRange {
            kernel: "gather_rows",
            index: "row",
            value: row as usize,
            bound: tokens,
        });
    }
    let source: &[f32] = &data;
    let out = parallel::build_rows(rows.len(), dim, |i, out| {
        let row = rows[i] as usize;
        out.copy_from_slice(&source[row * dim..(row + 1) * dim]);
    });
    from_vec(out, &[rows.len(), dim])
}

/// The reference for [`gather_rows`]: `out[i] = x[rows[i]]`.
#[must_use]
pub fn gather_rows_reference(x: &[f32], dim: usize, rows: &[u32]) -> Vec<f32> {
    rows.iter().flat_map(|&row| x[row as usize * dim..][..dim].iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    #[test]
    fn picks_rows_in_order() {
        let x = Tensor::arange(0f32, 12., &Device::Cpu).unwrap().reshape((4, 3)).unwrap();
        let picked = gather_rows(&x, &[3, 0, 3]).unwrap();
        assert_eq!(picked.dims(), [3, 3]);
        let picked: Vec<f32> = picked.flatten_all().unwrap().to_vec1().unwrap();
        let data: Vec<f32> = x.flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(picked, gather_rows_reference(&data, 3, &[3, 0, 3]));
        assert_eq!(picked[..3], [9., 10., 11.]);
        assert_eq!(gather_rows(&x, &[]).unwrap().dims(), [0, 3]);
    }

    #[test]
    fn refuses_bad_operands() {
        let x = Tensor::zeros((4, 3), DType::F32, &Device::Cpu).unwrap();
        assert!(matches!(gather_rows(&x, &[4]), Err(Error::OutOfRange { value: 4, bound: 4, .. })));
        assert!(matches!(gather_rows(&x.t().unwrap(), &[0]), Err(Error::NotContiguous { .. })));
        let f64s = x.to_dtype(DType::F64).unwrap();
        assert!(matches!(gather_rows(&f64s, &[0]), Err(Error::DType { found: DType::F64, .. })));
        assert!(matches!(gather_rows(&x.flatten_all().unwrap(), &[0]), Err(Error::Shape { .. })));
    }
}
