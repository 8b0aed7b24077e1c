//! Turns a Step into tensors, runs the model over it, and draws the tokens.

use std::time::Instant;

use candle_core::{Device, Tensor};
use candlepower_kernels::{
    AttentionMetadata, KvCache, copy_blocks, gather_rows,
    sampling::{RowLogprobs, SampledRow, SamplingRow, logprobs_of, sample},
};
use candlepower_models::{Decoder, ForwardInput};
use candlepower_scheduler::{Step, TokenSource};

use crate::Result;

/// Rows of logits that exist at once: bounds their memory (rows * vocabulary * 4 bytes).
const LOGITS_ROWS: usize = 128;

/// One rank's model, its part of the KV cache, and the tokens drawn in the previous step.
pub(crate) struct ModelRunner {
    model: Decoder,
    cache: KvCache,
    block_size: usize,
    previous_samples: Vec<u32>,
}

/// What is to be drawn from a step's logits. Only rank 0 sees it.
#[derive(Default)]
pub(crate) struct SamplingBatch<'a> {
    /// One entry per sample of the step, in the order of its rows.
    pub(crate) samples: Vec<SamplingRow<'a>>,
    /// From what each sample's number in [0, 1) is made, where a device makes it.
    pub(crate) places: Vec<Place>,
    /// Rows of the step whose prompt tokens are to be scored.
    pub(crate) prompts: Vec<PromptRow>,
}

/// A place in an output, which decides with its sequence's seed what is drawn there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) seed: u64,
    /// Tokens before it.
    pub(crate) index: u32,
}

/// A row whose prompt tokens are to be scored.
pub(crate) struct PromptRow {
    /// Index of the row in the step.
    pub(crate) row: usize,
    /// The token after each of the row's positions, as far as the prompt goes.
    pub(crate) next_token_ids: Vec<u32>,
    /// Alternatives to report.
    pub(crate) top: usize,
}

/// What a step yields.
#[derive(Default)]
pub(crate) struct StepOutput {
    /// One entry per sample, in the order of the step's rows.
    pub(crate) samples: Vec<SampledRow>,
    /// One list per [`PromptRow`].
    pub(crate) prompts: Vec<Vec<RowLogprobs>>,
    /// Seconds in the model's forward, logits included.
    pub(crate) forward_seconds: f64,
}

impl ModelRunner {
    pub(crate) fn new(model: Decoder, cache: KvCache, block_size: usize) -> Self {
        Self { model, cache, block_size, previous_samples: Vec::new() }
    }

    /// Runs one step.
    pub(crate) fn execute(&mut self, step: &Step, batch: &SamplingBatch<'_>) -> Result<StepOutput> {
        let started = Instant::now();
        let copies: Vec<(u32, u32)> =
            step.copies.iter().map(|copy| (copy.src.0, copy.dst.0)).collect();
        copy_blocks(&self.cache, &copies)?;
        let hidden = self.model.forward(&self.prepare(step)?, &self.cache)?;
        let mut output = StepOutput {
            forward_seconds: started.elapsed().as_secs_f64(),
            ..StepOutput::default()
        };
        self.draw(step, batch, &hidden, &mut output)?;
        for prompt in &batch.prompts {
            let first = step.rows[..prompt.row].iter().map(|row| row.tokens.len()).sum();
            let scored = self.score(prompt, first, &hidden, &mut output.forward_seconds)?;
            output.prompts.push(scored);
        }
        self.previous_samples =
            output.samples.iter().map(|row| row.token_id.unwrap_or(0)).collect();
        Ok(output)
    }

    /// The step's tokens, positions, slots and block tables as the model takes them.
    fn prepare(&self, step: &Step) -> Result<ForwardInput> {
        let num_tokens = step.rows.iter().map(|row| row.tokens.len()).sum();
        let max_blocks = step.rows.iter().map(|row| row.block_table.len()).max().unwrap_or(0);
        let mut token_ids = Vec::with_capacity(num_tokens);
        let mut positions = Vec::with_capacity(num_tokens);
        let mut slots = Vec::with_capacity(num_tokens);
        let mut attention = AttentionMetadata {
            query_start: vec![0],
            context_len: Vec::with_capacity(step.rows.len()),
            block_tables: Vec::with_capacity(step.rows.len() * max_blocks),
            max_blocks,
        };
        let block_size = self.block_size as u32;
        for row in &step.rows {
            for (position, source) in (row.first_position..).zip(&row.tokens) {
                token_ids.push(match *source {
                    TokenSource::Id(id) => id,
                    TokenSource::PreviousRow(sample) => self.previous_samples[sample as usize],
                });
                positions.push(position);
                let block = row.block_table[(position / block_size) as usize];
                slots.push(block.0 * block_size + position % block_size);
            }
            attention.query_start.push(token_ids.len() as u32);
            attention.context_len.push(row.first_position + row.tokens.len() as u32);
            attention.block_tables.extend(row.block_table.iter().map(|block| block.0));
            attention.block_tables.resize(attention.context_len.len() * max_blocks, 0);
        }
        let tensor = |values: Vec<u32>| Tensor::from_vec(values, num_tokens, &Device::Cpu);
        Ok(ForwardInput {
            token_ids: tensor(token_ids)?,
            positions: tensor(positions)?,
            slot_mapping: tensor(slots)?,
            attention,
        })
    }

    /// Draws every sample of the step from the logits of its row's last position.
    fn draw(
        &self,
        step: &Step,
        batch: &SamplingBatch<'_>,
        hidden: &Tensor,
        output: &mut StepOutput,
    ) -> Result<()> {
        let mut last_positions = Vec::new();
        let mut row_of_sample = Vec::with_capacity(batch.samples.len());
        let mut end = 0;
        for row in &step.rows {
            end += row.tokens.len() as u32;
            if !row.samples.is_empty() {
                row_of_sample.resize(row_of_sample.len() + row.samples.len(), last_positions.len());
                last_positions.push(end - 1);
            }
        }
        let mut sample_range = 0..0;
        for (chunk, positions) in last_positions.chunks(LOGITS_ROWS).enumerate() {
            let first_row = chunk * LOGITS_ROWS;
            let started = Instant::now();
            let logits = self.model.logits(&gather_rows(hidden, positions)?)?;
            output.forward_seconds += started.elapsed().as_secs_f64();
            let end = row_of_sample.partition_point(|&row| row < first_row + positions.len());
            sample_range = sample_range.end..end;
            let draws: Vec<_> = sample_range
                .clone()
                .map(|sample| (row_of_sample[sample] - first_row, batch.samples[sample].clone()))
                .collect();
            output.samples.extend(sample(&logits, &draws)?);
        }
        Ok(())
    }

    /// Scores the prompt tokens that follow a row's positions; the row's tokens begin at `first`.
    fn score(
        &self,
        prompt: &PromptRow,
        first: usize,
        hidden: &Tensor,
        forward_seconds: &mut f64,
    ) -> Result<Vec<RowLogprobs>> {
        let positions: Vec<u32> = (first as u32..).take(prompt.next_token_ids.len()).collect();
        let mut scored = Vec::with_capacity(positions.len());
        for (positions, next) in
            positions.chunks(LOGITS_ROWS).zip(prompt.next_token_ids.chunks(LOGITS_ROWS))
        {
            let started = Instant::now();
            let logits = self.model.logits(&gather_rows(hidden, positions)?)?;
            *forward_seconds += started.elapsed().as_secs_f64();
            scored.extend(logprobs_of(&logits, next, prompt.top)?);
        }
        Ok(scored)
    }
}
