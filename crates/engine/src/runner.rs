//! Turns a Step into tensors, runs the model over it, and draws the tokens.

use std::time::Instant;

use candle_core::{Device, Tensor};
use candlepower_checkpoint::LOGITS_ROWS;
use candlepower_kernels::{
    AttentionMetadata, gather_rows,
    sampling::{RowLogprobs, SampledRow, SamplingRow, logprobs_of, sample},
};
use candlepower_models::{Cache, Decoder, ForwardInput};
use candlepower_scheduler::{Step, StepRow, TokenSource};
use serde::{Deserialize, Serialize};

use crate::{
    Result,
    follower::{Followers, tell_others},
};

/// One rank's model, its part of what is kept of sequences, and the tokens drawn in the previous step.
pub(crate) struct ModelRunner {
    model: Decoder,
    cache: Cache,
    block_size: usize,
    previous_samples: Vec<u32>,
    /// Of rank 0. They are waited for when the model is gone, and with it rank 0's end of the collectives.
    followers: Followers,
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

impl SamplingBatch<'_> {
    /// As many draws and scores as rank 0 makes of a step, of whatever: the same logits are computed for them.
    pub(crate) fn like_rank_0(step: &Step, scored: &[Scored]) -> Self {
        let count = step.rows.iter().map(|row| row.samples.len()).sum();
        let prompt = |scored: &Scored| PromptRow {
            row: scored.row,
            next_token_ids: vec![0; scored.num_positions],
            top: 0,
        };
        Self {
            samples: vec![SamplingRow::greedy(); count],
            places: vec![Place { seed: 0, index: 0 }; count],
            prompts: scored.iter().map(prompt).collect(),
        }
    }
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

/// A row of whose positions the logits are wanted, from its first on.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scored {
    /// Index of the row in the step.
    row: usize,
    /// How many.
    num_positions: usize,
}

impl PromptRow {
    pub(crate) fn scored(&self) -> Scored {
        Scored { row: self.row, num_positions: self.next_token_ids.len() }
    }
}

impl Scored {
    /// The positions among all tokens of the step.
    fn positions(self, step: &Step) -> Vec<u32> {
        let first: usize = step.rows[..self.row].iter().map(|row| row.tokens.len()).sum();
        (first as u32..).take(self.num_positions).collect()
    }
}

/// The last positions of the rows that draw, among all tokens of the step.
fn last_positions(step: &Step) -> Vec<u32> {
    let mut end = 0;
    let mut positions = Vec::new();
    for row in &step.rows {
        end += row.tokens.len() as u32;
        if !row.samples.is_empty() {
            positions.push(end - 1);
        }
    }
    positions
}

/// How many of the last tokens of each row are looked at: the one that draws, or all that are scored from the first on.
pub(crate) fn num_wanted(step: &Step, scored: &[Scored]) -> Vec<usize> {
    let of_row = |(index, row): (usize, &StepRow)| {
        let is_scored = scored.iter().any(|scored| scored.row == index && scored.num_positions > 0);
        if is_scored { row.tokens.len() } else { usize::from(!row.samples.is_empty()) }
    };
    step.rows.iter().enumerate().map(of_row).collect()
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

impl StepOutput {
    /// The tokens that were drawn, in the order of the samples; 0 where none was.
    pub(crate) fn token_ids(&self) -> Vec<u32> {
        self.samples.iter().map(|row| row.token_id.unwrap_or(0)).collect()
    }
}

impl ModelRunner {
    pub(crate) fn new(
        model: Decoder,
        cache: Cache,
        block_size: usize,
        followers: Followers,
    ) -> Self {
        Self { model, cache, block_size, previous_samples: Vec::new(), followers }
    }

    /// Runs one step, beside the other ranks where there are some.
    pub(crate) fn execute(&mut self, step: &Step, batch: &SamplingBatch<'_>) -> Result<StepOutput> {
        self.run(step, batch).map_err(|error| self.followers.explain(error))
    }

    fn run(&mut self, step: &Step, batch: &SamplingBatch<'_>) -> Result<StepOutput> {
        let started = Instant::now();
        if self.model.comm().size() > 1 {
            tell_others(self.model.comm(), step, &self.previous_samples, batch)?;
        }
        let scored: Vec<_> = batch.prompts.iter().map(PromptRow::scored).collect();
        let hidden = self.forward(step, &scored)?;
        let mut output = StepOutput {
            forward_seconds: started.elapsed().as_secs_f64(),
            ..StepOutput::default()
        };
        self.draw(step, batch, &hidden, &mut output)?;
        for prompt in &batch.prompts {
            let positions = prompt.scored().positions(step);
            let scored = self.score(prompt, &positions, &hidden, &mut output.forward_seconds)?;
            output.prompts.push(scored);
        }
        self.previous_samples = output.token_ids();
        Ok(output)
    }

    /// Runs a step of rank 0's, which draws: all that is computed here goes to it.
    pub(crate) fn follow(&mut self, step: &Step, scored: &[Scored]) -> Result<()> {
        let hidden = self.forward(step, scored)?;
        let drawn = last_positions(step);
        let scored = scored.iter().map(|scored| scored.positions(step));
        for positions in [drawn].into_iter().chain(scored) {
            for positions in positions.chunks(LOGITS_ROWS) {
                self.model.logits(&gather_rows(&hidden, positions)?)?;
            }
        }
        Ok(())
    }

    fn token_id(&self, source: TokenSource) -> u32 {
        match source {
            TokenSource::Id(id) => id,
            TokenSource::PreviousRow(sample) => self.previous_samples[sample as usize],
        }
    }

    /// Makes the step's copies and runs the layers over its tokens. The hidden states are those of tokens that draw or whose next one is scored.
    fn forward(&self, step: &Step, scored: &[Scored]) -> Result<Tensor> {
        let copies: Vec<_> = step.copies.iter().map(|copy| (copy.src.0, copy.dst.0)).collect();
        let states: Vec<_> =
            step.state_copies.iter().map(|copy| (copy.src.0, copy.dst.0)).collect();
        self.cache.copy(&copies, &states)?;
        let mut input = self.prepare(step)?;
        let spec = self.model.spec();
        if spec.first_reader() < spec.layers.len() {
            input = input.with_wanted(&num_wanted(step, scored))?;
        }
        Ok(self.model.forward(&input, &self.cache)?)
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
                token_ids.push(self.token_id(*source));
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
            state_slots: step
                .rows
                .iter()
                .filter_map(|row| row.state_slot)
                .map(|slot| slot.0)
                .collect(),
            attention,
            wanted: None,
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
        let mut row_of_sample = Vec::with_capacity(batch.samples.len());
        let drawn = step.rows.iter().filter(|row| !row.samples.is_empty());
        for (index, row) in drawn.enumerate() {
            row_of_sample.resize(row_of_sample.len() + row.samples.len(), index);
        }
        let mut sample_range = 0..0;
        for (chunk, positions) in last_positions(step).chunks(LOGITS_ROWS).enumerate() {
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

    /// Scores the prompt tokens that follow a row's positions.
    fn score(
        &self,
        prompt: &PromptRow,
        positions: &[u32],
        hidden: &Tensor,
        forward_seconds: &mut f64,
    ) -> Result<Vec<RowLogprobs>> {
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
