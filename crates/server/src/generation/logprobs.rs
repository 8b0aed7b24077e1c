//! Log-probabilities in the three forms that answers have.

use std::collections::BTreeMap;

use candlepower_api::{
    ChatLogprobs, ChatTokenLogprob, ChatTopLogprob, CompletionLogprobs, PromptLogprob,
    PromptLogprobs,
};
use candlepower_engine::TokenLogprobs;
use candlepower_tokenizer::Tokenizer;

/// Stands for minus infinity, which JSON does not have. Source: the OpenAI API reference, `logprob`.
const LEAST_LOGPROB: f32 = -9999.0;

fn finite(logprob: f32) -> f32 {
    // Also true of NaN, which a model with broken weights gives.
    if logprob > LEAST_LOGPROB { logprob } else { LEAST_LOGPROB }
}

/// Chat's form.
pub(crate) fn chat_logprobs(tokenizer: &Tokenizer, tokens: &[TokenLogprobs]) -> ChatLogprobs {
    let top = |&(id, logprob): &(u32, f32)| ChatTopLogprob {
        token: tokenizer.token_text(id),
        logprob: finite(logprob),
        bytes: tokenizer.token_bytes(id).to_vec(),
    };
    let token = |token: &TokenLogprobs| ChatTokenLogprob {
        token: tokenizer.token_text(token.token_id),
        logprob: finite(token.logprob),
        bytes: tokenizer.token_bytes(token.token_id).to_vec(),
        top_logprobs: token.top.iter().map(top).collect(),
    };
    ChatLogprobs { content: tokens.iter().map(token).collect() }
}

/// Whether special tokens are characters of the text that offsets count in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpecialTokens {
    InText,
    NotInText,
}

/// Text completion's form, built piece by piece: offsets go on where the last piece ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct CompletionLogprobsBuilder {
    text_offset: usize,
}

impl CompletionLogprobsBuilder {
    /// The log-probabilities of generated tokens.
    pub(crate) fn output(
        &mut self,
        tokenizer: &Tokenizer,
        tokens: &[TokenLogprobs],
        special: SpecialTokens,
    ) -> CompletionLogprobs {
        let mut logprobs = CompletionLogprobs::default();
        for token in tokens {
            self.push(&mut logprobs, tokenizer, token.token_id, Some(token), special);
        }
        logprobs
    }

    /// The log-probabilities of a prompt's tokens; the first has none.
    pub(crate) fn prompt(
        &mut self,
        tokenizer: &Tokenizer,
        token_ids: &[u32],
        tokens: &[Option<TokenLogprobs>],
        special: SpecialTokens,
    ) -> CompletionLogprobs {
        let mut logprobs = CompletionLogprobs::default();
        for (id, token) in token_ids.iter().zip(tokens) {
            self.push(&mut logprobs, tokenizer, *id, token.as_ref(), special);
        }
        logprobs
    }

    /// Goes on behind a text that has no log-probabilities.
    pub(crate) fn skip(&mut self, text: &str) {
        self.text_offset += text.chars().count();
    }

    fn push(
        &mut self,
        logprobs: &mut CompletionLogprobs,
        tokenizer: &Tokenizer,
        token_id: u32,
        token: Option<&TokenLogprobs>,
        special: SpecialTokens,
    ) {
        logprobs.text_offset.push(self.text_offset);
        logprobs.tokens.push(tokenizer.token_text(token_id));
        logprobs.token_logprobs.push(token.map(|token| finite(token.logprob)));
        logprobs.top_logprobs.push(token.map(|token| {
            let candidates = token.top.iter().copied().chain([(token.token_id, token.logprob)]);
            // Where two tokens have one text, the likelier one is meant.
            let mut map = BTreeMap::new();
            for (id, logprob) in candidates {
                let entry = map.entry(tokenizer.token_text(id)).or_insert(LEAST_LOGPROB);
                *entry = entry.max(finite(logprob));
            }
            map
        }));
        if special == SpecialTokens::InText || !tokenizer.is_special(token_id) {
            self.text_offset += tokenizer
                .token_bytes(token_id)
                .iter()
                .filter(|byte| begins_character(**byte))
                .count();
        }
    }
}

/// Whether a byte of UTF-8 is the first of its character; so a character of several tokens counts once.
fn begins_character(byte: u8) -> bool {
    byte & 0b1100_0000 != 0b1000_0000
}

