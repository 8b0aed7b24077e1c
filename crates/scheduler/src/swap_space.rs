//! Slots in host memory for the blocks of preempted sequences.

use crate::BlockId;
use crate::step::{Swap, SwapSlot};

/// The free slots, and the copies of the next step.
///
/// Copies are made in the order in which they were requested, after all work that was launched before. So a
/// swapped-out block contains the results of all steps before, and a slot can be taken again as soon as it is freed.
#[derive(Default)]
pub(crate) struct SwapSpace {
    num_slots: usize,
    free: Vec<SwapSlot>,
    /// Copies that were requested since the last step that was not empty.
    pending: Vec<Swap>,
    pub(crate) num_out: u64,
    pub(crate) num_in: u64,
}

/// Blocks of a preempted sequence in host memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Swapped {
    /// The slots of its first blocks.
    pub(crate) slots: Vec<SwapSlot>,
    /// Number of tokens whose keys and values are there.
    pub(crate) num_tokens: usize,
}

impl SwapSpace {
    pub(crate) fn new(num_slots: u32) -> Self {
        let free = (0..num_slots).rev().map(SwapSlot).collect();
        Self { num_slots: num_slots as usize, free, ..Self::default() }
    }

    /// Swaps out the blocks of `num_tokens` computed tokens. Swaps nothing out if there is no room for all of them.
    pub(crate) fn bring_out(&mut self, blocks: &[BlockId], num_tokens: usize) -> Swapped {
        if blocks.is_empty() || blocks.len() > self.free.len() {
            return Swapped::default();
        }
        let slots = self.free.split_off(self.free.len() - blocks.len());
        let swaps = blocks.iter().zip(&slots);
        self.pending.extend(swaps.map(|(block, slot)| Swap::Out { block: *block, slot: *slot }));
        self.num_out += blocks.len() as u64;
        Swapped { slots, num_tokens }
    }

    /// Swaps in the blocks of `block_table` from `first` on, and frees all slots of the sequence.
    pub(crate) fn bring_back(&mut self, swapped: Swapped, block_table: &[BlockId], first: usize) {
        let swaps = swapped.slots.iter().zip(block_table).skip(first);
        let before = self.pending.len();
        self.pending.extend(swaps.map(|(slot, block)| Swap::In { slot: *slot, block: *block }));
        self.num_in += (self.pending.len() - before) as u64;
        self.give_up(swapped);
    }

    /// Frees the slots of blocks that are not needed any more.
    pub(crate) fn give_up(&mut self, swapped: Swapped) {
        self.free.extend(swapped.slots);
    }

    /// Returns the copies for a step.
    pub(crate) fn take_pending(&mut self) -> Vec<Swap> {
        std::mem::take(&mut self.pending)
    }

    pub(crate) fn num_used(&self) -> usize {
        self.num_slots - self.free.len()
    }

    /// Verifies that each slot is free or has one holder.
    pub(crate) fn check<'a>(&self, held: impl Iterator<Item = &'a Swapped>) -> Result<(), String> {
        let mut is_taken = vec![false; self.num_slots];
        let held = held.flat_map(|swapped| &swapped.slots);
        for slot in self.free.iter().chain(held) {
            if std::mem::replace(&mut is_taken[slot.0 as usize], true) {
                return Err(format!("{slot:?} is listed twice"));
            }
        }
        match is_taken.iter().position(|is_taken| !is_taken) {
            Some(slot) => Err(format!("nobody has swap slot {slot}")),
            None => Ok(()),
        }
    }
}
