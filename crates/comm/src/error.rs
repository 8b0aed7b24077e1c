//! What can go wrong between ranks.

use std::{io, time::Duration};

/// Result with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Ranks that do not come together.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No socket can be had.
    #[error("cannot connect the ranks: {0}; raise the limit on open files")]
    Connect(io::Error),
    /// No thread can be had.
    #[error("cannot start a thread: {0}; raise the limit on processes")]
    Thread(io::Error),
    /// A rank has closed its end.
    #[error("rank {rank} has ended")]
    Gone {
        /// Which.
        rank: usize,
    },
    /// A rank has told why it cannot go on.
    #[error("rank {rank} failed: {reason}")]
    Failed {
        /// Which.
        rank: usize,
        /// In its own words.
        reason: String,
    },
    /// A rank has not answered in time.
    #[error("rank {rank} has not answered for {} s", .after.as_secs_f64())]
    Deadline {
        /// Which.
        rank: usize,
        /// How long it had.
        after: Duration,
    },
    /// The ranks have not met in time.
    #[error("the ranks have not met within {} s; look whether one of them is stuck, and start again", .after.as_secs_f64())]
    Apart {
        /// How long they had.
        after: Duration,
    },
    /// A rank calls something else than this one.
    #[error("rank {rank} is out of step: it sent {found} where {expected} was due")]
    OutOfStep {
        /// Which.
        rank: usize,
        /// What came.
        found: String,
        /// What this rank calls.
        expected: String,
    },
    /// Only rank 0 sends messages to all.
    #[error("rank {rank} cannot send to all: only rank 0 does")]
    NotRoot {
        /// Which tried to.
        rank: usize,
    },
    /// The system failed to send or to receive.
    #[error("cannot talk to rank {rank}: {source}")]
    Io {
        /// To which.
        rank: usize,
        /// The system's own error.
        source: io::Error,
    },
}
