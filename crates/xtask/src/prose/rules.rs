//! The rules for a sentence: its length, its first word, and the field's terms.

use regex::{Regex, RegexSet};

use super::blocks::Place;
use super::sentences::Sentence;
use super::words::{PRIVATE_WORDS, PrivateWord};

/// The longest sentence. Writers aim at 20 words.
pub(crate) const MAX_WORDS: usize = 35;

/// First words that lead to inverted order, or to a clause instead of a noun.
pub(crate) const OPENERS: [&str; 5] = ["of", "what", "as", "whoever", "whatever"];

/// The rules' names in the ratchet's list.
pub(crate) const LONG: &str = "long";
pub(crate) const OPENER: &str = "opener";
pub(crate) const WORD: &str = "word";

/// One broken rule, and what to write instead.
#[derive(Debug)]
pub(crate) struct Breach {
    pub(crate) rule: &'static str,
    pub(crate) message: String,
}

/// The rules with their patterns compiled.
pub(crate) struct Rules {
    /// All private words at once: few sentences have one.
    any: RegexSet,
    words: Vec<(Regex, Option<Regex>, &'static PrivateWord)>,
}

impl Rules {
    pub(crate) fn new() -> Self {
        let any = RegexSet::new(PRIVATE_WORDS.iter().map(|row| pattern(row.word)));
        let words = PRIVATE_WORDS.iter().map(|row| {
            let unless = (!row.unless.is_empty()).then(|| compiled(row.unless));
            (compiled(row.word), unless, row)
        });
        Self { any: any.expect(COMPILES), words: words.collect() }
    }

