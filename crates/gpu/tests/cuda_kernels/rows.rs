//! Norms, activations, gathers and GEMV.

use candle_core::DType;
use candlepower_gpu::cuda;
use candlepower_gpu::{self as gpu, LayerNorm, NormWeight, RmsNorm};
use candlepower_kernels::{
    Activation, VocabPart, activation_reference, activation_times_reference,
    add_rms_norm_reference, embedding_reference, gated_activation_reference, gather_rows_reference,
    layer_norm_reference, linear_reference, rms_norm_reference,
};

use crate::gpu::{Gpu, HALVES, ROUNDED_ONCE, Random, Tolerance, rounded};

/// Rows and their lengths: odd numbers of rows, lengths with and without whole vectors.
const SHAPES: [(usize, usize); 7] =
    [(1, 896), (3, 4096), (7, 8192), (257, 128), (5, 100), (2, 33), (33, 64)];

pub(crate) fn rms_norm(gpu: &Gpu) {
    for_norms(|rows, dim, dtype, form, random| {
        let (x, weight) = (random.floats(rows * dim, 3.0, dtype), random.floats(dim, 1.0, dtype));
        let out = gpu.unwritten(&[rows, dim], dtype);
        let norm =
            RmsNorm { weight: &gpu.floats(&weight, &[dim], dtype), form, eps: 1e-5, next: None };
        cuda::rms_norm(&gpu.floats(&x, &[rows, dim], dtype), &norm, &out).unwrap();
        let want = rms_norm_reference(&x, &effective(&weight, form), 1e-5);
        gpu.assert_close(&out, &want, ROUNDED_ONCE, &format!("{rows} x {dim}, {form:?}"));
    });
}

pub(crate) fn add_rms_norm(gpu: &Gpu) {
    for_norms(|rows, dim, dtype, form, random| {
        let mut floats = |count| random.floats(count, 2.0, dtype);
        let (before, x, weight) = (floats(rows * dim), floats(rows * dim), floats(dim));
        let residual = gpu.floats(&before, &[rows, dim], dtype);
        let out = gpu.unwritten(&[rows, dim], dtype);
        let norm =
            RmsNorm { weight: &gpu.floats(&weight, &[dim], dtype), form, eps: 1e-6, next: None };
        let added = gpu.floats(&x, &[rows, dim], dtype);
        // With and without a factor.
        let scale = if form == NormWeight::Plain { 1.0 } else { 0.37 };
        cuda::add_rms_norm(&residual, &added, scale, &norm, &out).unwrap();
        let what = format!("{rows} x {dim}, {form:?}, times {scale}");
        let (sum, _) = add_rms_norm_reference(&before, &x, scale, &weight, 1e-6);
        gpu.assert_close(&residual, &sum, ROUNDED_ONCE, &format!("{what}: sum"));
        // The norm is taken of the sum as stored.
        let want = rms_norm_reference(&rounded(&sum, dtype), &effective(&weight, form), 1e-6);
        gpu.assert_close(&out, &want, ROUNDED_ONCE, &what);
    });
}

fn for_norms(mut compare: impl FnMut(usize, usize, DType, NormWeight, &mut Random)) {
    let mut random = Random(1);
    for (rows, dim) in SHAPES {
        for dtype in HALVES {
            for form in [NormWeight::Plain, NormWeight::OnePlus] {
                compare(rows, dim, dtype, form, &mut random);
            }
        }
    }
}

/// Rows far from zero, whose mean must not cancel their differences; and in place, as in models with post-norms.
pub(crate) fn layer_norm(gpu: &Gpu) {
    let mut random = Random(6);
    for (rows, dim) in SHAPES {
        for dtype in HALVES {
            for with_bias in [false, true] {
                let x = random.floats(rows * dim, 3.0, dtype);
                let x = rounded(&x.iter().map(|x| x + 8.0).collect::<Vec<_>>(), dtype);
                let weight = random.floats(dim, 1.0, dtype);
                let bias = with_bias.then(|| random.floats(dim, 1.0, dtype));
                let on_gpu = gpu.floats(&x, &[rows, dim], dtype);
                let on_bias = bias.as_ref().map(|bias| gpu.floats(bias, &[dim], dtype));
                let norm = LayerNorm {
                    weight: &gpu.floats(&weight, &[dim], dtype),
                    bias: on_bias.as_ref(),
                    eps: 1e-5,
                };
                let out = gpu.unwritten(&[rows, dim], dtype);
                cuda::layer_norm(&on_gpu, &norm, &out).unwrap();
                cuda::layer_norm(&on_gpu, &norm, &on_gpu).unwrap();
                let want = layer_norm_reference(&x, &weight, bias.as_deref(), 1e-5);
                let what = format!("{rows} x {dim}, bias {with_bias}");
                gpu.assert_close(&out, &want, ROUNDED_ONCE, &what);
                gpu.assert_close(&on_gpu, &want, ROUNDED_ONCE, &format!("{what}, in place"));
            }
        }
    }
}

