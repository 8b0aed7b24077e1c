//! Runs steps on a device: tables are made on the host and uploaded, tokens are drawn there, and one copy comes back.

use std::{collections::VecDeque, time::Instant};

use candle_core::{DType, Tensor};
use candlepower_gpu::{
    self as gpu, AttentionStep, HostBlocks, LaunchShape, REPORT_HEAD, Readback, SamplerRow,
    SamplingOutput, SamplingScratch, Staging, StateTables, TokenCounts,
};
use candlepower_kernels::{
    AttentionMetadata,
    sampling::{RowLogprobs, SampledRow},
};
use candlepower_models::{
    DeviceDecoder, DeviceInput, DeviceWanted, WantedTokens, Workspace, WorkspaceSize,
};
use candlepower_scheduler::Step;

use crate::{
    Error, Result,
    cpu_runner::{PromptRow, SamplingBatch, Scored, StepOutput, num_wanted},
    device_graphs::Graphs,
    device_tables::{Chunk, DrawLimits, DrawTables, InputTables, SwapTo, Upload, swap_pairs},
    follower::{Followers, tell_others},
};

/// "No token" in what the device reports.
const NONE: u32 = u32::MAX;

/// One rank's model on a device, with everything that its steps need there.
pub(crate) struct DeviceRunner {
    /// Dropped first: NCCL's end of a group, which the model has, waits for every graph with one of the group's sums in it.
    graphs: Graphs,
    model: DeviceDecoder,
    workspace: Workspace,
    size: WorkspaceSize,
    /// Tokens, positions and slots, then the rows whose logits a graph computes: at the same place in each step.
    inputs: Staging,
    /// What a step draws and copies; replaced by a larger one where a step needs it.
    tables: Staging,
    scratch: SamplingScratch,
    /// u32: the tokens that the last step drew, in the order of its samples.
    drawn: Tensor,
    /// u32: what the last step's draws report.
    report: Tensor,
    /// Made when the first sequence with a penalty comes.
    counts: Option<TokenCounts>,
    /// Steps on their way, the oldest first.
    launched: VecDeque<Launched>,
    /// When the report of the last step that was waited for had come: the next one's forward has run since, at the earliest.
    reported: Instant,
    /// Room for the reports of others.
    readbacks: Vec<Readback>,
    /// Blocks of preempted sequences, where there is room for any.
    /// For each of the workspace's caches; none where nothing is swapped.
    host: Vec<HostBlocks>,
    num_swap_blocks: usize,
    /// The tokens that the last step drew, as far as the host knows them.
    previous_samples: Vec<u32>,
    /// Of rank 0. They are waited for when the model is gone, and with it rank 0's end of the collectives.
    followers: Followers,
    /// How often steps took memory for more than what was reserved: all that they ever take is taken where this is counted.
    grown: usize,
}

/// A step on its way.
struct Launched {
    started: Instant,
    /// Whether each sample's log-probabilities are asked for, and how many others.
    samples: Vec<Option<usize>>,
    /// Tokens that are scored, and how many others are reported with each.
    prompts: Vec<(Vec<u32>, usize)>,
    /// Numbers per draw.
    width: usize,
    vocab: usize,
    /// Its report, on its way to the host.
    readback: Readback,
}

