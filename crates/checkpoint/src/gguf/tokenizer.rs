//! The vocabulary of a GGUF file as the `tokenizer.json` and the `tokenizer_config.json` of the same model.
//! Source: `src/llama-vocab.cpp` of llama.cpp; for SentencePiece's merges `generate_merges` of transformers.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::{
    Gguf,
    splitting::{SPLITTINGS, byte_level, byte_level_steps},
};
use crate::error::{Error, Result};

/// What to do about a vocabulary that is not understood.
const ELSEWHERE: &str = "; name a folder with the model's own tokenizer.json by --tokenizer";

/// What kind a token is, as `tokenizer.ggml.token_type` has it.
const UNKNOWN: u32 = 2;
const CONTROL: u32 = 3;
const USER_DEFINED: u32 = 4;
const UNUSED: u32 = 5;
const BYTE: u32 = 6;

/// Tokens that end a turn wherever they are control tokens: older files do not say so otherwise.
const ENDS: [&str; 11] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<eos>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
];

/// Marks that Gemma 4's checkpoints have as special tokens, and their files as those that a user defined. Behind the last one the
/// answer to a call is expected.
const GEMMA4_MARKS: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<tool_response|>",
    "<|\"|>",
    "<|tool_response>",
];

/// Tokens in the order of their ids, and what each is.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    kinds: Vec<u32>,
    ids: HashMap<&'a str, usize>,
}

impl Gguf {
    /// The model's `tokenizer.json`.
    pub(super) fn tokenizer(&self) -> Result<Value> {
        const MODEL: &str = "tokenizer.ggml.model";
        let vocabulary = self.vocabulary()?;
        let expected = "gpt2, llama or gemma4";
        let model = self.metadata.text_opt(MODEL)?;
        match model.ok_or_else(|| self.metadata.missing(MODEL, expected))? {
            "gpt2" => self.byte_level(&vocabulary),
            "llama" | "gemma4" => self.sentence_piece(&vocabulary),
            other => {
                let hint = format!(
                    "; gpt2, llama and gemma4 are{}",
                    ELSEWHERE.replace("; name", ", or name")
                );
                Err(self.metadata.unsupported(MODEL, &other.into(), &hint))
            }
        }
    }

    /// The model's `tokenizer_config.json`.
    pub(super) fn tokenizer_config(&self) -> Result<Value> {
        let vocabulary = self.vocabulary()?;
        let mut config = Map::new();
        for (key, name) in [
            ("tokenizer.ggml.bos_token_id", "bos_token"),
            ("tokenizer.ggml.eos_token_id", "eos_token"),
            ("tokenizer.ggml.unknown_token_id", "unk_token"),
            ("tokenizer.ggml.padding_token_id", "pad_token"),
        ] {
            if let Some(token) = self.token(&vocabulary, key)? {
                config.insert(name.into(), token.into());
            }
        }
        let m = &self.metadata;
        let mut templates = Vec::new();
        if let Some(template) = m.text_opt("tokenizer.chat_template")? {
            templates.push(json!({"name": "default", "template": template}));
        }
        for name in m.texts_opt("tokenizer.chat_templates")?.unwrap_or_default() {
            if let Some(template) = m.text_opt(&format!("tokenizer.chat_template.{name}"))? {
                templates.push(json!({"name": name, "template": template}));
            }
        }
        if !templates.is_empty() {
            config.insert("chat_template".into(), templates.into());
        }
        Ok(config.into())
    }

