//! Prompts with items: rows that wait for the encoder, its cache, and prefixes that are compared by content.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use super::*;
use crate::{EncoderSlot, Item, RopePositions};

/// Token id of embeddings.
pub(super) const PLACEHOLDER: u32 = 50;

pub(super) const WITH_ITEMS: SchedulerConfig =
    SchedulerConfig { max_num_batched_tokens: 16, num_encoder_embeddings: 16, ..CONFIG };

/// A part of a prompt.
pub(super) enum Part {
    Text(Range<u32>),
    Image { digest: u8, len: usize, is_whole: bool },
}

/// An image of `len` embeddings. The encoder computes it in two pieces, which take three tokens of the budget each.
pub(super) fn image(digest: u8, len: usize) -> Part {
    Part::Image { digest, len, is_whole: false }
}

pub(super) fn prompt<const N: usize>(parts: [Part; N]) -> NewSequence {
    let (mut prompt, mut items) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Part::Text(tokens) => prompt.extend(tokens),
            Part::Image { digest, len, is_whole } => {
                items.push(Item {
                    start: prompt.len(),
                    len,
                    placeholder: PLACEHOLDER,
                    digest: [digest; 32],
                    num_pieces: 2,
                    tokens_per_piece: 3,
                    is_whole,
                });
                prompt.extend(vec![PLACEHOLDER; len]);
            }
        }
    }
    NewSequence { items, ..NewSequence::new(prompt) }
}

/// Slot, sequence, item and pieces of each entry of the encoder's work.
pub(super) fn encodes(step: &Step) -> Vec<(u32, u64, u32, Range<u32>)> {
    let of =
        |encode: &crate::Encode| (encode.slot.0, encode.seq.0, encode.item, encode.pieces.clone());
    step.encodes.iter().map(of).collect()
}

fn freed(step: &Step) -> Vec<u32> {
    step.freed_slots.iter().map(|slot| slot.0).collect()
}

fn embeddings(slot: u32, indices: Range<u32>) -> Vec<TokenSource> {
    indices.map(|index| TokenSource::Embedding { slot: EncoderSlot(slot), index }).collect()
}

/// Runs steps until every sequence is at its first sampled token, and removes them all.
fn finish(scheduler: &mut Scheduler) -> Vec<Step> {
    let mut steps = Vec::new();
    while !scheduler.sequences.is_empty() {
        let step = run_step(scheduler);
        assert!(!step.is_empty(), "nothing runs");
        step.samples().for_each(|id| scheduler.remove(id));
        scheduler.check().unwrap();
        steps.push(step);
    }
    steps
}

