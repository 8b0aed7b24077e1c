//! The CUDA build on an emulated GPU: the kernels compiled for the CPU, below the driver's functions that
//! `crates/kernels/tests/emulator` has. They run as they stand, with their launches, copies and graphs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::cuda::{FEATURES, binary, with_toolkit};
use crate::steps::{Shell, Steps, output, run, run_lines};
use crate::test::Totals;
use crate::tools::tools_folder;

const EMULATOR: &str = "crates/kernels/tests/emulator";

/// Comparisons of the kernels, which are a program of their own, watched for races, in two halves that take about as long; attention with the least shared memory; and its
/// measurements, of which only their end counts here; the goldens of the models; the runner of steps; the server.
const TESTS: [Tests; 8] = [
    Tests {
        source: KERNELS,
        arguments: "expert packed",
        names: &[],
        env: &[("CANDLEPOWER_EMULATED_RACES", "1")],
    },
    Tests {
        source: KERNELS,
        arguments: "--skip expert --skip packed",
        names: &[],
        env: &[("CANDLEPOWER_EMULATED_RACES", "1")],
    },
    Tests {
        source: KERNELS,
        arguments: "--exact paged_attention latent_attention",
        names: &[],
        env: &[("CANDLEPOWER_EMULATED_MODEL", "l40s")],
    },
    Tests { source: KERNELS, arguments: "--times --small", names: &[], env: &[] },
    Tests {
        source: "crates/models/tests/all/main.rs",
        arguments: ONE_BY_ONE,
        names: &["device::a_gpu_computes_every_architecture"],
        env: &[("CANDLEPOWER_TEST_TOKENS", "24")],
    },
    Tests {
        source: "crates/models/tests/all/main.rs",
        arguments: ONE_BY_ONE,
        names: &["device::gpus_compute_what_one_does"],
        env: &[("CANDLEPOWER_EMULATED_GPUS", "2"), ("CANDLEPOWER_TEST_GPUS", "2")],
    },
    Tests {
        source: "crates/engine/src/lib.rs",
        arguments: ONE_BY_ONE,
        names: &[
            "device_runner::tests::a_gpu_takes_no_memory_in_decodes",
            "device_runner::tests::graphs_end_before_the_group_of_their_sums",
        ],
        env: &[],
    },
    Tests {
        source: "tests/main.rs",
        arguments: ONE_BY_ONE,
        names: &[
            "cuda::an_emulated_gpu_answers_as_the_cpu_does",
            "cuda::emulated_gpus_answer_together_as_one_does",
        ],
        env: &[],
    },
];

const KERNELS: &str = "crates/kernels/tests/cuda_kernels/main.rs";

/// Each is given all memory of the emulated GPUs.
const ONE_BY_ONE: &str = "--ignored --nocapture --test-threads 1 --exact";

/// Tests of one program, by name those that are ignored where there is no GPU.
struct Tests {
    /// The file that it is built from. The name of a target does not tell which: several packages have one that is called `all`.
    source: &'static str,
    arguments: &'static str,
    names: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
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
    run(&mut cargo(shell, "build", "--test main --bin candlepower"))?;
    run(&mut cargo(shell, "test", TARGETS))?;
    Ok(String::new())
}

const TARGETS: &str = "--no-run --lib --test cuda_kernels --test all --test main";

/// Cargo with the stand-in for nvcc, for our kernels alone: what it builds computes on the emulated GPU only.
fn cargo(shell: &Shell, command: &str, arguments: &str) -> Command {
    let cargo = shell.cargo(&format!("{command} {FEATURES} {arguments}"));
    let mut cargo = with_toolkit(shell, &cargo);
    cargo.env("CANDLEPOWER_NVCC", shell.root().join(EMULATOR).join("nvcc"));
    cargo
}

/// All at once: none of them has work for more than one processor. Cargo does not start them: for one target alone it would build
/// dependencies again, with the features that this target asks for.
fn test(shell: &Shell) -> Result<String> {
    let messages = format!("{TARGETS} --message-format json-render-diagnostics");
    let mut cargo = cargo(shell, "test", &messages);
    let built = output(cargo.stderr(Stdio::inherit()))?;
    let outcomes = std::thread::scope(|scope| {
        let runs = TESTS.map(|tests| {
            let program = executable(&built, &shell.root().join(tests.source));
            scope.spawn(move || compare(shell, program?, &tests))
        });
        runs.map(|run| run.join().expect("a run does not panic"))
    });
    let facts: Result<Vec<String>> = outcomes.into_iter().collect();
    Ok(facts?.concat())
}

/// The program that is built from a file, among cargo's messages, a line of JSON each.
fn executable<'a>(messages: &'a str, source: &Path) -> Result<&'a Path> {
    let of_source = format!("\"src_path\":\"{}\"", source.display());
    let of_source = messages.lines().filter(|message| message.contains(&of_source));
    let mut programs = of_source.filter_map(|message| {
        let (_, rest) = message.split_once("\"executable\":\"")?;
        Some(Path::new(rest.split_once('"')?.0))
    });
    programs.next().with_context(|| format!("cargo names no program of {}", source.display()))
}

/// What a run says of its results.
fn compare(shell: &Shell, program: &Path, tests: &Tests) -> Result<String> {
    let source = tests.source;
    let mut command = shell.command(program);
    command.args(tests.arguments.split_whitespace()).args(tests.names);
    command.envs(tests.env.iter().copied()).env("LD_LIBRARY_PATH", libraries(shell));
    command.env("CANDLEPOWER_TEST_CUDA", "1").env("CANDLEPOWER_BIN", binary(shell));
    let (mut fact, mut totals, began) = (String::new(), Totals::default(), Instant::now());
    let succeeded = run_lines(&mut command, |line| {
        totals.add(line);
        // The name of the test may stand before it.
        let said = line.split_once("= ").map(|(_, said)| said);
        let said = said.filter(|said| said.contains("logits within"));
        if let Some(said) = said.or(line.contains("comparisons passed").then_some(line)) {
            fact = format!("{said}; ");
        }
    })?;
    if !succeeded {
        bail!("{source} failed on the emulated GPU");
    }
    println!("{source} {}: {:.0} s", tests.arguments, began.elapsed().as_secs_f64());
    let asked = tests.names.len();
    if totals.passed != asked {
        bail!("of the {asked} tests that were asked for, {source} ran {}", totals.passed);
    }
    Ok(fact)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_of_a_file_is_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"a","src_path":"/w/a/src/lib.rs"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"all","src_path":"/w/a/tests/all/main.rs"},"executable":"/t/deps/all-0a"}
{"reason":"compiler-artifact","target":{"name":"all","src_path":"/w/b/tests/all/main.rs"},"executable":"/t/deps/all-0b"}
{"reason":"build-finished","success":true}"#;
        let program = |source: &str| executable(messages, Path::new(source)).ok();
        assert_eq!(program("/w/a/tests/all/main.rs"), Some(Path::new("/t/deps/all-0a")));
        assert_eq!(program("/w/b/tests/all/main.rs"), Some(Path::new("/t/deps/all-0b")));
        assert_eq!(program("/w/b/tests/main.rs"), None);
        assert_eq!(program("/w/a/src/lib.rs"), None);
    }
}
