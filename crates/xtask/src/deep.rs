//! `cargo xtask deep`: long checks that rarely fail, in parts that can run alone. CI omits them, a release must pass
//! them.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::emulated::{self, COMPARISONS, MODELS, Tests, Watched};
use crate::steps::Steps;
use crate::watched::{self, Passed};
use crate::{agents, cuda, soak, test};

const PARTS: [Part; 7] = [
    Part {
        name: "races",
        covers: "all comparisons of kernels on the emulated GPU, with race detection in every kernel; then writes the digests by which CI finds changed kernels",
        work: Work::Emulated(&COMPARISONS),
    },
    Part {
        name: "goldens",
        covers: "the goldens of all models on the emulated GPU: in bf16 every token of their prompts, in f16 a block; the step runner; the models on two GPUs; attention with little shared memory; the measurements; then writes the digests by which CI finds changed models and a changed engine",
        work: Work::Emulated(&MODELS),
    },
    Part {
        name: "real",
        covers: "SmolLM2-135M compared with transformers: all eighteen texts, twenty chats and twenty schemas, of which the tests run some; thirteen published vocabularies compared with llama.cpp",
        work: Work::RealModel,
    },
    Part {
        name: "fuzz",
        covers: "ten minutes of mutated files and texts for every parser, with a new seed each time",
        work: Work::Fuzz { seconds: 600 },
    },
    Part {
        name: "soak",
        covers: "ten minutes of mixed traffic against servers of both frameworks, with a new seed each time: nothing fails, nothing leaks",
        work: Work::Soak { minutes: 10 },
    },
    Part {
        name: "capabilities",
        covers: "the CUDA build for every compute capability, with the kernel for Hopper on 9.0, each linked and started without a GPU",
        work: Work::Capabilities,
    },
    Part {
        name: "agents",
        covers: "coding agents from npm complete a turn without a network; tools of MCP servers from npm in all tool formats; hundreds of forced calls for each format",
        work: Work::Agents,
    },
];

struct Part {
    name: &'static str,
    covers: &'static str,
    work: Work,
}

enum Work {
    /// With race detection in all kernels, if these tests look for races.
    Emulated(&'static [Tests]),
    RealModel,
    Fuzz {
        seconds: u32,
    },
    Soak {
        minutes: u32,
    },
    Capabilities,
    Agents,
}

/// Whether a part succeeded, and its duration; `None` if it was not selected.
type Outcome = Option<(bool, Duration)>;

/// The parts, one line each, with the checks that they cover.
pub(crate) fn list() -> String {
    PARTS.iter().map(|part| format!("{:<8} {}\n", part.name, part.covers)).collect()
}

/// Runs the named parts, or all, and reports the parts that ran and those that did not.
pub(crate) fn run(mut steps: Steps, names: &[String]) -> Result<ExitCode> {
    let chosen = choose(names)?;
    // A part that fails does not stop the others: each takes minutes, and the report has a line for all.
    let outcomes = std::array::from_fn(|index| {
        chosen[index].then(|| {
            let began = Instant::now();
            (PARTS[index].run(&mut steps), began.elapsed())
        })
    });
    let code = steps.finish();
    print!("\n{}", report(&outcomes));
    Ok(code)
}

/// Selects the named parts, or all if none is named.
fn choose(names: &[String]) -> Result<[bool; PARTS.len()]> {
    if let Some(unknown) = names.iter().find(|name| PARTS.iter().all(|part| part.name != *name)) {
        bail!("`{unknown}` is not a part of `cargo xtask deep`; its parts are\n{}", list());
    }
    let is_named = |part: &Part| names.iter().any(|name| name == part.name);
    Ok(PARTS.each_ref().map(|part| names.is_empty() || is_named(part)))
}

fn report(outcomes: &[Outcome; PARTS.len()]) -> String {
    let line = |(part, outcome): (&Part, &Outcome)| {
        let word = match outcome {
            Some((true, _)) => "covered",
            Some((false, _)) => "FAILED",
            None => "not run",
        };
        let took =
            outcome.map_or(String::new(), |(_, took)| format!("{:.0} s", took.as_secs_f64()));
        format!("{word:<7} {:<12} {took:>7}  {}\n", part.name, part.covers)
    };
    PARTS.iter().zip(outcomes).map(line).collect()
}

impl Part {
    fn run(&self, steps: &mut Steps) -> bool {
        match self.work {
            Work::Emulated(tests) => self.on_emulated_gpu(steps, tests),
            Work::RealModel => steps.succeeds(self.name, test::whole_real_model),
            Work::Fuzz { seconds } => {
                steps.succeeds(self.name, |shell| test::fuzz(shell, &[seconds.to_string()]))
            }
            Work::Soak { minutes } => {
                steps.succeeds(self.name, |shell| soak::soak(shell, &[minutes.to_string()]))
            }
            Work::Capabilities => {
                steps.succeeds("toolkit", cuda::toolkit)
                    && steps.succeeds(self.name, cuda::all_capabilities)
            }
            Work::Agents => steps.succeeds(self.name, agents::all),
        }
    }

