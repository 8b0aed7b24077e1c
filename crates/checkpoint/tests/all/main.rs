//! Configurations that no model has: each is refused by name. Those with anything in them are the crate `fuzz`'s.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use candlepower_checkpoint::{Checkpoint, CheckpointFiles};
use serde_json::Value;

/// Opens a configuration.
fn open(test: &str, config: String) -> Result<(), String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hostile-{test}"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.json"), config).unwrap();
    let opened = Checkpoint::open(CheckpointFiles::Folder(folder));
    opened.map(drop).map_err(|error| error.to_string())
}

fn golden(name: &str) -> String {
    std::fs::read_to_string(candlepower_testing::goldens::folder(name).join("config.json")).unwrap()
}

#[test]
fn numbers_beyond_any_model_are_refused_by_name() {
    let text = golden("llama");
    for key in ["hidden_size", "num_hidden_layers", "vocab_size", "head_dim", "num_attention_heads"]
    {
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config[key] = 4_000_000_000_u64.into();
        let error = open("numbers", config.to_string()).unwrap_err();
        let expected = format!("config.json: `{key}` = 4000000000 is not supported; at most ");
        assert!(error.starts_with(&expected), "{error}");
        config.as_object_mut().unwrap().remove(key);
        if key != "head_dim" {
            let error = open("numbers", config.to_string()).unwrap_err();
            assert!(error.starts_with(&format!("config.json: `{key}` is missing; ")), "{error}");
        }
    }
}

#[test]
fn factors_of_widths_beyond_any_model_are_refused_by_name() {
    for (key, number) in [("block_multiple_of", 1e9), ("block_ffn_dim_multiplier", 1e300)] {
        let mut config: Value = serde_json::from_str(&golden("lfm2")).unwrap();
        config["block_auto_adjust_ff_dim"] = true.into();
        config[key] = number.into();
        let error = open("factors", config.to_string()).unwrap_err();
        assert!(error.starts_with(&format!("config.json: `{key}` = 1")), "{error}");
    }
}

#[test]
fn what_is_no_json_object_is_refused() {
    for text in ["", "[]", "null", "{", "\u{0}", &"[".repeat(100_000), &"{\"a\":".repeat(100_000)] {
        let error = open("text", text.to_owned()).unwrap_err();
        assert!(error.starts_with("config.json is damaged, it is not a JSON object: "), "{error}");
        assert!(!error.contains('\n'));
    }
}
