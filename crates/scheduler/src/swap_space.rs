//! Places in the memory of the host for the blocks of preempted sequences.

use crate::BlockId;
use crate::step::{Swap, SwapSlot};

/// Which places are free, and the copies that the next step makes.
///
/// Copies are made in the order in which they were asked for, each after all that was launched before: what is brought
/// out is what the steps before have computed, and a place can be taken again as soon as it is given back.
#[derive(Default)]
pub(crate) struct SwapSpace {
    num_slots: usize,
    free: Vec<SwapSlot>,
    /// Asked for since the last step with rows.
    pending: Vec<Swap>,
    pub(crate) num_out: u64,
    pub(crate) num_in: u64,
}

/// What a preempted sequence has in the memory of the host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Swapped {
    /// The places of its first blocks.
    pub(crate) slots: Vec<SwapSlot>,
    /// Tokens whose keys and values are there.
    pub(crate) num_tokens: usize,
}

impl SwapSpace {
    pub(crate) fn new(num_slots: u32) -> Self {
        let free = (0..num_slots).rev().map(SwapSlot).collect();
        Self { num_slots: num_slots as usize, free, ..Self::default() }
    }

    /// Has the blocks of so many computed tokens brought out; nothing where there is no room for all of them.
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

    /// Has what was brought out copied to the blocks of `block_table` from `first` on, and gives up its places.
    pub(crate) fn bring_back(&mut self, swapped: Swapped, block_table: &[BlockId], first: usize) {
        let swaps = swapped.slots.iter().zip(block_table).skip(first);
        let before = self.pending.len();
        self.pending.extend(swaps.map(|(slot, block)| Swap::In { slot: *slot, block: *block }));
        self.num_in += (self.pending.len() - before) as u64;
        self.give_up(swapped);
    }

    /// Frees the places of what is not needed any more.
    pub(crate) fn give_up(&mut self, swapped: Swapped) {
        self.free.extend(swapped.slots);
    }

    /// The copies for a step.
    pub(crate) fn take_pending(&mut self) -> Vec<Swap> {
        std::mem::take(&mut self.pending)
    }

    pub(crate) fn num_used(&self) -> usize {
        self.num_slots - self.free.len()
    }

    /// Verifies that each place is free or has one holder.
    pub(crate) fn check<'a>(&self, held: impl Iterator<Item = &'a Swapped>) -> Result<(), String> {
        let mut is_taken = vec![false; self.num_slots];
        let held = held.flat_map(|swapped| &swapped.slots);
        for slot in self.free.iter().chain(held) {
            if std::mem::replace(&mut is_taken[slot.0 as usize], true) {
                return Err(format!("{slot:?} is in two places"));
            }
        }
        match is_taken.iter().position(|is_taken| !is_taken) {
            Some(slot) => Err(format!("nobody has swap slot {slot}")),
            None => Ok(()),
        }
    }
}
