//! Rows that are packed once and multiplied by several weights.

use candle_core::DType;

use super::format::in_format;
use super::tiled::PackRows;
use super::{Multiply, Product, run};
use crate::parallel::SharedMut;
use crate::simd::{Isa, Simd, WithSimd};
use crate::weight::{Layout, PANEL};
use crate::{Result, Weight};

/// Rows `[rows, k]` in the order in which tiles read them, for weights `[.., k]` of one dtype.
pub(crate) struct PackedRows {
    rows: usize,
    /// Layout of the weights. It decides the order of the words.
    layout: Layout,
    words: Vec<f32>,
}

impl PackedRows {
    /// Packs the rows of `x` for weights of `dtype`: f32, f16 or bf16.
    ///
    /// # Errors
    /// `dtype` is another one, or memory cannot be reserved.
    pub(crate) fn new(x: &[f32], k: usize, dtype: DType) -> Result<Self> {
        Self::with(Isa::detect(), x, k, dtype)
    }

    fn with(isa: Isa, x: &[f32], k: usize, dtype: DType) -> Result<Self> {
        // Packing depends on the layout of the weights only. So one panel of zeros stands for all of them.
        let weight = Weight::builder(PANEL, k, dtype)?.finish_with_zeros();
        let rows = x.len() / k;
        assert!(x.len() == rows * k, "whole rows");
        let (mut words, y) = (Vec::new(), SharedMut::of(&mut []));
        let product = Product { x, packed: None, w: &weight, bias: None, gate: None, y, rows };
        run(isa, &weight, Pack { product, words: &mut words });
        Ok(Self { rows, layout: weight.layout(), words })
    }

    /// Sets `out` to the products of all rows with those of `w`, `[rows, n]`, with the bits of [`linear`](crate::linear()).
    pub(crate) fn multiply(&self, w: &Weight, out: &mut Vec<f32>) {
        self.multiply_with(Isa::detect(), w, out);
    }

    fn multiply_with(&self, isa: Isa, w: &Weight, out: &mut Vec<f32>) {
        assert!(w.layout() == self.layout && w.inputs().is_none(), "packed for other weights");
        let (rows, len) = (self.rows, self.rows * w.n());
        out.clear();
        out.reserve(len);
        let y = SharedMut::new(&mut out.spare_capacity_mut()[..len]);
        if rows > 0 {
            let packed = Some(self.words.as_slice());
            run(isa, w, Multiply(Product { x: &[], packed, w, bias: None, gate: None, y, rows }));
        }
        // SAFETY: tiles write every element of `y`.
        unsafe { out.set_len(len) };
    }
}

/// Packing as work for an instruction set.
struct Pack<'a> {
    product: Product<'a>,
    words: &'a mut Vec<f32>,
}

impl WithSimd for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        in_format(s, &self.product, PackRows(self.words));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WeightRows;
    use crate::linear::multiply;

    #[test]
    fn products_have_the_bits_of_rows_that_are_not_packed() {
        let test_values = |count: usize, by: usize| -> Vec<f32> {
            (0..count).map(|i| ((i * by + 5) % 211) as f32 / 64.0 - 1.5).collect()
        };
        // The last is more than one group of rows.
        for (rows, n, k) in [(0, 32, 8), (1, 32, 7), (3, 64, 72), (40, 33, 300), (300, 32, 4200)] {
            let (x, w) = (test_values(rows * k, 7919), test_values(n * k, 104_729));
            let bytes: Vec<u8> = w.iter().flat_map(|value| value.to_le_bytes()).collect();
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                let mut builder = Weight::builder(n, k, dtype).unwrap();
                builder.write_rows(0, WeightRows { dtype: DType::F32, bytes: &bytes }).unwrap();
                let weight = builder.finish().unwrap();
                for isa in Isa::all() {
                    let packed = PackedRows::with(isa, &x, k, dtype).unwrap();
                    let want = multiply(isa, &x, &weight, None, None);
                    // Rows that are packed once may be multiplied often.
                    let mut found = vec![1.0; 3];
                    for _ in 0..2 {
                        packed.multiply_with(isa, &weight, &mut found);
                        assert!(found == want, "{rows} rows of {k} by {n} in {dtype:?}, {isa:?}");
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "packed for other weights")]
    fn refuses_weights_of_another_dtype() {
        let packed = PackedRows::new(&[1.0; 32], 8, DType::BF16).unwrap();
        let other = Weight::builder(32, 8, DType::F32).unwrap().finish_with_zeros();
        packed.multiply(&other, &mut Vec::new());
    }
}
