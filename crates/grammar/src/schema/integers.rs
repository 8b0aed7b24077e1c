//! Ranges of integers as regular expressions of their decimal digits.

use std::fmt;

/// A range of integers. It is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) least: i128,
    pub(crate) most: i128,
}

impl fmt::Display for Range {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}..{}", self.least, self.most)
    }
}

impl Range {
    /// The range of this text.
    pub(crate) fn of(text: &str) -> Option<Self> {
        let (least, most) = text.split_once("..")?;
        let range = Self { least: least.parse().ok()?, most: most.parse().ok()? };
        (range.least <= range.most).then_some(range)
    }

    /// A regular expression of the integers in the range, without leading zeros.
    pub(crate) fn regex(self) -> String {
        let Self { least, most } = self;
        let mut parts = Vec::new();
        if least < 0 {
            let (nearest, farthest) = ((-most).max(1), -least);
            parts.extend(
                by_length(nearest, farthest).into_iter().map(|digits| format!("-{digits}")),
            );
        }
        if most >= 0 {
            parts.extend(by_length(least.max(0), most));
        }
        parts.join("|")
    }
}

/// One expression for each number of digits; both integers are not negative.
fn by_length(least: i128, most: i128) -> Vec<String> {
    let length = |integer: i128| integer.to_string().len();
    let lengths = length(least)..=length(most);
    let part = |length: usize| {
        let power = |exponent: usize| 10_i128.pow(u32::try_from(exponent).unwrap_or(u32::MAX));
        let first = if length == 1 { 0 } else { power(length - 1) };
        let (least, most) = (least.max(first), most.min(power(length) - 1));
        between(least.to_string().as_bytes(), most.to_string().as_bytes())
    };
    lengths.map(part).collect()
}

/// The texts of digits between two of the same length.
fn between(least: &[u8], most: &[u8]) -> String {
    let ([first, least @ ..], [last, most @ ..]) = (least, most) else { return String::new() };
    let any =
        |length: usize| if length == 0 { String::new() } else { format!("[0-9]{{{length}}}") };
    let digit = |digit: u8| char::from(digit);
    if first == last {
        return format!("{}{}", digit(*first), between(least, most));
    }
    let is_all = |digits: &[u8], digit: u8| digits.iter().all(|found| *found == digit);
    let (mut from, mut to) = (*first, *last);
    let mut parts = Vec::new();
    if !is_all(least, b'0') {
        parts.push(format!("{}{}", digit(*first), between(least, &vec![b'9'; least.len()])));
        from += 1;
    }
    if !is_all(most, b'9') {
        parts.push(format!("{}{}", digit(*last), between(&vec![b'0'; most.len()], most)));
        to -= 1;
    }
    // Digits between the first ones allow any further digits.
    if from <= to {
        parts.push(format!("[{}-{}]{}", digit(from), digit(to), any(least.len())));
    }
    format!("({})", parts.join("|"))
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::{RegexAst, RegexBuilder};

    use super::*;

    #[test]
    fn expressions_match_the_integers_of_a_range() {
        for (least, most) in [
            (0, 0),
            (0, 9),
            (7, 123),
            (-5, 5),
            (-120, -9),
            (99, 1001),
            (-1000, 1),
            (350, 357),
            (10, 99),
        ] {
            let range = Range { least, most };
            assert_eq!(Range::of(&range.to_string()), Some(range));
            let mut builder = RegexBuilder::new();
            let expression = builder.mk(&RegexAst::Regex(range.regex())).unwrap();
            let mut regex = builder.to_regex_limited(expression, 100_000).unwrap();
            for integer in -2000..2000 {
                let is_within = (least..=most).contains(&integer);
                assert_eq!(regex.is_match(&integer.to_string()), is_within, "{range} {integer}");
            }
            for other in ["", "-", "00", "01", "-0", "1.0"] {
                assert!(!regex.is_match(other), "{range} {other}");
            }
        }
        assert_eq!(Range::of("2..1"), None);
        assert_eq!(Range::of("5"), None);
    }
}
