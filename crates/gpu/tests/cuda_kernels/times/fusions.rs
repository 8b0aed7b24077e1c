//! Fused kernels of decodes beside separate ones: `CANDLEPOWER_DECODE_FUSIONS` chooses among them in a server.

use candle_core::{DType, Tensor};
use candlepower_gpu::cuda::{self, Cublas, GemvBlocks, GemvForm};
use candlepower_gpu::{Fusions, NormWeight, NormedRows, RmsNorm};
use candlepower_kernels::{Activation, Result};

use super::{HIDDEN, MATRICES, Times};

const ACT: Activation = Activation::Silu;
/// Inputs of Qwen2.5-0.5B's matrices, and the outputs of qkv and of gate and up.
const NARROW: usize = 896;
const NARROW_MATRICES: [(&str, usize); 2] = [("qkv", 1152), ("gate_up", 2 * 4864)];

/// All of them.
pub(super) fn fusions(times: &Times<'_>) -> Result<()> {
    gates(times)?;
    waves(times)?;
    prefetches(times)?;
    norms(times)
}

/// Copies of a matrix that no cache can hold together.
fn matrices(times: &Times<'_>, n: usize, k: usize) -> Result<Vec<Tensor>> {
    (0..times.copies(2 * n * k)).map(|_| times.noise(&[n, k])).collect()
}

fn norm<'a>(weight: &'a Tensor, next: Option<&'a Tensor>) -> RmsNorm<'a> {
    RmsNorm { weight, form: NormWeight::Plain, eps: 1e-5, next }
}

/// The product of gate and up, and the activation.
fn gates(times: &Times<'_>) -> Result<()> {
    let (n, k) = (times.size(2 * 14336), times.size(HIDDEN));
    let weights = matrices(times, n, k)?;
    let cublas = || Cublas::new(times.gpu.device(), 128, DType::BF16, 0);
    for rows in [1, 2, 8, 64, 128] {
        let x = times.noise(&[rows, k])?;
        let (gate_up, out) = (times.zeros(&[rows, n])?, times.zeros(&[rows, n / 2])?);
        let work = (2 * (n * k + rows * k + rows * n / 2), 2 * rows * n * k);
        let w = |i: usize| &weights[i % weights.len()];
        let cublas = cublas()?.with_fusions(Fusions { gate: true, ..Fusions::OFF });
        let cublas = if rows > 2 { cublas.with_product_rows(3..=128) } else { cublas };
        times.row(&format!("gate_up, {rows} rows, then silu_mul"), work, |i| {
            cublas.matmul(&x, w(i), None, &gate_up)?;
            cuda::gated_activation(&gate_up, ACT, None, &out)
        })?;
        times.row(&format!("gate_up, {rows} rows, with silu_mul"), work, |i| {
            cublas.gated(&x, w(i), None, ACT, &out).map(drop)
        })?;
    }
    Ok(())
}

/// Blocks with one tile, and as many blocks as the GPU holds.
fn waves(times: &Times<'_>) -> Result<()> {
    for (name, n, k) in MATRICES {
        let (n, k) = (times.size(n), times.size(k));
        let weights = matrices(times, n, k)?;
        for rows in [1, 2] {
            let (x, out) = (times.noise(&[rows, k])?, times.zeros(&[rows, n])?);
            let work = (2 * (n * k + rows * (n + k)), 2 * rows * n * k);
            for blocks in [GemvBlocks::OfTiles, GemvBlocks::Resident] {
                let form = GemvForm { gate: None, blocks };
                times.row(&format!("{name}, {rows} rows, blocks {blocks:?}"), work, |i| {
                    cuda::gemv_as(&form, &x, &weights[i % weights.len()], None, &out)
                })?;
            }
        }
    }
    Ok(())
}

/// A product behind the addition to the residual and its norm, which requests the first weights of the product.
fn prefetches(times: &Times<'_>) -> Result<()> {
    let hidden = times.size(HIDDEN);
    let weight = times.noise(&[hidden])?;
    for (name, n, k) in MATRICES.into_iter().filter(|(.., k)| *k == HIDDEN) {
        let (n, k) = (times.size(n), times.size(k));
        let weights = matrices(times, n, k)?;
        let [x, residual, normed] = [(); 3].map(|()| times.noise(&[1, k]));
        let (x, residual, normed) = (x?, residual?, normed?);
        let out = times.zeros(&[1, n])?;
        let work = (2 * (n * k + 6 * k + n), 2 * n * k);
        for is_ahead in [false, true] {
            let what = if is_ahead { "with" } else { "without" };
            times.row(&format!("add_rms_norm {what} requests, then {name}"), work, |i| {
                let w = &weights[i % weights.len()];
                let norm = norm(&weight, is_ahead.then_some(w));
                cuda::add_rms_norm(&residual, &x, 1.0, &norm, &normed)?;
                cuda::gemv(&normed, w, None, &out)
            })?;
        }
    }
    Ok(())
}

/// The norm in the products of a small model.
fn norms(times: &Times<'_>) -> Result<()> {
    let k = times.size(NARROW).next_multiple_of(8);
    let weight = times.noise(&[k])?;
    for (name, n) in NARROW_MATRICES {
        let n = times.size(n);
        let weights = matrices(times, n, k)?;
        let [x, residual, sum, normed] = [(); 4].map(|()| times.noise(&[1, k]));
        let (x, residual, sum, normed) = (x?, residual?, sum?, normed?);
        let out = times.zeros(&[1, n])?;
        let work = (2 * (n * k + 6 * k + n), 2 * n * k);
        let norm = norm(&weight, None);
        times.row(&format!("add_rms_norm, then {name} [{n}, {k}]"), work, |i| {
            cuda::add_rms_norm(&residual, &x, 1.0, &norm, &normed)?;
            cuda::gemv(&normed, &weights[i % weights.len()], None, &out)
        })?;
        times.row(&format!("add_rms_norm in {name} [{n}, {k}]"), work, |i| {
            let rows = NormedRows { residual: &residual, x: &x, sum: &sum, scale: 1.0, norm };
            let w = &weights[i % weights.len()];
            cuda::normed_gemv(&GemvForm::default(), &rows, w, None, &out)
        })?;
    }
    Ok(())
}
