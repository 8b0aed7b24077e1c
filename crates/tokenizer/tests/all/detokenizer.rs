//! Streamed text equals the text of all tokens together, for any tokens, and never contains a part of a character.

use candlepower_tokenizer::{AddSpecialTokens, Detokenizer, SkipSpecialTokens, Tokenizer};
use proptest::prelude::*;
use serde_json::json;

use crate::fixture;

/// The pieces for `generated` after `prompt`.
fn pieces(
    tokenizer: &Tokenizer,
    prompt: &[u32],
    generated: &[u32],
    skip: SkipSpecialTokens,
) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), prompt, skip).unwrap();
    let mut pieces =
        generated.iter().filter_map(|&id| detokenizer.push(id).unwrap()).collect::<Vec<_>>();
    pieces.extend(detokenizer.finish().unwrap());
    assert!(pieces.iter().all(|piece| !piece.is_empty()));
    assert_eq!(detokenizer.finish().unwrap(), None);
    pieces
}

/// The certain part of a prompt's text, without a character whose last bytes are missing.
fn certain_text(tokenizer: &Tokenizer, prompt: &[u32], skip: SkipSpecialTokens) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), &[], skip).unwrap();
    prompt.iter().filter_map(|&id| detokenizer.push(id).unwrap()).collect()
}

/// The library's decoding of all tokens, except that complete characters of damaged runs of byte tokens stay.
fn whole(tokenizer: &Tokenizer, ids: &[u32], skip: SkipSpecialTokens) -> String {
    let is_byte = |id: u32| {
        tokenizer.id_to_token(id).is_some_and(|token| token.len() == 6 && token.starts_with("<0x"))
    };
    let shown = |&id: &u32| {
        tokenizer.id_to_token(id).is_some()
            && !(skip == SkipSpecialTokens::Yes && tokenizer.is_special(id))
    };
    let ids = ids.iter().copied().filter(shown).collect::<Vec<_>>();
    let mut text = String::new();
    for run in ids.chunk_by(|&a, &b| is_byte(a) == is_byte(b)) {
        let bytes =
            run.iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect::<Vec<_>>();
        for chunk in bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            let count = if is_byte(run[0]) {
                chunk.invalid().len()
            } else {
                usize::from(!chunk.invalid().is_empty())
            };
            text.push_str(&"\u{fffd}".repeat(count));
        }
    }
    text
}

/// Whether the library and [`whole`] agree: no run of byte tokens has both a character and damage.
fn decode_or(tokenizer: &Tokenizer, ids: &[u32], skip: SkipSpecialTokens, whole: String) -> String {
    let library = tokenizer.decode(ids, skip).unwrap();
    let count = |text: &str| text.matches('\u{fffd}').count();
    if count(&library) == count(&whole) { library } else { whole }
}

fn skip_or_not() -> impl Strategy<Value = SkipSpecialTokens> {
    prop_oneof![Just(SkipSpecialTokens::Yes), Just(SkipSpecialTokens::No)]
}

fn random_ids(name: &str) -> impl Strategy<Value = Vec<u32>> + use<> {
    let tokenizer = fixture(name);
    let num_ids = tokenizer.vocab_size() as u32;
    // Three ids beyond the vocabulary, which have no token.
    let any = 0..num_ids + 3;
    // Half of them are single bytes, so that characters form by chance.
    let bytes = (0..num_ids).filter(|&id| tokenizer.token_bytes(id).len() == 1).collect::<Vec<_>>();
    prop::collection::vec(prop_oneof![any, prop::sample::select(bytes)], 0..40)
}

fn odd_text() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        " ",
        "  ",
        "\n",
        "a",
        "The",
        " capital",
        "é",
        "e\u{301}",
        "日本",
        "🎈",
        "👩\u{200d}👧",
        "🇨🇭",
        "\0",
        "\u{fffd}",
        "ก",
        "x1",
        "<tool_call>",
        "</s>",
        "▁",
    ]);
    prop::collection::vec(part, 0..16).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn byte_level_ids(ids in random_ids("byte_level"), at in any::<prop::sample::Index>(), skip in skip_or_not()) {
        let tokenizer = fixture_once::byte_level();
        let (prompt, generated) = ids.split_at(at.index(ids.len() + 1));
        let streamed = certain_text(tokenizer, prompt, skip) + &pieces(tokenizer, prompt, generated, skip).concat();
        prop_assert_eq!(streamed, tokenizer.decode(&ids, skip).unwrap());
    }

    #[test]
    fn byte_fallback_ids(ids in random_ids("byte_fallback"), at in any::<prop::sample::Index>(), skip in skip_or_not()) {
        let tokenizer = fixture_once::byte_fallback();
        let (prompt, generated) = ids.split_at(at.index(ids.len() + 1));
        let streamed = certain_text(tokenizer, prompt, skip) + &pieces(tokenizer, prompt, generated, skip).concat();
        let whole = whole(tokenizer, &ids, skip);
        let whole = whole.strip_prefix(' ').unwrap_or(&whole).to_owned();
        prop_assert_eq!(streamed, decode_or(tokenizer, &ids, skip, whole));
    }

    #[test]
    fn metaspace_ids(ids in random_ids("metaspace"), at in any::<prop::sample::Index>(), skip in skip_or_not()) {
        let tokenizer = fixture_once::metaspace();
        let (prompt, generated) = ids.split_at(at.index(ids.len() + 1));
        let streamed = certain_text(tokenizer, prompt, skip) + &pieces(tokenizer, prompt, generated, skip).concat();
        prop_assert_eq!(streamed, tokenizer.decode(&ids, skip).unwrap());
    }

    #[test]
    fn real_text_streams_without_replacement_characters(
        text in odd_text(), at in any::<prop::sample::Index>(), skip in skip_or_not(),
    ) {
        for tokenizer in [fixture_once::byte_level(), fixture_once::byte_fallback()] {
            let ids = tokenizer.encode(&text, AddSpecialTokens::Yes).unwrap();
            let (prompt, generated) = ids.split_at(at.index(ids.len() + 1));
            let pieces = pieces(tokenizer, prompt, generated, skip);
            let streamed = certain_text(tokenizer, prompt, skip) + &pieces.concat();
            prop_assert_eq!(&streamed, &tokenizer.decode(&ids, skip).unwrap());
            prop_assert_eq!(streamed.contains('\u{fffd}'), text.contains('\u{fffd}'));
        }
    }
}

