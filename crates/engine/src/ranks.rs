//! The ranks that run a step: launched, then waited for, so that the engine can work in between.

use std::collections::VecDeque;

use candlepower_scheduler::{SeqId, Step};
use rayon::ThreadPool;

use crate::{
    Result,
    followers::Followers,
    image_slots::StepImage,
    runner::Runner,
    step_io::{SamplingBatch, ScoredRow, StepOutput},
};

/// All ranks of the model. Rank 0 runs inline, and the others follow it.
pub(crate) struct Ranks {
    /// Dropped before `followers`: they end when rank 0's end of the collectives, which the model has, is gone.
    runner: Runner,
    followers: Followers,
    /// The threads for work outside of steps.
    pool: ThreadPool,
    /// Steps that were launched, the oldest first; at most two.
    launched: VecDeque<Launched>,
}

/// A step that was launched.
enum Launched {
    /// It is done, or failed at once.
    Done(Result<StepOutput>),
    /// A device runs it.
    OnDevice,
}

impl Ranks {
    pub(crate) fn new(runner: Runner, followers: Followers, pool: ThreadPool) -> Self {
        Self { runner, followers, pool, launched: VecDeque::new() }
    }

    /// The threads that compute, which are idle between two steps.
    pub(crate) fn pool(&self) -> &ThreadPool {
        &self.pool
    }

    /// Number of swapped-out blocks that fit the host memory reserved for them.
    pub(crate) fn num_swap_blocks(&self) -> usize {
        self.runner.num_swap_blocks()
    }

    /// Most rows of one token each that run as one CUDA graph; 0 where there are none.
    pub(crate) fn max_graph_rows(&self) -> usize {
        match &self.runner {
            Runner::Cpu(..) => 0,
            Runner::Device(runner) => runner.max_graph_rows(),
        }
    }

    /// Whether a step may be launched before the previous one is done. A device runs on by itself, but other ranks need the
    /// tokens of the previous step first.
    pub(crate) fn run_ahead(&self) -> bool {
        matches!(&self.runner, Runner::Device(runner) if !runner.is_in_group())
    }

    /// Starts a step, with the pixels of the images whose encoding begins. On the CPU it is done when this returns.
    pub(crate) fn launch(
        &mut self,
        step: &Step,
        batch: &SamplingBatch<'_>,
        images: &[StepImage<'_>],
    ) {
        let launched = match &mut self.runner {
            Runner::Cpu(runner, threads) => {
                Launched::Done(threads.run(|| runner.execute(step, batch, images)))
            }
            Runner::Device(runner) => match runner.launch(step, batch) {
                Ok(()) => Launched::OnDevice,
                Err(error) => Launched::Done(Err(error)),
            },
        };
        self.launched.push_back(match launched {
            Launched::Done(Err(error)) => Launched::Done(Err(self.followers.explain(error))),
            launched => launched,
        });
    }

    /// Launches a step up to its sampling, which [`Self::launch_sampling`] launches once the tokens before it are known. Only for
    /// ranks that run ahead.
    pub(crate) fn launch_forward(&mut self, step: &Step, scored: &[ScoredRow]) -> Result<()> {
        match &mut self.runner {
            Runner::Device(runner) => runner.launch_forward(step, scored),
            Runner::Cpu(..) => unreachable!("the CPU does not run ahead"),
        }
    }

    /// Launches the sampling of the step whose forward was launched last.
    pub(crate) fn launch_sampling(&mut self, step: &Step, batch: &SamplingBatch<'_>) -> Result<()> {
        match &mut self.runner {
            Runner::Device(runner) => runner.launch_sampling(step, batch)?,
            Runner::Cpu(..) => unreachable!("the CPU does not run ahead"),
        }
        self.launched.push_back(Launched::OnDevice);
        Ok(())
    }

    /// Whether a step with `num_penalized` penalized samples can be sampled although the newest tokens of its sequences `unknown` are
    /// not known here: their counts are on the device.
    pub(crate) fn have_counts(&self, unknown: &[SeqId], num_penalized: usize) -> bool {
        match &self.runner {
            Runner::Cpu(..) => false,
            Runner::Device(runner) => runner.have_counts(unknown, num_penalized),
        }
    }

    /// Waits for the oldest step that was launched, and returns its output.
    pub(crate) fn wait(&mut self) -> Result<StepOutput> {
        match (&mut self.runner, self.launched.pop_front()) {
            (_, Some(Launched::Done(done))) => done,
            (Runner::Device(runner), Some(Launched::OnDevice)) => runner.wait(),
            _ => unreachable!("every wait follows a launch"),
        }
    }
}
