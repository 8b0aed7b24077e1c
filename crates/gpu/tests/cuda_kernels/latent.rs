//! MLA: cache writes of latents, the products of heads, and attention over latents, each compared with the operation's
//! reference implementation on the CPU.

use candle_core::{DType, Device, Tensor};
use candlepower_gpu::{
    self as gpu, AttentionPlan, AttentionSpec, AttentionStep, ExpertMatrices, Graph,
    LatentsToCache, LaunchShape, Matrix, NO_SLOT, NormWeight, PagedCache, PagedLayer, PlanCapacity,
    RmsNorm,
};
use candlepower_kernels::{
    AttentionMetadata, KvCacheConfig, KvScales, PagedAttention, RopeStyle, RopeTable,
};

use crate::attention::metadata;
use crate::gpu::{Gpu, HALVES, Random, Tolerance, to_vec};

/// A cache of latents.
pub(crate) fn config(num_blocks: usize, latent: usize, head_dim: usize) -> KvCacheConfig {
    KvCacheConfig {
        num_layers: 1,
        num_blocks,
        block_size: 16,
        num_kv_heads: 1,
        head_dim,
        latent: Some(latent),
    }
}

/// `values` on a device as `dtype`.
fn floats(device: &Device, values: &[f32], dims: &[usize], dtype: DType) -> Tensor {
    let tensor = Tensor::from_slice(values, dims, &Device::Cpu).unwrap();
    tensor.to_dtype(dtype).unwrap().to_device(device).unwrap()
}

/// Both results are rounded, from sums in another order.
const ROUNDED_TWICE: Tolerance = Tolerance { own: 1.2, largest: 0.01 };

/// Tokens, heads, and elements of a head of q, of a latent, and of the rotated part; then elements of a latent and of a
/// row in the cache.
#[derive(Clone, Copy, Debug)]
struct Kept {
    tokens: usize,
    heads: usize,
    q_dim: usize,
    rank: usize,
    rotated: usize,
    latent: usize,
    head_dim: usize,
}

/// The dimensions of models; latents that are much shorter than their space in the cache; and rows that begin at odd
/// elements.
const KEPT: [Kept; 3] = [
    Kept { tokens: 3, heads: 16, q_dim: 192, rank: 512, rotated: 64, latent: 512, head_dim: 576 },
    Kept { tokens: 9, heads: 5, q_dim: 40, rank: 32, rotated: 8, latent: 512, head_dim: 576 },
    Kept { tokens: 17, heads: 3, q_dim: 13, rank: 33, rotated: 6, latent: 40, head_dim: 64 },
];

pub(crate) fn latents_to_cache(gpu: &Gpu) {
    let mut random = Random(81);
    for kept in KEPT {
        for dtype in HALVES {
            for cache_dtype in [dtype, DType::F8E4M3] {
                for (style, form) in [
                    (RopeStyle::Neox, NormWeight::Plain),
                    (RopeStyle::Interleaved, NormWeight::OnePlus),
                ] {
                    compare_kept(gpu, &mut random, kept, ((dtype, cache_dtype), (style, form)));
                }
            }
        }
    }
}

