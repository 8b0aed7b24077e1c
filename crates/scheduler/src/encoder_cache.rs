//! The slots of items' embeddings: those that sequences hold, and those that are kept for later ones.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::EncoderSlot;
use crate::prefix_cache::CacheRoot;
use crate::prompt_items::PromptItem;
use crate::symbol::ItemNumber;

/// Slots for embeddings, which are found by content within the scope of the prefix cache.
///
/// An item is encoded once for all sequences that need it at the same time. Its embeddings stay until the room is
/// needed, the least recently used ones first. At most one item is unfinished, which bounds the memory of unfinished
/// encoder runs. If no sequence holds that item any more, it is freed.
///
/// Steps run in order. So a slot can be freed by a step as soon as the steps before it hold all rows that read it.
pub(crate) struct EncoderCache {
    /// Number of embeddings for which there is room.
    capacity: usize,
    /// Whether complete items stay when no sequence holds them.
    keeps: bool,
    /// `None` for slots that are free.
    entries: Vec<Option<Entry>>,
    free: Vec<EncoderSlot>,
    by_content: HashMap<Content, EncoderSlot>,
    /// Complete items without a holder by time of use, the least recently used first.
    unheld: BTreeMap<u64, EncoderSlot>,
    unfinished: Option<EncoderSlot>,
    /// Freed slots that no step has listed yet.
    freed: Vec<EncoderSlot>,
    /// Number of embeddings in all entries.
    num_used: usize,
    /// Number of embeddings of items without a holder.
    num_unheld: usize,
    last_use: u64,
    pub(crate) num_encoded: u64,
    pub(crate) num_hits: u64,
}

/// An item's content, and the sequences that share it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Content {
    root: CacheRoot,
    number: ItemNumber,
}

struct Entry {
    content: Content,
    num_embeddings: usize,
    num_pieces: u32,
    /// Number of pieces that the steps so far compute.
    num_done: u32,
    num_holders: usize,
    /// Time at which the last holder left.
    last_use: u64,
}

impl Entry {
    fn is_complete(&self) -> bool {
        self.num_done == self.num_pieces
    }
}

impl EncoderCache {
    pub(crate) fn new(capacity: usize, keeps: bool) -> Self {
        Self {
            capacity,
            keeps,
            entries: Vec::new(),
            free: Vec::new(),
            by_content: HashMap::new(),
            unheld: BTreeMap::new(),
            unfinished: None,
            freed: Vec::new(),
            num_used: 0,
            num_unheld: 0,
            last_use: 0,
            num_encoded: 0,
            num_hits: 0,
        }
    }

    /// Number of embeddings in all entries, unfinished ones included.
    pub(crate) fn num_used(&self) -> usize {
        self.num_used
    }

