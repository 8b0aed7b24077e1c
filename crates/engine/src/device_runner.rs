//! Runs steps on a device: tables are made on the host and uploaded, tokens are sampled there, and one copy comes back.

use std::time::Instant;

use candle_core::Tensor;
use candlepower_gpu::{self as gpu, AttentionStep, LaunchShape, Staging};
use candlepower_models::{DeviceDecoder, OutputTokens, Workspace, WorkspaceSize};
use candlepower_scheduler::Step;

use crate::{
    Result,
    device_graphs::Graphs,
    device_tables::{ChunkLimits, InputTables, SamplingTables},
    orders::send_step,
    step_io::{SamplingBatch, ScoredRow, StepOutput, num_output_tokens},
};

mod in_flight;
mod inputs;
mod sampling;
mod swap;

use in_flight::InFlight;
use inputs::InputViews;
use sampling::{SamplingBuffers, SamplingViews};
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
    sampling: SamplingBuffers,
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
        let swap = SwapSpace::new(&workspace, num_swap_blocks)?;
        Ok(Self {
            workspace,
            swap,
            size,
            graphs,
            inputs: Staging::new(InputViews::capacity(&size), &device)?,
            sampling: SamplingBuffers::new(size.max_rows, model.vocab_size(), &device)?,
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
            Some(comm) => Some(send_step(comm, step, &self.previous_samples, batch, &[])?),
            None => None,
        };
        let Queued { computed, tables, views } =
            self.queue(sent.as_ref().unwrap_or(step), batch)?;
        let (model, workspace) = (&self.model, &self.workspace);
        let report = self.sampling.sample(&tables, &views, |chunk| match &computed {
            Computed::Logits(logits) => Ok(logits.clone()),
            Computed::Hidden(hidden) => Ok(model.logits(hidden, &chunk.rows, workspace)?),
        })?;
        self.in_flight.push(batch, started, &report, model.vocab_size())
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
        let views = self.sampling.upload(step, &tables)?;
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
            gpu::resolve_tokens(&inputs_on_device.token_ids, &self.sampling.sampled)?;
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
        let output = self.in_flight.wait()?;
        self.previous_samples = output.token_ids();
        Ok(output)
    }

    /// Number of times that a step took more memory than was reserved.
    #[cfg(test)]
    fn grown(&self) -> usize {
        self.sampling.grown + self.in_flight.grown
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
    fn run_graph(&self, bucket: usize, inputs: &InputViews) -> Result<Tensor> {
        match self.graphs.launch(bucket)? {
            Some(logits) => Ok(logits),
            None => {
                let hidden = self.model.forward(&inputs.input(), &self.workspace)?;
                Ok(self.model.logits(&hidden, &inputs.rows, &self.workspace)?)
            }
        }
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

#[cfg(test)]
mod tests;
