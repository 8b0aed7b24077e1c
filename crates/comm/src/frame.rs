//! Frames of a socket: a header that describes the content, and the content's bytes.
//!
//! The header has 16 bytes: the operation, the type of the values, and from byte 8 on the number of bytes that
//! follow, a little-endian u64. Values have the machine's byte order, since all ranks run on one machine.

use std::{
    fmt,
    io::{self, ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use bytemuck::Pod;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, recv},
};

use crate::error::{Error, Result};

const HEADER: usize = 16;
/// Bytes of the longest message. A step of thousands of sequences has a few megabytes.
const MAX_BYTES: usize = 1 << 30;
/// Bytes of a failure's reason that are read.
const MAX_REASON: usize = 16 << 10;

/// A type of values that ranks exchange.
pub trait Element: Pod {
    /// Its name.
    const NAME: &'static str;
    /// Number of the type in headers.
    #[doc(hidden)]
    const CODE: u8;
}

impl Element for u8 {
    const NAME: &'static str = "u8";
    const CODE: u8 = 0;
}

impl Element for u32 {
    const NAME: &'static str = "u32";
    const CODE: u8 = 1;
}

impl Element for f32 {
    const NAME: &'static str = "f32";
    const CODE: u8 = 2;
}

/// Operations of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Op {
    AllReduce = 1,
    AllGather,
    Broadcast,
    Barrier,
    Message,
    Failed,
}

impl Op {
    const ALL: [(Self, &'static str); 6] = [
        (Self::AllReduce, "all_reduce"),
        (Self::AllGather, "all_gather"),
        (Self::Broadcast, "broadcast"),
        (Self::Barrier, "barrier"),
        (Self::Message, "message"),
        (Self::Failed, "failure"),
    ];
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    op: u8,
    dtype: u8,
    bytes: usize,
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = Op::ALL.iter().find(|(op, _)| *op as u8 == self.op);
        let dtype = [u8::NAME, u32::NAME, f32::NAME].get(usize::from(self.dtype)).copied();
        let (op, dtype) = (op.map_or("nonsense", |op| op.1), dtype.unwrap_or("unknown"));
        write!(f, "{op} of {} bytes of {dtype}", self.bytes)
    }
}

impl Frame {
    pub(crate) fn of<T: Element>(op: Op, numbers: usize) -> Self {
        Self { op: op as u8, dtype: T::CODE, bytes: numbers * size_of::<T>() }
    }

    fn is(&self, op: Op) -> bool {
        self.op == op as u8
    }

    /// Sends the frame with its bytes to every rank from 1 on.
    pub(crate) fn write_all(
        &self,
        links: &mut [UnixStream],
        deadline: Duration,
        bytes: &[u8],
    ) -> Result<()> {
        let mut ranks = links.iter_mut().zip(1..);
        ranks.try_for_each(|(link, rank)| self.write(link, rank, deadline, bytes))
    }

    pub(crate) fn write(
        &self,
        link: &mut UnixStream,
        rank: usize,
        deadline: Duration,
        bytes: &[u8],
    ) -> Result<()> {
        let mut header = [0; HEADER];
        (header[0], header[1]) = (self.op, self.dtype);
        header[8..].copy_from_slice(&(self.bytes as u64).to_le_bytes());
        link.set_write_timeout(limit(deadline))
            .and_then(|()| link.write_all(&header))
            .and_then(|()| link.write_all(bytes))
            .map_err(|error| {
                // A failed rank has sent its reason before it closed its end.
                let said = Self::read_header(link, rank, Some(deadline));
                match said.and_then(|said| said.checked(link, rank, deadline)) {
                    Err(failed @ Error::Failed { .. }) => failed,
                    _ => explained(error, rank, deadline),
                }
            })
    }

    /// Receives a frame that must equal this one, and its bytes.
    pub(crate) fn read(
        &self,
        link: &mut UnixStream,
        rank: usize,
        deadline: Duration,
        bytes: &mut [u8],
    ) -> Result<()> {
        let found = Self::read_header(link, rank, Some(deadline))?.checked(link, rank, deadline)?;
        if found != *self {
            let (found, expected) = (found.to_string(), self.to_string());
            return Err(Error::OutOfStep { rank, found, expected });
        }
        link.read_exact(bytes).map_err(|error| explained(error, rank, deadline))
    }