/// The form of `prompt_logprobs`, with at most `num_top` alternatives beside the prompt's own token.
pub(crate) fn prompt_logprobs(
    tokenizer: &Tokenizer,
    tokens: &[Option<TokenLogprobs>],
    num_top: usize,
) -> PromptLogprobs {
    let candidate = |id: u32, logprob: f32, rank: Option<usize>| {
        let entry = PromptLogprob {
            logprob: finite(logprob),
            rank,
            decoded_token: tokenizer.token_text(id),
        };
        (id.to_string(), entry)
    };
    let position = |token: &TokenLogprobs| {
        let rank =
            token.top.iter().position(|(id, _)| *id == token.token_id).map(|place| place + 1);
        let top = token.top.iter().take(num_top).enumerate();
        let mut map: BTreeMap<_, _> =
            top.map(|(place, (id, logprob))| candidate(*id, *logprob, Some(place + 1))).collect();
        map.extend([candidate(token.token_id, token.logprob, rank)]);
        map
    };
    tokens.iter().map(|token| token.as_ref().map(position)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::demo;

    fn token(token_id: u32, logprob: f32, top: &[(u32, f32)]) -> TokenLogprobs {
        TokenLogprobs { token_id, logprob, top: top.to_vec() }
    }

    #[test]
    fn chat_has_texts_and_bytes() {
        let tokenizer = demo::tokenizer();
        let a = tokenizer.token_to_id("a").unwrap();
        let b = tokenizer.token_to_id("b").unwrap();
        let logprobs =
            chat_logprobs(&tokenizer, &[token(a, f32::NEG_INFINITY, &[(b, -0.5), (a, f32::NAN)])]);
        let entry = &logprobs.content[0];
        assert_eq!(
            (entry.token.as_str(), entry.logprob, entry.bytes.as_slice()),
            ("a", -9999.0, &b"a"[..])
        );
        assert_eq!(entry.top_logprobs.len(), 2);
        assert_eq!(entry.top_logprobs[1].logprob, -9999.0);
    }

    #[test]
    fn offsets_count_characters_across_pieces() {
        let tokenizer = demo::tokenizer();
        let encode = |text: &str| {
            tokenizer.encode(text, candlepower_tokenizer::AddSpecialTokens::No).unwrap()
        };
        let entries = |ids: &[u32]| ids.iter().map(|id| token(*id, -1.0, &[])).collect::<Vec<_>>();
        let (first, second) = (encode("日本"), encode("xy"));
        let mut builder = CompletionLogprobsBuilder::default();
        builder.skip("é");
        let a = builder.output(&tokenizer, &entries(&first), SpecialTokens::NotInText);
        let b = builder.output(&tokenizer, &entries(&second), SpecialTokens::NotInText);
        assert_eq!(a.text_offset[0], 1);
        assert_eq!(b.text_offset[0], 3);
        assert_eq!(a.tokens.len(), first.len());
    }

    #[test]
    fn special_tokens_take_no_room_in_a_text_without_them() {
        let tokenizer = demo::tokenizer();
        let special = tokenizer.special_ids()[0];
        let entries = [token(special, -1.0, &[]), token(special, -1.0, &[])];
        let offsets = |special| {
            CompletionLogprobsBuilder::default()
                .output(&demo::tokenizer(), &entries, special)
                .text_offset
        };
        assert_eq!(offsets(SpecialTokens::NotInText), [0, 0]);
        assert_eq!(
            offsets(SpecialTokens::InText)[1],
            tokenizer.token_text(special).chars().count()
        );
    }

    #[test]
    fn completion_lists_the_tokens_own_text_among_the_top() {
        let tokenizer = demo::tokenizer();
        let id = |text: &str| tokenizer.token_to_id(text).unwrap();
        let entry = token(id("a"), -3.0, &[(id("b"), -0.5)]);
        let logprobs = CompletionLogprobsBuilder::default().prompt(
            &tokenizer,
            &[id("c"), id("a")],
            &[None, Some(entry)],
            SpecialTokens::InText,
        );
        assert_eq!(logprobs.token_logprobs, [None, Some(-3.0)]);
        assert_eq!(
            logprobs.top_logprobs[1],
            Some([("a".to_owned(), -3.0), ("b".to_owned(), -0.5)].into())
        );
    }

    #[test]
    fn prompt_logprobs_are_keyed_by_id() {
        let tokenizer = demo::tokenizer();
        let id = |text: &str| tokenizer.token_to_id(text).unwrap();
        let entry = token(id("a"), -3.0, &[(id("b"), -0.5), (id("c"), -0.7)]);
        let logprobs = prompt_logprobs(&tokenizer, &[None, Some(entry)], 1);
        assert_eq!(logprobs[0], None);
        let map = logprobs[1].as_ref().unwrap();
        assert_eq!(map.len(), 2);
        assert_eq!(map[&id("b").to_string()].rank, Some(1));
        assert_eq!(map[&id("a").to_string()].rank, None);
    }
}
