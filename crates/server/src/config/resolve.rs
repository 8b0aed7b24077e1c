//! Finds the source of each setting: flag > environment > file > default.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, ValueEnum};

use super::environment::{HUB_TOKEN, Names};
use super::numbers::number_error;
use super::{Framework, ServeConfig};

/// Settings that only the command line has, because they name the source of the others.
pub(super) const FLAG_ONLY: [&str; 1] = ["config"];
/// Settings whose value is not shown.
pub(super) const SECRET: [&str; 1] = ["api_key"];
/// The hub's token, which is not a setting: it is read from the environment only.
pub(super) const TOKEN: &str = "hf_token";

/// Why the settings cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// An unknown environment variable with the framework's prefix.
    #[error("the environment variable {name} is not known; did you mean {nearest}?")]
    UnknownVariable {
        /// Its name.
        name: String,
        /// The most similar known name.
        nearest: String,
    },
    /// An unknown key in the config file.
    #[error("{}: the key `{key}` is not known; did you mean `{nearest}`?", file.display())]
    UnknownKey {
        /// The config file.
        file: PathBuf,
        /// The key.
        key: String,
        /// The most similar known key.
        nearest: String,
    },
    /// A value that does not parse.
    #[error("{place}: {reason}")]
    BadValue {
        /// The flag, environment variable, or file and key.
        place: String,
        /// The reason, with the values that are allowed.
        reason: String,
    },
    /// The config file cannot be read.
    #[error("{}: {reason}", file.display())]
    File {
        /// The config file.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The hub's token in a place that other users can read.
    #[error(
        "{place}: the hub's token is read from the environment only, because other users cannot see it there; set {HUB_TOKEN}"
    )]
    TokenInTheOpen {
        /// The flag, environment variable, or file and key.
        place: String,
    },
    /// Settings that exclude each other.
    #[error("{0}")]
    Conflict(String),
}

/// The settings in force.
#[derive(Clone, Debug)]
pub struct Effective {
    /// Their values.
    pub config: ServeConfig,
    /// Their values as text, with their sources.
    pub settings: Vec<Setting>,
}

/// One setting as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name, as in the config file.
    pub name: String,
    /// Its value; secrets are not shown.
    pub value: String,
    /// The elements of a list, or the one value; empty for a secret.
    pub parts: Vec<String>,
    /// The kind of its source.
    pub source: Source,
    /// The name of the environment variable or the path of the file, if it came from one.
    pub place: Option<String>,
}

/// The kind of source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Source {
    Flag,
    Environment,
    File,
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::File => "file",
            Self::Default => "default",
        })
    }
}

impl ServeConfig {
    /// The settings in force, from the matches of a command that has [`ServeConfig`]'s arguments and from
    /// the environment; the config file is read if one is named.
    ///
    /// # Errors
    /// A name that is not known, a value that does not parse, a file that cannot be read: each named.
    pub fn resolve(
        flags: &ArgMatches,
        env: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Effective, ConfigError> {
        if flags.value_source(TOKEN) == Some(ValueSource::CommandLine) {
            return Err(ConfigError::TokenInTheOpen { place: "--hf-token".into() });
        }
        let env: Vec<(OsString, OsString)> = env.into_iter().collect();
        let command = command();
        let args: BTreeMap<&str, &Arg> =
            command.get_arguments().map(|arg| (arg.get_id().as_str(), arg)).collect();
        let args = BTreeMap::from_iter(args.into_iter().filter(|(key, _)| *key != TOKEN));
        let mut found = Found { command: &command, args: &args, values: BTreeMap::new() };
        if let Some(path) = flags.get_one::<PathBuf>("config") {
            found.take_file(path)?;
        }
        // Lower sources are taken first and overwritten by higher ones; only the framework is needed early.
        found.take_framework(flags);
        let framework = found.framework();
        found.take_env(framework, &env)?;
        found.take_flags(flags);
        found.finish()
    }
}

/// A command whose only arguments are the settings.
pub(super) fn command() -> Command {
    ServeConfig::augment_args(Command::new("serve").no_binary_name(true).disable_help_flag(true))
}

/// Values found so far, by the setting's name.
struct Found<'a> {
    command: &'a Command,
    args: &'a BTreeMap<&'a str, &'a Arg>,
    values: BTreeMap<String, Given>,
}

