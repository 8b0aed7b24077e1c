//! Numbers on their way between host and device: one copy each way in a step.

use candle_core::{DType, Device, Tensor};
use candlepower_kernels::{Error, Result};

use super::reference::Reference;

/// A table of u32 on the device that the host replaces from step to step.
#[derive(Debug)]
pub struct Staging {
    /// u32 `[capacity]`.
    table: Tensor,
    #[cfg(feature = "cuda")]
    pinned: Option<crate::cuda::PinnedUploads>,
}

impl Staging {
    /// A table of `capacity` numbers.
    ///
    /// # Errors
    /// Memory does not suffice.
    pub fn new(capacity: usize, device: &Device) -> Result<Self> {
        Ok(Self {
            table: Tensor::zeros(capacity, DType::U32, device)?,
            #[cfg(feature = "cuda")]
            pinned: match device {
                Device::Cuda(device) => Some(crate::cuda::PinnedUploads::new(capacity, device)?),
                _ => None,
            },
        })
    }

    /// Numbers that the table holds.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.table.elem_count()
    }

    /// Replaces the table's first numbers. On a GPU the copy is queued, behind what was queued before.
    ///
    /// # Errors
    /// There are more numbers than the table holds, or CUDA refused.
    pub fn upload(&mut self, numbers: &[u32]) -> Result<()> {
        let capacity = self.capacity();
        if numbers.len() > capacity {
            let (index, value, bound) = ("numbers of a step", numbers.len(), capacity + 1);
            return Err(Error::OutOfRange { kernel: "upload", index, value, bound });
        }
        if numbers.is_empty() {
            return Ok(());
        }
        #[cfg(feature = "cuda")]
        if let Some(pinned) = &mut self.pinned {
            return pinned.upload(numbers, &self.table);
        }
        let part = self.table.narrow(0, 0, numbers.len())?;
        let count = [numbers.len()];
        Reference::integers("upload").write_u32s(("table", &part), "[count]", &count, numbers)
    }

    /// The numbers from `first` on, in the shape `dims`: a view, at the same address each time.
    ///
    /// # Errors
    /// The table does not hold so many.
    pub fn view(&self, first: usize, dims: &[usize]) -> Result<Tensor> {
        Ok(self.table.narrow(0, first, dims.iter().product())?.reshape(dims)?)
    }
}

/// Numbers of a step on their way to the host: queued behind the step, waited for later.
#[derive(Debug)]
pub struct Readback {
    #[cfg(feature = "cuda")]
    pinned: Option<crate::cuda::PinnedReadback>,
    capacity: usize,
    /// What was read on the CPU, where nothing has to be waited for.
    read: Option<Vec<u32>>,
}

impl Readback {
    /// Room for `capacity` numbers.
    ///
    /// # Errors
    /// Memory does not suffice.
    #[cfg_attr(not(feature = "cuda"), allow(unused_variables))]
    pub fn new(capacity: usize, device: &Device) -> Result<Self> {
        Ok(Self {
            capacity,
            read: None,
            #[cfg(feature = "cuda")]
            pinned: match device {
                Device::Cuda(device) => Some(crate::cuda::PinnedReadback::new(capacity, device)?),
                _ => None,
            },
        })
    }

    /// Numbers that there is room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Queues the copy of a u32 tensor, which may be overwritten by what is queued later.
    ///
    /// # Errors
    /// The tensor has another dtype or layout, is larger than the room, or CUDA refused.
    pub fn start(&mut self, tensor: &Tensor) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(pinned) = &mut self.pinned {
            return pinned.start(tensor);
        }
        let reference = Reference::integers("readback");
        self.read = Some(reference.u32s(("tensor", tensor), "any shape", tensor.dims())?);
        Ok(())
    }

    /// Waits for the copy and returns its numbers; none if nothing was started.
    ///
    /// # Errors
    /// A kernel of the step failed.
    pub fn finish(&mut self) -> Result<Vec<u32>> {
        #[cfg(feature = "cuda")]
        if let Some(pinned) = &mut self.pinned {
            return pinned.finish();
        }
        Ok(self.read.take().unwrap_or_default())
    }
}
