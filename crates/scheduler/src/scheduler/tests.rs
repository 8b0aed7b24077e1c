//! The scheduler's behaviour in small cases, with every step written out.

use super::*;
use crate::{
    BlockCopy, BlockId, Caller, CallerId, LogitsFor, PrefixCacheScope, SchedulingPolicy, Swap,
    SwapSlot, TokenSource,
};

mod callers;
mod encoder;
mod items;
mod run_ahead;
mod states;
mod whole_items;

const CONFIG: SchedulerConfig = SchedulerConfig {
    block_size: 4,
    num_blocks: 16,
    max_num_seqs: 4,
    max_num_batched_tokens: 8,
    max_model_len: 32,
    enable_prefix_caching: true,
    prefix_cache_scope: PrefixCacheScope::Server,
    policy: SchedulingPolicy::Fcfs,
    max_pinned_blocks: 8,
    num_swap_blocks: 0,
    num_state_slots: 0,
    row_multiple: 1,
    max_graph_rows: 0,
    num_encoder_embeddings: 0,
};

fn scheduler(config: SchedulerConfig) -> Scheduler {
    Scheduler::new(config).unwrap()
}

fn request(prompt: impl IntoIterator<Item = u32>) -> NewSequence {
    NewSequence::new(prompt.into_iter().collect())
}

/// Each sequence with the position and number of tokens of its row.
fn rows(step: &Step) -> Vec<(u64, u32, usize)> {
    step.rows.iter().map(|row| (row.seq.0, row.first_position, row.tokens.len())).collect()
}

/// Commits a step in which each sequence samples the token 100 + its id.
fn commit(scheduler: &mut Scheduler, step: &Step) {
    let sampled: Vec<_> =
        step.samples().map(|seq| Sampled { seq, token: 100 + seq.0 as u32 }).collect();
    scheduler.commit(step, &sampled).unwrap();
    scheduler.check().unwrap();
}

fn run_step(scheduler: &mut Scheduler) -> Step {
    let step = scheduler.schedule();
    commit(scheduler, &step);
    step
}

#[test]
fn decodes_and_prefill_chunks_share_the_budget() {
    let mut scheduler = scheduler(CONFIG);
    scheduler.add(request(0..3)).unwrap();
    scheduler.add(request(10..22)).unwrap();
    let first = run_step(&mut scheduler);
    assert_eq!(rows(&first), [(0, 0, 3), (1, 0, 5)]);
    assert_eq!(first.rows[0].logits, LogitsFor::Last);
    assert_eq!((first.rows[1].logits, first.rows[1].samples.len()), (LogitsFor::None, 0));
    assert_eq!(first.rows[1].block_table.len(), 2, "only the blocks of the computed positions");
    let second = run_step(&mut scheduler);
    assert_eq!(rows(&second), [(0, 3, 1), (1, 5, 7)]);
    assert_eq!(second.rows[0].tokens, [TokenSource::Id(100)]);
    assert_eq!(second.rows[1].samples, [SeqId(1)]);
}

#[test]
fn a_step_ahead_names_the_previous_steps_samples() {
    let mut scheduler = scheduler(CONFIG);
    scheduler.add(request(0..2)).unwrap();
    scheduler.add(request(0..2)).unwrap();
    let first = scheduler.schedule();
    let second = scheduler.schedule();
    assert_eq!(second.rows[0].tokens, [TokenSource::PreviousRow(0)]);
    assert_eq!(second.rows[1].tokens, [TokenSource::PreviousRow(1)]);
    assert_eq!(scheduler.tokens(SeqId(0)), [0, 1], "unknown tokens are not shown");
    commit(&mut scheduler, &first);
    assert_eq!(scheduler.tokens(SeqId(1)), [0, 1, 101]);
    scheduler.remove(SeqId(0));
    let third = scheduler.schedule();
    assert_eq!(
        third.rows[0].tokens,
        [TokenSource::PreviousRow(1)],
        "the removed sequence's row still counts"
    );
    // The token that the second step sampled for the removed sequence may be left out.
    scheduler.commit(&second, &[Sampled { seq: SeqId(1), token: 7 }]).unwrap();
    assert_eq!(scheduler.tokens(SeqId(1)), [0, 1, 101, 7]);
    assert!(scheduler.tokens(SeqId(0)).is_empty());
}

