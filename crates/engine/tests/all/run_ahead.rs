//! Sequences whose next token depends on the newest one, on a device that runs ahead: with grammars, penalties and bad words. Each
//! gives what it gives on the CPU, which never runs ahead.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use candlepower_grammar::{Constraint, GrammarCompiler, Tokenizer};
use metrics::{Counter, Histogram, HistogramFn};
use serde_json::{Map, Value, json};

use super::prism::{Demo, greedy as ending, person};
use super::*;

/// In float32, so that the CPU and a device are alike in every token.
fn exact(config: EngineConfig) -> EngineConfig {
    let load = LoadOptions { dtype: LoadDtype::F32, ..config.load.clone() };
    EngineConfig { load, ..config }
}

fn on_device(config: EngineConfig) -> EngineConfig {
    EngineConfig { device_reference: true, ..exact(config) }
}

fn seeded(seed: u64) -> SamplingParams {
    SamplingParams { seed: Some(seed), temperature: 1.2, ..ending(40) }
}

/// Requests with grammars, penalties and bad words, in all combinations that differ, and free ones among them.
fn requests(demo: &Demo) -> Vec<Request> {
    let penalties = |params| SamplingParams {
        repetition_penalty: 1.3,
        presence_penalty: 0.4,
        frequency_penalty: 0.3,
        ..params
    };
    let bad_words = (3..200).map(|id| vec![id, id + 1]).chain([vec![7], vec![9, 8, 7]]);
    let bad_words: Arc<[Vec<u32>]> = bad_words.collect();
    let regex = Constraint::Regex("[a-c]{3} and so on [0-9]{2}( or else){0,3}".into());
    let choice = Constraint::Choice(vec!["left and nothing else".into(), "right or wrong".into()]);
    let constrained = [
        (person(), ending(90)),
        (person(), penalties(SamplingParams { max_tokens: 90, ..seeded(1) })),
        (person(), SamplingParams { logprobs: Some(2), ..ending(30) }),
        (regex.clone(), SamplingParams { min_tokens: 20, ..seeded(2) }),
        (regex, SamplingParams { stop_token_ids: vec![demo.token(" ")], ..seeded(3) }),
        (choice.clone(), SamplingParams { bad_words: bad_words.clone(), ..seeded(4) }),
        (choice, ending(3)),
    ];
    let mut requests: Vec<_> = constrained
        .into_iter()
        .map(|(constraint, params)| demo.constrained(&constraint, params))
        .collect();
    requests[1].n = 3;
    requests.push(request(prompt(2, 20), SamplingParams { logprobs: Some(1), ..greedy(30) }));
    requests.push(request(prompt(3, 11), penalties(greedy(30))));
    requests.push(Request { n: 2, ..request(prompt(3, 11), penalties(seeded(6))) });
    requests.push(request(prompt(4, 30), SamplingParams { bad_words, ..seeded(7) }));
    requests.push(request(prompt(5, 9), SamplingParams { ignore_eos: true, ..seeded(8) }));
    requests
}

fn together(demo: &Demo) -> Vec<Collected> {
    let streams: Vec<_> = requests(demo)
        .into_iter()
        .flat_map(|request| demo.engine.submit(request).unwrap())
        .collect();
    streams.into_iter().map(collect).collect()
}

fn one_by_one(demo: &Demo) -> Vec<Collected> {
    requests(demo).into_iter().flat_map(|request| demo.run(request)).collect()
}

fn num_tokens(streams: &[Collected]) -> usize {
    streams.iter().map(|stream| stream.tokens.len()).sum()
}

/// The tokens of each step.
#[derive(Default)]
struct Steps(Mutex<Vec<usize>>);

impl HistogramFn for Steps {
    fn record(&self, num_tokens: f64) {
        self.0.lock().unwrap().push(num_tokens as usize);
    }
}

