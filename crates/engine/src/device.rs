//! The device of a model: the CPU, or a GPU where this build can use one and the machine has one.

use candle_core::Device;

use crate::error::{Error, NoGpu, Result};

/// The device that the settings ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU where one can be used, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU, or an error.
    Cuda,
}

/// The device that was chosen.
#[derive(Clone, Debug)]
pub struct ChosenDevice {
    /// The device.
    pub device: Device,
    /// The reason, in one line, why a build with CUDA that had the choice did not take a GPU.
    pub note: Option<String>,
}

/// Finds the device to compute on.
///
/// # Errors
/// A GPU was asked for, and there is none that this build can use.
pub fn choose_device(choice: DeviceChoice) -> Result<ChosenDevice, NoGpu> {
    match choice {
        DeviceChoice::Auto => Ok(gpu_or_cpu(open_gpu(0))),
        DeviceChoice::Cpu => Ok(ChosenDevice { device: Device::Cpu, note: None }),
        DeviceChoice::Cuda => Ok(ChosenDevice { device: open_gpu(0)?, note: None }),
    }
}

/// Free bytes of a GPU's memory, or of host memory; `None` where they are unknown.
pub fn free_bytes(device: &Device) -> Option<u64> {
    #[cfg(feature = "cuda")]
    if device.is_cuda() {
        return candlepower_gpu::cuda::memory(device).ok().map(|(free, _)| free);
    }
    debug_assert!(device.is_cpu());
    candlepower_machine::available_bytes()
}

/// The GPU, or the CPU. A build with CUDA says why it takes no GPU; a build without has nothing to explain.
fn gpu_or_cpu(gpu: Result<Device, NoGpu>) -> ChosenDevice {
    match gpu {
        Ok(device) => ChosenDevice { device, note: None },
        Err(NoGpu::NotBuilt) => ChosenDevice { device: Device::Cpu, note: None },
        Err(reason) => {
            ChosenDevice { device: Device::Cpu, note: Some(format!("no GPU is used: {reason}")) }
        }
    }
}

/// Fails where there are fewer GPUs than ranks, because each rank has a GPU of its own. On the CPU any number of ranks fits.
///
/// # Errors
/// [`Error::TooFewGpus`]
pub fn check_gpus(device: &Device, ranks: usize) -> Result<()> {
    match device.is_cuda() {
        true => enough(ranks, num_gpus()),
        false => Ok(()),
    }
}

fn enough(ranks: usize, gpus: usize) -> Result<()> {
    if ranks > gpus { Err(Error::TooFewGpus { ranks, gpus }) } else { Ok(()) }
}

#[cfg(not(feature = "cuda"))]
pub(crate) fn open_gpu(_ordinal: usize) -> Result<Device, NoGpu> {
    Err(NoGpu::NotBuilt)
}

#[cfg(not(feature = "cuda"))]
fn num_gpus() -> usize {
    0
}

#[cfg(feature = "cuda")]
pub(crate) use gpu::{num_gpus, open_gpu};

/// Checks of a GPU before a model is loaded to it.
#[cfg(any(feature = "cuda", test))]
mod gpu {
    use candlepower_machine::Gpus;

    use super::NoGpu;

    /// GPUs that the process may see.
    #[cfg(feature = "cuda")]
    pub(crate) fn num_gpus() -> usize {
        use candle_core::cuda_backend::cudarc::driver::result::device::get_count;

        get_count().ok().and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
    }

    /// Opens one of the GPUs that the process may see, from 0 on.
    #[cfg(feature = "cuda")]
    pub(crate) fn open_gpu(ordinal: usize) -> Result<super::Device, NoGpu> {
        use candle_core::cuda_backend::cudarc::driver::{result, sys};

        let gpus = Gpus::probe();
        if let Err(error) = result::init() {
            return Err(no_driver(&gpus, &error.to_string()));
        }
        check_driver(&gpus, (sys::CUDA_VERSION / 1000, sys::CUDA_VERSION % 1000 / 10))?;
        // candle's errors may bring a backtrace along.
        let unusable = |error: &dyn std::fmt::Display| {
            NoGpu::Unusable(error.to_string().lines().next().unwrap_or_default().to_owned())
        };
        let device = candlepower_gpu::cuda::open(ordinal).map_err(|error| unusable(&error))?;
        let cuda = device.as_cuda_device().map_err(|error| unusable(&error))?;
        let context = cuda.cuda_stream().context().clone();
        let found = context.compute_capability().map_err(|error| unusable(&error))?;
        check_capability(
            candlepower_gpu::cuda::compiled_for(),
            (found.0.unsigned_abs(), found.1.unsigned_abs()),
        )?;
        Ok(device)
    }

