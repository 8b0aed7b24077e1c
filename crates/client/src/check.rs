//! Every parameter is checked here, before anything starts; what needs the model itself is in `model`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use candlepower_hub::ModelName;
use candlepower_machine::{Gpu, Gpus};

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::params::Params;
use crate::quantity::memory_bytes;
use crate::secret::{Secrets, is_secret};
use crate::spec::{Device, Spec};
use crate::status::Framework;

/// What the values of parameters with a fixed choice can be.
const QUANTIZATIONS: [&str; 4] = ["awq", "gptq", "squeezellm", "fp8"];
const DTYPES: [&str; 6] = ["auto", "float32", "float", "float16", "half", "bfloat16"];
/// Longest name: a label of DNS.
const MAX_NAME: usize = 63;
/// The variable with the hub's token.
pub(crate) const HUB_TOKEN: &str = "HF_TOKEN";
/// The variable with the hub's address.
const HUB_ENDPOINT: &str = "HF_ENDPOINT";
/// The variable with the image that is run unless another is asked for.
const IMAGE_VARIABLE: &str = "CANDLEPOWER_IMAGE";

/// A deployment whose parameters make sense.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) spec: Spec,
    pub(crate) secrets: Secrets,
    pub(crate) warnings: Vec<String>,
}

/// Where a server computes.
#[derive(Clone, Debug)]
pub(crate) struct Compute {
    pub(crate) device: Device,
    /// Which GPUs, of those that are here.
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) place: Place,
}

/// Whether the memory of this machine is that of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Here,
    #[cfg_attr(not(feature = "kubernetes"), expect(dead_code, reason = "all servers run here"))]
    Elsewhere,
}

impl Compute {
    pub(crate) fn cpu(place: Place) -> Self {
        Self { device: Device::Cpu, gpus: Vec::new(), place }
    }

    pub(crate) fn uuids(&self) -> Vec<String> {
        self.gpus.iter().map(|gpu| gpu.uuid.clone()).collect()
    }
}

impl Plan {
    /// Checks what can be checked without looking at the machine or the model.
    ///
    /// # Errors
    /// The first parameter that cannot be used, by its name.
    pub(crate) fn new(params: &Params, backend: &Backend) -> Result<Self> {
        check_name(&params.name)?;
        check_choice("quantization", params.quantization.as_deref(), &QUANTIZATIONS)?;
        check_choice("dtype", params.dtype.as_deref(), &DTYPES)?;
        check_numbers(params)?;
        check_backend(params, backend)?;
        let memory = memory_bytes(&params.memory).ok_or_else(|| {
            Error::validation(
                "memory",
                &params.memory,
                "a Kubernetes quantity such as 16Gi, 512Mi or 2G is needed",
            )
        })?;
        let (mut env, mut secrets) = split_env(params)?;
        let secret_names: BTreeSet<String> = secrets.0.keys().cloned().collect();
        if !secrets.0.contains_key(HUB_TOKEN)
            && let Ok(token) = std::env::var(HUB_TOKEN)
        {
            secrets.0.insert(HUB_TOKEN.into(), token);
        }
        let model = model_name(&params.model)?;
        let mut warnings = Vec::new();
        let mut image = params.image.clone();
        if *backend == Backend::Process {
            if image.take().is_some() {
                warnings.push("image has no effect with the process backend".to_owned());
            }
        } else {
            // What a process has from its parent a container is told: the same hub, the image of this machine's user.
            let variable = |name| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
            image = image.or_else(|| variable(IMAGE_VARIABLE));
            if let Some(endpoint) = variable(HUB_ENDPOINT) {
                env.entry(HUB_ENDPOINT.into()).or_insert(endpoint);
            }
        }
        let spec = Spec {
            name: params.name.clone(),
            framework: params.framework,
            argv: argv(params, &model),
            model,
            port: params.port,
            env,
            secret_names,
            gpu_count: params.gpu_count,
            gpu_models: params.gpu_models.clone(),
            min_gpu_memory_gb: params.min_gpu_memory_gb,
            memory_bytes: memory,
            ttl_seconds: params.ttl_seconds,
            image,
            replicas: params.replicas,
            hub_cache: params.hub_cache.clone(),
        };
        Ok(Self { spec, secrets, warnings })
    }
}

