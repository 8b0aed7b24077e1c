//! The one error type of the scheduler.

use crate::SeqId;

/// Reasons for which the scheduler refuses a request, a step or its configuration.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A size of the configuration is zero.
    #[error("{field} must be at least 1")]
    ZeroSetting {
        /// The setting's name.
        field: &'static str,
    },
    /// A size of the configuration does not fit the 32-bit positions and block ids of a step.
    #[error("{field} is {value}, but at most {max} is supported; lower it", max = u32::MAX)]
    SettingTooLarge {
        /// The setting's name.
        field: &'static str,
        /// Its value.
        value: usize,
    },
    /// One sequence of the longest length does not fit the whole cache.
    #[error(
        "max_model_len is {max_model_len}, but {num_blocks} KV blocks hold only {fits} tokens; lower max_model_len \
         to {fits} or give the KV cache more memory"
    )]
    ModelLenDoesNotFit {
        /// Length of the context, in tokens.
        max_model_len: usize,
        /// Number of blocks of the cache.
        num_blocks: usize,
        /// Number of tokens that they hold.
        fits: usize,
    },
    /// There are fewer slots for recurrent states than concurrent sequences, or states would have to be swapped.
    #[error(
        "{num_state_slots} state slots for {max_num_seqs} sequences; give each sequence a slot, and set num_swap_blocks to 0"
    )]
    StateSlots {
        /// Number of slots for recurrent states.
        num_state_slots: usize,
        /// Largest number of concurrent sequences.
        max_num_seqs: usize,
    },
    /// A prompt without a token.
    #[error("the prompt is empty; give at least one token")]
    EmptyPrompt,
    /// A prompt that leaves no room in the context.
    #[error(
        "the prompt has {num_prompt_tokens} tokens, but at most {max_prompt_tokens} fit the context; shorten the prompt"
    )]
    PromptTooLong {
        /// Length of the prompt.
        num_prompt_tokens: usize,
        /// The longest one accepted.
        max_prompt_tokens: usize,
    },
    /// A number of choices that is not possible.
    #[error("n is {n}; give at least 1, and exactly 1 where nothing is sampled")]
    InvalidN {
        /// The number of choices.
        n: usize,
    },
    /// Tokens were appended to a sequence that samples one in an uncommitted step.
    #[error(
        "sequence {seq:?} samples a token in an uncommitted step; append to sequences that do not run ahead, and after \
         their commit"
    )]
    AppendBeforeCommit {
        /// The sequence.
        seq: SeqId,
    },
    /// More tokens were appended than the context holds.
    #[error(
        "sequence {seq:?} would have {num_tokens} tokens, but at most {max_model_len} fit the context"
    )]
    AppendTooLong {
        /// The sequence.
        seq: SeqId,
        /// Number of its tokens, appended ones included.
        num_tokens: usize,
        /// The context length.
        max_model_len: usize,
    },
    /// Steps were committed out of their order, or twice.
    #[error(
        "step {step} is not the oldest uncommitted one ({expected:?}); commit each step once, in order"
    )]
    StepOutOfOrder {
        /// Id of the committed step.
        step: u64,
        /// Id of the step that must be committed next, if there is one.
        expected: Option<u64>,
    },
    /// A sampled token is missing at commit.
    #[error(
        "step {step} sampled no token for sequence {seq:?}; give one for each sequence in its samples, in order"
    )]
    MissingSample {
        /// Id of the step.
        step: u64,
        /// The sequence without a token.
        seq: SeqId,
    },
    /// A sampled token belongs to no row at commit.
    #[error(
        "step {step} has no sample left for sequence {seq:?}; give the tokens in the order of its samples"
    )]
    UnexpectedSample {
        /// Id of the step.
        step: u64,
        /// The sequence with a token too many.
        seq: SeqId,
    },
}
