//! The fast path against the reference, and the promise that a row does not depend on the other rows.

use candle_core::{DType, Device};

use super::*;
use crate::{KvScales, reshape_and_cache};

/// Repeatable values between -1 and 1.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / 8_388_608.0 - 1.0
    }

    fn below(&mut self, bound: usize) -> usize {
        ((self.next() + 1.0) * 0.5 * bound as f32) as usize % bound
    }

    fn take(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }
}

/// The shape of a model's attention.
#[derive(Clone, Copy, Debug)]
struct Shape {
    group: usize,
    kv_heads: usize,
    head_dim: usize,
    block_size: usize,
    /// Number of leading elements of a key that are its value, for latents (MLA).
    latent: Option<usize>,
}

/// Sequences whose keys and values are in a cache, at scattered blocks, and a query at each position. Blocks that
/// belong to no sequence, and the slots after each last position, hold NaN.
struct Fixture {
    shape: Shape,
    cache: KvCache,
    block_tables: Vec<Vec<u32>>,
    /// Queries of each sequence, `[length, heads, head_dim]`.
    queries: Vec<Vec<f32>>,
    /// Attention sink logits, for shapes in which several heads share keys.
    sinks: Option<Vec<f32>>,
    /// Ranges of positions that see each other both ways, in each sequence that has them.
    mutual: Vec<Range<usize>>,
}

impl Fixture {
    fn new(shape: Shape, lengths: &[usize]) -> Self {
        Self::of(DType::F32, shape, lengths)
    }

    fn of(dtype: DType, shape: Shape, lengths: &[usize]) -> Self {
        let Shape { group, kv_heads, head_dim, block_size, latent } = shape;
        let device = &Device::Cpu;
        let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
        let blocks: Vec<usize> = lengths.iter().map(|length| length.div_ceil(block_size)).collect();
        let num_blocks = blocks.iter().sum::<usize>() + 3;
        let config = KvCacheConfig {
            num_layers: 2,
            num_blocks,
            block_size,
            num_kv_heads: kv_heads,
            head_dim,
            latent,
        };
        let value_dim = config.value_dim();
        let mut cache = KvCache::new(config, dtype, device).unwrap();
        if dtype == DType::F8E4M3 {
            let scales = [
                KvScales::ONE,
                KvScales { key: 0.37, value: if latent.is_some() { 0.37 } else { 2.3 } },
            ];
            cache = cache.with_scales(&scales).unwrap();
        }
        let write = |slots: &[u32], values: Vec<f32>, values_2: Vec<f32>| {
            let dims = [slots.len(), kv_heads, head_dim];
            let k = Tensor::from_vec(values, &dims, device).unwrap();
            let v = match latent {
                Some(_) => k.narrow(2, 0, value_dim).unwrap().contiguous().unwrap(),
                None => Tensor::from_vec(values_2, &dims, device).unwrap(),
            };
            reshape_and_cache(&k, &v, &cache, 1, &Tensor::new(slots, device).unwrap()).unwrap();
        };
        let all: Vec<u32> = (0..(num_blocks * block_size) as u32).collect();
        let nans = vec![f32::NAN; all.len() * kv_heads * head_dim];
        write(&all, nans.clone(), nans);
        let mut free: Vec<u32> = (0..num_blocks as u32).collect();
        let mut block_tables = Vec::new();
        let mut queries = Vec::new();
        for (length, blocks) in lengths.iter().zip(blocks) {
            let table: Vec<u32> =
                (0..blocks).map(|_| free.swap_remove(numbers.below(free.len()))).collect();
            let slots: Vec<u32> = (0..*length)
                .map(|p| table[p / block_size] * block_size as u32 + (p % block_size) as u32)
                .collect();
            let count = length * kv_heads * head_dim;
            write(&slots, numbers.take(count), numbers.take(count));
            block_tables.push(table);
            queries.push(numbers.take(count * group));
        }
        let sinks = (group > 1).then(|| numbers.take(group * kv_heads));
        let sinks = sinks.map(|sinks| sinks.into_iter().map(|sink| 3.0 * sink).collect());
        Self { shape, cache, block_tables, queries, sinks, mutual: Vec::new() }
    }