    /// Receives a message. It waits for the header up to `patience`, or without a limit. Returns `None` if the other
    /// rank has ended before it.
    pub(crate) fn read_message(
        link: &mut UnixStream,
        rank: usize,
        patience: Option<Duration>,
    ) -> Result<Option<Vec<u8>>> {
        let deadline = patience.unwrap_or(Duration::MAX);
        let found = match Self::read_header(link, rank, patience) {
            Err(Error::Gone { .. }) => return Ok(None),
            found => found?.checked(link, rank, deadline)?,
        };
        if !found.is(Op::Message) || found.bytes > MAX_BYTES {
            let expected = format!("a message of at most {MAX_BYTES} bytes");
            return Err(Error::OutOfStep { rank, found: found.to_string(), expected });
        }
        let mut message = vec![0; found.bytes];
        link.read_exact(&mut message).map_err(|error| explained(error, rank, deadline))?;
        Ok(Some(message))
    }

    /// Fails if the other rank has ended, or if the next frame is its failure.
    pub(crate) fn look(link: &mut UnixStream, rank: usize, deadline: Duration) -> Result<()> {
        let mut header = [0; HEADER];
        // A frame that is no failure is left in the socket for the call that expects it. So the header is only
        // peeked at.
        match recv(&*link, &mut header, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(Error::Gone { rank }),
            Ok(_) if header[0] == Op::Failed as u8 => {
                Self::read_header(link, rank, Some(deadline))?.checked(link, rank, deadline)?;
                Ok(())
            }
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(explained(error.into(), rank, deadline)),
        }
    }

    fn read_header(link: &mut UnixStream, rank: usize, patience: Option<Duration>) -> Result<Self> {
        let mut header = [0; HEADER];
        let deadline = patience.unwrap_or(Duration::MAX);
        link.set_read_timeout(limit(deadline))
            .and_then(|()| link.read_exact(&mut header))
            .map_err(|error| explained(error, rank, deadline))?;
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&header[8..]);
        // A length that does not fit `usize` equals no frame of ours, so the comparison with the expected frame
        // refuses it.
        let bytes = usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX);
        Ok(Self { op: header[0], dtype: header[1], bytes })
    }

    /// Returns the frame, or the error with the reason of a failure.
    fn checked(self, link: &mut UnixStream, rank: usize, deadline: Duration) -> Result<Self> {
        if !self.is(Op::Failed) {
            return Ok(self);
        }
        // The length comes from the other process, so it does not decide alone how much is allocated.
        let mut reason = vec![0; self.bytes.min(MAX_REASON)];
        link.read_exact(&mut reason).map_err(|error| explained(error, rank, deadline))?;
        Err(Error::Failed { rank, reason: String::from_utf8_lossy(&reason).into_owned() })
    }
}

/// Waits up to `patience` until one of the links with `is_asked` has sent something or has ended. Returns the indices
/// of those that have.
pub(crate) fn wait_for_any(
    links: &[UnixStream],
    is_asked: impl Fn(usize) -> bool,
    patience: Duration,
) -> io::Result<Vec<usize>> {
    let asked: Vec<usize> = (0..links.len()).filter(|link| is_asked(*link)).collect();
    let mut fds: Vec<PollFd<'_>> =
        asked.iter().map(|link| PollFd::new(&links[*link], PollFlags::IN)).collect();
    let patience = Timespec::try_from(patience).ok(); // no limit if it is too long for the type
    match poll(&mut fds, patience.as_ref()) {
        // An interrupted poll counts as one without news: the caller computes the time left and polls again.
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let sent = asked.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
    Ok(sent.map(|(link, _)| *link).collect())
}

/// Timeout of a socket, which waits without a limit if there is none.
fn limit(deadline: Duration) -> Option<Duration> {
    // The standard library refuses a timeout of zero, which the kernel would take for none.
    (deadline < Duration::MAX).then_some(deadline.max(Duration::from_millis(1)))
}

fn explained(error: io::Error, rank: usize, after: Duration) -> Error {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            Error::Gone { rank }
        }
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Deadline { rank, after },
        _ => Error::Io { rank, source: error },
    }
}
