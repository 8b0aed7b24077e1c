//! What prism adds, on the demo model: tokens appended without being drawn, pins, and scores of the end of a prompt.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use candlepower_checkpoint::{Checkpoint, CheckpointFiles};
use candlepower_engine::{
    Device, EngineConfig, EngineHandle, EngineMetrics, FinishReason, LoadDtype, LoadFormat,
    LoadOptions, Request, SamplingParams, SchedulingPolicy, TokenEvent, TokenLogprobs, TokenStream,
};
use candlepower_grammar::{Constraint, GrammarCompiler};
use candlepower_tokenizer::{AddSpecialTokens, SkipSpecialTokens, Tokenizer};
use metrics::Counter;
use serde_json::json;

/// The demo model with its tokenizer, and what it counts.
struct Demo {
    engine: EngineHandle,
    tokenizer: Tokenizer,
    compiler: GrammarCompiler,
    jump_forward_tokens: Arc<AtomicU64>,
}

impl Demo {
    fn new(jump_forward: bool) -> Self {
        Self::with(|config| EngineConfig { jump_forward, ..config })
    }

    fn with(change: impl FnOnce(EngineConfig) -> EngineConfig) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../server/demo");
        let read = |name| std::fs::read(folder.join(name)).unwrap();
        let config = read("tokenizer_config.json");
        let tokenizer = Tokenizer::from_bytes(&read("tokenizer.json"), Some(&config)).unwrap();
        let jump_forward_tokens = Arc::new(AtomicU64::new(0));
        let metrics = EngineMetrics {
            jump_forward_tokens: Counter::from_arc(Arc::clone(&jump_forward_tokens)),
            ..EngineMetrics::noop()
        };
        let config = EngineConfig {
            load: LoadOptions {
                device: Device::Cpu,
                dtype: LoadDtype::Auto,
                load_format: LoadFormat::Auto,
                max_model_len: Some(512),
            },
            kv_cache_bytes: None,
            block_size: 16,
            max_num_seqs: 16,
            max_num_batched_tokens: 64,
            max_queued_seqs: 1000,
            enable_prefix_caching: true,
            scheduling_policy: SchedulingPolicy::LongestPrefix,
            jump_forward: true,
            max_pinned_bytes: None,
            num_threads: Some(2),
            seed: 0,
            stuck_after: Duration::from_secs(60),
            metrics,
        };
        let checkpoint = Checkpoint::open(CheckpointFiles::Folder(folder)).unwrap();
        let engine = EngineHandle::start(&checkpoint, change(config), &mut |_| ()).unwrap();
        let info = engine.info();
        let compiler =
            GrammarCompiler::new(&tokenizer, &info.eos_token_ids, info.vocab_size).unwrap();
        Self { engine, tokenizer, compiler, jump_forward_tokens }
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, AddSpecialTokens::No).unwrap()
    }

    fn request(&self, prompt: &str, sampling: SamplingParams) -> Request {
        Request {
            prompt: self.encode(prompt),
            sampling,
            n: 1,
            priority: 0,
            cache_salt: None,
            prompt_logprobs: None,
            prompt_logprobs_from: 0,
            grammar: None,
        }
    }

    fn constrained(&self, constraint: &Constraint, sampling: SamplingParams) -> Request {
        let grammar = Some(self.compiler.compile(constraint).unwrap());
        Request { grammar, ..self.request("A person:", sampling) }
    }

    fn run(&self, request: Request) -> Vec<Collected> {
        self.engine.submit(request).unwrap().into_iter().map(collect).collect()
    }

    fn text(&self, output: &Collected) -> String {
        self.tokenizer.decode(&output.tokens, SkipSpecialTokens::Yes).unwrap()
    }
}

/// What a stream yielded.
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
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    while let Some(event) = runtime.block_on(stream.next()) {
        assert_eq!(out.finish, None, "an event after the last");
        match event {
            TokenEvent::Prompt { num_cached_tokens, logprobs, finish } => {
                (out.cached, out.prompt, out.finish) = (num_cached_tokens, logprobs, finish);
            }
            TokenEvent::Token { token_id, logprobs, finish } => {
                out.tokens.push(token_id);
                out.logprobs.extend(logprobs);
                out.finish = finish;
            }
            TokenEvent::Failed { message } => panic!("{message}"),
        }
    }
    assert!(out.finish.is_some(), "the stream ended without a reason");
    out
}

fn greedy(max_tokens: usize) -> SamplingParams {
    SamplingParams { max_tokens, temperature: 0.0, ..SamplingParams::default() }
}

