//! CUDA graphs: launches that are recorded once and replayed.

use candle_core::Device;
use candlepower_kernels::Result;

/// The launches of a function, recorded as a CUDA graph. A replay reads the tensors' current content.
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

    /// Records the launches of the function `launch`, without running them. `launch` must not allocate memory or wait.
    ///
    /// # Errors
    /// An error of `launch`, or CUDA refused; [`candlepower_kernels::Error::UnsupportedDevice`] on devices without
    /// graphs.
    pub fn capture(device: &Device, launch: impl FnOnce() -> Result<()>) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = device {
            return Ok(Self { cuda: crate::cuda::Graph::capture(device, launch)? });
        }
        drop(launch);
        let (kernel, operand, device) = ("graph", "device", device.location());
        Err(candlepower_kernels::Error::UnsupportedDevice { kernel, operand, device })
    }

    /// Replays the launches.
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
