//! The effect of a tokenizer's steps before its model at the border between two characters.

use serde_json::Value;

use super::rule::{Rule, Taken};

/// GPT-2's splitting rule, which `ByteLevel` has built in.
///
/// Source: `RE` in the `tokenizers` library's pre_tokenizers/byte_level.rs.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The two characters around a border, as a step outputs them.
pub(super) type Border = (char, char);

/// A step of the normalizer that changes characters one by one, at least at the borders that it allows.
pub(super) enum Normalizing {
    Compose,
    Replace(char, String),
    /// BERT's normalizer, or lower case alone. Apart from the case they leave ASCII characters unchanged.
    Ascii {
        lower_case: bool,
    },
}

impl Normalizing {
    /// The steps of a normalizer except those that prepend text. Returns `None` if one of them is unknown.
    pub(super) fn steps(normalizer: &Value) -> Option<Vec<Self>> {
        let step = |value: &Value| match value["type"].as_str()? {
            "NFC" => Some(Self::Compose),
            // Replacements of several characters could reach across a border.
            "Replace" => {
                let mut pattern = value["pattern"]["String"].as_str()?.chars();
                let content = value["content"].as_str().filter(|content| !content.is_empty())?;
                let replaced = pattern.next().filter(|_| pattern.next().is_none())?;
                Some(Self::Replace(replaced, content.to_owned()))
            }
            "BertNormalizer" => Some(Self::Ascii { lower_case: value["lowercase"] == true }),
            "Lowercase" => Some(Self::Ascii { lower_case: true }),
            _ => None,
        };
        sequence(normalizer, "normalizers")
            .into_iter()
            .filter(|value| !is_prepend(value))
            .map(step)
            .collect()
    }

    /// The border in the normalized text, if both of its sides are normalized alike when they stand alone.
    pub(super) fn border(&self, (before, after): Border) -> Option<Border> {
        match self {
            Self::Compose => (is_stable(before) && is_stable(after)).then_some((before, after)),
            Self::Replace(from, to) => {
                let last = if before == *from { to.chars().next_back()? } else { before };
                Some((last, if after == *from { to.chars().next()? } else { after }))
            }
            Self::Ascii { lower_case } => {
                // BERT's normalizer removes control characters and accents, and puts spaces around Chinese
                // characters.
                let is_plain = |c: char| c.is_ascii_graphic() || c == ' ';
                let cased = |c: char| if *lower_case { c.to_ascii_lowercase() } else { c };
                (is_plain(before) && is_plain(after)).then_some((cased(before), cased(after)))
            }
        }
    }
}

/// Whether this step of a normalizer only prepends text.
pub(super) fn is_prepend(value: &Value) -> bool {
    value["type"] == "Prepend"
}

/// Whether composition changes nothing at the edges of this character.
///
/// Source: NFC_Quick_Check and Canonical_Combining_Class in the Unicode Character Database, which have more such
/// characters.
fn is_stable(character: char) -> bool {
    matches!(character,
        '\0'..='\u{2FF}' | '\u{37F}'..='\u{386}' | '\u{388}'..='\u{482}' | '\u{48A}'..='\u{52F}'
        | '\u{2581}' | '\u{3001}'..='\u{3029}' | '\u{4E00}'..='\u{9FFF}' | '\u{FF01}'..='\u{FF60}')
}

/// A step of the pre-tokenizer.
pub(super) enum Splitting {
    /// Splits around the matches of a rule, each of which becomes a word or is left out.
    Around(Rule),
    /// Joins matches of a rule with their neighbours.
    Joining(Rule),
    /// Splits around each character for which the function returns true, perhaps around others, too.
    Each(fn(char) -> bool),
    /// Splits where a run of such characters begins or ends. `None` means that only the library knows.
    Runs(fn(char) -> Option<bool>),
    Metaspace {
        replacement: char,
        splits: bool,
        /// Whether a text without a separator at its start gets one: the whole text, or each word.
        prepends: Prepends,
    },
    /// Adds a space before each word that does not begin with one.
    PrefixSpace,
    /// Converts bytes to characters, about which nothing is known here.
    Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Prepends {
    Never,
    ToWords,
    ToText,
}

/// State of a border after a step.
#[derive(Clone, Copy)]
pub(super) struct State {
    pub(super) border: Border,
    /// Whether words end here.
    pub(super) is_split: bool,
    /// Whether the characters are those of the text.
    pub(super) is_text: bool,
}

impl Splitting {
    /// The steps of a pre-tokenizer. Returns `None` if one of them is unknown.
    pub(super) fn steps(pre_tokenizer: &Value) -> Option<Vec<Self>> {
        let mut steps = Vec::new();
        for value in sequence(pre_tokenizer, "pretokenizers") {
            match value["type"].as_str()? {
                "Split" => steps.push(split(value)?),
                "ByteLevel" => {
                    if value["add_prefix_space"] != false {
                        steps.push(Self::PrefixSpace);
                    }
                    if value["use_regex"] != false {
                        steps.push(Self::Around(Rule::new(GPT2)?));
                    }
                    steps.push(Self::Bytes);
                }
                "Digits" if value["individual_digits"] == true => {
                    steps.push(Self::Each(char::is_numeric));
                }
                "Digits" => steps.push(Self::Runs(|c| Some(c.is_numeric()))),
                "WhitespaceSplit" => steps.push(Self::Each(char::is_whitespace)),
                // Punctuation outside of ASCII splits there, too. Not knowing it only costs cuts.
                "BertPreTokenizer" => {
                    let punctuation = Self::Each(|c| c.is_ascii_punctuation());
                    steps.extend([Self::Each(char::is_whitespace), punctuation]);
                }
                "Punctuation" => match value["behavior"].as_str()? {
                    "Isolated" | "Removed" => {
                        steps.push(Self::Each(|c| c.is_ascii_punctuation()));
                    }
                    "Contiguous" => steps.push(Self::Runs(is_punctuation)),
                    _ => return None,
                },
                "Metaspace" => steps.push(metaspace(value)?),
                _ => return None,
            }
        }
        Some(steps)
    }

