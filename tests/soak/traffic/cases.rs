//! Valid requests from one seed: every text endpoint, constraints, tools, sessions, stored responses.

use fastrand::Rng;
use serde_json::{Value, json};

use super::super::watch::call;
use crate::support::Request;

/// Sessions and responses that a client continues. Older ones expire.
const MAX_KEPT: usize = 8;

/// A valid request.
pub(super) struct Case {
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) body: Value,
}

impl Case {
    fn post(path: &str, body: Value) -> Self {
        Self { method: "POST", path: path.to_owned(), body }
    }

    fn without_body(method: &'static str, path: String) -> Self {
        Self { method, path, body: Value::Null }
    }

    pub(super) fn request(&self) -> Request {
        match self.method {
            "POST" => Request::post(&self.path, &self.body),
            method => Request::new(method, &self.path),
        }
    }

    /// The path without an id.
    pub(super) fn endpoint(&self) -> &str {
        if self.path.starts_with("/v1/responses/") { "/v1/responses/{id}" } else { &self.path }
    }

    pub(super) fn streams(&self) -> bool {
        self.body["stream"] == true
    }

    pub(super) fn stays_whole(&mut self) {
        if self.streams() {
            self.body["stream"] = false.into();
        }
    }

    /// Whether it refers to a session or a response, which may have expired.
    pub(super) fn follows(&self) -> bool {
        let session = &self.body["session"];
        let is_named = [&session["id"], &session["fork"], &self.body["previous_response_id"]];
        is_named.iter().any(|name| name.is_string()) || self.endpoint() == "/v1/responses/{id}"
    }

    /// Whether its stream is complete and without an error.
    pub(super) fn is_whole(&self, text: &str) -> bool {
        let ends: &[&str] = match self.path.as_str() {
            "/v1/responses" => &["event: response.completed\n", "event: response.incomplete\n"],
            "/v1/messages" => &["event: message_stop\n"],
            _ => &["data: [DONE]\n"],
        };
        ends.iter().any(|end| text.contains(end)) && !text.contains("\"error\":{")
    }
}

/// An endless sequence of requests.
pub(super) struct Cases {
    is_prism: bool,
    random: Rng,
    sessions: Vec<String>,
    responses: Vec<String>,
}

impl Cases {
    pub(super) fn new(framework: &str, seed: u64) -> Self {
        let is_prism = framework == "prism";
        Self { is_prism, random: Rng::with_seed(seed), sessions: Vec::new(), responses: Vec::new() }
    }

    /// Keeps the ids of an answer.
    pub(super) fn learn(&mut self, answer: &Value) {
        let of_choices = answer["choices"].as_array().into_iter().flatten();
        for id in of_choices.filter_map(|choice| choice["session"]["id"].as_str()) {
            self.sessions.push(id.to_owned());
        }
        if answer["object"] == "response" && answer["store"] == true {
            self.responses.extend(answer["id"].as_str().map(str::to_owned));
        }
        for ids in [&mut self.sessions, &mut self.responses] {
            ids.drain(..ids.len().saturating_sub(MAX_KEPT));
        }
    }

    pub(super) fn next(&mut self) -> Case {
        match self.random.u8(0..12) {
            0..=2 => self.chat(),
            3..=4 => self.completion(),
            5 => self.response(),
            6 => self.message(),
            7..=9 if self.is_prism => self.generate(),
            7..=8 => self.completion(),
            9 => self.chat(),
            _ => self.other(),
        }
    }

    fn one_in(&mut self, num: u8) -> bool {
        self.random.u8(0..num) == 0
    }

    fn text(&mut self) -> String {
        const WORDS: [&str; 16] = [
            "the", "capital", "of", "France", "is", "what", "and", "light", "seven", "a", "Größe",
            "you", "名前", "plus", "🦀", "12.5",
        ];
        let num = 1 << self.random.u8(0..7);
        let words: Vec<&str> = (0..num).map(|_| *self.random.choice(&WORDS).unwrap()).collect();
        words.join(" ")
    }