#[test]
fn items_that_do_not_fit_their_prompt_are_refused() {
    let mut scheduler = scheduler(WITH_ITEMS);
    let valid = || prompt([Part::Text(0..2), image(1, 4), Part::Text(2..4), image(2, 3)]);
    let mut refused = |change: fn(&mut NewSequence)| {
        let mut new = valid();
        change(&mut new);
        scheduler.add(new).unwrap_err()
    };
    let (item, placeholder) = (1, PLACEHOLDER);
    assert_eq!(refused(|new| new.items[1].len = 0), Error::EmptyItem { item });
    let overlap = Error::ItemsOverlap { item, start: 5, end: 6 };
    assert_eq!(refused(|new| new.items[1].start = 5), overlap);
    assert!(matches!(refused(|new| new.items.swap(0, 1)), Error::ItemsOverlap { item: 1, .. }));
    let outside = |end| Error::ItemOutsidePrompt { item, end, num_prompt_tokens: 11 };
    assert_eq!(refused(|new| new.items[1].len = 4), outside(12));
    assert_eq!(refused(|new| new.items[1].len = usize::MAX), outside(usize::MAX));
    let without = Error::ItemWithoutPlaceholder { item, placeholder: 9 };
    assert_eq!(refused(|new| new.items[1].placeholder = 9), without);
    let in_text = Error::ItemEndsInText { item, placeholder };
    assert_eq!(refused(|new| new.items[1].start = 7), in_text);
    assert_eq!(refused(|new| new.prompt[10] = 7), in_text);
    assert_eq!(refused(|new| new.items[1].num_pieces = 0), Error::ItemWithoutPieces { item });
    assert_eq!(refused(|new| new.items[1].tokens_per_piece = 0), Error::ItemWithoutCost { item });
    let rope = |num, offset| RopePositions { prompt: vec![[0; 3]; num], offset };
    assert!(NewSequence { rope: Some(Arc::new(rope(11, -11))), ..valid() } != valid());
    for (num, offset) in [(10, 0), (12, 0), (11, -12), (11, i32::MIN)] {
        let new = NewSequence { rope: Some(Arc::new(rope(num, offset))), ..valid() };
        let expected = match num {
            11 => Error::RopeOffset { offset },
            num_positions => Error::RopeLength { num_positions, num_prompt_tokens: 11 },
        };
        assert_eq!(scheduler.add(new), Err(expected));
    }
    let large = prompt([image(1, 17)]);
    let error = scheduler.add(large).unwrap_err();
    assert_eq!(error, Error::ItemTooLarge { item: 0, num_embeddings: 17, max: 16 });
    assert!(error.to_string().contains("raise num_encoder_embeddings"));
    assert_eq!(scheduler.stats().num_waiting, 0);
    scheduler.add(valid()).unwrap();
}

#[test]
fn a_row_ends_before_an_item_that_is_not_complete() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 8, ..WITH_ITEMS });
    scheduler.add(prompt([Part::Text(0..3), image(1, 4), Part::Text(3..5)])).unwrap();
    let first = run_step(&mut scheduler);
    // The text before the item has three tokens of the budget, and one piece fits the other five.
    assert_eq!(encodes(&first), [(0, 0, 0, 0..1)]);
    assert_eq!(rows(&first), [(0, 0, 3)]);
    let second = run_step(&mut scheduler);
    assert_eq!(encodes(&second), [(0, 0, 0, 1..2)]);
    assert_eq!(rows(&second), [(0, 3, 5)], "the item is complete, and its row is in the same step");
    let expected: Vec<_> = embeddings(0, 0..4).into_iter().chain([TokenSource::Id(3)]).collect();
    assert_eq!(second.rows[0].tokens, expected);
    assert!(second.rows[0].rope_positions.is_empty() && second.rows[0].whole.is_empty());
    let third = run_step(&mut scheduler);
    assert_eq!((rows(&third), third.rows[0].samples.len()), (vec![(0, 8, 1)], 1));
    assert_eq!(scheduler.tokens(SeqId(0)), [0, 1, 2, 50, 50, 50, 50, 3, 4, 100]);
    let stats = scheduler.stats();
    assert_eq!((stats.num_items_encoded, stats.num_item_hits), (1, 0));
    assert_eq!((stats.num_encoder_embeddings, stats.max_encoder_embeddings), (4, 16));
}

/// A step with encoder work alone is committed like any other, and makes the block copies of sequences that start.
#[test]
fn a_step_may_have_no_rows() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 3, ..WITH_ITEMS });
    scheduler.add(request(0..3)).unwrap();
    finish(&mut scheduler);
    scheduler.add(prompt([Part::Text(0..2), image(1, 2), Part::Text(9..10)])).unwrap();
    let first = scheduler.schedule();
    assert_eq!((encodes(&first), rows(&first)), (vec![(0, 1, 0, 0..1)], vec![]));
    assert!(!first.is_empty());
    assert_eq!(first.copies.len(), 1, "the two tokens before the item are copied");
    let second = scheduler.schedule();
    assert_eq!((encodes(&second), rows(&second)), (vec![(0, 1, 0, 1..2)], vec![]));
    let (step, expected) = (second.id, Some(first.id));
    assert_eq!(scheduler.commit(&second, &[]), Err(Error::StepOutOfOrder { step, expected }));
    commit(&mut scheduler, &first);
    commit(&mut scheduler, &second);
    assert_eq!(rows(&run_step(&mut scheduler)), [(1, 2, 3)]);
}

