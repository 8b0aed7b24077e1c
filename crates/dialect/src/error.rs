//! Why an answer cannot be held to calls.

/// Result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An answer that cannot be held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nobody knows how the model writes calls.
    #[error("the format of this model's tool calls is not known")]
    NoToolFormat,
    /// The arguments of a function cannot be held in the model's format.
    #[error("{reason}")]
    Parameters {
        /// The function's place among those that may be called.
        function: usize,
        /// What is in the way.
        reason: String,
    },
    /// The constraint of the answer is wrong.
    #[error(transparent)]
    Answer(#[from] candlepower_grammar::Error),
}
