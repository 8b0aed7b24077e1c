//! Every path of the matmul against the definition, bit for bit.

use candle_core::{DType, Device};

use super::*;
use crate::{Error, WeightRows};

/// Numbers that need rounding, of both signs.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn weight(rows: &[f32], n: usize, k: usize, dtype: DType) -> Weight {
    let bytes: Vec<u8> = rows.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut builder = Weight::builder(n, k, dtype).unwrap();
    builder.write_rows(0, WeightRows { dtype: DType::F32, bytes: &bytes }).unwrap();
    builder.finish().unwrap()
}

/// The definition for all outputs.
fn expected(x: &[f32], w: &Weight, bias: Option<&[f32]>) -> Vec<u32> {
    let (n, k) = (w.n(), w.k());
    let mut rows = vec![0.0; n * k];
    rows.chunks_exact_mut(k).enumerate().for_each(|(i, row)| w.read_row(i, row));
    x.chunks_exact(k)
        .flat_map(|x| {
            rows.chunks_exact(k)
                .enumerate()
                .map(|(i, w)| linear_reference(x, w, bias.map(|b| b[i])))
        })
        .map(f32::to_bits)
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

#[test]
fn all_paths_give_the_definitions_bits() {
    for (n, k) in [(1, 1), (32, 2), (33, 5), (96, 191), (290, 193), (31, 400), (257, 64)] {
        let rows = numbers(n * k, (n + k) as u64);
        let bias = numbers(n, 3);
        let x = numbers(40 * k, 5);
        for dtype in DTYPES {
            let w = weight(&rows, n, k, dtype);
            let want = [expected(&x, &w, None), expected(&x, &w, Some(&bias))];
            for isa in Isa::all() {
                for m in 1..=40 {
                    for (bias, want) in [None, Some(&bias[..])].into_iter().zip(&want) {
                        let got = multiply(isa, &x[..m * k], &w, bias);
                        assert_eq!(
                            bits(&got),
                            want[..m * n],
                            "{isa:?} {dtype:?} m={m} n={n} k={k}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn many_rows_and_any_number_of_threads_give_the_same_bits() {
    let (m, n, k) = (512, 200, 450);
    let rows = numbers(n * k, 1);
    let x = numbers(m * k, 2);
    for dtype in DTYPES {
        let w = weight(&rows, n, k, dtype);
        let want = expected(&x, &w, None);
        for threads in [1, 2, 3, 8] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for isa in Isa::all() {
                for m in [1, 3, 16, 100, m] {
                    let got = pool.install(|| multiply(isa, &x[..m * k], &w, None));
                    assert_eq!(
                        bits(&got),
                        want[..m * n],
                        "{isa:?} {dtype:?} m={m}, {threads} threads"
                    );
                }
            }
        }
    }
}

#[test]
fn groups_of_rows_give_the_same_bits() {
    // More rows than one packed group holds.
    let (m, n, k) = (150, 40, 20_001);
    let w = weight(&numbers(n * k, 1), n, k, DType::BF16);
    let x = numbers(m * k, 2);
    let want = expected(&x, &w, None);
    for isa in Isa::all() {
        assert_eq!(bits(&multiply(isa, &x, &w, None)), want, "{isa:?}");
    }
}

#[test]
fn infinite_weights_do_not_meet_padding() {
    let (n, k) = (3, 3);
    let w = weight(&[f32::INFINITY; 9], n, k, DType::BF16);
    let x = vec![1.0; 6 * k];
    for isa in Isa::all() {
        for m in 1..=6 {
            let y = multiply(isa, &x[..m * k], &w, None);
            assert!(y.iter().all(|y| *y == f32::INFINITY), "{isa:?} m={m}: {y:?}");
        }
    }
}

#[test]
fn the_wrapper_checks_its_operands() {
    let device = &Device::Cpu;
    let w = weight(&numbers(12, 1), 4, 3, DType::F32);
    let x = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], device).unwrap();
    let bias = Tensor::new(&[1f32, 2., 3., 4.], device).unwrap();
    let y = linear(&x, &w, Some(&bias)).unwrap();
    assert_eq!(y.dims(), [2, 4]);
    let data: Vec<f32> = x.flatten_all().unwrap().to_vec1().unwrap();
    let y: Vec<f32> = y.flatten_all().unwrap().to_vec1().unwrap();
    assert_eq!(bits(&y), expected(&data, &w, Some(&[1., 2., 3., 4.])));
    assert_eq!(linear(&x.narrow(0, 0, 0).unwrap(), &w, None).unwrap().dims(), [0, 4]);

    let wide = Tensor::zeros((2, 4), DType::F32, device).unwrap();
    assert!(matches!(linear(&wide, &w, None), Err(Error::Shape { operand: "x", .. })));
    let halves = x.to_dtype(DType::BF16).unwrap();
    assert!(matches!(linear(&halves, &w, None), Err(Error::DType { found: DType::BF16, .. })));
    let strided = wide.narrow(1, 0, 3).unwrap();
    assert!(matches!(linear(&strided, &w, None), Err(Error::NotContiguous { .. })));
    let short = bias.narrow(0, 0, 3).unwrap();
    assert!(matches!(linear(&x, &w, Some(&short)), Err(Error::Shape { operand: "bias", .. })));
}
