//! `cargo xtask cuda`: the CUDA build, on top of what CI has built already, and the tests that need no GPU. It checks
//! that the binary starts on any machine; `emulated` checks the results of its kernels.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::ahead::Ahead;
use crate::emulated::{self, Scope};
use crate::steps::{Shell, Steps, output, run};
use crate::tools::{target_folder, tools_folder};
use crate::watched::{self, Changes};

/// The end-to-end tests that a CUDA binary must pass on any machine. They need no other program.
pub(crate) const TESTS: [&str; 6] =
    ["cuda::", "doctor::", "first_run::", "wire::", "--skip", "wire::documents::"];

/// Features of the build. With the tests included, the dependencies have the features that `cargo xtask test` has
/// built.
pub(crate) const FEATURES: &str =
    "--workspace --locked --features candlepower/full,candlepower/cuda";

/// Compute capabilities of the kernels, as `CUDA_COMPUTE_CAP` names them. The last one is that of CI, whose build is then left behind.
const CAPABILITIES: [&str; 6] = ["80", "86", "89", "100", "120", "90"];

/// Parts of names of libraries that the binary must not link.
const CUDA_LIBRARIES: [&str; 4] = ["libcu", "libnv", "libnccl", "not found"];

pub(crate) fn run_steps(steps: &mut Steps) {
    steps.run("toolkit", toolkit);
    build_steps(steps);
    emulated::run_steps(steps, None, Scope::All);
}

/// The extent of CI's CUDA build, by the changes since `cargo xtask deep` passed. Without a change below the server
/// there is no new code for GPUs, and the CPU build compiles all the rest.
pub(crate) fn scope(shell: &Shell) -> Result<Option<Scope>> {
    let changes = watched::changes(shell.root(), &watched::digests(shell.root())?);
    Ok(match changes {
        Changes { kernel_crate: true, .. } => Some(Scope::All),
        Changes { models: true, .. } => Some(Scope::Models),
        Changes { engine: true, .. } => Some(Scope::Engine),
        _ => None,
    })
}

/// In CI, nvcc runs only if the kernels or their dependencies have changed, and so do the comparisons. Otherwise the
/// tests without a GPU use the build for the emulated GPU, whose Rust code is the same.
pub(crate) fn run_changed(steps: &mut Steps, scope: Scope, ahead: Option<Ahead>) {
    steps.run("toolkit", toolkit);
    if scope == Scope::All {
        build_steps(steps);
    }
    emulated::run_steps(steps, ahead, scope);
}

fn build_steps(steps: &mut Steps) {
    steps.run("cuda", build);
    steps.run("ldd", needs_no_cuda);
    steps.run("no gpu", test);
}

fn toolkit_folder(shell: &Shell) -> PathBuf {
    tools_folder(shell).join("cuda")
}

pub(crate) fn binary(shell: &Shell) -> PathBuf {
    target_folder(shell).join("debug/candlepower")
}

pub(crate) fn toolkit(shell: &Shell) -> Result<String> {
    run(shell.command("scripts/cuda-toolkit.sh").arg(toolkit_folder(shell)))?;
    Ok(String::new())
}

/// The build command of docs/gpu.md in the dev profile. Packages and features are those of `cargo xtask test` apart
/// from CUDA, so that its dependencies are reused. Our kernels are compiled. candle's are left empty, because nothing
/// here runs them and nvcc would take minutes for them.
fn build(shell: &Shell) -> Result<String> {
    build_for(shell, None)
}

/// The build for one compute capability, or for that of the toolkit. Returns the size of the binary.
fn build_for(shell: &Shell, capability: Option<&str>) -> Result<String> {
    let arguments = format!("build {FEATURES} --test main --bin candlepower");
    let mut cargo = with_toolkit(shell, &shell.cargo(&arguments));
    cargo.envs(capability.map(|capability| ("CUDA_COMPUTE_CAP", capability)));
    run(&mut cargo)?;
    let bytes = std::fs::metadata(binary(shell)).context("no binary was built")?.len();
    Ok(format!("{:.1} MB", bytes as f64 / 1e6))
}

