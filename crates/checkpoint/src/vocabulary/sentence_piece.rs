//! `tokenizer.model`, a vocabulary of sentencepiece. Source: its `sentencepiece_model.proto`.

use serde_json::Value;

use super::{MOST_BYTES, fault, template};
use crate::{
    config::HfConfig,
    error::{Error, Result},
    gguf::{Vocabulary, sentence_pieces},
};

/// Its name.
pub(super) const FILE: &str = "tokenizer.model";
/// The model type whose merges follow from scores.
const BYTE_PAIRS: u64 = 2;
const CONTROL: u32 = 3;

/// The tokenizer that a file says, with what `tokenizer_config.json` says beside it.
pub(super) fn tokenizer(file: &[u8], config: &[u8]) -> Result<Value> {
    let config = HfConfig::parse("tokenizer_config.json", config)?;
    let model = Model::read(file).ok_or_else(damaged)?;
    if model.kind != BYTE_PAIRS {
        let reason = format!("its model type is {}, and 2, byte pairs, is read", model.kind);
        return Err(fault(FILE, reason));
    }
    if model.has_rules {
        return Err(fault(FILE, "it has rules of its own by which texts are normalized"));
    }
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
            let token = model.tokens.get(id).filter(|_| model.kinds[id] == CONTROL);
            Ok(token.map(|token| (token.clone(), id as u32)))
        };
    let first = around("add_bos_token", true, "bos_token", model.bos)?;
    let last = around("add_eos_token", false, "eos_token", model.eos)?;
    fn part(token: &Option<(String, u32)>) -> Option<(&str, u32)> {
        token.as_ref().map(|(token, id)| (token.as_str(), *id))
    }
    let post_processor = template(part(&first), part(&last));
    sentence_pieces(
        &Vocabulary { tokens: &model.tokens, kinds: &model.kinds, scores: &model.scores },
        model.space,
        post_processor,
    )
    .map_err(|reason| fault(FILE, reason))
}

fn damaged() -> Error {
    fault(FILE, "it is no model of sentencepiece")
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
    /// Characters are replaced, or spaces are taken away.
    has_rules: bool,
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
            has_rules: false,
        };
        let mut extra_spaces = true;
        for field in Fields(file) {
            match field? {
                (1, Field::Bytes(piece)) => model.add(piece)?,
                (2, Field::Bytes(trainer)) => {
                    for field in Fields(trainer) {
                        match field? {
                            (3, Field::Number(kind)) => model.kind = kind,
                            (41, Field::Number(id)) => model.bos = id as usize,
                            (42, Field::Number(id)) => model.eos = id as usize,
                            _ => {}
                        }
                    }
                }
                (3, Field::Bytes(normalizer)) => {
                    for field in Fields(normalizer) {
                        match field? {
                            (2, Field::Bytes(rules)) => model.has_rules |= !rules.is_empty(),
                            (3, Field::Number(flag)) => model.space = flag != 0,
                            (4, Field::Number(flag)) => extra_spaces = flag != 0,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        model.has_rules |= extra_spaces;
        (!model.tokens.is_empty()).then_some(model)
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
        self.tokens.push(token.filter(|token| token.len() <= MOST_BYTES)?);
        self.scores.push(score);
        self.kinds.push(kind);
        Some(())
    }
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
