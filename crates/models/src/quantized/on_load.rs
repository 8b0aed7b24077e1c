//! Weights that are quantized while they are loaded. Eight bits are GGUF's Q8_0, for groups that may be shorter at the end of a
//! row. FP8 has a scale for each output. Scales and offsets of fewer bits are searched for: `search`.

use std::ops::Range;

use candlepower_checkpoint::{ActivationScales, OnLoad, Recoded};
use candlepower_kernels::{Fp8Rounding, QuantFormat, WeightRows, e4m3_bits, e4m3_rounded};
use half::f16;
use rayon::prelude::*;

use super::{OwnedRows, RowOffsets, Scales};
use crate::{
    error::{Error, Result},
    parts::values,
};

mod search;

/// Rows that one task quantizes.
const TASK_ROWS: usize = 16;

/// The columns `columns` of rows of `k` weights, quantized; `name` is the tensor's. They are the same
/// whatever part of the columns a rank takes.
///
/// # Errors
/// A value is not finite, or too large for the scales.
pub(crate) fn quantized(
    recoded: Recoded,
    name: &str,
    k: usize,
    rows: WeightRows<'_>,
    columns: Range<usize>,
) -> Result<OwnedRows> {
    let row = Row::new(recoded, k, columns);
    let tasks = rows.bytes.par_chunks(TASK_ROWS * k * rows.dtype.size_in_bytes());
    let quantized: Option<Vec<Quantized>> = tasks
        .map(|bytes| {
            let mut quantized = Quantized::default();
            let values = values(WeightRows { dtype: rows.dtype, bytes });
            values
                .chunks_exact(k)
                .all(|values| row.write(values, &mut quantized))
                .then_some(quantized)
        })
        .collect();
    // The type's name is that of the flag's value, which the user can change.
    let Some(quantized) = quantized else {
        let kind = OnLoad::of_format(recoded.format);
        return Err(Error::NotQuantizable { name: name.to_owned(), kind: kind.as_str() });
    };
    Ok(row.rows(quantized))
}

/// The dequantized values of rows of `k` weights; `name` is the tensor's.
///
/// # Errors
/// A number is not finite, or too large for the scales.
pub fn recoded_values(
    recoded: Recoded,
    name: &str,
    k: usize,
    rows: WeightRows<'_>,
) -> Result<Vec<f32>> {
    Ok(quantized(recoded, name, k, rows, 0..k)?.view().dequantized(k)?)
}

/// Quantized rows.
#[derive(Default)]
struct Quantized {
    quants: Vec<u8>,
    scales: Vec<f32>,
    offsets: Vec<f32>,
    sub_scales: [Vec<i8>; 2],
}

/// The quantization of each row.
struct Row {
    format: QuantFormat,
    group: usize,
    /// The columns of a block, where there are blocks.
    block: Option<usize>,
    /// The columns that are taken.
    columns: Range<usize>,
    /// The columns of all groups, or super-blocks, that contain some of them.
    whole: Range<usize>,
    /// Number of taken columns that share a scale: a super-block may be cut.
    run: usize,
}

impl Row {
    fn new(recoded: Recoded, k: usize, columns: Range<usize>) -> Self {
        let packed = recoded.packed();
        let (group, block) = (packed.group.min(k), packed.scales.blocks.map(|b| b.columns));
        let whole_run = block.unwrap_or(group);
        // A rank searches whole super-blocks and drops what is not its
        // own, so that it finds the values of the whole matrix.
        let end = columns.end.next_multiple_of(whole_run).min(k);
        let whole = columns.start / whole_run * whole_run..end;
        let run = packed.scales.block_within(columns.len()).unwrap_or(group);
        Self { format: recoded.format, group, block, columns, whole, run }
    }

    /// Adds a row; `false` where a number cannot be kept.
    fn write(&self, values: &[f32], quantized: &mut Quantized) -> bool {
        let values = &values[self.whole.clone()];
        let mut quants = vec![0; values.len()];
        let mut runs = Vec::new();
        let mut sub_scales = Vec::new();
        let run = self.block.unwrap_or(self.group);
        for (values, quants) in values.chunks(run).zip(quants.chunks_mut(run)) {
            runs.push(match (self.format, self.block) {
                (QuantFormat::U8, _) => [eight_bits(values, quants), 0.0],
                (QuantFormat::E4m3, _) => [eight_bits_of_float(values, quants), 0.0],
                (_, None) => search::group(values, self.format.most(), quants),
                (_, Some(_)) => {
                    search::block(values, self.group, self.format.most(), quants, &mut sub_scales)
                }
            });
        }
        let before = self.columns.start - self.whole.start;
        let taken = before..before + self.columns.len();
        quantized.quants.extend(&quants[taken.clone()]);
        // A cut super-block gives each of its parts the same scale.
        for first in taken.clone().step_by(self.run) {
            let [scale, min] = runs[first / run];
            quantized.scales.push(scale);
            quantized.offsets.push(min);
        }
        if self.block.is_some() {
            let groups = &sub_scales[taken.start / self.group..taken.end / self.group];
            quantized.sub_scales[0].extend(groups.iter().map(|[scale, _]| *scale));
            quantized.sub_scales[1].extend(groups.iter().map(|[_, min]| *min));
        }
        // `max` ignores NaN, so finite runs are not enough.
        runs.iter().flatten().chain(values).all(|number| number.is_finite())
    }

