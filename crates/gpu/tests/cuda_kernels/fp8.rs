//! FP8 weights and activations: rounding of activations, the product of few rows, and both through `Matmul`.

use candle_core::{DType, Tensor};
use candlepower_gpu::cuda::{self, has_fp8_matmul};
use candlepower_gpu::{
    Fp8Matrix, Fp8Product, Fp8Rows, Graph, HeadPadding, Matmul, Matrix, PackedMatrix,
    round_activations,
};
use candlepower_kernels::{
    Fp8Rounding, OffsetForm, Offsets, QuantFormat, QuantizedRows, ScaleForm, Weight, e4m3_bits,
    e4m3_rounded, linear_reference,
};
use candlepower_layout::ActivationScales;

use crate::gpu::{Gpu, HALVES, Random, Tolerance, assert_same_bits, rounded, to_vec};

/// Sums in f32 in another order.
const REORDERED: Tolerance = Tolerance { own: 0.6, largest: 0.02 };

/// A bias is laid under a product of cuBLASLt, which may round the product first.
const BIASED: Tolerance = Tolerance { own: 0.6, largest: 0.6 };

/// Activations that are rounded to FP8 and back: whole rows, groups, a fixed scale; vectors and single elements; padding.
pub(crate) fn round_fp8(gpu: &Gpu) {
    let mut random = Random(61);
    let row = (ActivationScales::Row, 0.0);
    let fixed = (ActivationScales::Fixed, 0.02);
    let group = |size| (ActivationScales::Group(size), 0.0);
    let heads = |len, padded| Some(HeadPadding { len, padded });
    for ((scales, fixed), rows, k, padding) in [
        (row, 1, 64, None),
        (row, 5, 4096, None),
        (row, 3, 77, None),
        (row, 7, 96, heads(20, 32)),
        (fixed, 4, 256, None),
        (fixed, 2, 13, None),
        (group(128), 3, 1024, None),
        (group(128), 2, 200, None),
        (group(32), 9, 352, None),
        (group(6), 2, 39, None),
        (group(32), 3, 128, heads(24, 32)),
        (group(128), 300, 128, None),
    ] {
        let rounding = Fp8Rounding { scales, fixed };
        for dtype in HALVES {
            let what = format!("{scales:?} {rows} x {k} {padding:?}");
            let mut x = random.floats(rows * k, 3.0, dtype);
            // Zeros have a scale, too, and so have values that e4m3 cannot hold.
            x[..k / 2].fill(0.0);
            if rows > 1 {
                x[k..2 * k].iter_mut().for_each(|value| *value *= 1000.0);
                let large = rounded(&x[k..2 * k], dtype);
                x[k..2 * k].copy_from_slice(&large);
            }
            let HeadPadding { len, padded } = padding.unwrap_or(HeadPadding { len: k, padded: k });
            let is_own = |at: usize| at % k % padded < len;
            let mut own: Vec<f32> = (0..x.len()).filter(|at| is_own(*at)).map(|at| x[at]).collect();
            rounding.round_rows(&mut own, k / padded * len);
            let mut own = own.into_iter();
            let mut want = vec![0.0; x.len()];
            for at in (0..want.len()).filter(|at| is_own(*at)) {
                want[at] = own.next().unwrap();
            }
            let want = rounded(&want, dtype);
            let on_gpu = gpu.floats(&x, &[rows, k], dtype);
            // Another product's rows.
            let out = gpu.floats(&vec![1.0; rows * k], &[rows, k], dtype);
            round_activations(&on_gpu, &rounding, padding, &out).unwrap();
            gpu.assert_close(&out, &want, Tolerance { own: 0.0, largest: 0.0 }, &what);
            assert_same_bits(&out, &want, &what);
            // In place.
            round_activations(&on_gpu, &rounding, padding, &on_gpu).unwrap();
            assert_same_bits(&on_gpu, &want, &what);
        }
    }
    for (value, expected) in [(f32::NAN, true), (f32::INFINITY, true)] {
        let x = gpu.floats(&[1.0, value, 2.0, 4.0], &[2, 2], DType::BF16);
        let rounding = Fp8Rounding { scales: ActivationScales::Row, fixed: 0.0 };
        round_activations(&x, &rounding, None, &x).unwrap();
        let found = to_vec(&x);
        assert_eq!([found[0].is_nan(), found[1].is_nan()], [expected; 2], "{value}");
        assert_eq!(found[2..], [2.0, 4.0]);
    }
}

