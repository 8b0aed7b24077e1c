//! From the qkv rows through the paged cache to attention.

use std::ops::Range;

use candle_core::cuda_backend::cudarc::driver::sys::{
    CUgraphInstantiate_flags, CUstreamCaptureMode,
};
use candle_core::{DType, Device, Tensor};
use candlepower_gpu::cuda::{self, AttentionPlan};
use candlepower_gpu::{
    self as gpu, AttentionSpec, AttentionStep, HostBlocks, LaunchShape, NO_SLOT, NormWeight,
    PagedCache, PagedLayer, PlanCapacity, QkNorm, QkNormOperands, QkvToCache, ValueNorm,
};
use candlepower_kernels::{
    AttentionMetadata, CacheOrder, CacheView, KvCacheConfig, KvScales, PagedAttention, RopeStyle,
    RopeTable, operands::SequenceView, paged_attention_reference, reshape_and_cache_reference,
    rms_norm_reference, rope_reference,
};

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

/// Scales of a layer whose cache has elements of `dtype`.
fn scales_of(dtype: DType) -> KvScales {
    match dtype {
        DType::F8E4M3 => KvScales { key: 0.6, value: 2.5 },
        _ => KvScales::ONE,
    }
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

/// A model's attention, and a step's sequences as (queries, positions in the cache).
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) window: Option<usize>,
    pub(crate) softcap: Option<f32>,
    pub(crate) seqs: &'static [(usize, usize)],
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

/// A step's operands on CPU and GPU.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) config: KvCacheConfig,
    heads: usize,
    pub(crate) params: PagedAttention,
    meta: AttentionMetadata,
    q: Vec<f32>,
    /// One sink logit for each query head.
    pub(crate) sinks: Option<Vec<f32>>,
    /// The CPU's layout: `[num_blocks, kv_heads, head_dim, block_size]`, multiplied by the scale.
    keys: Vec<f32>,
    values: Vec<f32>,
    pub(crate) q_on_gpu: Tensor,
    pub(crate) layer: PagedLayer,
}

impl Step {
    pub(crate) fn new(
        gpu: &Gpu,
        random: &mut Random,
        shape: &Shape,
        ((dtype, cache_dtype), seqs): ((DType, DType), &[(usize, usize)]),
    ) -> Self {
        let config = config(160, shape.kv_heads, shape.head_dim);
        let dims = [config.num_blocks, config.num_kv_heads, config.block_size, config.head_dim];
        let elements: usize = dims.iter().product();
        let [on_gpu_keys, on_gpu_values] =
            [1.0, 1.0].map(|spread| random.floats(elements, spread, cache_dtype));
        let scales = scales_of(cache_dtype);
        let mut keys = vec![0.0; elements];
        for slot in 0..config.num_blocks * config.block_size {
            for head in 0..config.num_kv_heads {
                for dim in 0..config.head_dim {
                    let (key, value) =
                        reshape_and_cache_reference(&config, CacheOrder::Single, slot, (head, dim));
                    keys[key] = on_gpu_keys[value] * scales.key;
                }
            }
        }
        let meta = metadata(random, &config, seqs);
        let tokens = seqs.iter().map(|seq| seq.0).sum::<usize>();
        let q = random.floats(tokens * shape.heads * shape.head_dim, 2.0, dtype);
        let shared = shape.heads > shape.kv_heads;
        Self {
            heads: shape.heads,
            sinks: shared.then(|| random.floats(shape.heads, 3.0, DType::F32)),
            params: PagedAttention {
                scale: (shape.head_dim as f32).sqrt().recip(),
                window: shape.window,
                softcap: shape.softcap,
            },
            q_on_gpu: gpu.floats(&q, &[tokens, shape.heads, shape.head_dim], dtype),
            layer: PagedLayer {
                keys: gpu.floats(&on_gpu_keys, &dims, cache_dtype),
                values: gpu.floats(&on_gpu_values, &dims, cache_dtype),
                scales,
            },
            config,
            meta,
            q,
            keys,
            values: on_gpu_values.iter().map(|value| value * scales.value).collect(),
        }
    }

    /// The same q and cache with other sequences.
    fn with_lengths(&self, random: &mut Random, seqs: &[(usize, usize)]) -> Self {
        Self { meta: metadata(random, &self.config, seqs), ..self.clone() }
    }

    /// The first token of some of the step's sequences, and a step of these alone.
    fn part(&self, seqs: Range<usize>) -> (usize, Self) {
        let meta = &self.meta;
        let starts = &meta.query_start[seqs.start..=seqs.end];
        let (first, tokens) = (starts[0] as usize, (starts[seqs.len()] - starts[0]) as usize);
        let own = AttentionMetadata {
            query_start: starts.iter().map(|start| start - starts[0]).collect(),
            context_len: meta.context_len[seqs.clone()].to_vec(),
            block_tables: meta.block_tables[seqs.start * meta.max_blocks..]
                [..seqs.len() * meta.max_blocks]
                .to_vec(),
            max_blocks: meta.max_blocks,
            mutual: Vec::new(),
        };
        let q_on_gpu = self.q_on_gpu.narrow(0, first, tokens).unwrap().copy().unwrap();
        (first, Self { meta: own, q_on_gpu, ..self.clone() })
    }

