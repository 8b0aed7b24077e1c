//! Owns the KV blocks: the free ones, the number of sequences that hold each, and those that can be found by content.

use crate::lru::LruList;
use crate::prefix_cache::{CacheRoot, Parent, PrefixCache};
use crate::state_slots::KeptState;
use crate::symbol::Symbol;
use crate::{BlockId, CallerId};

/// Every block is in exactly one of three states. It is held by sequences (its reference count), or on the free list,
/// or evictable. An evictable block is held by no sequence, but can be found by content until its memory is needed.
pub(crate) struct BlockManager {
    block_size: usize,
    ref_counts: Vec<u32>,
    free: Vec<BlockId>,
    evictable: LruList,
    prefix_cache: Option<PrefixCache>,
}

/// The blocks at the start of a sequence that are in the prefix cache.
#[derive(Clone, Debug)]
pub(crate) struct PrefixChain {
    pub(crate) num_blocks: usize,
    parent: Parent,
    /// The sequence's caller.
    caller: CallerId,
}

impl PrefixChain {
    pub(crate) fn new(root: CacheRoot, caller: CallerId) -> Self {
        Self { num_blocks: 0, parent: Parent::Root(root), caller }
    }

    pub(crate) fn caller(&self) -> CallerId {
        self.caller
    }

    /// Key under which the cache has the blocks after the chain.
    pub(crate) fn parent(&self) -> &Parent {
        &self.parent
    }
}

impl BlockManager {
    pub(crate) fn new(
        num_blocks: u32,
        block_size: usize,
        prefix_cache: Option<PrefixCache>,
    ) -> Self {
        Self {
            block_size,
            ref_counts: vec![0; num_blocks as usize],
            free: (0..num_blocks).rev().map(BlockId).collect(),
            evictable: LruList::new(num_blocks),
            prefix_cache,
        }
    }

    /// Allocates a block for one holder. Evicts the least recently used cached block if none is free.
    pub(crate) fn allocate(&mut self) -> Option<BlockId> {
        let block = self.free.pop().or_else(|| self.evict())?;
        self.ref_counts[block.index()] = 1;
        Some(block)
    }

    /// Adds a holder to a block that is held or cached.
    pub(crate) fn share(&mut self, block: BlockId) {
        let ref_count = &mut self.ref_counts[block.index()];
        *ref_count += 1;
        if *ref_count == 1 {
            self.evictable.remove(block);
        }
    }

    /// Removes one holder from each block of a table, the last block first. So a block is evicted before its
    /// predecessors, without which it could not be found.
    pub(crate) fn release(&mut self, block_table: Vec<BlockId>) {
        for block in block_table.into_iter().rev() {
            self.release_one(block);
        }
    }

    /// Gives one of several holders of `block` a block of its own to write to. The caller must copy the contents.
    pub(crate) fn copy_on_write(&mut self, block: BlockId) -> Option<BlockId> {
        let copy = self.allocate()?;
        self.release_one(block);
        Some(copy)
    }

    pub(crate) fn ref_count(&self, block: BlockId) -> u32 {
        self.ref_counts[block.index()]
    }

    pub(crate) fn num_blocks(&self) -> usize {
        self.ref_counts.len()
    }

    /// Number of blocks that `allocate` can return, evictable ones included.
    pub(crate) fn num_free(&self) -> usize {
        self.free.len() + self.evictable.len()
    }

    /// Number of blocks that can be found by content, held or not.
    pub(crate) fn num_cached(&self) -> usize {
        self.prefix_cache.as_ref().map_or(0, PrefixCache::len)
    }

    /// Number of blocks that hold `num_tokens` tokens.
    pub(crate) fn blocks_for(&self, num_tokens: usize) -> usize {
        num_tokens.div_ceil(self.block_size)
    }

