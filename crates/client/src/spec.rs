//! The spec of a deployment: everything but its secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use candlepower_api::clip;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::secret::Secrets;
use crate::status::Framework;

/// The server's TLS settings, each the path of a file.
pub(crate) const TLS_FILES: [&str; 3] = [CERTIFICATE, KEY, CLIENT_AUTHORITIES];
const CERTIFICATE: &str = "SSL_CERTFILE";
const KEY: &str = "SSL_KEYFILE";
pub(crate) const CLIENT_AUTHORITIES: &str = "SSL_CA_CERTS";
/// The server's shutdown settings, in seconds.
const DRAIN_DELAY: &str = "DRAIN_DELAY";
const SHUTDOWN_TIMEOUT: &str = "SHUTDOWN_TIMEOUT";
/// Seconds that the server gives its requests by default, and extra seconds for the rest of its shutdown.
const SHUTDOWN_SECONDS: u64 = 30;
const LAST_SECONDS: u64 = 10;
/// Longest time for a server to end by itself: a day.
const MAX_STOP_SECONDS: u64 = 86_400;

/// The spec. Two deployments with equal specs are the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) framework: Framework,
    /// The model as the user named it; a folder by its absolute path.
    pub(crate) model: String,
    /// The server's command line, beginning with `serve`, without its address.
    pub(crate) argv: Vec<String>,
    /// The requested port; `None` takes a free one.
    pub(crate) port: Option<u16>,
    /// Variables that may be shown.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// Names of the secret variables.
    #[serde(default)]
    pub(crate) secret_names: BTreeSet<String>,
    /// Number of requested GPUs; `None` without a GPU request.
    pub(crate) gpu_count: Option<u32>,
    #[serde(default)]
    pub(crate) gpu_models: Vec<String>,
    pub(crate) min_gpu_memory_gb: Option<u64>,
    /// Bytes of main memory that the server may use.
    pub(crate) memory_bytes: u64,
    /// Thousandths of CPUs that are reserved.
    pub(crate) cpu_millis: Option<u64>,
    pub(crate) ttl_seconds: Option<u64>,
    /// The requested container image, for backends that run containers.
    pub(crate) image: Option<String>,
    /// Number of servers.
    #[serde(default = "one")]
    pub(crate) replicas: u32,
    /// Storage for downloads of containers: a folder by its absolute path, or the name of a volume.
    pub(crate) hub_cache: Option<String>,
}

fn one() -> u32 {
    1
}

impl Spec {
    /// The differences to another spec, as text.
    pub(crate) fn difference(&self, asked: &Self) -> String {
        const MOST: usize = 6;
        let values = |spec: &Self| serde_json::to_value(spec).unwrap_or_default();
        let (here, there) = (values(asked), values(self));
        let mut words = Vec::new();
        for (name, asked) in here.as_object().into_iter().flatten() {
            let has = &there[name];
            match name.as_str() {
                _ if asked == has => {}
                "argv" => {
                    words.extend(flags_that_differ(&self.argv, &self.model, asked, &here["model"]))
                }
                // Values may be long, or private.
                "env" | "secret_names" => {
                    let names = names_that_differ(asked, has).join(", ");
                    words.push(format!("{name}: {names}"));
                }
                _ => words.push(format!(
                    "{name}: it has {}, {} is asked for",
                    said(has),
                    said(asked)
                )),
            }
        }
        let more = words.len().saturating_sub(MOST);
        words.truncate(MOST);
        if more > 0 {
            words.push(format!("{more} more"));
        }
        words.join("; ")
    }

    /// The scheme of the server's URLs.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.setting(CERTIFICATE).is_some() { "https" } else { "http" }
    }

    /// The client certificate and key for health checks, if the server requires one. They are the server's own.
    pub(crate) fn identity(&self) -> Option<(&Path, &Path)> {
        self.setting(CLIENT_AUTHORITIES)?;
        let file = |name| self.setting(name).map(Path::new);
        Some((file(CERTIFICATE)?, file(KEY)?))
    }

    /// A setting in the server's environment.
    fn setting(&self, name: &str) -> Option<&str> {
        self.env.get(&self.framework.variable(name)).map(String::as_str)
    }

    /// Seconds for which the server still answers after the signal to stop, if its environment sets them.
    pub(crate) fn drain_delay(&self) -> Option<u64> {
        self.setting(DRAIN_DELAY)?.parse().ok()
    }

    /// Seconds for the server to end by itself. This is more than it gives its requests.
    pub(crate) fn stop_seconds(&self, drain_seconds: u64) -> u64 {
        let timeout = self.setting(SHUTDOWN_TIMEOUT).and_then(|text| text.parse().ok());
        let requests: u64 = timeout.unwrap_or(SHUTDOWN_SECONDS);
        let drain = self.drain_delay().unwrap_or(drain_seconds);
        requests.saturating_add(drain).saturating_add(LAST_SECONDS).min(MAX_STOP_SECONDS)
    }

    /// Bytes of shared memory, through which ranks exchange tensors. They count towards the main memory, and are used
    /// only when written.
    #[cfg(any(feature = "docker", feature = "kubernetes"))]
    pub(crate) fn shm_bytes(&self) -> u64 {
        self.memory_bytes / 4
    }

    /// The image: the requested one, or this version's for the CPU or for GPUs of a compute capability.
    #[cfg(any(feature = "docker", feature = "kubernetes"))]
    pub(crate) fn image_for(&self, gpus: Option<(u32, u32)>) -> String {
        const VERSION: &str = env!("CARGO_PKG_VERSION");
        let default = || match gpus {
            Some((major, minor)) => format!("candlepower:{VERSION}-cuda-sm{major}{minor}"),
            None => format!("candlepower:{VERSION}-cpu"),
        };
        self.image.clone().unwrap_or_else(default)
    }

    /// The model, if it is a folder or file of this machine.
    #[cfg(any(feature = "docker", feature = "kubernetes"))]
    pub(crate) fn model_path(&self) -> Option<&Path> {
        // Local models have absolute paths here.
        Some(Path::new(&self.model)).filter(|path| path.is_absolute())
    }

    /// The port within a container.
    #[cfg(any(feature = "docker", feature = "kubernetes"))]
    pub(crate) fn container_port(&self) -> u16 {
        match self.framework {
            Framework::Blaze => 8000,
            Framework::Prism => 30000,
        }
    }
}

