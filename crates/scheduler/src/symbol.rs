//! Symbols, which the scheduler compares instead of token ids, and the numbers of items in them.

use std::collections::{BTreeMap, HashMap};

/// Number of bits of a symbol for the index of an embedding.
const INDEX_BITS: u32 = 24;
/// Marks the symbol of an embedding. The symbol of a text token is the token's id.
const EMBEDDING: u64 = 1 << 63;
/// Largest number of embeddings of an item.
pub(crate) const MAX_EMBEDDINGS: usize = 1 << INDEX_BITS;
/// Number of items whose numbers are remembered.
const MAX_REMEMBERED: usize = 65_536;

/// The content of one position: a text token, or one embedding of an item. Equal symbols mean equal content.
///
/// All embeddings of all images have the same token id. So token ids do not tell whether two prompts have a common
/// prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Symbol(u64);

impl Symbol {
    pub(crate) fn text(token: u32) -> Self {
        Self(u64::from(token))
    }

    pub(crate) fn embedding(item: ItemNumber, index: u32) -> Self {
        debug_assert!((index as usize) < MAX_EMBEDDINGS);
        Self(EMBEDDING | item.0 << INDEX_BITS | u64::from(index))
    }

    /// Index of the embedding in its item; `None` for text.
    pub(crate) fn index(self) -> Option<u32> {
        (self.0 & EMBEDDING != 0).then_some((self.0 & (MAX_EMBEDDINGS as u64 - 1)) as u32)
    }
}

/// Number of an item's content. No number is given to two contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ItemNumber(u64);

/// Content of an item. Size and kind follow from the digest, but nothing breaks if a caller makes them differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ItemContent {
    pub(crate) digest: [u8; 32],
    pub(crate) num_embeddings: usize,
    pub(crate) is_whole: bool,
}

/// The numbers of the most recently used contents. A content that was forgotten gets a new number, and then finds
/// nothing in the caches.
///
/// Numbers have 39 bits, so that a thousand new images per second use them up in 17 years.
pub(crate) struct ItemNumbers {
    /// Largest number of contents that are remembered.
    max: usize,
    /// Each content with its number and the time of its last use.
    numbers: HashMap<ItemContent, (ItemNumber, u64)>,
    /// Contents by time of use, the least recently used first.
    by_age: BTreeMap<u64, ItemContent>,
    last_use: u64,
    num_given: u64,
}

impl Default for ItemNumbers {
    fn default() -> Self {
        Self::new(MAX_REMEMBERED)
    }
}

impl ItemNumbers {
    fn new(max: usize) -> Self {
        let (numbers, by_age) = (HashMap::new(), BTreeMap::new());
        Self { max, numbers, by_age, last_use: 0, num_given: 0 }
    }

    /// The number of a content, which counts as used now.
    pub(crate) fn number(&mut self, content: ItemContent) -> ItemNumber {
        self.last_use += 1;
        let now = self.last_use;
        self.by_age.insert(now, content);
        if let Some((number, last_use)) = self.numbers.get_mut(&content) {
            self.by_age.remove(last_use);
            *last_use = now;
            return *number;
        }
        if self.numbers.len() == self.max
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.numbers.remove(&oldest);
        }
        let number = ItemNumber(self.num_given);
        self.num_given += 1;
        self.numbers.insert(content, (number, now));
        number
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The symbols of text tokens.
    pub(crate) fn text<const N: usize>(tokens: [u32; N]) -> [Symbol; N] {
        tokens.map(Symbol::text)
    }

    fn content(digest: u8) -> ItemContent {
        ItemContent { digest: [digest; 32], num_embeddings: 4, is_whole: false }
    }

    #[test]
    fn no_embedding_equals_a_text_or_an_embedding_of_another_item() {
        let (a, b) = (ItemNumber(0), ItemNumber((1 << 39) - 1));
        let last = MAX_EMBEDDINGS as u32 - 1;
        let symbols = [
            Symbol::text(0),
            Symbol::text(u32::MAX),
            Symbol::embedding(a, 0),
            Symbol::embedding(a, last),
            Symbol::embedding(b, 0),
            Symbol::embedding(b, last),
        ];
        for (index, symbol) in symbols.iter().enumerate() {
            assert!(symbols[..index].iter().all(|other| other != symbol));
        }
        let indices = symbols.map(Symbol::index);
        assert_eq!(indices, [None, None, Some(0), Some(last), Some(0), Some(last)]);
    }

    #[test]
    fn a_content_keeps_its_number_until_it_is_forgotten_and_no_number_comes_twice() {
        let mut numbers = ItemNumbers::new(2);
        let first = numbers.number(content(1));
        let second = numbers.number(content(2));
        assert_eq!(numbers.number(content(1)), first);
        let third = numbers.number(content(3));
        assert_eq!(numbers.number(content(1)), first, "the other one was used less recently");
        let again = numbers.number(content(2));
        let all = [first, second, third, again];
        for (index, number) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other != number), "{all:?}");
        }
        assert_eq!((numbers.numbers.len(), numbers.by_age.len()), (2, 2));
    }

    #[test]
    fn an_item_of_another_size_or_kind_is_another_content() {
        let mut numbers = ItemNumbers::default();
        let number = numbers.number(content(1));
        assert_ne!(numbers.number(ItemContent { num_embeddings: 5, ..content(1) }), number);
        assert_ne!(numbers.number(ItemContent { is_whole: true, ..content(1) }), number);
    }
}
