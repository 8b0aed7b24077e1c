//! Callers get their shares: bounds on a new caller's waiting time, on its cost, and on the division of tokens.

use std::collections::HashMap;
use std::num::NonZeroU32;

use candlepower_scheduler::{
    Caller, CallerId, Item, NewSequence, PrefixCacheScope, SchedulerConfig, SchedulingPolicy,
    SeqId, Step,
};
use proptest::prelude::*;

use crate::random_run::Random;
use crate::simulation::Simulation;

const CONFIG: SchedulerConfig = SchedulerConfig {
    block_size: 16,
    num_blocks: 1938,
    max_num_seqs: 64,
    max_num_batched_tokens: 512,
    max_model_len: 31_000,
    enable_prefix_caching: true,
    prefix_cache_scope: PrefixCacheScope::Server,
    policy: SchedulingPolicy::Fcfs,
    max_pinned_blocks: 100,
    num_swap_blocks: 0,
    num_state_slots: 0,
    row_multiple: 1,
    max_graph_rows: 0,
    num_encoder_embeddings: 4000,
};

fn caller(id: u64, weight: u32) -> Caller {
    Caller { id: CallerId(id), weight: NonZeroU32::new(weight).expect("weights are positive") }
}

/// A sequence whose prompt has no common prefix with those of another `seed`.
fn of(caller: Caller, seed: usize, prompt_len: usize) -> NewSequence {
    let first = 10 + (seed as u32) * 100;
    let prompt = (0..prompt_len as u32).map(|position| first + position % 97).collect();
    NewSequence { caller, ..NewSequence::new(prompt) }
}

/// Makes the whole prompt an image, whose pieces take half a budget each.
fn show_image(new: &mut NewSequence, seed: usize) {
    let len = new.prompt.len();
    new.prompt.fill(5);
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&seed.to_le_bytes());
    let (start, placeholder, num_pieces, tokens_per_piece) = (0, 5, 20, 256);
    let is_whole = seed.is_multiple_of(2);
    new.items =
        vec![Item { start, len, placeholder, digest, num_pieces, tokens_per_piece, is_whole }];
}

/// Number of steps until a sequence has a row.
fn steps_to_first_row(simulation: &mut Simulation, id: SeqId) -> usize {
    let has_row = |step: &Step| step.rows.iter().any(|row| row.seq == id);
    (1..100).find(|_| has_row(&simulation.step())).unwrap_or(100)
}

/// A way in which one caller takes the server for itself.
#[derive(Clone, Copy, Debug)]
enum Flood {
    /// Many sequences with prompts of `prompt_len` tokens.
    Sequences { num: usize, prompt_len: usize },
    /// Many requests for 16 sequences each.
    Siblings { num: usize },
    /// One prompt as long as the context.
    LongPrompt,
    /// Many sequences with an image each, which takes the whole budgets of many steps.
    Images { num: usize, len: usize },
}

impl Flood {
    fn add(self, simulation: &mut Simulation, flooder: Caller) {
        let longest = simulation.scheduler.config().max_model_len - 1;
        let (num, prompt_len, n) = match self {
            Self::Sequences { num, prompt_len } => (num, prompt_len.min(longest), 1),
            Self::Siblings { num } => (num, 40.min(longest), 16),
            Self::LongPrompt => (3, longest, 1),
            Self::Images { num, len } => (num, len.min(longest), 1),
        };
        for index in 0..num {
            let mut new = NewSequence { n, ..of(flooder, index, prompt_len) };
            if matches!(self, Self::Images { .. }) {
                show_image(&mut new, index);
            }
            simulation.add(new, 10_000);
        }
    }
}

