//! From the qkv rows through the paged cache to attention.

mod step;

use candle_core::cuda_backend::cudarc::driver::sys::{
    CUgraphInstantiate_flags, CUstreamCaptureMode,
};
use candle_core::{DType, Device, Tensor};
use candlepower_gpu::cuda::{self, AttentionPlan};
use candlepower_gpu::{
    self as gpu, HostBlocks, LaunchShape, NO_SLOT, NormWeight, PagedCache, PagedLayer, QkNorm,
    QkNormOperands, QkvToCache, ValueNorm,
};
use candlepower_kernels::{
    CacheOrder, KvCacheConfig, RopeStyle, RopeTable, reshape_and_cache_reference,
    rms_norm_reference, rope_reference,
};
pub(crate) use step::{Shape, Step, metadata};
use step::{config, scales_of};

use crate::gpu::{Gpu, HALVES, ROUNDED_ONCE, Random, Tolerance, to_vec};
use crate::latent;
use crate::rows::effective;

/// Heads of q and of k, elements of a head, elements of its rotated part, tokens.
const QKV_SHAPES: [(usize, usize, usize, usize, usize); 6] = [
    (14, 2, 64, 64, 1),
    (32, 8, 128, 128, 33),
    (8, 4, 256, 64, 7),
    (4, 1, 512, 128, 6),
    (4, 4, 96, 96, 5),
    (3, 1, 80, 20, 129),
];

/// Element types of queries and of the cache.
fn types() -> impl Iterator<Item = (DType, DType)> {
    HALVES.into_iter().flat_map(|dtype| [(dtype, dtype), (dtype, DType::F8E4M3)])
}

pub(crate) fn qkv_to_cache(gpu: &Gpu) {
    let mut random = Random(21);
    for shape in QKV_SHAPES {
        for types in types() {
            for style in [RopeStyle::Neox, RopeStyle::Interleaved] {
                for form in [None, Some(NormWeight::Plain), Some(NormWeight::OnePlus)] {
                    compare_qkv(gpu, &mut random, shape, (types, style, form));
                }
            }
        }
    }
}

