//! The encoder's cache: who holds an item, what is shared, and what makes room.

use super::items::{
    Part, WITH_ITEMS, embeddings, encodes, finish, freed, image, other_caller, prompt,
};
use super::*;

#[test]
fn two_sequences_share_an_item_that_is_encoded_once() {
    let mut scheduler = scheduler(WITH_ITEMS);
    for last in [10, 20] {
        scheduler.add(prompt([image(1, 3), Part::Text(last..last + 1)])).unwrap();
    }
    let step = run_step(&mut scheduler);
    assert_eq!(encodes(&step), [(0, 0, 0, 0..2)]);
    assert_eq!(rows(&step), [(0, 0, 4), (1, 0, 4)]);
    assert_eq!(step.rows[0].tokens[..3], embeddings(0, 0..3));
    assert_eq!(step.rows[1].tokens[..3], embeddings(0, 0..3));
    let stats = scheduler.stats();
    assert_eq!((stats.num_items_encoded, stats.num_item_hits), (1, 1));
}

#[test]
fn whoever_needs_an_unfinished_item_continues_it() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 4, ..WITH_ITEMS });
    let new = |last: u32, caller: Caller| {
        let mut new = prompt([image(1, 3), Part::Text(last..last + 1)]);
        new.items[0].num_pieces = 5;
        NewSequence { caller, ..new }
    };
    let first = scheduler.add(new(10, Caller::default())).unwrap()[0];
    assert_eq!(encodes(&run_step(&mut scheduler)), [(0, 0, 0, 0..1)]);
    scheduler.add(new(20, other_caller())).unwrap();
    // The new caller is next. The last token of the budget is for a piece, too.
    assert_eq!(encodes(&run_step(&mut scheduler)), [(0, 1, 0, 1..2), (0, 0, 0, 2..3)]);
    scheduler.remove(first);
    assert_eq!(encodes(&run_step(&mut scheduler)), [(0, 1, 0, 3..4)]);
    let step = run_step(&mut scheduler);
    assert_eq!((encodes(&step), rows(&step)), (vec![(0, 1, 0, 4..5)], vec![(1, 0, 1)]));
    assert_eq!(rows(&run_step(&mut scheduler)), [(1, 1, 3)]);
}

#[test]
fn an_unfinished_item_that_nobody_needs_is_freed_at_once() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 4, ..WITH_ITEMS });
    let cancelled = scheduler.add(prompt([image(1, 3), Part::Text(0..1)])).unwrap()[0];
    scheduler.add(prompt([image(2, 3), Part::Text(0..1)])).unwrap();
    let step = run_step(&mut scheduler);
    assert_eq!(encodes(&step), [(0, 0, 0, 0..1)], "one item at a time");
    scheduler.remove(cancelled);
    assert_eq!(scheduler.stats().num_encoder_embeddings, 0);
    let step = run_step(&mut scheduler);
    assert_eq!((freed(&step), encodes(&step)), (vec![0], vec![(0, 1, 0, 0..1)]));
    let stats = scheduler.stats();
    assert_eq!((stats.num_items_encoded, stats.num_encoder_embeddings), (0, 3));
}

/// A slot that is freed while nothing runs is listed by the next step that is executed.
#[test]
fn a_freed_slot_is_listed_by_the_next_step_that_is_not_empty() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 4, ..WITH_ITEMS });
    let cancelled = scheduler.add(prompt([image(1, 3), Part::Text(0..1)])).unwrap()[0];
    run_step(&mut scheduler);
    scheduler.remove(cancelled);
    let empty = run_step(&mut scheduler);
    assert!(empty.is_empty() && empty.freed_slots.is_empty());
    scheduler.add(request(0..2)).unwrap();
    assert_eq!(freed(&run_step(&mut scheduler)), [0]);
    assert!(freed(&run_step(&mut scheduler)).is_empty());
}