/// A value that is not the default.
struct Given {
    source: Source,
    /// The environment variable or the file.
    place: Option<String>,
    values: Vec<OsString>,
}

impl Given {
    fn flag(values: Vec<OsString>) -> Self {
        Self { source: Source::Flag, place: None, values }
    }
}

impl Found<'_> {
    fn take_file(&mut self, file: &Path) -> Result<(), ConfigError> {
        let refused = |reason: String| ConfigError::File { file: file.to_owned(), reason };
        let text = std::fs::read_to_string(file)
            .map_err(|error| refused(format!("the file of --config cannot be read: {error}")))?;
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            refused(format!("line {line}: {}", error.message()))
        })?;
        let keys: Vec<&str> = self
            .args
            .keys()
            .copied()
            .filter(|key| !FLAG_ONLY.contains(key) && !is_negation(key))
            .collect();
        for (key, value) in table {
            if key == TOKEN {
                return Err(ConfigError::TokenInTheOpen {
                    place: format!("{}: `{TOKEN}`", file.display()),
                });
            }
            if !keys.contains(&key.as_str()) {
                let nearest = nearest(&key, keys.iter().copied()).to_owned();
                return Err(ConfigError::UnknownKey { file: file.to_owned(), key, nearest });
            }
            let place = format!("{}: `{key}`", file.display());
            let values = texts(value)
                .map_err(|reason| ConfigError::BadValue { place: place.clone(), reason })?;
            let file = Some(file.display().to_string());
            self.take(&key, Given { source: Source::File, place: file, values }, &place)?;
        }
        Ok(())
    }

    fn take_framework(&mut self, flags: &ArgMatches) {
        if let Some(values) = given(flags, "framework") {
            self.values.insert("framework".into(), Given::flag(values));
        }
    }

    fn framework(&self) -> Framework {
        let name = self
            .values
            .get("framework")
            .and_then(|given| given.values.first())
            .and_then(|name| name.to_str());
        // An unknown framework was refused when it was read.
        name.and_then(|name| Framework::from_str(name, true).ok()).unwrap_or_default()
    }

    fn take_env(
        &mut self,
        framework: Framework,
        env: &[(OsString, OsString)],
    ) -> Result<(), ConfigError> {
        let keys = self.args.keys().copied().filter(|key| !is_negation(key));
        let names = Names::new(framework, keys);
        for (name, value) in env {
            let Some(name) = name.to_str().filter(|name| names.is_ours(name, value)) else {
                continue;
            };
            let Some(key) = names.setting(name) else {
                let nearest = nearest(name, names.all()).to_owned();
                return Err(ConfigError::UnknownVariable { name: name.to_owned(), nearest });
            };
            self.take_variable(name, key, value)?;
        }
        for (name, key) in Names::of_the_hub() {
            let Some((_, value)) = env.iter().find(|(candidate, _)| candidate == name) else {
                continue;
            };
            // `huggingface_hub` ignores an empty variable; an empty switch is off.
            if !value.is_empty() {
                self.take_variable(name, key, value)?;
            } else if key == "hf_hub_offline" {
                self.take_variable(name, key, OsStr::new("false"))?;
            }
        }
        Ok(())
    }

    fn take_variable(&mut self, name: &str, key: &str, value: &OsStr) -> Result<(), ConfigError> {
        let place = format!("the environment variable {name}");
        let given = Given {
            source: Source::Environment,
            place: Some(name.to_owned()),
            values: vec![value.to_owned()],
        };
        self.take(key, given, &place)
    }

    fn take_flags(&mut self, flags: &ArgMatches) {
        for key in self.args.keys() {
            let Some(values) = given(flags, key) else { continue };
            // `--no-x` is a value of `x`.
            let (key, values) = match key.strip_prefix("no_") {
                Some(key) => (key, vec!["false".into()]),
                None => (*key, values),
            };
            self.values.insert(key.to_owned(), Given::flag(values));
        }
    }

    /// Takes a value from a file or the environment. It is checked alone first, so that the error names its source.
    fn take(&mut self, key: &str, given: Given, place: &str) -> Result<(), ConfigError> {
        let argv = self.argv(key, &given.values);
        if let Err(error) = self.command.clone().try_get_matches_from(argv) {
            return Err(ConfigError::BadValue {
                place: place.to_owned(),
                reason: first_line(&error),
            });
        }
        self.values.insert(key.to_owned(), given);
        Ok(())
    }

    fn argv(&self, key: &str, values: &[OsString]) -> Vec<OsString> {
        let arg = self.args[key];
        let takes_values = arg.get_action().takes_values();
        let spell = |value: &OsString| match arg.get_long() {
            Some(long) if takes_values => {
                let mut text = OsString::from(format!("--{long}="));
                text.push(value);
                text
            }
            Some(long) => OsString::from(format!("--{long}")),
            None => value.clone(),
        };
        values.iter().map(spell).collect()
    }

    fn finish(self) -> Result<Effective, ConfigError> {
        let mut argv: Vec<OsString> = Vec::new();
        for (key, given) in self.values.iter().filter(|(key, _)| *key != "model") {
            argv.extend(self.argv(key, &given.values));
        }
        if let Some(model) = self.values.get("model") {
            argv.push("--".into());
            argv.extend(model.values.iter().cloned());
        }
        let conflict = |error: clap::Error| ConfigError::Conflict(first_line(&error));
        let matches = self.command.clone().try_get_matches_from(argv).map_err(conflict)?;
        let config = ServeConfig::from_arg_matches(&matches).map_err(conflict)?;
        let settings = self.args.keys().filter_map(|key| self.setting(key, &matches)).collect();
        Ok(Effective { config, settings })
    }

    fn setting(&self, key: &str, matches: &ArgMatches) -> Option<Setting> {
        if is_negation(key) {
            return None;
        }
        let given = self.values.get(key);
        let mut parts: Vec<String> =
            matches.get_raw(key)?.map(|part| part.to_string_lossy().into_owned()).collect();
        let mut value = parts.join(",");
        if SECRET.contains(&key) {
            let names: Vec<String> = (1..=parts.len()).map(|i| format!("key-{i}")).collect();
            value = match names.as_slice() {
                [_] => "(not shown)".into(),
                names => format!("(not shown: {})", names.join(", ")),
            };
            parts.clear();
        }
        Some(Setting {
            name: key.to_owned(),
            value,
            parts,
            source: given.map_or(Source::Default, |given| given.source),
            place: given.and_then(|given| given.place.clone()),
        })
    }
}

