//! Saved conversations, in the format that the playground exports and opens.
//!
//! The playground keeps a tree of turns. Here only its chosen path is read, and a path is saved.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use super::answer::{Answer, Call};
use super::conversation::{Conversation, Turn};
use super::tools::{self, Tool};

const FORMAT: &str = "candlepower-playground";
/// Maximum bytes of a file.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum number of turns.
const MAX_TURNS: usize = 10_000;
const ROOT: &str = "root";
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

/// All that is saved.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Saved {
    pub(super) model: String,
    pub(super) conversation: Conversation,
    pub(super) settings: Vec<(String, Value)>,
    pub(super) tools: Vec<Tool>,
}

impl Saved {
    /// Writes a file. One that is there is replaced if it is a saved conversation.
    ///
    /// # Errors
    /// The file is something else, or cannot be written.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let shown = path.display();
        if path.exists() && read_json(path).map_or(true, |found| found["format"] != FORMAT) {
            bail!("{shown} exists, and is no saved conversation");
        }
        let text = serde_json::to_string_pretty(&self.to_json())?;
        fs::write(path, text + "\n").with_context(|| format!("{shown} cannot be written"))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or is no saved conversation.
    pub(super) fn read(path: &Path) -> Result<Self> {
        Self::parse(&read_json(path)?)
            .with_context(|| format!("{} is no saved conversation", path.display()))
    }

    fn to_json(&self) -> Value {
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

    fn parse(value: &Value) -> Result<Self> {
        if value["format"] != FORMAT || value["version"] != 1 {
            bail!("`format` and `version` are others");
        }
        let mut settings: Vec<(String, Value)> = Vec::new();
        for (name, value) in value["settings"].as_object().into_iter().flatten() {
            settings.extend(setting(name, value).map(|value| (name.clone(), value)));
        }
        if value["schema"]["isOn"] == true {
            let schema = value["schema"]["text"].as_str().unwrap_or_default();
            let schema: Value = serde_json::from_str(schema).context("`schema.text`")?;
            let format = json!({"name": "answer", "strict": true, "schema": schema});
            settings.push((
                "response_format".into(),
                json!({"type": "json_schema", "json_schema": format}),
            ));
        }
        let extra = value["extra"].as_str().map(str::trim).filter(|text| !text.is_empty());
        let extra: Map<String, Value> =
            serde_json::from_str(extra.unwrap_or("{}")).context("`extra`")?;
        settings.extend(extra);
        let is_on = |tool: &&Value| tool["isOn"] != false;
        let tools: Vec<Value> =
            value["tools"].as_array().into_iter().flatten().filter(is_on).cloned().collect();
        let system = value["system"].as_str().filter(|text| !text.trim().is_empty());
        Ok(Self {
            model: value["model"].as_str().unwrap_or_default().to_owned(),
            conversation: Conversation {
                system: system.map(str::to_owned),
                turns: path(&value["conversation"])?,
            },
            settings,
            tools: tools::parse(&Value::Array(tools)).context("`tools`")?,
        })
    }
}

fn read_json(path: &Path) -> Result<Value> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text));
    read.with_context(|| format!("{} cannot be read", path.display()))?;
    if text.len() as u64 > MAX_BYTES {
        bail!("{} has more than {} MiB", path.display(), MAX_BYTES >> 20);
    }
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))
}

/// A setting of the playground, whose fields hold texts; `None` if it is empty.
fn setting(name: &str, value: &Value) -> Option<Value> {
    let text = match value {
        Value::String(text) if text.trim().is_empty() => return None,
        Value::String(text) => text,
        Value::Null => return None,
        value => return Some(value.clone()),
    };
    if name == "stop" {
        let lines = text.split('\n').filter(|line| !line.is_empty());
        return Some(lines.map(|line| Value::from(line.replace("\\n", "\n"))).collect());
    }
    Some(serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str())))
}

/// The turns of the chosen path.
fn path(conversation: &Value) -> Result<Vec<Turn>> {
    let turns = conversation["turns"].as_array().context("`turns` is missing")?;
    if turns.len() > MAX_TURNS {
        bail!("{} turns are too many: at most {MAX_TURNS}", turns.len());
    }
    let by_id: std::collections::HashMap<&str, &Value> =
        turns.iter().filter_map(|turn| Some((turn["id"].as_str()?, turn))).collect();
    let (mut found, mut at) = (Vec::new(), ROOT);
    while let Some(id) = conversation["chosen"][at].as_str() {
        let turn = by_id.get(id).with_context(|| format!("there is no turn `{id}`"))?;
        if found.len() >= turns.len() {
            bail!("the turns form a circle");
        }
        found.push(parse_turn(turn).with_context(|| format!("the turn `{id}`"))?);
        at = id;
    }
    Ok(found)
}

