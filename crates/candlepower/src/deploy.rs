//! `candlepower deploy` and `update`: start a server in the background, and replace it by one with other parameters.

use std::process::ExitCode;

use candlepower_checkpoint::QuantizationMethod;
use candlepower_client::{
    BlazeParams, Deployment, DeploymentStatus, Framework, Params, PrismParams, Result,
};
use candlepower_machine::print_error;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::deployments::{self, Output, Shown};
use crate::place::Place;

/// End of the long help of `deploy`.
pub(crate) const AFTER_HELP: &str = "Examples:\n  \
    candlepower deploy demo --name chat\n  \
    candlepower deploy Qwen/Qwen2.5-0.5B-Instruct --name qwen --max-model-len 8192 --env BLAZE_MAX_NUM_SEQS=32\n  \
    candlepower deploy ./model --name tree --framework prism --ttl-seconds 3600\n  \
    candlepower deploy demo --name boxed --backend docker\n  \
    candlepower deploy demo --name chat --backend kubernetes --gpu-count 0 --dry-run | kubectl apply -f -\n\n\
    The server outlives this command; `candlepower ls` lists deployments, `candlepower delete NAME` stops one. HF_TOKEN comes \
    from the environment. The API key is BLAZE_API_KEY or PRISM_API_KEY of --env, or CANDLEPOWER_API_KEY of the environment. \
    Both are kept only in the supervisor's memory, in the container, or in the cluster's Secret. The same command again \
    returns the existing deployment. Ctrl-C stops waiting, not the deployment.\n\n\
    For exit status and errors see `candlepower status --help`.";

/// End of the long help of `update`.
pub(crate) const AFTER_UPDATE_HELP: &str = "Examples:\n  \
    candlepower update chat --max-model-len 8192\n  \
    candlepower update chat --model Qwen/Qwen2.5-1.5B-Instruct --env BLAZE_MAX_NUM_SEQS=64\n\n\
    Other parameters stay, secrets included. The new server starts on another port, and the old one stops when the new one is \
    ready; `candlepower status NAME` shows its URL. If the port is fixed or memory is too small for both, the old server stops \
    first and is started again if the new one fails. In a cluster, pods are replaced one by one. After a failed update the old \
    server runs.\n\n\
    For exit status and errors see `candlepower status --help`.";

/// The deployment to create.
#[derive(Debug, Args)]
pub(crate) struct Deploy {
    /// Hub id owner/name (for a GGUF file owner/name:Q4_K_M), model folder, GGUF file, or `demo`
    #[arg(value_name = "MODEL")]
    model: String,
    /// Name of the deployment: at most 63 lower-case letters, digits and hyphens
    #[arg(long)]
    name: String,
    /// Serving mode: blaze for throughput, prism for conversations that share prefixes
    #[arg(long, value_enum, default_value = "blaze")]
    framework: FrameworkChoice,
    #[command(flatten)]
    choices: Choices,
    /// Print the Kubernetes manifests, with secrets, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Update an existing deployment of this name that has other parameters; see `candlepower update`
    #[arg(long)]
    update: bool,
    #[command(flatten)]
    place: Place,
    /// Keep a deployment that failed, with its log, instead of deleting it
    #[arg(long)]
    keep_on_failure: bool,
    #[command(flatten)]
    output: Output,
}

/// The parameters to change.
#[derive(Debug, Args)]
pub(crate) struct Update {
    /// Name of the deployment
    name: String,
    /// New model
    #[arg(long)]
    model: Option<String>,
    #[command(flatten)]
    choices: Choices,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    output: Output,
}

/// Parameters that can be changed.
#[derive(Debug, Args)]
struct Choices {
    /// Number of GPUs; 0 runs on the CPU
    #[arg(long, value_name = "N")]
    gpu_count: Option<u32>,
    /// Tensor-parallel ranks, one GPU each [default: --gpu-count]
    #[arg(long, value_name = "N")]
    tensor_parallel_size: Option<u32>,
    /// Context length: tokens of prompt and output together [default: the model's own limit]
    #[arg(long, alias = "context-length", value_name = "TOKENS")]
    max_model_len: Option<u64>,
    #[arg(
        long, value_name = "METHOD",
        help = format!("Quantization method that the checkpoint must have: {}", QuantizationMethod::settings()),
    )]
    quantization: Option<String>,
    /// GPU models that may be used, separated by commas, such as H100,H200
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    gpu_models: Vec<String>,
    /// Minimum memory of each GPU
    #[arg(long, value_name = "GB")]
    min_gpu_memory_gb: Option<u64>,
    /// Limit of main memory, as a Kubernetes quantity [default: 16Gi]
    #[arg(long, value_name = "QUANTITY")]
    memory: Option<String>,
    /// CPUs to reserve, as a Kubernetes quantity such as 4 or 500m; also sets the number of compute threads
    #[arg(long, value_name = "QUANTITY")]
    cpu: Option<String>,
    /// Environment variable of the server; may be repeated. The value is stored as plain text, unless the name contains TOKEN,
    /// KEY, SECRET, PASSWORD, PASSWD or CREDENTIAL
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Seconds to wait until the server is ready
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Data type of weights and activations: auto, float32, float16, bfloat16
    #[arg(long)]
    dtype: Option<String>,
    /// Model name that requests use
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,
    /// Fraction of a GPU's free memory to use
    #[arg(long, alias = "mem-fraction-static", value_name = "PART")]
    gpu_memory_utilization: Option<f64>,
    /// Disable CUDA graphs
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
    )]
    enforce_eager: Option<bool>,
    /// Seconds after which the deployment deletes itself
    #[arg(long, value_name = "SECONDS")]
    ttl_seconds: Option<u64>,
    /// Port of the server [default: a free one]
    #[arg(long)]
    port: Option<u16>,
    /// Container image [default: CANDLEPOWER_IMAGE, or this version's image for CPU or GPU]
    #[arg(long)]
    image: Option<String>,
    /// Number of server replicas; more than one needs --backend kubernetes
    #[arg(long, value_name = "N")]
    replicas: Option<u32>,
    /// Storage for downloaded models: name of a volume (docker) or persistent volume claim (kubernetes), or full path of an existing
    /// folder that user 10001 may write
    #[arg(long, value_name = "PLACE")]
    hub_cache: Option<String>,
}