fn compare_kept(
    gpu: &Gpu,
    random: &mut Random,
    kept: Kept,
    ((dtype, cache_dtype), (style, form)): ((DType, DType), (RopeStyle, NormWeight)),
) {
    const MAX_LEN: usize = 50;
    let Kept { tokens, heads, q_dim, rank, rotated, latent, head_dim } = kept;
    let config = config(3, latent, head_dim);
    let slots_there = config.num_blocks * config.block_size;
    let mut numbers = |count| random.floats(count, 2.0, dtype);
    let (q, latents) = (numbers(tokens * heads * q_dim), numbers(tokens * (rank + rotated)));
    let (weight, before) = (numbers(rank), numbers(tokens * heads * head_dim));
    let angles = random.floats(MAX_LEN * rotated / 2, 3.0, DType::F32);
    let mut positions: Vec<u32> = (0..tokens).map(|_| random.below(MAX_LEN) as u32).collect();
    let mut slots = random.permutation(slots_there);
    slots.truncate(tokens);
    // Tokens without a slot, or with a slot beyond the cache, write nothing to the cache.
    slots[tokens / 2] = NO_SLOT;
    slots[tokens - 1] = slots_there as u32;
    let run = |device: &Device, positions: &[u32]| {
        let table = |f: fn(f32) -> f32| {
            let values: Vec<f32> = angles.iter().map(|angle| f(*angle)).collect();
            Tensor::from_vec(values, (MAX_LEN, rotated / 2), &Device::Cpu).unwrap()
        };
        let mut rope = RopeTable::new(table(f32::cos), table(f32::sin), style).unwrap();
        // One of both styles also scales queries.
        if style == RopeStyle::Interleaved {
            let growing = (0..MAX_LEN).map(|position| 1.0 + position as f32 / 16.0).collect();
            rope = rope.with_query_scales(growing).unwrap();
        }
        let mut cache = PagedCache::new(config, cache_dtype, device).unwrap();
        if cache_dtype == DType::F8E4M3 {
            cache = cache.with_scales(&[KvScales { key: 0.6, value: 0.6 }]).unwrap();
        }
        // The kernel writes the rotated parts. Other elements are there before, and only scales of queries change
        // them.
        let q_out = floats(device, &before, &[tokens, heads, head_dim], dtype);
        let weight = floats(device, &weight, &[rank], dtype);
        let operands = LatentsToCache {
            norm: RmsNorm { weight: &weight, form, eps: 1e-6, next: None },
            rope: &rope.to_device(device).unwrap(),
            positions: &Tensor::from_slice(positions, tokens, device).unwrap(),
            slot_mapping: &Tensor::from_slice(&slots, tokens, device).unwrap(),
            cache: (&cache, 0),
        };
        let q = floats(device, &q, &[tokens, heads, q_dim], dtype);
        let latents = floats(device, &latents, &[tokens, rank + rotated], dtype);
        gpu::latents_to_cache(&q, &latents, &operands, &q_out).unwrap();
        (q_out, cache.layer(0).unwrap().keys.clone())
    };
    let ((q_out, keys), (want_q, want_keys)) =
        (run(gpu.device(), &positions), run(&Device::Cpu, &positions));
    let what = format!("{kept:?}, {style:?}, {form:?}");
    gpu.assert_close(&q_out, &to_vec(&want_q), ROUNDED_TWICE, &format!("q of {what}"));
    gpu.assert_close(&keys, &to_vec(&want_keys), ROUNDED_TWICE, &format!("kept of {what}"));
    // A position beyond the table gives NaN in the rotated parts alone.
    positions[0] = MAX_LEN as u32;
    let (q_out, keys) = run(gpu.device(), &positions);
    let (q_out, keys) = (to_vec(&q_out), to_vec(&keys));
    let (kept, of_cache) = (&q_out[latent..latent + rotated], slots[0] as usize * head_dim);
    let of_cache = &keys[of_cache..][..latent + rotated];
    assert!(kept.iter().chain(&of_cache[latent..]).all(|number| number.is_nan()), "{what}");
    assert!(of_cache[..latent].iter().all(|number| number.is_finite()), "{what}");
}

/// Tokens, heads, outputs and inputs, and elements of rows. There are few and many rows, rows longer than the part that
/// is read or written, and rows that are not whole chunks.
const PRODUCTS: [(usize, usize, [usize; 2], [usize; 2]); 7] = [
    (1, 4, [512, 128], [192, 576]),
    (3, 20, [33, 13], [16, 40]),
    (17, 5, [128, 512], [576, 128]),
    (31, 3, [130, 24], [28, 130]),
    (32, 2, [64, 72], [72, 64]),
    (150, 3, [200, 64], [96, 576]),
    (129, 2, [33, 20], [23, 33]),
];

pub(crate) fn head_product(gpu: &Gpu) {
    let mut random = Random(82);
    for (tokens, heads, [n, k], [x_width, out_width]) in PRODUCTS {
        for dtype in HALVES {
            let mut numbers = |count| random.floats(count, 1.0, dtype);
            let (x, before) =
                (numbers(tokens * heads * x_width), numbers(tokens * heads * out_width));
            let weights: Vec<Vec<f32>> = (0..heads).map(|_| numbers(n * k)).collect();
            let run = |device: &Device| {
                let matrices =
                    weights.iter().map(|w| Matrix::Rows(floats(device, w, &[n, k], dtype)));
                let matrices = ExpertMatrices::new(matrices.collect()).unwrap();
                let x = floats(device, &x, &[tokens, heads, x_width], dtype);
                // Elements beside the outputs must keep their values.
                let out = floats(device, &before, &[tokens, heads, out_width], dtype);
                gpu::head_product(&x, &matrices, &out).unwrap();
                out
            };
            let what = format!("{tokens} x {heads} heads, {k} of {x_width} x {n} of {out_width}");
            gpu.assert_close(&run(gpu.device()), &to_vec(&run(&Device::Cpu)), ROUNDED_TWICE, &what);
        }
    }
}

