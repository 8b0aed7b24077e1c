//! The server's settings: one struct, which is the command line, the environment and the config file.
//!
//! Precedence is flag > environment > file > default; `resolve` says where each value came from. To add a setting, add
//! a field here and a line in `configs/default.toml`.

mod environment;
mod parsers;
mod print;
mod resolve;
mod values;

use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderName;
use candlepower_checkpoint::{DTYPES, Dtype, KvDtype, OnLoad, Pooling, QuantizationMethod};
use candlepower_engine::LoadFormat;
use candlepower_grammar::CompileLimits;
use clap::{ArgAction, Args};
use ipnet::IpNet;

pub use parsers::{ParserChoice, ReasoningParser, ToolCallParser};
use parsers::{reasoning_parser, tool_call_parser};
pub use resolve::{ConfigError, Effective, Setting, Source};
pub use values::{
    Asked, ByteSize, CacheScope, DefaultMaxTokens, DeviceKind, Framework, GenerationConfigSource,
    LogFormat, LogLevel, MetricsCompat, one_of,
};
use values::{
    at_least_one, endpoint, gigabytes, header_name, host_name, network, not_empty, origin, part,
    session_seconds, switch,
};

/// Everything that `candlepower serve` can be told.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct ServeConfig {
    /// What to serve: `demo` (a small model inside this program), a model folder, a GGUF file, or a model on the hub: owner/name, or of
    /// its GGUF files owner/name:Q4_K_M or owner/name/FILE
    #[arg(help_heading = "Model", value_name = "MODEL")]
    pub model: Option<String>,
    /// Names under which requests may ask for the model; several are separated by commas [default: the folder's name]
    #[arg(long, help_heading = "Model", value_name = "NAME", value_delimiter = ',', value_parser = not_empty)]
    pub served_model_name: Vec<String>,
    /// Branch, tag or commit of the model on the hub
    #[arg(long, help_heading = "Model", value_name = "REVISION", default_value = "main", value_parser = not_empty)]
    pub revision: String,
    /// Keys of config.json or of a GGUF file that are not known, and that change nothing in answers; several are separated by commas
    #[arg(long, help_heading = "Model", value_name = "NAME", value_delimiter = ',', value_parser = not_empty)]
    pub ignore_config_key: Vec<String>,
    /// Folder or hub id of the tokenizer's files [default: the model's]
    #[arg(long, help_heading = "Model", value_name = "FOLDER|ID", value_parser = not_empty)]
    pub tokenizer: Option<String>,
    /// Jinja file with the chat template [default: the model's]
    #[arg(long, help_heading = "Model", value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// How the model writes its calls of functions; auto finds out from its chat template
    #[arg(long, help_heading = "Model", value_parser = tool_call_parser(), default_value = "auto")]
    pub tool_call_parser: ToolCallParser,
    /// How the model sets its reasoning apart; auto finds out from its chat template
    #[arg(long, help_heading = "Model", value_parser = reasoning_parser(), default_value = "auto")]
    pub reasoning_parser: ReasoningParser,
    /// Type that the weights are kept in; auto keeps them as stored
    #[arg(long, help_heading = "Model", default_value = "auto", value_parser = one_of(DTYPES))]
    pub dtype: Asked<Dtype>,
    /// Quantization that the weights must have [default: what config.json says]
    #[arg(long, help_heading = "Model", value_name = "METHOD", value_parser = one_of(QuantizationMethod::choices()))]
    pub quantization: Option<QuantizationMethod>,
    /// What weights that are not quantized become while they are loaded
    #[arg(long, help_heading = "Model", value_name = "KIND", value_parser = one_of(OnLoad::CHOICES))]
    pub quantize_on_load: Option<OnLoad>,
    /// Where weights come from; dummy makes random ones, to try sizes and speeds
    #[arg(long, help_heading = "Model", default_value = "auto", value_parser = one_of(LoadFormat::CHOICES))]
    pub load_format: LoadFormat,
    /// How an encoder's hidden states become one vector [default: what the model's files say]
    #[arg(long, help_heading = "Model", value_parser = one_of(Pooling::CHOICES))]
    pub pooling: Option<Pooling>,
    /// Longest sequence, prompt and output together, in tokens [default: the model's own limit]
    #[arg(long, help_heading = "Model", value_name = "TOKENS", value_parser = at_least_one)]
    pub max_model_len: Option<usize>,
    /// Sampling of requests that do not say: none takes the protocol's defaults, auto the model's generation_config.json
    #[arg(long, help_heading = "Model", value_enum, default_value_t)]
    pub generation_config: GenerationConfigSource,
    /// Seed of requests that bring none
    #[arg(long, help_heading = "Model", value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// For what the engine is set up: blaze for throughput, prism for conversations that share prefixes
    #[arg(long, help_heading = "Server", value_enum, default_value_t)]
    pub framework: Framework,
    /// Address to listen on; 0.0.0.0 opens the server to the network
    #[arg(long, help_heading = "Server", value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = not_empty)]
    pub host: String,
    /// Port to listen on; 0 takes a free one [default: 8000, with prism 30000]
    #[arg(long, help_heading = "Server", value_name = "PORT")]
    pub port: Option<u16>,
    /// Key that clients must send as `Authorization: Bearer KEY`, may be repeated; prefer the environment, which other users cannot see
    #[arg(long, help_heading = "Server", value_name = "KEY", value_parser = not_empty)]
    pub api_key: Vec<String>,
    /// TOML file with named keys and their limits; SIGHUP reads it again
    #[arg(long, help_heading = "Server", value_name = "FILE")]
    pub api_keys_file: Option<PathBuf>,
    /// Ask for a key at /docs and /openapi.json too, where keys are needed
    #[arg(
        long, help_heading = "Server", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "false", action = ArgAction::Set, value_parser = switch,
    )]
    pub private_docs: bool,
    /// PEM file with the server's certificate, and the authorities between it and the root; the server then speaks TLS
    #[arg(long, help_heading = "Server", value_name = "FILE")]
    pub ssl_certfile: Option<PathBuf>,
    /// PEM file with the certificate's private key
    #[arg(long, help_heading = "Server", value_name = "FILE")]
    pub ssl_keyfile: Option<PathBuf>,
    /// PEM file with the authorities of clients' certificates; each client then needs such a certificate
    #[arg(long, help_heading = "Server", value_name = "FILE")]
    pub ssl_ca_certs: Option<PathBuf>,
    /// Speak HTTP/2 besides HTTP/1.1: over TLS by negotiation, without TLS by prior knowledge
    #[arg(
        long, help_heading = "Server", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "false", action = ArgAction::Set, value_parser = switch,
    )]
    pub http2: bool,
    /// Origins of web pages that may call this server, separated by commas; * allows all [default: none]
    #[arg(long, help_heading = "Server", value_name = "ORIGINS", value_delimiter = ',', value_parser = origin)]
    pub allowed_origins: Vec<String>,
    /// Header in which trusted proxies name the caller, where there is no key; others are told apart by address
    #[arg(long, help_heading = "Server", value_name = "NAME", value_parser = header_name)]
    pub caller_header: Option<HeaderName>,
    /// Addresses or networks whose caller header counts, separated by commas
    #[arg(long, help_heading = "Server", value_name = "NETWORKS", value_delimiter = ',', value_parser = network)]
    pub trusted_proxies: Vec<IpNet>,
    /// Names besides localhost under which a server without a key on a loopback address is called, separated by commas
    #[arg(long, help_heading = "Server", value_name = "HOSTS", value_delimiter = ',', value_parser = host_name)]
    pub allowed_hosts: Vec<String>,
    /// Most connections at once; each further request on an HTTP/2 connection counts as one
    #[arg(long, help_heading = "Server", value_name = "N", default_value = "8192", value_parser = at_least_one)]
    pub max_connections: usize,
    /// Memory of the bodies of all requests that arrive or are prepared
    #[arg(long, help_heading = "Server", value_name = "SIZE", default_value = "512Mi")]
    pub max_body_memory: ByteSize,
    /// Tokens generated for chats and completions that do not say: a number, or max for the rest of the context, which responses get anyway
    #[arg(long, help_heading = "Server", value_name = "N|max", default_value = "16")]
    pub default_max_tokens: DefaultMaxTokens,
    /// Most alternatives that logprobs may ask for
    #[arg(long, help_heading = "Server", value_name = "N", default_value_t = 20)]
    pub max_logprobs: usize,
    /// Most bytes of the texts of one prompt, such as 1Mi; more are answered with 400 [default: 16 for each token of the context, and 64Ki]
    #[arg(long, help_heading = "Server", value_name = "SIZE")]
    pub max_prompt_bytes: Option<ByteSize>,
    /// Refuse requests with parts that cannot be run or held, such as built-in tools, where these would be left out and told
    #[arg(
        long, help_heading = "Server", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "false", action = ArgAction::Set, value_parser = switch,
    )]
    pub strict_requests: bool,
    /// Choices of one caller that may wait while max_num_seqs run; more are answered with 429
    #[arg(long, help_heading = "Server", value_name = "N", default_value_t = 2048)]
    pub max_queued_requests: usize,
    /// Milliseconds of one thread that compiling a schema, regex or grammar may take
    #[arg(long, help_heading = "Server", value_name = "MS", default_value = "250", value_parser = at_least_one)]
    pub max_constraint_time: usize,
    /// Memory that compiling a schema, regex or grammar may take
    #[arg(long, help_heading = "Server", value_name = "SIZE", default_value = "64Mi")]
    pub max_constraint_memory: ByteSize,
    /// Let objects of schemas that say nothing of undeclared keys have such keys, as JSON Schema does; otherwise they have their declared keys only
    #[arg(
        long, help_heading = "Server", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "false", action = ArgAction::Set, value_parser = switch,
    )]
    pub additional_properties: bool,
    /// Seconds that running requests have to finish when the server is asked to stop
    #[arg(long, help_heading = "Server", value_name = "SECONDS", default_value_t = 30)]
    pub shutdown_timeout: u64,
    /// Seconds that requests are still answered when the server is asked to stop, while /health says draining: load balancers
    /// need them to send requests elsewhere
    #[arg(long, help_heading = "Server", value_name = "SECONDS", default_value_t = 0)]
    pub drain_delay: u64,
    /// TOML file with settings; its keys are the flags with _ for -
    #[arg(long, help_heading = "Server", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Where to compute
    #[arg(long, help_heading = "Engine", value_enum, default_value_t)]
    pub device: DeviceKind,
    /// Ranks over which each layer is split: processes, each with cores or a GPU of its own
    #[arg(long, help_heading = "Engine", value_name = "N", default_value = "1", value_parser = at_least_one)]
    pub tensor_parallel_size: usize,
    /// Threads that compute [default: one per physical core that it may use]
    #[arg(long, help_heading = "Engine", value_name = "N", value_parser = at_least_one)]
    pub threads: Option<usize>,
    /// Most sequences in a batch
    #[arg(long, help_heading = "Engine", value_name = "N", default_value = "256", value_parser = at_least_one)]
    pub max_num_seqs: usize,
    /// Token budget of one step [default: 512, on a GPU 8192, or what its memory has room for]
    #[arg(long, help_heading = "Engine", value_name = "N", value_parser = at_least_one)]
    pub max_num_batched_tokens: Option<usize>,
    /// Memory of the KV cache, such as 512M or 4Gi [default: a quarter of free memory, on a GPU what its part leaves, and no more than useful]
    #[arg(long, help_heading = "Engine", value_name = "SIZE")]
    pub kv_cache_memory: Option<ByteSize>,
    /// Type of keys and values in the cache; auto takes the weights', on the CPU bfloat16 or float32, and fp8 is e4m3, by the checkpoint's scales if it has any
    #[arg(long, help_heading = "Engine", default_value = "auto", value_parser = one_of(KvDtype::CHOICES))]
    pub kv_cache_dtype: Asked<KvDtype>,
    /// Most memory of the KV cache that sessions keep, until a request needs it [default: half of the cache]
    #[arg(long, help_heading = "Engine", value_name = "SIZE")]
    pub session_memory: Option<ByteSize>,
    /// Seconds without a request after which a session ends, where a request does not say
    #[arg(long, help_heading = "Engine", value_name = "SECONDS", default_value = "600", value_parser = session_seconds)]
    pub session_ttl: u64,
    /// Tokens in one KV block
    #[arg(long, help_heading = "Engine", value_name = "N", default_value = "16", value_parser = at_least_one)]
    pub block_size: usize,
    /// Keep computed prefixes for later requests
    #[arg(
        long, help_heading = "Engine", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "true", action = ArgAction::Set, value_parser = switch,
    )]
    pub enable_prefix_caching: bool,
    /// Forget computed prefixes
    #[arg(long, help_heading = "Engine", conflicts_with = "enable_prefix_caching")]
    no_enable_prefix_caching: bool,
    /// Among whom computed prefixes are shared, in whole blocks: all callers, or each caller's requests [default: server, with several keys caller]
    #[arg(long, help_heading = "Engine", value_enum)]
    pub prefix_cache_scope: Option<CacheScope>,
    /// Part of a GPU's free memory that may be taken (no effect on the CPU)
    #[arg(
        long, help_heading = "Engine", value_name = "PART", default_value = "0.9",
        alias = "mem-fraction-static", value_parser = part,
    )]
    pub gpu_memory_utilization: f64,
    /// No CUDA graphs (no effect on the CPU)
    #[arg(
        long, help_heading = "Engine", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "false", action = ArgAction::Set, value_parser = switch,
    )]
    pub enforce_eager: bool,
    /// GB of CPU memory for the KV blocks of preempted sequences, which are recomputed without (no effect on the CPU)
    #[arg(long, help_heading = "Engine", value_name = "GB", default_value = "0", value_parser = gigabytes)]
    pub swap_space: f64,

    /// Folder of the hub's tools; in the environment HF_HOME [default: ~/.cache/huggingface]
    #[arg(long, help_heading = "Hub", value_name = "FOLDER")]
    pub hf_home: Option<PathBuf>,
    /// Folder of downloaded models; in the environment HF_HUB_CACHE [default: hub in the folder of the hub's tools]
    #[arg(long, help_heading = "Hub", value_name = "FOLDER")]
    pub hf_hub_cache: Option<PathBuf>,
    /// Address of the hub or of a mirror; in the environment HF_ENDPOINT [default: huggingface.co]
    #[arg(long, help_heading = "Hub", value_name = "URL", value_parser = endpoint)]
    pub hf_endpoint: Option<String>,
    /// Use only what is downloaded already; in the environment HF_HUB_OFFLINE
    #[arg(
        long, help_heading = "Hub", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "false", action = ArgAction::Set, value_parser = switch,
    )]
    pub hf_hub_offline: bool,
    /// Refused with a word on where the token belongs: a command line can be seen by other users.
    #[arg(long, hide = true, value_name = "TOKEN")]
    hf_token: Option<String>,

    /// Least important messages to write
    #[arg(long, help_heading = "Log and metrics", value_enum, default_value_t)]
    pub log_level: LogLevel,
    /// Form of the log, which goes to standard error
    #[arg(long, help_heading = "Log and metrics", value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Write a line for each request: method, path, status, milliseconds, tokens, caller and request id
    #[arg(
        long, help_heading = "Log and metrics", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "false", action = ArgAction::Set, value_parser = switch,
    )]
    pub access_log: bool,
    /// Seconds between two lines about the load, which are written while there is work; 0 writes none
    #[arg(long, help_heading = "Log and metrics", value_name = "SECONDS", default_value_t = 10)]
    pub stats_interval: u64,
    /// Give /metrics under another server's names, so that its dashboards work
    #[arg(long, help_heading = "Log and metrics", value_enum, value_name = "SERVER")]
    pub metrics_compat: Option<MetricsCompat>,
}

