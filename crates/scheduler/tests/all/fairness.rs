//! No sequence starves: bounds, in steps, on every waiting time.

use std::collections::HashMap;

use candlepower_scheduler::{
    NewSequence, PrefixCacheScope, SchedulerConfig, SchedulingPolicy, SeqId,
};

use crate::workload::{Workload, prompt};

const CONFIG: SchedulerConfig = SchedulerConfig {
    block_size: 4,
    num_blocks: 1000,
    max_num_seqs: 64,
    max_num_batched_tokens: 4,
    max_model_len: 400,
    enable_prefix_caching: true,
    prefix_cache_scope: PrefixCacheScope::Server,
    policy: SchedulingPolicy::Fcfs,
    max_pinned_blocks: 100,
    num_swap_blocks: 0,
    num_state_slots: 0,
    row_multiple: 1,
    max_graph_rows: 0,
    num_encoder_embeddings: 0,
};

/// Runs one step. Returns the number of tokens of each sequence.
fn step(workload: &mut Workload) -> HashMap<SeqId, usize> {
    let step = workload.step();
    workload.commit();
    step.rows.iter().map(|row| (row.seq, row.tokens.len())).collect()
}

/// Prompts without a common prefix.
fn distinct(index: u32, len: usize) -> NewSequence {
    NewSequence::new((0..len as u32).map(|position| 10 + index * 1000 + position).collect())
}

#[test]
fn decodes_beyond_the_budget_take_turns_while_prompts_keep_coming() {
    let mut workload = Workload::new(CONFIG);
    let decodes: Vec<_> = (0..12).map(|index| workload.add(distinct(index, 1), 300)[0]).collect();
    for _ in 0..12 {
        step(&mut workload);
    }
    let mut last_run: HashMap<_, _> = decodes.iter().map(|id| (*id, 0)).collect();
    for now in 1..400 {
        workload.add(distinct(100 + now as u32, 3), 1);
        for id in step(&mut workload).into_keys() {
            last_run.entry(id).and_modify(|last| *last = now);
        }
        // A quarter of the budget is for prompts, and 12 decodes take turns with the other 3 tokens.
        let waits = last_run
            .iter()
            .filter(|(id, _)| workload.live.contains_key(id))
            .map(|(_, last)| now - last);
        assert!(waits.max() <= Some(5), "a decode waits for longer than one round");
    }
    assert!(workload.seen.finished > 100, "prompts get their share: {:?}", workload.seen);
}

#[test]
fn a_long_prompt_gets_its_share_beside_decodes_and_later_prompts() {
    let mut workload = Workload::new(CONFIG);
    for index in 0..12 {
        workload.add(distinct(index, 1), 300);
    }
    for _ in 0..12 {
        step(&mut workload);
    }
    let long = workload.add(distinct(50, 100), 1)[0];
    let mut num_steps = 0;
    while workload.live.contains_key(&long) {
        workload.add(distinct(100 + num_steps, 2), 1);
        step(&mut workload);
        num_steps += 1;
        // Its last token waits for its turn among the decodes.
        assert!(num_steps <= 105, "one token of each step is the long prompt's");
    }
}

#[test]
fn with_a_budget_of_one_decodes_and_prefills_alternate() {
    let mut workload = Workload::new(SchedulerConfig { max_num_batched_tokens: 1, ..CONFIG });
    let decode = workload.add(distinct(0, 1), 100)[0];
    step(&mut workload);
    let prefill = workload.add(distinct(1, 20), 1)[0];
    let mut tokens = HashMap::new();
    for _ in 0..20 {
        for (id, num_tokens) in step(&mut workload) {
            *tokens.entry(id).or_insert(0) += num_tokens;
        }
    }
    assert_eq!((tokens[&decode], tokens[&prefill]), (10, 10));
}

#[test]
fn a_prompt_that_needs_most_of_the_cache_is_not_passed_by_small_ones() {
    let mut workload =
        Workload::new(SchedulerConfig { num_blocks: 100, max_num_batched_tokens: 64, ..CONFIG });
    for index in 0..8 {
        workload.add(distinct(index, 20), 20);
    }
    for _ in 0..4 {
        step(&mut workload);
    }
    let large = workload.add(distinct(50, 390), 2)[0];
    let mut num_steps = 0;
    while workload.live.contains_key(&large) {
        workload.add(distinct(100 + num_steps, 20), 20);
        step(&mut workload);
        num_steps += 1;
        assert!(num_steps < 20 + 390 / 48 + 10, "it starts when those before it are done");
    }
}

#[test]
fn under_longest_prefix_an_unknown_prompt_is_overtaken_only_so_often() {
    let policy = SchedulingPolicy::LongestPrefix;
    let mut workload = Workload::new(SchedulerConfig {
        max_num_seqs: 1,
        max_num_batched_tokens: 16,
        policy,
        ..CONFIG
    });
    let popular = || NewSequence::new(prompt(0, 12, &[]));
    workload.add(popular(), 1);
    step(&mut workload);
    let unknown = workload.add(distinct(7, 12), 1)[0];
    let mut num_overtaken = 0;
    while workload.live.contains_key(&unknown) {
        workload.add(popular(), 1);
        let ran = step(&mut workload);
        num_overtaken += usize::from(!ran.contains_key(&unknown));
        assert!(num_overtaken <= 32);
    }
    assert_eq!(num_overtaken, 32, "a cached prefix goes first until then");
}
