//! Models with recurrent states, which are valid for the newest token of their sequence alone.

use super::*;
use crate::StateCopy;

const WITH_STATES: SchedulerConfig =
    SchedulerConfig { num_state_slots: 6, max_num_batched_tokens: 32, ..CONFIG };

fn slots(step: &Step) -> Vec<u32> {
    step.rows.iter().map(|row| row.state_slot.unwrap().0).collect()
}

fn copies(step: &Step) -> Vec<(u32, u32)> {
    step.state_copies.iter().map(|StateCopy { src, dst }| (src.0, dst.0)).collect()
}

/// A conversation continues from the state of its last turn, at any position within a block.
#[test]
fn who_begins_with_all_of_another_goes_on_from_its_state() {
    let mut scheduler = scheduler(WITH_STATES);
    let first = scheduler.add(request(0..10)).unwrap()[0];
    run_step(&mut scheduler);
    let second = run_step(&mut scheduler);
    assert_eq!((rows(&second), slots(&second)), (vec![(0, 10, 1)], vec![0]));
    scheduler.remove(first);
    // Ten tokens of the prompt and one that was sampled and computed: two blocks and three tokens.
    scheduler.add(request((0..10).chain([100, 50, 51]))).unwrap();
    scheduler.add(request((0..10).chain([99, 50, 51]))).unwrap();
    let next = run_step(&mut scheduler);
    assert_eq!(rows(&next), [(1, 11, 2), (2, 0, 8)]);
    assert_eq!((copies(&next), slots(&next)), (vec![(0, 1)], vec![1, 2]));
    assert_eq!(next.copies.len(), 1, "three tokens of the last block");
    assert_eq!(scheduler.num_cached_tokens(SeqId(1)), 8, "whole blocks are reported");
}

/// No state is kept at the end of the prefix that two sequences share, so the second one keeps it for a third.
#[test]
fn what_a_second_begins_with_is_kept_for_a_third() {
    let mut scheduler = scheduler(WITH_STATES);
    let first = scheduler.add(request((0..8).chain([20; 3]))).unwrap()[0];
    run_step(&mut scheduler);
    scheduler.remove(first);
    scheduler.add(request((0..8).chain([30; 3]))).unwrap();
    let cut = run_step(&mut scheduler);
    assert_eq!((rows(&cut), copies(&cut)), (vec![(1, 0, 8)], vec![]));
    let rest = run_step(&mut scheduler);
    assert_eq!((rows(&rest), slots(&rest)), (vec![(1, 8, 3)], vec![1]));
    assert_eq!(copies(&rest), [(1, 2)], "before the rest is computed");
    scheduler.add(request((0..8).chain([40; 3]))).unwrap();
    let third = run_step(&mut scheduler);
    assert_eq!((rows(&third)[1], copies(&third)), ((2, 8, 3), vec![(2, 3)]));
    assert_eq!(slots(&third), [1, 3]);
}

#[test]
fn siblings_get_copies_of_the_state_of_their_prompt() {
    let mut scheduler = scheduler(WITH_STATES);
    scheduler.add(NewSequence { n: 3, ..request(0..6) }).unwrap();
    let prompt = run_step(&mut scheduler);
    assert_eq!((slots(&prompt), copies(&prompt)), (vec![0], vec![]));
    let decode = run_step(&mut scheduler);
    assert_eq!((slots(&decode), copies(&decode)), (vec![0, 1, 2], vec![(0, 1), (0, 2)]));
    assert_eq!(copies(&run_step(&mut scheduler)), []);
}

/// Slots of kept states go to running sequences as soon as these need them, the least recently used first.
#[test]
fn kept_states_make_way() {
    let mut scheduler =
        scheduler(SchedulerConfig { num_state_slots: 2, max_num_seqs: 2, ..WITH_STATES });
    for family in [0, 10, 20] {
        let id = scheduler.add(request(family..family + 6)).unwrap()[0];
        run_step(&mut scheduler);
        scheduler.remove(id);
    }
    // The oldest of the three states was dropped.
    let resumed = |scheduler: &mut Scheduler, family: u32| {
        let id = scheduler.add(request((family..family + 6).chain([9, 9]))).unwrap()[0];
        let step = run_step(scheduler);
        let row = step.rows.iter().find(|row| row.seq == id).unwrap();
        (row.first_position, id)
    };
    assert_eq!(resumed(&mut scheduler, 20).0, 6);
    let (first_position, second) = resumed(&mut scheduler, 0);
    assert_eq!(first_position, 0);
    scheduler.remove(second);
    assert_eq!(resumed(&mut scheduler, 10).0, 0, "two sequences had the two slots");
}

/// A sequence that ended while a step ran ahead has computed a token that is not known.
#[test]
fn a_state_of_unknown_tokens_is_not_kept() {
    let mut scheduler = scheduler(WITH_STATES);
    let id = scheduler.add(request(0..6)).unwrap()[0];
    let first = scheduler.schedule();
    let second = scheduler.schedule();
    assert_eq!(second.rows[0].tokens, [TokenSource::PreviousRow(0)]);
    // It is cancelled before the first token is known.
    scheduler.remove(id);
    scheduler.commit(&first, &[]).unwrap();
    scheduler.commit(&second, &[]).unwrap();
    scheduler.check().unwrap();
    scheduler.add(request(0..8)).unwrap();
    assert_eq!(rows(&run_step(&mut scheduler))[0].1, 0);
}

/// A repeated turn continues from the same state as the first one, though the first sequence has gone on since.
#[test]
fn a_state_is_found_beside_the_blocks_of_who_went_on_from_it() {
    let mut scheduler = scheduler(WITH_STATES);
    let first = scheduler.add(request(0..9)).unwrap()[0];
    run_step(&mut scheduler);
    scheduler.remove(first);
    for answer in [50, 60] {
        let turn = scheduler.add(request((0..9).chain(answer..answer + 6))).unwrap()[0];
        let step = run_step(&mut scheduler);
        assert_eq!(rows(&step)[0].1, 9, "{answer}");
        scheduler.remove(turn);
    }
}

/// One slot is enough, since a state that continues becomes the sequence's own.
#[test]
fn one_place_goes_from_turn_to_turn() {
    let mut scheduler =
        scheduler(SchedulerConfig { num_state_slots: 1, max_num_seqs: 1, ..WITH_STATES });
    for turn in 0..3 {
        let id = scheduler.add(request(0..6 + 2 * turn)).unwrap()[0];
        let step = run_step(&mut scheduler);
        let start = if turn == 0 { 0 } else { 4 + 2 * turn };
        assert_eq!((rows(&step)[0].1, slots(&step), copies(&step)), (start, vec![0], vec![]));
        scheduler.remove(id);
    }
}

#[test]
fn without_states_rows_have_none() {
    let mut scheduler = scheduler(CONFIG);
    scheduler.add(NewSequence { n: 2, ..request(0..6) }).unwrap();
    let steps = [run_step(&mut scheduler), run_step(&mut scheduler)];
    assert!(steps.iter().all(|step| step.state_copies.is_empty()));
    assert!(steps.iter().flat_map(|step| &step.rows).all(|row| row.state_slot.is_none()));
}
