//! MoE layers: routing, products with few and many rows of each expert, and the weighted sum.

use candle_core::{DType, Tensor};
use candlepower_gpu::cuda;
use candlepower_gpu::{self as gpu, ExpertMatrices, Matrix, Routing};
use candlepower_kernels::{ExpertGroups, Gating, GatingFunction, GroupScore, linear_reference};

use crate::gpu::{Gpu, HALVES, Random, Tolerance, to_vec};
use crate::packed;

/// Tokens, experts, and experts per token. There are unused experts, a single row in the last tile, and all tile sizes.
const STEPS: [(usize, usize, usize); 10] = [
    (1, 8, 2),
    (3, 128, 8),
    (64, 128, 8),
    (33, 5, 5),
    (17, 1, 1),
    (129, 4, 2),
    (700, 60, 6),
    (517, 2, 1),
    (391, 3, 1),
    (90, 2, 1),
];

/// The tables on the GPU, and those of the reference implementation for the same scores.
fn routed(
    gpu: &Gpu,
    step: (usize, usize, usize),
    dtype: DType,
    random: &mut Random,
) -> [Routing; 2] {
    let (tokens, experts, top_k) = step;
    let scores = random.floats(tokens * experts, 6.0, dtype);
    let on_gpu = gpu.floats(&scores, &[tokens, experts], dtype);
    let on_cpu = on_gpu.to_device(&candle_core::Device::Cpu).unwrap();
    // Both gating functions, with and without a bias, and with some ranks below zero.
    let bias = random.floats(experts, 1.0, DType::F32);
    let bias = gpu.floats(&bias, &[experts], DType::F32);
    let scales = random.floats(experts, 2.0, DType::F32);
    let scales = gpu.floats(&scales, &[experts], DType::F32);
    let function = match tokens % 4 {
        0 | 3 => GatingFunction::Sigmoid,
        _ => GatingFunction::Softmax,
    };
    [on_gpu, on_cpu].map(|scores| {
        let gating = Gating {
            function,
            bias: (dtype == DType::F16).then(|| bias.to_device(scores.device()).unwrap()),
            renormalize: tokens % 2 == 0,
            scale: 1.0 + experts as f32 / 64.0,
            scales: (tokens % 3 == 0).then(|| scales.to_device(scores.device()).unwrap()),
            groups: groups(step, dtype),
        };
        let routing = Routing::new(tokens + 5, experts, top_k, scores.device()).unwrap();
        let routing = routing.of(tokens).unwrap();
        gpu::route(&scores, &gating, &routing).unwrap();
        routing
    })
}

/// Groups of experts, including groups of one, or none.
fn groups(step: (usize, usize, usize), dtype: DType) -> Option<ExpertGroups> {
    let (count, chosen, score) = match (step, dtype) {
        ((1, 8, 2), _) => (4, 2, GroupScore::Best),
        ((3, 128, 8), DType::F16) => (8, 4, GroupScore::BestTwo),
        ((64, 128, 8), _) => (8, 1, GroupScore::BestTwo),
        ((129, 4, 2), DType::BF16) => (4, 2, GroupScore::BestTwo),
        ((700, 60, 6), DType::BF16) => (20, 3, GroupScore::BestTwo),
        ((700, 60, 6), _) => (30, 3, GroupScore::Best),
        _ => return None,
    };
    Some(ExpertGroups { count, chosen, score })
}

pub(crate) fn route(gpu: &Gpu) {
    let mut random = Random(71);
    for step in STEPS {
        for dtype in HALVES {
            let what = format!("{step:?}, {dtype:?}");
            let [found, want] = routed(gpu, step, dtype, &mut random);
            let integers = |routing: &Routing| {
                let Routing { chosen, sorted, starts, tiles, .. } = routing;
                [chosen, sorted, starts, tiles].map(|table| table.to_vec1::<u32>().unwrap())
            };
            for (found, want) in integers(&found).iter().zip(&integers(&want)) {
                gpu.assert_equal(found, want, &what);
            }
            let tolerance = Tolerance { own: 8.0, largest: 0.0 };
            gpu.assert_close(&found.shares, &to_vec(&want.shares), tolerance, &what);
        }
    }
}