#[test]
#[should_panic(expected = "commit a step before")]
fn only_one_step_ahead() {
    let mut scheduler = scheduler(CONFIG);
    scheduler.add(request(0..2)).unwrap();
    for _ in 0..3 {
        scheduler.schedule();
    }
}

#[test]
fn a_wrong_commit_is_refused_and_changes_nothing() {
    let mut scheduler = scheduler(CONFIG);
    let id = scheduler.add(request(0..2)).unwrap()[0];
    let (first, second) = (scheduler.schedule(), scheduler.schedule());
    let sampled = |seq| Sampled { seq, token: 5 };
    let expected = Some(first.id);
    assert_eq!(
        scheduler.commit(&second, &[sampled(id)]),
        Err(Error::StepOutOfOrder { step: second.id, expected })
    );
    assert_eq!(
        scheduler.commit(&first, &[]),
        Err(Error::MissingSample { step: first.id, seq: id })
    );
    let stranger = SeqId(9);
    assert_eq!(
        scheduler.commit(&first, &[sampled(id), sampled(stranger)]),
        Err(Error::UnexpectedSample { step: first.id, seq: stranger })
    );
    assert_eq!(scheduler.tokens(id), [0, 1]);
    commit(&mut scheduler, &first);
    commit(&mut scheduler, &second);
    assert_eq!(
        scheduler.commit(&second, &[]),
        Err(Error::StepOutOfOrder { step: second.id, expected: None })
    );
}

#[test]
fn requests_that_can_never_run_are_refused() {
    let mut scheduler = scheduler(CONFIG);
    assert_eq!(scheduler.add(request([])), Err(Error::EmptyPrompt));
    let too_long = Error::PromptTooLong { num_prompt_tokens: 32, max_prompt_tokens: 31 };
    assert_eq!(scheduler.add(request(0..32)), Err(too_long));
    assert_eq!(scheduler.add(NewSequence { n: 0, ..request(0..2) }), Err(Error::InvalidN { n: 0 }));
    assert_eq!(
        scheduler.add(NewSequence { n: 2, max_tokens: 0, ..request(0..2) }),
        Err(Error::InvalidN { n: 2 })
    );
    assert!(scheduler.add(NewSequence { max_tokens: 0, ..request(0..32) }).is_ok());
}

#[test]
fn a_common_beginning_is_computed_once() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 64, ..CONFIG });
    scheduler.add(request(0..10)).unwrap();
    run_step(&mut scheduler);
    let id = scheduler.add(request((0..8).chain([50, 51]))).unwrap()[0];
    let step = run_step(&mut scheduler);
    assert_eq!(rows(&step)[1], (1, 8, 2));
    assert_eq!(step.rows[0].block_table[..2], step.rows[1].block_table[..2]);
    assert_eq!(scheduler.num_cached_tokens(id), 8);
    let exact = scheduler.add(request(0..8)).unwrap()[0];
    let salted = scheduler
        .add(NewSequence { cache_salt: Some("tenant".into()), ..request(0..10) })
        .unwrap()[0];
    let step = run_step(&mut scheduler);
    assert_eq!(rows(&step)[2..], [(2, 7, 1), (3, 0, 10)], "the last token is always computed");
    assert_eq!((scheduler.num_cached_tokens(exact), scheduler.num_cached_tokens(salted)), (4, 0));
    assert_eq!(step.copies, [BlockCopy { src: BlockId(1), dst: step.rows[2].block_table[1] }]);
    let stats = scheduler.stats();
    assert_eq!((stats.num_prefix_queries, stats.num_prefix_hits), (10 + 10 + 8 + 10, 8 + 4));
}

