//! Valid and invalid chat requests.

use super::*;

fn parse(body: &str) -> Result<ChatCompletionRequest, FieldError> {
    ChatCompletionRequest::parse(body.as_bytes())
}

/// A request with one message and `more` fields.
fn with(more: &str) -> Result<ChatCompletionRequest, FieldError> {
    parse(&format!(
        r#"{{"model": "m", "messages": [{{"role": "user", "content": "hi"}}], {more}}}"#
    ))
}

fn message(text: &str) -> Result<ChatCompletionRequest, FieldError> {
    parse(&format!(r#"{{"model": "m", "messages": [{text}]}}"#))
}

fn refused(result: Result<ChatCompletionRequest, FieldError>) -> String {
    result.unwrap_err().param.unwrap()
}

#[test]
fn a_conversation_is_read() {
    let request = parse(
        r#"{"model": "m", "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "x"},
            {"role": "assistant", "content": "ok", "refusal": null, "annotations": [], "audio": null, "tool_calls": []}
        ]}"#,
    )
    .unwrap();
    assert_eq!(request.messages.len(), 3);
    assert_eq!(request.messages[1].content.as_ref().unwrap().to_text(), "a\nb");
    assert_eq!(request.messages[1].name.as_deref(), Some("x"));
    assert_eq!(request.messages[2].tool_calls, None);
}

