//! The CUDA build on an emulated GPU. The kernels are compiled for the CPU, and `crates/gpu/tests/emulator` provides
//! the driver's functions. Launches, copies and graphs run as on a GPU.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::ahead::Ahead;
use crate::cuda::{self, FEATURES, binary, with_toolkit};
use crate::steps::{Shell, Steps, output, run, run_lines};
use crate::test::Totals;
use crate::tools::tools_folder;
use crate::watched;

pub(crate) const EMULATOR: &str = "crates/gpu/tests/emulator";

/// CI's tests: comparisons of the kernels, which are one program, in two halves of about equal length; the goldens of
/// the models; the server.
const TESTS: [Tests; 6] =
    [EXPERTS_AND_PACKED, OTHER_KERNELS, SOME_TOKENS, SAME_BITS, FP8_CACHE, SERVER];

/// The goldens in CI: 24 tokens of each prompt, 40 of quantized models, because all of them take long. On a real GPU, and in
/// `cargo xtask deep goldens`, all are compared.
const SOME_TOKENS: Tests = Tests {
    env: &[("CANDLEPOWER_TEST_TOKENS", "24"), ("CANDLEPOWER_TEST_DTYPE", "bf16")],
    ..GOLDENS
};

const SERVER: Tests = Tests {
    source: END_TO_END,
    arguments: ONE_BY_ONE,
    names: &[
        "cuda::an_emulated_gpu_answers_as_the_cpu_does",
        "cuda::emulated_gpus_answer_together_as_one_does",
    ],
    env: &[],
    races: Races::Ignored,
};

/// The server with `--deterministic`, in several forms of company. It takes more than two minutes of a core.
const DETERMINISTIC: Tests = Tests {
    names: &["deterministic::an_emulated_gpu_gives_the_same_tokens_in_any_company"],
    ..SERVER
};

/// The bits of tokens in steps of every kind, and with fused kernels.
const SAME_BITS: Tests = Tests {
    names: &[
        "device::a_gpu_gives_a_token_the_same_bits_in_every_step",
        "device::fused_kernels_change_no_bit",
    ],
    env: &[],
    ..GOLDENS
};

/// Decodes over a cache in FP8.
const FP8_CACHE: Tests =
    Tests { names: &["device::fp8_cache::a_gpu_decodes_over_a_cache_in_fp8"], ..SAME_BITS };

/// All comparisons of kernels. `cargo xtask deep races` runs them with race detection in all kernels.
pub(crate) const COMPARISONS: [Tests; 2] = [EXPERTS_AND_PACKED, OTHER_KERNELS];

/// The tests of `cargo xtask deep goldens`: every token of the prompts in bf16 and a block of them in f16; the step
/// runner; the server with `--deterministic`; the models on two GPUs; attention with the least shared memory. The
/// measurements of kernels only have to end.
pub(crate) const MODELS: [Tests; 6] = [
    GOLDENS,
    DETERMINISTIC,
    Tests {
        source: "crates/engine/src/lib.rs",
        arguments: ONE_BY_ONE,
        names: &[
            "device_runner::tests::a_gpu_takes_no_memory_in_decodes",
            "device_runner::tests::graphs_end_before_the_group_of_their_sums",
        ],
        env: &[],
        races: Races::Ignored,
    },
    Tests {
        source: "crates/models/tests/all/main.rs",
        arguments: ONE_BY_ONE,
        names: &["device::gpus_compute_what_one_does"],
        env: &[("CANDLEPOWER_EMULATED_GPUS", "2"), ("CANDLEPOWER_TEST_GPUS", "2")],
        races: Races::Ignored,
    },
    Tests {
        source: KERNELS,
        arguments: "--exact paged_attention latent_attention",
        names: &[],
        env: &[("CANDLEPOWER_EMULATED_MODEL", "l40s")],
        races: Races::Ignored,
    },
    Tests {
        source: KERNELS,
        arguments: "--times --small",
        names: &[],
        env: &[],
        races: Races::Ignored,
    },
];

const GOLDENS: Tests = Tests {
    source: "crates/models/tests/all/main.rs",
    arguments: ONE_BY_ONE,
    names: &[
        "device::a_gpu_computes_every_architecture",
        "device::chunks::a_gpu_computes_long_prompts_of_hybrids",
    ],
    env: &[],
    races: Races::Ignored,
};

const EXPERTS_AND_PACKED: Tests = Tests {
    source: KERNELS,
    arguments: "expert packed",
    names: &[],
    env: &[],
    races: Races::Found,
};

