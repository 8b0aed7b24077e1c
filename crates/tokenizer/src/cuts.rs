//! Cuts of a long text into pieces, such that the pieces' token ids are those of the whole text.
//!
//! A cut lies between two characters, the first of which is not white space. It is allowed if each step of the
//! tokenizer treats both sides as in the whole text. These steps are the search for added tokens, the normalizer, the
//! splitting rules, and the model where no rule splits. With an unknown step no text is cut.

mod rule;
mod stages;
mod syntax;

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use tokenizers::{ModelWrapper, NormalizerWrapper, Tokenizer};

use crate::prompt::is_noncharacter;
use rule::{Rule, Taken};
use stages::{Border, Normalizing, Splitting, State, is_prepend, sequence};

/// Most bytes of a piece, if the text can be cut at all.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// Most different characters that are examined in one text. It bounds the cost of cutting any text.
const MAX_CHARACTERS: usize = 4096;

/// Facts about a tokenizer by which its texts are cut.
pub(crate) struct Cuts {
    normalizing: Vec<Normalizing>,
    splitting: Vec<Splitting>,
    added: AddedTokens,
    merges: Merges,
    /// The normalizer for the continuation of a text, if it differs: it prepends nothing.
    continuing: Option<Option<NormalizerWrapper>>,
}

/// Borders that are no cuts because of the spellings of added tokens.
#[derive(Default)]
struct AddedTokens {
    /// Neighbours in a spelling.
    pairs: HashSet<Border>,
    characters: HashSet<char>,
    /// Last characters of spellings. White space after them, or the start of another spelling, may belong to the
    /// token.
    last: HashSet<char>,
    /// First characters of the spellings of tokens that must be whole words.
    first_of_word: HashSet<char>,
}

/// Merges of the model across a border at which no rule splits.
enum Merges {
    /// The merges are unknown.
    Unknown,
    /// For each white space character, as the model sees it, the characters before it in any token; and all
    /// characters that are tokens.
    Known { before: HashMap<char, HashSet<char>>, tokens: HashSet<char> },
}

impl Cuts {
    /// Returns `None` for a tokenizer whose texts cannot be cut.
    pub(crate) fn new(tokenizer: &Tokenizer) -> Option<Self> {
        let normalizer = serde_json::to_value(tokenizer.get_normalizer()).ok()?;
        let normalizing = Normalizing::steps(&normalizer)?;
        let pre_tokenizer = serde_json::to_value(tokenizer.get_pre_tokenizer()).ok()?;
        let splitting = Splitting::steps(&pre_tokenizer)?;
        let merges = Merges::new(tokenizer.get_model(), &splitting);
        let continuing = match without_prepend(&normalizer) {
            None => None,
            Some(rest) => Some(serde_json::from_value(rest).ok()?),
        };
        Some(Self {
            normalizing,
            splitting,
            added: AddedTokens::new(tokenizer),
            merges,
            continuing,
        })
    }

