//! Tests of the packed weight: every dtype pair, tails, and refusals.

use candle_core::DType;
use half::{bf16, f16};

use super::*;

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
const SCALE_DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

fn encode(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
    }
}

fn round(value: f32, dtype: DType) -> f32 {
    match dtype {
        DType::F32 => value,
        DType::F16 => f16::from_f32(value).to_f32(),
        _ => bf16::from_f32(value).to_f32(),
    }
}

fn values(n: usize, k: usize) -> Vec<f32> {
    (0..n * k).map(|i| ((i * 7919 + 13) % 10_007) as f32 / 977.0 - 5.0).collect()
}

#[test]
fn rows_read_back_in_every_dtype_and_shape() {
    for (n, k) in [(1, 1), (31, 3), (32, 8), (33, 7), (70, 33)] {
        let rows = values(n, k);
        for source in DTYPES {
            for target in DTYPES {
                let mut builder = Weight::builder(n, k, target).unwrap();
                builder
                    .write_rows(0, WeightRows { dtype: source, bytes: &encode(&rows, source) })
                    .unwrap();
                let weight = builder.finish().unwrap();
                assert_eq!((weight.n(), weight.k(), weight.dtype()), (n, k, target));
                let mut row = vec![0.0; k];
                for (i, want) in rows.chunks_exact(k).enumerate() {
                    weight.read_row(i, &mut row);
                    let want: Vec<f32> =
                        want.iter().map(|v| round(round(*v, source), target)).collect();
                    assert_eq!(row, want, "row {i} of [{n}, {k}] {source:?} -> {target:?}");
                }
            }
        }
    }
}

#[test]
fn rows_arrive_in_any_order_from_unaligned_bytes() {
    let (n, k) = (75, 5);
    let rows = values(n, k);
    // The rows begin at an odd address.
    let mut bytes = vec![0xff];
    bytes.extend(encode(&rows, DType::BF16));
    let bytes = &bytes[1..];
    let mut builder = Weight::builder(n, k, DType::BF16).unwrap();
    for range in [40..75, 0..1, 1..40] {
        let bytes = &bytes[range.start * k * 2..range.end * k * 2];
        builder.write_rows(range.start, WeightRows { dtype: DType::BF16, bytes }).unwrap();
    }
    let weight = builder.finish().unwrap();
    let mut row = vec![0.0; k];
    for i in 0..n {
        weight.read_row(i, &mut row);
        assert!(
            row.iter().zip(&rows[i * k..]).all(|(a, b)| *a == round(*b, DType::BF16)),
            "row {i}"
        );
    }
}

#[test]
fn large_weights_are_aligned_and_counted_once() {
    let (n, k) = (1024, 1100);
    let weight = {
        let mut builder = Weight::builder(n, k, DType::F16).unwrap();
        let bytes = vec![0x3c; n * k * 2];
        builder.write_rows(0, WeightRows { dtype: DType::F16, bytes: &bytes }).unwrap();
        builder.finish().unwrap()
    };
    assert_eq!(weight.num_bytes(), n * k * 2);
    assert_eq!(weight.bytes().as_ptr().align_offset(64), 0);
    let clone = weight.clone();
    assert_eq!(clone.bytes().as_ptr(), weight.bytes().as_ptr());
}

#[test]
fn refusals_say_what_is_wrong() {
    assert!(matches!(
        Weight::builder(4, 4, DType::F64),
        Err(Error::DType { found: DType::F64, .. })
    ));
    assert!(matches!(Weight::builder(0, 4, DType::F32), Err(Error::Parameter { value: 0, .. })));
    let mut builder = Weight::builder(4, 4, DType::F32).unwrap();
    let bytes = [0u8; 64];
    let rows = |len: usize| WeightRows { dtype: DType::F32, bytes: &bytes[..len] };
    assert!(matches!(builder.write_rows(0, rows(15)), Err(Error::RowBytes { found: 15, .. })));
    assert!(matches!(
        builder.write_rows(1, rows(64)),
        Err(Error::OutOfRange { value: 5, bound: 5, .. })
    ));
    let integers = WeightRows { dtype: DType::U32, bytes: &bytes };
    assert!(matches!(builder.write_rows(0, integers), Err(Error::DType { .. })));
    builder.write_rows(0, rows(32)).unwrap();
    builder.write_rows(3, rows(16)).unwrap();
    assert!(matches!(builder.finish(), Err(Error::MissingRow { row: 2, n: 4 })));
}

