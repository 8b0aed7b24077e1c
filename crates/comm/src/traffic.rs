//! Counts of the data that ranks exchange, which tests compare with the calculated amounts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of a rank's calls, and of the bytes that it sent with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Calls of `all_reduce`.
    pub all_reduces: u64,
    /// Bytes of the summed values, counted once and not for every rank.
    pub all_reduce_bytes: u64,
    /// Calls of `all_gather`.
    pub all_gathers: u64,
    /// Bytes of this rank's shards.
    pub all_gather_bytes: u64,
    /// Calls of `broadcast`.
    pub broadcasts: u64,
    /// Bytes that rank 0 sent, counted on every rank.
    pub broadcast_bytes: u64,
    /// Messages that rank 0 sent to all.
    pub messages: u64,
    /// Bytes of these messages, counted once for all ranks.
    pub message_bytes: u64,
}

#[derive(Debug, Default)]
struct Counter {
    calls: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    fn count(&self, bytes: usize) {
        // Relaxed suffices: the counts are independent of each other, and no other memory is read on their
        // account.
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn read(&self) -> (u64, u64) {
        (self.calls.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    all_reduce: Counter,
    all_gather: Counter,
    broadcast: Counter,
    message: Counter,
}

impl Counters {
    pub(crate) fn all_reduce(&self, bytes: usize) {
        self.all_reduce.count(bytes);
    }

    pub(crate) fn all_gather(&self, bytes: usize) {
        self.all_gather.count(bytes);
    }

    pub(crate) fn broadcast(&self, bytes: usize) {
        self.broadcast.count(bytes);
    }

    pub(crate) fn message(&self, bytes: usize) {
        self.message.count(bytes);
    }

    pub(crate) fn read(&self) -> Traffic {
        let (all_reduces, all_reduce_bytes) = self.all_reduce.read();
        let (all_gathers, all_gather_bytes) = self.all_gather.read();
        let (broadcasts, broadcast_bytes) = self.broadcast.read();
        let (messages, message_bytes) = self.message.read();
        Traffic {
            all_reduces,
            all_reduce_bytes,
            all_gathers,
            all_gather_bytes,
            broadcasts,
            broadcast_bytes,
            messages,
            message_bytes,
        }
    }
}
