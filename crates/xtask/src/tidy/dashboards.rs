//! The Grafana dashboards and the Prometheus rules, each for candlepower's own metric names and for those of `--metrics-compat vllm`.
//! They are written from one list of panels and one of alerts, with the names in the server's list of metrics.

mod alerts;
mod grafana;
mod names;
mod panels;

use super::Finding;
use super::files::SourceFile;
use names::Names;

/// The server's list of metrics.
const DESCRIPTIONS: &str = "crates/server/src/model/metrics/descriptions.rs";

/// A naming of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Naming {
    Own,
    Vllm,
}

impl Naming {
    const ALL: [Self; 2] = [Self::Own, Self::Vllm];

    /// The stem of the names of its files.
    fn stem(self) -> &'static str {
        match self {
            Self::Own => "candlepower",
            Self::Vllm => "candlepower-vllm",
        }
    }
}

/// Reports files that differ from what would be written.
pub(super) fn findings(files: &[SourceFile]) -> Vec<Finding> {
    let find = |path: &str| files.iter().find(|file| file.path == path);
    let Some(descriptions) = find(DESCRIPTIONS) else { return Vec::new() };
    let written = match written(files) {
        Ok(written) => written,
        Err(error) => return vec![Finding::new(descriptions, 0, error)],
    };
    let differs = |(path, text): (String, String)| match find(&path) {
        Some(file) if file.text == text => None,
        Some(file) => Some(Finding::new(file, 0, "it is not what `cargo xtask docs` writes")),
        None => Some(Finding {
            path,
            line: 0,
            message: "it is missing: `cargo xtask docs` writes it".to_owned(),
        }),
    };
    written.into_iter().filter_map(differs).collect()
}

/// The paths and texts of all files.
///
/// # Errors
/// A panel or an alert names a metric that the server does not have.
pub(super) fn written(files: &[SourceFile]) -> Result<Vec<(String, String)>, String> {
    let descriptions = files.iter().find(|file| file.path == DESCRIPTIONS);
    let descriptions = descriptions.ok_or_else(|| format!("{DESCRIPTIONS} is missing"))?;
    let mut written = Vec::new();
    for naming in Naming::ALL {
        let names = Names::read(&descriptions.text, naming);
        let stem = naming.stem();
        written.push((format!("configs/grafana/{stem}.json"), grafana::dashboard(&names)?));
        written.push((format!("configs/prometheus/{stem}-rules.yml"), alerts::rules(&names)?));
        written.push((format!("configs/prometheus/{stem}-rules.test.yml"), alerts::tests(&names)?));
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Vec<SourceFile> {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
        let text = std::fs::read_to_string(format!("{root}{DESCRIPTIONS}")).unwrap_or_default();
        vec![SourceFile { path: DESCRIPTIONS.to_owned(), text }]
    }

    #[test]
    fn both_namings_have_the_same_panels_and_alerts() {
        let written = written(&files()).unwrap_or_default();
        assert_eq!(written.len(), 6);
        let text = |path: &str| {
            let found = written.iter().find(|(written, _)| written == path);
            found.map_or("", |(_, text)| text.as_str())
        };
        let own = text("configs/grafana/candlepower.json");
        let vllm = text("configs/grafana/candlepower-vllm.json");
        assert_eq!(own.matches("\"expr\"").count(), vllm.matches("\"expr\"").count());
        assert!(own.contains("candlepower_num_requests_running{") && !own.contains("vllm:"));
        assert!(vllm.contains("vllm:num_requests_running{model_name=~"), "{vllm}");
        // vLLM has no such metric.
        assert!(vllm.contains("candlepower_key_generation_tokens_total{"));
        let rules = text("configs/prometheus/candlepower-vllm-rules.yml");
        assert!(rules.contains("vllm:num_requests_waiting") && !rules.contains("[["), "{rules}");
    }

    #[test]
    fn a_metric_that_is_missing_is_found() {
        let mut files = files();
        files[0].text = files[0].text.replace("\"num_requests_waiting\"", "\"num_waiting\"");
        let found = findings(&files);
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("num_requests_waiting"), "{found:?}");
    }
}
