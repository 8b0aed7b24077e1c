//! The engine on a device, by the reference implementations on the CPU: requests of every kind, each compared with
//! the output of the CPU's own kernels.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use metrics::Counter;

use super::*;

pub(super) fn on_device() -> EngineConfig {
    let load = LoadOptions { dtype: LoadDtype::F32, ..config().load };
    EngineConfig { load, device_reference: true, ..config() }
}

fn sampled(seed: u64) -> SamplingParams {
    SamplingParams { seed: Some(seed), temperature: 1.2, ..greedy(12) }
}

/// Requests that differ in everything that a sample depends on.
fn requests() -> Vec<Request> {
    let kinds = [
        greedy(20),
        sampled(1),
        SamplingParams { top_k: Some(5), ..sampled(2) },
        SamplingParams { top_p: 0.7, min_p: 0.02, ..sampled(3) },
        SamplingParams { repetition_penalty: 1.3, presence_penalty: 0.5, ..greedy(20) },
        SamplingParams { frequency_penalty: 1.5, ..sampled(4) },
        SamplingParams { logit_bias: vec![(77, 3.0), (78, 3.0), (5, -100.0)], ..sampled(5) },
        SamplingParams { min_tokens: 6, stop_token_ids: (0..200).collect(), ..sampled(6) },
        SamplingParams { logprobs: Some(4), ..greedy(9) },
    ];
    let lengths = (0..).map(|i| 3 + 7 * i);
    let mut requests: Vec<_> = kinds
        .into_iter()
        .zip(lengths)
        .map(|(params, len)| request(prompt(len as u32, len), params))
        .collect();
    requests.push(Request { n: 3, ..request(prompt(1, 20), sampled(8)) });
    requests.push(Request { prompt_logprobs: Some(2), ..request(prompt(2, 33), greedy(4)) });
    let bad_words = (0..200).map(|id| vec![id, id + 1]).chain([vec![7], vec![8]]).collect();
    let ruled_out =
        SamplingParams { allowed_token_ids: Some((0..90).collect()), bad_words, ..sampled(9) };
    requests.push(Request { n: 2, ..request(prompt(4, 21), ruled_out) });
    requests
}

pub(super) fn run_together(engine: &EngineHandle) -> Vec<Collected> {
    let streams: Vec<_> =
        requests().into_iter().flat_map(|request| engine.submit(request).unwrap()).collect();
    streams.into_iter().map(collect).collect()
}

fn assert_close(a: &TokenLogprobs, b: &TokenLogprobs) {
    assert_eq!((a.token_id, a.rank), (b.token_id, b.rank));
    assert!((a.logprob - b.logprob).abs() < 1e-3, "{a:?} {b:?}");
    let ids = |row: &TokenLogprobs| row.top.iter().map(|top| top.0).collect::<Vec<_>>();
    assert_eq!(ids(a), ids(b));
    assert!(a.top.iter().zip(&b.top).all(|(a, b)| (a.1 - b.1).abs() < 1e-3));
}

pub(super) fn assert_same(got: &[Collected], want: &[Collected], what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(got.tokens, want.tokens, "{what}: stream {i}");
        assert_eq!(got.finish, want.finish, "{what}: stream {i}");
        assert_eq!(got.logprobs.len(), want.logprobs.len());
        got.logprobs.iter().zip(&want.logprobs).for_each(|(got, want)| assert_close(got, want));
        let prompts = got.prompt.iter().flatten().zip(want.prompt.iter().flatten());
        for (got, want) in prompts {
            assert_eq!(got.is_some(), want.is_some());
            got.iter().zip(want).for_each(|(got, want)| assert_close(got, want));
        }
    }
}

#[test]
fn a_device_gives_what_the_cpu_gives_whatever_is_asked() {
    let want = run_together(&start(config()));
    // The kinds with reports are among them, at whatever place.
    let has_scores = |stream: &&Collected| {
        stream.prompt.as_ref().is_some_and(|tokens| tokens.iter().any(Option::is_some))
    };
    assert_eq!(want.iter().filter(has_scores).count(), 1);
    assert!(want.iter().any(|stream| stream.logprobs.is_empty()));
    let padded = start(on_device());
    assert_eq!(padded.info().max_logprobs, Some(32));
    assert_same(&run_together(&padded), &want, "in buckets");
    let eager = start(EngineConfig { enforce_eager: true, ..on_device() });
    assert_same(&run_together(&eager), &want, "eager");
}

