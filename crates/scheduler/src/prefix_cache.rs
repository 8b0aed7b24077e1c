//! Finds blocks by content: the tokens in them and everything before them, compared exactly.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use crate::BlockId;

/// An exact map from (what precedes a block, the block's tokens) to the block which holds them.
///
/// Each cached block is a node with a number that is never used again. A child names its parent's number, so equal
/// keys mean equal token sequences from the start: nothing is compared by hash alone. When a parent is evicted before
/// its child, the child can merely no longer be found.
///
/// The last block of a sequence may be there with fewer tokens than it has room for. Nothing follows such a block; like
/// the beginning of any other one, what is in it can be copied.
#[derive(Default)]
pub(crate) struct PrefixCache {
    children: HashMap<Parent, BTreeMap<Arc<[u32]>, Node>>,
    keys: HashMap<BlockId, NodeKey>,
    next_node: u64,
}

/// What precedes a block.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Parent {
    /// Nothing; prompts with different salts never share.
    Root(Option<Arc<str>>),
    /// The node with this number.
    Node(u64),
}

struct NodeKey {
    parent: Parent,
    tokens: Arc<[u32]>,
}

#[derive(Clone, Copy)]
struct Node {
    id: u64,
    block: BlockId,
}

impl PrefixCache {
    /// The block that holds `tokens` after `parent`, and what to look up its successors with.
    pub(crate) fn find(&self, parent: &Parent, tokens: &[u32]) -> Option<(BlockId, Parent)> {
        let node = self.children.get(parent)?.get(tokens)?;
        Some((node.block, Parent::Node(node.id)))
    }

    /// The block after `parent` that begins with the most of `tokens`, and how many these are: at least one.
    pub(crate) fn find_beginning(
        &self,
        parent: &Parent,
        tokens: &[u32],
    ) -> Option<(BlockId, usize)> {
        let siblings = self.children.get(parent)?;
        // In the order of the alphabet, no other has more in common with `tokens` than those beside it.
        let before =
            siblings.range::<[u32], _>((Bound::Unbounded, Bound::Excluded(tokens))).next_back();
        let after = siblings.range::<[u32], _>((Bound::Included(tokens), Bound::Unbounded)).next();
        let neighbours = before.into_iter().chain(after);
        let found = neighbours.map(|(key, node)| (num_common(key, tokens), node.block));
        found
            .max_by_key(|(common, _)| *common)
            .filter(|(common, _)| *common > 0)
            .map(|(common, block)| (block, common))
    }

    /// Records that `block` holds `tokens` after `parent`, unless another block is known to; returns the parent of its
    /// successors.
    pub(crate) fn insert(&mut self, parent: &Parent, tokens: &[u32], block: BlockId) -> Parent {
        if let Some((_, node)) = self.find(parent, tokens) {
            return node;
        }
        // A block whose parent was evicted and recorded anew is unreachable under its old key.
        self.remove(block);
        let node = Node { id: self.next_node, block };
        self.next_node += 1;
        let tokens: Arc<[u32]> = tokens.into();
        self.keys.insert(block, NodeKey { parent: parent.clone(), tokens: tokens.clone() });
        self.children.entry(parent.clone()).or_default().insert(tokens, node);
        Parent::Node(node.id)
    }

    /// Forgets a block, if it is known.
    pub(crate) fn remove(&mut self, block: BlockId) {
        let Some(key) = self.keys.remove(&block) else { return };
        let siblings = self.children.get_mut(&key.parent).expect("every key is in the map");
        siblings.remove(&key.tokens);
        if siblings.is_empty() {
            self.children.remove(&key.parent);
        }
    }

    pub(crate) fn contains(&self, block: BlockId) -> bool {
        self.keys.contains_key(&block)
    }

