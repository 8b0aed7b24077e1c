//! Errors between ranks.

use std::{io, time::Duration};

/// Result with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Failure of a rank, or of the connection between ranks.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No socket is available.
    #[error("cannot connect the ranks: {0}; raise the limit on open files")]
    Connect(io::Error),
    /// No thread is available.
    #[error("cannot start a thread: {0}; raise the limit on processes")]
    Thread(io::Error),
    /// A rank has closed its end of the connection.
    #[error("rank {rank} has ended")]
    Gone {
        /// The rank.
        rank: usize,
    },
    /// A rank has reported a reason for which it cannot continue.
    #[error("rank {rank} failed: {reason}")]
    Failed {
        /// The rank.
        rank: usize,
        /// The rank's own words.
        reason: String,
    },
    /// A rank has not answered before its deadline.
    #[error("rank {rank} has not answered for {} s", .after.as_secs_f64())]
    Deadline {
        /// The rank.
        rank: usize,
        /// Time that it had.
        after: Duration,
    },
    /// The ranks have not met before the deadline.
    #[error("the ranks have not met within {} s; look whether one of them is stuck, and start again", .after.as_secs_f64())]
    Apart {
        /// Time that they had.
        after: Duration,
    },
    /// A rank calls another operation than this one.
    #[error("rank {rank} is out of step: it sent {found} where {expected} was due")]
    OutOfStep {
        /// The other rank.
        rank: usize,
        /// The operation that it called.
        found: String,
        /// The operation that this rank called.
        expected: String,
    },
    /// Only rank 0 sends messages to all ranks.
    #[error("rank {rank} cannot send to all: only rank 0 does")]
    NotRoot {
        /// The rank that tried it.
        rank: usize,
    },
    /// The system failed to send or to receive.
    #[error("cannot talk to rank {rank}: {source}")]
    Io {
        /// The other rank.
        rank: usize,
        /// The system's own error.
        source: io::Error,
    },
}
