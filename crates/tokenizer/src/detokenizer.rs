//! Converts generated tokens to text, one at a time, and never splits a character.

use std::sync::Arc;

use crate::decoder::{DecoderKind, Leading, TokenClass};
use crate::{Result, SkipSpecialTokens, Tokenizer};

/// Converts the generated tokens of one sequence to pieces of text.
///
/// All pieces together are the text of prompt and generated tokens, without the prompt's own text. So a piece has a
/// leading space exactly if it has one within that text. A character whose bytes come in several tokens is held back
/// until it is complete. Bytes that are no character become U+FFFD as soon as that is certain.
///
/// One detail differs from [`Tokenizer::decode`]. In a byte-fallback vocabulary the library replaces a whole run of
/// byte tokens by U+FFFD if any of it is damaged. A stream cannot take text back, so complete characters stay here.
///
/// The time for a token is proportional to its own text, for any length of the sequence.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    shown: Shown,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    Bytes(ByteState),
    Window(Window),
}

impl Detokenizer {
    /// Makes a detokenizer for the tokens that are generated after `prompt`, the prompt's token ids.
    ///
    /// # Errors
    /// [`crate::Error::Decode`], only by decoders that are not tables of bytes.
    pub fn new(
        tokenizer: Tokenizer,
        prompt: &[u32],
        skip_special_tokens: SkipSpecialTokens,
    ) -> Result<Self> {
        let shown = Shown { tokenizer, skip_special_tokens, always: Arc::default() };
        let state = match shown.tokenizer.kind() {
            DecoderKind::ByteLevel => State::Bytes(
                ByteState::new(Leading::Spaces(0), Damage::PerSequence)
                    .after_prompt(&shown, prompt),
            ),
            DecoderKind::SentencePiece(steps) => State::Bytes(
                ByteState::new(steps.leading, Damage::PerByte).after_prompt(&shown, prompt),
            ),
            DecoderKind::Opaque => State::Window(Window::after_prompt(&shown, prompt)?),
        };
        Ok(Self { shown, state })
    }

    /// The same detokenizer, which spells these special tokens out even if others are left out.
    pub fn showing(mut self, special_ids: Arc<[u32]>) -> Self {
        self.shown.always = special_ids;
        self
    }

    /// Takes the next generated token. Returns the text that is certain now, if there is any.
    ///
    /// # Errors
    /// [`crate::Error::Decode`], only by decoders that are not tables of bytes.
    pub fn push(&mut self, id: u32) -> Result<Option<String>> {
        if !self.shown.contains(id) {
            return Ok(None);
        }
        let text = match &mut self.state {
            State::Bytes(bytes) => bytes.push(&self.shown.tokenizer, id),
            State::Window(window) => window.push(&self.shown, id)?,
        };
        Ok((!text.is_empty()).then_some(text))
    }

    /// Returns the rest of the text when no more tokens come. An unfinished character becomes U+FFFD.
    ///
    /// # Errors
    /// [`crate::Error::Decode`], only by decoders that are not tables of bytes.
    pub fn finish(&mut self) -> Result<Option<String>> {
        let text = match &mut self.state {
            State::Bytes(bytes) => bytes.finish(),
            State::Window(window) => window.emit(&self.shown)?,
        };
        Ok((!text.is_empty()).then_some(text))
    }
}

/// Choice of the tokens that become text.
#[derive(Debug, Clone)]
struct Shown {
    tokenizer: Tokenizer,
    skip_special_tokens: SkipSpecialTokens,
    /// Special tokens that always become text.
    always: Arc<[u32]>,
}

impl Shown {
    fn contains(&self, id: u32) -> bool {
        self.tokenizer.is_shown(id, self.skip_special_tokens) || self.always.contains(&id)
    }

    /// Decodes tokens that are all shown.
    fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids, SkipSpecialTokens::No)
    }

    /// The end of the prompt, from the last shown token on for which `is_enough` returns true.
    fn tail<'a>(&self, prompt: &'a [u32], mut is_enough: impl FnMut(u32) -> bool) -> &'a [u32] {
        let start = prompt.iter().rposition(|&id| self.contains(id) && is_enough(id)).unwrap_or(0);
        &prompt[start..]
    }
}

/// State for decoders that concatenate the bytes of tokens.
#[derive(Debug, Clone)]
struct ByteState {
    /// Part that is still to be cut off the beginning of the text; `Spaces(0)` once there is text.
    leading: Leading,
    damage: Damage,
    /// First bytes of a character, at most 3 between two tokens.
    pending: Vec<u8>,
}

/// Number of U+FFFD for bytes that are no character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    /// One for each longest prefix of a character, as in Unicode's recommendation and `String::from_utf8_lossy`.
    PerSequence,
    /// One for each byte, as in the library's `ByteFallback`. Bytes of other tokens never continue these.
    PerByte,
}

impl ByteState {
    fn new(leading: Leading, damage: Damage) -> Self {
        Self { leading, damage, pending: Vec::new() }
    }

