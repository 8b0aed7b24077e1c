//! Checked operands in device memory, and calls of launchers on candle's own stream.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use candle_core::cuda_backend::CudaDType;
pub(super) use candle_core::cuda_backend::cudarc::driver::sys::CUstream;
use candle_core::cuda_backend::cudarc::driver::{CudaStream, DevicePtr, DriverError};
use candle_core::{CudaDevice, CudaStorage, DType, Device, Storage, Tensor};
use candlepower_kernels::operands::Operand;
use candlepower_kernels::{Error, Result};
use float8::F8E4M3;
use half::{bf16, f16};

/// A C function that launches a kernel, with arguments and stream. It returns a CUDA error number.
pub(super) type Launcher<A> = unsafe extern "C" fn(args: *const A, stream: CUstream) -> i32;

/// Address of an operand in device memory.
pub(super) type Address = *mut c_void;

/// Required alignment of operands: the width of vector accesses.
const ALIGNMENT: u64 = 16;

/// Elements of 16 bits in one vector access.
pub(super) const VECTOR: usize = 8;

/// A kernel that is about to be launched: its name, its device, and its element type.
pub(super) struct Launch {
    kernel: &'static str,
    device: CudaDevice,
    dtype: DType,
}

impl Launch {
    /// A launch of `kernel` on the device of `first`, over its element type, bf16 or f16.
    pub(super) fn new(kernel: &'static str, name: &'static str, first: &Tensor) -> Result<Self> {
        let dtype = first.dtype();
        if !matches!(dtype, DType::BF16 | DType::F16) {
            return Err(Error::DType {
                kernel,
                operand: name,
                expected: "bf16 or f16",
                found: dtype,
            });
        }
        Self::with_dtype(kernel, name, first)
    }

    /// Same as [`Launch::new`], and accepts f32 too.
    pub(super) fn new_any_float(
        kernel: &'static str,
        name: &'static str,
        first: &Tensor,
    ) -> Result<Self> {
        match first.dtype() {
            DType::F32 => Self::with_dtype(kernel, name, first),
            _ => Self::new(kernel, name, first),
        }
    }

    /// A launch of a kernel that accepts any element type of `first`.
    pub(super) fn of_any(kernel: &'static str, name: &'static str, first: &Tensor) -> Result<Self> {
        Self::with_dtype(kernel, name, first)
    }

    fn with_dtype(kernel: &'static str, name: &'static str, first: &Tensor) -> Result<Self> {
        match first.device() {
            Device::Cuda(device) => {
                Ok(Self { kernel, device: device.clone(), dtype: first.dtype() })
            }
            other => Err(Error::NotOnGpu { kernel, operand: name, device: other.location() }),
        }
    }