/// The values of a flag that was given on the command line.
fn given(flags: &ArgMatches, key: &str) -> Option<Vec<OsString>> {
    if flags.value_source(key) != Some(ValueSource::CommandLine) {
        return None;
    }
    Some(flags.get_raw(key)?.map(OsStr::to_owned).collect())
}

/// Whether the flag switches a setting off (`--no-..`).
pub(super) fn is_negation(key: &str) -> bool {
    key.starts_with("no_")
}

/// A value of the config file, written as on the command line.
fn texts(value: toml::Value) -> Result<Vec<OsString>, String> {
    let text = |value| match value {
        toml::Value::String(text) => Ok(text),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        toml::Value::Boolean(flag) => Ok(flag.to_string()),
        other => Err(format!(
            "a {} is not allowed here; use a string, a number, a Boolean or a list of them",
            other.type_str()
        )),
    };
    match value {
        toml::Value::Array(values) => {
            values.into_iter().map(|value| text(value).map(OsString::from)).collect()
        }
        value => Ok(vec![text(value)?.into()]),
    }
}

/// The first line of clap's error, without the usage.
fn first_line(error: &clap::Error) -> String {
    if let Some(message) = number_error(error) {
        return message;
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line).to_owned();
    match error.kind() {
        // clap lists the possible values in another line.
        ErrorKind::InvalidValue => {
            let possible =
                text.lines().find_map(|line| line.trim().strip_prefix("[possible values: "));
            possible.map_or(line.clone(), |values| {
                format!("{line}; choose one of {}", values.trim_end_matches(']'))
            })
        }
        _ => line,
    }
}

/// The name that takes the fewest edits to become `name`.
fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> &'a str {
    names.min_by_key(|candidate| edit_distance(name, candidate)).unwrap_or_default()
}

/// Levenshtein's distance, in bytes.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substitution = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substitution.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}
