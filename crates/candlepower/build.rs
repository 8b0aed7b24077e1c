//! Adds folders from which a CUDA build loads its libraries.

/// Folders relative to the program's own: `lib`, and the folders of NVIDIA's Python packages beside an installed wheel.
/// `--enable-new-dtags` makes them a runpath, so that `LD_LIBRARY_PATH` comes before them, and the system's folders after.
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
