//! Numbers that become codes while they are loaded. Source: `quantize_row_q8_0_ref` and `quantize_row_q4_1_ref` of ggml's
//! `ggml-quants.c`, for groups that may be shorter at the end of a row.

use candlepower_checkpoint::OnLoad;
use candlepower_kernels::WeightRows;
use half::f16;
use rayon::prelude::*;

use super::{CodedRows, RowMins, Scales};
use crate::{
    error::{Error, Result},
    parts::numbers,
};

/// Rows of `k` numbers as codes; `name` is the tensor's.
///
/// # Errors
/// A number is not finite, or too large for the scales.
pub(crate) fn quantized(
    kind: OnLoad,
    name: &str,
    k: usize,
    rows: WeightRows<'_>,
) -> Result<CodedRows> {
    let packed = kind.packed();
    let row_bytes = k * rows.dtype.size_in_bytes();
    let (count, groups) = (rows.bytes.len() / row_bytes, k.div_ceil(packed.group));
    let mut bytes = vec![0; count * k];
    let (mut scales, mut mins) = (vec![0.0; count * groups], vec![0.0; count * groups]);
    let all_finite = rows
        .bytes
        .par_chunks_exact(row_bytes)
        .zip(bytes.par_chunks_exact_mut(k))
        .zip(scales.par_chunks_exact_mut(groups).zip(mins.par_chunks_exact_mut(groups)))
        .map(|((row, bytes), (scales, mins))| {
            let row = numbers(WeightRows { dtype: rows.dtype, bytes: row });
            let factors = scales.iter_mut().zip(mins);
            let groups = row.chunks(packed.group).zip(bytes.chunks_mut(packed.group));
            groups.zip(factors).all(|((numbers, bytes), (scale, min))| {
                match kind {
                    OnLoad::Int8 => *scale = eight_bits(numbers, bytes),
                    OnLoad::Int4 => (*scale, *min) = four_bits(numbers, bytes),
                }
                // The largest of numbers is none of those that are not numbers.
                scale.is_finite() && min.is_finite() && numbers.iter().all(|v| v.is_finite())
            })
        })
        .reduce(|| true, |a, b| a && b);
    if !all_finite {
        return Err(Error::NotQuantizable { name: name.to_owned(), kind: kind.as_str() });
    }
    let mins = match kind {
        OnLoad::Int8 => RowMins::ZeroPoint(OnLoad::ZERO_POINT),
        OnLoad::Int4 => RowMins::Own(mins),
    };
    let scales = Scales { scales, mins, multiples: None };
    let (codes, group) = (packed.codes, packed.group.min(k));
    Ok(CodedRows { codes, group, bytes, scales, inputs: None })
}

/// Writes a group's codes; returns its scale. A number is `scale * (code - 128)`.
fn eight_bits(numbers: &[f32], bytes: &mut [u8]) -> f32 {
    let largest = numbers.iter().fold(0f32, |largest, number| largest.max(number.abs()));
    let scale = largest / 127.0;
    let inverse = inverse(scale);
    for (number, byte) in numbers.iter().zip(bytes) {
        *byte = ((number * inverse).round() as i8 as u8).wrapping_add(OnLoad::ZERO_POINT);
    }
    rounded(scale)
}

/// As [`eight_bits`], and the minimum. A number is `scale * code + min`.
fn four_bits(numbers: &[f32], bytes: &mut [u8]) -> (f32, f32) {
    let max = numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let min = numbers.iter().copied().fold(f32::INFINITY, f32::min);
    let scale = (max - min) / 15.0;
    let inverse = inverse(scale);
    for (number, byte) in numbers.iter().zip(bytes) {
        *byte = (((number - min) * inverse + 0.5) as u8).min(15);
    }
    (rounded(scale), rounded(min))
}

fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// To the sixteen bits that GGUF has for it.
fn rounded(number: f32) -> f32 {
    f16::from_f32(number).to_f32()
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use candlepower_goldens::folder;
    use safetensors::SafeTensors;

    use super::*;

    /// The first rows of matrices of a checkpoint against those that the PyPI package `gguf` makes of them.
    #[test]
    fn numbers_are_those_of_ggufs_types_to_the_bit() {
        let stored = std::fs::read(folder("llama").join("model.safetensors")).unwrap();
        let stored = SafeTensors::deserialize(&stored).unwrap();
        for (kind, golden) in [(OnLoad::Int8, "llama-int8"), (OnLoad::Int4, "llama-int4")] {
            let golden = folder(&format!("on-load/{golden}")).join("golden.safetensors");
            let golden = std::fs::read(golden).unwrap();
            let golden = SafeTensors::deserialize(&golden).unwrap();
            let mut seen = 0;
            for (key, expected) in golden.tensors() {
                let Some(name) = key.strip_prefix("dequantized.") else { continue };
                let (rows, k) = (expected.shape()[0], expected.shape()[1]);
                let tensor = stored.tensor(name).unwrap();
                assert_eq!(tensor.dtype(), safetensors::Dtype::F32);
                let rows = WeightRows { dtype: DType::F32, bytes: &tensor.data()[..rows * k * 4] };
                let kind = if name == "lm_head.weight" { OnLoad::Int8 } else { kind };
                let found = quantized(kind, name, k, rows).unwrap().view().numbers(k).unwrap();
                let found: Vec<u8> = found.into_iter().flat_map(f32::to_le_bytes).collect();
                assert!(found == expected.data(), "{name} as {}", kind.as_str());
                seen += 1;
            }
            assert_eq!(seen, 8);
        }
    }

    #[test]
    fn groups_end_with_the_row_and_what_no_scale_reaches_is_refused() {
        let quantized = |kind, k, numbers: &[f32]| {
            let bytes: Vec<u8> = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
            let rows = WeightRows { dtype: DType::F32, bytes: &bytes };
            quantized(kind, "a.weight", k, rows).map(|coded| coded.view().numbers(k).unwrap())
        };
        let numbers: Vec<f32> = (0..80).map(|i| i as f32 - 20.0).collect();
        for kind in [OnLoad::Int8, OnLoad::Int4] {
            let found = quantized(kind, 40, &numbers).unwrap();
            // Of the second group, of eight numbers, the step is small.
            let step = if kind == OnLoad::Int8 { 60.0 / 127.0 } else { 31.0 / 15.0 };
            for (found, number) in found.iter().zip(&numbers) {
                assert!((found - number).abs() <= step * 0.51, "{found} for {number}");
            }
            assert_eq!(quantized(kind, 3, &[0.0, -0.0, 0.0]).unwrap(), [0.0; 3]);
            for beyond in [f32::NAN, f32::INFINITY, 1e9, -1e9] {
                let error = quantized(kind, 2, &[1.0, beyond]).err().unwrap().to_string();
                let expected = format!(
                    "tensor a.weight holds infinity, NaN or numbers too large for {}; leave --quantize-on-load out",
                    kind.as_str()
                );
                assert_eq!(error, expected);
            }
        }
        // A half, as the minimum is.
        assert_eq!(quantized(OnLoad::Int4, 32, &[0.3; 32]).unwrap(), [0.300_048_83; 32]);
    }
}
