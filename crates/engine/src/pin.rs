//! Pins: guards that keep computed prefixes in the cache.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
};

use candlepower_scheduler::CallerId;

use crate::engine::Message;

/// Keeps the computed prefix of some tokens in the cache, as long as it lives and no sequence needs the memory. Losing it
/// costs time, never a result.
pub struct Pin {
    id: u64,
    messages: mpsc::Sender<Message>,
}

/// Names the pins of one engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct PinIds(Arc<AtomicU64>);

impl PinIds {
    /// A pin, and the message that makes it.
    pub(crate) fn pin(
        &self,
        token_ids: Vec<u32>,
        caller: CallerId,
        cache_salt: Option<Arc<str>>,
        messages: mpsc::Sender<Message>,
    ) -> (Pin, Message) {
        let id = self.0.fetch_add(1, Ordering::Relaxed);
        (Pin { id, messages }, Message::Pin { id, token_ids, caller, cache_salt })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // An engine that has ended keeps nothing.
        let _ = self.messages.send(Message::Unpin { id: self.id });
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin").field("id", &self.id).finish_non_exhaustive()
    }
}
