//! `cargo xtask cuda`: the fast CUDA build from nothing, and what can be tested of it without a GPU.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::steps::{Shell, Steps, output, run};
use crate::tools::{target_folder, tools_folder};

/// The end-to-end tests that a binary with CUDA must pass on any machine: those that need no other program.
const TESTS: [&str; 6] =
    ["cuda::", "doctor::", "first_run::", "wire::", "--skip", "wire::documents::"];

/// Parts of the names of libraries that the binary must not need.
const CUDA_LIBRARIES: [&str; 4] = ["libcu", "libnv", "libnccl", "not found"];

pub(crate) fn run_steps(steps: &mut Steps) {
    steps.run("toolkit", toolkit);
    steps.run("cuda", build);
    steps.run("ldd", needs_no_cuda);
    steps.run("no gpu", test);
}

fn toolkit_folder(shell: &Shell) -> PathBuf {
    tools_folder(shell).join("cuda")
}

fn binary(shell: &Shell) -> PathBuf {
    target_folder(shell).join("release/candlepower")
}

fn toolkit(shell: &Shell) -> Result<String> {
    run(shell.command("scripts/cuda-toolkit.sh").arg(toolkit_folder(shell)))?;
    Ok(String::new())
}

/// Exactly what the README says, in a shell of its own.
fn build(shell: &Shell) -> Result<String> {
    let mut sh = shell.command("sh");
    sh.args(["-c", ". \"$0\" && exec \"$@\""]).arg(toolkit_folder(shell).join("env.sh"));
    sh.arg(shell.cargo("").get_program());
    run(sh.args(["build", "--release", "--features", "cuda", "--locked"]))?;
    let bytes = std::fs::metadata(binary(shell)).context("no binary was built")?.len();
    Ok(format!("{:.1} MB", bytes as f64 / 1e6))
}

/// The binary starts on a machine without CUDA: it looks for the libraries itself.
fn needs_no_cuda(shell: &Shell) -> Result<String> {
    let libraries = output(shell.command("ldd").arg(binary(shell)))?;
    let unwanted = unwanted(&libraries);
    if !unwanted.is_empty() {
        bail!("the binary does not start without {}", unwanted.join(", "));
    }
    Ok(format!("{} libraries, none of them CUDA's", libraries.lines().count()))
}

/// The lines of ldd that name a library of CUDA, or one that is missing.
fn unwanted(ldd: &str) -> Vec<&str> {
    let is_unwanted = |line: &&str| CUDA_LIBRARIES.iter().any(|part| line.contains(part));
    ldd.lines().map(str::trim).filter(is_unwanted).collect()
}

fn test(shell: &Shell) -> Result<String> {
    run(Command::new(binary(shell)).arg("--version"))?;
    let mut cargo = shell.cargo("test --workspace --test main --locked --");
    cargo.args(TESTS).env("CANDLEPOWER_BIN", binary(shell)).env("CANDLEPOWER_TEST_CUDA", "1");
    run(&mut cargo)?;
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_cuda_and_missing_ones_are_found() {
        let plain = "\tlinux-vdso.so.1 (0x0)\n\tlibstdc++.so.6 => /lib/libstdc++.so.6 (0x0)\n\tlibc.so.6 => /lib/libc.so.6 (0x0)\n";
        assert!(unwanted(plain).is_empty());
        for line in ["libcuda.so.1 => not found", "libcublas.so.13 => /x/libcublas.so.13 (0x0)"] {
            assert_eq!(unwanted(&format!("{plain}\t{line}\n")), [line]);
        }
    }
}
