//! The CUDA build on an emulated GPU: the kernels compiled for the CPU, below the driver's functions that
//! `crates/kernels/tests/emulator` has. They run as they stand, with their launches, copies and graphs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cuda::{FEATURES, binary, with_toolkit};
use crate::steps::{Shell, Steps, output, run, run_lines};
use crate::test::Totals;
use crate::tools::tools_folder;

const EMULATOR: &str = "crates/kernels/tests/emulator";

/// Comparisons of the kernels, which are a program of their own, and its measurements, of which only their end counts here; the
/// goldens of the models; the server.
const TESTS: [Tests; 4] = [
    Tests { target: "cuda_kernels", arguments: "", names: &[] },
    Tests { target: "cuda_kernels", arguments: "--times --small", names: &[] },
    Tests {
        target: "all",
        arguments: ONE_BY_ONE,
        names: &["device::a_gpu_computes_every_architecture"],
    },
    Tests {
        target: "main",
        arguments: ONE_BY_ONE,
        names: &[
            "cuda::an_emulated_gpu_answers_as_the_cpu_does",
            "cuda::emulated_gpus_answer_together_as_one_does",
        ],
    },
];

/// Each is given all memory of the emulated GPUs.
const ONE_BY_ONE: &str = "--ignored --nocapture --test-threads 1 --exact";

/// Tests of one target, by name those that are ignored where there is no GPU.
struct Tests {
    target: &'static str,
    arguments: &'static str,
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
    run(&mut cargo_build(shell, ""))?;
    Ok(String::new())
}

/// Cargo with the stand-in for nvcc, for our kernels alone: what it builds computes on the emulated GPU only.
fn cargo_build(shell: &Shell, more: &str) -> Command {
    let targets = TESTS.map(|tests| format!("--test {}", tests.target)).join(" ");
    let arguments = format!("build {FEATURES} {targets} --bin candlepower {more}");
    let mut cargo = with_toolkit(shell, &shell.cargo(&arguments));
    cargo.env("CANDLEPOWER_NVCC", shell.root().join(EMULATOR).join("nvcc"));
    cargo
}

/// All at once: none of them has work for more than one processor. Cargo does not start them: for one target alone it would build
/// dependencies again, with the features that this target asks for.
fn test(shell: &Shell) -> Result<String> {
    let mut cargo = cargo_build(shell, "--message-format json-render-diagnostics");
    let built = output(cargo.stderr(Stdio::inherit()))?;
    let outcomes = std::thread::scope(|scope| {
        let runs = TESTS.map(|tests| {
            let program = executable(&built, tests.target);
            scope.spawn(move || compare(shell, program?, &tests))
        });
        runs.map(|run| run.join().expect("a run does not panic"))
    });
    let facts: Result<Vec<String>> = outcomes.into_iter().collect();
    Ok(facts?.concat())
}

/// The program of a target among cargo's messages, a line of JSON each.
fn executable<'a>(messages: &'a str, target: &str) -> Result<&'a Path> {
    let mut programs = messages.lines().filter_map(|message| {
        let (_, rest) = message.split_once("\"executable\":\"")?;
        Some(Path::new(rest.split_once('"')?.0))
    });
    let is_of_target = |program: &&Path| {
        let name = program.file_name().and_then(|name| name.to_str()?.rsplit_once('-'));
        name.is_some_and(|(name, _)| name == target)
    };
    programs.find(is_of_target).with_context(|| format!("cargo names no program of {target}"))
}

/// What a run says of its results.
fn compare(shell: &Shell, program: &Path, tests: &Tests) -> Result<String> {
    let target = tests.target;
    let mut command = shell.command(program);
    command.args(tests.arguments.split_whitespace()).args(tests.names);
    command.env("LD_LIBRARY_PATH", libraries(shell));
    command.env("CANDLEPOWER_TEST_CUDA", "1").env("CANDLEPOWER_BIN", binary(shell));
    let (mut fact, mut totals) = (String::new(), Totals::default());
    let succeeded = run_lines(&mut command, |line| {
        totals.add(line);
        let said = line.strip_prefix("= ").filter(|said| said.starts_with("best token"));
        if let Some(said) = said.or(line.contains("comparisons passed").then_some(line)) {
            fact = format!("{said}; ");
        }
    })?;
    if !succeeded {
        bail!("{target} failed on the emulated GPU");
    }
    let asked = tests.names.len();
    if totals.passed != asked {
        bail!("of the {asked} tests that were asked for, {target} ran {}", totals.passed);
    }
    Ok(fact)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_of_a_target_is_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"main"},"executable":null}
{"reason":"compiler-artifact","executable":"/t/deps/main-0a1b","fresh":true}
{"reason":"compiler-artifact","executable":"/t/candlepower","fresh":true}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages, "main").unwrap(), Path::new("/t/deps/main-0a1b"));
        assert!(executable(messages, "candlepower").is_err());
    }
}
