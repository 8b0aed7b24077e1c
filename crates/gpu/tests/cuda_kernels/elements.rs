//! Matrix products, element-wise operations, and transfers between host and device.

use candle_core::DType;
use candlepower_gpu::cuda::{Cublas, Nccl};
use candlepower_gpu::{self as gpu, Graph, Readback, Staging, Uploads};
use candlepower_kernels::linear_reference;

use crate::gpu::{BIASED_BY_CUBLAS, Gpu, HALVES, ROUNDED_ONCE, Random, Tolerance, rounded};

pub(crate) fn matmul(gpu: &Gpu) {
    let mut random = Random(31);
    let cublas = Cublas::new(gpu.device(), 300, DType::BF16, 0).unwrap();
    for (rows, k, n) in [(1, 64, 7), (5, 896, 128), (33, 96, 64), (300, 264, 31), (16, 4096, 512)] {
        for dtype in HALVES {
            for with_bias in [false, true] {
                let x = random.floats(rows * k, 1.0, dtype);
                let w = random.floats(n * k, 1.0, dtype);
                let bias = with_bias.then(|| random.floats(n, 3.0, dtype));
                let (on_x, on_w) =
                    (gpu.floats(&x, &[rows, k], dtype), gpu.floats(&w, &[n, k], dtype));
                let on_bias = bias.as_ref().map(|bias| gpu.floats(bias, &[n], dtype));
                let want: Vec<f32> = x
                    .chunks(k)
                    .flat_map(|x| w.chunks(k).enumerate().map(move |(column, w)| (x, w, column)))
                    .map(|(x, w, column)| {
                        linear_reference(x, w, bias.as_ref().map(|bias| bias[column]))
                    })
                    .collect();
                // Sums in f32 in another order: the difference is far below a step of the result's largest value.
                let tolerance = Tolerance { own: 0.6, largest: 0.02 };
                let what = format!("{rows} x {k} x {n}, bias {with_bias}");
                let out = gpu.unwritten(&[rows, n], dtype);
                cublas.matmul(&on_x, &on_w, on_bias.as_ref(), &out).unwrap();
                let by_cublas = if with_bias { BIASED_BY_CUBLAS } else { tolerance };
                // A single row is computed by GEMV, which adds the bias before it rounds.
                let few_rows = if rows == 1 { tolerance } else { by_cublas };
                gpu.assert_close(&out, &want, few_rows, &what);
                let out = gpu.unwritten(&[rows, n], dtype);
                cublas.gemm(&on_x, &on_w, on_bias.as_ref(), &out).unwrap();
                gpu.assert_close(&out, &want, by_cublas, &format!("{what}, cuBLAS"));
            }
        }
    }
}

pub(crate) fn add(gpu: &Gpu) {
    let mut random = Random(35);
    for count in [1, 33, 4096, 70_000, 20_000_000] {
        for dtype in HALVES {
            let (before, x) = (random.floats(count, 2.0, dtype), random.floats(count, 2.0, dtype));
            let x_on_gpu = gpu.floats(&x, &[count], dtype);
            let scales: &[f32] = if count == 20_000_000 { &[1.0] } else { &[1.0, 0.37] };
            for &scale in scales {
                let residual = gpu.floats(&before, &[count], dtype);
                gpu::add(&residual, &x_on_gpu, scale).unwrap();
                let want: Vec<f32> = before.iter().zip(&x).map(|(a, b)| (a + b) * scale).collect();
                let what = format!("{count} sums times {scale}");
                gpu.assert_close(&residual, &want, ROUNDED_ONCE, &what);
            }
        }
    }
}

pub(crate) fn scale_and_cap(gpu: &Gpu) {
    let mut random = Random(32);
    let cases = [
        (1, 1.0f32, Some(30.0f32)),
        (1000, 0.0625, None),
        (1000, 0.3, Some(5.0)),
        (70_000, 1.0, Some(0.7)),
    ];
    for (count, scale, cap) in cases {
        for dtype in HALVES {
            let values = random.floats(count, 40.0, dtype);
            let x = gpu.floats(&values, &[count], dtype);
            gpu::scale_and_cap(&x, scale, cap).unwrap();
            let capped = |value: f32| cap.map_or(value, |cap| cap * (value / cap).tanh());
            let want: Vec<f32> = values.iter().map(|value| capped(scale * value)).collect();
            let tolerance = Tolerance { own: 0.6, largest: 0.001 };
            gpu.assert_close(
                &x,
                &want,
                tolerance,
                &format!("{count} times {scale}, capped at {cap:?}"),
            );
        }
    }
}

pub(crate) fn resolve_tokens(gpu: &Gpu) {
    let mut random = Random(33);
    // A token has 31 bits, since the highest one marks an index.
    let sampled: Vec<u32> = (0..50).map(|_| random.next() as u32 >> 1).collect();
    let tokens: Vec<u32> =
        // Some indices are beyond the samples.
        (0..1000).map(|_| (random.below(2) as u32) << 31 | random.below(60) as u32).collect();
    let want: Vec<u32> = tokens
        .iter()
        .map(|token| match token >> 31 {
            0 => *token,
            _ => sampled.get((token & 0x7fff_ffff) as usize).copied().unwrap_or(u32::MAX),
        })
        .collect();
    let on_gpu = gpu.integers(&tokens, &[1000]);
    gpu::resolve_tokens(&on_gpu, &gpu.integers(&sampled, &[50])).unwrap();
    gpu.assert_equal(&on_gpu.to_vec1::<u32>().unwrap(), &want, "tokens");
}

