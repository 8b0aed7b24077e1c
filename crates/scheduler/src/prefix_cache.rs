//! Finds blocks by content. The tokens in a block and all tokens before it are compared exactly.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::symbol::Symbol;
use crate::{BlockId, CallerId, PrefixCacheScope};

/// An exact map from what precedes a block and the block's tokens to the block that holds them.
///
/// Each cached block is a node with a number that is never reused. A child stores its parent's number. So equal keys
/// mean equal token sequences from the start, and nothing is compared by hash alone. If a parent is evicted before
/// its child, the child can merely no longer be found.
///
/// Full blocks are shared among all callers of a root. The prefix of a block can be copied only by the caller that
/// computed it, since a caller could otherwise guess the tokens of others one by one. The last block of a sequence
/// may be cached before it is full, and nothing follows such a block.
#[derive(Default)]
pub(crate) struct PrefixCache {
    /// The full blocks after each parent.
    children: HashMap<Parent, HashMap<Arc<[Symbol]>, Node>>,
    /// All blocks. Those of one caller after one parent are neighbours.
    by_caller: BTreeMap<Key, BlockId>,
    keys: HashMap<BlockId, Key>,
    next_node: u64,
}

/// Root of block tables. Sequences with different roots never share blocks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CacheRoot {
    /// The one caller that shares blocks with itself alone; `None` if all callers share.
    pub(crate) scope: Option<CallerId>,
    pub(crate) salt: Option<Arc<str>>,
}

impl CacheRoot {
    pub(crate) fn new(scope: PrefixCacheScope, caller: CallerId, salt: Option<Arc<str>>) -> Self {
        let scope = match scope {
            PrefixCacheScope::Server => None,
            PrefixCacheScope::Caller => Some(caller),
        };
        Self { scope, salt }
    }
}

/// The node or root that precedes a block.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Parent {
    /// The block is the first of its sequence.
    Root(CacheRoot),
    /// The node with this number.
    Node(u64),
}

/// Content of a block, and the caller that computed it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    parent: Parent,
    caller: CallerId,
    tokens: Arc<[Symbol]>,
}

#[derive(Clone, Copy)]
struct Node {
    id: u64,
    block: BlockId,
}

impl PrefixCache {
    /// The full block that holds `tokens` after `parent`, and the key under which its successors are found.
    pub(crate) fn find(&self, parent: &Parent, tokens: &[Symbol]) -> Option<(BlockId, Parent)> {
        let node = self.children.get(parent)?.get(tokens)?;
        Some((node.block, Parent::Node(node.id)))
    }

    /// The caller's block after `parent` that has the most first tokens of `tokens` in common, and their number: at
    /// least one.
    pub(crate) fn find_partial_block(
        &self,
        parent: &Parent,
        caller: CallerId,
        tokens: &[Symbol],
    ) -> Option<(BlockId, usize)> {
        let key = Key { parent: parent.clone(), caller, tokens: tokens.into() };
        // In lexicographic order, the neighbours of `tokens` have the most first tokens in common with it.
        let before = self.by_caller.range(..&key).next_back();
        let neighbours = before.into_iter().chain(self.by_caller.range(&key..).next());
        let found = neighbours
            .filter(|(found, _)| found.parent == *parent && found.caller == caller)
            .map(|(found, block)| (num_common(&found.tokens, tokens), *block));
        found
            .max_by_key(|(common, _)| *common)
            .filter(|(common, _)| *common > 0)
            .map(|(common, block)| (block, common))
    }

    /// Records that the caller's `block` is full of `tokens` after `parent`, unless another block with this content
    /// is known. Returns the parent of its successors.
    pub(crate) fn insert(
        &mut self,
        parent: &Parent,
        caller: CallerId,
        tokens: &[Symbol],
        block: BlockId,
    ) -> Parent {
        if let Some((_, node)) = self.find(parent, tokens) {
            return node;
        }
        let key = self.record(parent, caller, tokens, block);
        let node = Node { id: self.next_node, block };
        self.next_node += 1;
        self.children.entry(key.parent).or_default().insert(key.tokens, node);
        Parent::Node(node.id)
    }