    /// Ids that end a text.
    pub(super) fn end_ids(&self) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for name in ["eos", "eot", "eom"] {
            ids.extend(self.metadata.token_ids(&format!("tokenizer.ggml.{name}_token_id"))?);
        }
        if self.metadata.contains(TOKENS) {
            let vocabulary = self.vocabulary()?;
            let is_end = |id: &usize| vocabulary.kinds[*id] == CONTROL;
            let of_calls = GEMMA4_MARKS.last().filter(|_| self.arch.is("gemma4"));
            let ends = ENDS.iter().chain(of_calls);
            let ends = ends.filter_map(|end| vocabulary.ids.get(end).copied().filter(is_end));
            ids.extend(ends.map(|id| id as u32));
        }
        let mut seen = HashSet::new();
        ids.retain(|id| seen.insert(*id));
        Ok(ids)
    }

    fn vocabulary(&self) -> Result<Vocabulary<'_>> {
        const KINDS: &str = "tokenizer.ggml.token_type";
        let m = &self.metadata;
        let tokens = m.texts_opt(TOKENS)?.ok_or_else(|| m.missing(TOKENS, "a list of tokens"))?;
        let mut kinds = m.token_ids(KINDS)?;
        if kinds.is_empty() {
            kinds = vec![1; tokens.len()];
        }
        self.as_many(KINDS, kinds.len(), tokens.len())?;
        if self.arch.is("gemma4") {
            for (token, kind) in tokens.iter().zip(&mut kinds) {
                if GEMMA4_MARKS.contains(token) {
                    *kind = CONTROL;
                }
            }
        }
        let mut ids = HashMap::new();
        for (id, token) in tokens.iter().enumerate() {
            if let Some(first) = ids.insert(*token, id) {
                let reason = format!("the tokens {first} and {id} are the same, {token:.80}");
                return Err(Error::Gguf { file: self.files[0].clone(), reason });
            }
        }
        Ok(Vocabulary { tokens, kinds, ids })
    }

    fn as_many(&self, key: &str, found: usize, tokens: usize) -> Result<()> {
        match found == tokens {
            true => Ok(()),
            false => {
                let reason = format!("`{key}` has {found} entries for {tokens} tokens");
                Err(Error::Gguf { file: self.files[0].clone(), reason })
            }
        }
    }

    /// The token whose id stands under `key`.
    fn token<'a>(&self, vocabulary: &Vocabulary<'a>, key: &str) -> Result<Option<&'a str>> {
        let Some(id) = self.metadata.token_ids(key)?.first().copied() else { return Ok(None) };
        match vocabulary.tokens.get(id as usize) {
            Some(token) => Ok(Some(token)),
            None => Err(self.metadata.ill_typed(key, &id.into(), "the id of a token")),
        }
    }

    fn byte_level(&self, vocabulary: &Vocabulary<'_>) -> Result<Value> {
        const PRE: &str = "tokenizer.ggml.pre";
        let m = &self.metadata;
        let name =
            m.text_opt(PRE)?.ok_or_else(|| m.missing(PRE, "the name of a splitting rule"))?;
        let Some(splitting) = SPLITTINGS.iter().find(|s| s.names.contains(&name)) else {
            let names: Vec<&str> = SPLITTINGS.iter().flat_map(|s| s.names).copied().collect();
            let hint =
                format!("; {} are{}", names.join(", "), ELSEWHERE.replace("; name", ", or name"));
            return Err(m.unsupported(PRE, &name.into(), &hint));
        };
        let merges = self.stored_merges()?;
        Ok(json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added_tokens(vocabulary, false),
            "normalizer": splitting.nfc.then(|| json!({"type": "NFC"})),
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": byte_level_steps(splitting)},
            "post_processor": self.post_processor(vocabulary, splitting.bos)?,
            "decoder": byte_level(true),
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": splitting.ignore_merges, "vocab": vocab(vocabulary), "merges": merges,
            },
        }))
    }

    fn sentence_piece(&self, vocabulary: &Vocabulary<'_>) -> Result<Value> {
        const SCORES: &str = "tokenizer.ggml.scores";
        let m = &self.metadata;
        let merges = match m.text_opt("tokenizer.ggml.model")? {
            // Its scores say nothing.
            Some("gemma4") => self.stored_merges()?,
            _ => {
                let scores = m.floats(SCORES)?;
                self.as_many(SCORES, scores.len(), vocabulary.tokens.len())?;
                merges(vocabulary, &scores)
            }
        };
        if let Some(true) =
            m.raw("tokenizer.ggml.remove_extra_whitespaces").and_then(Value::as_bool)
        {
            let key = "tokenizer.ggml.remove_extra_whitespaces";
            return Err(m.unsupported(key, &true.into(), ELSEWHERE));
        }
        let space = m.flag_or("tokenizer.ggml.add_space_prefix", true)?;
        let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let separator = "\u{2581}";
        let mut normalizers = vec![replace(" ", separator)];
        let mut decoders =
            vec![replace(separator, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        if space {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": separator}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let unknown = match self.token(vocabulary, "tokenizer.ggml.unknown_token_id")? {
            Some(token) => Some(token),
            None => vocabulary
                .kinds
                .iter()
                .position(|kind| *kind == UNKNOWN)
                .map(|id| vocabulary.tokens[id]),
        };
        // Phi-3's control tokens take the white space behind them, which the metadata does not say.
        let strips = self.arch.is("phi3");
        Ok(json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added_tokens(vocabulary, strips),
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": null,
            "post_processor": self.post_processor(vocabulary, true)?,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {
                "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true,
                "ignore_merges": false, "vocab": vocab(vocabulary), "merges": merges,
            },
        }))
    }

    /// The merges that the file has, the first ones first.
    fn stored_merges(&self) -> Result<Vec<Value>> {
        const MERGES: &str = "tokenizer.ggml.merges";
        let m = &self.metadata;
        let merges = m.texts_opt(MERGES)?.ok_or_else(|| m.missing(MERGES, "a list of merges"))?;
        let halves = |merge: &&str| match merge.split_once(' ') {
            Some((left, right)) => Ok(json!([left, right])),
            None => Err(m.ill_typed(MERGES, &(*merge).into(), "two tokens with a space between")),
        };
        merges.iter().map(halves).collect()
    }

    /// What puts tokens before and behind a text.
    fn post_processor(&self, vocabulary: &Vocabulary<'_>, bos: bool) -> Result<Value> {
        let mut special = Map::new();
        let mut piece = |name: &str, default: bool| -> Result<Option<Value>> {
            if !self.metadata.flag_or(&format!("tokenizer.ggml.add_{name}_token"), default)? {
                return Ok(None);
            }
            let key = format!("tokenizer.ggml.{name}_token_id");
            let Some(token) = self.token(vocabulary, &key)? else { return Ok(None) };
            let id = vocabulary.ids[token];
            special.insert(token.into(), json!({"id": token, "ids": [id], "tokens": [token]}));
            Ok(Some(json!({"SpecialToken": {"id": token, "type_id": 0}})))
        };
        let (before, behind) = (piece("bos", bos)?, piece("eos", false)?);
        if special.is_empty() {
            return Ok(Value::Null);
        }
        let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        let text = |id| before.iter().cloned().chain([sequence(id)]).chain(behind.iter().cloned());
        Ok(json!({
            "type": "TemplateProcessing",
            "single": text("A").collect::<Vec<_>>(),
            "pair": text("A").chain(text("B")).collect::<Vec<_>>(),
            "special_tokens": special,
        }))
    }
}