/// Quantized weights, scales and offsets of `n` rows. Scales and offsets have no more bits than a bf16.
fn quantized(n: usize, k: usize, group: usize, most: usize) -> (Vec<u8>, Vec<f32>, Vec<f32>) {
    let groups = n * k.div_ceil(group);
    let quants = (0..n * k).map(|i| (i * 7919 % (most + 1)) as u8).collect();
    let scales = (0..groups).map(|i| (i % 128) as f32 / 64.0 - 1.0).collect();
    (quants, scales, (0..groups).map(|i| 3.0 - (i % 128) as f32 / 16.0).collect())
}

/// The form of scales without sub-scales.
fn single(dtype: Dtype, offsets: OffsetForm) -> ScaleForm {
    ScaleForm { dtype, offsets, blocks: None }
}

/// The rows of the weight have the dequantized values `want`.
fn assert_numbers(weight: &Weight, want: &[f32]) {
    for (i, want) in want.chunks_exact(weight.k()).enumerate() {
        assert_eq!(row(weight, i), want, "row {i} of {:?}", weight.layout());
    }
}

fn row(weight: &Weight, row: usize) -> Vec<f32> {
    let mut numbers = vec![0.0; weight.k()];
    weight.read_row(row, &mut numbers);
    numbers
}

#[test]
fn quantized_weights_read_back_as_the_numbers_they_mean() {
    // The last panel and the last group are not whole.
    let (n, k, group) = (70, 52, 8);
    let inputs: Vec<u32> = (0..k as u32).map(|i| i * 5 % k as u32).collect();
    use QuantFormat::{U2, U3, U4, U5, U6, U8};
    for (format, wider) in [(U2, U3), (U3, U4), (U4, U6), (U5, U8), (U6, U8), (U8, U8)] {
        let (bytes, scales, offsets) = quantized(n, k, group, format.most().into());
        for inputs in [None, Some(&inputs[..])] {
            let rows = QuantizedRows {
                format,
                group,
                bytes: &bytes,
                scales: &scales,
                offsets: Offsets::Own(&offsets),
                sub_scales: None,
                inputs,
            };
            let mut want = vec![0.0; n * k];
            for (i, quant) in bytes.iter().enumerate() {
                let (row, column) = (i / k, i % k);
                let at = row * k.div_ceil(group) + column / group;
                let input = inputs.map_or(column, |inputs| inputs[column] as usize);
                want[row * k + input] = f32::from(*quant) * scales[at] + offsets[at];
            }
            // The same kind, a kind with more bits and smaller groups, and dequantized values.
            let mut builders: Vec<_> = SCALE_DTYPES
                .map(|dtype| single(dtype, OffsetForm::Own))
                .map(|form| Weight::quantized_builder(n, k, format, group, form).unwrap())
                .into();
            builders.push(Weight::quantized_builder(n, k, wider, 4, ScaleForm::F32).unwrap());
            builders.push(Weight::builder(n, k, DType::F32).unwrap());
            for mut builder in builders {
                builder.write_quantized(0, rows).unwrap();
                assert_numbers(&builder.finish().unwrap(), &want);
            }
        }
    }
}

#[test]
fn zero_points_are_quantized_weights_that_mean_zero() {
    let (n, k, group) = (70, 52, 8);
    let (bytes, scales, _) = quantized(n, k, group, 255);
    let zeros: Vec<u8> = (0..scales.len()).map(|i| (i * 37 % 256) as u8).collect();
    for of_groups in [false, true] {
        let offsets = if of_groups { Offsets::ZeroPoints(&zeros) } else { Offsets::ZeroPoint(200) };
        let rows = QuantizedRows {
            format: QuantFormat::U8,
            group,
            bytes: &bytes,
            scales: &scales,
            offsets,
            sub_scales: None,
            inputs: None,
        };
        let number = |(i, quant): (usize, &u8)| {
            let at = i / k * k.div_ceil(group) + i % k / group;
            let zero = if of_groups { zeros[at] } else { 200 };
            (f32::from(*quant) - f32::from(zero)) * scales[at]
        };
        let want: Vec<f32> = bytes.iter().enumerate().map(number).collect();
        let kept = [OffsetForm::ZeroPoint(200), OffsetForm::ZeroPoints].into_iter();
        let kept = kept.filter(|kept| !of_groups || *kept == OffsetForm::ZeroPoints);
        let forms = kept.flat_map(|kept| SCALE_DTYPES.map(|dtype| single(dtype, kept)));
        for (form, group) in forms.chain([ScaleForm::F32]).flat_map(|form| [(form, 8), (form, 4)]) {
            let mut builder =
                Weight::quantized_builder(n, k, QuantFormat::U8, group, form).unwrap();
            // In two pieces.
            builder.write_quantized(40, rows.rows(k, 40..n)).unwrap();
            builder.write_quantized(0, rows.rows(k, 0..40)).unwrap();
            assert_numbers(&builder.finish().unwrap(), &want);
        }
        assert_eq!(rows.dequantized(k).unwrap(), want);
    }
}

