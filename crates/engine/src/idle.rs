//! Idle engines: after a while without a message, an engine's threads return memory that others have freed.

use std::{
    sync::{
        OnceLock,
        mpsc::{Receiver, RecvError, RecvTimeoutError},
    },
    time::Duration,
};

use rayon::ThreadPool;

/// Wait for a message until an engine counts as idle.
const IDLE_AFTER: Duration = Duration::from_secs(2);

static RETURN_MEMORY: OnceLock<fn()> = OnceLock::new();

/// Lets the threads of idle engines call `return_memory`. An allocator with memory of its own for each thread needs this: if one thread
/// allocates a block and another frees it, the first keeps it until it allocates again. Only the first call has an effect.
pub fn return_memory_when_idle(return_memory: fn()) {
    let _ = RETURN_MEMORY.set(return_memory);
}

/// Waits for a message of an engine that has no work. `pool` are the threads that compute for it.
///
/// # Errors
/// All senders are gone.
pub(crate) fn wait<M>(messages: &Receiver<M>, pool: &ThreadPool) -> Result<M, RecvError> {
    wait_or(messages, IDLE_AFTER, || {
        if let Some(return_memory) = RETURN_MEMORY.get() {
            return_memory();
            pool.spawn_broadcast(|_| return_memory());
        }
    })
}

/// Calls `rest` once if no message comes for the time `idle_after`.
fn wait_or<M>(
    messages: &Receiver<M>,
    idle_after: Duration,
    rest: impl FnOnce(),
) -> Result<M, RecvError> {
    match messages.recv_timeout(idle_after) {
        Ok(message) => Ok(message),
        Err(RecvTimeoutError::Disconnected) => Err(RecvError),
        Err(RecvTimeoutError::Timeout) => {
            rest();
            messages.recv()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn only_an_idle_engine_rests_and_only_once() {
        let idle_after = Duration::from_millis(50);
        let (sender, messages) = mpsc::channel();
        let rests = Cell::new(0);
        let wait = |idle_after| wait_or(&messages, idle_after, || rests.set(rests.get() + 1));
        sender.send(1).unwrap();
        assert_eq!((wait(Duration::MAX), rests.get()), (Ok(1), 0), "a message is there");
        let later = thread::spawn(move || {
            thread::sleep(idle_after * 5);
            sender.send(2)
        });
        assert_eq!((wait(idle_after), rests.get()), (Ok(2), 1));
        later.join().unwrap().unwrap();
        assert_eq!((wait(idle_after), rests.get()), (Err(RecvError), 1), "the senders are gone");
    }
}
