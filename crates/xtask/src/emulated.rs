//! The CUDA build on an emulated GPU: the kernels compiled for the CPU, below the driver's functions that
//! `crates/kernels/tests/emulator` has. They run as they stand, with their launches, copies and graphs.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::cuda::{FEATURES, binary, with_toolkit};
use crate::steps::{Shell, Steps, run, run_lines};
use crate::test::Totals;
use crate::tools::tools_folder;

const EMULATOR: &str = "crates/kernels/tests/emulator";

/// Comparisons of the kernels, which are a program of their own; the goldens of the models; the server.
const TESTS: [Tests; 3] = [
    Tests { target: "cuda_kernels", names: &[] },
    Tests { target: "all", names: &["device::a_gpu_computes_every_architecture"] },
    Tests {
        target: "main",
        names: &[
            "cuda::an_emulated_gpu_answers_as_the_cpu_does",
            "cuda::emulated_gpus_answer_together_as_one_does",
        ],
    },
];

/// Tests of one target, of those that are ignored where there is no GPU.
struct Tests {
    target: &'static str,
    names: &'static [&'static str],
}

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
    let targets = TESTS.map(|tests| format!("--test {}", tests.target)).join(" ");
    run(&mut emulated(shell, &format!("build {FEATURES} {targets} --bin candlepower")))?;
    Ok(String::new())
}

/// All at once: none of them has work for more than one processor.
fn test(shell: &Shell) -> Result<String> {
    let outcomes = std::thread::scope(|scope| {
        let runs = TESTS.map(|tests| scope.spawn(move || compare(shell, &tests)));
        runs.map(|run| run.join().expect("a run does not panic"))
    });
    let facts: Result<Vec<String>> = outcomes.into_iter().collect();
    Ok(facts?.concat())
}

/// What a run says of its results.
fn compare(shell: &Shell, tests: &Tests) -> Result<String> {
    let Tests { target, names } = tests;
    let mut arguments = format!("test {FEATURES} --test {target} --");
    if !names.is_empty() {
        // One after the other: each is given all memory of the emulated GPUs.
        arguments += " --ignored --nocapture --test-threads 1 --exact ";
        arguments += &names.join(" ");
    }
    let mut cargo = emulated(shell, &arguments);
    cargo.env("LD_LIBRARY_PATH", libraries(shell));
    cargo.env("CANDLEPOWER_TEST_CUDA", "1").env("CANDLEPOWER_BIN", binary(shell));
    let (mut fact, mut totals) = (String::new(), Totals::default());
    let succeeded = run_lines(&mut cargo, |line| {
        totals.add(line);
        let said = line.strip_prefix("= ").filter(|said| said.starts_with("best token"));
        if let Some(said) = said.or(line.contains("comparisons passed").then_some(line)) {
            fact = format!("{said}; ");
        }
    })?;
    if !succeeded {
        bail!("{target} failed on the emulated GPU");
    }
    if totals.passed != names.len() {
        bail!("of the {} tests that were asked for, {target} ran {}", names.len(), totals.passed);
    }
    Ok(fact)
}

/// Cargo with the stand-in for nvcc, for our kernels alone: what it builds computes on the emulated GPU only.
fn emulated(shell: &Shell, arguments: &str) -> Command {
    let mut cargo = with_toolkit(shell, &shell.cargo(arguments));
    cargo.env("CANDLEPOWER_NVCC", shell.root().join(EMULATOR).join("nvcc"));
    cargo
}