fn compare_qkv(
    gpu: &Gpu,
    random: &mut Random,
    (heads, kv_heads, head_dim, rot_dim, tokens): (usize, usize, usize, usize, usize),
    ((dtype, cache_dtype), style, form): ((DType, DType), RopeStyle, Option<NormWeight>),
) {
    const EPS: f32 = 1e-6;
    const MAX_LEN: usize = 50;
    let config = config(tokens.div_ceil(16) + 2, kv_heads, head_dim);
    let what =
        format!("{heads} + {kv_heads} heads of {head_dim}, {tokens} tokens, {style:?}, {form:?}");
    let width = (heads + 2 * kv_heads) * head_dim;
    let qkv = random.floats(tokens * width, 2.0, dtype);
    let norms = [random.floats(head_dim, 1.0, dtype), random.floats(head_dim, 1.0, dtype)];
    let half = rot_dim / 2;
    let angles = random.floats(MAX_LEN * half, 3.0, DType::F32);
    let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| (a.cos(), a.sin())).unzip();
    let cpu = |values: &[f32]| Tensor::from_slice(values, (MAX_LEN, half), &Device::Cpu).unwrap();
    let mut table = RopeTable::new(cpu(&cos), cpu(&sin), style).unwrap();
    let mut query_scales = vec![1.0; MAX_LEN];
    if form == Some(NormWeight::Plain) {
        query_scales = random.floats(MAX_LEN, 2.0, DType::F32);
        table = table.with_query_scales(query_scales.clone()).unwrap();
    }
    let positions: Vec<u32> = (0..tokens).map(|_| random.below(MAX_LEN) as u32).collect();
    let mut slots = random.permutation(config.num_blocks * config.block_size);
    slots.truncate(tokens);
    slots[tokens / 2] = NO_SLOT;

    let scales = scales_of(cache_dtype);
    let mut cache = PagedCache::new(config, cache_dtype, gpu.device()).unwrap();
    if cache_dtype == DType::F8E4M3 {
        cache = cache.with_scales(&[scales]).unwrap();
    }
    let q_out = gpu.unwritten(&[tokens, heads, head_dim], dtype);
    let weights = norms.each_ref().map(|norm| gpu.floats(norm, &[head_dim], dtype));
    let [q_weight, k_weight] = &weights;
    // The norm of v covers whole heads in some cases, and heads with padding in others.
    let v_norm = (form == Some(NormWeight::OnePlus)).then_some(ValueNorm {
        eps: 1e-3,
        len: if style == RopeStyle::Neox { head_dim } else { head_dim - head_dim / 4 },
    });
    let operands = QkvToCache {
        qk_norm: form.map(|form| {
            let span = QkNormOperands::Head;
            QkNorm { q_weight, k_weight: Some(k_weight), span, form, eps: EPS }
        }),
        rope: &table.to_device(gpu.device()).unwrap(),
        positions: &gpu.integers(&positions, &[tokens]),
        slot_mapping: &gpu.integers(&slots, &[tokens]),
        v_norm,
        cache: Some((&cache, 0)),
        next: Some(q_weight),
    };
    cuda::qkv_to_cache(&gpu.floats(&qkv, &[tokens, width], dtype), &operands, &q_out).unwrap();
    // Queries alone, without the operands of keys and values.
    let q_alone = gpu.unwritten(&[tokens, heads, head_dim], dtype);
    let own = |row: &[f32]| row[..heads * head_dim].to_vec();
    let rows: Vec<f32> = qkv.chunks(width).flat_map(own).collect();
    let of_queries = QkvToCache {
        qk_norm: operands.qk_norm.map(|norm| QkNorm { k_weight: None, ..norm }),
        slot_mapping: &q_out,
        cache: None,
        ..operands
    };
    let rows = gpu.floats(&rows, &[tokens, heads * head_dim], dtype);
    cuda::qkv_to_cache(&rows, &of_queries, &q_alone).unwrap();

    let layer = cache.layer(0).unwrap();
    let elements = config.num_blocks * config.block_size * kv_heads * head_dim;
    let (mut keys, mut values) = (vec![0.0; elements], vec![0.0; elements]);
    let mut q = Vec::new();
    for (token, row) in qkv.chunks(width).enumerate() {
        let at = positions[token] as usize * half;
        let (cos, sin) = (&cos[at..at + half], &sin[at..at + half]);
        let finish = |head: &[f32], norm: &[f32]| {
            let head = match form {
                Some(form) => rms_norm_reference(head, &effective(norm, form), EPS),
                None => head.to_vec(),
            };
            rope_reference(&head, cos, sin, style)
        };
        for (index, head) in row.chunks(head_dim).enumerate() {
            if index < heads {
                let scale = query_scales[positions[token] as usize];
                q.extend(finish(head, &norms[0]).into_iter().map(|x| x * scale));
                continue;
            }
            if slots[token] == NO_SLOT {
                continue;
            }
            let (target, kv_head, head, scale) = if index < heads + kv_heads {
                (&mut keys, index - heads, finish(head, &norms[1]), scales.key)
            } else {
                let head = match v_norm {
                    Some(ValueNorm { eps, len }) => {
                        let normed = rms_norm_reference(&head[..len], &vec![1.0; len], eps);
                        [normed, vec![0.0; head_dim - len]].concat()
                    }
                    None => head.to_vec(),
                };
                (&mut values, index - heads - kv_heads, head, scales.value)
            };
            let (_, at) = reshape_and_cache_reference(
                &config,
                CacheOrder::Single,
                slots[token] as usize,
                (kv_head, 0),
            );
            let place = target[at..at + head_dim].iter_mut();
            place.zip(head).for_each(|(place, number)| *place = number / scale);
        }
    }
    // Rotation subtracts products, so an element may be smaller than its inputs.
    let rotated = Tolerance { own: 0.6, largest: 0.001 };
    gpu.assert_close(&q_out, &q, rotated, &format!("q of {what}"));
    gpu.assert_close(&q_alone, &q, rotated, &format!("q of {what}, alone"));
    gpu.assert_close(&layer.keys, &keys, rotated, &format!("k of {what}"));
    gpu.assert_close(&layer.values, &values, ROUNDED_ONCE, &format!("v of {what}"));
}

