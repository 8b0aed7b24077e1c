//! Parts of a prompt that stand for something other than text, such as images.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::SeqId;

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
    /// Digest of the content. Items with equal digests have equal embeddings.
    pub digest: [u8; 32],
    /// Number of pieces of the encoder's work.
    pub num_pieces: u32,
    /// Tokens of a step's budget that one piece takes, at least one.
    pub tokens_per_piece: usize,
    /// Whether its tokens see each other both ways. Then it is computed in one row.
    pub is_whole: bool,
}

/// Rope positions of a prompt with items, where they differ from the positions in the sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RopePositions {
    /// Frame, row and column of each token of the prompt.
    pub prompt: Vec<[u32; 3]>,
    /// Difference to the position in the sequence for the tokens after the prompt.
    pub offset: i32,
}

/// Identifies the place of an item's embeddings. Ids are reused after a step has listed them as free.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EncoderSlot(pub u32);

/// Work of the encoder on one item, before the rows of a step.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Encode {
    /// Slot of the item's embeddings, and of its state until they are complete.
    pub slot: EncoderSlot,
    /// A sequence whose prompt has the item.
    pub seq: SeqId,
    /// Index of the item among those of the prompt.
    pub item: u32,
    /// Pieces to compute. The first piece of an item begins in an empty slot.
    pub pieces: Range<u32>,
}
