//! Activations packed as a weight, so that a product with them runs like one with a matrix of the model.

use std::sync::Arc;

use candle_core::DType;

use super::{ElementOrder, PANEL, Weight};
use crate::simd::{Isa, LANES, Simd, WithSimd};
use crate::{Error, Result};

impl Weight {
    /// A weight `[n, k]` of the values `columns`, which are its transpose `[k, n]`, in f32 or rounded to bf16. `n` is a
    /// multiple of 32. It is packed by the calling thread alone, because kernels call this on their threads.
    ///
    /// # Errors
    /// Those of [`Self::builder`], and `dtype` is neither f32 nor bf16.
    pub(crate) fn of_columns(n: usize, k: usize, dtype: DType, columns: &[f32]) -> Result<Self> {
        assert!(
            n.is_multiple_of(PANEL) && columns.len() == n * k,
            "columns of a [{n}, {k}] weight"
        );
        let mut builder = Self::builder(n, k, dtype)?;
        if !matches!(builder.layout.order, ElementOrder::F32 | ElementOrder::Bf16) {
            return Err(Error::DType {
                kernel: "weight",
                operand: "dtype",
                expected: "f32 or bf16",
                found: dtype,
            });
        }
        pack(builder.layout.order, n, columns, builder.memory.bytes_mut());
        Ok(builder.finish_with_zeros())
    }

    /// Replaces the values of a weight that [`Self::of_columns`] has made and that nobody shares.
    pub(crate) fn set_columns(&mut self, columns: &[f32]) {
        assert_eq!(columns.len(), self.n * self.k(), "values of the same shape");
        let memory = Arc::get_mut(&mut self.memory).expect("a weight of columns is not shared");
        pack(self.layout.order, self.n, columns, memory.bytes_mut());
    }
}

/// Packs columns in f32, or rounded to bf16.
fn pack(order: ElementOrder, n: usize, columns: &[f32], panels: &mut [u8]) {
    if order == ElementOrder::F32 {
        Isa::detect().run(Pack::<false> { n, columns, panels });
    } else {
        Isa::detect().run_with_dot(Pack::<true> { n, columns, panels });
    }
}

/// Packing of whole panels as work for an instruction set.
struct Pack<'a, const ROUND: bool> {
    n: usize,
    /// `[k, n]`.
    columns: &'a [f32],
    panels: &'a mut [u8],
}

impl<const ROUND: bool> WithSimd for Pack<'_, ROUND> {
    type Output = ();

    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        const HALVES: usize = PANEL / LANES;
        let panel_bytes = self.panels.len() / (self.n / PANEL);
        let pair_bytes = if ROUND { 4 * PANEL } else { 8 * PANEL };
        for (i, panel) in self.panels.chunks_exact_mut(panel_bytes).enumerate() {
            let steps = self.columns.chunks(2 * self.n);
            for (pair, steps) in panel.chunks_exact_mut(pair_bytes).zip(steps) {
                let target = pair.as_mut_ptr().cast::<f32>();
                for half in 0..HALVES {
                    let at = i * PANEL + half * LANES;
                    // SAFETY: `at` is the place of sixteen of the `n` values of a step, and a pair has room for two steps
                    // of 32 values: words of two bf16, or one step behind the other.
                    unsafe {
                        let even = s.load(steps[at..][..LANES].as_ptr());
                        let odd = match steps.len() > self.n {
                            true => s.load(steps[self.n + at..][..LANES].as_ptr()),
                            false => s.splat(0.0),
                        };
                        if ROUND {
                            s.store(target.add(half * LANES), s.bf16_words(even, odd));
                        } else {
                            s.store(target.add(half * LANES), even);
                            s.store(target.add(PANEL + half * LANES), odd);
                        }
                    }
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
        for dtype in [DType::F32, DType::BF16] {
            for (n, k) in [(32, 1), (32, 7), (96, 16), (64, 5)] {
                let places = (0..k).flat_map(|step| (0..n).map(move |row| (row, step)));
                let columns: Vec<f32> = places.map(|(row, step)| value(row, step)).collect();
                let mut weight = Weight::of_columns(n, k, dtype, &vec![f32::NAN; n * k]).unwrap();
                weight.set_columns(&columns);
                let mut row = vec![0.0; k];
                for index in 0..n {
                    weight.read_row(index, &mut row);
                    let want = (0..k).map(|step| match dtype {
                        DType::F32 => value(index, step),
                        _ => half::bf16::from_f32(value(index, step)).to_f32(),
                    });
                    assert_eq!(row, want.collect::<Vec<_>>(), "row {index} of [{n}, {k}]");
                }
            }
        }
        assert!(matches!(
            Weight::of_columns(32, 1, DType::F16, &[0.0; 32]),
            Err(Error::DType { .. })
        ));
    }
}
