//! The output tokens of a step. The last layers of some models are computed for these tokens alone.

use candlepower_kernels::{AttentionMetadata, Error as KernelError};

use crate::error::Result;

/// The tokens of a step whose logits are computed: the last ones of each sequence.
#[derive(Clone, Debug)]
pub struct OutputTokens {
    /// Their indices among the step's tokens, ascending.
    pub rows: Vec<u32>,
    /// The position of each in its sequence.
    pub positions: Vec<u32>,
    /// The metadata of the sequences that have output tokens.
    pub attention: AttentionMetadata,
}

impl OutputTokens {
    /// The last `counts` tokens of each sequence of a step; `None` where these are all tokens.
    ///
    /// # Errors
    /// There is not a count for each sequence, or one is beyond its tokens.
    pub fn of(
        step: &AttentionMetadata,
        positions: &[u32],
        counts: &[usize],
    ) -> Result<Option<Self>> {
        let tokens: Vec<usize> =
            step.query_start.windows(2).map(|pair| (pair[1] - pair[0]) as usize).collect();
        let fits = |(count, tokens): (&usize, &usize)| count <= tokens;
        if counts.len() != tokens.len() || !counts.iter().zip(&tokens).all(fits) {
            let reason =
                "a sequence has fewer tokens than output tokens, or there is no count for it";
            return Err(KernelError::Metadata(reason.into()).into());
        }
        // Tokens that see later ones of an image need all of these.
        if counts == tokens || !step.mutual.is_empty() {
            return Ok(None);
        }
        let max_blocks = step.max_blocks;
        let mut rows = Vec::new();
        let mut attention = AttentionMetadata { max_blocks, ..AttentionMetadata::default() };
        attention.query_start.push(0);
        for (seq, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let end = step.query_start[seq + 1];
            rows.extend(end - count as u32..end);
            attention.query_start.push(rows.len() as u32);
            attention.context_len.push(step.context_len[seq]);
            attention.block_tables.extend(&step.block_tables[seq * max_blocks..][..max_blocks]);
        }
        let positions = rows.iter().map(|row| positions[*row as usize]).collect();
        Ok(Some(Self { rows, positions, attention }))
    }
}
