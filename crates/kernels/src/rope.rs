//! Rotary position embeddings on queries and keys.

use std::sync::Arc;

use candle_core::{Device, Tensor};

use crate::tensor::{Operand, from_vec};
use crate::{Error, Result, parallel};

/// Pairing of a head's elements for the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Element `i` with element `i + rot_dim / 2` (GPT-NeoX, Llama as published on the hub).
    Neox,
    /// Element `2 i` with element `2 i + 1` (GPT-J, the original Llama).
    Interleaved,
}

/// The cosines and sines of every position.
#[derive(Clone, Debug)]
pub struct RopeTable {
    cos: Tensor,
    sin: Tensor,
    style: RopeStyle,
    query_scales: Option<Tensor>,
    /// Index of the position by which each frequency rotates, for tokens with three positions.
    axes: Option<Arc<[u8]>>,
}

impl RopeTable {
    /// A table from `cos` and `sin`, both `[max_len, rot_dim / 2]` f32.
    ///
    /// # Errors
    /// The tensors are not contiguous f32 CPU matrices of the same shape.
    pub fn new(cos: Tensor, sin: Tensor, style: RopeStyle) -> Result<Self> {
        let operand = Operand::new("rope", "cos", &cos);
        let (max_len, half) = operand.dims2("[max_len, rot_dim / 2]")?;
        // Only for its checks of dtype, layout and device.
        operand.f32s()?;
        let operand = Operand::new("rope", "sin", &sin);
        operand.expect_dims("[max_len, rot_dim / 2]", &[max_len, half])?;
        operand.f32s()?;
        Ok(Self { cos, sin, style, query_scales: None, axes: None })
    }

    /// A table of `max_len` positions from the `rot_dim / 2` inverse frequencies: entry `[p, i]` is
    /// `cos(p * inv_freq[i]) * magnitude`, and the sine likewise. `magnitude` is 1 except where a
    /// scaling such as YaRN multiplies the rotated vectors.
    ///
    /// # Errors
    /// candle could not make the tensors.
    ///
    /// Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
    pub fn from_inv_freq(
        inv_freq: &[f32],
        max_len: usize,
        magnitude: f32,
        style: RopeStyle,
    ) -> Result<Self> {
        let table = |f: fn(f32) -> f32| {
            let values = (0..max_len)
                .flat_map(|position| {
                    // In f32, as transformers computes them, so that the angles of late positions are rounded
                    // alike.
                    inv_freq.iter().map(move |freq| f(position as f32 * freq) * magnitude)
                })
                .collect::<Vec<f32>>();
            from_vec(values, &[max_len, inv_freq.len()])
        };
        Self::new(table(f32::cos)?, table(f32::sin)?, style)
    }

    /// Adds a factor for each position, by which queries are multiplied and keys are not.
    ///
    /// # Errors
    /// There is not one factor for each position, or candle could not make the tensor.
    pub fn with_query_scales(self, scales: Vec<f32>) -> Result<Self> {
        let (value, expected) = (scales.len(), "one for each position");
        if value != self.max_len() {
            return Err(Error::Parameter { parameter: "query scales", value, expected });
        }
        Ok(Self { query_scales: Some(from_vec(scales, &[value])?), ..self })
    }

    /// Lets tokens have three positions. Frequency `i` rotates by the one with the index `axes[i]`.
    ///
    /// # Errors
    /// There is not one index below 3 for each frequency.
    pub fn with_axes(self, axes: Vec<u8>) -> Result<Self> {
        let (value, expected) = (axes.len(), "one index below 3 for each frequency");
        if 2 * value != self.rot_dim() || axes.iter().any(|axis| *axis > 2) {
            return Err(Error::Parameter { parameter: "axes", value, expected });
        }
        Ok(Self { axes: Some(axes.into()), ..self })
    }

    /// Number of positions in the table.
    #[must_use]
    pub fn max_len(&self) -> usize {
        self.cos.dims()[0]
    }

    /// Number of leading elements of a head that are rotated.
    #[must_use]
    pub fn rot_dim(&self) -> usize {
        2 * self.cos.dims()[1]
    }

    /// Pairing of a head's elements.
    #[must_use]
    pub fn style(&self) -> RopeStyle {
        self.style
    }

