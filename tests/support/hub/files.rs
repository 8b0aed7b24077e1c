//! Files of a fake hub's repository: in memory, from folders or from a golden model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// First tokens of a golden model's vocabulary, with the ids of its config.json.
const SPECIAL_TOKENS: [&str; 3] = ["<pad>", "<s>", "</s>"];

/// A short chat template for a model that has learned nothing.
const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
    {% if add_generation_prompt %}assistant: {% endif %}";

/// Files by their paths in a repository.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files(pub(super) BTreeMap<String, Vec<u8>>);

impl Files {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// All files in a folder and its subfolders.
    pub(crate) fn of_folder(folder: impl AsRef<Path>) -> Self {
        let root = folder.as_ref();
        let mut files = Self::new();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let name = path.strip_prefix(root).unwrap().to_str().unwrap();
                    files = files.with(name, std::fs::read(&path).unwrap());
                }
            }
        }
        files
    }

    /// A model that can be served: the golden model of this name, with a tokenizer for its vocabulary.
    pub(crate) fn golden(name: &str) -> Self {
        let files = Self::of_folder(candlepower_testing::goldens::folder(name));
        let config: Value = serde_json::from_slice(&files.0["config.json"]).unwrap();
        let vocab_size = config["vocab_size"].as_u64().unwrap() as usize;
        let settings = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": SPECIAL_TOKENS[0],
            "bos_token": SPECIAL_TOKENS[1],
            "eos_token": SPECIAL_TOKENS[2],
            "chat_template": CHAT_TEMPLATE,
        });
        files
            // Expected logits and seeds belong to the tests, and are no part of a published model.
            .without("golden.safetensors")
            .without("model.seeded")
            .with("tokenizer.json", tokenizer(vocab_size).to_string())
            .with("tokenizer_config.json", settings.to_string())
    }

    /// The demo chat model.
    pub(crate) fn demo() -> Self {
        Self::of_folder(tests_folder().join("../crates/server/demo"))
    }

    pub(crate) fn with(mut self, path: &str, contents: impl Into<Vec<u8>>) -> Self {
        self.0.insert(path.into(), contents.into());
        self
    }

    pub(crate) fn without(mut self, path: &str) -> Self {
        self.0.remove(path);
        self
    }

    /// The contents of a file.
    #[track_caller]
    pub(crate) fn contents(&self, path: &str) -> &[u8] {
        &self.0[path]
    }

    /// Writes all files into a folder.
    pub(crate) fn write_to(&self, folder: &Path) {
        for (path, contents) in &self.0 {
            let path = folder.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, contents).unwrap();
        }
    }
}

fn tests_folder() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

/// A byte-level tokenizer of `size` tokens: the special ones, all bytes, and syllables up to `size`.
fn tokenizer(size: usize) -> Value {
    let consonants = "bcdfghjklmnprstvwxyz".chars();
    let syllables = consonants.flat_map(|first| "aeiou".chars().map(move |second| (first, second)));
    // The special tokens and the 256 bytes come first.
    let left = size - SPECIAL_TOKENS.len() - 256;
    let syllables: Vec<_> = syllables.take(left).collect();
    assert_eq!(syllables.len(), left, "a vocabulary of {size} needs longer tokens");
    let tokens = SPECIAL_TOKENS
        .iter()
        .map(|token| (*token).to_owned())
        .chain(byte_letters().into_iter().map(String::from))
        .chain(syllables.iter().map(|(first, second)| format!("{first}{second}")));
    let vocab: BTreeMap<String, usize> =
        tokens.enumerate().map(|(id, token)| (token, id)).collect();
    let merges: Vec<[String; 2]> =
        syllables.iter().map(|(first, second)| [first.to_string(), second.to_string()]).collect();
    let added = SPECIAL_TOKENS.iter().enumerate().map(|(id, token)| {
        json!({
            "id": id, "content": token, "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false,
        })
    });
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocab, "merges": merges,
        },
    })
}

/// The letters by which byte-level tokenizers represent the bytes 0 to 255.
///
/// Source: `bytes_to_unicode` of GPT-2's encoder: a printable byte is itself, the others follow from 256 on.
fn byte_letters() -> Vec<char> {
    let mut next = 256;
    (0..256_u32)
        .map(|byte| {
            let prints = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let code = if prints { byte } else { next };
            next += u32::from(!prints);
            char::from_u32(code).unwrap()
        })
        .collect()
}