pub(crate) fn expert_product(gpu: &Gpu) {
    let mut random = Random(72);
    for step in STEPS {
        let experts = step.1;
        // Whole tiles, parts of tiles, and rows that are not whole chunks.
        for (n, k) in [(128, 64), (200, 328), (33, 13), (1536, 512)] {
            if experts * n * k > 1 << 24 {
                continue;
            }
            for dtype in HALVES {
                let weights: Vec<Vec<f32>> =
                    (0..experts).map(|_| random.floats(n * k, 1.0, dtype)).collect();
                let matrices = weights.iter().map(|w| Matrix::Rows(gpu.floats(w, &[n, k], dtype)));
                let matrices = ExpertMatrices::new(matrices.collect()).unwrap();
                // Sums in f32 in another order: the difference is far below a step of the result's largest value.
                let tolerance = Tolerance { own: 0.6, largest: 0.01 };
                compare_products(gpu, step, (n, k, dtype), &matrices, &weights, tolerance);
            }
        }
    }
}

/// A row of unquantized weights has the same bits in tiles of 16, 64 and 128 rows, and whatever other rows its tile has.
pub(crate) fn expert_rows_alone(gpu: &Gpu) {
    let mut random = Random(77);
    // With 256 outputs a block and with 128, outputs beyond the last block, and incomplete stages and chunks.
    for (n, k) in [(328, 200), (100, 64), (130, 72), (40, 33)] {
        for dtype in HALVES {
            let (tokens, experts) = (300, 2);
            let matrix = |random: &mut Random| {
                Matrix::Rows(gpu.floats(&random.floats(n * k, 1.0, dtype), &[n, k], dtype))
            };
            let matrices = (0..experts).map(|_| matrix(&mut random)).collect();
            let matrices = ExpertMatrices::new(matrices).unwrap();
            let scores = random.floats(tokens * experts, 6.0, dtype);
            let x = random.floats(tokens * k, 1.0, dtype);
            let product = |tokens: usize| {
                let scores = gpu.floats(&scores[..tokens * experts], &[tokens, experts], dtype);
                let routing = Routing::new(tokens, experts, 1, gpu.device()).unwrap();
                gpu::route(&scores, &Gating::SOFTMAX, &routing).unwrap();
                let x = gpu.floats(&x[..tokens * k], &[tokens, k], dtype);
                let out = gpu.unwritten(&[tokens, n], dtype);
                cuda::expert_product(&x, &matrices, None, &routing, &out).unwrap();
                out
            };
            let bits = |out: &Tensor| to_vec(out).into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let all = bits(&product(tokens));
            for alone in [1, 7, 39, 40, 150, 191, 192, 299] {
                let what = format!("{alone} of {tokens} rows, {k} x {n}, {dtype:?}");
                gpu.assert_equal(&bits(&product(alone)), &all[..alone * n], &what);
            }
        }
    }
}

pub(crate) fn packed_expert_product(gpu: &Gpu) {
    let mut random = Random(74);
    for step in STEPS {
        let (tokens, experts, top_k) = step;
        for (n, k) in [(128, 64), (33, 96), (200, 328)] {
            if experts * n * k > 1 << 21 {
                continue;
            }
            for cases in packed::experts(gpu, experts, (n, k), &mut random) {
                for dtype in HALVES {
                    let matrices = cases.iter().map(|case| Matrix::Packed(case.packed.clone()));
                    let matrices = ExpertMatrices::new(matrices.collect()).unwrap();
                    // From 20 rows an expert on, kernels round dequantized weights before they multiply.
                    let is_dequantized = tokens * top_k >= 20 * experts;
                    let weights: Vec<Vec<f32>> =
                        cases.iter().map(|case| case.multiplied(dtype, is_dequantized)).collect();
                    // The same tolerance as for a single quantized matrix.
                    let tolerance = Tolerance { own: 0.6, largest: 0.1 };
                    compare_products(gpu, step, (n, k, dtype), &matrices, &weights, tolerance);
                }
            }
        }
    }
    let of_kind = |kind: usize, n| {
        let case = packed::experts(gpu, 1, (n, 32), &mut Random(75)).swap_remove(kind).remove(0);
        Matrix::Packed(case.packed)
    };
    let numbers = Matrix::Rows(gpu.floats(&[0.0; 16 * 32], &[16, 32], DType::BF16));
    for other in [of_kind(0, 17), of_kind(1, 16), numbers] {
        let error = ExpertMatrices::new(vec![of_kind(0, 16), other]).unwrap_err().to_string();
        assert!(error.contains("the matrix of an expert"), "{error}");
    }
}

