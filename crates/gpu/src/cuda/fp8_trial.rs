//! A trial of products in FP8 by cuBLASLt, before a model relies on them.

use std::sync::OnceLock;

use candle_core::{DType, Device, Tensor};
use candlepower_kernels::{Fp8Rounding, Result};
use candlepower_layout::ActivationScales;
use float8::F8E4M3;

use super::cublas_lt::CublasLt;
use super::fp8::{product, quantize_activations};
use super::launch::driver;
use super::matmul::WORKSPACE_BYTES;
use crate::operands::{FP8_BLOCK, Fp8Matrix, Fp8Product, Fp8Rows, block_stride};

const ROWS: usize = 40;
const OUTPUTS: usize = 2 * FP8_BLOCK;
const INPUTS: usize = 3 * FP8_BLOCK;
const SCALE: f32 = 0.02;

/// Largest difference, as a part of the largest result. Both sides are rounded to bf16.
const TOLERANCE: f32 = 0.02;

/// Why products in FP8 with these scales are of no use on `device`: cuBLASLt refuses one, or its result differs from that of
/// the kernel in fp8_product.cu. `None` if it is right. Each kind of product is tried once in a process.
pub fn fp8_fault(device: &Device, product: Fp8Product) -> Option<String> {
    static FAULTS: [OnceLock<Option<String>>; 3] = [const { OnceLock::new() }; 3];
    let fault = FAULTS[product as usize].get_or_init(|| match difference(device, product) {
        Ok(difference) if difference <= TOLERANCE => None,
        Ok(difference) => Some(format!("a trial of cuBLASLt differs by {difference:.3}")),
        Err(error) => Some(format!("a trial of cuBLASLt failed: {error}")),
    });
    fault.clone()
}

/// The largest difference between cuBLASLt's product and that of the kernel, as a part of the largest result.
fn difference(device: &Device, kind: Fp8Product) -> Result<f32> {
    let w = matrix(device, kind)?;
    let x: Vec<f32> = (0..ROWS * INPUTS).map(|at| value(at) * (1 + at / INPUTS) as f32).collect();
    let x = Tensor::from_vec(x, (ROWS, INPUTS), &Device::Cpu)?;
    let x = x.to_dtype(DType::BF16)?.to_device(device)?;
    let in_fp8 = Fp8Rows {
        codes: Tensor::zeros((ROWS, INPUTS), DType::F8E4M3, device)?,
        scales: Tensor::zeros((INPUTS / w.group(), ROWS), DType::F32, device)?,
        rounding: w.activations,
    };
    quantize_activations(&x, &in_fp8)?;
    let stream = device.as_cuda_device()?.cuda_stream();
    let workspace = stream.alloc_zeros::<u8>(WORKSPACE_BYTES);
    let workspace = workspace.map_err(|error| driver("fp8 trial", error))?;
    let lt = CublasLt::default();
    let result = |lt| -> Result<Vec<f32>> {
        let out = Tensor::zeros((ROWS, OUTPUTS), DType::BF16, device)?;
        product(&in_fp8, &w, None, &out, lt, || Ok(0.0))?;
        Ok(out.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
    };
    let (found, expected) = (result(Some((&lt, &workspace)))?, result(None)?);
    let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    let pairs = found.iter().zip(&expected);
    // NaN is no small difference.
    Ok(pairs
        .map(|(found, expected)| (found - expected).abs() / largest)
        .fold(0.0, |most, one| if one > most || one.is_nan() { one } else { most }))
}

/// A matrix whose scales differ as far as the kind allows, so that a wrong order of them shows.
fn matrix(device: &Device, kind: Fp8Product) -> Result<Fp8Matrix> {
    let codes: Vec<F8E4M3> =
        (0..OUTPUTS * INPUTS).map(|at| F8E4M3::from_f32(value(at + 7))).collect();
    let (scales, count) = match kind {
        Fp8Product::Tensor => (ActivationScales::Fixed, 1),
        Fp8Product::Rows => (ActivationScales::Row, OUTPUTS),
        Fp8Product::Blocks => {
            (ActivationScales::Group(FP8_BLOCK), OUTPUTS / FP8_BLOCK * block_stride(INPUTS))
        }
    };
    let of_weights: Vec<f32> = (0..count).map(|at| SCALE * (1 + at % 5) as f32).collect();
    Ok(Fp8Matrix {
        n: OUTPUTS,
        k: INPUTS,
        codes: Tensor::from_vec(codes, (OUTPUTS, INPUTS), device)?,
        scales: Tensor::from_vec(of_weights, count, device)?,
        product: kind,
        activations: Fp8Rounding { scales, fixed: SCALE },
        fixed: match kind {
            Fp8Product::Tensor => Some(Tensor::new(&[SCALE], device)?),
            Fp8Product::Rows | Fp8Product::Blocks => None,
        },
    })
}

/// Values of both signs that repeat after 31.
fn value(at: usize) -> f32 {
    (at * 11 % 31) as f32 * 0.125 - 1.5
}
