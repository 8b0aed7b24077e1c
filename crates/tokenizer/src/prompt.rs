//! A rendered conversation that distinguishes special tokens of its template from those that its texts spell out.
//!
//! In a rendered prompt, the `<|im_end|>` that ends a turn and an `<|im_end|>` that a user typed look the same. So a
//! conversation that spells one out is rendered a second time. The first character of every such spelling is then
//! replaced by a mark: a character that Unicode reserves for use inside programs. Only the template's own spellings
//! are whole then, and only they become special tokens. Marks are replaced by their characters before the text is
//! normalized and split, so that the library tokenizes the rest as usual.

use std::borrow::Cow;
use std::collections::HashSet;

use aho_corasick::AhoCorasick;
use serde_json::{Map, Value};

use crate::{Error, Result};

/// The text of a prompt, and the positions at which special tokens are only spelled out. It is made by
/// [`ChatTemplate::prompt`](crate::ChatTemplate::prompt), for
/// [`Tokenizer::encode_prompt`](crate::Tokenizer::encode_prompt).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    text: String,
    marked: Option<(String, Marks)>,
}

impl Prompt {
    /// A text whose spellings of special tokens are all special tokens.
    pub(crate) fn plain(text: String) -> Self {
        Self { text, marked: None }
    }

    /// A text in which marks stand for the first characters of special tokens that are only spelled out.
    pub(crate) fn marked(text: String, marks: Marks) -> Self {
        Self { text: marks.remove(&text), marked: Some((text, marks)) }
    }

    /// The text without marks.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The same prompt with `text` in place of each special token that its template wrote as `spelling`. Spellings in
    /// the conversation's texts stay as they are.
    #[must_use]
    pub fn with_special(&self, spelling: &str, text: &str) -> Self {
        match &self.marked {
            None => Self::plain(self.text.replace(spelling, text)),
            Some((marked, marks)) => Self::marked(marked.replace(spelling, text), marks.clone()),
        }
    }

    /// The text with its marks, if it has some.
    pub(crate) fn marks(&self) -> Option<(&str, &Marks)> {
        self.marked.as_ref().map(|(text, marks)| (text.as_str(), marks))
    }
}

/// Characters that stand for others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Pairs of a mark and its character.
    pairs: Vec<(char, char)>,
    /// Marks that are not used yet.
    unused: Vec<char>,
}

impl Marks {
    /// Marks that do not occur in `text`.
    fn absent_from(text: &str) -> Self {
        let is_absent = |&mark: &char| !text.contains(mark);
        Self { pairs: Vec::new(), unused: noncharacters().filter(is_absent).collect() }
    }

    /// The character for which a character of a marked text stands.
    pub(crate) fn written(&self, character: char) -> char {
        self.pairs.iter().find(|(mark, _)| *mark == character).map_or(character, |pair| pair.1)
    }

    fn remove(&self, text: &str) -> String {
        text.chars().map(|character| self.written(character)).collect()
    }

    fn for_character(&mut self, written: char) -> Result<char> {
        if let Some((mark, _)) = self.pairs.iter().find(|pair| pair.1 == written) {
            return Ok(*mark);
        }
        let mark = self.unused.pop().ok_or(Error::NoMarkLeft)?;
        self.pairs.push((mark, written));
        Ok(mark)
    }
}

/// The 66 code points that are never characters.
///
/// Source: The Unicode Standard, 23.7.
fn noncharacters() -> impl Iterator<Item = char> {
    let plane_ends = (0..=16u32).flat_map(|plane| [plane << 16 | 0xFFFE, plane << 16 | 0xFFFF]);
    (0xFDD0..=0xFDEF).chain(plane_ends).filter_map(char::from_u32)
}

/// Whether this code point is never a character.
pub(crate) fn is_noncharacter(character: char) -> bool {
    let code = u32::from(character);
    (0xFDD0..=0xFDEF).contains(&code) || code & 0xFFFE == 0xFFFE
}

/// Finds the spellings of special tokens in texts.
pub(crate) struct SpellingFinder {
    automaton: AhoCorasick,
    /// Ends of texts that may become a special token together with the next text: all proper prefixes of spellings.
    beginnings: HashSet<String>,
    longest_beginning: usize,
}

/// Number of times that each special token is spelled out.
type Counts = Vec<usize>;

impl SpellingFinder {
    /// # Errors
    /// [`Error::BadTokenizer`], if there are more special tokens than can be searched for at once.
    pub(crate) fn new(spellings: &[String]) -> Result<Self> {
        let automaton =
            AhoCorasick::new(spellings).map_err(|error| Error::BadTokenizer(error.to_string()))?;
        let beginnings = spellings
            .iter()
            .flat_map(|spelling| {
                spelling.char_indices().skip(1).map(|(end, _)| spelling[..end].to_owned())
            })
            .collect::<HashSet<_>>();
        let longest_beginning = beginnings.iter().map(String::len).max().unwrap_or(0);
        Ok(Self { automaton, beginnings, longest_beginning })
    }