impl DeviceRunner {
    /// Reserves what steps of up to `size` need, and room for so many blocks in the memory of the host.
    pub(crate) fn new(
        model: DeviceDecoder,
        size: WorkspaceSize,
        graphs: Graphs,
        num_swap_blocks: usize,
    ) -> Result<Self> {
        let device = model.device().clone();
        let workspace = model.workspace(size)?;
        let caches = workspace.caches().iter().filter(|_| num_swap_blocks > 0);
        let host = caches.map(|cache| Ok(HostBlocks::new(cache, num_swap_blocks)?));
        let host = host.collect::<Result<_>>()?;
        let draws = 2 * size.max_rows;
        let vocab = model.vocab_size();
        Ok(Self {
            workspace,
            host,
            num_swap_blocks,
            size,
            graphs,
            inputs: Staging::new(InputViews::capacity(&size), &device)?,
            tables: Staging::new(64 * draws, &device)?,
            scratch: SamplingScratch::new(size.max_rows, vocab, &device)?,
            drawn: Tensor::zeros(draws, DType::U32, &device)?,
            report: Tensor::zeros(8 * draws, DType::U32, &device)?,
            counts: None,
            launched: VecDeque::new(),
            reported: Instant::now(),
            readbacks: Vec::new(),
            previous_samples: Vec::new(),
            followers: Followers::default(),
            grown: 0,
            model,
        })
    }

    /// As rank 0, which these follow.
    pub(crate) fn leading(self, followers: Followers) -> Self {
        Self { followers, ..self }
    }

    /// Whether other ranks follow this one, or are followed by it.
    pub(crate) fn has_followers(&self) -> bool {
        self.model.comm().is_some()
    }

    /// Blocks of preempted sequences that fit the memory of the host.
    pub(crate) fn num_swap_blocks(&self) -> usize {
        self.num_swap_blocks
    }

    /// Records a graph for each number of sequences that has one, telling how many are done.
    pub(crate) fn capture_graphs(&mut self, progress: &mut dyn FnMut(usize, usize)) -> Result<()> {
        let buckets = self.graphs.buckets().to_vec();
        for (done, &bucket) in buckets.iter().enumerate() {
            progress(done, buckets.len());
            let mut inputs = InputTables::default();
            inputs.attention.query_start.push(0);
            inputs.pad(bucket);
            let views = self.prepare(&inputs, LaunchShape::Fixed)?;
            let Self { model, workspace, graphs, .. } = self;
            graphs.capture(model.device(), bucket, || {
                let hidden = model.forward(&views.input(), workspace)?;
                model.logits(&hidden, &views.rows, workspace)
            })?;
        }
        Ok(())
    }

    /// Queues a step on the device; [`DeviceRunner::wait`] has its outcome.
    pub(crate) fn launch(&mut self, step: &Step, batch: &SamplingBatch<'_>) -> Result<()> {
        self.lead(step, batch).map_err(|error| self.followers.explain(error))
    }

    fn lead(&mut self, step: &Step, batch: &SamplingBatch<'_>) -> Result<()> {
        let started = Instant::now();
        let told = match self.model.comm() {
            Some(comm) => Some(tell_others(comm, step, &self.previous_samples, batch)?),
            None => None,
        };
        let Queued { computed, draws, views } = self.queue(told.as_ref().unwrap_or(step), batch)?;
        let width = draws.width();
        self.draw(&computed, &draws, &views, width)?;
        let report = self.report.narrow(0, 0, draws.num_draws() * width)?;
        let readback = self.read_back(&report)?;
        self.launched.push_back(Launched {
            started,
            samples: batch.samples.iter().map(|sample| sample.logprobs).collect(),
            prompts: batch.prompts.iter().map(|p| (p.next_token_ids.clone(), p.top)).collect(),
            width,
            vocab: self.model.vocab_size(),
            readback,
        });
        Ok(())
    }

    /// Runs a step of rank 0's, which draws: all that is computed here goes to it.
    pub(crate) fn follow(&mut self, step: &Step, scored: &[Scored]) -> Result<()> {
        let batch = SamplingBatch::like_rank_0(step, scored);
        let Queued { computed, views, .. } = self.queue(step, &batch)?;
        if let Computed::Hidden(hidden) = &computed {
            for chunk in &views.chunks {
                self.model.logits(hidden, &chunk.rows, &self.workspace)?;
            }
        }
        // sync: the next step's tables are written where this one's are read.
        Ok(self.model.device().synchronize()?)
    }