/// Compares products in which the pairs of a token share a row of x, and in which each pair has its own.
fn compare_products(
    gpu: &Gpu,
    step: (usize, usize, usize),
    (n, k, dtype): (usize, usize, DType),
    matrices: &ExpertMatrices,
    weights: &[Vec<f32>],
    tolerance: Tolerance,
) {
    let mut random = Random(76);
    let [routing, reference] = routed(gpu, step, dtype, &mut random);
    let chosen = reference.chosen.to_vec1::<u32>().unwrap();
    let pairs = routing.pairs();
    for rows in [step.0, pairs] {
        let x = random.floats(rows * k, 1.0, dtype);
        let out = gpu.unwritten(&[pairs, n], dtype);
        let on_gpu = gpu.floats(&x, &[rows, k], dtype);
        // With biases and without.
        let biases = (n % 2 == 0).then(|| random.floats(step.1 * n, 1.0, dtype));
        let bias = biases.as_ref().map(|biases| gpu.floats(biases, &[step.1, n], dtype));
        cuda::expert_product(&on_gpu, matrices, bias.as_ref(), &routing, &out).unwrap();
        let of_pair = |pair: usize| &x[pair / (pairs / rows) * k..][..k];
        let want: Vec<f32> = (0..pairs)
            .map(|pair| (of_pair(pair), chosen[pair] as usize))
            .flat_map(|(x, expert)| {
                let biases = biases.as_deref();
                let bias = move |output| biases.map(|all| all[expert * n + output]);
                let rows = weights[expert].chunks(k).enumerate();
                rows.map(move |(output, w)| linear_reference(x, w, bias(output)))
            })
            .collect();
        gpu.assert_close(&out, &want, tolerance, &format!("{step:?}, {rows} rows, {k} x {n}"));
    }
}

pub(crate) fn combine_experts(gpu: &Gpu) {
    let mut random = Random(73);
    for step in STEPS {
        for hidden in [64, 2048, 33] {
            for dtype in HALVES {
                let [routing, reference] = routed(gpu, step, dtype, &mut random);
                let pairs = routing.pairs();
                let results = random.floats(pairs * hidden, 1.0, dtype);
                let results = gpu.floats(&results, &[pairs, hidden], dtype);
                let cpu = &candle_core::Device::Cpu;
                // Without `add`, the output must not be read.
                let add = hidden != 64;
                let (out, want) = if add {
                    let before = random.floats(step.0 * hidden, 1.0, dtype);
                    let out = gpu.floats(&before, &[step.0, hidden], dtype);
                    let want = out.to_device(cpu).unwrap();
                    (out, want)
                } else {
                    let want = Tensor::zeros((step.0, hidden), dtype, cpu).unwrap();
                    (gpu.unwritten(&[step.0, hidden], dtype), want)
                };
                cuda::combine_experts(&results, &routing, add, &out).unwrap();
                let results = results.to_device(cpu).unwrap();
                gpu::combine_experts(&results, &reference, add, &want).unwrap();
                // Both results are rounded once, from sums that differ little.
                let tolerance = Tolerance { own: 1.1, largest: 0.001 };
                gpu.assert_close(&out, &to_vec(&want), tolerance, &format!("{step:?}, {hidden}"));
            }
        }
    }
}
