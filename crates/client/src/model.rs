//! Checks against the model itself, from its `config.json` alone.

use candlepower_checkpoint::{
    BATCHED_TOKENS, Bytes, Checkpoint, CheckpointFiles, Choice, Counted, DTYPES, Description,
    DeviceKind, DeviceMemory, Dtype, EncoderCheckpoint, EncoderMemoryRequest,
    GPU_MEMORY_UTILIZATION, ImageMemory, KvDtype, MemoryPlan, MemoryRequest, OnLoad,
};
use candlepower_hub::{Hub, HubConfig, HubSettings, ModelName};

use crate::check::{Compute, Place, Plan};
use crate::error::{Error, Result};
use crate::params::Params;
use crate::spec::Device;

/// The default revision.
const REVISION: &str = "main";
/// The operation that a timeout names while the model's description is awaited.
const ASKING: &str = "the hub has not yet said what the model is";
/// The server's own defaults, which the memory calculation uses.
const BLOCK_SIZE: usize = 16;
const MAX_NUM_SEQS: usize = 256;

/// The description of the demo model, which is part of the server.
static DEMO: [(&str, &[u8]); 1] =
    [("config.json", include_bytes!("../../server/demo/config.json"))];

/// Checks a plan against the model: ranks, quantization, context, memory.
///
/// # Errors
/// The model cannot be fetched, does not support the parameters, or does not fit.
pub(crate) async fn check(params: &Params, plan: &Plan, compute: &Compute) -> Result<()> {
    let model = &plan.spec.model;
    let wrong = |error| Error::from_checkpoint(model, error);
    let mut description =
        Description::open(plan.deadline.hold(ASKING, files(plan)).await?).map_err(wrong)?;
    let on_load = setting(plan, "QUANTIZE_ON_LOAD");
    if let (Some(kind), Description::Decoder(checkpoint)) =
        (on_load.and_then(|text| Choice::find(&OnLoad::CHOICES, text)), &mut description)
    {
        checkpoint.quantize_on_load(kind).map_err(wrong)?;
    }
    if let (true, Description::Decoder(checkpoint)) =
        (is_on(plan, "LANGUAGE_MODEL_ONLY"), &mut description)
    {
        checkpoint.without_vision();
    }
    let (quantization, file) = match &description {
        Description::Decoder(checkpoint) => (checkpoint.quantization(), checkpoint.config_file()),
        Description::Encoder(checkpoint) => (checkpoint.quantization(), "config.json"),
    };
    let found = quantization.map(|quantization| quantization.method.as_str());
    if let Some(asked) = params.quantization.as_deref().or(setting(plan, "QUANTIZATION"))
        && found != Some(asked)
    {
        let found =
            found.map_or("that they are not quantized".to_owned(), |found| format!("`{found}`"));
        return Err(Error::QuantizationMismatch {
            asked: asked.to_owned(),
            file: file.to_owned(),
            found,
        });
    }
    let checkpoint = match &description {
        Description::Decoder(checkpoint) => checkpoint,
        Description::Encoder(checkpoint) => {
            return check_encoder(params, plan, compute, checkpoint).map_err(wrong);
        }
    };
    if setting(plan, "POOLING").is_some() || checkpoint.gives_vectors() {
        return check_pooled(params, plan, compute, checkpoint).map_err(wrong);
    }
    let spec = checkpoint.spec();
    let ranks = ranks(params, plan);
    spec.check_tensor_parallel(ranks).map_err(wrong)?;
    let max_model_len = spec.max_model_len(max_model_len(params, plan)).map_err(wrong)?;
    let packed = checkpoint.quantization().is_some_and(|found| found.scheme.is_some());
    if found.is_some() && !packed {
        // Memory is calculated for supported quantizations only. The server refuses the others itself.
        return Ok(());
    }
    let asked_dtype = asked_dtype(params, plan);
    let weights = |device| match device {
        DeviceKind::Cpu => checkpoint.weights_dtype(asked_dtype),
        DeviceKind::Gpu { .. } => checkpoint.device_dtype(asked_dtype),
    };
    let asked_kv = setting(plan, "KV_CACHE_DTYPE").and_then(|text| {
        let found = Choice::find(&KvDtype::CHOICES, text);
        // A type that no cache supports is still checked against the device.
        found.unwrap_or_else(|| dtype(Some(text)).map(Into::into))
    });
    let defaults = ImageMemory::default();
    let images = ImageMemory {
        waiting_bytes: bytes(plan, "IMAGE_MEMORY").unwrap_or(defaults.waiting_bytes),
        encoder_cache_bytes: bytes(plan, "ENCODER_CACHE_MEMORY")
            .unwrap_or(defaults.encoder_cache_bytes),
    };
    let request = |memory: DeviceMemory, weights, kv| MemoryRequest {
        weights,
        kv,
        max_model_len,
        block_size: number(plan, "BLOCK_SIZE", BLOCK_SIZE),
        max_num_seqs: number(plan, "MAX_NUM_SEQS", MAX_NUM_SEQS),
        max_num_batched_tokens: count(plan, "MAX_NUM_BATCHED_TOKENS"),
        kv_cache_bytes: bytes(plan, "KV_CACHE_MEMORY"),
        tensor_parallel_size: ranks,
        images,
        memory,
    };
    for memory in memories(params, plan, compute) {
        let weights = weights(memory.device);
        let kv =
            checkpoint.kv_dtype(memory.device, asked_kv, asked_dtype, weights).map_err(wrong)?;
        MemoryPlan::new(spec, request(memory, weights, kv)).check(spec).map_err(wrong)?;
    }
    Ok(())
}