#[test]
fn blocks_of_a_finished_sequence_are_found_again_and_count_as_free() {
    let mut scheduler = scheduler(CONFIG);
    scheduler.add(request(0..8)).unwrap();
    run_step(&mut scheduler);
    scheduler.remove(SeqId(0));
    let stats = scheduler.stats();
    assert_eq!((stats.num_free_blocks, stats.num_cached_blocks), (16, 2));
    scheduler.add(request(0..10)).unwrap();
    assert_eq!(rows(&run_step(&mut scheduler)), [(1, 8, 2)]);
}

#[test]
fn prompt_logits_are_computed_and_not_read_from_the_cache() {
    let mut scheduler = scheduler(CONFIG);
    scheduler.add(request(0..8)).unwrap();
    run_step(&mut scheduler);
    scheduler.remove(SeqId(0));
    let id = scheduler
        .add(NewSequence { prompt_logits_from: Some(0), max_tokens: 0, ..request(0..9) })
        .unwrap()[0];
    let first = run_step(&mut scheduler);
    assert_eq!((rows(&first), first.rows[0].logits), (vec![(1, 0, 8)], LogitsFor::All));
    assert!(!scheduler.is_prompt_computed(id));
    let second = run_step(&mut scheduler);
    assert_eq!((rows(&second), second.rows[0].logits), (vec![(1, 8, 1)], LogitsFor::All));
    assert!(second.rows[0].samples.is_empty() && scheduler.is_prompt_computed(id));
    assert!(scheduler.schedule().rows.is_empty(), "it rests until it is removed");
    assert_eq!(scheduler.stats().num_prefix_queries, 8);
}

#[test]
fn prompt_logits_from_a_position_on_leave_the_rest_to_the_cache() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 64, ..CONFIG });
    scheduler.add(request(0..8)).unwrap();
    run_step(&mut scheduler);
    let scored = NewSequence { prompt_logits_from: Some(9), max_tokens: 0, ..request(0..12) };
    scheduler.add(scored).unwrap();
    let step = run_step(&mut scheduler);
    assert_eq!((rows(&step)[1], step.rows[1].logits), ((1, 8, 1), LogitsFor::None));
    let step = run_step(&mut scheduler);
    assert_eq!((rows(&step)[1], step.rows[1].logits), ((1, 9, 3), LogitsFor::All));
}

#[test]
fn siblings_share_blocks_and_the_last_holder_writes_in_place() {
    let mut scheduler = scheduler(CONFIG);
    let ids = scheduler.add(NewSequence { n: 3, ..request(0..6) }).unwrap();
    assert_eq!(scheduler.tokens(ids[2]), [0, 1, 2, 3, 4, 5]);
    let first = run_step(&mut scheduler);
    assert_eq!(first.rows.len(), 1);
    assert_eq!(first.rows[0].samples, ids);
    assert_eq!(scheduler.tokens(ids[2])[6..], [102]);
    assert_eq!(scheduler.stats().num_free_blocks, 14);

    let second = run_step(&mut scheduler);
    let copy = |dst| BlockCopy { src: BlockId(1), dst: BlockId(dst) };
    assert_eq!(second.copies, [copy(2), copy(3)]);
    let tables: Vec<_> = second.rows.iter().map(|row| row.block_table.clone()).collect();
    assert_eq!(
        tables,
        [[BlockId(0), BlockId(2)], [BlockId(0), BlockId(3)], [BlockId(0), BlockId(1)]]
    );
    ids.into_iter().for_each(|id| scheduler.remove(id));
    assert_eq!(scheduler.stats().num_free_blocks, 16);
}

#[test]
fn two_holders_of_a_block_need_only_one_more() {
    let mut scheduler = scheduler(SchedulerConfig { num_blocks: 3, max_model_len: 12, ..CONFIG });
    scheduler.add(NewSequence { n: 2, ..request(0..6) }).unwrap();
    run_step(&mut scheduler);
    let step = run_step(&mut scheduler);
    assert_eq!(rows(&step), [(0, 6, 1), (1, 6, 1)]);
    assert_eq!((step.copies.len(), scheduler.stats().num_preemptions), (1, 0));
}

