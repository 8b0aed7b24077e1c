//! Benchmarks of the kernels beside the machine's ceilings: `cargo bench -p candlepower-kernels`.
//!
//! Prints, per shape, the median and the best of many runs: GFLOP/s of arithmetic, GB/s of weights read. Weights
//! rotate through a quarter of a gigabyte, so that they come from memory as in a real model. Arguments after `--`
//! choose sections: `machine`, `linear`, `quantized`, `gated`, `attention`, `rows`, `linear_attention`, `sampling`.
//! `RAYON_NUM_THREADS` sets the number of threads.
#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use candlepower_kernels::{
    Activation, AttentionMetadata, Blocks, Dtype, KvCache, KvCacheConfig, LinearAttention,
    LinearAttentionDims, OffsetForm, Offsets, PagedAttention, QuantFormat, QuantizedRows,
    RecurrentState, ScaleForm, StateConfig, StateRows, SubScaleForm, SubScales, UpdateRule, Weight,
    WeightRows, add_rms_norm, cpu_features, gated_activation, gated_linear, linear,
    linear_attention, paged_attention, reshape_and_cache,
    sampling::{SamplingRow, sample},
};
use rayon::prelude::*;

/// Time for which each measurement repeats.
const BUDGET: Duration = Duration::from_millis(400);

/// Bytes of weights that each linear rotates through.
const ROTATION_BYTES: usize = 256 << 20;

fn main() {
    let chosen: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |section: &str| chosen.is_empty() || chosen.iter().any(|name| name == section);
    println!("{} threads, {}", rayon::current_num_threads(), cpu_features());
    if wanted("machine") {
        machine();
    }
    if wanted("linear") {
        linears();
    }
    if wanted("quantized") {
        quantized_linears();
    }
    if wanted("gated") {
        gated_linears();
    }
    if wanted("attention") {
        attentions();
    }
    if wanted("rows") {
        row_wise();
    }
    if wanted("linear_attention") {
        linear_attentions();
    }
    if wanted("sampling") {
        samplings();
    }
}

/// Median and best seconds of `run`.
fn time(mut run: impl FnMut()) -> (f64, f64) {
    // The first run is not counted. It provides pages and warms up caches and threads.
    run();
    let start = Instant::now();
    let mut seconds = Vec::new();
    while start.elapsed() < BUDGET || seconds.len() < 5 {
        let start = Instant::now();
        run();
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    (seconds[seconds.len() / 2], seconds[0])
}

fn report(name: &str, (median, best): (f64, f64), amount: f64, unit: &str) {
    let rate = |seconds: f64| amount / seconds * 1e-9;
    println!(
        "{name:<44} {:>9.3} ms  {:>8.1} {unit} median {:>8.1} best",
        median * 1e3,
        rate(median),
        rate(best)
    );
}

/// The ceilings: memory read by all threads, multiply-adds from registers.
fn machine() {
    let words = vec![0x3c01_3c02_3c03_3c04_u64; ROTATION_BYTES / 8];
    let threads = rayon::current_num_threads();
    let part = words.len().div_ceil(threads).next_multiple_of(STREAMS * LINE);
    let read = time(|| {
        let sums = words.par_chunks(part).map(read_in_streams);
        black_box(sums.collect::<Vec<_>>());
    });
    report("memory read", read, ROTATION_BYTES as f64, "GB/s");
    const REPEATS: usize = 200_000;
    let flops = (threads * REPEATS * FMA_FLOPS) as f64;
    let fma = time(|| (0..threads).into_par_iter().for_each(|_| fma_from_registers(REPEATS)));
    report("multiply-adds from registers", fma, flops, "GFLOP/s");
}

/// Streams of [`read_in_streams`].
const STREAMS: usize = 4;
/// Words of a cache line.
const LINE: usize = 8;

/// Reads all of `words`, one line of each quarter in turn. These are four streams with prefetch, like those of the
/// matrix-vector kernel. Each quarter must have a whole number of lines.
fn read_in_streams(words: &[u64]) -> [u64; LINE] {
    let quarter = words.len() / STREAMS;
    let mut sums = [0; LINE];
    for at in (0..quarter).step_by(LINE) {
        for stream in 0..STREAMS {
            let line = &words[stream * quarter + at..][..LINE];
            #[cfg(target_arch = "x86_64")]
            // SAFETY: fetching ahead never faults, whatever the address.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(384).cast());
            }
            sums.iter_mut().zip(line).for_each(|(sum, word)| *sum ^= word);
        }
    }
    sums
}