    /// Records that the caller's `block` begins with `tokens` after `parent`. Such a block must not be known yet.
    pub(crate) fn insert_end(
        &mut self,
        parent: &Parent,
        caller: CallerId,
        tokens: &[Symbol],
        block: BlockId,
    ) {
        self.record(parent, caller, tokens, block);
    }

    fn record(
        &mut self,
        parent: &Parent,
        caller: CallerId,
        tokens: &[Symbol],
        block: BlockId,
    ) -> Key {
        // A block whose parent was evicted and recorded anew is unreachable under its old key.
        self.remove(block);
        let key = Key { parent: parent.clone(), caller, tokens: tokens.into() };
        self.keys.insert(block, key.clone());
        self.by_caller.insert(key.clone(), block);
        key
    }

    /// Removes a block, if it is known.
    pub(crate) fn remove(&mut self, block: BlockId) {
        let Some(key) = self.keys.remove(&block) else { return };
        self.by_caller.remove(&key);
        let Some(siblings) = self.children.get_mut(&key.parent) else { return };
        if siblings.get(&key.tokens).is_some_and(|node| node.block == block) {
            siblings.remove(&key.tokens);
        }
        if siblings.is_empty() {
            self.children.remove(&key.parent);
        }
    }

    pub(crate) fn contains(&self, block: BlockId) -> bool {
        self.keys.contains_key(&block)
    }

    /// Number of known blocks.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Verifies that the maps describe the same blocks.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.by_caller.len() != self.keys.len() {
            let (num_keys, num_blocks) = (self.by_caller.len(), self.keys.len());
            return Err(format!("the prefix cache has {num_keys} keys for {num_blocks} blocks"));
        }
        for (block, key) in &self.keys {
            if self.by_caller.get(key) != Some(block) {
                return Err(format!("the key of cached {block:?} leads elsewhere"));
            }
        }
        for (parent, siblings) in &self.children {
            for (tokens, node) in siblings {
                let key = self.keys.get(&node.block);
                if key.is_none_or(|key| key.parent != *parent || key.tokens != *tokens) {
                    return Err(format!("full {:?} has another key", node.block));
                }
            }
        }
        Ok(())
    }
}

