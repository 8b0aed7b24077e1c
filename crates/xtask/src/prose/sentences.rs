//! Splits blocks into sentences, and computes the digest of a sentence, which does not depend on its file or line
//! breaks.

use sha2::{Digest, Sha256};

use super::blocks::{Block, CODE, Place};

/// A point after these words ends no sentence.
const ABBREVIATIONS: [&str; 9] = ["e.g", "i.e", "etc", "vs", "cf", "resp", "approx", "fig", "no"];

/// One sentence, as words.
#[derive(Debug)]
pub(crate) struct Sentence {
    pub(crate) place: Place,
    /// The file's line at which it begins.
    pub(crate) line: usize,
    /// The text with single spaces.
    pub(crate) text: String,
    pub(crate) words: Vec<String>,
    /// Whether a reader sees a beginning here. After a semicolon or a dash none is seen.
    pub(crate) is_opening: bool,
}

impl Sentence {
    /// Ten hexadecimal digits of a digest of the lower-case words. Line breaks, punctuation and the file do not
    /// matter.
    pub(crate) fn digest(&self) -> String {
        let words = self.words.join(" ").to_lowercase();
        Sha256::digest(words)[..5].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The sentences of a block. A point, a question or exclamation mark, a semicolon and a dash end one.
pub(crate) fn sentences(block: &Block) -> Vec<Sentence> {
    let mut sentences = Vec::new();
    let (mut start, mut is_opening) = (0, true);
    let chars: Vec<(usize, char)> = block.text.char_indices().collect();
    for i in 0..chars.len() {
        let Some((ends, after)) = end(&chars, i) else { continue };
        let after = chars.get(after).map_or(block.text.len(), |&(at, _)| at);
        push(&mut sentences, block, (start, after), is_opening);
        (start, is_opening) = (after, ends == End::Full);
    }
    push(&mut sentences, block, (start, block.text.len()), is_opening);
    sentences
}

fn push(sentences: &mut Vec<Sentence>, block: &Block, range: (usize, usize), is_opening: bool) {
    let text = &block.text[range.0..range.1];
    let lead = text.len() - text.trim_start().len();
    let words = words(text);
    if words.is_empty() {
        return;
    }
    sentences.push(Sentence {
        place: block.place,
        line: block.line_at(range.0 + lead),
        text: text.split_whitespace().collect::<Vec<_>>().join(" "),
        words,
        is_opening,
    });
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// A new sentence begins after it.
    Full,
    /// The sentence goes on in English, but ends for the count.
    Half,
}

/// How the character ends a sentence, if it does, with the index after it.
fn end(chars: &[(usize, char)], i: usize) -> Option<(End, usize)> {
    let at = |i: usize| chars.get(i).map_or(' ', |&(_, c)| c);
    let is_spaced = i > 0 && at(i - 1).is_whitespace() && at(i + 1).is_whitespace();
    match at(i) {
        ';' | '—' => Some((End::Half, i + 1)),
        '–' | '-' if is_spaced => Some((End::Half, i + 1)),
        '-' if at(i + 1) == '-' && at(i + 2).is_whitespace() && i > 0 && at(i - 1) == ' ' => {
            Some((End::Half, i + 2))
        }
        c @ ('.' | '?' | '!') => {
            let closing = chars[i + 1..].iter().take_while(|(_, c)| is_closing(*c)).count();
            // Points in a row are an ellipsis or a range, and end nothing.
            let is_run = c == '.' && (at(i + 1) == '.' || i > 0 && at(i - 1) == '.');
            let ends = at(i + 1 + closing).is_whitespace()
                && !is_run
                && !(c == '.' && is_abbreviation(&chars[..i]));
            ends.then_some((End::Full, i + 1 + closing))
        }
        _ => None,
    }
}

fn is_closing(c: char) -> bool {
    [')', ']', '"', '\'', '”', '’', '*'].contains(&c)
}

fn is_abbreviation(before: &[(usize, char)]) -> bool {
    let of_word = |c: char| c.is_alphabetic() || c == '.';
    let word: Vec<char> =
        before.iter().rev().map(|&(_, c)| c).take_while(|&c| of_word(c)).collect();
    let word: String = word.iter().rev().collect();
    ABBREVIATIONS.contains(&word.to_lowercase().as_str())
}

/// The words of a text: letters, digits, hyphens and apostrophes. A number with its points, code and an address are
/// one word.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for chunk in text.split_whitespace() {
        if chunk.contains("://") {
            words.push(CODE.to_string());
            continue;
        }
        let chars: Vec<char> = chunk.chars().collect();
        let is_digit = |i: usize| chars.get(i).is_some_and(char::is_ascii_digit);
        let mut word = String::new();
        for (i, &c) in chars.iter().enumerate() {
            let in_number = matches!(c, '.' | ',') && i > 0 && is_digit(i - 1) && is_digit(i + 1);
            match c.is_alphanumeric() || in_number || matches!(c, '-' | '_' | '\'' | '’' | CODE) {
                true => word.push(c),
                false => push_word(&mut words, &mut word),
            }
        }
        push_word(&mut words, &mut word);
    }
    words
}