/// Floating-point operations of one repeat of [`fma_from_registers`].
const FMA_FLOPS: usize = 24 * 16 * 2;

#[cfg(target_arch = "x86_64")]
fn fma_from_registers(repeats: usize) {
    use std::arch::x86_64::*;
    #[target_feature(enable = "avx512f")]
    fn avx512(repeats: usize) -> [__m512; 24] {
        // With 24 sums the latency of a multiply-add is hidden, and registers remain for both operands.
        let mut sums = [_mm512_set1_ps(1.0); 24];
        // The compiler would compute with constants that it knows.
        let (a, b) = (black_box(_mm512_set1_ps(1.5)), black_box(_mm512_set1_ps(0.5)));
        for _ in 0..repeats {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, a, b);
            }
        }
        sums
    }
    #[target_feature(enable = "avx2,fma")]
    fn avx2(repeats: usize) -> [__m256; 12] {
        let mut sums = [_mm256_set1_ps(1.0); 12];
        let (a, b) = (black_box(_mm256_set1_ps(1.5)), black_box(_mm256_set1_ps(0.5)));
        // Half as many vectors of half the width repeat four times as often.
        for _ in 0..repeats * 4 {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, a, b);
            }
        }
        sums
    }
    let features = cpu_features();
    if features.avx512f {
        // SAFETY: the CPU has AVX-512.
        black_box(unsafe { avx512(repeats) });
    } else if features.avx2 {
        // SAFETY: the CPU has AVX2 and FMA.
        black_box(unsafe { avx2(repeats) });
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn fma_from_registers(repeats: usize) {
    let mut sums = [1f32; 384];
    for _ in 0..repeats {
        sums.iter_mut().for_each(|sum| *sum = sum.mul_add(black_box(1.5), 0.5));
    }
    black_box(sums);
}

/// The linear layers of Qwen2.5-0.5B's shape, and two larger ones.
fn linears() {
    let shapes = [(9728, 896), (896, 4864), (1152, 896), (18_992, 896), (4096, 4096)];
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for (n, k) in shapes {
            if dtype != DType::BF16 && n != 9728 {
                continue;
            }
            products(&format!("linear {dtype:?}"), &rotation(n, k, dtype));
        }
    }
}

/// Quantized weights of several formats, whose scales have the form that is stored. Some formats are repeated with
/// scales and offsets of each group in f32, to show the cost of unpacking scales.
fn quantized_linears() {
    let single = |dtype, offsets| ScaleForm { dtype, offsets, blocks: None };
    let blocks = |offsets, sub_scales| {
        let blocks = Some(Blocks { columns: 256, sub_scales });
        ScaleForm { dtype: Dtype::F16, offsets, blocks }
    };
    let plain = ScaleForm::F32;
    for (name, format, group, form, short) in [
        ("AWQ", QuantFormat::U4, 128, single(Dtype::F16, OffsetForm::ZeroPoints), 896),
        ("AWQ, f32", QuantFormat::U4, 128, plain, 896),
        ("Q8_0", QuantFormat::U8, 32, single(Dtype::F16, OffsetForm::ZeroPoint(128)), 896),
        ("FP8", QuantFormat::E4m3, usize::MAX, single(Dtype::F32, OffsetForm::None), 896),
        ("SqueezeLLM", QuantFormat::Table, usize::MAX, single(Dtype::F32, OffsetForm::None), 896),
        ("Q4_0", QuantFormat::U4, 32, single(Dtype::F16, OffsetForm::ZeroPoint(8)), 1024),
        ("Q4_1", QuantFormat::U4, 32, single(Dtype::F16, OffsetForm::Own), 1024),
        ("IQ4_NL", QuantFormat::Iq4, 32, single(Dtype::F16, OffsetForm::None), 1024),
        ("MXFP4", QuantFormat::E2m1, 32, single(Dtype::Bf16, OffsetForm::None), 1024),
        ("Q4_1, f32", QuantFormat::U4, 32, plain, 1024),
        ("Q2_K", QuantFormat::U2, 16, blocks(OffsetForm::Own, SubScaleForm::U4), 1024),
        ("Q3_K", QuantFormat::U3, 16, blocks(OffsetForm::ZeroPoint(4), SubScaleForm::I6), 1024),
        ("Q4_K", QuantFormat::U4, 32, blocks(OffsetForm::Own, SubScaleForm::U6), 1024),
        ("Q5_K", QuantFormat::U5, 32, blocks(OffsetForm::Own, SubScaleForm::U6), 1024),
        ("Q6_K", QuantFormat::U6, 16, blocks(OffsetForm::ZeroPoint(32), SubScaleForm::I8), 1024),
        ("Q6_K, f32", QuantFormat::U6, 16, plain, 1024),
    ] {
        // The last two have few panels, as in SmolLM2-135M.
        for (n, k) in [(9728, short), (896, 4864), (576, 1024), (192, 1024)] {
            let group = group.min(k);
            let bytes = vec![3; n * k];
            let (by, zeros) = (vec![3; n * k.div_ceil(group)], vec![3; n * k.div_ceil(group)]);
            let scales = match format {
                QuantFormat::Table => n * 16,
                _ => n * k.div_ceil(form.blocks.map_or(group, |blocks| blocks.columns)),
            };
            let scales = vec![0.5; scales];
            let offsets = match form.offsets {
                OffsetForm::None => Offsets::None,
                OffsetForm::Own => Offsets::Own(&scales),
                OffsetForm::ZeroPoint(zero) => Offsets::ZeroPoint(zero),
                OffsetForm::ZeroPoints => Offsets::ZeroPoints(&zeros),
            };
            let weight = || {
                let builder = Weight::quantized_builder(n, k, format, group, form);
                let mut builder = builder.expect("a weight");
                let rows = QuantizedRows {
                    format,
                    group,
                    bytes: &bytes,
                    scales: &scales,
                    offsets,
                    sub_scales: form.blocks.map(|blocks| SubScales {
                        block: blocks.columns,
                        scales: &by,
                        offsets: if form.offsets == OffsetForm::Own { &by } else { &[] },
                    }),
                    inputs: None,
                };
                builder.write_quantized(0, rows).expect("rows");
                builder.with_rounded_activations().finish().expect("every row")
            };
            let first = weight();
            let count = (ROTATION_BYTES / first.num_bytes()).max(2);
            let weights: Vec<Weight> =
                std::iter::once(first).chain((1..count).map(|_| weight())).collect();
            products(&format!("linear {format:?} by {group}, {name}"), &weights);
        }
    }
}

