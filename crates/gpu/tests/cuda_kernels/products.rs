//! Products by one kernel, whose results must not depend on the number of rows.

use candle_core::DType;
use candlepower_gpu::Graph;
use candlepower_gpu::cuda::{Cublas, MAX_PRODUCT_ROWS};
use candlepower_kernels::{Error, linear_reference};

use crate::gpu::{Gpu, HALVES, Random, Tolerance, assert_same_bits, to_vec};

/// Sums in f32 in another order: the difference is far below a step of the result's largest value.
const REORDERED: Tolerance = Tolerance { own: 0.6, largest: 0.02 };

/// Outputs and inputs of small matrices. Outputs in whole and in partial tiles, with and without whole vectors; inputs
/// in partial stages, and in one to seven parts.
const SMALL: [(usize, usize); 6] =
    [(1, 8), (7, 264), (64, 64), (130, 200), (200, 1032), (129, 2056)];

/// Matrices that are multiplied by blocks of 128 outputs: with parts of the inputs, and without.
const LARGE: [(usize, usize); 2] = [(2430, 2112), (16_301, 136)];

pub(crate) fn rows_product(gpu: &Gpu) {
    let few = (1..=20).chain(31..=33).chain(63..=65).chain([127, 128]).collect::<Vec<_>>();
    let mut random = Random(51);
    let cublas = Cublas::new(gpu.device(), 300, DType::BF16, 0).unwrap();
    for shape in SMALL {
        compare(gpu, &cublas, shape, &few, &mut random);
    }
    for shape in LARGE {
        compare(gpu, &cublas, shape, &[1, 3, 17, 33, 65, 128], &mut random);
    }
    many_rows(gpu, &mut random);
    replayed(gpu, &mut random);
    refused_and_chosen(gpu, &mut random);
}

/// Compares products of the first rows of x, with and without a bias, with the reference. Each must have the bits of
/// the product of all 128 rows, and so must rows alone.
fn compare(
    gpu: &Gpu,
    cublas: &Cublas,
    (n, k): (usize, usize),
    numbers_of_rows: &[usize],
    random: &mut Random,
) {
    for dtype in HALVES {
        let x = random.floats(MAX_PRODUCT_ROWS * k, 1.0, dtype);
        let w = random.floats(n * k, 1.0, dtype);
        let bias = random.floats(n, 3.0, dtype);
        let sums = x.chunks(k).flat_map(|x| w.chunks(k).map(|w| linear_reference(x, w, None)));
        let sums: Vec<f32> = sums.collect();
        let biased: Vec<f32> = sums.iter().zip(bias.iter().cycle()).map(|(a, b)| a + b).collect();
        let (x, w) =
            (gpu.floats(&x, &[MAX_PRODUCT_ROWS, k], dtype), gpu.floats(&w, &[n, k], dtype));
        let bias = gpu.floats(&bias, &[n], dtype);
        for (want, bias) in [(&sums, None), (&biased, Some(&bias))] {
            let product = |first: usize, rows: usize| {
                let out = gpu.unwritten(&[rows, n], dtype);
                let x = x.narrow(0, first, rows).unwrap();
                cublas.rows_product(&x, &w, bias, &out).unwrap();
                out
            };
            let all = to_vec(&product(0, MAX_PRODUCT_ROWS));
            for &rows in numbers_of_rows {
                let what = format!("{rows} x {k} x {n}, bias {}", bias.is_some());
                let out = product(0, rows);
                gpu.assert_close(&out, &want[..rows * n], REORDERED, &what);
                assert_same_bits(&out, &all[..rows * n], &what);
            }
            for row in [1, 7, 8, 63, 64, 100, 127] {
                let what = format!("row {row} alone, {k} x {n}, {dtype:?}");
                assert_same_bits(&product(row, 1), &all[row * n..][..n], &what);
            }
            // Rows in the middle, which are other columns of other products there.
            let what = format!("rows 50 to 88, {k} x {n}, {dtype:?}");
            assert_same_bits(&product(50, 39), &all[50 * n..89 * n], &what);
        }
    }
}

