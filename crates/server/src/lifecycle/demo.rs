//! The model that is part of this program, for `candlepower serve demo`.

use candlepower_checkpoint::CheckpointFiles;

/// A file of the folder `demo/`: its name and its contents.
macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../demo/", $name)))
    };
}

const FILES: &[(&str, &[u8])] = &[
    file!("config.json"),
    file!("generation_config.json"),
    file!("tokenizer.json"),
    file!("tokenizer_config.json"),
    file!("chat_template.jinja"),
    file!("model.safetensors"),
];

/// The demo model's files.
pub fn files() -> CheckpointFiles {
    CheckpointFiles::Embedded(FILES)
}

/// The demo model's tokenizer, for tests.
#[cfg(test)]
pub(crate) fn tokenizer() -> candlepower_tokenizer::Tokenizer {
    // The files are embedded, so nothing can be missing at run time.
    let read = |name| files().embedded(name).unwrap();
    candlepower_tokenizer::Tokenizer::from_bytes(
        read("tokenizer.json"),
        Some(read("tokenizer_config.json")),
    )
    .unwrap()
}
