//! A conversation as the JSON that the playground exports.

use serde_json::{Map, Value, json};

use super::{FORMAT, ROOT, Saved};
use crate::chat::answer::Call;
use crate::chat::conversation::{Conversation, Turn};
use crate::chat::tools::Tool;

/// Fields that have a place of their own in the playground.
const SETTINGS: [&str; 12] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "reasoning_effort",
    "logprobs",
    "top_logprobs",
];

impl Saved {
    pub(super) fn to_json(&self) -> Value {
        let (mut settings, mut extra) = (Map::new(), Map::new());
        let mut schema = json!({"isOn": false, "text": ""});
        for (name, value) in &self.settings {
            let format = &value["json_schema"]["schema"];
            if name == "response_format" && format.is_object() {
                schema = json!({"isOn": true, "text": format!("{format:#}")});
            } else if SETTINGS.contains(&name.as_str()) {
                settings.insert(name.clone(), value.clone());
            } else {
                extra.insert(name.clone(), value.clone());
            }
        }
        let extra =
            if extra.is_empty() { String::new() } else { format!("{:#}", Value::Object(extra)) };
        let tools = self.tools.iter().map(|Tool { name, description, parameters }| {
            json!({"name": name, "description": description, "parameters": parameters, "isOn": true})
        });
        let Conversation { system, turns } = &self.conversation;
        let id = |i: usize| if i == 0 { ROOT.to_owned() } else { format!("t{i}") };
        let chosen: Map<String, Value> =
            (0..turns.len()).map(|i| (id(i), id(i + 1).into())).collect();
        let turns = turns.iter().enumerate().map(|(i, turn)| {
            let mut saved = self.turn(turn);
            saved["id"] = id(i + 1).into();
            saved["parent"] = id(i).into();
            saved
        });
        json!({
            "format": FORMAT, "version": 1, "model": self.model, "system": system.clone().unwrap_or_default(),
            "settings": settings, "tools": tools.collect::<Vec<_>>(), "tool_choice": "auto", "schema": schema, "extra": extra,
            "conversation": {"turns": turns.collect::<Vec<_>>(), "chosen": chosen},
        })
    }

    fn turn(&self, turn: &Turn) -> Value {
        match turn {
            Turn::User { text, images } if images.is_empty() => {
                json!({"role": "user", "content": text})
            }
            Turn::User { text, images } => {
                json!({"role": "user", "content": text, "images": images})
            }
            Turn::Tool { call, result } => {
                json!({"role": "tool", "content": result, "callId": call.id, "name": call.name})
            }
            Turn::Assistant { answer, is_stopped } => {
                let mut saved =
                    json!({"role": "assistant", "content": answer.content, "model": self.model});
                if !answer.reasoning.is_empty() {
                    saved["reasoning"] = answer.reasoning.as_str().into();
                }
                if !answer.calls.is_empty() {
                    let call = |call: &Call| json!({"id": call.id, "name": call.name, "arguments": call.arguments});
                    saved["calls"] = answer.calls.iter().map(call).collect();
                }
                if let Some(finish) = &answer.finish {
                    saved["finish"] = finish.as_str().into();
                }
                if *is_stopped {
                    saved["isStopped"] = true.into();
                }
                saved
            }
        }
    }
}
