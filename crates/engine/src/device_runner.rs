//! Runs steps on a device: tables are made on the host and uploaded, tokens are sampled there, and one copy comes back.

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
    DeviceDecoder, DeviceInput, DeviceOutputTokens, OutputTokens, Workspace, WorkspaceSize,
};
use candlepower_scheduler::Step;

use crate::{
    Error, Result,
    device_graphs::Graphs,
    device_tables::{
        Chunk, ChunkLimits, InputTables, SamplingTables, SlotTokens, SwapTo, Upload, swap_pairs,
    },
    orders::send_step,
    step_io::{SamplingBatch, ScoredRow, StepOutput, num_output_tokens},
};

/// "No token" in the device's report.
const NONE: u32 = u32::MAX;

/// One rank's model on a device, with all memory that its steps need there.
pub(crate) struct DeviceRunner {
    /// Dropped first: NCCL's end of a group, which the model has, waits for every graph that contains one of the group's sums.
    graphs: Graphs,
    model: DeviceDecoder,
    workspace: Workspace,
    size: WorkspaceSize,
    /// Tokens, positions and slots, then the logits indices of a graph: at the same addresses in each step.
    inputs: Staging,
    /// The tables of a step's samples and copies; replaced by larger ones where a step needs them.
    tables: Staging,
    scratch: SamplingScratch,
    /// u32: the tokens that the last step sampled, in the order of its samples.
    sampled: Tensor,
    /// u32: the reports of the last step's samples.
    report: Tensor,
    /// The token counts for penalties; reserved for the first sequence that has one.
    counts: Option<TokenCounts>,
    /// Steps that were launched, the oldest first.
    launched: VecDeque<Launched>,
    /// The arrival time of the last report. The forward of the next step has run since then at the earliest.
    reported: Instant,
    /// Free host buffers for reports.
    readbacks: Vec<Readback>,
    swap: SwapSpace,
    /// The tokens that the last step sampled, as far as the host knows them.
    previous_samples: Vec<u32>,
    /// Number of times that a step took more memory than was reserved. Every such place counts here.
    grown: usize,
}

/// Host memory for the blocks of preempted sequences.
struct SwapSpace {
    /// For each of the workspace's caches; empty where nothing is swapped.
    blocks: Vec<HostBlocks>,
    /// Blocks of each.
    num_blocks: usize,
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

impl DeviceRunner {
    /// Reserves the memory for steps of up to `size`, and host memory for `num_swap_blocks` blocks.
    pub(crate) fn new(
        model: DeviceDecoder,
        size: WorkspaceSize,
        graphs: Graphs,
        num_swap_blocks: usize,
    ) -> Result<Self> {
        let device = model.device().clone();
        let workspace = model.workspace(size)?;
        let swap = SwapSpace::new(&workspace, num_swap_blocks)?;
        let samples = 2 * size.max_rows;
        let vocab = model.vocab_size();
        Ok(Self {
            workspace,
            swap,
            size,
            graphs,
            inputs: Staging::new(InputViews::capacity(&size), &device)?,
            tables: Staging::new(64 * samples, &device)?,
            scratch: SamplingScratch::new(size.max_rows, vocab, &device)?,
            sampled: Tensor::zeros(samples, DType::U32, &device)?,
            report: Tensor::zeros(8 * samples, DType::U32, &device)?,
            counts: None,
            launched: VecDeque::new(),
            reported: Instant::now(),
            readbacks: Vec::new(),
            previous_samples: Vec::new(),
            grown: 0,
            model,
        })
    }

    /// Whether the model is split among ranks.
    pub(crate) fn is_in_group(&self) -> bool {
        self.model.comm().is_some()
    }

    /// Number of swapped-out blocks that fit the host memory reserved for them.
    pub(crate) fn num_swap_blocks(&self) -> usize {
        self.swap.num_blocks
    }

    /// Records a graph for each number of sequences that has one. `progress` gets the number of recorded graphs, and of all.
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

