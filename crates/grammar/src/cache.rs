//! A cache of compiled constraints, limited in bytes.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};

use crate::Grammar;

/// Memory of all entries.
const MAX_BYTES: usize = 16 << 20;

/// Callers share all entries. To make room for a new entry, the caller with the most bytes loses its least recently used one.
/// So no caller can evict entries of another that is below an equal share.
pub(crate) struct Cache<G = Grammar> {
    /// Entries, the most recently used last.
    entries: VecDeque<Entry<G>>,
    /// Bytes by caller.
    bytes: HashMap<u64, usize>,
}

struct Entry<G> {
    key: String,
    grammar: G,
    bytes: usize,
    /// The caller for which it was compiled.
    caller: u64,
}

impl<G> Default for Cache<G> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), bytes: HashMap::new() }
    }
}

impl<G> Cache<G> {
    pub(crate) fn get(&mut self, key: &str) -> Option<&G> {
        // From the end, because recently used entries are the likely ones.
        let at = self.entries.iter().rposition(|entry| entry.key == key)?;
        let entry = self.entries.remove(at)?;
        self.entries.push_back(entry);
        self.entries.back().map(|entry| &entry.grammar)
    }

    /// Adds a grammar of this size, unless it is larger than the cache.
    pub(crate) fn insert(&mut self, key: String, caller: u64, grammar: G, bytes: usize) {
        // Two requests may have compiled the same constraint at once.
        if bytes > MAX_BYTES || self.get(&key).is_some() {
            return;
        }
        *self.bytes.entry(caller).or_default() += bytes;
        self.entries.push_back(Entry { key, grammar, bytes, caller });
        while self.bytes.values().sum::<usize>() > MAX_BYTES {
            self.remove_one();
        }
    }

    fn remove_one(&mut self) {
        let oldest_of_most = self
            .entries
            .iter()
            .enumerate()
            // The lower index is the older entry, so among the entries of one caller the smallest index is the
            // maximum.
            .max_by_key(|(index, entry)| (self.bytes[&entry.caller], Reverse(*index)));
        let Some((index, _)) = oldest_of_most else { return };
        let Some(entry) = self.entries.remove(index) else { return };
        if let Some(bytes) = self.bytes.get_mut(&entry.caller) {
            *bytes -= entry.bytes;
            if *bytes == 0 {
                self.bytes.remove(&entry.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUARTER: usize = MAX_BYTES / 4;

    fn keys(cache: &Cache<()>) -> Vec<&str> {
        cache.entries.iter().map(|entry| entry.key.as_str()).collect()
    }

    #[test]
    fn the_one_that_was_not_used_for_longest_goes_first() {
        let mut cache = Cache::default();
        for key in ["a", "b", "c", "d"] {
            cache.insert(key.to_owned(), 1, (), QUARTER);
        }
        assert!(cache.get("a").is_some());
        cache.insert("e".to_owned(), 1, (), QUARTER);
        assert_eq!(keys(&cache), ["c", "d", "a", "e"]);
        cache.insert("too large".to_owned(), 1, (), MAX_BYTES + 1);
        assert_eq!(keys(&cache).len(), 4);
    }

    #[test]
    fn a_caller_displaces_its_own_entries_before_those_of_others() {
        let mut cache = Cache::default();
        cache.insert("of 2".to_owned(), 2, (), QUARTER);
        for index in 0..1000 {
            cache.insert(format!("{index}"), 1, (), QUARTER / 8);
        }
        assert!(cache.get("of 2").is_some(), "it has less than its share");
        assert_eq!(cache.bytes.values().sum::<usize>(), MAX_BYTES);
        cache.insert("of 3".to_owned(), 3, (), 3 * QUARTER);
        let kept = ["of 2", "of 3"].map(|key| keys(&cache).contains(&key));
        assert_eq!(kept, [true, false], "it has more than anybody else");
        assert_eq!(cache.bytes.len(), 2);
    }
}