    pub(super) fn kernel(&self) -> &'static str {
        self.kernel
    }

    /// The element type in C: a value of `Dtype` in common.cuh.
    pub(super) fn dtype_code(&self) -> i32 {
        match self.dtype {
            DType::BF16 => 0,
            DType::F16 => 1,
            DType::F32 => 2,
            other => unreachable!("{other:?} was refused when the launch was made"),
        }
    }

    /// An operand of the launch's own element type with exactly these dimensions.
    pub(super) fn elements(
        &self,
        operand: (&'static str, &Tensor),
        axes: &str,
        dims: &[usize],
    ) -> Result<Address> {
        self.address(operand, self.dtype, (axes, dims))
    }

    /// An operand in the cache, of the launch's own element type or FP8, with exactly these dimensions.
    pub(super) fn cached(
        &self,
        operand: (&'static str, &Tensor),
        axes: &str,
        dims: &[usize],
    ) -> Result<Address> {
        let dtype = if is_fp8(operand.1) { DType::F8E4M3 } else { self.dtype };
        self.address(operand, dtype, (axes, dims))
    }

    /// An operand of any element type, with exactly these dimensions.
    pub(super) fn own(
        &self,
        operand: (&'static str, &Tensor),
        axes: &str,
        dims: &[usize],
    ) -> Result<Address> {
        self.address(operand, operand.1.dtype(), (axes, dims))
    }

    /// An f32 operand with exactly these dimensions.
    pub(super) fn f32s(
        &self,
        operand: (&'static str, &Tensor),
        axes: &str,
        dims: &[usize],
    ) -> Result<*mut f32> {
        self.address(operand, DType::F32, (axes, dims)).map(Address::cast)
    }

    /// A u32 operand with exactly these dimensions.
    pub(super) fn u32s(
        &self,
        operand: (&'static str, &Tensor),
        axes: &str,
        dims: &[usize],
    ) -> Result<*mut u32> {
        self.address(operand, DType::U32, (axes, dims)).map(Address::cast)
    }

    fn address(
        &self,
        (name, tensor): (&'static str, &Tensor),
        dtype: DType,
        (axes, dims): (&str, &[usize]),
    ) -> Result<Address> {
        let (kernel, operand) = (self.kernel, name);
        Operand::new(kernel, name, tensor).expect_dims(axes, dims)?;
        let found = tensor.dtype();
        if found != dtype {
            return Err(Error::DType { kernel, operand, expected: dtype_name(dtype), found });
        }
        let (storage, layout) = tensor.storage_and_layout();
        let (first, _) =
            layout.contiguous_offsets().ok_or(Error::NotContiguous { kernel, operand })?;
        let Storage::Cuda(storage) = &*storage else {
            return Err(Error::NotOnGpu { kernel, operand, device: tensor.device().location() });
        };
        if !tensor.device().same_device(&Device::Cuda(self.device.clone())) {
            return Err(Error::NotOnGpu { kernel, operand, device: tensor.device().location() });
        }
        let stream = self.device.cuda_stream();
        let base = match dtype {
            DType::BF16 => base::<bf16>(storage, &stream)?,
            DType::F16 => base::<f16>(storage, &stream)?,
            DType::F32 => base::<f32>(storage, &stream)?,
            DType::F8E4M3 => base::<F8E4M3>(storage, &stream)?,
            DType::U32 => base::<u32>(storage, &stream)?,
            other => unreachable!("no kernel has operands of {other:?}"),
        };
        let address = base + (first * dtype.size_in_bytes()) as u64;
        // Kernels read f32 and u32 one value at a time.
        let is_vector = matches!(dtype, DType::BF16 | DType::F16 | DType::F8E4M3);
        if is_vector && !address.is_multiple_of(ALIGNMENT) {
            return Err(Error::Misaligned { kernel, operand });
        }
        Ok(address as Address)
    }

    /// The device's own stream, which lives as long as this launch. Its context becomes current on this thread.
    pub(super) fn stream(&self) -> Result<CUstream> {
        let stream = self.device.cuda_stream();
        // The CUDA runtime launches in the context that is current.
        stream.context().bind_to_thread().map_err(|error| driver(self.kernel, error))?;
        Ok(stream.cu_stream())
    }

    /// Launches the kernel. It accesses the memory that `args` points to later, in the stream's order.
    ///
    /// # Safety
    /// The addresses in `args` must come from this launch's checks, or from memory that outlives the stream's work, and `args` must be what
    /// `launcher` expects.
    pub(super) unsafe fn run<A>(&self, launcher: Launcher<A>, args: &A) -> Result<()> {
        let stream = self.stream()?;
        // SAFETY: the caller vouches for the arguments; the stream is the device's own and alive.
        let code = unsafe { launcher(args, stream) };
        if code == 0 {
            return Ok(());
        }
        Err(Error::Cuda { kernel: self.kernel, message: describe(code) })
    }
}

/// Whether a tensor of the cache is FP8.
pub(super) fn is_fp8(cache: &Tensor) -> bool {
    cache.dtype() == DType::F8E4M3
}

/// The error for a call that the driver refused.
pub(super) fn driver(kernel: &'static str, error: DriverError) -> Error {
    Error::Cuda { kernel, message: error.to_string() }
}

/// CUDA's text for an error number.
pub(super) fn describe(code: i32) -> String {
    // SAFETY: the function takes any number and returns a string that lives as long as the program.
    let text = unsafe { CStr::from_ptr(candlepower_cuda_error(code)) };
    format!("{} ({code})", text.to_string_lossy())
}

fn base<T: CudaDType>(storage: &CudaStorage, stream: &Arc<CudaStream>) -> Result<u64> {
    // There is only one stream per device, so the guard has no other stream to wait for.
    let (address, _guard) = storage.as_cuda_slice::<T>()?.device_ptr(stream);
    Ok(address)
}

fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::BF16 => "bf16, as the first operand",
        DType::F16 => "f16, as the first operand",
        other => other.as_str(),
    }
}

unsafe extern "C" {
    fn candlepower_cuda_error(code: i32) -> *const c_char;
}