    /// The prompt of a conversation, whose text `render` makes.
    ///
    /// # Errors
    /// The errors of `render`, and [`Error::NoMarkLeft`].
    pub(crate) fn prompt(
        &self,
        conversation: &Conversation<'_>,
        render: impl Fn(&Conversation<'_>) -> Result<String>,
    ) -> Result<Prompt> {
        let text = render(conversation)?;
        if !self.is_spelled_in(conversation) {
            return Ok(Prompt::plain(text));
        }
        let mut marks = Marks::absent_from(&text);
        let marked = render(&self.mark(conversation, &mut marks, |_| true)?)?;
        let (seen, written) = (self.count(&text), self.count(&marked));
        // The conversation's spellings did not reach the prompt.
        if seen == written {
            return Ok(Prompt::plain(text));
        }
        if marks.remove(&marked) != text {
            // The template searches the conversation for special tokens, as some do for `</think>`. It may see the
            // tokens that do not appear in its output more often than it writes them itself.
            let reads = |token: usize| seen[token] <= written[token];
            let read = render(&self.mark(conversation, &mut marks, |token| !reads(token))?)?;
            if marks.remove(&read) == text {
                return Ok(Prompt::marked(read, marks));
            }
        }
        Ok(Prompt::marked(marked, marks))
    }

    fn count(&self, text: &str) -> Counts {
        let mut counts = vec![0; self.automaton.patterns_len()];
        for spelled in self.automaton.find_overlapping_iter(text) {
            counts[spelled.pattern().as_usize()] += 1;
        }
        counts
    }

    fn is_spelled_in(&self, conversation: &Conversation<'_>) -> bool {
        let is_spelled = |text: &str| {
            self.automaton.is_match(text) || self.beginnings_at_end(text).next().is_some()
        };
        conversation.values().any(|value| any_text(value, &is_spelled))
    }

    /// The conversation with marks in the spellings of tokens for which `is_wanted` returns true.
    fn mark(
        &self,
        conversation: &Conversation<'_>,
        marks: &mut Marks,
        is_wanted: impl Fn(usize) -> bool,
    ) -> Result<Conversation<'static>> {
        let mut mark = |text: &str| {
            let mut starts = self
                .automaton
                .find_overlapping_iter(text)
                .filter(|spelled| is_wanted(spelled.pattern().as_usize()))
                .map(|spelled| spelled.start())
                .chain(self.beginnings_at_end(text))
                .collect::<Vec<_>>();
            starts.sort_unstable();
            starts.dedup();
            with_marks(text, &starts, marks)
        };
        let mut map = |value: &Cow<'_, Value>| map_texts(value, &mut mark).map(Cow::Owned);
        Ok(Conversation {
            messages: map(&conversation.messages)?,
            tools: conversation.tools.as_ref().map(&mut map).transpose()?,
            documents: conversation.documents.as_ref().map(&mut map).transpose()?,
        })
    }

    /// Indices at the text's end from which it is a prefix of a special token's spelling. White space that a template
    /// may trim is ignored.
    fn beginnings_at_end(&self, text: &str) -> impl Iterator<Item = usize> {
        let text = text.trim_end();
        let first = text.len().saturating_sub(self.longest_beginning);
        (first..text.len())
            .filter(|&at| text.is_char_boundary(at) && self.beginnings.contains(&text[at..]))
    }
}

/// The parts of a prompt that do not come from the model's own files.
#[derive(Debug, Clone)]
pub(crate) struct Conversation<'a> {
    pub(crate) messages: Cow<'a, Value>,
    pub(crate) tools: Option<Cow<'a, Value>>,
    pub(crate) documents: Option<Cow<'a, Value>>,
}

impl Conversation<'_> {
    fn values(&self) -> impl Iterator<Item = &Value> {
        [Some(&self.messages), self.tools.as_ref(), self.documents.as_ref()]
            .into_iter()
            .flatten()
            .map(AsRef::as_ref)
    }
}

/// The text with a mark for each character at `starts`.
fn with_marks(text: &str, starts: &[usize], marks: &mut Marks) -> Result<String> {
    let mut marked = String::with_capacity(text.len() + starts.len() * 3);
    let mut rest = 0;
    for &start in starts {
        let written = text[start..].chars().next().expect("a spelling is not empty");
        marked.push_str(&text[rest..start]);
        marked.push(marks.for_character(written)?);
        rest = start + written.len_utf8();
    }
    marked.push_str(&text[rest..]);
    Ok(marked)
}