/// The factor that a weight represents.
pub(crate) fn effective(weight: &[f32], form: NormWeight) -> Vec<f32> {
    let offset = if form == NormWeight::OnePlus { 1.0 } else { 0.0 };
    weight.iter().map(|weight| weight + offset).collect()
}

pub(crate) fn gated_activation(gpu: &Gpu) {
    let mut random = Random(2);
    for (tokens, inner) in [(1, 4864), (3, 14336), (129, 256), (5, 33), (2, 1)] {
        for dtype in HALVES {
            for act in Activation::ALL {
                let gate_up = random.floats(tokens * 2 * inner, 6.0, dtype);
                let out = gpu.unwritten(&[tokens, inner], dtype);
                let input = gpu.floats(&gate_up, &[tokens, 2 * inner], dtype);
                cuda::gated_activation(&input, act, None, &out).unwrap();
                let want: Vec<f32> = gate_up
                    .chunks(2 * inner)
                    .flat_map(|row| gated_activation_reference(row, act))
                    .collect();
                gpu.assert_close(
                    &out,
                    &want,
                    ROUNDED_ONCE,
                    &format!("{tokens} x {inner}, {act:?}"),
                );
            }
        }
    }
}

pub(crate) fn activation(gpu: &Gpu) {
    let mut random = Random(7);
    for (tokens, inner) in [(1, 12288), (129, 256), (5, 33), (2, 1)] {
        for dtype in HALVES {
            for act in Activation::ALL {
                let x = random.floats(tokens * inner, 6.0, dtype);
                let out = gpu.unwritten(&[tokens, inner], dtype);
                cuda::activation(&gpu.floats(&x, &[tokens, inner], dtype), act, &out).unwrap();
                let want: Vec<f32> = x.iter().map(|x| activation_reference(*x, act)).collect();
                let what = format!("{tokens} x {inner}, {act:?}");
                gpu.assert_close(&out, &want, ROUNDED_ONCE, &what);
            }
        }
    }
}

/// Factors from columns of wider rows, aligned and unaligned; and in place.
pub(crate) fn activation_times(gpu: &Gpu) {
    let mut random = Random(8);
    for (tokens, inner, width, first) in [
        (1, 256, 256 * 35, 256 * 34),
        (129, 64, 192, 64),
        (5, 64, 192, 3),
        (7, 33, 70, 37),
        (300, 40, 44, 0),
        (40, 3, 3, 0),
    ] {
        for dtype in HALVES {
            for act in Activation::ALL {
                let x = random.floats(tokens * inner, 6.0, dtype);
                let by = random.floats(tokens * width, 6.0, dtype);
                let on_gpu = gpu.floats(&x, &[tokens, inner], dtype);
                let factors = gpu.floats(&by, &[tokens, width], dtype);
                let out = gpu.unwritten(&[tokens, inner], dtype);
                gpu::activation_times(&on_gpu, act, &factors, first, &out).unwrap();
                gpu::activation_times(&on_gpu, act, &factors, first, &on_gpu).unwrap();
                let rows = x.chunks(inner).zip(by.chunks(width));
                let want: Vec<f32> = rows
                    .flat_map(|(x, by)| activation_times_reference(x, &by[first..][..inner], act))
                    .collect();
                let what = format!("{tokens} x {inner} of {width} from {first}, {act:?}");
                gpu.assert_close(&out, &want, ROUNDED_ONCE, &what);
                gpu.assert_close(&on_gpu, &want, ROUNDED_ONCE, &format!("{what}, in place"));
            }
        }
    }
}

