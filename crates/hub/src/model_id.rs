//! Names of models on the hub.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// A valid id `owner/name`.
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
        // These rules also make the id safe as a part of paths and URLs.
        if !is_part(owner) || !is_part(name) || name.ends_with(".git") || text.len() > 96 {
            return Err(NoModelId);
        }
        Ok(Self(text.to_owned()))
    }
}

/// The error for a text that is not of the form `owner/name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a model id on the hub has the form owner/name")]
pub struct NoModelId;

/// A model on the hub as users name it: `owner/name`, or one of its GGUF files, by its path (`owner/name/file.gguf`)
/// or by the end of its name (`owner/name:Q4_K_M`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    /// The repository.
    pub id: ModelId,
    /// The GGUF file, if one is named.
    pub gguf: Option<GgufName>,
}

impl ModelName {
    /// Parses the name of a model that was not found on this machine.
    ///
    /// # Errors
    /// The text is not of that form, or it is the path of a GGUF file in a local folder: then the file is missing.
    pub fn not_here(text: &str) -> Result<Self, NoModelId> {
        let name: Self = text.parse()?;
        let is_path = matches!(name.gguf, Some(GgufName::Path(_)));
        // A mistyped file name in a local folder looks like a GGUF file on the hub. The folder tells them apart.
        let is_here = is_path && Path::new(name.id.as_str()).is_dir();
        if is_here { Err(NoModelId) } else { Ok(name) }
    }
}

/// A GGUF file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GgufName {
    /// The end of its name, which usually says how it is quantized.
    End(String),
    /// Its path in the repository.
    Path(String),
}

impl fmt::Display for GgufName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::End(name) | Self::Path(name) => name,
        })
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.gguf {
            None => self.id.fmt(f),
            Some(GgufName::End(end)) => write!(f, "{}:{end}", self.id),
            Some(GgufName::Path(path)) => write!(f, "{}/{path}", self.id),
        }
    }
}

/// The hub's host names, which users copy with a model's name.
const HOSTS: [&str; 3] = ["huggingface.co/", "www.huggingface.co/", "hf.co/"];
/// The part of a URL between a repository and a file. Only the default revision is accepted, since there is a setting
/// for others.
const VIEWS: [&str; 5] = ["/tree/main", "/resolve/main", "/blob/main", "/raw/main", "/edit/main"];

/// The name in a URL of the hub. Other texts are returned unchanged.
fn without_address(text: &str) -> Cow<'_, str> {
    let bare = ["https://", "http://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    let rest = bare.unwrap_or(text);
    let Some(name) = HOSTS.iter().find_map(|host| rest.strip_prefix(host)) else {
        return text.into();
    };
    let name = name.split(['?', '#']).next().unwrap_or(name).trim_end_matches('/');
    match VIEWS.iter().find_map(|view| name.split_once(view)) {
        Some((id, file)) if file.is_empty() || file.starts_with('/') => {
            format!("{id}{file}").into()
        }
        _ => name.into(),
    }
}

impl FromStr for ModelName {
    type Err = NoModelId;

    fn from_str(text: &str) -> Result<Self, NoModelId> {
        let text = without_address(text);
        let text = text.as_ref();
        let is_end = |end: &str| {
            let is_letter = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
            !end.is_empty() && end.chars().all(is_letter)
        };
        let is_path = |path: &str| {
            let parts = || path.split('/');
            let ending = path.rsplit_once('.').map(|(_, ending)| ending);
            ending.is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"))
                && parts().all(|part| !["", ".", ".."].contains(&part))
        };
        if let Some((id, end)) = text.split_once(':') {
            let gguf = is_end(end).then(|| GgufName::End(end.to_owned())).ok_or(NoModelId)?;
            return Ok(Self { id: id.parse()?, gguf: Some(gguf) });
        }
        // An id has exactly one slash, so the path begins after the second.
        let Some((slash, _)) = text.match_indices('/').nth(1) else {
            return Ok(Self { id: text.parse()?, gguf: None });
        };
        let (id, path) = (&text[..slash], &text[slash + 1..]);
        let gguf = is_path(path).then(|| GgufName::Path(path.to_owned())).ok_or(NoModelId)?;
        Ok(Self { id: id.parse()?, gguf: Some(gguf) })
    }
}

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

    #[test]
    fn addresses_on_the_hub_are_names() {
        for (address, name) in [
            ("https://huggingface.co/a/b", "a/b"),
            ("http://www.huggingface.co/a/b/", "a/b"),
            ("huggingface.co/a/b/tree/main", "a/b"),
            ("hf.co/a/b", "a/b"),
            ("hf.co/a/b:Q4_K_M", "a/b:Q4_K_M"),
            ("https://huggingface.co/a/b/blob/main/x/c.gguf", "a/b/x/c.gguf"),
            ("https://huggingface.co/a/b/resolve/main/c.gguf?download=true", "a/b/c.gguf"),
        ] {
            assert_eq!(address.parse::<ModelName>().unwrap().to_string(), name, "{address}");
        }
        for other in [
            "https://hub.example/a/b",
            "https://huggingface.co/a",
            "https://huggingface.co/a/b/tree/v2",
            "https://huggingface.co/a/b/resolve/main/model.safetensors",
            "https://huggingface.co/",
        ] {
            assert_eq!(other.parse::<ModelName>(), Err(NoModelId), "{other}");
        }
    }

    #[test]
    fn names_may_say_which_gguf_file() {
        let gguf = |text: &str| {
            let name: ModelName = text.parse().unwrap();
            assert_eq!(name.id.as_str(), "a/b", "{text}");
            name.gguf
        };
        assert_eq!(gguf("a/b"), None);
        assert_eq!(gguf("a/b:UD-Q4_K_M"), Some(GgufName::End("UD-Q4_K_M".into())));
        for path in ["c.gguf", "Q8_0/c-00001-of-00002.gguf"] {
            assert_eq!(gguf(&format!("a/b/{path}")), Some(GgufName::Path(path.into())));
        }
        // A folder that exists, and one that does not.
        assert_eq!(ModelName::not_here("src/model/none.gguf"), Err(NoModelId));
        for name in ["src/models/none.gguf", "src/model:Q8_0", "src/model"] {
            assert_eq!(ModelName::not_here(name), name.parse());
        }
        for text in [
            "a/b:",
            "a/b:c/d",
            "a:b",
            "a/b/c",
            "a/b/../c.gguf",
            "a/b//c.gguf",
            "/a/b.gguf",
            "./a/b.gguf",
            "../a/b.gguf",
        ] {
            assert_eq!(text.parse::<ModelName>(), Err(NoModelId), "{text}");
        }
    }
}
