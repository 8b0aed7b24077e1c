//! Several callers: the blocks that they share, and the facts that they learn of each other.

use super::*;

fn of(caller: u64, prompt: impl IntoIterator<Item = u32>) -> NewSequence {
    let id = CallerId(caller);
    NewSequence { caller: Caller { id, ..Caller::default() }, ..request(prompt) }
}

/// Each row's position, and the copies of its step.
type Rows = Vec<(u32, usize)>;

/// Runs a sequence until its prompt is computed, and removes it. Returns its rows, its cached tokens and the counts
/// after it.
fn probe(scheduler: &mut Scheduler, new: NewSequence) -> (Rows, usize, SchedulerStats) {
    let id = scheduler.add(new).unwrap()[0];
    let mut rows = Vec::new();
    while !scheduler.is_prompt_computed(id) {
        let step = run_step(scheduler);
        rows.extend(step.rows.iter().map(|row| (row.first_position, step.copies.len())));
    }
    let cached = scheduler.num_cached_tokens(id);
    scheduler.remove(id);
    (rows, cached, scheduler.stats())
}

/// A caller that guesses another one's tokens sees the same result for a right and for a wrong guess.
#[test]
fn less_than_a_block_of_another_caller_changes_nothing_that_is_seen() {
    for num_state_slots in [0, 8] {
        let config = SchedulerConfig { max_num_batched_tokens: 32, num_state_slots, ..CONFIG };
        for known in 4..7 {
            let seen = |guess: u32| {
                let mut scheduler = scheduler(config.clone());
                probe(&mut scheduler, of(1, 0..11));
                probe(&mut scheduler, of(2, (0..known).chain([guess, 50, 51])))
            };
            let (right, wrong) = (seen(known), seen(99));
            assert_eq!(right, wrong, "a guess behind {known} tokens");
            assert_eq!(right.1, if num_state_slots == 0 { 4 } else { 0 }, "the block is shared");
        }
    }
}

#[test]
fn a_caller_goes_on_from_its_own_last_block() {
    for num_state_slots in [0, 8] {
        let config = SchedulerConfig { max_num_batched_tokens: 32, num_state_slots, ..CONFIG };
        let mut scheduler = scheduler(config);
        for caller in [1, 2] {
            probe(&mut scheduler, of(caller, 0..11));
        }
        for caller in [1, 2] {
            let (rows, cached, _) =
                probe(&mut scheduler, of(caller, (0..11).chain([caller as u32; 2])));
            assert_eq!((rows, cached), (vec![(11, 1)], 8), "caller {caller}");
        }
    }
}

#[test]
fn with_a_scope_of_one_caller_nothing_is_shared() {
    let prefix_cache_scope = PrefixCacheScope::Caller;
    let mut scheduler = scheduler(SchedulerConfig { prefix_cache_scope, ..CONFIG });
    let first = probe(&mut scheduler, of(1, 0..8));
    assert_eq!((first.0, first.1), (vec![(0, 0)], 0));
    let salted = NewSequence { cache_salt: Some("1".into()), ..request(0..8) };
    for new in [of(2, 0..8), of(0, 0..8), salted] {
        let (rows, cached, _) = probe(&mut scheduler, new);
        assert_eq!((rows, cached), (vec![(0, 0)], 0));
    }
    let again = probe(&mut scheduler, of(1, 0..8));
    assert_eq!((again.0, again.1), (vec![(7, 1)], 4));
}

#[test]
fn a_pin_keeps_the_whole_blocks_of_others_and_no_more() {
    let mut scheduler = scheduler(CONFIG);
    probe(&mut scheduler, of(1, 0..7));
    let tokens: Vec<u32> = (0..7).collect();
    scheduler.pin(&tokens, &[], CallerId(2), None);
    assert_eq!(scheduler.stats().num_pinned_blocks, 1);
    scheduler.pin(&tokens, &[], CallerId(1), None);
    assert_eq!(scheduler.stats().num_pinned_blocks, 2);
    scheduler.check().unwrap();
}

/// The preempted sequence keeps all its computed tokens, and resumes before its caller's other sequences start.
#[test]
fn a_new_caller_takes_the_slot_of_the_newest_sequence_of_another() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 32, ..CONFIG });
    for first in 1..7 {
        scheduler.add(of(1, first * 100..first * 100 + 5)).unwrap();
    }
    for _ in 0..2 {
        assert_eq!(run_step(&mut scheduler).rows.len(), 4);
    }
    let chat = scheduler.add(of(2, 0..3)).unwrap()[0];
    let running = |step: &Step| step.rows.iter().map(|row| row.seq.0).collect::<Vec<_>>();
    assert_eq!(running(&run_step(&mut scheduler)), [0, 1, 2, 3], "a slot may become free");
    assert_eq!(running(&run_step(&mut scheduler)), [0, 1, 2, chat.0]);
    let stats = scheduler.stats();
    assert_eq!((stats.num_yielded, stats.num_preemptions, stats.num_waiting), (1, 0, 3));
    scheduler.remove(chat);
    let step = run_step(&mut scheduler);
    assert_eq!(rows(&step)[3], (3, 7, 1), "five tokens and the first two that were sampled");
}

/// Siblings that find no slot wait in the queue of their caller, after sequences whose turn comes earlier.
#[test]
fn siblings_are_their_callers() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_seqs: 2, ..CONFIG });
    let siblings = scheduler.add(NewSequence { n: 4, ..of(1, 0..3) }).unwrap();
    run_step(&mut scheduler);
    assert_eq!(scheduler.stats().num_waiting, 2);
    let chat = scheduler.add(of(2, 50..53)).unwrap()[0];
    scheduler.remove(siblings[0]);
    let step = run_step(&mut scheduler);
    assert_eq!(step.rows.iter().map(|row| row.seq).collect::<Vec<_>>(), [siblings[1], chat]);
}
