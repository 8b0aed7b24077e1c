//! `candlepower deploy` and `update`: from a model's name to a ready server in the background, and from that to another.

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

/// What the long help says after the flags.
pub(crate) const AFTER_HELP: &str = "Examples:\n  \
    candlepower deploy demo --name chat\n  \
    candlepower deploy Qwen/Qwen2.5-0.5B-Instruct --name qwen --max-model-len 8192 --env BLAZE_MAX_NUM_SEQS=32\n  \
    candlepower deploy ./model --name tree --framework prism --ttl-seconds 3600\n  \
    candlepower deploy demo --name boxed --backend docker\n  \
    candlepower deploy demo --name chat --backend kubernetes --gpu-count 0 --dry-run | kubectl apply -f -\n\n\
    The server outlives this command; `candlepower ls` lists what runs, `candlepower delete NAME` ends it. HF_TOKEN is taken \
    from the environment, the API key from BLAZE_API_KEY or PRISM_API_KEY given with --env or from CANDLEPOWER_API_KEY in the \
    environment, and both are kept in the memory of the supervisor alone (within the container, in the cluster's Secret). The same command again finds the deployment \
    that is there. Ctrl-C ends the waiting, not the deployment.\n\nExit status and errors: as of `candlepower status --help`.";

/// The long help of `update`, after the flags.
pub(crate) const AFTER_UPDATE_HELP: &str = "Examples:\n  \
    candlepower update chat --max-model-len 8192\n  \
    candlepower update chat --model Qwen/Qwen2.5-1.5B-Instruct --env BLAZE_MAX_NUM_SEQS=64\n\n\
    Parameters that are not given stay, secrets included. The new server is ready on another port before the old one ends; `candlepower \
    status NAME` shows its address. Where the port stays the same, or there is no room for both, the old one ends first, and is started \
    again if the new one fails. In a cluster pods are replaced one by one. A failed update leaves the server before it.\n\n\
    Exit status and errors: as of `candlepower status --help`.";

/// What to deploy.
#[derive(Debug, Args)]
pub(crate) struct Deploy {
    /// Hub id owner/name (of a GGUF file owner/name:Q4_K_M), a model folder, a GGUF file, or `demo`
    #[arg(value_name = "MODEL")]
    model: String,
    /// Name of the deployment: small letters, digits and hyphens, at most 63
    #[arg(long)]
    name: String,
    /// blaze for throughput, prism for conversations that share prefixes
    #[arg(long, value_enum, default_value = "blaze")]
    framework: FrameworkChoice,
    #[command(flatten)]
    choices: Choices,
    /// Print the manifests of the kubernetes backend, and ask and change nothing; secrets are in the Secret
    #[arg(long)]
    dry_run: bool,
    /// Change the deployment that has the name, where it has other parameters; see `candlepower update`
    #[arg(long)]
    update: bool,
    #[command(flatten)]
    place: Place,
    /// Leave a deployment that failed to be looked at
    #[arg(long)]
    keep_on_failure: bool,
    #[command(flatten)]
    output: Output,
}

/// The changes of `update`.
#[derive(Debug, Args)]
pub(crate) struct Update {
    /// The deployment
    name: String,
    /// Another model
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
    /// GPUs to allocate; 0 computes on the CPU
    #[arg(long, value_name = "N")]
    gpu_count: Option<u32>,
    /// GPUs over which each layer is split [default: gpu_count]
    #[arg(long, value_name = "N")]
    tensor_parallel_size: Option<u32>,
    /// Longest sequence, prompt and output together, in tokens [default: the model's own limit]
    #[arg(long, alias = "context-length", value_name = "TOKENS")]
    max_model_len: Option<u64>,
    #[arg(
        long, value_name = "METHOD",
        help = format!("Quantization that the weights must have: {}", QuantizationMethod::settings()),
    )]
    quantization: Option<String>,
    /// Names of GPUs that will do, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    gpu_models: Vec<String>,
    /// Least memory of a GPU
    #[arg(long, value_name = "GB")]
    min_gpu_memory_gb: Option<u64>,
    /// Main memory that the server may take, a Kubernetes quantity [default: 16Gi]
    #[arg(long, value_name = "QUANTITY")]
    memory: Option<String>,
    /// CPUs that are set aside for it, a Kubernetes quantity such as 4 or 500m; it computes on as many threads
    #[arg(long, value_name = "QUANTITY")]
    cpu: Option<String>,
    /// One more variable of the server's environment; may be given several times. Its value is stored in clear, unless its
    /// name has TOKEN, KEY, SECRET, PASSWORD, PASSWD or CREDENTIAL in it
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Seconds to wait until it is ready
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Type that the weights are kept in: auto, float32, float16, bfloat16
    #[arg(long)]
    dtype: Option<String>,
    /// Name under which requests ask for the model
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,
    /// Part of a GPU's memory that the server may take
    #[arg(long, alias = "mem-fraction-static", value_name = "PART")]
    gpu_memory_utilization: Option<f64>,
    /// No CUDA graphs
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
    /// Container image [default: CANDLEPOWER_IMAGE, or this version's for the CPU or the GPUs]
    #[arg(long)]
    image: Option<String>,
    /// Servers side by side; more than one takes the kubernetes backend
    #[arg(long, value_name = "N")]
    replicas: Option<u32>,
    /// Where containers keep downloads: a volume (docker) or a persistent volume claim (kubernetes) by its name, or a folder by its full
    /// path. A folder is there already, and user 10001 may write it
    #[arg(long, value_name = "PLACE")]
    hub_cache: Option<String>,
}

/// The frameworks by their names.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum FrameworkChoice {
    Blaze,
    Prism,
}

/// Holds the API key of a deployment, where no other user sees it.
const API_KEY: &str = "CANDLEPOWER_API_KEY";
/// Exit status of a command that Ctrl-C has ended, as shells have it.
const INTERRUPTED: i32 = 130;

/// Sets what was said: the two builders have the same methods and no type in common.
macro_rules! build {
    ($choices:expr, $params:expr, $memory:ident) => {{
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

/// Does long work, with a line that shows its progress. Ctrl-C ends the waiting, and says that the work goes on.
async fn waited(name: &str, work: impl AsyncFnOnce(&Line) -> Result<Deployment>) -> Result<Shown> {
    let line = Line::new();
    let done = tokio::select! {
        done = work(&line) => done,
        _ = tokio::signal::ctrl_c() => {
            line.clear();
            print_error(format_args!(
                "`{name}` goes on in the background: `candlepower status {name}` shows how it is, `candlepower delete {name}` ends it"
            ));
            std::process::exit(INTERRUPTED);
        }
    };
    line.clear();
    deployments::shown(&done?).await
}

fn variable(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is needed")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A line on the terminal that tells how far a start is; nothing where there is no terminal.
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
