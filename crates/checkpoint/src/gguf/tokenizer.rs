//! The vocabulary of a GGUF file as the `tokenizer.json` and the `tokenizer_config.json` of the same model.
//! Source: `src/llama-vocab.cpp` of llama.cpp.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use serde_json::{Map, Value, json};

use super::Gguf;
use crate::{
    ends::{ends_of_gguf, is_mark, is_within_turns},
    error::{Error, Result},
    vocabulary::{
        pieces::{
            CONTROL, UNKNOWN, Vocabulary, added_tokens, byte_pairs, merges, of_pieces, vocab,
        },
        splitting::{SPLITTINGS, Splitting, UNNAMED, byte_level, byte_level_steps},
    },
};

/// Advice for a vocabulary that is not understood.
const ELSEWHERE: &str = "; name a folder with the model's own tokenizer.json by --tokenizer";

/// Marks that Gemma 4's checkpoints have as special tokens, and their files as those that a user defined.
const GEMMA4_MARKS: [&str; 6] =
    ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<tool_response|>", "<|\"|>"];

impl Gguf {
    /// The model's `tokenizer.json`.
    pub(super) fn tokenizer(&self) -> Result<Value> {
        let vocabulary = self.vocabulary()?;
        let expected = "gpt2, llama or gemma4";
        let model = self.metadata.text_opt(MODEL)?;
        match model.ok_or_else(|| self.metadata.missing(MODEL, expected))? {
            "gpt2" => self.byte_level(&vocabulary),
            "llama" | "gemma4" => self.sentence_piece(&vocabulary),
            other => {
                // Vocabularies of encoders, such as bert and t5, are not made of merges.
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
        for (role, name) in [
            ("bos", "bos_token"),
            ("eos", "eos_token"),
            ("unknown", "unk_token"),
            ("padding", "pad_token"),
        ] {
            if let Some(token) = self.special(&vocabulary, role)? {
                config.insert(name.into(), token.into());
            }
        }
        let m = &self.metadata;
        let mut templates = Vec::new();
        // Some models have templates for tools or retrieval beside the usual one, each under a key of its own.
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
        // A file without a vocabulary serves with `--tokenizer`, and its ids are still ends.
        if !self.metadata.contains(TOKENS) {
            for name in ENDS {
                ids.extend(self.metadata.token_ids(&format!("tokenizer.ggml.{name}_token_id"))?);
            }
            return Ok(ids);
        }
        let vocabulary = self.vocabulary()?;
        let find = |name: &str| {
            let id = *vocabulary.ids.get(name)?;
            Some((id as u32, vocabulary.kinds[id] == CONTROL))
        };
        for name in ENDS {
            ids.extend(self.special_id(&vocabulary, name)?.map(|id| id as u32));
        }
        // Files name the end of a message by mistake, too.
        ids.retain(|id| {
            let name = &vocabulary.tokens[*id as usize];
            // The file itself names `</s>` as an end here. The search by
            // names cannot tell it from a tag, and leaves it out.
            name.as_ref() == "</s>" || !is_within_turns(name, &find)
        });
        ids.extend(ends_of_gguf(&find));
        // The order stays: the first end is the one that a template calls `eos_token`.
        let mut seen = HashSet::new();
        ids.retain(|id| seen.insert(*id));
        Ok(ids)
    }

    fn vocabulary(&self) -> Result<Vocabulary<'_>> {
        const KINDS: &str = "tokenizer.ggml.token_type";
        let m = &self.metadata;
        let tokens = m.texts_opt(TOKENS)?.ok_or_else(|| m.missing(TOKENS, "a list of tokens"))?;
        // Several may be empty.
        let tokens = tokens.into_iter().enumerate().map(|(id, token)| match token {
            // Two equal tokens are refused below, so each empty one gets a name of its own.
            "" => Cow::Owned(format!("[EMPTY_{id}]")),
            token => Cow::Borrowed(token),
        });
        let tokens: Vec<Cow<'_, str>> = tokens.collect();
        let mut kinds = m.indices(KINDS)?;
        if kinds.is_empty() {
            // Without kinds each token is a normal one, which is 1.
            kinds = vec![1; tokens.len()];
        }
        self.as_many(KINDS, kinds.len(), tokens.len())?;
        for (token, kind) in tokens.iter().zip(&mut kinds) {
            // Clients see Gemma 4's channels and calls as fields, so these marks must not be text of an answer.
            let of_gemma = self.arch.is("gemma4") && GEMMA4_MARKS.contains(&token.as_ref());
            if of_gemma || is_mark(token) {
                *kind = CONTROL;
            }
        }
        let mut ids = HashMap::new();
        for (id, token) in tokens.iter().enumerate() {
            if let Some(first) = ids.insert(token.clone(), id) {
                let reason = format!("the tokens {first} and {id} are the same, {token:.80}");
                return Err(Error::GgufContents { file: self.files[0].clone(), reason });
            }
        }
        Ok(Vocabulary { tokens, kinds, ids })
    }

    fn as_many(&self, key: &str, found: usize, tokens: usize) -> Result<()> {
        match found == tokens {
            true => Ok(()),
            false => {
                let reason = format!("`{key}` has {found} entries for {tokens} tokens");
                Err(Error::GgufContents { file: self.files[0].clone(), reason })
            }
        }
    }

    /// The id of the token with this role: what the file says, unless it says a number beyond all tokens, or what files without
    /// that mean.
    fn special_id(&self, vocabulary: &Vocabulary<'_>, name: &str) -> Result<Option<usize>> {
        let found = self.metadata.token_ids(&format!("tokenizer.ggml.{name}_token_id"))?;
        // These are llama.cpp's defaults for sentencepiece; byte-level vocabularies have none.
        let usual = match (self.metadata.text_opt(MODEL)?, name) {
            (Some("llama"), "bos") => Some(1),
            (Some("llama"), "eos") => Some(2),
            _ => None,
        };
        // llama.cpp ignores ids beyond the vocabulary, and some files have -1 as a u32 here.
        let ids = found.first().map(|id| *id as usize).into_iter().chain(usual);
        let mut ids = ids.filter(|id| *id < vocabulary.tokens.len());
        Ok(ids.next())
    }

    /// The token with this role.
    fn special<'a>(&self, vocabulary: &'a Vocabulary<'_>, name: &str) -> Result<Option<&'a str>> {
        Ok(self.special_id(vocabulary, name)?.map(|id| vocabulary.tokens[id].as_ref()))
    }

    /// The rule that splits byte-level texts. If the file names none, it is that of llama.cpp.
    fn splitting(&self) -> Result<&'static Splitting> {
        let m = &self.metadata;
        let name = m.text_opt(PRE)?.filter(|name| !name.is_empty()).unwrap_or(UNNAMED);
        // An unknown name is refused, not guessed: texts that are
        // split otherwise get other tokens, without any error.
        SPLITTINGS.iter().find(|s| s.names.contains(&name)).ok_or_else(|| {
            let names: Vec<&str> = SPLITTINGS.iter().flat_map(|s| s.names).copied().collect();
            let hint =
                format!("; {} are{}", names.join(", "), ELSEWHERE.replace("; name", ", or name"));
            m.unsupported(PRE, &name.into(), &hint)
        })
    }