    /// Queues what comes before a step's draws.
    fn queue(&mut self, step: &Step, batch: &SamplingBatch<'_>) -> Result<Queued> {
        let mut inputs = InputTables::new(step, self.size.block_size as u32);
        let decodes = inputs.num_tokens() == step.rows.len();
        let bucket = self.graphs.bucket(step.rows.len()).filter(|_| decodes);
        if let Some(bucket) = bucket {
            inputs.pad(bucket);
        }
        let limits = DrawLimits {
            rows: self.size.max_rows,
            vocab: self.model.vocab_size(),
            has_logits: bucket.is_some(),
        };
        let mut draws = DrawTables::new(step, batch, limits);
        let spec = self.model.spec();
        if bucket.is_none() && spec.first_reader() < spec.layers.len() {
            let scored: Vec<_> = batch.prompts.iter().map(PromptRow::scored).collect();
            let counts = num_wanted(step, &scored);
            inputs.wanted = WantedTokens::of(&inputs.attention, &inputs.positions, &counts)?;
        }
        if let Some(wanted) = &inputs.wanted {
            draws.read_wanted(wanted);
        }
        let views = self.upload_draws(step, &draws)?;
        self.swap(&views.swaps)?;
        if !step.copies.is_empty() {
            let mut caches = self.workspace.caches().iter();
            caches.try_for_each(|cache| cache.copy_blocks(&views.copies))?;
        }
        if let Some(states) = self.workspace.states().filter(|_| !step.state_copies.is_empty()) {
            gpu::copy_states(states, &views.state_copies)?;
        }
        let launch = if bucket.is_some() { LaunchShape::Fixed } else { LaunchShape::Fitted };
        let inputs_on_device = self.prepare(&inputs, launch)?;
        if inputs.has_drawn {
            gpu::resolve_tokens(&inputs_on_device.token_ids, &self.drawn)?;
        }
        let computed = match bucket {
            Some(bucket) => Computed::Logits(self.run_graph(bucket, &inputs_on_device)?),
            None => {
                Computed::Hidden(self.model.forward(&inputs_on_device.input(), &self.workspace)?)
            }
        };
        Ok(Queued { computed, draws, views })
    }

    /// Waits for the oldest step that was launched.
    pub(crate) fn wait(&mut self) -> Result<StepOutput> {
        let launched = self.launched.pop_front();
        let mut launched =
            launched.ok_or_else(|| Error::Invariant("no step was launched".into()))?;
        let report = launched.readback.finish()?;
        let now = Instant::now();
        let began = launched.started.max(std::mem::replace(&mut self.reported, now));
        let (output, readback) = launched.read(&report, (now - began).as_secs_f64());
        self.readbacks.push(readback);
        self.previous_samples = output.token_ids();
        Ok(output)
    }

    /// Queues a step's swaps.
    fn swap(&self, swaps: &[(SwapTo, Tensor)]) -> Result<()> {
        if !swaps.is_empty() && self.host.is_empty() {
            return Err(Error::Invariant(
                "a step swaps blocks, and there is no room for any".into(),
            ));
        }
        for (to, pairs) in swaps {
            for (cache, host) in self.workspace.caches().iter().zip(&self.host) {
                match to {
                    SwapTo::Host => cache.bring_out(host, pairs)?,
                    SwapTo::Cache => cache.bring_back(host, pairs)?,
                }
            }
        }
        Ok(())
    }

    /// Queues the copy of a report.
    fn read_back(&mut self, report: &Tensor) -> Result<Readback> {
        let count = report.elem_count();
        let mut readback = match self.readbacks.pop().filter(|room| room.capacity() >= count) {
            Some(readback) => readback,
            None => {
                self.grown += 1;
                Readback::new(self.report.elem_count(), self.model.device())?
            }
        };
        readback.start(report)?;
        Ok(readback)
    }

