//! Encoding of a piece of a text: the library's own steps, with the removal of marks in between.

use tokenizers::{
    Encoding, Model, NormalizedString, Normalizer, NormalizerWrapper, OffsetType,
    PreTokenizedString, PreTokenizer, Token, Tokenizer,
};

use crate::prompt::Marks;

/// A piece of a text.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) text: &'a str,
    /// Positions at which special tokens are only spelled out.
    pub(crate) marks: Option<&'a Marks>,
    /// The normalizer for the start of this piece, if it continues a text.
    pub(crate) continuing: Option<Option<&'a NormalizerWrapper>>,
}

/// The tokens that the library makes of the piece without its marks, before post-processing. Special tokens are only
/// those whose spelling is whole in the text with its marks.
///
/// Source: `encode_single_sequence` in the `tokenizers` library.
pub(crate) fn encode_piece(
    tokenizer: &Tokenizer,
    piece: Piece<'_>,
    is_special: &dyn Fn(u32) -> bool,
) -> tokenizers::Result<Encoding> {
    let vocabulary = tokenizer.get_added_vocabulary();
    // Some tokenizers search for special tokens only after normalizing (early Llamas). Their normalizer only inserts
    // word separators, and marks pass through it.
    let seeks_normalized = piece.marks.is_some()
        && vocabulary
            .get_added_tokens_decoder()
            .values()
            .any(|token| token.special && token.normalized);
    let marks = piece.marks.filter(|_| !seeks_normalized);
    let normalizer =
        Normalizing { marks, continuing: piece.continuing, inner: tokenizer.get_normalizer() };
    let mut words = vocabulary.extract_and_normalize(Some(&normalizer), piece.text);
    if let Some(marks) = piece.marks.filter(|_| seeks_normalized) {
        words.normalize(|word| {
            unmark(word, marks);
            Ok(())
        })?;
    }
    if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut words)?;
    }
    match piece.marks {
        // Without marks nothing is only spelled out, so the library's own step suffices.
        None => tokenizer.get_model().tokenize_in_pretokenized(&mut words, None)?,
        Some(_) => tokenize(&mut words, tokenizer.get_model(), is_special)?,
    }
    words.into_encoding(None, 0, OffsetType::None)
}

/// The tokenizer's normalizer, applied after the removal of marks.
struct Normalizing<'a> {
    marks: Option<&'a Marks>,
    continuing: Option<Option<&'a NormalizerWrapper>>,
    inner: Option<&'a NormalizerWrapper>,
}

impl Normalizer for Normalizing<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        if let Some(marks) = self.marks {
            unmark(text, marks);
        }
        // The library normalizes the parts between special tokens one by one. Only the first one continues the piece
        // before.
        let begins_piece = text.offsets_original().0 == 0;
        let normalizer = self.continuing.filter(|_| begins_piece).unwrap_or(self.inner);
        normalizer.map_or(Ok(()), |normalizer| normalizer.normalize(text))
    }
}

fn unmark(text: &mut NormalizedString, marks: &Marks) {
    text.map(|character| marks.written(character));
}

/// Tokenizes text. Some vocabularies contain the special tokens as if they were words (Unigram, word level). If text
/// would become such a token, it is cut in two and tokenized again.
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
    // The cut is after the first character. A token of one character cannot be cut, and an unknown one is not spelled
    // out.
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