/// Requests differ in nothing with the reference implementations. Short convolutions have no kernels for it.
#[test]
fn deterministic_is_taken_where_it_is_kept_and_refused_elsewhere() {
    let deterministic = |config| EngineConfig { deterministic: true, ..config };
    let want = run_together(&start(on_device()));
    assert_same(&run_together(&start(deterministic(on_device()))), &want, "deterministic");
    let start = |config| EngineHandle::start(&checkpoint("lfm2"), config, &mut |_| ());
    let error = start(deterministic(on_device())).unwrap_err().to_string();
    assert!(
        error.contains(
            "deterministic is not possible on a GPU with a model with short convolutions"
        ),
        "{error}"
    );
    start(deterministic(config())).unwrap();
}

/// Several caches, and layers that are computed for output tokens alone. Prompts come in chunks of a few tokens, on one rank and on
/// several.
#[test]
fn layers_that_read_others_keys_give_the_same_on_both() {
    let checkpoint = checkpoint("gemma4");
    let start = |config| EngineHandle::start(&checkpoint, config, &mut |_| ()).unwrap();
    let of_cpu = EngineConfig { load: on_device().load, ..config() };
    let want = run_together(&start(of_cpu.clone()));
    let chunked = EngineConfig { max_num_batched_tokens: Some(16), ..of_cpu };
    assert_same(&run_together(&start(chunked.clone())), &want, "in chunks");
    let ranks = EngineConfig { tensor_parallel_size: 2, ..chunked };
    assert_same(&run_together(&start(ranks)), &want, "over ranks");
    assert_same(&run_together(&start(on_device())), &want, "on a device");
    let chunked = EngineConfig { max_num_batched_tokens: Some(16), ..on_device() };
    assert_same(&run_together(&start(chunked)), &want, "on a device, in chunks");
}

/// A device samples a token after the last one before the last one is known. No client sees that token.
#[test]
fn what_runs_ahead_of_an_end_is_dropped() {
    let engine = start(on_device());
    let free = run(&engine, request(prompt(3, 12), greedy(16))).remove(0);
    assert_eq!((free.tokens.len(), free.finish), (16, Some(FinishReason::Length)));
    let stop = free.tokens[4];
    let first = free.tokens.iter().position(|&token| token == stop).unwrap();
    let params = SamplingParams { stop_token_ids: vec![stop], ..greedy(16) };
    let stopped = || request(prompt(3, 12), params.clone());
    let among: Vec<_> = (0..6)
        .map(|i| engine.submit(request(prompt(i, 30), greedy(30))).unwrap().remove(0))
        .collect();
    let got = run(&engine, Request { n: 2, ..stopped() });
    for choice in got {
        assert_eq!(choice.tokens, free.tokens[..=first]);
        assert_eq!(choice.finish, Some(FinishReason::StopToken(stop)));
    }
    drop(among);
    let to_the_end = run(&engine, request(prompt(3, 100), greedy(1000))).remove(0);
    assert_eq!((to_the_end.tokens.len(), to_the_end.finish), (28, Some(FinishReason::Length)));
    let scored = Request { prompt_logprobs: Some(1), ..request(prompt(3, 12), greedy(0)) };
    assert_eq!(run(&engine, scored).remove(0).prompt.unwrap().len(), 12);
    assert_eq!(engine.health(), EngineHealth::Healthy);
    while engine.num_in_flight() > 0 {
        std::thread::yield_now();
    }
}

/// Three sequences at a time: samples come in several chunks, prompts in pieces, and sequences are preempted.
#[test]
fn a_small_device_gives_the_same() {
    let want = run_together(&start(config()));
    let block_bytes = {
        let engine = start(on_device());
        engine.info().kv_cache_bytes / engine.info().num_blocks as u64
    };
    let small = EngineConfig {
        max_num_seqs: 3,
        max_num_batched_tokens: Some(11),
        kv_cache_bytes: Some(9 * block_bytes),
        ..on_device()
    };
    assert_same(&run_together(&start(small)), &want, "small");
}

/// Two sequences fit at once, and more run: those that lose their blocks go on with the same ones, or compute them again
/// where the host has no room, and nobody can tell.
#[test]
fn what_is_brought_out_and_back_is_the_same() {
    let want = run_together(&start(config()));
    let block_bytes = {
        let engine = start(on_device());
        engine.info().kv_cache_bytes / engine.info().num_blocks as u64
    };
    for swap_blocks in [0, 6, 100] {
        let counts: [Arc<AtomicU64>; 3] = Default::default();
        let [preemptions, out, back] = &counts;
        let engine = start(EngineConfig {
            kv_cache_bytes: Some(9 * block_bytes),
            swap_bytes: swap_blocks * block_bytes + 1,
            enable_prefix_caching: false,
            metrics: EngineMetrics {
                num_preemptions: Counter::from_arc(Arc::clone(preemptions)),
                swapped_out_blocks: Counter::from_arc(Arc::clone(out)),
                swapped_in_blocks: Counter::from_arc(Arc::clone(back)),
                ..EngineMetrics::noop()
            },
            ..on_device()
        });
        assert_same(&run_together(&engine), &want, &format!("{swap_blocks} blocks on the host"));
        let [preemptions, out, back] = counts.map(|count| count.load(Ordering::Relaxed));
        assert!(preemptions > 0, "the cache was large enough");
        let swapped = (out > 0, back > 0, back <= out);
        let expected = (swap_blocks > 0, swap_blocks > 0, true);
        assert_eq!(swapped, expected, "{out} out, {back} back");
    }
    let too_much = EngineConfig { swap_bytes: u64::MAX, ..on_device() };
    let error = EngineHandle::start(&checkpoint("llama"), too_much, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("swap_space is "), "{error}");
}

