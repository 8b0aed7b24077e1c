//! Secrets: tokens and keys, whose values are never logged or stored in clear text.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Environment variables with secret values. They are serialized only for the pipe to the supervisor.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secrets(pub(crate) BTreeMap<String, String>);

impl Secrets {
    /// A log line with its secret values masked. Values too short to be secrets are left, since they would mask plain
    /// words.
    pub(crate) fn redact(&self, line: String) -> String {
        const SHORTEST: usize = 6;
        let values = self.0.values().filter(|value| value.len() >= SHORTEST);
        values.fold(line, |line, value| {
            // The check saves a copy of nearly every line.
            if line.contains(value.as_str()) { line.replace(value.as_str(), "***") } else { line }
        })
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// One secret value.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not shown)")
    }
}

/// Whether a variable of this name has a secret value.
pub(crate) fn is_secret(name: &str) -> bool {
    const PARTS: [&str; 6] = ["TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL"];
    // A number of tokens, a tokenizer and a file's path are no secrets.
    let name = name.to_ascii_uppercase().replace("TOKENS", "").replace("TOKENIZER", "");
    let is_place = ["_PATH", "_FILE", "KEYFILE"].iter().any(|end| name.ends_with(end));
    PARTS.iter().any(|part| name.contains(part)) && !is_place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_their_names() {
        for name in
            ["HF_TOKEN", "BLAZE_API_KEY", "my_password", "AWS_SECRET_ACCESS_KEY", "KEY_PROFILE"]
        {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "BLAZE_MAX_NUM_BATCHED_TOKENS",
            "BLAZE_TOKENIZER",
            "BLAZE_SSL_KEYFILE",
            "HF_TOKEN_PATH",
            "HF_HOME",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let secrets = Secrets(BTreeMap::from([("HF_TOKEN".into(), "canary-1".into())]));
        assert_eq!(format!("{secrets:?}"), r#"{"HF_TOKEN"}"#);
        assert_eq!(secrets.redact("a canary-1 b".into()), "a *** b");
        assert_eq!(format!("{:?}", Secret("canary-1".into())), "(not shown)");
    }
}
