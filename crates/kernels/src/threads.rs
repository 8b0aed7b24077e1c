//! Threads that stay awake between the kernels of a step.
//!
//! A step has some hundred kernels, microseconds apart. A thread that sleeps in between wakes too late. A thread that
//! yields its core may not get it back for milliseconds if other programs want it. So these threads spin for a while
//! after each kernel, and sleep only when none follows. An idle server's threads therefore cost nothing.

use std::cell::{RefCell, UnsafeCell};
use std::hint::spin_loop;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Number of times that a thread looks for work before it sleeps: some tens of microseconds.
const SPINS: usize = 2000;

/// Threads that share the work of kernels called inside [`WarmThreads::run`].
#[derive(Debug)]
pub struct WarmThreads {
    team: Arc<Team>,
    workers: Vec<JoinHandle<()>>,
}

impl WarmThreads {
    /// Starts `count - 1` threads, which call `begin` first. The calling thread is one more.
    ///
    /// # Errors
    /// The system has none left.
    pub fn new(count: usize, begin: impl Fn() + Send + Sync + 'static) -> io::Result<Self> {
        let begin = Arc::new(begin);
        let team = Arc::new(Team::new(count.max(1)));
        // If a thread cannot be started, this is dropped, which ends the threads before it.
        let mut threads = Self { team, workers: Vec::new() };
        for index in 1..threads.team.count {
            let (team, begin) = (Arc::clone(&threads.team), Arc::clone(&begin));
            let named = std::thread::Builder::new().name(format!("kernel-{index}"));
            threads.workers.push(named.spawn(move || {
                begin();
                team.work();
            })?);
        }
        Ok(threads)
    }

    /// Calls `work`, whose kernels share their work with these threads.
    pub fn run<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let outer = LENT.replace(Lent::Team(Arc::clone(&self.team)));
        // A panic of `work` must not leave the team lent to this thread.
        let _restore = OnDrop(|| drop(LENT.replace(outer.clone())));
        work()
    }
}

impl Drop for WarmThreads {
    fn drop(&mut self) {
        self.team.ended.store(true, Ordering::SeqCst);
        self.team.wake();
        for worker in self.workers.drain(..) {
            // The thread has caught the panics of its jobs.
            let _ = worker.join();
        }
    }
}

thread_local! {
    /// Threads that share the work of kernels called on this thread.
    static LENT: RefCell<Lent> = const { RefCell::new(Lent::Nobody) };
}

/// Threads that share the work of a kernel.
#[derive(Clone, Debug)]
enum Lent {
    /// No team: rayon's current pool.
    Nobody,
    Team(Arc<Team>),
    /// None, since this thread works on a part of a kernel, and kernels called inside that part stay here.
    Working,
}

/// Calls its function when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Number of threads that may share work: those of [`WarmThreads::run`], else those of rayon's current pool.
pub(crate) fn available() -> usize {
    LENT.with_borrow(|lent| match lent {
        Lent::Nobody => rayon::current_num_threads(),
        Lent::Team(team) => team.count,
        Lent::Working => 1,
    })
}

/// Calls `work` on this thread and concurrently on up to `threads - 1` others. It does not wait for threads that come
/// too late.
pub(crate) fn share(threads: usize, work: &(dyn Fn() + Sync)) {
    let lent = LENT.with_borrow(Lent::clone);
    match &lent {
        Lent::Nobody => share_with_rayon(threads, work),
        Lent::Team(team) => {
            LENT.set(Lent::Working);
            let _restore = OnDrop(|| LENT.set(lent.clone()));
            team.share(work);
        }
        Lent::Working => work(),
    }
}

fn share_with_rayon(threads: usize, work: &(dyn Fn() + Sync)) {
    if threads <= 1 {
        return work();
    }
    let parts = [threads / 2, threads - threads / 2];
    rayon::join(|| share_with_rayon(parts[0], work), || share_with_rayon(parts[1], work));
}

/// State that the threads share: one job at a time.
#[derive(Debug)]
struct Team {
    count: usize,
    /// The job's number in the high half. The low half has the flag [`OPEN`], set while more threads may join, and
    /// below it the number of threads that have joined.
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    panicked: AtomicBool,
    ended: AtomicBool,
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    alarm: Condvar,
}

/// A job without its lifetime. [`Team::share`] does not return while a thread runs it.
#[derive(Clone, Copy)]
struct Job(&'static (dyn Fn() + Sync));

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Job")
    }
}

// SAFETY: `job` is written only while the job before it is closed and no thread runs it, by the one thread that
// `WarmThreads::run` has lent the team to. It is read by threads that have joined the open job.
unsafe impl Sync for Team {}

const OPEN: u64 = 1 << 31;
const AT_IT: u64 = OPEN - 1;

fn job_number(state: u64) -> u64 {
    state >> 32
}

impl Team {
    fn new(count: usize) -> Self {
        Self {
            count,
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            bed: Mutex::new(()),
            alarm: Condvar::new(),
        }
    }