#[test]
fn a_budget_of_one_encodes_and_computes() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 1, ..WITH_ITEMS });
    scheduler.add(prompt([Part::Text(0..1), image(1, 2), Part::Text(1..2)])).unwrap();
    let steps = finish(&mut scheduler);
    let work: Vec<_> = steps.iter().map(|step| (encodes(step).len(), rows(step))).collect();
    let row = |at| (0, vec![(0, at, 1)]);
    assert_eq!(work, [row(0), (1, vec![]), (1, vec![]), row(1), row(2), row(3)]);
}

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

fn other_caller() -> Caller {
    Caller { id: CallerId(7), weight: NonZeroU32::MIN }
}

#[test]
fn the_same_image_again_is_found_like_text() {
    let mut scheduler = scheduler(WITH_ITEMS);
    let new = || prompt([Part::Text(0..2), image(1, 5), Part::Text(2..6)]);
    scheduler.add(new()).unwrap();
    finish(&mut scheduler);
    let again = scheduler.add(new()).unwrap()[0];
    let step = run_step(&mut scheduler);
    assert_eq!((encodes(&step), rows(&step)), (vec![], vec![(1, 10, 1)]));
    assert_eq!(scheduler.num_cached_tokens(again), 8, "whole blocks are reported");
    // Another text before it: the blocks differ, but the embeddings are there.
    scheduler.add(prompt([Part::Text(7..9), image(1, 5)])).unwrap();
    let step = run_step(&mut scheduler);
    assert_eq!((encodes(&step), rows(&step)[1]), (vec![], (2, 0, 7)));
    assert_eq!(scheduler.stats().num_item_hits, 1);
}

/// All images have the same token ids.
#[test]
fn different_images_share_no_block_and_no_part_of_one() {
    let mut scheduler = scheduler(WITH_ITEMS);
    let new = |digest| prompt([Part::Text(0..2), image(digest, 5), Part::Text(2..4)]);
    scheduler.add(new(1)).unwrap();
    finish(&mut scheduler);
    let other = scheduler.add(new(2)).unwrap()[0];
    let step = run_step(&mut scheduler);
    assert_eq!(encodes(&step), [(1, 1, 0, 0..2)]);
    assert_eq!((rows(&step), step.copies.len()), (vec![(1, 2, 7)], 1), "two tokens of text");
    assert_eq!(scheduler.num_cached_tokens(other), 0);
    assert_eq!(step.rows[0].tokens[..5], embeddings(1, 0..5));
    // The first image is found up to the text in which the prompts differ.
    scheduler.add(prompt([Part::Text(0..2), image(1, 5), Part::Text(8..10)])).unwrap();
    let step = run_step(&mut scheduler);
    assert_eq!((encodes(&step), rows(&step)[1]), (vec![], (2, 7, 2)));
    // A smaller image has another content, even if its caller gives it the same digest.
    scheduler.add(prompt([Part::Text(0..2), image(1, 4), Part::Text(8..10)])).unwrap();
    let step = run_step(&mut scheduler);
    assert_eq!(encodes(&step), [(2, 3, 0, 0..2)]);
}

#[test]
fn a_placeholder_in_text_is_text() {
    let mut scheduler = scheduler(WITH_ITEMS);
    let text = [0, 1, PLACEHOLDER, PLACEHOLDER, PLACEHOLDER, 3];
    scheduler.add(request(text)).unwrap();
    let step = run_step(&mut scheduler);
    assert_eq!((encodes(&step).len(), &*step.rows[0].tokens), (0, &text.map(TokenSource::Id)[..]));
    scheduler.remove(SeqId(0));
    scheduler.add(prompt([Part::Text(0..2), image(1, 3), Part::Text(3..4)])).unwrap();
    let step = run_step(&mut scheduler);
    assert_eq!((rows(&step), encodes(&step).len()), (vec![(1, 2, 4)], 1), "the text is common");
}

