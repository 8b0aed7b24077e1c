//! A naive KV cache and naive recurrent states: the content of each slot after executing steps literally.

use std::collections::{HashMap, HashSet};

use candlepower_scheduler::{
    BlockId, CallerId, PrefixCacheScope, SchedulerConfig, SeqId, StateSlot, Step, StepRow, Swap,
    SwapSlot,
};

/// Content of a slot: a digest of the salt and all tokens up to and including its position. Keys and values depend on
/// exactly these. So equal digests mean that the slot may be shared.
pub(crate) type Content = u64;

/// A slot's content and the caller that computed it.
type Slot = (Content, CallerId);

/// `[num_blocks][block_size]` slots; `None` until written.
pub(crate) struct Memory {
    slots: Vec<Vec<Option<Slot>>>,
    block_size: usize,
    scope: PrefixCacheScope,
    /// Blocks in host memory.
    host: HashMap<SwapSlot, Vec<Option<Slot>>>,
    /// Blocks that were swapped in, and are not in any row yet.
    swapped_in: HashSet<BlockId>,
    /// Recurrent states. A state has the content of the last computed position.
    states: HashMap<StateSlot, Content>,
    num_state_slots: usize,
}

impl Memory {
    pub(crate) fn new(config: &SchedulerConfig) -> Self {
        let slots = vec![vec![None; config.block_size]; config.num_blocks];
        Self {
            slots,
            block_size: config.block_size,
            scope: config.prefix_cache_scope,
            host: HashMap::new(),
            swapped_in: HashSet::new(),
            states: HashMap::new(),
            num_state_slots: config.num_state_slots,
        }
    }

    /// Executes the swaps and copies of a step and writes its rows. `contents(row)` are the contents of all positions
    /// up to the row's end, and `caller(sequence)` is the sequence's caller.
    ///
    /// Everything that a row reads must be right both before and after all rows have written, so that the order of
    /// rows cannot matter.
    pub(crate) fn execute<'a>(
        &mut self,
        step: &Step,
        contents: impl Fn(&StepRow) -> &'a [Content],
        caller: impl Fn(SeqId) -> CallerId,
    ) {
        self.swap(step);
        self.copy(step);
        for row in &step.rows {
            self.own_swapped_in(row, caller(row.seq));
        }
        self.advance_states(step, &contents);
        for row in &step.rows {
            self.assert_holds(row, &contents(row)[..row.first_position as usize]);
            self.assert_may_read(row, caller(row.seq));
        }
        let mut written = HashSet::new();
        for row in &step.rows {
            let contents = contents(row);
            assert_eq!(
                row.block_table.len(),
                contents.len().div_ceil(self.block_size),
                "blocks of {row:?}"
            );
            for (position, content) in contents.iter().enumerate().skip(row.first_position as usize)
            {
                let (block, offset) = self.slot(row, position);
                assert!(
                    written.insert((block, offset)),
                    "{block:?}, slot {offset} is written twice in a step"
                );
                self.slots[block.index()][offset] = Some((*content, caller(row.seq)));
            }
        }
        for row in &step.rows {
            self.assert_holds(row, contents(row));
        }
    }

    fn swap(&mut self, step: &Step) {
        for swap in &step.swaps {
            match *swap {
                Swap::Out { block, slot } => {
                    self.host.insert(slot, self.slots[block.index()].clone());
                }
                Swap::In { slot, block } => {
                    let brought_out = self.host.get(&slot).expect("it was brought out before");
                    self.slots[block.index()].clone_from(brought_out);
                    self.swapped_in.insert(block);
                }
            }
        }
    }

    /// A block that was swapped in is the caller's own, though another caller may have computed the block that was swapped out. The
    /// caller shared that as a whole, so it has all tokens of it.
    fn own_swapped_in(&mut self, row: &StepRow, caller: CallerId) {
        for block in &row.block_table {
            if self.swapped_in.remove(block) {
                let slots = self.slots[block.index()].iter_mut().flatten();
                slots.for_each(|(_, computed_by)| *computed_by = caller);
            }
        }
    }

    fn copy(&mut self, step: &Step) {
        let sources: HashSet<_> = step.copies.iter().map(|copy| copy.src).collect();
        let mut destinations = HashSet::new();
        for copy in &step.copies {
            assert!(
                !sources.contains(&copy.dst) && destinations.insert(copy.dst),
                "copies clash: {:?}",
                step.copies
            );
            self.slots[copy.dst.index()] = self.slots[copy.src.index()].clone();
        }
    }

    fn advance_states<'a>(&mut self, step: &Step, contents: impl Fn(&StepRow) -> &'a [Content]) {
        if self.num_state_slots == 0 {
            assert!(step.state_copies.is_empty());
            return assert!(step.rows.iter().all(|row| row.state_slot.is_none()));
        }
        let places: HashSet<_> = step.rows.iter().map(|row| row.state_slot).collect();
        assert_eq!(places.len(), step.rows.len(), "two rows have one state: {step:?}");
        let sources: HashSet<_> = step.state_copies.iter().map(|copy| copy.src).collect();
        let destinations: HashSet<_> = step.state_copies.iter().map(|copy| copy.dst).collect();
        assert_eq!(destinations.len(), step.state_copies.len(), "states clash: {step:?}");
        assert!(sources.is_disjoint(&destinations), "states clash: {step:?}");
        for copy in &step.state_copies {
            self.states.insert(copy.dst, self.states[&copy.src]);
        }
        for row in &step.rows {
            let (contents, slot) = (contents(row), row.state_slot.expect("rows have states"));
            assert!((slot.0 as usize) < self.num_state_slots);
            if let Some(last) = (row.first_position as usize).checked_sub(1) {
                assert_eq!(self.states.get(&slot), Some(&contents[last]), "state of {row:?}");
            }
            self.states.insert(slot, contents[contents.len() - 1]);
        }
    }

    fn assert_holds(&self, row: &StepRow, contents: &[Content]) {
        for (position, content) in contents.iter().enumerate() {
            let (block, offset) = self.slot(row, position);
            let found = self.slots[block.index()][offset];
            let found = found.map(|(content, _)| content);
            assert_eq!(found, Some(*content), "{block:?}, position {position} of {row:?}");
        }
    }

    /// Asserts that the block in which the row continues begins with tokens computed by its own caller. If callers
    /// share no blocks, this holds for all of its blocks.
    fn assert_may_read(&self, row: &StepRow, caller: CallerId) {
        let end = row.first_position as usize;
        let start = match self.scope {
            PrefixCacheScope::Server => end / self.block_size * self.block_size,
            PrefixCacheScope::Caller => 0,
        };
        for position in start..end {
            let (block, offset) = self.slot(row, position);
            let found = self.slots[block.index()][offset].map(|(_, caller)| caller);
            assert_eq!(found, Some(caller), "{block:?}, position {position} of {row:?}");
        }
    }

    fn slot(&self, row: &StepRow, position: usize) -> (BlockId, usize) {
        (row.block_table[position / self.block_size], position % self.block_size)
    }
}

/// The content of a position, from that of the position before it (or of the salt) and its token.
pub(crate) fn content(previous: Content, token: u32) -> Content {
    // The finaliser of splitmix64.
    let mut x = previous.wrapping_add(u64::from(token) + 1).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
