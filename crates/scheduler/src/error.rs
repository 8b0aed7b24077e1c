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
    /// The encoder's cache has more slots than an embedding's index can name.
    #[error(
        "num_encoder_embeddings is {num_encoder_embeddings}, but at most {max} is supported; lower it"
    )]
    TooManyEmbeddings {
        /// The setting's value.
        num_encoder_embeddings: usize,
        /// The largest value accepted.
        max: usize,
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
    /// An item without a token.
    #[error("item {item} of the prompt has no token; give it at least one")]
    EmptyItem {
        /// Index of the item.
        item: usize,
    },
    /// An item that starts before the end of the one before it.
    #[error(
        "item {item} of the prompt starts at {start}, but the item before it ends at {end}; give the items in order \
         and without overlap"
    )]
    ItemsOverlap {
        /// Index of the item.
        item: usize,
        /// Its first position.
        start: usize,
        /// End of the item before it.
        end: usize,
    },
    /// An item that ends after the prompt.
    #[error(
        "item {item} ends at {end}, but the prompt has {num_prompt_tokens} tokens; put it within the prompt"
    )]
    ItemOutsidePrompt {
        /// Index of the item.
        item: usize,
        /// Position after its last token.
        end: usize,
        /// Length of the prompt.
        num_prompt_tokens: usize,
    },
    /// An item none of whose tokens takes an embedding.
    #[error("item {item} of the prompt has no placeholder {placeholder}; give it at least one")]
    ItemWithoutPlaceholder {
        /// Index of the item.
        item: usize,
        /// The item's placeholder.
        placeholder: u32,
    },
    /// An item whose first or last token is text.
    #[error(
        "item {item} of the prompt begins or ends with text; let it begin and end with its placeholder {placeholder}"
    )]
    ItemEndsInText {
        /// Index of the item.
        item: usize,
        /// The item's placeholder.
        placeholder: u32,
    },
    /// An item for which the encoder has nothing to do.
    #[error("item {item} of the prompt has no piece of work; give it at least one")]
    ItemWithoutPieces {
        /// Index of the item.
        item: usize,
    },
    /// An item whose pieces take nothing of a step's budget.
    #[error("a piece of item {item} takes no token of the budget; let it take at least one")]
    ItemWithoutCost {
        /// Index of the item.
        item: usize,
    },
    /// An item that does not fit the whole encoder cache.
    #[error(
        "item {item} of the prompt has {num_embeddings} embeddings, but at most {max} fit the encoder's cache; give a \
         smaller one or raise num_encoder_embeddings"
    )]
    ItemTooLarge {
        /// Index of the item.
        item: usize,
        /// Number of its embeddings.
        num_embeddings: usize,
        /// Embeddings that fit.
        max: usize,
    },
    /// Rope positions for another number of tokens than the prompt has.
    #[error(
        "there are {num_positions} rope positions for a prompt of {num_prompt_tokens} tokens; give one for each token"
    )]
    RopeLength {
        /// Number of rope positions.
        num_positions: usize,
        /// Length of the prompt.
        num_prompt_tokens: usize,
    },
    /// Rope positions after the prompt that are negative or too large.
    #[error(
        "the rope offset {offset} leads to positions outside of 0 to {max}; correct it", max = u32::MAX
    )]
    RopeOffset {
        /// The offset.
        offset: i32,
    },
    /// Tokens were appended to a sequence that samples one in an uncommitted step.
    #[error(
        "sequence {seq:?} samples a token in an uncommitted step; append after its commit, or after its sample is \
         retracted"
    )]
    AppendBeforeCommit {
        /// The sequence.
        seq: SeqId,
    },
    /// A sample was taken back before the steps before it were committed.
    #[error(
        "sequence {seq:?} has a sample in more than one step; retract the newest after the commit of the others"
    )]
    RetractBeforeCommit {
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