/// QK norms over all heads, or with a weight for each head, compared with the operation's reference implementation on
/// the CPU.
pub(crate) fn wide_qk_norms(gpu: &Gpu) {
    let mut random = Random(26);
    for (heads, kv_heads, head_dim, rot_dim, tokens) in QKV_SHAPES {
        // Padded heads; or all heads of one rank, or of two identical ranks.
        let spans = [None, Some(1), Some(2)];
        for (dtype, ranks) in HALVES.into_iter().flat_map(|dtype| spans.map(|span| (dtype, span))) {
            let len = head_dim - head_dim / 4;
            let config = config(tokens.div_ceil(16) + 1, kv_heads, head_dim);
            let width = (heads + 2 * kv_heads) * head_dim;
            let mut floats = |count, spread| random.floats(count, spread, dtype);
            let mut qkv = floats(tokens * width, 2.0);
            if ranks.is_none() {
                qkv.chunks_mut(head_dim).for_each(|head| head[len..].fill(0.0));
            }
            let weights = [floats(heads * head_dim, 1.0), floats(kv_heads * head_dim, 1.0)];
            let angles = random.floats(tokens * rot_dim / 2, 3.0, DType::F32);
            let run = |device: &Device| {
                let float = |values: &[f32], dims: &[usize], dtype| {
                    let tensor = Tensor::from_slice(values, dims, &Device::Cpu).unwrap();
                    tensor.to_dtype(dtype).unwrap().to_device(device).unwrap()
                };
                let half = |f: fn(f32) -> f32| {
                    let values: Vec<f32> = angles.iter().map(|angle| f(*angle)).collect();
                    Tensor::from_slice(&values, (tokens, rot_dim / 2), &Device::Cpu).unwrap()
                };
                let table = RopeTable::new(half(f32::cos), half(f32::sin), RopeStyle::Neox);
                let numbers = Tensor::arange(0u32, tokens as u32, device).unwrap();
                let cache = PagedCache::new(config, dtype, device).unwrap();
                let q_out = Tensor::zeros((tokens, heads, head_dim), dtype, device).unwrap();
                let [q_weight, k_weight] =
                    weights.each_ref().map(|weight| float(weight, &[weight.len()], dtype));
                let qkv = float(&qkv, &[tokens, width], dtype);
                let sums = Tensor::zeros((tokens, 2), DType::F32, device).unwrap();
                gpu::square_sums(&qkv, [heads, kv_heads], &sums).unwrap();
                let operands = QkvToCache {
                    qk_norm: Some(QkNorm {
                        q_weight: &q_weight,
                        k_weight: Some(&k_weight),
                        span: match ranks {
                            None => QkNormOperands::EachHead { len },
                            Some(ranks) => QkNormOperands::AllHeads { square_sums: &sums, ranks },
                        },
                        form: NormWeight::Plain,
                        eps: 1e-6,
                    }),
                    rope: &table.unwrap().to_device(device).unwrap(),
                    positions: &numbers,
                    slot_mapping: &numbers,
                    v_norm: None,
                    cache: Some((&cache, 0)),
                    next: None,
                };
                gpu::qkv_to_cache(&qkv, &operands, &q_out).unwrap();
                (sums, q_out, cache.layer(0).unwrap().keys.clone())
            };
            let ((sums, q, keys), (want_sums, want_q, want_keys)) =
                (run(gpu.device()), run(&Device::Cpu));
            // Both results are rounded, and rotation subtracts products.
            let tolerance = Tolerance { own: 1.2, largest: 0.002 };
            let what = format!("{heads} + {kv_heads} heads of {head_dim}, ranks {ranks:?}");
            let in_another_order = Tolerance { own: 256.0, largest: 0.0 };
            gpu.assert_close(&sums, &to_vec(&want_sums), in_another_order, &what);
            gpu.assert_close(&q, &to_vec(&want_q), tolerance, &format!("q of {what}"));
            gpu.assert_close(&keys, &to_vec(&want_keys), tolerance, &format!("k of {what}"));
        }
    }
}

/// A cache of keys and values, and one of latents.
fn block_configs() -> [KvCacheConfig; 2] {
    [config(9, 3, 64), latent::config(9, 32, 40)]
}

fn tensors<'a>(layer: &'a PagedLayer, config: &KvCacheConfig) -> Vec<&'a Tensor> {
    match config.latent {
        Some(_) => vec![&layer.keys],
        None => vec![&layer.keys, &layer.values],
    }
}