    fn rows(&self, parts: Vec<Quantized>) -> OwnedRows {
        let mut all = Quantized::default();
        for part in parts {
            all.quants.extend(part.quants);
            all.scales.extend(part.scales);
            all.offsets.extend(part.offsets);
            for (all, part) in all.sub_scales.iter_mut().zip(part.sub_scales) {
                all.extend(part);
            }
        }
        let offsets = match self.format {
            QuantFormat::U8 => RowOffsets::ZeroPoint(OnLoad::ZERO_POINT),
            QuantFormat::E4m3 => RowOffsets::None,
            _ => RowOffsets::Own(all.offsets),
        };
        let sub_scales = self.block.map(|_| (self.run, all.sub_scales));
        let scales = Scales { scales: all.scales, offsets, sub_scales };
        let group = self.group.min(self.columns.len());
        OwnedRows { format: self.format, group, bytes: all.quants, scales, inputs: None }
    }
}

/// Writes a group's quantized weights; returns its scale. A dequantized value is `scale * (q - 128)`. Source:
/// `quantize_row_q8_0_ref` of ggml's `ggml-quants.c`.
fn eight_bits(values: &[f32], bytes: &mut [u8]) -> f32 {
    let largest = values.iter().fold(0f32, |largest, number| largest.max(number.abs()));
    let scale = largest / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    for (number, byte) in values.iter().zip(bytes) {
        // The signed byte plus 128 wraps around to the unsigned one.
        *byte = ((number * inverse).round() as i8 as u8).wrapping_add(OnLoad::ZERO_POINT);
    }
    // GGUF has sixteen bits for the scale.
    f16::from_f32(scale).to_f32()
}

