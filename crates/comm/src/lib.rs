//! Collectives among the ranks of one model: `all_reduce`, `all_gather`, `broadcast`, `barrier`, and messages.
//!
//! A [`Comm`] belongs to one rank. Every rank calls the same operations in the same order. Each call is checked
//! against the others' calls: the operation, the type of its values and their number.
//!
//! Ranks are threads ([`Comm::local`]) or processes ([`Comm::root`], [`Comm::leaf`]). In both cases rank 0 has a
//! socket to each other rank, sums the arriving values in the order of the ranks and sends the sum back. So a result
//! has the same bits on all ranks and in every run.
//!
//! A rank that is gone is noticed at once, and a rank that does not answer is noticed at its deadline. In sums and
//! gathers that is sooner: a rank has the same work as rank 0, and gets a multiple of the time that rank 0 took for
//! it.

mod error;
mod frame;
mod traffic;

use std::{
    os::unix::net::UnixStream,
    panic::resume_unwind,
    sync::{
        Mutex, PoisonError,
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::{Duration, Instant},
};

pub use self::{
    error::{Error, Result},
    frame::Element,
    traffic::Traffic,
};
use self::{
    frame::{Frame, Op},
    traffic::Counters,
};

/// Time of another rank from one sum or gather to the next, as a multiple of rank 0's.
const SLOWER: u32 = 20;
/// Least time of another rank, as a fraction of the deadline.
const LEAST_PART: u32 = 10;
/// Interval at which a rank that waits outside of the sockets checks the other ranks.
const LOOK: Duration = Duration::from_millis(100);

/// One rank's end of the collectives.
#[derive(Debug)]
pub struct Comm {
    rank: usize,
    size: usize,
    links: Mutex<Links>,
    /// Time in which another rank must answer.
    deadline: Duration,
    /// Time at which the other ranks last received their input.
    since: Mutex<Instant>,
    counters: Counters,
}

/// Connections of a rank.
#[derive(Debug)]
enum Links {
    /// None: it is the only rank.
    Solo,
    /// Rank 0 to the other ranks, in order.
    Root(Vec<UnixStream>),
    /// Another rank to rank 0.
    Leaf(UnixStream),
}

impl Comm {
    /// Makes the only rank.
    pub fn solo() -> Self {
        Self::new(0, 1, Links::Solo, Duration::MAX)
    }

    /// Makes the ranks of one process, each for a thread of its own.
    ///
    /// # Errors
    /// The system has no sockets left.
    pub fn local(size: usize, deadline: Duration) -> Result<Vec<Self>> {
        let mut leaves = Vec::new();
        let mut ends = Vec::new();
        for rank in 1..size {
            let (root, leaf) = UnixStream::pair().map_err(Error::Connect)?;
            ends.push(root);
            leaves.push(Self::leaf(rank, size, leaf, deadline));
        }
        let root = if size > 1 { Self::root(ends, deadline) } else { Self::solo() };
        Ok([root].into_iter().chain(leaves).collect())
    }

    /// Makes rank 0, whose `links` lead to the ranks 1, 2 and so on.
    pub fn root(links: Vec<UnixStream>, deadline: Duration) -> Self {
        Self::new(0, links.len() + 1, Links::Root(links), deadline)
    }

    /// Makes rank `rank`, at least 1, of `size` ranks, whose `link` leads to rank 0.
    pub fn leaf(rank: usize, size: usize, link: UnixStream, deadline: Duration) -> Self {
        Self::new(rank, size, Links::Leaf(link), deadline)
    }

    fn new(rank: usize, size: usize, links: Links, deadline: Duration) -> Self {
        let (links, since) = (Mutex::new(links), Mutex::new(Instant::now()));
        Self { rank, size, links, deadline, since, counters: Counters::default() }
    }

    /// Index of this rank, from 0 on.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Data that this rank has sent with collectives so far.
    pub fn traffic(&self) -> Traffic {
        self.counters.read()
    }

    /// Sums the values of all ranks, element by element, in the order of the ranks.
    ///
    /// # Errors
    /// A rank is gone, does not answer, has failed, or calls something else.
    pub fn all_reduce(&self, values: &mut [f32]) -> Result<()> {
        self.counters.all_reduce(size_of_val(values));
        let frame = Frame::of::<f32>(Op::AllReduce, values.len());
        match &mut *self.links() {
            Links::Solo => Ok(()),
            Links::Root(links) => {
                // The time is taken once, before the first read. Otherwise waiting for one rank would extend the
                // time of the next.
                let (mut part, patience) = (vec![0f32; values.len()], self.patience());
                for (link, rank) in links.iter_mut().zip(1..) {
                    frame.read(link, rank, patience, bytemuck::cast_slice_mut(&mut part))?;
                    values.iter_mut().zip(&part).for_each(|(sum, part)| *sum += part);
                }
                self.give(&frame, links, bytemuck::cast_slice(values))
            }
            Links::Leaf(link) => {
                frame.write(link, 0, self.deadline, bytemuck::cast_slice(values))?;
                frame.read(link, 0, self.deadline, bytemuck::cast_slice_mut(values))
            }
        }
    }

    /// Concatenates the shards of all ranks, which have equal lengths.
    ///
    /// # Errors
    /// The errors of [`Self::all_reduce`].
    pub fn all_gather<T: Element>(&self, part: &[T]) -> Result<Vec<T>> {
        self.counters.all_gather(size_of_val(part));
        let mut all = part.to_vec();
        if self.size == 1 {
            return Ok(all);
        }
        all.resize(self.size * part.len(), T::zeroed());
        let frame = Frame::of::<T>(Op::AllGather, part.len());
        match &mut *self.links() {
            Links::Solo => {}
            Links::Root(links) => {
                let patience = self.patience();
                for (link, rank) in links.iter_mut().zip(1..) {
                    // Empty shards have frames, too.
                    let part = &mut all[rank * part.len()..][..part.len()];
                    frame.read(link, rank, patience, bytemuck::cast_slice_mut(part))?;
                }
                // The frame back to the ranks has all shards, so its length differs from that of the frames that
                // came.
                let frame = Frame::of::<T>(Op::AllGather, all.len());
                self.give(&frame, links, bytemuck::cast_slice(&all))?;
            }
            Links::Leaf(link) => {
                frame.write(link, 0, self.deadline, bytemuck::cast_slice(part))?;
                let frame = Frame::of::<T>(Op::AllGather, all.len());
                frame.read(link, 0, self.deadline, bytemuck::cast_slice_mut(&mut all))?;
            }
        }
        Ok(all)
    }

    /// Copies the values of rank 0 to every rank.
    ///
    /// # Errors
    /// The errors of [`Self::all_reduce`].
    pub fn broadcast<T: Element>(&self, values: &mut [T]) -> Result<()> {
        self.counters.broadcast(size_of_val(values));
        let frame = Frame::of::<T>(Op::Broadcast, values.len());
        match &mut *self.links() {
            Links::Solo => Ok(()),
            Links::Root(links) => {
                frame.write_all(links, self.deadline, bytemuck::cast_slice(values))
            }
            Links::Leaf(link) => {
                frame.read(link, 0, self.deadline, bytemuck::cast_slice_mut(values))
            }
        }
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// The errors of [`Self::all_reduce`].
    pub fn barrier(&self) -> Result<()> {
        let (come, go) = (Frame::of::<u8>(Op::Barrier, 0), Frame::of::<u8>(Op::Barrier, 0));
        match &mut *self.links() {
            Links::Solo => Ok(()),
            Links::Root(links) => {
                for (link, rank) in links.iter_mut().zip(1..) {
                    come.read(link, rank, self.deadline, &mut [])?;
                }
                go.write_all(links, self.deadline, &[])
            }
            Links::Leaf(link) => {
                come.write(link, 0, self.deadline, &[])?;
                go.read(link, 0, self.deadline, &mut [])
            }
        }
    }

    /// Sends a message from rank 0 to all others, which receive it by [`Self::next_message`].
    ///
    /// # Errors
    /// A rank is gone or does not take it.
    pub fn send_message(&self, message: &[u8]) -> Result<()> {
        self.counters.message(message.len());
        let frame = Frame::of::<u8>(Op::Message, message.len());
        match &mut *self.links() {
            Links::Solo => Ok(()),
            Links::Root(links) => self.give(&frame, links, message),
            Links::Leaf(_) => Err(Error::NotRoot { rank: self.rank }),
        }
    }

    /// Waits for rank 0's next message without a limit. Returns `None` when rank 0 has ended.
    ///
    /// # Errors
    /// Something else arrives, or an incomplete message.
    pub fn next_message(&self) -> Result<Option<Vec<u8>>> {
        match &mut *self.links() {
            Links::Leaf(link) => Frame::read_message(link, 0, None),
            Links::Solo | Links::Root(_) => Ok(None),
        }
    }

    /// Sends a message to rank 0, which receives it by [`Self::answers`].
    ///
    /// # Errors
    /// Rank 0 is gone or does not take it.
    pub fn answer(&self, message: &[u8]) -> Result<()> {
        match &mut *self.links() {
            Links::Leaf(link) => {
                Frame::of::<u8>(Op::Message, message.len()).write(link, 0, self.deadline, message)
            }
            Links::Solo | Links::Root(_) => Ok(()),
        }
    }

    /// Waits at rank 0 for a message of each other rank, up to `patience` for all of them. Returns them in the order
    /// of the ranks.
    ///
    /// # Errors
    /// A rank is gone, has failed, or does not answer. This is noticed at once, for any rank.
    pub fn answers(&self, patience: Duration) -> Result<Vec<Vec<u8>>> {
        let Links::Root(links) = &mut *self.links() else { return Ok(Vec::new()) };
        let began = Instant::now();
        let mut answers = vec![None; links.len()];
        while let Some(missing) = answers.iter().position(Option::is_none) {
            let left = patience.saturating_sub(began.elapsed());
            let has_sent = frame::wait_for_any(links, |link| answers[link].is_none(), left)
                .map_err(|source| Error::Io { rank: missing + 1, source })?;
            if has_sent.is_empty() && left.is_zero() {
                return Err(Error::Deadline { rank: missing + 1, after: patience });
            }
            for link in has_sent {
                let rank = link + 1;
                let answer = Frame::read_message(&mut links[link], rank, Some(patience))?;
                answers[link] = Some(answer.ok_or(Error::Gone { rank })?);
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Fails if another rank has ended or has reported a failure, and waits for none of them. A rank calls it to stop
    /// long work of its own.
    ///
    /// # Errors
    /// A rank is gone or has failed.
    pub fn look_around(&self) -> Result<()> {
        match &mut *self.links() {
            Links::Solo => Ok(()),
            Links::Root(links) => {
                let mut ranks = links.iter_mut().zip(1..);
                ranks.try_for_each(|(link, rank)| Frame::look(link, rank, self.deadline))
            }
            Links::Leaf(link) => Frame::look(link, 0, self.deadline),
        }
    }

    /// Runs `work`, which waits for the other ranks outside of the sockets, on a thread of its own. It fails if one
    /// of the ranks is gone or has failed, or if the deadline passes. Such waiting cannot be interrupted. So the
    /// thread stays behind after a failure, and the process must end.
    ///
    /// # Errors
    /// A rank is gone, has failed or does not come, or there is no thread.
    pub fn meet<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let (met, waiting) = channel();
        let began = Instant::now();
        // The result has no receiver if this rank has failed meanwhile.
        let work = move || drop(met.send(work()));
        let meeting = thread::Builder::new().name("meet".into()).spawn(work);
        let meeting = meeting.map_err(Error::Thread)?;
        loop {
            match waiting.recv_timeout(LOOK) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) if began.elapsed() > self.deadline => {
                    return Err(Error::Apart { after: self.deadline });
                }
                Err(RecvTimeoutError::Timeout) => self.look_around()?,
                Err(RecvTimeoutError::Disconnected) => match meeting.join() {
                    Err(panic) => resume_unwind(panic),
                    Ok(()) => unreachable!("it sends before it ends"),
                },
            }
        }
    }

    /// Reports to the others a reason for which this rank cannot continue. Their next call fails with it.
    pub fn fail(&self, reason: &str) {
        let frame = Frame::of::<u8>(Op::Failed, reason.len());
        // A rank that is gone does not need the reason.
        let _ = match &mut *self.links() {
            Links::Solo => Ok(()),
            // A rank that is blocked in a receive reads this frame in place of the one that it expects.
            Links::Root(links) => frame.write_all(links, self.deadline, reason.as_bytes()),
            Links::Leaf(link) => frame.write(link, 0, self.deadline, reason.as_bytes()),
        };
    }

    /// Sends the other ranks the input of their next work.
    fn give(&self, frame: &Frame, links: &mut [UnixStream], bytes: &[u8]) -> Result<()> {
        let given = frame.write_all(links, self.deadline, bytes);
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        given
    }

    /// Time in which another rank must finish the work for which this rank has taken the time since their last input.
    fn patience(&self) -> Duration {
        // Between two sums all ranks have the same work, so a slow machine slows them all. The factor covers
        // shared cores and swapped memory. A tenth of the deadline remains for work that took this rank no time.
        let own = self.since.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        own.saturating_mul(SLOWER).max(self.deadline / LEAST_PART).min(self.deadline)
    }

    fn links(&self) -> std::sync::MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