pub(crate) fn copy_blocks(gpu: &Gpu) {
    let mut random = Random(22);
    for (dtype, config) in HALVES.into_iter().flat_map(|dtype| block_configs().map(|c| (dtype, c)))
    {
        let config = KvCacheConfig { num_layers: 2, ..config };
        let cache = PagedCache::new(config, dtype, gpu.device()).unwrap();
        let block = config.block_size * config.num_kv_heads * config.head_dim;
        let copies = [(1u32, 4u32), (1, 5), (8, 0)];
        let mut expected = Vec::new();
        for layer in 0..2 {
            let layer = cache.layer(layer).unwrap();
            for tensor in tensors(layer, &config) {
                let mut data = random.floats(9 * block, 1.0, dtype);
                tensor.slice_set(&gpu.floats(&data, tensor.dims(), dtype), 0, 0).unwrap();
                for (from, to) in copies.map(|(from, to)| (from as usize, to as usize)) {
                    data.copy_within(from * block..(from + 1) * block, to * block);
                }
                expected.push((tensor.clone(), data));
            }
        }
        let pairs: Vec<u32> = copies.iter().flat_map(|&(from, to)| [from, to]).collect();
        cache.copy_blocks(&gpu.integers(&pairs, &[3, 2])).unwrap();
        for (tensor, data) in expected {
            gpu.assert_close(&tensor, &data, Tolerance { own: 0.0, largest: 0.0 }, "blocks");
        }
    }
}

/// Blocks are swapped out to pinned memory, and swapped in to other blocks.
pub(crate) fn swap_blocks(gpu: &Gpu) {
    let mut random = Random(25);
    let dtypes = [DType::BF16, DType::F8E4M3];
    for (dtype, config) in dtypes.into_iter().flat_map(|dtype| block_configs().map(|c| (dtype, c)))
    {
        let config = KvCacheConfig { num_layers: 3, ..config };
        let cache = PagedCache::new(config, dtype, gpu.device()).unwrap();
        let host = HostBlocks::new(&cache, 5).unwrap();
        let block = config.block_size * config.num_kv_heads * config.head_dim;
        let mut expected = Vec::new();
        for layer in 0..3 {
            let layer = cache.layer(layer).unwrap();
            for tensor in tensors(layer, &config) {
                let mut data = random.floats(9 * block, 1.0, dtype);
                tensor.slice_set(&gpu.floats(&data, tensor.dims(), dtype), 0, 0).unwrap();
                data.copy_within(2 * block..3 * block, 0);
                data.copy_within(8 * block..9 * block, 5 * block);
                expected.push((tensor.clone(), data));
            }
        }
        // Pairs with a missing block or a missing slot are ignored.
        cache.bring_out(&host, &gpu.integers(&[2, 4, 8, 1, 9, 0, 1, 5], &[4, 2])).unwrap();
        cache.bring_back(&host, &gpu.integers(&[4, 0, 1, 5], &[2, 2])).unwrap();
        for (tensor, data) in expected {
            gpu.assert_close(&tensor, &data, Tolerance { own: 0.0, largest: 0.0 }, "blocks");
        }
    }
}

/// Decodes, chunks and mixtures, with lengths around the ends of blocks, and long enough to be split.
const STEPS: [&[(usize, usize)]; 4] = [
    &[(1, 1), (1, 16), (1, 17), (1, 700)],
    &[(1, 2000)],
    &[(33, 33), (5, 130), (17, 17)],
    &[(1, 250), (40, 111), (1, 5), (3, 64)],
];

fn shapes() -> Vec<Shape> {
    let heads = [
        (14, 2, 64),
        (8, 8, 64),
        (6, 2, 128),
        (32, 4, 128),
        (8, 4, 256),
        (5, 1, 128),
        (8, 1, 512),
        (5, 1, 512),
        (16, 1, 512),
    ];
    let scores = [(None, None), (Some(48), None), (None, Some(30.0)), (Some(100), Some(50.0))];
    let mut shapes = Vec::new();
    for (i, (heads, kv_heads, head_dim)) in heads.into_iter().enumerate() {
        for (j, seqs) in STEPS.into_iter().enumerate() {
            let (window, softcap) = scores[(i + j) % scores.len()];
            shapes.push(Shape { heads, kv_heads, head_dim, window, softcap, seqs });
        }
        shapes.push(Shape {
            heads,
            kv_heads,
            head_dim,
            window: None,
            softcap: None,
            seqs: STEPS[0],
        });
    }
    shapes
}

