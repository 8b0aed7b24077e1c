//! `tokenizer.model` or `spiece.model`, a vocabulary of sentencepiece. Source: its `sentencepiece_model.proto`.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    MAX_BYTES, fault,
    pieces::{CONTROL, PieceModel, Pieces, sentence_pieces},
    template,
};
use crate::{config::HfConfig, error::Result};

/// Its names; T5's and its like have the second.
pub(super) const FILES: [&str; 2] = ["tokenizer.model", "spiece.model"];
/// The model type whose pieces are those of the likeliest whole.
const UNIGRAM: u64 = 1;
/// The model type whose merges follow from scores.
const BYTE_PAIRS: u64 = 2;

/// The tokenizer that a file says, with what `tokenizer_config.json` says beside it.
pub(super) fn tokenizer(name: &'static str, file: &[u8], config: &[u8]) -> Result<Value> {
    let config = HfConfig::parse("tokenizer_config.json", config)?;
    let damaged = || fault(name, "it is no model of sentencepiece");
    let model = Model::read(file).ok_or_else(damaged)?;
    let piece_model = match model.kind {
        UNIGRAM => PieceModel::Unigram { byte_fallback: model.byte_fallback },
        BYTE_PAIRS => PieceModel::BytePairs,
        kind => {
            let reason =
                format!("its model type is {kind}; 1, unigram, and 2, byte pairs, are read");
            return Err(fault(name, reason));
        }
    };
    if let Some(what) = model.unknown {
        return Err(fault(name, format!("it {what}, which is not supported")));
    }
    if !model.rules.is_empty() && !are_sound(&model.rules) {
        return Err(fault(name, "the rules by which texts are normalized are damaged"));
    }
    // T5's class ends texts, and begins none.
    let is_t5 = config.text_opt("tokenizer_class")?.is_some_and(|class| class.starts_with("T5"));
    let around =
        |flag: &str, default: bool, key: &str, id: usize| -> Result<Option<(String, u32)>> {
            if !config.flag_or(flag, default)? {
                return Ok(None);
            }
            let named =
                config.raw(key).and_then(|token| token.as_str().or(token["content"].as_str()));
            let named =
                named.and_then(|named| model.tokens.iter().position(|token| token == named));
            let id = named.unwrap_or(id);
            // An id of -1 means that there is no such token; it is no index here.
            let token = model.tokens.get(id).filter(|_| model.kinds[id] == CONTROL);
            Ok(token.map(|token| (token.clone(), id as u32)))
        };
    let first = around("add_bos_token", !is_t5, "bos_token", model.bos)?;
    let last = around("add_eos_token", is_t5, "eos_token", model.eos)?;
    fn part(token: &Option<(String, u32)>) -> Option<(&str, u32)> {
        token.as_ref().map(|(token, id)| (token.as_str(), *id))
    }
    let post_processor = template(part(&first), part(&last));
    sentence_pieces(
        &Pieces { tokens: &model.tokens, kinds: &model.kinds, scores: &model.scores },
        piece_model,
        (model.normalizers(), model.space),
        post_processor,
    )
    .map_err(|reason| fault(name, reason))
}

/// The parts of a file that are read.
struct Model {
    tokens: Vec<String>,
    scores: Vec<f64>,
    /// The same values as in GGUF files.
    kinds: Vec<u32>,
    kind: u64,
    bos: usize,
    eos: usize,
    /// Texts begin with a space.
    space: bool,
    /// Spaces around texts are taken away, and all but one between words.
    extra_spaces: bool,
    /// By which characters are replaced; empty where they are not.
    rules: Vec<u8>,
    /// Characters that no piece has are spelled in bytes.
    byte_fallback: bool,
    /// Something that is not understood.
    unknown: Option<&'static str>,
}

impl Model {
    fn read(file: &[u8]) -> Option<Self> {
        let mut model = Self {
            tokens: Vec::new(),
            scores: Vec::new(),
            kinds: Vec::new(),
            // The format's defaults.
            kind: 1,
            bos: 1,
            eos: 2,
            space: true,
            extra_spaces: true,
            rules: Vec::new(),
            byte_fallback: false,
            unknown: None,
        };
        for field in Fields(file) {
            match field? {
                (1, Field::Bytes(piece)) => model.add(piece)?,
                (2, Field::Bytes(trainer)) => {
                    for field in Fields(trainer) {
                        // The fields are those of `TrainerSpec`: 3 model type, 24
                        // spaces behind words, 35 bytes, 41 and 42 the ids.
                        match field? {
                            (3, Field::Number(kind)) => model.kind = kind,
                            (24, Field::Number(1)) => {
                                model.unknown = Some("has spaces behind words");
                            }
                            (35, Field::Number(flag)) => model.byte_fallback = flag != 0,
                            (41, Field::Number(id)) => model.bos = id as usize,
                            (42, Field::Number(id)) => model.eos = id as usize,
                            _ => {}
                        }
                    }
                }
                (3, Field::Bytes(normalizer)) => {
                    for field in Fields(normalizer) {
                        // The fields are those of `NormalizerSpec`: 2 the rules, 3 a
                        // space before, 4 extra spaces, 5 spaces as characters.
                        match field? {
                            (2, Field::Bytes(rules)) => model.rules = rules.to_vec(),
                            (3, Field::Number(flag)) => model.space = flag != 0,
                            (4, Field::Number(flag)) => model.extra_spaces = flag != 0,
                            (5, Field::Number(0)) => {
                                model.unknown = Some("keeps spaces as they are");
                            }
                            _ => {}
                        }
                    }
                }
                (5, Field::Bytes(denormalizer)) => {
                    let mut fields = Fields(denormalizer);
                    if fields.any(|field| matches!(field, Some((2, Field::Bytes([_, ..]))))) {
                        model.unknown = Some("has rules by which texts are changed back");
                    }
                }
                _ => {}
            }
        }
        (!model.tokens.is_empty()).then_some(model)
    }

