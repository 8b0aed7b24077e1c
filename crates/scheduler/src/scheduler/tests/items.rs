//! Prompts with items: rows that wait for the encoder, and prefixes that are compared by content.

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

pub(super) fn freed(step: &Step) -> Vec<u32> {
    step.freed_slots.iter().map(|slot| slot.0).collect()
}

pub(super) fn embeddings(slot: u32, indices: Range<u32>) -> Vec<TokenSource> {
    indices.map(|index| TokenSource::Embedding { slot: EncoderSlot(slot), index }).collect()
}

/// Runs steps until every sequence is at its first sampled token, and removes them all.
pub(super) fn finish(scheduler: &mut Scheduler) -> Vec<Step> {
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

/// The sequence that is preempted for the copy of another one's prefix is swapped out before, though there is no row.
#[test]
fn a_step_without_rows_swaps_before_it_copies() {
    let config =
        SchedulerConfig { num_blocks: 6, max_model_len: 24, num_swap_blocks: 6, ..WITH_ITEMS };
    let mut scheduler = scheduler(config);
    scheduler.add(NewSequence { caller: other_caller(), ..request(0..3) }).unwrap();
    finish(&mut scheduler);
    scheduler.add(request(100..116)).unwrap();
    (0..2).for_each(|_| _ = run_step(&mut scheduler));
    let mut new = prompt([Part::Text(0..2), image(1, 2), Part::Text(9..10)]);
    new.items[0].tokens_per_piece = 40;
    scheduler.add(NewSequence { caller: other_caller(), ..new }).unwrap();
    let steps: Vec<_> = (0..3).map(|_| run_step(&mut scheduler)).collect();
    let step = steps.iter().find(|step| !step.copies.is_empty()).expect("it takes blocks");
    assert_eq!((encodes(step).len(), rows(step)), (1, vec![]));
    let copied = step.copies[0].dst;
    let is_out = |swap: &Swap| matches!(swap, Swap::Out { block, .. } if *block == copied);
    assert!(step.swaps.iter().any(is_out), "{step:?}");
    assert_eq!(scheduler.stats().num_yielded, 1);
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

pub(super) fn other_caller() -> Caller {
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

/// The encoder's work for such a token comes after the decodes, though its sequence is first in order.
#[test]
fn decodes_go_before_an_embedding_at_the_end() {
    let mut scheduler = scheduler(SchedulerConfig { max_num_batched_tokens: 4, ..WITH_ITEMS });
    let new = || {
        let mut new = prompt([Part::Text(0..1), image(1, 4)]);
        new.items[0].num_pieces = 3;
        new.items[0].tokens_per_piece = 40;
        NewSequence { priority: -1, ..new }
    };
    scheduler.add(new()).unwrap();
    finish(&mut scheduler);
    scheduler.add(prompt([image(2, 16)])).unwrap();
    finish(&mut scheduler);
    scheduler.add(request(200..202)).unwrap();
    run_step(&mut scheduler);
    scheduler.add(new()).unwrap();
    for position in 2..5 {
        let step = run_step(&mut scheduler);
        assert_eq!((encodes(&step).len(), rows(&step)), (1, vec![(2, position, 1)]));
    }
    assert_eq!(rows(&run_step(&mut scheduler)), [(2, 5, 1), (3, 4, 1)]);
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