    /// Queues a step on the device; [`DeviceRunner::wait`] returns its output.
    pub(crate) fn launch(&mut self, step: &Step, batch: &SamplingBatch<'_>) -> Result<()> {
        let started = Instant::now();
        let sent = match self.model.comm() {
            Some(comm) => Some(send_step(comm, step, &self.previous_samples, batch)?),
            None => None,
        };
        let Queued { computed, tables, views } =
            self.queue(sent.as_ref().unwrap_or(step), batch)?;
        let width = tables.width();
        self.sample(&computed, &tables, &views)?;
        let report = self.report.narrow(0, 0, tables.num_samples() * width)?;
        let readback = self.read_back(&report)?;
        let prompts = batch.prompts.iter().map(|prompt| ScoredPrompt {
            token_ids: prompt.next_token_ids.clone(),
            top: prompt.top,
        });
        self.launched.push_back(Launched {
            started,
            samples: batch.samples.iter().map(|sample| sample.logprobs).collect(),
            prompts: prompts.collect(),
            width,
            vocab: self.model.vocab_size(),
            readback,
        });
        Ok(())
    }

    /// Runs a step of rank 0 on another rank. Rank 0 gets this rank's shard of the logits, and samples.
    pub(crate) fn follow(&mut self, step: &Step, scored: &[ScoredRow]) -> Result<()> {
        let batch = SamplingBatch::like_rank_0(step, scored);
        let Queued { computed, views, .. } = self.queue(step, &batch)?;
        if let Computed::Hidden(hidden) = &computed {
            for chunk in &views.chunks {
                self.model.logits(hidden, &chunk.rows, &self.workspace)?;
            }
        }
        // sync: the next step's tables overwrite those that this step reads.
        Ok(self.model.device().synchronize()?)
    }

