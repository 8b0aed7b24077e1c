//! Checks before the weights are downloaded whether a model can run on this machine with these settings.

use candlepower_checkpoint::{
    BATCHED_TOKENS, Checkpoint, Counted, Description, DeviceKind, DeviceMemory, Dtype,
    EncoderCheckpoint, EncoderMemoryRequest, MemoryPlan, MemoryRequest, Quantization,
};
use candlepower_engine::{Device, LoadFormat, check_gpus, free_bytes};

use crate::config::{DeviceKind as DeviceSetting, ServeConfig};
use crate::lifecycle::error::{Error, Result};

/// Checks a model's configuration against the settings and the device.
///
/// # Errors
/// The setting that conflicts with the model or the memory, and what to do.
pub(crate) fn check(
    config: &ServeConfig,
    description: &Description,
    device: &Device,
) -> Result<()> {
    match description {
        Description::Decoder(checkpoint) if gives_vectors(config, checkpoint) => {
            check_pooled_decoder(config, checkpoint)
        }
        Description::Decoder(checkpoint) => check_decoder(config, checkpoint, device),
        Description::Encoder(checkpoint) => check_encoder(config, checkpoint),
    }
}

/// Whether a decoder is served for embeddings: the settings name a pooling, or its files do.
pub(crate) fn gives_vectors(config: &ServeConfig, checkpoint: &Checkpoint) -> bool {
    config.pooling.is_some() || checkpoint.gives_vectors()
}

fn check_decoder(config: &ServeConfig, checkpoint: &Checkpoint, device: &Device) -> Result<()> {
    check_quantization(config, checkpoint)?;
    let spec = checkpoint.spec();
    let ranks = config.tensor_parallel_size;
    spec.check_tensor_parallel(ranks)?;
    // The model's own limit is checked first, because it holds on any machine.
    check_gpus(device, ranks)?;
    let max_model_len = spec.max_model_len(config.max_model_len)?;
    let plan = MemoryPlan::new(spec, memory_request(config, checkpoint, device, max_model_len)?);
    if config.deterministic && !device.is_cpu() {
        spec.check_deterministic(plan.request.kv, ranks)?;
    }
    plan.check(spec)?;
    Ok(())
}

/// Checks a decoder that serves embeddings, which runs on the CPU without a KV cache.
fn check_pooled_decoder(config: &ServeConfig, checkpoint: &Checkpoint) -> Result<()> {
    check_quantization(config, checkpoint)?;
    // The settings are refused by name, not ignored: a user who asks for a GPU expects one.
    if let Some(setting) = not_for_vectors(config) {
        let architecture = checkpoint.architecture();
        return Err(Error::NotForVectors { setting, architecture });
    }
    let memory = checkpoint.pooling_memory(
        checkpoint.weights_dtype(config.dtype),
        EncoderMemoryRequest {
            max_model_len: checkpoint.max_input_len(config.max_model_len)?,
            max_num_batched_tokens: config.max_num_batched_tokens.unwrap_or(BATCHED_TOKENS),
            // A decoder computes one batch at a time, on all threads.
            num_threads: 1,
            available_bytes: free_bytes(&Device::Cpu),
        },
    );
    Ok(memory.check()?)
}

/// A setting that embedding and reranking models do not support, if one is set.
fn not_for_vectors(config: &ServeConfig) -> Option<String> {
    if config.tensor_parallel_size > 1 {
        Some(format!("--tensor-parallel-size {}", config.tensor_parallel_size))
    } else if config.device == DeviceSetting::Cuda {
        Some("--device cuda".to_owned())
    } else {
        config.kv_cache_dtype.map(|asked| format!("--kv-cache-dtype {}", asked.as_str()))
    }
}