    /// The digests are taken before the build, so that they belong to the sources that were built.
    fn on_emulated_gpu(&self, steps: &mut Steps, tests: &'static [Tests]) -> bool {
        let (mut digests, mut built) = (None, None);
        // The comparisons are programs of their own. Only the other tests need the build of unit tests.
        let commands = if tests == COMPARISONS { &emulated::ALL[..1] } else { &emulated::ALL };
        steps.succeeds("toolkit", cuda::toolkit)
            && steps.succeeds("emulate", |shell| {
                digests = Some(watched::digests(shell.root())?);
                built = Some(emulated::build(shell, commands, Watched::All, None)?);
                Ok("race detection in every kernel".to_owned())
            })
            && steps.succeeds(self.name, |shell| {
                let fact = built.context("it was not built")?.test(shell, tests)?;
                let passed = if tests == COMPARISONS { Passed::Races } else { Passed::Goldens };
                watched::write(shell.root(), &digests.context("there are no digests")?, passed)?;
                Ok(fact)
            })
    }
}

/// All tests that the parts run on the emulated GPU.
#[cfg(test)]
pub(crate) fn emulated_tests() -> impl Iterator<Item = &'static Tests> {
    PARTS.iter().flat_map(|part| match part.work {
        Work::Emulated(tests) => tests,
        Work::RealModel
        | Work::Fuzz { .. }
        | Work::Soak { .. }
        | Work::Capabilities
        | Work::Agents => &[],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn parts_are_chosen_by_name_and_all_without_one() {
        assert_eq!(choose(&[]).unwrap(), [true; 7]);
        let chosen = [true, false, false, true, false, false, false];
        assert_eq!(choose(&names(&["fuzz", "races"])).unwrap(), chosen);
        let error = choose(&names(&["races", "golden"])).unwrap_err().to_string();
        assert!(error.starts_with("`golden` is not a part"), "{error}");
        assert!(PARTS.iter().all(|part| error.contains(part.name)), "{error}");
    }

    #[test]
    fn the_report_names_what_was_not_run() {
        let outcomes = [
            Some((true, Duration::from_secs(90))),
            Some((false, Duration::ZERO)),
            None,
            None,
            None,
            None,
            None,
        ];
        let report = report(&outcomes);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = report.lines().map(words).collect();
        assert!(lines[0].starts_with("covered races 90 s all comparisons"), "{report}");
        assert!(lines[1].starts_with("FAILED goldens 0 s the goldens"), "{report}");
        assert!(lines[3].starts_with("not run fuzz ten minutes"), "{report}");
    }

    #[test]
    fn the_guide_names_every_part() {
        let guide = crate::workspace_root().join("CONTRIBUTING.md");
        let guide = std::fs::read_to_string(guide).unwrap();
        for part in &PARTS {
            assert!(guide.contains(&format!("| `{}` |", part.name)), "{}", part.name);
        }
        assert!(guide.contains(watched::FILE));
    }
}
