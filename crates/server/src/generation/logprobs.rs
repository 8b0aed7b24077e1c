//! Log-probabilities in the three formats of the API.

use std::collections::BTreeMap;

use candlepower_api::{
    ChatLogprobs, ChatTokenLogprob, ChatTopLogprob, CompletionLogprobs, PromptLogprob,
    PromptLogprobs,
};
use candlepower_engine::TokenLogprobs;
use candlepower_tokenizer::Tokenizer;

/// Written for minus infinity, which JSON cannot express. Source: the OpenAI API reference, `logprob`.
const LEAST_LOGPROB: f32 = -9999.0;

/// The names of tokens beside log-probabilities.
#[derive(Clone)]
pub(crate) struct TokenNames {
    pub(crate) tokenizer: Tokenizer,
    /// Whether tokens are named by their ids, because not every token is valid text by itself.
    pub(crate) by_id: bool,
}

impl TokenNames {
    fn name(&self, id: u32) -> String {
        match self.by_id {
            true => format!("token_id:{id}"),
            false => self.tokenizer.token_text(id),
        }
    }
}

fn finite(logprob: f32) -> f32 {
    // This comparison also replaces NaN, which a model with broken weights produces.
    if logprob > LEAST_LOGPROB { logprob } else { LEAST_LOGPROB }
}

/// The format of chat completions.
pub(crate) fn chat_logprobs(names: &TokenNames, tokens: &[TokenLogprobs]) -> ChatLogprobs {
    let top = |&(id, logprob): &(u32, f32)| ChatTopLogprob {
        token: names.name(id),
        logprob: finite(logprob),
        bytes: names.tokenizer.token_bytes(id).to_vec(),
    };
    let token = |token: &TokenLogprobs| ChatTokenLogprob {
        token: names.name(token.token_id),
        logprob: finite(token.logprob),
        bytes: names.tokenizer.token_bytes(token.token_id).to_vec(),
        top_logprobs: token.top.iter().map(top).collect(),
    };
    ChatLogprobs { content: tokens.iter().map(token).collect() }
}

/// Whether special tokens are part of the text in which offsets are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpecialTokens {
    InText,
    NotInText,
}

/// The format of text completions, built piece by piece. Offsets continue from the last piece.
#[derive(Clone, Debug, Default)]
pub(crate) struct CompletionLogprobsBuilder {
    text_offset: usize,
}

impl CompletionLogprobsBuilder {
    /// Log-probabilities of generated tokens.
    pub(crate) fn output(
        &mut self,
        names: &TokenNames,
        tokens: &[TokenLogprobs],
        special: SpecialTokens,
    ) -> CompletionLogprobs {
        let mut logprobs = CompletionLogprobs::default();
        for token in tokens {
            self.push(&mut logprobs, names, token.token_id, Some(token), special);
        }
        logprobs
    }

    /// Log-probabilities of a prompt's tokens; the first token has none.
    pub(crate) fn prompt(
        &mut self,
        names: &TokenNames,
        token_ids: &[u32],
        tokens: &[Option<TokenLogprobs>],
        special: SpecialTokens,
    ) -> CompletionLogprobs {
        let mut logprobs = CompletionLogprobs::default();
        for (id, token) in token_ids.iter().zip(tokens) {
            self.push(&mut logprobs, names, *id, token.as_ref(), special);
        }
        logprobs
    }

    /// Advances the offset by a text without log-probabilities.
    pub(crate) fn skip(&mut self, text: &str) {
        self.text_offset += text.chars().count();
    }

    fn push(
        &mut self,
        logprobs: &mut CompletionLogprobs,
        names: &TokenNames,
        token_id: u32,
        token: Option<&TokenLogprobs>,
        special: SpecialTokens,
    ) {
        logprobs.text_offset.push(self.text_offset);
        logprobs.tokens.push(names.name(token_id));
        logprobs.token_logprobs.push(token.map(|token| finite(token.logprob)));
        logprobs.top_logprobs.push(token.map(|token| {
            let candidates = token.top.iter().copied().chain([(token.token_id, token.logprob)]);
            // If two tokens have the same text, the likelier one is reported.
            let mut map = BTreeMap::new();
            for (id, logprob) in candidates {
                let entry = map.entry(names.name(id)).or_insert(LEAST_LOGPROB);
                *entry = entry.max(finite(logprob));
            }
            map
        }));
        let tokenizer = &names.tokenizer;
        if special == SpecialTokens::InText || !tokenizer.is_special(token_id) {
            self.text_offset += tokenizer
                .token_bytes(token_id)
                .iter()
                .filter(|byte| begins_character(**byte))
                .count();
        }
    }
}