#[test]
fn a_preempted_sequence_gives_up_its_items() {
    let config = SchedulerConfig {
        num_blocks: 7,
        max_model_len: 20,
        max_num_batched_tokens: 4,
        enable_prefix_caching: false,
        ..WITH_ITEMS
    };
    let mut scheduler = scheduler(config);
    scheduler.add(request(0..7)).unwrap();
    (0..2).for_each(|_| _ = run_step(&mut scheduler));
    scheduler.add(prompt([image(1, 14), Part::Text(0..1)])).unwrap();
    let (mut num_held, mut num_freed, mut num_begun) = (0, 0, 0);
    for _ in 0..12 {
        let step = run_step(&mut scheduler);
        num_begun += encodes(&step).iter().filter(|(.., pieces)| pieces.start == 0).count();
        num_freed += step.freed_slots.len();
        let is_held = scheduler.sequences[&SeqId(1)].slots.len() == 1;
        num_held += usize::from(is_held);
        assert_eq!(scheduler.stats().num_encoder_embeddings, if is_held { 14 } else { 0 });
    }
    assert!(scheduler.stats().num_preemptions > 0 && num_held > 0);
    assert_eq!((num_begun, num_freed), (1, 1), "it waits for the blocks of the first one");
    scheduler.remove(SeqId(0));
    let steps = finish(&mut scheduler);
    assert_eq!(encodes(&steps[0]), [(0, 1, 0, 0..1)]);
}

#[test]
fn with_room_for_one_item_sequences_take_turns() {
    for policy in [SchedulingPolicy::Fcfs, SchedulingPolicy::LongestPrefix] {
        let mut scheduler =
            scheduler(SchedulerConfig { num_encoder_embeddings: 5, policy, ..WITH_ITEMS });
        for digest in 1..4 {
            let new = prompt([Part::Text(0..1), image(digest, 5), image(digest + 10, 3)]);
            scheduler.add(new).unwrap();
        }
        let steps = finish(&mut scheduler);
        let begun: Vec<_> =
            steps.iter().flat_map(encodes).filter(|work| work.3.start == 0).collect();
        let order: Vec<_> = begun.iter().map(|work| (work.1, work.2)).collect();
        assert_eq!(order, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);
        assert_eq!(steps.iter().map(|step| step.freed_slots.len()).sum::<usize>(), 5);
        assert_eq!(scheduler.stats().num_encoder_embeddings, 3, "the last one stays");
        assert_eq!(scheduler.stats().num_items_encoded, 6);
    }
}

#[test]
fn the_least_recently_used_item_makes_room() {
    let mut scheduler = scheduler(WITH_ITEMS);
    let mut show = |first: u32, digest| {
        scheduler.add(prompt([Part::Text(first..first + 1), image(digest, 8)])).unwrap();
        let steps = finish(&mut scheduler);
        let (encodes, freed) = (steps.iter().flat_map(encodes), steps.iter().flat_map(freed));
        (encodes.map(|work| work.0).collect::<Vec<_>>(), freed.collect::<Vec<_>>())
    };
    assert_eq!(show(0, 1), (vec![0], vec![]));
    assert_eq!(show(0, 2), (vec![1], vec![]));
    assert_eq!(show(1, 1), (vec![], vec![]));
    assert_eq!(show(0, 3), (vec![1], vec![1]));
    assert_eq!(show(2, 1), (vec![], vec![]));
    assert_eq!(show(2, 2), (vec![1], vec![1]));
}

/// In each step a small item is held, and another one could begin. A large item that came before them needs all the
/// room, and is not passed by them for ever.
#[test]
fn a_large_item_is_not_kept_waiting_by_small_ones() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 8, ..WITH_ITEMS });
    let small = |digest| {
        let mut new = prompt([image(digest, 4), Part::Text(0..1)]);
        new.items[0].num_pieces = 1;
        new
    };
    scheduler.add(request(10..15)).unwrap();
    scheduler.add(small(1)).unwrap();
    let step = run_step(&mut scheduler);
    assert_eq!((encodes(&step).len(), rows(&step)), (1, vec![(0, 0, 5)]), "the item is held");
    scheduler.remove(SeqId(0));
    let large = scheduler.add(prompt([image(100, 16), Part::Text(0..1)])).unwrap()[0];
    let mut begins = Vec::new();
    for digest in 2..8 {
        scheduler.add(small(digest)).unwrap();
        let step = run_step(&mut scheduler);
        begins.extend(step.encodes.iter().map(|encode| encode.seq));
        step.samples().for_each(|id| scheduler.remove(id));
    }
    assert_eq!(begins.first(), Some(&large));
}

