//! What can be made to go wrong at the local hub, and bodies that break off or stop.

use std::io;

use axum::body::{Body, Bytes};
use futures::stream;
use tokio::sync::watch;

/// Contents are sent in pieces of so many bytes.
const PIECE: usize = 16 << 10;

/// The answers that a fault belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    /// What a repository holds: its information and its tree.
    Api,
    /// Where a file is: HEAD and GET of `resolve`.
    Resolve(String),
    /// The bytes of a file, whoever sends them.
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

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection ends after so many bytes of the body. Of many more than the system takes at once, up to a
    /// megabyte, the last may be lost, as they may in any network.
    CutAfter(usize),
    /// Nothing more is sent after so many bytes of the body, until [`Hub::release`](super::Hub::release).
    StallAfter(usize),
    /// The right number of bytes, none of them right.
    WrongBytes,
    /// An error in place of the answer.
    Status(u16),
    /// An error in place of the answer, with `Retry-After` in seconds.
    RetryAfter(u16, u32),
}

/// How often a fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    Next(usize),
    Always,
}

/// How a body ends that does not send all it has.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Complete,
    Cut,
    Stall,
}

/// A body on its way.
struct Sending {
    bytes: Bytes,
    stop_at: usize,
    ending: Ending,
    released: watch::Receiver<u64>,
}

/// These bytes as a body, with what the fault does to it.
pub(super) fn body(bytes: Bytes, fault: Option<Fault>, released: watch::Receiver<u64>) -> Body {
    let (stop_at, ending) = match fault {
        Some(Fault::CutAfter(count)) if count < bytes.len() => (count, Ending::Cut),
        Some(Fault::StallAfter(count)) if count < bytes.len() => (count, Ending::Stall),
        _ => (bytes.len(), Ending::Complete),
    };
    Body::from_stream(stream::unfold(Sending { bytes, stop_at, ending, released }, next_piece))
}

async fn next_piece(mut sending: Sending) -> Option<(io::Result<Bytes>, Sending)> {
    // The piece before is handed to the system before anything else happens.
    tokio::task::yield_now().await;
    if sending.stop_at == 0 {
        match sending.ending {
            Ending::Complete => return None,
            Ending::Cut => return Some((Err(io::ErrorKind::ConnectionReset.into()), sending)),
            Ending::Stall => {
                // The sender lives as long as the hub, whose end is the end of all bodies.
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
