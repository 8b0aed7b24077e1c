//! Says which instruction sets the CPU kernels are compiled for.

use std::env;

/// Variable that `cargo xtask` alone sets.
const WITHOUT_AVX512: &str = "CANDLEPOWER_WITHOUT_AVX512";

/// Kernels for AVX-512 and AMX are two thirds of the code of this crate. Without them, tests of builds whose kernels
/// run on a GPU start sooner.
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(with_avx512)");
    println!("cargo::rerun-if-env-changed={WITHOUT_AVX512}");
    // The target's architecture, since `cfg!` in a build script is that of the host.
    let is_x86 = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|name| name == "x86_64");
    if is_x86 && env::var_os(WITHOUT_AVX512).is_none_or(|value| value.is_empty()) {
        println!("cargo::rustc-cfg=with_avx512");
    }
}
