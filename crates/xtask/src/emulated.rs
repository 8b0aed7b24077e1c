//! The CUDA build on an emulated GPU: the kernels compiled for the CPU, below the driver's functions that
//! `crates/kernels/tests/emulator` has. They run as they stand, with their launches, copies and graphs.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::cuda::{SELECTION, binary, with_toolkit};
use crate::steps::{Shell, Steps, run, run_lines};
use crate::tools::tools_folder;

const EMULATOR: &str = "crates/kernels/tests/emulator";

/// Comparisons of the kernels, the goldens of the models, and the server.
const TESTS: [&str; 3] = [
    "--test cuda_kernels",
    "--test all -- --exact device::a_gpu_computes_every_architecture --nocapture",
    "--test main -- cuda::an_emulated cuda::emulated --test-threads 1",
];

pub(crate) fn run_steps(steps: &mut Steps) {
    steps.run("emulate", build);
    steps.run("emulated", test);
}

/// Where the emulated driver and its fellows are.
fn libraries(shell: &Shell) -> PathBuf {
    tools_folder(shell).join("emulator")
}

fn build(shell: &Shell) -> Result<String> {
    let script = shell.root().join(EMULATOR).join("build.sh");
    let mut libcuda = shell.command(script);
    run(&mut with_toolkit(shell, libcuda.arg(libraries(shell))))?;
    let tests =
        format!("build {SELECTION} --test cuda_kernels --test all --bin candlepower --locked");
    run(&mut emulated(shell, &tests))?;
    Ok(String::new())
}

/// All at once: none of them has work for more than one processor.
fn test(shell: &Shell) -> Result<String> {
    let outcomes = std::thread::scope(|scope| {
        let runs = TESTS.map(|test| scope.spawn(move || compare(shell, test)));
        runs.map(|run| run.join().expect("a run does not panic"))
    });
    let facts: Result<Vec<String>> = outcomes.into_iter().collect();
    Ok(facts?.concat())
}

/// What a run says of its results, after `= `.
fn compare(shell: &Shell, test: &str) -> Result<String> {
    let (target, arguments) = test.split_once(" -- ").unwrap_or((test, ""));
    let features = SELECTION.split_once("--features").map_or("", |(_, features)| features);
    let mut cargo = emulated(
        shell,
        &format!("test --workspace --features{features} {target} --locked -- {arguments}"),
    );
    cargo.env("LD_LIBRARY_PATH", libraries(shell));
    cargo.env("CANDLEPOWER_TEST_GPU", "1").env("CANDLEPOWER_TEST_CUDA", "1");
    cargo.env("CANDLEPOWER_TEST_EMULATOR", libraries(shell)).env("CANDLEPOWER_BIN", binary(shell));
    let mut fact = String::new();
    let succeeded = run_lines(&mut cargo, |line| {
        let said = line.strip_prefix("= ").filter(|said| said.starts_with("best token"));
        if let Some(said) = said.or(line.contains("comparisons passed").then_some(line)) {
            fact = format!("{said}; ");
        }
    })?;
    if !succeeded {
        bail!("{target} failed on the emulated GPU");
    }
    Ok(fact)
}

/// Cargo with the stand-in for nvcc, for our kernels alone: what it builds computes on the emulated GPU only.
fn emulated(shell: &Shell, arguments: &str) -> Command {
    let mut cargo = with_toolkit(shell, &shell.cargo(arguments));
    cargo.env("CANDLEPOWER_NVCC", shell.root().join(EMULATOR).join("nvcc"));
    cargo
}