impl Steps {
    fn take(&self) -> Vec<usize> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn watched(config: EngineConfig, steps: &Arc<Steps>) -> EngineConfig {
    let iteration_tokens = Histogram::from_arc(Arc::clone(steps));
    let metrics = EngineMetrics { iteration_tokens, ..config.metrics.clone() };
    EngineConfig { metrics, ..config }
}

#[test]
fn guided_and_penalized_requests_are_the_same_on_a_device() {
    let cpu = Demo::with(|config| exact(EngineConfig { jump_forward: false, ..config }));
    let want = one_by_one(&cpu);
    assert!(
        want.iter().map(|stream| stream.finish).any(|end| end == Some(FinishReason::GrammarEnd))
    );
    for (jump_forward, enforce_eager) in [(false, false), (true, false), (true, true)] {
        let counted = Arc::new(AtomicU64::new(0));
        let device = Demo::with(|config| {
            let generation_tokens = Counter::from_arc(Arc::clone(&counted));
            let metrics = EngineMetrics { generation_tokens, ..EngineMetrics::noop() };
            on_device(EngineConfig { jump_forward, enforce_eager, metrics, ..config })
        });
        let what = format!("jump_forward {jump_forward}, enforce_eager {enforce_eager}");
        device::assert_same(&together(&device), &want, &format!("together, {what}"));
        // Samples that nobody gets count nowhere.
        assert_eq!(counted.swap(0, Ordering::Relaxed) as usize, num_tokens(&want));
        if jump_forward && !enforce_eager {
            device::assert_same(&one_by_one(&device), &want, &format!("one by one, {what}"));
            assert_eq!(counted.load(Ordering::Relaxed) as usize, num_tokens(&want));
        }
        let appended = device.jump_forward_tokens.load(Ordering::Relaxed);
        assert_eq!(appended > 60, jump_forward, "{appended} tokens were appended");
    }
}

/// Masks that come too late, few slots for counts, prompts in pieces, lost blocks, and other ranks.
#[test]
fn they_are_the_same_under_any_pressure() {
    let cpu = Demo::with(exact);
    let want = one_by_one(&cpu);
    let impatient = |config| EngineConfig { mask_patience: Duration::ZERO, ..on_device(config) };
    let late = Demo::with(impatient);
    device::assert_same(&together(&late), &want, "late masks");
    let block_bytes = late.engine.info().kv_cache_bytes / late.engine.info().num_blocks as u64;
    for swap_blocks in [0, 30] {
        let tight = Demo::with(|config| EngineConfig {
            kv_cache_bytes: Some(40 * block_bytes),
            swap_bytes: swap_blocks * block_bytes + 1,
            max_num_seqs: 3,
            max_num_batched_tokens: Some(9),
            ..impatient(config)
        });
        device::assert_same(&together(&tight), &want, &format!("tight, {swap_blocks} blocks"));
    }
    let ranks = Demo::with(|config| EngineConfig { tensor_parallel_size: 2, ..on_device(config) });
    device::assert_same(&together(&ranks), &want, "two ranks");
}

/// A guided, a penalized and a free sequence get a token in each step. Without running ahead, only the free one would.
#[test]
fn every_sequence_gets_a_token_in_each_step() {
    let steps = Arc::new(Steps::default());
    let demo = Demo::with(|config| {
        let mask_patience = Duration::from_secs(60);
        watched(on_device(EngineConfig { jump_forward: false, mask_patience, ..config }), &steps)
    });
    let penalized = SamplingParams { presence_penalty: 0.5, ..greedy(40) };
    let two_words = SamplingParams { bad_words: [vec![3, 4]].into(), ..greedy(40) };
    let letters = Constraint::Regex("[a-z]*".into());
    let requests = || {
        let mut requests: Vec<_> = [greedy(40), penalized.clone(), two_words.clone()]
            .into_iter()
            .map(|params| request(prompt(1, 9), params))
            .collect();
        requests.push(demo.constrained(&letters, SamplingParams { min_tokens: 40, ..ending(40) }));
        requests
    };
    steps.take();
    let streams: Vec<_> = requests().into_iter().map(|request| demo.submit(request)).collect();
    streams.into_iter().for_each(|stream| assert_eq!(collect(stream).tokens.len(), 40));
    // The requests may have come in different steps.
    let all = steps.take();
    assert!(all.len() < 40 + 5, "{} steps for 40 tokens: {all:?}", all.len());
    for request in requests() {
        assert_eq!(demo.run(request).remove(0).tokens.len(), 40);
        assert_eq!(steps.take().len(), 40);
    }
}

/// Tokens are appended after nearly every sampled one. So a step that ran ahead would be for nothing.
#[test]
fn a_device_waits_for_tokens_after_which_others_are_appended() {
    let steps = Arc::new(Steps::default());
    let demo = Demo::with(|config| watched(on_device(config), &steps));
    let fixed = Constraint::Regex("([ab] and so on and so forth, ){40}".into());
    let run = || {
        steps.take();
        let got = demo.run(demo.constrained(&fixed, ending(300))).remove(0);
        (got.tokens.len(), steps.take().len())
    };
    let appended = || demo.jump_forward_tokens.load(Ordering::Relaxed) as usize;
    let (num_tokens, _) = run();
    let num_sampled = num_tokens - appended();
    assert!(num_sampled * 4 < num_tokens, "{num_sampled} of {num_tokens} tokens were sampled");
    let (_, num_steps) = run();
    assert!(num_steps <= num_sampled + 2, "{num_steps} steps for {num_sampled} sampled tokens");
}

/// A client that leaves takes its own sequence away, and nothing else. The cache has the tokens that it got, and no others.
#[test]
fn clients_may_leave_at_any_token() {
    let cpu = Demo::with(exact);
    let device = Demo::with(on_device);
    let whole = cpu.run(cpu.constrained(&person(), ending(90))).remove(0);
    let free = request(prompt(8, 14), greedy(60));
    let beside = device.submit(free.clone());
    for num_taken in 1..12 {
        let mut stream = device.submit(device.constrained(&person(), ending(90)));
        let mut taken = Vec::new();
        while taken.len() < num_taken {
            if let Some(TokenEvent::Token { token_id, .. }) = block_on(stream.next()) {
                taken.push(token_id);
            }
        }
        assert_eq!(taken, whole.tokens[..num_taken]);
        drop(stream);
        let so_far = [&prompt(1, 9)[..], &taken].concat();
        let sampling = SamplingParams { logprobs: Some(1), ..greedy(6) };
        let next = |demo: &Demo| demo.run(request(so_far.clone(), sampling.clone()));
        device::assert_same(&next(&device), &next(&cpu), &format!("after {num_taken} tokens"));
    }
    device::assert_same(&[collect(beside)], &cpu.run(free), "beside them");
    while device.engine.num_in_flight() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(device.engine.health(), EngineHealth::Healthy);
}

/// A tokenizer with a token for each byte, and one for the end.
fn bytes_as_tokens(eos: u32) -> Tokenizer {
    let letter = |byte: u32, unprinted: &mut u32| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from_u32(byte).unwrap(),
        _ => {
            *unprinted += 1;
            char::from_u32(255 + *unprinted).unwrap()
        }
    };
    let mut unprinted = 0;
    let mut vocab: Map<String, Value> =
        (0..256).map(|byte| (letter(byte, &mut unprinted).to_string(), json!(byte + 10))).collect();
    vocab.insert("</s>".to_owned(), json!(eos));
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [{"id": eos, "content": "</s>", "special": true, "normalized": false,
                          "single_word": false, "lstrip": false, "rstrip": false}],
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
                  "merges": []},
    });
    Tokenizer::from_bytes(tokenizer.to_string().as_bytes(), None).unwrap()
}

