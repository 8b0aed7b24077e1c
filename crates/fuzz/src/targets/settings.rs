//! Mutates config files, environments and files of API keys.

use std::ffi::OsString;
use std::path::PathBuf;

use candlepower_server::{ServeConfig, describe_api_keys};
use clap::{Args, Command};
use fastrand::Rng;

use super::{Folder, repository};
use crate::{Round, Verdict, change};

const PIECES: [&str; 22] = [
    "[",
    "]",
    "[[",
    "=",
    "\"",
    "\"\"\"",
    "'",
    "\n",
    "#",
    ".",
    "{",
    "}",
    ",",
    "true",
    "-1",
    "0",
    "1e400",
    "18446744073709551616",
    "inf",
    "64Gi",
    "\u{0}",
    "é",
];
const VALUES: [&str; 20] = [
    "",
    "0",
    "-1",
    "1",
    "18446744073709551615",
    "1e300",
    "nan",
    "0.5",
    "true",
    "on",
    "auto",
    "none",
    "demo",
    "64Mi",
    "999999999Ti",
    "::1",
    "10.0.0.0/8,::/0",
    "a,b,,c",
    "\u{0}",
    "é",
];

pub(super) fn open() -> Round {
    let defaults = std::fs::read_to_string(repository("configs/default.toml")).unwrap();
    let lines = settings(&defaults);
    let folder = Folder::new();
    Box::new(move |random| {
        // Up to 256 keys: costs that grow faster than the file show here.
        let keys: String = (0..1 << random.u32(0..9)).map(key).collect();
        let keys = if random.bool() { change::text(&keys, &PIECES, random) } else { keys };
        folder.write("keys.toml", keys.as_bytes());
        let mut file: String = (0..random.usize(..6))
            .map(|_| format!("{}\n", random.choice(&lines).unwrap()))
            .collect();
        if random.bool() {
            file = change::text(&file, &PIECES, random);
        }
        folder.write("config.toml", file.as_bytes());
        let keys = random.bool().then(|| folder.path().join("keys.toml"));
        let env: Vec<_> = (0..random.usize(..3)).map(|_| variable(&lines, random)).collect();
        read(folder.path().join("config.toml"), keys, env)
    })
}

fn key(index: usize) -> String {
    let secret = match index % 2 {
        0 => format!("key = \"secret-{index}\""),
        _ => format!("sha256 = \"{index:064x}\""),
    };
    format!(
        "[[key]]\nname = \"caller-{index}\"\n{secret}\nmax_concurrent = 4\nmax_tokens_per_minute = 1000\n\
         weight = 2\nmin_priority = -1\nadmin = true\n"
    )
}

/// Reads the settings as `serve` does.
fn read(file: PathBuf, keys: Option<PathBuf>, env: Vec<(OsString, OsString)>) -> Verdict {
    let mut arguments = vec!["serve".into(), "--config".into(), file.into_os_string()];
    if let Some(keys) = keys {
        arguments.extend(["--api-keys-file".into(), keys.into_os_string()]);
    }
    let command = ServeConfig::augment_args(Command::new("serve"));
    let flags = command.try_get_matches_from(arguments).unwrap();
    match ServeConfig::resolve(&flags, env) {
        Ok(effective) => {
            let _ = effective.to_toml();
            Verdict::of(describe_api_keys(&effective.config))
        }
        Err(error) => Verdict::Refused(error.to_string()),
    }
}

/// A setting in the environment.
fn variable(lines: &[String], random: &mut Rng) -> (OsString, OsString) {
    let prefix = *random.choice(&["BLAZE_", "PRISM_", "HF_"]).unwrap();
    let (name, _) = random.choice(lines).unwrap().split_once(" =").unwrap();
    let value = *random.choice(&VALUES).unwrap();
    (format!("{prefix}{}", name.to_uppercase()).into(), value.into())
}

/// The lines of the default file that are settings, including those that are commented out.
fn settings(defaults: &str) -> Vec<String> {
    let lines = defaults.lines().map(|line| line.trim_start_matches("# "));
    let is_setting = |line: &&str| {
        let name = line.split_once(" = ").map(|(name, _)| name);
        name.is_some_and(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
    };
    lines.filter(is_setting).map(str::to_owned).collect()
}
