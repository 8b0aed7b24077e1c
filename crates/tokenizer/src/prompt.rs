//! A rendered conversation, in which the special tokens that its texts spell out are told from those of its template.
//!
//! In a rendered prompt, the `<|im_end|>` that ends a turn and an `<|im_end|>` that somebody typed look the same. So a
//! conversation that spells one out is rendered a second time, with the first character of every such spelling replaced
//! by a mark: a character that Unicode sets aside for use inside programs. Only what the template writes is whole then,
//! and only that becomes a special token. Marks turn back into what they stand for before the text is normalized and
//! split, so the rest is tokenized as the library tokenizes it.

use std::borrow::Cow;
use std::collections::HashSet;

use aho_corasick::AhoCorasick;
use serde_json::{Map, Value};

use crate::{Error, Result};

/// The text of a prompt and where in it special tokens are only spelled out. Made by
/// [`ChatTemplate::prompt`](crate::ChatTemplate::prompt), for [`Tokenizer::encode_prompt`](crate::Tokenizer::encode_prompt).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    text: String,
    marked: Option<(String, Marks)>,
}

impl Prompt {
    /// A text whose special tokens all are what they look like.
    pub(crate) fn plain(text: String) -> Self {
        Self { text, marked: None }
    }

    /// A text in which marks stand for the first characters of spelled-out special tokens.
    pub(crate) fn marked(text: String, marks: Marks) -> Self {
        Self { text: marks.remove(&text), marked: Some((text, marks)) }
    }

    /// The text, as it reads.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text with its marks, where it has any.
    pub(crate) fn marks(&self) -> Option<(&str, &Marks)> {
        self.marked.as_ref().map(|(text, marks)| (text.as_str(), marks))
    }
}

/// Characters that stand for others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Mark and what it stands for.
    pairs: Vec<(char, char)>,
    /// Marks that can still be given out.
    unused: Vec<char>,
}

impl Marks {
    /// Marks that do not occur in `text`.
    fn absent_from(text: &str) -> Self {
        let is_absent = |&mark: &char| !text.contains(mark);
        Self { pairs: Vec::new(), unused: noncharacters().filter(is_absent).collect() }
    }

    /// What a character of a marked text stands for.
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
    /// What a text may end with to become a special token together with the next: every proper beginning of a spelling.
    beginnings: HashSet<String>,
    longest_beginning: usize,
}

/// How often each special token is spelled out.
type Counts = Vec<usize>;

impl SpellingFinder {
    /// # Errors
    /// [`Error::BadTokenizer`] for more special tokens than can be searched for at once.
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

    /// The prompt of a conversation, which `render` makes a text of.
    ///
    /// # Errors
    /// What `render` fails with; [`Error::NoMarkLeft`].
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
            // The template looks for special tokens in the conversation, as some do for `</think>`. It may see those
            // that do not come out of it as more tokens than it writes of itself.
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

    /// The conversation with marks in the spellings of tokens that `is_wanted` picks.
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

    /// Where the text's end, but for white space that a template may trim, begins to spell out a special token.
    fn beginnings_at_end(&self, text: &str) -> impl Iterator<Item = usize> {
        let text = text.trim_end();
        let first = text.len().saturating_sub(self.longest_beginning);
        (first..text.len())
            .filter(|&at| text.is_char_boundary(at) && self.beginnings.contains(&text[at..]))
    }
}

/// What of a prompt comes from outside the model's own files.
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

/// The bytes of all texts in a JSON value, names of fields among them.
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

/// Whether any text of a JSON value, names of fields among them, is such a one.
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

/// A JSON value with each text, names of fields among them, replaced.
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
        // Cuts at `[X]`, as templates do at `</think>`.
        let cut = |conversation: &Conversation<'_>| {
            Ok(content(conversation)?.split("[X]").last().unwrap().to_owned())
        };
        let prompt = finder.prompt(&said("a[X]b"), cut).unwrap();
        assert_eq!(prompt, Prompt::plain("b".into()));
        let prompt = finder.prompt(&said("a[X]b<|end|>"), cut).unwrap();
        assert_eq!(prompt.text(), "b<|end|>");
        assert!(prompt.marks().is_some_and(|(marked, _)| !marked.contains('<')));
        // Doubles what it finds: then it does not get to see it.
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