/// Memory for rows in FP8 that was not written.
pub(crate) fn unwritten_rows(gpu: &Gpu, dims: [usize; 2], rounding: Fp8Rounding) -> Fp8Rows {
    let [rows, k] = dims;
    Fp8Rows {
        codes: gpu.floats(&vec![1.0; rows * k], &dims, DType::F8E4M3),
        scales: gpu.unwritten(&[k.div_ceil(rounding.scales.group(k)), rows], DType::F32),
        rounding,
    }
}

/// The bits of activations in FP8, and their scales.
pub(crate) fn quantize_fp8(gpu: &Gpu) {
    let mut random = Random(62);
    for (scales, fixed, rows, k) in [
        (ActivationScales::Row, 0.0, 1, 64),
        (ActivationScales::Row, 0.0, 6, 1040),
        (ActivationScales::Fixed, 0.01, 3, 48),
        (ActivationScales::Group(128), 0.0, 5, 1040),
        (ActivationScales::Group(128), 0.0, 2, 256),
    ] {
        let rounding = Fp8Rounding { scales, fixed };
        for dtype in HALVES {
            let x = random.floats(rows * k, 3.0, dtype);
            let (group, groups) = (scales.group(k), k.div_ceil(scales.group(k)));
            let (mut codes, mut of_groups) = (Vec::new(), vec![0f32; groups * rows]);
            for (row, values) in x.chunks(k).enumerate() {
                for (at, values) in values.chunks(group).enumerate() {
                    let scale = rounding.scale_of(values);
                    of_groups[at * rows + row] = scale;
                    codes.extend(values.iter().map(|value| e4m3_rounded(value / scale)));
                }
            }
            let on_gpu = gpu.floats(&x, &[rows, k], dtype);
            let found = unwritten_rows(gpu, [rows, k], rounding);
            cuda::quantize_activations(&on_gpu, &found).unwrap();
            let what = format!("{scales:?} {rows} x {k}");
            let bits = |values: &[f32]| {
                values.iter().map(|value| u32::from(e4m3_bits(*value))).collect::<Vec<_>>()
            };
            gpu.assert_equal(&bits(&to_vec(&found.codes)), &bits(&codes), &what);
            assert_same_bits(&found.scales, &of_groups, &what);
        }
    }
    // A row of a fixed scale has the scale NaN if it has NaN.
    let x = gpu.floats(&[[1.0; 16], [f32::NAN; 16]].concat(), &[2, 16], DType::BF16);
    let rounding = Fp8Rounding { scales: ActivationScales::Fixed, fixed: 0.5 };
    let rows = unwritten_rows(gpu, [2, 16], rounding);
    cuda::quantize_activations(&x, &rows).unwrap();
    let found = to_vec(&rows.scales);
    assert!(found[0] == 0.5 && found[1].is_nan(), "{found:?}");
}

/// A matrix on the GPU in both forms, with its dequantized values.
struct Case {
    matrix: Fp8Matrix,
    packed: PackedMatrix,
    values: Vec<f32>,
    rounding: Fp8Rounding,
    n: usize,
    k: usize,
    what: String,
}