    /// Adds a holder to the entry of an item. An item without an entry gets one if `may_begin`, if no other item is
    /// unfinished, and if there is room. Returns `None` otherwise, and frees nothing.
    pub(crate) fn hold(
        &mut self,
        root: &CacheRoot,
        item: &PromptItem,
        may_begin: bool,
    ) -> Option<EncoderSlot> {
        let content = Content { root: root.clone(), number: item.number };
        if let Some(slot) = self.by_content.get(&content).copied() {
            let entry = self.entries[slot.0 as usize].as_mut().expect("it was found");
            if entry.num_holders == 0 {
                self.unheld.remove(&entry.last_use);
                self.num_unheld -= entry.num_embeddings;
            }
            entry.num_holders += 1;
            self.num_hits += u64::from(entry.is_complete());
            return Some(slot);
        }
        if !may_begin || self.unfinished.is_some() || !self.make_room(item.num_embeddings) {
            return None;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            EncoderSlot(self.entries.len() as u32 - 1)
        });
        self.by_content.insert(content.clone(), slot);
        self.num_used += item.num_embeddings;
        self.unfinished = Some(slot);
        self.entries[slot.0 as usize] = Some(Entry {
            content,
            num_embeddings: item.num_embeddings,
            num_pieces: item.num_pieces,
            num_done: 0,
            num_holders: 1,
            last_use: 0,
        });
        Some(slot)
    }

    /// Counts up to `max_pieces` more pieces of a held item as done. Returns them; none if the item is complete.
    pub(crate) fn advance(&mut self, slot: EncoderSlot, max_pieces: usize) -> Range<u32> {
        let entry = self.entry_mut(slot);
        let start = entry.num_done;
        let left = entry.num_pieces - start;
        entry.num_done += u32::try_from(max_pieces).map_or(left, |most| most.min(left));
        let pieces = start..entry.num_done;
        if entry.is_complete() && !pieces.is_empty() {
            self.unfinished = None;
            self.num_encoded += 1;
        }
        pieces
    }

    pub(crate) fn is_complete(&self, slot: EncoderSlot) -> bool {
        self.entries[slot.0 as usize].as_ref().is_some_and(Entry::is_complete)
    }

    /// Removes a holder from each of the slots.
    pub(crate) fn release_all(&mut self, slots: impl IntoIterator<Item = EncoderSlot>) {
        slots.into_iter().for_each(|slot| self.release(slot));
    }

    /// Removes a holder. The last one leaves a complete item in the cache.
    fn release(&mut self, slot: EncoderSlot) {
        self.last_use += 1;
        let (now, keeps) = (self.last_use, self.keeps);
        let entry = self.entry_mut(slot);
        entry.num_holders -= 1;
        if entry.num_holders > 0 {
            return;
        }
        entry.last_use = now;
        let (is_complete, num_embeddings) = (entry.is_complete(), entry.num_embeddings);
        if is_complete && keeps {
            self.unheld.insert(now, slot);
            self.num_unheld += num_embeddings;
        } else {
            self.unfinished.take_if(|unfinished| *unfinished == slot);
            self.free(slot);
        }
    }

    /// The slots that were freed since the last call, for the step that is planned.
    pub(crate) fn take_freed(&mut self) -> Vec<EncoderSlot> {
        std::mem::take(&mut self.freed)
    }

    /// Verifies that each slot has one use, that holders are counted, and that the entries fit the room. `held` has
    /// each slot once for each of its holders.
    pub(crate) fn check(&self, held: impl Iterator<Item = EncoderSlot>) -> Result<(), String> {
        let mut num_holders = vec![0; self.entries.len()];
        held.for_each(|slot| num_holders[slot.0 as usize] += 1);
        let mut is_free = vec![false; self.entries.len()];
        for slot in &self.free {
            if std::mem::replace(&mut is_free[slot.0 as usize], true) {
                return Err(format!("{slot:?} is free twice"));
            }
        }
        let (mut num_used, mut num_places, mut num_unheld) = (0, 0, (0, 0));
        for (index, entry) in self.entries.iter().enumerate() {
            let slot = EncoderSlot(index as u32);
            if entry.is_some() == is_free[index] {
                return Err(format!("{slot:?} is free and used, or neither"));
            }
            let Some(entry) = entry else { continue };
            let is_unheld = self.unheld.get(&entry.last_use) == Some(&slot);
            let is_unfinished = self.unfinished == Some(slot);
            if entry.num_holders != num_holders[index] || is_unheld != (entry.num_holders == 0) {
                let counted = entry.num_holders;
                return Err(format!("{slot:?} counts {counted} of {} holders", num_holders[index]));
            }
            if is_unfinished == entry.is_complete() || (is_unheld && is_unfinished) {
                return Err(format!("{slot:?} is complete and unfinished, or neither"));
            }
            if self.by_content.get(&entry.content) != Some(&slot) {
                return Err(format!("the content of {slot:?} leads elsewhere"));
            }
            num_places += 1;
            num_used += entry.num_embeddings;
            let unheld = if is_unheld { (1, entry.num_embeddings) } else { (0, 0) };
            num_unheld = (num_unheld.0 + unheld.0, num_unheld.1 + unheld.1);
        }
        let expected = (num_places, num_used, num_unheld);
        let counted = (self.unheld.len(), self.num_unheld);
        if expected != (self.by_content.len(), self.num_used, counted) || num_used > self.capacity {
            return Err(format!("items take {num_used} of {} embeddings", self.capacity));
        }
        Ok(())
    }

    fn entry_mut(&mut self, slot: EncoderSlot) -> &mut Entry {
        self.entries[slot.0 as usize].as_mut().expect("a held slot has an entry")
    }

    /// Frees items without a holder until `num_embeddings` more fit. Returns false, and frees nothing, if that is
    /// not enough.
    fn make_room(&mut self, num_embeddings: usize) -> bool {
        let num_held = self.num_used - self.num_unheld;
        if num_held + num_embeddings > self.capacity {
            return false;
        }
        while self.num_used + num_embeddings > self.capacity {
            let (_, slot) = self.unheld.pop_first().expect("the held items leave enough room");
            self.num_unheld -= self.entry_mut(slot).num_embeddings;
            self.free(slot);
        }
        true
    }

    fn free(&mut self, slot: EncoderSlot) {
        let entry = self.entries[slot.0 as usize].take().expect("it is in use");
        self.by_content.remove(&entry.content);
        self.num_used -= entry.num_embeddings;
        self.free.push(slot);
        self.freed.push(slot);
    }
}