/// The ends of an image's rows are text within the item.
#[test]
fn text_within_an_item_is_text() {
    let mut scheduler = scheduler(WITH_ITEMS);
    let mut new = prompt([Part::Text(0..1), image(1, 5)]);
    new.prompt[3] = 9;
    scheduler.add(new.clone()).unwrap();
    let step = run_step(&mut scheduler);
    let mut expected = vec![TokenSource::Id(0)];
    expected.extend(embeddings(0, 0..2));
    expected.push(TokenSource::Id(9));
    expected.extend(embeddings(0, 2..4));
    assert_eq!(step.rows[0].tokens, expected);
    assert_eq!(scheduler.stats().num_encoder_embeddings, 4);
    scheduler.remove(SeqId(0));
    new.prompt[3] = 8;
    scheduler.add(new).unwrap();
    assert_eq!(rows(&run_step(&mut scheduler)), [(1, 3, 3)], "it differs after two embeddings");
}

#[test]
fn a_pin_keeps_the_blocks_of_an_image() {
    let config = SchedulerConfig { num_blocks: 5, max_model_len: 16, ..WITH_ITEMS };
    let mut scheduler = scheduler(config);
    let new = || prompt([Part::Text(0..2), image(1, 6), Part::Text(2..3)]);
    scheduler.add(new()).unwrap();
    finish(&mut scheduler);
    let of = |digest| prompt([Part::Text(0..2), image(digest, 6)]);
    let other = of(2);
    let pin = scheduler.pin(&other.prompt, &other.items, CallerId(0), None);
    assert_eq!(scheduler.stats().num_pinned_blocks, 1, "only the text before the image is common");
    scheduler.unpin(pin);
    let same = of(1);
    scheduler.pin(&same.prompt, &same.items, CallerId(0), None);
    assert_eq!(scheduler.stats().num_pinned_blocks, 2);
    for start in [100, 200] {
        scheduler.add(request(start..start + 11)).unwrap();
        finish(&mut scheduler);
    }
    let again = scheduler.add(new()).unwrap()[0];
    assert_eq!(rows(&run_step(&mut scheduler)), [(3, 8, 1)]);
    assert_eq!(scheduler.num_cached_tokens(again), 8);
    // The items of a pin may end after its tokens, which does no harm.
    let cut = of(1);
    scheduler.pin(&cut.prompt[..5], &cut.items, CallerId(0), None);
    scheduler.pin(&cut.prompt[..1], &cut.items, CallerId(0), None);
    scheduler.check().unwrap();
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

/// Small items come all the time. A large one that needs all the room is not passed by them for ever.
#[test]
fn a_large_item_is_not_kept_waiting_by_small_ones() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 10, ..WITH_ITEMS });
    let small = |digest| prompt([image(digest, 4), Part::Text(0..8)]);
    (1..3).for_each(|digest| _ = scheduler.add(small(digest)).unwrap());
    run_step(&mut scheduler);
    let large = scheduler.add(prompt([image(100, 16), Part::Text(0..1)])).unwrap()[0];
    for digest in 3..40 {
        scheduler.add(small(digest)).unwrap();
        let step = run_step(&mut scheduler);
        if step.encodes.iter().any(|encode| encode.seq == large) {
            return;
        }
        step.samples().for_each(|id| scheduler.remove(id));
    }
    panic!("it does not begin");
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
fn a_part_of_a_block_is_shared_within_one_caller() {
    let first_row = |caller: Caller| {
        let mut scheduler = scheduler(WITH_ITEMS);
        scheduler.add(prompt([image(1, 6), Part::Text(0..1)])).unwrap();
        finish(&mut scheduler);
        let new = prompt([image(1, 6), Part::Text(1..2)]);
        let id = scheduler.add(NewSequence { caller, ..new }).unwrap()[0];
        let step = run_step(&mut scheduler);
        assert_eq!(scheduler.num_cached_tokens(id), 4, "whole blocks are reported");
        (step.rows[0].first_position, step.rows[0].tokens[0])
    };
    assert_eq!(first_row(Caller::default()), (6, TokenSource::Id(1)));
    assert_eq!(first_row(other_caller()), (4, embeddings(0, 4..5)[0]));
}