#[test]
fn siblings_beyond_max_num_seqs_wait() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_seqs: 2, ..CONFIG });
    let ids = scheduler.add(NewSequence { n: 3, ..request(0..6) }).unwrap();
    run_step(&mut scheduler);
    let stats = scheduler.stats();
    assert_eq!((stats.num_running, stats.num_waiting), (2, 1));
    run_step(&mut scheduler);
    scheduler.remove(ids[0]);
    let step = run_step(&mut scheduler);
    assert_eq!(
        rows(&step),
        [(1, 7, 1), (2, 6, 1)],
        "the full block is found, and the beginning of the next one copied"
    );
    assert_eq!(scheduler.tokens(ids[2]), [0, 1, 2, 3, 4, 5, 102, 102]);
}

#[test]
fn a_sibling_goes_on_with_the_prompt_of_a_removed_first() {
    let mut scheduler = scheduler(CONFIG);
    let ids = scheduler.add(NewSequence { n: 4, ..request(0..12) }).unwrap();
    scheduler.remove(ids[1]);
    let first = scheduler.schedule();
    scheduler.remove(ids[0]);
    commit(&mut scheduler, &first);
    let second = run_step(&mut scheduler);
    assert_eq!(rows(&second), [(2, 8, 4)], "nothing is computed again");
    assert_eq!(second.rows[0].samples, [ids[2], ids[3]]);
    assert!(scheduler.is_prompt_computed(ids[3]));
    assert_eq!(scheduler.tokens(ids[3])[12..], [103]);
}

#[test]
fn the_latest_of_the_lowest_priority_is_preempted_and_returns_first() {
    let mut scheduler =
        scheduler(SchedulerConfig { num_blocks: 8, max_num_batched_tokens: 32, ..CONFIG });
    for (priority, start) in [(1, 0), (0, 100), (1, 200)] {
        scheduler.add(NewSequence { priority, ..request(start..start + 7) }).unwrap();
    }
    assert_eq!(rows(&run_step(&mut scheduler)), [(1, 0, 7), (0, 0, 7), (2, 0, 7)]);
    run_step(&mut scheduler);
    scheduler.add(NewSequence { priority: 1, ..request(300..303) }).unwrap();
    // All three need a third block now, and two are left.
    let step = run_step(&mut scheduler);
    assert_eq!(rows(&step), [(1, 8, 1), (0, 8, 1)]);
    assert_eq!(scheduler.stats().num_preemptions, 1);
    scheduler.remove(SeqId(0));
    let step = run_step(&mut scheduler);
    assert_eq!(rows(&step)[1], (2, 8, 1), "its own blocks were still cached");
    assert_eq!(step.rows[1].tokens, [TokenSource::Id(102)]);
}

/// Its blocks are swapped out with the step that takes them, and swapped in with the step that continues it. Without
/// room in host memory all tokens are computed again.
#[test]
fn a_preempted_sequence_goes_on_with_the_blocks_that_were_brought_out() {
    let small = SchedulerConfig {
        num_blocks: 5,
        max_num_seqs: 2,
        max_model_len: 16,
        enable_prefix_caching: false,
        max_num_batched_tokens: 64,
        ..CONFIG
    };
    for (num_swap_blocks, first_position) in [(0, 0), (1, 0), (2, 8)] {
        let mut scheduler = scheduler(SchedulerConfig { num_swap_blocks, ..small.clone() });
        scheduler.add(request(0..7)).unwrap();
        scheduler.add(request(10..17)).unwrap();
        assert_eq!(rows(&run_step(&mut scheduler)), [(0, 0, 7), (1, 0, 7)]);
        assert_eq!(rows(&run_step(&mut scheduler)), [(0, 7, 1), (1, 7, 1)]);
        let step = run_step(&mut scheduler);
        assert_eq!(rows(&step), [(0, 8, 1)]);
        let slots = [SwapSlot(1), SwapSlot(0)];
        let brought_out = |block, slot| Swap::Out { block: BlockId(block), slot };
        let expected = match num_swap_blocks {
            2 => vec![brought_out(2, slots[0]), brought_out(3, slots[1])],
            _ => vec![],
        };
        assert_eq!(step.swaps, expected);
        assert_eq!(scheduler.stats().num_swapped_blocks, expected.len());
        scheduler.remove(SeqId(0));
        let step = run_step(&mut scheduler);
        assert_eq!(rows(&step), [(1, first_position, 9 - first_position as usize)]);
        let back = |slot, block: &BlockId| Swap::In { slot, block: *block };
        let table = &step.rows[0].block_table;
        let expected = match num_swap_blocks {
            2 => vec![back(slots[0], &table[0]), back(slots[1], &table[1])],
            _ => vec![],
        };
        assert_eq!(step.swaps, expected);
        let stats = scheduler.stats();
        assert_eq!((stats.num_swapped_blocks, stats.num_preemptions), (0, 1));
    }
}

