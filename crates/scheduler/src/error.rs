//! The one error type of the scheduler.

use crate::SeqId;

/// What the scheduler refuses.
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
        /// The context length asked for, in tokens.
        max_model_len: usize,
        /// Blocks that there are.
        num_blocks: usize,
        /// Tokens that they hold.
        fits: usize,
    },
    /// States need a place for each sequence that runs, and are not swapped.
    #[error(
        "{num_state_slots} places for states are too few for {max_num_seqs} sequences, or blocks are swapped, which states are not"
    )]
    StateSlots {
        /// Places that there are.
        num_state_slots: usize,
        /// Sequences that may run at once.
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
    /// A number of choices that makes no sense.
    #[error("n is {n}; give at least 1, and exactly 1 where nothing is sampled")]
    InvalidN {
        /// The number asked for.
        n: usize,
    },
    /// Tokens were appended to a sequence that draws one in a step which is not committed yet.
    #[error(
        "sequence {seq:?} draws a token in an uncommitted step; append to sequences that do not run ahead, and after \
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
        /// Its tokens with those appended.
        num_tokens: usize,
        /// The context length.
        max_model_len: usize,
    },
    /// Steps were committed out of their order, or twice.
    #[error(
        "step {step} is not the oldest uncommitted one ({expected:?}); commit each step once, in order"
    )]
    StepOutOfOrder {
        /// Id of the step given.
        step: u64,
        /// Id of the step that is due, if one is.
        expected: Option<u64>,
    },
    /// A sampled token is missing at commit.
    #[error(
        "step {step} drew no token for sequence {seq:?}; give one for each sequence in its samples, in order"
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
