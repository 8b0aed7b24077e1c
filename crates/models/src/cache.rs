//! The memory of sequences between steps, for the decoder on the CPU.

use candlepower_kernels::{KvCache, RecurrentState, copy_blocks, copy_states};
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// Size of a [`Cache`].
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSize {
    /// Blocks of keys and values.
    pub num_blocks: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Recurrent states, where layers have such.
    pub num_states: usize,
}

/// The KV cache, and the recurrent states where layers have such.
#[derive(Debug)]
pub struct Cache {
    /// One for each of the model's `kv_kinds`. A block id names the same tokens in all of them.
    pub(crate) kv: Vec<KvCache>,
    pub(crate) states: Option<RecurrentState>,
}

impl Cache {
    /// Bytes of all keys and values.
    pub fn kv_bytes(&self) -> usize {
        self.kv.iter().map(KvCache::num_bytes).sum()
    }

    /// Bytes of the recurrent states.
    pub fn state_bytes(&self) -> usize {
        self.states.as_ref().map_or(0, RecurrentState::num_bytes)
    }

    /// Copies whole blocks, and whole states, `(source, destination)`, in order.
    ///
    /// # Errors
    /// A block or a state is not there.
    pub fn copy(&self, blocks: &[(u32, u32)], states: &[(u32, u32)]) -> Result<()> {
        self.kv.iter().try_for_each(|kv| copy_blocks(kv, blocks))?;
        match &self.states {
            Some(of_all) => Ok(copy_states(of_all, states)?),
            None => Ok(()),
        }
    }
}
