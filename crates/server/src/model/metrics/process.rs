//! Metrics of the server's process, with the names that Prometheus' client libraries give them.

use std::fmt::Write;
use std::fs;
use std::time::{Duration, SystemTime};

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

/// Fields of `/proc/self/stat` behind the name of the program. Source: proc(5), less 3.
const USER_TICKS: usize = 11;
const SYSTEM_TICKS: usize = 12;
const START_TICKS: usize = 19;
const VIRTUAL_BYTES: usize = 20;
const RESIDENT_PAGES: usize = 21;

/// Appends the metrics in Prometheus' text format, without labels. Metrics that cannot be read are left out.
pub(super) fn render(text: &mut String) {
    let mut write = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            // A String takes everything.
            let _ = write!(
                text,
                "# HELP process_{name} {help}\n# TYPE process_{name} {kind}\nprocess_{name} {value}\n\n"
            );
        }
    };
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program may contain spaces and parentheses.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let field = |index: usize| fields.get(index)?.parse::<f64>().ok();
    let seconds = |index| Some(field(index)? / clock_ticks_per_second() as f64);
    let cpu = seconds(USER_TICKS).zip(seconds(SYSTEM_TICKS)).map(|(user, system)| user + system);
    write("cpu_seconds_total", "counter", "Seconds of CPU time, of users and system.", cpu);
    let resident = field(RESIDENT_PAGES).map(|pages| pages * page_size() as f64);
    write("resident_memory_bytes", "gauge", "Bytes of resident memory.", resident);
    write("virtual_memory_bytes", "gauge", "Bytes of virtual memory.", field(VIRTUAL_BYTES));
    let start = seconds(START_TICKS).zip(boot_time()).map(|(start, boot)| start + boot);
    write("start_time_seconds", "gauge", "Start of the process, in seconds since 1970.", start);
    let open = fs::read_dir("/proc/self/fd").map(|files| files.count() as f64).ok();
    write("open_fds", "gauge", "Number of open file descriptors.", open);
    let limit = getrlimit(Resource::Nofile).current.map(|limit| limit as f64);
    write("max_fds", "gauge", "Maximum number of open file descriptors.", limit);
}

/// The machine's start, in seconds since 1970.
fn boot_time() -> Option<f64> {
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
    // Whole seconds, so that the value does not change between scrapes.
    Some(now.saturating_sub(Duration::try_from_secs_f64(uptime).ok()?).as_secs_f64().round())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_measured() {
        let mut text = String::new();
        render(&mut text);
        let value = |name: &str| -> f64 {
            let prefix = format!("process_{name} ");
            let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
            line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().unwrap()
        };
        assert!(value("resident_memory_bytes") > 1e5 && value("virtual_memory_bytes") > 1e6);
        assert!(value("cpu_seconds_total") >= 0.0 && value("cpu_seconds_total") < 1e7);
        assert!(value("open_fds") >= 3.0 && value("max_fds") >= value("open_fds"));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - value("start_time_seconds");
        assert!((-2.0..1e6).contains(&age), "{age}");
    }
}