    fn conversation(&mut self) -> Value {
        let mut turns = Vec::new();
        for index in 0..2 * self.random.usize(0..3) + 1 {
            let role = ["user", "assistant"][index % 2];
            turns.push(json!({"role": role, "content": self.text()}));
        }
        turns.into()
    }

    /// Fields of all endpoints that generate.
    fn drawing(&mut self, max_tokens: &str) -> Value {
        // Temperature 0 is greedy decoding.
        let temperature = *self.random.choice(&[0.0, 0.7, 1.0, 1.5]).unwrap();
        let mut body = json!({
            "model": "demo", "temperature": temperature, "top_p": 1.0 - 0.5 * self.random.f64(), "stream": self.random.bool(),
        });
        body[max_tokens] = self.random.u8(16..80).into();
        body
    }

    /// Further fields of chat, completions and /generate.
    fn choices(&mut self, body: &mut Value) {
        if self.one_in(3) {
            body["n"] = self.random.u8(2..6).into();
        }
        if self.one_in(3) {
            body["stop"] = json!([" the", "\n"]);
        }
        if self.one_in(4) {
            body["seed"] = self.random.i32(..).into();
            body["frequency_penalty"] = json!(0.5);
        }
        if self.one_in(4) {
            body["ignore_eos"] = true.into();
            body["min_tokens"] = 4.into();
        }
    }

    fn schema(&mut self, depth: u8) -> Value {
        match self.random.u8(0..if depth == 0 { 4 } else { 6 }) {
            0 => json!({"type": "integer", "minimum": 0, "maximum": self.random.u32(1..1000)}),
            1 => json!({"enum": ["red", "green", self.random.u8(..)]}),
            2 => json!({"type": "string", "pattern": "^[a-z]{1,8}$"}),
            3 => json!({"type": "boolean"}),
            4 => json!({"type": "array", "items": self.schema(depth - 1), "maxItems": 3}),
            _ => {
                let properties = json!({"a": self.schema(depth - 1), "b": self.schema(depth - 1)});
                json!({"type": "object", "properties": properties, "required": ["a"], "additionalProperties": false})
            }
        }
    }

    fn object(&mut self) -> Value {
        json!({"type": "object", "properties": {"of": self.schema(2)}, "required": ["of"], "additionalProperties": false})
    }

    fn constraint(&mut self, body: &mut Value) {
        let length = self.random.u8(1..12);
        body["structured_outputs"] = match self.random.u8(0..6) {
            0 => json!({"regex": format!("[a-z]{{1,{length}}}(-[0-9]{{2}})?")}),
            1 => json!({"choice": ["yes", "no", self.text()]}),
            2 => {
                json!({"grammar": format!("start: \"a\" b\nb: \"(\" b \")\" | /x{{1,{length}}}/")})
            }
            3 => {
                json!({"grammar": format!("root ::= \"a\" b\nb ::= \"(\" b \")\" | [x-z]{{1,{length}}}")})
            }
            4 => json!({"json": self.object()}),
            _ => json!({"json_object": true}),
        };
    }

    fn chat(&mut self) -> Case {
        let mut body = self.drawing("max_tokens");
        body["messages"] = self.conversation();
        self.choices(&mut body);
        match self.random.u8(0..5) {
            0 => self.constraint(&mut body),
            1 => {
                let format = json!({"name": "a", "schema": self.object()});
                body["response_format"] = json!({"type": "json_schema", "json_schema": format});
            }
            2 => {
                body["tools"] = call()["tools"].clone();
                body["tools"][0]["function"]["parameters"] = self.object();
                body["tool_choice"] = (*self.random.choice(&["auto", "required"]).unwrap()).into();
            }
            3 => {
                body["logprobs"] = true.into();
                body["top_logprobs"] = self.random.u8(0..5).into();
            }
            _ => {}
        }
        Case::post("/v1/chat/completions", body)
    }