/// Heads, and a step's sequences as (queries, positions in the cache): decodes, chunks and mixtures. With 20 heads,
/// some queries would lie in two of FlashInfer's tiles, and their newest position in another tile of positions than the
/// earlier ones.
const STEPS: [(usize, &[(usize, usize)]); 8] = [
    (4, &[(1, 1), (1, 16), (1, 17), (1, 300)]),
    (4, &[(1, 90), (40, 70), (1, 5), (3, 64)]),
    (16, &[(1, 700)]),
    (16, &[(9, 9), (5, 130), (17, 17)]),
    (20, &[(1, 33), (1, 200)]),
    (20, &[(4, 65), (1, 5), (1, 40)]),
    (20, &[(7, 65), (13, 71), (1, 30)]),
    (128, &[(1, 40), (2, 66)]),
];

/// Element types of queries and of the cache.
const TYPES: [(DType, DType); 3] =
    [(DType::BF16, DType::BF16), (DType::BF16, DType::F8E4M3), (DType::F16, DType::F16)];

pub(crate) fn latent_attention(gpu: &Gpu) {
    let mut random = Random(83);
    for (i, (heads, seqs)) in STEPS.into_iter().enumerate() {
        // Each step has the common types, and one of the other two.
        for types in [TYPES[0], TYPES[1 + i % 2]] {
            let Some(step) = Step::new(gpu, &mut random, (heads, seqs), types) else { continue };
            let mut plan = step.plan(gpu.device()).unwrap();
            plan.prepare(&step.attention_step(LaunchShape::Fitted)).unwrap();
            let out = gpu.unwritten(&step.out_dims(), types.0);
            step.attend(gpu.device(), &plan, &out);
            step.compare(gpu, &out);
        }
    }
    refuses_what_it_has_not(gpu);
}

fn refuses_what_it_has_not(gpu: &Gpu) {
    let types = TYPES[0];
    let step = Step::new(gpu, &mut Random(85), (4, &[(1, 1)]), types).unwrap();
    let of_other_size = Step { config: config(60, 256, 320), ..step.clone() };
    let with_window = |window| AttentionSpec { window, ..step.spec() };
    let new = |spec, config, sink_tokens| {
        let capacity = PlanCapacity { sink_tokens, ..CAPACITY };
        AttentionPlan::new(gpu.device(), spec, &config, capacity).unwrap_err().to_string()
    };
    for (error, word) in [
        (of_other_size.plan(gpu.device()).unwrap_err().to_string(), "latent"),
        (new(with_window(Some(8)), step.config, 0), "window"),
        (new(AttentionSpec { heads: 129, ..step.spec() }, step.config, 0), "heads"),
        (new(step.spec(), step.config, 1), "sink_tokens"),
        (
            new(
                AttentionSpec { dtype: DType::F16, cache_dtype: DType::F8E4M3, ..step.spec() },
                step.config,
                0,
            ),
            "FP8",
        ),
    ] {
        assert!(error.contains(word), "{error}");
    }
    let mut plan = step.plan(gpu.device()).unwrap();
    plan.prepare(&step.attention_step(LaunchShape::Fitted)).unwrap();
    let (q, layer) = step.operands(gpu.device());
    let out = gpu.unwritten(&step.out_dims(), types.0);
    let capped = PagedAttention { softcap: Some(30.0), ..step.params() };
    let error = plan.attend(&q, &layer, &capped, None, &out).unwrap_err().to_string();
    assert!(error.contains("soft cap"), "{error}");
    // More tiles of queries than FlashInfer has space for.
    let tokens = 16384;
    let meta = AttentionMetadata {
        query_start: vec![0, tokens],
        context_len: vec![tokens],
        block_tables: (0..tokens / 16).collect(),
        max_blocks: tokens as usize / 16,
        mutual: Vec::new(),
    };
    let spec = AttentionSpec { heads: 128, ..step.spec() };
    let config = config(tokens as usize / 16, 512, 576);
    let mut plan = AttentionPlan::new(gpu.device(), spec, &config, CAPACITY).unwrap();
    let launch = LaunchShape::Fitted;
    let error = plan.prepare(&AttentionStep { meta: &meta, tokens: tokens as usize, launch });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("fewer tokens"), "{error}");
}