impl Spec {
    /// Where to compute. Of the GPUs that do, those with the most free memory are taken; what the user should know of it
    /// is added to `warnings`.
    ///
    /// # Errors
    /// GPUs were asked for that are not there.
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
        // Where nothing was said a server that is not built for GPUs will do, too.
        let device = if self.gpu_count.is_none() && !filters { Device::Auto } else { Device::Cuda };
        let count = self.gpu_count.unwrap_or(1).max(1) as usize;
        let is_named = |gpu: &Gpu| {
            let is = |model: &String| gpu.name.to_lowercase().contains(&model.to_lowercase());
            self.gpu_models.is_empty() || self.gpu_models.iter().any(is)
        };
        // Drivers keep some of a card's nominal memory for themselves.
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

/// A label as RFC 1123 has it.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = name.starts_with(is_end)
        && name.ends_with(is_end)
        && name.chars().all(|c| is_end(c) || c == '-')
        && name.len() <= MAX_NAME;
    if is_label {
        return Ok(());
    }
    Err(Error::validation(
        "name",
        name,
        "a name has at most 63 small letters, digits and hyphens, and no hyphen at its ends",
    ))
}

fn check_choice(field: &'static str, value: Option<&str>, choices: &[&str]) -> Result<()> {
    match value {
        Some(value) if !choices.contains(&value) => {
            Err(Error::validation(field, value, format!("possible are {}", choices.join(", "))))
        }
        _ => Ok(()),
    }
}

fn check_numbers(params: &Params) -> Result<()> {
    let at_least_one = |field, value: Option<u64>| match value {
        Some(0) => Err(Error::validation(field, 0, "at least 1 is needed")),
        _ => Ok(()),
    };
    at_least_one("timeout", Some(params.timeout))?;
    at_least_one("max_model_len", params.max_model_len)?;
    at_least_one("tensor_parallel_size", params.tensor_parallel_size.map(u64::from))?;
    at_least_one("min_gpu_memory_gb", params.min_gpu_memory_gb)?;
    at_least_one("ttl_seconds", params.ttl_seconds)?;
    at_least_one("replicas", Some(params.replicas.into()))?;
    let part_field = match params.framework {
        Framework::Blaze => "gpu_memory_utilization",
        Framework::Prism => "mem_fraction_static",
    };
    if let Some(part) = params.gpu_memory_utilization
        && !(part > 0.0 && part <= 1.0)
    {
        return Err(Error::validation(
            part_field,
            part,
            "a number above 0 and at most 1 is needed",
        ));
    }
    let gpus = params.gpu_count.unwrap_or(1).max(1);
    match params.tensor_parallel_size {
        Some(ranks) if ranks > gpus => Err(Error::validation(
            "tensor_parallel_size",
            ranks,
            format!("it may not exceed gpu_count, which is {}", params.gpu_count.unwrap_or(1)),
        )),
        _ => Ok(()),
    }
}

/// What only some backends can do.
fn check_backend(params: &Params, backend: &Backend) -> Result<()> {
    backend.check_built()?;
    let name = backend.as_str();
    let refused =
        |field, value: String, reason: String| Err(Error::validation(field, value, reason));
    if params.replicas > 1 && !matches!(backend, Backend::Kubernetes { .. }) {
        return refused(
            "replicas",
            params.replicas.to_string(),
            format!("the {name} backend runs one"),
        );
    }
    match backend {
        Backend::Process => match &params.hub_cache {
            Some(cache) => refused(
                "hub_cache",
                cache.clone(),
                "a process uses the hub's own cache: set HF_HOME in its environment".into(),
            ),
            None => Ok(()),
        },
        Backend::Docker { .. } | Backend::Kubernetes { .. } => match params.ttl_seconds {
            Some(seconds) => refused(
                "ttl_seconds",
                seconds.to_string(),
                format!(
                    "nothing would delete it: the {name} backend has no supervisor of ours; leave it out"
                ),
            ),
            None => check_hub_cache(params.hub_cache.as_deref(), backend),
        },
    }
}

/// A folder by its full path, or the name of a volume.
fn check_hub_cache(cache: Option<&str>, backend: &Backend) -> Result<()> {
    let Some(cache) = cache else { return Ok(()) };
    let is_volume = match backend {
        Backend::Kubernetes { .. } => cache.split('.').all(|part| check_name(part).is_ok()),
        // Source: the names of volumes that Docker's engine takes.
        _ => {
            let is_inner = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
            cache.len() > 1
                && cache.starts_with(|c: char| c.is_ascii_alphanumeric())
                && cache.chars().all(is_inner)
        }
    };
    // A colon would end the path in the engine's notation.
    if is_volume || (cache.starts_with('/') && !cache.contains(':')) {
        return Ok(());
    }
    Err(Error::validation(
        "hub_cache",
        cache,
        "a folder by its full path is needed, or the name of a volume (docker) or of a persistent volume claim (kubernetes)",
    ))
}

