//! The text of each token: the decoder of `tokenizer.json` as a table from id to bytes.
//!
//! Nearly every language model's decoder only concatenates bytes (byte-level BPE, or SentencePiece with or without
//! byte fallback). For those, text is streamed exactly and at constant cost. The few others (WordPiece, word
//! suffixes, CTC) are [`DecoderKind::Opaque`], and their text comes from the tokenizer's own decoder over a small
//! window.

use serde_json::Value;

/// Conversion of the tokens' bytes to text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DecoderKind {
    /// GPT-2's alphabet of one printable character per byte (Llama 3, Qwen, most others).
    ByteLevel,
    /// SentencePiece pieces (Llama 2, Mistral, Gemma, Phi-3).
    SentencePiece(SentencePiece),
    /// Any other decoder, whose text is not the concatenation of the tokens' own bytes.
    Opaque,
}

/// Steps of a SentencePiece-like decoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SentencePiece {
    /// Replacements in every token, such as `▁` by a space.
    replace: Vec<(String, String)>,
    /// Whether `<0x0A>` is the byte 10.
    byte_fallback: bool,
    /// Part of the whole text's beginning that is cut off.
    pub(crate) leading: Leading,
}

/// Part that a decoder cuts off the beginning of the whole text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leading {
    /// At most this number of spaces.
    Spaces(usize),
    /// Every space that comes from the first token's word separators (the `Metaspace` decoder).
    SpacesOfFirstToken,
}

/// The bytes of one token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TokenBytes {
    /// Bytes of the text, which in a byte-level vocabulary may be a part of a character.
    Text(Vec<u8>),
    /// One byte of a character that the vocabulary does not have.
    Fallback(u8),
}

impl DecoderKind {
    /// Reads the `decoder` of a tokenizer.json. Unknown decoders are `Opaque`.
    pub(crate) fn from_json(decoder: &Value) -> Self {
        match decoder["type"].as_str() {
            Some("ByteLevel") => Self::ByteLevel,
            Some("Metaspace") => metaspace(decoder).map_or(Self::Opaque, Self::SentencePiece),
            Some("Sequence") => {
                let steps = decoder["decoders"].as_array().map(Vec::as_slice).unwrap_or_default();
                let is_fuse = |step: &Value| step["type"] == "Fuse";
                match steps {
                    // `Fuse` joins the tokens, which a table of bytes does anyway.
                    [first, rest @ ..]
                        if first["type"] == "ByteLevel" && rest.iter().all(is_fuse) =>
                    {
                        Self::ByteLevel
                    }
                    _ => sentence_piece(steps).map_or(Self::Opaque, Self::SentencePiece),
                }
            }
            _ => Self::Opaque,
        }
    }

    /// The bytes that this token adds to the text after another token. For `Opaque` they are only the token's own
    /// spelling.
    pub(crate) fn token_bytes(&self, token: &str) -> TokenBytes {
        match self {
            Self::ByteLevel => TokenBytes::Text(byte_level(token)),
            Self::SentencePiece(steps) => steps.token_bytes(token),
            Self::Opaque => TokenBytes::Text(token.as_bytes().to_vec()),
        }
    }
}

impl SentencePiece {
    fn token_bytes(&self, token: &str) -> TokenBytes {
        let mut text = token.to_owned();
        for (from, to) in &self.replace {
            text = text.replace(from, to);
        }
        match fallback_byte(&text) {
            Some(byte) if self.byte_fallback => TokenBytes::Fallback(byte),
            _ => TokenBytes::Text(text.into_bytes()),
        }
    }

    /// The bytes of a token that is the first of a text, under [`Leading::SpacesOfFirstToken`].
    pub(crate) fn first_token_bytes(&self, token: &str) -> Vec<u8> {
        let mut text = token.to_owned();
        for (from, _) in &self.replace {
            text = text.replace(from, "");
        }
        text.into_bytes()
    }
}