/// Gate and up of the same model's feed-forward, activated in a second step and within the product.
fn gated_linears() {
    let (n, k, act) = (9728, 896, Activation::Silu);
    let weights = rotation(n, k, DType::BF16);
    for tokens in [16, 64, 512] {
        let x = Tensor::full(0.5f32, (tokens, k), &Device::Cpu).expect("an input");
        let mut next = weights.iter().cycle();
        let flops = 2.0 * (tokens * n * k) as f64;
        let two = time(|| {
            let w = next.next().expect("the cycle does not end");
            let product = linear(&x, w, None).expect("a product");
            black_box(gated_activation(&product, act).expect("an activation"));
        });
        report(&format!("gated in two steps [{n}, {k}] x {tokens}"), two, flops, "GFLOP/s");
        let one = time(|| {
            let w = next.next().expect("the cycle does not end");
            black_box(gated_linear(&x, w, None, act).expect("a product"));
        });
        report(&format!("gated in one [{n}, {k}] x {tokens}"), one, flops, "GFLOP/s");
    }
}

/// Products of a few sizes of batches with one weight after the other.
fn products(name: &str, weights: &[Weight]) {
    let (n, k) = (weights[0].n(), weights[0].k());
    for tokens in [1, 2, 4, 6, 8, 16, 32, 64, 512] {
        let x = Tensor::full(0.5f32, (tokens, k), &Device::Cpu).expect("an input");
        let mut next = weights.iter().cycle();
        let times = time(|| {
            let w = next.next().expect("the cycle does not end");
            black_box(linear(&x, w, None).expect("a product"));
        });
        let name = format!("{name} [{n}, {k}] x {tokens}");
        // Few rows are bound by reading weights, and more rows by arithmetic.
        if tokens <= 4 {
            report(&name, times, weights[0].num_bytes() as f64, "GB/s");
        } else {
            report(&name, times, 2.0 * (tokens * n * k) as f64, "GFLOP/s");
        }
    }
}

fn rotation(n: usize, k: usize, dtype: DType) -> Vec<Weight> {
    let bytes = vec![0x3c; n * k * dtype.size_in_bytes()];
    let weight = || {
        let mut builder = Weight::builder(n, k, dtype).expect("a weight");
        builder.write_rows(0, WeightRows { dtype, bytes: &bytes }).expect("rows");
        builder.finish().expect("every row")
    };
    (0..(ROTATION_BYTES / bytes.len()).max(2)).map(|_| weight()).collect()
}

