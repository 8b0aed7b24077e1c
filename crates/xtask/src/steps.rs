//! Runs named steps in sequence. A failed step does not stop the others, and a summary ends the run.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Limit of the lines that the end of the output repeats of one error.
const LINES_OF_ERROR: usize = 60;

/// The steps so far, and the folder that they run in.
pub(crate) struct Steps {
    shell: Shell,
    done: Vec<Done>,
}

struct Done {
    name: &'static str,
    outcome: Result<String>,
    took: Duration,
    /// CPU seconds of its programs. Other work on the machine affects them less than the elapsed time.
    cpu: f64,
}

impl Steps {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { shell: Shell { root, is_nice: false }, done: Vec::new() }
    }

    /// Runs one step and keeps its outcome: a line for the summary, or the reason of its failure.
    pub(crate) fn run(&mut self, name: &'static str, step: impl FnOnce(&Shell) -> Result<String>) {
        self.succeeds(name, step);
    }

    /// Like [`Self::run`]; returns whether the step succeeded.
    pub(crate) fn succeeds(
        &mut self,
        name: &'static str,
        step: impl FnOnce(&Shell) -> Result<String>,
    ) -> bool {
        println!("\n=== {name}");
        let (start, before) = (Instant::now(), cpu_seconds());
        let outcome = step(&self.shell);
        if let Err(error) = &outcome {
            println!("{error:#}");
        }
        let (took, cpu) = (start.elapsed(), cpu_seconds() - before);
        let succeeded = outcome.is_ok();
        self.done.push(Done { name, outcome, took, cpu });
        succeeded
    }

    /// Prints the summary. The exit code is a failure if any step has failed.
    pub(crate) fn finish(self) -> ExitCode {
        println!("\n=== summary: elapsed seconds, and CPU seconds");
        for step in &self.done {
            let (word, note) = match &step.outcome {
                Ok(note) => ("ok", note.clone()),
                Err(error) => ("FAILED", first_line(&format!("{error:#}"))),
            };
            let (took, cpu) = (step.took.as_secs_f64(), step.cpu);
            println!("{word:<7} {:<11} {took:>7.1} {cpu:>7.1}  {note}", step.name);
        }
        let took: Duration = self.done.iter().map(|step| step.took).sum();
        let cpu: f64 = self.done.iter().map(|step| step.cpu).sum();
        println!("        {:<11} {:>7.1} {cpu:>7.1}", "in all", took.as_secs_f64());
        // A service that keeps only the end of the output keeps the reasons, too.
        for step in &self.done {
            if let Err(error) = &step.outcome {
                println!("\n=== failed: {}\n{}", step.name, shortened(&format!("{error:#}")));
            }
        }
        match self.done.iter().all(|step| step.outcome.is_ok()) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }
    }
}

/// CPU seconds of this process and of the children that it has waited for; 0 if the system is not Linux.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    parse_cpu_seconds(&stat).unwrap_or_default()
}

/// Sum of user and system time, of the process and its children, in clock ticks of 10 ms, after the program's name.
fn parse_cpu_seconds(stat: &str) -> Option<f64> {
    // The name of a program may have parentheses and spaces, so the fields are counted from the last parenthesis.
    let (_, fields) = stat.rsplit_once(')')?;
    let times: Vec<f64> =
        // `utime`, `stime`, `cutime` and `cstime` are the fields 14 to 17 of proc(5), and the first one here is
        // field 3.
        fields.split_whitespace().skip(11).take(4).map_while(|time| time.parse().ok()).collect();
    (times.len() == 4).then(|| times.iter().sum::<f64>() / 100.0)
}

/// The first lines of a text, and how many were left out.
fn shortened(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let (first, rest) = lines.split_at(lines.len().min(LINES_OF_ERROR));
    let mut short = first.join("\n");
    if !rest.is_empty() {
        short.push_str(&format!("\n.. and {} more lines above", rest.len()));
    }
    short
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// Starts programs in the workspace's root.
pub(crate) struct Shell {
    root: PathBuf,
    is_nice: bool,
}

impl Shell {
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Starts programs with the lowest priority, so that they use idle processors only.
    pub(crate) fn nice(&self) -> Self {
        Self { root: self.root.clone(), is_nice: true }
    }

    /// A command in the root, not yet started. The variables that `cargo run` sets for this tool are removed.
    /// Otherwise a build script that watches one of them would run again after every cargo that was started by hand,
    /// and half of the build with it.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self.is_nice {
            true => Command::new("nice"),
            false => Command::new(&program),
        };
        if self.is_nice {
            command.args(["-n", "19"]).arg(&program);
        }
        let of_this_tool = |name: &OsString| {
            let name = name.to_string_lossy();
            ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|prefix| name.starts_with(prefix))
        };
        for name in std::env::vars_os().map(|(name, _)| name).filter(of_this_tool) {
            command.env_remove(name);
        }
        command.current_dir(&self.root);
        command
    }

    /// The cargo that started this tool, with these arguments, separated by spaces.
    pub(crate) fn cargo(&self, arguments: &str) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = self.command(cargo);
        command.args(arguments.split_whitespace());
        command
    }
}

/// Runs a command to its end and shows its output.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", shown(command));
    let status = command.status().with_context(|| format!("could not start {}", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs a command to its end, shows each line of its standard output and passes it to `on_line`. `Ok(false)` means
/// that the command ran and failed.
pub(crate) fn run_lines(command: &mut Command, mut on_line: impl FnMut(&str)) -> Result<bool> {
    println!("$ {}", shown(command));
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("could not start {}", shown(command)))?;
    let stdout = child.stdout.take().expect("the standard output is piped");
    // Bytes and not lines of text: programs may print anything.
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        on_line(&line);
    }
    Ok(child.wait()?.success())
}

/// Runs a command without showing its output, and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("could not start {}", shown(command)))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{} ended with {}: {}", shown(command), output.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command as one would type it.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_error_is_repeated_in_part() {
        assert_eq!(shortened("a\nb"), "a\nb");
        let lines: Vec<_> = (1..=LINES_OF_ERROR + 2).map(|line| line.to_string()).collect();
        let short = shortened(&lines.join("\n"));
        let wanted = format!("\n{LINES_OF_ERROR}\n.. and 2 more lines above");
        assert!(short.ends_with(&wanted), "{short}");
    }

    #[test]
    fn a_failed_step_does_not_stop_the_next_and_fails_the_whole() {
        let mut steps = Steps::new(std::env::temp_dir());
        let mut second_ran = false;
        steps.run("first", |shell| run(&mut shell.command("false")).map(|()| String::new()));
        steps.run("second", |_| {
            second_ran = true;
            Ok("fine".to_owned())
        });
        assert!(second_ran);
        assert_eq!(steps.finish(), ExitCode::FAILURE);
    }

    #[test]
    fn processors_seconds_are_read_behind_any_name() {
        let stat = "7 (a) b (c) R 1 7 7 0 -1 4194304 95 0 0 0 150 50 200 100 20 0 1 0 8 9";
        assert_eq!(parse_cpu_seconds(stat), Some(5.0));
        assert_eq!(parse_cpu_seconds("7 (a) R 1"), None);
    }

    #[test]
    fn lines_are_handed_on_and_the_exit_status_is_told() {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two; exit 3"]);
        let succeeded = run_lines(&mut command, |line| lines.push(line.to_owned())).unwrap();
        assert!(!succeeded);
        assert_eq!(lines, ["one", "two"]);
    }
}
