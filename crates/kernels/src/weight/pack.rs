//! Activations packed as a weight, so that a product with them runs like one with a matrix of the model.

use candle_core::DType;
use half::bf16;

use super::{Element, ElementOrder, PANEL, Weight, WeightBuilder};
use crate::Result;

impl Weight {
    /// A weight `[n, k]` of the values `value(row, step)`, in f32 or rounded to bf16. It is packed by the calling thread
    /// alone, because kernels call this on their threads.
    ///
    /// # Errors
    /// Those of [`Self::builder`].
    pub(crate) fn of_values(
        n: usize,
        k: usize,
        dtype: DType,
        value: impl Fn(usize, usize) -> f32,
    ) -> Result<Self> {
        let mut builder = Self::builder(n, k, dtype)?;
        match builder.layout.order {
            ElementOrder::Bf16 => builder.put(|row, step| bf16::from_f32(value(row, step))),
            ElementOrder::F16 => builder.put(|row, step| half::f16::from_f32(value(row, step))),
            _ => builder.put(value),
        }
        Ok(builder.finish_with_zeros())
    }
}

impl WeightBuilder {
    /// Writes all elements.
    fn put<E: Element>(&mut self, value: impl Fn(usize, usize) -> E) {
        let (n, layout) = (self.n, self.layout);
        let panels = self.memory.bytes_mut().chunks_exact_mut(layout.panel_bytes());
        for (panel, first) in panels.zip((0..n).step_by(PANEL)) {
            for step in 0..layout.k {
                for column in 0..PANEL.min(n - first) {
                    value(first + column, step).put(panel, layout.index(step, column));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_the_values() {
        let value = |row: usize, step: usize| (row * 131 + step * 17) as f32 / 64.0 - 5.0;
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for (n, k) in [(1, 1), (31, 7), (33, 16), (70, 5)] {
                let weight = Weight::of_values(n, k, dtype, value).unwrap();
                let mut row = vec![0.0; k];
                for index in 0..n {
                    weight.read_row(index, &mut row);
                    let want = (0..k).map(|step| match dtype {
                        DType::F32 => value(index, step),
                        DType::F16 => half::f16::from_f32(value(index, step)).to_f32(),
                        _ => bf16::from_f32(value(index, step)).to_f32(),
                    });
                    assert_eq!(row, want.collect::<Vec<_>>(), "row {index} of [{n}, {k}]");
                }
            }
        }
    }
}
