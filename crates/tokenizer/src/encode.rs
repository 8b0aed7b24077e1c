//! Converts text to token ids piece by piece, so that memory is bounded and the work can be cancelled.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use tokenizers::{Encoding, Token};

use crate::cuts::{Cutter, PIECE_BYTES};
use crate::piece::{Piece, encode_piece};
use crate::prompt::Marks;
use crate::{AddSpecialTokens, Error, Prompt, Result, Tokenizer};

/// Flag for work that is never cancelled.
static NEVER: AtomicBool = AtomicBool::new(false);

/// Placeholder for the tokens of a text, since no vocabulary has this id.
const TEXT: u32 = u32::MAX;

impl Tokenizer {
    /// The token ids of a text. Special tokens that are spelled out in the text become their ids.
    ///
    /// # Errors
    /// [`Error::Encode`], if the tokenizer has no token for a part of the text, or rejects the text as too costly.
    pub fn encode(&self, text: &str, add_special_tokens: AddSpecialTokens) -> Result<Vec<u32>> {
        self.encode_until(text, add_special_tokens, &NEVER)
    }

    /// [`Self::encode`], until `is_cancelled` becomes true.
    ///
    /// The text is encoded in pieces of at most 64 KiB, and the flag is read before each. A piece is longer if no cut
    /// is known to keep the ids. For some tokenizers the whole text is one piece.
    ///
    /// # Errors
    /// Those of [`Self::encode`], and [`Error::Cancelled`].
    pub fn encode_until(
        &self,
        text: &str,
        add_special_tokens: AddSpecialTokens,
        is_cancelled: &AtomicBool,
    ) -> Result<Vec<u32>> {
        self.framed(self.text_ids(text, Limits::new(is_cancelled))?, add_special_tokens)
    }

    /// The token ids of a rendered conversation. Special tokens that the template wrote become their ids. Special
    /// tokens that the conversation spells out are text, as if the tokenizer had none.
    ///
    /// # Errors
    /// Those of [`Self::encode`].
    pub fn encode_prompt(
        &self,
        prompt: &Prompt,
        add_special_tokens: AddSpecialTokens,
    ) -> Result<Vec<u32>> {
        self.encode_prompt_until(prompt, add_special_tokens, &NEVER)
    }

    /// [`Self::encode_prompt`], until `is_cancelled` becomes true.
    ///
    /// # Errors
    /// Those of [`Self::encode_until`].
    pub fn encode_prompt_until(
        &self,
        prompt: &Prompt,
        add_special_tokens: AddSpecialTokens,
        is_cancelled: &AtomicBool,
    ) -> Result<Vec<u32>> {
        let limits = Limits::new(is_cancelled);
        let ids = match prompt.marks() {
            None => self.text_ids(prompt.text(), limits)?,
            Some((text, marks)) => self.text_ids(text, Limits { marks: Some(marks), ..limits })?,
        };
        self.framed(ids, add_special_tokens)
    }

    /// The ids of a text without those of the post-processor.
    pub(crate) fn text_ids(&self, text: &str, limits: Limits<'_>) -> Result<Vec<u32>> {
        let Limits { marks, most_tokens, piece_bytes, is_cancelled } = limits;
        let tokenizer = self.library();
        let is_special = |id| self.is_special(id);
        let mut cutter = Cutter::new(self.cuts(), piece_bytes);
        let (mut ids, mut rest, mut continuing) = (Vec::new(), text, None);
        loop {
            if is_cancelled.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            let (text, behind) = rest.split_at(cutter.end(rest));
            let piece = Piece { text, marks, continuing };
            let encoding = guarded(|| encode_piece(tokenizer, piece, &is_special))?;
            // Only the ids are kept. The library's encoding of a long text took up to 350 bytes for each of its
            // bytes.
            ids.extend_from_slice(encoding.get_ids());
            if behind.is_empty() || ids.len() >= most_tokens {
                return Ok(ids);
            }
            rest = behind;
            continuing = self.cuts().map(|cuts| cuts.continuing(tokenizer.get_normalizer()));
        }
    }

    /// The ids of a text with the tokens that the post-processor adds.
    fn framed(&self, ids: Vec<u32>, add_special_tokens: AddSpecialTokens) -> Result<Vec<u32>> {
        let frame = self.frame(false, add_special_tokens)?;
        // Most chat models add nothing, so the ids need no copy.
        if *frame.get_ids() == [TEXT] {
            return Ok(ids);
        }
        Ok(fill(&frame, &[&ids]).map(|(id, _)| id).collect())
    }

    /// The tokens that the post-processor adds around a text, or around a pair of texts, each of which is one token
    /// here.
    ///
    /// The post-processor moves texts only as a whole. So it does not need all their tokens in the library's own
    /// form, which takes much memory.
    pub(crate) fn frame(
        &self,
        is_pair: bool,
        add_special_tokens: AddSpecialTokens,
    ) -> Result<Encoding> {
        let text = |id| Encoding::from_tokens(vec![Token::new(id, String::new(), (0, 0))], 0);
        let add = add_special_tokens == AddSpecialTokens::Yes;
        let pair = is_pair.then(|| text(TEXT - 1));
        guarded(|| self.library().post_process(text(TEXT), pair, add))
    }
}

/// The tokens of a frame and their type ids, with the ids of the texts in place of the placeholders.
pub(crate) fn fill<'a>(
    frame: &'a Encoding,
    texts: &'a [&'a [u32]],
) -> impl Iterator<Item = (u32, u32)> {
    let slots = frame.get_ids().iter().zip(frame.get_type_ids());
    slots.flat_map(|(id, type_id)| {
        // The placeholders count down from the largest id. Any real id leads far beyond the two texts.
        let text = texts.get((TEXT - id) as usize);
        text.copied().unwrap_or(std::slice::from_ref(id)).iter().map(|id| (*id, *type_id))
    })
}

/// Limits of the encoding of a text.
#[derive(Clone, Copy)]
pub(crate) struct Limits<'a> {
    /// Positions at which special tokens are only spelled out.
    pub(crate) marks: Option<&'a Marks>,
    /// Number of tokens after which no further piece is encoded.
    pub(crate) most_tokens: usize,
    /// Most bytes of a piece, if the text can be cut.
    pub(crate) piece_bytes: usize,
    pub(crate) is_cancelled: &'a AtomicBool,
}

impl<'a> Limits<'a> {
    pub(crate) fn new(is_cancelled: &'a AtomicBool) -> Self {
        Self { marks: None, most_tokens: usize::MAX, piece_bytes: PIECE_BYTES, is_cancelled }
    }
}

/// Returns the result of `encode`, or an error if it panics.
fn guarded(encode: impl FnOnce() -> tokenizers::Result<Encoding>) -> Result<Encoding> {
    // The regex engine panics when a text makes it backtrack ten million steps at one place. Encoding changes only
    // caches behind locks, so it is safe to continue after a panic.
    match catch_unwind(AssertUnwindSafe(encode)) {
        Ok(Ok(encoding)) => Ok(encoding),
        Ok(Err(error)) => Err(Error::Encode(error.to_string())),
        Err(_) => {
            Err(Error::Encode("it is too repetitive for this tokenizer's splitting rule".into()))
        }
    }
}
