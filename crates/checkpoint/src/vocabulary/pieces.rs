//! Tokens with kinds and scores, and tokenizers of the pieces of SentencePiece.
//! Source: for SentencePiece's merges `generate_merges` of transformers.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
};

use serde_json::{Map, Value, json};

/// Kinds of tokens in `tokenizer.ggml.token_type`.
pub(crate) const UNKNOWN: u32 = 2;
pub(crate) const CONTROL: u32 = 3;
pub(crate) const USER_DEFINED: u32 = 4;
pub(crate) const UNUSED: u32 = 5;
pub(crate) const BYTE: u32 = 6;

/// Tokens in the order of their ids, and what each is.
pub(crate) struct Vocabulary<'a> {
    pub(crate) tokens: Vec<Cow<'a, str>>,
    pub(crate) kinds: Vec<u32>,
    pub(crate) ids: HashMap<Cow<'a, str>, usize>,
}

/// Pieces of a vocabulary of sentencepiece.
pub(crate) struct Pieces<'a> {
    pub(crate) tokens: &'a [String],
    pub(crate) kinds: &'a [u32],
    pub(crate) scores: &'a [f64],
}

/// Model that splits texts into the pieces of such a vocabulary.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PieceModel {
    /// Pairs are merged, the best first.
    BytePairs,
    /// The pieces of the likeliest whole; what has no piece is spelled in bytes where `byte_fallback`.
    Unigram { byte_fallback: bool },
}

/// The tokenizer of such a vocabulary; to its texts are applied what the list has, and a space is put before them where the
/// flag says so.
///
/// # Errors
/// Two tokens are the same, or none stands for what is unknown.
pub(crate) fn sentence_pieces(
    pieces: &Pieces<'_>,
    model: PieceModel,
    normalized: (Vec<Value>, bool),
    post_processor: Value,
) -> Result<Value, String> {
    let tokens: Vec<Cow<'_, str>> = pieces.tokens.iter().map(Cow::from).collect();
    let mut ids = HashMap::new();
    for (id, token) in tokens.iter().enumerate() {
        if let Some(first) = ids.insert(token.clone(), id) {
            return Err(format!("the tokens {first} and {id} are the same, {token:.80}"));
        }
    }
    let vocabulary = Vocabulary { tokens, kinds: pieces.kinds.to_vec(), ids };
    let unknown = vocabulary.kinds.iter().position(|kind| *kind == UNKNOWN);
    let added = added_tokens(&vocabulary, false);
    let (model, pre_tokenizer) = match model {
        PieceModel::BytePairs => {
            let merges = merges(&vocabulary, pieces.scores);
            let unknown = unknown.map(|id| vocabulary.tokens[id].as_ref());
            (byte_pairs(vocab(&vocabulary), merges, unknown), Value::Null)
        }
        PieceModel::Unigram { byte_fallback } => {
            let unknown = unknown.ok_or("no token stands for what is unknown")?;
            let vocab = scored(&vocabulary, pieces.scores);
            let model = json!({
                "type": "Unigram", "unk_id": unknown, "byte_fallback": byte_fallback, "vocab": vocab,
            });
            (model, apart(&vocabulary))
        }
    };
    let mut tokenizer = of_pieces(model, added, normalized, post_processor);
    tokenizer["pre_tokenizer"] = pre_tokenizer;
    Ok(tokenizer)
}

/// Splits texts behind the first character of whatever is spelled like a token that is no piece: a unigram model would find it.
fn apart(vocabulary: &Vocabulary<'_>) -> Value {
    let mut by_first: BTreeMap<char, Vec<String>> = BTreeMap::new();
    for (token, kind) in vocabulary.tokens.iter().zip(&vocabulary.kinds) {
        let mut rest = token.chars();
        // Texts of users must not be able to spell a control token, so a cut keeps the model from finding it.
        if let (Some(first), true) = (rest.next(), [UNKNOWN, CONTROL, BYTE].contains(kind))
            && !rest.as_str().is_empty()
        {
            by_first.entry(first).or_default().push(regex::escape(rest.as_str()));
        }
    }
    let split = |(first, rests): (char, Vec<String>)| {
        format!("(?<={})(?={})", regex::escape(&first.to_string()), rests.join("|"))
    };
    let pattern = by_first.into_iter().map(split).collect::<Vec<_>>().join("|");
    match pattern.is_empty() {
        true => Value::Null,
        false => {
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
        }
    }
}

/// The vocabulary of a unigram model, of which only pieces are found in texts.
fn scored(vocabulary: &Vocabulary<'_>, scores: &[f64]) -> Vec<Value> {
    let all = || vocabulary.tokens.iter().zip(&vocabulary.kinds).zip(scores);
    let of_pieces = all().filter(|((_, kind), _)| **kind == 1).map(|(_, score)| *score);
    // Unknown characters cost more than the least likely piece, so others must not be less likely.
    let least = of_pieces.fold(0.0, f64::min);
    let entry = |((token, kind), score): ((&Cow<'_, str>, &u32), &f64)| match *kind {
        1 => json!([token, score]),
        // With a space, which no text has any more.
        UNUSED => json!([format!("{token} "), least]),
        _ => json!([token, least]),
    };
    all().map(entry).collect()
}

pub(crate) fn byte_pairs(
    vocab: Map<String, Value>,
    merges: Vec<Value>,
    unknown: Option<&str>,
) -> Value {
    json!({
        "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true,
        "ignore_merges": false, "vocab": vocab, "merges": merges,
    })
}

/// A tokenizer that finds pieces of whole texts, in which spaces are characters like others.
pub(crate) fn of_pieces(
    model: Value,
    added: Vec<Value>,
    (mut normalizers, space): (Vec<Value>, bool),
    post_processor: Value,
) -> Value {
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let separator = "\u{2581}";
    let mut decoders =
        vec![replace(separator, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if space {
        normalizers.push(json!({"type": "Prepend", "prepend": separator}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    normalizers.push(replace(" ", separator));
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null,
        "post_processor": post_processor,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    })
}

pub(crate) fn vocab(vocabulary: &Vocabulary<'_>) -> Map<String, Value> {
    vocabulary
        .tokens
        .iter()
        .enumerate()
        .map(|(id, token)| (token.clone().into_owned(), id.into()))
        .collect()
}

/// Tokens that are found in texts as they are spelled.
pub(crate) fn added_tokens(vocabulary: &Vocabulary<'_>, strips: bool) -> Vec<Value> {
    let added = |(id, kind): (usize, &u32)| {
        let token = vocabulary.tokens[id].as_ref();
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
pub(crate) fn merges(vocabulary: &Vocabulary<'_>, scores: &[f64]) -> Vec<Value> {
    // A token that is found as it is spelled, such as a control token, is no product of merges.
    let is_piece =
        |id: usize| ![UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE].contains(&vocabulary.kinds[id]);
    let mut merges = Vec::new();
    for (id, token) in vocabulary.tokens.iter().enumerate().filter(|(id, _)| is_piece(*id)) {
        let mut of_token = Vec::new();
        // Tokens have at most 1024 bytes, so the number of splits of one is bounded.
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
    // transformers sorts by the score and the lengths of both halves, all descending. Both sorts are stable.
    merges.sort_by(|(a, a_left, a_right), (b, b_left, b_right)| {
        b.total_cmp(a).then(len(b_left).cmp(&len(a_left))).then(len(b_right).cmp(&len(a_right)))
    });
    merges.into_iter().map(|(_, left, right)| json!([left, right])).collect()
}
