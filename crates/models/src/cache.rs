//! What the decoder on the CPU keeps of sequences between steps.

use candlepower_kernels::{KvCache, RecurrentState, copy_blocks, copy_states};

use crate::error::Result;

/// How much a [`Cache`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSize {
    /// Blocks of keys and values.
    pub num_blocks: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// States of sequences, where layers have such.
    pub num_states: usize,
}

/// Keys and values of the tokens of sequences, and the states of sequences where layers have such.
#[derive(Debug)]
pub struct Cache {
    /// One for each of the model's `kv_kinds`; a block is the same place in all of them.
    pub(crate) kv: Vec<KvCache>,
    pub(crate) states: Option<RecurrentState>,
}

impl Cache {
    /// Bytes of all keys and values.
    pub fn kv_bytes(&self) -> usize {
        self.kv.iter().map(KvCache::num_bytes).sum()
    }

    /// Bytes of the states of all sequences.
    pub fn state_bytes(&self) -> usize {
        self.states.as_ref().map_or(0, RecurrentState::num_bytes)
    }

    /// Copies whole blocks, and whole states, `(source, destination)`, in order.
    ///
    /// # Errors
    /// One of them is not there.
    pub fn copy(&self, blocks: &[(u32, u32)], states: &[(u32, u32)]) -> Result<()> {
        self.kv.iter().try_for_each(|kv| copy_blocks(kv, blocks))?;
        match &self.states {
            Some(of_all) => Ok(copy_states(of_all, states)?),
            None => Ok(()),
        }
    }
}
