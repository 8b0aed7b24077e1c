//! The GPU as the engine uses it: one stream, no bookkeeping of events, memory that stays with the process.

use candle_core::Device;
use candle_core::cuda_backend::cudarc::driver::{DriverError, result, sys};

use super::launch::driver;
use crate::Result;

/// Opens GPU `ordinal`.
///
/// # Errors
/// It cannot be used, or a library that it is used through is not there.
pub fn open(ordinal: usize) -> Result<Device> {
    // A stream of its own: the default one differs from thread to thread.
    let device = Device::new_cuda_with_stream(ordinal)?;
    let cuda = device.as_cuda_device()?;
    // SAFETY: all work on this device goes through its one stream, so no tensor has to wait for another stream.
    unsafe { cuda.disable_event_tracking() };
    let context = cuda.cuda_stream().context().clone();
    keep_freed_memory(context.cu_device()).map_err(|error| driver("open", error))?;
    Ok(device)
}

/// Free and total bytes of the device's memory.
///
/// # Errors
/// The device is no GPU, or CUDA refused.
pub fn memory(device: &Device) -> Result<(u64, u64)> {
    let context = device.as_cuda_device()?.cuda_stream().context().clone();
    let (free, total) = context.mem_get_info().map_err(|error| driver("memory", error))?;
    Ok((free as u64, total as u64))
}

/// Lets the pool keep what is freed: by default each wait gives it back to the driver, to be asked for again.
fn keep_freed_memory(device: sys::CUdevice) -> std::result::Result<(), DriverError> {
    let mut most = u64::MAX;
    // SAFETY: the device is open, its default pool lives as long as it, and the attribute is a u64.
    unsafe {
        let pool = result::device::get_default_mem_pool(device)?;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        result::mem_pool::set_attribute(pool, attribute, (&raw mut most).cast())
    }
}
