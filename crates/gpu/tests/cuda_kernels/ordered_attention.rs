//! Attention in a fixed order: the bits of a query must not depend on what else is in the step.

use candle_core::{DType, Device, Tensor};
use candlepower_gpu::cuda::OrderedAttentionPlan;
use candlepower_gpu::{AttentionStep, Graph, LaunchShape, PlanCapacity};
use candlepower_kernels::{AttentionMetadata, KvCacheConfig};

use crate::attention::{Shape, Step};
use crate::gpu::{Gpu, HALVES, Random, assert_same_bits, to_vec};

/// Decodes and prompts, with one to three ranges of keys and ends around those of tiles and ranges.
const SEQS: [(usize, usize); 6] = [(1, 700), (40, 311), (1, 5), (3, 258), (70, 70), (1, 257)];

/// Query heads, KV heads, elements of a head, window, soft cap.
type Case = (usize, usize, usize, Option<usize>, Option<f32>);

const CASES: [Case; 8] = [
    (14, 2, 64, None, None),
    (8, 8, 64, Some(48), None),
    (6, 2, 128, None, Some(30.0)),
    (32, 4, 128, Some(300), None),
    (5, 1, 128, Some(100), Some(50.0)),
    (40, 1, 64, None, None),
    (8, 4, 256, None, None),
    (4, 2, 256, Some(200), None),
];

/// Memory for many partial results, and for none.
const PARTIALS: [usize; 2] = [64 << 20, 1024];

pub(crate) fn ordered_attention(gpu: &Gpu) {
    let mut random = Random(28);
    for (index, case) in CASES.into_iter().enumerate() {
        // Both dtypes have the same code, so that each case takes one of them.
        compare(gpu, &mut random, case, HALVES[index % HALVES.len()]);
    }
    replayed(gpu, &mut random);
    refused(gpu);
}

fn compare(gpu: &Gpu, random: &mut Random, case: Case, dtype: DType) {
    let (heads, kv_heads, head_dim, window, softcap) = case;
    let shape = Shape { heads, kv_heads, head_dim, window, softcap, seqs: &[] };
    let step = Step::new(gpu, random, &shape, ((dtype, dtype), &SEQS));
    let [in_parts, whole] = PARTIALS.map(|bytes| attend(gpu, &step, bytes, LaunchShape::Fitted));
    step.compare(gpu, &in_parts);
    let all = to_vec(&in_parts);
    assert_same_bits(&whole, &all, &format!("{case:?} without partial results"));

    let width = heads * head_dim;
    let starts: Vec<usize> =
        SEQS.iter().scan(0, |end, seq| Some(std::mem::replace(end, *end + seq.0))).collect();
    // The output of the last `queries` queries of a sequence up to `context` in the step of all.
    let of = |&(seq, queries, context): &(usize, usize, usize)| {
        let end = starts[seq] + SEQS[seq].0 - (SEQS[seq].1 - context);
        all[(end - queries) * width..end * width].to_vec()
    };
    let check = |chosen: &[(usize, usize, usize)], launch| {
        for bytes in PARTIALS {
            let out = attend(gpu, &step.queries(chosen), bytes, launch);
            let want: Vec<f32> = chosen.iter().flat_map(of).collect();
            assert_same_bits(
                &out,
                &want,
                &format!("{case:?}, {chosen:?}, {launch:?}, {bytes} bytes"),
            );
        }
    };
    // Each sequence alone; chunks of prompts; and prompt tokens as decodes, alone and together.
    (0..SEQS.len()).for_each(|seq| check(&[(seq, SEQS[seq].0, SEQS[seq].1)], LaunchShape::Fitted));
    check(&[(1, 17, 288), (4, 33, 33), (1, 23, 311), (4, 37, 70)], LaunchShape::Fitted);
    check(&[(4, 1, 1)], LaunchShape::Fitted);
    check(&[(1, 1, 272)], LaunchShape::Fixed);
    let decodes = [(4, 1, 32), (1, 1, 300), (0, 1, 700), (3, 1, 257), (3, 1, 256), (4, 1, 70)];
    check(&decodes, LaunchShape::Fitted);
    check(&decodes, LaunchShape::Fixed);
    check(&[(1, 9, 311), (4, 1, 33), (1, 1, 273), (4, 20, 60)], LaunchShape::Fitted);
}