/// Matrices of each kind of scales, for a GPU with this compute capability.
fn cases(gpu: &Gpu) -> Vec<Case> {
    let mut random = Random(63);
    let hopper = (9, 0);
    let mut cases = Vec::new();
    for (capability, product, scales) in [
        (hopper, Fp8Product::Rows, ActivationScales::Row),
        (hopper, Fp8Product::Rows, ActivationScales::Fixed),
        ((8, 9), Fp8Product::Tensor, ActivationScales::Fixed),
        (hopper, Fp8Product::Blocks, ActivationScales::Group(128)),
    ] {
        for (n, k) in [(16, 64usize), (48, 272), (144, 1040), (272, 2048), (32, 4096), (16, 128)] {
            // Blocks of cuBLASLt are whole.
            let k = if product == Fp8Product::Blocks { k.next_multiple_of(128) } else { k };
            let group = if product == Fp8Product::Blocks { 128 } else { k };
            let groups = k.div_ceil(group);
            let bytes: Vec<u8> = (0..n * k).map(|_| (random.next() % 256) as u8 & 0xf7).collect();
            let mut of_rows: Vec<f32> = Vec::new();
            for row in 0..n {
                match product {
                    Fp8Product::Rows => of_rows.push(0.001 * (1 + random.below(9)) as f32),
                    Fp8Product::Tensor => of_rows.push(0.003),
                    Fp8Product::Blocks if row % 128 == 0 => {
                        of_rows.extend((0..groups).map(|_| 0.001 * (1 + random.below(9)) as f32));
                    }
                    Fp8Product::Blocks => of_rows.extend_from_within(of_rows.len() - groups..),
                }
            }
            let form = ScaleForm { offsets: OffsetForm::None, ..ScaleForm::F32 };
            let builder = Weight::quantized_builder(n, k, QuantFormat::E4m3, group, form).unwrap();
            let mut builder = builder.with_activations(Some(scales));
            builder.add_fixed_scale(0.02);
            let rows = QuantizedRows {
                format: QuantFormat::E4m3,
                group,
                bytes: &bytes,
                scales: &of_rows,
                offsets: Offsets::None,
                sub_scales: None,
                inputs: None,
            };
            builder.write_quantized(0, rows).unwrap();
            let weight = builder.finish().unwrap();
            let matrix = Fp8Matrix::new(&weight, capability, gpu.device()).unwrap().unwrap();
            assert_eq!(matrix.product(), product);
            cases.push(Case {
                matrix,
                packed: PackedMatrix::new(&weight, None, gpu.device()).unwrap(),
                values: rows.dequantized(k).unwrap(),
                rounding: weight.activations().unwrap(),
                n,
                k,
                what: format!("{product:?} {scales:?} {n} x {k}"),
            });
        }
    }
    cases
}

impl Case {
    /// The reference: the product of rounded activations, plus the bias.
    fn product(&self, x: &[f32], bias: &[f32], dtype: Option<DType>) -> Vec<f32> {
        let mut x = x.to_vec();
        self.rounding.round_rows(&mut x, self.k);
        if let Some(dtype) = dtype {
            x = rounded(&x, dtype);
        }
        let outputs = |x: &[f32]| -> Vec<f32> {
            let rows = self.values.chunks(self.k).zip(bias);
            rows.map(|(w, bias)| linear_reference(x, w, Some(*bias))).collect()
        };
        x.chunks(self.k).flat_map(outputs).collect()
    }
}

/// The kernel for few rows. A row has the same bits alone and among others.
pub(crate) fn fp8_product(gpu: &Gpu) {
    let mut random = Random(64);
    for case in cases(gpu) {
        let Case { n, k, what, .. } = &case;
        let (n, k, most) = (*n, *k, 19);
        for dtype in HALVES {
            let x = random.floats(most * k, 2.0, dtype);
            let bias = random.floats(n, 1.0, dtype);
            let want = case.product(&x, &bias, None);
            let (x, bias) = (gpu.floats(&x, &[most, k], dtype), gpu.floats(&bias, &[n], dtype));
            let of_rows = |first: usize, rows: usize| {
                let x = x.narrow(0, first, rows).unwrap().contiguous().unwrap();
                let in_fp8 = unwritten_rows(gpu, [rows, k], case.rounding);
                cuda::quantize_activations(&x, &in_fp8).unwrap();
                let out = gpu.unwritten(&[rows, n], dtype);
                cuda::fp8_product(&in_fp8, &case.matrix, Some(&bias), &out).unwrap();
                out
            };
            let all = to_vec(&of_rows(0, most));
            for rows in [1, 2, 7, 8, 9, most] {
                let out = of_rows(0, rows);
                gpu.assert_close(
                    &out,
                    &want[..rows * n],
                    REORDERED,
                    &format!("{rows} rows of {what}"),
                );
                assert_same_bits(&out, &all[..rows * n], what);
            }
            for row in [1, 7, 8, 18] {
                assert_same_bits(&of_rows(row, 1), &all[row * n..][..n], what);
            }
        }
    }
}