    /// The normalizer for the start of a piece that is not the first.
    pub(crate) fn continuing<'a>(
        &'a self,
        normalizer: Option<&'a NormalizerWrapper>,
    ) -> Option<&'a NormalizerWrapper> {
        self.continuing.as_ref().map_or(normalizer, Option::as_ref)
    }

    /// Whether a text may be cut at this border, whatever its other characters are.
    fn is_safe(&self, border: Border, known: &mut Known) -> bool {
        // Runs of one character are the costly texts, and all their borders are the same.
        if let Some((_, is_safe)) = known.last.filter(|(last, _)| *last == border) {
            return is_safe;
        }
        let is_safe = self.looks_safe(border, known).unwrap_or(false);
        known.last = Some((border, is_safe));
        is_safe
    }

    /// Returns `None` if a step does not treat both sides alike.
    fn looks_safe(&self, border: Border, known: &mut Known) -> Option<bool> {
        let (before, after) = border;
        // White space may belong to the added token after it. A mark stands for another character.
        let is_out = before.is_whitespace() || is_noncharacter(before) || is_noncharacter(after);
        if is_out || self.added.may_hold(border) {
            return None;
        }
        let border = self.normalized(border)?;
        if self.added.may_hold(border) {
            return None;
        }
        let state = State { border, is_split: false, is_text: true };
        let State { border, is_split, is_text } = self.split(state, 0, known)?;
        Some(is_split || is_text && self.merges.keep_apart(border))
    }

    fn normalized(&self, border: Border) -> Option<Border> {
        self.normalizing.iter().try_fold(border, |border, step| step.border(border))
    }

    /// The state of a border after the splitting steps from `from` on.
    fn split(&self, state: State, from: usize, known: &mut Known) -> Option<State> {
        let steps = self.splitting.iter().enumerate().skip(from);
        steps.into_iter().try_fold(state, |state, (index, step)| {
            step.state(state, |rule, character| known.taken(index, rule, character))
        })
    }

    /// Index of a cut in a run of characters that the first rule splits into groups of a fixed number, as it often
    /// does with digits.
    fn end_in_run(&self, text: &str, known: &mut Known) -> Option<usize> {
        let Some(Splitting::Around(rule)) = self.splitting.first() else { return None };
        // A normalizer that prepends text to a piece would shift the groups.
        let most = rule.counted().filter(|_| self.continuing.is_none())?;
        let mut taken = |character| known.taken(0, rule, character);
        let mut is_counted = |c: char| {
            !self.added.characters.contains(&c)
                && !is_noncharacter(c)
                && self.normalized((c, c)) == Some((c, c))
                && taken(c).is_some_and(|taken| rule.is_counted(taken))
        };
        let start = text.trim_end_matches(&mut is_counted).len();
        let run = &text[start..];
        let first = run.chars().next()?;
        let before = match text[..start].chars().next_back() {
            None => None,
            Some(before) if is_noncharacter(before) => return None,
            Some(before) => Some(taken(self.normalized((before, first))?.0)?),
        };
        // The run has to begin a match. Otherwise its groups do not count from its start.
        if !rule.begins_count(before, taken(first)?) {
            return None;
        }
        // The cut lies after whole groups only.
        let whole = run.chars().count() / most * most;
        let (last_at, last) = run.char_indices().nth(whole.checked_sub(1)?)?;
        if !rule.goes_on_alike(taken(last)?) {
            return None;
        }
        let state = State { border: (last, first), is_split: true, is_text: true };
        self.split(state, 1, known)?;
        Some(start + last_at + last.len_utf8())
    }
}

/// Cuts one text.
pub(crate) struct Cutter<'a> {
    cuts: Option<&'a Cuts>,
    piece_bytes: usize,
    known: Known,
}

impl<'a> Cutter<'a> {
    /// Makes a cutter. Pieces are longer than `piece_bytes` only if there is no cut.
    pub(crate) fn new(cuts: Option<&'a Cuts>, piece_bytes: usize) -> Self {
        Self { cuts, piece_bytes, known: Known::default() }
    }

    /// Index of the end of the text's first piece. The text begins at the end of the previous piece.
    pub(crate) fn end(&mut self, text: &str) -> usize {
        let window = text.floor_char_boundary(self.piece_bytes);
        let Some(cuts) = self.cuts.filter(|_| window < text.len()) else { return text.len() };
        let (inside, behind) = text.split_at(window);
        let known = &mut self.known;
        let mut after = behind.chars().next();
        // From the end of the window backwards, so that pieces are as long as possible.
        for (at, before) in inside.char_indices().rev() {
            if after.is_some_and(|after| cuts.is_safe((before, after), known)) {
                return at + before.len_utf8();
            }
            after = Some(before);
        }
        if let Some(end) = cuts.end_in_run(inside, known) {
            return end;
        }
        let mut before = inside.chars().next_back();
        // Without a cut in the window, the piece grows up to the next cut.
        for (at, after) in behind.char_indices() {
            if before.is_some_and(|before| cuts.is_safe((before, after), known)) {
                return window + at;
            }
            before = Some(after);
        }
        text.len()
    }
}