fn push_word(words: &mut Vec<String>, word: &mut String) {
    let found = std::mem::take(word);
    let found = found.trim_matches(['-', '_', '\'', '’']);
    if !found.is_empty() {
        words.push(found.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::super::blocks::blocks;
    use super::super::passage::{Kind, Passage};
    use super::*;

    fn split(text: &str) -> Vec<Sentence> {
        let passage = Passage::of_lines(Kind::Help, "a.md", text, 1);
        blocks(&passage).iter().flat_map(sentences).collect()
    }

    fn texts(text: &str) -> Vec<String> {
        split(text).into_iter().map(|sentence| sentence.text).collect()
    }

    fn digest(text: &str) -> String {
        let sentences = split(text);
        assert_eq!(sentences.len(), 1, "{text}");
        sentences[0].digest()
    }

    #[test]
    fn points_semicolons_and_dashes_end_a_sentence() {
        for (text, expected) in [
            ("One. Two! Three?", vec!["One.", "Two!", "Three?"]),
            ("One; two", vec!["One;", "two"]),
            (
                "One – two — three - four -- five",
                vec!["One –", "two —", "three -", "four --", "five"],
            ),
            ("(One.) Two", vec!["(One.)", "Two"]),
            ("Pages 3–4, tiny-model, one: Two.", vec!["Pages 3–4, tiny-model, one: Two."]),
            ("Cats, e.g. Tom, run 1.5 km in a.rs", vec!["Cats, e.g. Tom, run 1.5 km in a.rs"]),
            ("From 1, 2 .. to 9", vec!["From 1, 2 .. to 9"]),
        ] {
            assert_eq!(texts(text), expected, "{text}");
        }
    }

    #[test]
    fn only_a_full_stop_is_followed_by_a_beginning() {
        let openings: Vec<bool> =
            split("One; as two. As three – of four").iter().map(|s| s.is_opening).collect();
        assert_eq!(openings, [true, false, true, false]);
    }

    #[test]
    fn words_are_counted_with_code_numbers_and_addresses_as_one() {
        for (text, count) in [
            ("it's a well-known `let x = 1;` rule", 5),
            ("16 % of 1,187 are 25.1", 5),
            ("see <https://example.org/a/b> and https://example.org", 4),
            ("read/write", 2),
        ] {
            assert_eq!(split(text).iter().map(|s| s.words.len()).sum::<usize>(), count, "{text}");
        }
    }

    #[test]
    fn a_sentence_begins_in_its_own_line() {
        let lines: Vec<usize> =
            split("One\ntwo. Three\nfour.\nFive").iter().map(|s| s.line).collect();
        assert_eq!(lines, [1, 2, 4]);
    }

    #[test]
    fn a_digest_stays_where_wrapping_marks_and_code_change() {
        let first = digest("The *cache* of `KvCache` is full.");
        assert_eq!(first, digest("the cache\nof `BlockManager::new`\nis full"));
        assert_eq!(first, digest("- The cache, of `x` is full"));
        assert_ne!(first, digest("The cache of `KvCache` is empty."));
        assert_eq!(first.len(), 10);
    }
}
