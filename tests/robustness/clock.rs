//! A clock that was never set. A start before 1970 is refused with one line.

use std::process::Command;

use crate::support::{ServerBuilder, TempFolder};

/// A library that subtracts two thousand million seconds from the time of day.
const SHIM: &str = "
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
// The libc's function is replaced, so the time comes from the kernel itself.
int clock_gettime(clockid_t clock, struct timespec *time) {
    long failed = syscall(SYS_clock_gettime, clock, time);
    if (!failed && clock == CLOCK_REALTIME) time->tv_sec -= 2000000000;
    return (int)failed;
}
";

#[test]
fn a_start_before_1970_is_refused_in_one_line() {
    let folder = TempFolder::new();
    let (source, library) = (folder.write("clock.c", SHIM), folder.path().join("clock.so"));
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    assert!(compiler.status().unwrap().success());

    let refused = ServerBuilder::new("demo").env("LD_PRELOAD", library.to_str().unwrap()).refused();
    let line = refused.message.trim();
    // 2,000,000,000 seconds are 63 years.
    assert!(line.starts_with("1963-") && line.lines().count() == 1, "{line}");
    assert!(line.ends_with("ERROR the clock of this machine is before 1970: set it"), "{line}");
}