/// Prefill chunks and decodes, and writes to the cache, of a Qwen2.5-0.5B layer: 14 heads, 2 key-value heads of 64.
fn attentions() {
    for dtype in [DType::F32, DType::BF16] {
        for (seqs, queries, context) in
            [(1, 512, 512), (1, 2048, 2048), (1, 1, 512), (1, 1, 640), (16, 1, 640), (1, 1, 8192)]
        {
            attention(dtype, (seqs, queries, context));
        }
    }
}

fn attention(dtype: DType, (seqs, queries, context): (usize, usize, usize)) {
    let (heads, num_kv_heads, head_dim, block_size) = (14, 2, 64, 16);
    let blocks = context / block_size;
    let config = KvCacheConfig {
        num_layers: 1,
        num_blocks: seqs * blocks,
        block_size,
        num_kv_heads,
        head_dim,
        latent: None,
    };
    let cache = KvCache::new(config, dtype, &Device::Cpu).expect("a cache");
    // Every position is written, since the system maps all pages that were never written to one page of zeros.
    let slots = (seqs * context) as u32;
    let kv = Tensor::full(0.2f32, (slots as usize, num_kv_heads, head_dim), &Device::Cpu);
    let kv = kv.expect("keys");
    let slots = Tensor::arange(0, slots, &Device::Cpu).expect("slots");
    let what = format!("{dtype:?} {seqs} x {queries} queries of {context}");
    if queries > 1 {
        let times = time(|| reshape_and_cache(&kv, &kv, &cache, 0, &slots).expect("a write"));
        let bytes = (2 * kv.elem_count() * (4 + dtype.size_in_bytes())) as f64;
        report(&format!("write {what}"), times, bytes, "GB/s");
    }
    reshape_and_cache(&kv, &kv, &cache, 0, &slots).expect("a write");
    let q = Tensor::full(0.1f32, (seqs * queries, heads, head_dim), &Device::Cpu).expect("queries");
    let meta = AttentionMetadata {
        query_start: (0..=seqs).map(|seq| (seq * queries) as u32).collect(),
        context_len: vec![context as u32; seqs],
        block_tables: (0..(seqs * blocks) as u32).collect(),
        max_blocks: blocks,
        mutual: Vec::new(),
    };
    let params = PagedAttention { scale: 0.125, window: None, softcap: None };
    let times = time(|| {
        black_box(paged_attention(&q, &cache, 0, &meta, &params, None).expect("attention"));
    });
    // A query sees the positions up to its own, and the queries are at the last positions.
    let visible = queries * context - queries * (queries - 1) / 2;
    let flops = 4.0 * (seqs * visible * heads * head_dim) as f64;
    report(&format!("attention {what}"), times, flops, "GFLOP/s");
}

/// The kernels whose rows are independent.
fn row_wise() {
    for tokens in [1, 16, 512] {
        let gate_up = Tensor::full(0.5f32, (tokens, 9728), &Device::Cpu).expect("an input");
        let times = time(|| {
            black_box(gated_activation(&gate_up, Activation::Silu).expect("an activation"));
        });
        let bytes = (tokens * 9728 * 6) as f64;
        report(&format!("gated silu [{tokens}, 9728]"), times, bytes, "GB/s");
        let x = Tensor::full(0.5f32, (tokens, 896), &Device::Cpu).expect("an input");
        let weight = Tensor::ones(896, DType::F32, &Device::Cpu).expect("a weight");
        let times = time(|| {
            black_box(add_rms_norm(&x, &x, 1.0, &weight, 1e-6).expect("a norm"));
        });
        report(&format!("add_rms_norm [{tokens}, 896]"), times, (tokens * 896 * 16) as f64, "GB/s");
    }
}

fn full(value: f32, dims: &[usize]) -> Tensor {
    Tensor::full(value, dims, &Device::Cpu).expect("numbers")
}

/// Linear attention and SSMs: decodes and a prompt through gated delta nets of Qwen3-Next-80B-A3B and Mamba-2 of
/// Granite-4.0-H-Small, layer after layer.
fn linear_attentions() {
    let dims = LinearAttentionDims {
        key_heads: 16,
        value_heads: 32,
        tiled: false,
        key_dim: 128,
        value_dim: 128,
        kernel: 4,
    };
    linear_attention_of(
        "delta net",
        dims,
        UpdateRule::Delta { norm: full(1.0, &[128]), eps: 1e-6 },
    );
    let dims = LinearAttentionDims {
        key_heads: 1,
        value_heads: 128,
        tiled: false,
        key_dim: 128,
        value_dim: 64,
        kernel: 4,
    };
    linear_attention_of("Mamba-2", dims, UpdateRule::Mamba2 { skip: full(1.0, &[128]) });
}