/// A value as errors show it.
fn said(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => clip(text),
        other => clip(&other.to_string()),
    }
}

/// The flags that differ between two command lines; `asked` belongs to the other spec.
fn flags_that_differ(
    has: &[String],
    has_model: &str,
    asked: &Value,
    asked_model: &Value,
) -> Vec<String> {
    // The model has a field of its own.
    let flag = |word: &str| {
        let word = word.strip_prefix("--")?;
        Some(word.split_once('=').unwrap_or((word, "true")))
            .map(|(name, value)| (name.replace('-', "_"), value.to_owned()))
    };
    let has: BTreeMap<String, String> =
        has.iter().filter(|word| *word != has_model).filter_map(|word| flag(word)).collect();
    let asked = asked.as_array().into_iter().flatten().filter(|word| *word != asked_model);
    let asked: BTreeMap<String, String> = asked.filter_map(|word| flag(word.as_str()?)).collect();
    let names: BTreeSet<&String> =
        has.keys().chain(asked.keys()).filter(|name| *name != "framework").collect();
    let shown = |flags: &BTreeMap<String, String>, name: &str| {
        flags.get(name).map_or("none".to_owned(), |value| clip(value))
    };
    let differing = names.into_iter().filter(|name| has.get(*name) != asked.get(*name));
    differing
        .map(|name| {
            format!("{name}: it has {}, {} is asked for", shown(&has, name), shown(&asked, name))
        })
        .collect()
}

/// The names of variables that differ between two objects or lists.
fn names_that_differ(a: &Value, b: &Value) -> Vec<String> {
    let pairs = |value: &Value| -> BTreeMap<String, Value> {
        match value {
            Value::Object(map) => map.clone().into_iter().collect(),
            Value::Array(names) => names
                .iter()
                .filter_map(|name| Some((name.as_str()?.to_owned(), Value::Null)))
                .collect(),
            _ => BTreeMap::new(),
        }
    };
    let (a, b) = (pairs(a), pairs(b));
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    names.into_iter().filter(|name| a.get(*name) != b.get(*name)).map(|name| clip(name)).collect()
}

/// The server's device: its flag `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Device {
    /// A GPU if the server is built for it, else the CPU.
    Auto,
    Cpu,
    /// A GPU. The CPU is no substitute if one was requested.
    Cuda,
}

impl Device {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

/// The message that a supervisor gets through its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Launch {
    /// The folder of all deployments.
    pub(crate) root: PathBuf,
    /// The client's folder, which relative paths start from.
    pub(crate) folder: PathBuf,
    pub(crate) spec: Spec,
    pub(crate) secrets: Secrets,
    pub(crate) device: Device,
    /// UUIDs of the GPUs to use.
    pub(crate) gpus: Vec<String>,
    /// Warnings for the user.
    pub(crate) warnings: Vec<String>,
}

#[cfg(test)]
mod tests {
    use crate::BlazeParams;
    use crate::backend::Backend;
    use crate::check::Plan;
    use crate::params::Params;

    use super::Spec;

    fn spec(params: BlazeParams) -> Spec {
        Plan::new(&params.into(), &Backend::Process).unwrap().spec
    }

    fn demo() -> BlazeParams {
        BlazeParams::new("a", "demo").gpu_count(0)
    }

    #[test]
    fn what_differs_is_named() {
        let has = spec(demo().max_model_len(512).memory("8Gi").env("A", "1").env("B", "2"));
        let asked = demo().max_model_len(1024).dtype("float32").memory("4Gi").env("A", "3");
        let words = has.difference(&spec(asked.env("MY_TOKEN", "canary").port(9000)));
        for part in [
            "max_model_len: it has 512, 1024 is asked for",
            "dtype: it has none, float32 is asked for",
            "memory_bytes: it has 8589934592, 4294967296 is asked for",
            "env: A, B",
            "secret_names: MY_TOKEN",
            "port: it has none, 9000 is asked for",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
        assert!(!words.contains("canary"), "{words}");
        assert_eq!(has.difference(&has), "");
    }

    #[test]
    fn parameters_are_found_again() {
        let all = demo()
            .max_model_len(512)
            .quantization("awq")
            .dtype("float16")
            .served_model_name("b")
            .gpu_memory_utilization(0.5)
            .enforce_eager(true)
            .memory("1.5Gi")
            .cpu("1500m")
            .env("BLAZE_THREADS", "3")
            .env("MY_TOKEN", "canary")
            .ttl_seconds(60)
            .port(9000);
        let several = BlazeParams::new("a", "demo").gpu_count(4).gpu_models(["H100"]);
        for params in [
            demo(),
            all,
            several.clone(),
            several.clone().tensor_parallel_size(2),
            several.tensor_parallel_size(1),
        ] {
            let made = spec(params);
            let again = Plan::new(&Params::of(&made), &Backend::Process).unwrap();
            assert_eq!(again.spec, made);
            assert!(!again.secrets.0.values().any(|value| value == "canary"));
        }
    }
}
