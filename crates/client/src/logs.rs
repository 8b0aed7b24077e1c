//! Streams of log lines, for all backends.

use std::fmt;

use futures::StreamExt;
use futures::stream::{BoxStream, unfold};

/// Log lines as they are written, until the deployment is deleted.
pub struct LogStream(BoxStream<'static, String>);

/// A source of log lines.
pub(crate) trait Lines: Send + 'static {
    /// The next line; `None` after the last one.
    fn next(&mut self) -> impl Future<Output = Option<String>> + Send;
}

impl LogStream {
    pub(crate) fn new(lines: impl Lines) -> Self {
        let next = |mut lines| async move { Some((Lines::next(&mut lines).await?, lines)) };
        Self(unfold(lines, next).boxed())
    }

    /// The next line; `None` once the deployment is gone.
    pub async fn next(&mut self) -> Option<String> {
        self.0.next().await
    }
}

impl fmt::Debug for LogStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogStream")
    }
}

/// The final message of a server that ended: its last line that is not empty, without time and level.
#[cfg(any(feature = "docker", feature = "kubernetes"))]
pub(crate) fn last_words(lines: &[String]) -> Option<String> {
    let line = lines.iter().rev().map(|line| line.trim()).find(|line| !line.is_empty())?;
    let words = line.split_once(" ERROR ").map_or(line, |(_, words)| words);
    Some(words.strip_prefix("error: ").unwrap_or(words).trim().to_owned())
}

#[cfg(all(test, any(feature = "docker", feature = "kubernetes")))]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_says_why() {
        let words = |text: &str| last_words(&text.lines().map(str::to_owned).collect::<Vec<_>>());
        let log = "2026-11-21T20:00:00.1Z  INFO listening\n2026-11-21T20:00:01.1Z ERROR the file is damaged\n\n";
        assert_eq!(words(log).as_deref(), Some("the file is damaged"));
        assert_eq!(words("error: BLAZE_X is not known").as_deref(), Some("BLAZE_X is not known"));
        assert_eq!(words("\n"), None);
    }
}
