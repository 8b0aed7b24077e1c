//! The buffers of a step's sampling on a device.

use std::ops::Range;

use super::in_flight::Report;
use crate::{
    Error, Result,
    device_tables::{Chunk, SamplingTables, SlotTokens, Upload},
};
use candle_core::{DType, Device, Tensor};
use candlepower_gpu::{
    self as gpu, SamplerRow, SamplingOutput, SamplingScratch, Staging, TokenCounts,
};

/// The buffers of a step's samples. Those that are too small for a step are replaced.
pub(super) struct SamplingBuffers {
    /// The tables of samples.
    tables: Staging,
    scratch: SamplingScratch,
    /// u32: the tokens that the last step sampled, in the order of its samples.
    pub(super) sampled: Tensor,
    /// u32: the reports of the last step's samples.
    report: Tensor,
    /// The token counts for penalties; reserved for the first sequence that has one.
    counts: Option<TokenCounts>,
    /// Most rows of logits of a chunk.
    max_rows: usize,
    vocab: usize,
    /// Number of times that a buffer was replaced, or reserved late.
    pub(super) grown: usize,
}

impl SamplingBuffers {
    /// Reserves buffers for chunks of `max_rows` rows of logits.
    pub(super) fn new(max_rows: usize, vocab: usize, device: &Device) -> Result<Self> {
        let samples = 2 * max_rows;
        Ok(Self {
            tables: Staging::new(64 * samples, device)?,
            scratch: SamplingScratch::new(max_rows, vocab, device)?,
            sampled: Tensor::zeros(samples, DType::U32, device)?,
            report: Tensor::zeros(8 * samples, DType::U32, device)?,
            counts: None,
            max_rows,
            vocab,
            grown: 0,
        })
    }

    /// Uploads the tables of a step's samples. Tables that are too small are replaced.
    pub(super) fn upload(&mut self, tables: &SamplingTables) -> Result<SamplingViews> {
        let mut upload = Upload::default();
        let bias_ids = upload.push(tables.bias_ids.iter().copied());
        let biases = upload.push(tables.biases.iter().copied());
        let masks = upload.push(tables.masks.iter().copied());
        let mut chunks = Vec::with_capacity(tables.chunks.len());
        for chunk in &tables.chunks {
            chunks.push([
                upload.push(chunk.rows.iter().copied()),
                upload.push(chunk.samplers.iter().flat_map(SamplerRow::words)),
                upload.push(chunk.reset.iter().copied()),
                upload.push(chunk.prompt.slots.iter().copied()),
                upload.push(chunk.prompt.ids.iter().copied()),
                upload.push(chunk.generated.slots.iter().copied()),
                upload.push(chunk.generated.ids.iter().copied()),
            ]);
        }
        self.reserve(upload.words.len(), tables)?;
        self.tables.upload(&upload.words)?;
        let view = |range: &Range<usize>| self.tables.view(range.start, &[range.len()]);
        let words = self.vocab.div_ceil(32);
        let chunks =
            chunks.iter().map(|[rows, samplers, reset, p_slots, p_ids, g_slots, g_ids]| {
                Ok(ChunkViews {
                    rows: view(rows)?,
                    samplers: view(samplers)?
                        .reshape((samplers.len() / SamplerRow::WORDS, SamplerRow::WORDS))?,
                    reset: view(reset)?,
                    prompt: SlotTokenViews { slots: view(p_slots)?, ids: view(p_ids)? },
                    generated: SlotTokenViews { slots: view(g_slots)?, ids: view(g_ids)? },
                })
            });
        Ok(SamplingViews {
            chunks: chunks.collect::<Result<_>>()?,
            biases: (!bias_ids.is_empty())
                .then(|| Ok::<_, Error>((view(&bias_ids)?, view(&biases)?)))
                .transpose()?,
            masks: (!masks.is_empty())
                .then(|| Ok::<_, Error>(view(&masks)?.reshape((masks.len() / words, words))?))
                .transpose()?,
        })
    }

