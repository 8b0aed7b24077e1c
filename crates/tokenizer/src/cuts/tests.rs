//! Pieces have the ids of the whole text, for every vocabulary and splitting rule of this repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::encode::Limits;
use crate::prompt::Conversation;
use crate::{AddSpecialTokens, Error};

/// Splitting rules of models without a golden.
const RULES: [&str; 9] = [
    // cl100k_base, as OpenAI writes it.
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    // Kimi.
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // BLOOM.
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    // DeepSeek LLM, in parts.
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺ]+",
    r"\s+$",
    // Digits in groups from their end, as in SuperBPE and others.
    r"(?=(\d{3})+(?!\d))",
    r"\p{N}{2,4}|\p{L}{1,2}|[^\p{L}\p{N}]",
    // A rule that looks far ahead.
    r"\p{L}+(?= *!)|.|\n",
];

struct Named {
    name: String,
    tokenizer: crate::Tokenizer,
}

static TOKENIZERS: LazyLock<Vec<Named>> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fixtures = root.join("tests/data");
    let mut files = tokenizer_files(&root.join("../../tests/golden"));
    files.extend(tokenizer_files(&fixtures));
    files.push(root.join("../server/demo/tokenizer.json"));
    assert!(files.len() > 20, "{files:?}");
    let read = |file: &PathBuf| (file.display().to_string(), fs::read(file).unwrap());
    let mut all = files.iter().map(read).collect::<Vec<_>>();
    let fixture = fs::read(fixtures.join("byte_level.tokenizer.json")).unwrap();
    for rule in RULES {
        let mut json: Value = serde_json::from_slice(&fixture).unwrap();
        json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = rule.into();
        all.push((rule.to_owned(), json.to_string().into_bytes()));
    }
    all.extend(variants(&fixture));
    let named = |(name, json): (String, Vec<u8>)| Named {
        tokenizer: crate::Tokenizer::from_bytes(&json, None).unwrap(),
        name,
    };
    all.into_iter().map(named).collect()
});

fn tokenizer_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tokenizer_files(&path));
        } else if path.to_string_lossy().ends_with("tokenizer.json") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// A byte-level vocabulary after steps that no golden has.