    /// Uploads the tables of the forward and plans its attention.
    fn prepare(&mut self, inputs: &InputTables, launch: LaunchShape) -> Result<InputViews> {
        let tokens = inputs.num_tokens();
        let mut upload = Upload::default();
        let token_ids = upload.push(inputs.token_ids.iter().copied());
        let positions = upload.push(inputs.positions.iter().copied());
        let slots = upload.push(inputs.slots.iter().copied());
        let rows = upload.push(0..tokens.min(self.size.max_rows) as u32);
        let states = self.workspace.states().map(|_| {
            let query_start = upload.push(inputs.attention.query_start.iter().copied());
            (query_start, upload.push(inputs.state_slots.iter().copied()))
        });
        let wanted = inputs.wanted.as_ref().map(|wanted| {
            let rows = upload.push(wanted.rows.iter().copied());
            (rows, upload.push(wanted.positions.iter().copied()), wanted.attention.clone())
        });
        self.inputs.upload(&upload.numbers)?;
        let view = |range: std::ops::Range<usize>| self.inputs.view(range.start, &[range.len()]);
        let states = match states {
            Some((query_start, slots)) => Some((view(query_start)?, view(slots)?)),
            None => None,
        };
        let wanted = match wanted {
            Some((rows, positions, attention)) => {
                let tables = match rows.is_empty() {
                    true => None,
                    false => Some((view(rows)?, view(positions)?)),
                };
                Some(WantedViews { tables, attention })
            }
            None => None,
        };
        let views = InputViews {
            wanted,
            states,
            token_ids: view(token_ids)?,
            positions: view(positions)?,
            slots: view(slots)?,
            rows: view(rows)?,
        };
        self.workspace.prepare(&AttentionStep { meta: &inputs.attention, tokens, launch })?;
        Ok(views)
    }

    /// The logits of a decode, whose launches were recorded.
    fn run_graph(&self, bucket: usize, inputs: &InputViews) -> Result<Tensor> {
        match self.graphs.launch(bucket)? {
            Some(logits) => Ok(logits),
            None => {
                let hidden = self.model.forward(&inputs.input(), &self.workspace)?;
                Ok(self.model.logits(&hidden, &inputs.rows, &self.workspace)?)
            }
        }
    }

    /// Uploads what the step draws and copies, into larger tables where these do not do.
    fn upload_draws(&mut self, step: &Step, draws: &DrawTables) -> Result<DrawViews> {
        let mut upload = Upload::default();
        let copies = upload.push(step.copies.iter().flat_map(|copy| [copy.src.0, copy.dst.0]));
        let state_copies =
            upload.push(step.state_copies.iter().flat_map(|copy| [copy.src.0, copy.dst.0]));
        let swaps: Vec<_> = swap_pairs(&step.swaps)
            .into_iter()
            .map(|(to, pairs)| (to, upload.push(pairs)))
            .collect();
        let bias_ids = upload.push(draws.bias_ids.iter().copied());
        let biases = upload.push(draws.biases.iter().copied());
        let masks = upload.push(draws.masks.iter().copied());
        let mut chunks = Vec::with_capacity(draws.chunks.len());
        for chunk in &draws.chunks {
            chunks.push([
                upload.push(chunk.rows.iter().copied()),
                upload.push(chunk.draws.iter().flat_map(SamplerRow::words)),
                upload.push(0..chunk.counted),
                upload.push(chunk.prompt.0.iter().copied()),
                upload.push(chunk.prompt.1.iter().copied()),
                upload.push(chunk.generated.0.iter().copied()),
                upload.push(chunk.generated.1.iter().copied()),
            ]);
        }
        self.make_room(upload.numbers.len(), draws)?;
        self.tables.upload(&upload.numbers)?;
        let view = |range: &std::ops::Range<usize>| self.tables.view(range.start, &[range.len()]);
        let pairs = |range: &std::ops::Range<usize>| -> Result<Tensor> {
            Ok(view(range)?.reshape((range.len() / 2, 2))?)
        };
        let words = self.model.vocab_size().div_ceil(32);
        let chunks = chunks.iter().map(|[rows, words, reset, p0, p1, g0, g1]| {
            Ok(ChunkViews {
                rows: view(rows)?,
                draws: view(words)?
                    .reshape((words.len() / SamplerRow::WORDS, SamplerRow::WORDS))?,
                reset: view(reset)?,
                prompt: (view(p0)?, view(p1)?),
                generated: (view(g0)?, view(g1)?),
            })
        });
        Ok(DrawViews {
            chunks: chunks.collect::<Result<_>>()?,
            copies: pairs(&copies)?,
            state_copies: pairs(&state_copies)?,
            swaps: swaps
                .iter()
                .map(|(to, range)| Ok((*to, pairs(range)?)))
                .collect::<Result<_>>()?,
            biases: (!bias_ids.is_empty())
                .then(|| Ok::<_, Error>((view(&bias_ids)?, view(&biases)?)))
                .transpose()?,
            masks: (!masks.is_empty())
                .then(|| Ok::<_, Error>(view(&masks)?.reshape((masks.len() / words, words))?))
                .transpose()?,
        })
    }

