//! Swaps of blocks between a device's cache and host memory.

use candle_core::Tensor;
use candlepower_gpu::HostBlocks;
use candlepower_models::Workspace;

use crate::{Error, Result, device_tables::SwapTo};

/// Host memory for the blocks of preempted sequences.
pub(super) struct SwapSpace {
    /// For each of the workspace's caches; empty where nothing is swapped.
    blocks: Vec<HostBlocks>,
    /// Blocks of each.
    pub(super) num_blocks: usize,
}

impl SwapSpace {
    pub(super) fn new(workspace: &Workspace, num_blocks: usize) -> Result<Self> {
        let caches = workspace.caches().iter().filter(|_| num_blocks > 0);
        let blocks = caches.map(|cache| Ok(HostBlocks::new(cache, num_blocks)?));
        Ok(Self { blocks: blocks.collect::<Result<_>>()?, num_blocks })
    }

    /// Queues a step's swaps.
    pub(super) fn queue(&self, workspace: &Workspace, swaps: &[(SwapTo, Tensor)]) -> Result<()> {
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