/// Checks an encoder, which runs on the CPU in f32 without a KV cache.
fn check_encoder(config: &ServeConfig, checkpoint: &EncoderCheckpoint) -> Result<()> {
    check_method(config, "config.json", checkpoint.quantization())?;
    // No encoder's loader reads quantized weights.
    if let Some(found) = checkpoint.quantization() {
        return Err(Error::QuantizedEncoder(found.method.clone()));
    }
    let architecture = checkpoint.architecture();
    let on_load =
        config.quantize_on_load.map(|kind| format!("--quantize-on-load {}", kind.as_str()));
    let setting = not_for_vectors(config).or(on_load);
    let setting = setting.or_else(|| match (config.load_format, config.dtype) {
        // Dummy weights are made for decoders only, and encoders compute in f32.
        (LoadFormat::Dummy, _) => Some("--load-format dummy".to_owned()),
        (_, None | Some(Dtype::F32)) => None,
        (_, Some(dtype)) => Some(format!("--dtype {}", dtype.as_str())),
    });
    if let Some(setting) = setting {
        return Err(Error::OnlyGenerating { setting, architecture });
    }
    if let Some(pooling) = config.pooling.filter(|_| checkpoint.spec().head.is_some()) {
        let setting = format!("--pooling {}", pooling.as_str());
        return Err(Error::OnlyPooling { setting, architecture });
    }
    let memory = checkpoint.memory(EncoderMemoryRequest {
        max_model_len: checkpoint.max_model_len(config.max_model_len)?,
        max_num_batched_tokens: config.max_num_batched_tokens.unwrap_or(BATCHED_TOKENS),
        num_threads: config.threads.unwrap_or_else(candlepower_machine::compute_threads),
        available_bytes: free_bytes(&Device::Cpu),
    });
    Ok(memory.check()?)
}

/// The engine's memory request, before the weights are loaded.
fn memory_request(
    config: &ServeConfig,
    checkpoint: &Checkpoint,
    device: &Device,
    max_model_len: usize,
) -> Result<MemoryRequest> {
    let dtype = config.dtype;
    let (weights, kind) = match device.is_cpu() {
        true => (checkpoint.weights_dtype(dtype), DeviceKind::Cpu),
        false => {
            let utilization = config.gpu_memory_utilization;
            (checkpoint.device_dtype(dtype), DeviceKind::Gpu { utilization })
        }
    };
    Ok(MemoryRequest {
        weights,
        kv: checkpoint.kv_dtype(kind, config.kv_cache_dtype, dtype, weights)?,
        max_model_len,
        block_size: config.block_size,
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        kv_cache_bytes: config.kv_cache_memory.map(|size| size.0),
        tensor_parallel_size: config.tensor_parallel_size,
        images: config.image_memory(),
        memory: DeviceMemory {
            device: kind,
            // The ranks of the CPU share its memory.
            available_bytes: free_bytes(device).map(|bytes| match device.is_cpu() {
                true => bytes / config.tensor_parallel_size as u64,
                false => bytes,
            }),
            counted: Counted::BeforeLoading,
        },
    })
}

fn check_quantization(config: &ServeConfig, checkpoint: &Checkpoint) -> Result<()> {
    check_method(config, checkpoint.config_file(), checkpoint.quantization())?;
    match checkpoint.quantization() {
        // Dummy weights need no scheme, so the speed of a model can be measured without its files.
        Some(found) if found.scheme.is_none() && config.load_format != LoadFormat::Dummy => {
            Err(Error::QuantizationUnsupported(found.method.clone()))
        }
        _ => Ok(()),
    }
}

/// Checks that `--quantization` names the method in `file`.
fn check_method(config: &ServeConfig, file: &str, found: Option<&Quantization>) -> Result<()> {
    let found = found.map(|quantization| quantization.method.as_str());
    let Some(asked) = config.quantization.map(|asked| asked.as_str()) else { return Ok(()) };
    if found == Some(asked) {
        return Ok(());
    }
    let found = found
        .map_or_else(|| "that they are not quantized".to_owned(), |method| format!("`{method}`"));
    Err(Error::QuantizationMismatch { asked, file: file.to_owned(), found })
}