fn attend(gpu: &Gpu, step: &Step, partials_bytes: usize, launch: LaunchShape) -> Tensor {
    let mut plan = plan(gpu, step, partials_bytes);
    plan.prepare(&step.attention_step(launch)).unwrap();
    let out = gpu.unwritten(&step.q_dims(), step.q_on_gpu.dtype());
    let sinks = step.sinks(gpu);
    plan.attend(&step.q_on_gpu, &step.layer, &step.params, sinks.as_ref(), &out).unwrap();
    out
}

fn plan(gpu: &Gpu, step: &Step, partials_bytes: usize) -> OrderedAttentionPlan {
    let capacity = PlanCapacity { max_seqs: 8, max_pages: 512, partials_bytes, sink_tokens: 1024 };
    OrderedAttentionPlan::new(gpu.device(), step.spec(), &step.config, capacity).unwrap()
}

/// A captured graph computes other lengths after another `prepare`.
fn replayed(gpu: &Gpu, random: &mut Random) {
    let shape =
        Shape { heads: 6, kv_heads: 2, head_dim: 64, window: None, softcap: None, seqs: &[] };
    let dtype = DType::BF16;
    let step = Step::new(gpu, random, &shape, ((dtype, dtype), &SEQS));
    let first = step.queries(&[(4, 1, 3), (0, 1, 700), (2, 1, 5)]);
    let mut plan = plan(gpu, &step, PARTIALS[0]);
    let (q, out) = (first.q_on_gpu.copy().unwrap(), gpu.unwritten(&first.q_dims(), dtype));
    let sinks = step.sinks(gpu);
    plan.prepare(&first.attention_step(LaunchShape::Fixed)).unwrap();
    let graph = {
        let run = || plan.attend(&q, &step.layer, &step.params, sinks.as_ref(), &out);
        // One launch outside of the graph, so that everything is loaded.
        run().unwrap();
        Graph::capture(gpu.device(), run).unwrap()
    };
    for chosen in [[(4, 1, 50), (1, 1, 290), (3, 1, 258)], [(0, 1, 700), (4, 1, 1), (4, 1, 2)]] {
        let next = step.queries(&chosen);
        q.slice_set(&next.q_on_gpu, 0, 0).unwrap();
        plan.prepare(&next.attention_step(LaunchShape::Fixed)).unwrap();
        graph.launch().unwrap();
        let want = attend(gpu, &next, PARTIALS[0], LaunchShape::Fitted);
        assert_same_bits(&out, &to_vec(&want), &format!("replayed {chosen:?}"));
    }
}

/// Caches and steps that are refused.
fn refused(gpu: &Gpu) {
    let config = |head_dim| KvCacheConfig {
        num_layers: 1,
        num_blocks: 4,
        block_size: 16,
        num_kv_heads: 1,
        head_dim,
        latent: None,
    };
    let spec = |cache_dtype| candlepower_gpu::AttentionSpec {
        heads: 2,
        window: None,
        dtype: DType::BF16,
        cache_dtype,
    };
    let capacity = PlanCapacity { max_seqs: 1, max_pages: 4, partials_bytes: 1024, sink_tokens: 0 };
    let new = |device: &Device, dtype, head_dim| {
        OrderedAttentionPlan::new(device, spec(dtype), &config(head_dim), capacity)
    };
    let error =
        |plan: candlepower_kernels::Result<OrderedAttentionPlan>| plan.unwrap_err().to_string();
    assert!(error(new(gpu.device(), DType::BF16, 512)).contains("head_dim"));
    assert!(error(new(gpu.device(), DType::F8E4M3, 64)).contains("cache_dtype"));
    assert!(error(new(&Device::Cpu, DType::BF16, 64)).contains("device"));
    let mut plan = new(gpu.device(), DType::BF16, 64).unwrap();
    let meta = AttentionMetadata {
        query_start: vec![0, 1, 2],
        context_len: vec![1, 1],
        block_tables: vec![0, 1],
        max_blocks: 1,
        mutual: Vec::new(),
    };
    let step = AttentionStep { meta: &meta, tokens: 2, launch: LaunchShape::Fitted };
    assert!(plan.prepare(&step).unwrap_err().to_string().contains("sequences of a step"));
}
