//! Pins: computed prefixes that are kept for later, as long as no sequence needs their blocks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::block_manager::PrefixChain;
use crate::prefix_cache::CacheRoot;
use crate::prompt_items::PromptItems;
use crate::scheduler::Scheduler;
use crate::{BlockId, CallerId, Item};

/// Identifies a pin. Ids are never reused and increase with time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PinId(pub u64);

/// The blocks of each pin, the oldest pin first.
#[derive(Default)]
pub(crate) struct Pins {
    blocks: BTreeMap<PinId, Vec<BlockId>>,
    /// Number of pins that hold each block.
    num_holders: HashMap<BlockId, u32>,
    next_pin: u64,
}

impl Scheduler {
    /// Keeps the cached prefix of `tokens`, with the items in it, for a caller, until [`unpin`](Self::unpin) or until a
    /// sequence needs the memory. Embeddings are not kept, since the blocks need none. Pins are given up, the oldest first, before a sequence waits or is preempted. The same happens when
    /// all pins together would hold more than `max_pinned_blocks`.
    pub fn pin(
        &mut self,
        tokens: &[u32],
        items: &[Item],
        caller: CallerId,
        cache_salt: Option<Arc<str>>,
    ) -> PinId {
        let tokens = PromptItems::new(tokens, items, &mut self.item_numbers).symbols(tokens);
        let root = CacheRoot::new(self.config.prefix_cache_scope, caller, cache_salt);
        let mut chain = PrefixChain::new(root, caller);
        let mut found = self.blocks.find_prefix(&mut chain, &tokens);
        let rest = &tokens[found.len() * self.config.block_size..];
        found.extend(self.blocks.find_partial_block(&chain, rest).map(|(block, _)| block));
        found.truncate(self.config.max_pinned_blocks);
        // They are held before other pins are given up, so that shared blocks stay.
        found.iter().for_each(|block| self.blocks.share(*block));
        let id = self.pins.insert(found);
        while self.pins.num_blocks() > self.config.max_pinned_blocks {
            let given_up = self.give_up_oldest_pin();
            debug_assert!(given_up, "the newest one alone is small enough");
        }
        id
    }

    /// Ends a pin. Its blocks can still be found until their memory is needed. Ids of pins that were given up are
    /// ignored.
    pub fn unpin(&mut self, id: PinId) {
        if let Some(blocks) = self.pins.remove(id) {
            self.blocks.release(blocks);
        }
    }

    /// Gives up the oldest pin. Returns false if there is none.
    pub(crate) fn give_up_oldest_pin(&mut self) -> bool {
        let Some(id) = self.pins.oldest() else { return false };
        self.unpin(id);
        true
    }

    /// Whether a block is held by pins alone, or not at all.
    pub(crate) fn is_reclaimable(&self, block: BlockId) -> bool {
        self.blocks.ref_count(block) == self.num_pins(block)
    }

    /// Number of pins that hold a block.
    pub(crate) fn num_pins(&self, block: BlockId) -> u32 {
        self.pins.num_holders.get(&block).copied().unwrap_or(0)
    }

    /// Number of blocks that could be allocated if all pins were given up.
    pub(crate) fn num_free_without_pins(&self) -> usize {
        let pinned = self.pins.num_holders.keys();
        self.blocks.num_free() + pinned.filter(|block| self.is_reclaimable(**block)).count()
    }
}

impl Pins {
    /// Number of blocks that pins hold.
    pub(crate) fn num_blocks(&self) -> usize {
        self.num_holders.len()
    }

    /// The blocks of all pins. A block occurs once for each pin that holds it.
    pub(crate) fn held(&self) -> impl Iterator<Item = BlockId> {
        self.blocks.values().flatten().copied()
    }

    /// Verifies that the counts agree with the pins, and that these do not hold too many blocks.
    pub(crate) fn check(&self, max_blocks: usize) -> Result<(), String> {
        let mut num_holders = HashMap::new();
        for block in self.held() {
            *num_holders.entry(block).or_insert(0) += 1;
        }
        if num_holders != self.num_holders {
            return Err("the pins' blocks are miscounted".into());
        }
        if self.num_blocks() > max_blocks {
            return Err(format!(
                "{} blocks are pinned, at most {max_blocks} may be",
                self.num_blocks()
            ));
        }
        Ok(())
    }

    fn insert(&mut self, blocks: Vec<BlockId>) -> PinId {
        let id = PinId(self.next_pin);
        self.next_pin += 1;
        for block in &blocks {
            *self.num_holders.entry(*block).or_default() += 1;
        }
        self.blocks.insert(id, blocks);
        id
    }

    fn remove(&mut self, id: PinId) -> Option<Vec<BlockId>> {
        let blocks = self.blocks.remove(&id)?;
        for block in &blocks {
            let num_holders =
                self.num_holders.get_mut(block).expect("every pinned block is counted");
            *num_holders -= 1;
            if *num_holders == 0 {
                self.num_holders.remove(block);
            }
        }
        Some(blocks)
    }

    fn oldest(&self) -> Option<PinId> {
        self.blocks.keys().next().copied()
    }
}
