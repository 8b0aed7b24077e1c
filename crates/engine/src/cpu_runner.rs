//! Runs steps on the CPU: turns a step into tensors, runs the model over it, and samples the tokens.

use std::time::Instant;

use candle_core::{Device, Tensor};
use candlepower_checkpoint::LOGITS_ROWS;
use candlepower_kernels::{
    AttentionMetadata, gather_rows,
    sampling::{RowLogprobs, logprobs_of, sample},
};
use candlepower_models::{Cache, Decoder, ForwardInput};
use candlepower_scheduler::{Step, StepRow, TokenSource};

use crate::{
    Result,
    image_slots::{ImageSlots, StepImage},
    orders::send_step,
    step_io::{
        PromptRow, SamplingBatch, ScoredRow, StepOutput, num_output_tokens, sampled_indices,
    },
};

/// One rank's shard of the model, its shard of the cache, and the tokens sampled in the previous step.
pub(crate) struct CpuRunner {
    model: Decoder,
    cache: Cache,
    block_size: usize,
    previous_samples: Vec<u32>,
    /// For models that take images.
    images: Option<ImageSlots>,
}

impl CpuRunner {
    pub(crate) fn new(
        model: Decoder,
        images: Option<ImageSlots>,
        cache: Cache,
        block_size: usize,
    ) -> Self {
        Self { model, cache, block_size, previous_samples: Vec::new(), images }
    }

