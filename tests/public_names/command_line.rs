//! Subcommands, flags and their values, as the program's own completions for bash list them.

use super::{Names, sources};
use crate::support::program;

/// Other names of values. Neither help nor completions show them.
const VALUE_ALIASES: [(&str, &str); 3] =
    [("--dtype", "float"), ("--dtype", "half"), ("--kv-cache-dtype", "fp8_e4m3")];

pub(super) fn collect(names: &mut Names) {
    completions(&output(&["completions", "bash"]), names);
    for (flag, alias) in VALUE_ALIASES {
        if program().args(["config", "demo", flag, alias]).output().unwrap().status.success() {
            names.add(format!("alias {alias}"));
        }
    }
    // Aliases of flags are in no help either.
    for crate_name in ["candlepower", "server"] {
        let literals = sources::of(crate_name).literals();
        for alias in literals.attribute_values("alias") {
            names.add(format!("alias {alias}"));
        }
    }
}

pub(super) fn output(args: &[&str]) -> String {
    let output = program().args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Reads the script by its indentation. Each command has a line `opts`, and a case for each flag with a value.
fn completions(script: &str, names: &mut Names) {
    let (mut command, mut flag) = (String::new(), String::new());
    for line in script.lines() {
        let text = line.trim_start();
        let depth = line.len() - text.len();
        match text.strip_suffix(')') {
            // The depths are those of clap_complete's script.
            Some(name) if depth == 8 && name.starts_with("candlepower") => {
                command = name.replace("__subcmd__", " ");
                flag.clear();
            }
            Some(name) if depth == 16 && name.starts_with('-') => flag = name.to_owned(),
            _ => {}
        }
        // `candlepower help serve` repeats `candlepower serve`.
        if command.contains(" help") {
            continue;
        }
        if let Some(words) = quoted(text, "opts=\"")
            && !command.is_empty()
        {
            for word in words.split_whitespace() {
                names.add(format!("{command} {word}"));
            }
        }
        if let Some(values) = quoted(text, "COMPREPLY=($(compgen -W \"")
            // `${opts}` was read from its own line.
            && !values.starts_with('$')
        {
            for value in values.split_whitespace() {
                names.add(format!("{command} {flag} {value}"));
            }
        }
    }
    assert!(
        names.0.contains("candlepower serve --port"),
        "the script is of another form: {names:?}"
    );
}

fn quoted<'a>(text: &'a str, start: &str) -> Option<&'a str> {
    text.strip_prefix(start)?.split('"').next()
}
