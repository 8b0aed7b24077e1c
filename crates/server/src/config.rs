//! The server's settings: one struct for the command line, the environment and the config file.
//!
//! Precedence is flag > environment > file > default; `resolve` says where each value came from. To add a setting, add
//! a field here and a line in `configs/default.toml`.

mod environment;
mod numbers;
mod otlp;
mod parsers;
mod print;
mod resolve;
mod values;

use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderName;
use candlepower_checkpoint::{
    DTYPES, Dtype, ImageMemory, KvDtype, OnLoad, Pooling, QuantizationMethod,
};
use candlepower_engine::LoadFormat;
use candlepower_grammar::CompileLimits;
use candlepower_media::{AllowedDomain, FetchPolicy};
use clap::{ArgAction, Args};
use ipnet::IpNet;

pub use numbers::number_error;
pub use otlp::OtlpEndpoint;
pub use parsers::{ParserChoice, ReasoningParser, ToolCallParser};
use parsers::{reasoning_parser, tool_call_parser};
pub use resolve::{ConfigError, Effective, Setting, Source};
pub use values::{
    Asked, ByteSize, CacheScope, DefaultMaxTokens, DeviceKind, Framework, GenerationConfigSource,
    LogFormat, LogLevel, MediaLimit, MetricsCompat, one_of,
};
use values::{
    at_least_one, endpoint, folder, gigabytes, header_name, host_name, media_domain, network,
    not_empty, origin, part, session_seconds, switch,
};