/// Blocks in host memory are freed with their sequence.
#[test]
fn a_sequence_that_is_removed_leaves_nothing_on_the_host() {
    let config = SchedulerConfig {
        num_blocks: 5,
        max_num_seqs: 2,
        max_model_len: 16,
        num_swap_blocks: 2,
        max_num_batched_tokens: 64,
        ..CONFIG
    };
    let mut scheduler = scheduler(config);
    scheduler.add(request(0..7)).unwrap();
    scheduler.add(request(10..17)).unwrap();
    (0..3).for_each(|_| drop(run_step(&mut scheduler)));
    assert_eq!(scheduler.stats().num_swapped_blocks, 2);
    scheduler.remove(SeqId(1));
    scheduler.check().unwrap();
    assert_eq!(scheduler.stats().num_swapped_blocks, 0);
}

#[test]
fn a_token_sampled_before_a_preemption_is_not_lost() {
    let config = SchedulerConfig {
        num_blocks: 4,
        max_model_len: 16,
        max_num_batched_tokens: 32,
        enable_prefix_caching: false,
        ..CONFIG
    };
    let mut scheduler = scheduler(config);
    scheduler.add(request(0..7)).unwrap();
    scheduler.add(request(0..4)).unwrap();
    run_step(&mut scheduler);
    let second = scheduler.schedule();
    assert_eq!(rows(&second), [(0, 7, 1), (1, 4, 1)], "now all four blocks are held");
    let third = scheduler.schedule();
    assert_eq!(rows(&third), [(0, 8, 1)], "the first one needs a block more");
    commit(&mut scheduler, &second);
    assert_eq!(scheduler.tokens(SeqId(1)), [0, 1, 2, 3, 101, 101]);
    scheduler.remove(SeqId(0));
    commit(&mut scheduler, &third);
    assert_eq!(rows(&run_step(&mut scheduler)), [(1, 0, 6)]);
}

#[test]
fn a_waiting_sibling_starts_when_its_token_is_known() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_seqs: 1, ..CONFIG });
    let ids = scheduler.add(NewSequence { n: 2, ..request(0..3) }).unwrap();
    scheduler.add(request(0..3)).unwrap();
    let first = scheduler.schedule();
    scheduler.remove(ids[0]);
    assert!(scheduler.schedule().rows.is_empty(), "nobody passes it by");
    commit(&mut scheduler, &first);
    assert_eq!(rows(&run_step(&mut scheduler)), [(1, 3, 1)]);
}

#[test]
fn a_full_context_rests() {
    let mut scheduler = scheduler(SchedulerConfig { max_model_len: 4, ..CONFIG });
    let id = scheduler.add(request(0..3)).unwrap()[0];
    run_step(&mut scheduler);
    assert_eq!(scheduler.tokens(id).len(), 4);
    for _ in 0..3 {
        assert!(run_step(&mut scheduler).rows.is_empty());
    }
    scheduler.remove(id);
    assert_eq!(scheduler.stats().num_free_blocks, 16);
}