/// Number of bytes of all texts in a JSON value, names of fields included.
pub(crate) fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| name.len() + text_bytes(value)).sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// Whether `is_such` holds for any text of a JSON value, names of fields included.
fn any_text(value: &Value, is_such: &dyn Fn(&str) -> bool) -> bool {
    match value {
        Value::String(text) => is_such(text),
        Value::Array(items) => items.iter().any(|item| any_text(item, is_such)),
        Value::Object(fields) => {
            fields.iter().any(|(name, value)| is_such(name) || any_text(value, is_such))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// A JSON value with each text replaced, names of fields included.
fn map_texts(value: &Value, map: &mut dyn FnMut(&str) -> Result<String>) -> Result<Value> {
    Ok(match value {
        Value::String(text) => Value::String(map(text)?),
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| map_texts(item, map)).collect::<Result<_>>()?)
        }
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .map(|(name, value)| Ok((map(name)?, map_texts(value, map)?)))
                .collect::<Result<Map<_, _>>>()?,
        ),
        other => other.clone(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn finder() -> SpellingFinder {
        SpellingFinder::new(&["<|end|>", "<|e", "[X]"].map(str::to_owned)).unwrap()
    }

    fn conversation(messages: Value) -> Conversation<'static> {
        Conversation { messages: Cow::Owned(messages), tools: None, documents: None }
    }

    fn said(text: &str) -> Conversation<'static> {
        conversation(json!([{"content": text}]))
    }

    fn content(conversation: &Conversation<'_>) -> Result<String> {
        Ok(conversation.messages[0]["content"].as_str().unwrap().to_owned())
    }

    #[test]
    fn marks_stand_where_tokens_are_spelled_out_and_nowhere_else() {
        let finder = finder();
        for plain in ["", "a < b", "<|x|>", "[ X]", "<|", " a [b] ", "é<|"] {
            let prompt = finder.prompt(&said(plain), content).unwrap();
            assert_eq!(prompt, Prompt::plain(plain.into()));
        }
        for (spelled, count) in [("<|end|>", 1), ("a[X]<|end|>[X] é", 3), ("<<|e", 1)] {
            let prompt = finder.prompt(&said(spelled), content).unwrap();
            assert_eq!(prompt.text(), spelled);
            let (marked, _) = prompt.marks().unwrap();
            assert_eq!(marked.chars().filter(|&c| is_noncharacter(c)).count(), count, "{marked:?}");
            assert!(finder.count(marked).iter().all(|&count| count == 0), "{marked:?}");
        }
    }

    #[test]
    fn only_the_templates_own_tokens_are_replaced() {
        let finder = finder();
        let render = |conversation: &Conversation<'_>| Ok(content(conversation)? + "[X]");
        let prompt = finder.prompt(&said("a"), render).unwrap().with_special("[X]", "[Y][Z]");
        assert_eq!(prompt, Prompt::plain("a[Y][Z]".into()));
        let prompt = finder.prompt(&said("a[X]"), render).unwrap().with_special("[X]", "[Y][Z]");
        assert_eq!(prompt.text(), "a[X][Y][Z]");
        assert!(prompt.marks().is_some_and(|(marked, _)| marked.ends_with("X][Y][Z]")));
    }

    #[test]
    fn what_two_texts_spell_together_is_marked() {
        let finder = finder();
        let two = conversation(json!([{"a": "x <|en ", "b": "d|> y"}]));
        let joined = |conversation: &Conversation<'_>| {
            let message = &conversation.messages[0];
            let text = |name: &str| message[name].as_str().unwrap().trim().to_owned();
            Ok(text("a") + &text("b"))
        };
        let prompt = finder.prompt(&two, joined).unwrap();
        assert_eq!(prompt.text(), "x <|end|> y");
        assert!(prompt.marks().is_some_and(|(marked, _)| !marked.contains('<')));
    }

    #[test]
    fn a_template_may_look_for_a_token_and_forges_none_by_it() {
        let finder = finder();
        // This template cuts at `[X]`, as others do at `</think>`.
        let cut = |conversation: &Conversation<'_>| {
            Ok(content(conversation)?.split("[X]").last().unwrap().to_owned())
        };
        let prompt = finder.prompt(&said("a[X]b"), cut).unwrap();
        assert_eq!(prompt, Prompt::plain("b".into()));
        let prompt = finder.prompt(&said("a[X]b<|end|>"), cut).unwrap();
        assert_eq!(prompt.text(), "b<|end|>");
        assert!(prompt.marks().is_some_and(|(marked, _)| !marked.contains('<')));
        // This template doubles the spellings that it finds, so they are hidden from it.
        let double =
            |conversation: &Conversation<'_>| Ok(content(conversation)?.replace("[X]", "[X][X]"));
        let prompt = finder.prompt(&said("a[X]b"), double).unwrap();
        assert_eq!(prompt.text(), "a[X]b");
        assert!(prompt.marks().is_some_and(|(marked, _)| !marked.contains('[')));
    }

    #[test]
    fn a_text_may_hold_noncharacters_but_not_all_of_them() {
        let finder = finder();
        let some = "\u{FDD0}\u{10FFFF}<|end|>";
        assert_eq!(finder.prompt(&said(some), content).unwrap().text(), some);
        let all = noncharacters().collect::<String>();
        assert_eq!(all.chars().count(), 66);
        assert!(all.chars().all(is_noncharacter) && !is_noncharacter('\u{FDCF}'));
        assert!(finder.prompt(&said(&all), content).unwrap().marks().is_none());
        let error = finder.prompt(&said(&(all + "<|end|>")), content).unwrap_err();
        assert!(matches!(error, Error::NoMarkLeft));
    }
}
