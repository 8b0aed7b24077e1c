//! `candlepower deploy`: from a model's name to a ready server in the background.

use std::process::ExitCode;

use candlepower_checkpoint::QuantizationMethod;
use candlepower_client::{BlazeParams, DeploymentStatus, Params, PrismParams};
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
    /// Main memory that the server may take, a Kubernetes quantity
    #[arg(long, value_name = "QUANTITY", default_value = "16Gi")]
    memory: String,
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
    #[arg(long)]
    enforce_eager: bool,
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
    /// Where containers keep downloads: a folder by its full path, or the name of a volume (docker) or of a persistent
    /// volume claim (kubernetes)
    #[arg(long, value_name = "PLACE")]
    hub_cache: Option<String>,
    /// Print the manifests of the kubernetes backend, and ask and change nothing; secrets are in the Secret
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    place: Place,
    /// Leave a deployment that failed to be looked at
    #[arg(long)]
    keep_on_failure: bool,
    #[command(flatten)]
    output: Output,
}

/// The frameworks by their names.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum FrameworkChoice {
    Blaze,
    Prism,
}

/// Holds the API key of a deployment, where no other user sees it.
const API_KEY: &str = "CANDLEPOWER_API_KEY";

impl Deploy {
    pub(crate) fn run(&self) -> ExitCode {
        let params = self.params();
        if self.dry_run {
            return self.output.finish(async {
                let text = self.place.client()?.manifests(params)?;
                Ok(Shown { json: json!({ "manifests": text }), text })
            });
        }
        let line = Line::new();
        self.output.finish(async {
            let deployed = self.place.client()?.deploy(params, |status| line.show(status)).await;
            line.clear();
            deployments::shown(&deployed?).await
        })
    }

    fn params(&self) -> Params {
        // The two builders have the same methods and no type in common.
        macro_rules! build {
            (@some $params:ident, $($field:ident)+) => {
                $(if let Some(value) = self.$field.clone() {
                    $params = $params.$field(value);
                })+
            };
            ($params:expr, $memory:ident) => {{
                let mut params = $params
                    .memory(self.memory.as_str())
                    .timeout(self.timeout)
                    .gpu_models(self.gpu_models.iter().map(String::as_str))
                    .enforce_eager(self.enforce_eager)
                    .keep_on_failure(self.keep_on_failure);
                build!(@some params, gpu_count tensor_parallel_size max_model_len quantization min_gpu_memory_gb);
                build!(@some params, dtype served_model_name ttl_seconds port image replicas hub_cache);
                if let Some(part) = self.gpu_memory_utilization {
                    params = params.$memory(part);
                }
                if let Ok(key) = std::env::var(API_KEY) {
                    params = params.api_key(key);
                }
                for (name, value) in &self.env {
                    params = params.env(name.as_str(), value.as_str());
                }
                params.into()
            }};
        }
        match self.framework {
            FrameworkChoice::Blaze => {
                build!(BlazeParams::new(&self.name, &self.model), gpu_memory_utilization)
            }
            FrameworkChoice::Prism => {
                build!(PrismParams::new(&self.name, &self.model), mem_fraction_static)
            }
        }
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
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