#[test]
fn the_longest_cached_prefix_starts_first() {
    let policy = SchedulingPolicy::LongestPrefix;
    let mut scheduler = scheduler(SchedulerConfig { policy, max_num_seqs: 1, ..CONFIG });
    scheduler.add(request(0..8)).unwrap();
    run_step(&mut scheduler);
    for prompt in [100..110, 0..7, 0..10] {
        scheduler.add(request(prompt)).unwrap();
    }
    scheduler.add(NewSequence { priority: -1, ..request(200..203) }).unwrap();
    let mut order = Vec::new();
    for id in [0, 4, 3, 2] {
        scheduler.remove(SeqId(id));
        order.push(run_step(&mut scheduler).rows[0].seq.0);
    }
    assert_eq!(order, [4, 3, 2, 1], "by priority, then by cached blocks");
}

#[test]
fn the_last_block_of_a_finished_sequence_is_copied_as_far_as_it_goes() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 16, ..CONFIG });
    scheduler.add(request(0..7)).unwrap();
    run_step(&mut scheduler);
    scheduler.remove(SeqId(0));
    assert_eq!(scheduler.stats().num_cached_blocks, 2, "one of them holds three tokens");
    let id = scheduler.add(request((0..6).chain([50, 51]))).unwrap()[0];
    let step = run_step(&mut scheduler);
    assert_eq!(rows(&step), [(1, 6, 2)]);
    assert_eq!(step.rows[0].block_table, [BlockId(0), BlockId(2)]);
    assert_eq!(step.copies, [BlockCopy { src: BlockId(1), dst: BlockId(2) }]);
    assert_eq!(scheduler.num_cached_tokens(id), 4, "whole blocks are reported");
}

#[test]
fn nothing_is_copied_where_only_the_source_is_left_to_be_written() {
    let config = SchedulerConfig { num_blocks: 2, max_model_len: 8, ..CONFIG };
    let mut scheduler = scheduler(config);
    scheduler.add(request(0..7)).unwrap();
    run_step(&mut scheduler);
    scheduler.remove(SeqId(0));
    scheduler.add(request((0..6).chain([50]))).unwrap();
    let step = run_step(&mut scheduler);
    assert_eq!((rows(&step), step.copies.len()), (vec![(1, 4, 3)], 0));
}

#[test]
fn appended_tokens_are_computed_together() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 16, ..CONFIG });
    let id = scheduler.add(NewSequence { runs_ahead: false, ..request(0..3) }).unwrap()[0];
    assert_eq!(scheduler.append(id, &[1]), Err(Error::AppendBeforeCommit { seq: id }));
    let step = scheduler.schedule();
    assert!(scheduler.schedule().rows.is_empty(), "it does not run ahead");
    assert_eq!(scheduler.append(id, &[1]), Err(Error::AppendBeforeCommit { seq: id }));
    commit(&mut scheduler, &step);
    scheduler.append(id, &[7, 8, 9, 10, 11, 12]).unwrap();
    assert_eq!(scheduler.tokens(id), [0, 1, 2, 100, 7, 8, 9, 10, 11, 12]);
    let step = run_step(&mut scheduler);
    assert_eq!(rows(&step), [(0, 3, 7)]);
    assert_eq!((step.rows[0].block_table.len(), &*step.rows[0].samples), (3, &[id][..]));
    let too_long = Error::AppendTooLong { seq: id, num_tokens: 33, max_model_len: 32 };
    assert_eq!(scheduler.append(id, &[0; 22]), Err(too_long));
    scheduler.append(id, &[0; 21]).unwrap();
    assert_eq!(rows(&run_step(&mut scheduler)), [(0, 10, 16)]);
    assert_eq!(rows(&run_step(&mut scheduler)), [(0, 26, 5)], "the last token has no successor");
    assert!(run_step(&mut scheduler).rows.is_empty());
}

