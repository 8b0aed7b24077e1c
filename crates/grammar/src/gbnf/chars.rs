//! Sets of characters.

use std::fmt::Write;

/// The last code point.
const LAST: u32 = 0x10_FFFF;
/// Code points that are not characters.
const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);

/// A set of characters as ranges of code points: inclusive, sorted, not adjacent, and without surrogates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CharSet(Vec<(u32, u32)>);

impl CharSet {
    pub(super) fn new(ranges: Vec<(u32, u32)>) -> Self {
        // A range around the surrogates becomes two.
        let around = |(first, last): (u32, u32)| {
            [(first, last.min(SURROGATES.0 - 1)), (first.max(SURROGATES.1 + 1), last)]
        };
        let mut ranges = ranges.into_iter().flat_map(around).collect::<Vec<_>>();
        ranges.retain(|(first, last)| first <= last);
        ranges.sort_unstable();
        let mut set: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match set.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => set.push((first, last)),
            }
        }
        Self(set)
    }

    pub(super) fn one(character: char) -> Self {
        Self(vec![(character.into(), character.into())])
    }

    /// All characters.
    pub(super) fn all() -> Self {
        Self::new(vec![(0, LAST)])
    }

    /// All other characters.
    pub(super) fn complement(&self) -> Self {
        let mut ranges = Vec::with_capacity(self.0.len() + 1);
        let mut next = 0;
        for (first, last) in &self.0 {
            if next < *first {
                ranges.push((next, first - 1));
            }
            next = last + 1;
        }
        if next <= LAST {
            ranges.push((next, LAST));
        }
        // The gap of the surrogates would be a range of the complement.
        Self::new(ranges)
    }

    /// Adds the characters of another set, and returns whether any was new.
    pub(super) fn add(&mut self, other: &Self) -> bool {
        let both = Self::new(self.0.iter().chain(&other.0).copied().collect());
        let grew = both != *self;
        *self = both;
        grew
    }

    pub(super) fn meets(&self, other: &Self) -> bool {
        let meets = |(first, last): &(u32, u32)| {
            other
                .0
                .iter()
                .any(|(other_first, other_last)| first <= other_last && other_first <= last)
        };
        self.0.iter().any(meets)
    }

    pub(super) fn contains(&self, code: u32) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&code))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }

    /// The set as a class of a regular expression.
    pub(super) fn to_regex(&self) -> String {
        let mut class = "[".to_owned();
        for (first, last) in &self.0 {
            // A regular expression refuses surrogates, which no set has.
            write!(class, "\\x{{{first:x}}}-\\x{{{last:x}}}").expect("a string takes it");
        }
        class + "]"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_and_complemented() {
        let set = CharSet::new(vec![(5, 9), (1, 3), (4, 6), (20, 10)]);
        assert_eq!(set.ranges(), [(1, 9)]);
        assert_eq!(set.complement().ranges(), [(0, 0), (10, 0xD7FF), (0xE000, LAST)]);
        assert_eq!(set.complement().complement(), set);
        assert!(CharSet::all().complement().is_empty());
        let characters = CharSet::new(vec![(0, 0xD7FF), (0xE000, LAST)]);
        assert_eq!(characters, CharSet::all());
        assert!(characters.complement().is_empty());
        assert!(CharSet::new(vec![(0xD800, 0xDFFF)]).is_empty());
        assert!(
            set.meets(&CharSet::new(vec![(9, 30)])) && !set.meets(&CharSet::new(vec![(10, 30)]))
        );
    }

    #[test]
    fn a_class_of_a_regular_expression_has_characters_alone() {
        assert_eq!(CharSet::one('a').to_regex(), r"[\x{61}-\x{61}]");
        assert_eq!(CharSet::all().to_regex(), r"[\x{0}-\x{d7ff}\x{e000}-\x{10ffff}]");
    }
}