/// Written into weights of the same form, of smaller super-blocks, of smaller groups without sub-scales, and as
/// dequantized values.
#[test]
fn scales_of_groups_are_multiples_of_their_blocks() {
    let (n, k, group, block) = (70, 192, 32, 64);
    let (bytes, _, _) = quantized(n, k, group, 15);
    let (_, scales, offsets) = quantized(n, k, block, 15);
    let by: Vec<i8> = (0..n * k / group).map(|i| (i * 89 % 256) as u8 as i8).collect();
    let by_offsets: Vec<i8> = by.iter().rev().copied().collect();
    for offsets in [Offsets::Own(&offsets), Offsets::ZeroPoint(9), Offsets::None] {
        let offsets_by = if matches!(offsets, Offsets::Own(_)) { &by_offsets[..] } else { &[] };
        let rows = QuantizedRows {
            format: QuantFormat::U4,
            group,
            bytes: &bytes,
            scales: &scales,
            offsets,
            sub_scales: Some(SubScales { block, scales: &by, offsets: offsets_by }),
            inputs: None,
        };
        let number = |(i, quant): (usize, &u8)| {
            let scale = scales[i / block] * f32::from(by[i / group]);
            let min = match offsets {
                Offsets::Own(offsets) => offsets[i / block] * f32::from(by_offsets[i / group]),
                Offsets::ZeroPoint(zero) => -f32::from(zero) * scale,
                _ => 0.0,
            };
            f32::from(*quant).mul_add(scale, min)
        };
        let want: Vec<f32> = bytes.iter().enumerate().map(number).collect();
        let kept: &[OffsetForm] = match offsets {
            Offsets::Own(_) => &[OffsetForm::Own],
            Offsets::None => &[OffsetForm::None, OffsetForm::Own],
            _ => &[OffsetForm::ZeroPoint(9), OffsetForm::ZeroPoints, OffsetForm::Own],
        };
        let mut builders = vec![Weight::builder(n, k, DType::F32).unwrap()];
        for (kept, dtype) in kept.iter().flat_map(|kept| SCALE_DTYPES.map(|dtype| (*kept, dtype))) {
            for (format, group, block) in [
                (QuantFormat::U4, 32, Some(64)),
                (QuantFormat::U8, 16, Some(32)),
                (QuantFormat::U8, 16, None),
            ] {
                // Products of scales and sub-scales may have more bits than a half.
                let factors = block.is_some()
                    && (kept != OffsetForm::Own || matches!(offsets, Offsets::Own(_)));
                let dtype = if factors { dtype } else { Dtype::F32 };
                let blocks = block.map(|columns| Blocks { columns, sub_scales: SubScaleForm::I8 });
                let form = ScaleForm { dtype, offsets: kept, blocks };
                builders.push(Weight::quantized_builder(n, k, format, group, form).unwrap());
            }
        }
        for mut builder in builders {
            // In two pieces.
            builder.write_quantized(40, rows.rows(k, 40..n)).unwrap();
            builder.write_quantized(0, rows.rows(k, 0..40)).unwrap();
            assert_numbers(&builder.finish().unwrap(), &want);
        }
    }
}

