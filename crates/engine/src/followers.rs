//! The ranks beside rank 0, as rank 0 sees them: started, waited for, and asked why they ended.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use candlepower_comm::Comm;

use crate::{
    Error, Result,
    follower::{Setup, run},
    gate::Death,
    orders::{Loaded, decode, encode},
    rank_process::RankProcess,
};

/// The kind of the ranks beside rank 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankKind {
    /// Threads of this process.
    Threads,
    /// Processes of this binary. It has to pass the arguments after [`RANK_COMMAND`](crate::RANK_COMMAND) to
    /// [`run_rank`](crate::run_rank).
    Processes,
}

/// The other ranks of a model. Dropping waits for them: they end when rank 0's end of the collectives is gone.
pub(crate) struct Followers {
    threads: Vec<JoinHandle<()>>,
    processes: Vec<RankProcess>,
    /// The reason why processes are gone.
    death: Death,
}

/// Longest time from the end of a process's socket until its end is seen.
const END_SEEN: Duration = Duration::from_secs(2);

impl Followers {
    /// Starts the ranks from 1 on, and returns rank 0's end of the collectives.
    pub(crate) fn start(
        kind: RankKind,
        setup: &Setup,
        deadline: Duration,
        death: Death,
    ) -> Result<(Self, Arc<Comm>)> {
        let ranks = setup.num_ranks();
        let mut followers = Self { threads: Vec::new(), processes: Vec::new(), death };
        if kind == RankKind::Threads || ranks == 1 {
            let mut comms = Comm::local(ranks, deadline)?.into_iter();
            let root = comms.next().expect("there is a rank 0");
            for comm in comms {
                let config = setup.clone().config(comm.rank())?;
                let rank = thread::Builder::new().name(format!("rank-{}", comm.rank()));
                // The rank has reported its error to rank 0.
                let thread = rank.spawn(move || drop(run(Arc::new(comm), config)));
                followers.threads.push(thread.map_err(|error| Error::Thread(error.to_string()))?);
            }
            return Ok((followers, Arc::new(root)));
        }
        let mut links = Vec::new();
        for rank in 1..ranks {
            let death = Arc::clone(&followers.death);
            let (process, link) = RankProcess::start(rank, ranks, deadline, death)?;
            followers.processes.push(process);
            links.push(link);
        }
        let root = Comm::root(links, deadline);
        root.send_message(&encode(setup)?)?;
        Ok((followers, Arc::new(root)))
    }

    /// Waits for the answers of the other ranks after they have loaded. Their shards are as large as rank 0's, and may lie on a slower
    /// disk.
    pub(crate) fn loaded(&self, comm: &Comm, patience: Duration) -> Result<Vec<Loaded>> {
        let loaded = comm.answers(patience).map_err(|error| self.explain(error.into()))?;
        loaded.iter().map(|bytes| decode(bytes)).collect()
    }

    /// Replaces the error that a rank is gone by the reason. Other errors stay.
    pub(crate) fn explain(&self, error: Error) -> Error {
        use candlepower_comm::Error::Gone;
        let gone = matches!(
            error,
            Error::Comm(Gone { .. }) | Error::Model(candlepower_models::Error::Comm(Gone { .. }))
        );
        if !gone || self.processes.is_empty() {
            return error;
        }
        let began = Instant::now();
        while began.elapsed() < END_SEEN {
            if let Some(reason) = self.death.get() {
                return Error::RankEnded(reason.clone());
            }
            thread::sleep(Duration::from_millis(10));
        }
        error
    }
}

impl Drop for Followers {
    fn drop(&mut self) {
        self.processes.iter().for_each(RankProcess::close);
        for thread in self.threads.drain(..) {
            // The rank has caught its panic, and reported it to rank 0.
            let _ = thread.join();
        }
    }
}