    /// All broken rules of a sentence of this file.
    pub(crate) fn breaches(&self, sentence: &Sentence, path: &str) -> Vec<Breach> {
        let mut breaches = Vec::new();
        let count = sentence.words.len();
        if sentence.place != Place::Heading && count > MAX_WORDS {
            let message = format!(
                "a sentence of {count} words, at most {MAX_WORDS}: split it, one idea each"
            );
            breaches.push(Breach { rule: LONG, message });
        }
        if let Some(opener) = opener(sentence).filter(|opener| OPENERS.contains(&opener.as_str())) {
            let message =
                format!("a sentence that begins with `{opener}`: put the subject first, as a noun");
            breaches.push(Breach { rule: OPENER, message });
        }
        for at in self.any.matches(&sentence.text) {
            let (word, unless, row) = &self.words[at];
            let is_english = unless.as_ref().is_some_and(|unless| unless.is_match(&sentence.text));
            let found = word.find(&sentence.text).filter(|_| row.applies_to(path) && !is_english);
            if let Some(found) = found {
                let message =
                    format!("the private word `{}`: write {}", found.as_str(), row.instead);
                breaches.push(Breach { rule: WORD, message });
            }
        }
        breaches
    }
}

const COMPILES: &str = "patterns are constants, compiled in each run";

fn compiled(words: &str) -> Regex {
    Regex::new(&pattern(words)).expect(COMPILES)
}

/// The patterns match ASCII only. Tables of Unicode take longer to compile than all sentences take to match.
fn pattern(words: &str) -> String {
    format!("(?i-u){words}")
}

/// The first word in lower case, where a reader sees a sentence begin.
pub(crate) fn opener(sentence: &Sentence) -> Option<String> {
    let is_seen = sentence.is_opening && sentence.place != Place::Heading;
    sentence.words.first().filter(|_| is_seen).map(|word| word.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn rules_broken(path: &str, text: &str) -> Vec<&'static str> {
        let judged = sample(path, text);
        judged.iter().flat_map(|judged| &judged.breaches).map(|breach| breach.rule).collect()
    }

    #[test]
    fn thirty_five_words_are_enough() {
        assert!(rules_broken("docs/a.md", &"word ".repeat(MAX_WORDS)).is_empty());
        let long = "word ".repeat(MAX_WORDS + 1);
        assert_eq!(rules_broken("docs/a.md", &long), [LONG]);
        assert_eq!(rules_broken("docs/a.md", &format!("| {long} |\n|---|\n")), [LONG]);
        assert!(rules_broken("docs/a.md", &long.replacen(' ', "; ", 1)).is_empty());
    }

    #[test]
    fn an_opener_is_forbidden_where_a_sentence_begins() {
        for opener in OPENERS {
            assert_eq!(rules_broken("docs/a.md", &format!("It is. {opener} it is.")), [OPENER]);
            assert_eq!(rules_broken("a/src/x.rs", &format!("/// {opener} it is.")), [OPENER]);
        }
        for text in ["# What it is", "It is; as it was.", "Often it is.", "It is what it is."] {
            assert!(rules_broken("docs/a.md", text).is_empty(), "{text}");
        }
    }

    #[test]
    fn each_private_word_is_found_and_its_english_use_is_not() {
        let pairs = [
            ("Codes are unpacked first.", "Error codes are listed."),
            ("The numbers are read as bf16.", "The numbers of tokens are added."),
            ("Groups have minima.", "The minimum of two lengths counts."),
            ("Scales are multiples here.", "Sizes are multiples of 16."),
            ("Half of each head is turned.", "The option is turned off."),
            ("The recurrence runs.", "The recurrence relation holds."),
            ("The taps are read.", "The tapes are read."),
            ("This is what steers the states.", "The wheel steers."),
            ("There is one that every token goes to.", "The shared expert is dense."),
            ("A layer of experts is sparse.", "A layer of glass is thin."),
            ("Vectors of tokens for each layer are added.", "Vectors of floats are added."),
            ("The scores of the sinks join.", "The scores of the router join."),
            ("The gate is held to 7.", "The gate is clamped to 7."),
            ("The definition computes it.", "The function definition is parsed."),
            ("A rank's part is loaded.", "A part is loaded."),
            ("A token is drawn.", "A bar is drawn."),
            ("The longest beginning is shared.", "The text has a beginning."),
            ("The wanted tokens are few.", "The wanted poster is torn."),
            ("A place for a state is free.", "The copy is made in place."),
            ("At most 512 tokens a step run.", "At most 512 tokens run."),
            ("Many sequences at once run.", "It answers at once."),
            ("The KV of a token is small.", "The KV cache is small."),
            ("The memory of the host is large.", "The memory is large."),
            ("It finds calls of functions.", "It calls a function."),
            ("Its thoughts are hidden.", "It is thought to be fast."),
            ("The client is told why.", "The two are told apart."),
            ("A wish for GPUs is dropped.", "A wish is granted."),
        ];
        let text = |(private, english): (&str, &str)| format!("- {private}\n- {english}\n");
        let judged = sample("docs/design/kernels.md", &pairs.map(text).concat());
        assert_eq!(judged.len(), 2 * pairs.len());
        for pair in judged.chunks(2) {
            let rules = |at: usize| pair[at].breaches.iter().map(|breach| breach.rule);
            assert_eq!(rules(0).collect::<Vec<_>>(), [WORD], "{}", pair[0].sentence.text);
            assert_eq!(rules(1).count(), 0, "{}", pair[1].sentence.text);
        }
    }

    #[test]
    fn some_words_are_private_in_some_folders_only() {
        for (path, text) in [
            ("crates/kernels/src/x.rs", "/// It has another rule."),
            ("crates/api/src/x.rs", "/// Calls are held by a schema."),
        ] {
            assert_eq!(rules_broken(path, text), [WORD], "{text}");
            assert!(rules_broken("crates/hub/src/x.rs", text).is_empty(), "{text}");
        }
        assert!(rules_broken("docs/glossary.md", "It has codes.").is_empty());
    }

    #[test]
    fn what_is_to_be_written_stands_in_the_glossary() {
        let glossary = include_str!("../../../../docs/glossary.md");
        for row in PRIVATE_WORDS {
            let terms: Vec<&str> = row.instead.split('*').skip(1).step_by(2).collect();
            assert!(!terms.is_empty(), "{}", row.instead);
            for term in terms.iter().flat_map(|term| term.split(", ")) {
                assert!(glossary.contains(&format!("**{term}**")), "{term}");
            }
        }
    }
}