fn parse_turn(turn: &Value) -> Result<Turn> {
    let text = |name: &str| turn[name].as_str().unwrap_or_default().to_owned();
    let list = |name: &str| turn[name].as_array().into_iter().flatten();
    match turn["role"].as_str() {
        Some("user") => {
            let image = |url: &Value| {
                url.as_str().filter(|url| url.starts_with("data:image/")).map(str::to_owned)
            };
            let images: Option<Vec<String>> = list("images").map(image).collect();
            Ok(Turn::User {
                text: text("content"),
                images: images.context("an image is no data: URL")?,
            })
        }
        Some("assistant") => {
            let call = |call: &Value| {
                let text = |name: &str| call[name].as_str().unwrap_or_default().to_owned();
                Call { id: text("id"), name: text("name"), arguments: text("arguments") }
            };
            let answer = Answer {
                reasoning: text("reasoning"),
                content: text("content"),
                calls: list("calls").map(call).collect(),
                finish: turn["finish"].as_str().map(str::to_owned),
            };
            Ok(Turn::Assistant { answer, is_stopped: turn["isStopped"] == true })
        }
        Some("tool") => {
            let call = Call { id: text("callId"), name: text("name"), arguments: String::new() };
            Ok(Turn::Tool { call, result: text("content") })
        }
        _ => bail!("`role` must be user, assistant or tool"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved() -> Saved {
        let call = Call { id: "c".into(), name: "f".into(), arguments: "{}".into() };
        let assistant = |answer| Turn::Assistant { answer, is_stopped: false };
        let calls = Answer {
            reasoning: "Hm".into(),
            calls: vec![call.clone()],
            finish: Some("tool_calls".into()),
            ..Answer::default()
        };
        let schema = json!({"type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": {"type": "object"}}});
        Saved {
            model: "demo".into(),
            conversation: Conversation {
                system: Some("Be brief".into()),
                turns: vec![
                    Turn::User {
                        text: "a".into(),
                        images: vec!["data:image/png;base64,AA==".into()],
                    },
                    assistant(calls),
                    Turn::Tool {
                        call: Call { arguments: String::new(), ..call },
                        result: "1".into(),
                    },
                    assistant(Answer { content: "b".into(), ..Answer::default() }),
                ],
            },
            settings: vec![
                ("seed".into(), json!(7)),
                ("response_format".into(), schema),
                ("stop".into(), json!(["x"])),
            ],
            tools: tools::parse(&json!([{"name": "f", "parameters": {}}])).unwrap(),
        }
    }

    #[test]
    fn what_is_saved_is_read() {
        assert_eq!(Saved::parse(&saved().to_json()).unwrap(), saved());
        let empty = Saved::default();
        assert_eq!(Saved::parse(&empty.to_json()).unwrap(), empty);
    }

    #[test]
    fn files_of_the_playground_are_read_along_the_chosen_path() {
        let turn = |id, parent, content| json!({"id": id, "parent": parent, "role": "user", "content": content});
        let file = json!({
            "format": FORMAT, "version": 1, "settings": {"temperature": "0.5", "stop": "a\\n\n\nb", "logprobs": true, "seed": ""},
            "conversation": {
                "turns": [turn("t1", "root", "old"), turn("t2", "root", "new")], "chosen": {"root": "t2"},
            },
        });
        let mut read = Saved::parse(&file).unwrap();
        // The order of an object's keys has no meaning.
        read.settings.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(
            read.conversation.turns,
            [Turn::User { text: "new".into(), images: Vec::new() }]
        );
        let expected =
            [("logprobs", json!(true)), ("stop", json!(["a\n", "b"])), ("temperature", json!(0.5))];
        assert_eq!(read.settings, expected.map(|(name, value)| (name.to_owned(), value)));
        let mut circle = file;
        circle["conversation"]["chosen"]["t2"] = "t2".into();
        assert!(Saved::parse(&circle).is_err());
        assert!(Saved::parse(&json!({})).is_err());
    }
}
