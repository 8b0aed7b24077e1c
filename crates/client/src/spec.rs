//! What a supervisor is to run: everything of a deployment but its secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::secret::Secrets;
use crate::status::Framework;

/// The server's settings of TLS, each the path of a file.
pub(crate) const TLS_FILES: [&str; 3] = [CERTIFICATE, KEY, CLIENT_AUTHORITIES];
const CERTIFICATE: &str = "SSL_CERTFILE";
const KEY: &str = "SSL_KEYFILE";
pub(crate) const CLIENT_AUTHORITIES: &str = "SSL_CA_CERTS";

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
