//! Tests of the packed weight: every dtype pair, tails, and refusals.

use candle_core::DType;
use half::{bf16, f16};

use super::*;

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

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
