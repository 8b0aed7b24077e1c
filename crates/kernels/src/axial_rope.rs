//! Rotary position embeddings in two dimensions: rows and columns of a picture's patches.

use candle_core::Tensor;

use crate::tensor::{Operand, from_vec};
use crate::{Error, Result, parallel};

/// Name of [`axial_rope`] in errors.
const NAME: &str = "axial_rope";

/// Cosines and sines of the patches of a picture.
#[derive(Clone, Debug)]
pub struct AxialRope {
    /// `[patches, pairs]`.
    cos: Vec<f32>,
    /// `[patches, pairs]`.
    sin: Vec<f32>,
    /// Pairs of a head's elements: half of a head.
    pairs: usize,
}

impl AxialRope {
    /// The table of patches at `[row, column]`. The first pairs of a head are rotated by the row, times one of `row_frequencies`
    /// each. The pairs behind them are rotated by the column, times one of `column_frequencies` each.
    ///
    /// # Errors
    /// There is no frequency at all.
    ///
    /// Source: Agrawal et al., "Pixtral 12B", 2024.
    pub fn new(
        positions: &[[u32; 2]],
        row_frequencies: &[f32],
        column_frequencies: &[f32],
    ) -> Result<Self> {
        let pairs = row_frequencies.len() + column_frequencies.len();
        if pairs == 0 {
            let (parameter, expected) = ("axial frequencies", "at least 1");
            return Err(Error::Parameter { parameter, value: pairs, expected });
        }
        let angles = positions.iter().flat_map(|&[row, column]| {
            let by = |frequencies: &'_ [f32], position: u32| {
                frequencies.iter().map(move |frequency| position as f32 * frequency).collect()
            };
            let (rows, columns): (Vec<f32>, Vec<f32>) =
                (by(row_frequencies, row), by(column_frequencies, column));
            rows.into_iter().chain(columns)
        });
        let (cos, sin) = angles.map(|angle| (angle.cos(), angle.sin())).unzip();
        Ok(Self { cos, sin, pairs })
    }

    /// Number of patches.
    #[must_use]
    pub fn patches(&self) -> usize {
        self.cos.len() / self.pairs
    }

    /// Elements of a head: two for each frequency.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        2 * self.pairs
    }
}