pub(crate) fn embedding(gpu: &Gpu) {
    let mut random = Random(3);
    for (tokens, vocab, hidden) in [(1, 50, 896), (7, 1000, 64), (300, 20, 33)] {
        for dtype in HALVES {
            for scale in [1.0, 45.25] {
                let table = random.floats(vocab * hidden, 1.0, dtype);
                let ids: Vec<u32> = (0..tokens).map(|_| random.below(vocab) as u32).collect();
                let out = gpu.unwritten(&[tokens, hidden], dtype);
                let on_gpu = gpu.floats(&table, &[vocab, hidden], dtype);
                let ids_on_gpu = gpu.integers(&ids, &[tokens]);
                let whole = VocabPart { first: 0, vocab_size: vocab };
                cuda::embedding(&ids_on_gpu, &on_gpu, scale, whole, &out).unwrap();
                let mut want = embedding_reference(&ids, &table, hidden, scale);
                gpu.assert_close(&out, &want, ROUNDED_ONCE, &format!("{tokens} of {vocab}"));
                // The second half of the vocabulary, as a shard.
                let part = VocabPart { first: vocab / 2, vocab_size: vocab };
                let half =
                    gpu.floats(&table[vocab / 2 * hidden..], &[vocab - vocab / 2, hidden], dtype);
                cuda::embedding(&ids_on_gpu, &half, scale, part, &out).unwrap();
                let others = ids.iter().zip(want.chunks_mut(hidden));
                others
                    .filter(|(id, _)| (**id as usize) < vocab / 2)
                    .for_each(|(_, row)| row.fill(0.0));
                gpu.assert_close(&out, &want, ROUNDED_ONCE, &format!("{tokens} of half {vocab}"));
            }
        }
    }
    let out = gpu.unwritten(&[1, 8], DType::BF16);
    let table = gpu.floats(&[1.0; 16], &[2, 8], DType::BF16);
    let whole = VocabPart { first: 0, vocab_size: 2 };
    cuda::embedding(&gpu.integers(&[2], &[1]), &table, 1.0, whole, &out).unwrap();
    assert!(crate::gpu::to_vec(&out).iter().all(|value| value.is_nan()), "an unknown id");
}

pub(crate) fn gather_rows(gpu: &Gpu) {
    let mut random = Random(4);
    for (count, tokens, dim) in [(1, 9, 4096), (5, 5, 40), (64, 513, 128)] {
        for dtype in HALVES {
            let x = random.floats(tokens * dim, 1.0, dtype);
            let rows: Vec<u32> = (0..count).map(|_| random.below(tokens) as u32).collect();
            let out = gpu.unwritten(&[count, dim], dtype);
            let on_gpu = gpu.floats(&x, &[tokens, dim], dtype);
            cuda::gather_rows(&on_gpu, &gpu.integers(&rows, &[count]), &out).unwrap();
            let exact = Tolerance { own: 0.0, largest: 0.0 };
            gpu.assert_close(&out, &gather_rows_reference(&x, dim, &rows), exact, "rows");
        }
    }
}

pub(crate) fn gemv(gpu: &Gpu) {
    let mut random = Random(5);
    for (n, k) in [(1, 8), (7, 264), (128, 896), (896, 4864), (6144, 4096), (5, 16384)] {
        for dtype in HALVES {
            for rows in 1..=cuda::GEMV_MAX_ROWS {
                let x = random.floats(rows * k, 1.0, dtype);
                let w = random.floats(n * k, 1.0, dtype);
                let bias = random.floats(n, 1.0, dtype);
                let bias = (rows % 2 == 0).then_some(bias);
                let out = gpu.unwritten(&[rows, n], dtype);
                let (x_gpu, w_gpu) =
                    (gpu.floats(&x, &[rows, k], dtype), gpu.floats(&w, &[n, k], dtype));
                let bias_gpu = bias.as_ref().map(|bias| gpu.floats(bias, &[n], dtype));
                cuda::gemv(&x_gpu, &w_gpu, bias_gpu.as_ref(), &out).unwrap();
                let want: Vec<f32> = x
                    .chunks(k)
                    .flat_map(|x| w.chunks(k).enumerate().map(move |(column, w)| (x, column, w)))
                    .map(|(x, column, w)| {
                        linear_reference(x, w, bias.as_ref().map(|bias| bias[column]))
                    })
                    .collect();
                // Sums in f32 in another order: the difference is far below a step of the result's largest value.
                let tolerance = Tolerance { own: 0.6, largest: 0.01 };
                gpu.assert_close(&out, &want, tolerance, &format!("{rows} x {k} x {n}"));
            }
        }
    }
}