#[test]
fn siblings_need_the_items_of_their_prompt_once() {
    let mut scheduler = scheduler(WITH_ITEMS);
    let new = prompt([Part::Text(0..1), image(1, 4), image(1, 4)]);
    let ids = scheduler.add(NewSequence { n: 3, ..new }).unwrap();
    let step = run_step(&mut scheduler);
    assert_eq!(encodes(&step), [(0, 0, 0, 0..2)], "both items are the same image");
    assert_eq!((rows(&step), &step.rows[0].samples), (vec![(0, 0, 9)], &ids));
    let step = run_step(&mut scheduler);
    assert_eq!((rows(&step).len(), encodes(&step).len()), (3, 0));
}

/// If the first of them is cancelled, the next one goes on with the item.
#[test]
fn a_sibling_takes_over_an_unfinished_item() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 4, ..WITH_ITEMS });
    let ids = scheduler.add(NewSequence { n: 2, ..prompt([image(1, 3)]) }).unwrap();
    assert_eq!(encodes(&run_step(&mut scheduler)), [(0, 0, 0, 0..1)]);
    scheduler.remove(ids[0]);
    assert_eq!(encodes(&run_step(&mut scheduler)), [(0, 1, 0, 1..2)]);
    assert_eq!(finish(&mut scheduler)[0].rows[0].samples, ids[1..]);
}

#[test]
fn without_prefix_caching_items_are_shared_but_not_kept() {
    let mut scheduler = scheduler(SchedulerConfig { enable_prefix_caching: false, ..WITH_ITEMS });
    for last in [10, 20] {
        scheduler.add(prompt([image(1, 3), Part::Text(last..last + 1)])).unwrap();
    }
    let step = run_step(&mut scheduler);
    assert_eq!((encodes(&step).len(), rows(&step).len()), (1, 2));
    assert!(freed(&step).is_empty(), "its rows read the slot");
    assert_eq!(scheduler.stats().num_encoder_embeddings, 0);
    assert_eq!(freed(&run_step(&mut scheduler)), [0]);
    scheduler.add(prompt([image(1, 3)])).unwrap();
    assert_eq!(encodes(&run_step(&mut scheduler)), [(0, 2, 0, 0..2)]);
}

/// Embeddings have the scope of the prefix cache.
#[test]
fn callers_and_salts_share_embeddings_as_they_share_blocks() {
    let shared = |scope, caller: Caller, salt: Option<&str>| {
        let mut scheduler = scheduler(SchedulerConfig { prefix_cache_scope: scope, ..WITH_ITEMS });
        let new = || prompt([image(1, 3), Part::Text(0..2)]);
        scheduler.add(new()).unwrap();
        finish(&mut scheduler);
        let new = NewSequence { caller, cache_salt: salt.map(Into::into), ..new() };
        let id = scheduler.add(new).unwrap()[0];
        let step = run_step(&mut scheduler);
        (step.encodes.is_empty(), scheduler.num_cached_tokens(id))
    };
    let (server, own) = (PrefixCacheScope::Server, Caller::default());
    assert_eq!(shared(server, own, None), (true, 4));
    assert_eq!(shared(server, other_caller(), None), (true, 4));
    assert_eq!(shared(server, own, Some("salt")), (false, 0));
    assert_eq!(shared(PrefixCacheScope::Caller, own, None), (true, 4));
    assert_eq!(shared(PrefixCacheScope::Caller, other_caller(), None), (false, 0));
}

#[test]
fn a_held_sequence_holds_no_item() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 4, ..WITH_ITEMS });
    let held = scheduler.add(prompt([image(1, 16)])).unwrap()[0];
    scheduler.add(prompt([image(2, 16)])).unwrap();
    assert_eq!(encodes(&run_step(&mut scheduler)), [(0, 0, 0, 0..1)]);
    scheduler.hold(held);
    assert_eq!(encodes(&run_step(&mut scheduler)), [(0, 1, 0, 0..1)]);
    scheduler.release(held);
    finish(&mut scheduler);
}
