//! The environment variables that are settings, and their names.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use super::Framework;

/// The hub's token. It is never a setting, because more people can read command lines and files than an environment.
pub(super) const HUB_TOKEN: &str = "HF_TOKEN";
/// Settings with the names that `huggingface_hub` uses. If one setting has two names, the later row wins.
const HUB_NAMES: [(&str, &str); 5] = [
    ("HF_HOME", "hf_home"),
    ("HUGGINGFACE_HUB_CACHE", "hf_hub_cache"),
    ("HF_HUB_CACHE", "hf_hub_cache"),
    ("HF_ENDPOINT", "hf_endpoint"),
    ("HF_HUB_OFFLINE", "hf_hub_offline"),
];
/// Settings that the environment cannot set, because they choose its prefix.
const NOT_IN_ENVIRONMENT: [&str; 2] = ["config", "framework"];

/// The variables that a framework reads, with their settings.
pub(super) struct Names<'a> {
    prefix: &'static str,
    prefixed: BTreeMap<String, &'a str>,
}

impl<'a> Names<'a> {
    /// Names of the variables for these settings.
    pub(super) fn new(framework: Framework, keys: impl Iterator<Item = &'a str>) -> Self {
        let prefix = framework.env_prefix();
        let has_prefix = |key: &&str| {
            !NOT_IN_ENVIRONMENT.contains(key) && HUB_NAMES.iter().all(|(_, hub_key)| hub_key != key)
        };
        let prefixed = keys
            .filter(has_prefix)
            .map(|key| (format!("{prefix}{}", key.to_ascii_uppercase()), key))
            .collect();
        Self { prefix, prefixed }
    }

    /// The setting of a variable with the framework's prefix; `None` if there is none.
    pub(super) fn setting(&self, name: &str) -> Option<&'a str> {
        self.prefixed.get(name).copied()
    }

    /// Whether the variable has the framework's prefix, and Kubernetes did not set it.
    pub(super) fn is_ours(&self, name: &str, value: &OsStr) -> bool {
        name.starts_with(self.prefix) && !is_injected_by_kubernetes(name, value)
    }

    /// All known names.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        let hub = HUB_NAMES.iter().map(|(name, _)| *name).chain([HUB_TOKEN]);
        self.prefixed.keys().map(String::as_str).chain(hub)
    }

    /// The names without a prefix, and their settings; later ones win over earlier ones.
    pub(super) fn of_the_hub() -> impl Iterator<Item = (&'static str, &'static str)> {
        HUB_NAMES.into_iter()
    }
}

/// Whether Kubernetes sets this variable for a service whose name begins like the framework's.
///
/// Source: "Environment variables" in Kubernetes' documentation of services. `BLAZE_PORT` is a setting of ours too, but
/// Kubernetes sets it to a URL such as `tcp://10.0.0.11:8000`.
pub(super) fn is_injected_by_kubernetes(name: &str, value: &OsStr) -> bool {
    let is_url = || value.to_str().is_some_and(|value| value.contains("://"));
    let without_part = ["_PROTO", "_PORT", "_ADDR"].iter().find_map(|part| name.strip_suffix(part));
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && is_url())
        || ends_with_port_and_protocol(name)
        || without_part.is_some_and(ends_with_port_and_protocol)
}

/// Whether a name has the form `.._PORT_8000_TCP`.
fn ends_with_port_and_protocol(name: &str) -> bool {
    let port_and_protocol = name.rsplit_once("_PORT_").and_then(|(_, rest)| rest.split_once('_'));
    port_and_protocol.is_some_and(|(port, protocol)| {
        port.parse::<u16>().is_ok() && matches!(protocol, "TCP" | "UDP" | "SCTP")
    })
}
