//! Verifies every invariant of the scheduler's state.

use std::collections::HashMap;

use crate::SeqId;
use crate::scheduler::Scheduler;
use crate::sequence::{Sequence, State};

impl Scheduler {
    /// Verifies all invariants: each block is in exactly one state, references equal holders, tables are long enough,
    /// items in the encoder's cache fit its room, and queues agree with sequences.
    ///
    /// Takes time proportional to all blocks and sequences, and is meant for debug builds and tests.
    ///
    /// # Errors
    /// The first violation found, in words.
    pub fn check(&self) -> Result<(), String> {
        let mut num_holders = vec![0; self.blocks.num_blocks()];
        for (id, seq) in &self.sequences {
            self.check_sequence(*id, seq).map_err(|error| format!("{id:?}: {error}"))?;
            for block in &seq.block_table {
                num_holders[block.index()] += 1;
            }
        }
        for block in self.pins.held() {
            num_holders[block.index()] += 1;
        }
        self.blocks.check(&num_holders)?;
        self.pins.check(self.config.max_pinned_blocks)?;
        self.swap_space.check(self.sequences.values().map(|seq| &seq.swapped))?;
        self.state_slots.check(self.sequences.values().filter_map(|seq| seq.state_slot))?;
        let slots = self.sequences.values().flat_map(|seq| &seq.slots);
        self.encoder.check(slots.map(|held| held.slot))?;
        let mut num_running = HashMap::new();
        for (.., id) in &self.running {
            *num_running.entry(self.sequences[id].caller).or_insert(0) += 1;
        }
        self.callers.check(&num_running)?;
        if self.running.len() + self.callers.num_waiting() != self.sequences.len() {
            return Err("the queues name sequences which do not exist".into());
        }
        if self.running.len() > self.config.max_num_seqs {
            return Err(format!("{} sequences run", self.running.len()));
        }
        for (sibling, first) in &self.reserved {
            let is_named =
                self.sequences.get(first).is_some_and(|seq| seq.siblings.contains(sibling));
            if !is_named || self.sequences.contains_key(sibling) {
                return Err(format!("{sibling:?} does not wait for {first:?}"));
            }
        }
        Ok(())
    }

    /// A sequence that runs holds the next items that it needs, and all but the last of them are complete.
    fn check_items(&self, seq: &Sequence) -> Result<(), String> {
        if seq.symbols.len() != seq.tokens.len() {
            return Err(format!("{} tokens, {} symbols", seq.tokens.len(), seq.symbols.len()));
        }
        if let Some(item) = seq.items.whole_around(seq.num_computed_tokens) {
            return Err(format!("an item at {} is cut at {}", item.start, seq.num_computed_tokens));
        }
        if !seq.slots.is_empty() && (seq.state != State::Running || seq.is_held) {
            return Err(format!("is {:?} and holds items", seq.state));
        }
        let next = seq.items.first_after(seq.num_computed_tokens);
        for (index, held) in seq.slots.iter().enumerate() {
            let is_last = index + 1 == seq.slots.len();
            if held.item != next + index || !(is_last || self.encoder.is_complete(held.slot)) {
                return Err(format!("holds item {} at {index} after {next}", held.item));
            }
        }
        Ok(())
    }

    fn check_sequence(&self, id: SeqId, seq: &Sequence) -> Result<(), String> {
        let is_queued = match seq.state {
            State::Running => self.running.contains(&seq.running_key()),
            State::Waiting(turn) => {
                self.callers.waiting(seq.caller).contains(&seq.waiting_key(turn))
            }
        };
        self.check_items(seq)?;
        let num_held = seq.block_table.len();
        let is_table_fit = match seq.state {
            State::Running => num_held >= self.blocks.blocks_for(seq.num_computed_tokens),
            State::Waiting(_) => num_held == 0 && seq.num_computed_tokens == 0,
        };
        let has_state = seq.state == State::Running && self.state_slots.are_needed();
        if seq.state_slot.is_some() != has_state {
            return Err(format!("is {:?} with {:?}", seq.state, seq.state_slot));
        }
        let is_swapped_fit = match seq.state {
            State::Running => seq.swapped.slots.is_empty(),
            State::Waiting(_) => {
                seq.swapped.slots.len() == self.blocks.blocks_for(seq.swapped.num_tokens)
            }
        };
        if !is_queued || seq.id != id {
            return Err(format!("is not queued as {:?}", seq.state));
        }
        if !is_swapped_fit {
            return Err(format!("is {:?} with {:?}", seq.state, seq.swapped));
        }
        if !is_table_fit {
            return Err(format!(
                "is {:?} with {num_held} blocks for {} tokens",
                seq.state, seq.num_computed_tokens
            ));
        }
        if seq.num_computed_tokens > seq.num_target_tokens() {
            return Err(format!(
                "computed {} of {} tokens",
                seq.num_computed_tokens,
                seq.num_target_tokens()
            ));
        }
        if seq.num_pending > self.in_flight.len() {
            return Err(format!(
                "{} tokens are unknown in {} steps",
                seq.num_pending,
                self.in_flight.len()
            ));
        }
        if seq.prefix_chain.num_blocks > num_held {
            return Err(format!(
                "{} of {num_held} blocks are committed",
                seq.prefix_chain.num_blocks
            ));
        }
        Ok(())
    }
}