    fn completion(&mut self) -> Case {
        let mut body = self.drawing("max_tokens");
        body["prompt"] = self.text().into();
        self.choices(&mut body);
        match self.random.u8(0..3) {
            0 => self.constraint(&mut body),
            1 => body["logprobs"] = self.random.u8(0..5).into(),
            _ => {}
        }
        Case::post("/v1/completions", body)
    }

    fn response(&mut self) -> Case {
        let mut body = self.drawing("max_output_tokens");
        body["input"] = self.text().into();
        if self.one_in(3) {
            body["store"] = false.into();
        }
        if self.one_in(3) {
            let format = json!({"type": "json_schema", "name": "a", "schema": self.object()});
            body["text"] = json!({"format": format});
        }
        if let Some(id) = self.random.choice(&self.responses).cloned().filter(|_| self.one_in(2)) {
            body["previous_response_id"] = id.into();
        }
        Case::post("/v1/responses", body)
    }

    fn message(&mut self) -> Case {
        let mut body = self.drawing("max_tokens");
        body["messages"] = self.conversation();
        if self.one_in(3) {
            body["system"] = self.text().into();
        }
        if self.one_in(3) {
            body["stop_sequences"] = json!(["\n"]);
        }
        if self.one_in(4) {
            body["tools"] = json!([{"name": "f", "input_schema": self.object()}]);
        } else if self.one_in(3) {
            let format = json!({"type": "json_schema", "schema": self.object()});
            body["output_config"] = json!({"format": format});
        }
        Case::post("/v1/messages", body)
    }

    fn generate(&mut self) -> Case {
        let session = self.random.choice(&self.sessions).cloned();
        // The closed session must not be used again.
        if let Some(id) = session.clone().filter(|_| self.one_in(8)) {
            self.sessions.retain(|known| *known != id);
            return Case::post("/generate", json!({"session": {"id": id, "close": true}}));
        }
        let text = self.text();
        let session = match (self.random.u8(0..4), session) {
            (0, _) => Value::Null,
            (1, Some(id)) => json!({"fork": id}),
            (2 | 3, Some(id)) => json!({"id": id}),
            _ => json!({"open": true}),
        };
        if self.one_in(6) {
            let choices = json!([" yes", " no", format!(" {text}")]);
            return Case::post(
                "/generate",
                json!({"text": text, "choices": choices, "session": session}),
            );
        }
        let mut body = self.drawing("max_tokens");
        body["text"] = text.into();
        body["session"] = session;
        self.choices(&mut body);
        // A session has one continuation.
        if body["session"]["id"].is_string() {
            body["n"] = 1.into();
        }
        match self.random.u8(0..3) {
            0 => self.constraint(&mut body),
            1 => body["logprobs"] = self.random.u8(0..5).into(),
            _ => {}
        }
        Case::post("/generate", body)
    }

    /// Requests that generate nothing.
    fn other(&mut self) -> Case {
        let response = self.random.choice(&self.responses).cloned();
        match (self.random.u8(0..8), response) {
            (0 | 1, Some(id)) => {
                self.responses.retain(|known| *known != id);
                Case::without_body("DELETE", format!("/v1/responses/{id}"))
            }
            (2, Some(id)) => Case::without_body("GET", format!("/v1/responses/{id}")),
            (3, _) => Case::post("/tokenize", json!({"messages": self.conversation()})),
            (4, _) => {
                // The ids below 1270 are ordinary tokens.
                let ids: Vec<u32> =
                    (0..self.random.u8(1..100)).map(|_| self.random.u32(0..1270)).collect();
                Case::post("/detokenize", json!({"tokens": ids}))
            }
            (5, _) => {
                let body = json!({"model": "demo", "messages": self.conversation()});
                Case::post("/v1/messages/count_tokens", body)
            }
            (6, _) => Case::without_body("GET", "/v1/models".to_owned()),
            (7, _) => Case::without_body("GET", "/metrics".to_owned()),
            _ => Case::post("/tokenize", json!({"prompt": self.text()})),
        }
    }
}
