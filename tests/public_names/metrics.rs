//! Metrics with their types and labels, under both namings.

use super::Names;
use super::live::Servers;

pub(super) fn collect(servers: &Servers, names: &mut Names) {
    for server in [&servers.blaze, &servers.prism] {
        for line in server.get("/metrics").text().lines() {
            if let Some(metric) = line.strip_prefix("# TYPE ") {
                names.add(metric);
            } else if let Some((metric, labels)) = labels(line) {
                for label in labels {
                    names.add(format!("{metric} {label}"));
                }
            }
        }
    }
}

/// A series' metric and its labels, with the values that candlepower itself defines.
fn labels(line: &str) -> Option<(&str, Vec<String>)> {
    let (metric, rest) = line.split_once('{')?;
    let (labels, _) = rest.rsplit_once('}')?;
    // No value that is read here has a quoted quotation mark.
    let labels = labels.split("\",").map(|label| {
        let (name, value) = label.split_once("=\"").unwrap();
        let is_reason = ["finish_reason", "finished_reason"].contains(&name);
        if is_reason { format!("{name} {}", value.trim_end_matches('"')) } else { name.to_owned() }
    });
    Some((metric, labels.collect()))
}
