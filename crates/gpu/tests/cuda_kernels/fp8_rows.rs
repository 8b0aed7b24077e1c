//! Norms and activations whose rows are written in FP8: the bits of those that are written in 16 bits and rounded after that.

use candle_core::{DType, Tensor};
use candlepower_gpu::cuda;
use candlepower_gpu::{Fp8Matrix, Fp8Rows, Graph, Matmul, Matrix, NormWeight, RmsNorm, RowsOut};
use candlepower_kernels::{
    Activation, Fp8Rounding, OffsetForm, Offsets, QuantFormat, QuantizedRows, Result, ScaleForm,
    Weight,
};
use candlepower_layout::ActivationScales;

use crate::fp8::unwritten_rows;
use crate::gpu::{Gpu, HALVES, Random, assert_same_bits, to_vec};

const SCALES: [ActivationScales; 3] =
    [ActivationScales::Row, ActivationScales::Fixed, ActivationScales::Group(128)];

/// The bits of the elements as f32.
fn bits(elements: &Tensor) -> Vec<u32> {
    to_vec(elements).into_iter().map(f32::to_bits).collect()
}

/// Compares rows in FP8 with the quantizer's of the same rows in 16 bits.
fn compare(gpu: &Gpu, found: &Fp8Rows, plain: &Tensor, what: &str) {
    let (rows, k) = plain.dims2().unwrap();
    let want = unwritten_rows(gpu, [rows, k], found.rounding);
    cuda::quantize_activations(plain, &want).unwrap();
    gpu.assert_equal(&bits(&found.codes), &bits(&want.codes), what);
    gpu.assert_equal(&bits(&found.scales), &bits(&want.scales), &format!("{what}: scales"));
}

/// The widths that a kind of scales takes.
fn takes(scales: ActivationScales, k: usize) -> bool {
    k.is_multiple_of(if scales == ActivationScales::Group(128) { 128 } else { 8 })
}

/// RMS norms alone and with the residual: rows of less than a warp, of some turns of a block, and of zeros, NaN and infinity.
pub(crate) fn norms_in_fp8(gpu: &Gpu) {
    let mut random = Random(71);
    for (rows, dim) in
        [(1, 64), (5, 896), (3, 4096), (7, 128), (2, 8192), (2, 8200), (1, 17_408), (65, 384)]
    {
        for (scales, dtype) in SCALES.into_iter().flat_map(|scales| HALVES.map(|d| (scales, d))) {
            if !takes(scales, dim) {
                continue;
            }
            for form in [NormWeight::Plain, NormWeight::OnePlus] {
                let rounding = Fp8Rounding { scales, fixed: 0.013 };
                let mut x = random.floats(rows * dim, 2.0, dtype);
                if rows > 4 {
                    x[..dim].fill(0.0);
                    x[dim] = f32::NAN;
                    x[2 * dim] = f32::INFINITY;
                }
                let mut before = random.floats(rows * dim, 2.0, dtype);
                if rows > 4 {
                    // A row of zeros is one with the residual, too.
                    before[..dim].fill(0.0);
                }
                let weight = gpu.floats(&random.floats(dim, 1.0, dtype), &[dim], dtype);
                let norm = RmsNorm { weight: &weight, form, eps: 1e-5, next: Some(&weight) };
                let x = gpu.floats(&x, &[rows, dim], dtype);
                let what = format!("{rows} x {dim}, {scales:?}, {form:?}, {dtype:?}");

                let plain = gpu.unwritten(&[rows, dim], dtype);
                cuda::rms_norm(&x, &norm, &plain).unwrap();
                let found = unwritten_rows(gpu, [rows, dim], rounding);
                cuda::rms_norm(&x, &norm, &found).unwrap();
                compare(gpu, &found, &plain, &what);

                let add = |out: RowsOut| {
                    let residual = gpu.floats(&before, &[rows, dim], dtype);
                    cuda::add_rms_norm(&residual, &x, 0.75, &norm, out).unwrap();
                    residual
                };
                let sums = [add((&plain).into()), add((&found).into())];
                let what = format!("{what}, with the residual");
                gpu.assert_equal(&bits(&sums[1]), &bits(&sums[0]), &what);
                compare(gpu, &found, &plain, &what);
            }
        }
    }
}