const OTHER_KERNELS: Tests = Tests {
    source: KERNELS,
    arguments: "--skip expert --skip packed",
    names: &[],
    env: &[],
    races: Races::Found,
};

const KERNELS: &str = "crates/gpu/tests/cuda_kernels/main.rs";
const END_TO_END: &str = "tests/main.rs";

/// One test at a time, because each takes all memory of the emulated GPUs.
const ONE_BY_ONE: &str = "--ignored --nocapture --test-threads 1 --exact";

/// Tests of one program. Tests that are ignored without a GPU are listed by name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tests {
    /// The source file of the program. The target's name is ambiguous, since several packages have a target `all`.
    source: &'static str,
    arguments: &'static str,
    names: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    races: Races,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Races {
    /// Race detection in the kernels that are watched.
    Found,
    Ignored,
}

/// The kernels whose memory accesses are recorded to detect races. Their comparisons take up to four times as long.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    All,
    /// Names of the kernels' sources.
    Some(Vec<String>),
}

impl Watched {
    fn is_none(&self) -> bool {
        matches!(self, Self::Some(names) if names.is_empty())
    }
}

/// The extent of [`TESTS`] that runs, by what has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    /// All tests but the comparisons of kernels.
    Models,
    /// The server's tests only.
    Engine,
}

impl Scope {
    fn tests(self) -> &'static [Tests] {
        &TESTS[match self {
            Self::All => 0,
            Self::Models => 2,
            Self::Engine => 5,
        }..]
    }
}

/// Runs the tests, with race detection in the kernels that have changed.
pub(crate) fn run_steps(steps: &mut Steps, ahead: Option<Ahead>, scope: Scope) {
    let mut built = None;
    steps.run("emulate", |shell| {
        let digests = watched::digests(shell.root())?;
        let changed = watched::changes(shell.root(), &digests).kernels;
        let fact = match changed.as_slice() {
            [] => "no kernel has changed since the last race detection in all".to_owned(),
            changed => format!("race detection in {}", changed.join(", ")),
        };
        // Objects of other sources than today's are not used: a file may have changed since they were compiled.
        let ahead = ahead.filter(|ahead| ahead.is_of(&digests));
        built = Some(build(shell, &[PROGRAMS], Watched::Some(changed), ahead.as_ref())?);
        Ok(fact)
    });
    // In a smaller scope there is no build with nvcc, which ran these tests before.
    if scope != Scope::All {
        steps.run("no gpu", |shell| match &built {
            Some(built) => built.test_without_gpu(shell),
            None => bail!("it was not built"),
        });
    }
    steps.run("emulated", |shell| match &built {
        Some(built) => built.test(shell, scope.tests()),
        None => bail!("it was not built"),
    });
}

/// The folder of the emulated driver and the other stand-in libraries.
pub(crate) fn libraries(shell: &Shell) -> PathBuf {
    tools_folder(shell).join("emulator")
}

/// The build commands for all deep checks.
pub(crate) const ALL: [(&str, &str); 2] = [PROGRAMS, UNIT_TESTS];

/// The two build commands, with the packages that each excludes. Excluding more would give dependencies other
/// features, and they would be built again; `cargo build --unit-graph` shows that.
const PROGRAMS: (&str, &str) =
    ("build --bin candlepower --test main --test cuda_kernels --test all", "fuzz tokenizer");
/// Only the engine's unit tests run here, since a library's unit tests are a second copy of the whole library. The
/// end-to-end tests are named again: without their `syn`, every crate below a derive macro would be built again.
const UNIT_TESTS: (&str, &str) = (
    "test --no-run --lib --test main",
    "api checkpoint comm dialect fuzz hub kernels layout machine models scheduler server tokenizer xtask",
);

/// The built programs, and the kernels that they watch.
pub(crate) struct Built {
    /// Cargo's messages, a line of JSON each.
    messages: String,
    watched: Watched,
}

pub(crate) fn build(
    shell: &Shell,
    commands: &[(&str, &str)],
    watched: Watched,
    ahead: Option<&Ahead>,
) -> Result<Built> {
    let script = shell.root().join(EMULATOR).join("build.sh");
    let mut libcuda = shell.command(script);
    run(&mut with_toolkit(shell, libcuda.arg(libraries(shell))))?;
    let mut messages = String::new();
    for &what in commands {
        println!("$ cargo {}", what.0);
        let mut cargo = cargo(shell, what, &watched);
        if let Some(ahead) = ahead {
            cargo.env("CANDLEPOWER_EMULATED_OBJECTS", ahead.objects());
        }
        messages += &output(cargo.stderr(Stdio::inherit()))?;
    }
    Ok(Built { messages, watched })
}