#[test]
fn calls_of_tools_in_the_history_are_kept() {
    let request = message(
        r#"{"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function",
            "function": {"name": "f", "arguments": "{}"}}]},
           {"role": "tool", "content": "42", "tool_call_id": "call_1"}"#,
    )
    .unwrap();
    assert_eq!(request.messages[0].tool_calls.as_ref().unwrap()[0].0["id"], "call_1");
    assert_eq!(request.messages[1].tool_call_id.as_deref(), Some("call_1"));
    let call = |call: &str| {
        refused(message(&format!(
            r#"{{"role": "assistant", "content": null, "tool_calls": [{call}]}}"#
        )))
    };
    assert_eq!(call(r#"{"id": "call_1"}"#), "messages[0].tool_calls[0]");
    assert_eq!(call(r#"{"function": {"arguments": "{}"}}"#), "messages[0].tool_calls[0]");
    assert_eq!(call(r#"{"function": {"name": "f", "arguments": 7}}"#), "messages[0].tool_calls[0]");
    assert_eq!(
        call(r#"{"type": "custom", "function": {"name": "f", "arguments": "{}"}}"#),
        "messages[0].tool_calls[0]"
    );
}

#[test]
fn what_is_required_is_required() {
    let unnamed = parse(r#"{"messages": [{"role": "user", "content": "x"}]}"#).unwrap();
    assert_eq!(unnamed.model, None);
    assert_eq!(refused(parse(r#"{"model": "m"}"#)), "messages");
    assert_eq!(refused(parse(r#"{"model": "m", "messages": []}"#)), "messages");
    assert_eq!(refused(parse(r#"{"model": 7, "messages": []}"#)), "model");
    assert_eq!(refused(message(r#"{"content": "x"}"#)), "messages[0]");
    assert_eq!(refused(message(r#"{"role": "user"}"#)), "messages[0]");
    assert_eq!(refused(message(r#"{"role": "user", "content": null}"#)), "messages[0]");
}

#[test]
fn errors_inside_messages_name_their_path() {
    assert_eq!(refused(message(r#"{"role": "robot", "content": "x"}"#)), "messages[0].role");
    assert_eq!(refused(message(r#"{"role": "user", "content": 7}"#)), "messages[0].content");
    assert_eq!(
        refused(message(r#"{"role": "user", "content": "x", "audio": {"id": "1"}}"#)),
        "messages[0].audio"
    );
    let image = r#"{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}]}"#;
    let error = message(image).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("messages[0].content[1].image_url"));
    assert!(error.message.contains("no `url`"), "{}", error.message);
    assert_eq!(refused(message("7")), "messages[0]");
}

#[test]
fn what_cannot_change_the_output_is_accepted() {
    with(
        r#""user": "u", "metadata": {"k": "v"}, "store": false, "service_tier": "auto", "parallel_tool_calls": true,
           "tool_choice": "none", "response_format": {"type": "text"}, "tools": null, "modalities": ["text"]"#,
    )
    .unwrap();
}

#[test]
fn what_would_change_the_output_is_refused_by_name() {
    for (name, value) in [
        ("tool_choice", r#""auto""#),
        ("bad_words_ids", r#"[[1]]"#),
        ("functions", "[]"),
        ("modalities", r#"["text", "audio"]"#),
        ("audio", "{}"),
        ("num_beams", "2"),
        ("suffix", r#""x""#),
        ("banana", "1"),
    ] {
        assert_eq!(refused(with(&format!(r#""{name}": {value}"#))), name);
    }
}

#[test]
fn both_names_of_max_tokens_mean_one_thing() {
    assert_eq!(with(r#""max_tokens": 5"#).unwrap().generation.max_tokens, Some(5));
    assert_eq!(with(r#""max_completion_tokens": 6"#).unwrap().generation.max_tokens, Some(6));
    assert_eq!(
        with(r#""max_completion_tokens": 6, "max_tokens": 6"#).unwrap().generation.max_tokens,
        Some(6)
    );
    assert_eq!(
        refused(with(r#""max_completion_tokens": 6, "max_tokens": 5"#)),
        "max_completion_tokens"
    );
}

#[test]
fn types_are_strict() {
    assert_eq!(refused(with(r#""logprobs": 1"#)), "logprobs");
    assert_eq!(refused(with(r#""chat_template_kwargs": []"#)), "chat_template_kwargs");
    let deep =
        format!(r#""chat_template_kwargs": {{"a": {}{}}}"#, "[".repeat(5000), "]".repeat(5000));
    assert!(refused(with(&deep)).starts_with("chat_template_kwargs"));
}

#[test]
fn an_answer_of_reasoning_alone_is_taken_back() {
    let request =
        message(r#"{"role": "assistant", "content": null, "reasoning_content": "hm"}"#).unwrap();
    assert_eq!(request.messages[0].content, Some(Content::Text(String::new())));
    assert_eq!(request.messages[0].reasoning_content.as_deref(), Some("hm"));
    for role in ["assistant", "tool"] {
        let request = message(&format!(r#"{{"role": "{role}", "content": null}}"#)).unwrap();
        assert_eq!(request.messages[0].content, Some(Content::Text(String::new())));
    }
    for other in [r#"{"role": "assistant"}"#, r#"{"role": "user", "reasoning_content": "hm"}"#] {
        assert_eq!(refused(message(other)), "messages[0]");
    }
}

#[test]
fn what_other_clients_send_back_is_taken() {
    let request = message(
        r#"{"role": "assistant", "content": null, "refusal": "No.", "opts": {}, "timestamp": 1, "model": "m", "weight": 1,
            "provider_specific_fields": {}, "phase": "final_answer",
            "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": ""}]},
           {"role": "assistant", "content": [{"type": "thinking", "thinking": "a"}, {"type": "text", "text": "b"},
            {"type": "refusal", "refusal": "c"}], "reasoning_details": [{"type": "reasoning.text", "text": "d"}]},
           {"role": "tool", "tool_call_id": "c", "content": "gone", "is_error": true},
           {"role": "tool", "tool_call_id": "c", "content": "there", "is_error": false}"#,
    )
    .unwrap();
    let said = |index: usize| request.messages[index].content.as_ref().unwrap().to_text();
    assert_eq!([0, 1, 2, 3].map(said), ["No.", "b\nc", "Error: gone", "there"]);
    assert_eq!(request.messages[0].reasoning_content.as_deref(), Some("hm"));
    assert_eq!(request.messages[1].reasoning_content.as_deref(), Some("a"));
    let part =
        |part: &str| refused(message(&format!(r#"{{"role": "user", "content": [{part}]}}"#)));
    assert_eq!(part(r#"{"type": "text", "refusal": "x"}"#), "messages[0].content[0]");
    assert_eq!(part(r#"{"type": "refusal"}"#), "messages[0].content[0]");
}

#[test]
fn preferences_that_cannot_be_passed_on_are_reported() {
    let request = with(r#""verbosity": "low", "documents": [], "length_penalty": 1.0"#).unwrap();
    assert_eq!((request.not_held.line(), request.documents), ("verbosity (low)".to_owned(), None));
    assert!(with(r#""verbosity": "medium""#).unwrap().not_held.is_empty());
    assert_eq!(refused(with(r#""verbosity": "loud""#)), "verbosity");
    assert_eq!(refused(with(r#""documents": ["a"]"#)), "documents[0]");
}

/// A user's message with these parts.
fn parts(parts: &str) -> Result<ChatCompletionRequest, FieldError> {
    message(&format!(r#"{{"role": "user", "content": [{parts}]}}"#))
}

#[test]
fn images_keep_their_order_and_know_their_places() {
    let request = message(
        r#"{"role": "user", "content": [
             {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,1", "detail": "low"}},
             {"type": "image_url", "image_url": "data:,2"}, {"type": "text", "text": "b"},
             {"type": "input_image", "image_url": "data:,3", "detail": "high"}]},
           {"role": "tool", "tool_call_id": "c", "is_error": true, "content": [
             {"type": "image_url", "image_url": {"url": "data:,4", "detail": null}, "cache_control": {}}]}"#,
    )
    .unwrap();
    let images: Vec<_> = request.messages.iter().flat_map(ChatMessage::images).collect();
    let said = images.iter().map(|image| (image.path.as_str(), &image.source, image.detail));
    let url = |url: &str| crate::ImageSource::Url(url.to_owned());
    let (full, low) = (crate::ImageDetail::Full, crate::ImageDetail::Low);
    let expected = [
        ("messages[0].content[1].image_url", &url("data:,1"), low),
        ("messages[0].content[2].image_url", &url("data:,2"), full),
        ("messages[0].content[4].image_url", &url("data:,3"), full),
        ("messages[1].content[0].image_url", &url("data:,4"), full),
    ];
    assert_eq!(said.collect::<Vec<_>>(), expected);
    let content = request.messages[0].content.as_ref().unwrap();
    assert_eq!(content.to_text(), "a\nb");
    let texts: Vec<_> = content.parts().iter().map(ContentPart::text).collect();
    assert_eq!(texts, [Some("a"), None, None, Some("b"), None]);
    // A failed tool's picture stays.
    let failed = request.messages[1].content.as_ref().unwrap();
    assert_eq!((failed.to_text().as_str(), failed.images().count()), ("Error: ", 1));
    assert!(!format!("{request:?}").contains("data:"), "bytes are not written to logs");
}

#[test]
fn wrong_images_are_refused_by_their_place() {
    for (part, param, reason) in [
        (r#"{"type": "image_url"}"#, "messages[0].content[0]", "no `image_url`"),
        (r#"{"type": "image_url", "image_url": null}"#, "messages[0].content[0]", "no `image_url`"),
        (r#"{"type": "image_url", "image_url": 7}"#, "messages[0].content[0].image_url", "a URL"),
        (
            r#"{"type": "image_url", "image_url": {"url": 7}}"#,
            "messages[0].content[0].image_url.url",
            "string",
        ),
        (
            r#"{"type": "image_url", "image_url": {"url": "data:,", "detail": "ultra"}}"#,
            "messages[0].content[0].image_url.detail",
            "auto, high or low",
        ),
        (
            r#"{"type": "image_url", "image_url": "data:,", "detail": "ultra"}"#,
            "messages[0].content[0].detail",
            "auto, high or low",
        ),
        (
            r#"{"type": "image_url", "image_url": {"url": "data:,", "crop": 1}}"#,
            "messages[0].content[0].image_url.crop",
            "not supported",
        ),
        (
            r#"{"type": "image_url", "image_url": "data:,", "text": "x"}"#,
            "messages[0].content[0]",
            "`text` is not a field of an image part",
        ),
        (
            r#"{"type": "text", "text": "x", "image_url": "data:,"}"#,
            "messages[0].content[0]",
            "`image_url` is not a field of a text part",
        ),
        (
            r#"{"type": "video_url", "video_url": {"url": "data:,"}}"#,
            "messages[0].content[0]",
            "type `video_url` are not supported, only `text` and `image_url`",
        ),
        (
            r#"{"type": "input_audio", "input_audio": {}}"#,
            "messages[0].content[0]",
            "`input_audio`",
        ),
        (r#"{"type": "file", "file": {}}"#, "messages[0].content[0]", "`file`"),
    ] {
        let error = parts(part).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{part}: {}", error.message);
        assert!(error.message.contains(reason), "{}", error.message);
    }
    for role in ["system", "developer", "assistant"] {
        let image = r#"[{"type": "thinking", "thinking": "x"}, {"type": "image_url", "image_url": "data:,"}]"#;
        let error = message(&format!(r#"{{"role": "{role}", "content": {image}}}"#)).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("messages[0].content[1].image_url"));
        assert!(error.message.contains("user and tool"), "{}", error.message);
    }
}

/// The bytes of a picture are copied once from the body.
#[test]
fn large_pictures_are_taken() {
    let url = format!("data:image/png;base64,{}", "A".repeat(8 << 20));
    let request = parts(&format!(r#"{{"type": "image_url", "image_url": {{"url": "{url}"}}}}"#));
    let image = Arc::clone(request.unwrap().messages[0].images().next().unwrap());
    assert_eq!(image.source.num_bytes(), url.len());
    assert!(image.source.is_inline());
}