/// The serving modes.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum FrameworkChoice {
    Blaze,
    Prism,
}

/// Environment variable with the API key of a deployment. Other users cannot read it, unlike the command line.
const API_KEY: &str = "CANDLEPOWER_API_KEY";
/// Exit status after Ctrl-C: 128 plus SIGINT, like a shell's.
const INTERRUPTED: i32 = 130;

/// Sets the given parameters. It is a macro because the two builders have the same methods but no common trait.
macro_rules! build {
    ($choices:expr, $params:expr, $memory:ident) => {{
        // Parameters that were not given keep the builder's default, or the deployment's value in an update.
        let (choices, mut params) = ($choices, $params.timeout($choices.timeout));
        build!(@some params, choices, gpu_count tensor_parallel_size max_model_len quantization min_gpu_memory_gb);
        build!(@some params, choices, dtype served_model_name ttl_seconds port image replicas hub_cache memory cpu enforce_eager);
        if !choices.gpu_models.is_empty() {
            params = params.gpu_models(choices.gpu_models.iter().map(String::as_str));
        }
        if let Some(part) = choices.gpu_memory_utilization {
            params = params.$memory(part);
        }
        if let Ok(key) = std::env::var(API_KEY) {
            params = params.api_key(key);
        }
        for (name, value) in &choices.env {
            params = params.env(name.as_str(), value.as_str());
        }
        params
    }};
    (@some $params:ident, $choices:ident, $($field:ident)+) => {
        $(if let Some(value) = $choices.$field.clone() {
            $params = $params.$field(value);
        })+
    };
}

impl Deploy {
    pub(crate) fn run(&self) -> ExitCode {
        let params = self.params();
        if self.dry_run {
            return self.output.finish(async {
                let text = self.place.client()?.manifests(params)?;
                Ok(Shown { json: json!({ "manifests": text }), text })
            });
        }
        self.output.finish(waited(&self.name, async |line: &Line| {
            self.place.client()?.deploy(params, |status| line.show(status)).await
        }))
    }

    fn params(&self) -> Params {
        let Self { name, model, choices, keep_on_failure, update, .. } = self;
        match self.framework {
            FrameworkChoice::Blaze => {
                let params = build!(choices, BlazeParams::new(name, model), gpu_memory_utilization);
                params.keep_on_failure(*keep_on_failure).update(*update).into()
            }
            FrameworkChoice::Prism => {
                let params = build!(choices, PrismParams::new(name, model), mem_fraction_static);
                params.keep_on_failure(*keep_on_failure).update(*update).into()
            }
        }
    }
}

impl Update {
    pub(crate) fn run(&self) -> ExitCode {
        self.output.finish(waited(&self.name, async |line: &Line| {
            let client = self.place.client()?;
            client
                .update(&self.name, |params| self.change(params), |status| line.show(status))
                .await
        }))
    }

    fn change(&self, params: Params) -> Params {
        let Self { model, choices, .. } = self;
        match params.framework() {
            Framework::Blaze => {
                let mut params = build!(choices, BlazeParams::from(params), gpu_memory_utilization);
                if let Some(model) = model {
                    params = params.model(model);
                }
                params.into()
            }
            Framework::Prism => {
                let mut params = build!(choices, PrismParams::from(params), mem_fraction_static);
                if let Some(model) = model {
                    params = params.model(model);
                }
                params.into()
            }
        }
    }
}

/// Waits for an operation with a progress line. Ctrl-C stops the waiting, not the operation.
async fn waited(name: &str, work: impl AsyncFnOnce(&Line) -> Result<Deployment>) -> Result<Shown> {
    let line = Line::new();
    let done = tokio::select! {
        done = work(&line) => done,
        _ = tokio::signal::ctrl_c() => {
            line.clear();
            print_error(format_args!(
                "`{name}` continues in the background: `candlepower status {name}` shows its state, `candlepower delete {name}` stops it"
            ));
            // The operation runs in another process, so this one may end at once.
            std::process::exit(INTERRUPTED);
        }
    };
    line.clear();
    deployments::shown(&done?).await
}

fn variable(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A progress line on the terminal; nothing without a terminal.
struct Line(ProgressBar);

impl Line {
    fn new() -> Self {
        let style = ProgressStyle::with_template("{spinner} {elapsed:>4} {msg}")
            .expect("the template is valid");
        Self(ProgressBar::new_spinner().with_style(style))
    }

    fn show(&self, status: &DeploymentStatus) {
        let progress = &status.progress;
        let bytes = match progress.bytes_total {
            0 => String::new(),
            total => {
                let (done, total) =
                    (indicatif::HumanBytes(progress.bytes_done), indicatif::HumanBytes(total));
                format!(" {done} of {total}")
            }
        };
        self.0.set_message(format!("{}{bytes} {}", status.phase, status.message));
        self.0.tick();
    }

    fn clear(&self) {
        self.0.finish_and_clear();
    }
}