    fn row_elements(&self) -> usize {
        self.shape.group * self.shape.kv_heads * self.shape.head_dim
    }

    /// Runs one step with the queries at the given positions of each sequence.
    fn step(
        &self,
        isa: Isa,
        rows: &[(usize, Range<usize>)],
        params: &PagedAttention,
    ) -> Vec<Vec<f32>> {
        let width = self.row_elements();
        let max_blocks = self.block_tables.iter().map(Vec::len).max().unwrap();
        let mut q = Vec::new();
        let mut meta = AttentionMetadata {
            query_start: vec![0],
            context_len: Vec::new(),
            block_tables: Vec::new(),
            max_blocks,
            mutual: Vec::new(),
        };
        for (seq, positions) in rows {
            q.extend(&self.queries[*seq][positions.start * width..positions.end * width]);
            meta.query_start.push((q.len() / width) as u32);
            meta.context_len.push(positions.end as u32);
            let is_here = |range: &&Range<usize>| {
                positions.start <= range.start && range.end <= positions.end
            };
            meta.mutual.push(self.mutual.iter().filter(is_here).cloned().collect());
            let mut table = self.block_tables[*seq].clone();
            table.resize(max_blocks, u32::MAX);
            meta.block_tables.extend(table);
        }
        let tokens = q.len() / width;
        let layer = self.cache.layer(1).unwrap();
        let out_width = width / self.shape.head_dim * self.cache.config().value_dim();
        let mut out = vec![std::mem::MaybeUninit::new(f32::NAN); tokens * out_width];
        let step = paged::Step {
            q: &q,
            config: *self.cache.config(),
            heads: self.shape.group * self.shape.kv_heads,
            params: *params,
            sinks: self.sinks.as_deref(),
            scales: layer.scales,
            out: SharedMut::new(&mut out),
        };
        let sequences = meta.sequences(tokens, self.cache.config()).unwrap();
        attend_layer(isa, step, layer, &sequences).unwrap();
        // SAFETY: all elements were initialised with NaN.
        let out: Vec<f32> = out.into_iter().map(|v| unsafe { v.assume_init() }).collect();
        let bounds = meta.query_start.windows(2);
        bounds.map(|b| out[b[0] as usize * out_width..b[1] as usize * out_width].to_vec()).collect()
    }

    /// The keys and the values of the layer, as f32.
    fn numbers(&self) -> [Vec<f32>; 2] {
        let layer = self.cache.layer(1).unwrap();
        let numbers = |tensor: &Tensor, scale: f32| -> Vec<f32> {
            let numbers = (tensor.to_dtype(DType::F32).unwrap() * f64::from(scale)).unwrap();
            numbers.flatten_all().unwrap().to_vec1().unwrap()
        };
        [numbers(&layer.keys, layer.scales.key), numbers(&layer.values, layer.scales.value)]
    }