fn person() -> Constraint {
    Constraint::JsonSchema(json!({
        "type": "object",
        "properties": {
            "occupation_of_the_person": {"enum": ["baker", "carpenter", "gardener"]},
            "lives_in_a_large_city": {"type": "boolean"},
            "number_of_children": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["occupation_of_the_person", "lives_in_a_large_city", "number_of_children"],
        "additionalProperties": false,
    }))
}

#[test]
fn tokens_that_need_no_drawing_change_nothing() {
    let (with, without) = (Demo::new(true), Demo::new(false));
    let constraints = [
        person(),
        Constraint::Regex("The answer of the whole question is (yes|no), without doubt\\.".into()),
        Constraint::Choice(vec!["left and nothing else".into(), "right or wrong".into()]),
        Constraint::Regex("[a-c]{3} and so on and so forth [0-9]{2}".into()),
    ];
    let seeded = SamplingParams {
        temperature: 1.5,
        seed: Some(11),
        frequency_penalty: 1.0,
        repetition_penalty: 1.2,
        ..greedy(120)
    };
    let space = with.encode(" ");
    let samplings = [
        greedy(120),
        greedy(7),
        SamplingParams { min_tokens: 90, ..greedy(120) },
        SamplingParams {
            stop_token_ids: [&with.encode(" of")[..], &space].concat(),
            ..greedy(120)
        },
        seeded,
    ];
    for constraint in &constraints {
        for sampling in &samplings {
            let run = |demo: &Demo| {
                demo.run(Request { n: 3, ..demo.constrained(constraint, sampling.clone()) })
            };
            // The second time, each has its prompt in the cache.
            for _ in 0..2 {
                let (got, want) = (run(&with), run(&without));
                assert_eq!(got, want, "{constraint:?} {sampling:?}");
                assert!(got.iter().all(|choice| choice.tokens.len() <= sampling.max_tokens));
            }
        }
    }
    let count = |demo: &Demo| demo.jump_forward_tokens.load(Ordering::Relaxed);
    assert!(count(&with) > 500, "{} tokens were not drawn", count(&with));
    assert_eq!(count(&without), 0);
}

#[test]
fn many_constrained_sequences_are_the_same_under_preemption() {
    let alone = Demo::new(false);
    let sampling = |seed| SamplingParams { temperature: 1.2, seed: Some(seed), ..greedy(90) };
    let want: Vec<_> = (0..12)
        .map(|seed| alone.run(alone.constrained(&person(), sampling(seed))).remove(0).tokens)
        .collect();
    let block_bytes = alone.engine.info().kv_cache_bytes / alone.engine.info().num_blocks as u64;
    let tight = Demo::with(|config| EngineConfig {
        kv_cache_bytes: Some(block_bytes * 40),
        max_num_batched_tokens: 9,
        ..config
    });
    let streams: Vec<_> = (0..12)
        .map(|seed| tight.engine.submit(tight.constrained(&person(), sampling(seed))).unwrap())
        .collect();
    let got: Vec<_> =
        streams.into_iter().map(|mut streams| collect(streams.remove(0)).tokens).collect();
    assert_eq!(got, want);
    assert!(tight.jump_forward_tokens.load(Ordering::Relaxed) > 100);
}

#[test]
fn each_token_has_its_log_probability_where_they_are_asked_for() {
    let (with, without) = (Demo::new(true), Demo::new(false));
    let sampling = SamplingParams { logprobs: Some(2), ..greedy(120) };
    let run = |demo: &Demo| demo.run(demo.constrained(&person(), sampling.clone())).remove(0);
    let got = run(&with);
    assert_eq!(got.logprobs.len(), got.tokens.len());
    assert_eq!(got, run(&without));
}

#[test]
fn a_text_that_can_only_end_does_so_whatever_min_tokens_says() {
    let demo = Demo::new(true);
    let sampling = SamplingParams { min_tokens: 30, ..greedy(60) };
    let choice = Constraint::Choice(vec!["yes".into(), "yes, please".into()]);
    let got = demo.run(demo.constrained(&choice, sampling.clone())).remove(0);
    assert_eq!(demo.text(&got), "yes, please", "the one that is longer");
    assert_eq!(got.finish, Some(FinishReason::GrammarEnd));
    // Here only the end of the text may follow the first word.
    let optional = Constraint::Lark("start: \"no\" SPACE*\nSPACE: /[0-9]{40}/".into());
    let biased = SamplingParams { logit_bias: Vec::new(), ..sampling };
    let got = demo.run(demo.constrained(&optional, biased)).remove(0);
    assert!(got.tokens.len() >= 30, "{got:?}");
}

#[test]
fn the_end_of_a_prompt_is_scored_with_its_beginning_from_the_cache() {
    let demo = Demo::new(true);
    let beginning = "The capital of France is a city that many people like to visit. It is called";
    let whole = |text: &str, from: usize| Request {
        prompt_logprobs: Some(2),
        prompt_logprobs_from: from,
        ..demo.request(text, greedy(0))
    };
    let scores = |output: &Collected| output.prompt.clone().unwrap();
    let from = demo.encode(beginning).len();
    demo.run(demo.request(beginning, greedy(1)));
    for end in [" Paris", " London, of course."] {
        let text = format!("{beginning}{end}");
        let part = demo.run(whole(&text, from)).remove(0);
        assert!(part.cached + 2 >= from, "{} of {from} are cached", part.cached);
        let all = demo.run(whole(&text, 0)).remove(0);
        assert_eq!(all.cached, 0);
        assert_eq!(scores(&part)[..from], vec![None; from]);
        assert_eq!(scores(&part)[from..], scores(&all)[from..]);
        assert!(scores(&part)[from..].iter().all(Option::is_some));
    }
}

#[test]
fn a_pin_keeps_a_beginning_while_others_come_and_go() {
    let demo = Demo::with(|config| EngineConfig {
        kv_cache_bytes: Some(4 << 20),
        max_pinned_bytes: Some(2 << 20),
        ..config
    });
    let text = "A long story begins here. ".repeat(12);
    let prompt = || demo.request(&text, greedy(4));
    let first = demo.run(prompt()).remove(0);
    let pin = demo.engine.pin(prompt().prompt, None);
    let num_others = 2 * demo.engine.info().num_blocks;
    let others = || {
        for index in 0..num_others {
            demo.run(demo.request(&format!("{index} is a number like others"), greedy(12)));
        }
    };
    others();
    let again = demo.run(prompt()).remove(0);
    assert_eq!(again.cached, prompt().prompt.len() - 1);
    assert_eq!(again.tokens, first.tokens);
    drop(pin);
    others();
    assert!(demo.run(prompt()).remove(0).cached < 16, "without a pin it is forgotten");
}
