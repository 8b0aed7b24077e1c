//! Parameters of a deployment, with their defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::secret::Secret;
use crate::spec::Spec;
use crate::status::Framework;

/// Parameters of a deployment. Build them with [`BlazeParams`] or [`PrismParams`].
#[derive(Clone)]
pub struct Params {
    pub(crate) framework: Framework,
    pub(crate) name: String,
    pub(crate) model: String,
    pub(crate) gpu_count: Option<u32>,
    pub(crate) tensor_parallel_size: Option<u32>,
    pub(crate) max_model_len: Option<u64>,
    pub(crate) quantization: Option<String>,
    pub(crate) gpu_models: Vec<String>,
    pub(crate) min_gpu_memory_gb: Option<u64>,
    pub(crate) memory: String,
    pub(crate) cpu: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) timeout: u64,
    pub(crate) dtype: Option<String>,
    pub(crate) served_model_name: Option<String>,
    pub(crate) api_key: Option<Secret>,
    pub(crate) gpu_memory_utilization: Option<f64>,
    pub(crate) enforce_eager: bool,
    pub(crate) image: Option<String>,
    pub(crate) replicas: u32,
    pub(crate) ttl_seconds: Option<u64>,
    pub(crate) port: Option<u16>,
    pub(crate) backend: Option<String>,
    pub(crate) keep_on_failure: bool,
    pub(crate) hub_cache: Option<String>,
    pub(crate) update: bool,
    /// Names of the secrets whose values stay as they are in an update.
    pub(crate) kept_secrets: BTreeSet<String>,
}

impl Params {
    fn new(framework: Framework, name: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            framework,
            name: name.into(),
            model: model.into(),
            gpu_count: None,
            tensor_parallel_size: None,
            max_model_len: None,
            quantization: None,
            gpu_models: Vec::new(),
            min_gpu_memory_gb: None,
            memory: "16Gi".into(),
            cpu: None,
            env: BTreeMap::new(),
            timeout: 600,
            dtype: None,
            served_model_name: None,
            api_key: None,
            gpu_memory_utilization: None,
            enforce_eager: false,
            image: None,
            replicas: 1,
            ttl_seconds: None,
            port: None,
            backend: None,
            keep_on_failure: false,
            hub_cache: None,
            update: false,
            kept_secrets: BTreeSet::new(),
        }
    }
}

impl Params {
    /// The framework that the deployment is set up for.
    pub fn framework(&self) -> Framework {
        self.framework
    }

    /// The parameters that a deployment was made with, as the basis of an update. The values of secrets are
    /// not among them.
    pub(crate) fn of(spec: &Spec) -> Self {
        let flag = |name: &str| {
            let value =
                |word: &String| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned());
            spec.argv.iter().find_map(value)
        };
        let ranks = flag("--tensor-parallel-size").and_then(|ranks| ranks.parse().ok());
        let gpus = spec.gpu_count.unwrap_or(1).max(1);
        Self {
            gpu_count: spec.gpu_count,
            // The default is the number of GPUs.
            tensor_parallel_size: Some(ranks.unwrap_or(1)).filter(|ranks| *ranks != gpus),
            max_model_len: flag("--max-model-len").and_then(|len| len.parse().ok()),
            quantization: flag("--quantization"),
            gpu_models: spec.gpu_models.clone(),
            min_gpu_memory_gb: spec.min_gpu_memory_gb,
            // The original text is not in the spec. A plain number of bytes is a quantity, too.
            memory: spec.memory_bytes.to_string(),
            cpu: spec.cpu_millis.map(|millis| format!("{millis}m")),
            env: spec.env.clone(),
            dtype: flag("--dtype"),
            served_model_name: flag("--served-model-name"),
            gpu_memory_utilization: flag("--gpu-memory-utilization")
                .and_then(|part| part.parse().ok()),
            enforce_eager: spec.argv.iter().any(|word| word == "--enforce-eager"),
            image: spec.image.clone(),
            replicas: spec.replicas,
            ttl_seconds: spec.ttl_seconds,
            port: spec.port,
            hub_cache: spec.hub_cache.clone(),
            update: true,
            kept_secrets: spec.secret_names.clone(),
            ..Self::new(spec.framework, spec.name.as_str(), spec.model.as_str())
        }
    }
}

impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Params");
        shown
            .field("framework", &self.framework)
            .field("name", &self.name)
            .field("model", &self.model);
        // Names only: a value of the environment may be a secret.
        shown.field("env", &self.env.keys()).finish_non_exhaustive()
    }
}