    /// The state after this step. Returns `None` if the step's result depends on both sides of the border. `taken`
    /// are the positions of the step's rule that take the characters.
    pub(super) fn state(
        &self,
        state: State,
        mut taken: impl FnMut(&Rule, char) -> Option<Taken>,
    ) -> Option<State> {
        let State { border: (before, after), is_split, is_text } = state;
        if let Self::Metaspace { replacement, splits, prepends } = self {
            let is_separator = after == ' ' || after == *replacement;
            // The beginning of a piece is treated like the beginning of the text.
            let is_alike = is_separator && is_text
                || *prepends == Prepends::Never
                || *prepends == Prepends::ToWords && is_split;
            let mapped = |c: char| if c == ' ' { *replacement } else { c };
            return is_alike.then_some(State {
                border: (mapped(before), mapped(after)),
                is_split: is_split || *splits && is_separator && is_text,
                is_text,
            });
        }
        // Each word is split separately.
        if is_split {
            return Some(state);
        }
        if !is_text {
            return None;
        }
        let is_split = match self {
            Self::Around(rule) => {
                let (before, after) = (taken(rule, before)?, taken(rule, after)?);
                rule.is_blind_across(before, after).then(|| rule.has_edge(before, after))
            }
            Self::Joining(rule) => {
                let is_held =
                    rule.may_hold(taken(rule, before)?) || rule.may_hold(taken(rule, after)?);
                (!is_held).then_some(false)
            }
            Self::Each(is_such) => Some(is_such(before) || is_such(after)),
            Self::Runs(is_such) => Some(is_such(before)? != is_such(after)?),
            // The beginning of a piece would get a space that the whole text does not have there.
            Self::PrefixSpace => (after == ' ').then_some(false),
            // Bytes of one character are several characters afterwards, so no later rule can be judged.
            Self::Bytes => return Some(State { is_text: false, ..state }),
            Self::Metaspace { .. } => unreachable!("it was asked above"),
        };
        Some(State { is_split: is_split?, ..state })
    }
}

/// The steps of a sequence, or the one step.
pub(super) fn sequence<'a>(value: &'a Value, name: &str) -> Vec<&'a Value> {
    match value {
        Value::Null => Vec::new(),
        value if value["type"] == "Sequence" => {
            let steps = value[name].as_array().into_iter().flatten();
            steps.flat_map(|step| sequence(step, name)).collect()
        }
        value => vec![value],
    }
}

fn split(value: &Value) -> Option<Splitting> {
    let pattern = &value["pattern"];
    let rule = match pattern["Regex"].as_str() {
        Some(rule) => Rule::new(rule)?,
        None => Rule::new(&literal(pattern["String"].as_str()?))?,
    };
    Some(match value["behavior"].as_str()? {
        "Isolated" | "Removed" => Splitting::Around(rule),
        _ => Splitting::Joining(rule),
    })
}

/// A rule that matches exactly this text.
fn literal(text: &str) -> String {
    let escaped = |c: char| {
        if c.is_ascii_punctuation() { format!("\\{c}") } else { c.to_string() }
    };
    text.chars().map(escaped).collect()
}

fn metaspace(value: &Value) -> Option<Splitting> {
    let mut replacement = value["replacement"].as_str()?.chars();
    Some(Splitting::Metaspace {
        replacement: replacement.next().filter(|_| replacement.next().is_none())?,
        splits: value["split"] != false,
        prepends: match value["prepend_scheme"].as_str()? {
            "never" => Prepends::Never,
            "always" => Prepends::ToWords,
            "first" => Prepends::ToText,
            _ => return None,
        },
    })
}

/// Whether a character is punctuation by the library's table. Returns `None` if that is not known here.
fn is_punctuation(character: char) -> Option<bool> {
    if character.is_ascii() {
        return Some(character.is_ascii_punctuation());
    }
    (character.is_alphanumeric() || character.is_whitespace()).then_some(false)
}
