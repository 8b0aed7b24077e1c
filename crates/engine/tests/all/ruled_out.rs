//! Tokens that a request rules out: alone, in a batch, under preemption, with constraints, and where a request goes on.

use candlepower_engine::{EngineConfig, Request, SamplingParams, TokenEvent, TokenStream};
use candlepower_grammar::Constraint;

use super::prism::{Demo, greedy as ending};
use super::{block_on, collect, config, greedy, prompt, request, run, start};

fn contains(tokens: &[u32], word: &[u32]) -> bool {
    tokens.windows(word.len()).any(|window| window == word)
}

fn sampled(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 1.5, seed: Some(seed), ..greedy(40) }
}

/// Some runs of two and three of these tokens.
fn words_of(tokens: &[u32]) -> Vec<Vec<u32>> {
    let starts = (0..tokens.len() - 3).step_by(4);
    starts.map(|start| tokens[start..start + 2 + start % 2].to_vec()).collect()
}

#[test]
fn a_word_is_left_where_it_would_end() {
    let engine = start(config());
    let free = run(&engine, request(prompt(3, 12), greedy(20))).remove(0).tokens;
    let word = free[4..7].to_vec();
    let at = free.windows(3).position(|window| window == word).unwrap() + 2;
    let without = SamplingParams { bad_words: [word.clone()].into(), ..greedy(20) };
    let got = run(&engine, request(prompt(3, 12), without)).remove(0).tokens;
    assert_eq!(got[..at], free[..at]);
    assert!(got[at] != free[at] && !contains(&got, &word), "{got:?} has {word:?}");
    let single = SamplingParams { bad_words: [vec![free[0]]].into(), ..greedy(20) };
    let got = run(&engine, request(prompt(3, 12), single)).remove(0).tokens;
    assert!(!got.contains(&free[0]));
    // The prompt is none of the output.
    let begins_in_the_prompt = vec![prompt(3, 12)[11], free[0]];
    let whole = SamplingParams { bad_words: [begins_in_the_prompt].into(), ..greedy(20) };
    assert_eq!(run(&engine, request(prompt(3, 12), whole)).remove(0).tokens, free);
}

#[test]
fn words_are_ruled_out_alone_in_a_batch_and_under_preemption() {
    let alone = start(EngineConfig { max_num_seqs: 1, enable_prefix_caching: false, ..config() });
    let free = run(&alone, request(prompt(2, 20), sampled(5))).remove(0).tokens;
    let bad_words: Vec<Vec<u32>> = words_of(&free);
    let requests = || {
        (0..12u32).map(|i| {
            let allowed = (i % 3 == 0).then(|| (0..200).collect());
            let params = SamplingParams {
                bad_words: bad_words.clone().into(),
                allowed_token_ids: allowed,
                ..sampled(5 + u64::from(i / 2))
            };
            Request { n: 2, ..request(prompt(2, 20 + i as usize / 4), params) }
        })
    };
    let of = |stream: TokenStream| collect(stream).tokens;
    let submit = |engine: &candlepower_engine::EngineHandle| -> Vec<Vec<u32>> {
        let streams: Vec<_> = requests().flat_map(|r| engine.submit(r).unwrap()).collect();
        streams.into_iter().map(of).collect()
    };
    let want: Vec<Vec<u32>> =
        requests().flat_map(|r| run(&alone, r)).map(|choice| choice.tokens).collect();
    assert!(want[0] != free, "the first request would have had the words");
    for (index, tokens) in want.iter().enumerate() {
        assert!(bad_words.iter().all(|word| !contains(tokens, word)), "{tokens:?}");
        assert!(index / 2 % 3 != 0 || tokens.iter().all(|id| *id < 200), "{tokens:?}");
    }
    let block_bytes = alone.info().kv_cache_bytes / alone.info().num_blocks as u64;
    let tiny = EngineConfig { kv_cache_bytes: Some(block_bytes * 9), ..config() };
    for config in [config(), tiny, EngineConfig { max_num_batched_tokens: Some(7), ..config() }] {
        assert_eq!(submit(&start(config)), want);
    }
}

#[test]
fn a_constraint_and_allowed_tokens_hold_together() {
    let demo = Demo::new(true);
    let choice = Constraint::Choice(vec!["yes".into(), "no".into(), "never".into()]);
    let ids = |texts: &[&str]| texts.iter().map(|text| demo.token(text)).collect::<Vec<_>>();
    let run = |params: SamplingParams| demo.run(demo.constrained(&choice, params)).remove(0);
    for (ruled_out, left) in [("n", "yes"), ("y", "n")] {
        let words = demo.tokens_beginning_with(ruled_out).into_iter().map(|id| vec![id]);
        let text = demo.text(&run(SamplingParams { bad_words: words.collect(), ..ending(8) }));
        assert!(text.starts_with(left), "without {ruled_out}: {text}");
    }
    let of_no = SamplingParams { allowed_token_ids: Some(ids(&["n", "o"]).into()), ..ending(8) };
    assert_eq!(demo.text(&run(of_no)), "no");
    let of_neither = SamplingParams { allowed_token_ids: Some(ids(&["q"]).into()), ..ending(8) };
    let mut stream = demo.submit(demo.constrained(&choice, of_neither));
    let event = block_on(stream.next());
    let message = match event {
        Some(TokenEvent::TooComplex { message }) => message,
        other => panic!("{other:?}"),
    };
    assert!(message.contains("among the allowed ones"), "{message}");
}

#[test]
fn a_text_of_which_every_end_is_ruled_out_is_an_error_of_the_request() {
    let engine = start(config());
    let params = SamplingParams {
        allowed_token_ids: Some([5, 6].into()),
        bad_words: [vec![5], vec![6, 6]].into(),
        ..greedy(5)
    };
    let mut stream = engine.submit(request(prompt(1, 8), params)).unwrap().remove(0);
    let mut events = std::iter::from_fn(|| block_on(stream.next()));
    assert!(matches!(events.next(), Some(TokenEvent::Prompt { .. })));
    assert!(matches!(events.next(), Some(TokenEvent::Token { token_id: 6, .. })));
    assert!(matches!(events.next(), Some(TokenEvent::TooComplex { .. })));
}

#[test]
fn a_request_goes_on_from_what_was_generated_for_it() {
    let engine = start(EngineConfig { max_num_seqs: 1, max_queued_seqs: 0, ..config() });
    let params = SamplingParams {
        presence_penalty: 1.0,
        repetition_penalty: 1.2,
        min_tokens: 12,
        stop_token_ids: (0..100).collect(),
        ..sampled(7)
    };
    let whole = run(&engine, request(prompt(3, 12), params.clone())).remove(0);
    let word = [whole.tokens[7], whole.tokens[8]];
    let without = SamplingParams { bad_words: [word.to_vec()].into(), ..params.clone() };
    for (params, at) in [(params, 5), (without, 8)] {
        let whole = run(&engine, request(prompt(3, 12), params.clone())).remove(0);
        let mut given_up = engine.submit(request(prompt(3, 12), params.clone())).unwrap().remove(0);
        block_on(given_up.next()).unwrap();
        let so_far = [prompt(3, 12), whole.tokens[..at].to_vec()].concat();
        let rest = Request { num_generated: at, ..request(so_far, params) };
        let rest = collect(engine.go_on(given_up, rest).unwrap().remove(0));
        assert_eq!((&rest.tokens[..], rest.finish), (&whole.tokens[at..], whole.finish));
    }
}
