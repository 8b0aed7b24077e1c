//! A step's attention on CPU and GPU, and its comparison with the reference.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use candlepower_gpu::cuda::AttentionPlan;
use candlepower_gpu::{AttentionSpec, AttentionStep, LaunchShape, PagedLayer, PlanCapacity};
use candlepower_kernels::{
    AttentionMetadata, CacheOrder, CacheView, KvCacheConfig, KvScales, PagedAttention,
    operands::SequenceView, paged_attention_reference, reshape_and_cache_reference,
};
use float8::F8E4M3;

use crate::gpu::{Gpu, Random, Tolerance, to_vec};

/// Scales of a layer whose cache has elements of `dtype`.
pub(super) fn scales_of(dtype: DType) -> KvScales {
    match dtype {
        DType::F8E4M3 => KvScales { key: 0.6, value: 2.5 },
        _ => KvScales::ONE,
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
        of: ((DType, DType), &[(usize, usize)]),
    ) -> Self {
        Self::in_blocks(gpu, random, shape, of, (160, 16))
    }

    /// The same in a cache with other numbers of blocks and of tokens in a block.
    pub(crate) fn in_blocks(
        gpu: &Gpu,
        random: &mut Random,
        shape: &Shape,
        ((dtype, cache_dtype), seqs): ((DType, DType), &[(usize, usize)]),
        (num_blocks, block_size): (usize, usize),
    ) -> Self {
        let config = config(num_blocks, shape.kv_heads, shape.head_dim);
        let config = KvCacheConfig { block_size, ..config };
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

    /// The same q, and a cache of FP8 with these scales. It has all values of e4m3, and NaN where no sequence has a position.
    pub(crate) fn with_all_values(
        mut self,
        gpu: &Gpu,
        random: &mut Random,
        scales: KvScales,
    ) -> Self {
        const NAN: u8 = 0x7f;
        let dims = self.layer.keys.dims().to_vec();
        let [kv_heads, block_size, head_dim] = [dims[1], dims[2], dims[3]];
        let mut bytes = [vec![NAN; dims.iter().product()], vec![NAN; dims.iter().product()]];
        for (seq, context_len) in self.meta.context_len.iter().enumerate() {
            let table = &self.meta.block_tables[seq * self.meta.max_blocks..];
            for position in 0..*context_len as usize {
                let block = table[position / block_size] as usize;
                for head in 0..kv_heads {
                    let row = (block * kv_heads + head) * block_size + position % block_size;
                    for bytes in &mut bytes {
                        for byte in &mut bytes[row * head_dim..][..head_dim] {
                            *byte = (random.below(127) + 128 * random.below(2)) as u8;
                        }
                    }
                }
            }
        }
        let [keys, values] =
            bytes.map(|bytes| bytes.into_iter().map(F8E4M3::from_bits).collect::<Vec<_>>());
        for slot in 0..self.config.num_blocks * block_size {
            for head in 0..kv_heads {
                for dim in 0..head_dim {
                    let order = CacheOrder::Single;
                    let (key, value) =
                        reshape_and_cache_reference(&self.config, order, slot, (head, dim));
                    self.keys[key] = keys[value].to_f32() * scales.key;
                }
            }
        }
        self.values = values.iter().map(|value| value.to_f32() * scales.value).collect();
        let [keys, values] = [keys, values].map(|elements| {
            Tensor::from_vec(elements, &dims[..], &Device::Cpu)
                .unwrap()
                .to_device(gpu.device())
                .unwrap()
        });
        self.layer = PagedLayer { keys, values, scales };
        self
    }

    /// The same q and cache with other sequences.
    pub(crate) fn with_lengths(&self, random: &mut Random, seqs: &[(usize, usize)]) -> Self {
        Self { meta: metadata(random, &self.config, seqs), ..self.clone() }
    }

    /// The first token of some of the step's sequences, and a step of these alone.
    pub(super) fn part(&self, seqs: Range<usize>) -> (usize, Self) {
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

    pub(super) fn plan(&self, gpu: &Gpu) -> AttentionPlan {
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

pub(super) fn config(num_blocks: usize, num_kv_heads: usize, head_dim: usize) -> KvCacheConfig {
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
