//! Items whose tokens see each other both ways, which no row and no cached prefix may cut.

use super::items::{Part, WITH_ITEMS, encodes, image, prompt};
use super::*;

fn whole(digest: u8, len: usize) -> Part {
    Part::Image { digest, len, is_whole: true }
}

/// Number of tokens of each row, with the whole items in it.
fn cuts(steps: &[Step]) -> Vec<(usize, Vec<(u32, u32)>)> {
    let rows = steps.iter().flat_map(|step| &step.rows);
    rows.map(|row| (row.tokens.len(), row.whole.clone())).collect()
}

fn run_with_budget(max_num_batched_tokens: usize) -> Vec<Step> {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens, ..WITH_ITEMS });
    scheduler.add(prompt([Part::Text(0..3), whole(1, 9), whole(2, 2), Part::Text(3..5)])).unwrap();
    let mut steps = Vec::new();
    while steps.last().is_none_or(|step: &Step| step.samples().count() == 0) {
        steps.push(run_step(&mut scheduler));
    }
    steps
}

#[test]
fn a_whole_item_is_computed_in_one_row_with_any_budget() {
    let (first, second) = ((3, 12), (12, 14));
    let text = |len| (len, vec![]);
    let with_one =
        [text(1), text(1), text(1), (9, vec![first]), (2, vec![second]), text(1), text(1)];
    assert_eq!(cuts(&run_with_budget(1)), with_one);
    let with_seven = [text(3), (9, vec![first]), (2, vec![second]), text(2)];
    assert_eq!(cuts(&run_with_budget(7)), with_seven);
    assert_eq!(cuts(&run_with_budget(64)), [(16, vec![first, second])]);
    // The pieces of the first item leave eleven tokens, which end within it.
    let with_17 = [text(3), (11, vec![first, second]), text(2)];
    assert_eq!(cuts(&run_with_budget(17)), with_17);
}

/// The budget that a decode leaves is less than the item.
#[test]
fn a_whole_item_exceeds_the_budget_only_at_the_start_of_a_row() {
    let config = SchedulerConfig { max_num_batched_tokens: 8, ..WITH_ITEMS };
    let mut scheduler = scheduler(config);
    scheduler.add(request(100..102)).unwrap();
    run_step(&mut scheduler);
    scheduler.add(prompt([Part::Text(0..1), whole(1, 9)])).unwrap();
    let steps: Vec<_> = (0..3).map(|_| run_step(&mut scheduler)).collect();
    assert_eq!(rows(&steps[0]), [(0, 2, 1), (1, 0, 1)]);
    assert_eq!(encodes(&steps[0]).len() + encodes(&steps[1]).len(), 1, "both pieces fit at once");
    assert_eq!(rows(&steps[1]), [(0, 3, 1), (1, 1, 9)]);
    assert_eq!(steps[1].rows[1].samples, [SeqId(1)]);
    assert_eq!(rows(&steps[2]), [(0, 4, 1), (1, 10, 1)]);
}

#[test]
fn a_prefix_that_ends_within_a_whole_item_ends_before_it() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 64, ..WITH_ITEMS });
    let add = |scheduler: &mut Scheduler, new| {
        let id = scheduler.add(new).unwrap()[0];
        let step = run_step(scheduler);
        let row = step.rows.last().unwrap();
        let found = (row.first_position, scheduler.num_cached_tokens(id), row.whole.clone());
        assert_eq!(row.samples, [id], "one row");
        scheduler.remove(id);
        found
    };
    // Blocks have four tokens, and the item is at 2..10.
    let new = |last| prompt([Part::Text(0..2), whole(1, 8), Part::Text(last..last + 3)]);
    assert_eq!(add(&mut scheduler, new(10)), (0, 0, vec![(2, 10)]));
    assert_eq!(add(&mut scheduler, new(20)), (10, 8, vec![]), "all of the item is common");
    // The item is the end of the prompt, whose last token is always computed.
    let end = || prompt([Part::Text(0..2), whole(1, 8)]);
    assert_eq!(add(&mut scheduler, end()), (2, 0, vec![(2, 10)]));
    // Another caller shares two blocks, which end within the item.
    let caller = Caller { id: CallerId(7), ..Caller::default() };
    let of_other = || NewSequence { caller, ..new(30) };
    assert_eq!(add(&mut scheduler, of_other()), (0, 0, vec![(2, 10)]));
    assert_eq!(add(&mut scheduler, of_other()), (12, 12, vec![]), "its own three blocks");
}

