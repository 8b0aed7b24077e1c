//! Faults of the fake hub, and bodies that break off or stall.

use std::io;

use axum::body::{Body, Bytes};
use futures::stream;
use tokio::sync::watch;

/// Contents are sent in pieces of this size.
const PIECE: usize = 16 << 10;

/// The answers that a fault applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    /// The contents of a repository: its information and its tree.
    Api,
    /// The location of a file: HEAD and GET of `resolve`.
    Resolve(String),
    /// The bytes of a file, from either server.
    Content(String),
}

impl Spot {
    pub(crate) fn resolve(path: &str) -> Self {
        Self::Resolve(path.into())
    }

    pub(crate) fn content(path: &str) -> Self {
        Self::Content(path.into())
    }
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection ends after this many bytes of the body. If they exceed the system's buffers, up to a megabyte
    /// may be lost, as in any network.
    CutAfter(usize),
    /// Nothing is sent after this many bytes of the body, until [`Hub::release`](super::Hub::release).
    StallAfter(usize),
    /// The right number of bytes, but all of them wrong.
    WrongBytes,
    /// An error in place of the answer.
    Status(u16),
    /// An error in place of the answer, with `Retry-After` in seconds.
    RetryAfter(u16, u32),
}

/// The number of times that a fault occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    Next(usize),
    Always,
}

/// The end of an incomplete body.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Complete,
    Cut,
    Stall,
}

/// A body that is being sent.
struct Sending {
    bytes: Bytes,
    stop_at: usize,
    ending: Ending,
    released: watch::Receiver<u64>,
}

/// These bytes as a body, with the fault applied.
pub(super) fn body(bytes: Bytes, fault: Option<Fault>, released: watch::Receiver<u64>) -> Body {
    let (stop_at, ending) = match fault {
        Some(Fault::CutAfter(count)) if count < bytes.len() => (count, Ending::Cut),
        Some(Fault::StallAfter(count)) if count < bytes.len() => (count, Ending::Stall),
        _ => (bytes.len(), Ending::Complete),
    };
    Body::from_stream(stream::unfold(Sending { bytes, stop_at, ending, released }, next_piece))
}

async fn next_piece(mut sending: Sending) -> Option<(io::Result<Bytes>, Sending)> {
    // The previous piece must reach the system first.
    tokio::task::yield_now().await;
    if sending.stop_at == 0 {
        match sending.ending {
            Ending::Complete => return None,
            Ending::Cut => return Some((Err(io::ErrorKind::ConnectionReset.into()), sending)),
            Ending::Stall => {
                // The sender lives as long as the hub, and all bodies end with the hub.
                sending.released.changed().await.ok()?;
                sending.stop_at = sending.bytes.len();
                sending.ending = Ending::Complete;
            }
        }
    }
    let piece = sending.bytes.split_to(PIECE.min(sending.stop_at));
    sending.stop_at -= piece.len();
    Some((Ok(piece), sending))
}
