//! Compiled constraints that are kept for the next request with the same one, up to a bound in bytes.

use std::collections::VecDeque;

use crate::Grammar;

/// Memory of all that is kept.
const MAX_BYTES: usize = 64 << 20;

/// The least recently used go first.
#[derive(Default)]
pub(crate) struct Cache {
    /// The last used at the end.
    entries: VecDeque<Entry>,
    bytes: usize,
}

struct Entry {
    key: String,
    grammar: Grammar,
    bytes: usize,
}

impl Cache {
    pub(crate) fn get(&mut self, key: &str) -> Option<&Grammar> {
        let at = self.entries.iter().rposition(|entry| entry.key == key)?;
        let entry = self.entries.remove(at)?;
        self.entries.push_back(entry);
        self.entries.back().map(|entry| &entry.grammar)
    }

    /// Keeps a grammar that takes so many bytes, if there is room for it at all.
    pub(crate) fn insert(&mut self, key: String, grammar: Grammar, bytes: usize) {
        // Two requests may have compiled the same.
        if bytes > MAX_BYTES || self.get(&key).is_some() {
            return;
        }
        self.bytes += bytes;
        self.entries.push_back(Entry { key, grammar, bytes });
        while self.bytes > MAX_BYTES
            && let Some(oldest) = self.entries.pop_front()
        {
            self.bytes -= oldest.bytes;
        }
    }
}
