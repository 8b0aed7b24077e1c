//! Runs the rounds of one target in a process of its own, so that its crash is reported with the seed of the round.

use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::targets::Folder;
use crate::watch::Watch;
use crate::{Budget, Report, TARGETS, Target};

/// The hidden command of `candlepower-fuzz` that runs the rounds of one target.
pub const ROUNDS_COMMAND: &str = "__rounds";
/// Interval of the checks on the resources of the running round.
const WATCH: Duration = Duration::from_millis(20);
/// Precedes the report, in place of a seed.
const REPORT: u64 = u64::MAX;

/// Runs rounds of a target, starting with `first_seed`, in a child process that runs `program`.
///
/// # Errors
/// The target and the seed of the failed round, and the child's exit status. The child has written the details to
/// standard error.
pub fn run(
    target: &Target,
    program: &Path,
    first_seed: u64,
    budget: Budget,
) -> Result<Report, String> {
    // The child may be killed, so its files are removed here.
    let folder = Folder::new();
    let (unit, amount) = match budget {
        Budget::Rounds(rounds) => ("rounds", rounds),
        Budget::Time(time) => ("ms", time.as_millis() as u64),
    };
    let mut child = Command::new(program)
        .args([ROUNDS_COMMAND, target.name, &first_seed.to_string(), unit, &amount.to_string()])
        // The deployments' state and temporary files of the child land in this folder, never in the user's own.
        .envs(["TMPDIR", "HOME", "XDG_STATE_HOME"].map(|name| (name, folder.path())))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    // The child's output is a sequence of u64 in little-endian order: the seed of each round as it begins, and at
    // the end `REPORT` with both counts.
    let mut numbers = BufReader::new(child.stdout.take().unwrap());
    let mut next = || {
        let mut bytes = [0; 8];
        numbers.read_exact(&mut bytes).ok().map(|()| u64::from_le_bytes(bytes))
    };
    let (mut seed, mut report) = (None, None);
    while let Some(number) = next() {
        match number {
            REPORT => report = next().zip(next()),
            number => seed = Some(number),
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    // A report without success counts as a failure: the child may crash while it ends.
    match (report, seed) {
        (Some((accepted, refused)), _) if status.success() => Ok(Report { accepted, refused }),
        (_, Some(seed)) => Err(format!("{}: seed {seed}: {status}", target.name)),
        (_, None) => Err(format!("{}: before its first round: {status}", target.name)),
    }
}

/// The child process. Its arguments are the target's name, the first seed, and the budget.
pub fn run_rounds(arguments: &[String]) -> ExitCode {
    let [name, seed, unit, amount] = arguments else { return ExitCode::FAILURE };
    let target = TARGETS.iter().find(|target| target.name == name);
    let (Some(target), Ok(seed), Ok(amount)) = (target, seed.parse(), amount.parse()) else {
        return ExitCode::FAILURE;
    };
    let budget = match unit.as_str() {
        "rounds" => Budget::Rounds(amount),
        _ => Budget::Time(Duration::from_millis(amount)),
    };
    let watch = Arc::new(Watch::new(write));
    let rounds = {
        let watch = Arc::clone(&watch);
        // The stack has the size that most threads of a server have. Deep recursion must overflow here, too.
        std::thread::spawn(move || target.rounds(seed, budget, &watch))
    };
    while !rounds.is_finished() {
        std::thread::sleep(WATCH);
        if let Some(excess) = watch.running_excess() {
            eprintln!("{name}: the round {excess}");
            // The round continues until the process ends.
            return ExitCode::FAILURE;
        }
    }
    let Ok(report) = rounds.join() else { return ExitCode::FAILURE };
    for number in [REPORT, report.accepted, report.refused] {
        write(number);
    }
    ExitCode::SUCCESS
}

/// Writes a number without a buffer, since the process may crash in the next instruction.
fn write(number: u64) {
    let mut stdout = std::io::stdout().lock();
    // Nobody reads it if the parent has ended.
    let _ = stdout.write_all(&number.to_le_bytes()).and_then(|()| stdout.flush());
}