/// More rows than a block has, and more than one launch has. The third matrix has partial sums, which fit for 256 rows.
fn many_rows(gpu: &Gpu, random: &mut Random) {
    let dtype = DType::BF16;
    let cublas = Cublas::new(gpu.device(), 1300, dtype, 0).unwrap().with_fixed_order();
    for (rows, n, k) in [(129, 70, 72), (1290, 8, 16), (300, 4100, 512)] {
        let x = gpu.floats(&random.floats(rows * k, 1.0, dtype), &[rows, k], dtype);
        let w = gpu.floats(&random.floats(n * k, 1.0, dtype), &[n, k], dtype);
        let bias = gpu.floats(&random.floats(n, 1.0, dtype), &[n], dtype);
        let product = |first: usize, rows: usize| {
            let out = gpu.unwritten(&[rows, n], dtype);
            cublas.matmul(&x.narrow(0, first, rows).unwrap(), &w, Some(&bias), &out).unwrap();
            out
        };
        let all = to_vec(&product(0, rows));
        for first in (0..rows).step_by(100) {
            let piece = product(first, 100.min(rows - first));
            let want = &all[first * n..][..piece.elem_count()];
            assert_same_bits(&piece, want, &format!("rows from {first} of {rows} x {k} x {n}"));
        }
        let last = product(rows - 1, 1);
        assert_same_bits(&last, &all[(rows - 1) * n..], &format!("the last of {rows} x {k} x {n}"));
    }
}

/// A replayed graph adds the parts of its own product, whatever other products have left in the same memory.
fn replayed(gpu: &Gpu, random: &mut Random) {
    let (rows, n, k, dtype) = (12, 132, 1024, DType::BF16);
    let cublas = Cublas::new(gpu.device(), rows, dtype, 0).unwrap();
    let w = random.floats(n * k, 1.0, dtype);
    let on_w = gpu.floats(&w, &[n, k], dtype);
    let x = gpu.floats(&random.floats(rows * k, 1.0, dtype), &[rows, k], dtype);
    let outs = [gpu.unwritten(&[rows, n], dtype), gpu.unwritten(&[rows - 1, n], dtype)];
    let rest = x.narrow(0, 1, rows - 1).unwrap();
    let run = || {
        cublas.rows_product(&x, &on_w, None, &outs[0])?;
        cublas.rows_product(&rest, &on_w, None, &outs[1])
    };
    // One launch outside of the graph, so that everything is loaded.
    run().unwrap();
    let graph = Graph::capture(gpu.device(), run).unwrap();
    for _ in 0..3 {
        let values = random.floats(rows * k, 1.0, dtype);
        x.slice_set(&gpu.floats(&values, &[rows, k], dtype), 0, 0).unwrap();
        graph.launch().unwrap();
        let want = values.chunks(k).flat_map(|x| w.chunks(k).map(|w| linear_reference(x, w, None)));
        let want: Vec<f32> = want.collect();
        gpu.assert_close(&outs[0], &want, REORDERED, "a replayed product");
        gpu.assert_close(&outs[1], &want[n..], REORDERED, "the product after it");
    }
}

/// Numbers of rows and inputs that the kernel refuses, and the choice by the number of rows.
fn refused_and_chosen(gpu: &Gpu, random: &mut Random) {
    let dtype = DType::BF16;
    let cublas = Cublas::new(gpu.device(), 300, dtype, 0).unwrap().with_product_rows(3..=128);
    for (rows, n, k, is_taken) in
        [(1, 8, 64, true), (128, 8, 64, true), (129, 8, 64, true), (5, 9, 12, false)]
    {
        let (x, w) = (random.floats(rows * k, 1.0, dtype), random.floats(n * k, 1.0, dtype));
        let (on_x, on_w) = (gpu.floats(&x, &[rows, k], dtype), gpu.floats(&w, &[n, k], dtype));
        let by_kernel = gpu.unwritten(&[rows, n], dtype);
        let taken = cublas.rows_product(&on_x, &on_w, None, &by_kernel);
        let is_refused = matches!(taken, Err(Error::Parameter { .. }));
        assert_eq!(is_refused, !is_taken, "{rows} x {k} x {n}: {taken:?}");
        // The same product by whatever `matmul` chooses, which is cuBLAS where the kernel refuses.
        let out = gpu.unwritten(&[rows, n], dtype);
        cublas.matmul(&on_x, &on_w, None, &out).unwrap();
        let want = x.chunks(k).flat_map(|x| w.chunks(k).map(|w| linear_reference(x, w, None)));
        gpu.assert_close(&out, &want.collect::<Vec<_>>(), REORDERED, "the chosen product");
        if (3..=128).contains(&rows) && is_taken {
            assert_same_bits(&out, &to_vec(&by_kernel), "the chosen product");
        }
    }
}