#[test]
fn a_new_caller_is_not_kept_waiting_by_any_flood() {
    let floods = [
        // All slots, and thousands queued.
        Flood::Sequences { num: 4000, prompt_len: 10 },
        // All blocks.
        Flood::Sequences { num: 40, prompt_len: 3000 },
        Flood::Siblings { num: 200 },
        Flood::LongPrompt,
        Flood::Images { num: 2000, len: 700 },
    ];
    for flood in floods {
        for (max_ahead, num_before) in [(0, 1), (1, 5), (1, 50), (1, 500)] {
            let mut simulation = Simulation::new(CONFIG, max_ahead);
            flood.add(&mut simulation, caller(1, 1));
            (0..num_before).for_each(|_| _ = simulation.step());
            for newcomer in 2..5 {
                let chat = of(caller(newcomer, 1), 5000 + newcomer as usize, 60);
                let id = simulation.add(chat, 20)[0];
                let num_steps = steps_to_first_row(&mut simulation, id);
                assert!(num_steps <= 3, "{num_steps} steps beside {flood:?} after {num_before}");
            }
        }
    }
}

/// The encoder has one item at a time, which the flooder's sequence completes first.
#[test]
fn a_new_callers_image_waits_for_few_others() {
    let mut simulation = Simulation::new(CONFIG, 1);
    Flood::Images { num: 500, len: 700 }.add(&mut simulation, caller(1, 1));
    (0..50).for_each(|_| _ = simulation.step());
    let mut new = of(caller(2, 1), 5000, 60);
    show_image(&mut new, 5000);
    let id = simulation.add(new, 20)[0];
    // An image takes ten steps, and its tokens two more.
    let num_steps = steps_to_first_row(&mut simulation, id);
    assert!(num_steps <= 36, "{num_steps} steps");
}