/// An encoder runs on the CPU. Weights and activations must fit into the deployment's memory.
fn check_encoder(
    params: &Params,
    plan: &Plan,
    compute: &Compute,
    checkpoint: &EncoderCheckpoint,
) -> candlepower_checkpoint::Result<()> {
    let max_model_len = checkpoint.max_model_len(max_model_len(params, plan))?;
    for memory in memories(params, plan, compute) {
        let num_threads = number(plan, "THREADS", 1);
        checkpoint.memory(without_cache(plan, max_model_len, num_threads, memory)).check()?;
    }
    Ok(())
}

/// A decoder that gives embeddings runs on the CPU, too, one batch at a time.
fn check_pooled(
    params: &Params,
    plan: &Plan,
    compute: &Compute,
    checkpoint: &Checkpoint,
) -> candlepower_checkpoint::Result<()> {
    let max_model_len = checkpoint.max_input_len(max_model_len(params, plan))?;
    let dtype = checkpoint.weights_dtype(asked_dtype(params, plan));
    for memory in memories(params, plan, compute) {
        let request = without_cache(plan, max_model_len, 1, memory);
        checkpoint.pooling_memory(dtype, request).check()?;
    }
    Ok(())
}

/// Memory of a model that gives embeddings or scores.
fn without_cache(
    plan: &Plan,
    max_model_len: usize,
    num_threads: usize,
    memory: DeviceMemory,
) -> EncoderMemoryRequest {
    EncoderMemoryRequest {
        max_model_len,
        max_num_batched_tokens: number(plan, "MAX_NUM_BATCHED_TOKENS", BATCHED_TOKENS),
        num_threads,
        available_bytes: memory.available_bytes,
    }
}

/// The memory of each rank: the part of the machine's free memory that `memory` allows, or a GPU's. The list
/// is empty if the server itself chooses between the two.
fn memories(params: &Params, plan: &Plan, compute: &Compute) -> Vec<DeviceMemory> {
    let memory = |device, bytes| DeviceMemory {
        device,
        available_bytes: Some(bytes),
        counted: Counted::BeforeLoading,
    };
    match compute.device {
        Device::Auto => Vec::new(),
        Device::Cpu => {
            let free = match compute.place {
                Place::Here => candlepower_machine::available_bytes().unwrap_or(u64::MAX),
                // Only the deployment's own limit counts there.
                Place::Elsewhere => u64::MAX,
            };
            vec![memory(DeviceKind::Cpu, free.min(plan.spec.memory_bytes))]
        }
        Device::Cuda => {
            let asked = setting(plan, "GPU_MEMORY_UTILIZATION").and_then(|text| text.parse().ok());
            let utilization = params.gpu_memory_utilization.or(asked);
            let utilization = utilization.unwrap_or(GPU_MEMORY_UTILIZATION);
            let device = DeviceKind::Gpu { utilization };
            compute.gpus.iter().map(|gpu| memory(device, gpu.memory_free_bytes)).collect()
        }
    }
}

