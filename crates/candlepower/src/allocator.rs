//! The allocator, mimalloc. It returns freed memory to the system; the C library's allocator keeps most of it.

use std::hint::black_box;
use std::time::Duration;

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Interval at which freed memory is returned. The allocator waits a second before it regards memory as unused.
const PERIOD: Duration = Duration::from_secs(2);
/// Size of an allocation that mimalloc serves on its own, not from a segment of small blocks.
const LARGE_BYTES: usize = 8 << 20;

/// Starts a thread that returns freed memory to the system as long as the process runs. The allocator returns it only when a large
/// block is freed, so that an idle server would otherwise keep the memory of its last requests.
pub(crate) fn return_freed_memory() {
    let free_a_block = || {
        loop {
            std::thread::sleep(PERIOD);
            // The block is never written to, so that the system gives it no pages.
            drop(black_box(Vec::<u8>::with_capacity(LARGE_BYTES)));
        }
    };
    // A failure is harmless: without this thread, an idle server only takes more memory.
    let _ = std::thread::Builder::new().name("free-memory".to_owned()).spawn(free_a_block);
}