fn linear_attention_of(name: &str, dims: LinearAttentionDims, rule: UpdateRule) {
    // Multiply-adds of each element: S^T k with the delta rule, the update and S^T q. The decay is one operation
    // more.
    let flops_of_number = if matches!(rule, UpdateRule::Delta { .. }) { 7.0 } else { 5.0 };
    let net = LinearAttention {
        dims,
        conv: full(0.3, &[dims.channels(), dims.kernel]),
        conv_bias: None,
        a_log: full(0.1, &[dims.value_heads]),
        dt_bias: full(0.1, &[dims.value_heads]),
        rule,
    };
    for (seqs, tokens) in [(1, 1), (8, 1), (1, 16), (1, 512), (4, 128)] {
        let per_layer = seqs * dims.values() * dims.key_dim * 4;
        let num_layers = ROTATION_BYTES / per_layer;
        let config = StateConfig { num_layers, num_slots: seqs, dims: dims.into() };
        let state = RecurrentState::new(config, &Device::Cpu).expect("a state");
        let input = full(0.5, &[seqs * tokens, dims.width()]);
        let gates = full(0.5, &[seqs * tokens, net.gates()]);
        let rows = StateRows {
            query_start: &(0..=seqs).map(|seq| (seq * tokens) as u32).collect::<Vec<_>>(),
            // They continue after other tokens.
            context_len: &vec![1000; seqs],
            slots: &(0..seqs as u32).collect::<Vec<_>>(),
        };
        let step = |layer| {
            let out = linear_attention(&input, &gates, &net, &state, layer, &rows);
            black_box(out.expect("a step"));
        };
        // A first run over all layers lets the system provide the pages.
        (0..num_layers).for_each(step);
        let mut layers = (0..num_layers).cycle();
        let times = time(|| step(layers.next().expect("the cycle does not end")));
        let LinearAttentionDims { value_heads, value_dim, .. } = dims;
        let what = format!("{name} {seqs} x {tokens}, {value_heads} heads of {value_dim}");
        if tokens == 1 {
            // Each state is read and written.
            report(&what, times, 2.0 * per_layer as f64, "GB/s");
        } else {
            let flops = flops_of_number * (tokens * per_layer / 4) as f64;
            report(&what, times, flops, "GFLOP/s");
        }
    }
}

/// Samples from Qwen2.5's vocabulary, for sixteen rows of a step.
fn samplings() {
    let (rows, vocab) = (16, 151_936);
    let mut state = 1u32;
    let mut number = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0
    };
    // The sum of a few uniform values is nearly normal. Its spread is that of a model's logits.
    let logits: Vec<f32> =
        (0..rows * vocab).map(|_| 4.0 * ((0..4).map(|_| number()).sum::<f32>() - 2.0)).collect();
    let logits = Tensor::from_vec(logits, (rows, vocab), &Device::Cpu).expect("logits");
    // The first mask allows few tokens, all in one part of the vocabulary. The second allows all but a few.
    let few: Vec<u32> =
        (0..vocab / 32).map(|word| if word % 64 == 5 { 0x10_0401 } else { 0 }).collect();
    let most: Vec<u32> = few.iter().map(|word| !word).collect();
    for (name, temperature, top_k, top_p, mask) in [
        ("greedy", 0.0, None, 1.0, None),
        ("plain", 1.0, None, 1.0, None),
        ("top_k 50", 1.0, Some(50), 1.0, None),
        ("top_p 0.9", 1.0, None, 0.9, None),
        ("top_k 20 and top_p 0.9", 0.7, Some(20), 0.9, None),
        ("few tokens of a mask", 1.0, None, 1.0, Some(&few[..])),
        ("most tokens of a mask", 1.0, None, 1.0, Some(&most[..])),
    ] {
        let row = SamplingRow {
            temperature,
            top_k,
            top_p,
            min_p: 0.0,
            uniform: 0.4,
            penalties: None,
            logit_bias: &[],
            banned: Vec::new(),
            mask,
            logprobs: None,
        };
        let samples: Vec<_> = (0..rows).map(|index| (index, row.clone())).collect();
        let times = time(|| {
            black_box(sample(&logits, &samples).expect("samples"));
        });
        report(&format!("sampling {rows} rows, {name}"), times, (rows * vocab * 4) as f64, "GB/s");
    }
}