    /// The steps before spaces become characters like others.
    fn normalizers(&self) -> Vec<Value> {
        // The two steps of tokenizers are applied in this order: replaced characters may be spaces.
        let replace = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": content});
        let mut steps = Vec::new();
        if !self.rules.is_empty() {
            let rules = STANDARD.encode(&self.rules);
            steps.push(json!({"type": "Precompiled", "precompiled_charsmap": rules}));
        }
        if self.extra_spaces {
            // At the end, what stands for a space counts as one. Looking back keeps long runs of spaces cheap.
            let last = "(?<![ \u{2581}])[ \u{2581}]+\\z";
            steps.extend([replace("\\A +", ""), replace(last, ""), replace(" {2,}", " ")]);
        }
        steps
    }

    fn add(&mut self, piece: &[u8]) -> Option<()> {
        let (mut token, mut score, mut kind) = (None, 0.0, 1);
        for field in Fields(piece) {
            match field? {
                (1, Field::Bytes(text)) => token = Some(String::from_utf8(text.to_vec()).ok()?),
                (2, Field::Float(number)) => score = f64::from(number),
                (3, Field::Number(number)) => kind = u32::try_from(number).ok()?,
                _ => {}
            }
        }
        // The bound keeps the search for merges cheap, whose cost is the square of a token's length.
        self.tokens.push(token.filter(|token| token.len() <= MAX_BYTES)?);
        self.scores.push(score);
        self.kinds.push(kind);
        Some(())
    }
}

/// Whether rules lead nowhere outside of themselves: who looks them up trusts them. They are the length of a trie, the trie, and texts
/// that end with zeros; a node has the offset to the block of its children, and its value is where its text begins.
/// Source: darts-clone's `DoubleArrayUnit`; sentencepiece's `Normalizer::DecodePrecompiledCharsMap`.
fn are_sound(rules: &[u8]) -> bool {
    let Some((len, rest)) = rules.split_at_checked(4) else { return false };
    let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let Some((trie, texts)) = rest.split_at_checked(word(len) as usize) else { return false };
    let Ok(texts) = std::str::from_utf8(texts) else { return false };
    let units: Vec<u32> = trie.chunks_exact(4).map(word).collect();
    const IS_VALUE: u32 = 1 << 31;
    // Bits 10 to 30 are the offset to the children, which bit 9
    // stretches by 256. Bit 8 says that a value is among them.
    let child = |(at, unit): (usize, u32)| at ^ ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
    let is_sound = |(at, unit): (usize, u32)| {
        let first = child((at, unit));
        let has_value = unit >> 8 & 1 == 1;
        let value = units.get(first).map_or(usize::MAX, |value| (value & !IS_VALUE) as usize);
        // A child is found by its byte, so the whole block of 256 must lie within the trie.
        first | 0xff < units.len()
            && (!has_value || value < texts.len() && texts.is_char_boundary(value))
    };
    let nodes = units.iter().copied().enumerate().filter(|(_, unit)| unit & IS_VALUE == 0);
    trie.len().is_multiple_of(4) && !units.is_empty() && nodes.into_iter().all(is_sound)
}

/// A field's value.
enum Field<'a> {
    Number(u64),
    Float(f32),
    Bytes(&'a [u8]),
    Other,
}

/// The fields of a message in protobuf's format; `None` where it is damaged.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        // Ten bytes of seven bits are the most that 64 bits need.
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u64, Field<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Field::Number(self.varint()?),
            1 => self.take(8).map(|_| Field::Other)?,
            2 => {
                let len = usize::try_from(self.varint()?).ok()?;
                // Nothing is copied here, so a length that lies only costs an error.
                Field::Bytes(self.take(len)?)
            }
            5 => Field::Float(f32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((tag >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u64, Field<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            // Nothing behind it can be read.
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trie with the one text `a`, which becomes `b`, in three blocks: the root, its child, the child's value.
    fn rules(edit: impl Fn(&mut Vec<u32>, &mut Vec<u8>)) -> Vec<u8> {
        let mut units = vec![0; 768];
        // The offset lies from bit 10 on, and blocks begin at multiples of 256.
        units[0] = 256 << 10;
        units[256 ^ 97] = 97 | 1 << 8 | (256 ^ 97 ^ 512) << 10;
        units[512] = 1 << 31;
        let mut texts = b"b\0".to_vec();
        edit(&mut units, &mut texts);
        let len = (units.len() as u32 * 4).to_le_bytes().to_vec();
        [len, units.iter().flat_map(|unit| unit.to_le_bytes()).collect(), texts].concat()
    }

    #[test]
    fn rules_that_lead_outside_are_damaged() {
        let sound = rules(|_, _| {});
        assert!(are_sound(&sound));
        for (i, damaged) in [
            sound[..3].to_vec(),
            sound[..100].to_vec(),
            rules(|units, _| units[0] = 4096 << 10),
            rules(|units, _| units.truncate(700)),
            // The value points behind the text.
            rules(|units, _| units[512] = 1 << 31 | 2),
            rules(|_, texts| *texts = vec![0xc3, 0x28, 0]),
            // The value points into a character of two bytes.
            rules(|units, texts| (units[512], *texts) = (1 << 31 | 1, "é\0".into())),
            rules(|units, _| units.clear()),
        ]
        .into_iter()
        .enumerate()
        {
            assert!(!are_sound(&damaged), "{i}");
        }
    }
}
