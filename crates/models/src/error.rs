//! Errors while loading or running a model, in words that say what to do.

use candle_core::DeviceLocation;
use candlepower_checkpoint::QuantizationMethod;

/// Result with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A model that cannot be loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The checkpoint's description is wrong.
    #[error(transparent)]
    Checkpoint(#[from] candlepower_checkpoint::Error),
    /// A kernel refused its operands, or memory ran out.
    #[error(transparent)]
    Kernel(#[from] candlepower_kernels::Error),
    /// A tensor operation failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// The weights are quantized.
    #[error(
        "the checkpoint is quantized with {method}, which is not supported; {} are: use such a version of it, or its float16 or bfloat16 original",
        QuantizationMethod::supported()
    )]
    Quantized {
        /// The method's name.
        method: String,
    },
    /// A quantized matrix has impossible values.
    #[error("tensor {name} is damaged: {reason}; download the checkpoint again")]
    DamagedTensor {
        /// The tensor's name.
        name: String,
        /// The fault, in words.
        reason: &'static str,
    },
    /// A static scale of activations is missing.
    #[error(
        "tensor {name} is missing, although the quantization_config says that activations have static scales; download the checkpoint again, or take another version of it"
    )]
    FixedScaleMissing {
        /// The tensor's name.
        name: String,
    },
    /// The scales of keys and values cannot be used.
    #[error(
        "tensor {name} cannot scale keys and values: {reason}; leave --kv-cache-dtype fp8 out, or take another version of the checkpoint"
    )]
    KvScale {
        /// The tensor's name.
        name: String,
        /// The fault, in words.
        reason: &'static str,
    },
    /// A step is larger than attention over latents takes on a GPU.
    #[error(
        "a step of {asked} tokens is more than attention over this model's latents has room for on a GPU; set --max-num-batched-tokens to at most {most}"
    )]
    LatentTokens {
        /// Tokens of a step.
        asked: usize,
        /// Most tokens of a step.
        most: usize,
    },
    /// A matrix that is to be quantized has values that no scale reaches.
    #[error(
        "tensor {name} holds infinity, NaN or values too large for {kind}; leave --quantize-on-load out"
    )]
    NotQuantizable {
        /// The tensor's name.
        name: String,
        /// The quantization that it was to get.
        kind: &'static str,
    },
    /// A quantized matrix whose inputs cannot be split.
    #[error(
        "tensor {name} has its inputs in the order of their groups (act-order), which ranks cannot share; leave --tensor-parallel-size out"
    )]
    OrderedColumns {
        /// The tensor's name.
        name: String,
    },
    /// A collective of the ranks failed.
    #[error(transparent)]
    Comm(#[from] candlepower_comm::Error),
    /// A device without kernels.
    #[error("no kernels for the device {device:?} in this build; use the CPU")]
    UnsupportedDevice {
        /// The device that the settings ask for.
        device: DeviceLocation,
    },
    /// Single precision on a GPU.
    #[error(
        "the GPU's kernels compute with 16 bits: leave --dtype at auto, or take bfloat16 or float16"
    )]
    DeviceDtype,
    /// A weight file could not be opened or mapped.
    #[error("cannot read the weight file {file}: {source}")]
    Io {
        /// The file's name.
        file: String,
        /// The system's own error.
        source: std::io::Error,
    },
    /// The index names a file that is not there.
    #[error(
        "{file} is missing, although model.safetensors.index.json names it; download the checkpoint again"
    )]
    ShardMissing {
        /// The file's name.
        file: String,
    },
    /// A weight file is not what its header says.
    #[error("{file} is damaged or truncated ({len} bytes: {reason}); download it again")]
    Damaged {
        /// The file's name.
        file: String,
        /// Its length in bytes.
        len: u64,
        /// The fault, in words.
        reason: String,
    },
    /// The weight files lack tensors.
    #[error("{count} tensors of the model are not in the weight files: {names}")]
    TensorsMissing {
        /// Number of tensors.
        count: usize,
        /// The first of them.
        names: String,
    },
    /// The weight files hold tensors that the architecture does not explain.
    #[error(
        "{count} tensors in the weight files are not part of {architecture} as {file} describes it: {names}"
    )]
    TensorsUnknown {
        /// Number of tensors.
        count: usize,
        /// The first of them.
        names: String,
        /// The architecture's class name.
        architecture: &'static str,
        /// The file with the configuration.
        file: String,
    },
    /// A tensor that two files hold.
    #[error("the tensor {name} is both in {first} and in {second}; remove one of the files")]
    TensorTwice {
        /// The tensor's name.
        name: String,
        /// One file.
        first: String,
        /// The other file.
        second: String,
    },
    /// A tensor has another shape than the configuration says.
    #[error("tensor {name} has shape {found:?}, but {file} makes it {expected:?}")]
    TensorShape {
        /// The tensor's name.
        name: String,
        /// Its shape in the file.
        found: Vec<usize>,
        /// Its shape by the configuration, or the one with most dimensions of several.
        expected: Vec<usize>,
        /// The file with the configuration.
        file: String,
    },
    /// A tensor's dtype is not supported.
    #[error("tensor {name} is stored as {found}, which is not supported; {expected}")]
    TensorDtype {
        /// The tensor's name.
        name: String,
        /// Its dtype as safetensors calls it.
        found: String,
        /// The supported dtypes, in words.
        expected: &'static str,
    },
    /// An input of an encoder of texts or images that cannot be computed.
    #[error("the input {0}")]
    Input(String),
}
