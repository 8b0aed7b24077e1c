//! What can be known of a model before its weights are there: whether it can run here, as asked.

use candlepower_checkpoint::{
    Checkpoint, Counted, DeviceKind, DeviceMemory, Dtype, MemoryPlan, MemoryRequest,
};
use candlepower_engine::{Device, free_bytes};

use crate::config::{Dtype as DtypeSetting, LoadFormat, ServeConfig};
use crate::error::{Error, Result};

/// Checks a model's configuration against the settings and the device it is to run on.
///
/// # Errors
/// What does not fit together, and what would.
pub(crate) fn check(config: &ServeConfig, checkpoint: &Checkpoint, device: &Device) -> Result<()> {
    check_quantization(config, checkpoint, device)?;
    let spec = checkpoint.spec();
    spec.check_tensor_parallel(config.tensor_parallel_size)?;
    // What the model says of the number comes first: it holds for any version.
    if config.tensor_parallel_size > 1 {
        return Err(Error::TensorParallel { asked: config.tensor_parallel_size });
    }
    let max_model_len = spec.max_model_len(config.max_model_len)?;
    let plan = MemoryPlan::new(spec, memory_request(config, checkpoint, device, max_model_len));
    plan.check(spec)?;
    Ok(())
}

/// What the engine will ask for, before the weights are there.
fn memory_request(
    config: &ServeConfig,
    checkpoint: &Checkpoint,
    device: &Device,
    max_model_len: usize,
) -> MemoryRequest {
    let dtype = match config.dtype {
        DtypeSetting::Auto => None,
        DtypeSetting::Float32 => Some(Dtype::F32),
        DtypeSetting::Float16 => Some(Dtype::F16),
        DtypeSetting::Bfloat16 => Some(Dtype::Bf16),
    };
    let (weights, kv, kind) = match device.is_cpu() {
        true => (checkpoint.weights_dtype(dtype), Dtype::F32, DeviceKind::Cpu),
        false => {
            let weights = checkpoint.device_dtype(dtype);
            let utilization = config.gpu_memory_utilization;
            (weights, weights, DeviceKind::Gpu { utilization })
        }
    };
    MemoryRequest {
        weights,
        kv,
        max_model_len,
        block_size: config.block_size,
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        kv_cache_bytes: config.kv_cache_memory.map(|size| size.0),
        tensor_parallel_size: config.tensor_parallel_size,
        memory: DeviceMemory {
            device: kind,
            available_bytes: free_bytes(device),
            counted: Counted::BeforeLoading,
        },
    }
}

fn check_quantization(
    config: &ServeConfig,
    checkpoint: &Checkpoint,
    device: &Device,
) -> Result<()> {
    let found = checkpoint.quantization().map(|quantization| quantization.method.as_str());
    if let Some(asked) = config.quantization.map(|asked| asked.as_str())
        && found != Some(asked)
    {
        let found = found.map_or_else(
            || "that they are not quantized".to_owned(),
            |method| format!("`{method}`"),
        );
        return Err(Error::QuantizationMismatch { asked, found });
    }
    match checkpoint.quantization() {
        Some(found) if found.scheme.is_none() && config.load_format != LoadFormat::Dummy => {
            Err(Error::QuantizationUnsupported(found.method.clone()))
        }
        Some(found) if found.scheme.is_some() && !device.is_cpu() => Err(Error::QuantizedOnGpu),
        _ => Ok(()),
    }
}
