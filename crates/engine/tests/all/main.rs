//! The engine from submission to stream, on a tiny checkpoint with golden greedy tokens.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod device;
mod images;
mod prism;
mod ranks;
mod ruled_out;
mod run_ahead;
mod states;

use std::time::Duration;

use candlepower_checkpoint::{Checkpoint, CheckpointFiles, Dtype, ImageMemory, KvDtype};
use candlepower_engine::{
    Caller, Device, EngineConfig, EngineHandle, EngineHealth, EngineMetrics, FinishReason,
    LoadDtype, LoadFormat, LoadOptions, MASK_PATIENCE, PrefixCacheScope, RankKind, Request,
    SamplingParams, SchedulingPolicy, SubmitError, TokenEvent, TokenLogprobs, TokenStream,
};

fn checkpoint(name: &str) -> Checkpoint {
    let files = CheckpointFiles::find(&candlepower_testing::goldens::folder(name)).unwrap();
    Checkpoint::open(files.unwrap()).unwrap()
}

/// Memory for images with an encoder cache of so many bytes.
fn images_of(encoder_cache_bytes: u64) -> ImageMemory {
    ImageMemory { encoder_cache_bytes, ..ImageMemory::default() }
}

fn config() -> EngineConfig {
    EngineConfig {
        load: LoadOptions {
            device: Device::Cpu,
            dtype: LoadDtype::Auto,
            load_format: LoadFormat::Auto,
            max_model_len: Some(128),
        },
        kv_cache_bytes: None,
        kv_cache_dtype: None,
        swap_bytes: 0,
        gpu_memory_utilization: 0.9,
        enforce_eager: false,
        deterministic: false,
        device_reference: false,
        block_size: 16,
        max_num_seqs: 16,
        max_num_batched_tokens: Some(64),
        max_queued_seqs: 1000,
        enable_prefix_caching: true,
        prefix_cache_scope: PrefixCacheScope::Server,
        scheduling_policy: SchedulingPolicy::Fcfs,
        jump_forward: true,
        mask_patience: MASK_PATIENCE,
        images: images_of(1 << 20),
        max_pinned_bytes: None,
        num_threads: Some(2),
        tensor_parallel_size: 1,
        rank_kind: RankKind::Threads,
        seed: 0,
        stuck_after: Duration::from_secs(300),
        metrics: EngineMetrics::noop(),
    }
}

fn start(config: EngineConfig) -> EngineHandle {
    EngineHandle::start(&checkpoint("llama"), config, &mut |_| ()).unwrap()
}

fn request(prompt: Vec<u32>, sampling: SamplingParams) -> Request {
    Request {
        prompt,
        images: Vec::new(),
        sampling,
        n: 1,
        priority: 0,
        caller: Caller::default(),
        caller_priority: 0,
        cache_salt: None,
        prompt_logprobs: None,
        prompt_logprobs_from: 0,
        grammar: None,
        num_generated: 0,
    }
}

fn greedy(max_tokens: usize) -> SamplingParams {
    SamplingParams { max_tokens, temperature: 0.0, ignore_eos: true, ..SamplingParams::default() }
}

/// The events of a stream.
#[derive(Debug, Default, PartialEq)]
struct Collected {
    cached: usize,
    prompt: Option<Vec<Option<TokenLogprobs>>>,
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    finish: Option<FinishReason>,
}

fn collect(mut stream: TokenStream) -> Collected {
    let mut out = Collected::default();
    while let Some(event) = block_on(stream.next()) {
        assert_eq!(out.finish, None, "an event after the last");
        match event {
            TokenEvent::Prompt { num_cached_tokens, logprobs, finish, .. } => {
                (out.cached, out.prompt, out.finish) = (num_cached_tokens, logprobs, finish);
            }
            TokenEvent::Token { token_id, logprobs, finish } => {
                out.tokens.push(token_id);
                out.logprobs.extend(logprobs);
                out.finish = finish;
            }
            TokenEvent::TooComplex { message } | TokenEvent::Failed { message } => {
                panic!("{message}")
            }
        }
    }
    assert!(out.finish.is_some(), "the stream ended without a reason");
    out
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn run(engine: &EngineHandle, request: Request) -> Vec<Collected> {
    engine.submit(request).unwrap().into_iter().map(collect).collect()
}

fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 7919 + seed * 104_729) % 250 + 3).collect()
}

#[test]
fn same_tokens_alone_in_a_batch_and_under_preemption() {
    let requests = || (0..24).map(|i| request(prompt(i, 5 + 3 * i as usize), greedy(20)));
    let alone = start(EngineConfig { max_num_seqs: 1, enable_prefix_caching: false, ..config() });
    let want: Vec<_> = requests().map(|request| run(&alone, request).remove(0).tokens).collect();
    let block_bytes = alone.info().kv_cache_bytes / alone.info().num_blocks as u64;
    let tiny = EngineConfig { kv_cache_bytes: Some(block_bytes * 9), ..config() };
    for config in [config(), tiny, EngineConfig { max_num_batched_tokens: Some(7), ..config() }] {
        let engine = start(config);
        let streams: Vec<_> =
            requests().map(|request| engine.submit(request).unwrap().remove(0)).collect();
        let got: Vec<_> = streams.into_iter().map(|stream| collect(stream).tokens).collect();
        assert_eq!(got, want);
        assert_eq!(engine.num_in_flight(), 0);
        assert_eq!(engine.health(), EngineHealth::Healthy);
    }
}