    /// Replaces what is too small for a step. No graph reads any of it.
    fn make_room(&mut self, numbers: usize, draws: &DrawTables) -> Result<()> {
        let device = self.model.device().clone();
        let larger = |count: usize, tensor: &Tensor| -> Result<Option<Tensor>> {
            match count > tensor.elem_count() {
                true => Ok(Some(Tensor::zeros(count.next_power_of_two(), DType::U32, &device)?)),
                false => Ok(None),
            }
        };
        if numbers > self.tables.capacity() {
            self.grown += 1;
            self.tables = Staging::new(numbers.next_power_of_two(), &device)?;
        }
        let count = draws.num_draws();
        // Tokens that this step looks up are in the old tensor, so they go along.
        if let Some(drawn) = larger(count, &self.drawn)? {
            drawn.slice_set(&self.drawn, 0, 0)?;
            self.drawn = drawn;
            self.grown += 1;
        }
        let reported = count * draws.width();
        if let Some(report) = larger(reported, &self.report)? {
            self.report = report;
            self.grown += 1;
        }
        if self.counts.is_none() && draws.chunks.iter().any(|chunk| chunk.counted > 0) {
            let vocab = self.model.vocab_size();
            self.grown += 1;
            self.counts = Some(TokenCounts::new(self.size.max_rows, vocab, &device)?);
        }
        Ok(())
    }

    /// Draws every chunk.
    fn draw(
        &self,
        computed: &Computed,
        tables: &DrawTables,
        views: &DrawViews,
        width: usize,
    ) -> Result<()> {
        let mut first = 0;
        for (chunk, views_of) in tables.chunks.iter().zip(&views.chunks) {
            let logits = match computed {
                Computed::Logits(logits) => logits.clone(),
                Computed::Hidden(hidden) => {
                    self.model.logits(hidden, &views_of.rows, &self.workspace)?
                }
            };
            self.count(chunk, views_of)?;
            let draws = chunk.draws.len();
            let batch = gpu::SamplingBatch {
                rows: &views_of.draws,
                counts: self.counts.as_ref().filter(|_| chunk.counted > 0),
                biases: views.biases.as_ref().map(|(ids, biases)| (ids, biases)),
                masks: views.masks.as_ref(),
            };
            let output = SamplingOutput {
                token_ids: self.drawn.narrow(0, first, draws)?,
                report: self
                    .report
                    .narrow(0, first * width, draws * width)?
                    .reshape((draws, width))?,
            };
            gpu::sample(&logits, &batch, &self.scratch, &output)?;
            first += draws;
        }
        Ok(())
    }

