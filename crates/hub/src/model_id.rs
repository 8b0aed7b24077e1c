//! The name of a model on the hub.

use std::fmt;
use std::str::FromStr;

/// `owner/name`, checked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelId(String);

impl ModelId {
    /// `owner/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ModelId {
    type Err = NoModelId;

    /// Source: `validate_repo_id` in huggingface_hub.
    fn from_str(text: &str) -> Result<Self, NoModelId> {
        let is_part = |part: &str| {
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            part.starts_with(is_word)
                && part.ends_with(is_word)
                && part.chars().all(|c| is_word(c) || c == '-' || c == '.')
                && !part.contains("--")
                && !part.contains("..")
        };
        let (owner, name) = text.split_once('/').ok_or(NoModelId)?;
        if !is_part(owner) || !is_part(name) || name.ends_with(".git") || text.len() > 96 {
            return Err(NoModelId);
        }
        Ok(Self(text.to_owned()))
    }
}

/// A text that has not the form `owner/name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a model id on the hub has the form owner/name")]
pub struct NoModelId;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_an_owner_and_a_name() {
        for id in ["Qwen/Qwen2.5-0.5B", "a/b", "TinyLlama/TinyLlama_v1.1", "1/2"] {
            assert_eq!(id.parse::<ModelId>().unwrap().as_str(), id);
        }
        for id in
            ["", "a", "a/", "/b", "a/b/c", "./a", "a/..", "a/b--c", "a/-b", "a b/c", "a/b.git"]
        {
            assert_eq!(id.parse::<ModelId>(), Err(NoModelId), "{id}");
        }
    }
}