    /// Queues the part of a step before its sampling.
    fn queue(&mut self, step: &Step, batch: &SamplingBatch<'_>) -> Result<Queued> {
        let mut inputs = InputTables::new(step, self.size.block_size as u32);
        let decodes = inputs.num_tokens() == step.rows.len();
        let bucket = self.graphs.bucket(step.rows.len()).filter(|_| decodes);
        if let Some(bucket) = bucket {
            inputs.pad(bucket);
        }
        let limits = ChunkLimits {
            rows: self.size.max_rows,
            vocab: self.model.vocab_size(),
            has_logits: bucket.is_some(),
        };
        let mut tables = SamplingTables::new(step, batch, limits);
        let spec = self.model.spec();
        if bucket.is_none() && spec.first_reader() < spec.layers.len() {
            let counts = num_output_tokens(step, &batch.scored());
            inputs.output = OutputTokens::of(&inputs.attention, &inputs.positions, &counts)?;
        }
        if let Some(output) = &inputs.output {
            tables.index_output_tokens(output);
        }
        let views = self.upload_sampling(step, &tables)?;
        self.swap.queue(&self.workspace, &views.swaps)?;
        if !step.copies.is_empty() {
            let mut caches = self.workspace.caches().iter();
            caches.try_for_each(|cache| cache.copy_blocks(&views.copies))?;
        }
        if let Some(states) = self.workspace.states().filter(|_| !step.state_copies.is_empty()) {
            gpu::copy_states(states, &views.state_copies)?;
        }
        let launch = if bucket.is_some() { LaunchShape::Fixed } else { LaunchShape::Fitted };
        let inputs_on_device = self.prepare(&inputs, launch)?;
        if inputs.has_sampled {
            gpu::resolve_tokens(&inputs_on_device.token_ids, &self.sampled)?;
        }
        let computed = match bucket {
            Some(bucket) => Computed::Logits(self.run_graph(bucket, &inputs_on_device)?),
            None => {
                Computed::Hidden(self.model.forward(&inputs_on_device.input(), &self.workspace)?)
            }
        };
        Ok(Queued { computed, tables, views })
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

    /// Queues the copy of a report.
    fn read_back(&mut self, report: &Tensor) -> Result<Readback> {
        let count = report.elem_count();
        let mut readback = match self.readbacks.pop().filter(|buffer| buffer.capacity() >= count) {
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
        let output = inputs.output.as_ref().map(|output| {
            let rows = upload.push(output.rows.iter().copied());
            (rows, upload.push(output.positions.iter().copied()), output.attention.clone())
        });
        self.inputs.upload(&upload.words)?;
        let view = |range: std::ops::Range<usize>| self.inputs.view(range.start, &[range.len()]);
        let states = match states {
            Some((query_start, slots)) => Some((view(query_start)?, view(slots)?)),
            None => None,
        };
        let output = match output {
            Some((rows, positions, attention)) => {
                let tables = match rows.is_empty() {
                    true => None,
                    false => Some((view(rows)?, view(positions)?)),
                };
                Some(OutputViews { tables, attention })
            }
            None => None,
        };
        let views = InputViews {
            output,
            states,
            token_ids: view(token_ids)?,
            positions: view(positions)?,
            slots: view(slots)?,
            rows: view(rows)?,
        };
        self.workspace.prepare(&AttentionStep { meta: &inputs.attention, tokens, launch })?;
        Ok(views)
    }

    /// The logits of a decode that has a CUDA graph, or would have one on a GPU.
    fn run_graph(&self, bucket: usize, inputs: &InputViews) -> Result<Tensor> {
        match self.graphs.launch(bucket)? {
            Some(logits) => Ok(logits),
            None => {
                let hidden = self.model.forward(&inputs.input(), &self.workspace)?;
                Ok(self.model.logits(&hidden, &inputs.rows, &self.workspace)?)
            }
        }
    }

    /// Uploads the tables of the step's samples and copies. Tables that are too small are replaced.
    fn upload_sampling(&mut self, step: &Step, tables: &SamplingTables) -> Result<SamplingViews> {
        let mut upload = Upload::default();
        let copies = upload.push(step.copies.iter().flat_map(|copy| [copy.src.0, copy.dst.0]));
        let state_copies =
            upload.push(step.state_copies.iter().flat_map(|copy| [copy.src.0, copy.dst.0]));
        let swaps: Vec<_> = swap_pairs(&step.swaps)
            .into_iter()
            .map(|(to, pairs)| (to, upload.push(pairs)))
            .collect();
        let bias_ids = upload.push(tables.bias_ids.iter().copied());
        let biases = upload.push(tables.biases.iter().copied());
        let masks = upload.push(tables.masks.iter().copied());
        let mut chunks = Vec::with_capacity(tables.chunks.len());
        for chunk in &tables.chunks {
            chunks.push([
                upload.push(chunk.rows.iter().copied()),
                upload.push(chunk.samplers.iter().flat_map(SamplerRow::words)),
                upload.push(0..chunk.counted),
                upload.push(chunk.prompt.slots.iter().copied()),
                upload.push(chunk.prompt.ids.iter().copied()),
                upload.push(chunk.generated.slots.iter().copied()),
                upload.push(chunk.generated.ids.iter().copied()),
            ]);
        }
        self.reserve(upload.words.len(), tables)?;
        self.tables.upload(&upload.words)?;
        let view = |range: &std::ops::Range<usize>| self.tables.view(range.start, &[range.len()]);
        let pairs = |range: &std::ops::Range<usize>| -> Result<Tensor> {
            Ok(view(range)?.reshape((range.len() / 2, 2))?)
        };
        let words = self.model.vocab_size().div_ceil(32);
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

    /// Replaces the buffers that are too small for a step. No graph reads them.
    fn reserve(&mut self, words: usize, tables: &SamplingTables) -> Result<()> {
        let device = self.model.device().clone();
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
        // This step looks up tokens in the old tensor, so they are copied.
        if let Some(sampled) = larger(count, &self.sampled)? {
            sampled.slice_set(&self.sampled, 0, 0)?;
            self.sampled = sampled;
            self.grown += 1;
        }
        let reported = count * tables.width();
        if let Some(report) = larger(reported, &self.report)? {
            self.report = report;
            self.grown += 1;
        }
        if self.counts.is_none() && tables.chunks.iter().any(|chunk| chunk.counted > 0) {
            let vocab = self.model.vocab_size();
            self.grown += 1;
            self.counts = Some(TokenCounts::new(self.size.max_rows, vocab, &device)?);
        }
        Ok(())
    }

    /// Samples every chunk.
    fn sample(
        &self,
        computed: &Computed,
        tables: &SamplingTables,
        views: &SamplingViews,
    ) -> Result<()> {
        let width = tables.width();
        let mut first = 0;
        for (chunk, views_of) in tables.chunks.iter().zip(&views.chunks) {
            let logits = match computed {
                Computed::Logits(logits) => logits.clone(),
                Computed::Hidden(hidden) => {
                    self.model.logits(hidden, &views_of.rows, &self.workspace)?
                }
            };
            self.count(chunk, views_of)?;
            let count = chunk.samplers.len();
            let batch = gpu::SamplingBatch {
                rows: &views_of.samplers,
                counts: self.counts.as_ref().filter(|_| chunk.counted > 0),
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
        Ok(())
    }

    /// Fills the token counts for a chunk's penalties.
    fn count(&self, chunk: &Chunk, views: &ChunkViews) -> Result<()> {
        let Some(counts) = self.counts.as_ref().filter(|_| chunk.counted > 0) else {
            return Ok(());
        };
        counts.reset(&views.reset)?;
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

impl SwapSpace {
    fn new(workspace: &Workspace, num_blocks: usize) -> Result<Self> {
        let caches = workspace.caches().iter().filter(|_| num_blocks > 0);
        let blocks = caches.map(|cache| Ok(HostBlocks::new(cache, num_blocks)?));
        Ok(Self { blocks: blocks.collect::<Result<_>>()?, num_blocks })
    }

    /// Queues a step's swaps.
    fn queue(&self, workspace: &Workspace, swaps: &[(SwapTo, Tensor)]) -> Result<()> {
        if !swaps.is_empty() && self.blocks.is_empty() {
            let reason = "a step swaps blocks, and no host memory is reserved for any";
            return Err(Error::Invariant(reason.into()));
        }
        for (to, pairs) in swaps {
            for (cache, host) in workspace.caches().iter().zip(&self.blocks) {
                match to {
                    SwapTo::Host => cache.bring_out(host, pairs)?,
                    SwapTo::Cache => cache.bring_back(host, pairs)?,
                }
            }
        }
        Ok(())
    }
}

/// A step that is queued up to its sampling.
struct Queued {
    computed: Computed,
    tables: SamplingTables,
    views: SamplingViews,
}

/// The result of a step before its sampling.
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
    /// The logits indices of a decode: 0, 1, 2 .., since every token is an output token.
    rows: Tensor,
    /// The first token of each sequence, and the slot of its state, where layers have recurrent states.
    states: Option<(Tensor, Tensor)>,
    /// The output tokens, where not all tokens are.
    output: Option<OutputViews>,
}

/// The output tokens on the device, for [`DeviceOutputTokens`].
struct OutputViews {
    tables: Option<(Tensor, Tensor)>,
    attention: AttentionMetadata,
}

impl InputViews {
    /// Words that the largest step needs, each table from a multiple of four on.
    fn capacity(size: &WorkspaceSize) -> usize {
        let of_states = 2 * (size.max_seqs + 1).next_multiple_of(4);
        // Tokens, positions and slots, and the rows and positions of the output tokens.
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
            output: self.output.as_ref().map(|output| DeviceOutputTokens {
                tables: output.tables.as_ref().map(|(rows, positions)| (rows, positions)),
                attention: &output.attention,
            }),
        }
    }
}

/// The tables of a step's samples on the device.
struct SamplingViews {
    chunks: Vec<ChunkViews>,
    copies: Tensor,
    state_copies: Tensor,
    /// In the order of the step.
    swaps: Vec<(SwapTo, Tensor)>,
    biases: Option<(Tensor, Tensor)>,
    masks: Option<Tensor>,
}

struct ChunkViews {
    rows: Tensor,
    samplers: Tensor,
    reset: Tensor,
    prompt: SlotTokenViews,
    generated: SlotTokenViews,
}

struct SlotTokenViews {
    slots: Tensor,
    ids: Tensor,
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

#[cfg(test)]
mod tests;