#[test]
fn a_held_sequence_sits_out_and_keeps_its_blocks() {
    let mut scheduler = scheduler(CONFIG);
    let held = scheduler.add(NewSequence { runs_ahead: false, ..request(0..3) }).unwrap()[0];
    scheduler.add(request(10..13)).unwrap();
    run_step(&mut scheduler);
    scheduler.hold(held);
    let num_free = scheduler.stats().num_free_blocks;
    assert_eq!(rows(&run_step(&mut scheduler)), [(1, 3, 1)]);
    assert_eq!((scheduler.stats().num_running, scheduler.stats().num_free_blocks), (2, num_free));
    scheduler.append(held, &[7]).unwrap();
    assert_eq!(rows(&run_step(&mut scheduler)), [(1, 4, 1)]);
    scheduler.release(held);
    assert_eq!(rows(&run_step(&mut scheduler)), [(1, 5, 1), (0, 3, 2)]);
    scheduler.hold(held);
    scheduler.remove(held);
    scheduler.release(held);
    assert_eq!(rows(&run_step(&mut scheduler)), [(1, 6, 1)]);
}

#[test]
fn a_held_sequence_that_was_preempted_waits_until_it_is_released() {
    let config = SchedulerConfig { num_blocks: 5, max_model_len: 16, ..CONFIG };
    let mut scheduler = scheduler(config);
    scheduler.add(request(0..7)).unwrap();
    let held = scheduler.add(NewSequence { runs_ahead: false, ..request(10..16) }).unwrap()[0];
    run_step(&mut scheduler);
    run_step(&mut scheduler);
    scheduler.hold(held);
    (0..6).for_each(|_| _ = run_step(&mut scheduler));
    assert_eq!(scheduler.stats().num_preemptions, 1);
    scheduler.remove(SeqId(0));
    assert!(scheduler.schedule().rows.is_empty(), "there is room, but it is held");
    scheduler.release(held);
    assert_eq!(run_step(&mut scheduler).rows[0].seq, held);
}

#[test]
fn no_step_runs_ahead_of_the_last_token() {
    let mut scheduler = scheduler(CONFIG);
    scheduler.add(NewSequence { max_tokens: 3, ..request(0..5) }).unwrap();
    scheduler.add(NewSequence { max_tokens: 1, ..request(10..12) }).unwrap();
    let prompts = scheduler.schedule();
    assert_eq!(rows(&prompts), [(0, 0, 5), (1, 0, 2)]);
    let second = scheduler.schedule();
    assert_eq!(rows(&second), [(0, 5, 1)]);
    commit(&mut scheduler, &prompts);
    let third = scheduler.schedule();
    assert_eq!(rows(&third), [(0, 6, 1)]);
    commit(&mut scheduler, &second);
    assert!(scheduler.schedule().rows.is_empty(), "its third token is sampled already");
    commit(&mut scheduler, &third);
    assert!(scheduler.schedule().rows.is_empty());
    assert_eq!(scheduler.tokens(SeqId(0)).len(), 8);
}

#[test]
fn a_pin_keeps_blocks_until_a_sequence_needs_them() {
    let config = SchedulerConfig { num_blocks: 4, max_model_len: 16, ..CONFIG };
    let mut scheduler = scheduler(config);
    scheduler.add(request(0..7)).unwrap();
    run_step(&mut scheduler);
    scheduler.remove(SeqId(0));
    let pin = scheduler.pin(&[0, 1, 2, 3, 4, 5, 6], &[], CallerId(0), None);
    let held = |scheduler: &Scheduler| {
        let stats = scheduler.stats();
        (stats.num_free_blocks, stats.num_pinned_blocks)
    };
    assert_eq!(held(&scheduler), (2, 2));
    // Two others come and go in the two blocks that are left.
    for start in [100, 200] {
        let id = scheduler.add(request(start..start + 7)).unwrap()[0];
        assert_eq!(run_step(&mut scheduler).rows[0].first_position, 0);
        scheduler.remove(id);
    }
    let id = scheduler.add(request(0..7)).unwrap()[0];
    assert_eq!(rows(&run_step(&mut scheduler)), [(3, 6, 1)]);
    scheduler.remove(id);
    assert_eq!(held(&scheduler), (2, 2));
    let large = scheduler.add(request(300..313)).unwrap()[0];
    run_step(&mut scheduler);
    assert_eq!(held(&scheduler), (0, 0), "the request came first");
    scheduler.unpin(pin);
    scheduler.remove(large);
    assert_eq!(held(&scheduler), (4, 0));
}

