//! `cargo xtask soak`: minutes of mixed traffic, attacks, or a flood, against servers of this build, with the tests
//! of `tests/soak`.

use anyhow::{Context, Result, bail};

use crate::steps::{Shell, run};
use crate::test;

const MIXED_TRAFFIC: &str = "soak::mixed_traffic";
const ATTACKS: &str = "soak::attacks";
const FAIRNESS: &str = "soak::fairness";

/// Default duration of one attack, in seconds.
const ATTACK_SECONDS: f64 = 60.0;

/// One run.
#[derive(Debug, PartialEq)]
struct Soak {
    /// Name of the ignored test.
    test: &'static str,
    seconds: f64,
    /// Seed of the requests; a random one if `None`.
    seed: Option<u64>,
    /// Names of the attacks; all if empty.
    attacks: Vec<String>,
}

impl Soak {
    fn parse(arguments: &[String]) -> Result<Self> {
        let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let seed = match arguments.iter().position(|argument| *argument == "--seed") {
            None => None,
            Some(at) => {
                arguments.remove(at);
                let seed = arguments.get(at).copied().context("--seed needs a number")?;
                arguments.remove(at);
                Some(seed.parse().with_context(|| format!("the seed `{seed}` is no number"))?)
            }
        };
        let number = |text: &str| text.parse().ok().filter(|number: &f64| *number > 0.0);
        let soak = |test, seconds| Self { test, seconds, seed, attacks: Vec::new() };
        match arguments.as_slice() {
            ["--fairness"] => Ok(soak(FAIRNESS, 0.0)),
            ["--attacks", more @ ..] => {
                let seconds = more.first().and_then(|first| number(first));
                let names = &more[usize::from(seconds.is_some())..];
                let attacks = names.iter().map(|name| (*name).to_owned()).collect();
                Ok(Self { attacks, ..soak(ATTACKS, seconds.unwrap_or(ATTACK_SECONDS)) })
            }
            [minutes] if number(minutes).is_some() => {
                Ok(soak(MIXED_TRAFFIC, 60.0 * number(minutes).unwrap_or_default()))
            }
            _ => bail!(
                "`cargo xtask soak` takes MINUTES, --attacks [SECONDS] [NAME..] or --fairness; and --seed N"
            ),
        }
    }
}

pub(crate) fn soak(shell: &Shell, arguments: &[String]) -> Result<String> {
    let soak = Soak::parse(arguments)?;
    test::build(shell)?;
    // Any number that differs between runs serves. The summary prints it for a repetition.
    let seed = soak.seed.unwrap_or_else(|| std::process::id().into());
    let mut cargo = shell.cargo("test --workspace --test main --locked");
    cargo
        .args(test::FEATURES)
        .args(["--", "--ignored", "--exact", "--nocapture", soak.test])
        .env("CANDLEPOWER_SOAK_SECONDS", soak.seconds.to_string())
        .env("CANDLEPOWER_SOAK_SEED", seed.to_string())
        .env("CANDLEPOWER_SOAK_ATTACKS", soak.attacks.join(" "));
    run(&mut cargo)?;
    Ok(format!("seed {seed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &str) -> Result<Soak> {
        let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
        Soak::parse(&arguments)
    }

    #[test]
    fn arguments_say_what_is_run_and_for_how_long() {
        let soak = |test, seconds, seed, attacks: &[&str]| Soak {
            test,
            seconds,
            seed,
            attacks: attacks.iter().map(|name| (*name).to_owned()).collect(),
        };
        for (arguments, expected) in [
            ("20", soak(MIXED_TRAFFIC, 1200.0, None, &[])),
            ("0.5 --seed 7", soak(MIXED_TRAFFIC, 30.0, Some(7), &[])),
            ("--attacks", soak(ATTACKS, 60.0, None, &[])),
            ("--attacks 5", soak(ATTACKS, 5.0, None, &[])),
            ("--attacks deep runs --seed 1", soak(ATTACKS, 60.0, Some(1), &["deep", "runs"])),
            ("--attacks 300 deep", soak(ATTACKS, 300.0, None, &["deep"])),
            ("--attacks 300 --seed 1 deep", soak(ATTACKS, 300.0, Some(1), &["deep"])),
            ("--seed 7 20", soak(MIXED_TRAFFIC, 1200.0, Some(7), &[])),
            ("--fairness", soak(FAIRNESS, 0.0, None, &[])),
        ] {
            assert_eq!(parse(arguments).unwrap(), expected, "{arguments}");
        }
    }

    #[test]
    fn what_is_no_run_is_refused() {
        for arguments in [
            "",
            "ten",
            "0",
            "-1",
            "5 --seed",
            "5 --seed x",
            "5 6",
            "5 --seed 7 8",
            "--fairness 3",
            "--fairness --seed 7 3",
        ] {
            assert!(parse(arguments).is_err(), "{arguments}");
        }
    }
}
