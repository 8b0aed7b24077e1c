//! Weight files that are not what they should be: one line each, and no crash.

use std::path::PathBuf;

use candlepower_checkpoint::{CheckpointFiles, Description};
use candlepower_models::Encoder;

/// A copy of a golden checkpoint, removed with the test.
struct Copy(PathBuf);

impl Copy {
    fn new(test: &str) -> Self {
        let from = candlepower_testing::goldens::folder("encoders/bert");
        let to = std::env::temp_dir().join(format!("candlepower-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&to).unwrap();
        for name in ["config.json", "model.safetensors"] {
            std::fs::copy(from.join(name), to.join(name)).unwrap();
        }
        Self(to)
    }

    fn edit_weights(&self, edit: impl FnOnce(&mut Vec<u8>)) {
        let path = self.0.join("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        edit(&mut bytes);
        std::fs::write(path, bytes).unwrap();
    }

    fn error(&self) -> String {
        let description = Description::open(CheckpointFiles::Folder(self.0.clone())).unwrap();
        let Description::Encoder(checkpoint) = description else { panic!("a decoder") };
        match Encoder::load(&checkpoint, None, &mut |_| {}) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("it was loaded"),
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // nothing depends on it
    }
}

fn replace(bytes: &mut [u8], from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
}

#[test]
fn truncated_and_damaged_files_are_named() {
    for len in [0, 7, 8, 100, 40_000] {
        let copy = Copy::new(&format!("truncated-{len}"));
        copy.edit_weights(|bytes| bytes.truncate(len));
        let error = copy.error();
        assert!(error.starts_with("model.safetensors is damaged or truncated"), "{len}: {error}");
    }
}

#[test]
fn a_header_that_lies_allocates_nothing() {
    let copy = Copy::new("lies");
    copy.edit_weights(|bytes| bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes()));
    assert!(copy.error().contains("its header is cut off"), "{}", copy.error());
    let copy = Copy::new("shape");
    copy.edit_weights(|bytes| replace(bytes, "[96,32]", "[96,33]"));
    assert!(copy.error().contains("invalid shape"), "{}", copy.error());
    let copy = Copy::new("json");
    copy.edit_weights(|bytes| bytes[8] = b'!');
    assert!(copy.error().contains("is damaged or truncated"), "{}", copy.error());
}

#[test]
fn tensors_that_are_missing_or_unknown_are_named() {
    let copy = Copy::new("unknown");
    copy.edit_weights(|bytes| {
        replace(bytes, "encoder.layer.0.output.dense.bias", "encoder.layer.9.output.dense.bias");
    });
    assert_eq!(
        copy.error(),
        "1 tensors of the model are not in the weight files: encoder.layer.0.output.dense.bias"
    );
    let copy = Copy::new("wide");
    let config = std::fs::read_to_string(copy.0.join("config.json")).unwrap();
    let wide = config.replace("\"intermediate_size\": 48", "\"intermediate_size\": 40");
    std::fs::write(copy.0.join("config.json"), wide).unwrap();
    assert!(copy.error().contains("but config.json makes it [40, 32]"), "{}", copy.error());
    let copy = Copy::new("fewer");
    let fewer = config.replace("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2");
    std::fs::write(copy.0.join("config.json"), fewer).unwrap();
    assert!(copy.error().contains("are not part of BertModel as config.json describes it"));
    std::fs::remove_file(copy.0.join("model.safetensors")).unwrap();
    assert!(copy.error().contains("no weights in"), "{}", copy.error());
}