/// The files that describe the model. For a model on the hub, `config.json` or the header of a GGUF file is
/// fetched.
async fn files(plan: &Plan) -> Result<CheckpointFiles> {
    let model = plan.spec.model.as_str();
    if model == "demo" {
        return Ok(CheckpointFiles::Embedded(&DEMO));
    }
    let name = match ModelName::not_here(model) {
        Ok(name) => name,
        Err(_) => {
            let found = CheckpointFiles::find(model.as_ref());
            let found = found.map_err(|error| Error::from_checkpoint(model, error))?;
            return Ok(found.unwrap_or_else(|| CheckpointFiles::Folder(model.into())));
        }
    };
    let wrong = |error| Error::from_hub(model, error);
    let variable = |name: &str| {
        // The deployment's own variables win over this process's, as they do for the server.
        let given = plan.secrets.0.get(name).or_else(|| plan.spec.env.get(name)).cloned();
        given.or_else(|| std::env::var(name).ok()).filter(|value| !value.trim().is_empty())
    };
    let settings = HubSettings {
        home: variable("HF_HOME").map(Into::into),
        cache: variable("HF_HUB_CACHE")
            .or_else(|| variable("HUGGINGFACE_HUB_CACHE"))
            .map(Into::into),
        endpoint: variable("HF_ENDPOINT"),
        offline: variable("HF_HUB_OFFLINE").is_some_and(|value| {
            ["1", "true", "yes", "on"].contains(&value.to_lowercase().as_str())
        }),
    };
    let hub = HubConfig::new(settings, variable).and_then(Hub::new).map_err(wrong)?;
    let revision = setting(plan, "REVISION").unwrap_or(REVISION);
    let found = hub.open_configuration(&name, revision).await.map_err(wrong)?;
    Ok(found.files())
}

/// A setting of the server in the deployment's environment.
fn setting<'a>(plan: &'a Plan, name: &str) -> Option<&'a str> {
    let prefix = plan.spec.framework.as_str().to_ascii_uppercase();
    plan.spec.env.get(&format!("{prefix}_{name}")).map(String::as_str)
}

/// The requested length of the longest sequence. The parameter becomes a flag, which has priority over the
/// environment.
fn max_model_len(params: &Params, plan: &Plan) -> Option<usize> {
    let asked = params.max_model_len.map(|len| usize::try_from(len).unwrap_or(usize::MAX));
    asked.or_else(|| count(plan, "MAX_MODEL_LEN"))
}

fn asked_dtype(params: &Params, plan: &Plan) -> Option<Dtype> {
    dtype(params.dtype.as_deref().or(setting(plan, "DTYPE")))
}

/// Number of ranks that each layer is split over. The command line names it only above one.
fn ranks(params: &Params, plan: &Plan) -> usize {
    match params.tensor_parallel_size.or(params.gpu_count) {
        Some(ranks @ 2..) => ranks as usize,
        _ => number(plan, "TENSOR_PARALLEL_SIZE", 1),
    }
}

/// A setting that is a size in bytes, parsed as the server does.
/// Whether a switch is on, by the words that the server takes.
fn is_on(plan: &Plan, name: &str) -> bool {
    let text = setting(plan, name).unwrap_or_default().to_ascii_lowercase();
    ["1", "true", "yes", "on"].contains(&text.as_str())
}

fn bytes(plan: &Plan, name: &str) -> Option<u64> {
    setting(plan, name)?.parse().ok().map(|Bytes(bytes)| bytes)
}

fn number(plan: &Plan, name: &str, default: usize) -> usize {
    count(plan, name).unwrap_or(default)
}

fn count(plan: &Plan, name: &str) -> Option<usize> {
    setting(plan, name).and_then(|text| text.parse().ok()).filter(|n| *n > 0)
}

fn dtype(asked: Option<&str>) -> Option<Dtype> {
    Choice::find(&DTYPES, asked?).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlazeParams;
    use crate::backend::Backend;

    /// The result of the checks for these parameters on the CPU.
    async fn checked(params: BlazeParams) -> Result<()> {
        let params = params.gpu_count(0).into();
        let plan = Plan::new(&params, &Backend::Process)?;
        check(&params, &plan, &Compute::cpu(Place::Here)).await
    }

    #[tokio::test]
    async fn settings_of_the_environment_count_as_parameters_do() {
        let demo = || BlazeParams::new("a", "demo");
        let small = || demo().env("BLAZE_KV_CACHE_MEMORY", "1MiB");
        let error = checked(small()).await.unwrap_err();
        assert_eq!(error.code(), "OUT_OF_MEMORY");
        checked(small().max_model_len(64)).await.unwrap();
        checked(small().env("BLAZE_MAX_MODEL_LEN", "64")).await.unwrap();
        // The flag has priority.
        let both = small().env("BLAZE_MAX_MODEL_LEN", "64").max_model_len(2048);
        assert_eq!(checked(both).await.unwrap_err().code(), "OUT_OF_MEMORY");
        for size in ["64Mi", "64MiB", "64MB", "65000K"] {
            checked(demo().memory("1Gi").env("BLAZE_KV_CACHE_MEMORY", size)).await.unwrap();
        }
        let error = checked(demo().env("BLAZE_QUANTIZATION", "awq")).await.unwrap_err();
        assert_eq!(error.code(), "QUANTIZATION_MISMATCH");
        let error = checked(demo().env("BLAZE_TENSOR_PARALLEL_SIZE", "7")).await.unwrap_err();
        assert_eq!(error.code(), "VALIDATION_ERROR");
    }
}
