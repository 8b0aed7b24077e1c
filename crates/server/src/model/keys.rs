//! API keys with their names and limits. Only digests of keys are kept here, never the keys.

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
pub(crate) use usage::KeyPermit;
use usage::Usage;

type KeyDigest = [u8; 32];

/// Maximum number of keys in one line of the log.
const MAX_DESCRIBED: usize = 20;

/// The keys of `--api-key` and `--api-keys-file`.
pub(crate) struct ApiKeys(RwLock<HashMap<KeyDigest, Arc<ApiKey>>>);

/// A key without its secret.
#[derive(Debug)]
pub(crate) struct ApiKey {
    pub(crate) name: String,
    pub(crate) limits: KeyLimits,
    /// Kept when the file is reloaded.
    usage: Arc<Usage>,
    counters: OnceLock<KeyCounters>,
}

/// Limits and rights of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyLimits {
    /// Maximum number of concurrent sequences.
    pub(crate) max_concurrent: Option<u32>,
    /// Maximum tokens of prompts and answers in a minute.
    pub(crate) max_tokens_per_minute: Option<u32>,
    /// Its share of the engine, relative to other keys.
    pub(crate) weight: NonZeroU32,
    /// Lowest `priority` that its requests may use among all callers. Without it, `priority` counts only among the key's own requests.
    pub(crate) min_priority: Option<i32>,
    /// Whether it may use endpoints that change the server.
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

/// The names and limits of all API keys in one line; empty without keys.
///
/// # Errors
/// [`crate::Error::Keys`] if the keys file cannot be read, or is invalid.
pub fn describe_api_keys(config: &ServeConfig) -> crate::Result<String> {
    Ok(ApiKeys::load(config)?.describe())
}

impl ApiKeys {
    /// # Errors
    /// The file cannot be read, or is invalid.
    pub(crate) fn load(config: &ServeConfig) -> Result<Self, KeysError> {
        let keys = Self(RwLock::default());
        keys.reload(config)?;
        Ok(keys)
    }

    /// Reloads the file. Keys that stay keep their usage.
    ///
    /// # Errors
    /// The errors of [`Self::load`]; the old keys then stay in force.
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
            // The usage belongs to the name: an owner who changes the key does not get new limits.
            let usage = before.remove(&name).unwrap_or_default();
            let key = ApiKey { name, limits, usage, counters: OnceLock::new() };
            if let Some(other) = keys.get(&digest) {
                let problem = format!("`{}` and `{}` are the same key", other.name, key.name);
                return Err(KeysError::new(place(), problem));
            }
            keys.insert(digest, Arc::new(key));
        }
        // The lock is taken at the end only, so that requests never wait for the file.
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    /// The key with these bytes. Only digests are compared, so that the time of the look-up reveals nothing of the keys.
    pub(crate) fn find(&self, sent: &[u8]) -> Option<Arc<ApiKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&digest(sent)).cloned()
    }

    /// Names and limits of the keys, for the log.
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
    /// Refuses a request early if the key has reached a limit.
    ///
    /// # Errors
    /// 429 that names the limit.
    pub(crate) fn check(&self) -> ApiResult<()> {
        self.usage.check(&self.limits, 1).map_err(|refused| self.refusal(refused))
    }

    /// Admits `num_sequences` sequences, and counts the tokens of their prompts.
    ///
    /// # Errors
    /// 400 for more sequences than the key's limit, 429 for more than are free now.
    pub(crate) fn admit(
        &self,
        num_sequences: usize,
        prompt_tokens: usize,
        metrics: &Metrics,
    ) -> ApiResult<Vec<KeyPermit>> {
        // A key has its metrics from its first use on, so thousands of unused keys make no time series.
        let counters = self.counters.get_or_init(|| metrics.key_counters(&self.name));
        self.usage.take(&self.limits, num_sequences).map_err(|refused| self.refusal(refused))?;
        let permits = (0..num_sequences)
            .map(|_| KeyPermit::new(Arc::clone(&self.usage), counters.generation_tokens.clone()))
            .collect();
        // Prompts count for the limit when they are admitted, and answers token by token.
        counters.prompt_tokens.increment(prompt_tokens as u64);
        self.usage.spend(prompt_tokens);
        Ok(permits)
    }

    /// The priority among all callers, for a request with `priority`.
    pub(crate) fn caller_priority(&self, priority: i32) -> i32 {
        // Without the right, all requests of a key have the same priority among callers.
        self.limits.min_priority.map_or(0, |least| priority.max(least))
    }

    /// Its name, and its limits if it has some.
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
                "The request needs {asked} concurrent sequences; the key `{name}` may have {limit} (`max_concurrent`)."
            )),
            usage::Refused::Sequences { running, limit } => {
                let message = format!(
                    "The key `{name}` has {running} concurrent sequences of at most {limit} (`max_concurrent`). Try again later."
                );
                ApiError::rate_limited(message, 1)
            }
            usage::Refused::Tokens { limit, seconds } => {
                let message = format!(
                    "The key `{name}` has used its {limit} tokens per minute (`max_tokens_per_minute`). Try again in {seconds} s."
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