/// Number of first tokens that two sequences have in common.
pub(crate) fn num_common(a: &[Symbol], b: &[Symbol]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbol::tests::text;

    const CALLER: CallerId = CallerId(1);

    fn root(salt: Option<&str>) -> Parent {
        Parent::Root(CacheRoot { scope: None, salt: salt.map(Into::into) })
    }

    #[test]
    fn equal_tokens_after_different_prefixes_or_salts_are_different() {
        let mut cache = PrefixCache::default();
        let a = cache.insert(&root(None), CALLER, &text([1, 2]), BlockId(0));
        let b = cache.insert(&root(None), CALLER, &text([3, 4]), BlockId(1));
        cache.insert(&a, CALLER, &text([5, 6]), BlockId(2));
        assert_eq!(cache.find(&a, &text([5, 6])).map(|found| found.0), Some(BlockId(2)));
        assert_eq!(cache.find(&b, &text([5, 6])), None);
        assert_eq!(cache.find(&root(None), &text([5, 6])), None);
        assert_eq!(cache.find(&root(Some("tenant")), &text([1, 2])), None);
        cache.insert(&root(Some("tenant")), CALLER, &text([1, 2]), BlockId(3));
        assert_eq!(
            cache.find(&root(Some("tenant")), &text([1, 2])).map(|found| found.0),
            Some(BlockId(3))
        );
        cache.check().unwrap();
    }

    #[test]
    fn the_first_block_with_some_content_stays() {
        let mut cache = PrefixCache::default();
        let first = cache.insert(&root(None), CALLER, &text([1, 2]), BlockId(0));
        assert_eq!(cache.insert(&root(None), CALLER, &text([1, 2]), BlockId(1)), first);
        assert!(cache.contains(BlockId(0)) && !cache.contains(BlockId(1)));
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn the_block_with_the_most_in_common_is_found_among_its_siblings() {
        let mut cache = PrefixCache::default();
        let blocks = [&[1, 2, 3, 4][..], &[1, 2, 9], &[1, 3], &[7, 7, 7, 7]];
        for (block, tokens) in (0..).map(BlockId).zip(blocks) {
            let tokens: Vec<_> = tokens.iter().map(|token| Symbol::text(*token)).collect();
            cache.insert(&root(None), CALLER, &tokens, block);
        }
        let find = |tokens: &[u32]| {
            let tokens: Vec<_> = tokens.iter().map(|token| Symbol::text(*token)).collect();
            cache.find_partial_block(&root(None), CALLER, &tokens)
        };
        assert_eq!(find(&[1, 2, 3, 5]), Some((BlockId(0), 3)));
        assert_eq!(find(&[1, 2, 9, 1]), Some((BlockId(1), 3)));
        assert_eq!(find(&[1, 3]), Some((BlockId(2), 2)));
        assert_eq!(find(&[7, 7]), Some((BlockId(3), 2)));
        assert_eq!(find(&[8]), None);
        assert_eq!(find(&[]), None);
        assert_eq!(cache.find_partial_block(&root(Some("tenant")), CALLER, &text([1])), None);
    }

    #[test]
    fn callers_share_full_blocks_and_no_part_of_one() {
        let (a, b) = (CallerId(1), CallerId(2));
        let mut cache = PrefixCache::default();
        let node = cache.insert(&root(None), a, &text([1, 2, 3, 4]), BlockId(0));
        assert_eq!(cache.insert(&root(None), b, &text([1, 2, 3, 4]), BlockId(1)), node);
        cache.insert_end(&node, a, &text([5, 6]), BlockId(2));
        cache.insert_end(&node, b, &text([5, 6]), BlockId(3));
        cache.insert_end(&root(None), b, &text([1, 9]), BlockId(4));
        assert_eq!(
            cache.find_partial_block(&root(None), a, &text([1, 2, 9])),
            Some((BlockId(0), 2))
        );
        assert_eq!(
            cache.find_partial_block(&root(None), b, &text([1, 2, 9])),
            Some((BlockId(4), 1))
        );
        assert_eq!(cache.find_partial_block(&node, a, &text([5, 7])), Some((BlockId(2), 1)));
        assert_eq!(cache.find_partial_block(&node, b, &text([5, 7])), Some((BlockId(3), 1)));
        assert_eq!(cache.find_partial_block(&node, CallerId(3), &text([5, 6])), None);
        assert_eq!(cache.len(), 4);
        cache.check().unwrap();
        (0..5).for_each(|block| cache.remove(BlockId(block)));
        assert!(cache.children.is_empty() && cache.by_caller.is_empty());
    }

    #[test]
    fn a_child_of_an_evicted_parent_is_not_found_and_can_be_recorded_anew() {
        let mut cache = PrefixCache::default();
        let old = cache.insert(&root(None), CALLER, &text([1, 2]), BlockId(0));
        cache.insert(&old, CALLER, &text([3, 4]), BlockId(1));
        cache.remove(BlockId(0));
        let new = cache.insert(&root(None), CALLER, &text([1, 2]), BlockId(2));
        assert_ne!(old, new);
        assert_eq!(cache.find(&new, &text([3, 4])), None);
        cache.insert(&new, CALLER, &text([3, 4]), BlockId(1));
        assert_eq!(cache.find(&new, &text([3, 4])).map(|found| found.0), Some(BlockId(1)));
        cache.check().unwrap();
        cache.remove(BlockId(1));
        cache.remove(BlockId(2));
        assert!(cache.children.is_empty());
    }
}
