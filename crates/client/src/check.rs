//! Checks of every parameter before anything starts. Checks that need the model itself are in `model`.

mod backend;
mod numbers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use candlepower_checkpoint::{Choice, DTYPES, QuantizationMethod};
use candlepower_hub::ModelName;
use candlepower_machine::{Gpu, Gpus};

use crate::backend::Backend;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::params::Params;
use crate::quantity::{cpu_millis, memory_bytes};
use crate::secret::{Secrets, is_secret};
use crate::spec::{Device, Spec, TLS_FILES};
use crate::status::Framework;

/// Longest name: that of a DNS label.
const MAX_NAME: usize = 63;
/// The environment variable with the hub's token.
pub(crate) const HUB_TOKEN: &str = "HF_TOKEN";
/// The environment variables in which users keep that token. The second is the hub's old name for it.
pub(crate) const HUB_TOKENS: [&str; 2] = [HUB_TOKEN, "HUGGING_FACE_HUB_TOKEN"];
/// The environment variable with the hub's address.
const HUB_ENDPOINT: &str = "HF_ENDPOINT";
/// The environment variable with the default container image.
const IMAGE_VARIABLE: &str = "CANDLEPOWER_IMAGE";

/// A deployment whose parameters passed the checks.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) spec: Spec,
    pub(crate) secrets: Secrets,
    pub(crate) warnings: Vec<String>,
    /// Time limit for everything before the start.
    pub(crate) deadline: Deadline,
}

/// The device on which a server computes.
#[derive(Clone, Debug)]
pub(crate) struct Compute {
    pub(crate) device: Device,
    /// The chosen GPUs of this machine.
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) place: Place,
}

/// Whether the server uses this machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Here,
    Elsewhere,
}

impl Compute {
    pub(crate) fn cpu(place: Place) -> Self {
        Self { device: Device::Cpu, gpus: Vec::new(), place }
    }

    /// The same, but without a check against this machine's free memory: the server that runs now will have
    /// ended by then.
    pub(crate) fn without_this_machine(self) -> Self {
        Self { place: Place::Elsewhere, ..self }
    }

    pub(crate) fn uuids(&self) -> Vec<String> {
        self.gpus.iter().map(|gpu| gpu.uuid.clone()).collect()
    }
}

impl Plan {
    /// Checks everything that needs neither the machine nor the model.
    ///
    /// # Errors
    /// The first parameter that cannot be used, by name.
    pub(crate) fn new(params: &Params, backend: &Backend) -> Result<Self> {
        check_name(&params.name)?;
        check_choice(
            "quantization",
            params.quantization.as_deref(),
            &QuantizationMethod::choices(),
        )?;
        check_choice("dtype", params.dtype.as_deref(), &DTYPES)?;
        check_served_names(params.served_model_name.as_deref())?;
        numbers::check(params)?;
        backend::check(params, backend)?;
        let memory = memory_bytes(&params.memory).ok_or_else(|| {
            Error::validation(
                "memory",
                &params.memory,
                "write a Kubernetes quantity such as 16Gi, 512Mi or 2G",
            )
        })?;
        let cpu_millis = params.cpu.as_deref().map(parse_cpu).transpose()?;
        let (mut env, mut secrets) = split_env(params)?;
        // The names are taken before the hub's token of this environment is added. Otherwise the same parameters
        // would give another spec on a machine with a token.
        let mut secret_names: BTreeSet<String> = secrets.0.keys().cloned().collect();
        secret_names.extend(params.kept_secrets.iter().cloned());
        if !secrets.0.contains_key(HUB_TOKEN)
            && let Some(token) = hub_token()
        {
            secrets.0.insert(HUB_TOKEN.into(), token);
        }
        let model = model_name(&params.model)?;
        let mut warnings: Vec<String> = idle_gpus(params).into_iter().collect();
        let mut image = params.image.clone();
        if *backend == Backend::Process {
            if image.take().is_some() {
                warnings.push("image has no effect with the process backend".to_owned());
            }
            // Only here, since in a container these are paths of the container.
            make_absolute(params.framework, &mut env);
        } else {
            // A process inherits these variables from its parent. A container does not, so they are passed
            // on: the same hub, and the image that this machine's user has chosen.
            let variable = |name| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
            image = image.or_else(|| variable(IMAGE_VARIABLE));
            if let Some(endpoint) = variable(HUB_ENDPOINT) {
                env.entry(HUB_ENDPOINT.into()).or_insert(endpoint);
            }
        }
        let spec = Spec {
            name: params.name.clone(),
            framework: params.framework,
            argv: argv(params, &model, cpu_millis),
            model,
            port: params.port,
            env,
            secret_names,
            gpu_count: params.gpu_count,
            gpu_models: params.gpu_models.clone(),
            min_gpu_memory_gb: params.min_gpu_memory_gb,
            memory_bytes: memory,
            cpu_millis,
            ttl_seconds: params.ttl_seconds,
            image,
            replicas: params.replicas,
            hub_cache: params.hub_cache.clone(),
        };
        Ok(Self { spec, secrets, warnings, deadline: Deadline::new(params) })
    }
}