/// Builds the binary for each compute capability, and starts each one without a GPU. Returns their sizes.
pub(crate) fn all_capabilities(shell: &Shell) -> Result<String> {
    let mut facts = Vec::new();
    for capability in CAPABILITIES {
        println!("compute capability {capability}");
        let size = build_for(shell, Some(capability))?;
        needs_no_cuda(shell).with_context(|| format!("compute capability {capability}"))?;
        run(Command::new(binary(shell)).arg("--version"))?;
        facts.push(format!("{capability}: {size}"));
    }
    Ok(facts.join(", "))
}

/// Checks that the binary starts on a machine without CUDA. It loads CUDA's libraries at run time.
fn needs_no_cuda(shell: &Shell) -> Result<String> {
    let libraries = output(shell.command("ldd").arg(binary(shell)))?;
    let unwanted = unwanted(&libraries);
    if !unwanted.is_empty() {
        bail!("the binary does not start without {}", unwanted.join(", "));
    }
    Ok(format!("{} libraries, none of them CUDA's", libraries.lines().count()))
}

/// The lines of ldd that name a CUDA library, or a missing library.
fn unwanted(ldd: &str) -> Vec<&str> {
    let is_unwanted = |line: &&str| CUDA_LIBRARIES.iter().any(|part| line.contains(part));
    ldd.lines().map(str::trim).filter(is_unwanted).collect()
}

fn test(shell: &Shell) -> Result<String> {
    run(Command::new(binary(shell)).arg("--version"))?;
    let mut cargo = shell.cargo(&format!("test {FEATURES} --test main --"));
    cargo.args(TESTS);
    let mut cargo = with_toolkit(shell, &cargo);
    run(cargo.env("CANDLEPOWER_BIN", binary(shell)).env("CANDLEPOWER_TEST_CUDA", "1"))?;
    Ok(String::new())
}

/// A command with the toolkit's environment.
pub(crate) fn with_toolkit(shell: &Shell, command: &Command) -> Command {
    let toolkit = toolkit_folder(shell);
    // Within `sh -c` the toolkit's environment is `$0`, and nvcc is `$1`. The rest is the command.
    let mut sh = shell.command("sh");
    sh.args(["-c", ". \"$0\" && NVCC=$1 && shift && exec \"$@\""]);
    sh.arg(toolkit.join("env.sh")).arg(toolkit.join("fast/link/nvcc"));
    sh.arg(command.get_program()).args(command.get_args());
    // The CPU build's tests cover all instruction sets, and compiling those takes minutes here.
    sh.env("CANDLEPOWER_WITHOUT_AVX512", "1");
    sh
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_capabilities_of_the_kernels_are_built() {
        let build = std::fs::read_to_string(crate::workspace_root().join("crates/gpu/build.rs"));
        let build = build.unwrap();
        let (_, list) = build.split_once("const CAPABILITIES").unwrap();
        let (list, _) = list.split_once("];").unwrap();
        let mut known: Vec<_> = list.split('(').filter_map(|one| one.split('"').nth(1)).collect();
        let mut built = CAPABILITIES;
        known.sort_unstable();
        built.sort_unstable();
        assert_eq!(known, built);
    }

    #[test]
    fn libraries_of_cuda_and_missing_ones_are_found() {
        let plain = "\tlinux-vdso.so.1 (0x0)\n\tlibstdc++.so.6 => /lib/libstdc++.so.6 (0x0)\n\tlibc.so.6 => /lib/libc.so.6 (0x0)\n";
        assert!(unwanted(plain).is_empty());
        for line in ["libcuda.so.1 => not found", "libcublas.so.13 => /x/libcublas.so.13 (0x0)"] {
            assert_eq!(unwanted(&format!("{plain}\t{line}\n")), [line]);
        }
    }
}
