//! The GPU in the form that the engine needs: one stream, no event tracking, and a memory pool that keeps freed memory.

use candle_core::Device;
use candle_core::cuda_backend::cudarc::driver::{DriverError, result, sys};

use super::launch::driver;
use candlepower_kernels::Result;

/// Opens GPU `ordinal`.
///
/// # Errors
/// The GPU cannot be used, or a library for it is missing.
pub fn open(ordinal: usize) -> Result<Device> {
    // A separate stream, because the default stream is a different one for each thread.
    let device = Device::new_cuda_with_stream(ordinal)?;
    let cuda = device.as_cuda_device()?;
    // SAFETY: all work on this device goes through its one stream, so no tensor has to wait for another stream.
    unsafe { cuda.disable_event_tracking() };
    let context = cuda.cuda_stream().context().clone();
    keep_freed_memory(context.cu_device()).map_err(|error| driver("open", error))?;
    Ok(device)
}

/// The compute capability that the kernels are compiled for, major and minor.
pub fn compiled_for() -> (u32, u32) {
    let capability = env!("CANDLEPOWER_COMPUTE_CAPABILITY").parse().unwrap_or(0);
    (capability / 10, capability % 10)
}

/// Free and total bytes of the device's memory. Freed memory that the pool still keeps is returned to the driver first.
///
/// # Errors
/// The device is no GPU, or CUDA refused.
pub fn memory(device: &Device) -> Result<(u64, u64)> {
    let stream = device.as_cuda_device()?.cuda_stream();
    // Frees are queued on the stream, too. Only those that have run can be returned.
    stream.synchronize().map_err(|error| driver("memory", error))?;
    // SAFETY: the device is open.
    unsafe { result::mem_pool::trim_to(pool_of(device)?, 0) }
        .map_err(|error| driver("memory", error))?;
    let context = stream.context().clone();
    let (free, total) = context.mem_get_info().map_err(|error| driver("memory", error))?;
    Ok((free as u64, total as u64))
}

/// Bytes of a device's memory pool that tensors use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// Bytes in use now.
    pub now: u64,
    /// Largest number of bytes in use since the pool exists or [`watch_pool`] was called.
    pub most: u64,
}

/// Memory that tensors use. The pool counts every allocation, even one that is freed at once.
///
/// # Errors
/// The device is no GPU, or CUDA refused.
pub fn pool_use(device: &Device) -> Result<PoolUse> {
    let pool = pool_of(device)?;
    let read = |attribute| {
        let mut bytes = 0u64;
        // SAFETY: the pool lives as long as its device, which is open, and these attributes are a u64.
        unsafe { result::mem_pool::get_attribute(pool, attribute, (&raw mut bytes).cast()) }
            .map_err(|error| driver("pool_use", error))?;
        Ok::<_, candlepower_kernels::Error>(bytes)
    };
    Ok(PoolUse {
        now: read(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
        most: read(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
    })
}

/// Restarts [`PoolUse::most`] at the bytes that are in use now.
///
/// # Errors
/// Same as [`pool_use`].
pub fn watch_pool(device: &Device) -> Result<()> {
    let mut zero = 0u64;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    // SAFETY: as in `pool_use`; zero is the only value that this attribute can be set to.
    unsafe { result::mem_pool::set_attribute(pool_of(device)?, attribute, (&raw mut zero).cast()) }
        .map_err(|error| driver("watch_pool", error))
}

/// The memory pool of a device's tensors.
fn pool_of(device: &Device) -> Result<sys::CUmemoryPool> {
    let context = device.as_cuda_device()?.cuda_stream().context().clone();
    // SAFETY: the device is open.
    unsafe { result::device::get_default_mem_pool(context.cu_device()) }
        .map_err(|error| driver("pool", error))
}

/// Lets the pool keep freed memory. By default each synchronization returns it to the driver, and the next allocation
/// has to request it again.
fn keep_freed_memory(device: sys::CUdevice) -> std::result::Result<(), DriverError> {
    let mut most = u64::MAX;
    // SAFETY: the device is open, its default pool lives as long as it, and the attribute is a u64.
    unsafe {
        let pool = result::device::get_default_mem_pool(device)?;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        result::mem_pool::set_attribute(pool, attribute, (&raw mut most).cast())
    }
}