#[test]
fn the_encoder_counts_for_its_caller() {
    let mut scheduler = scheduler(WITH_ITEMS);
    let mut new = prompt([image(1, 2), Part::Text(0..1)]);
    new.items[0].tokens_per_piece = 40;
    scheduler.add(NewSequence { caller: other_caller(), ..new }).unwrap();
    let text = || NewSequence { caller: Caller::default(), ..request(0..20) };
    scheduler.add(text()).unwrap();
    let (own, other) = (CallerId(0), other_caller().id);
    let owed = |scheduler: &Scheduler| {
        let standing = |caller| scheduler.callers.standing(caller);
        standing(own).num_owed_before(&standing(other)).unwrap()
    };
    let step = run_step(&mut scheduler);
    assert_eq!((encodes(&step).len(), rows(&step)), (1, vec![]), "a piece takes all that is left");
    assert_eq!(owed(&scheduler), 40);
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

/// A last token that is an embedding needs its item, though it is one token like that of a decode.
#[test]
fn a_prompt_that_ends_with_an_item_is_a_prefill_to_its_end() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 4, ..WITH_ITEMS });
    let new = || prompt([Part::Text(0..1), image(1, 4)]);
    scheduler.add(new()).unwrap();
    finish(&mut scheduler);
    scheduler.add(prompt([image(2, 16)])).unwrap();
    finish(&mut scheduler);
    scheduler.add(new()).unwrap();
    let first = run_step(&mut scheduler);
    assert_eq!((encodes(&first), rows(&first)), (vec![(0, 2, 0, 0..1)], vec![]));
    let second = run_step(&mut scheduler);
    assert_eq!((encodes(&second), rows(&second)), (vec![(0, 2, 0, 1..2)], vec![(2, 4, 1)]));
    assert_eq!(second.rows[0].tokens, embeddings(0, 3..4));
}

#[test]
fn rope_positions_follow_the_prompt_and_then_the_offset() {
    let config = SchedulerConfig { max_num_batched_tokens: 4, ..WITH_ITEMS };
    let mut scheduler = scheduler(config);
    let positions: Vec<_> = [0, 1, 1, 1, 1, 2].map(|at| [at, at + 10, at + 20]).to_vec();
    let rope = Some(Arc::new(RopePositions { prompt: positions.clone(), offset: -3 }));
    let new = prompt([Part::Text(0..1), image(1, 4), Part::Text(1..2)]);
    scheduler.add(NewSequence { rope, n: 2, ..new }).unwrap();
    let mut seen = Vec::new();
    for _ in 0..8 {
        let step = run_step(&mut scheduler);
        for row in &step.rows {
            assert_eq!(row.rope_positions.len(), row.tokens.len());
            let at = row.first_position as usize..;
            seen.extend(at.zip(row.rope_positions.clone()).map(|(at, rope)| (row.seq.0, at, rope)));
        }
    }
    let of_prompt = positions.into_iter().enumerate().map(|(at, rope)| (0, at, rope));
    assert!(of_prompt.into_iter().all(|expected| seen.contains(&expected)), "{seen:?}");
    for expected in [(0, 6, [3; 3]), (1, 6, [3; 3]), (0, 7, [4; 3]), (1, 7, [4; 3])] {
        assert!(seen.contains(&expected), "{expected:?} in {seen:?}");
    }
    scheduler.remove(SeqId(0));
    scheduler.remove(SeqId(1));
    scheduler.add(request(0..2)).unwrap();
    assert!(run_step(&mut scheduler).rows[0].rope_positions.is_empty());
}
