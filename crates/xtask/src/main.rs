//! The project's tasks. `cargo xtask ci` is all of CI, the other commands are parts of it.

#![expect(clippy::print_stdout, reason = "a command-line tool answers on its standard output")]

mod advisories;
mod agents;
mod ahead;
mod check;
mod ci;
mod cuda;
mod deep;
mod emulated;
mod inlined;
mod instruction_sets;
mod notices;
mod packages;
mod pages;
mod prose;
mod site;
mod soak;
mod steps;
mod test;
mod tidy;
mod tools;
mod watched;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

use emulated::Scope;
use steps::{Shell, Steps};

const USAGE: &str = "\
cargo xtask <command>

  ci      check, test, a minute of fuzz, cuda
  deep [PART..]  long checks that rarely fail, all or some parts; `deep --list` describes the parts
  check   fmt, tidy, typos, deny, notices, advisories, clippy, doc
  test    builds the binary and runs every test; needs only Rust and Python
  cuda    a CUDA build and its tests without a GPU, then emulated; reuses the build of test; needs g++ and x86-64
  emulated  a CUDA build for an emulated GPU: comparisons of kernels, the goldens and the server
  wheel   builds the Python wheel around the debug binary and tests it; part of test
  fuzz SECONDS [--seed N] [TARGET..]  mutated files and texts for all parsers, or for some
  soak MINUTES [--seed N]  mixed traffic against both frameworks: nothing fails, nothing leaks
  soak --attacks [SECONDS] [NAME..] [--seed N]  hostile clients, and the latency of other clients beside them
  soak --fairness  a caller's time to first token while another floods the server
  schema-suite FOLDER..  runs test suites of JSON schemas: docs/schema-suite.md
  advisories DATABASE  writes the snapshot of known vulnerabilities from a checkout of RustSec's database
  goldens  writes the weights of tests/golden that are generated from a seed, which the tests also do
  notices  writes THIRD-PARTY.txt, the licences of all linked code; `check` compares it with the crates
  docs    writes the generated parts of docs: the tables of models, the settings of configs/default.toml, the map of the sources
  site    writes the pages of docs as HTML to target/site; a dead link is an error
  prose [PATH|KIND..]  measures the project's English, or lists its faults by path or kind
  prose --tighten  removes sentences from .prose.txt that were corrected or deleted
  tidy    the project's own rules: layers, file sizes, where `unsafe` lives, forbidden words, prose
";

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            println!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, more) = match arguments.split_first() {
        Some((command, more))
            if more.is_empty()
                // Other commands have no arguments, so that a mistyped one is not ignored.
                || ["advisories", "schema-suite", "fuzz", "prose", "deep", "soak"]
                    .contains(&command.as_str()) =>
        {
            (command, more)
        }
        _ => bail!("one command is expected\n\n{USAGE}"),
    };
    let root = workspace_root();
    let mut steps = Steps::new(root.clone());
    match command.as_str() {
        "ci" => ci::run_steps(&mut steps),
        "deep" if more == ["--list"] => {
            print!("{}", deep::list());
            return Ok(ExitCode::SUCCESS);
        }
        "deep" => return deep::run(steps, more),
        "check" => check::run_steps(&mut steps),
        "test" => test::run_steps(&mut steps),
        "cuda" => cuda::run_steps(&mut steps),
        "emulated" => {
            steps.run("toolkit", cuda::toolkit);
            emulated::run_steps(&mut steps, None, Scope::All);
        }
        "wheel" => {
            steps.run("build", test::build);
            steps.run("wheel", wheel::test);
        }
        "fuzz" => steps.run("fuzz", |shell| test::fuzz(shell, more)),
        "soak" => steps.run("soak", |shell| soak::soak(shell, more)),
        "schema-suite" => steps.run("suite", |shell| test::schema_suite(shell, more)),
        "advisories" => match more {
            [database] => steps
                .run("advisories", |shell| advisories::write_snapshot(shell, Path::new(database))),
            _ => bail!("`advisories` takes the folder of a checkout of RustSec's database"),
        },
        "goldens" => steps.run("goldens", goldens),
        "notices" => steps.run("notices", notices::write),
        "docs" => steps.run("docs", |_| tidy::write_docs(&root)),
        "site" => steps.run("site", |_| site::write(&root)),
        "prose" => steps.run("prose", |_| prose::run(&root, more)),
        "tidy" => steps.run("tidy", |_| tidy::run(&root)),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            return Ok(ExitCode::SUCCESS);
        }
        other => bail!("`{other}` is not a command\n\n{USAGE}"),
    }
    Ok(steps.finish())
}

/// Writes the generated weights of the goldens, for scripts and other machines.
fn goldens(_: &Shell) -> Result<String> {
    let folders =
        candlepower_testing::goldens::seeded_folders(&candlepower_testing::goldens::root())?;
    for folder in &folders {
        candlepower_testing::goldens::write_weights(folder)?;
    }
    Ok(format!("{} folders", folders.len()))
}

/// The folder of the workspace's `Cargo.toml`, independent of the current folder.
fn workspace_root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).expect("this package lies two folders below the root").to_path_buf()
}
