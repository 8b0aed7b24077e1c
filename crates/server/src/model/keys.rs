//! API keys: whose each one is, and what its owner may do. Keys themselves are never kept, only their digests.

mod file;
mod usage;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use sha2::{Digest, Sha256};

use crate::config::ServeConfig;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::metrics::{KeyCounters, Metrics};
pub(crate) use file::KeysError;
pub(crate) use usage::KeyPlace;
use usage::Usage;

type KeyDigest = [u8; 32];

/// Most keys that one line of the log describes.
const MAX_DESCRIBED: usize = 20;

/// The keys in force: those of `--api-key`, and those of `--api-keys-file`.
pub(crate) struct ApiKeys(RwLock<HashMap<KeyDigest, Arc<ApiKey>>>);

/// A key, without its bytes.
#[derive(Debug)]
pub(crate) struct ApiKey {
    pub(crate) name: String,
    pub(crate) limits: KeyLimits,
    /// Goes on when the file is read again.
    usage: Arc<Usage>,
    counters: OnceLock<KeyCounters>,
}

/// Limits and rights of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyLimits {
    /// Most sequences at once.
    pub(crate) max_concurrent: Option<u32>,
    /// Most tokens of prompts and answers in a minute.
    pub(crate) max_tokens_per_minute: Option<u32>,
    /// Its share, relative to those of others.
    pub(crate) weight: NonZeroU32,
    /// Its requests' `priority` counts among all callers, from this value on.
    pub(crate) min_priority: Option<i32>,
    /// Whether it may use the endpoints that change the server.
    pub(crate) admin: bool,
}

impl Default for KeyLimits {
    fn default() -> Self {
        Self {
            max_concurrent: None,
            max_tokens_per_minute: None,
            weight: NonZeroU32::MIN,
            min_priority: None,
            admin: false,
        }
    }
}

/// The names and limits of the API keys that the settings and the keys file give, in one line; empty without keys.
///
/// # Errors
/// [`crate::Error::Keys`] if the keys file cannot be read, or what it says cannot be used.
pub fn describe_api_keys(config: &ServeConfig) -> crate::Result<String> {
    Ok(ApiKeys::load(config)?.describe())
}

impl ApiKeys {
    /// # Errors
    /// The file cannot be read, or what it says cannot be used.
    pub(crate) fn load(config: &ServeConfig) -> Result<Self, KeysError> {
        let keys = Self(RwLock::default());
        keys.reload(config)?;
        Ok(keys)
    }

    /// Reads the file again. Keys that stay keep what they have used.
    ///
    /// # Errors
    /// The same as for [`Self::load`]; then the keys of before stay in force.
    pub(crate) fn reload(&self, config: &ServeConfig) -> Result<(), KeysError> {
        let mut found: Vec<(KeyDigest, String, KeyLimits)> = Vec::new();
        for (i, key) in config.api_key.iter().enumerate() {
            let name = format!("key-{}", i + 1);
            found.push((digest(key.as_bytes()), name, KeyLimits::default()));
        }
        if let Some(path) = &config.api_keys_file {
            found.extend(file::read(path)?);
        }
        let place = || config.api_keys_file.clone().unwrap_or_else(|| "--api-key".into());
        let mut keys: HashMap<KeyDigest, Arc<ApiKey>> = HashMap::new();
        let mut before = self.by_name();
        let mut names = std::collections::HashSet::new();
        for (digest, name, limits) in found {
            if !names.insert(name.clone()) {
                return Err(KeysError::new(place(), format!("two keys have the name `{name}`")));
            }
            let usage = before.remove(&name).unwrap_or_default();
            let key = ApiKey { name, limits, usage, counters: OnceLock::new() };
            if let Some(other) = keys.get(&digest) {
                let problem = format!("`{}` and `{}` are the same key", other.name, key.name);
                return Err(KeysError::new(place(), problem));
            }
            keys.insert(digest, Arc::new(key));
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    /// The key with these bytes. The time tells nothing of it, because only digests are compared.
    pub(crate) fn find(&self, sent: &[u8]) -> Option<Arc<ApiKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&digest(sent)).cloned()
    }

