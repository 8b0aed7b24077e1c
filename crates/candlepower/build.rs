//! Tells the CUDA build where else its libraries may lie.

/// Beside the program, from its own folder on: a folder `lib`, and NVIDIA's Python packages where a wheel's program is installed.
/// `LD_LIBRARY_PATH` comes before them, the system's folders after.
const FOLDERS: [&str; 3] = ["lib", "../../nvidia/cu13/lib", "../../nvidia/nccl/lib"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_some() {
        println!("cargo::rustc-link-arg-bins=-Wl,--enable-new-dtags");
        for folder in FOLDERS {
            println!("cargo::rustc-link-arg-bins=-Wl,-rpath,$ORIGIN/{folder}");
        }
    }
}
