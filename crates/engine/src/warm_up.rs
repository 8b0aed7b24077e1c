//! The tokens with which a model is tried before it serves.

/// Three tokens of the vocabulary. More than one, because one may be padding with an untrained embedding.
pub(crate) fn warm_up_tokens(vocab_size: usize) -> [u32; 3] {
    [0, vocab_size / 4, vocab_size / 2].map(|token_id| token_id as u32)
}