/// Products of few rows by the kernel and of more by cuBLASLt, with and without a bias; the same matrices as packed weights; and
/// replayed graphs.
pub(crate) fn fp8_matmul(gpu: &Gpu) {
    if !has_fp8_matmul() {
        println!("cuBLASLt has no scales of rows and blocks here: its products are not compared");
        return;
    }
    for product in [Fp8Product::Tensor, Fp8Product::Rows, Fp8Product::Blocks] {
        assert_eq!(cuda::fp8_fault(gpu.device(), product), None, "{product:?}");
    }
    let mut random = Random(65);
    for case in cases(gpu) {
        let Case { n, k, what, .. } = &case;
        let (n, k) = (*n, *k);
        for dtype in HALVES {
            let matmul = Matmul::new(gpu.device(), 140, dtype, 64 * k, k).unwrap();
            for rows in [1, 8, 9, 16, 33, 129] {
                let x = random.floats(rows * k, 2.0, dtype);
                let bias = random.floats(n, 1.0, dtype);
                let want = case.product(&x, &bias, None);
                let without = case.product(&x, &vec![0.0; n], None);
                let as_packed = case.product(&x, &bias, Some(dtype));
                let on_gpu = gpu.floats(&x, &[rows, k], dtype);
                let bias = gpu.floats(&bias, &[n], dtype);
                let run = |matrix: &Matrix, bias: Option<&Tensor>| {
                    let out = gpu.unwritten(&[rows, n], dtype);
                    matmul.run(&on_gpu, matrix, bias, &out).unwrap();
                    out
                };
                let what = format!("{rows} rows of {what}");
                let matrix = Matrix::Fp8(case.matrix.clone());
                gpu.assert_close(&run(&matrix, Some(&bias)), &want, BIASED, &what);
                gpu.assert_close(&run(&matrix, None), &without, REORDERED, &what);
                let packed = Matrix::Packed(case.packed.clone());
                let out = run(&packed, Some(&bias));
                gpu.assert_close(&out, &as_packed, BIASED, &format!("packed, {what}"));
            }
        }
        replayed(gpu, &case, &mut random);
    }
}

/// A replayed graph rounds the activations of its own product, whatever other products have left in the buffers.
fn replayed(gpu: &Gpu, case: &Case, random: &mut Random) {
    let (n, k, dtype) = (case.n, case.k, DType::BF16);
    let matmul = Matmul::new(gpu.device(), 24, dtype, 64 * k, k).unwrap();
    let matrix = Matrix::Fp8(case.matrix.clone());
    for rows in [3, 24] {
        let x = gpu.floats(&random.floats(rows * k, 1.0, dtype), &[rows, k], dtype);
        let rest = x.narrow(0, 1, rows - 1).unwrap();
        let outs = [gpu.unwritten(&[rows, n], dtype), gpu.unwritten(&[rows - 1, n], dtype)];
        let run = || {
            matmul.run(&x, &matrix, None, &outs[0])?;
            matmul.run(&rest, &matrix, None, &outs[1])
        };
        // One launch outside of the graph, so that everything is loaded.
        run().unwrap();
        let graph = Graph::capture(gpu.device(), run).unwrap();
        for _ in 0..2 {
            let values = random.floats(rows * k, 1.0, dtype);
            x.slice_set(&gpu.floats(&values, &[rows, k], dtype), 0, 0).unwrap();
            graph.launch().unwrap();
            let want = case.product(&values, &vec![0.0; n], None);
            let what = format!("replayed, {rows} rows of {}", case.what);
            gpu.assert_close(&outs[0], &want, REORDERED, &what);
            gpu.assert_close(&outs[1], &want[n..], REORDERED, &what);
        }
    }
}
