//! Starts this program as a child process, for work that needs limits of memory and time.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

/// This binary, also after its file was replaced by a newer one.
const OWN_BINARY: &str = "/proc/self/exe";

/// Settings of a child's allocator. By default it reserves 1 GiB at once, within which a memory limit has no effect. It also keeps freed
/// memory for a second, which the next constraint would reuse without being counted.
const ALLOCATOR: [(&str, &str); 3] = [
    ("MIMALLOC_ARENA_RESERVE", "32MiB"),
    ("MIMALLOC_ARENA_EAGER_COMMIT", "0"),
    ("MIMALLOC_PURGE_DELAY", "0"),
];

/// Set in a process whose binary has the hidden commands.
static KNOWS_COMMANDS: OnceLock<()> = OnceLock::new();

/// Declares that this binary has the hidden commands [`TEMPLATE_COMMAND`](crate::TEMPLATE_COMMAND) and
/// [`CONSTRAINT_COMMAND`](crate::CONSTRAINT_COMMAND). Without it, templates and constraints are used without a trial.
pub fn try_in_children() {
    KNOWS_COMMANDS.get_or_init(|| ());
}

/// Whether this binary has the hidden commands.
pub(crate) fn knows_commands() -> bool {
    KNOWS_COMMANDS.get().is_some()
}

/// This program with a hidden command. It has its own process group, so that a terminal's Ctrl-C does not reach it.
pub(crate) fn own_program(command: &str) -> Command {
    // The name in the process list is that of the program, not `exe`.
    let mut program = Command::new(OWN_BINARY);
    program.arg0("candlepower").arg(command).process_group(0).envs(ALLOCATOR);
    program
}