/// `<0x0A>` -> 10, by the rule of the `tokenizers` library.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// Bytes of a token. A token outside the byte alphabet, such as an added token, stands for itself.
fn byte_level(token: &str) -> Vec<u8> {
    token.chars().map(byte_of).collect::<Option<_>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The byte for which a character of GPT-2's byte alphabet stands.
///
/// Source: `bytes_to_unicode` in GPT-2's encoder.py: printable Latin-1 characters are themselves, the other 68 bytes are
/// U+0100 and following, in order.
fn byte_of(character: char) -> Option<u8> {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    match u32::from(character) {
        code @ 0..=0xFF => Some(code as u8).filter(|&byte| is_printable(byte)),
        code => (0..=u8::MAX).filter(|&byte| !is_printable(byte)).nth((code - 0x100) as usize),
    }
}

fn metaspace(decoder: &Value) -> Option<SentencePiece> {
    let replacement = decoder["replacement"].as_str()?.to_owned();
    // `add_prefix_space` is the older key of the same setting.
    let scheme = decoder["prepend_scheme"].as_str().unwrap_or("always");
    let keeps_first = scheme == "never" || decoder["add_prefix_space"] == Value::Bool(false);
    let leading = if keeps_first { Leading::Spaces(0) } else { Leading::SpacesOfFirstToken };
    Some(SentencePiece { replace: vec![(replacement, " ".into())], byte_fallback: false, leading })
}

/// Reads the steps `Replace`*, `ByteFallback`?, `Fuse`, `Strip`? in this order, which every converted SentencePiece
/// model has.
fn sentence_piece(steps: &[Value]) -> Option<SentencePiece> {
    let mut read =
        SentencePiece { replace: Vec::new(), byte_fallback: false, leading: Leading::Spaces(0) };
    let mut is_fused = false;
    for (index, step) in steps.iter().enumerate() {
        let is_last = index + 1 == steps.len();
        match step["type"].as_str()? {
            // After `ByteFallback` or `Fuse` a replacement could reach across tokens.
            "Replace" if !is_fused && !read.byte_fallback => {
                let from = step["pattern"]["String"].as_str().filter(|from| !from.is_empty())?;
                read.replace.push((from.to_owned(), step["content"].as_str()?.to_owned()));
            }
            "ByteFallback" if !is_fused => read.byte_fallback = true,
            "Fuse" => is_fused = true,
            "Strip" if is_fused && is_last && step["content"] == " " && step["stop"] == 0 => {
                read.leading = Leading::Spaces(usize::try_from(step["start"].as_u64()?).ok()?);
            }
            _ => return None,
        }
    }
    Some(read)
}

/// The bytes of all tokens, in one allocation.
pub(crate) struct TokenTable {
    bytes: Vec<u8>,
    /// `bytes[ends[id - 1]..ends[id]]` belongs to token id: `[vocab_size]`.
    ends: Vec<u32>,
    /// `[vocab_size]`
    classes: Vec<TokenClass>,
}

/// Role of a token in decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenClass {
    /// No token has this id.
    Missing,
    /// The token has bytes of the text.
    Text,
    /// The token is one byte of a byte-fallback vocabulary.
    FallbackByte,
    /// A control token (end of sequence, role marker): left out when special tokens are skipped.
    Special,
}

impl TokenTable {
    /// Makes the table. `tokens[id]` is the spelling of the token with that id, if there is one, and whether it is
    /// special.
    pub(crate) fn new(
        kind: &DecoderKind,
        tokens: impl Iterator<Item = Option<(String, bool)>>,
    ) -> Self {
        let mut table = Self { bytes: Vec::new(), ends: Vec::new(), classes: Vec::new() };
        for token in tokens {
            let class = match token {
                None => TokenClass::Missing,
                Some((token, is_special)) => table.push(kind.token_bytes(&token), is_special),
            };
            table.classes.push(class);
            table.ends.push(
                u32::try_from(table.bytes.len()).expect("a vocabulary is smaller than 4 GiB"),
            );
        }
        table
    }

    fn push(&mut self, bytes: TokenBytes, is_special: bool) -> TokenClass {
        let class = match bytes {
            TokenBytes::Fallback(byte) => {
                self.bytes.push(byte);
                TokenClass::FallbackByte
            }
            TokenBytes::Text(bytes) => {
                self.bytes.extend(bytes);
                TokenClass::Text
            }
        };
        // The bytes of a special token stay in the table, because it may be shown on request.
        if is_special { TokenClass::Special } else { class }
    }

    pub(crate) fn len(&self) -> usize {
        self.classes.len()
    }

    pub(crate) fn class(&self, id: u32) -> TokenClass {
        self.classes.get(id as usize).copied().unwrap_or(TokenClass::Missing)
    }

    /// Empty for an id without a token.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match self.ends.get(id) {
            None => &[],
            Some(&end) => {
                let start = if id == 0 { 0 } else { self.ends[id - 1] };
                &self.bytes[start as usize..end as usize]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    use super::*;

    #[test]
    fn the_byte_alphabet_is_the_library_s() {
        let mut seen = [false; 256];
        for character in ByteLevel::alphabet() {
            seen[usize::from(byte_of(character).unwrap())] = true;
        }
        assert!(seen.iter().all(|&seen| seen));
        assert_eq!(byte_level("Ġé"), [b' ', 0xE9]);
        assert_eq!(byte_level("<|a b|>"), b"<|a b|>");
    }

    #[test]
    fn known_decoders_are_byte_tables_and_others_are_opaque() {
        let llama = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
        let DecoderKind::SentencePiece(steps) = DecoderKind::from_json(&llama) else {
            panic!("llama")
        };
        assert_eq!(steps.leading, Leading::Spaces(1));
        assert_eq!(steps.token_bytes("▁a"), TokenBytes::Text(b" a".into()));
        assert_eq!(steps.token_bytes("<0x0A>"), TokenBytes::Fallback(10));
        assert_eq!(steps.token_bytes("<0xZZ>"), TokenBytes::Text(b"<0xZZ>".into()));
        assert_eq!(DecoderKind::from_json(&json!({"type": "ByteLevel"})), DecoderKind::ByteLevel);
        for opaque in [json!(null), json!({"type": "WordPiece", "prefix": "##", "cleanup": true})] {
            assert_eq!(DecoderKind::from_json(&opaque), DecoderKind::Opaque);
        }
        let regex = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"Regex": "x"}, "content": " "}]});
        assert_eq!(DecoderKind::from_json(&regex), DecoderKind::Opaque);
    }
}