impl Spec {
    /// Chooses the device. Among the GPUs that qualify, those with the most free memory are taken. Remarks
    /// for the user are added to `warnings`.
    ///
    /// # Errors
    /// The machine does not have the requested GPUs.
    pub(crate) fn choose_gpus(&self, found: &Gpus, warnings: &mut Vec<String>) -> Result<Compute> {
        let filters = !self.gpu_models.is_empty() || self.min_gpu_memory_gb.is_some();
        match self.gpu_count {
            Some(0) if !filters => return Ok(Compute::cpu(Place::Here)),
            None if !filters && found.devices.is_empty() => {
                warnings.push("this machine has no free GPU: computing on the CPU".to_owned());
                return Ok(Compute::cpu(Place::Here));
            }
            _ => {}
        }
        // Without a GPU request a server that is not built for GPUs is acceptable, too.
        let device = if self.gpu_count.is_none() && !filters { Device::Auto } else { Device::Cuda };
        // A filter asks for a GPU even if `gpu_count` is 0.
        let count = self.gpu_count.unwrap_or(1).max(1) as usize;
        let is_named = |gpu: &Gpu| {
            let is = |model: &String| gpu.name.to_lowercase().contains(&model.to_lowercase());
            self.gpu_models.is_empty() || self.gpu_models.iter().any(is)
        };
        // 93 % of the size: a card reports less than its nominal size, since drivers reserve a part.
        let least = self.min_gpu_memory_gb.map_or(0, |gb| gb.saturating_mul(930_000_000));
        let does = |gpu: &&Gpu| is_named(gpu) && gpu.memory_total_bytes >= least;
        let mut gpus: Vec<Gpu> = found.devices.iter().filter(does).cloned().collect();
        if gpus.len() < count {
            return Err(Error::ResourceUnavailable {
                asked: self.asked_gpus(count),
                available: describe_gpus(found),
            });
        }
        gpus.sort_by_key(|gpu| std::cmp::Reverse(gpu.memory_free_bytes));
        gpus.truncate(count);
        Ok(Compute { device, gpus, place: Place::Here })
    }

    pub(crate) fn asked_gpus(&self, count: usize) -> String {
        let mut asked = format!("{count} GPU{}", if count == 1 { "" } else { "s" });
        if !self.gpu_models.is_empty() {
            asked += &format!(" of model {}", self.gpu_models.join(" or "));
        }
        if let Some(gb) = self.min_gpu_memory_gb {
            asked += &format!(" with at least {gb} GB");
        }
        asked + if count == 1 { " was" } else { " were" }
    }
}

fn describe_gpus(found: &Gpus) -> String {
    if found.devices.is_empty() {
        let reason = found.reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
        return format!("this machine has none{reason}: set gpu_count to 0 to compute on the CPU");
    }
    let names: Vec<String> = found.devices.iter().map(ToString::to_string).collect();
    format!("this machine has {}", names.join("; "))
}

/// Whether this is a label as defined by RFC 1123.
pub(crate) fn is_label(text: &str) -> bool {
    let is_end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(is_end)
        && text.ends_with(is_end)
        && text.chars().all(|c| is_end(c) || c == '-')
        && text.len() <= MAX_NAME
}

pub(crate) fn check_name(name: &str) -> Result<()> {
    if is_label(name) {
        return Ok(());
    }
    Err(Error::validation(
        "name",
        name,
        "a name has at most 63 lowercase letters, digits and hyphens, and no hyphen at either end",
    ))
}

/// Several names are separated by commas, as the server reads them.
fn check_served_names(names: Option<&str>) -> Result<()> {
    match names {
        Some(names) if names.split(',').any(|name| name.trim().is_empty()) => {
            Err(Error::validation(
                "served_model_name",
                names,
                "write one name, or several separated by commas; leave it out for the model's own",
            ))
        }
        _ => Ok(()),
    }
}

fn parse_cpu(text: &str) -> Result<u64> {
    cpu_millis(text).ok_or_else(|| {
        Error::validation("cpu", text, "write a Kubernetes quantity such as 4, 0.5 or 500m")
    })
}

/// The warning for GPUs that are allocated but belong to no rank.
fn idle_gpus(params: &Params) -> Option<String> {
    let (gpus, ranks) = (params.gpu_count?, params.tensor_parallel_size?);
    // Without `tensor_parallel_size` all GPUs have a rank, so only the two together can leave some idle.
    let idle = gpus.checked_sub(ranks).filter(|idle| *idle > 0)?;
    Some(format!(
        "{idle} of {gpus} GPUs stay idle: tensor_parallel_size is {ranks}; raise it, or lower gpu_count"
    ))
}