    /// Replaces the buffers that are too small for a step. No graph reads them.
    fn reserve(&mut self, words: usize, tables: &SamplingTables) -> Result<()> {
        let device = self.sampled.device().clone();
        let larger = |count: usize, tensor: &Tensor| -> Result<Option<Tensor>> {
            match count > tensor.elem_count() {
                true => Ok(Some(Tensor::zeros(count.next_power_of_two(), DType::U32, &device)?)),
                false => Ok(None),
            }
        };
        if words > self.tables.capacity() {
            self.grown += 1;
            self.tables = Staging::new(words.next_power_of_two(), &device)?;
        }
        let count = tables.num_samples();
        // The step has looked up its tokens in the old tensor, and the next one looks up those that this step samples.
        if let Some(sampled) = larger(count, &self.sampled)? {
            self.sampled = sampled;
            self.grown += 1;
        }
        let reported = count * tables.width();
        if let Some(report) = larger(reported, &self.report)? {
            self.report = report;
            self.grown += 1;
        }
        if self.counts.is_none() && tables.chunks.iter().any(|chunk| chunk.has_counts) {
            self.grown += 1;
            self.counts = Some(TokenCounts::new(self.max_rows, self.vocab, &device)?);
        }
        Ok(())
    }

    /// Samples every chunk, whose logits `logits` returns. Returns the reports.
    pub(super) fn sample(
        &self,
        tables: &SamplingTables,
        views: &SamplingViews,
        logits: impl Fn(&ChunkViews) -> Result<Tensor>,
    ) -> Result<Report<'_>> {
        let width = tables.width();
        let mut first = 0;
        for (chunk, views_of) in tables.chunks.iter().zip(&views.chunks) {
            let logits = logits(views_of)?;
            self.count(chunk, views_of)?;
            let count = chunk.samplers.len();
            let batch = gpu::SamplingBatch {
                rows: &views_of.samplers,
                counts: self.counts.as_ref().filter(|_| chunk.has_counts),
                biases: views.biases.as_ref().map(|(ids, biases)| (ids, biases)),
                masks: views.masks.as_ref(),
            };
            let output = SamplingOutput {
                token_ids: self.sampled.narrow(0, first, count)?,
                report: self
                    .report
                    .narrow(0, first * width, count * width)?
                    .reshape((count, width))?,
            };
            gpu::sample(&logits, &batch, &self.scratch, &output)?;
            first += count;
        }
        let words = self.report.narrow(0, 0, first * width)?;
        Ok(Report { words, width, buffer: &self.report })
    }

    /// Adds the tokens that a chunk's counts lack.
    fn count(&self, chunk: &Chunk, views: &ChunkViews) -> Result<()> {
        let Some(counts) = self.counts.as_ref().filter(|_| chunk.has_counts) else {
            return Ok(());
        };
        if !chunk.reset.is_empty() {
            counts.reset(&views.reset)?;
        }
        let has_tokens = |tokens: &SlotTokens| !tokens.slots.is_empty();
        if has_tokens(&chunk.prompt) {
            counts.add_prompt(&views.prompt.slots, &views.prompt.ids)?;
        }
        if has_tokens(&chunk.generated) {
            counts.add_generated(&views.generated.slots, &views.generated.ids)?;
        }
        Ok(())
    }
}

/// The tables of a step's samples on the device.
pub(super) struct SamplingViews {
    pub(super) chunks: Vec<ChunkViews>,
    biases: Option<(Tensor, Tensor)>,
    masks: Option<Tensor>,
}

pub(super) struct ChunkViews {
    pub(super) rows: Tensor,
    samplers: Tensor,
    reset: Tensor,
    prompt: SlotTokenViews,
    generated: SlotTokenViews,
}

struct SlotTokenViews {
    slots: Tensor,
    ids: Tensor,
}
