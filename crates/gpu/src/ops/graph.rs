//! Launches that are recorded once and started as one.

use candle_core::Device;
use candlepower_kernels::Result;

/// What a function launched, to be started again with whatever its tensors hold then.
#[derive(Debug)]
pub struct Graph {
    #[cfg(feature = "cuda")]
    cuda: crate::cuda::Graph,
}

impl Graph {
    /// Whether launches on `device` can be recorded.
    #[must_use]
    pub fn supported(device: &Device) -> bool {
        cfg!(feature = "cuda") && device.is_cuda()
    }

    /// Records what `launch` starts, which must allocate nothing and wait for nothing; nothing runs yet.
    ///
    /// # Errors
    /// What `launch` says, or CUDA refused; [`candlepower_kernels::Error::UnsupportedDevice`] where there are no graphs.
    pub fn capture(device: &Device, launch: impl FnOnce() -> Result<()>) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = device {
            return Ok(Self { cuda: crate::cuda::Graph::capture(device, launch)? });
        }
        drop(launch);
        let (kernel, operand, device) = ("graph", "device", device.location());
        Err(candlepower_kernels::Error::UnsupportedDevice { kernel, operand, device })
    }

    /// Starts the launches.
    ///
    /// # Errors
    /// CUDA refused.
    pub fn launch(&self) -> Result<()> {
        #[cfg(feature = "cuda")]
        return self.cuda.launch();
        #[cfg(not(feature = "cuda"))]
        unreachable!("without CUDA no graph can be captured")
    }
}