/// Writes the e4m3 bits of an output's weights; returns their scale. Weights are rounded as rows of activations are.
fn eight_bits_of_float(values: &[f32], bytes: &mut [u8]) -> f32 {
    let scale = Fp8Rounding { scales: ActivationScales::Row, fixed: 0.0 }.scale_of(values);
    for (number, byte) in values.iter().zip(bytes) {
        *byte = e4m3_bits(e4m3_rounded(number / scale));
    }
    scale
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use candlepower_testing::goldens::folder;
    use safetensors::SafeTensors;

    use super::{super::builder, *};

    fn quantized_rows(
        recoded: Recoded,
        k: usize,
        values: &[f32],
        columns: Range<usize>,
    ) -> Result<OwnedRows> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let rows = WeightRows { dtype: DType::F32, bytes: &bytes };
        quantized(recoded, "a.weight", k, rows, columns)
    }

    fn dequantized(recoded: Recoded, k: usize, values: &[f32]) -> Vec<f32> {
        quantized_rows(recoded, k, values, 0..k).unwrap().view().dequantized(k).unwrap()
    }

    /// The first rows of matrices of a checkpoint against those that the PyPI package `gguf` makes of them.
    #[test]
    fn eight_bits_are_those_of_ggufs_type_to_the_bit() {
        let stored = std::fs::read(folder("llama").join("model.safetensors")).unwrap();
        let stored = SafeTensors::deserialize(&stored).unwrap();
        let golden =
            std::fs::read(folder("on-load/llama-int8").join("golden.safetensors")).unwrap();
        let golden = SafeTensors::deserialize(&golden).unwrap();
        let mut seen = 0;
        for (key, expected) in golden.tensors() {
            let Some(name) = key.strip_prefix("dequantized.") else { continue };
            let (rows, k) = (expected.shape()[0], expected.shape()[1]);
            let tensor = stored.tensor(name).unwrap();
            assert_eq!(tensor.dtype(), safetensors::Dtype::F32);
            let rows = WeightRows { dtype: DType::F32, bytes: &tensor.data()[..rows * k * 4] };
            let recoded = Recoded::new(QuantFormat::U8, k);
            let found =
                quantized(recoded, name, k, rows, 0..k).unwrap().view().dequantized(k).unwrap();
            let found: Vec<u8> = found.into_iter().flat_map(f32::to_le_bytes).collect();
            assert!(found == expected.data(), "{name}");
            seen += 1;
        }
        assert_eq!(seen, 8);
    }

    /// Values of a normal distribution, about.
    fn normal(count: usize) -> Vec<f32> {
        let mut state = 7u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32
        };
        // The sum of twelve uniform values has a variance of one.
        (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
    }

    /// The mean square of what GGUF's Q4_1 loses: the range in fifteen steps.
    fn lost_by_rounding(values: &[f32]) -> f32 {
        let of_group = |values: &[f32]| {
            let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let min = values.iter().copied().fold(f32::INFINITY, f32::min);
            let step = (max - min) / 15.0;
            let lost = |x: &f32| (((x - min) / step).round() * step + min - x).powi(2);
            values.iter().map(lost).sum::<f32>()
        };
        values.chunks(32).map(of_group).sum()
    }

    #[test]
    fn less_is_lost_than_by_rounding_whatever_the_distribution() {
        let normal = normal(64 * 512);
        let map = |of: &dyn Fn(f32) -> f32| normal.iter().map(|x| of(*x)).collect::<Vec<f32>>();
        // Offsets are zero or less, which is nothing for weights of one sign.
        for (name, values, of_four) in [
            ("normal", normal.clone(), 0.9),
            ("small", map(&|x| x * 1e-7), 0.9),
            ("large", map(&|x| x * 1e6), 0.9),
            ("heavy tails", map(&|x| x * x * x), 0.9),
            ("heavier tails", map(&|x| x.powi(5)), 0.9),
            ("one sign", map(&|x| x.abs()), 1.0),
        ] {
            let rounded = lost_by_rounding(&values);
            for (format, part) in [(QuantFormat::U4, of_four), (QuantFormat::U5, 0.25)] {
                for k in [512, 64, 32] {
                    let recoded = Recoded::new(format, k);
                    let found = dequantized(recoded, k, &values);
                    let lost: f32 = found.iter().zip(&values).map(|(a, b)| (a - b).powi(2)).sum();
                    assert!(lost < part * rounded, "{name}, {format:?}, {k}: {}", lost / rounded);
                    assert_eq!(found, dequantized(recoded, k, &values));
                }
            }
        }
    }

    /// A rank has the same values as the whole matrix in its columns, where super-blocks are cut, too.
    #[test]
    fn parts_of_the_columns_are_those_of_the_whole() {
        let k = 768;
        let values = normal(8 * k);
        for format in [QuantFormat::U4, QuantFormat::U5] {
            let recoded = Recoded::new(format, k);
            let whole = dequantized(recoded, k, &values);
            for ranks in [2, 3, 4, 8, 24] {
                let width = k / ranks;
                // The parts are thirds, quarters and single groups of super-blocks of 256 columns.
                for rank in 0..ranks {
                    let columns = rank * width..(rank + 1) * width;
                    let part = quantized_rows(recoded, k, &values, columns.clone()).unwrap();
                    let expected = whole.chunks(k).flat_map(|row| row[columns.clone()].to_vec());
                    let expected: Vec<f32> = expected.collect();
                    assert_eq!(
                        part.view().dequantized(width).unwrap(),
                        expected,
                        "{ranks}, {rank}"
                    );
                    let mut builder = builder(8, width, recoded.packed()).unwrap();
                    builder.write_quantized(0, part.view()).unwrap();
                }
            }
        }
    }

    #[test]
    fn groups_end_with_the_row_and_what_no_scale_reaches_is_refused() {
        let values: Vec<f32> = (0..80).map(|i| i as f32 - 20.0).collect();
        // The second group, of eight values, has a small step.
        for (kind, format, step) in [
            (OnLoad::Int8, QuantFormat::U8, 60.0 / 127.0 * 0.51),
            (OnLoad::Int4, QuantFormat::U4, 31.0 / 15.0 * 0.75),
        ] {
            let wide = Recoded::new(format, 40);
            for (found, number) in dequantized(wide, 40, &values).iter().zip(&values) {
                assert!((found - number).abs() <= step, "{found} for {number}");
            }
            for k in [3, 64] {
                let zeros: Vec<f32> = (0..k).map(|i| [0.0, -0.0][i % 2]).collect();
                assert_eq!(dequantized(Recoded::new(format, k), k, &zeros), vec![0.0; k]);
            }
            for k in [2, 64] {
                let of_kind = Recoded::new(format, k);
                let mut beyond = vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
                // Eight bits have scales in half precision, like GGUF.
                beyond.extend([1e9, -1e9].iter().filter(|_| kind == OnLoad::Int8));
                for beyond in beyond {
                    let mut values = vec![1.0; k];
                    values[k - 1] = beyond;
                    let error =
                        quantized_rows(of_kind, k, &values, 0..k).err().unwrap().to_string();
                    let expected = format!(
                        "tensor a.weight holds infinity, NaN or values too large for {}; leave --quantize-on-load out",
                        kind.as_str()
                    );
                    assert_eq!(error, expected);
                }
            }
        }
        // In the sixteen bits of the offset, and by a sub-scale. 0.3 is
        // none of their values, and the rounding is the whole error.
        assert_eq!(
            dequantized(Recoded::new(QuantFormat::U4, 32), 32, &[0.3; 32]),
            [0.300_781_25; 32]
        );
        let found = dequantized(Recoded::new(QuantFormat::U4, 64), 64, &[0.3; 64]);
        assert!(found.iter().all(|number| (number - 0.3).abs() < 0.002), "{found:?}");
    }
}
