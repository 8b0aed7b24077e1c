//! The allocator. It gives freed memory back to the system. The C library's allocator keeps most of it.

use std::time::Duration;

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// How often freed memory is given back.
const PERIOD: Duration = Duration::from_secs(2);

/// Gives freed memory back for as long as the process runs. The allocator does so only while memory is freed, so that an idle
/// server would keep the memory of its last requests.
pub(crate) fn return_freed_memory() {
    let give_back = || {
        loop {
            std::thread::sleep(PERIOD);
            // SAFETY: it takes no pointers, and may be called from any thread.
            unsafe { libmimalloc_sys::mi_collect(false) };
        }
    };
    // Without this thread, only idle servers take more memory.
    let _ = std::thread::Builder::new().name("free-memory".to_owned()).spawn(give_back);
}
