//! The ranks that run a step: launched, then waited for, so that the engine can work in between.

use candlepower_scheduler::Step;
use rayon::ThreadPool;

use crate::{
    Result,
    runner::{ModelRunner, SamplingBatch, StepOutput},
};

/// All ranks of the model. There is one today, and it runs inline.
pub(crate) struct Ranks {
    runner: ModelRunner,
    /// The threads that compute; a whole step runs inside them.
    pool: ThreadPool,
    launched: Option<Result<StepOutput>>,
}

impl Ranks {
    pub(crate) fn new(runner: ModelRunner, pool: ThreadPool) -> Self {
        Self { runner, pool, launched: None }
    }

    /// The threads that compute, which are idle between two steps.
    pub(crate) fn pool(&self) -> &ThreadPool {
        &self.pool
    }

    /// Starts a step. On the CPU it is done when this returns; a device goes on by itself.
    pub(crate) fn launch(&mut self, step: &Step, batch: &SamplingBatch<'_>) {
        let (runner, pool) = (&mut self.runner, &self.pool);
        self.launched = Some(pool.install(|| runner.execute(step, batch)));
    }

    /// The output of the step launched last.
    pub(crate) fn wait(&mut self) -> Result<StepOutput> {
        self.launched.take().expect("every wait follows a launch")
    }
}