fn variants(fixture: &[u8]) -> Vec<(String, Vec<u8>)> {
    let split = |pattern: Value, behavior: &str| json!({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": false});
    let bytes = |prefix: bool, regex: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex});
    let punctuation = |behavior: &str| json!({"type": "Punctuation", "behavior": behavior});
    let digits = |each: bool| json!({"type": "Digits", "individual_digits": each});
    let digit_rule = || split(json!({"Regex": "[0-9][0-9][0-9]"}), "Isolated");
    let pre_tokenizers = [
        vec![bytes(true, true)],
        vec![punctuation("Contiguous"), bytes(false, true), digits(false), digit_rule()],
        vec![punctuation("Isolated"), digits(false), bytes(true, false)],
        vec![punctuation("MergedWithNext"), bytes(false, true)],
        vec![split(json!({"String": " "}), "MergedWithPrevious"), bytes(false, false)],
        vec![split(json!({"Regex": "\\p{N}{1,3}"}), "Contiguous"), bytes(false, true)],
        vec![split(json!({"String": "a."}), "Removed"), bytes(false, true)],
        vec![json!({"type": "WhitespaceSplit"}), bytes(false, false)],
        vec![json!({"type": "Whitespace"}), bytes(false, false)],
        vec![bytes(false, false)],
    ];
    let normalizers = [
        Value::Null,
        json!({"type": "NFC"}),
        json!({"type": "NFKC"}),
        json!({"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "Replace", "pattern": {"String": "b"}, "content": " c"}]}),
        json!({"type": "Replace", "pattern": {"String": "ab"}, "content": "x"}),
        json!({"type": "Prepend", "prepend": "x"}),
    ];
    let mut made = Vec::new();
    for (index, steps) in pre_tokenizers.iter().enumerate() {
        let mut json: Value = serde_json::from_slice(fixture).unwrap();
        let normalizer = &normalizers[index % normalizers.len()];
        json["normalizer"] = normalizer.clone();
        json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": steps});
        for (at, token) in json["added_tokens"].as_array_mut().unwrap().iter_mut().enumerate() {
            // Each token gets one of the four flags, and each vocabulary another assignment.
            token[["lstrip", "rstrip", "single_word", "normalized"][(at + index) % 4]] =
                true.into();
        }
        made.push((format!("{normalizer} {steps:?}"), json.to_string().into_bytes()));
    }
    made
}

/// Spellings of added tokens, of all vocabularies.
const ADDED: &[&str] = &[
    "<|begin|>",
    "<|end|>",
    "<|role|>",
    "<tool_call>",
    "<s>",
    "</s>",
    "<unk>",
    "<|user|>",
    "<|word|>",
    "[CLS]",
    "[MASK]",
    "<|endoftext|>",
    "<|im_start|>",
    "<turn|>",
    "<0x0A>",
];

/// Parts of texts: costly runs, all scripts, composed characters, and added tokens.
fn part() -> impl Strategy<Value = String> {
    let run = |of: &'static [&'static str]| {
        (prop::sample::select(of), 1..40_usize).prop_map(|(what, times)| what.repeat(times))
    };
    prop_oneof![
        run(&[
            "1", "12", " ", "\n", "\r\n", "\t", "a", "Z", "é", "日", "本", "か", "\u{301}",
            "\u{93f}", "!", "\u{3000}", "½", "٣"
        ]),
        run(&[
            "ab ",
            "it's ",
            "X1 ",
            "1, ",
            "日。",
            " \n",
            "e\u{301}",
            "\u{1112}\u{1161}",
            "▁",
            "▁a",
            "🎈",
            "a.b ",
            "-- "
        ]),
        "[a-zA-Z]{1,9}",
        "[ \n\r\t]{1,5}",
        "[a-z0-9 ,.!?'\"()/_-]{1,12}",
        // Contractions with letters whose other case is ASCII or several letters: the long s, sharp s and the
        // ligature fi.
        "['ſʼ](s|S|T|re|RE|ve|m|ll|d|ſ|ß|ﬁ)",
        "[а-яА-Яα-ωΣ 0-9]{1,9}",
        "[一-龥、。ぁ-んァ-ン가-힣]{1,9}",
        "\\PC{1,6}",
        "[\u{fdd0}\u{ffff}\u{300}-\u{320}\u{200b}-\u{200d}]{1,4}",
        prop::sample::select(ADDED).prop_map(str::to_owned),
        (prop::sample::select(ADDED), 1..5_usize)
            .prop_map(|(token, at)| token[..at.min(token.len())].to_owned()),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(part(), 0..12).prop_map(|parts| parts.concat())
}

fn ids(tokenizer: &crate::Tokenizer, text: &str, piece_bytes: usize) -> Vec<u32> {
    let never = AtomicBool::new(false);
    tokenizer.text_ids(text, Limits { piece_bytes, ..Limits::new(&never) }).unwrap()
}

fn num_pieces(tokenizer: &crate::Tokenizer, text: &str, piece_bytes: usize) -> usize {
    let mut cutter = Cutter::new(tokenizer.cuts(), piece_bytes);
    let (mut rest, mut pieces) = (text, 0);
    while !rest.is_empty() {
        rest = &rest[cutter.end(rest)..];
        pieces += 1;
    }
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn ids_of_pieces_are_those_of_the_text(text in text(), piece_bytes in 1..80_usize) {
        for Named { name, tokenizer } in TOKENIZERS.iter() {
            let whole = ids(tokenizer, &text, usize::MAX);
            prop_assert_eq!(ids(tokenizer, &text, 1), &whole[..], "{}", name);
            prop_assert_eq!(ids(tokenizer, &text, piece_bytes), &whole[..], "{}", name);
        }
    }

    #[test]
    fn ids_of_pieces_are_those_of_a_text_with_marks(text in text(), piece_bytes in 1..80_usize) {
        let never = AtomicBool::new(false);
        let content = |conversation: &Conversation<'_>| {
            Ok(conversation.messages[0].as_str().unwrap().to_owned())
        };
        let messages = std::borrow::Cow::Owned(json!([text]));
        let conversation = Conversation { messages, tools: None, documents: None };
        for Named { name, tokenizer } in TOKENIZERS.iter() {
            let Ok(prompt) = tokenizer.spellings().prompt(&conversation, content) else { continue };
            let Some((text, marks)) = prompt.marks() else { continue };
            let of = |piece_bytes| {
                let limits = Limits { piece_bytes, marks: Some(marks), ..Limits::new(&never) };
                tokenizer.text_ids(text, limits).unwrap()
            };
            let whole = of(usize::MAX);
            prop_assert_eq!(of(1), &whole[..], "{}", name);
            prop_assert_eq!(of(piece_bytes), &whole[..], "{}", name);
        }
    }
}

/// The library encodes the whole text at once, so that missing or repeated steps would be noticed.
#[test]
fn ids_are_those_of_the_library() {
    let text = "A text, it's  long. 12345 日本語 e\u{301}\n\nfn main() {}\n ".repeat(40);
    for Named { name, tokenizer } in TOKENIZERS.iter() {
        for add in [AddSpecialTokens::Yes, AddSpecialTokens::No] {
            let is_added = add == AddSpecialTokens::Yes;
            let whole = tokenizer.library().encode_fast(&*text, is_added).unwrap();
            assert_eq!(tokenizer.encode(&text, add).unwrap(), whole.get_ids(), "{name}");
        }
    }
}

#[test]
fn texts_are_cut_where_they_can_be() {
    let english = "The quick brown fox, it's said, jumps over 12 lazy dogs.\n".repeat(20);
    let uncut: Vec<_> = TOKENIZERS
        .iter()
        // The text has 1,140 bytes: 18 pieces of 64 bytes, if every one can be cut near its end.
        .filter(|named| num_pieces(&named.tokenizer, &english, 64) < 15)
        .map(|named| named.name.as_str())
        .collect();
    // Unknown steps, steps that may join words across a border, and rules that look far ahead.
    let unknown = |name: &&str| {
        let steps = [
            "NFKC",
            "MergedWithNext",
            "MergedWithPrevious",
            "\"String\":\"ab\"",
            "Whitespace\"",
            "(?=(\\d{3})+(?!\\d))",
            "\\s+$",
            "\"Sequence\",\"normalizers\"",
        ];
        steps.iter().any(|step| name.contains(step))
            && !name.ends_with(".json")
            && !name.contains("(?!\\S)")
    };
    assert!(uncut.iter().all(unknown), "{uncut:?}");
    let find =
        |end: &str| &TOKENIZERS.iter().find(|named| named.name.ends_with(end)).unwrap().tokenizer;
    for (name, text) in [
        ("demo/tokenizer.json", "1"),
        ("data/byte_level.tokenizer.json", "1"),
        ("gguf-deepseek2/tokenizer.json", "1"),
        ("gguf-gpt-oss/tokenizer.json", "12"),
        ("data/byte_level.tokenizer.json", "日本語、"),
        ("gguf-qwen2/tokenizer.json", "日本語、"),
        ("gguf-gemma4/tokenizer.json", "ab "),
        ("gguf-llama/tokenizer.json", "ab "),
    ] {
        let text = text.repeat(2000);
        // Pieces may be longer than 300 bytes by the distance to the next cut.
        assert!(num_pieces(find(name), &text, 300) >= text.len() / 350, "{name} {text:.9}");
    }
}

#[test]
fn one_word_is_one_piece_and_costs_little_to_look_at() {
    for Named { name, tokenizer } in TOKENIZERS.iter() {
        let text = "\u{301}".repeat(100_000);
        let all: String = ('\u{1000}'..'\u{20000}').collect();
        let begun = std::time::Instant::now();
        num_pieces(tokenizer, &text, PIECE_BYTES);
        num_pieces(tokenizer, &all, PIECE_BYTES);
        // It takes some milliseconds. The bound allows for a busy machine and a build without optimization.
        assert!(begun.elapsed().as_secs() < 10, "{name}: {:?}", begun.elapsed());
    }
}

#[test]
fn work_can_be_given_up() {
    let tokenizer = &TOKENIZERS[0].tokenizer;
    let cancelled = AtomicBool::new(true);
    let error = tokenizer.encode_until("a", AddSpecialTokens::No, &cancelled).unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
    // The flag is read between pieces, too, not only at the beginning.
    let text = "word ".repeat(1_000_000);
    let cancelled = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let work = scope.spawn(|| tokenizer.encode_until(&text, AddSpecialTokens::No, &cancelled));
        std::thread::sleep(std::time::Duration::from_millis(50));
        cancelled.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(matches!(work.join().unwrap(), Err(Error::Cancelled)));
    });
}
