//! Requests to the endpoints that continue conversations, and their answers as clients parse them.

use serde_json::{Value, json};

/// An endpoint that continues conversations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Responses,
    Messages,
}

/// An answer as a client parses it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    /// Names and arguments.
    pub(crate) calls: Vec<(String, String)>,
    /// The finish reason: `finish_reason`, `stop_reason` or `status`, depending on the endpoint.
    pub(crate) finish: String,
}

impl Endpoint {
    pub(crate) const ALL: [Self; 3] = [Self::Chat, Self::Responses, Self::Messages];

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
        }
    }

    /// A tool in the endpoint's form.
    pub(crate) fn tool(self, name: &str, parameters: Value) -> Value {
        match self {
            Self::Chat => {
                json!({"type": "function", "function": {"name": name, "parameters": parameters}})
            }
            Self::Responses => {
                json!({"type": "function", "name": name, "parameters": parameters, "strict": false})
            }
            Self::Messages => json!({"name": name, "input_schema": parameters}),
        }
    }

    pub(super) fn request(self, question: &str, max_tokens: usize, more: &Value) -> Value {
        let messages = json!([{"role": "user", "content": question}]);
        let mut body = match self {
            Self::Responses => {
                json!({"input": question, "max_output_tokens": max_tokens, "store": false})
            }
            _ => json!({"messages": messages, "max_tokens": max_tokens}),
        };
        body["model"] = "demo".into();
        body["temperature"] = 0.into();
        let more = more.as_object().unwrap().clone();
        // The probe of a prompt's length keeps its limit of one token.
        let is_limit = |name: &String| name.starts_with("max_");
        let more = more.into_iter().filter(|(name, _)| max_tokens > 1 || !is_limit(name));
        body.as_object_mut().unwrap().extend(more);
        body
    }

    /// Parses a whole answer.
    pub(crate) fn whole(self, body: &Value) -> Answer {
        match self {
            Self::Chat => of_choice(&body["choices"][0]),
            Self::Responses => of_response(body),
            Self::Messages => of_message(body),
        }
    }

    /// Parses a streamed answer.
    #[track_caller]
    pub(crate) fn streamed(self, events: &str) -> Answer {
        let bodies = events.lines().filter_map(|line| line.strip_prefix("data: "));
        let bodies = bodies.filter(|body| *body != "[DONE]");
        let events: Vec<Value> = bodies.map(|body| serde_json::from_str(body).unwrap()).collect();
        let mut answer = Answer::default();
        for event in &events {
            match self {
                Self::Chat => answer.add_chunk(&event["choices"][0]),
                Self::Responses => answer.add_response_event(event),
                Self::Messages => answer.add_message_event(event),
            }
        }
        answer
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn of_choice(choice: &Value) -> Answer {
    let message = &choice["message"];
    let function = |call: &Value| {
        (
            text(&call["function"]["name"]).to_owned(),
            text(&call["function"]["arguments"]).to_owned(),
        )
    };
    Answer {
        content: text(&message["content"]).to_owned(),
        reasoning: text(&message["reasoning_content"]).to_owned(),
        calls: message["tool_calls"].as_array().into_iter().flatten().map(function).collect(),
        finish: text(&choice["finish_reason"]).to_owned(),
    }
}

fn of_response(response: &Value) -> Answer {
    let mut answer = Answer { finish: status(response), ..Answer::default() };
    for item in response["output"].as_array().unwrap() {
        let content = text(&item["content"][0]["text"]);
        match text(&item["type"]) {
            "message" => answer.content += content,
            "reasoning" => answer.reasoning += content,
            "function_call" => answer
                .calls
                .push((text(&item["name"]).to_owned(), text(&item["arguments"]).to_owned())),
            other => panic!("an item of type {other}"),
        }
    }
    answer
}

/// The status of a response, and the reason that it is incomplete.
fn status(response: &Value) -> String {
    match &response["incomplete_details"]["reason"] {
        Value::Null => text(&response["status"]).to_owned(),
        reason => format!("{}: {}", text(&response["status"]), text(reason)),
    }
}

fn of_message(message: &Value) -> Answer {
    let mut answer =
        Answer { finish: text(&message["stop_reason"]).to_owned(), ..Answer::default() };
    for block in message["content"].as_array().unwrap() {
        match text(&block["type"]) {
            "text" => answer.content += text(&block["text"]),
            "thinking" => answer.reasoning += text(&block["thinking"]),
            // The generated text, if it is no object.
            "tool_use" => {
                let broken = block["input"].get("INVALID_JSON").map(text).map(str::to_owned);
                let input = broken.unwrap_or_else(|| block["input"].to_string());
                answer.calls.push((text(&block["name"]).to_owned(), input));
            }
            other => panic!("a block of type {other}"),
        }
    }
    answer
}

impl Answer {
    fn add_chunk(&mut self, choice: &Value) {
        let delta = &choice["delta"];
        self.content += text(&delta["content"]);
        self.reasoning += text(&delta["reasoning_content"]);
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            if call.get("id").is_some() {
                self.calls.push((text(&function["name"]).to_owned(), String::new()));
            }
            let index = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
            self.calls[index].1 += text(&function["arguments"]);
        }
        self.finish += text(&choice["finish_reason"]);
    }

    fn add_response_event(&mut self, event: &Value) {
        let delta = text(&event["delta"]);
        match text(&event["type"]) {
            "response.output_text.delta" => self.content += delta,
            "response.reasoning_text.delta" => self.reasoning += delta,
            "response.output_item.added" if event["item"]["type"] == "function_call" => {
                self.calls.push((text(&event["item"]["name"]).to_owned(), String::new()));
            }
            "response.function_call_arguments.delta" => {
                self.calls.last_mut().unwrap().1 += delta;
            }
            "response.completed" | "response.incomplete" => {
                let response = &event["response"];
                self.finish = status(response);
                // The last event has the whole response, which must be the sum of the others.
                assert_eq!(&of_response(response), self, "{response}");
            }
            _ => {}
        }
    }

    fn add_message_event(&mut self, event: &Value) {
        let delta = &event["delta"];
        match text(&event["type"]) {
            "content_block_start" if event["content_block"]["type"] == "tool_use" => {
                self.calls.push((text(&event["content_block"]["name"]).to_owned(), String::new()));
            }
            "content_block_stop" => {
                // The object, as in a whole answer.
                if let Some((_, input)) = self.calls.last_mut()
                    && let Ok(object @ Value::Object(_)) = serde_json::from_str(input)
                {
                    *input = object.to_string();
                }
            }
            "message_delta" => self.finish += text(&delta["stop_reason"]),
            _ => {
                self.content += text(&delta["text"]);
                self.reasoning += text(&delta["thinking"]);
                if let Some(piece) = delta["partial_json"].as_str() {
                    self.calls.last_mut().unwrap().1 += piece;
                }
            }
        }
    }
}