    /// The management library knows best why there is no GPU. Where it sees one, only CUDA's own message is left.
    pub(super) fn no_driver(gpus: &Gpus, error: &str) -> NoGpu {
        let reason = gpus.reason.clone();
        NoGpu::NoDriver(reason.unwrap_or_else(|| format!("CUDA does not start: {error}")))
    }

    /// The driver must not be older than the toolkit, because the toolkit decides the newest machine code of the kernels.
    pub(super) fn check_driver(gpus: &Gpus, needed: (u32, u32)) -> Result<(), NoGpu> {
        let Some(driver) = &gpus.driver else { return Ok(()) };
        match version(&driver.cuda_version) {
            Some(found) if found < needed => {
                Err(NoGpu::DriverTooOld { driver: driver.version.clone(), found, needed })
            }
            _ => Ok(()),
        }
    }

    /// `13.0` gives 13 and 0.
    fn version(text: &str) -> Option<(u32, u32)> {
        let (major, minor) = text.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }

    /// Machine code runs on GPUs of the same major number from its own minor number on.
    pub(super) fn check_capability(built: (u32, u32), found: (u32, u32)) -> Result<(), NoGpu> {
        match built.0 == found.0 && built.1 <= found.1 {
            true => Ok(()),
            false => Err(NoGpu::OtherArchitecture { built, found }),
        }
    }
}

#[cfg(test)]
mod tests {
    use candlepower_machine::{Driver, Gpus};

    use super::*;

    fn driver(cuda_version: &str) -> Gpus {
        let driver = Driver { version: "570.86".into(), cuda_version: cuda_version.into() };
        Gpus { driver: Some(driver), ..Gpus::default() }
    }

    #[test]
    fn the_cpu_is_taken_with_a_reason_where_a_cuda_build_finds_no_gpu() {
        let chosen = gpu_or_cpu(Err(NoGpu::NoDriver("no NVIDIA driver".into())));
        assert!(chosen.device.is_cpu());
        assert_eq!(chosen.note.unwrap(), "no GPU is used: no NVIDIA driver");
        assert_eq!(gpu_or_cpu(Err(NoGpu::NotBuilt)).note, None);
        assert!(choose_device(DeviceChoice::Cpu).unwrap().note.is_none());
    }

    #[test]
    fn each_rank_needs_a_gpu() {
        assert!(enough(2, 2).is_ok());
        assert_eq!(
            enough(4, 2).unwrap_err().to_string(),
            "tensor_parallel_size 4 takes as many GPUs, and this process sees 2; lower it, look at CUDA_VISIBLE_DEVICES, or take --device cpu"
        );
        assert!(check_gpus(&Device::Cpu, 64).is_ok());
    }

    #[test]
    fn a_driver_older_than_the_build_is_refused_with_both_versions() {
        let error = gpu::check_driver(&driver("12.8"), (13, 0)).unwrap_err().to_string();
        assert!(error.contains("570.86") && error.contains("12.8"), "{error}");
        assert!(error.contains("13.0"), "{error}");
        for newer in ["13.0", "13.2", "14.0"] {
            assert_eq!(gpu::check_driver(&driver(newer), (13, 0)), Ok(()), "{newer}");
        }
        assert_eq!(gpu::check_driver(&Gpus::default(), (13, 0)), Ok(()));
    }

    #[test]
    fn where_cuda_does_not_start_the_best_known_reason_is_given() {
        let known = Gpus { reason: Some("no NVIDIA driver".into()), ..Gpus::default() };
        assert_eq!(gpu::no_driver(&known, "error"), NoGpu::NoDriver("no NVIDIA driver".into()));
        let unknown = gpu::no_driver(&Gpus::default(), "CUDA_ERROR_SYSTEM_NOT_READY");
        assert!(unknown.to_string().contains("CUDA_ERROR_SYSTEM_NOT_READY"));
    }

    #[test]
    fn kernels_run_on_gpus_of_their_own_generation() {
        for (built, found) in
            [((8, 0), (8, 0)), ((8, 0), (8, 9)), ((8, 9), (8, 9)), ((9, 0), (9, 0))]
        {
            assert_eq!(gpu::check_capability(built, found), Ok(()), "{built:?} on {found:?}");
        }
        for (built, found) in
            [((8, 9), (8, 6)), ((9, 0), (8, 9)), ((8, 0), (9, 0)), ((9, 0), (10, 0))]
        {
            assert!(gpu::check_capability(built, found).is_err(), "{built:?} on {found:?}");
        }
    }
}