#[test]
fn pins_share_blocks_and_the_oldest_yields_to_the_newest() {
    let mut scheduler = scheduler(SchedulerConfig { max_pinned_blocks: 3, ..CONFIG });
    let tokens: Vec<u32> = (0..8).collect();
    for prompt in [0..8, 100..108] {
        let id = scheduler.add(request(prompt)).unwrap()[0];
        run_step(&mut scheduler);
        scheduler.remove(id);
    }
    let pinned = |scheduler: &Scheduler| scheduler.stats().num_pinned_blocks;
    let pins: Vec<_> = (0..4).map(|_| scheduler.pin(&tokens, &[], CallerId(0), None)).collect();
    assert_eq!(pinned(&scheduler), 2, "a block counts once");
    pins[1..].iter().for_each(|pin| scheduler.unpin(*pin));
    assert_eq!(pinned(&scheduler), 2);
    scheduler.pin(&(100..108).collect::<Vec<_>>(), &[], CallerId(0), None);
    assert_eq!(pinned(&scheduler), 2, "the first one was given up");
    scheduler.check().unwrap();
    scheduler.unpin(pins[0]);
    assert_eq!(pinned(&scheduler), 2);
    assert_eq!(scheduler.stats().num_free_blocks, 14);
}

#[test]
fn preemption_comes_after_all_pins() {
    let config = SchedulerConfig { num_blocks: 5, max_model_len: 16, ..CONFIG };
    let mut scheduler = scheduler(config);
    scheduler.add(request(0..8)).unwrap();
    run_step(&mut scheduler);
    scheduler.remove(SeqId(0));
    scheduler.pin(&(0..8).collect::<Vec<_>>(), &[], CallerId(0), None);
    scheduler.add(request(100..103)).unwrap();
    scheduler.add(request(200..203)).unwrap();
    run_step(&mut scheduler);
    run_step(&mut scheduler);
    assert_eq!(scheduler.stats().num_pinned_blocks, 2);
    run_step(&mut scheduler);
    let stats = scheduler.stats();
    assert_eq!((stats.num_pinned_blocks, stats.num_preemptions, stats.num_running), (0, 0, 2));
}

#[test]
fn requests_that_share_a_prefix_wait_for_the_first_of_them() {
    let policy = SchedulingPolicy::LongestPrefix;
    let mut scheduler = scheduler(SchedulerConfig { policy, max_num_batched_tokens: 64, ..CONFIG });
    for last in [50, 51, 52] {
        scheduler.add(request((0..9).chain([last]))).unwrap();
    }
    scheduler.add(request(100..110)).unwrap();
    assert_eq!(rows(&run_step(&mut scheduler)), [(0, 0, 10), (3, 0, 10)]);
    let step = run_step(&mut scheduler);
    assert_eq!(rows(&step)[2..], [(1, 8, 2), (2, 8, 2)], "the two blocks were computed once");
}

#[test]
fn hundreds_of_removals_leave_nothing() {
    let mut scheduler = scheduler(SchedulerConfig { num_blocks: 64, max_num_seqs: 16, ..CONFIG });
    let ids: Vec<_> = (0..400)
        .flat_map(|i| scheduler.add(NewSequence { n: 1 + i % 3, ..request(0..5) }).unwrap())
        .collect();
    for _ in 0..5 {
        run_step(&mut scheduler);
    }
    let in_flight = scheduler.schedule();
    ids.into_iter().for_each(|id| scheduler.remove(id));
    assert_eq!(scheduler.stats().num_free_blocks, 64);
    commit(&mut scheduler, &in_flight);
    let id = scheduler.add(request(7..9)).unwrap()[0];
    assert_eq!(run_step(&mut scheduler).rows[0].samples, [id]);
    assert_eq!(scheduler.stats().num_waiting, 0);
}
