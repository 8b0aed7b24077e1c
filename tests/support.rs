//! Common parts of the end-to-end tests: servers, an HTTP client, a fake model hub, Python and Node.

mod certificates;
mod cluster;
mod engine;
mod frames;
pub(crate) mod hostile;
mod http;
mod hub;
mod metrics;
mod port_forward;
pub(crate) mod process;
mod programs;
mod recorder;
mod scripted;
mod server;
mod socket;
mod terminal;
mod vision;

pub(crate) use certificates::{Authority, Pair, self_signed};
pub(crate) use cluster::{Cluster, Story};
pub(crate) use engine::{Engine, IMAGE, Manner};
pub(crate) use frames::{END_HEADERS, END_STREAM, Frame, Frames, HeaderList, Kind};
pub(crate) use http::{Request, Response, ResponseStream, read_response};
pub(crate) use hub::{
    Access, Fault, Files, Hub, MEMBER_TOKEN, OUTSIDER_TOKEN, Seen, Side, Spot, Times,
};
pub(crate) use metrics::Metrics;
pub(crate) use programs::{framework_python, node, python, run_to_end, skipped};
pub(crate) use recorder::Recorder;
pub(crate) use scripted::{Answer, Endpoint, Form, Scripted};
pub(crate) use server::{
    Server, ServerBuilder, TempFolder, binary, heeding_hangup, program, without_settings,
};
pub(crate) use socket::Socket;
pub(crate) use terminal::{Terminal, without_escapes};
pub(crate) use vision::{as_blocks, as_input, picture_url, vision_server, with_pictures};

use std::time::{Duration, Instant};

/// After this time something is stuck, not slow. Shorter times are not asserted.
pub(crate) const DEADLINE: Duration = Duration::from_secs(240);

/// Calls `probe` repeatedly until it returns a value. Panics with `what` at the deadline.
pub(crate) fn wait_for<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    wait_for_or(probe, || what.to_owned())
}

/// The same, with a message that is made at the deadline.
pub(crate) fn wait_for_or<T>(
    mut probe: impl FnMut() -> Option<T>,
    what: impl FnOnce() -> String,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(start.elapsed() < DEADLINE, "waited too long for {}", what());
        // The pause leaves the cores to the awaited work. Its length does not matter.
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