/// Sub-scales of all forms, in super-blocks of a few groups, whose bits lie side by side.
#[test]
fn multiples_of_few_bits_are_packed() {
    let (n, k, group) = (70, 240, 16);
    let (bytes, _, _) = quantized(n, k, group, 7);
    use SubScaleForm::{I6, I8, U4, U6};
    let kinds =
        [(I8, -128..128), (I6, -32..32), (U6, 0..64), (U4, 0..16)].map(|(f, r)| (f, r, f != I6));
    for ((sub_scales, range, own), columns) in
        kinds.into_iter().flat_map(|kind| [80, 48, 240].map(|columns| (kind.clone(), columns)))
    {
        let numbers: Vec<i8> = range.map(|number: i16| number as i8).collect();
        let pick = |factor: usize| -> Vec<i8> {
            (0..n * k / group).map(|i| numbers[i * factor % numbers.len()]).collect()
        };
        let (by, by_offsets) = (pick(7), pick(11));
        let (_, scales, offsets) = quantized(n, k, columns, 7);
        let rows = QuantizedRows {
            format: QuantFormat::U3,
            group,
            bytes: &bytes,
            scales: &scales,
            offsets: if own { Offsets::Own(&offsets) } else { Offsets::ZeroPoint(4) },
            sub_scales: Some(SubScales {
                block: columns,
                scales: &by,
                offsets: if own { &by_offsets } else { &[] },
            }),
            inputs: None,
        };
        let form = ScaleForm {
            dtype: Dtype::F16,
            offsets: if own { OffsetForm::Own } else { OffsetForm::ZeroPoint(4) },
            blocks: Some(Blocks { columns, sub_scales }),
        };
        let mut builder = Weight::quantized_builder(n, k, QuantFormat::U3, group, form).unwrap();
        // The rows that are written again are replaced.
        builder.write_quantized(0, rows.rows(k, 20..50)).unwrap();
        builder.write_quantized(0, rows).unwrap();
        assert_numbers(&builder.finish().unwrap(), &rows.dequantized(k).unwrap());

        let beyond = vec![numbers[0].wrapping_sub(1); by.len()];
        let others = rows.sub_scales.map(|rows| SubScales { scales: &beyond, ..rows });
        let mut builder = Weight::quantized_builder(n, k, QuantFormat::U3, group, form).unwrap();
        let refused = builder.write_quantized(0, QuantizedRows { sub_scales: others, ..rows });
        assert_eq!(refused.is_err(), sub_scales != I8, "{sub_scales:?}");
        let other_offsets = if own { OffsetForm::ZeroPoint(4) } else { OffsetForm::Own };
        let form = ScaleForm { offsets: other_offsets, ..form };
        let refused = Weight::quantized_builder(n, k, QuantFormat::U3, group, form);
        assert_eq!(refused.is_err(), sub_scales != I8, "{sub_scales:?}");
    }
}

/// Rows whose scales have sub-scales, and rows whose scales have none, are one weight.
#[test]
fn parts_with_either_kind_of_scales_are_one_weight() {
    let (n, k) = (40, 128);
    let (bytes, scales, offsets) = quantized(n, k, 32, 15);
    let by: Vec<i8> = (0..n * k / 32).map(|i| i as i8).collect();
    let single = QuantizedRows {
        format: QuantFormat::U8,
        group: 32,
        bytes: &bytes,
        scales: &scales,
        offsets: Offsets::Own(&offsets),
        sub_scales: None,
        inputs: None,
    };
    let multiplied = QuantizedRows {
        format: QuantFormat::U4,
        scales: &scales[..n],
        offsets: Offsets::Own(&offsets[..n]),
        sub_scales: Some(SubScales { block: k, scales: &by, offsets: &by }),
        ..single
    };
    let mut builder =
        Weight::quantized_builder(2 * n, k, QuantFormat::U8, 16, ScaleForm::F32).unwrap();
    builder.write_quantized(n, multiplied).unwrap();
    builder.write_quantized(0, single).unwrap();
    let weight = builder.finish().unwrap();
    for i in 0..n {
        let (own, multiple) = (row(&weight, i), row(&weight, n + i));
        for column in 0..k {
            let (quant, at) = (f32::from(bytes[i * k + column]), i * k / 32 + column / 32);
            assert_eq!(own[column], quant.mul_add(scales[at], offsets[at]));
            let by = f32::from(by[at]);
            assert_eq!(multiple[column], quant.mul_add(scales[i] * by, offsets[i] * by));
        }
    }
}

