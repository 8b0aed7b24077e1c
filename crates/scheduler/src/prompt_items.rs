//! The items of one prompt: their positions, and the positions at which a row may not be cut.

use std::ops::Range;
use std::sync::Arc;

use crate::Item;
use crate::symbol::{ItemContent, ItemNumber, ItemNumbers, MAX_EMBEDDINGS, Symbol};

/// The items of a prompt, in order and without overlap. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct PromptItems(Arc<[PromptItem]>);

/// An [`Item`] whose content has a number.
#[derive(Clone)]
pub(crate) struct PromptItem {
    pub(crate) start: usize,
    pub(crate) end: usize,
    placeholder: u32,
    pub(crate) number: ItemNumber,
    pub(crate) num_embeddings: usize,
    pub(crate) num_pieces: u32,
    pub(crate) tokens_per_piece: usize,
    is_whole: bool,
}

impl PromptItems {
    /// The items of a prompt with their numbers. Positions beyond the prompt do not count.
    pub(crate) fn new(prompt: &[u32], items: &[Item], numbers: &mut ItemNumbers) -> Self {
        let items = items.iter().map(|item| {
            let end = item.start.saturating_add(item.len).min(prompt.len());
            let tokens = prompt.get(item.start..end).unwrap_or_default();
            let is_embedding = |token: &&u32| **token == item.placeholder;
            let num_embeddings = tokens.iter().filter(is_embedding).count();
            let Item { digest, is_whole, .. } = *item;
            PromptItem {
                start: item.start,
                end,
                placeholder: item.placeholder,
                number: numbers.number(ItemContent { digest, num_embeddings, is_whole }),
                num_embeddings,
                num_pieces: item.num_pieces,
                tokens_per_piece: item.tokens_per_piece,
                is_whole,
            }
        });
        Self(items.collect())
    }

    /// The symbols of the prompt's tokens.
    pub(crate) fn symbols(&self, prompt: &[u32]) -> Vec<Symbol> {
        let mut symbols: Vec<_> = prompt.iter().map(|token| Symbol::text(*token)).collect();
        for item in self.0.iter() {
            let positions = item.start..item.end;
            let embeddings = positions.filter(|position| prompt[*position] == item.placeholder);
            for (index, position) in (0..MAX_EMBEDDINGS as u32).zip(embeddings) {
                symbols[position] = Symbol::embedding(item.number, index);
            }
        }
        symbols
    }

    /// Index of the first item that ends after `position`; the number of items if there is none.
    pub(crate) fn first_after(&self, position: usize) -> usize {
        self.0.partition_point(|item| item.end <= position)
    }

    /// The items that end after `position`, with their indices.
    pub(crate) fn after(&self, position: usize) -> impl Iterator<Item = (usize, &PromptItem)> {
        self.0.iter().enumerate().skip(self.first_after(position))
    }

    /// Whether `position` belongs to an item.
    pub(crate) fn contain(&self, position: usize) -> bool {
        self.after(position).next().is_some_and(|(_, item)| item.start <= position)
    }

    /// The whole item that a cut before `position` would divide.
    pub(crate) fn whole_around(&self, position: usize) -> Option<&PromptItem> {
        let (_, item) = self.after(position).next()?;
        (item.is_whole && item.start < position).then_some(item)
    }

    /// The last position up to `position` before which a row may be cut.
    pub(crate) fn last_cut(&self, position: usize) -> usize {
        self.whole_around(position).map_or(position, |item| item.start)
    }

    /// Ranges of the whole items in a row, which divides none of them.
    pub(crate) fn whole_in(&self, row: Range<usize>) -> Vec<(u32, u32)> {
        let items = self.after(row.start).map(|(_, item)| item);
        let items = items.take_while(|item| item.start < row.end).filter(|item| item.is_whole);
        items.map(|item| (item.start as u32, item.end as u32)).collect()
    }
}
