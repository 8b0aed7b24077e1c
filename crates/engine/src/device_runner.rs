//! Runs steps on a device: tables are made on the host and uploaded, tokens are sampled there, and one copy comes back.

use std::time::Instant;

use candle_core::Tensor;
use candlepower_gpu::{self as gpu, AttentionStep, LaunchShape, Staging};
use candlepower_models::{DeviceDecoder, OutputTokens, Workspace, WorkspaceSize};
use candlepower_scheduler::{SeqId, Step};

use crate::{
    Error, Result,
    device_counts::CountSlots,
    device_graphs::Graphs,
    device_tables::{ChunkLimits, InputTables, SamplingTables},
    orders::send_step,
    step_io::{SamplingBatch, ScoredRow, StepOutput, num_output_tokens},
};

mod in_flight;
mod inputs;
mod moves;
mod sampling;
mod swap;

use in_flight::InFlight;
use inputs::InputViews;
use moves::Moves;
use sampling::SamplingBuffers;
use swap::SwapSpace;

/// One rank's model on a device, with all memory that its steps need there.
pub(crate) struct DeviceRunner {
    /// Dropped first: NCCL's end of a group, which the model has, waits for every graph that contains one of the group's sums.
    graphs: Graphs,
    model: DeviceDecoder,
    workspace: Workspace,
    size: WorkspaceSize,
    /// Tokens, positions and slots, then the logits indices of a graph: at the same addresses in each step.
    inputs: Staging,
    moves: Moves,
    sampling: SamplingBuffers,
    counts: CountSlots,
    /// The step whose sampling is not launched yet.
    forward: Option<Forward>,
    in_flight: InFlight,
    swap: SwapSpace,
    /// The tokens that the last step sampled, as far as the host knows them.
    previous_samples: Vec<u32>,
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
        for line in [workspace.describe_prefill(), workspace.describe_fp8_decode()] {
            match line {
                Some(line) if line.is_refused => tracing::warn!("{}", line.text),
                Some(line) => tracing::info!("{}", line.text),
                None => {}
            }
        }
        let swap = SwapSpace::new(&workspace, num_swap_blocks)?;
        Ok(Self {
            workspace,
            swap,
            size,
            graphs,
            inputs: Staging::new(InputViews::capacity(&size), &device)?,
            moves: Moves::new(size.max_seqs, &device)?,
            sampling: SamplingBuffers::new(size.max_rows, model.vocab_size(), &device)?,
            counts: CountSlots::new(size.max_rows),
            forward: None,
            in_flight: InFlight::new(),
            previous_samples: Vec::new(),
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
        let graphs = self.graphs.all();
        for (done, &(bucket, shape)) in graphs.iter().enumerate() {
            progress(done, graphs.len());
            let mut inputs = InputTables::default();
            inputs.attention.query_start.push(0);
            inputs.pad(bucket);
            let views = self.prepare(&inputs, shape)?;
            let Self { model, workspace, graphs, .. } = self;
            graphs.capture(model.device(), (bucket, shape), || {
                let hidden = model.forward(&views.input(), workspace)?;
                model.logits(&hidden, &views.rows, workspace)
            })?;
        }
        Ok(())
    }

    /// Most rows of one token each that have a graph; 0 where there are none.
    pub(crate) fn max_graph_rows(&self) -> usize {
        self.graphs.max_seqs()
    }

    /// Queues a step on the device; [`DeviceRunner::wait`] returns its output.
    pub(crate) fn launch(&mut self, step: &Step, batch: &SamplingBatch<'_>) -> Result<()> {
        let sent = match self.model.comm() {
            Some(comm) => Some(send_step(comm, step, &self.previous_samples, batch, &[])?),
            None => None,
        };
        self.launch_forward(sent.as_ref().unwrap_or(step), &batch.scored())?;
        self.launch_sampling(step, batch)
    }

    /// Queues the part of a step before its sampling. It needs no token of the step before, which the device knows first.
    pub(crate) fn launch_forward(&mut self, step: &Step, scored: &[ScoredRow]) -> Result<()> {
        let started = Instant::now();
        let computed = self.queue(step, scored)?;
        self.forward = Some(Forward { started, computed });
        Ok(())
    }

    /// Queues the sampling of the step whose forward was queued last.
    pub(crate) fn launch_sampling(&mut self, step: &Step, batch: &SamplingBatch<'_>) -> Result<()> {
        let forward = self.forward.take();
        let forward = forward.ok_or_else(|| Error::Invariant("no forward was launched".into()))?;
        let Forward { started, computed } = forward;
        let tables = self.tables(step, batch, &computed)?;
        let views = self.sampling.upload(&tables)?;
        let (model, workspace) = (&self.model, &self.workspace);
        let report = self.sampling.sample(&tables, &views, |chunk| match &computed {
            Computed::Logits(logits) => Ok(logits.clone()),
            Computed::Hidden(hidden, _) => Ok(model.logits(hidden, &chunk.rows, workspace)?),
        })?;
        self.in_flight.push(batch, started, &report, model.vocab_size())
    }

    /// Whether a step with `num_penalized` penalized samples can be sampled although the newest tokens of its sequences `unknown` are
    /// not known to the host.
    pub(crate) fn have_counts(&self, unknown: &[SeqId], num_penalized: usize) -> bool {
        self.counts.hold(unknown, num_penalized)
    }

    /// Runs a step of rank 0 on another rank. Rank 0 gets this rank's shard of the logits, and samples.
    pub(crate) fn follow(&mut self, step: &Step, scored: &[ScoredRow]) -> Result<()> {
        let computed = self.queue(step, scored)?;
        if let Computed::Hidden(hidden, _) = &computed {
            let batch = SamplingBatch::like_rank_0(step, scored);
            let tables = self.tables(step, &batch, &computed)?;
            for chunk in &self.sampling.upload(&tables)?.chunks {
                self.model.logits(hidden, &chunk.rows, &self.workspace)?;
            }
        }
        // sync: the next step's tables overwrite those that this step reads.
        Ok(self.model.device().synchronize()?)
    }

    /// Queues the part of a step before its sampling.
    fn queue(&mut self, step: &Step, scored: &[ScoredRow]) -> Result<Computed> {
        let mut inputs = InputTables::new(step, self.size.block_size as u32);
        // The scheduler sees to it that few rows of several tokens take others out of their graph: see `keeps_graph` there.
        let decodes = inputs.num_tokens() == step.rows.len();
        let bucket = self.graphs.bucket(step.rows.len()).filter(|_| decodes);
        if let Some(bucket) = bucket {
            inputs.pad(bucket);
        }
        let spec = self.model.spec();
        if bucket.is_none() && spec.first_reader() < spec.layers.len() {
            let counts = num_output_tokens(step, scored);
            inputs.output = OutputTokens::of(&inputs.attention, &inputs.positions, &counts)?;
        }
        self.moves.queue(step, &self.workspace, &self.swap)?;
        let graph = bucket.map(|bucket| (bucket, self.graphs.shape(&inputs.attention.context_len)));
        let launch = graph.map_or(LaunchShape::Fitted, |(_, shape)| shape);
        let inputs_on_device = self.prepare(&inputs, launch)?;
        if inputs.has_sampled {
            gpu::resolve_tokens(&inputs_on_device.token_ids, &self.sampling.sampled)?;
        }
        Ok(match graph {
            Some(graph) => Computed::Logits(self.run_graph(graph, &inputs_on_device)?),
            None => {
                let hidden = self.model.forward(&inputs_on_device.input(), &self.workspace)?;
                Computed::Hidden(hidden, inputs.output)
            }
        })
    }

    /// The tables of a step's samples.
    fn tables(
        &mut self,
        step: &Step,
        batch: &SamplingBatch<'_>,
        computed: &Computed,
    ) -> Result<SamplingTables> {
        let limits = ChunkLimits {
            rows: self.size.max_rows,
            vocab: self.model.vocab_size(),
            has_logits: matches!(computed, Computed::Logits(_)),
        };
        let mut tables = SamplingTables::new(step, batch, limits, &mut self.counts)?;
        if let Computed::Hidden(_, Some(output)) = computed {
            tables.index_output_tokens(output);
        }
        Ok(tables)
    }

    /// Waits for the oldest step that was launched.
    pub(crate) fn wait(&mut self) -> Result<StepOutput> {
        let output = self.in_flight.wait()?;
        self.previous_samples = output.token_ids();
        Ok(output)
    }

    /// Number of times that a step took more memory than was reserved.
    #[cfg(test)]
    fn grown(&self) -> usize {
        self.moves.grown + self.sampling.grown + self.in_flight.grown
    }

    /// Uploads the inputs of a forward, and plans its attention.
    fn prepare(&mut self, inputs: &InputTables, launch: LaunchShape) -> Result<InputViews> {
        let has_states = self.workspace.states().is_some();
        let views = InputViews::upload(&mut self.inputs, inputs, self.size.max_rows, has_states)?;
        let tokens = inputs.num_tokens();
        self.workspace.prepare(&AttentionStep { meta: &inputs.attention, tokens, launch })?;
        Ok(views)
    }

    /// The logits of a decode that has a CUDA graph, or would have one on a GPU.
    fn run_graph(&self, graph: (usize, LaunchShape), inputs: &InputViews) -> Result<Tensor> {
        match self.graphs.launch(graph)? {
            Some(logits) => Ok(logits),
            None => {
                let hidden = self.model.forward(&inputs.input(), &self.workspace)?;
                Ok(self.model.logits(&hidden, &inputs.rows, &self.workspace)?)
            }
        }
    }
}

/// A step that is queued up to its sampling.
struct Forward {
    started: Instant,
    computed: Computed,
}

/// The result of a step before its sampling.
enum Computed {
    /// The hidden states of its tokens, or of the output tokens alone.
    Hidden(Tensor, Option<OutputTokens>),
    /// The logits of its rows.
    Logits(Tensor),
}

#[cfg(test)]
mod tests;