/// The cache of the CPU and that of a device are rounded alike; four times as many tokens fit the memory of the CPU.
#[test]
fn keys_and_values_in_fp8_are_served_on_the_cpu_and_on_a_device() {
    let bytes = Some(1 << 20);
    let fp8 = |config: EngineConfig| EngineConfig { kv_cache_dtype: Some(KvDtype::Fp8), ..config };
    let sized = |config: EngineConfig| EngineConfig { kv_cache_bytes: bytes, ..config };
    let (plain, on_cpu) = (start(sized(config())), start(sized(fp8(config()))));
    assert_eq!(on_cpu.info().num_blocks / 4, plain.info().num_blocks);
    let device = start(fp8(on_device()));
    let params = SamplingParams { logprobs: Some(0), ..greedy(1) };
    for length in [5, 40, 100] {
        let one = |engine: &EngineHandle| {
            let got = run(engine, request(prompt(3, length), params.clone())).remove(0);
            got.logprobs[0].logprob
        };
        let (cpu, device, exact) = (one(&on_cpu), one(&device), one(&plain));
        assert!((cpu - device).abs() < 0.05, "{cpu} and {device}");
        assert!(cpu != exact && (cpu - exact).abs() < 0.5, "{cpu} and {exact}");
    }
}

/// Twice as many tokens fit, on one rank or two, and who loses blocks gets what one alone does; other numbers than the
/// weights' are refused on a device.
#[test]
fn keys_and_values_in_bf16_are_served_on_the_cpu() {
    let kv =
        |kv: KvDtype, config: EngineConfig| EngineConfig { kv_cache_dtype: Some(kv), ..config };
    let bf16 = |config: EngineConfig| kv(Dtype::Bf16.into(), config);
    let sized = |config: EngineConfig| EngineConfig { kv_cache_bytes: Some(1 << 20), ..config };
    let (plain, halved) = (start(sized(config())), start(sized(bf16(config()))));
    assert_eq!(halved.info().num_blocks / 2, plain.info().num_blocks);
    let dtypes = [&plain, &halved].map(|engine| engine.info().kv_cache_dtype);
    assert_eq!(dtypes, ["float32", "bfloat16"]);
    let over_two = start(bf16(EngineConfig { tensor_parallel_size: 2, ..config() }));
    let params = SamplingParams { logprobs: Some(0), ..greedy(1) };
    for length in [5, 40, 100] {
        let one = |engine: &EngineHandle| {
            let got = run(engine, request(prompt(3, length), params.clone())).remove(0);
            got.logprobs[0].logprob
        };
        let (got, split, exact) = (one(&halved), one(&over_two), one(&plain));
        assert!((got - split).abs() < 0.01, "{got} and {split}");
        assert!(got != exact && (got - exact).abs() < 0.05, "{got} and {exact}");
    }
    let block_bytes = halved.info().kv_cache_bytes / halved.info().num_blocks as u64;
    let want = run_together(&halved);
    let small = EngineConfig { kv_cache_bytes: Some(9 * block_bytes), ..bf16(config()) };
    assert_same(&run_together(&start(small)), &want, "small");
    let refused = kv(Dtype::Bf16.into(), on_device());
    let error = EngineHandle::start(&checkpoint("llama"), refused, &mut |_| ()).unwrap_err();
    let message = "--kv-cache-dtype bfloat16 is not possible on a GPU with these weights: choose one of auto, float32, fp8";
    assert_eq!(error.to_string(), message);
}

#[test]
fn a_device_says_what_it_cannot_report() {
    let engine = start(on_device());
    let params = SamplingParams { logprobs: Some(33), ..greedy(1) };
    let error = engine.submit(request(prompt(0, 4), params)).unwrap_err().to_string();
    assert!(error.contains("at most 32 alternatives"), "{error}");
    let wrong = EngineConfig { gpu_memory_utilization: 1.5, ..on_device() };
    let error = EngineHandle::start(&checkpoint("llama"), wrong, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("gpu_memory_utilization is 1.5"), "{error}");
}
