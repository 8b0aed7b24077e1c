//! Parts of a prompt that stand for something other than text, such as images.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Error, NewSequence, SchedulerConfig, SeqId};

/// A part of a prompt whose embeddings an encoder computes: an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Position of its first token in the prompt.
    pub start: usize,
    /// Number of its tokens, from the first embedding to the last one.
    pub len: usize,
    /// Token id of the positions that take an embedding. Other ids within the item are text, such as the ends of an
    /// image's rows.
    pub placeholder: u32,
    /// Digest of the content. Items with equal digests have equal embeddings, and are taken for the same item.
    pub digest: [u8; 32],
    /// Number of pieces of the encoder's work.
    pub num_pieces: u32,
    /// Tokens of a step's budget that one piece takes, at least one.
    pub tokens_per_piece: usize,
    /// Whether its tokens see each other both ways. Then it is computed in one row, which may exceed the step's budget
    /// by this item.
    pub is_whole: bool,
}

/// Rope positions of a prompt with items, where they differ from the positions in the sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RopePositions {
    /// Frame, row and column of each token of the prompt.
    pub prompt: Vec<[u32; 3]>,
    /// Added to the position in the sequence for the tokens after the prompt.
    pub offset: i32,
}

/// Identifies the slot of an item's embeddings. Ids are small. An id is reused from the step on that lists it as
/// free.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EncoderSlot(pub u32);

/// Work of the encoder on one item, before the rows of a step.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Encode {
    /// Slot of the item's embeddings, and of its state until they are complete.
    pub slot: EncoderSlot,
    /// A running sequence whose prompt has the item. It may differ between the pieces of one item, if several sequences
    /// need the item. Then the contents are equal, and the work goes on.
    pub seq: SeqId,
    /// Index of the item among those of the prompt.
    pub item: u32,
    /// Pieces to compute, never empty. The first piece of an item begins in an empty slot. The others follow in order
    /// and without a gap, in this step or later ones. The embeddings are complete after the last of
    /// [`Item::num_pieces`].
    pub pieces: Range<u32>,
}

/// Verifies the items and the rope positions of a request.
pub(crate) fn validate(new: &NewSequence, config: &SchedulerConfig) -> Result<(), Error> {
    let num_prompt_tokens = new.prompt.len();
    let mut last_end = 0;
    for (index, item) in new.items.iter().enumerate() {
        if item.start < last_end {
            let (item, start, end) = (index, item.start, last_end);
            return Err(Error::ItemsOverlap { item, start, end });
        }
        last_end = item.start.saturating_add(item.len);
        if last_end > num_prompt_tokens {
            return Err(Error::ItemOutsidePrompt { item: index, end: last_end, num_prompt_tokens });
        }
        validate_item(index, item, &new.prompt[item.start..last_end], config)?;
    }
    let Some(rope) = &new.rope else { return Ok(()) };
    let num_positions = rope.prompt.len();
    if num_positions != num_prompt_tokens {
        return Err(Error::RopeLength { num_positions, num_prompt_tokens });
    }
    let fits = |position: usize| (position as u32).checked_add_signed(rope.offset).is_some();
    match fits(num_prompt_tokens) && fits(config.max_model_len) {
        true => Ok(()),
        false => Err(Error::RopeOffset { offset: rope.offset }),
    }
}

fn validate_item(
    index: usize,
    item: &Item,
    tokens: &[u32],
    config: &SchedulerConfig,
) -> Result<(), Error> {
    let (placeholder, max) = (item.placeholder, config.num_encoder_embeddings);
    let (Some(first), Some(last)) = (tokens.first(), tokens.last()) else {
        return Err(Error::EmptyItem { item: index });
    };
    let num_embeddings = tokens.iter().filter(|token| **token == placeholder).count();
    if num_embeddings == 0 {
        return Err(Error::ItemWithoutPlaceholder { item: index, placeholder });
    }
    if *first != placeholder || *last != placeholder {
        return Err(Error::ItemEndsInText { item: index, placeholder });
    }
    if item.num_pieces == 0 {
        return Err(Error::ItemWithoutPieces { item: index });
    }
    if item.tokens_per_piece == 0 {
        return Err(Error::ItemWithoutCost { item: index });
    }
    if num_embeddings > max {
        return Err(Error::ItemTooLarge { item: index, num_embeddings, max });
    }
    Ok(())
}