/// Gated activations: rows of less than a warp, of some turns of a block, and of more than a block keeps.
pub(crate) fn gated_in_fp8(gpu: &Gpu) {
    let mut random = Random(72);
    for (rows, inner) in
        [(1, 64), (6, 1536), (3, 4864), (2, 14_336), (129, 128), (5, 40), (1, 33_024), (300, 256)]
    {
        for (scales, dtype) in SCALES.into_iter().flat_map(|scales| HALVES.map(|d| (scales, d))) {
            if !takes(scales, inner) {
                continue;
            }
            for act in Activation::ALL {
                let rounding = Fp8Rounding { scales, fixed: 0.017 };
                let mut gate_up = random.floats(rows * 2 * inner, 6.0, dtype);
                if rows > 4 {
                    gate_up[..2 * inner].fill(0.0);
                    gate_up[3 * inner] = f32::NAN;
                    gate_up[5 * inner] = f32::INFINITY;
                }
                let gate_up = gpu.floats(&gate_up, &[rows, 2 * inner], dtype);
                let plain = gpu.unwritten(&[rows, inner], dtype);
                cuda::gated_activation(&gate_up, act, None, &plain).unwrap();
                let found = unwritten_rows(gpu, [rows, inner], rounding);
                cuda::gated_activation(&gate_up, act, Some(&gate_up), &found).unwrap();
                let what = format!("{rows} x {inner}, {scales:?}, {act:?}, {dtype:?}");
                compare(gpu, &found, &plain, &what);
            }
        }
    }
    // Neither kernel has groups of 64, or rows that are no whole vectors.
    for (inner, scales) in [(256, ActivationScales::Group(64)), (20, ActivationScales::Row)] {
        let gate_up = gpu.floats(&vec![1.0; 2 * inner], &[1, 2 * inner], DType::BF16);
        let rounding = Fp8Rounding { scales, fixed: 0.0 };
        let out = unwritten_rows(gpu, [1, inner], rounding);
        assert!(cuda::gated_activation(&gate_up, Activation::Silu, None, &out).is_err(), "{inner}");
    }
}

/// A product with a scale for each output.
fn matrix(gpu: &Gpu, (n, k): (usize, usize), scales: ActivationScales) -> Matrix {
    let mut random = Random(73);
    let bytes: Vec<u8> = (0..n * k).map(|_| (random.next() % 256) as u8 & 0xf7).collect();
    let of_outputs: Vec<f32> = (0..n).map(|_| 0.001 * (1 + random.below(9)) as f32).collect();
    let form = ScaleForm { offsets: OffsetForm::None, ..ScaleForm::F32 };
    let builder = Weight::quantized_builder(n, k, QuantFormat::E4m3, k, form).unwrap();
    let mut builder = builder.with_activations(Some(scales));
    builder.add_fixed_scale(0.02);
    let rows = QuantizedRows {
        format: QuantFormat::E4m3,
        group: k,
        bytes: &bytes,
        scales: &of_outputs,
        offsets: Offsets::None,
        sub_scales: None,
        inputs: None,
    };
    builder.write_quantized(0, rows).unwrap();
    let weight = builder.finish().unwrap();
    Matrix::Fp8(Fp8Matrix::new(&weight, (9, 0), gpu.device()).unwrap().unwrap())
}

/// The way of a feed-forward: a norm and an activation in FP8 between two products, launched and replayed, beside the same in 16
/// bits. Each kernel may begin before the one before it has ended.
pub(crate) fn feed_forward_in_fp8(gpu: &Gpu) {
    let mut random = Random(74);
    let (hidden, inner) = (144, 208);
    for scales in [ActivationScales::Row, ActivationScales::Fixed] {
        let up = matrix(gpu, (2 * inner, hidden), scales);
        let down = matrix(gpu, (hidden, inner), scales);
        for (rows, dtype) in [(1, DType::BF16), (5, DType::F16), (40, DType::BF16)] {
            let matmul = Matmul::new(gpu.device(), rows, dtype, 0, inner).unwrap();
            let weight = gpu.floats(&random.floats(hidden, 1.0, dtype), &[hidden], dtype);
            let norm = RmsNorm { weight: &weight, form: NormWeight::Plain, eps: 1e-5, next: None };
            let x = gpu.floats(&random.floats(rows * hidden, 1.0, dtype), &[rows, hidden], dtype);
            let gate_up = gpu.unwritten(&[rows, 2 * inner], dtype);
            let halves = [hidden, inner].map(|width| gpu.unwritten(&[rows, width], dtype));
            let outs = [(); 2].map(|()| gpu.unwritten(&[rows, hidden], dtype));
            let run = |fused: bool, out: &Tensor| {
                let place = |reader: &Matrix, plain: &Tensor| -> Result<RowsOut> {
                    let in_fp8 = if fused { matmul.fp8_rows(reader, rows)? } else { None };
                    Ok(in_fp8.map_or(plain.into(), RowsOut::Fp8))
                };
                let normed = place(&up, &halves[0])?;
                candlepower_gpu::rms_norm(&x, &norm, &normed)?;
                matmul.run(normed.tensor(), &up, None, &gate_up)?;
                let activated = place(&down, &halves[1])?;
                candlepower_gpu::gated_activation(&gate_up, Activation::Silu, &activated)?;
                matmul.run(activated.tensor(), &down, None, out)
            };
            run(false, &outs[0]).unwrap();
            run(true, &outs[1]).unwrap();
            let what = format!("{rows} rows, {scales:?}");
            assert_same_bits(&outs[1], &to_vec(&outs[0]), &what);
            let graph = Graph::capture(gpu.device(), || run(true, &outs[1])).unwrap();
            for turn in 0..2 {
                let other = random.floats(rows * hidden, 1.0, dtype);
                x.slice_set(&gpu.floats(&other, &[rows, hidden], dtype), 0, 0).unwrap();
                graph.launch().unwrap();
                run(false, &outs[0]).unwrap();
                let what = format!("{what}, replayed {turn}");
                gpu.assert_equal(&bits(&outs[1]), &bits(&outs[0]), &what);
            }
        }
    }
}
