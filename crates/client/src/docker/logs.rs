//! Logs of a container. The engine sends frames of both outputs, which are parsed into lines.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::Response;

use super::engine::{Engine, Refused};
use crate::logs::Lines;
use crate::status::now;

/// Interval at which a container that ended is checked for a restart.
const LOOK: Duration = Duration::from_millis(500);
/// Seconds of overlap between an ended stream and the one that continues it.
const OVERLAP_S: f64 = 2.0;
/// Header of a frame, in bytes: the number of the output, three zeros, and the big-endian length.
const HEADER: usize = 8;

/// Parser of an engine's log stream. Source: Docker Engine API, "Stream format".
#[derive(Debug, Default)]
pub(super) struct Demultiplexer {
    bytes: Vec<u8>,
    /// The unfinished line of each output.
    partial: [Vec<u8>; 3],
    pub(super) lines: VecDeque<String>,
}

impl Demultiplexer {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        while let Some(header) = self.bytes.first_chunk::<HEADER>() {
            let [output, _, _, _, length @ ..] = *header;
            let end = HEADER + u32::from_be_bytes(length) as usize;
            if self.bytes.len() < end {
                return;
            }
            let frame: Vec<u8> = self.bytes.drain(..end).skip(HEADER).collect();
            // The engine numbers outputs 0 to 2. A larger number would be an error of the engine and must not end the
            // client.
            let partial = &mut self.partial[usize::from(output).min(2)];
            for byte in frame {
                if byte == b'\n' {
                    self.lines.push_back(line(std::mem::take(partial)));
                } else {
                    partial.push(byte);
                }
            }
        }
    }

    /// Ends the stream: unfinished lines become lines.
    pub(super) fn end(&mut self) {
        for partial in &mut self.partial {
            if !partial.is_empty() {
                self.lines.push_back(line(std::mem::take(partial)));
            }
        }
        // A frame that was cut off will not be continued: the next stream begins with a header.
        self.bytes.clear();
    }
}

fn line(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).trim_end_matches('\r').to_owned()
}

/// The newest `tail` lines, or all of them, oldest first.
pub(super) async fn tail(
    engine: &Engine,
    container: &str,
    tail: Option<usize>,
) -> Result<Vec<String>, Refused> {
    let count = tail.map_or("all".to_owned(), |count| count.to_string());
    read(engine, container, ("tail", &count)).await
}

async fn read(
    engine: &Engine,
    container: &str,
    from: (&str, &str),
) -> Result<Vec<String>, Refused> {
    let query = [("stdout", "true"), ("stderr", "true"), from];
    let mut response = engine.open(&format!("containers/{container}/logs"), &query).await?;
    let mut found = Demultiplexer::default();
    let broken = |error: reqwest::Error| Refused { status: None, words: error.to_string() };
    while let Some(bytes) = response.chunk().await.map_err(broken)? {
        found.push(&bytes);
    }
    found.end();
    Ok(found.lines.into())
}

async fn follow(engine: &Engine, container: &str, from: (&str, &str)) -> Result<Response, Refused> {
    let query = [("stdout", "true"), ("stderr", "true"), ("follow", "true"), from];
    engine.open(&format!("containers/{container}/logs"), &query).await
}

/// Log lines as they are written, across restarts, until the container is removed.
#[derive(Debug)]
pub(super) struct Followed {
    engine: Engine,
    container: String,
    response: Option<Response>,
    found: Demultiplexer,
    /// The last line that was returned, and its time in seconds since 1970.
    last_line: (String, f64),
    /// Number of lines in the new stream that were returned already.
    skip: usize,
}

impl Followed {
    pub(super) async fn new(
        engine: Engine,
        container: String,
        tail: Option<usize>,
    ) -> Result<Self, Refused> {
        let count = tail.map_or("all".to_owned(), |count| count.to_string());
        let response = Some(follow(&engine, &container, ("tail", &count)).await?);
        let found = Demultiplexer::default();
        Ok(Self { engine, container, response, found, last_line: (String::new(), now()), skip: 0 })
    }

    fn next_line(&mut self) -> Option<String> {
        let skipped = self.skip.min(self.found.lines.len());
        self.found.lines.drain(..skipped);
        self.skip -= skipped;
        let line = self.found.lines.pop_front()?;
        self.last_line = (line.clone(), now());
        Some(line)
    }

    /// Waits for the container to run again; false if it is gone.
    async fn reopen(&mut self) -> bool {
        tokio::time::sleep(LOOK).await;
        match self.engine.inspect(&self.container).await {
            Ok(inspect) if inspect.is_running() => {
                // A stream that fails is opened again in the next round.
                let _ = self.go_on().await;
                true
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }

    /// Opens a stream from a little before the last returned line, and skips up to that line. Timestamps
    /// alone would not suffice, since Podman's are whole seconds.
    async fn go_on(&mut self) -> Result<(), Refused> {
        let since = format!("{:.0}", (self.last_line.1 - OVERLAP_S).floor());
        // This answer ends, unlike the followed one, so the place of the last returned line can be found in it.
        let before = read(&self.engine, &self.container, ("since", &since)).await?;
        self.skip =
            before.iter().rposition(|line| *line == self.last_line.0).map_or(0, |at| at + 1);
        self.response = Some(follow(&self.engine, &self.container, ("since", &since)).await?);
        Ok(())
    }
}

impl Lines for Followed {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(line) = self.next_line() {
                return Some(line);
            }
            let Some(response) = &mut self.response else {
                if self.reopen().await {
                    continue;
                }
                return None;
            };
            match response.chunk().await {
                Ok(Some(bytes)) => self.found.push(&bytes),
                Ok(None) | Err(_) => {
                    self.found.end();
                    self.response = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(output: u8, text: &str) -> Vec<u8> {
        let length = u32::try_from(text.len()).unwrap().to_be_bytes();
        [&[output, 0, 0, 0][..], &length, text.as_bytes()].concat()
    }

    #[test]
    fn lines_are_whole_however_the_stream_is_cut() {
        let stream = [
            // Lines of the two outputs are interleaved, and one line spans two frames.
            frame(2, "first\nhalf"),
            frame(1, "printed\n"),
            frame(2, " and half\r\n"),
            frame(2, "last"),
        ]
        .concat();
        for size in [1, 3, 7, stream.len()] {
            let mut found = Demultiplexer::default();
            stream.chunks(size).for_each(|part| found.push(part));
            found.end();
            assert_eq!(found.lines, ["first", "printed", "half and half", "last"], "{size}");
        }
    }
}
