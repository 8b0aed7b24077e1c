//! The two servers that the names on the wire are read from. Together they cover both frameworks, both sets of metric
//! names, an API key and a reasoning model.

use serde_json::{Value, json};

use super::sources::{self, Literals};
use crate::support::{Request, Response, Server, ServerBuilder, TempFolder};

/// The API key of prism.
pub(super) const KEY: &str = "a-key";

/// A chat template that opens a reasoning block.
const REASONING: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}{{ m.content }}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";

pub(super) struct Servers {
    /// The default settings.
    pub(super) blaze: Server,
    /// Prism with an API key, allowed origins, reasoning, and vLLM's metric names.
    pub(super) prism: Server,
    /// String literals of the crates `api` and `server`.
    pub(super) literals: [Literals; 2],
    _folder: TempFolder,
}

impl Servers {
    pub(super) fn start() -> Self {
        let folder = TempFolder::new();
        let template = folder.write("template.jinja", REASONING);
        let blaze = ServerBuilder::new("demo").listen();
        let prism = ServerBuilder::new("demo")
            .flags("--framework prism --metrics-compat vllm --reasoning-parser qwen3 --allowed-origins *")
            .flags(&format!("--api-key {KEY}"))
            .flag("--chat-template", template)
            .listen();
        // While they load.
        let literals = ["api", "server"].map(|crate_name| sources::of(crate_name).literals());
        blaze.wait_until_healthy();
        prism.wait_until_healthy();
        Self { blaze, prism, literals, _folder: folder }
    }

    /// The OpenAPI document.
    pub(super) fn document(&self) -> Value {
        self.blaze.get("/openapi.json").ok()
    }

    /// Sends a request to prism, with its key.
    pub(super) fn ask_prism(&self, request: Request) -> Response {
        self.prism.send(&with_key(request))
    }
}

pub(super) fn with_key(request: Request) -> Request {
    request.header("Authorization", &format!("Bearer {KEY}"))
}

/// A short valid request for each path with a body.
pub(super) fn bodies() -> Vec<(&'static str, Value)> {
    let messages = json!([{"role": "user", "content": "Hello!"}]);
    vec![
        ("/v1/chat/completions", json!({"model": "demo", "messages": messages, "max_tokens": 1})),
        ("/v1/completions", json!({"model": "demo", "prompt": "a", "max_tokens": 1})),
        ("/v1/responses", json!({"model": "demo", "input": "a", "max_output_tokens": 1})),
        ("/v1/responses/input_tokens", json!({"model": "demo", "input": "a"})),
        // The path has no body, and no such response exists.
        ("/v1/responses/{id}/cancel", json!({})),
        ("/v1/messages", json!({"model": "demo", "messages": messages, "max_tokens": 1})),
        ("/v1/messages/count_tokens", json!({"model": "demo", "messages": messages})),
        ("/generate", json!({"text": "a", "max_tokens": 1})),
        ("/v1/embeddings", json!({"model": "demo", "input": "a"})),
        ("/v1/rerank", json!({"model": "demo", "query": "a", "documents": ["b"]})),
        ("/v1/score", json!({"model": "demo", "text_1": "a", "text_2": "b"})),
        ("/tokenize", json!({"model": "demo", "prompt": "a"})),
        ("/detokenize", json!({"model": "demo", "tokens": [1]})),
    ]
}
