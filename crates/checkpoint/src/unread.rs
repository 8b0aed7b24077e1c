//! Keys of a `config.json` that nobody reads: the harmless ones are known, and of the others those that count are refused.

#[cfg(test)]
mod default_configs;
mod lists;

use crate::config::{HfConfig, UnreadKey};
use lists::{HARMLESS, HARMLESS_ENDS, NEUTRAL, OF_PARTS, OF_ROPES, OF_TOWERS};

/// The keys of a configuration that were not read by now and are not known to be harmless; `text` is the part of it that describes
/// the text, where that is a part.
pub(crate) fn unread(config: &HfConfig, text: Option<&HfConfig>) -> Vec<UnreadKey> {
    let mut unread = Vec::new();
    for config in [Some(config), text].into_iter().flatten() {
        unread.extend(config.unread_keys().into_iter().filter(|key| !is_harmless(key)));
        for ropes in ["rope_scaling", "rope_parameters"] {
            // Ill-typed ones were refused where they are read.
            let Ok(Some(rope)) = config.section(ropes) else { continue };
            let is_known = |key: &UnreadKey| OF_ROPES.contains(&key.name());
            unread.extend(rope.unread_keys().into_iter().filter(|key| !is_known(key)));
        }
    }
    unread
}

/// The keys of a tower's configuration that were not read by now and are not known to be harmless.
pub(crate) fn unread_of_tower(tower: &HfConfig) -> Vec<UnreadKey> {
    let is_harmless = |key: &UnreadKey| {
        let name = key.name();
        OF_TOWERS.contains(&name) || HARMLESS_ENDS.iter().any(|end| name.ends_with(end))
    };
    let mut unread = tower.unread_keys();
    unread.retain(|key| !is_harmless(key));
    if let Ok(Some(rope)) = tower.section("rope_parameters") {
        unread.extend(rope.unread_keys());
    }
    unread
}

fn is_harmless(key: &UnreadKey) -> bool {
    let name = key.name();
    let is_neutral = || {
        let known = NEUTRAL.iter().find(|(key, _)| *key == name);
        known.is_some_and(|(_, neutral)| key.is(neutral))
    };
    HARMLESS.contains(&name)
        || OF_PARTS.contains(&name)
        || HARMLESS_ENDS.iter().any(|end| name.ends_with(end))
        || is_neutral()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_numbers_are_refused_and_texts_are_remarked() {
        let config = r#"{"hidden_size": 8, "warp": 2, "zero": 0, "off": false, "null": null, "on": true, "way": "x",
            "resid_pdrop": 0.1, "image_token_id": 7, "_name_or_path": "a",
            "rope_scaling": {"type": "linear", "factor": 2.0, "bend": 3}}"#;
        let config = HfConfig::parse("config.json", config.as_bytes()).unwrap();
        config.count("hidden_size").unwrap();
        config.rope_parameters().unwrap().float("factor").unwrap();
        let unread = unread(&config, None);
        let keys = |counts: bool| {
            let keys = unread.iter().filter(|key| key.check().is_err() == counts);
            keys.map(|key| key.key.as_str()).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(keys(true), ["on", "warp", "rope_scaling.bend"].into());
        assert_eq!(keys(false), ["way"].into());
        let warp = unread.iter().find(|key| key.key == "warp").unwrap();
        let line = warp.check().unwrap_err().to_string();
        let expected = "config.json: `warp` = 2 is not known, and may change what the model answers; start with --ignore-config-key warp if it does not";
        assert_eq!(line, expected);
    }

    /// No key of a checkpoint that transformers wrote is refused for being unknown.
    #[test]
    fn every_key_of_the_goldens_is_known() {
        let golden = candlepower_testing::goldens::folder("llama");
        let root = golden.parent().unwrap();
        let folders = [root.to_owned(), root.join("encoders"), root.join("on-load")];
        let folders = folders.iter().flat_map(|folder| folder.read_dir().unwrap());
        let mut unknown = Vec::new();
        for folder in folders.map(|entry| entry.unwrap().path()) {
            if !folder.join("config.json").is_file() {
                continue;
            }
            let files = crate::CheckpointFiles::Folder(folder.clone());
            let description = crate::Description::open(files).unwrap();
            // Some have no processor of images.
            let remarks = description.remarks().into_iter();
            unknown.extend(remarks.filter(|remark| !remark.starts_with("images are refused: ")));
            unknown.extend(description.check_keys(&[]).err().map(|error| error.to_string()));
        }
        assert!(unknown.is_empty(), "{unknown:#?}");
    }
}
