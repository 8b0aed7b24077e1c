//! One rank's shard of a model: loaded, then given the memory of its steps. Rank 0 and its followers start alike.

use std::sync::Arc;

use candle_core::{DType, Device};
use candlepower_checkpoint::{Checkpoint, Dtype, KvDtype};
use candlepower_comm::Comm;
use candlepower_models::{
    Decoder, DeviceDecoder, ImageEncoder, LoadOptions, LoadProgress, load_on_device, load_shard,
    load_shard_on_device,
};
use serde::{Deserialize, Serialize};

use crate::{
    Result,
    cores::Threads,
    cpu_runner::CpuRunner,
    device::free_bytes,
    device_graphs::Graphs,
    device_runner::DeviceRunner,
    image_slots::ImageSlots,
    orders::{Loaded, StepMemory, unexpected},
    runner::Runner,
};

/// The kind of device on which ranks compute.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankDevice {
    /// The CPU, with its own kernels.
    Cpu,
    /// The CPU, by the reference implementations of the GPU kernels.
    Reference,
    /// A GPU each: the one with the rank's number.
    Gpu,
}

impl RankDevice {
    /// The kind that `load` asks for; on the CPU the reference of a GPU where `device_reference` says so.
    pub(crate) fn of(load: &LoadOptions, device_reference: bool) -> Self {
        match (load.device.is_cpu(), device_reference) {
            (false, _) => Self::Gpu,
            (true, true) => Self::Reference,
            (true, false) => Self::Cpu,
        }
    }
}

/// A rank's shard of the model.
pub(crate) enum RankModel {
    /// A decoder, and the encoder of images if the model takes some. Each rank has the whole encoder.
    Cpu(Decoder, Option<Box<ImageEncoder>>),
    /// A decoder. On devices, models take text alone.
    Device(DeviceDecoder),
}

/// Where and how a rank loads its shard.
pub(crate) struct RankLoad<'a> {
    pub(crate) device: RankDevice,
    pub(crate) options: &'a LoadOptions,
    pub(crate) comm: &'a Arc<Comm>,
}

impl RankModel {
    /// Loads the shard of the rank of `load.comm`: the whole model, where that is the only rank.
    pub(crate) fn load(
        checkpoint: &Checkpoint,
        load: &RankLoad<'_>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self> {
        let (options, comm) = (load.options, Arc::clone(load.comm));
        Ok(match (load.device, comm.size()) {
            (RankDevice::Cpu, _) => {
                let decoder = load_shard(checkpoint, options, comm, progress)?;
                Self::Cpu(decoder, ImageEncoder::load(checkpoint, options)?.map(Box::new))
            }
            (RankDevice::Reference | RankDevice::Gpu, 1) => {
                Self::Device(load_on_device(checkpoint, options, progress)?)
            }
            (RankDevice::Reference | RankDevice::Gpu, _) => {
                Self::Device(load_shard_on_device(checkpoint, options, comm, progress)?)
            }
        })
    }

    /// The rank's answer after it has loaded.
    pub(crate) fn loaded(&self) -> Loaded {
        Loaded { weights_bytes: self.weights_bytes(), free_bytes: free_bytes(self.device()) }
    }

    /// Bytes of the shard's weights.
    pub(crate) fn weights_bytes(&self) -> u64 {
        let bytes = match self {
            Self::Cpu(model, images) => {
                model.weight_bytes() + images.as_ref().map_or(0, |images| images.weight_bytes())
            }
            Self::Device(model) => model.weight_bytes(),
        };
        bytes as u64
    }

    pub(crate) fn device(&self) -> &Device {
        match self {
            Self::Cpu(model, _) => model.device(),
            Self::Device(model) => model.device(),
        }
    }

    /// Whether it takes images.
    pub(crate) fn takes_images(&self) -> bool {
        matches!(self, Self::Cpu(_, Some(_)))
    }

    /// The dtype of the weights that are not quantized.
    pub(crate) fn weights_dtype(&self) -> Dtype {
        let dtype = match self {
            Self::Cpu(model, _) => model.weight_dtype(),
            Self::Device(model) => model.dtype(),
        };
        plain_dtype(dtype)
    }

    /// The longest context that the model was loaded for, in tokens.
    pub(crate) fn max_model_len(&self) -> usize {
        match self {
            Self::Cpu(model, _) => model.max_model_len(),
            Self::Device(model) => model.max_model_len(),
        }
    }

    /// Reserves the memory of steps. `progress` gets the number of recorded CUDA graphs, and of all graphs.
    pub(crate) fn reserve(
        self,
        memory: StepMemory,
        threads: &Threads,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Runner> {
        match (self, memory) {
            (Self::Cpu(model, images), StepMemory::Cpu { size, kv }) => {
                let cache = model.new_cache(size, cache_dtype(kv))?;
                let images = images.map(ImageSlots::new);
                let runner = CpuRunner::new(model, images, cache, size.block_size);
                Ok(Runner::Cpu(Box::new(runner), threads.warm()?))
            }
            (Self::Device(model), StepMemory::Device { size, graphs, num_swap_blocks }) => {
                let graphs = Graphs::of(&size, graphs)?;
                let mut runner = DeviceRunner::new(model, size, graphs, num_swap_blocks)?;
                runner.capture_graphs(progress)?;
                Ok(Runner::Device(Box::new(runner)))
            }
            _ => Err(unexpected()),
        }
    }
}

/// The checkpoint's name of a plain dtype.
pub(crate) fn plain_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::Bf16,
        _ => Dtype::F32,
    }
}

/// The dtype of keys and values in the CPU's cache.
fn cache_dtype(kv: KvDtype) -> DType {
    match kv {
        KvDtype::Plain(Dtype::F32) => DType::F32,
        KvDtype::Plain(Dtype::F16) => DType::F16,
        KvDtype::Plain(Dtype::Bf16) => DType::BF16,
        KvDtype::Fp8 => DType::F8E4M3,
    }
}