/// A captured graph computes other lengths after another `prepare` for the same bucket.
pub(crate) fn latent_fixed_launch(gpu: &Gpu) {
    let mut random = Random(84);
    for (heads, types, buckets) in [
        (16, TYPES[0], [[(1, 1), (1, 40), (1, 17)], [(1, 300), (1, 3), (1, 2)]]),
        (20, TYPES[1], [[(4, 65), (4, 5), (4, 9)], [(4, 4), (4, 129), (4, 77)]]),
    ] {
        let Some(first) = Step::new(gpu, &mut random, (heads, &buckets[0]), types) else {
            continue;
        };
        let mut plan = first.plan(gpu.device()).unwrap();
        plan.prepare(&first.attention_step(LaunchShape::Fixed)).unwrap();
        let out = gpu.unwritten(&first.out_dims(), types.0);
        // One launch outside of the graph, so that everything is loaded.
        first.attend(gpu.device(), &plan, &out);
        first.compare(gpu, &out);
        let (q, layer) = first.operands(gpu.device());
        let params = first.params();
        let attend = || plan.attend(&q, &layer, &params, None, &out);
        let graph = Graph::capture(gpu.device(), attend).unwrap();
        // The graph was captured with the plan of the first bucket, so it must first take over another one.
        for seqs in buckets.iter().rev() {
            let meta = metadata(&mut random, &first.config, seqs);
            let step = Step { meta, ..first.clone() };
            plan.prepare(&step.attention_step(LaunchShape::Fixed)).unwrap();
            graph.launch().unwrap();
            step.compare(gpu, &out);
        }
    }
}

const CAPACITY: PlanCapacity =
    PlanCapacity { max_seqs: 8, max_pages: 2048, partials_bytes: 128 << 20, sink_tokens: 0 };

/// A step's operands.
#[derive(Clone)]
struct Step {
    config: KvCacheConfig,
    heads: usize,
    types: (DType, DType),
    meta: AttentionMetadata,
    tokens: usize,
    q: Vec<f32>,
    keys: Vec<f32>,
}

impl Step {
    /// `None` if the GPU has too little shared memory for FP8.
    fn new(
        gpu: &Gpu,
        random: &mut Random,
        (heads, seqs): (usize, &[(usize, usize)]),
        types: (DType, DType),
    ) -> Option<Self> {
        let config = config(60, 512, 576);
        let tokens = seqs.iter().map(|seq| seq.0).sum();
        let step = Self {
            heads,
            types,
            meta: metadata(random, &config, seqs),
            tokens,
            q: random.floats(tokens * heads * config.head_dim, 2.0, types.0),
            keys: random.floats(60 * 16 * config.head_dim, 1.0, types.1),
            config,
        };
        match step.plan(gpu.device()) {
            Err(error) if error.to_string().contains("an H100") => None,
            _ => Some(step),
        }
    }

    fn spec(&self) -> AttentionSpec {
        let (dtype, cache_dtype) = self.types;
        AttentionSpec { heads: self.heads, window: None, dtype, cache_dtype }
    }

    fn params(&self) -> PagedAttention {
        // Queries are scaled by the width of heads before their projection to latents: 128 and 64 rotated
        // elements.
        PagedAttention { scale: 192f32.sqrt().recip(), window: None, softcap: None }
    }

    fn plan(&self, device: &Device) -> candlepower_kernels::Result<AttentionPlan> {
        AttentionPlan::new(device, self.spec(), &self.config, CAPACITY)
    }

    fn attention_step(&self, launch: LaunchShape) -> AttentionStep<'_> {
        AttentionStep { meta: &self.meta, tokens: self.tokens, launch }
    }

    fn out_dims(&self) -> [usize; 3] {
        [self.tokens, self.heads, 512]
    }

    fn operands(&self, device: &Device) -> (Tensor, PagedLayer) {
        let KvCacheConfig { num_blocks, block_size, head_dim, .. } = self.config;
        let q = floats(device, &self.q, &[self.tokens, self.heads, head_dim], self.types.0);
        let dims = [num_blocks, 1, block_size, head_dim];
        let keys = floats(device, &self.keys, &dims, self.types.1);
        let key = if self.types.1 == DType::F8E4M3 { 0.6 } else { 1.0 };
        let scales = KvScales { key, value: key };
        (q, PagedLayer { values: keys.clone(), keys, scales })
    }

    fn attend(&self, device: &Device, plan: &AttentionPlan, out: &Tensor) {
        let (q, layer) = self.operands(device);
        plan.attend(&q, &layer, &self.params(), None, out).unwrap();
    }

    fn compare(&self, gpu: &Gpu, out: &Tensor) {
        let mut plan = self.plan(&Device::Cpu).unwrap();
        plan.prepare(&self.attention_step(LaunchShape::Fitted)).unwrap();
        let want = Tensor::zeros(&self.out_dims(), self.types.0, &Device::Cpu).unwrap();
        self.attend(&Device::Cpu, &plan, &want);
        // Tensor cores round the softmax's weights to the element type: up to half a step for each term. Both results
        // are rounded, and those of FP8 again after scaling.
        let tolerance = Tolerance { own: 2.0, largest: 1.0 };
        let Self { heads, types, meta, .. } = self;
        let what = format!("{heads} heads, {types:?}, contexts {:?}", meta.context_len);
        gpu.assert_close(out, &to_vec(&want), tolerance, &what);
    }
}