/// The dequantized values of quantized weights whose scale is one.
fn numbers_of(format: QuantFormat, bytes: &[u8]) -> Vec<f32> {
    let k = bytes.len();
    let group = k;
    let mut builder = Weight::quantized_builder(1, k, format, group, ScaleForm::F32).unwrap();
    let rows = QuantizedRows {
        format,
        group,
        bytes,
        scales: &[1.0],
        offsets: Offsets::None,
        sub_scales: None,
        inputs: None,
    };
    builder.write_quantized(0, rows).unwrap();
    row(&builder.finish().unwrap(), 0)
}

/// Source: the table of values in "OCP Microscaling Formats (MX) Specification", 5.3.3.
#[test]
fn e2m1_quantized_weights_are_the_numbers_of_the_format() {
    let found = numbers_of(QuantFormat::E2m1, &(0..16).collect::<Vec<u8>>());
    let sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    assert_eq!(found, [sizes, sizes.map(|size: f32| -size)].concat());
}

/// Integers from 0 on with the zero-point 128 give the same values.
#[test]
fn iq4_values_are_kept_among_values_of_eight_bits() {
    let bytes: Vec<u8> = (0..64).map(|i| i * 7 % 16).collect();
    let (k, scales) = (32, [0.25, -0.5]);
    let rows = QuantizedRows {
        format: QuantFormat::Iq4,
        group: 32,
        bytes: &bytes,
        scales: &scales,
        offsets: Offsets::None,
        sub_scales: None,
        inputs: None,
    };
    let expected = rows.dequantized(k).unwrap();
    assert_eq!((expected[0], expected[1]), (-127.0 * 0.25, -10.0 * 0.25));
    let form = |offsets| ScaleForm { offsets, ..ScaleForm::F32 };
    for (format, offsets) in [
        (QuantFormat::Iq4, OffsetForm::None),
        (QuantFormat::U8, OffsetForm::Own),
        (QuantFormat::U8, OffsetForm::ZeroPoint(128)),
        (QuantFormat::U8, OffsetForm::ZeroPoints),
    ] {
        let mut builder = Weight::quantized_builder(2, k, format, 32, form(offsets)).unwrap();
        builder.write_quantized(0, rows).unwrap();
        let weight = builder.finish().unwrap();
        let found = [row(&weight, 0), row(&weight, 1)].concat();
        assert_eq!(found, expected, "{format:?} {offsets:?}");
    }
    let mut narrow = Weight::quantized_builder(2, k, QuantFormat::U4, 32, ScaleForm::F32).unwrap();
    assert!(narrow.write_quantized(0, rows).is_err());
}

/// Source: the table of values in "FP8 Formats for Deep Learning".
#[test]
fn e4m3_quantized_weights_are_the_numbers_of_the_format() {
    // Bits 0x7f are NaN.
    let bytes: Vec<u8> = (0..=255u8).filter(|quant| quant & 0x7f != 0x7f).collect();
    let found = numbers_of(QuantFormat::E4m3, &bytes);
    for (quant, found) in bytes.iter().zip(found) {
        let (exponent, mantissa) = (i32::from(quant >> 3 & 15), f32::from(quant & 7));
        let size = match exponent {
            0 => mantissa / 8.0 * 2f32.powi(-6),
            _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
        };
        assert_eq!(found, if quant & 0x80 == 0 { size } else { -size }, "quant {quant}");
    }
}

#[test]
fn each_output_has_its_table() {
    let (n, k) = (33, 17);
    let bytes: Vec<u8> = (0..n * k).map(|i| (i * 11 % 16) as u8).collect();
    let scales: Vec<f32> = (0..n * 16).map(|i| (i * 37 % 101) as f32).collect();
    let (format, group) = (QuantFormat::Table, k);
    let mut builder = Weight::quantized_builder(n, k, format, group, ScaleForm::F32).unwrap();
    let rows = QuantizedRows {
        format,
        group,
        bytes: &bytes,
        scales: &scales,
        offsets: Offsets::None,
        sub_scales: None,
        inputs: None,
    };
    builder.write_quantized(0, rows).unwrap();
    let weight = builder.finish().unwrap();
    for i in 0..n {
        let want: Vec<f32> =
            bytes[i * k..][..k].iter().map(|c| scales[i * 16 + usize::from(*c)]).collect();
        assert_eq!(row(&weight, i), want, "row {i}");
    }
}