/// Whether a byte of UTF-8 is the first of its character, so that a character of several tokens counts once.
fn begins_character(byte: u8) -> bool {
    byte & 0b1100_0000 != 0b1000_0000
}

/// The format of `prompt_logprobs`, with at most `num_top` alternatives beside the prompt's token.
pub(crate) fn prompt_logprobs(
    tokenizer: &Tokenizer,
    tokens: &[Option<TokenLogprobs>],
    num_top: usize,
) -> PromptLogprobs {
    let candidate = |id: u32, logprob: f32, rank: usize| {
        let entry = PromptLogprob {
            logprob: finite(logprob),
            rank,
            decoded_token: tokenizer.token_text(id),
        };
        (id.to_string(), entry)
    };
    let position = |token: &TokenLogprobs| {
        // Tokens with equal log-probabilities share a rank.
        let rank = |logprob| 1 + token.top.partition_point(|(_, other)| *other > logprob);
        let top = token.top.iter().take(num_top);
        let top = top.map(|(id, logprob)| candidate(*id, *logprob, rank(*logprob)));
        let own = candidate(token.token_id, token.logprob, token.rank);
        top.chain([own]).collect::<BTreeMap<_, _>>()
    };
    tokens.iter().map(|token| token.as_ref().map(position)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::demo;

    fn names(by_id: bool) -> TokenNames {
        TokenNames { tokenizer: demo::tokenizer(), by_id }
    }

    fn token(token_id: u32, logprob: f32, top: &[(u32, f32)]) -> TokenLogprobs {
        TokenLogprobs { token_id, logprob, rank: 7, top: top.to_vec() }
    }

    #[test]
    fn chat_has_texts_and_bytes() {
        let tokenizer = demo::tokenizer();
        let a = tokenizer.token_to_id("a").unwrap();
        let b = tokenizer.token_to_id("b").unwrap();
        let logprobs = chat_logprobs(
            &names(false),
            &[token(a, f32::NEG_INFINITY, &[(b, -0.5), (a, f32::NAN)])],
        );
        let entry = &logprobs.content[0];
        assert_eq!(
            (entry.token.as_str(), entry.logprob, entry.bytes.as_slice()),
            ("a", -9999.0, &b"a"[..])
        );
        assert_eq!(entry.top_logprobs.len(), 2);
        assert_eq!(entry.top_logprobs[1].logprob, -9999.0);
    }

    #[test]
    fn tokens_are_named_by_their_ids_where_that_is_asked_for() {
        let tokenizer = demo::tokenizer();
        let [a, b] = ["a", "b"].map(|text| tokenizer.token_to_id(text).unwrap());
        let entries = [token(a, -1.0, &[(b, -0.5)])];
        let chat = chat_logprobs(&names(true), &entries).content.remove(0);
        assert_eq!((chat.token, chat.bytes), (format!("token_id:{a}"), b"a".to_vec()));
        assert_eq!(chat.top_logprobs[0].token, format!("token_id:{b}"));
        let completion = CompletionLogprobsBuilder::default().output(
            &names(true),
            &entries,
            SpecialTokens::NotInText,
        );
        assert_eq!(completion.tokens, [format!("token_id:{a}")]);
        let top = completion.top_logprobs[0].as_ref().unwrap();
        assert!(top.contains_key(&format!("token_id:{a}")), "{top:?}");
        assert!(top.contains_key(&format!("token_id:{b}")), "{top:?}");
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
        let a = builder.output(&names(false), &entries(&first), SpecialTokens::NotInText);
        let b = builder.output(&names(false), &entries(&second), SpecialTokens::NotInText);
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
                .output(&names(false), &entries, special)
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
            &names(false),
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
        let top = [(id("b"), -0.5), (id("c"), -0.7), (id("d"), -0.7)];
        let entry = token(id("a"), -3.0, &top);
        let ranks = |num_top| {
            let logprobs = prompt_logprobs(&tokenizer, &[None, Some(entry.clone())], num_top);
            assert_eq!(logprobs[0], None);
            let map = logprobs[1].as_ref().unwrap();
            let rank = |text: &str| map.get(&id(text).to_string()).map(|entry| entry.rank);
            ["a", "b", "c", "d"].map(rank)
        };
        assert_eq!(ranks(1), [Some(7), Some(1), None, None]);
        assert_eq!(ranks(3), [Some(7), Some(1), Some(2), Some(2)], "equals share a rank");
    }
}
