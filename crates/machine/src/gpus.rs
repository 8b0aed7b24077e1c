//! NVIDIA GPUs, as reported by the driver's own library, which is loaded at run time.

use std::fmt;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};
use serde::Serialize;

use crate::gib;

/// The GPUs of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gpus {
    /// The driver, if it answers.
    pub driver: Option<Driver>,
    /// Each GPU, in the driver's order. Empty if one of them cannot be read: indices of the others would be wrong.
    pub devices: Vec<Gpu>,
    /// Reason in words for which there are none.
    pub reason: Option<String>,
}

/// The NVIDIA driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Driver {
    /// Its version, for example `580.65.06`.
    pub version: String,
    /// The newest CUDA version that it runs, for example `13.0`.
    pub cuda_version: String,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// Its name, for example `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Identifier that is unique among all GPUs.
    pub uuid: String,
    /// Bytes of memory.
    pub memory_total_bytes: u64,
    /// Bytes of memory that are not in use.
    pub memory_free_bytes: u64,
    /// Generation of its instructions.
    pub compute_capability: ComputeCapability,
}

/// The generation of a GPU's instructions, for example 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub struct ComputeCapability {
    /// The part before the dot.
    pub major: u32,
    /// The part after the dot.
    pub minor: u32,
}

impl Gpus {
    /// Asks the driver.
    #[must_use]
    pub fn probe() -> Self {
        let nvml = match Nvml::init() {
            Ok(nvml) => nvml,
            Err(error) => return Self { reason: Some(reason(&error)), ..Self::default() },
        };
        let driver = Driver::read(&nvml);
        let found: Result<Vec<Gpu>, NvmlError> = nvml
            .device_count()
            .and_then(|count| (0..count).map(|i| Gpu::read(&nvml.device_by_index(i)?)).collect());
        match found {
            Ok(devices) => {
                let reason =
                    devices.is_empty().then(|| "the NVIDIA driver knows no GPU".to_owned());
                Self { driver: driver.ok(), devices, reason }
            }
            Err(error) => {
                Self { driver: driver.ok(), devices: Vec::new(), reason: Some(reason(&error)) }
            }
        }
    }
}

impl Driver {
    fn read(nvml: &Nvml) -> Result<Self, NvmlError> {
        let cuda = nvml.sys_cuda_driver_version()?;
        Ok(Self {
            version: nvml.sys_driver_version()?,
            cuda_version: format!(
                "{}.{}",
                cuda_driver_version_major(cuda),
                cuda_driver_version_minor(cuda)
            ),
        })
    }
}

impl Gpu {
    fn read(device: &Device<'_>) -> Result<Self, NvmlError> {
        let memory = device.memory_info()?;
        let capability = device.cuda_compute_capability()?;
        Ok(Self {
            name: device.name()?,
            uuid: device.uuid()?,
            memory_total_bytes: memory.total,
            memory_free_bytes: memory.free,
            compute_capability: ComputeCapability {
                // The driver's numbers are signed, but never negative.
                major: capability.major.unsigned_abs(),
                minor: capability.minor.unsigned_abs(),
            },
        })
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (compute capability {}) with {}, {} of it free",
            self.name,
            self.compute_capability,
            gib(self.memory_total_bytes),
            gib(self.memory_free_bytes)
        )
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl From<ComputeCapability> for String {
    fn from(capability: ComputeCapability) -> Self {
        capability.to_string()
    }
}

/// Reason in words for which the GPUs are not visible.
fn reason(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => {
            "no NVIDIA driver: its library libnvidia-ml.so.1 is not here (in a container: start it with its GPUs)"
                .into()
        }
        NvmlError::DriverNotLoaded => {
            "the NVIDIA driver is installed and not loaded: load it, or restart the machine".into()
        }
        NvmlError::LibRmVersionMismatch => {
            "the NVIDIA driver and its library differ in version: restart the machine".into()
        }
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => {
            "the NVIDIA driver is too old: version 510 or later is needed".into()
        }
        NvmlError::NoPermission => {
            "no permission to use the GPUs: this user may not open /dev/nvidia*".into()
        }
        other => format!("the NVIDIA driver says: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_gpus_or_a_reason() {
        let gpus = Gpus::probe();
        assert!(!gpus.devices.is_empty() || gpus.reason.is_some());
    }

    #[test]
    fn reasons_say_what_to_do() {
        assert!(reason(&NvmlError::DriverNotLoaded).contains("load it"));
        assert!(reason(&NvmlError::NoPermission).contains("no permission"));
        assert!(reason(&NvmlError::FunctionNotFound).contains("too old"));
        assert!(reason(&NvmlError::GpuLost).starts_with("the NVIDIA driver says: "));
    }

    #[test]
    fn a_capability_is_written_with_a_dot() {
        let capability = ComputeCapability { major: 9, minor: 0 };
        assert_eq!(serde_json::to_value(capability).unwrap(), "9.0");
    }
}