    /// The reference at one position, for queries rounded as in the kernel: `[heads, head_dim]`.
    fn reference(
        &self,
        [keys, values]: &[Vec<f32>; 2],
        seq: usize,
        position: usize,
        params: &PagedAttention,
    ) -> Vec<f32> {
        let width = self.row_elements();
        let mut q = self.queries[seq][position * width..(position + 1) * width].to_vec();
        let order = CacheOrder::of(self.cache.dtype());
        if order == CacheOrder::Pairs {
            q.iter_mut().for_each(|number| *number = bf16::from_f32(*number).to_f32());
        }
        let length = self.queries[seq].len() / width;
        let mutual: Vec<_> = self.mutual.iter().filter(|r| r.end <= length).cloned().collect();
        let heads = q.chunks_exact(self.shape.head_dim).enumerate();
        heads
            .flat_map(|(head, q)| {
                let sink = self.sinks.as_ref().map(|sinks| sinks[head]);
                let head = head / self.shape.group;
                let config = self.cache.config();
                let view = CacheView { keys, values, config, order, head };
                let block_table = &self.block_tables[seq];
                let seq = SequenceView { block_table, mutual: &mutual, ..SequenceView::default() };
                paged_attention_reference(q, &view, &seq, position, params, sink)
            })
            .collect()
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn params(window: Option<usize>, softcap: Option<f32>) -> PagedAttention {
    PagedAttention { scale: 0.3, window, softcap }
}

const SHAPES: [Shape; 11] = [
    Shape { group: 7, kv_heads: 2, head_dim: 64, block_size: 16, latent: None },
    Shape { group: 1, kv_heads: 3, head_dim: 80, block_size: 32, latent: None },
    Shape { group: 4, kv_heads: 1, head_dim: 128, block_size: 16, latent: None },
    Shape { group: 2, kv_heads: 2, head_dim: 8, block_size: 64, latent: None },
    Shape { group: 16, kv_heads: 1, head_dim: 96, block_size: 48, latent: None },
    Shape { group: 3, kv_heads: 1, head_dim: 264, block_size: 128, latent: None },
    Shape { group: 71, kv_heads: 1, head_dim: 24, block_size: 16, latent: None },
    Shape { group: 2, kv_heads: 2, head_dim: 256, block_size: 16, latent: None },
    Shape { group: 5, kv_heads: 1, head_dim: 512, block_size: 32, latent: None },
    Shape { group: 5, kv_heads: 1, head_dim: 40, block_size: 16, latent: Some(24) },
    Shape { group: 20, kv_heads: 1, head_dim: 576, block_size: 32, latent: Some(512) },
];

const PARAMS: [(Option<usize>, Option<f32>); 5] =
    [(None, None), (Some(20), None), (Some(1), None), (None, Some(0.5)), (Some(70), Some(3.0))];

#[test]
fn every_shape_matches_the_definition() {
    compare_shapes(DType::F32, &[1, 15, 16, 17, 64, 65, 150], 2e-6);
}

/// Weights are rounded to 8 bits, and so is their sum, so that values of up to 1 change by 2^-8 at most.
#[test]
fn every_shape_of_a_cache_in_bf16_matches_the_definition() {
    let moved = compare_shapes(DType::BF16, &[1, 2, 15, 16, 17, 64, 65, 150], 1.0 / 256.0);
    assert!(moved < 4e-4, "on average by {moved}");
}

/// Values of a cache in FP8 are widened without an error, and multiplied by their scales.
#[test]
fn every_shape_of_a_cache_in_fp8_matches_the_definition() {
    compare_shapes(DType::F8E4M3, &[17, 80], 2e-6);
}

/// Returns the mean difference of the results.
fn compare_shapes(dtype: DType, lengths: &[usize], limit: f32) -> f64 {
    let (mut moved, mut count) = (0.0, 0);
    for shape in SHAPES {
        // Scores are sums over a head, so their errors grow with its size.
        let limit = limit * (shape.head_dim as f32 / 192.0).max(1.0);
        let fixture = Fixture::of(dtype, shape, lengths);
        let numbers = fixture.numbers();
        for (window, softcap) in PARAMS {
            let params = params(window, softcap);
            let rows: Vec<_> =
                lengths.iter().enumerate().map(|(seq, length)| (seq, 0..*length)).collect();
            let results: Vec<_> =
                Isa::all().into_iter().map(|isa| fixture.step(isa, &rows, &params)).collect();
            for (seq, length) in lengths.iter().enumerate() {
                for result in &results {
                    assert_eq!(
                        bits(&result[seq]),
                        bits(&results[0][seq]),
                        "instruction sets differ"
                    );
                }
                for position in 0..*length {
                    let want = fixture.reference(&numbers, seq, position, &params);
                    let got = &results[0][seq][position * want.len()..][..want.len()];
                    for (got, want) in got.iter().zip(&want) {
                        assert!(
                            (got - want).abs() <= limit * want.abs().max(1.0),
                            "{got} is not {want}: {shape:?} {params:?} sequence {seq} position {position}"
                        );
                        moved += f64::from((got - want).abs());
                        count += 1;
                    }
                }
            }
        }
    }
    moved / f64::from(count)
}

/// Windows that end within an image, and images longer than a tile, a window and a partition.
#[test]
fn positions_of_an_image_see_each_other_both_ways() {
    let shape = Shape { group: 2, kv_heads: 2, head_dim: 32, block_size: 16, latent: None };
    let lengths = [20, 700];
    for dtype in [DType::F32, DType::BF16] {
        let mut fixture = Fixture::of(dtype, shape, &lengths);
        let causal = fixture.step(Isa::detect(), &[(1, 0..700)], &params(None, None));
        fixture.mutual = vec![3..9, 9..15, 40..141, 200..630];
        let numbers = fixture.numbers();
        let limit = if dtype == DType::F32 { 3e-6 } else { 1.0 / 256.0 };
        for (window, softcap) in PARAMS {
            let params = params(window, softcap);
            let rows = [(0, 0..20), (1, 0..700)];
            let results: Vec<_> =
                Isa::all().into_iter().map(|isa| fixture.step(isa, &rows, &params)).collect();
            let width = fixture.row_elements();
            for (seq, length) in lengths.into_iter().enumerate() {
                for result in &results {
                    assert_eq!(bits(&result[seq]), bits(&results[0][seq]));
                }
                // The reference takes long, so it is computed around the borders and now and then between them.
                let is_near = |p: &usize| {
                    let borders = fixture.mutual.iter().flat_map(|range| [range.start, range.end]);
                    p.is_multiple_of(37) || borders.clone().any(|border| border.abs_diff(*p) < 2)
                };
                for position in (0..length).filter(is_near) {
                    let want = fixture.reference(&numbers, seq, position, &params);
                    let got = &results[0][seq][position * width..][..width];
                    for (got, want) in got.iter().zip(&want) {
                        assert!(
                            (got - want).abs() <= limit * want.abs().max(1.0),
                            "{params:?} {position}"
                        );
                    }
                }
            }
            // Rows end between images.
            let mut parts: Vec<f32> = Vec::new();
            for range in [0..9, 9..38, 38..141, 141..190, 190..650, 650..700] {
                parts.extend(fixture.step(Isa::detect(), &[(1, range)], &params).remove(0));
            }
            assert_eq!(bits(&parts), bits(&results[0][1]), "{params:?}");
        }
        let both_ways = fixture.step(Isa::detect(), &[(1, 0..700)], &params(None, None));
        let width = fixture.row_elements();
        assert_eq!(bits(&causal[0][..3 * width]), bits(&both_ways[0][..3 * width]));
        assert_ne!(bits(&causal[0][3 * width..]), bits(&both_ways[0][3 * width..]));
    }
}

/// A prompt's rows must not depend on how it is cut, on its neighbours, or on the threads.
#[test]
fn chunks_batches_and_threads_give_the_same_bits() {
    let shape = Shape { group: 2, kv_heads: 1, head_dim: 40, block_size: 16, latent: None };
    let lengths = [1100, 90, 2100, 5];
    for dtype in [DType::F32, DType::BF16] {
        same_bits(&Fixture::of(dtype, shape, &lengths));
    }
}

fn same_bits(fixture: &Fixture) {
    for (window, softcap) in [(None, None), (Some(101), Some(2.0)), (Some(1030), None)] {
        let params = params(window, softcap);
        for isa in Isa::all() {
            let whole = fixture.step(isa, &[(0, 0..1100)], &params).remove(0);
            let width = fixture.row_elements();
            for chunk in [1, 7, 64, 333] {
                for start in (0..1100).step_by(chunk) {
                    // Single positions: only those on both sides of a tile's border.
                    if chunk == 1 && !(4..12).contains(&((start + 8) % 64)) {
                        continue;
                    }
                    let end = 1100.min(start + chunk);
                    let mut rows = vec![(0, start..end)];
                    if start % 3 > 0 {
                        rows.extend([(1, 89..90), (3, 0..5)]);
                    }
                    if start / chunk % 16 == 0 {
                        rows.push((2, 2098..2100));
                    }
                    let turn = start % rows.len();
                    rows.rotate_left(turn);
                    let at = rows.iter().position(|(seq, _)| *seq == 0).unwrap();
                    let got = fixture.step(isa, &rows, &params).remove(at);
                    assert_eq!(
                        bits(&got),
                        bits(&whole[start * width..end * width]),
                        "{isa:?} {params:?} chunk {start}..{end}"
                    );
                }
            }
            for threads in [1, 2, 5] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                for rows in [&[(2, 2099..2100)][..], &[(2, 1900..2100)]] {
                    let one = fixture.step(isa, rows, &params).remove(0);
                    let got = pool.install(|| fixture.step(isa, rows, &params)).remove(0);
                    assert_eq!(bits(&got), bits(&one), "{isa:?} {params:?} {threads} threads");
                }
            }
        }
    }
}

#[test]
fn the_wrapper_computes_and_checks() {
    let fixture = Fixture::new(SHAPES[0], &[20]);
    let device = &Device::Cpu;
    let params = params(None, None);
    let meta = AttentionMetadata {
        query_start: vec![0, 2],
        context_len: vec![20],
        block_tables: fixture.block_tables[0].clone(),
        max_blocks: 2,
        mutual: Vec::new(),
    };
    let width = fixture.row_elements();
    let q = Tensor::from_slice(&fixture.queries[0][18 * width..], (2, 14, 64), device).unwrap();
    let sinks = Tensor::new(fixture.sinks.clone().unwrap(), device).unwrap();
    let run = |meta: &AttentionMetadata| {
        paged_attention(&q, &fixture.cache, 1, meta, &params, Some(&sinks))
    };
    let got: Vec<f32> = run(&meta).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    let want = fixture.step(Isa::detect(), &[(0, 18..20)], &params).remove(0);
    assert_eq!(bits(&got), bits(&want));

    let refused = |meta: AttentionMetadata| matches!(run(&meta), Err(Error::Metadata(_)));
    assert!(refused(AttentionMetadata { query_start: vec![0, 1], ..meta.clone() }));
    assert!(refused(AttentionMetadata { query_start: vec![0], ..meta.clone() }));
    assert!(refused(AttentionMetadata { context_len: vec![1], ..meta.clone() }));
    assert!(refused(AttentionMetadata { context_len: vec![33], ..meta.clone() }));
    assert!(refused(AttentionMetadata { block_tables: vec![0], ..meta.clone() }));
    assert!(refused(AttentionMetadata { block_tables: vec![0, 5], ..meta.clone() }));
    for wrong in [&[(17, 19)][..], &[(18, 21)], &[(19, 19)], &[(19, 20), (18, 19)]] {
        let ranges = wrong.iter().map(|(start, end)| *start..*end).collect();
        assert!(refused(AttentionMetadata { mutual: vec![ranges], ..meta.clone() }));
    }
    assert!(refused(AttentionMetadata { mutual: vec![vec![]; 2], ..meta.clone() }));
    let narrow = PagedAttention { window: Some(0), ..params };
    let window = paged_attention(&q, &fixture.cache, 1, &meta, &narrow, None);
    assert!(matches!(window, Err(Error::Parameter { parameter: "window", .. })));
    let layer = paged_attention(&q, &fixture.cache, 2, &meta, &params, None);
    assert!(matches!(layer, Err(Error::OutOfRange { index: "layer", .. })));
    let few = sinks.narrow(0, 0, 13).unwrap();
    let sinks = paged_attention(&q, &fixture.cache, 1, &meta, &params, Some(&few));
    assert!(matches!(sinks, Err(Error::Shape { operand: "sinks", .. })));
    for dims in [(2, 13, 64), (2, 7, 128)] {
        let q = Tensor::zeros(dims, DType::F32, device).unwrap();
        let shape = paged_attention(&q, &fixture.cache, 1, &meta, &params, None);
        assert!(matches!(shape, Err(Error::Shape { operand: "q", .. })));
    }
    let q = q.to_dtype(DType::F16).unwrap();
    assert!(matches!(
        paged_attention(&q, &fixture.cache, 1, &meta, &params, None),
        Err(Error::DType { .. })
    ));
}
