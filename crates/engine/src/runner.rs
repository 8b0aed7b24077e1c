//! The runner of one rank: on the CPU or on a device.

use candlepower_kernels::WarmThreads;
use candlepower_scheduler::Step;

use crate::{
    Result, cpu_runner::CpuRunner, device_runner::DeviceRunner, image_slots::StepImage,
    step_io::ScoredRow,
};

/// The runner of a rank's steps.
pub(crate) enum Runner {
    /// Runs the CPU kernels on their threads.
    Cpu(Box<CpuRunner>, WarmThreads),
    /// Launches the kernels of a device, which run on by themselves.
    Device(Box<DeviceRunner>),
}

impl Runner {
    /// Runs a step of rank 0 on another rank, whose shard of the logits goes to rank 0.
    pub(crate) fn follow(
        &mut self,
        step: &Step,
        scored: &[ScoredRow],
        images: &[StepImage<'_>],
    ) -> Result<()> {
        match self {
            Self::Cpu(runner, threads) => threads.run(|| runner.follow(step, scored, images)),
            Self::Device(runner) => runner.follow(step, scored),
        }
    }

    /// Number of swapped-out blocks that fit the host memory reserved for them.
    pub(crate) fn num_swap_blocks(&self) -> usize {
        match self {
            Self::Cpu(..) => 0,
            Self::Device(runner) => runner.num_swap_blocks(),
        }
    }
}