/// The variables that may be seen, and those that may not.
fn split_env(params: &Params) -> Result<(BTreeMap<String, String>, Secrets)> {
    let mut secrets = Secrets::default();
    let mut env = BTreeMap::new();
    for (name, value) in &params.env {
        let is_name = !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
        if !is_name {
            return Err(Error::validation("env", name, "a variable has a name without `=`"));
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
        let prefix = params.framework.as_str().to_ascii_uppercase();
        secrets.0.insert(format!("{prefix}_API_KEY"), key.0.clone());
    }
    Ok((env, secrets))
}

/// The model as the server is to find it: a folder or a GGUF file by its full path.
fn model_name(model: &str) -> Result<String> {
    let path = Path::new(model);
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

/// The server's command line, from `serve` on.
fn argv(params: &Params, model: &str) -> Vec<String> {
    let ranks = params.tensor_parallel_size.unwrap_or(params.gpu_count.unwrap_or(1).max(1));
    let flags = [
        ("--framework", Some(params.framework.to_string())),
        ("--max-model-len", params.max_model_len.map(|len| len.to_string())),
        ("--quantization", params.quantization.clone()),
        ("--dtype", params.dtype.clone()),
        ("--served-model-name", params.served_model_name.clone()),
        ("--tensor-parallel-size", (ranks > 1).then(|| ranks.to_string())),
        ("--gpu-memory-utilization", params.gpu_memory_utilization.map(|part| part.to_string())),
    ];
    let mut argv = vec!["serve".to_owned(), model.to_owned()];
    for (flag, value) in flags {
        argv.extend(value.map(|value| format!("{flag}={value}")));
    }
    if params.enforce_eager {
        argv.push("--enforce-eager".into());
    }
    argv
}

#[cfg(test)]
mod tests {
    use candlepower_machine::ComputeCapability;

    use super::*;
    use crate::{BlazeParams, PrismParams};

    /// The plan of these parameters on this machine.
    fn plan(params: impl Into<Params>) -> Plan {
        Plan::new(&params.into(), &Backend::Process).unwrap()
    }

    fn refused(params: impl Into<Params>) -> (String, String) {
        refused_by(&Backend::Process, params)
    }

    fn refused_by(backend: &Backend, params: impl Into<Params>) -> (String, String) {
        match Plan::new(&params.into(), backend) {
            Err(Error::Validation { field, value, .. }) => (field.to_owned(), value),
            other => panic!("{other:?}"),
        }
    }

    fn pair(field: &str, value: &str) -> (String, String) {
        (field.to_owned(), value.to_owned())
    }

    #[test]
    fn names_are_labels() {
        for name in ["a", "chat-1", "0", &"a".repeat(63)] {
            check_name(name).unwrap();
        }
        for name in ["", "A", "a_b", "-a", "a-", "a.b", "../x", &"a".repeat(64)] {
            assert_eq!(refused(BlazeParams::new(name, "demo")), pair("name", name));
        }
    }

    #[test]
    fn values_that_cannot_be_used_are_named() {
        let demo = || BlazeParams::new("a", "demo");
        assert_eq!(refused(demo().quantization("int3")), pair("quantization", "int3"));
        assert_eq!(refused(demo().memory("16GB")), pair("memory", "16GB"));
        assert_eq!(refused(demo().dtype("int8")), pair("dtype", "int8"));
        assert_eq!(refused(demo().replicas(0)), pair("replicas", "0"));
        assert_eq!(refused(demo().hub_cache("models")), pair("hub_cache", "models"));
        assert_eq!(refused(demo().timeout(0)), pair("timeout", "0"));
        assert_eq!(refused(demo().replicas(2)), pair("replicas", "2"));
        let ranks = demo().gpu_count(2).tensor_parallel_size(4);
        assert_eq!(refused(ranks), pair("tensor_parallel_size", "4"));
        assert_eq!(
            refused(demo().gpu_memory_utilization(1.5)),
            pair("gpu_memory_utilization", "1.5")
        );
        let part = PrismParams::new("a", "demo").mem_fraction_static(0.0);
        assert_eq!(refused(part), pair("mem_fraction_static", "0"));
        for model in ["./nowhere", "src/process/none.gguf"] {
            assert_eq!(refused(BlazeParams::new("a", model)), pair("model", model));
        }
    }

    #[cfg(feature = "full")]
    #[test]
    fn what_a_backend_cannot_do_is_refused() {
        let docker: Backend = "docker".parse().unwrap();
        let kubernetes: Backend = "kubernetes".parse().unwrap();
        let demo = || BlazeParams::new("a", "demo");
        assert_eq!(refused_by(&docker, demo().replicas(2)), pair("replicas", "2"));
        for backend in [&docker, &kubernetes] {
            assert_eq!(refused_by(backend, demo().ttl_seconds(9)), pair("ttl_seconds", "9"));
            for cache in ["", "a/b", "/a:b", "-a", "a b"] {
                assert_eq!(refused_by(backend, demo().hub_cache(cache)), pair("hub_cache", cache));
            }
            for cache in ["/srv/models", "models"] {
                assert!(Plan::new(&demo().hub_cache(cache).into(), backend).is_ok());
            }
        }
        let scaled = Plan::new(&demo().replicas(3).image("x:1").into(), &kubernetes).unwrap();
        assert_eq!((scaled.spec.replicas, scaled.spec.image.as_deref()), (3, Some("x:1")));
        assert!(scaled.warnings.is_empty());
    }

    #[cfg(not(feature = "docker"))]
    #[test]
    fn a_backend_that_is_not_built_says_which_build_has_it() {
        let docker: Backend = "docker".parse().unwrap();
        let params = BlazeParams::new("a", "demo");
        let error = Plan::new(&params.into(), &docker).unwrap_err().to_string();
        assert!(error.starts_with("backend `docker`: this build does not have it"), "{error}");
    }

    #[test]
    fn secrets_stay_out_of_what_is_written() {
        let params = BlazeParams::new("a", "demo")
            .api_key("canary-key")
            .env(HUB_TOKEN, "canary-token")
            .env("BLAZE_MAX_NUM_SEQS", "7");
        let plan = plan(params.clone());
        let written = serde_json::to_string(&plan.spec).unwrap();
        for text in [written, format!("{plan:?}"), format!("{params:?}")] {
            assert!(!text.contains("canary"), "{text}");
        }
        assert_eq!(plan.spec.env["BLAZE_MAX_NUM_SEQS"], "7");
        assert_eq!(plan.secrets.0["BLAZE_API_KEY"], "canary-key");
        assert!(plan.spec.secret_names.contains(HUB_TOKEN));
    }

    #[test]
    fn the_command_line_says_what_was_said() {
        let params = PrismParams::new("a", "demo").context_length(512).enforce_eager(true);
        let plan = plan(params);
        assert_eq!(
            plan.spec.argv,
            ["serve", "demo", "--framework=prism", "--max-model-len=512", "--enforce-eager"]
        );
    }

    #[test]
    fn the_gpus_with_the_most_free_memory_are_taken() {
        let gpu = |name: &str, free_gb: u64| Gpu {
            name: name.into(),
            uuid: format!("GPU-{free_gb}"),
            memory_total_bytes: 79 << 30,
            memory_free_bytes: free_gb << 30,
            compute_capability: ComputeCapability { major: 9, minor: 0 },
        };
        let devices = vec![gpu("NVIDIA H100", 10), gpu("NVIDIA H100", 70), gpu("NVIDIA T4", 78)];
        let found = Gpus { devices, ..Gpus::default() };
        let demo = || BlazeParams::new("a", "demo");
        for (params, device, uuids) in [
            (demo(), Device::Auto, vec!["GPU-78"]),
            (demo().gpu_count(0), Device::Cpu, vec![]),
            (demo().gpu_models(["h100"]), Device::Cuda, vec!["GPU-70"]),
            (demo().gpu_count(2).min_gpu_memory_gb(80), Device::Cuda, vec!["GPU-78", "GPU-70"]),
        ] {
            let spec = plan(params).spec;
            let chosen = spec.choose_gpus(&found, &mut Vec::new()).unwrap();
            let found: Vec<_> = chosen.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
            assert_eq!((chosen.device, found), (device, uuids));
        }
    }

    #[test]
    fn gpus_that_are_not_there_are_told() {
        let none = Gpus { reason: Some("no driver".into()), ..Gpus::default() };
        let spec = |params: BlazeParams| plan(params).spec;
        let demo = || BlazeParams::new("a", "demo");
        let mut warnings = Vec::new();
        let chosen = spec(demo()).choose_gpus(&none, &mut warnings).unwrap();
        assert!(chosen.gpus.is_empty() && chosen.device == Device::Cpu);
        assert_eq!(warnings, ["this machine has no free GPU: computing on the CPU"]);
        for (params, asked) in [
            (demo().gpu_count(2), "2 GPUs were"),
            (demo().gpu_models(["H100", "A100"]), "1 GPU of model H100 or A100 was"),
            (demo().min_gpu_memory_gb(80), "1 GPU with at least 80 GB was"),
        ] {
            let error = spec(params).choose_gpus(&none, &mut warnings).unwrap_err();
            assert_eq!(error.code(), "RESOURCE_UNAVAILABLE");
            assert_eq!(
                error.to_string(),
                format!(
                    "{asked} asked for, but this machine has none (no driver): set gpu_count to 0 to compute on the CPU"
                )
            );
        }
    }
}