    /// The same table on `device`.
    ///
    /// # Errors
    /// candle could not copy it.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        let to_device = |table: &Tensor| table.to_device(device);
        let query_scales = self.query_scales.as_ref().map(to_device).transpose()?;
        Ok(Self {
            cos: to_device(&self.cos)?,
            sin: to_device(&self.sin)?,
            style: self.style,
            query_scales,
            axes: self.axes.clone(),
        })
    }

    /// Cosines, sines and style.
    #[must_use]
    pub fn parts(&self) -> (&Tensor, &Tensor, RopeStyle) {
        (&self.cos, &self.sin, self.style)
    }

    /// Factors of queries, f32 `[max_len]`, if there are some.
    #[must_use]
    pub fn query_scales(&self) -> Option<&Tensor> {
        self.query_scales.as_ref()
    }

    /// The device of the table.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.cos.device()
    }
}

/// Rotates each head of `x` `[tokens, heads, head_dim]` f32 by its token's position.
///
/// `positions` is u32 `[tokens]`, or `[tokens, 3]` for a table [with axes](RopeTable::with_axes). The first `rot_dim` elements
/// of a head are rotated, and the others are copied.
///
/// # Errors
/// An operand has the wrong dtype, shape, layout or device; `rot_dim > head_dim`; a position is not in
/// the table.
pub fn rope(x: &Tensor, table: &RopeTable, positions: &Tensor) -> Result<Tensor> {
    turn(x, table, positions, None)
}

/// [`rope`] for queries, which the table may scale.
///
/// # Errors
/// The errors of [`rope`].
pub fn rope_queries(x: &Tensor, table: &RopeTable, positions: &Tensor) -> Result<Tensor> {
    turn(x, table, positions, table.query_scales())
}

/// `x` `[tokens, heads, head_dim]` f32, queries of any width, times the table's query factors at their positions, if
/// there are some.
///
/// # Errors
/// `positions` is not u32 `[tokens]`, or one is not in the table.
pub fn scale_queries(x: Tensor, table: &RopeTable, positions: &Tensor) -> Result<Tensor> {
    let Some(scales) = table.query_scales() else { return Ok(x) };
    let factors = scales.index_select(positions, 0)?.reshape(((), 1, 1))?;
    Ok(x.broadcast_mul(&factors)?)
}

fn turn(
    x: &Tensor,
    table: &RopeTable,
    positions: &Tensor,
    scales: Option<&Tensor>,
) -> Result<Tensor> {
    let x = Operand::new("rope", "x", x);
    let positions = Operand::new("rope", "positions", positions);
    let (tokens, heads, head_dim) = x.dims3("[tokens, heads, head_dim]")?;
    let axes = table.axes.as_deref().filter(|_| positions.tensor.rank() == 2);
    match axes {
        Some(_) => positions.expect_dims("[tokens, 3]", &[tokens, 3])?,
        None => positions.expect_dims("[tokens]", &[tokens])?,
    }
    let half = table.rot_dim() / 2;
    if 2 * half > head_dim {
        return Err(x.shape_error(format!("[tokens, heads, head_dim >= rot_dim = {}]", 2 * half)));
    }
    let (data, positions) = (x.f32s()?, positions.u32s()?);
    let bound = table.max_len();
    if let Some(&position) = positions.iter().find(|&&position| position as usize >= bound) {
        return Err(Error::OutOfRange {
            kernel: "rope",
            index: "position",
            value: position as usize,
            bound,
        });
    }
    let cos = Operand::new("rope", "cos", &table.cos).f32s()?;
    let sin = Operand::new("rope", "sin", &table.sin).f32s()?;
    let scales = scales.map(|scales| Operand::new("rope", "query_scales", scales).f32s());
    let scales = scales.transpose()?;
    let scales = scales.as_deref();
    let (data, positions, cos, sin): (&[f32], &[u32], &[f32], &[f32]) =
        (&data, &positions, &cos, &sin);
    let width = heads * head_dim;
    let out = parallel::build_rows(tokens, width, |token, out| {
        out.copy_from_slice(&data[token * width..(token + 1) * width]);
        let mut rotate_heads = |cos: &[f32], sin: &[f32]| {
            for head in out.chunks_exact_mut(head_dim) {
                rotate(&mut head[..2 * half], cos, sin, table.style);
            }
        };
        let Some(axes) = axes else {
            let at = positions[token] as usize * half;
            rotate_heads(&cos[at..at + half], &sin[at..at + half]);
            if let Some(scales) = scales {
                let scale = scales[positions[token] as usize];
                out.iter_mut().for_each(|x| *x *= scale);
            }
            return;
        };
        let of_token = &positions[token * 3..][..3];
        let gather = |values: &[f32]| -> Vec<f32> {
            let at = |(i, axis): (usize, &u8)| of_token[usize::from(*axis)] as usize * half + i;
            axes.iter().enumerate().map(|pair| values[at(pair)]).collect()
        };
        rotate_heads(&gather(cos), &gather(sin));
    });
    from_vec(out, x.tensor.dims())
}