/// Consecutive uploads and readbacks, without a wait in between.
pub(crate) fn staging(gpu: &Gpu) {
    let mut staging = Staging::new(1000, gpu.device()).unwrap();
    let mut readbacks: Vec<Readback> =
        (0..5).map(|_| Readback::new(1000, gpu.device()).unwrap()).collect();
    let numbers = |step: usize| (0..1000).map(|i| (i * 7 + step) as u32).collect::<Vec<_>>();
    for (step, readback) in readbacks.iter_mut().enumerate() {
        staging.upload(&numbers(step)[..1000 - step]).unwrap();
        readback.start(&staging.view(4, &[100, 2]).unwrap()).unwrap();
    }
    for (step, readback) in readbacks.iter_mut().enumerate() {
        let read = readback.finish().unwrap();
        gpu.assert_equal(&read, &numbers(step)[4..204], "what was uploaded");
    }
    assert!(staging.upload(&[0; 1001]).is_err());
}

/// A tensor of many pieces, more than there is pinned memory for, without a wait in between.
pub(crate) fn uploads(gpu: &Gpu) {
    const COUNT: usize = 21 << 20;
    let uploads = Uploads::new(gpu.device()).unwrap();
    let mut tensor = uploads.begin(DType::U32, &[3, COUNT / 3]).unwrap();
    let value = |index: usize| (index as u32).wrapping_mul(2_654_435_761);
    // The last part first. The value before it is never written.
    for (first, end) in [(COUNT - 5, COUNT), (0, 100), (100, COUNT - 6)] {
        let (start, len) = (4 * first, 4 * (end - first));
        let fill = |offset: usize, out: &mut [u8]| {
            for (index, place) in out.as_chunks_mut().0.iter_mut().enumerate() {
                *place = value(first + offset / 4 + index).to_le_bytes();
            }
        };
        uploads.write(&mut tensor, start, len, &fill).unwrap();
    }
    let read = uploads.finish(tensor).unwrap().flatten_all().unwrap().to_vec1::<u32>().unwrap();
    let want = (0..COUNT).map(|index| if index == COUNT - 6 { 0 } else { value(index) });
    gpu.assert_equal(&read, &want.collect::<Vec<_>>(), "what was uploaded");
}

/// A recorded product and a recorded kernel of ours read their operands' content at the replay.
pub(crate) fn graph(gpu: &Gpu) {
    let mut random = Random(34);
    let dtype = DType::BF16;
    let (rows, k, n) = (16, 128, 64);
    let cublas = Cublas::new(gpu.device(), rows, dtype, 0).unwrap();
    let w = random.floats(n * k, 1.0, dtype);
    let on_w = gpu.floats(&w, &[n, k], dtype);
    let bias = random.floats(n, 1.0, dtype);
    let on_bias = gpu.floats(&bias, &[n], dtype);
    let x = gpu.floats(&random.floats(rows * k, 1.0, dtype), &[rows, k], dtype);
    let out = gpu.unwritten(&[rows, n], dtype);
    let run = || {
        cublas.gemm(&x, &on_w, Some(&on_bias), &out)?;
        gpu::scale_and_cap(&out, 1.0, Some(20.0))
    };
    // One launch outside of the graph, so that everything is loaded.
    run().unwrap();
    let graph = Graph::capture(gpu.device(), run).unwrap();
    for _ in 0..3 {
        let values = random.floats(rows * k, 1.0, dtype);
        x.slice_set(&gpu.floats(&values, &[rows, k], dtype), 0, 0).unwrap();
        graph.launch().unwrap();
        let want: Vec<f32> = values
            .chunks(k)
            .flat_map(|x| w.chunks(k).zip(&bias).map(move |(w, bias)| (x, w, *bias)))
            .map(|(x, w, bias)| 20.0 * (linear_reference(x, w, Some(bias)) / 20.0).tanh())
            .collect();
        // The capped value is rounded once more.
        let tolerance = Tolerance { own: 1.2, ..BIASED_BY_CUBLAS };
        gpu.assert_close(&out, &want, tolerance, "a replayed product");
    }
}

/// A group of one GPU: sum and gather return the input, in a graph too.
pub(crate) fn nccl(gpu: &Gpu) {
    let group = Nccl::join(gpu.device(), &Nccl::new_id().unwrap(), 0, 1).unwrap();
    let mut random = Random(35);
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        let x = gpu.floats(&random.floats(3 * 40, 1.0, dtype), &[3, 40], dtype);
        let all = gpu.unwritten(&[1, 3, 40], dtype);
        let run = || {
            group.all_reduce(&x)?;
            group.all_gather(&x, &all)
        };
        run().unwrap();
        let graph = Graph::capture(gpu.device(), run).unwrap();
        let values = random.floats(3 * 40, 1.0, dtype);
        x.slice_set(&gpu.floats(&values, &[3, 40], dtype), 0, 0).unwrap();
        graph.launch().unwrap();
        gpu.assert_close(&all, &rounded(&values, dtype), ROUNDED_ONCE, "what one rank gathers");
    }
}