    /// The last queries of some sequences, up to a position each: as (sequence, queries, positions in the cache).
    pub(crate) fn queries(&self, chosen: &[(usize, usize, usize)]) -> Self {
        let meta = &self.meta;
        let mut own = AttentionMetadata {
            query_start: vec![0],
            context_len: Vec::new(),
            block_tables: Vec::new(),
            ..meta.clone()
        };
        let mut rows = Vec::new();
        for &(seq, queries, context_len) in chosen {
            let end =
                meta.query_start[seq + 1] as usize - (meta.context_len[seq] as usize - context_len);
            rows.push(self.q_on_gpu.narrow(0, end - queries, queries).unwrap());
            own.query_start.push(own.query_start[own.query_start.len() - 1] + queries as u32);
            own.context_len.push(context_len as u32);
            own.block_tables.extend(&meta.block_tables[seq * meta.max_blocks..][..meta.max_blocks]);
        }
        Self { meta: own, q_on_gpu: Tensor::cat(&rows, 0).unwrap(), ..self.clone() }
    }

    pub(crate) fn sinks(&self, gpu: &Gpu) -> Option<Tensor> {
        let sinks = self.sinks.as_ref()?;
        Some(Tensor::from_slice(sinks, sinks.len(), gpu.device()).unwrap())
    }

    pub(crate) fn q_dims(&self) -> Vec<usize> {
        self.q_on_gpu.dims().to_vec()
    }

    pub(crate) fn spec(&self) -> AttentionSpec {
        AttentionSpec {
            heads: self.heads,
            window: self.params.window,
            dtype: self.q_on_gpu.dtype(),
            cache_dtype: self.layer.keys.dtype(),
        }
    }

    fn plan(&self, gpu: &Gpu) -> AttentionPlan {
        let capacity = PlanCapacity {
            max_seqs: 8,
            max_pages: 512,
            partials_bytes: 64 << 20,
            sink_tokens: 1024,
        };
        AttentionPlan::new(gpu.device(), self.spec(), &self.config, capacity).unwrap()
    }

    pub(crate) fn attention_step(&self, launch: LaunchShape) -> AttentionStep<'_> {
        AttentionStep { meta: &self.meta, tokens: self.q_on_gpu.dims()[0], launch }
    }

    pub(crate) fn compare(&self, gpu: &Gpu, out: &Tensor) {
        let head_dim = self.config.head_dim;
        let group = self.heads / self.config.num_kv_heads;
        let mut want = Vec::with_capacity(self.q.len());
        for seq in 0..self.meta.context_len.len() {
            let (first, end) =
                (self.meta.query_start[seq] as usize, self.meta.query_start[seq + 1] as usize);
            let table =
                &self.meta.block_tables[seq * self.meta.max_blocks..][..self.meta.max_blocks];
            for token in first..end {
                let position = self.meta.context_len[seq] as usize - (end - token);
                for head in 0..self.heads {
                    let q = &self.q[(token * self.heads + head) * head_dim..][..head_dim];
                    let view = CacheView {
                        keys: &self.keys,
                        values: &self.values,
                        config: &self.config,
                        order: CacheOrder::Single,
                        head: head / group,
                    };
                    let sink = self.sinks.as_ref().map(|sinks| sinks[head]);
                    let seq = SequenceView { block_table: table, ..SequenceView::default() };
                    want.extend(paged_attention_reference(
                        q,
                        &view,
                        &seq,
                        position,
                        &self.params,
                        sink,
                    ));
                }
            }
        }
        let what = format!(
            "{} of {} heads of {head_dim}, cache of {:?}, {:?}, contexts {:?}",
            self.heads,
            self.config.num_kv_heads,
            self.layer.keys.dtype(),
            self.params,
            self.meta.context_len
        );
        gpu.assert_close(out, &want, self.tolerance(), &what);
        assert!(to_vec(out).iter().all(|value| value.is_finite()), "{what}");
    }

    /// Tensor cores round the softmax's weights to the element type: up to half a step for each term. The softcap uses
    /// the hardware's hyperbolic tangent, with an error of 2^-11. The exponential turns that error of the score into a
    /// relative error of the weight.
    fn tolerance(&self) -> Tolerance {
        let step = if self.q_on_gpu.dtype() == DType::BF16 { 1.0 / 128.0 } else { 1.0 / 1024.0 };
        // The error of the score is `cap / 2048`, in steps of the element type.
        let tanh = self.params.softcap.map_or(0.0, |cap| cap / 2048.0 / step);
        Tolerance { own: 1.0, largest: 1.0 + tanh }
    }
}

fn config(num_blocks: usize, num_kv_heads: usize, head_dim: usize) -> KvCacheConfig {
    KvCacheConfig {
        num_layers: 1,
        num_blocks,
        block_size: 16,
        num_kv_heads,
        head_dim,
        latent: None,
    }
}

/// Sequences whose blocks are scattered over the cache.
pub(crate) fn metadata(
    random: &mut Random,
    config: &KvCacheConfig,
    seqs: &[(usize, usize)],
) -> AttentionMetadata {
    let max_blocks = seqs
        .iter()
        .map(|seq| seq.1.div_ceil(config.block_size))
        .max()
        .expect("a step has sequences");
    let mut free = random.permutation(config.num_blocks);
    let mut meta = AttentionMetadata {
        query_start: vec![0],
        context_len: Vec::new(),
        block_tables: Vec::new(),
        max_blocks,
        mutual: Vec::new(),
    };
    let mut tokens = 0;
    for &(queries, context_len) in seqs {
        tokens += queries as u32;
        meta.query_start.push(tokens);
        meta.context_len.push(context_len as u32);
        let blocks = context_len.div_ceil(config.block_size);
        let taken = free.split_off(free.len() - blocks);
        meta.block_tables.extend(taken);
        meta.block_tables.extend(vec![0; max_blocks - blocks]);
    }
    meta
}