    /// Fills the counts that a chunk's penalties look at.
    fn count(&self, chunk: &Chunk, views: &ChunkViews) -> Result<()> {
        let Some(counts) = self.counts.as_ref().filter(|_| chunk.counted > 0) else {
            return Ok(());
        };
        counts.reset(&views.reset)?;
        if !chunk.prompt.0.is_empty() {
            counts.add_prompt(&views.prompt.0, &views.prompt.1)?;
        }
        if !chunk.generated.0.is_empty() {
            counts.add_generated(&views.generated.0, &views.generated.1)?;
        }
        Ok(())
    }
}

/// A step that is on its way but for its draws.
struct Queued {
    computed: Computed,
    draws: DrawTables,
    views: DrawViews,
}

/// What there is of a step before its draws.
enum Computed {
    /// The hidden states of its tokens.
    Hidden(Tensor),
    /// The logits of its rows.
    Logits(Tensor),
}

/// The tables of a forward on the device.
struct InputViews {
    token_ids: Tensor,
    positions: Tensor,
    slots: Tensor,
    /// The numbers from 0 on: the rows of a decode whose logits are wanted, all of them.
    rows: Tensor,
    /// Where each sequence's tokens begin, and where its state is, where layers have such.
    states: Option<(Tensor, Tensor)>,
    /// Whose hidden states are wanted, where not all are.
    wanted: Option<WantedViews>,
}

/// As [`DeviceWanted`].
struct WantedViews {
    tables: Option<(Tensor, Tensor)>,
    attention: AttentionMetadata,
}

impl InputViews {
    /// Numbers that the largest step needs, each table from a multiple of four on.
    fn capacity(size: &WorkspaceSize) -> usize {
        let of_states = 2 * (size.max_seqs + 1).next_multiple_of(4);
        // Tokens, positions and slots, and the rows and positions of those that are wanted.
        5 * size.max_tokens.next_multiple_of(4) + size.max_rows.next_multiple_of(4) + of_states
    }

    fn input(&self) -> DeviceInput<'_> {
        DeviceInput {
            token_ids: &self.token_ids,
            positions: &self.positions,
            slot_mapping: &self.slots,
            states: self.states.as_ref().map(|(query_start, slots)| StateTables {
                query_start,
                slots,
                positions: &self.positions,
            }),
            wanted: self.wanted.as_ref().map(|wanted| DeviceWanted {
                tables: wanted.tables.as_ref().map(|(rows, positions)| (rows, positions)),
                attention: &wanted.attention,
            }),
        }
    }
}

/// The tables of a step's draws on the device.
struct DrawViews {
    chunks: Vec<ChunkViews>,
    copies: Tensor,
    state_copies: Tensor,
    /// In the order in which they are made.
    swaps: Vec<(SwapTo, Tensor)>,
    biases: Option<(Tensor, Tensor)>,
    masks: Option<Tensor>,
}

struct ChunkViews {
    rows: Tensor,
    draws: Tensor,
    reset: Tensor,
    prompt: (Tensor, Tensor),
    generated: (Tensor, Tensor),
}

impl Launched {
    /// The step's outcome, from what its draws report, and the room that it needs no more.
    fn read(self, report: &[u32], forward_seconds: f64) -> (StepOutput, Readback) {
        let mut rows = report.chunks(self.width);
        let samples = self.samples.iter().zip(rows.by_ref()).map(|(top, row)| {
            let token_id = (row[0] != NONE).then_some(row[0]);
            let logprobs = top.filter(|_| token_id.is_some()).map(|top| logprobs(row, top));
            SampledRow { token_id, logprobs }
        });
        let samples = samples.collect();
        let scored = |(tokens, top): (Vec<u32>, usize)| {
            let rows = tokens.iter().zip(rows.by_ref());
            rows.map(|(&token, row)| match row[0] == token {
                true => logprobs(row, top),
                // Its logit was minus infinity, which no bias lifts.
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

#[cfg(test)]
mod tests;
