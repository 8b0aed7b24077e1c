//! Transfers between host and device: one copy in each direction per step.

use candle_core::{DType, Device, Tensor};
use candlepower_kernels::{Error, Result};

use super::reference::Reference;

/// A u32 table on the device, whose content the host replaces in each step.
#[derive(Debug)]
pub struct Staging {
    /// u32 `[capacity]`.
    table: Tensor,
    #[cfg(feature = "cuda")]
    pinned: Option<crate::cuda::PinnedUploads>,
}

impl Staging {
    /// Reserves a table of `capacity` values.
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

    /// Capacity of the table, in values.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.table.elem_count()
    }

    /// Replaces the table's first values. On a GPU the copy is queued after all earlier work.
    ///
    /// # Errors
    /// There are more values than the table's capacity, or CUDA refused.
    pub fn upload(&mut self, values: &[u32]) -> Result<()> {
        let capacity = self.capacity();
        if values.len() > capacity {
            let (index, value, bound) = ("values of a step", values.len(), capacity + 1);
            return Err(Error::OutOfRange { kernel: "upload", index, value, bound });
        }
        if values.is_empty() {
            return Ok(());
        }
        #[cfg(feature = "cuda")]
        if let Some(pinned) = &mut self.pinned {
            return pinned.upload(values, &self.table);
        }
        let part = self.table.narrow(0, 0, values.len())?;
        let count = [values.len()];
        Reference::integers("upload").write_u32s(("table", &part), "[count]", &count, values)
    }

    /// A view of the values from `first` on, in the shape `dims`. Its address is the same each time.
    ///
    /// # Errors
    /// The table is too small.
    pub fn view(&self, first: usize, dims: &[usize]) -> Result<Tensor> {
        Ok(self.table.narrow(0, first, dims.iter().product())?.reshape(dims)?)
    }
}

/// A copy of a step's results to the host: queued after the step, and waited for later.
#[derive(Debug)]
pub struct Readback {
    #[cfg(feature = "cuda")]
    pinned: Option<crate::cuda::PinnedReadback>,
    capacity: usize,
    /// The copied values on the CPU, where no wait is necessary.
    read: Option<Vec<u32>>,
}

impl Readback {
    /// Reserves memory for `capacity` values.
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

    /// Capacity in values.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Queues the copy of a u32 tensor. Work that is queued later may overwrite the tensor.
    ///
    /// # Errors
    /// The tensor has another dtype or layout, is larger than the capacity, or CUDA refused.
    pub fn start(&mut self, tensor: &Tensor) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(pinned) = &mut self.pinned {
            return pinned.start(tensor);
        }
        let reference = Reference::integers("readback");
        self.read = Some(reference.u32s(("tensor", tensor), "any shape", tensor.dims())?);
        Ok(())
    }

    /// Waits for the copy and returns its values; none if no copy was started.
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
