//! Measures streamed answers.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::api::{Api, error_text, shortened};

const DONE: &str = "[DONE]";

/// Measurements of a streamed answer; times are since the request was sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// Time to the first chunk with text; `None` if no chunk had any.
    pub(super) first_text: Option<Duration>,
    /// Time to the last chunk with text.
    pub(super) last_text: Option<Duration>,
    /// Times between chunks with text.
    pub(super) gaps: Vec<Duration>,
    /// Time to the end of the answer.
    pub(super) end: Duration,
    pub(super) usage: Usage,
}

/// Numbers of tokens, as the server counts them.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct Usage {
    #[serde(default)]
    pub(super) prompt_tokens: usize,
    #[serde(default)]
    pub(super) completion_tokens: usize,
    prompt_tokens_details: Option<PromptTokensDetails>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct PromptTokensDetails {
    cached_tokens: Option<usize>,
}

impl Usage {
    /// Prompt tokens that the server had in its prefix cache.
    pub(super) fn cached_tokens(&self) -> usize {
        self.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0)
    }
}

impl Api {
    /// Sends a request for a streamed answer, and reads it to its end.
    ///
    /// # Errors
    /// The server cannot be reached, answers with an error, breaks off, or does not report the number of generated tokens.
    pub(super) async fn measure(&self, path: &str, body: Vec<u8>) -> Result<Answer> {
        let mut reader = AnswerReader::new(Instant::now());
        let mut response = self.open(path, body).await?;
        while let Some(bytes) = response.chunk().await.map_err(|error| self.failure(&error))? {
            if reader.take(&bytes, Instant::now())? == Progress::Done {
                break;
            }
        }
        // Reading the end of the body makes the connection free for the next request.
        while let Ok(Some(_)) = response.chunk().await {}
        reader.finish()
    }
}

/// Whether an answer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Going,
    Done,
}

/// A reader of server-sent events.
struct AnswerReader {
    sent: Instant,
    /// The first part of a line whose end has not arrived.
    line: Vec<u8>,
    progress: Progress,
    usage: Option<Usage>,
    answer: Answer,
}

#[derive(Deserialize)]
struct Chunk {
    choices: Option<Vec<Choice>>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
}

impl Choice {
    fn has_text(&self) -> bool {
        let delta = self.delta.as_ref();
        let texts = [
            self.text.as_ref(),
            delta.and_then(|delta| delta.content.as_ref()),
            delta.and_then(|delta| delta.reasoning_content.as_ref()),
        ];
        texts.into_iter().flatten().any(|text| !text.is_empty())
    }
}

impl AnswerReader {
    fn new(sent: Instant) -> Self {
        Self {
            sent,
            line: Vec::new(),
            progress: Progress::Going,
            usage: None,
            answer: Answer::default(),
        }
    }

    /// Takes bytes that arrived `now`.
    fn take(&mut self, bytes: &[u8], now: Instant) -> Result<Progress> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.take_line(&line, now)?;
            }
        }
        Ok(self.progress)
    }

    fn take_line(&mut self, line: &[u8], now: Instant) -> Result<()> {
        // A space behind the colon is optional, and other lines are comments or events without data.
        let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else {
            return Ok(());
        };
        if data == DONE.as_bytes() {
            self.progress = Progress::Done;
            self.answer.end = now - self.sent;
            return Ok(());
        }
        let chunk: Chunk = serde_json::from_slice(data).map_err(|error| {
            let data = String::from_utf8_lossy(data);
            anyhow!("a chunk of the stream is invalid ({error}): {}", shortened(&data))
        })?;
        if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
            bail!(
                "the server reports an error within the answer: {}",
                shortened(&error_text(&error))
            );
        }
        // Servers send usage in the last chunk or in each. The last one counts all tokens.
        self.usage = chunk.usage.or(self.usage);
        // The first chunk of a chat has the role and an empty text. It does not stand for a token.
        if chunk.choices.iter().flatten().any(Choice::has_text) {
            self.take_text(now - self.sent);
        }
        Ok(())
    }

    fn take_text(&mut self, time: Duration) {
        let answer = &mut self.answer;
        match answer.last_text {
            None => answer.first_text = Some(time),
            Some(last) => answer.gaps.push(time - last),
        }
        answer.last_text = Some(time);
    }

    fn finish(self) -> Result<Answer> {
        if self.progress == Progress::Going {
            bail!("the answer ended without {DONE}");
        }
        let Some(usage) = self.usage else {
            bail!(
                "the answer has no `usage`, although the request asked for it (stream_options.include_usage)"
            );
        };
        Ok(Answer { usage, ..self.answer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The stream has the variants that servers send: CR LF, no space after the colon, comments, both endpoints'
    // chunks, null.
    const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"a b\"}}]}\r\n\r\n: a comment\n\
        data:{\"choices\":[{\"text\":\"c\"}],\"usage\":null}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":7,\
        \"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";

    fn read(stream: &str, cut: usize) -> Result<Answer> {
        let sent = Instant::now();
        let mut reader = AnswerReader::new(sent);
        for (i, bytes) in stream.as_bytes().chunks(cut).enumerate() {
            reader.take(bytes, sent + Duration::from_millis(i as u64))?;
        }
        reader.finish()
    }

    #[test]
    fn tokens_are_those_of_the_usage_however_the_bytes_are_cut() {
        for cut in [1, 7, 4096] {
            let answer = read(STREAM, cut).unwrap();
            assert_eq!((answer.usage.prompt_tokens, answer.usage.completion_tokens), (5, 7));
            assert_eq!((answer.usage.cached_tokens(), answer.gaps.len()), (4, 1));
            assert!(answer.first_text <= answer.last_text && answer.first_text.is_some());
        }
    }

    #[test]
    fn what_is_wrong_with_an_answer_is_told() {
        let cut = |stream: &str| read(stream, 64).unwrap_err().to_string();
        assert!(cut("data: {\"choices\":[]}\n\n").contains("without [DONE]"));
        assert!(cut("data: {\"choices\":[]}\n\ndata: [DONE]\n\n").contains("usage"));
        assert!(cut("data: {\"error\":{\"message\":\"oh\"}}\n\n").ends_with("answer: oh"));
        assert!(cut("data: {nonsense\n\n").contains("nonsense"));
    }
}
