//! The allocator, mimalloc. It returns freed memory to the system; the C library's allocator keeps most of it.

use std::time::Duration;

use mimalloc::MiMalloc;
use tokio::runtime::Handle;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Interval at which freed memory is returned. The allocator waits a second before it regards memory as unused.
const PERIOD: Duration = Duration::from_secs(2);
/// Tasks for each worker, so that with high probability every worker gets one.
const TASKS_PER_WORKER: usize = 2;

// SAFETY: mimalloc defines this function for any thread, and the program links mimalloc.
unsafe extern "C" {
    /// Looks through the memory of the calling thread. Blocks that other threads have freed count as freed from then on. Returns
    /// memory that has been unused for a second to the system; with `force`, all unused memory.
    safe fn mi_collect(force: bool);
}

/// Returns memory of the calling thread to the system: what has been unused for a second, and blocks that other threads have freed.
pub(crate) fn collect() {
    mi_collect(false);
}

/// Returns freed memory to the system as long as the process runs. The allocator looks for it only when it allocates, so that an idle
/// server would otherwise keep the memory of its last requests. The memory of a thread is looked through by that thread alone: a
/// block that one worker allocates and another thread frees stays unused, with up to 4 MiB around it.
pub(crate) fn return_freed_memory(runtime: Handle) {
    let num_tasks = runtime.metrics().num_workers() * TASKS_PER_WORKER;
    let work = move || {
        loop {
            std::thread::sleep(PERIOD);
            for _ in 0..num_tasks {
                runtime.spawn(async { collect() });
            }
            collect();
        }
    };
    // A failure is harmless: without this thread, an idle server only takes more memory.
    let _ = std::thread::Builder::new().name("free-memory".to_owned()).spawn(work);
}
