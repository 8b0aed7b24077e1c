//! The ranks that run a step: launched, then waited for, so that the engine can work in between.

use candlepower_scheduler::Step;
use rayon::ThreadPool;

use crate::{
    Result,
    device_runner::DeviceRunner,
    runner::{ModelRunner, SamplingBatch, StepOutput},
};

/// All ranks of the model. There is one today, and it runs inline.
pub(crate) struct Ranks {
    runner: Runner,
    /// The threads that compute; on the CPU a whole step runs inside them.
    pool: ThreadPool,
    /// What was launched, where that is done when it returns, or failed at once.
    launched: Option<Result<StepOutput>>,
}

/// What a rank computes with.
pub(crate) enum Runner {
    /// The CPU's kernels.
    Cpu(Box<ModelRunner>),
    /// A device's, which go on by themselves.
    Device(Box<DeviceRunner>),
}

impl Ranks {
    pub(crate) fn new(runner: Runner, pool: ThreadPool) -> Self {
        Self { runner, pool, launched: None }
    }

    /// The threads that compute, which are idle between two steps.
    pub(crate) fn pool(&self) -> &ThreadPool {
        &self.pool
    }

    /// Starts a step. On the CPU it is done when this returns; a device goes on by itself.
    pub(crate) fn launch(&mut self, step: &Step, batch: &SamplingBatch<'_>) {
        self.launched = match &mut self.runner {
            Runner::Cpu(runner) => Some(self.pool.install(|| runner.execute(step, batch))),
            Runner::Device(runner) => runner.launch(step, batch).err().map(Err),
        };
    }

    /// The output of the step launched last.
    pub(crate) fn wait(&mut self) -> Result<StepOutput> {
        match (&mut self.runner, self.launched.take()) {
            (_, Some(done)) => done,
            (Runner::Device(runner), None) => runner.wait(),
            (Runner::Cpu(_), None) => unreachable!("every wait follows a launch"),
        }
    }
}
