//! The allocator. It gives freed memory back to the system. The C library's allocator keeps most of it.

use std::hint::black_box;
use std::time::Duration;

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// How often freed memory is given back. The allocator waits a second before it takes memory to be unused.
const PERIOD: Duration = Duration::from_secs(2);
/// More than the allocator shares among small blocks.
const LARGE_BYTES: usize = 8 << 20;

/// Gives freed memory back for as long as the process runs. The allocator does so only when a large block is freed, so that an
/// idle server would keep the memory of its last requests.
pub(crate) fn return_freed_memory() {
    let free_a_block = || {
        loop {
            std::thread::sleep(PERIOD);
            // It is not written to, so that it takes no memory of the system.
            drop(black_box(Vec::<u8>::with_capacity(LARGE_BYTES)));
        }
    };
    // Without this thread, only idle servers take more memory.
    let _ = std::thread::Builder::new().name("free-memory".to_owned()).spawn(free_a_block);
}