const TOKENS: &str = "tokenizer.ggml.tokens";

fn vocab(vocabulary: &Vocabulary<'_>) -> Map<String, Value> {
    vocabulary
        .tokens
        .iter()
        .enumerate()
        .map(|(id, token)| ((*token).to_owned(), id.into()))
        .collect()
}

/// Tokens that are found in texts as they are spelled.
fn added_tokens(vocabulary: &Vocabulary<'_>, strips: bool) -> Vec<Value> {
    let added = |(id, kind): (usize, &u32)| {
        let token = vocabulary.tokens[id];
        let special = matches!(*kind, CONTROL | UNKNOWN);
        (special || *kind == USER_DEFINED).then(|| {
            let strips = strips && *kind == CONTROL && !["<s>", "<|endoftext|>"].contains(&token);
            json!({"id": id, "content": token, "single_word": false, "lstrip": false,
                "rstrip": strips, "normalized": false, "special": special})
        })
    };
    vocabulary.kinds.iter().enumerate().filter_map(added).collect()
}

/// The merges of a vocabulary that has scores: every pair of tokens that is a token, the best first.
fn merges(vocabulary: &Vocabulary<'_>, scores: &[f64]) -> Vec<Value> {
    let is_piece =
        |id: usize| ![UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE].contains(&vocabulary.kinds[id]);
    let mut merges = Vec::new();
    for (id, token) in vocabulary.tokens.iter().enumerate().filter(|(id, _)| is_piece(*id)) {
        let mut of_token = Vec::new();
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            let piece = |part: &str| vocabulary.ids.get(part).copied().filter(|id| is_piece(*id));
            if let (Some(first), Some(second)) = (piece(left), piece(right)) {
                of_token.push((first, second, left, right));
            }
        }
        of_token.sort_by_key(|(first, second, ..)| (*first, *second));
        merges.extend(of_token.into_iter().map(|(_, _, left, right)| (scores[id], left, right)));
    }
    let len = |text: &str| text.chars().count();
    merges.sort_by(|(a, a_left, a_right), (b, b_left, b_right)| {
        b.total_cmp(a).then(len(b_left).cmp(&len(a_left))).then(len(b_right).cmp(&len(a_right)))
    });
    merges.into_iter().map(|(_, left, right)| json!([left, right])).collect()
}
