//! The goldens of models that take images: prompts with pictures, and what transformers makes of them.
//!
//! `scripts/goldens/vision.py` describes the files.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use super::{folder, root};

/// The folders of goldens with images.
pub const VISION: &[&str] = &[
    "vision_mistral3",
    "vision_ministral3",
    "vision_gemma3",
    "vision_qwen3_vl",
    "vision_qwen3_vl_moe",
    "vision_qwen3_5",
    "vision_qwen3_5_moe",
];

/// The contents of a folder's `cases.json`.
#[derive(Debug, Deserialize)]
pub struct VisionGolden {
    /// Token ids whose logits are stored at every position.
    pub sampled_ids: Vec<u32>,
    /// The prompts, by name.
    pub cases: BTreeMap<String, VisionCase>,
}

/// A prompt with images.
#[derive(Clone, Debug, Deserialize)]
pub struct VisionCase {
    /// The messages of a client of the chat API, in which a URL is the name of a picture's file.
    pub messages: Value,
    /// The token ids, with every image expanded.
    pub input_ids: Vec<u32>,
    /// For each image: the name of its picture, the position of its first embedding, and the number of positions up to its last one.
    pub images: Vec<(String, usize, usize)>,
    /// The 32 tokens that greedy decoding appends.
    pub greedy: Vec<u32>,
    /// Frame, row and column of each token, for models with such positions.
    pub position_ids: Option<[Vec<u32>; 3]>,
    /// The next rope position less the number of tokens, for these models.
    pub rope_delta: Option<i32>,
}

impl VisionGolden {
    /// Reads the cases of a folder.
    ///
    /// # Panics
    /// The file is missing or damaged. A test cannot go on without it.
    pub fn read(name: &str) -> Self {
        let path = folder(name).join("cases.json");
        let read = || Ok::<_, std::io::Error>(serde_json::from_slice(&fs::read(&path)?)?);
        read().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

/// The file of a picture.
pub fn picture(name: &str) -> PathBuf {
    root().join("vision_pictures").join(name).with_extension("png")
}
