//! Pooling: the step from the hidden states of a text to one vector.

use crate::choice::Choice;

/// The hidden state that becomes a text's vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The first token's.
    Cls,
    /// The last token's.
    Last,
    /// The mean over all tokens.
    Mean,
    /// The greatest of each element.
    Max,
}

impl Pooling {
    /// The values of `--pooling`.
    pub const CHOICES: [Choice<Self>; 3] = [
        Choice::new(Self::Cls, Self::Cls.as_str(), "The first token's"),
        Choice::new(Self::Last, Self::Last.as_str(), "The last token's"),
        Choice::new(Self::Mean, Self::Mean.as_str(), "The mean of all tokens"),
    ];

    /// Its name, as in the setting.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cls => "cls",
            Self::Last => "last",
            Self::Mean => "mean",
            Self::Max => "max",
        }
    }
}
