//! A list of blocks from the least to the most recently used, with every operation in constant time.

use crate::BlockId;

/// A circular doubly linked list in two arrays. Index `num_blocks` is the anchor between the newest and the oldest
/// element. An element that is linked to itself is not in the list.
pub(crate) struct LruList {
    next: Vec<u32>,
    prev: Vec<u32>,
    len: usize,
}

impl LruList {
    pub(crate) fn new(num_blocks: u32) -> Self {
        Self { next: (0..=num_blocks).collect(), prev: (0..=num_blocks).collect(), len: 0 }
    }

    /// Adds a block as the most recently used; it must not be in the list.
    pub(crate) fn push(&mut self, block: BlockId) {
        debug_assert!(!self.contains(block));
        let anchor = self.anchor();
        let last = self.prev[anchor as usize];
        self.link(last, block.0);
        self.link(block.0, anchor);
        self.len += 1;
    }

    /// Removes and returns the least recently used block.
    pub(crate) fn pop(&mut self) -> Option<BlockId> {
        let oldest = self.next[self.anchor() as usize];
        (oldest != self.anchor()).then(|| {
            self.remove(BlockId(oldest));
            BlockId(oldest)
        })
    }

    /// Removes a block, which must be in the list.
    pub(crate) fn remove(&mut self, block: BlockId) {
        debug_assert!(self.contains(block));
        self.link(self.prev[block.index()], self.next[block.index()]);
        self.link(block.0, block.0);
        self.len -= 1;
    }

    pub(crate) fn contains(&self, block: BlockId) -> bool {
        self.next[block.index()] != block.0
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn anchor(&self) -> u32 {
        self.next.len() as u32 - 1
    }

    fn link(&mut self, before: u32, after: u32) {
        self.next[before as usize] = after;
        self.prev[after as usize] = before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leaves_first_and_any_may_be_taken_out() {
        let mut list = LruList::new(4);
        assert_eq!(list.pop(), None);
        for block in [2, 0, 3, 1] {
            list.push(BlockId(block));
        }
        list.remove(BlockId(0));
        assert!(!list.contains(BlockId(0)) && list.contains(BlockId(3)));
        list.push(BlockId(0));
        assert_eq!(list.len(), 4);
        let order: Vec<_> = std::iter::from_fn(|| list.pop()).map(|block| block.0).collect();
        assert_eq!(order, [2, 3, 1, 0]);
        assert_eq!(list.len(), 0);
    }
}