    /// Reads the beginning of the prompt, until it is known which part is cut off there, and the prompt's last bytes.
    /// These may be the first bytes of a character, which then counts as generated.
    fn after_prompt(mut self, shown: &Shown, prompt: &[u32]) -> Self {
        let mut rest = prompt;
        // The loop ends at the first text of the prompt, so it is short for prompts of any length.
        while let ([id, after @ ..], false) = (rest, self.leading == Leading::Spaces(0)) {
            if shown.contains(*id) {
                self.push(&shown.tokenizer, *id);
            }
            rest = after;
        }
        let mut num_bytes = 0;
        let tail = shown.tail(rest, |id| {
            num_bytes += shown.tokenizer.token_bytes(id).len();
            // A character has at most four bytes, so three bytes before the first generated token are enough.
            num_bytes >= 3
        });
        for &id in tail.iter().filter(|&&id| shown.contains(id)) {
            self.push(&shown.tokenizer, id);
        }
        self
    }

    fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        let mut text = String::new();
        // The library decodes a run of byte tokens alone, so another token ends a character that is not complete.
        if self.damage == Damage::PerByte && tokenizer.class(id) != TokenClass::FallbackByte {
            self.flush(&mut text);
        }
        match (self.leading, tokenizer.kind()) {
            (Leading::SpacesOfFirstToken, DecoderKind::SentencePiece(steps)) => {
                let token = tokenizer.id_to_token(id).expect("only ids of tokens are shown");
                self.pending.extend(steps.first_token_bytes(&token));
                self.leading = Leading::Spaces(0);
            }
            _ => self.pending.extend(tokenizer.token_bytes(id)),
        }
        self.take_characters(&mut text);
        self.cut_leading_spaces(&mut text);
        text
    }

    fn finish(&mut self) -> String {
        let mut text = String::new();
        self.flush(&mut text);
        self.cut_leading_spaces(&mut text);
        text
    }

    /// Moves all certain text from `pending` to `text`.
    fn take_characters(&mut self, text: &mut String) {
        let mut bytes = self.pending.as_slice();
        loop {
            let error = match std::str::from_utf8(bytes) {
                Ok(rest) => {
                    text.push_str(rest);
                    self.pending.clear();
                    return;
                }
                Err(error) => error,
            };
            let (valid, rest) = bytes.split_at(error.valid_up_to());
            text.push_str(std::str::from_utf8(valid).expect("checked just before"));
            // `None` means that the bytes are the beginning of a character.
            let Some(num_damaged) = error.error_len() else {
                let taken = self.pending.len() - rest.len();
                self.pending.drain(..taken);
                return;
            };
            self.damage.replace(num_damaged, text);
            bytes = &rest[num_damaged..];
        }
    }

    /// Handles pending bytes that will not be completed.
    fn flush(&mut self, text: &mut String) {
        if !self.pending.is_empty() {
            self.damage.replace(self.pending.len(), text);
            self.pending.clear();
        }
    }

    fn cut_leading_spaces(&mut self, text: &mut String) {
        let Leading::Spaces(most) = self.leading else { return };
        if most == 0 || text.is_empty() {
            return;
        }
        let num_spaces = text.bytes().take(most).take_while(|&byte| byte == b' ').count();
        text.drain(..num_spaces);
        // A token of spaces only may be followed by further spaces of the beginning.
        self.leading = Leading::Spaces(if text.is_empty() { most - num_spaces } else { 0 });
    }
}

impl Damage {
    fn replace(self, num_bytes: usize, text: &mut String) {
        let count = match self {
            Self::PerSequence => 1,
            Self::PerByte => num_bytes,
        };
        text.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, count));
    }
}

/// State for the other decoders. The last tokens are decoded again with each new one, and the new part of the text is
/// output.
#[derive(Debug, Clone)]
struct Window {
    /// Tokens whose text was output before, as context, and then those that are held back.
    ids: Vec<u32>,
    num_given: usize,
    /// Text of the tokens that were output before.
    given: String,
}

impl Window {
    /// Number of prompt tokens with which the first generated token is decoded.
    const PROMPT_TOKENS: usize = 6;
    /// Most tokens that are held back. Text that ends with U+FFFD waits for more bytes of a character, and no
    /// character has more than four.
    const MAX_HELD: usize = 4;

    fn after_prompt(shown: &Shown, prompt: &[u32]) -> Result<Self> {
        let mut num_tokens = 0;
        let tail = shown.tail(prompt, |_| {
            num_tokens += 1;
            num_tokens == Self::PROMPT_TOKENS
        });
        let ids = tail.iter().copied().filter(|&id| shown.contains(id)).collect::<Vec<_>>();
        let given = shown.decode(&ids)?;
        Ok(Self { num_given: ids.len(), ids, given })
    }

    fn push(&mut self, shown: &Shown, id: u32) -> Result<String> {
        self.ids.push(id);
        let num_held = self.ids.len() - self.num_given;
        let text = shown.decode(&self.ids)?;
        if text.ends_with(char::REPLACEMENT_CHARACTER) && num_held < Self::MAX_HELD {
            return Ok(String::new());
        }
        self.emit(shown)
    }

    /// Outputs the text that is held back. Its tokens become the context of the next ones.
    fn emit(&mut self, shown: &Shown) -> Result<String> {
        let text = shown.decode(&self.ids)?;
        // A decoder may change earlier text, such as the white space before a comma. `get` then returns nothing
        // instead of a panic.
        let new = text.get(self.given.len()..).unwrap_or_default().to_owned();
        if self.ids.len() > self.num_given {
            // The tokens of the last output stay as context: decoders treat the first token of a text in another way.
            self.ids.drain(..self.num_given);
            self.num_given = self.ids.len();
            self.given = shown.decode(&self.ids)?;
        }
        Ok(new)
    }
}
