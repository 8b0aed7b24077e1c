//! The content of one step of the model, as plain data that every rank receives.

use serde::{Deserialize, Serialize};

use crate::{Encode, EncoderSlot};

/// One forward pass: the swaps and copies that come first, then the work of the encoder, and then the rows.
///
/// Steps are executed in the order of their ids. A step may have no rows, if items have to be encoded first. Its swaps
/// and copies are made all the same, and it is committed like any other. It samples nothing, and so leaves the samples
/// of the step before it in place.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Increases with every call of `schedule`.
    pub id: u64,
    /// Blocks to swap out to host memory and to swap in, in this order, before the copies.
    pub swaps: Vec<Swap>,
    /// Block copies that are made before any row writes. No destination is also a source or occurs twice, so they may
    /// run in any order.
    pub copies: Vec<BlockCopy>,
    /// Copies of recurrent states that are made before any row runs, for models that have such states. No destination is
    /// also a source or occurs twice, so they may run in any order.
    pub state_copies: Vec<StateCopy>,
    /// Encoder slots whose content is not read any more, neither by this step nor by later ones. They may hold an
    /// unfinished item. They are free before the work of `encodes`, which may use them again.
    pub freed_slots: Vec<EncoderSlot>,
    /// Work of the encoder, in this order, before the rows. Rows of the same step may read items that it completes. At
    /// most one item is unfinished after a step. The work may be several entries for one slot.
    pub encodes: Vec<Encode>,
    /// At most one row per sequence. Their tokens are within the budget, except for [whole items](crate::Item::is_whole).
    pub rows: Vec<StepRow>,
}

impl Step {
    /// The sequences that sample a token in this step, in the order of the indices in [`TokenSource::PreviousRow`].
    pub fn samples(&self) -> impl Iterator<Item = SeqId> {
        self.rows.iter().flat_map(|row| row.samples.iter().copied())
    }

    /// Whether the step needs no execution, since nothing can run.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.encodes.is_empty() && self.copies.is_empty()
    }

    /// Number of tokens that the step computes, over all rows.
    pub fn num_tokens(&self) -> usize {
        self.rows.iter().map(|row| row.tokens.len()).sum()
    }
}

/// The tokens of one sequence that one step computes.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct StepRow {
    /// The sequence.
    pub seq: SeqId,
    /// Input tokens at positions `first_position..first_position + tokens.len()`; never empty.
    pub tokens: Vec<TokenSource>,
    /// Position of the first input token. Everything before it is in the cache already.
    pub first_position: u32,
    /// Rope positions of the input tokens (frame, row, column), if they differ from the positions in the sequence; else
    /// empty.
    pub rope_positions: Vec<[u32; 3]>,
    /// Ranges of positions of the sequence, start and end, whose tokens see each other both ways. The row computes all
    /// of each range.
    pub whole: Vec<(u32, u32)>,
    /// Blocks of the positions `0..first_position + tokens.len()`, in order, and no others.
    pub block_table: Vec<BlockId>,
    /// Slot of the sequence's recurrent state, for models that have one. It holds the state before `first_position`.
    /// At position 0 its content does not matter.
    pub state_slot: Option<StateSlot>,
    /// The logits that the row must produce.
    pub logits: LogitsFor,
    /// Sequences that sample their next token from the last position's logits. There are none while a prompt is
    /// incomplete, and all `n` of a request when its prompt is complete.
    pub samples: Vec<SeqId>,
}

/// Source of an input token.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// A known token id.
    Id(u32),
    /// The token that the previous step with rows sampled, by its index in that step's flattened [`Step::samples`].
    /// Steps without rows between the two do not count.
    PreviousRow(u32),
    /// An embedding of an item. Its id among [`Scheduler::tokens`](crate::Scheduler::tokens) is the placeholder.
    Embedding {
        /// Slot of the item, which is complete.
        slot: EncoderSlot,
        /// Index among its embeddings.
        index: u32,
    },
}

/// Positions of a row whose logits are computed.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsFor {
    /// None: the row only fills the cache.
    None,
    /// The last position, to sample a token.
    Last,
    /// Every position, for prompt logits that have not been output before.
    All,
}

/// A copy of one block's contents, in all layers.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// Block to read.
    pub src: BlockId,
    /// Block to write.
    pub dst: BlockId,
}

/// A copy of one sequence's state, in all layers.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateCopy {
    /// Slot to read.
    pub src: StateSlot,
    /// Slot to write.
    pub dst: StateSlot,
}

/// A copy of one block's contents, in all layers, between the KV cache and host memory.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// Swaps a block out to host memory.
    Out {
        /// Block to read.
        block: BlockId,
        /// Slot to write.
        slot: SwapSlot,
    },
    /// Swaps a block in that was swapped out before.
    In {
        /// Slot to read.
        slot: SwapSlot,
        /// Block to write.
        block: BlockId,
    },
}

/// A token sampled for a sequence.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// The sequence that continues with it.
    pub seq: SeqId,
    /// Token id.
    pub token: u32,
}

/// Identifies a sequence. Ids are never reused and increase in the order of arrival.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// Identifies a slot for one block in host memory: an index below `num_swap_blocks`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SwapSlot(pub u32);

/// Identifies a slot for the recurrent state of one sequence: an index below `num_state_slots`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateSlot(pub u32);

/// Identifies a block of the KV cache: an index below `num_blocks`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The block as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