/// Rotates the first `heads` heads of each row of `x` `[patches, all_heads * head_dim]` f32 by the place of its patch.
/// The rows are the patches of `rope` from `first` on. Element `i` of a head pairs with element `i + head_dim / 2`. The
/// other heads are copied: those of values lie behind queries and keys.
///
/// # Errors
/// `x` is not a contiguous f32 CPU matrix of whole heads, or it has fewer heads, or more rows than there are patches.
pub fn axial_rope(x: &Tensor, heads: usize, first: usize, rope: &AxialRope) -> Result<Tensor> {
    let x = Operand::new(NAME, "x", x);
    let (patches, width) = x.dims2("[patches, all_heads * head_dim]")?;
    let head_dim = rope.head_dim();
    let rotated = heads * head_dim;
    let left = rope.patches().saturating_sub(first);
    if patches > left || !width.is_multiple_of(head_dim) || width < rotated {
        let expected = format!("[at most {left}, at least {heads} heads of {head_dim}]");
        return Err(x.shape_error(expected));
    }
    let data = x.f32s()?;
    let data: &[f32] = &data;
    let out = parallel::build_rows(patches, width, |patch, out| {
        out.copy_from_slice(&data[patch * width..(patch + 1) * width]);
        let place = first + patch;
        let row = place * rope.pairs..(place + 1) * rope.pairs;
        let (cos, sin) = (&rope.cos[row.clone()], &rope.sin[row]);
        for head in out[..rotated].chunks_exact_mut(head_dim) {
            let (first, second) = head.split_at_mut(rope.pairs);
            for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    });
    from_vec(out, &[patches, width])
}

/// The reference for [`axial_rope`] for one head of a patch, computed in f64: element `i` and its partner are a complex
/// number, which is rotated by the row's or the column's angle.
#[must_use]
pub fn axial_rope_reference(
    head: &[f32],
    [row, column]: [u32; 2],
    row_frequencies: &[f32],
    column_frequencies: &[f32],
) -> Vec<f32> {
    let half = head.len() / 2;
    let mut out = vec![0.0; head.len()];
    for i in 0..half {
        let angle = match i.checked_sub(row_frequencies.len()) {
            None => f64::from(row) * f64::from(row_frequencies[i]),
            Some(i) => f64::from(column) * f64::from(column_frequencies[i]),
        };
        let (real, imaginary) = (f64::from(head[i]), f64::from(head[i + half]));
        out[i] = (real * angle.cos() - imaginary * angle.sin()) as f32;
        out[i + half] = (real * angle.sin() + imaginary * angle.cos()) as f32;
    }
    out
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    const ROWS: [f32; 4] = [1.0, 0.3, 0.02, 0.005];
    const COLUMNS: [f32; 4] = [0.7, 0.1, 0.01, 0.001];

    fn test_values(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + 13) % 10_007) as f32 / 2500.0 - 2.0).collect()
    }

    /// A grid of five rows and nine columns.
    fn grid() -> Vec<[u32; 2]> {
        (0..5).flat_map(|row| (0..9).map(move |column| [row, column])).collect()
    }

    fn rotated(x: &[f32], positions: &[[u32; 2]], heads: usize) -> Vec<f32> {
        let rope = AxialRope::new(positions, &ROWS, &COLUMNS).unwrap();
        let dims = (positions.len(), x.len() / positions.len());
        let x = Tensor::from_slice(x, dims, &Device::Cpu).unwrap();
        let whole = axial_rope(&x, heads, 0, &rope).unwrap();
        // Rows alone have the same bits.
        let last = x.narrow(0, dims.0 - 3, 3).unwrap();
        let last = axial_rope(&last, heads, dims.0 - 3, &rope).unwrap();
        let flat = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(flat(&last), flat(&whole)[(dims.0 - 3) * dims.1..]);
        flat(&whole)
    }

    #[test]
    fn rotates_queries_and_keys_by_rows_and_columns_and_copies_the_rest() {
        let (positions, dim, heads) = (grid(), 16, 6);
        let x = test_values(positions.len() * heads * dim);
        let out = rotated(&x, &positions, 4);
        for (i, (got, head)) in out.chunks(dim).zip(x.chunks(dim)).enumerate() {
            let (patch, number) = (i / heads, i % heads);
            let want = match number < 4 {
                true => axial_rope_reference(head, positions[patch], &ROWS, &COLUMNS),
                false => head.to_vec(),
            };
            for (got, want) in got.iter().zip(&want) {
                assert!((got - want).abs() <= 1e-5, "{got} is not {want}");
            }
        }
    }

    #[test]
    fn rows_are_not_columns() {
        let positions = grid();
        let swapped: Vec<[u32; 2]> = positions.iter().map(|&[row, column]| [column, row]).collect();
        let x = test_values(positions.len() * 16);
        assert_ne!(rotated(&x, &positions, 1), rotated(&x, &swapped, 1));
    }

    #[test]
    fn refuses_bad_operands() {
        let rope = AxialRope::new(&grid(), &ROWS, &COLUMNS).unwrap();
        for (rows, width, heads) in [(45, 16, 1), (44, 20, 1), (44, 16, 2)] {
            let x = Tensor::zeros((rows, width), candle_core::DType::F32, &Device::Cpu).unwrap();
            assert!(matches!(axial_rope(&x, heads, 1, &rope), Err(Error::Shape { .. })));
        }
        assert!(matches!(AxialRope::new(&grid(), &[], &[]), Err(Error::Parameter { .. })));
    }
}