fn check_choice<T: Copy>(
    field: &'static str,
    value: Option<&str>,
    choices: &[Choice<T>],
) -> Result<()> {
    let choices = Choice::names(choices);
    match value {
        Some(value) if !choices.contains(&value) => {
            Err(Error::validation(field, value, format!("choose one of {}", choices.join(", "))))
        }
        _ => Ok(()),
    }
}

/// Splits the environment into variables that may be shown and secrets.
fn split_env(params: &Params) -> Result<(BTreeMap<String, String>, Secrets)> {
    let mut secrets = Secrets::default();
    let mut env = BTreeMap::new();
    for (name, value) in &params.env {
        // The system's environment is a list of `NAME=VALUE`, each ended by a zero byte.
        let is_name = !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
        if !is_name {
            return Err(Error::validation("env", name, "the name of a variable has no `=`"));
        }
        if *name == params.framework.variable("UDS") {
            return Err(Error::validation(
                "env",
                name,
                "deployments are reached by an address: leave it out",
            ));
        }
        match is_secret(name) {
            true => secrets.0.insert(name.clone(), value.clone()),
            false => env.insert(name.clone(), value.clone()),
        };
    }
    if let Some(key) = &params.api_key {
        if key.0.trim().is_empty() {
            return Err(Error::validation("api_key", "", "it is empty; leave it out"));
        }
        secrets.0.insert(params.framework.variable("API_KEY"), key.0.clone());
    }
    Ok((env, secrets))
}

/// Makes the paths of certificate files absolute: the supervisor and other clients read the files too, from
/// other folders.
fn make_absolute(framework: Framework, env: &mut BTreeMap<String, String>) {
    for file in TLS_FILES {
        let path = env.get_mut(&framework.variable(file)).filter(|path| !path.is_empty());
        if let Some(path) = path
            && let Ok(full) = std::path::absolute(&path)
        {
            *path = full.to_string_lossy().into_owned();
        }
    }
}

/// The hub's token in this process's environment.
pub(crate) fn hub_token() -> Option<String> {
    HUB_TOKENS.iter().find_map(|name| std::env::var(name).ok())
}

/// The model as the server finds it: a folder or a GGUF file by its absolute path, any other name unchanged.
fn model_name(model: &str) -> Result<String> {
    let path = Path::new(model);
    // The name of the built-in model wins over a folder that happens to be called so.
    if model != "demo"
        && (path.is_dir() || path.extension().is_some_and(|end| end == "gguf") && path.is_file())
    {
        let full = path
            .canonicalize()
            .map_err(|error| Error::validation("model", model, error.to_string()))?;
        return Ok(full.to_string_lossy().into_owned());
    }
    if model == "demo" || ModelName::not_here(model).is_ok() {
        return Ok(model.to_owned());
    }
    Err(Error::validation(
        "model",
        model,
        "there is no such folder or file; name a folder with config.json, a GGUF file, a model on the hub as owner/name or owner/name:Q4_K_M, or `demo`",
    ))
}

/// The server's command line, beginning with `serve`.
fn argv(params: &Params, model: &str, cpu_millis: Option<u64>) -> Vec<String> {
    let ranks = params.tensor_parallel_size.unwrap_or(params.gpu_count.unwrap_or(1).max(1));
    // An explicit number of threads in the environment wins over the number derived from `cpu`.
    let has_threads = params.env.contains_key(&params.framework.variable("THREADS"));
    let threads = cpu_millis.filter(|_| !has_threads).map(|millis| millis.div_ceil(1000));
    let flags = [
        ("--framework", Some(params.framework.to_string())),
        ("--max-model-len", params.max_model_len.map(|len| len.to_string())),
        ("--quantization", params.quantization.clone()),
        ("--dtype", params.dtype.clone()),
        ("--served-model-name", params.served_model_name.clone()),
        ("--tensor-parallel-size", (ranks > 1).then(|| ranks.to_string())),
        ("--threads", threads.map(|threads| threads.to_string())),
        ("--gpu-memory-utilization", params.gpu_memory_utilization.map(|part| part.to_string())),
    ];
    let mut argv = vec!["serve".to_owned(), model.to_owned()];
    for (flag, value) in flags {
        // One word for both, so that a value that begins with a hyphen is not read as another flag.
        argv.extend(value.map(|value| format!("{flag}={value}")));
    }
    if params.enforce_eager {
        argv.push("--enforce-eager".into());
    }
    argv
}

#[cfg(test)]
mod tests;
