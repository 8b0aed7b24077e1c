//! Images in requests to a server whose model takes none, and parts of messages that no model takes.

use serde_json::{Value, json};

use crate::support::{Request, Server, ServerBuilder};

/// Conversations, and the place of the image in each.
type Cases<'a> = &'a [(Value, &'a str)];

const PICTURE: &str = "data:image/png;base64,iVBORw0KGgo=";

fn chat_image() -> Value {
    json!({"type": "image_url", "image_url": {"url": PICTURE}})
}

fn user(content: Value) -> Value {
    json!({"role": "user", "content": content})
}

/// A tool's turn of the chat API with this content, after its call.
fn chat_tool(content: Value) -> Value {
    json!([
        user(json!("a")),
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": content},
    ])
}

fn refuse(server: &Server, path: &str, body: Value, param: &str) -> String {
    let response = server.post(path, &body);
    // Errors of /v1/messages have another form around the same fields.
    let error = response.json()["error"].take();
    assert_eq!((response.status, &error["param"]), (400, &json!(param)), "{path} {body}: {error}");
    error["message"].as_str().unwrap().to_owned()
}

#[test]
fn text_models_refuse_images_in_every_turn_of_every_api() {
    let server = Server::demo();
    let earlier = json!([
        user(json!([{"type": "text", "text": "a"}, chat_image()])),
        {"role": "assistant", "content": "b"}, user(json!("c")),
    ]);
    let chat = [
        (json!([user(json!([chat_image()]))]), "messages[0].content[0].image_url"),
        (earlier, "messages[0].content[1].image_url"),
        (chat_tool(json!([chat_image()])), "messages[2].content[0].image_url"),
        (
            json!([user(json!([{"type": "image_url", "image_url": PICTURE}]))]),
            "messages[0].content[0].image_url",
        ),
    ];
    let input_image = json!({"type": "input_image", "image_url": PICTURE, "detail": "auto"});
    let output = json!({"type": "function_call_output", "call_id": "c", "output": [input_image]});
    let responses = [
        (json!([user(json!([input_image]))]), "input[0].content[0].image_url"),
        (json!([user(json!("a")), output]), "input[1].output[0].image_url"),
    ];
    let source = json!({"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="});
    let block = json!({"type": "image", "source": source});
    let result = json!({"type": "tool_result", "tool_use_id": "c", "content": [block]});
    let messages = [
        (json!([user(json!([block]))]), "messages[0].content[0].source"),
        (json!([user(json!([result]))]), "messages[0].content[0].content[0].source"),
    ];
    let paths: [(&str, &str, Cases); 6] = [
        ("/v1/chat/completions", "messages", &chat),
        ("/tokenize", "messages", &chat),
        ("/v1/responses", "input", &responses),
        ("/v1/responses/input_tokens", "input", &responses),
        ("/v1/messages", "messages", &messages),
        ("/v1/messages/count_tokens", "messages", &messages),
    ];
    for (path, field, cases) in paths {
        for (conversation, param) in cases {
            let mut body = json!({field: conversation});
            if path == "/v1/messages" {
                body["max_tokens"] = 1.into();
            }
            let message = refuse(&server, path, body, param);
            assert!(message.contains("takes text only"), "{path}: {message}");
        }
    }
    let models = server.get("/v1/models").ok();
    assert_eq!(models["data"][0]["input_modalities"], json!(["text"]));
    assert_eq!(server.metrics().value("candlepower_images_processed_total"), 0.0);
}

#[test]
fn parts_that_no_model_takes_are_named() {
    let server = Server::demo();
    for part in [
        json!({"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}),
        json!({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}),
        json!({"type": "audio_url", "audio_url": {"url": "data:,"}}),
        json!({"type": "file", "file": {"file_data": "data:application/pdf;base64,AA=="}}),
    ] {
        let kind = part["type"].as_str().unwrap().to_owned();
        let body = json!({"messages": [user(json!([{"type": "text", "text": "a"}, part]))]});
        let message = refuse(&server, "/v1/chat/completions", body, "messages[0].content[1]");
        assert!(message.contains(&kind) && message.contains("`text` and `image_url`"), "{message}");
    }
    for part in [json!({"type": "input_file", "file_id": "f"}), json!({"type": "input_video"})] {
        let body = json!({"input": [user(json!([part]))]});
        let message = refuse(&server, "/v1/responses", body, "input[0].content[0].type");
        assert!(message.contains("input_text") && message.contains("input_image"), "{message}");
    }
    let source = json!({"type": "base64", "media_type": "application/pdf", "data": "AA=="});
    for part in [json!({"type": "document", "source": source}), json!({"type": "search_result"})] {
        let body = json!({"max_tokens": 1, "messages": [user(json!([part]))]});
        let message = refuse(&server, "/v1/messages", body, "messages[0].content[0].type");
        assert!(message.contains("text, image or tool_result"), "{message}");
    }
    for role in ["system", "developer", "assistant"] {
        let body =
            json!({"messages": [{"role": role, "content": [chat_image()]}, user(json!("a"))]});
        let param = "messages[0].content[0].image_url";
        let message = refuse(&server, "/v1/chat/completions", body, param);
        assert!(message.contains("user and tool"), "{message}");
    }
    let detail = json!({"type": "image_url", "image_url": {"url": PICTURE, "detail": "ultra"}});
    let body = json!({"messages": [user(json!([detail]))]});
    let param = "messages[0].content[0].image_url.detail";
    let message = refuse(&server, "/v1/chat/completions", body, param);
    assert!(message.contains("auto, high or low"), "{message}");
    let file = json!({"type": "input_image", "file_id": "f"});
    let body = json!({"input": [user(json!([file]))]});
    refuse(&server, "/v1/responses", body, "input[0].content[0].file_id");
}

/// A picture is no text, so that the limit of a prompt's text does not count it.
#[test]
fn bodies_with_large_pictures_are_read() {
    let server = Server::demo();
    let body = |bytes: usize| {
        let url = format!("data:image/png;base64,{}", "A".repeat(bytes));
        let image = json!({"type": "image_url", "image_url": {"url": url}});
        json!({"messages": [user(json!([{"type": "text", "text": "a"}, image]))]})
    };
    let param = "messages[0].content[1].image_url";
    let message = refuse(&server, "/v1/chat/completions", body(31 << 20), param);
    assert!(message.contains("takes text only"), "{message}");
    server.send(&Request::post("/v1/chat/completions", &body(32 << 20))).error(413);
}

#[test]
fn settings_of_images_are_checked_at_the_start() {
    for (flag, value, advice) in [
        ("--limit-mm-per-prompt", "many", "image=NUMBER"),
        ("--limit-mm-per-prompt", "{\"images\": 1}", "image=NUMBER"),
        ("--allowed-media-domains", "https://example.com/", "is no domain"),
        ("--allowed-local-media-path", "/no/such/folder", "a folder that exists"),
        ("--image-memory", "1Zi", "1Zi"),
    ] {
        let refused = ServerBuilder::new("demo").flag(flag, value).refused();
        assert!(refused.message.contains(advice), "{flag} {value}: {}", refused.message);
    }
    let server = ServerBuilder::new("demo")
        .flags("--language-model-only --allowed-media-domains a.example,.b.example:8080")
        .env("BLAZE_LIMIT_MM_PER_PROMPT", "{\"image\": 2}")
        .start();
    let body = json!({"messages": [user(json!([chat_image()]))]});
    refuse(&server, "/v1/chat/completions", body, "messages[0].content[0].image_url");
}
