//! Asynchronous copies between pinned host memory and the device.

use candle_core::cuda_backend::cudarc::driver::result::{memcpy_dtoh_async, memcpy_htod_async};
use candle_core::cuda_backend::cudarc::driver::{
    CudaEvent, CudaStream, DeviceRepr, DriverError, PinnedHostSlice,
};
use candle_core::{CudaDevice, Tensor};

use super::launch::{Launch, driver};
use candlepower_kernels::Result;

/// Flags of pinned memory that the host reads too: not write-combined, because that is slow to read.
const READ_BACK: u32 = 0;

/// Number of steps whose tables may be in flight: one step runs while the next is prepared.
const IN_FLIGHT: usize = 2;

/// Pinned memory for uploads: one buffer for each step in flight, used in turn.
#[derive(Debug)]
pub(crate) struct PinnedUploads {
    device: CudaDevice,
    turns: [(PinnedHostSlice<u32>, Option<CudaEvent>); IN_FLIGHT],
    next: usize,
}

impl PinnedUploads {
    pub(crate) fn new(capacity: usize, device: &CudaDevice) -> Result<Self> {
        let turn = || Ok::<_, candlepower_kernels::Error>((pinned(capacity, device)?, None));
        Ok(Self { device: device.clone(), turns: [turn()?, turn()?], next: 0 })
    }

    pub(crate) fn upload(&mut self, values: &[u32], table: &Tensor) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        let launch = Launch::of_any("upload", "table", table)?;
        let address = launch.u32s(("table", table), "[capacity]", table.dims())?;
        let (host, copied) = &mut self.turns[self.next];
        self.next = (self.next + 1) % IN_FLIGHT;
        let error = |error| driver("upload", error);
        if let Some(event) = copied.take() {
            // sync: the copy belongs to the step before the previous one, so it has ended long ago.
            event.synchronize().map_err(error)?;
        }
        let host = &mut host.as_mut_slice().map_err(error)?[..values.len()];
        host.copy_from_slice(values);
        let stream = self.device.cuda_stream();
        stream.context().bind_to_thread().map_err(error)?;
        // SAFETY: both sides hold `values.len()` elements, since the caller compared it with the table; the pinned
        // side is not written before the event recorded below has passed.
        unsafe { memcpy_htod_async(address as u64, host, stream.cu_stream()) }.map_err(error)?;
        *copied = Some(after_copies(&stream).map_err(error)?);
        Ok(())
    }
}

impl Drop for PinnedUploads {
    fn drop(&mut self) {
        for event in self.turns.iter_mut().filter_map(|turn| turn.1.take()) {
            // Errors cannot be handled here. Pinned memory must not be freed before its copies have ended.
            let _ = event.synchronize();
        }
    }
}

/// Pinned memory for results.
#[derive(Debug)]
pub(crate) struct PinnedReadback {
    device: CudaDevice,
    host: PinnedHostSlice<u32>,
    /// Number of values that are being copied, and the event after their copy.
    started: Option<(usize, CudaEvent)>,
}

impl PinnedReadback {
    pub(crate) fn new(capacity: usize, device: &CudaDevice) -> Result<Self> {
        Ok(Self { device: device.clone(), host: pinned(capacity, device)?, started: None })
    }

    pub(crate) fn start(&mut self, tensor: &Tensor) -> Result<()> {
        // A readback that nobody finished is overwritten by this one, after it in the stream's order.
        self.started = None;
        let count = tensor.elem_count();
        // CUDA does not define a copy of no bytes.
        if count == 0 {
            return Ok(());
        }
        let error = |error| driver("readback", error);
        let bound = self.host.len() + 1;
        if count >= bound {
            let (kernel, index, value) = ("readback", "values", count);
            return Err(candlepower_kernels::Error::OutOfRange { kernel, index, value, bound });
        }
        let launch = Launch::of_any("readback", "tensor", tensor)?;
        let address = launch.u32s(("tensor", tensor), "any shape", tensor.dims())?;
        let stream = self.device.cuda_stream();
        stream.context().bind_to_thread().map_err(error)?;
        let host = &mut self.host.as_mut_slice().map_err(error)?[..count];
        // SAFETY: both sides hold `count` elements, and the pinned side is neither read nor freed before the event
        // recorded below has passed.
        unsafe { memcpy_dtoh_async(host, address as u64, stream.cu_stream()) }.map_err(error)?;
        self.started = Some((count, after_copies(&stream).map_err(error)?));
        Ok(())
    }

    pub(crate) fn finish(&mut self) -> Result<Vec<u32>> {
        let error = |error| driver("readback", error);
        let Some((count, event)) = self.started.take() else { return Ok(Vec::new()) };
        // sync: the only wait of a step, for the tokens that it sampled.
        event.synchronize().map_err(error)?;
        Ok(self.host.as_slice().map_err(error)?[..count].to_vec())
    }
}

impl Drop for PinnedReadback {
    fn drop(&mut self) {
        if let Some((_, event)) = self.started.take() {
            // Errors cannot be handled here, as in the drop of `PinnedUploads`.
            let _ = event.synchronize();
        }
    }
}

/// The event after all copies that are queued on the stream. Until it has passed, the pinned memory of a copy must not
/// be written or freed. If there is no event to wait for later, the copies end before the error is returned.
pub(crate) fn after_copies(stream: &CudaStream) -> std::result::Result<CudaEvent, DriverError> {
    stream.record_event(None).inspect_err(|_| {
        // sync: only after an error of CUDA, which is returned in any case.
        let _ = stream.synchronize();
    })
}

/// Pinned memory for integers, whose first content is undefined.
pub(super) fn pinned<T: DeviceRepr>(
    capacity: usize,
    device: &CudaDevice,
) -> Result<PinnedHostSlice<T>> {
    let context = device.cuda_stream().context().clone();
    // SAFETY: pinned memory begins undefined, and any bits are valid integers; nothing is read before it is written.
    unsafe { context.alloc_pinned_with_flags(capacity.max(1), READ_BACK) }
        .map_err(|error| driver("pinned memory", error))
}
