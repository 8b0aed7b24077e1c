//! The ranks that run a step: launched, then waited for, so that the engine can work in between.

use std::collections::VecDeque;

use candlepower_kernels::WarmThreads;
use candlepower_scheduler::Step;
use rayon::ThreadPool;

use crate::{
    Result,
    cpu_runner::{ModelRunner, SamplingBatch, Scored, StepOutput},
    device_runner::DeviceRunner,
};

/// All ranks of the model: rank 0, which runs inline and has the others follow it.
pub(crate) struct Ranks {
    runner: Runner,
    /// The threads that compute what is no step.
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

/// What a rank computes with.
pub(crate) enum Runner {
    /// The CPU's kernels, on their threads.
    Cpu(Box<ModelRunner>, WarmThreads),
    /// A device's, which go on by themselves.
    Device(Box<DeviceRunner>),
}

impl Runner {
    /// Runs a step of rank 0's on another rank, whose part of the logits goes there.
    pub(crate) fn follow(&mut self, step: &Step, scored: &[Scored]) -> Result<()> {
        match self {
            Self::Cpu(runner, threads) => threads.run(|| runner.follow(step, scored)),
            Self::Device(runner) => runner.follow(step, scored),
        }
    }

    /// Blocks of preempted sequences that fit the memory of the host.
    pub(crate) fn num_swap_blocks(&self) -> usize {
        match self {
            Self::Cpu(..) => 0,
            Self::Device(runner) => runner.num_swap_blocks(),
        }
    }
}

impl Ranks {
    pub(crate) fn new(runner: Runner, pool: ThreadPool) -> Self {
        Self { runner, pool, launched: VecDeque::new() }
    }

    /// The threads that compute, which are idle between two steps.
    pub(crate) fn pool(&self) -> &ThreadPool {
        &self.pool
    }

    /// Whether a step may be launched before the one before it is done: a device goes on by itself, unless other ranks have to be
    /// told its tokens.
    pub(crate) fn run_ahead(&self) -> bool {
        matches!(&self.runner, Runner::Device(runner) if !runner.has_followers())
    }

    /// Starts a step. On the CPU it is done when this returns.
    pub(crate) fn launch(&mut self, step: &Step, batch: &SamplingBatch<'_>) {
        self.launched.push_back(match &mut self.runner {
            Runner::Cpu(runner, threads) => {
                Launched::Done(threads.run(|| runner.execute(step, batch)))
            }
            Runner::Device(runner) => match runner.launch(step, batch) {
                Ok(()) => Launched::OnDevice,
                Err(error) => Launched::Done(Err(error)),
            },
        });
    }

    /// The output of the oldest step that was launched and not waited for.
    pub(crate) fn wait(&mut self) -> Result<StepOutput> {
        match (&mut self.runner, self.launched.pop_front()) {
            (_, Some(Launched::Done(done))) => done,
            (Runner::Device(runner), Some(Launched::OnDevice)) => runner.wait(),
            _ => unreachable!("every wait follows a launch"),
        }
    }
}
