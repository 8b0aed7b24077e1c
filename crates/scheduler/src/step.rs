//! What one step of the model does, as plain data that every rank receives.

use serde::{Deserialize, Serialize};

/// One forward pass: the swaps and copies to make first, then the rows to run.
///
/// Steps are executed in the order of their ids.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Increases with every call of `schedule`.
    pub id: u64,
    /// What goes to the memory of the host and comes back from there, in this order, before the copies.
    pub swaps: Vec<Swap>,
    /// Copies to make before any row writes. No destination is also a source or named twice, so they may run in any
    /// order.
    pub copies: Vec<BlockCopy>,
    /// Copies of states to make before any row runs, for models that have them. No destination is also a source or named twice,
    /// so they may be made in any order.
    pub state_copies: Vec<StateCopy>,
    /// At most one row per sequence. Empty when nothing can run; such a step needs no execution.
    pub rows: Vec<StepRow>,
}

impl Step {
    /// The sequences that draw a token in this step, in the order which [`TokenSource::PreviousRow`] indexes.
    pub fn samples(&self) -> impl Iterator<Item = SeqId> {
        self.rows.iter().flat_map(|row| row.samples.iter().copied())
    }

    /// Tokens which the step computes, over all rows.
    pub fn num_tokens(&self) -> usize {
        self.rows.iter().map(|row| row.tokens.len()).sum()
    }
}

/// The tokens of one sequence that one step computes.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct StepRow {
    /// The sequence computed.
    pub seq: SeqId,
    /// Input tokens at positions `first_position..first_position + tokens.len()`; never empty.
    pub tokens: Vec<TokenSource>,
    /// Position of the first input token; everything before it is in the cache already.
    pub first_position: u32,
    /// Blocks of positions `0..first_position + tokens.len()`, in order, and no more than these.
    pub block_table: Vec<BlockId>,
    /// Where the sequence's state is, for models that have one: it is that of `first_position`, and where this is 0 whatever it is.
    pub state_slot: Option<StateSlot>,
    /// Which logits the row must produce.
    pub logits: LogitsFor,
    /// Sequences that draw their next token from the last position's logits: none while a prompt is incomplete, and
    /// all `n` of a request when its prompt is complete.
    pub samples: Vec<SeqId>,
}

/// Where an input token comes from.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// A known token id.
    Id(u32),
    /// The token drawn by the previous step (the previous one that had rows) at this index of its flattened
    /// [`Step::samples`].
    PreviousRow(u32),
}

/// Positions of a row whose logits are wanted.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsFor {
    /// None: the row only fills the cache.
    None,
    /// The last position, to draw a token.
    Last,
    /// Every position: prompt logits were asked for, and these positions' have not been produced before.
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
    /// Place to read.
    pub src: StateSlot,
    /// Place to write.
    pub dst: StateSlot,
}

/// A copy of one block's contents, in all layers, between the cache and the memory of the host.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// To the host.
    Out {
        /// Block to read.
        block: BlockId,
        /// Place to write.
        slot: SwapSlot,
    },
    /// Back from the host, from where it was once brought.
    In {
        /// Place to read.
        slot: SwapSlot,
        /// Block to write.
        block: BlockId,
    },
}

/// A token drawn for a sequence.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// The sequence that continues with it.
    pub seq: SeqId,
    /// Token id.
    pub token: u32,
}

/// Names a sequence; never reused. Ids grow in the order of arrival.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// Names a place for one block in the memory of the host: an index below `num_swap_blocks`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SwapSlot(pub u32);

/// Names a place for the state of one sequence: an index below `num_state_slots`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateSlot(pub u32);

/// Names a block of the KV cache: an index below `num_blocks`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The block as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