    /// Extends `chain` by the cached blocks that hold the longest prefix of `tokens` in whole blocks. Returns these
    /// blocks, without holding them.
    pub(crate) fn find_prefix(&self, chain: &mut PrefixChain, tokens: &[Symbol]) -> Vec<BlockId> {
        let mut blocks = Vec::new();
        let Some(cache) = &self.prefix_cache else { return blocks };
        for block_tokens in tokens.chunks_exact(self.block_size).skip(chain.num_blocks) {
            let Some((block, node)) = cache.find(&chain.parent, block_tokens) else { break };
            blocks.push(block);
            chain.parent = node;
            chain.num_blocks += 1;
        }
        blocks
    }

    /// Adds the full blocks of `tokens` to the prefix cache. All tokens are computed in `block_table`.
    pub(crate) fn register(
        &mut self,
        chain: &mut PrefixChain,
        tokens: &[Symbol],
        block_table: &[BlockId],
    ) {
        let Some(cache) = &mut self.prefix_cache else { return };
        let blocks = tokens.chunks_exact(self.block_size).zip(block_table).skip(chain.num_blocks);
        for (block_tokens, block) in blocks {
            chain.parent = cache.insert(&chain.parent, chain.caller, block_tokens, *block);
            chain.num_blocks += 1;
        }
    }

    /// A block of the same caller after those of `chain` that has some of the first tokens of `rest` in common, and
    /// their number. The block belongs to another sequence, so its content must be copied.
    pub(crate) fn find_partial_block(
        &self,
        chain: &PrefixChain,
        rest: &[Symbol],
    ) -> Option<(BlockId, usize)> {
        self.prefix_cache.as_ref()?.find_partial_block(&chain.parent, chain.caller, rest)
    }

    /// Adds all blocks of `tokens` to the prefix cache, the last one even if it is not full. It is for a sequence
    /// that ends, since nothing can follow such a block.
    pub(crate) fn register_all(
        &mut self,
        chain: &mut PrefixChain,
        tokens: &[Symbol],
        block_table: &[BlockId],
    ) {
        self.register(chain, tokens, block_table);
        let rest = &tokens[tokens.len() / self.block_size * self.block_size..];
        let Some(cache) = &mut self.prefix_cache else { return };
        let is_known = cache
            .find_partial_block(&chain.parent, chain.caller, rest)
            .is_some_and(|(_, num_common)| num_common == rest.len());
        if !rest.is_empty() && !is_known {
            let block = block_table[chain.num_blocks];
            cache.insert_end(&chain.parent, chain.caller, rest, block);
        }
    }

    /// Key of the state of a sequence that has computed exactly `tokens`, whose full blocks are in `chain`. Returns
    /// `None` without a prefix cache.
    pub(crate) fn end_of(&self, chain: &PrefixChain, tokens: &[Symbol]) -> Option<KeptState> {
        if self.prefix_cache.is_none() || tokens.is_empty() {
            return None;
        }
        Some(KeptState::new(chain, &tokens[chain.num_blocks * self.block_size..]))
    }

    /// Marks a cached block as used now.
    pub(crate) fn touch(&mut self, block: BlockId) {
        if self.evictable.contains(block) {
            self.evictable.remove(block);
            self.evictable.push(block);
        }
    }

    /// Verifies that each block is in exactly one state. `num_holders[block]` counts the sequences that hold it.
    pub(crate) fn check(&self, num_holders: &[u32]) -> Result<(), String> {
        let mut is_free = vec![false; self.num_blocks()];
        for block in &self.free {
            if std::mem::replace(&mut is_free[block.index()], true) {
                return Err(format!("{block:?} is twice on the free list"));
            }
        }
        let mut num_used = 0;
        for (index, ref_count) in self.ref_counts.iter().enumerate() {
            let block = BlockId(index as u32);
            let is_cached = self.prefix_cache.as_ref().is_some_and(|cache| cache.contains(block));
            let is_evictable = self.evictable.contains(block);
            if *ref_count != num_holders[index] {
                return Err(format!(
                    "{block:?} counts {ref_count} references for {} holders",
                    num_holders[index]
                ));
            }
            if usize::from(*ref_count > 0) + usize::from(is_free[index]) + usize::from(is_evictable)
                != 1
            {
                return Err(format!("{block:?} is not in exactly one place"));
            }
            if (is_free[index] && is_cached) || (is_evictable && !is_cached) {
                return Err(format!("{block:?} is free but cached, or evictable but not cached"));
            }
            num_used += usize::from(*ref_count > 0);
        }
        if self.free.len() + num_used + self.evictable.len() != self.num_blocks() {
            return Err(format!("free + used + cached is not {}", self.num_blocks()));
        }
        self.prefix_cache.as_ref().map_or(Ok(()), PrefixCache::check)
    }