/// The state of a sequence has a token already when its mask comes too late. So it starts again from an earlier state.
#[test]
fn states_are_right_whatever_comes_late() {
    let start = |config| EngineHandle::start(&checkpoint("qwen3_5"), config, &mut |_| ()).unwrap();
    let cpu = start(exact(config()));
    let late = EngineConfig { mask_patience: Duration::ZERO, ..on_device(config()) };
    let info = cpu.info();
    let tokenizer = bytes_as_tokens(info.eos_token_ids.first().copied().unwrap_or(0));
    let compiler = GrammarCompiler::new(&tokenizer, &info.eos_token_ids, info.vocab_size).unwrap();
    let constraint = Constraint::Regex("[a-c]{3}, and so on, [0-9]{2}(;[a-z]{4})*".into());
    let requests = || {
        let guided = |i: u32| Request {
            grammar: Some(compiler.compile(&constraint).unwrap()),
            n: 1 + i as usize % 2,
            ..request(
                prompt(i, 20),
                SamplingParams { seed: Some(1), temperature: 1.1, ..greedy(30) },
            )
        };
        let penalized = SamplingParams { frequency_penalty: 0.7, ..greedy(20) };
        let penalized = request(prompt(9, 9), penalized);
        (0..4).map(guided).chain([penalized, request(prompt(8, 9), greedy(20))]).collect::<Vec<_>>()
    };
    let together = |engine: &EngineHandle| -> Vec<_> {
        let streams: Vec<_> =
            requests().into_iter().flat_map(|r| engine.submit(r).unwrap()).collect();
        streams.into_iter().map(collect).collect()
    };
    let want = together(&cpu);
    device::assert_same(&together(&start(on_device(config()))), &want, "in time");
    device::assert_same(&together(&start(late)), &want, "late");
}