#[test]
fn a_repeated_prompt_comes_from_the_cache() {
    let engine = start(config());
    let first = run(&engine, request(prompt(1, 50), greedy(8))).remove(0);
    let second = run(&engine, request(prompt(1, 50), greedy(8))).remove(0);
    assert_eq!((first.cached, second.cached), (0, 48), "three blocks of 16");
    assert_eq!(first.tokens, second.tokens);
    let salted = Request { cache_salt: Some("tenant".into()), ..request(prompt(1, 50), greedy(8)) };
    assert_eq!(run(&engine, salted).remove(0).cached, 0);
}

#[test]
fn seeds_decide_whatever_else_runs() {
    let engine = start(config());
    let sampling = SamplingParams {
        seed: Some(5),
        temperature: 1.5,
        max_tokens: 30,
        ignore_eos: true,
        ..greedy(30)
    };
    let seeded = || Request { n: 3, ..request(prompt(2, 20), sampling.clone()) };
    let alone: Vec<_> = run(&engine, seeded()).into_iter().map(|choice| choice.tokens).collect();
    let others: Vec<_> = (0..8)
        .map(|i| engine.submit(request(prompt(i, 30), greedy(40))).unwrap().remove(0))
        .collect();
    let among: Vec<_> = run(&engine, seeded()).into_iter().map(|choice| choice.tokens).collect();
    assert_eq!(alone, among);
    assert!(alone[0] != alone[1] && alone[1] != alone[2], "choices must differ");
    let next = SamplingParams { seed: Some(6), ..sampling.clone() };
    assert_eq!(
        run(&engine, request(prompt(2, 20), next)).remove(0).tokens,
        alone[1],
        "choice i has seed + i"
    );
    others.into_iter().for_each(|stream| assert_eq!(collect(stream).tokens.len(), 40));
}

#[test]
fn dropped_streams_free_their_places() {
    let engine = start(EngineConfig { max_num_seqs: 4, ..config() });
    let streams: Vec<_> = (0..200)
        .map(|i| engine.submit(request(prompt(i, 60), greedy(60))).unwrap().remove(0))
        .collect();
    drop(streams);
    assert_eq!(run(&engine, request(prompt(0, 10), greedy(3))).remove(0).tokens.len(), 3);
    while engine.num_in_flight() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_full_queue_and_an_impossible_request_are_refused() {
    let engine = start(EngineConfig { max_num_seqs: 1, max_queued_seqs: 1, ..config() });
    let long = || request(prompt(1, 10), greedy(100));
    let running = [engine.submit(long()).unwrap(), engine.submit(long()).unwrap()];
    assert!(matches!(
        engine.submit(long()),
        Err(SubmitError::QueueFull { in_flight: 2, limit: 2 })
    ));
    drop(running);
    for impossible in [
        request(Vec::new(), greedy(1)),
        request(vec![1_000_000], greedy(1)),
        request(prompt(0, 128), greedy(1)),
        Request { n: 0, ..long() },
    ] {
        assert!(matches!(engine.submit(impossible), Err(SubmitError::Invalid(_))));
    }
}

#[test]
fn prompts_are_scored_as_their_tokens_would_have_been_sampled() {
    let engine = start(EngineConfig { max_num_batched_tokens: Some(7), ..config() });
    let sampled = SamplingParams { logprobs: Some(3), ..greedy(12) };
    let first = run(&engine, request(prompt(4, 20), sampled)).remove(0);
    let whole = [prompt(4, 20), first.tokens.clone()].concat();
    let score = Request { prompt_logprobs: Some(3), ..request(whole, greedy(0)) };
    let scored = run(&engine, score).remove(0);
    assert_eq!((scored.tokens.len(), scored.finish), (0, Some(FinishReason::Length)));
    let scores = scored.prompt.unwrap();
    assert_eq!(scores.len(), 32);
    assert_eq!(scores[0], None);
    for (score, sampled) in scores[20..].iter().zip(&first.logprobs) {
        assert_eq!(
            score.as_ref(),
            Some(sampled),
            "a row's logits do not depend on how it was computed"
        );
    }
}

#[test]
fn sequences_end_as_asked() {
    let engine = start(config());
    let free = run(&engine, request(prompt(3, 12), greedy(16))).remove(0);
    assert_eq!(free.finish, Some(FinishReason::Length));
    let stop = free.tokens[4];
    let first = free.tokens.iter().position(|&token| token == stop).unwrap();
    let stopped = SamplingParams { stop_token_ids: vec![stop], ..greedy(16) };
    let got = run(&engine, request(prompt(3, 12), stopped.clone())).remove(0);
    assert_eq!(got.tokens, free.tokens[..=first]);
    assert_eq!(got.finish, Some(FinishReason::StopToken(stop)));
    let later = SamplingParams { min_tokens: first + 3, ..stopped };
    let got = run(&engine, request(prompt(3, 12), later)).remove(0).tokens;
    assert!(got.len() >= first + 3 && !got[..first + 2].contains(&stop));
    let to_the_end = run(&engine, request(prompt(3, 100), greedy(1000))).remove(0);
    assert_eq!((to_the_end.tokens.len(), to_the_end.finish), (28, Some(FinishReason::Length)));
}

#[test]
fn penalties_and_bias_change_the_sample() {
    let engine = start(config());
    let free = run(&engine, request(prompt(3, 12), greedy(40))).remove(0).tokens;
    let repeats = |tokens: &[u32]| {
        tokens.len() - tokens.iter().collect::<std::collections::HashSet<_>>().len()
    };
    let penalised = SamplingParams { frequency_penalty: 2.0, presence_penalty: 2.0, ..greedy(40) };
    let got = run(&engine, request(prompt(3, 12), penalised)).remove(0).tokens;
    assert!(repeats(&got) <= repeats(&free));
    let biased = SamplingParams { logit_bias: vec![(77, 100.0)], ..greedy(5) };
    assert_eq!(run(&engine, request(prompt(3, 12), biased)).remove(0).tokens, [77; 5]);
}