/// Cargo with a stand-in for nvcc, for our kernels only. The result runs on the emulated GPU only.
fn cargo(shell: &Shell, (what, left_out): (&str, &str), watched: &Watched) -> Command {
    let mut cargo = shell.cargo(what);
    // With this format cargo's errors still reach the terminal as text.
    cargo.args(FEATURES.split_whitespace()).arg("--message-format=json-render-diagnostics");
    for package in left_out.split_whitespace() {
        cargo.args(["--exclude", &format!("candlepower-{package}")]);
    }
    let mut cargo = with_toolkit(shell, &cargo);
    with_stand_in(&mut cargo, shell, watched);
    cargo
}

/// The command with the stand-in's environment.
pub(crate) fn with_stand_in<'a>(
    command: &'a mut Command,
    shell: &Shell,
    watched: &Watched,
) -> &'a mut Command {
    command.env("CANDLEPOWER_NVCC", shell.root().join(EMULATOR).join("nvcc"));
    match watched {
        Watched::All => command.env_remove("CANDLEPOWER_WATCHED_KERNELS"),
        Watched::Some(names) => command.env("CANDLEPOWER_WATCHED_KERNELS", names.join(" ")),
    }
}

impl Built {
    /// Runs all programs in parallel, since each uses one processor. They are started directly: cargo would build
    /// dependencies again for a single target, with the features of that target.
    pub(crate) fn test(&self, shell: &Shell, tests: &[Tests]) -> Result<String> {
        // All are started before the first one is waited for.
        let outcomes: Vec<Result<String>> = std::thread::scope(|scope| {
            let runs: Vec<_> =
                tests.iter().map(|tests| scope.spawn(|| self.compare(shell, tests))).collect();
            runs.into_iter().map(|run| run.join().expect("a run does not panic")).collect()
        });
        let facts: Result<Vec<String>> = outcomes.into_iter().collect();
        Ok(facts?.concat())
    }

    /// The end-to-end tests that need no GPU, with no GPU visible.
    fn test_without_gpu(&self, shell: &Shell) -> Result<String> {
        let program = executable(&self.messages, &shell.root().join(END_TO_END))?;
        let mut command = shell.command(program);
        command.args(cuda::TESTS).env("CANDLEPOWER_BIN", binary(shell));
        run(command.env("CANDLEPOWER_TEST_CUDA", "1"))?;
        Ok(String::new())
    }