/// A caller's chats, one after the other, are all answered at once. The prompt that gives way to them continues.
#[test]
fn one_chat_after_the_other_is_answered_beside_a_long_prompt() {
    let mut simulation = Simulation::new(CONFIG, 1);
    Flood::LongPrompt.add(&mut simulation, caller(1, 1));
    let first = *simulation.live.keys().min().unwrap();
    simulation.step();
    let mut num_chats = 0;
    for num_steps in 1.. {
        let id = simulation.add(of(caller(2, 1), 5000 + num_chats, 60), 10)[0];
        num_chats += 1;
        let waited = steps_to_first_row(&mut simulation, id);
        assert!(waited <= 3, "chat {num_chats}: {waited} steps");
        while simulation.live.contains_key(&id) {
            simulation.step();
        }
        (0..5).for_each(|_| _ = simulation.step());
        if !simulation.live.contains_key(&first) {
            break;
        }
        // Between two chats the prompt has five steps of 512 tokens.
        assert!(num_steps <= 20, "{num_steps} chats long");
    }
    assert!(num_chats > 5, "{num_chats} chats");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn a_new_caller_starts_within_three_steps(
        sizes in (1..5_usize, 64..200_usize, 1..20_usize, 1..40_usize),
        switches in (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
        flood in prop_oneof![
            (1..60_usize, 1..200_usize)
                .prop_map(|(num, prompt_len)| Flood::Sequences { num, prompt_len }),
            (1..6_usize).prop_map(|num| Flood::Siblings { num }),
            Just(Flood::LongPrompt),
            (1..20_usize, 1..200_usize).prop_map(|(num, len)| Flood::Images { num, len }),
        ],
        weights in (1..9_u32, 1..9_u32),
        (num_before, max_ahead, prompt_len) in (0..60_usize, 0..2_usize, 1..20_usize),
    ) {
        let (block_size, num_blocks, max_num_seqs, max_num_batched_tokens) = sizes;
        let (enable_prefix_caching, is_fcfs, has_states, can_swap) = switches;
        let config = SchedulerConfig {
            block_size,
            num_blocks,
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len: num_blocks * block_size,
            enable_prefix_caching,
            policy: if is_fcfs { SchedulingPolicy::Fcfs } else { SchedulingPolicy::LongestPrefix },
            num_swap_blocks: if can_swap && !has_states { num_blocks } else { 0 },
            num_state_slots: if has_states { max_num_seqs + 2 } else { 0 },
            ..CONFIG
        };
        let mut simulation = Simulation::new(config, max_ahead);
        flood.add(&mut simulation, caller(1, weights.0));
        (0..num_before).for_each(|_| _ = simulation.step());
        let chat = of(caller(2, weights.1), 5000, prompt_len.min(num_blocks * block_size / 3));
        let id = simulation.add(chat, 3)[0];
        let num_steps = steps_to_first_row(&mut simulation, id);
        prop_assert!(num_steps <= 3, "{} steps", num_steps);
    }
}

/// Keeps callers busy with random requests for `num_steps` steps. Returns the number of tokens of each.
fn run_busy(
    config: SchedulerConfig,
    callers: &[Caller],
    num_steps: usize,
    random: &mut Random,
) -> Vec<usize> {
    let mut simulation = Simulation::new(config, 1);
    let mut num_tokens: HashMap<CallerId, usize> = HashMap::new();
    let mut seed = 0;
    for _ in 0..num_steps {
        for caller in callers {
            for _ in simulation.num_live(caller.id)..24 {
                seed += 1;
                let prompt_len = 1 + random.below(120);
                simulation.add(of(*caller, seed, prompt_len), 1 + random.below(40));
            }
        }
        // A sequence may have a row in a step and be removed when the step before is committed.
        let whose: HashMap<SeqId, CallerId> =
            simulation.live.iter().map(|(id, live)| (*id, live.caller)).collect();
        for row in simulation.step().rows {
            *num_tokens.entry(whose[&row.seq]).or_default() += row.tokens.len();
        }
    }
    callers.iter().map(|caller| num_tokens.get(&caller.id).copied().unwrap_or(0)).collect()
}

/// The token budget, slots or blocks may be scarce.
#[test]
fn tokens_are_divided_by_weight() {
    let mut random = Random::new(3);
    let scarce = [
        SchedulerConfig { max_num_batched_tokens: 16, ..CONFIG },
        SchedulerConfig { max_num_batched_tokens: 8, ..CONFIG },
        SchedulerConfig { max_num_seqs: 12, ..CONFIG },
        SchedulerConfig { max_num_seqs: 12, enable_prefix_caching: false, ..CONFIG },
        SchedulerConfig { num_blocks: 100, max_model_len: 1600, ..CONFIG },
    ];
    for config in scarce {
        for weights in [&[1, 1][..], &[1, 2, 3], &[1, 4], &[1, 1, 6]] {
            let callers: Vec<_> =
                (1..).zip(weights).map(|(id, weight)| caller(id, *weight)).collect();
            let num_tokens = run_busy(config.clone(), &callers, 3000, &mut random);
            let total: usize = num_tokens.iter().sum();
            let sum: u32 = weights.iter().sum();
            for (num_tokens, weight) in num_tokens.iter().zip(weights) {
                let share = *num_tokens as f64 / total as f64 * f64::from(sum) / f64::from(*weight);
                assert!(
                    (0.9..1.1).contains(&share),
                    "{num_tokens} of {total} tokens for {weight} of {weights:?} under {config:?}"
                );
            }
        }
    }
}

/// Random requests of several callers, with gaps. Returns the number of tokens that were computed for them.
fn run_mixed(config: SchedulerConfig, num_callers: usize) -> (Simulation, usize) {
    let mut random = Random::new(11);
    let mut simulation = Simulation::new(config, 1);
    let (mut num_tokens, mut seed) = (0, 0);
    for now in 0.. {
        if now < 3000 {
            for whose in 0..8 {
                // Bursts of one caller after the other, and single requests of all callers.
                let num = match (now / 100) % 8 == whose && random.below(10) == 0 {
                    true => 4,
                    false => usize::from(random.below(60) == 0),
                };
                for _ in 0..num {
                    seed += 1;
                    let n = if random.below(10) == 0 { 4 } else { 1 };
                    let (prompt_len, max_tokens) = (1 + random.below(400), 1 + random.below(60));
                    let caller = caller((whose % num_callers) as u64, 1);
                    simulation.add(NewSequence { n, ..of(caller, seed, prompt_len) }, max_tokens);
                }
            }
        } else if simulation.live.is_empty() {
            break;
        }
        num_tokens += simulation.step().num_tokens();
    }
    (simulation, num_tokens)
}

#[test]
fn fairness_costs_few_tokens() {
    let config = SchedulerConfig { max_num_seqs: 16, max_num_batched_tokens: 128, ..CONFIG };
    let with_blocks = |num_blocks| SchedulerConfig {
        num_blocks,
        max_num_seqs: 64,
        max_model_len: 1600,
        ..config.clone()
    };
    let configs = [
        config.clone(),
        with_blocks(300),
        SchedulerConfig { num_swap_blocks: 1000, ..with_blocks(200) },
    ];
    for config in configs {
        let (_, alone) = run_mixed(config.clone(), 1);
        let (simulation, fair) = run_mixed(config.clone(), 8);
        let num_yielded = simulation.scheduler.stats().num_yielded;
        let more = fair as f64 / alone as f64 - 1.0;
        println!("{:.2} % more tokens, {num_yielded} gave way", 100.0 * more);
        assert!(num_yielded > 20, "{num_yielded} gave way under {config:?}");
        assert!(more <= 0.03, "{fair} tokens for {alone} under {config:?}");
    }
}

/// A caller whose sequence fits only while almost nothing else runs is not overtaken for ever.
#[test]
fn a_sequence_that_needs_most_blocks_starts_beside_busy_callers() {
    for enable_prefix_caching in [true, false] {
        let config = SchedulerConfig {
            num_blocks: 100,
            max_num_batched_tokens: 64,
            max_model_len: 1600,
            enable_prefix_caching,
            ..CONFIG
        };
        let mut random = Random::new(5);
        let mut simulation = Simulation::new(config, 1);
        let large = simulation.add(of(caller(9, 1), 9999, 1400), 5)[0];
        let mut num_steps = 0;
        while simulation.live.contains_key(&large) {
            for id in 1..4 {
                for _ in simulation.num_live(CallerId(id))..8 {
                    let seed = random.below(5000);
                    simulation.add(of(caller(id, 1), seed, 1 + random.below(100)), 30);
                }
            }
            simulation.step();
            num_steps += 1;
            assert!(num_steps < 500, "it does not end");
        }
    }
}

#[test]
fn a_priority_among_callers_counts_before_shares() {
    let mut simulation = Simulation::new(SchedulerConfig { max_num_seqs: 2, ..CONFIG }, 0);
    for seed in 0..6 {
        simulation.add(of(caller(1, 100), seed, 10), 1000);
    }
    simulation.step();
    let urgent =
        |seed| NewSequence { caller_priority: -1, priority: 5, ..of(caller(2, 1), seed, 10) };
    let ids = [simulation.add(urgent(10), 50)[0], simulation.add(urgent(11), 50)[0]];
    let num_rows = |step: &Step| step.rows.iter().filter(|row| ids.contains(&row.seq)).count();
    let most = (0..16).map(|_| num_rows(&simulation.step())).max();
    assert_eq!(most, Some(2), "both slots");
    // Its own priority does not matter among other callers.
    let mut simulation = Simulation::new(SchedulerConfig { max_num_seqs: 2, ..CONFIG }, 0);
    for seed in 0..6 {
        simulation.add(NewSequence { priority: -9, ..of(caller(1, 1), seed, 10) }, 1000);
    }
    simulation.step();
    let id = simulation.add(NewSequence { priority: 9, ..of(caller(2, 1), 10, 10) }, 5)[0];
    assert!(steps_to_first_row(&mut simulation, id) <= 3);
}

/// The scheduler removes the accounts of idle callers, and continues.
#[test]
fn thousands_of_callers_come_and_go() {
    let mut simulation = Simulation::new(SchedulerConfig { max_num_seqs: 4, ..CONFIG }, 1);
    for id in 0..5000 {
        simulation.add(of(caller(id, 1), id as usize % 300, 3), 1);
        if id % 3 == 0 {
            simulation.step();
        }
    }
    while !simulation.live.is_empty() {
        simulation.step();
    }
}