/// Rotates one head's leading `2 * cos.len()` elements in place.
fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32], style: RopeStyle) {
    match style {
        RopeStyle::Neox => {
            let (first, second) = head.split_at_mut(cos.len());
            for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
        RopeStyle::Interleaved => {
            for ((pair, cos), sin) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
                let (a, b) = (pair[0], pair[1]);
                pair[0] = a * cos - b * sin;
                pair[1] = b * cos + a * sin;
            }
        }
    }
}

/// The reference for [`rope`] for one head at one position: the pair `(a, b)` becomes `(a cos - b sin, b cos + a
/// sin)`. `cos` and `sin` are that position's rows of the table.
#[must_use]
pub fn rope_reference(head: &[f32], cos: &[f32], sin: &[f32], style: RopeStyle) -> Vec<f32> {
    let half = cos.len();
    let mut out = head.to_vec();
    for i in 0..half {
        let (first, second) = match style {
            RopeStyle::Neox => (i, i + half),
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
        };
        let (a, b) = (head[first], head[second]);
        out[first] = a * cos[i] - b * sin[i];
        out[second] = b * cos[i] + a * sin[i];
    }
    out
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    fn flat(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn table(rot_dim: usize, style: RopeStyle) -> RopeTable {
        let half = rot_dim / 2;
        let inv_freq: Vec<f32> =
            (0..half).map(|i| 10_000f32.powf(-(i as f32) / half as f32)).collect();
        RopeTable::from_inv_freq(&inv_freq, 50, 1.0, style).unwrap()
    }

    fn input(tokens: usize, heads: usize, head_dim: usize) -> Tensor {
        let count = tokens * heads * head_dim;
        let values: Vec<f32> =
            (0..count).map(|i| ((i * 7919 + 13) % 1009) as f32 / 97.0 - 5.0).collect();
        Tensor::from_vec(values, (tokens, heads, head_dim), &Device::Cpu).unwrap()
    }

    #[test]
    fn matches_the_definition_in_both_styles() {
        let positions = [7u32, 0, 49];
        let at = Tensor::new(&positions, &Device::Cpu).unwrap();
        for style in [RopeStyle::Neox, RopeStyle::Interleaved] {
            for (head_dim, rot_dim) in [(8, 8), (80, 32), (64, 64), (10, 2)] {
                let table = table(rot_dim, style);
                assert_eq!((table.max_len(), table.rot_dim(), table.style()), (50, rot_dim, style));
                let x = input(3, 2, head_dim);
                let got = rope(&x, &table, &at).unwrap();
                assert_eq!(got.dims(), x.dims());
                let (cos, sin) = (flat(&table.cos), flat(&table.sin));
                let want: Vec<f32> = flat(&x)
                    .chunks_exact(head_dim)
                    .enumerate()
                    .flat_map(|(row, head)| {
                        let half = rot_dim / 2;
                        let at = positions[row / 2] as usize * half;
                        rope_reference(head, &cos[at..at + half], &sin[at..at + half], style)
                    })
                    .collect();
                assert_eq!(flat(&got), want, "{style:?} {head_dim} {rot_dim}");
            }
        }
    }

    #[test]
    fn three_positions_rotate_the_frequencies_of_their_axes() {
        let axes = [0u8, 1, 2, 0, 1, 0, 0, 2];
        let plain = table(16, RopeStyle::Neox);
        let table = plain.clone().with_axes(axes.to_vec()).unwrap();
        let x = input(2, 2, 20);
        let at = [[7u32, 3, 49], [0, 11, 5]];
        let got = flat(&rope(&x, &table, &Tensor::new(&at, &Device::Cpu).unwrap()).unwrap());
        let (cos, sin) = (flat(&table.cos), flat(&table.sin));
        for (row, head) in flat(&x).chunks_exact(20).enumerate() {
            let of_axis = |values: &[f32]| -> Vec<f32> {
                let value = |i: usize| values[at[row / 2][usize::from(axes[i])] as usize * 8 + i];
                (0..8).map(value).collect()
            };
            let want = rope_reference(head, &of_axis(&cos), &of_axis(&sin), RopeStyle::Neox);
            assert_eq!(got[row * 20..][..20], want);
        }
        // Text has three equal positions.
        let equal = Tensor::new(&[[9u32; 3], [4; 3]], &Device::Cpu).unwrap();
        let one = Tensor::new(&[9u32, 4], &Device::Cpu).unwrap();
        let text = flat(&rope(&x, &plain, &one).unwrap());
        assert_eq!(flat(&rope(&x, &table, &equal).unwrap()), text);
        assert_eq!(flat(&rope(&x, &table, &one).unwrap()), text);
        let refused = rope(&x, &plain, &equal).unwrap_err();
        assert!(matches!(refused, Error::Shape { operand: "positions", .. }));
        let far = Tensor::new(&[[0u32, 0, 50], [0; 3]], &Device::Cpu).unwrap();
        let refused = rope(&x, &table, &far).unwrap_err();
        assert!(matches!(refused, Error::OutOfRange { value: 50, .. }));
        for wrong in [vec![0; 7], vec![3; 8]] {
            assert!(plain.clone().with_axes(wrong).is_err());
        }
    }

    #[test]
    fn queries_are_scaled_by_their_positions_and_keys_are_not() {
        let x = input(3, 2, 10);
        let at = Tensor::new(&[7u32, 0, 49], &Device::Cpu).unwrap();
        let plain = table(6, RopeStyle::Neox);
        let scales: Vec<f32> = (0..50).map(|position| 1.0 + position as f32).collect();
        let scaled = plain.clone().with_query_scales(scales).unwrap();
        let scale_row =
            |(row, scale): (&[f32], f32)| -> Vec<f32> { row.iter().map(|x| x * scale).collect() };
        let rotated = flat(&rope(&x, &plain, &at).unwrap());
        assert_eq!(flat(&rope(&x, &scaled, &at).unwrap()), rotated);
        assert_eq!(flat(&rope_queries(&x, &plain, &at).unwrap()), rotated);
        let expected: Vec<f32> =
            rotated.chunks(20).zip([8.0, 1.0, 50.0]).flat_map(scale_row).collect();
        assert_eq!(flat(&rope_queries(&x, &scaled, &at).unwrap()), expected);
        assert_eq!(flat(&scale_queries(x.clone(), &plain, &at).unwrap()), flat(&x));
        let untouched =
            flat(&x).chunks(20).zip([8.0, 1.0, 50.0]).flat_map(scale_row).collect::<Vec<_>>();
        assert_eq!(flat(&scale_queries(x, &scaled, &at).unwrap()), untouched);
        let error = plain.with_query_scales(vec![1.0; 49]).unwrap_err();
        assert!(matches!(error, Error::Parameter { value: 49, .. }));
    }

    #[test]
    fn rotation_keeps_the_length_of_each_pair_and_position_zero() {
        let x = input(2, 1, 4);
        let table = table(4, RopeStyle::Neox);
        let got = flat(&rope(&x, &table, &Tensor::new(&[0u32, 3], &Device::Cpu).unwrap()).unwrap());
        let x = flat(&x);
        assert_eq!(got[..4], x[..4]);
        let length = |v: &[f32], i: usize| v[i].hypot(v[i + 2]);
        for pair in 4..6 {
            assert!((length(&got, pair) - length(&x, pair)).abs() < 1e-5);
        }
        assert!((got[4] - (x[4] * 3f32.cos() - x[6] * 3f32.sin())).abs() < 1e-5);
    }

    #[test]
    fn refuses_bad_operands() {
        let positions = Tensor::new(&[0u32, 1], &Device::Cpu).unwrap();
        let x = input(2, 1, 8);
        let small = table(8, RopeStyle::Neox);
        let error = rope(&input(2, 1, 4), &small, &positions).unwrap_err();
        assert!(matches!(error, Error::Shape { operand: "x", .. }));
        let error = rope(&x, &small, &Tensor::new(&[0u32, 50], &Device::Cpu).unwrap()).unwrap_err();
        assert!(matches!(error, Error::OutOfRange { value: 50, bound: 50, .. }));
        let error = rope(&x, &small, &positions.narrow(0, 0, 1).unwrap()).unwrap_err();
        assert!(matches!(error, Error::Shape { operand: "positions", .. }));
        let error = rope(&x, &small, &positions.to_dtype(DType::I64).unwrap()).unwrap_err();
        assert!(matches!(error, Error::DType { operand: "positions", .. }));
        let (cos, sin) = (small.cos.clone(), small.sin.narrow(0, 0, 3).unwrap());
        assert!(matches!(
            RopeTable::new(cos, sin, RopeStyle::Neox),
            Err(Error::Shape { operand: "sin", .. })
        ));
    }
}
