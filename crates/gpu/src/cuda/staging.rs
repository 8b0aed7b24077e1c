//! Copies between pinned memory and the device that nobody waits for before their time.

use candle_core::cuda_backend::cudarc::driver::result::{memcpy_dtoh_async, memcpy_htod_async};
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, PinnedHostSlice};
use candle_core::{CudaDevice, Tensor};

use super::launch::{Launch, driver};
use candlepower_kernels::Result;

/// Flags of pinned memory that the host reads as well: not write-combined, which is slow to read.
const READ_BACK: u32 = 0;

/// Steps whose numbers may be on their way at once: one runs while the next is prepared.
const IN_FLIGHT: usize = 2;

/// Pinned memory for uploads, used in turns.
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

    pub(crate) fn upload(&mut self, numbers: &[u32], table: &Tensor) -> Result<()> {
        if numbers.is_empty() {
            return Ok(());
        }
        let launch = Launch::of_any("upload", "table", table)?;
        let address = launch.u32s(("table", table), "[capacity]", table.dims())?;
        let (host, copied) = &mut self.turns[self.next];
        self.next = (self.next + 1) % IN_FLIGHT;
        let error = |error| driver("upload", error);
        if let Some(event) = copied.take() {
            // sync: the step before the previous one has long read its numbers.
            event.synchronize().map_err(error)?;
        }
        let host = &mut host.as_mut_slice().map_err(error)?[..numbers.len()];
        host.copy_from_slice(numbers);
        let stream = self.device.cuda_stream();
        stream.context().bind_to_thread().map_err(error)?;
        // SAFETY: both sides hold so many numbers: the caller compared them with the table; the pinned side is not
        // written before the event recorded below has passed.
        unsafe { memcpy_htod_async(address as u64, host, stream.cu_stream()) }.map_err(error)?;
        *copied = Some(stream.record_event(None).map_err(error)?);
        Ok(())
    }
}

impl Drop for PinnedUploads {
    fn drop(&mut self) {
        for event in self.turns.iter_mut().filter_map(|turn| turn.1.take()) {
            // Nothing can be done about an error here, and pinned memory must not go before its copies.
            let _ = event.synchronize();
        }
    }
}

/// Pinned memory for what comes back.
#[derive(Debug)]
pub(crate) struct PinnedReadback {
    device: CudaDevice,
    host: PinnedHostSlice<u32>,
    /// How many numbers are on their way, and what lies behind their copy.
    started: Option<(usize, CudaEvent)>,
}

impl PinnedReadback {
    pub(crate) fn new(capacity: usize, device: &CudaDevice) -> Result<Self> {
        Ok(Self { device: device.clone(), host: pinned(capacity, device)?, started: None })
    }

    pub(crate) fn start(&mut self, tensor: &Tensor) -> Result<()> {
        self.started = None;
        let count = tensor.elem_count();
        // CUDA does not say what a copy of no bytes does.
        if count == 0 {
            return Ok(());
        }
        let error = |error| driver("readback", error);
        let bound = self.host.len() + 1;
        if count >= bound {
            let (kernel, index, value) = ("readback", "numbers", count);
            return Err(candlepower_kernels::Error::OutOfRange { kernel, index, value, bound });
        }
        let launch = Launch::of_any("readback", "tensor", tensor)?;
        let address = launch.u32s(("tensor", tensor), "any shape", tensor.dims())?;
        let stream = self.device.cuda_stream();
        stream.context().bind_to_thread().map_err(error)?;
        let host = &mut self.host.as_mut_slice().map_err(error)?[..count];
        // SAFETY: both sides hold `count` numbers, and the pinned side is neither read nor freed before the event
        // recorded below has passed.
        unsafe { memcpy_dtoh_async(host, address as u64, stream.cu_stream()) }.map_err(error)?;
        self.started = Some((count, stream.record_event(None).map_err(error)?));
        Ok(())
    }

    pub(crate) fn finish(&mut self) -> Result<Vec<u32>> {
        let error = |error| driver("readback", error);
        let Some((count, event)) = self.started.take() else { return Ok(Vec::new()) };
        // sync: the one wait of a step, for the tokens that it drew.
        event.synchronize().map_err(error)?;
        Ok(self.host.as_slice().map_err(error)?[..count].to_vec())
    }
}

impl Drop for PinnedReadback {
    fn drop(&mut self) {
        if let Some((_, event)) = self.started.take() {
            // As above.
            let _ = event.synchronize();
        }
    }
}

fn pinned(capacity: usize, device: &CudaDevice) -> Result<PinnedHostSlice<u32>> {
    let context = device.cuda_stream().context().clone();
    // SAFETY: pinned memory begins undefined, and any bits are a valid number; nothing is read before it is written.
    unsafe { context.alloc_pinned_with_flags(capacity.max(1), READ_BACK) }
        .map_err(|error| driver("pinned memory", error))
}
