//! The scheduler's settings and their validation.

use crate::Error;
use crate::symbol::MAX_EMBEDDINGS;

/// Settings of a [`Scheduler`](crate::Scheduler).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Number of slots of one KV block.
    pub block_size: usize,
    /// Number of blocks of the KV cache.
    pub num_blocks: usize,
    /// Largest number of concurrent sequences.
    pub max_num_seqs: usize,
    /// Token budget of one step, which decodes and prefill chunks share.
    pub max_num_batched_tokens: usize,
    /// Largest number of tokens of a sequence, prompt and generated together.
    pub max_model_len: usize,
    /// Whether computed blocks are kept for later prompts with the same prefix.
    pub enable_prefix_caching: bool,
    /// Callers that share whole blocks of the prefix cache.
    pub prefix_cache_scope: PrefixCacheScope,
    /// Order in which waiting sequences of equal priority start.
    pub policy: SchedulingPolicy,
    /// Largest number of blocks that pins hold. A block counts once for any number of pins.
    pub max_pinned_blocks: usize,
    /// Number of blocks of host memory, to which blocks of preempted sequences are swapped out. Sequences without
    /// room there compute their tokens again.
    pub num_swap_blocks: usize,
    /// Number of slots for recurrent states, or 0 for models without them. At least `max_num_seqs` are needed for
    /// running sequences, and the others keep states of computed prefixes. With recurrent states, `num_swap_blocks`
    /// is 0.
    pub num_state_slots: usize,
    /// A row that the token budget cuts ends at a multiple of this number of positions, if it reaches one; 1: anywhere. A device may
    /// compute whole chunks of a prompt in another way than their parts.
    pub row_multiple: usize,
    /// Most rows of one token each that the device runs as one CUDA graph, or 0 without graphs.
    pub max_graph_rows: usize,
    /// Embeddings of items that fit the encoder's cache, or 0 for models that take text alone. An item with more
    /// embeddings is refused.
    pub num_encoder_embeddings: usize,
}

/// Callers that share whole blocks of the prefix cache. A part of a block is shared within one caller only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefixCacheScope {
    /// All callers of the server.
    #[default]
    Server,
    /// The sequences of one caller.
    Caller,
}

/// Order in which waiting sequences of equal priority start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulingPolicy {
    /// First come, first served.
    Fcfs,
    /// Longest cached prefix first, among the first 64 sequences in arrival order. A sequence whose prefix is just
    /// being computed waits for it. A sequence that was overtaken 32 times goes next.
    LongestPrefix,
}

impl SchedulerConfig {
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let sizes = [
            ("block_size", self.block_size),
            ("num_blocks", self.num_blocks),
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_model_len", self.max_model_len),
            ("row_multiple", self.row_multiple),
        ];
        for (field, value) in sizes {
            if value == 0 {
                return Err(Error::ZeroSetting { field });
            }
            if u32::try_from(value).is_err() {
                return Err(Error::SettingTooLarge { field, value });
            }
        }
        if self.num_encoder_embeddings > MAX_EMBEDDINGS {
            return Err(Error::TooManyEmbeddings {
                num_encoder_embeddings: self.num_encoder_embeddings,
                max: MAX_EMBEDDINGS,
            });
        }
        let Self { num_state_slots, max_num_seqs, num_swap_blocks, .. } = *self;
        if num_state_slots > 0 && (num_state_slots < max_num_seqs || num_swap_blocks > 0) {
            return Err(Error::StateSlots { num_state_slots, max_num_seqs });
        }
        if self.max_model_len.div_ceil(self.block_size) > self.num_blocks {
            return Err(Error::ModelLenDoesNotFit {
                max_model_len: self.max_model_len,
                num_blocks: self.num_blocks,
                fits: self.num_blocks * self.block_size,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const VALID: SchedulerConfig = SchedulerConfig {
        block_size: 16,
        num_blocks: 4,
        max_num_seqs: 2,
        max_num_batched_tokens: 8,
        max_model_len: 64,
        enable_prefix_caching: true,
        prefix_cache_scope: PrefixCacheScope::Server,
        policy: SchedulingPolicy::Fcfs,
        max_pinned_blocks: 2,
        num_swap_blocks: 0,
        num_state_slots: 0,
        row_multiple: 1,
        max_graph_rows: 0,
        num_encoder_embeddings: 0,
    };

    #[test]
    fn one_sequence_of_the_longest_length_must_fit() {
        assert_eq!(VALID.validate(), Ok(()));
        let error = SchedulerConfig { max_model_len: 65, ..VALID }.validate().unwrap_err();
        assert_eq!(error, Error::ModelLenDoesNotFit { max_model_len: 65, num_blocks: 4, fits: 64 });
        assert!(error.to_string().contains("lower max_model_len to 64"));
    }

    #[test]
    fn every_sequence_that_runs_has_a_place_for_its_state() {
        let with = |num_state_slots, num_swap_blocks| {
            SchedulerConfig { num_state_slots, num_swap_blocks, ..VALID }.validate()
        };
        assert_eq!((with(2, 0), with(0, 3)), (Ok(()), Ok(())));
        let error = Error::StateSlots { num_state_slots: 1, max_num_seqs: 2 };
        assert_eq!((with(1, 0), with(3, 1).is_err()), (Err(error), true));
    }

    #[test]
    fn the_index_of_an_embedding_fits_a_symbol() {
        let with =
            |num_encoder_embeddings| SchedulerConfig { num_encoder_embeddings, ..VALID }.validate();
        let (max, more) = (MAX_EMBEDDINGS, MAX_EMBEDDINGS + 1);
        assert_eq!(with(max), Ok(()));
        let error = Error::TooManyEmbeddings { num_encoder_embeddings: more, max };
        assert_eq!(with(more), Err(error));
    }

    #[test]
    fn sizes_are_positive_and_fit_32_bits() {
        let zero = SchedulerConfig { max_num_seqs: 0, ..VALID };
        assert_eq!(zero.validate(), Err(Error::ZeroSetting { field: "max_num_seqs" }));
        let huge = SchedulerConfig { max_model_len: 1 << 33, num_blocks: 1 << 30, ..VALID };
        assert_eq!(
            huge.validate(),
            Err(Error::SettingTooLarge { field: "max_model_len", value: 1 << 33 })
        );
    }
}
