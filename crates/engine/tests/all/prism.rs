//! The additions of prism, on the demo model: tokens appended without being sampled, pins, and scores of the end of a prompt.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use candlepower_checkpoint::{Checkpoint, CheckpointFiles};
use candlepower_engine::{
    CallerId, EngineConfig, EngineHandle, FinishReason, LoadOptions, Request, SamplingParams,
    SchedulingPolicy, TokenStream,
};
use candlepower_grammar::{Constraint, GrammarCompiler, Tokenizer};
use metrics::Counter;
use serde_json::json;

use super::{Collected, collect, config, prompt, request};

/// The demo model with its tokenizer, and what it counts.
pub(super) struct Demo {
    pub(super) engine: EngineHandle,
    tokenizer: Tokenizer,
    compiler: GrammarCompiler,
    pub(super) jump_forward_tokens: Arc<AtomicU64>,
}

impl Demo {
    pub(super) fn new(jump_forward: bool) -> Self {
        Self::with(|config| EngineConfig { jump_forward, ..config })
    }

    pub(super) fn with(change: impl FnOnce(EngineConfig) -> EngineConfig) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../server/demo");
        let read = |name| std::fs::read(folder.join(name)).unwrap();
        let tokenizer_config = read("tokenizer_config.json");
        let tokenizer =
            Tokenizer::from_bytes(&read("tokenizer.json"), Some(&tokenizer_config)).unwrap();
        let jump_forward_tokens = Arc::new(AtomicU64::new(0));
        let base = config();
        let config = EngineConfig {
            load: LoadOptions { max_model_len: Some(512), ..base.load.clone() },
            scheduling_policy: SchedulingPolicy::LongestPrefix,
            ..base
        };
        let mut config = change(config);
        config.metrics.jump_forward_tokens = Counter::from_arc(Arc::clone(&jump_forward_tokens));
        let checkpoint = Checkpoint::open(CheckpointFiles::Folder(folder)).unwrap();
        let engine = EngineHandle::start(&checkpoint, config, &mut |_| ()).unwrap();
        let info = engine.info();
        let compiler =
            GrammarCompiler::new(&tokenizer, &info.eos_token_ids, info.vocab_size).unwrap();
        Self { engine, tokenizer, compiler, jump_forward_tokens }
    }

    /// The token that stands for a text.
    pub(super) fn token(&self, text: &str) -> u32 {
        let mut ids = 0..self.tokenizer.vocab_size() as u32;
        ids.find(|id| self.tokenizer.token_bytes(*id) == text.as_bytes()).unwrap()
    }

    /// The tokens whose texts begin so.
    pub(super) fn tokens_beginning_with(&self, start: &str) -> Vec<u32> {
        let begins = |id: &u32| self.tokenizer.token_bytes(*id).starts_with(start.as_bytes());
        (0..self.tokenizer.vocab_size() as u32).filter(begins).collect()
    }

    /// The stream of a request of one choice.
    pub(super) fn submit(&self, request: Request) -> TokenStream {
        self.engine.submit(request).unwrap().remove(0)
    }

    pub(super) fn constrained(&self, constraint: &Constraint, sampling: SamplingParams) -> Request {
        let grammar = Some(self.compiler.compile(constraint).unwrap());
        Request { grammar, ..request(prompt(1, 9), sampling) }
    }

    pub(super) fn run(&self, request: Request) -> Vec<Collected> {
        self.engine.submit(request).unwrap().into_iter().map(collect).collect()
    }

    pub(super) fn text(&self, output: &Collected) -> String {
        let bytes = output.tokens.iter().flat_map(|id| self.tokenizer.token_bytes(*id).to_vec());
        String::from_utf8(bytes.collect()).unwrap()
    }
}

pub(super) fn greedy(max_tokens: usize) -> SamplingParams {
    SamplingParams { max_tokens, temperature: 0.0, ..SamplingParams::default() }
}

pub(super) fn person() -> Constraint {
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
fn ranks_hold_to_constraints() {
    let one = Demo::new(true);
    let two = Demo::with(|config| EngineConfig { tensor_parallel_size: 2, ..config });
    for constraint in [person(), Constraint::Regex("[a-c]{3} and so on [0-9]{2}".into())] {
        let run = |demo: &Demo| demo.run(demo.constrained(&constraint, greedy(120)));
        let (got, want) = (run(&two), run(&one));
        assert_eq!(got, want, "{constraint:?}");
    }
    let count = |demo: &Demo| demo.jump_forward_tokens.load(Ordering::Relaxed);
    assert_eq!(count(&two), count(&one));
    assert!(count(&two) > 20, "{} tokens were not sampled", count(&two));
}

#[test]
fn tokens_that_need_no_sampling_change_nothing() {
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
    let samplings = [
        greedy(120),
        greedy(7),
        SamplingParams { min_tokens: 90, ..greedy(120) },
        SamplingParams { stop_token_ids: vec![with.token("of"), with.token(" ")], ..greedy(120) },
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
    assert!(count(&with) > 500, "{} tokens were not sampled", count(&with));
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
        max_num_batched_tokens: Some(9),
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
    // A token that may not be sampled yet, where no other one is allowed.
    let stop = demo.token("n");
    let sampling = SamplingParams { stop_token_ids: vec![stop], ..sampling };
    let got = demo.run(demo.constrained(&Constraint::Choice(vec!["n".into()]), sampling)).remove(0);
    assert_eq!((got.tokens, got.finish), (vec![stop], Some(FinishReason::StopToken(stop))));
}

#[test]
fn the_end_of_a_prompt_is_scored_with_its_beginning_from_the_cache() {
    let demo = Demo::new(true);
    let beginning = prompt(5, 75);
    let whole = |ids: Vec<u32>, from: usize| Request {
        prompt_logprobs: Some(2),
        prompt_logprobs_from: from,
        ..request(ids, greedy(0))
    };
    let scores = |output: &Collected| output.prompt.clone().unwrap();
    let from = beginning.len();
    demo.run(request(beginning.clone(), greedy(1)));
    for end in [prompt(6, 1), prompt(7, 5)] {
        let ids = [&beginning[..], &end].concat();
        let part = demo.run(whole(ids.clone(), from)).remove(0);
        assert!(part.cached >= (from - 2) / 16 * 16, "{} of {from} are cached", part.cached);
        let all = demo.run(whole(ids, 0)).remove(0);
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
    let story = || request(prompt(1, 200), greedy(4));
    let first = demo.run(story()).remove(0);
    let pin = demo.engine.pin(story().prompt, CallerId::default(), None);
    let num_others = 2 * demo.engine.info().num_blocks as u32;
    let others = |round: u32| {
        for index in 0..num_others {
            demo.run(request(prompt(2 + round * num_others + index, 12), greedy(12)));
        }
    };
    others(0);
    let again = demo.run(story()).remove(0);
    assert_eq!(again.cached, (story().prompt.len() - 1) / 16 * 16);
    assert_eq!(again.tokens, first.tokens);
    drop(pin);
    others(1);
    assert!(demo.run(story()).remove(0).cached < 16, "without a pin it is forgotten");
}
