//! Long runs, started by `cargo xtask soak`: mixed traffic, attacks beside a plain stream, and a flood beside another
//! caller.

mod attacks;
mod fairness;
mod traffic;
mod watch;

use std::str::FromStr;
use std::time::Duration;

/// A setting of the command, passed as an environment variable.
fn setting<T: FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(format!("CANDLEPOWER_SOAK_{name}")).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("CANDLEPOWER_SOAK_{name} is `{value}`")))
}

#[test]
#[ignore = "needs minutes: cargo xtask soak MINUTES"]
fn mixed_traffic() {
    let seconds = setting("SECONDS").unwrap_or(60.0);
    let seed = setting("SEED").unwrap_or(1);
    for framework in ["blaze", "prism"] {
        traffic::run(framework, Duration::from_secs_f64(seconds / 2.0), seed);
    }
}

#[test]
#[ignore = "needs a minute for each attack: cargo xtask soak --attacks"]
fn attacks() {
    let length = Duration::from_secs_f64(setting("SECONDS").unwrap_or(60.0));
    let names: String = setting("ATTACKS").unwrap_or_default();
    attacks::run(length, &names, setting("SEED").unwrap_or(1));
}

#[test]
#[ignore = "needs a machine of its own to measure: cargo xtask soak --fairness"]
fn fairness() {
    fairness::run();
}