    /// Their names and limits, for the log.
    pub(crate) fn describe(&self) -> String {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut described: Vec<String> = keys.values().map(|key| key.describe()).collect();
        described.sort_unstable();
        let rest = described.len().saturating_sub(MAX_DESCRIBED);
        described.truncate(MAX_DESCRIBED);
        let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
        format!("{}{more}", described.join(", "))
    }

    fn by_name(&self) -> HashMap<String, Arc<Usage>> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        keys.values().map(|key| (key.name.clone(), Arc::clone(&key.usage))).collect()
    }
}

impl ApiKey {
    /// Turns a request away early if the key has no place or no tokens left.
    ///
    /// # Errors
    /// 429 that names the limit.
    pub(crate) fn check(&self) -> ApiResult<()> {
        self.usage.check(&self.limits, 1).map_err(|refused| self.refusal(refused))
    }

    /// Takes places for so many sequences, and counts the tokens of their prompts.
    ///
    /// # Errors
    /// 400 for more sequences than the key may ever have, 429 for more than it may have now.
    pub(crate) fn admit(
        &self,
        num_sequences: usize,
        prompt_tokens: usize,
        metrics: &Metrics,
    ) -> ApiResult<Vec<KeyPlace>> {
        let counters = self.counters.get_or_init(|| metrics.key_counters(&self.name));
        self.usage.take(&self.limits, num_sequences).map_err(|refused| self.refusal(refused))?;
        let places = (0..num_sequences)
            .map(|_| KeyPlace::new(Arc::clone(&self.usage), counters.generation_tokens.clone()))
            .collect();
        counters.prompt_tokens.increment(prompt_tokens as u64);
        self.usage.spend(prompt_tokens);
        Ok(places)
    }

    /// The priority among all callers of a request that asks for `priority`.
    pub(crate) fn caller_priority(&self, priority: i32) -> i32 {
        self.limits.min_priority.map_or(0, |least| priority.max(least))
    }

    /// Its name, and its limits where it has some.
    fn describe(&self) -> String {
        let KeyLimits { max_concurrent, max_tokens_per_minute, weight, min_priority, admin } =
            &self.limits;
        let limits = [
            max_concurrent.map(|limit| format!("max_concurrent {limit}")),
            max_tokens_per_minute.map(|limit| format!("max_tokens_per_minute {limit}")),
            (weight.get() > 1).then(|| format!("weight {weight}")),
            min_priority.map(|least| format!("min_priority {least}")),
            admin.then(|| "admin".to_owned()),
        ];
        let limits: Vec<String> = limits.into_iter().flatten().collect();
        match limits.is_empty() {
            true => self.name.clone(),
            false => format!("{} ({})", self.name, limits.join(", ")),
        }
    }

    fn refusal(&self, refused: usage::Refused) -> ApiError {
        let name = &self.name;
        match refused {
            usage::Refused::Never { asked, limit } => ApiError::beyond_key(format!(
                "The request asks for {asked} texts at once, more than the {limit} (`max_concurrent`) of the key `{name}`."
            )),
            usage::Refused::Sequences { running, limit } => {
                let message = format!(
                    "The key `{name}` has {running} sequences, and at most {limit} (`max_concurrent`) at once. Try again later."
                );
                ApiError::rate_limited(message, 1)
            }
            usage::Refused::Tokens { limit, seconds } => {
                let message = format!(
                    "The key `{name}` has used its {limit} tokens a minute (`max_tokens_per_minute`). Try again in {seconds} s."
                );
                ApiError::rate_limited(message, seconds)
            }
        }
    }
}

fn digest(key: &[u8]) -> KeyDigest {
    Sha256::digest(key).into()
}

#[cfg(test)]
mod tests;
