//! Reads a streamed answer.

use anyhow::{Result, anyhow, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::api::{error_text, shortened};

/// Maximum bytes of one event.
const MAX_EVENT: usize = 16 << 20;

/// An answer, as far as it has arrived.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answer {
    pub(super) reasoning: String,
    pub(super) content: String,
    pub(super) calls: Vec<Call>,
    /// The reason of its end.
    pub(super) finish: Option<String>,
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    /// JSON as text.
    pub(super) arguments: String,
}

/// New text of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    Reasoning(&'a str),
    Content(&'a str),
}

/// A reader of the server-sent events of one answer.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The first part of a line whose end has not arrived.
    line: Vec<u8>,
    pub(super) answer: Answer,
}

#[derive(Deserialize)]
struct Chunk {
    choices: Option<Vec<Choice>>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    // Some servers call it by the second name.
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    tool_calls: Option<Vec<CallPart>>,
}

#[derive(Deserialize)]
struct CallPart {
    index: Option<usize>,
    id: Option<String>,
    function: Option<FunctionPart>,
}

#[derive(Deserialize)]
struct FunctionPart {
    name: Option<String>,
    arguments: Option<String>,
}

impl Answer {
    /// Whether the model has written anything.
    pub(super) fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.content.is_empty() && self.calls.is_empty()
    }
}

impl Reader {
    /// Takes bytes of the stream, and shows new text. Returns whether the answer is complete.
    ///
    /// # Errors
    /// The server reports an error, or sends no valid event.
    pub(super) fn take(&mut self, bytes: &[u8], show: &mut dyn FnMut(Piece<'_>)) -> Result<bool> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.len() > MAX_EVENT {
                bail!("the server sends an event of more than {} MiB", MAX_EVENT >> 20);
            }
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                if self.take_line(&line, show)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn take_line(&mut self, line: &[u8], show: &mut dyn FnMut(Piece<'_>)) -> Result<bool> {
        // A space behind the colon is optional, and other lines are comments or events without data.
        let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else {
            return Ok(false);
        };
        if data == b"[DONE]" {
            return Ok(true);
        }
        let chunk: Chunk = serde_json::from_slice(data).map_err(|error| {
            let data = String::from_utf8_lossy(data);
            anyhow!("a part of the answer is invalid ({error}): {}", shortened(&data))
        })?;
        if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
            bail!("the server reports an error: {}", shortened(&error_text(&error)));
        }
        let Some(choice) = chunk.choices.into_iter().flatten().next() else { return Ok(false) };
        if let Some(delta) = choice.delta {
            self.take_delta(delta, show);
        }
        self.answer.finish = choice.finish_reason.or(self.answer.finish.take());
        Ok(false)
    }

    fn take_delta(&mut self, delta: Delta, show: &mut dyn FnMut(Piece<'_>)) {
        let answer = &mut self.answer;
        let is_text = |text: &String| !text.is_empty();
        if let Some(text) = delta.reasoning_content.or(delta.reasoning).filter(is_text) {
            answer.reasoning.push_str(&text);
            show(Piece::Reasoning(&text));
        }
        if let Some(text) = delta.content.filter(is_text) {
            answer.content.push_str(&text);
            show(Piece::Content(&text));
        }
        for part in delta.tool_calls.into_iter().flatten() {
            let index = part.index.unwrap_or(0);
            // Calls begin in their order.
            if index > answer.calls.len() {
                continue;
            }
            if index == answer.calls.len() {
                answer.calls.push(Call::default());
            }
            let call = &mut answer.calls[index];
            call.id.push_str(&part.id.unwrap_or_default());
            if let Some(function) = part.function {
                call.name.push_str(&function.name.unwrap_or_default());
                call.arguments.push_str(&function.arguments.unwrap_or_default());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(stream: &str, cut: usize) -> Result<(Answer, Vec<String>)> {
        let (mut reader, mut shown) = (Reader::default(), Vec::new());
        for bytes in stream.as_bytes().chunks(cut) {
            if reader.take(bytes, &mut |piece| shown.push(format!("{piece:?}")))? {
                return Ok((reader.answer, shown));
            }
        }
        bail!("no end")
    }

    #[test]
    fn an_answer_is_the_same_however_its_bytes_are_cut() {
        let stream = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n: a comment\r\n\
            data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"Hm\"}}]}\n\n\
            data: {\"choices\":[{\"delta\":{\"content\":\"Né\"}}]}\n\n\
            data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]}}]}\n\n\
            data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"}\"}}]},\"finish_reason\":\"tool_calls\"}]}\n\n\
            data: {\"choices\":[],\"usage\":null}\n\ndata:[DONE]\n\n";
        let call = Call { id: "c".into(), name: "f".into(), arguments: "{}".into() };
        let expected = Answer {
            reasoning: "Hm".into(),
            content: "Né".into(),
            calls: vec![call],
            finish: Some("tool_calls".into()),
        };
        for cut in [1, 7, 4096] {
            let (answer, shown) = read(stream, cut).unwrap();
            assert_eq!(answer, expected);
            assert_eq!(shown, ["Reasoning(\"Hm\")", "Content(\"Né\")"]);
        }
    }

    #[test]
    fn errors_within_an_answer_are_told() {
        let failed = |stream: &str| read(stream, 64).unwrap_err().to_string();
        assert!(failed("data: {\"error\":{\"message\":\"oh\"}}\n\n").ends_with("error: oh"));
        assert!(failed("data: {nonsense\n\n").contains("nonsense"));
    }

    #[test]
    fn an_event_without_an_end_is_not_kept() {
        let (mut reader, megabyte) = (Reader::default(), vec![b'a'; 1 << 20]);
        let mut take = || reader.take(&megabyte, &mut |_| {});
        assert!((0..16).all(|_| !take().unwrap()));
        let error = take().unwrap_err().to_string();
        assert_eq!(error, "the server sends an event of more than 16 MiB");
    }

    #[test]
    fn parts_of_a_call_that_has_not_begun_are_left_out() {
        let part = |index: usize, name: &str| {
            let call = serde_json::json!({"index": index, "function": {"name": name}});
            let chunk = serde_json::json!({"choices": [{"delta": {"tool_calls": [call]}}]});
            format!("data: {chunk}\n\n")
        };
        let stream = part(7, "far") + &part(0, "near") + "data: [DONE]\n\n";
        let (answer, _) = read(&stream, 4096).unwrap();
        assert_eq!(answer.calls, [Call { name: "near".into(), ..Call::default() }]);
    }
}
