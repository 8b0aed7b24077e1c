//! Why a constraint cannot be held.

/// Result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A constraint that cannot be held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The tokenizer's vocabulary cannot be used.
    #[error("the tokenizer's vocabulary cannot be constrained: {0}")]
    Vocabulary(String),
    /// The constraint is wrong, asks for what is not supported, or is beyond the limits.
    #[error("{0}")]
    Constraint(String),
    /// A choice without alternatives, or with an empty one.
    #[error("a choice needs at least one alternative, and none that is empty")]
    EmptyChoice,
    /// A token came that the state did not allow, or it leads nowhere.
    #[error("the grammar failed: {0}")]
    State(String),
    /// Nothing may follow, though the output is not finished.
    #[error(
        "after {num_tokens} tokens of the output nothing may follow: no text that satisfies the constraint begins so"
    )]
    DeadEnd {
        /// The length of the output so far.
        num_tokens: usize,
    },
    /// The state became too complex, or takes too long.
    #[error("the grammar cannot be followed: {0}")]
    Limit(&'static str),
    /// The request is gone, or took too long.
    #[error("compiling the constraint was given up")]
    Cancelled,
    /// No child process could try the constraint.
    #[error("the constraint could not be tried: {0}")]
    Trial(String),
}
