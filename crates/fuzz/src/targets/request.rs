//! Mutates request bodies of every endpoint.

use candlepower_api::{
    ChatCompletionRequest, CompletionRequest, DetokenizeRequest, EmbeddingsRequest, FieldError,
    GenerateRequest, MessagesRequest, RerankRequest, ResponsesRequest, ScoreRequest,
    TokenizeRequest,
};
use serde_json::{Value, json};

use crate::{Round, Verdict, change};

pub(super) fn open() -> Round {
    let bodies = bodies();
    let strange = strange();
    Box::new(move |random| {
        let (endpoint, body) = random.choice(&bodies).unwrap();
        let mut body = body.clone();
        (0..=random.usize(..2)).for_each(|_| change::json(&mut body, &strange, random));
        let mut bytes = body.to_string().into_bytes();
        if random.usize(..4) == 0 {
            let len = bytes.len();
            // These changes also break the JSON itself, or its UTF-8.
            change::file(&mut bytes, 0..len, random);
        }
        // Some bodies go to another endpoint than their own.
        let other = (random.usize(..8) == 0).then(|| random.choice(&bodies).unwrap().0);
        let endpoint = other.unwrap_or(*endpoint);
        endpoint(&bytes)
    })
}

/// An image within a body. Its bytes are not decoded by a parser of bodies.
const URL: &str = "data:image/png;base64,iVBORw0KGgo=";

/// An endpoint's parser of a body.
type Endpoint = fn(&[u8]) -> Verdict;

fn said<T>(parsed: Result<T, FieldError>) -> Verdict {
    match parsed {
        Ok(_) => Verdict::Accepted,
        Err(error) => Verdict::Refused(error.message),
    }
}

fn bodies() -> Vec<(Endpoint, Value)> {
    let tool =
        json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let messages = json!([
        {"role": "system", "content": "You are Ada."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
    ]);
    vec![
        (
            |body| said(ChatCompletionRequest::parse(body)),
            json!({"model": "m", "messages": messages, "temperature": 0.5, "top_p": 1, "top_k": -1, "n": 2,
            "stop": ["a"], "tools": [tool], "tool_choice": "auto", "stream": true, "seed": 1,
            "stream_options": {"include_usage": true}, "logit_bias": {"5": 1.5}, "logprobs": true, "top_logprobs": 2,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}),
        ),
        (
            |body| said(ChatCompletionRequest::parse(body)),
            json!({"model": "m", "messages": [{"role": "user", "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
                {"type": "image_url", "image_url": "https://a.b/c.png"}]}]}),
        ),
        (
            |body| said(ResponsesRequest::parse(body, &mut ())),
            json!({"model": "m", "input": [{"role": "user", "content": [
                {"type": "input_image", "image_url": URL, "detail": "auto"}]},
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": [
                    {"type": "input_image", "image_url": URL}]}]}),
        ),
        (
            |body| said(MessagesRequest::parse(body)),
            json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                {"type": "image", "source": {"type": "url", "url": "https://a.b/c.png"}}]}]}),
        ),
        (
            |body| said(CompletionRequest::parse(body)),
            json!({"model": "m", "prompt": ["a", "b"], "echo": true, "logprobs": 1, "max_tokens": 3, "min_p": 0.1}),
        ),
        (
            |body| said(CompletionRequest::parse(body)),
            json!({"model": "m", "prompt": [[1, 2], [3]], "structured_outputs": {"regex": "a+"}}),
        ),
        (
            |body| said(MessagesRequest::parse(body)),
            json!({"model": "m", "max_tokens": 5, "system": "s", "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}], "thinking": {"type": "disabled"}}),
        ),
        (
            |body| said(ResponsesRequest::parse(body, &mut ())),
            json!({"model": "m", "input": [{"role": "user", "content": "hi"}], "text": {"format": {"type": "text"}}}),
        ),
        (
            |body| said(GenerateRequest::parse(body)),
            json!({"text": "once", "n": 2, "choices": ["a", "b"], "session": {"open": true}, "max_tokens": 3}),
        ),
        (
            |body| said(EmbeddingsRequest::parse(body)),
            json!({"model": "m", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 8}),
        ),
        (
            |body| said(RerankRequest::parse(body)),
            json!({"model": "m", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1}),
        ),
        (
            |body| said(ScoreRequest::parse(body)),
            json!({"model": "m", "text_1": "a", "text_2": ["b", "c"]}),
        ),
        (
            |body| said(TokenizeRequest::parse(body)),
            json!({"model": "m", "prompt": "a", "add_special_tokens": false}),
        ),
        (|body| said(DetokenizeRequest::parse(body)), json!({"model": "m", "tokens": [1, 2, 3]})),
    ]
}

fn strange() -> Vec<Value> {
    vec![
        json!(null),
        json!(false),
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e300),
        json!(0.5),
        json!(""),
        json!("x".repeat(5_000)),
        json!("\u{0}\u{ffff}"),
        json!([]),
        json!([[]]),
        json!([1, "a", null]),
        json!({}),
        json!({"type": "text"}),
        json!({"type": "json_object", "json": {}, "regex": "("}),
    ]
}