/// Facts about characters that are collected while a text is cut.
#[derive(Default)]
struct Known {
    taken: HashMap<(usize, char), Taken>,
    last: Option<(Border, bool)>,
}

impl Known {
    /// The positions of a step's rule that take a character. Returns `None` if too many characters were examined.
    fn taken(&mut self, step: usize, rule: &Rule, character: char) -> Option<Taken> {
        if let Some(taken) = self.taken.get(&(step, character)) {
            return Some(*taken);
        }
        // Each new character costs a match with every class of the rule.
        if self.taken.len() == MAX_CHARACTERS {
            return None;
        }
        let taken = rule.taken(character);
        self.taken.insert((step, character), taken);
        Some(taken)
    }
}

impl AddedTokens {
    fn new(tokenizer: &Tokenizer) -> Self {
        let mut added = Self::default();
        let vocabulary = tokenizer.get_added_vocabulary();
        for (id, token) in vocabulary.get_added_tokens_decoder() {
            // Some tokens are searched for in their normalized form.
            for spelling in [Some(token.content.clone()), vocabulary.simple_id_to_token(*id)] {
                let spelling = spelling.unwrap_or_default();
                added.pairs.extend(spelling.chars().zip(spelling.chars().skip(1)));
                added.characters.extend(spelling.chars());
                added.last.extend(spelling.chars().next_back());
                let first = spelling.chars().next().filter(|_| token.single_word);
                added.first_of_word.extend(first);
            }
        }
        added
    }

    /// Whether a token, or white space that it takes, may extend over a border or end at it.
    fn may_hold(&self, border: Border) -> bool {
        self.pairs.contains(&border)
            || self.last.contains(&border.0)
            || self.first_of_word.contains(&border.1)
    }
}

impl Merges {
    fn new(model: &ModelWrapper, splitting: &[Splitting]) -> Self {
        let ModelWrapper::BPE(bpe) = model else { return Self::Unknown };
        let is_empty = |affix: &Option<String>| affix.as_ref().is_none_or(String::is_empty);
        let is_plain = bpe.dropout.is_none()
            && is_empty(&bpe.continuing_subword_prefix)
            && is_empty(&bpe.end_of_word_suffix);
        // After a conversion to bytes, tokens are not made of the text's characters.
        if !is_plain || splitting.iter().any(|step| matches!(step, Splitting::Bytes)) {
            return Self::Unknown;
        }
        // White space occurs in every long text. Other characters would need a table of all neighbours in the
        // vocabulary.
        let mut before = HashMap::from([' ', '\u{2581}', '\n'].map(|c| (c, HashSet::new())));
        let mut tokens = HashSet::new();
        for token in bpe.get_vocab().keys() {
            for (first, second) in token.chars().zip(token.chars().skip(1)) {
                if let Some(before) = before.get_mut(&second) {
                    before.insert(first);
                }
            }
            let mut characters = token.chars();
            tokens.extend(characters.next().filter(|_| characters.next().is_none()));
        }
        Self::Known { before, tokens }
    }

    /// Whether no token contains both neighbours, so that no merge joins the two sides. A character that is no token
    /// may become unknown together with its neighbours.
    fn keep_apart(&self, (first, second): Border) -> bool {
        let Self::Known { before, tokens } = self else { return false };
        let is_known = tokens.contains(&first) && tokens.contains(&second);
        is_known && before.get(&second).is_some_and(|before| !before.contains(&first))
    }
}

/// The normalizer without the steps that prepend text, if it has such steps.
fn without_prepend(normalizer: &Value) -> Option<Value> {
    let steps = sequence(normalizer, "normalizers");
    let kept: Vec<&Value> = steps.iter().copied().filter(|step| !is_prepend(step)).collect();
    let sequence = || json!({"type": "Sequence", "normalizers": kept});
    (kept.len() < steps.len()).then(|| if kept.is_empty() { Value::Null } else { sequence() })
}

#[cfg(test)]
mod tests;
