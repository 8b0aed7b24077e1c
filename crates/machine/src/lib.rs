//! The machine: CPU, memory, GPUs, container engines, Kubernetes, and the two output streams of a program.
//!
//! [`Machine::probe`] runs once, at start-up. It reads a few files, asks the NVIDIA driver if there is one, and tries
//! whether a container engine answers on its local socket. It sends nothing over the network and changes nothing.

mod console;
mod containers;
mod cpu;
mod gpus;
mod kubernetes;
mod memory;

use serde::Serialize;

pub use console::{output_failed, print, print_error};
pub use containers::{ContainerEngine, EngineState};
pub use cpu::{Cpu, CpuFeature, compute_threads};
pub use gpus::{ComputeCapability, Driver, Gpu, Gpus};
pub use kubernetes::Kubernetes;
pub use memory::{Memory, MemoryLimit, available_bytes};

/// Description of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// The processor.
    pub cpu: Cpu,
    /// Main memory; `None` if the system does not report it.
    pub memory: Option<Memory>,
    /// NVIDIA GPUs, or why there are none.
    pub gpus: Gpus,
    /// Docker and Podman, found or not.
    pub container_engines: Vec<ContainerEngine>,
    /// The cluster that this process would use; `None` if none is configured.
    pub kubernetes: Option<Kubernetes>,
}

impl Machine {
    /// Examines the machine.
    #[must_use]
    pub fn probe() -> Self {
        Self {
            cpu: Cpu::probe(),
            memory: Memory::probe(),
            gpus: Gpus::probe(),
            container_engines: ContainerEngine::probe_all(),
            kubernetes: Kubernetes::probe(),
        }
    }
}

/// CPU and memory in one line, for a note at the start. GPUs and container engines are left out, since asking them
/// takes time.
#[must_use]
pub fn describe() -> String {
    match Memory::probe() {
        Some(memory) => format!("{}; {memory}", Cpu::probe()),
        None => Cpu::probe().to_string(),
    }
}

/// A number of bytes in GiB.
fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::probe();
        assert!(machine.cpu.logical_cores > 0);
        assert!(describe().contains("core"));
        let json = serde_json::to_value(&machine).unwrap();
        for key in ["cpu", "memory", "gpus", "container_engines", "kubernetes"] {
            assert!(json.get(key).is_some(), "{key}");
        }
    }
}