    /// Calls `work` on this thread and on the threads that join while it runs.
    fn share(&self, work: &(dyn Fn() + Sync)) {
        // SAFETY: no thread uses the reference after this function, which waits for all that have joined.
        let job = Job(unsafe {
            std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(work)
        });
        // SAFETY: the last job is closed and no thread runs it.
        unsafe { *self.job.get() = Some(job) };
        let next = (job_number(self.state.load(Ordering::Relaxed)) + 1) << 32;
        // SeqCst: either this thread sees the sleeper, or the sleeper sees the open job before it waits.
        self.state.store(next | OPEN, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.wake();
        }
        // It runs after a panic of `work`, too, since other threads may still run the job.
        let close = OnDrop(|| {
            let mut state = self.state.fetch_and(!OPEN, Ordering::AcqRel) & !OPEN;
            let mut spins = 0;
            while state & AT_IT > 0 {
                // A thread that still runs the job may have lost its core, so yield after a while.
                if spins < SPINS {
                    spin_loop()
                } else {
                    std::thread::yield_now()
                }
                spins += 1;
                state = self.state.load(Ordering::Acquire);
            }
        });
        work();
        drop(close);
        assert!(!self.panicked.swap(false, Ordering::Relaxed), "a thread of a kernel panicked");
    }

    fn wake(&self) {
        // With the lock taken, no thread is between its last look and its wait.
        drop(self.bed.lock().unwrap_or_else(PoisonError::into_inner));
        self.alarm.notify_all();
    }

    /// Loop of a thread of the team: it runs every job once that it joins in time, until the team ends.
    fn work(&self) {
        LENT.set(Lent::Working);
        let mut last = 0;
        while let Some(mut state) = self.next(last) {
            last = job_number(state);
            while state & OPEN > 0 && job_number(state) == last {
                let joined = state + 1;
                let order = (Ordering::AcqRel, Ordering::Acquire);
                match self.state.compare_exchange_weak(state, joined, order.0, order.1) {
                    Ok(_) => {
                        self.take_part();
                        break;
                    }
                    Err(found) => state = found,
                }
            }
        }
    }

    fn take_part(&self) {
        // SAFETY: the job is open, so it was written before, and it is not written again while this thread runs it.
        let job = unsafe { *self.job.get() };
        let work = || job.into_iter().for_each(|job| (job.0)());
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            self.panicked.store(true, Ordering::Relaxed);
        }
        self.state.fetch_sub(1, Ordering::Release);
    }

    /// Waits for an open job after the one with number `last` and returns its state; `None` once the team ends.
    fn next(&self, last: u64) -> Option<u64> {
        let found = || {
            let state = self.state.load(Ordering::SeqCst);
            (state & OPEN > 0 && job_number(state) != last).then_some(state)
        };
        for _ in 0..SPINS {
            if let Some(state) = found() {
                return Some(state);
            }
            spin_loop();
        }
        let mut bed = self.bed.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let state = loop {
            if self.ended.load(Ordering::SeqCst) {
                break None;
            }
            if let Some(state) = found() {
                break Some(state);
            }
            bed = self.alarm.wait(bed).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        state
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::parallel::for_ranges;

    #[test]
    fn every_item_is_worked_on_once_job_after_job() {
        for count in [1, 2, 3, 8] {
            let mut threads = WarmThreads::new(count, || ()).unwrap();
            threads.run(|| {
                assert_eq!(available(), count);
                for round in 0..20_000 {
                    let items: Vec<_> = (0..round % 40).map(|_| AtomicUsize::new(0)).collect();
                    for_ranges(items.len(), 1, |range| {
                        items[range].iter().for_each(|item| {
                            item.fetch_add(1, Ordering::Relaxed);
                        });
                    });
                    assert!(items.iter().all(|item| item.load(Ordering::Relaxed) == 1));
                    if round % 5000 == 0 {
                        // Long enough for the others to fall asleep.
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            });
        }
    }

    #[test]
    fn all_threads_take_part_and_do_not_share_further() {
        let mut threads = WarmThreads::new(3, || ()).unwrap();
        let seen = Mutex::new(std::collections::HashSet::new());
        threads.run(|| {
            share(3, &|| {
                assert_eq!(available(), 1);
                share(8, &|| _ = seen.lock().unwrap().insert(std::thread::current().id()));
                seen.lock().unwrap().insert(std::thread::current().id());
                while seen.lock().unwrap().len() < 3 {
                    std::thread::yield_now();
                }
            });
            assert_eq!(available(), 3);
        });
        assert!(LENT.with_borrow(|lent| matches!(lent, Lent::Nobody)));
    }

    #[test]
    fn a_panic_ends_the_job_and_not_the_threads() {
        let mut threads = WarmThreads::new(2, || ()).unwrap();
        let both = AtomicUsize::new(0);
        let job = |panics: bool| {
            both.store(0, Ordering::SeqCst);
            let caller = std::thread::current().id();
            share(2, &|| {
                both.fetch_add(1, Ordering::SeqCst);
                while both.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
                assert!(!panics || std::thread::current().id() == caller, "on purpose");
            });
        };
        threads.run(|| {
            assert!(catch_unwind(AssertUnwindSafe(|| job(true))).is_err());
            job(false);
        });
    }
}