/// All settings of `candlepower serve`.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct ServeConfig {
    /// Model to serve: `demo` (a small model inside this program), a model folder, a GGUF file, or a hub id. A hub id is owner/name, or for
    /// a GGUF file owner/name:Q4_K_M or owner/name/FILE
    #[arg(help_heading = "Model", value_name = "MODEL")]
    pub model: Option<String>,
    /// Model names that requests may use, separated by commas [default: the folder's name]
    #[arg(long, help_heading = "Model", value_name = "NAME", value_delimiter = ',', value_parser = not_empty)]
    pub served_model_name: Vec<String>,
    /// Branch, tag or commit of the model on the hub
    #[arg(long, help_heading = "Model", value_name = "REVISION", default_value = "main", value_parser = not_empty)]
    pub revision: String,
    /// Unknown keys of config.json or GGUF metadata to ignore, separated by commas. Name only keys that do not change the model's output
    #[arg(long, help_heading = "Model", value_name = "NAME", value_delimiter = ',', value_parser = not_empty)]
    pub ignore_config_key: Vec<String>,
    /// Folder or hub id of the tokenizer's files [default: the model's]
    #[arg(long, help_heading = "Model", value_name = "FOLDER|ID", value_parser = not_empty)]
    pub tokenizer: Option<String>,
    /// Jinja file with the chat template [default: the model's]
    #[arg(long, help_heading = "Model", value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Format of the model's tool calls
    #[arg(long, help_heading = "Model", value_parser = tool_call_parser(), default_value = "auto")]
    pub tool_call_parser: ToolCallParser,
    /// Format of the model's reasoning
    #[arg(long, help_heading = "Model", value_parser = reasoning_parser(), default_value = "auto")]
    pub reasoning_parser: ReasoningParser,
    /// Data type of weights and activations; auto keeps the checkpoint's type
    #[arg(long, help_heading = "Model", default_value = "auto", value_parser = one_of(DTYPES))]
    pub dtype: Asked<Dtype>,
    /// Quantization method that the checkpoint must have [default: the one in config.json]
    #[arg(long, help_heading = "Model", value_name = "METHOD", value_parser = one_of(QuantizationMethod::choices()))]
    pub quantization: Option<QuantizationMethod>,
    /// Quantize unquantized weights while loading
    #[arg(long, help_heading = "Model", value_name = "KIND", value_parser = one_of(OnLoad::CHOICES))]
    pub quantize_on_load: Option<OnLoad>,
    /// Source of the weights; dummy makes random ones, to measure memory and speed without a download
    #[arg(long, help_heading = "Model", default_value = "auto", value_parser = one_of(LoadFormat::CHOICES))]
    pub load_format: LoadFormat,
    /// Pooling of an encoder's hidden states into one vector [default: the one in the model's files]
    #[arg(long, help_heading = "Model", value_parser = one_of(Pooling::CHOICES))]
    pub pooling: Option<Pooling>,
    /// Context length: tokens of prompt and output together [default: the model's own limit]
    #[arg(long, help_heading = "Model", value_name = "TOKENS", value_parser = at_least_one)]
    pub max_model_len: Option<usize>,
    /// Serve a model that takes images as a text model: its part for images is not loaded, and images are refused
    #[arg(
        long, help_heading = "Model", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "false", action = ArgAction::Set, value_parser = switch,
    )]
    pub language_model_only: bool,
    /// Default sampling parameters: none (the OpenAI API's) or auto (the model's generation_config.json)
    #[arg(long, help_heading = "Model", value_enum, default_value_t)]
    pub generation_config: GenerationConfigSource,
    /// Seed of requests without `seed`
    #[arg(long, help_heading = "Model", value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Serving mode: blaze for throughput, prism for conversations that share prefixes
    #[arg(long, help_heading = "Server", value_enum, default_value_t)]
    pub framework: Framework,
    /// Address to listen on; 0.0.0.0 opens the server to the network
    #[arg(long, help_heading = "Server", value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = not_empty)]
    pub host: String,
    /// Port to listen on; 0 picks a free port [default: 8000; 30000 with prism]
    #[arg(long, help_heading = "Server", value_name = "PORT")]
    pub port: Option<u16>,
    /// Unix socket to listen on, instead of --host and --port. Only this user may connect to it, and it is removed when the server stops
    #[arg(long, help_heading = "Server", value_name = "PATH")]
    pub uds: Option<PathBuf>,
    /// API key that clients send as `Authorization: Bearer KEY`; may be repeated. Prefer the environment, which other users cannot read
    #[arg(long, help_heading = "Server", value_name = "KEY", value_parser = not_empty)]
    pub api_key: Vec<String>,
    /// TOML file with named API keys and their limits; SIGHUP reloads it
    #[arg(long, help_heading = "Server", value_name = "FILE")]
    pub api_keys_file: Option<PathBuf>,
    /// Require an API key for /, /docs and /openapi.json too, if the server has keys
    #[arg(
        long, help_heading = "Server", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "false", action = ArgAction::Set, value_parser = switch,
    )]
    pub private_docs: bool,
    /// Show browsers a page for conversations at /
    #[arg(
        long, help_heading = "Server", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "true", action = ArgAction::Set, value_parser = switch,
    )]
    pub playground: bool,
    /// Disable the playground
    #[arg(long, help_heading = "Server", conflicts_with = "playground")]
    no_playground: bool,
    /// PEM file with the server's certificate chain; enables TLS
    #[arg(long, help_heading = "Server", value_name = "FILE")]
    pub ssl_certfile: Option<PathBuf>,
    /// PEM file with the private key of --ssl-certfile
    #[arg(long, help_heading = "Server", value_name = "FILE")]
    pub ssl_keyfile: Option<PathBuf>,
    /// PEM file with CA certificates for clients; each client must then present a certificate signed by one of them
    #[arg(long, help_heading = "Server", value_name = "FILE")]
    pub ssl_ca_certs: Option<PathBuf>,
    /// Accept HTTP/2 besides HTTP/1.1: by ALPN with TLS, by prior knowledge without
    #[arg(
        long, help_heading = "Server", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "false", action = ArgAction::Set, value_parser = switch,
    )]
    pub http2: bool,
    /// CORS origins that may call this server, separated by commas; * allows all [default: none]
    #[arg(long, help_heading = "Server", value_name = "ORIGINS", value_delimiter = ',', value_parser = origin)]
    pub allowed_origins: Vec<String>,
    /// Header in which trusted proxies name the caller of a request without a key [default: callers are told apart by address]
    #[arg(long, help_heading = "Server", value_name = "NAME", value_parser = header_name)]
    pub caller_header: Option<HeaderName>,
    /// Addresses or networks of proxies whose caller header is trusted, separated by commas
    #[arg(long, help_heading = "Server", value_name = "NETWORKS", value_delimiter = ',', value_parser = network)]
    pub trusted_proxies: Vec<IpNet>,
    /// Host names besides localhost that a server without a key accepts on a loopback address, separated by commas
    #[arg(long, help_heading = "Server", value_name = "HOSTS", value_delimiter = ',', value_parser = host_name)]
    pub allowed_hosts: Vec<String>,
    /// Maximum open connections; each further concurrent request on an HTTP/2 connection counts as one
    #[arg(long, help_heading = "Server", value_name = "N", default_value = "8192", value_parser = at_least_one)]
    pub max_connections: usize,
    /// Memory for request bodies while they arrive and are prepared, of all requests together
    #[arg(long, help_heading = "Server", value_name = "SIZE", default_value = "512Mi")]
    pub max_body_memory: ByteSize,
    /// Default max_tokens of chat and text completions: a number, or max for the rest of the context. /v1/responses always defaults to max
    #[arg(long, help_heading = "Server", value_name = "N|max", default_value = "16")]
    pub default_max_tokens: DefaultMaxTokens,
    /// Maximum of `logprobs` and `top_logprobs` in a request
    #[arg(long, help_heading = "Server", value_name = "N", default_value_t = 20)]
    pub max_logprobs: usize,
    /// Maximum size of a prompt's text, such as 1Mi; larger prompts get 400 [default: 64Ki plus 16 bytes for each token of the context]
    #[arg(long, help_heading = "Server", value_name = "SIZE")]
    pub max_prompt_bytes: Option<ByteSize>,
    /// Maximum images of a request, such as 8, image=8 or {"image": 8}
    #[arg(long, help_heading = "Server", value_name = "LIMIT", default_value = "image=8")]
    pub limit_mm_per_prompt: MediaLimit,
    /// Hosts from which images of http and https URLs are fetched, separated by commas; .example.com is all hosts below it [default: none]
    #[arg(long, help_heading = "Server", value_name = "DOMAINS", value_delimiter = ',', value_parser = media_domain)]
    pub allowed_media_domains: Vec<AllowedDomain>,
    /// Folder below which images of file URLs are read [default: none]
    #[arg(long, help_heading = "Server", value_name = "FOLDER", value_parser = folder)]
    pub allowed_local_media_path: Option<PathBuf>,
    /// Memory for resized images until the model has read them, of all requests together; further images get 429
    #[arg(long, help_heading = "Server", value_name = "SIZE", default_value = "256Mi")]
    pub image_memory: ByteSize,
    /// Refuse requests with unsupported parts, such as built-in tools. Otherwise these are ignored and named in x-candlepower-not-held
    #[arg(
        long, help_heading = "Server", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "false", action = ArgAction::Set, value_parser = switch,
    )]
    pub strict_requests: bool,
    /// Maximum waiting choices of one caller, besides the max_num_seqs that run; further requests get 429
    #[arg(long, help_heading = "Server", value_name = "N", default_value_t = 2048)]
    pub max_queued_requests: usize,
    /// Maximum CPU milliseconds for compiling one schema, regex or grammar
    #[arg(long, help_heading = "Server", value_name = "MS", default_value = "250", value_parser = at_least_one)]
    pub max_constraint_time: usize,
    /// Maximum memory for compiling one schema, regex or grammar
    #[arg(long, help_heading = "Server", value_name = "SIZE", default_value = "64Mi")]
    pub max_constraint_memory: ByteSize,
    /// Allow undeclared keys in objects whose schema does not set additionalProperties, as JSON Schema does. The default forbids them
    #[arg(
        long, help_heading = "Server", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "false", action = ArgAction::Set, value_parser = switch,
    )]
    pub additional_properties: bool,
    /// Seconds that running requests may take to finish after SIGTERM
    #[arg(long, help_heading = "Server", value_name = "SECONDS", default_value_t = 30)]
    pub shutdown_timeout: u64,
    /// Seconds after SIGTERM in which new requests are still accepted while /health says draining, so that load balancers can
    /// send requests elsewhere
    #[arg(long, help_heading = "Server", value_name = "SECONDS", default_value_t = 0)]
    pub drain_delay: u64,
    /// TOML file with settings; its keys are the flags' names with _ for -
    #[arg(long, help_heading = "Server", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Device that runs the model
    #[arg(long, help_heading = "Engine", value_enum, default_value_t)]
    pub device: DeviceKind,
    /// Tensor-parallel ranks: processes that split each layer, each with its own cores or GPU
    #[arg(long, help_heading = "Engine", value_name = "N", default_value = "1", value_parser = at_least_one)]
    pub tensor_parallel_size: usize,
    /// Compute threads [default: one for each physical core that the process may use]
    #[arg(long, help_heading = "Engine", value_name = "N", value_parser = at_least_one)]
    pub threads: Option<usize>,
    /// Maximum sequences in a batch
    #[arg(long, help_heading = "Engine", value_name = "N", default_value = "256", value_parser = at_least_one)]
    pub max_num_seqs: usize,
    /// Maximum batch tokens, prompt chunks included [default: 512; on a GPU 8192, or fewer if memory is short]
    #[arg(long, help_heading = "Engine", value_name = "N", value_parser = at_least_one)]
    pub max_num_batched_tokens: Option<usize>,
    /// Memory of the KV cache, such as 512M or 4Gi [default: 1/4 of free memory; on a GPU the rest of its share; no more than needed]
    #[arg(long, help_heading = "Engine", value_name = "SIZE")]
    pub kv_cache_memory: Option<ByteSize>,
    /// Data type of the KV cache. auto is the weights' type, on the CPU bfloat16 or float32. fp8 is e4m3, with the checkpoint's KV scales
    #[arg(long, help_heading = "Engine", default_value = "auto", value_parser = one_of(KvDtype::CHOICES))]
    pub kv_cache_dtype: Asked<KvDtype>,
    /// Memory for embeddings of images, so that an image that was seen before is not computed again; it bounds the size of one image
    #[arg(long, help_heading = "Engine", value_name = "SIZE", default_value = "256Mi")]
    pub encoder_cache_memory: ByteSize,
    /// Maximum memory of the KV cache that idle sessions keep; requests that need it evict them [default: half of the cache]
    #[arg(long, help_heading = "Engine", value_name = "SIZE")]
    pub session_memory: Option<ByteSize>,
    /// Seconds without a request after which a session ends, unless its request sets another time
    #[arg(long, help_heading = "Engine", value_name = "SECONDS", default_value = "600", value_parser = session_seconds)]
    pub session_ttl: u64,
    /// Tokens in one block of the KV cache
    #[arg(long, help_heading = "Engine", value_name = "N", default_value = "16", value_parser = at_least_one)]
    pub block_size: usize,
    /// Reuse the KV cache of prefixes that earlier requests computed
    #[arg(
        long, help_heading = "Engine", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "true", action = ArgAction::Set, value_parser = switch,
    )]
    pub enable_prefix_caching: bool,
    /// Disable the prefix cache
    #[arg(long, help_heading = "Engine", conflicts_with = "enable_prefix_caching")]
    no_enable_prefix_caching: bool,
    /// Callers that share cached prefixes: all of the server, or each caller alone [default: server; caller with several API keys]
    #[arg(long, help_heading = "Engine", value_enum)]
    pub prefix_cache_scope: Option<CacheScope>,
    /// Fraction of a GPU's free memory to use (no effect on the CPU)
    #[arg(
        long, help_heading = "Engine", value_name = "PART", default_value = "0.9",
        alias = "mem-fraction-static", value_parser = part,
    )]
    pub gpu_memory_utilization: f64,
    /// Disable CUDA graphs (no effect on the CPU)
    #[arg(
        long, help_heading = "Engine", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "false", action = ArgAction::Set, value_parser = switch,
    )]
    pub enforce_eager: bool,
    /// Give a request the same tokens whatever runs beside it. Holds on the CPU in any case. Experimental on a GPU, with slower prompts
    #[arg(
        long, help_heading = "Engine", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "false", action = ArgAction::Set, value_parser = switch,
        alias = "enable-deterministic-inference",
    )]
    pub deterministic: bool,
    /// GB of host memory for KV blocks of preempted sequences; 0 recomputes them instead (no effect on the CPU)
    #[arg(long, help_heading = "Engine", value_name = "GB", default_value = "0", value_parser = gigabytes)]
    pub swap_space: f64,

    /// Hugging Face folder; environment variable HF_HOME [default: ~/.cache/huggingface]
    #[arg(long, help_heading = "Hub", value_name = "FOLDER")]
    pub hf_home: Option<PathBuf>,
    /// Folder of downloaded models; environment variable HF_HUB_CACHE [default: `hub` inside HF_HOME]
    #[arg(long, help_heading = "Hub", value_name = "FOLDER")]
    pub hf_hub_cache: Option<PathBuf>,
    /// URL of the hub or of a mirror; environment variable HF_ENDPOINT [default: `https://huggingface.co`]
    #[arg(long, help_heading = "Hub", value_name = "URL", value_parser = endpoint)]
    pub hf_endpoint: Option<String>,
    /// Use only downloaded files; environment variable HF_HUB_OFFLINE
    #[arg(
        long, help_heading = "Hub", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "false", action = ArgAction::Set, value_parser = switch,
    )]
    pub hf_hub_offline: bool,
    /// Refused, with a hint to set HF_TOKEN: other users can read command lines.
    #[arg(long, hide = true, value_name = "TOKEN")]
    hf_token: Option<String>,

    /// Lowest level of messages to log
    #[arg(long, help_heading = "Log and metrics", value_enum, default_value_t)]
    pub log_level: LogLevel,
    /// Format of the log, which goes to standard error
    #[arg(long, help_heading = "Log and metrics", value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Log a line for each request: method, path, status, milliseconds, tokens, caller and request id
    #[arg(
        long, help_heading = "Log and metrics", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value = "false", action = ArgAction::Set, value_parser = switch,
    )]
    pub access_log: bool,
    /// Seconds between log lines with throughput and queue lengths, written while requests run; 0 disables them
    #[arg(long, help_heading = "Log and metrics", value_name = "SECONDS", default_value_t = 10)]
    pub stats_interval: u64,
    /// Name the metrics of /metrics as another server does, so that its dashboards work
    #[arg(long, help_heading = "Log and metrics", value_enum, value_name = "SERVER")]
    pub metrics_compat: Option<MetricsCompat>,
    /// OpenTelemetry collector that traces of requests are sent to, by OTLP over HTTP [default: none, and nothing is sent]
    #[arg(long, help_heading = "Log and metrics", value_name = "URL")]
    pub otlp_endpoint: Option<OtlpEndpoint>,
    /// Name of this server in traces (service.name)
    #[arg(long, help_heading = "Log and metrics", value_name = "NAME", default_value = "candlepower", value_parser = not_empty)]
    pub otlp_service_name: String,
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

    /// Memory for images.
    pub fn image_memory(&self) -> ImageMemory {
        ImageMemory {
            waiting_bytes: self.image_memory.0,
            encoder_cache_bytes: self.encoder_cache_memory.0,
        }
    }

    /// Whether browsers get the playground.
    pub(crate) fn shows_playground(&self) -> bool {
        self.playground && !self.no_playground
    }

    /// Whether the prefix cache is on.
    pub fn prefix_caching(&self) -> bool {
        self.enable_prefix_caching && !self.no_enable_prefix_caching
    }

    /// Whether clients must send an API key.
    pub(crate) fn needs_key(&self) -> bool {
        !self.api_key.is_empty() || self.api_keys_file.is_some()
    }

    /// Callers that share cached prefixes. With several keys each caller is alone, because a cache hit shows that another sent the prefix.
    pub(crate) fn prefix_cache_scope(&self) -> CacheScope {
        let has_several_keys = self.api_key.len() > 1 || self.api_keys_file.is_some();
        self.prefix_cache_scope.unwrap_or(match has_several_keys {
            true => CacheScope::Caller,
            false => CacheScope::Server,
        })
    }

    /// Maximum running and waiting choices of one caller.
    pub(crate) fn max_in_flight(&self) -> usize {
        self.max_num_seqs.saturating_add(self.max_queued_requests)
    }

    /// Limits for compiling one constraint.
    pub(crate) fn compile_limits(&self) -> CompileLimits {
        CompileLimits {
            time: Duration::from_millis(self.max_constraint_time as u64),
            memory_bytes: usize::try_from(self.max_constraint_memory.0).unwrap_or(usize::MAX),
        }
    }

    /// The rules for fetching images.
    pub(crate) fn fetch_policy(&self) -> FetchPolicy {
        FetchPolicy {
            domains: self.allowed_media_domains.clone(),
            local_root: self.allowed_local_media_path.clone(),
            ..FetchPolicy::default()
        }
    }

    /// Time after which a session without requests ends, unless a request sets another.
    pub(crate) fn session_ttl(&self) -> Duration {
        Duration::from_secs(self.session_ttl)
    }

    /// Time that running requests may take after the server was asked to stop.
    pub fn shutdown_timeout(&self) -> Duration {
        Duration::from_secs(self.shutdown_timeout)
    }

    /// Time in which new requests are accepted after the server was asked to stop.
    pub(crate) fn drain_delay(&self) -> Duration {
        Duration::from_secs(self.drain_delay)
    }

    /// Time between two log lines about the load; `None` disables them.
    pub(crate) fn stats_interval(&self) -> Option<Duration> {
        (self.stats_interval > 0).then(|| Duration::from_secs(self.stats_interval))
    }

    /// Settings that were given and have no effect on the CPU, for a warning at start.
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
