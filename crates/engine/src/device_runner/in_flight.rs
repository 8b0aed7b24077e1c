//! Steps that were launched, and the way of their reports to the host.

use std::{collections::VecDeque, mem, time::Instant};

use candle_core::Tensor;
use candlepower_gpu::{REPORT_HEAD, Readback};
use candlepower_kernels::sampling::{RowLogprobs, SampledRow};

use crate::{
    Error, Result,
    step_io::{SamplingBatch, StepOutput},
};

/// "No token" in the device's report.
const NONE: u32 = u32::MAX;

/// The steps that a device runs.
pub(super) struct InFlight {
    /// The oldest first.
    launched: VecDeque<Launched>,
    /// The arrival time of the last report. The forward of the next step has run since then at the earliest.
    reported: Instant,
    /// Free host buffers for reports.
    readbacks: Vec<Readback>,
    /// Number of host buffers that were reserved.
    pub(super) grown: usize,
}

/// The reports of a step's samples on the device.
pub(super) struct Report<'a> {
    /// u32: the reports.
    pub(super) words: Tensor,
    /// Words of a sample's report.
    pub(super) width: usize,
    /// The whole buffer for reports, whose size host buffers get.
    pub(super) buffer: &'a Tensor,
}

/// A step that was launched.
struct Launched {
    started: Instant,
    /// For each sample the number of alternatives, where the request wants log-probabilities.
    samples: Vec<Option<usize>>,
    /// The prompt tokens that are scored.
    prompts: Vec<ScoredPrompt>,
    /// Words of a sample's report.
    width: usize,
    vocab: usize,
    /// The copy of its report to the host.
    readback: Readback,
}

/// Prompt tokens of a row that are scored.
struct ScoredPrompt {
    token_ids: Vec<u32>,
    /// Alternatives that are reported with each.
    top: usize,
}

impl InFlight {
    pub(super) fn new() -> Self {
        Self {
            launched: VecDeque::new(),
            reported: Instant::now(),
            readbacks: Vec::new(),
            grown: 0,
        }
    }

    /// Queues the copy of a step's report to the host. [`Self::wait`] returns the step's output.
    pub(super) fn push(
        &mut self,
        batch: &SamplingBatch<'_>,
        started: Instant,
        report: &Report<'_>,
        vocab: usize,
    ) -> Result<()> {
        let count = report.words.elem_count();
        let mut readback = match self.readbacks.pop().filter(|buffer| buffer.capacity() >= count) {
            Some(readback) => readback,
            None => {
                self.grown += 1;
                Readback::new(report.buffer.elem_count(), report.buffer.device())?
            }
        };
        readback.start(&report.words)?;
        let prompts = batch.prompts.iter().map(|prompt| ScoredPrompt {
            token_ids: prompt.next_token_ids.clone(),
            top: prompt.top,
        });
        self.launched.push_back(Launched {
            started,
            samples: batch.samples.iter().map(|sample| sample.params.logprobs).collect(),
            prompts: prompts.collect(),
            width: report.width,
            vocab,
            readback,
        });
        Ok(())
    }

    /// Waits for the oldest step.
    pub(super) fn wait(&mut self) -> Result<StepOutput> {
        let launched = self.launched.pop_front();
        let mut launched =
            launched.ok_or_else(|| Error::Invariant("no step was launched".into()))?;
        let report = launched.readback.finish()?;
        let now = Instant::now();
        let began = launched.started.max(mem::replace(&mut self.reported, now));
        let (output, readback) = launched.read(&report, (now - began).as_secs_f64());
        self.readbacks.push(readback);
        Ok(output)
    }
}

impl Launched {
    /// The step's output, from the report of its samples, and the host buffer, which is free again.
    fn read(self, report: &[u32], forward_seconds: f64) -> (StepOutput, Readback) {
        let mut rows = report.chunks(self.width);
        let samples = self.samples.iter().zip(rows.by_ref()).map(|(top, row)| {
            let token_id = (row[0] != NONE).then_some(row[0]);
            let logprobs = top.filter(|_| token_id.is_some()).map(|top| logprobs(row, top));
            SampledRow { token_id, logprobs }
        });
        let samples = samples.collect();
        let scored = |ScoredPrompt { token_ids, top }: ScoredPrompt| {
            let rows = token_ids.iter().zip(rows.by_ref());
            rows.map(|(&token, row)| match row[0] == token {
                true => logprobs(row, top),
                // The token's logit was minus infinity, which no bias lifts.
                false => RowLogprobs {
                    logprob: f32::NEG_INFINITY,
                    rank: self.vocab,
                    top: top_of(row, top),
                },
            })
            .collect()
        };
        let prompts = self.prompts.into_iter().map(scored).collect();
        (StepOutput { samples, prompts, forward_seconds }, self.readback)
    }
}

fn logprobs(row: &[u32], top: usize) -> RowLogprobs {
    let (logprob, rank) = (f32::from_bits(row[1]), row[2] as usize);
    RowLogprobs { logprob, rank, top: top_of(row, top) }
}

fn top_of(row: &[u32], top: usize) -> Vec<(u32, f32)> {
    let pairs = row[REPORT_HEAD..].chunks(2).take(top).take_while(|pair| pair[0] != NONE);
    pairs.map(|pair| (pair[0], f32::from_bits(pair[1]))).collect()
}