pub(crate) fn paged_attention(gpu: &Gpu) {
    let mut random = Random(23);
    for shape in shapes() {
        for (dtype, cache_dtype) in types() {
            let step = Step::new(gpu, &mut random, &shape, ((dtype, cache_dtype), shape.seqs));
            let mut plan = step.plan(gpu);
            plan.prepare(&step.attention_step(LaunchShape::Fitted)).unwrap();
            let out = gpu.unwritten(&step.q_dims(), dtype);
            plan.attend(&step.q_on_gpu, &step.layer, &step.params, step.sinks(gpu).as_ref(), &out)
                .unwrap();
            step.compare(gpu, &out);
        }
    }
}

/// Decodes before prompts have the same bits as without the prompts, and so have the prompts.
pub(crate) fn planned_apart(gpu: &Gpu) {
    let mut random = Random(27);
    let seqs = [(1, 250), (1, 700), (1, 3), (40, 111), (1, 5), (3, 64)];
    let cases =
        shapes().into_iter().step_by(5).flat_map(|shape| types().map(move |types| (shape, types)));
    for (shape, (dtype, cache_dtype)) in cases {
        let step = Step::new(gpu, &mut random, &shape, ((dtype, cache_dtype), &seqs));
        let mut plan = step.plan(gpu);
        let mut attend = |step: &Step| {
            plan.prepare(&step.attention_step(LaunchShape::Fitted)).unwrap();
            let out = gpu.unwritten(&step.q_dims(), dtype);
            let Step { q_on_gpu, layer, params, .. } = step;
            plan.attend(q_on_gpu, layer, params, step.sinks(gpu).as_ref(), &out).unwrap();
            out
        };
        let whole = attend(&step);
        step.compare(gpu, &whole);
        for part in [0..3, 3..seqs.len()] {
            let (first, part) = step.part(part);
            let alone = attend(&part);
            let tokens = alone.dims()[0];
            let within = to_vec(&whole.narrow(0, first, tokens).unwrap().contiguous().unwrap());
            gpu.assert_equal(&bits(&to_vec(&alone)), &bits(&within), "a part alone");
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// A captured graph computes other lengths after another `prepare` for the same bucket.
pub(crate) fn fixed_launch(gpu: &Gpu) {
    let mut random = Random(24);
    let Device::Cuda(device) = gpu.device() else { unreachable!("the tests run on a GPU") };
    let stream = device.cuda_stream();
    // Every second case uses tensor cores.
    for (heads, kv_heads, head_dim, cache_dtype, shape_of_launch) in [
        (6, 2, 128, DType::BF16, LaunchShape::Fixed),
        (14, 2, 64, DType::BF16, LaunchShape::Fixed),
        (8, 1, 512, DType::BF16, LaunchShape::Fixed),
        (5, 1, 512, DType::F8E4M3, LaunchShape::Fixed),
        (14, 2, 64, DType::BF16, LaunchShape::FixedWhole),
        (8, 2, 128, DType::F8E4M3, LaunchShape::FixedWhole),
        (6, 2, 128, DType::BF16, LaunchShape::FixedWhole),
    ] {
        let shape =
            Shape { heads, kv_heads, head_dim, window: None, softcap: None, seqs: STEPS[0] };
        let dtype = DType::BF16;
        let first = Step::new(gpu, &mut random, &shape, ((dtype, cache_dtype), STEPS[0]));
        let mut plan = first.plan(gpu);
        plan.prepare(&first.attention_step(shape_of_launch)).unwrap();
        let out = gpu.unwritten(&first.q_dims(), dtype);
        let sinks = first.sinks(gpu);
        let attend = |plan: &AttentionPlan| {
            let Step { q_on_gpu, layer, params, .. } = &first;
            plan.attend(q_on_gpu, layer, params, sinks.as_ref(), &out)
        };
        // One launch outside of the graph, so that everything is loaded.
        attend(&plan).unwrap();
        first.compare(gpu, &out);
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        attend(&plan).unwrap();
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).unwrap().expect("a launch was captured");
        for lengths in [[(1, 3), (1, 900), (1, 32), (1, 33)], [(1, 1), (1, 1), (1, 2), (1, 1200)]] {
            let second = first.with_lengths(&mut random, &lengths);
            plan.prepare(&second.attention_step(shape_of_launch)).unwrap();
            graph.launch().unwrap();
            second.compare(gpu, &out);
        }
    }
}
