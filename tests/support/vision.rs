//! Servers of golden models that take images, and requests with the goldens' pictures.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use candlepower_testing::goldens::{self, picture};
use serde_json::{Value, json};

use super::ServerBuilder;

/// A server of a golden under the demo's name. Its values are those of the goldens in float32 alone.
pub(crate) fn vision_server(golden: &str) -> ServerBuilder {
    ServerBuilder::new(goldens::folder(golden)).flags("--dtype float32 --served-model-name demo")
}

/// The bytes of a picture of the goldens in base64.
pub(crate) fn picture_base64(name: &str) -> String {
    STANDARD.encode(std::fs::read(picture(name)).unwrap())
}

/// A picture of the goldens as a data URL.
pub(crate) fn picture_url(name: &str) -> String {
    format!("data:image/png;base64,{}", picture_base64(name))
}

/// A golden's messages for /v1/chat/completions: names of pictures become data URLs.
pub(crate) fn with_pictures(messages: &Value) -> Value {
    each_part(messages, |part| match part["image_url"]["url"].as_str() {
        Some(name) => json!({"type": "image_url", "image_url": {"url": picture_url(name)}}),
        None => part.clone(),
    })
}

/// A golden's messages as the `input` of /v1/responses.
pub(crate) fn as_input(messages: &Value) -> Value {
    each_part(messages, |part| match part["image_url"]["url"].as_str() {
        Some(name) => {
            json!({"type": "input_image", "image_url": picture_url(name), "detail": "auto"})
        }
        None => json!({"type": "input_text", "text": part["text"]}),
    })
}

/// A golden's messages as those of /v1/messages.
pub(crate) fn as_blocks(messages: &Value) -> Value {
    each_part(messages, |part| match part["image_url"]["url"].as_str() {
        Some(name) => {
            let data = picture_base64(name);
            let source = json!({"type": "base64", "media_type": "image/png", "data": data});
            json!({"type": "image", "source": source})
        }
        None => part.clone(),
    })
}

/// The messages with every part of a list of contents replaced.
fn each_part(messages: &Value, replace: impl Fn(&Value) -> Value) -> Value {
    let mut messages = messages.clone();
    for message in messages.as_array_mut().unwrap() {
        for part in message["content"].as_array_mut().into_iter().flatten() {
            *part = replace(part);
        }
    }
    messages
}