/// Defines the parameters of a framework.
macro_rules! params {
    ($(#[$doc:meta])* $name:ident, $framework:ident, $memory:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name(Params);

        impl $name {
            /// Parameters of a deployment called `name` (lowercase letters, digits and hyphens, at most 63)
            /// of `model`: a hub id `owner/name`, a folder, or `demo`. All other parameters have their
            /// defaults.
            pub fn new(name: impl Into<String>, model: impl Into<String>) -> Self {
                Self(Params::new(Framework::$framework, name, model))
            }

            params! { @set
                /// GPUs to allocate; 0 computes on the CPU [default: one, or the CPU if there is none].
                gpu_count: u32 => Some;
                /// GPUs over which each layer is split [default: `gpu_count`].
                tensor_parallel_size: u32 => Some;
                /// Longest sequence, prompt and output together, in tokens [default: the model's own limit].
                max_model_len: u64 => Some;
                /// Least memory of a GPU, in units of 10^9 bytes.
                min_gpu_memory_gb: u64 => Some;
                /// Seconds until a deployment that is not ready counts as failed [default: 600].
                timeout: u64 => std::convert::identity;
                /// Disables CUDA graphs.
                enforce_eager: bool => std::convert::identity;
                /// Number of servers. More than one needs the kubernetes backend [default: 1].
                replicas: u32 => std::convert::identity;
                /// Seconds after which the deployment deletes itself [default: never].
                ttl_seconds: u64 => Some;
                /// Port of the server [default: a free one].
                port: u16 => Some;
                /// Changes an existing deployment of this name that has other parameters. The new server is
                /// ready before the old one ends, if there is room for both. If the new server fails, the old
                /// one is kept.
                update: bool => std::convert::identity;
                /// Keeps a deployment that failed, for inspection, until it is deleted.
                keep_on_failure: bool => std::convert::identity;
            }
            params! { @text
                /// Quantization that the weights must have, by a name that `candlepower deploy --help` lists
                /// [default: the one in config.json].
                quantization => Some;
                /// Main memory, a Kubernetes quantity [default: 16Gi].
                memory => std::convert::identity;
                /// CPUs that are reserved, a Kubernetes quantity such as 4 or 500m. The server uses as many
                /// threads [default: no reservation, and a thread for each core].
                cpu => Some;
                /// `auto`, `float32`, `float16` or `bfloat16` [default: auto, the type of the checkpoint].
                dtype => Some;
                /// Name of the model in requests [default: the model's own].
                served_model_name => Some;
                /// Container image, for backends that run containers [default: `CANDLEPOWER_IMAGE`, or this
                /// version's image].
                image => Some;
                /// Backend: `process`, `docker` or `kubernetes` [default: the client's].
                backend => Some;
                /// Storage for downloads of containers: a folder by its absolute path, or the name of a
                /// volume (docker [default: `candlepower`]) or of a persistent volume claim (kubernetes
                /// [default: nothing is kept]). A folder must exist, and user 10001 must be able to write to
                /// it.
                hub_cache => Some;
            }

            /// Part of a GPU's memory that the server may use, above 0 and at most 1.
            #[must_use]
            pub fn $memory(mut self, part: f64) -> Self {
                self.0.gpu_memory_utilization = Some(part);
                self
            }

            /// Key that clients must send. It is never written to a file: see
            /// [`Client::restart`](crate::Client::restart).
            #[must_use]
            pub fn api_key(mut self, key: impl Into<String>) -> Self {
                self.0.api_key = Some(Secret(key.into()));
                self
            }

            /// Names of acceptable GPUs, or parts of names such as `H100`.
            #[must_use]
            pub fn gpu_models(mut self, models: impl IntoIterator<Item = impl Into<String>>) -> Self {
                self.0.gpu_models = models.into_iter().map(Into::into).collect();
                self
            }

            /// Replaces the model.
            #[must_use]
            pub fn model(mut self, model: impl Into<String>) -> Self {
                self.0.model = model.into();
                self
            }

            /// Adds a variable to the server's environment. Its value is stored in clear text, unless its
            /// name contains TOKEN, KEY, SECRET, PASSWORD, PASSWD or CREDENTIAL.
            #[must_use]
            pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
                self.0.env.insert(name.into(), value.into());
                self
            }
        }

        impl From<Params> for $name {
            /// Parameters of this framework, to be changed: see [`Client::update`](crate::Client::update).
            fn from(params: Params) -> Self {
                Self(params)
            }
        }

        impl From<$name> for Params {
            fn from(params: $name) -> Self {
                params.0
            }
        }
    };
    (@set $($(#[$doc:meta])* $field:ident: $type:ty => $wrap:expr;)+) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.0.$field = $wrap($field);
            self
        })+
    };
    (@text $($(#[$doc:meta])* $field:ident => $wrap:expr;)+) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: impl Into<String>) -> Self {
            self.0.$field = $wrap($field.into());
            self
        })+
    };
}

params! {
    /// Parameters of a server for independent requests at the highest throughput.
    BlazeParams, Blaze, gpu_memory_utilization
}

params! {
    /// Parameters of a server for conversations and branches that share prefixes.
    PrismParams, Prism, mem_fraction_static
}

impl PrismParams {
    /// Alias of [`max_model_len`](Self::max_model_len).
    #[must_use]
    pub fn context_length(self, tokens: u64) -> Self {
        self.max_model_len(tokens)
    }
}
