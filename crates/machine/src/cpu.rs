//! The processor: its name, its cores, the vector instructions that kernels could use.

use std::fmt;

use serde::Serialize;

/// The processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// Its name; `None` if the system does not report it.
    pub model: Option<String>,
    /// Threads that this process may run at the same time, by affinity and quotas.
    pub logical_cores: usize,
    /// Cores of the whole machine, whatever the number of threads of each.
    pub physical_cores: usize,
    /// Vector instructions, in the order of [`CpuFeature`].
    pub features: Vec<CpuFeature>,
}

/// A set of vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub enum CpuFeature {
    #[serde(rename = "AVX2")]
    Avx2,
    #[serde(rename = "FMA")]
    Fma,
    #[serde(rename = "AVX-512")]
    Avx512,
    #[serde(rename = "AVX512-BF16")]
    Avx512Bf16,
    #[serde(rename = "AVX512-VNNI")]
    Avx512Vnni,
    #[serde(rename = "AMX-BF16")]
    AmxBf16,
    #[serde(rename = "AMX-INT8")]
    AmxInt8,
    #[serde(rename = "NEON")]
    Neon,
}

/// Default number of compute threads: one per physical core, but not more than this process may run at the same time.
#[must_use]
pub fn compute_threads() -> usize {
    // Two threads of one core share its vector units, so a second compute thread adds nothing there.
    num_cpus::get_physical().min(logical_cores())
}

/// Number of threads by affinity and quotas, or of physical cores if the system does not report it.
fn logical_cores() -> usize {
    std::thread::available_parallelism().map_or_else(|_| num_cpus::get_physical(), usize::from)
}

impl Cpu {
    pub(crate) fn probe() -> Self {
        Self {
            model: std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| model(&text)),
            logical_cores: logical_cores(),
            physical_cores: num_cpus::get_physical(),
            features: features(),
        }
    }
}

impl CpuFeature {
    /// Name of the feature.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Avx2 => "AVX2",
            Self::Fma => "FMA",
            Self::Avx512 => "AVX-512",
            Self::Avx512Bf16 => "AVX512-BF16",
            Self::Avx512Vnni => "AVX512-VNNI",
            Self::AmxBf16 => "AMX-BF16",
            Self::AmxInt8 => "AMX-INT8",
            Self::Neon => "NEON",
        }
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.logical_cores {
            1 => write!(f, "1 core")?,
            cores => write!(f, "{cores} cores")?,
        }
        if let Some(model) = &self.model {
            write!(f, " of {model}")?;
        }
        if self.features.is_empty() {
            return write!(f, " with no vector instructions known here");
        }
        let names: Vec<&str> = self.features.iter().map(|feature| feature.as_str()).collect();
        write!(f, " with {}", names.join(" "))
    }
}

/// The name in the text of Linux's `/proc/cpuinfo`, which on ARM often has none.
fn model(cpuinfo: &str) -> Option<String> {
    let value = |key: &str| {
        cpuinfo.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim().to_owned())
        })
    };
    // Boards with ARM cores, such as the Raspberry Pi, have `Model` instead of `model name`.
    value("model name").or_else(|| value("Model")).filter(|name| !name.is_empty())
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<CpuFeature> {
    let (amx_bf16, amx_int8) = amx();
    let found = [
        (CpuFeature::Avx2, is_x86_feature_detected!("avx2")),
        (CpuFeature::Fma, is_x86_feature_detected!("fma")),
        (CpuFeature::Avx512, is_x86_feature_detected!("avx512f")),
        (CpuFeature::Avx512Bf16, is_x86_feature_detected!("avx512bf16")),
        (CpuFeature::Avx512Vnni, is_x86_feature_detected!("avx512vnni")),
        (CpuFeature::AmxBf16, amx_bf16),
        (CpuFeature::AmxInt8, amx_int8),
    ];
    found.into_iter().filter_map(|(feature, is_there)| is_there.then_some(feature)).collect()
}

/// AMX with bf16 and with int8 products: CPUID leaf 7, EDX bits 22 and 25, and 24 for the tiles.
/// The standard library's own detection of AMX is not stable yet.
/// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, CPUID.
#[cfg(target_arch = "x86_64")]
fn amx() -> (bool, bool) {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // The largest leaf that CPUID answers. An older CPU returns the data of another leaf for leaf 7.
    if __cpuid(0).eax < 7 {
        return (false, false);
    }
    let edx = __cpuid_count(7, 0).edx;
    // The bits say what the CPU has. Linux must also permit the tiles, which the kernels ask for.
    let has = |bit: u32| edx & (1 << 24) != 0 && edx & (1 << bit) != 0;
    (has(22), has(25))
}

#[cfg(target_arch = "aarch64")]
fn features() -> Vec<CpuFeature> {
    vec![CpuFeature::Neon]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn features() -> Vec<CpuFeature> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_read() {
        let text = "processor\t: 0\nmodel\t\t: 143\nmodel name\t: Some CPU @ 2 GHz\n";
        assert_eq!(model(text).as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(model("processor : 0\nModel : A Board\n").as_deref(), Some("A Board"));
        assert_eq!(model("processor : 0\n"), None);
    }

    #[test]
    fn a_cpu_is_one_line() {
        let cpu = Cpu {
            model: None,
            logical_cores: 2,
            physical_cores: 1,
            features: vec![CpuFeature::Avx2, CpuFeature::AmxInt8],
        };
        assert_eq!(cpu.to_string(), "2 cores with AVX2 AMX-INT8");
        let json = serde_json::to_value(&cpu).unwrap();
        assert_eq!(json["features"], serde_json::json!(["AVX2", "AMX-INT8"]));
    }
}