    fn release_one(&mut self, block: BlockId) {
        let ref_count = &mut self.ref_counts[block.index()];
        *ref_count -= 1;
        if *ref_count > 0 {
            return;
        }
        if self.prefix_cache.as_ref().is_some_and(|cache| cache.contains(block)) {
            self.evictable.push(block);
        } else {
            self.free.push(block);
        }
    }

    fn evict(&mut self) -> Option<BlockId> {
        let block = self.evictable.pop()?;
        self.prefix_cache.as_mut().expect("only cached blocks are evictable").remove(block);
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbol::tests::text;

    fn no_blocks() -> PrefixChain {
        PrefixChain::new(CacheRoot { scope: None, salt: None }, CallerId(0))
    }

    fn manager(num_blocks: u32) -> BlockManager {
        BlockManager::new(num_blocks, 2, Some(PrefixCache::default()))
    }

    fn allocate(manager: &mut BlockManager, count: usize) -> Vec<BlockId> {
        (0..count).map(|_| manager.allocate().unwrap()).collect()
    }

    #[test]
    fn blocks_run_out_and_come_back() {
        let mut blocks = manager(3);
        let table = allocate(&mut blocks, 3);
        assert_eq!(blocks.allocate(), None);
        blocks.check(&[1, 1, 1]).unwrap();
        blocks.release(table);
        assert_eq!(blocks.num_free(), 3);
        blocks.check(&[0, 0, 0]).unwrap();
        assert!(blocks.check(&[1, 0, 0]).is_err());
    }

    #[test]
    fn released_blocks_are_found_again_until_evicted_from_the_tail() {
        let mut blocks = manager(3);
        let tokens = text([1, 2, 3, 4, 5, 6]);
        let table = allocate(&mut blocks, 3);
        blocks.register(&mut no_blocks(), &tokens, &table);
        blocks.release(table.clone());
        assert_eq!((blocks.num_free(), blocks.num_cached()), (3, 3));

        let taken = blocks.allocate().unwrap();
        assert_eq!(taken, table[2], "the tail is evicted first");
        let mut chain = no_blocks();
        assert_eq!(blocks.find_prefix(&mut chain, &tokens), table[..2]);
        assert_eq!(chain.num_blocks, 2);
        assert_eq!(
            blocks.find_prefix(&mut no_blocks(), &tokens[..3]),
            table[..1],
            "full blocks only"
        );
        blocks.share(table[0]);
        assert_eq!(blocks.num_free(), 1);
        blocks.release(vec![table[0], taken]);
        blocks.check(&[0, 0, 0]).unwrap();
    }

    #[test]
    fn copy_on_write_leaves_the_original_to_the_other_holder() {
        let mut blocks = manager(2);
        let shared = blocks.allocate().unwrap();
        blocks.share(shared);
        let copy = blocks.copy_on_write(shared).unwrap();
        assert_ne!(copy, shared);
        assert_eq!((blocks.ref_count(shared), blocks.ref_count(copy)), (1, 1));
        blocks.share(shared);
        assert_eq!(blocks.copy_on_write(shared), None);
        assert_eq!(blocks.ref_count(shared), 2, "a refused copy changes nothing");
    }

    #[test]
    fn without_a_prefix_cache_nothing_is_found() {
        let mut blocks = BlockManager::new(2, 2, None);
        let table = allocate(&mut blocks, 1);
        blocks.register(&mut no_blocks(), &text([1, 2]), &table);
        assert!(blocks.find_prefix(&mut no_blocks(), &text([1, 2])).is_empty());
        blocks.release(table);
        blocks.check(&[0, 0]).unwrap();
    }
}