/// The fixtures, read once for all cases.
mod fixture_once {
    use std::sync::OnceLock;

    use candlepower_tokenizer::Tokenizer;

    macro_rules! once {
        ($($name:ident)*) => {$(
            pub(super) fn $name() -> &'static Tokenizer {
                static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
                TOKENIZER.get_or_init(|| crate::fixture(stringify!($name)))
            }
        )*};
    }
    once!(byte_level byte_fallback metaspace);
}

#[test]
fn a_character_comes_out_when_it_is_complete_and_not_later() {
    let tokenizer = fixture_once::byte_fallback();
    let byte = |byte: u8| tokenizer.token_to_id(&format!("<0x{byte:02X}>")).unwrap();
    let prompt = tokenizer.encode("x", AddSpecialTokens::Yes).unwrap();
    let mut detokenizer =
        Detokenizer::new(tokenizer.clone(), &prompt, SkipSpecialTokens::Yes).unwrap();
    let mut push = |value| detokenizer.push(byte(value)).unwrap();
    assert_eq!([push(0xE2), push(0x82), push(0xAC)], [None, None, Some("€".into())]);
    assert_eq!([push(0xC3), push(0x41)], [None, Some("\u{fffd}A".into())]);
    assert_eq!(push(0xF0), None);
    assert_eq!(detokenizer.finish().unwrap().as_deref(), Some("\u{fffd}"));
}

#[test]
fn the_prompt_decides_on_the_leading_space() {
    let tokenizer = fixture_once::byte_fallback();
    let word = tokenizer.encode("The", AddSpecialTokens::No).unwrap();
    let begin = tokenizer.token_to_id("<s>").unwrap();
    let after = |prompt: &[u32]| pieces(tokenizer, prompt, &word, SkipSpecialTokens::Yes).concat();
    assert_eq!(after(&[]), "The");
    assert_eq!(after(&[begin]), "The");
    assert_eq!(after(&[&[begin], word.as_slice()].concat()), " The");
}

#[test]
fn a_character_begun_by_the_prompt_is_completed() {
    let tokenizer = fixture_once::byte_level();
    let bytes = "🎈".bytes().map(|byte| {
        let is_it = |&id: &u32| tokenizer.token_bytes(id) == [byte];
        (0..tokenizer.vocab_size() as u32).find(is_it).unwrap()
    });
    let ids = bytes.collect::<Vec<_>>();
    assert_eq!(pieces(tokenizer, &ids[..3], &ids[3..], SkipSpecialTokens::Yes), ["🎈"]);
}

#[test]
fn decoders_that_are_no_byte_tables_stream_too() {
    let vocab = json!({"a": 0, "b</w>": 1, "c</w>": 2, "##d": 3, "<unk>": 4});
    let tokenizer = |model: serde_json::Value, decoder: serde_json::Value| {
        let json = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": decoder, "model": model});
        Tokenizer::from_bytes(json.to_string().as_bytes(), None).unwrap()
    };
    let words = json!({"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"});
    let all = [
        tokenizer(words.clone(), json!(null)),
        tokenizer(words.clone(), json!({"type": "WordPiece", "prefix": "##", "cleanup": true})),
        tokenizer(words, json!({"type": "BPEDecoder", "suffix": "</w>"})),
    ];
    let ids = [0, 1, 2, 0, 0, 3, 1, 2, 9, 4, 2, 0, 3, 1];
    for tokenizer in &all {
        let text = tokenizer.decode(&ids, SkipSpecialTokens::Yes).unwrap();
        // The id 9 has no token.
        for at in 0..ids.len() {
            let (prompt, generated) = ids.split_at(at);
            let before = tokenizer.decode(prompt, SkipSpecialTokens::Yes).unwrap();
            let streamed = pieces(tokenizer, prompt, generated, SkipSpecialTokens::Yes).concat();
            assert_eq!(before + &streamed, text, "{tokenizer:?} {at}");
        }
    }
}
