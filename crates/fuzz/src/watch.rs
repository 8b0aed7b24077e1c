//! Limits of one round: CPU time, elapsed time and memory.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

const MAX_CPU: Duration = Duration::from_secs(2);
/// Limit of elapsed time. A longer round waits for an event that never comes, however busy the machine is.
const MAX_WALL: Duration = Duration::from_secs(60);
/// Limit of memory in use beyond that before the first round.
const MAX_BYTES: u64 = 512 << 20;
/// Limit of reserved memory, used or not. More means that the parser has believed a size in its input.
const MAX_RESERVED_BYTES: u64 = 8 << 30;
/// A shorter round cannot have filled so much memory.
const TOO_SHORT_TO_FILL: Duration = Duration::from_millis(1);

/// Watches a process that only runs the rounds of one target.
pub(crate) struct Watch {
    round: Mutex<Option<Began>>,
    before: Mutex<Memory>,
    on_begin: fn(u64),
}

#[derive(Clone, Copy)]
struct Began {
    at: Instant,
    cpu: Duration,
}

/// The peaks of this process, in bytes.
#[derive(Clone, Copy, Default)]
struct Memory {
    used: u64,
    reserved: u64,
}

impl Watch {
    /// `on_begin` gets the seed of each round before it begins.
    pub(crate) fn new(on_begin: fn(u64)) -> Self {
        Self { round: Mutex::default(), before: Mutex::default(), on_begin }
    }

    /// Resets the peaks after the target was opened, so that its setup does not count.
    pub(crate) fn forget_peak(&self) {
        // `5` resets `VmHWM` alone (proc(5)). `VmPeak` is never reset, so growth counts from the value of now.
        // If the system cannot reset them, a round may use more without being noticed.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        *self.before.lock().unwrap_or_else(PoisonError::into_inner) = Memory::peak();
    }

    pub(crate) fn begin(&self, seed: u64) {
        (self.on_begin)(seed);
        let began = Began { at: Instant::now(), cpu: cpu_time() };
        *self.round.lock().unwrap_or_else(PoisonError::into_inner) = Some(began);
    }

    /// Ends the round. Returns the limit that it exceeded, if any.
    pub(crate) fn end(&self) -> Option<String> {
        let excess = self.excess(TOO_SHORT_TO_FILL);
        *self.round.lock().unwrap_or_else(PoisonError::into_inner) = None;
        excess
    }

    /// Returns the limit that the running round exceeds, if any.
    pub(crate) fn running_excess(&self) -> Option<String> {
        self.excess(Duration::ZERO)
    }

    /// Checks the limits. Memory is checked only for rounds of at least `least`.
    fn excess(&self, least: Duration) -> Option<String> {
        let began = (*self.round.lock().unwrap_or_else(PoisonError::into_inner))?;
        // Time of processors is limited tightly, since other targets and tests compete for the same cores.
        let (wall, cpu) = (began.at.elapsed(), cpu_time().saturating_sub(began.cpu));
        if cpu > MAX_CPU {
            return Some(format!("takes more than {MAX_CPU:?} of processors"));
        }
        if wall > MAX_WALL {
            return Some(format!("takes more than {MAX_WALL:?}"));
        }
        // Reading the peaks takes longer than most rounds.
        if wall < least {
            return None;
        }
        let (before, peak) =
            (*self.before.lock().unwrap_or_else(PoisonError::into_inner), Memory::peak());
        let used = peak.used.saturating_sub(before.used);
        if used > MAX_BYTES {
            return Some(format!("uses {} MiB of memory", used >> 20));
        }
        let reserved = peak.reserved.saturating_sub(before.reserved);
        (reserved > MAX_RESERVED_BYTES)
            .then(|| format!("reserves {} MiB of memory", reserved >> 20))
    }
}

impl Memory {
    /// All zero if the system does not report them.
    fn peak() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            kib.unwrap_or_default() * 1024
        };
        Self { used: bytes("VmHWM:"), reserved: bytes("VmPeak:") }
    }
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_filled_is_seen() {
        let watch = Watch::new(|_| ());
        watch.forget_peak();
        watch.begin(0);
        assert_eq!(watch.running_excess(), None);
        let filled = vec![1_u8; MAX_BYTES as usize + (64 << 20)];
        let excess = watch.end();
        assert!(excess.is_some_and(|excess| excess.contains("of memory")), "{}", filled.len());
    }

    #[test]
    fn processors_that_work_on_and_on_are_seen() {
        let watch = Watch::new(|_| ());
        watch.begin(0);
        let began = Instant::now();
        while watch.running_excess().is_none() {
            assert!(began.elapsed() < MAX_WALL, "nothing was seen");
        }
        assert!(watch.end().is_some());
        assert_eq!(watch.running_excess(), None, "between two rounds");
    }
}
