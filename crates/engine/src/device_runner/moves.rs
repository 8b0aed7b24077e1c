//! The swaps and copies of a step, which come before its rows. Their tables are not those of its samples, which may be made later.

use std::ops::Range;

use candle_core::{Device, Tensor};
use candlepower_gpu::{self as gpu, Staging};
use candlepower_models::Workspace;
use candlepower_scheduler::Step;

use super::swap::SwapSpace;
use crate::{
    Result,
    device_tables::{Upload, swap_pairs},
};

/// The tables of swaps and copies on the device.
pub(super) struct Moves {
    tables: Staging,
    device: Device,
    /// Number of times that the tables were replaced by larger ones.
    pub(super) grown: usize,
}

impl Moves {
    /// Reserves tables for about two copies per sequence.
    pub(super) fn new(max_seqs: usize, device: &Device) -> Result<Self> {
        let tables = Staging::new(8 * max_seqs.next_multiple_of(4), device)?;
        Ok(Self { tables, device: device.clone(), grown: 0 })
    }

    /// Queues the swaps of a step, then its copies.
    pub(super) fn queue(
        &mut self,
        step: &Step,
        workspace: &Workspace,
        swap: &SwapSpace,
    ) -> Result<()> {
        let mut upload = Upload::default();
        let copies = upload.push(step.copies.iter().flat_map(|copy| [copy.src.0, copy.dst.0]));
        let state_copies =
            upload.push(step.state_copies.iter().flat_map(|copy| [copy.src.0, copy.dst.0]));
        let swaps: Vec<_> = swap_pairs(&step.swaps)
            .into_iter()
            .map(|(to, pairs)| (to, upload.push(pairs)))
            .collect();
        if upload.words.is_empty() {
            return Ok(());
        }
        if upload.words.len() > self.tables.capacity() {
            self.grown += 1;
            let count = upload.words.len().next_power_of_two();
            self.tables = Staging::new(count, &self.device)?;
        }
        self.tables.upload(&upload.words)?;
        let pairs = |range: Range<usize>| -> Result<Tensor> {
            Ok(self.tables.view(range.start, &[range.len() / 2, 2])?)
        };
        let swaps: Vec<_> =
            swaps.into_iter().map(|(to, range)| Ok((to, pairs(range)?))).collect::<Result<_>>()?;
        swap.queue(workspace, &swaps)?;
        if !copies.is_empty() {
            let copies = pairs(copies)?;
            let mut caches = workspace.caches().iter();
            caches.try_for_each(|cache| cache.copy_blocks(&copies))?;
        }
        if let Some(states) = workspace.states().filter(|_| !state_copies.is_empty()) {
            gpu::copy_states(states, &pairs(state_copies)?)?;
        }
        Ok(())
    }
}
