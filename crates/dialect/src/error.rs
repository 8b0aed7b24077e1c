//! Errors of grammars for answers.

/// Result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an answer cannot be constrained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The format of the model's tool calls is unknown.
    #[error("the format of this model's tool calls is not known")]
    NoToolFormat,
    /// The schema of a function's arguments cannot be enforced in the model's format.
    #[error("{reason}")]
    Parameters {
        /// Index of the function among the callable ones.
        function: usize,
        /// The keyword or value that prevents it.
        reason: String,
    },
    /// The constraint on the text is invalid.
    #[error(transparent)]
    Answer(#[from] candlepower_grammar::Error),
}
