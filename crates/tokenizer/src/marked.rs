//! Encoding of a text with marks: the library's own steps, with the marks taken out in between.

use tokenizers::{
    Encoding, Model, NormalizedString, Normalizer, OffsetType, PreTokenizedString, PreTokenizer,
    Token, Tokenizer,
};

use crate::prompt::Marks;

/// What the library makes of the text without its marks, before post-processing, if it took for special tokens only
/// those that are whole in the text with its marks.
///
/// Source: `encode_single_sequence` in the `tokenizers` library.
pub(crate) fn encode_marked(
    tokenizer: &Tokenizer,
    text: &str,
    marks: &Marks,
    is_special: &dyn Fn(u32) -> bool,
) -> tokenizers::Result<Encoding> {
    let vocabulary = tokenizer.get_added_vocabulary();
    // Some tokenizers look for special tokens only after normalizing (early Llamas). Theirs only put word separators
    // into the text, and marks pass through.
    let seeks_normalized = vocabulary
        .get_added_tokens_decoder()
        .values()
        .any(|token| token.special && token.normalized);
    let normalizer = Unmarking {
        marks: (!seeks_normalized).then_some(marks),
        inner: tokenizer.get_normalizer(),
    };
    let mut pieces = vocabulary.extract_and_normalize(Some(&normalizer), text);
    if seeks_normalized {
        pieces.normalize(|piece| {
            unmark(piece, marks);
            Ok(())
        })?;
    }
    if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut pieces)?;
    }
    tokenize(&mut pieces, tokenizer.get_model(), is_special)?;
    pieces.into_encoding(None, 0, OffsetType::None)
}

/// A normalizer that takes marks out first.
struct Unmarking<'a, N> {
    marks: Option<&'a Marks>,
    inner: Option<&'a N>,
}

impl<N: Normalizer> Normalizer for Unmarking<'_, N> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        if let Some(marks) = self.marks {
            unmark(text, marks);
        }
        self.inner.map_or(Ok(()), |inner| inner.normalize(text))
    }
}

fn unmark(text: &mut NormalizedString, marks: &Marks) {
    text.map(|character| marks.written(character));
}

/// Tokenizes what is text. Some vocabularies hold the special tokens as if they were words (Unigram, word level); where
/// text would become one it is cut in two and tokenized again.
fn tokenize(
    pieces: &mut PreTokenizedString,
    model: &impl Model,
    is_special: &dyn Fn(u32) -> bool,
) -> tokenizers::Result<()> {
    pieces.tokenize(|piece| {
        let mut tokens = Vec::new();
        tokenize_piece(piece.get(), model, is_special, &mut tokens)?;
        Ok(tokens)
    })
}

fn tokenize_piece(
    text: &str,
    model: &impl Model,
    is_special: &dyn Fn(u32) -> bool,
    tokens: &mut Vec<Token>,
) -> tokenizers::Result<()> {
    let found = model.tokenize(text)?;
    // Behind the first character; a token of one character cannot be cut, and an unknown one is not spelled out.
    let cut_in = |token: &Token| {
        let spelled = text.get(token.offsets.0..token.offsets.1)?;
        let first = spelled.chars().next()?.len_utf8();
        let is_spelled_out = is_special(token.id)
            && first < spelled.len()
            && model.id_to_token(token.id).as_deref() == Some(spelled);
        is_spelled_out.then_some(token.offsets.0 + first)
    };
    let cuts = found.iter().filter_map(cut_in).collect::<Vec<_>>();
    if cuts.is_empty() {
        tokens.extend(found);
        return Ok(());
    }
    let ends = cuts.iter().copied().chain([text.len()]);
    for (start, end) in std::iter::once(0).chain(cuts.iter().copied()).zip(ends) {
        tokenize_piece(&text[start..end], model, is_special, tokens)?;
    }
    Ok(())
}
