//! Standard output and standard error, written such that a missing reader does not end the program.
//!
//! The macros of the standard library panic where a write fails, so a lint keeps them out of the product.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether some output could not be written, except because its reader had closed the pipe.
static OUTPUT_FAILED: AtomicBool = AtomicBool::new(false);

/// Writes to standard output. Returns whether more may be written.
///
/// A reader that has closed the pipe, like `head`, ends the output quietly. Another failure is reported once, and
/// [`output_failed`] is true from then on.
pub fn print(text: &str) -> bool {
    let mut output = io::stdout().lock();
    // Without the flush a failure would be lost: the buffer's own write at the end of the process reports to
    // nobody.
    let Err(error) = output.write_all(text.as_bytes()).and_then(|()| output.flush()) else {
        return true;
    };
    // Rust ignores SIGPIPE, so a closed pipe arrives here as an error.
    if error.kind() != ErrorKind::BrokenPipe && !OUTPUT_FAILED.swap(true, Ordering::Relaxed) {
        print_error(format_args!("error: standard output cannot be written: {error}"));
    }
    false
}

/// Writes a line to standard error. A failure has nowhere to be reported.
pub fn print_error(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Whether the exit status must report that output is missing.
#[must_use]
pub fn output_failed() -> bool {
    OUTPUT_FAILED.load(Ordering::Relaxed)
}
