//! The one error type of the kernels. It names what is wrong with an operand and says what to do about it.

use candle_core::{DType, DeviceLocation};

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a kernel refused its operands.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operand has the wrong element type.
    #[error("{kernel}: {operand} has dtype {found:?}, it must be {expected}; convert it first")]
    DType {
        /// The kernel that refused.
        kernel: &'static str,
        /// The operand's name in the kernel's signature.
        operand: &'static str,
        /// The accepted dtypes, in words.
        expected: &'static str,
        /// The dtype that was passed.
        found: DType,
    },
    /// An operand has the wrong shape.
    #[error("{kernel}: {operand} has shape {found:?}, it must be {expected}")]
    Shape {
        /// The kernel that refused.
        kernel: &'static str,
        /// The operand's name in the kernel's signature.
        operand: &'static str,
        /// The required shape, in words and dimensions.
        expected: String,
        /// The shape that was passed.
        found: Vec<usize>,
    },
    /// An operand is a strided view.
    #[error("{kernel}: {operand} is not contiguous; call contiguous() on it first")]
    NotContiguous {
        /// The kernel that refused.
        kernel: &'static str,
        /// The operand's name in the kernel's signature.
        operand: &'static str,
    },
    /// An operand lives on a device that this build has no kernel for.
    #[error("{kernel}: {operand} is on the unsupported device {device:?}; move it to the CPU")]
    UnsupportedDevice {
        /// The kernel that refused.
        kernel: &'static str,
        /// The operand's name in the kernel's signature.
        operand: &'static str,
        /// The device of the operand.
        device: DeviceLocation,
    },
    /// An operand of a GPU kernel lives elsewhere.
    #[error("{kernel}: {operand} is on {device:?}; move it to the GPU that computes")]
    NotOnGpu {
        /// The kernel that refused.
        kernel: &'static str,
        /// The operand's name in the kernel's signature.
        operand: &'static str,
        /// The device of the operand.
        device: DeviceLocation,
    },
    /// An operand of a GPU kernel does not begin at the start of a 16-byte vector.
    #[error("{kernel}: {operand} does not begin at a multiple of 16 bytes; copy the view first")]
    Misaligned {
        /// The kernel that refused.
        kernel: &'static str,
        /// The operand's name in the kernel's signature.
        operand: &'static str,
    },
    /// CUDA could not start a kernel.
    #[error("{kernel}: CUDA refused: {message}")]
    Cuda {
        /// The kernel.
        kernel: &'static str,
        /// The message of CUDA, or of the library on top of it.
        message: String,
    },
    /// An index is not below its bound.
    #[error("{kernel}: {index} = {value} is out of range, it must be below {bound}")]
    OutOfRange {
        /// The kernel that refused.
        kernel: &'static str,
        /// Name of the index, for example `token id`.
        index: &'static str,
        /// The value that was passed.
        value: usize,
        /// The smallest value that is too large.
        bound: usize,
    },
    /// Attention metadata that contradicts itself or its operands.
    #[error("paged_attention: {0}")]
    Metadata(String),
    /// A parameter outside its domain.
    #[error("{parameter} is {value}, it must be {expected}")]
    Parameter {
        /// The parameter's name.
        parameter: &'static str,
        /// The value that was passed.
        value: usize,
        /// The accepted values, in words.
        expected: &'static str,
    },
    /// The bytes handed to a weight builder are not a whole number of its rows.
    #[error(
        "weight rows: {found} bytes of {dtype:?} are not a whole number of rows of {k} elements"
    )]
    RowBytes {
        /// Number of bytes passed.
        found: usize,
        /// Their dtype.
        dtype: DType,
        /// Elements of one row.
        k: usize,
    },
    /// Rows of quantized weights that contradict themselves or the weight.
    #[error("quantized weight rows: {0}")]
    QuantizedRows(&'static str),
    /// Rows of several matrices that become one weight, but have different orders of inputs (act-order).
    #[error(
        "matrices that are computed as one (q, k and v, or gate and up) have their inputs in different orders; \
         use weights quantized without act-order (desc_act)"
    )]
    InputOrder,
    /// A weight was finished before all of its rows were written.
    #[error("weight: row {row} of {n} was never written; write every row before finish()")]
    MissingRow {
        /// The first missing row.
        row: usize,
        /// Number of rows of the weight.
        n: usize,
    },
    /// The memory of a weight could not be reserved.
    #[error("out of memory: a weight needs {bytes} bytes more; use a smaller model or dtype")]
    OutOfMemory {
        /// Size of the failed reservation.
        bytes: usize,
    },
    /// candle itself failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}
