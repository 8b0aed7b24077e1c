//! Inputs and outputs of a step beside the scheduler's `Step`: what the CPU runner, the GPU runner and the ranks share.

use std::borrow::Cow;

use candlepower_kernels::sampling::{RowLogprobs, SampledRow, SamplingRow};
use candlepower_scheduler::{SeqId, Step, StepRow};
use serde::{Deserialize, Serialize};

/// The samples and the prompt scores to be computed from a step's logits. Only rank 0 has it.
pub(crate) struct SamplingBatch<'a> {
    /// One entry per sample of the step, in the order of its rows.
    pub(crate) samples: Vec<Sample<'a>>,
    /// Rows of the step whose prompt tokens are to be scored.
    pub(crate) prompts: Cow<'a, [PromptRow]>,
}

impl SamplingBatch<'_> {
    /// A batch with as many samples and scores as rank 0 has for a step. Their parameters do not matter: it computes the same logits.
    pub(crate) fn like_rank_0(step: &Step, scored: &[ScoredRow]) -> Self {
        let prompt = |scored: &ScoredRow| PromptRow {
            row: scored.row,
            next_token_ids: vec![0; scored.num_positions],
            top: 0,
        };
        Self {
            samples: step.samples().map(Sample::greedy).collect(),
            prompts: scored.iter().map(prompt).collect(),
        }
    }

    /// The rows whose prompt tokens are scored, as other ranks get them.
    pub(crate) fn scored(&self) -> Vec<ScoredRow> {
        self.prompts.iter().map(PromptRow::scored).collect()
    }
}

/// One sample of a step.
#[derive(Clone)]
pub(crate) struct Sample<'a> {
    pub(crate) seq: SeqId,
    pub(crate) params: SamplingRow<'a>,
    /// Its output position, from which a device makes its random number.
    pub(crate) position: OutputPosition,
    /// The known tokens of the sequence, which a device counts for penalties.
    pub(crate) tokens: KnownTokens<'a>,
    /// Whether no token is sampled, since the sequence has ended, or goes on in another way.
    pub(crate) is_left_out: bool,
}

impl Sample<'_> {
    /// The most likely token.
    pub(crate) fn greedy(seq: SeqId) -> Self {
        Self {
            seq,
            params: SamplingRow::greedy(),
            position: OutputPosition { seed: 0, index: 0 },
            tokens: KnownTokens::default(),
            is_left_out: false,
        }
    }

    /// Whether a device counts the tokens of its sequence.
    pub(crate) fn is_counted(&self) -> bool {
        self.params.penalties.is_some() && !self.is_left_out
    }

    /// No token.
    pub(crate) fn left_out(seq: SeqId) -> Self {
        Self { is_left_out: true, ..Self::greedy(seq) }
    }
}

/// The tokens of a sequence that are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownTokens<'a> {
    pub(crate) prompt: &'a [u32],
    pub(crate) output: &'a [u32],
}

/// A position in a sequence's output. With the sequence's seed it determines the random number of the sample there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputPosition {
    pub(crate) seed: u64,
    /// Number of output tokens before it.
    pub(crate) index: u32,
}

/// A row whose prompt tokens are to be scored.
#[derive(Clone)]
pub(crate) struct PromptRow {
    /// Index of the row in the step.
    pub(crate) row: usize,
    /// The token after each of the row's positions, as far as the prompt goes.
    pub(crate) next_token_ids: Vec<u32>,
    /// Alternatives to report.
    pub(crate) top: usize,
}

impl PromptRow {
    pub(crate) fn scored(&self) -> ScoredRow {
        ScoredRow { row: self.row, num_positions: self.next_token_ids.len() }
    }
}

/// A row with logits for several of its positions, from its first on.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScoredRow {
    /// Index of the row in the step.
    row: usize,
    /// Number of positions with logits.
    num_positions: usize,
}

impl ScoredRow {
    /// The logits indices of the row: its scored positions among all tokens of the step.
    pub(crate) fn logits_indices(self, step: &Step) -> Vec<u32> {
        let first: usize = step.rows[..self.row].iter().map(|row| row.tokens.len()).sum();
        (first as u32..).take(self.num_positions).collect()
    }
}

/// The logits indices of the rows with samples: their last positions among all tokens of the step.
pub(crate) fn sampled_indices(step: &Step) -> Vec<u32> {
    let mut end = 0;
    let mut indices = Vec::new();
    for row in &step.rows {
        end += row.tokens.len() as u32;
        if !row.samples.is_empty() {
            indices.push(end - 1);
        }
    }
    indices
}

/// Number of output tokens of each row, which are its last ones: one where it is sampled, all of them where it is scored.
pub(crate) fn num_output_tokens(step: &Step, scored: &[ScoredRow]) -> Vec<usize> {
    let of_row = |(index, row): (usize, &StepRow)| {
        let is_scored = scored.iter().any(|scored| scored.row == index && scored.num_positions > 0);
        if is_scored { row.tokens.len() } else { usize::from(!row.samples.is_empty()) }
    };
    step.rows.iter().enumerate().map(of_row).collect()
}

/// The outcome of a step.
#[derive(Default)]
pub(crate) struct StepOutput {
    /// One entry per sample, in the order of the step's rows.
    pub(crate) samples: Vec<SampledRow>,
    /// One list per [`PromptRow`].
    pub(crate) prompts: Vec<Vec<RowLogprobs>>,
    /// Seconds in the model's forward, logits included.
    pub(crate) forward_seconds: f64,
}

impl StepOutput {
    /// The sampled tokens, in the order of the samples; 0 where there is none.
    pub(crate) fn token_ids(&self) -> Vec<u32> {
        self.samples.iter().map(|row| row.token_id.unwrap_or(0)).collect()
    }
}