    /// Remarks for users on the vocabulary.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let text = |key: &str| self.metadata.raw(key).and_then(Value::as_str);
        let is_named = text(PRE).is_some_and(|name| !["", UNNAMED].contains(&name));
        let file = &self.files[0];
        match text(MODEL) {
            Some("gpt2") if !is_named => vec![format!(
                "{file} does not say by `{PRE}` how its texts are split into words: as llama.cpp does it then, which makes \
                 answers worse{ELSEWHERE}"
            )],
            _ => Vec::new(),
        }
    }

    fn byte_level(&self, vocabulary: &Vocabulary<'_>) -> Result<Value> {
        let splitting = self.splitting()?;
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
        let merges = match m.text_opt(MODEL)? {
            // Its scores say nothing.
            Some("gemma4") => self.stored_merges()?,
            _ => {
                let scores = m.floats(SCORES)?;
                self.as_many(SCORES, scores.len(), vocabulary.tokens.len())?;
                merges(vocabulary, &scores)
            }
        };
        // The `tokenizer.json` of a model of pieces has no step that removes white space between words.
        if let Some(true) =
            m.raw("tokenizer.ggml.remove_extra_whitespaces").and_then(Value::as_bool)
        {
            let key = "tokenizer.ggml.remove_extra_whitespaces";
            return Err(m.unsupported(key, &true.into(), ELSEWHERE));
        }
        let space = m.flag_or("tokenizer.ggml.add_space_prefix", true)?;
        let unknown = match self.special(vocabulary, "unknown")? {
            // Files may leave out the id and still mark the token's kind.
            Some(token) => Some(token),
            None => vocabulary
                .kinds
                // llama.cpp adds the beginning to models of pieces unless the
                // file says otherwise. Byte-level ones differ by their rule.
                .iter()
                .position(|kind| *kind == UNKNOWN)
                .map(|id| vocabulary.tokens[id].as_ref()),
        };
        // Phi-3's control tokens take the white space behind them, which the metadata does not say.
        let added = added_tokens(vocabulary, self.arch.is("phi3"));
        let vocab = vocab(vocabulary);
        let post_processor = self.post_processor(vocabulary, true)?;
        Ok(of_pieces(
            byte_pairs(vocab, merges, unknown),
            added,
            (Vec::new(), space),
            post_processor,
        ))
    }

    /// The merges that the file has, the first ones first.
    fn stored_merges(&self) -> Result<Vec<Value>> {
        const MERGES: &str = "tokenizer.ggml.merges";
        let m = &self.metadata;
        let merges = m.texts_opt(MERGES)?.ok_or_else(|| m.missing(MERGES, "a list of merges"))?;
        // Byte-level tokens have no space in them: it is written as another character.
        let halves = |merge: &&str| match merge.split_once(' ') {
            Some((left, right)) => Ok(json!([left, right])),
            None => Err(m.ill_typed(MERGES, &(*merge).into(), "two tokens with a space between")),
        };
        merges.iter().map(halves).collect()
    }

    /// The post-processor, which puts tokens before and behind a text.
    fn post_processor(&self, vocabulary: &Vocabulary<'_>, bos: bool) -> Result<Value> {
        let mut special = Map::new();
        let mut piece = |name: &str, default: bool| -> Result<Option<Value>> {
            if !self.metadata.flag_or(&format!("tokenizer.ggml.add_{name}_token"), default)? {
                return Ok(None);
            }
            let Some(id) = self.special_id(vocabulary, name)? else { return Ok(None) };
            let token = vocabulary.tokens[id].as_ref();
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
const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
/// The roles of tokens that end a text.
const ENDS: [&str; 3] = ["eos", "eot", "eom"];
