//! The golden decoders whose weights are numbers, for the tests of every crate that runs them.

use std::path::PathBuf;

pub(crate) const GOLDENS: &[&str] = &[
    "llama",
    "llama-linear",
    "llama-yarn",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "phi3",
    "phi3-longrope",
    "gemma3",
    "gemma3-nested",
    "gemma4",
    "gemma4-moe",
    "gemma4-unified",
    "glm4",
    "granite",
    "olmo2",
    "starcoder2",
    "gpt2",
    "gpt2-outer",
    "cohere",
    "cohere2",
    "mixtral",
    "qwen3-moe",
    "qwen3-moe-renormalized",
    "gemma",
    "gemma3-images",
    "mistral3",
    "glm",
    "olmo3",
    "olmo3-nested",
    "olmoe",
    "smollm3",
    "seed-oss",
    "ernie4_5",
    "exaone4",
    "exaone4-full",
    "stablelm",
    "stablelm-parallel",
    "ministral3",
    "phi",
    "glm4-moe",
    "deepseek-v2",
    "deepseek-v2-groups",
    "deepseek-v3",
    "glm4-moe-lite",
    "ernie4_5-moe",
    "minimax-m2",
    "gpt-oss",
    "qwen3-next",
    "qwen3_5",
    "qwen3_5-text",
    "qwen3_5-moe",
    "qwen3_5-moe-text",
    "qwen2-moe",
    "gguf-yarn",
    "gguf-qwen3",
    "gguf-phi3",
];

/// The folder of any golden.
pub(crate) fn folder(name: &str) -> PathBuf {
    // A GPU machine has the goldens elsewhere.
    let goldens = std::env::var_os("CANDLEPOWER_GOLDENS").map(PathBuf::from);
    let here = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    goldens.unwrap_or_else(here).join(name)
}