impl ServeConfig {
    /// The port to listen on.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(self.framework.default_port())
    }

    /// The scheme of the server's addresses.
    pub fn scheme(&self) -> &'static str {
        if self.ssl_certfile.is_some() { "https" } else { "http" }
    }

    /// Whether computed blocks are kept for later requests with the same prefix.
    pub fn prefix_caching(&self) -> bool {
        self.enable_prefix_caching && !self.no_enable_prefix_caching
    }

    /// Whether clients must send a key.
    pub(crate) fn needs_key(&self) -> bool {
        !self.api_key.is_empty() || self.api_keys_file.is_some()
    }

    /// Among whom computed prefixes are shared.
    pub(crate) fn prefix_cache_scope(&self) -> CacheScope {
        let has_several_keys = self.api_key.len() > 1 || self.api_keys_file.is_some();
        self.prefix_cache_scope.unwrap_or(match has_several_keys {
            true => CacheScope::Caller,
            false => CacheScope::Server,
        })
    }

    /// Choices of one caller that may run or wait.
    pub(crate) fn max_in_flight(&self) -> usize {
        self.max_num_seqs.saturating_add(self.max_queued_requests)
    }

    /// The limits for compiling one constraint.
    pub(crate) fn compile_limits(&self) -> CompileLimits {
        CompileLimits {
            time: Duration::from_millis(self.max_constraint_time as u64),
            memory_bytes: usize::try_from(self.max_constraint_memory.0).unwrap_or(usize::MAX),
        }
    }

    /// How long a session lives without a request, where none says otherwise.
    pub(crate) fn session_ttl(&self) -> Duration {
        Duration::from_secs(self.session_ttl)
    }

    /// How long running requests may take after the server was asked to stop.
    pub fn shutdown_timeout(&self) -> Duration {
        Duration::from_secs(self.shutdown_timeout)
    }

    /// How long requests are answered after the server was asked to stop.
    pub(crate) fn drain_delay(&self) -> Duration {
        Duration::from_secs(self.drain_delay)
    }

    /// The time between two lines about the load, if there are to be any.
    pub(crate) fn stats_interval(&self) -> Option<Duration> {
        (self.stats_interval > 0).then(|| Duration::from_secs(self.stats_interval))
    }

    /// Settings that were given and do nothing on the CPU, for a note at start.
    pub(crate) fn without_effect(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        if self.enforce_eager {
            names.push("enforce_eager");
        }
        if self.swap_space > 0.0 {
            names.push("swap_space");
        }
        names
    }
}

#[cfg(test)]
mod tests;