/// Two whole items within one block, and a prefix that ends within the second or between them.
#[test]
fn a_prefix_may_have_to_end_before_several_whole_items() {
    let config = SchedulerConfig { block_size: 8, max_num_batched_tokens: 64, ..WITH_ITEMS };
    let mut scheduler = scheduler(config);
    let new = || prompt([Part::Text(0..1), whole(1, 9), whole(2, 4), Part::Text(1..2)]);
    let first = scheduler.add(new()).unwrap()[0];
    run_step(&mut scheduler);
    scheduler.remove(first);
    let caller = Caller { id: CallerId(7), ..Caller::default() };
    scheduler.add(NewSequence { caller, ..new() }).unwrap();
    let step = run_step(&mut scheduler);
    assert_eq!(rows(&step), [(1, 0, 15)], "the shared block ends within the first item");
    scheduler.add(prompt([Part::Text(0..1), whole(1, 9), whole(2, 4)])).unwrap();
    let step = run_step(&mut scheduler);
    assert_eq!(rows(&step)[1], (2, 10, 4), "its own caller's prefix ends between the items");
}

/// The copy of a partial block would complete the item, but there is no block to copy from.
#[test]
fn a_prefix_without_its_partial_block_ends_before_the_whole_item() {
    let config = SchedulerConfig {
        num_blocks: 3,
        max_model_len: 12,
        max_num_batched_tokens: 64,
        ..WITH_ITEMS
    };
    let mut scheduler = scheduler(config);
    let new = |last| prompt([Part::Text(0..2), whole(1, 8), Part::Text(last..last + 1)]);
    let first = scheduler.add(new(10)).unwrap()[0];
    run_step(&mut scheduler);
    scheduler.remove(first);
    scheduler.add(new(20)).unwrap();
    let step = run_step(&mut scheduler);
    assert_eq!((step.copies.len(), rows(&step)), (0, vec![(1, 0, 11)]));
    assert_eq!(step.rows[0].whole, [(2, 10)]);
}

/// The request asks for the logits from within the item on. They begin with the item.
#[test]
fn prompt_logits_do_not_cut_a_whole_item() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 64, ..WITH_ITEMS });
    let new = prompt([Part::Text(0..3), whole(1, 6), Part::Text(3..4)]);
    scheduler.add(NewSequence { prompt_logits_from: Some(5), ..new }).unwrap();
    let steps: Vec<_> = (0..2).map(|_| run_step(&mut scheduler)).collect();
    assert_eq!((rows(&steps[0]), rows(&steps[1])), (vec![(0, 0, 3)], vec![(0, 3, 7)]));
    let logits: Vec<_> = steps.iter().map(|step| step.rows[0].logits).collect();
    assert_eq!(logits, [LogitsFor::None, LogitsFor::All]);
}

/// A state would be kept after the two common blocks, which end within the item.
#[test]
fn a_state_is_not_kept_within_a_whole_item() {
    let config = SchedulerConfig { num_state_slots: 6, max_num_batched_tokens: 64, ..WITH_ITEMS };
    let mut scheduler = scheduler(config);
    let new = |last| prompt([Part::Text(0..2), whole(1, 8), Part::Text(last..last + 3)]);
    for (index, last) in [10, 20, 30].into_iter().enumerate() {
        scheduler.add(new(last)).unwrap();
        let step = run_step(&mut scheduler);
        assert_eq!(rows(&step).last(), Some(&(index as u64, 0, 13)));
        scheduler.remove(SeqId(index as u64));
    }
    let with_plain = |last| prompt([Part::Text(0..2), image(9, 8), Part::Text(last..last + 3)]);
    scheduler.add(with_plain(10)).unwrap();
    run_step(&mut scheduler);
    scheduler.remove(SeqId(3));
    scheduler.add(with_plain(20)).unwrap();
    assert_eq!(rows(&run_step(&mut scheduler)), [(4, 0, 8)], "another item may be cut");
}

/// A longer prefix may just be computed by another sequence. It is of use only up to the item's start.
#[test]
fn a_sequence_waits_for_a_prefix_only_as_far_as_it_can_use_it() {
    let policy = SchedulingPolicy::LongestPrefix;
    let config = SchedulerConfig { policy, max_num_batched_tokens: 64, ..WITH_ITEMS };
    let mut scheduler = scheduler(config);
    scheduler.add(prompt([Part::Text(0..4), whole(1, 6), Part::Text(4..6)])).unwrap();
    // The common tokens end within the second sequence's item.
    scheduler.add(prompt([Part::Text(0..4), whole(1, 6)])).unwrap();
    let step = run_step(&mut scheduler);
    assert_eq!(rows(&step), [(0, 0, 12)], "one block is coming");
    assert_eq!(rows(&run_step(&mut scheduler))[1], (1, 4, 6));
    scheduler.add(prompt([whole(5, 6), Part::Text(4..6)])).unwrap();
    scheduler.add(prompt([whole(5, 6)])).unwrap();
    let step = run_step(&mut scheduler);
    assert_eq!(rows(&step)[2..], [(2, 0, 8), (3, 0, 6)], "no block is coming that it can use");
}