/// The quantized weights of two steps of 32 outputs have all their bits, and no two share one.
#[test]
fn planes_have_each_bit_of_each_code_once() {
    for bits in [2, 3, 5, 6] {
        let packed = |quants: &[[u8; PANEL]; 2]| {
            // Old bits must all be overwritten.
            let mut pair = vec![0xaa; planes::plane_bytes(bits)];
            planes::pack(bits, &mut pair, quants);
            pair
        };
        let mut all = vec![0u8; planes::plane_bytes(bits)];
        for (step, column) in (0..2).flat_map(|step| (0..PANEL).map(move |column| (step, column))) {
            for bit in 0..bits {
                let mut quants = [[0; PANEL]; 2];
                quants[step][column] = 1 << bit;
                let alone = packed(&quants);
                assert_eq!(planes::quant(bits, &alone, step, column), 1 << bit);
                assert!(all.iter().zip(&alone).all(|(all, alone)| all & alone == 0));
                all.iter_mut().zip(alone).for_each(|(all, alone)| *all |= alone);
            }
        }
        assert!(all.iter().all(|byte| *byte == 255), "{bits} bits have no padding");
    }
}

/// Parts that end within a panel leave the rest of it unchanged.
#[test]
fn rows_of_one_panel_come_in_any_order() {
    let (n, k, group) = (70, 90, 10);
    for format in [
        QuantFormat::U2,
        QuantFormat::U3,
        QuantFormat::U4,
        QuantFormat::U5,
        QuantFormat::U6,
        QuantFormat::U8,
    ] {
        let (bytes, scales, offsets) = quantized(n, k, group, format.most().into());
        let rows = QuantizedRows {
            format,
            group,
            bytes: &bytes,
            scales: &scales,
            offsets: Offsets::Own(&offsets),
            sub_scales: None,
            inputs: None,
        };
        let mut builder = Weight::quantized_builder(n, k, format, group, ScaleForm::F32).unwrap();
        for part in [40..70, 3..5, 5..40, 0..3] {
            builder.write_quantized(part.start, rows.rows(k, part)).unwrap();
        }
        assert_numbers(&builder.finish().unwrap(), &rows.dequantized(k).unwrap());
    }
}

