//! Products of weights and activations in FP8, and what writes their activations: norms and activations that round their rows
//! themselves, beside those that leave it to a kernel of its own.

use candle_core::{DType, Tensor};
use candlepower_gpu::cuda::{self, has_fp8_matmul};
use candlepower_gpu::{Fp8Matrix, Fp8Rows, Matmul, Matrix, NormWeight, RmsNorm};
use candlepower_kernels::{
    Activation, Error, Fp8Rounding, OffsetForm, Offsets, QuantFormat, QuantizedRows, Result,
    ScaleForm, Weight,
};
use candlepower_layout::ActivationScales;

use super::{HIDDEN, MATRICES, Times};
use crate::gpu::Random;

/// Numbers of rows: of decodes, on both sides of the switch to cuBLASLt, and of prompts.
const ROWS: [usize; 7] = [1, 8, 9, 64, 256, 2048, 8192];

/// Products with a scale for each row and each output, and the kernels before them.
pub(super) fn fp8(times: &Times<'_>) -> Result<()> {
    before_products(times)?;
    if !has_fp8_matmul() {
        println!("cuBLASLt has no scales of rows here: products in FP8 are not measured");
        return Ok(());
    }
    for (name, n, k) in MATRICES {
        let (n, k) = (times.size(n), times.size(k));
        let weight = weight(n, k)?;
        let matrices = (0..times.copies(n * k).min(16)).map(|_| {
            let made = Fp8Matrix::new(&weight, (9, 0), times.gpu.device())?;
            let missing = Error::QuantizedRows("no form for products in FP8");
            Ok(Matrix::Fp8(made.ok_or(missing)?))
        });
        let matrices = matrices.collect::<Result<Vec<_>>>()?;
        let matmul = Matmul::new(times.gpu.device(), ROWS[6], DType::BF16, 0, k)?;
        // An emulated GPU would take minutes for prompts.
        for rows in ROWS.into_iter().filter(|rows| !times.small || *rows <= 64) {
            let (x, out) = (times.noise(&[rows, k])?, times.zeros(&[rows, n])?);
            let w = |i: usize| &matrices[i % matrices.len()];
            let work = (n * k + rows * (k + 2 * n), 2 * rows * n * k);
            // Leaves rows in FP8, which the launches after it multiply.
            matmul.run(&x, w(0), None, &out)?;
            let codes = matmul.fp8_rows(w(0), rows)?.map(|rows| rows.codes);
            let codes: Tensor = codes.unwrap_or(x);
            let what = format!("{name} [{n}, {k}] FP8, {rows} rows");
            times.row(&what, work, |i| matmul.run(&codes, w(i), None, &out))?;
        }
    }
    Ok(())
}

/// An FP8 weight without NaN.
fn weight(n: usize, k: usize) -> Result<Weight> {
    let mut random = Random(8);
    let block: Vec<u8> = (0..1 << 16).map(|_| random.next() as u8 & 0xf7).collect();
    let bytes: Vec<u8> = block.iter().copied().cycle().take(n * k).collect();
    let form = ScaleForm { offsets: OffsetForm::None, ..ScaleForm::F32 };
    let builder = Weight::quantized_builder(n, k, QuantFormat::E4m3, k, form)?;
    let mut builder = builder.with_activations(Some(ActivationScales::Row));
    let rows = QuantizedRows {
        format: QuantFormat::E4m3,
        group: k,
        bytes: &bytes,
        scales: &vec![0.01; n],
        offsets: Offsets::None,
        sub_scales: None,
        inputs: None,
    };
    builder.write_quantized(0, rows)?;
    builder.finish()
}

/// Rounding alone, and as a part of the norm or of the activation before it.
fn before_products(times: &Times<'_>) -> Result<()> {
    let (hidden, inner) = (times.size(HIDDEN), times.size(14336));
    let weight = times.noise(&[hidden])?;
    let norm = RmsNorm { weight: &weight, form: NormWeight::Plain, eps: 1e-5, next: None };
    let device = times.gpu.device();
    for rows in [1, 64, 256, 8192].map(|rows| times.size(rows)) {
        let in_fp8 = |width: usize| -> Result<Fp8Rows> {
            Ok(Fp8Rows {
                codes: Tensor::zeros((rows, width), DType::F8E4M3, device)?,
                scales: Tensor::zeros((1, rows), DType::F32, device)?,
                rounding: Fp8Rounding { scales: ActivationScales::Row, fixed: 0.0 },
            })
        };
        for (name, width) in [("hidden", hidden), ("inner", inner)] {
            let (x, out) = (times.noise(&[rows, width])?, in_fp8(width)?);
            let what = format!("round {name} [{rows}, {width}]");
            times.row(&what, (rows * width * 3, 0), |_| cuda::quantize_activations(&x, &out))?;
        }
        let [x, residual] = [(); 2].map(|()| times.noise(&[rows, hidden]));
        let (x, residual, out) = (x?, residual?, in_fp8(hidden)?);
        // Two rows are read, one is written in 16 bits, and one in eight.
        let what = format!("add_rms_norm in FP8 [{rows}, {hidden}]");
        times.row(&what, (rows * hidden * 7, 0), |_| {
            cuda::add_rms_norm(&residual, &x, 1.0, &norm, &out)
        })?;
        let (gate_up, out) = (times.noise(&[rows, 2 * inner])?, in_fp8(inner)?);
        let what = format!("silu_mul in FP8 [{rows}, {inner}]");
        times.row(&what, (rows * inner * 5, 0), |_| {
            cuda::gated_activation(&gate_up, Activation::Silu, None, &out)
        })?;
    }
    Ok(())
}
