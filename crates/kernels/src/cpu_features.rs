//! Instruction sets of this CPU that matter for the kernels, detected at run time.

use std::fmt;

/// The instruction sets that choose between kernel paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuFeatures {
    /// AVX2 together with FMA and F16C.
    pub avx2: bool,
    /// AVX-512 F, BW, DQ and VL.
    pub avx512f: bool,
    /// AVX-512 bf16 dot products.
    pub avx512_bf16: bool,
    /// AMX tiles with bf16 products.
    pub amx_bf16: bool,
    /// AMX tiles with int8 products.
    pub amx_int8: bool,
}

/// Detects the features of the CPU this process runs on. Meant for start-up: it executes CPUID, which is
/// slow in a virtual machine.
#[must_use]
pub fn cpu_features() -> CpuFeatures {
    #[cfg(target_arch = "x86_64")]
    {
        let (amx_bf16, amx_int8) = amx();
        CpuFeatures {
            avx2: has_avx2(),
            avx512f: has_avx512(),
            avx512_bf16: has_avx512_bf16(),
            amx_bf16,
            amx_int8,
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    CpuFeatures {
        avx2: false,
        avx512f: false,
        avx512_bf16: false,
        amx_bf16: false,
        amx_int8: false,
    }
}

/// AVX2, FMA and F16C; the standard library remembers the answer, so this is cheap.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// AVX-512 F, BW, DQ and VL; as cheap as [`has_avx2`].
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// Dot products of bf16; as cheap as [`has_avx2`].
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx512_bf16() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

/// `(amx_bf16, amx_int8)` from CPUID leaf 7: EDX bit 24 is AMX-TILE, 22 AMX-BF16, 25 AMX-INT8.
/// The standard library's own detection of AMX is not stable yet.
/// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, CPUID.
#[cfg(target_arch = "x86_64")]
fn amx() -> (bool, bool) {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // Beyond its last leaf a CPU may answer with the bits of another one.
    if __cpuid(0).eax < 7 {
        return (false, false);
    }
    let edx = __cpuid_count(7, 0).edx;
    let tile = edx & (1 << 24) != 0;
    (tile && edx & (1 << 22) != 0, tile && edx & (1 << 25) != 0)
}

impl fmt::Display for CpuFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [
            (self.avx2, "avx2"),
            (self.avx512f, "avx512f"),
            (self.avx512_bf16, "avx512_bf16"),
            (self.amx_bf16, "amx_bf16"),
            (self.amx_int8, "amx_int8"),
        ];
        let present: Vec<&str> =
            named.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
        if present.is_empty() { f.write_str("portable") } else { f.write_str(&present.join(" ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_lists_what_is_present() {
        let none = CpuFeatures {
            avx2: false,
            avx512f: false,
            avx512_bf16: false,
            amx_bf16: false,
            amx_int8: false,
        };
        assert_eq!(none.to_string(), "portable");
        assert_eq!(CpuFeatures { avx2: true, amx_bf16: true, ..none }.to_string(), "avx2 amx_bf16");
    }
}