#[test]
fn quantized_weights_that_do_not_fit_are_refused() {
    let odd = Weight::quantized_builder(2, 8, QuantFormat::U4, 3, ScaleForm::F32);
    assert!(matches!(odd, Err(Error::Parameter { parameter: "weight group", value: 3, .. })));
    assert!(Weight::quantized_builder(2, 8, QuantFormat::Table, 4, ScaleForm::F32).is_err());
    let good = QuantizedRows {
        format: QuantFormat::U4,
        group: 4,
        bytes: &[1; 16],
        scales: &[1.0; 4],
        offsets: Offsets::None,
        sub_scales: None,
        inputs: None,
    };
    let builder = || Weight::quantized_builder(2, 8, QuantFormat::U4, 4, ScaleForm::F32).unwrap();
    builder().write_quantized(0, good).unwrap();
    let wrong = [
        QuantizedRows { bytes: &[16; 16], ..good },
        QuantizedRows { bytes: &[1; 15], ..good },
        QuantizedRows { format: QuantFormat::U5, ..good },
        QuantizedRows { format: QuantFormat::E4m3, ..good },
        QuantizedRows { scales: &[1.0; 3], ..good },
        QuantizedRows { offsets: Offsets::Own(&[1.0; 3]), ..good },
        QuantizedRows { offsets: Offsets::ZeroPoints(&[1; 3]), ..good },
        QuantizedRows { format: QuantFormat::U8, ..good },
        QuantizedRows { group: 2, scales: &[1.0; 8], ..good },
        QuantizedRows { group: 0, ..good },
        QuantizedRows { inputs: Some(&[0, 1, 2, 3, 4, 5, 6, 6]), ..good },
        QuantizedRows { inputs: Some(&[0, 1, 2, 3, 4, 5, 6, 8]), ..good },
    ];
    for rows in wrong {
        let refused = builder().write_quantized(0, rows);
        assert!(matches!(refused, Err(Error::QuantizedRows(_))), "{rows:?}");
    }
    assert!(matches!(builder().write_quantized(1, good), Err(Error::OutOfRange { .. })));
    let dense = WeightRows { dtype: DType::F32, bytes: &[0; 64] };
    assert!(matches!(builder().write_rows(0, dense), Err(Error::QuantizedRows(_))));

    let mut mixed = Weight::quantized_builder(4, 8, QuantFormat::U4, 4, ScaleForm::F32).unwrap();
    mixed.write_quantized(0, good).unwrap();
    let backwards = QuantizedRows { inputs: Some(&[7, 6, 5, 4, 3, 2, 1, 0]), ..good };
    assert!(matches!(mixed.write_quantized(2, backwards), Err(Error::InputOrder)));

    let halves =
        |offsets| Weight::quantized_builder(2, 8, QuantFormat::U4, 4, single(Dtype::F16, offsets));
    let eight = OffsetForm::ZeroPoint(8);
    let good_offsets = Offsets::ZeroPoint(8);
    halves(eight)
        .unwrap()
        .write_quantized(0, QuantizedRows { offsets: good_offsets, ..good })
        .unwrap();
    for (scales, offsets, kept) in [
        (&[1.0; 4], Offsets::None, eight),
        (&[1.0; 4], Offsets::ZeroPoint(7), eight),
        (&[1.0; 4], Offsets::ZeroPoints(&[8; 4]), eight),
        (&[1.0; 4], Offsets::Own(&[-8.0; 4]), eight),
        (&[1.0; 4], good_offsets, OffsetForm::None),
        (&[1.0; 4], Offsets::Own(&[-8.0; 4]), OffsetForm::ZeroPoints),
        (&[1.0 + f32::EPSILON; 4], good_offsets, eight),
        (&[f32::MAX; 4], good_offsets, eight),
        // The offset is beyond the largest half.
        (&[8192.0; 4], good_offsets, OffsetForm::Own),
    ] {
        let rows = QuantizedRows { scales, offsets, ..good };
        let refused = halves(kept).unwrap().write_quantized(0, rows);
        assert!(matches!(refused, Err(Error::QuantizedRows(_))), "{scales:?} {offsets:?}");
    }
    let blocks = |columns| {
        let blocks = Some(Blocks { columns, sub_scales: SubScaleForm::I8 });
        ScaleForm { blocks, ..single(Dtype::F32, OffsetForm::None) }
    };
    for format in [QuantFormat::E4m3, QuantFormat::Table] {
        for form in [
            single(Dtype::F16, OffsetForm::None),
            single(Dtype::F32, OffsetForm::ZeroPoints),
            ScaleForm { blocks: blocks(8).blocks, ..ScaleForm::F32 },
        ] {
            let refused = Weight::quantized_builder(2, 8, format, 8, form);
            assert!(matches!(refused, Err(Error::QuantizedRows(_))), "{format:?} {form:?}");
        }
    }

    for (k, group, columns) in [(64, 16, 0), (64, 16, 24), (64, 8, 32), (48, 16, 32)] {
        let refused = Weight::quantized_builder(2, k, QuantFormat::U4, group, blocks(columns));
        assert!(matches!(refused, Err(Error::Parameter { .. })), "{k} {columns}");
    }
    let sub_scales = SubScales { block: 32, scales: &[1; 4], offsets: &[] };
    let good = QuantizedRows { group: 32, bytes: &[1; 128], sub_scales: Some(sub_scales), ..good };
    let builder = || Weight::quantized_builder(2, 64, QuantFormat::U4, 32, blocks(32)).unwrap();
    builder().write_quantized(0, good).unwrap();
    for sub_scales in [
        None,
        Some(SubScales { block: 0, ..sub_scales }),
        Some(SubScales { block: 48, ..sub_scales }),
        Some(SubScales { scales: &[1; 3], ..sub_scales }),
        // There are no offsets that they multiply.
        Some(SubScales { offsets: &[1; 4], ..sub_scales }),
    ] {
        let refused = builder().write_quantized(0, QuantizedRows { sub_scales, ..good });
        assert!(matches!(refused, Err(Error::QuantizedRows(_))), "{sub_scales:?}");
    }
    let zero_points = QuantizedRows { offsets: Offsets::ZeroPoints(&[1; 4]), ..good };
    let mut numbers = Weight::builder(2, 64, DType::F32).unwrap();
    assert!(matches!(numbers.write_quantized(0, zero_points), Err(Error::QuantizedRows(_))));
    let own = QuantizedRows { offsets: Offsets::Own(&[1.0; 4]), ..good };
    assert!(matches!(numbers.write_quantized(0, own), Err(Error::QuantizedRows(_))));
}
