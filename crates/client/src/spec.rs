//! What a supervisor is to run: everything of a deployment but its secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use candlepower_api::clip;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::secret::Secrets;
use crate::status::Framework;

/// The server's settings of TLS, each the path of a file.
pub(crate) const TLS_FILES: [&str; 3] = [CERTIFICATE, KEY, CLIENT_AUTHORITIES];
const CERTIFICATE: &str = "SSL_CERTFILE";
const KEY: &str = "SSL_KEYFILE";
pub(crate) const CLIENT_AUTHORITIES: &str = "SSL_CA_CERTS";
/// The server's settings of its end, in seconds.
const DRAIN_DELAY: &str = "DRAIN_DELAY";
const SHUTDOWN_TIMEOUT: &str = "SHUTDOWN_TIMEOUT";
/// Seconds that the server gives its requests by default, and that it may take besides.
const SHUTDOWN_SECONDS: u64 = 30;
const LAST_SECONDS: u64 = 10;
/// Longest time that a server has to end by itself: a day.
const MAX_STOP_SECONDS: u64 = 86_400;

/// What is run. Two deployments with equal specs are the same one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) framework: Framework,
    /// As the user named it; a folder by its full path.
    pub(crate) model: String,
    /// The command line of the server, from `serve` on, without its address.
    pub(crate) argv: Vec<String>,
    /// The port that was asked for; `None` takes a free one.
    pub(crate) port: Option<u16>,
    /// Variables that may be seen.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// Names of the variables that were given and may not be seen.
    #[serde(default)]
    pub(crate) secret_names: BTreeSet<String>,
    /// GPUs that were asked for; `None` if nothing was said.
    pub(crate) gpu_count: Option<u32>,
    #[serde(default)]
    pub(crate) gpu_models: Vec<String>,
    pub(crate) min_gpu_memory_gb: Option<u64>,
    /// Bytes of main memory that the server may take.
    pub(crate) memory_bytes: u64,
    /// Thousandths of CPUs that are set aside.
    pub(crate) cpu_millis: Option<u64>,
    pub(crate) ttl_seconds: Option<u64>,
    /// The container image that was asked for, where the backend runs one.
    pub(crate) image: Option<String>,
    /// Servers side by side.
    #[serde(default = "one")]
    pub(crate) replicas: u32,
    /// Where containers keep what they download: a folder by its full path, or the name of a volume.
    pub(crate) hub_cache: Option<String>,
}

fn one() -> u32 {
    1
}

impl Spec {
    /// How another one differs that is asked for, in words.
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
                // Values may be long, or nobody's business.
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

    /// The scheme of the server's addresses.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.setting(CERTIFICATE).is_some() { "https" } else { "http" }
    }

    /// The files with which the server's own probe passes for a client, where it takes none without a certificate.
    pub(crate) fn identity(&self) -> Option<(&Path, &Path)> {
        self.setting(CLIENT_AUTHORITIES)?;
        let file = |name| self.setting(name).map(Path::new);
        Some((file(CERTIFICATE)?, file(KEY)?))
    }

    /// A setting that the server has from its environment.
    fn setting(&self, name: &str) -> Option<&str> {
        self.env.get(&self.framework.variable(name)).map(String::as_str)
    }

    /// Seconds that the server answers on when it is asked to end, if its environment says.
    pub(crate) fn drain_delay(&self) -> Option<u64> {
        self.setting(DRAIN_DELAY)?.parse().ok()
    }

    /// Seconds that the server has to end by itself: more than it gives its requests.
    pub(crate) fn stop_seconds(&self, drain_seconds: u64) -> u64 {
        let timeout = self.setting(SHUTDOWN_TIMEOUT).and_then(|text| text.parse().ok());
        let requests: u64 = timeout.unwrap_or(SHUTDOWN_SECONDS);
        let drain = self.drain_delay().unwrap_or(drain_seconds);
        requests.saturating_add(drain).saturating_add(LAST_SECONDS).min(MAX_STOP_SECONDS)
    }

    /// Bytes of shared memory, which ranks exchange tensors through. It counts as part of the main memory, and is taken only
    /// as it is written.
    #[cfg(any(feature = "docker", feature = "kubernetes"))]
    pub(crate) fn shm_bytes(&self) -> u64 {
        self.memory_bytes / 4
    }

    /// The image to run: what was asked for, or this version's for the CPU or for GPUs of a compute capability.
    #[cfg(any(feature = "docker", feature = "kubernetes"))]
    pub(crate) fn image_for(&self, gpus: Option<(u32, u32)>) -> String {
        const VERSION: &str = env!("CARGO_PKG_VERSION");
        let default = || match gpus {
            Some((major, minor)) => format!("candlepower:{VERSION}-cuda-sm{major}{minor}"),
            None => format!("candlepower:{VERSION}-cpu"),
        };
        self.image.clone().unwrap_or_else(default)
    }

    /// The model, if it is a folder or a file of this machine.
    #[cfg(any(feature = "docker", feature = "kubernetes"))]
    pub(crate) fn model_path(&self) -> Option<&Path> {
        // They have their full path here.
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

/// A value as an error shows it.
fn said(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => clip(text),
        other => clip(&other.to_string()),
    }
}

/// The flags of two command lines that differ; `asked` is the list of the other one.
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

/// The names of variables that differ, of objects or of lists.
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

/// On what the server computes: its flag `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Device {
    /// A GPU if the server is built for it, else the CPU.
    Auto,
    Cpu,
    /// A GPU: whoever asked for one does not get the CPU instead.
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

/// What a supervisor is told through its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Launch {
    /// The folder of all deployments.
    pub(crate) root: PathBuf,
    /// The folder that relative paths begin at: where the client is.
    pub(crate) folder: PathBuf,
    pub(crate) spec: Spec,
    pub(crate) secrets: Secrets,
    pub(crate) device: Device,
    /// The GPUs to use, by UUID.
    pub(crate) gpus: Vec<String>,
    /// What the user should know of the start.
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
