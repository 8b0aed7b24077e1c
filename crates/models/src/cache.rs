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
    pub(crate) kv: KvCache,
    pub(crate) states: Option<RecurrentState>,
}

impl Cache {
    /// Keys and values.
    pub fn kv(&self) -> &KvCache {
        &self.kv
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
        copy_blocks(&self.kv, blocks)?;
        match &self.states {
            Some(of_all) => Ok(copy_states(of_all, states)?),
            None => Ok(()),
        }
    }
}