    /// The results that a run prints.
    fn compare(&self, shell: &Shell, tests: &Tests) -> Result<String> {
        let source = tests.source;
        let program = executable(&self.messages, &shell.root().join(source))?;
        let mut command = shell.command(program);
        command.args(tests.arguments.split_whitespace()).args(tests.names);
        command.envs(tests.env.iter().copied()).env("LD_LIBRARY_PATH", libraries(shell));
        command.env("CANDLEPOWER_TEST_CUDA", "1").env("CANDLEPOWER_BIN", binary(shell));
        if tests.races == Races::Found && !self.watched.is_none() {
            command.env("CANDLEPOWER_EMULATED_RACES", "1");
        }
        let (mut fact, mut totals, began) = (String::new(), Totals::default(), Instant::now());
        let succeeded = run_lines(&mut command, |line| {
            totals.add(line);
            // The test's name may come before the result.
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
        // A test that was renamed would otherwise match no name, and the run would pass. The comparisons' own
        // program prints no line that is counted, and is asked for none.
        let asked = tests.names.len();
        if totals.passed != asked {
            bail!("{source} was asked for {asked} tests and ran {}", totals.passed);
        }
        Ok(fact)
    }
}

/// The program built from a source file, according to cargo's messages.
fn executable<'a>(messages: &'a str, source: &Path) -> Result<&'a Path> {
    // Cargo escapes nothing in these paths, so a search in the text suffices.
    let of_source = format!("\"src_path\":\"{}\"", source.display());
    let of_source = messages.lines().filter(|message| message.contains(&of_source));
    let mut programs = of_source.filter_map(|message| {
        let (_, rest) = message.split_once("\"executable\":\"")?;
        Some(Path::new(rest.split_once('"')?.0))
    });
    programs.next().with_context(|| format!("cargo names no program of {}", source.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deep;

    /// Arguments, names, environment.
    type Run = (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);

    /// CI's runs on the emulated GPU before `cargo xtask deep` existed. Together the two must still do all of them.
    const BEFORE: [Run; 8] = [
        ("expert packed", &[], &[("CANDLEPOWER_EMULATED_RACES", "1")]),
        ("--skip expert --skip packed", &[], &[("CANDLEPOWER_EMULATED_RACES", "1")]),
        (
            "--exact paged_attention latent_attention",
            &[],
            &[("CANDLEPOWER_EMULATED_MODEL", "l40s")],
        ),
        ("--times --small", &[], &[]),
        (
            ONE_BY_ONE,
            &[
                "device::a_gpu_computes_every_architecture",
                "device::chunks::a_gpu_computes_long_prompts_of_hybrids",
            ],
            &[("CANDLEPOWER_TEST_TOKENS", "24")],
        ),
        (
            ONE_BY_ONE,
            &["device::gpus_compute_what_one_does"],
            &[("CANDLEPOWER_EMULATED_GPUS", "2"), ("CANDLEPOWER_TEST_GPUS", "2")],
        ),
        (
            ONE_BY_ONE,
            &[
                "device_runner::tests::a_gpu_takes_no_memory_in_decodes",
                "device_runner::tests::graphs_end_before_the_group_of_their_sums",
            ],
            &[],
        ),
        (
            ONE_BY_ONE,
            &[
                "cuda::an_emulated_gpu_answers_as_the_cpu_does",
                "cuda::emulated_gpus_answer_together_as_one_does",
            ],
            &[],
        ),
    ];

    /// The variables that shorten a run.
    const LIMITS: [&str; 2] = ["CANDLEPOWER_TEST_TOKENS", "CANDLEPOWER_TEST_DTYPE"];

    /// Whether a run covers a former run in full, without a new limit.
    fn does(tests: &Tests, watched: &Watched, (arguments, names, env): Run) -> bool {
        let mut has = tests.env.to_vec();
        if tests.races == Races::Found && !watched.is_none() {
            has.push(("CANDLEPOWER_EMULATED_RACES", "1"));
        }
        let needed = env.iter().filter(|(name, _)| !LIMITS.contains(name));
        tests.arguments == arguments
            && tests.names == names
            && needed.clone().all(|pair| has.contains(pair))
            && has.iter().all(|pair| env.contains(pair))
    }

    #[test]
    fn ci_and_deep_do_together_what_ci_did() {
        let unwatched = Watched::Some(Vec::new());
        let mut not_in_ci = Vec::new();
        for run in BEFORE {
            let in_ci = TESTS.iter().any(|tests| does(tests, &unwatched, run));
            let in_deep = deep::emulated_tests().any(|tests| does(tests, &Watched::All, run));
            assert!(in_ci || in_deep, "nothing does {run:?}");
            if !in_ci {
                not_in_ci.push((run.0, run.1));
            }
        }
        let goldens = [
            "device::a_gpu_computes_every_architecture",
            "device::chunks::a_gpu_computes_long_prompts_of_hybrids",
        ];
        let over_gpus = ["device::gpus_compute_what_one_does"];
        let runner = [
            "device_runner::tests::a_gpu_takes_no_memory_in_decodes",
            "device_runner::tests::graphs_end_before_the_group_of_their_sums",
        ];
        assert_eq!(
            not_in_ci,
            [
                ("expert packed", &[] as &[&str]),
                ("--skip expert --skip packed", &[]),
                ("--exact paged_attention latent_attention", &[]),
                ("--times --small", &[]),
                (ONE_BY_ONE, &goldens),
                (ONE_BY_ONE, &over_gpus),
                (ONE_BY_ONE, &runner),
            ],
            "the runs that CI leaves to deep"
        );
    }

    #[test]
    fn only_comparisons_are_left_out_where_no_kernel_has_changed() {
        let rest = TESTS.iter().filter(|tests| !COMPARISONS.contains(tests));
        assert!(rest.eq(Scope::Models.tests()));
        assert_eq!(Scope::Engine.tests(), [SERVER]);
        assert_eq!(Scope::All.tests(), TESTS);
    }

    #[test]
    fn kernels_that_have_changed_are_watched_in_ci() {
        let watched = Watched::Some(vec!["gemv".to_owned()]);
        for run in &BEFORE[..2] {
            assert!(TESTS.iter().any(|tests| does(tests, &watched, *run)), "{run:?}");
        }
    }

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
