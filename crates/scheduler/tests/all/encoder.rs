//! A naive encoder: the content of each slot after executing the encoder's work literally.

use std::collections::HashMap;
use std::sync::Arc;

use candlepower_scheduler::{
    CallerId, EncoderSlot, Item, PrefixCacheScope, SchedulerConfig, SeqId, Step, StepRow,
    TokenSource,
};

/// Id of embeddings. It also occurs in text.
pub(crate) const PLACEHOLDER: u32 = 2;
/// Number of different images.
pub(crate) const NUM_IMAGES: usize = 8;

/// The tokens of an image, and its item at the start of a prompt. Every second image is a whole item. Large ones have
/// two rows, with a text token between them.
pub(crate) fn image(kind: usize) -> (Vec<u32>, Item) {
    let num_embeddings = [1, 2, 3, 4, 5, 8, 6, 3][kind];
    let mut tokens = vec![PLACEHOLDER; num_embeddings];
    if num_embeddings > 3 {
        tokens.insert(num_embeddings / 2, (kind % 2) as u32);
    }
    let item = Item {
        start: 0,
        len: tokens.len(),
        placeholder: PLACEHOLDER,
        digest: [kind as u8; 32],
        num_pieces: [1, 2, 3, 7][kind / 2],
        tokens_per_piece: [3, 1, 40, 2, 5][kind % 5],
        is_whole: kind % 2 == 1,
    };
    (tokens, item)
}

/// The item at a position.
pub(crate) fn item_at(items: &[Item], position: usize) -> Option<&Item> {
    items.iter().find(|item| (item.start..item.start + item.len).contains(&position))
}

/// The item and the index of the embedding at a position of a prompt; `None` for text.
pub(crate) fn embedding<'a>(
    items: &'a [Item],
    tokens: &[u32],
    position: usize,
) -> Option<(&'a Item, u32)> {
    let item = item_at(items, position).filter(|item| tokens[position] == item.placeholder)?;
    let before = tokens[item.start..position].iter().filter(|token| **token == item.placeholder);
    Some((item, before.count() as u32))
}

/// The slots of unfinished and complete items.
pub(crate) struct EncoderMemory {
    entries: HashMap<EncoderSlot, Entry>,
    capacity: usize,
    scope: PrefixCacheScope,
}

struct Entry {
    digest: [u8; 32],
    whose: Whose,
    num_embeddings: usize,
    num_pieces: u32,
    num_done: u32,
}

/// The caller, if callers do not share, and the salt.
type Whose = (Option<CallerId>, Option<Arc<str>>);

/// Facts on a sequence that do not come from the scheduler.
pub(crate) struct Owner<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) items: &'a [Item],
    pub(crate) caller: CallerId,
    pub(crate) salt: &'a Option<Arc<str>>,
}

impl EncoderMemory {
    pub(crate) fn new(config: &SchedulerConfig) -> Self {
        let (capacity, scope) = (config.num_encoder_embeddings, config.prefix_cache_scope);
        Self { entries: HashMap::new(), capacity, scope }
    }

    /// Frees slots, does the encoder's work, and verifies that the rows read what they should. Returns the number of
    /// embeddings that they read.
    pub(crate) fn execute<'a>(&mut self, step: &Step, owner: impl Fn(SeqId) -> Owner<'a>) -> usize {
        for slot in &step.freed_slots {
            assert!(self.entries.remove(slot).is_some(), "{slot:?} was free: {step:?}");
        }
        for encode in &step.encodes {
            let owner = owner(encode.seq);
            let item = &owner.items[encode.item as usize];
            let whose = self.whose(&owner);
            let pieces = encode.pieces.clone();
            assert!(pieces.start < pieces.end && pieces.end <= item.num_pieces, "{encode:?}");
            if pieces.start == 0 {
                let is_known =
                    |entry: &Entry| (entry.digest, &entry.whose) == (item.digest, &whose);
                assert!(!self.entries.values().any(is_known), "{encode:?} is already there");
                let tokens = &owner.tokens[item.start..item.start + item.len];
                let entry = Entry {
                    digest: item.digest,
                    whose: whose.clone(),
                    num_embeddings: tokens.iter().filter(|token| **token == PLACEHOLDER).count(),
                    num_pieces: item.num_pieces,
                    num_done: 0,
                };
                let before = self.entries.insert(encode.slot, entry);
                assert!(before.is_none(), "{encode:?} begins in a slot that is in use");
            }
            let entry = self.entries.get_mut(&encode.slot).expect("its first piece was computed");
            assert_eq!((entry.digest, &entry.whose), (item.digest, &whose), "{encode:?}");
            assert_eq!(entry.num_done, pieces.start, "a gap before {encode:?}");
            entry.num_done = pieces.end;
            let unfinished =
                self.entries.values().filter(|entry| entry.num_done < entry.num_pieces);
            assert!(unfinished.count() <= 1, "two items are unfinished: {step:?}");
        }
        let num_embeddings: usize = self.entries.values().map(|entry| entry.num_embeddings).sum();
        assert!(num_embeddings <= self.capacity, "{num_embeddings} of {}", self.capacity);
        step.rows.iter().map(|row| self.read(row, &owner(row.seq))).sum()
    }

    /// Verifies the embeddings and the whole items of a row. Returns the number of embeddings.
    fn read(&self, row: &StepRow, owner: &Owner<'_>) -> usize {
        let (start, mut num_read) = (row.first_position as usize, 0);
        for (position, source) in (start..).zip(&row.tokens) {
            let expected = embedding(owner.items, owner.tokens, position);
            let found = match source {
                TokenSource::Embedding { slot, index } => Some((slot, *index)),
                _ => None,
            };
            let (Some((item, at)), Some((slot, index))) = (expected, found) else {
                assert!(expected.is_none() && found.is_none(), "position {position} of {row:?}");
                continue;
            };
            let entry = self.entries.get(slot).expect("rows read slots that are in use");
            assert_eq!((index, entry.digest), (at, item.digest), "position {position} of {row:?}");
            assert_eq!(entry.whose, self.whose(owner), "position {position} of {row:?}");
            assert_eq!(entry.num_done, entry.num_pieces, "{slot:?} is not complete: {row:?}");
            num_read += 1;
        }
        let end = start + row.tokens.len();
        let is_in_row = |item: &&Item| item.start < end && start < item.start + item.len;
        let whole = owner.items.iter().filter(|item| item.is_whole).filter(is_in_row);
        let ranges: Vec<_> = whole
            .map(|item| {
                let (from, to) = (item.start, item.start + item.len);
                assert!(start <= from && to <= end, "a whole item is cut by {row:?}");
                (from as u32, to as u32)
            })
            .collect();
        assert_eq!(row.whole, ranges);
        num_read
    }

    fn whose(&self, owner: &Owner<'_>) -> Whose {
        let is_own = self.scope == PrefixCacheScope::Caller;
        (is_own.then_some(owner.caller), owner.salt.clone())
    }
}