    /// Runs one step, together with the other ranks if there are any. `images` has the pixels of the images whose encoding begins.
    pub(crate) fn execute(
        &mut self,
        step: &Step,
        batch: &SamplingBatch<'_>,
        images: &[StepImage<'_>],
    ) -> Result<StepOutput> {
        let started = Instant::now();
        if self.model.comm().size() > 1 {
            send_step(self.model.comm(), step, &self.previous_samples, batch, images)?;
        }
        self.encode(step, images)?;
        if step.rows.is_empty() {
            // The samples of the step before stay: the next step with rows may refer to them.
            self.copy(step)?;
            return Ok(StepOutput::default());
        }
        let hidden = self.forward(step, &batch.scored())?;
        let mut output = StepOutput {
            forward_seconds: started.elapsed().as_secs_f64(),
            ..StepOutput::default()
        };
        self.sample(step, batch, &hidden, &mut output)?;
        for prompt in &*batch.prompts {
            let indices = prompt.scored().logits_indices(step);
            let scored = self.score(prompt, &indices, &hidden, &mut output.forward_seconds)?;
            output.prompts.push(scored);
        }
        self.previous_samples = output.token_ids();
        Ok(output)
    }

    /// Runs a step of rank 0 on another rank. Rank 0 gets this rank's shard of the logits, and samples.
    pub(crate) fn follow(
        &mut self,
        step: &Step,
        scored: &[ScoredRow],
        images: &[StepImage<'_>],
    ) -> Result<()> {
        self.encode(step, images)?;
        if step.rows.is_empty() {
            return self.copy(step);
        }
        let hidden = self.forward(step, scored)?;
        let scored = scored.iter().map(|scored| scored.logits_indices(step));
        for indices in [sampled_indices(step)].into_iter().chain(scored) {
            for indices in indices.chunks(LOGITS_ROWS) {
                self.model.logits(&gather_rows(&hidden, indices)?)?;
            }
        }
        Ok(())
    }

    fn token_id(&self, source: TokenSource) -> u32 {
        match source {
            TokenSource::Id(id) => id,
            TokenSource::PreviousRow(sample) => self.previous_samples[sample as usize],
            // Its row is replaced by an embedding.
            TokenSource::Embedding { .. } => 0,
        }
    }

    /// Does the step's work on images.
    fn encode(&mut self, step: &Step, images: &[StepImage<'_>]) -> Result<()> {
        match &mut self.images {
            Some(slots) => slots.encode(step, images),
            None => Ok(()),
        }
    }

    /// Makes the step's copies of blocks and states.
    fn copy(&self, step: &Step) -> Result<()> {
        let copies: Vec<_> = step.copies.iter().map(|copy| (copy.src.0, copy.dst.0)).collect();
        let states: Vec<_> =
            step.state_copies.iter().map(|copy| (copy.src.0, copy.dst.0)).collect();
        Ok(self.cache.copy(&copies, &states)?)
    }

    /// Makes the step's copies and runs the layers over its tokens. Only output tokens are sure to have their hidden states: those
    /// that are sampled or scored.
    fn forward(&self, step: &Step, scored: &[ScoredRow]) -> Result<Tensor> {
        self.copy(step)?;
        let mut input = self.prepare(step)?;
        let spec = self.model.spec();
        if spec.first_reader() < spec.layers.len() {
            input = input.with_output_tokens(&num_output_tokens(step, scored))?;
        }
        Ok(self.model.forward(&input, &self.cache)?)
    }

    /// The step's tokens, positions, slots and block tables as inputs of the model.
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
            mutual: Vec::new(),
        };
        if step.rows.iter().any(|row| !row.whole.is_empty()) {
            let range = |&(start, end): &(u32, u32)| start as usize..end as usize;
            let ranges = |row: &StepRow| row.whole.iter().map(range).collect();
            attention.mutual = step.rows.iter().map(ranges).collect();
        }
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
            rope_positions: rope_positions(step)?,
            slot_mapping: tensor(slots)?,
            state_slots: step
                .rows
                .iter()
                .filter_map(|row| row.state_slot)
                .map(|slot| slot.0)
                .collect(),
            attention,
            output: None,
            given: match &self.images {
                Some(slots) => slots.given_rows(step)?,
                None => Vec::new(),
            },
        })
    }

    /// Computes every sample of the step from the logits of its row's last position.
    fn sample(
        &self,
        step: &Step,
        batch: &SamplingBatch<'_>,
        hidden: &Tensor,
        output: &mut StepOutput,
    ) -> Result<()> {
        let mut row_of_sample = Vec::with_capacity(batch.samples.len());
        let sampled = step.rows.iter().filter(|row| !row.samples.is_empty());
        for (index, row) in sampled.enumerate() {
            row_of_sample.resize(row_of_sample.len() + row.samples.len(), index);
        }
        let mut sample_range = 0..0;
        for (chunk, indices) in sampled_indices(step).chunks(LOGITS_ROWS).enumerate() {
            let first_row = chunk * LOGITS_ROWS;
            let started = Instant::now();
            let logits = self.model.logits(&gather_rows(hidden, indices)?)?;
            output.forward_seconds += started.elapsed().as_secs_f64();
            let end = row_of_sample.partition_point(|&row| row < first_row + indices.len());
            sample_range = sample_range.end..end;
            let rows: Vec<_> = sample_range
                .clone()
                .map(|sample| {
                    (row_of_sample[sample] - first_row, batch.samples[sample].params.clone())
                })
                .collect();
            output.samples.extend(sample(&logits, &rows)?);
        }
        Ok(())
    }

    /// Scores the prompt tokens that follow the positions of a row.
    fn score(
        &self,
        prompt: &PromptRow,
        indices: &[u32],
        hidden: &Tensor,
        forward_seconds: &mut f64,
    ) -> Result<Vec<RowLogprobs>> {
        let mut scored = Vec::with_capacity(indices.len());
        for (indices, next) in
            indices.chunks(LOGITS_ROWS).zip(prompt.next_token_ids.chunks(LOGITS_ROWS))
        {
            let started = Instant::now();
            let logits = self.model.logits(&gather_rows(hidden, indices)?)?;
            *forward_seconds += started.elapsed().as_secs_f64();
            scored.extend(logprobs_of(&logits, next, prompt.top)?);
        }
        Ok(scored)
    }
}

/// The rope positions of a step's tokens, `[tokens, 3]`; `None` where they are the positions in the sequences.
fn rope_positions(step: &Step) -> Result<Option<Tensor>> {
    if step.rows.iter().all(|row| row.rope_positions.is_empty()) {
        return Ok(None);
    }
    let of_row = |row: &StepRow| -> Vec<[u32; 3]> {
        match row.rope_positions.is_empty() {
            true => (row.first_position..).map(|p| [p; 3]).take(row.tokens.len()).collect(),
            false => row.rope_positions.clone(),
        }
    };
    let all: Vec<u32> = step.rows.iter().flat_map(of_row).flatten().collect();
    let tokens = all.len() / 3;
    Ok(Some(Tensor::from_vec(all, (tokens, 3), &Device::Cpu)?))
}
