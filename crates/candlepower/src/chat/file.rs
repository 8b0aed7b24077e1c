//! Saved conversations, in the format that the playground exports and opens.
//!
//! The playground keeps a tree of turns. Here only its chosen path is read, and a path is saved.

mod parsed;
mod written;

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::conversation::Conversation;
use super::tools::Tool;

/// The format, as the playground names it.
const FORMAT: &str = "candlepower-playground";
/// Maximum bytes of a file.
const MAX_BYTES: u64 = 64 << 20;
/// The parent of the first turn.
const ROOT: &str = "root";

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::chat::answer::{Answer, Call};
    use crate::chat::conversation::Turn;
    use crate::chat::tools;

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

    #[test]
    fn what_is_wrong_with_a_file_is_named() {
        let with = |settings: Value, turns: Vec<Value>| {
            let conversation = json!({"turns": turns, "chosen": {"root": "t1"}});
            let file = json!({"format": FORMAT, "version": 1, "settings": settings, "conversation": conversation});
            Saved::parse(&file).map_err(|error| format!("{error:#}"))
        };
        let turn = |role: &str| json!({"id": "t1", "role": role, "content": "a"});
        // The playground writes `null` for what is not set.
        let read = with(json!({"seed": null, "top_k": 4}), vec![turn("user")]).unwrap();
        assert_eq!(read.settings, [("top_k".to_owned(), json!(4))]);
        for (turns, expected) in [
            (vec![turn("system")], "the turn `t1`: `role` must be user, assistant or tool"),
            (vec![], "there is no turn `t1`"),
            (
                vec![json!({"id": "t1", "role": "user", "images": ["http://a/b.png"]})],
                "the turn `t1`: an image is no data: URL",
            ),
            (vec![turn("user"); 10_001], "10001 turns are too many: at most 10000"),
        ] {
            assert_eq!(with(json!({}), turns).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_file_that_is_too_large_is_not_read() {
        let path = std::env::temp_dir().join(format!("candlepower-saved-{}", std::process::id()));
        File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        let error = Saved::read(&path).unwrap_err().to_string();
        fs::remove_file(&path).unwrap();
        assert_eq!(error, format!("{} has more than 64 MiB", path.display()));
    }
}
