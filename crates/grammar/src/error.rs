//! Errors of constraints.

/// Result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a constraint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The tokenizer's vocabulary cannot be used.
    #[error("the tokenizer's vocabulary cannot be constrained: {0}")]
    Vocabulary(String),
    /// The constraint is invalid, not supported, or exceeds a limit.
    #[error("{0}")]
    Constraint(String),
    /// A choice without alternatives, or with an empty string.
    #[error("a choice needs at least one string, and no string may be empty")]
    EmptyChoice,
    /// A token that the state does not allow, or a state that the library failed at.
    #[error("the grammar failed: {0}")]
    State(String),
    /// No token is allowed, although the output is not complete.
    #[error(
        "no token is allowed after {num_tokens} tokens of the output: nothing that satisfies the constraint begins with them"
    )]
    DeadEnd {
        /// Tokens of the output so far.
        num_tokens: usize,
    },
    /// The request allows none of the tokens that the state allows.
    #[error(
        "none of the tokens that may follow here is among the allowed ones; text that must follow is split into tokens one way"
    )]
    NoneAllowed,
    /// The state has become too complex, or its masks take too long.
    #[error("the grammar is too complex: {0}")]
    Limit(&'static str),
    /// The request was cancelled, or took too long.
    #[error("compiling the constraint was cancelled")]
    Cancelled,
    /// No child process could compile the constraint.
    #[error("the constraint could not be compiled in a child process: {0}")]
    Trial(String),
}
