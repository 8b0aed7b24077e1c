//! The processors of each rank: cores of its own, next to each other, among those that this process may use.

use std::{collections::BTreeMap, fs, ops::Range};

use candlepower_kernels::WarmThreads;
use rayon::ThreadPool;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The threads on which one rank computes.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Threads {
    /// Number of threads; at least one.
    pub(crate) count: usize,
    /// The processors that they are bound to, by number; to none where this is empty.
    cpus: Vec<usize>,
}

/// The key of a core: its package, and the first of its processors.
type Core = (usize, usize);

impl Threads {
    /// `count` threads shared among `ranks` ranks, in their order, at least one for each. Each rank is bound to its part of the cores,
    /// where there are as many cores as ranks and more than one rank.
    pub(crate) fn of_ranks(count: usize, ranks: usize) -> Vec<Self> {
        let cores = if ranks > 1 { cores() } else { Vec::new() };
        let cpus = divided(cores, ranks);
        let of_rank = |(rank, cpus)| Self { count: part(count, rank, ranks).len().max(1), cpus };
        (0..ranks).zip(cpus).map(of_rank).collect()
    }

    /// Starts the threads that load the model, and that compute whatever is no step on the CPU.
    ///
    /// # Errors
    /// The system has none left.
    pub(crate) fn start(&self) -> Result<ThreadPool> {
        let threads = self.clone();
        rayon::ThreadPoolBuilder::new()
            .num_threads(self.count)
            .thread_name(|index| format!("compute-{index}"))
            .start_handler(move |_| threads.bind())
            .build()
            .map_err(|error| Error::Thread(error.to_string()))
    }

    /// Starts the threads for steps on the CPU. The thread that calls for a step is one of them.
    ///
    /// # Errors
    /// The system has none left.
    pub(crate) fn warm(&self) -> Result<WarmThreads> {
        let threads = self.clone();
        let warm = WarmThreads::new(self.count, move || threads.bind());
        warm.map_err(|error| Error::Thread(error.to_string()))
    }

    /// Binds the calling thread.
    pub(crate) fn bind(&self) {
        let mut set = CpuSet::new();
        self.cpus.iter().for_each(|cpu| set.set(*cpu));
        if !self.cpus.is_empty()
            && let Err(error) = sched_setaffinity(None, &set)
        {
            tracing::debug!("a thread is not bound to its cores: {error}");
        }
    }
}

/// A rank's range of `count` items. The first ranks have one more where the number of ranks does not divide `count`.
fn part(count: usize, rank: usize, ranks: usize) -> Range<usize> {
    let first = |rank: usize| count / ranks * rank + rank.min(count % ranks);
    first(rank)..first(rank + 1)
}

/// The processors of each rank, as whole cores; none where there are fewer cores than ranks.
fn divided(cores: Vec<Vec<usize>>, ranks: usize) -> Vec<Vec<usize>> {
    if cores.len() < ranks {
        return vec![Vec::new(); ranks];
    }
    (0..ranks).map(|rank| cores[part(cores.len(), rank, ranks)].concat()).collect()
}

/// The processors that this process may run on, core by core, with the cores of a package next to each other; none where the system
/// does not say.
fn cores() -> Vec<Vec<usize>> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    let mut cores: BTreeMap<Core, Vec<usize>> = BTreeMap::new();
    for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)) {
        cores.entry(core(cpu)).or_default().push(cpu);
    }
    cores.into_values().collect()
}

/// The core of a processor; one of its own where the system does not say.
fn core(cpu: usize) -> Core {
    let read = |name| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}");
        let text = fs::read_to_string(path).ok()?;
        text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    (read("physical_package_id").unwrap_or(0), read("thread_siblings_list").unwrap_or(cpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_and_whole_cores_are_shared_among_ranks() {
        let cores = vec![vec![0, 4], vec![1, 5], vec![2, 6], vec![3, 7]];
        let of = |ranks| divided(cores.clone(), ranks);
        assert_eq!(of(2), [[0, 4, 1, 5], [2, 6, 3, 7]]);
        assert_eq!(of(3), [vec![0, 4, 1, 5], vec![2, 6], vec![3, 7]]);
        assert_eq!(of(8), vec![Vec::<usize>::new(); 8], "cores are not split");
        let counts = |count, ranks| {
            Threads::of_ranks(count, ranks).iter().map(|threads| threads.count).collect::<Vec<_>>()
        };
        assert_eq!(counts(7, 3), [3, 2, 2]);
        assert_eq!(counts(1, 4), [1; 4]);
        assert_eq!(Threads::of_ranks(5, 1), [Threads { count: 5, cpus: Vec::new() }]);
    }

    /// The ranks have the processors that `taskset` allows this process, and no two share one.
    #[test]
    fn ranks_stay_within_what_the_process_may_use() {
        let allowed = sched_getaffinity(None).unwrap();
        let ranks = cores().len();
        assert_eq!(cores().concat().len(), allowed.count() as usize);
        let mut seen = Vec::new();
        for threads in Threads::of_ranks(ranks, ranks) {
            assert_eq!(threads.count, 1);
            let found = threads.start().unwrap().install(|| sched_getaffinity(None).unwrap());
            for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| found.is_set(*cpu)) {
                assert!(allowed.is_set(cpu) && !seen.contains(&cpu), "processor {cpu}");
                seen.push(cpu);
            }
        }
        assert_eq!(seen.len(), allowed.count() as usize);
    }

    #[test]
    fn no_more_threads_compute_than_the_process_may_run() {
        let cpus = cores()[0][..1].to_vec();
        let bound = std::thread::spawn(|| {
            Threads { count: 1, cpus }.bind();
            candlepower_machine::compute_threads()
        });
        assert_eq!(bound.join().unwrap(), 1);
    }
}
