//! Reads a conversation of JSON that anyone may have written.

use std::collections::HashMap;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use super::{FORMAT, ROOT, Saved};
use crate::chat::answer::{Answer, Call};
use crate::chat::conversation::{Conversation, Turn};
use crate::chat::tools;

/// Maximum number of turns.
const MAX_TURNS: usize = 10_000;

impl Saved {
    pub(super) fn parse(value: &Value) -> Result<Self> {
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
    let by_id: HashMap<&str, &Value> =
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
