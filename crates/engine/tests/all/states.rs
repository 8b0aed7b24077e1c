//! Models whose sequences have states beside keys and values: the same answers, however they are scheduled.

use super::*;

const MODELS: [&str; 2] = ["qwen3-next", "qwen3_5"];

fn start(name: &str, config: EngineConfig) -> EngineHandle {
    EngineHandle::start(&checkpoint(name), config, &mut |_| ()).unwrap()
}

/// One row at a time, and nothing of what others computed.
fn alone(name: &str) -> EngineHandle {
    start(name, EngineConfig { max_num_seqs: 1, enable_prefix_caching: false, ..config() })
}

#[test]
fn same_tokens_alone_in_a_batch_and_under_preemption() {
    for name in MODELS {
        let requests = || (0..16).map(|i| request(prompt(i % 5, 5 + 3 * i as usize), greedy(20)));
        let alone = alone(name);
        let want: Vec<_> =
            requests().map(|request| run(&alone, request).remove(0).tokens).collect();
        let block_bytes = alone.info().kv_cache_bytes / alone.info().num_blocks as u64;
        let tiny = EngineConfig { kv_cache_bytes: Some(block_bytes * 9), ..config() };
        let small_steps = EngineConfig { max_num_batched_tokens: Some(7), ..config() };
        let prism = EngineConfig { scheduling_policy: SchedulingPolicy::LongestPrefix, ..config() };
        for config in [config(), tiny, small_steps, prism] {
            let engine = start(name, config);
            let streams: Vec<_> =
                requests().map(|request| engine.submit(request).unwrap().remove(0)).collect();
            let got: Vec<_> = streams.into_iter().map(|stream| collect(stream).tokens).collect();
            assert_eq!(got, want, "{name}");
        }
    }
}

/// The state of a turn's end is that of the next one's beginning; so is that of what several prompts have in common, from the third on.
#[test]
fn conversations_and_shared_beginnings_are_not_computed_again() {
    for name in MODELS {
        let (engine, alone) = (start(name, config()), alone(name));
        let first = run(&engine, request(prompt(1, 30), greedy(9))).remove(0);
        // The last token was sampled and not computed.
        let turn = [&prompt(1, 30)[..], &first.tokens, &[7, 8, 9]].concat();
        let second = run(&engine, request(turn.clone(), greedy(9))).remove(0);
        assert_eq!((first.cached, second.cached), (0, 32), "{name}");
        assert_eq!(second.tokens, run(&alone, request(turn, greedy(9))).remove(0).tokens);

        let shared = |own: u32| [prompt(2, 40), prompt(own, 6)].concat();
        let cached: Vec<usize> = (3..7)
            .map(|own| {
                let found = run(&engine, request(shared(own), greedy(5))).remove(0);
                let expected = run(&alone, request(shared(own), greedy(5))).remove(0);
                assert_eq!(found.tokens, expected.tokens, "{name}");
                found.cached
            })
            .collect();
        assert_eq!(cached, [0, 0, 32, 32], "{name}: two blocks of 16");
    }
}

#[test]
fn choices_go_on_from_the_state_of_their_prompt() {
    let sampling = SamplingParams { seed: Some(5), temperature: 1.2, ..greedy(24) };
    for name in MODELS {
        let engine = start(name, config());
        let three = Request { n: 3, ..request(prompt(2, 21), sampling.clone()) };
        let choices: Vec<_> = run(&engine, three).into_iter().map(|c| c.tokens).collect();
        let alone = alone(name);
        for (i, tokens) in choices.iter().enumerate() {
            let seeded = SamplingParams { seed: Some(5 + i as u64), ..sampling.clone() };
            let one = run(&alone, request(prompt(2, 21), seeded)).remove(0);
            assert_eq!(*tokens, one.tokens, "{name}, choice {i}");
        }
        assert!(choices[0] != choices[1] && choices[1] != choices[2], "choices must differ");
    }
}

/// The reference implementations of the device's kernels: its tables, graphs' padding, steps that run ahead, and copies of states.
#[test]
fn a_device_answers_as_the_cpu_does() {
    let name = "qwen3_5";
    let of = |device_reference| EngineConfig {
        device_reference,
        load: LoadOptions { dtype: LoadDtype::F32, ..config().load },
        ..config()
    };
    let (cpu, device) = (start(name, of(false)), start(name, of(true)));
    assert_eq!(cpu.info().num_states > 16, device.info().num_states > 16);
    let shared = |own: u32| [prompt(2, 20), prompt(own, 6)].concat();
    for own in [3, 4, 5] {
        let three = |engine: &EngineHandle| {
            let request = Request { n: 2, ..request(shared(own), greedy(8)) };
            let choices = run(engine, request).into_iter();
            choices.map(|choice| (choice.tokens, choice.cached)).collect::<Vec<_>>()
        };
        assert_eq!(three(&device), three(&cpu), "prompt {own}");
    }
    let requests = || (0..6).map(|i| request(prompt(i, 4 + 5 * i as usize), greedy(8)));
    let all = |engine: &EngineHandle| {
        let streams: Vec<_> =
            requests().map(|request| engine.submit(request).unwrap().remove(0)).collect();
        streams.into_iter().map(|stream| collect(stream).tokens).collect::<Vec<_>>()
    };
    assert_eq!(all(&device), all(&cpu));
}

/// Fewer sequences run at once where their states would take more than half of what sequences may keep.
#[test]
fn states_bound_how_many_sequences_run() {
    let engine = start("qwen3-next", config());
    let info = engine.info();
    assert_eq!((info.max_num_seqs, info.num_states), (16, 64));
    let of_one = checkpoint("qwen3-next").spec().state_bytes(Dtype::F32, 1);
    assert_eq!(info.state_bytes, 64 * of_one);
    let plain = super::start(config());
    assert_eq!((plain.info().num_states, plain.info().state_bytes), (0, 0));
}
