//! Configuration: the hub, the cache and the token, from settings and the environment, as the hub's own tools read
//! them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Error, Result};

/// Time without a byte after which a connection counts as lost.
const SILENCE: Duration = Duration::from_secs(30);

/// Settings of the user. The environment completes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubSettings {
    /// `HF_HOME`: the folder of the cache and the token.
    pub home: Option<PathBuf>,
    /// `HF_HUB_CACHE`: the cache, if it is not in `HF_HOME`.
    pub cache: Option<PathBuf>,
    /// `HF_ENDPOINT`: the hub's address, if it is not the default.
    pub endpoint: Option<String>,
    /// `HF_HUB_OFFLINE`: makes no requests.
    pub offline: bool,
}

/// The hub's address, its credentials and the cache.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// The hub's address without a final `/`; `None` for the default.
    pub(crate) endpoint: Option<String>,
    pub(crate) cache: PathBuf,
    pub(crate) token: Option<Token>,
    pub(crate) offline: bool,
    pub(crate) silence: Duration,
}

/// A token and its origin.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    secret: String,
    origin: String,
}

impl Token {
    /// The token `hf_..`, which must never be written anywhere.
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// Origin of the token: `HF_TOKEN`, or the path of a file.
    pub fn origin(&self) -> &str {
        &self.origin
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(from {})", self.origin)
    }
}

impl HubConfig {
    /// Completes `settings` from the environment, whose variables `env` returns:
    ///
    /// - The cache comes from `HF_HOME`, `XDG_CACHE_HOME` or `HOME`.
    /// - The token comes from `HF_TOKEN`, `HUGGING_FACE_HUB_TOKEN`, or the file that `HF_TOKEN_PATH` names or
    ///   `huggingface-cli login` writes.
    /// - The time limit comes from `HF_HUB_DOWNLOAD_TIMEOUT` (seconds).
    ///
    /// Source: constants.py and utils/_auth.py in huggingface_hub.
    ///
    /// # Errors
    /// There is no home folder for the cache, the endpoint is no URL, or the time limit is no number.
    pub fn new(settings: HubSettings, env: impl Fn(&str) -> Option<String>) -> Result<Self> {
        // An empty variable counts as unset. Container files often set one in order to remove it.
        let env = |name: &str| env(name).filter(|value| !value.trim().is_empty());
        let user_home = env("HOME").map(PathBuf::from);
        let folder = |path: &Path| expand_home(path, user_home.as_deref());
        let home = match settings.home {
            Some(home) => Some(folder(&home)),
            None => env("XDG_CACHE_HOME")
                .map(PathBuf::from)
                .or_else(|| Some(user_home.as_ref()?.join(".cache")))
                .map(|cache| cache.join("huggingface")),
        };
        let cache = match (&settings.cache, &home) {
            (Some(cache), _) => folder(cache),
            (None, Some(home)) => home.join("hub"),
            (None, None) => return Err(Error::NoHome),
        };
        let token_file = env("HF_TOKEN_PATH")
            .map(|path| folder(Path::new(&path)))
            .or_else(|| Some(home.as_ref()?.join("token")));
        let silence = match env("HF_HUB_DOWNLOAD_TIMEOUT") {
            None => SILENCE,
            Some(text) => match text.trim().parse() {
                Ok(seconds @ 1..=3600) => Duration::from_secs(seconds),
                _ => return Err(Error::BadTimeout(text)),
            },
        };
        Ok(Self {
            endpoint: settings.endpoint.map(endpoint).transpose()?,
            cache,
            token: find_token(env, token_file.as_deref()),
            offline: settings.offline,
            silence,
        })
    }

    /// The folder of the cache.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// The token, if there is one.
    pub fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }
}

/// Checks the hub's address.
fn endpoint(text: String) -> Result<String> {
    let trimmed = text.trim().trim_end_matches('/').to_owned();
    match reqwest::Url::parse(&trimmed) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(trimmed),
        _ => Err(Error::BadEndpoint(text)),
    }
}

fn find_token(env: impl Fn(&str) -> Option<String>, file: Option<&Path>) -> Option<Token> {
    let named = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]
        .into_iter()
        .find_map(|name| Some((env(name)?, name.to_owned())));
    let (secret, origin) = named.or_else(|| {
        let file = file?;
        Some((std::fs::read_to_string(file).ok()?, file.display().to_string()))
    })?;
    // The file of `huggingface-cli login` may end with a line break, which no header may hold.
    let secret = secret.trim();
    (!secret.is_empty()).then(|| Token { secret: secret.to_owned(), origin })
}

/// Replaces `~` by the user's home folder.
fn expand_home(path: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(settings: HubSettings, env: &[(&str, &str)]) -> Result<HubConfig> {
        HubConfig::new(settings, |name| {
            env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_cache_is_found_as_the_hubs_tools_find_it() {
        let cache = |settings: HubSettings, env: &[(&str, &str)]| {
            config(settings, env).unwrap().cache().to_str().unwrap().to_owned()
        };
        let none = HubSettings::default;
        assert_eq!(cache(none(), &[("HOME", "/u")]), "/u/.cache/huggingface/hub");
        let env = [("HOME", "/u"), ("XDG_CACHE_HOME", "/x")];
        assert_eq!(cache(none(), &env), "/x/huggingface/hub");
        let home = HubSettings { home: Some("~/hf".into()), ..none() };
        assert_eq!(cache(home.clone(), &env), "/u/hf/hub");
        let both = HubSettings { cache: Some("/c".into()), ..home };
        assert_eq!(cache(both, &env), "/c");
        assert!(matches!(config(none(), &[]), Err(Error::NoHome)));
    }

    #[test]
    fn the_environment_gives_the_token_before_the_file_does() {
        let folder = std::env::temp_dir().join(format!("candlepower-token-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("token"), "hf_file\n").unwrap();
        let settings = HubSettings { home: Some(folder.clone()), ..HubSettings::default() };
        let token = |env: &[(&str, &str)]| config(settings.clone(), env).unwrap().token.unwrap();
        assert_eq!(token(&[("HF_TOKEN", " hf_env ")]).secret(), "hf_env");
        assert_eq!(
            token(&[("HUGGING_FACE_HUB_TOKEN", "hf_old")]).origin(),
            "HUGGING_FACE_HUB_TOKEN"
        );
        // The variable is set but empty, so the file decides.
        let found = token(&[("HF_TOKEN", "")]);
        assert_eq!(found.secret(), "hf_file");
        assert!(!format!("{found:?}").contains("hf_file"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_no_address_or_no_number_is_refused() {
        for text in ["hub.example", "ftp://hub.example", "http://"] {
            let settings = HubSettings { endpoint: Some(text.into()), ..HubSettings::default() };
            assert!(
                matches!(config(settings, &[("HOME", "/u")]), Err(Error::BadEndpoint(_))),
                "{text}"
            );
        }
        let env = [("HOME", "/u"), ("HF_HUB_DOWNLOAD_TIMEOUT", "soon")];
        assert!(matches!(config(HubSettings::default(), &env), Err(Error::BadTimeout(_))));
    }
}