    /// Blocks known.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Verifies that the two maps describe the same nodes.
    pub(crate) fn check(&self) -> Result<(), String> {
        let num_nodes: usize = self.children.values().map(BTreeMap::len).sum();
        if num_nodes != self.keys.len() {
            return Err(format!(
                "the prefix cache has {num_nodes} nodes for {} blocks",
                self.keys.len()
            ));
        }
        for (block, key) in &self.keys {
            match self.find(&key.parent, &key.tokens) {
                Some((found, _)) if found == *block => {}
                found => return Err(format!("the key of cached {block:?} leads to {found:?}")),
            }
        }
        Ok(())
    }
}

/// Tokens that two sequences have in common at their beginnings.
pub(crate) fn num_common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(salt: Option<&str>) -> Parent {
        Parent::Root(salt.map(Into::into))
    }

    #[test]
    fn equal_tokens_after_different_prefixes_or_salts_are_different() {
        let mut cache = PrefixCache::default();
        let a = cache.insert(&root(None), &[1, 2], BlockId(0));
        let b = cache.insert(&root(None), &[3, 4], BlockId(1));
        cache.insert(&a, &[5, 6], BlockId(2));
        assert_eq!(cache.find(&a, &[5, 6]).map(|found| found.0), Some(BlockId(2)));
        assert_eq!(cache.find(&b, &[5, 6]), None);
        assert_eq!(cache.find(&root(None), &[5, 6]), None);
        assert_eq!(cache.find(&root(Some("tenant")), &[1, 2]), None);
        cache.insert(&root(Some("tenant")), &[1, 2], BlockId(3));
        assert_eq!(
            cache.find(&root(Some("tenant")), &[1, 2]).map(|found| found.0),
            Some(BlockId(3))
        );
        cache.check().unwrap();
    }

    #[test]
    fn the_first_block_with_some_content_stays() {
        let mut cache = PrefixCache::default();
        let first = cache.insert(&root(None), &[1, 2], BlockId(0));
        assert_eq!(cache.insert(&root(None), &[1, 2], BlockId(1)), first);
        assert!(cache.contains(BlockId(0)) && !cache.contains(BlockId(1)));
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn the_block_with_the_most_in_common_is_found_among_its_siblings() {
        let mut cache = PrefixCache::default();
        let blocks = [&[1, 2, 3, 4][..], &[1, 2, 9], &[1, 3], &[7, 7, 7, 7]];
        for (block, tokens) in (0..).map(BlockId).zip(blocks) {
            cache.insert(&root(None), tokens, block);
        }
        let find = |tokens: &[u32]| cache.find_beginning(&root(None), tokens);
        assert_eq!(find(&[1, 2, 3, 5]), Some((BlockId(0), 3)));
        assert_eq!(find(&[1, 2, 9, 1]), Some((BlockId(1), 3)));
        assert_eq!(find(&[1, 3]), Some((BlockId(2), 2)));
        assert_eq!(find(&[7, 7]), Some((BlockId(3), 2)));
        assert_eq!(find(&[8]), None);
        assert_eq!(find(&[]), None);
        assert_eq!(cache.find_beginning(&root(Some("tenant")), &[1]), None);
    }

    #[test]
    fn a_child_of_an_evicted_parent_is_not_found_and_can_be_recorded_anew() {
        let mut cache = PrefixCache::default();
        let old = cache.insert(&root(None), &[1, 2], BlockId(0));
        cache.insert(&old, &[3, 4], BlockId(1));
        cache.remove(BlockId(0));
        let new = cache.insert(&root(None), &[1, 2], BlockId(2));
        assert_ne!(old, new);
        assert_eq!(cache.find(&new, &[3, 4]), None);
        cache.insert(&new, &[3, 4], BlockId(1));
        assert_eq!(cache.find(&new, &[3, 4]).map(|found| found.0), Some(BlockId(1)));
        cache.check().unwrap();
        cache.remove(BlockId(1));
        cache.remove(BlockId(2));
        assert!(cache.children.is_empty());
    }
}
