//! Names of metrics and labels, and the expressions that use them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::Naming;

/// Names of one naming, by our names without the prefix.
pub(super) struct Names {
    pub(super) naming: Naming,
    metrics: BTreeMap<String, String>,
}

/// A metric in an expression: `[[name]]`, or `[[name|matchers]]`.
static METRIC: LazyLock<Regex> = LazyLock::new(|| pattern(r"\[\[([a-z0-9_]+)(?:\|([^\]]*))?\]\]"));
/// An entry of the server's list.
static ENTRY: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"describe\(\s*"([^"]+)",\s*(?:None|Some\("([^"]+)"\)),"#));

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("the pattern is a constant")
}

impl Names {
    /// Reads the server's list.
    pub(super) fn read(descriptions: &str, naming: Naming) -> Self {
        let entry = |found: Captures<'_>| {
            let own = found[1].to_owned();
            let vllm = found.get(2).filter(|_| naming == Naming::Vllm);
            let name = vllm.map_or(format!("candlepower_{own}"), |name| name.as_str().to_owned());
            (own, name)
        };
        Self { naming, metrics: ENTRY.captures_iter(descriptions).map(entry).collect() }
    }

    /// The name of a metric, or of a series of a histogram.
    fn name(&self, name: &str) -> Option<String> {
        let series = ["", "_bucket", "_sum", "_count"].into_iter();
        series
            .filter_map(|end| Some((self.metrics.get(name.strip_suffix(end)?)?, end)))
            .next()
            .map(|(full, end)| format!("{full}{end}"))
    }

    /// The expression with the names of this naming. `selector` is put before other matchers of each metric of a server.
    ///
    /// # Errors
    /// The metric is not in the server's list.
    pub(super) fn fill(&self, expression: &str, selector: &str) -> Result<String, String> {
        self.replaced(expression, selector, false)
    }

    /// The same for a series of its own.
    ///
    /// # Errors
    /// The metric is not in the server's list.
    pub(super) fn series(&self, series: &str) -> Result<String, String> {
        self.replaced(series, "", true)
    }

    fn replaced(
        &self,
        expression: &str,
        selector: &str,
        is_series: bool,
    ) -> Result<String, String> {
        let mut unknown = None;
        let filled = METRIC.replace_all(expression, |found: &Captures<'_>| {
            let name = &found[1];
            let standard = ["up", "process_"].iter().any(|other| name.starts_with(other));
            let full = match self.name(name) {
                Some(full) => full,
                None if standard => name.to_owned(),
                None => {
                    unknown.get_or_insert_with(|| name.to_owned());
                    String::new()
                }
            };
            // The process has no model, and a scrape has no more labels than job and instance.
            let own = selector.split(',').filter(|matcher| {
                let is_of_models = matcher.starts_with("model_name");
                !(matcher.is_empty() || standard && is_of_models)
            });
            let more = found.get(2).into_iter().flat_map(|more| more.as_str().split(','));
            // Many programs have this name, and ours alone this label.
            let is_shared = full.starts_with("http_") && !is_series;
            let ours = is_shared.then_some("model_name!=\"\"");
            let matchers: Vec<&str> = own.chain(more).chain(ours).collect();
            match matchers.is_empty() {
                true => full,
                false => format!("{full}{{{}}}", matchers.join(",")),
            }
        });
        let (reason, path) = match self.naming {
            Naming::Own => ("finish_reason", "path"),
            Naming::Vllm => ("finished_reason", "handler"),
        };
        match unknown {
            Some(name) => Err(format!("{name} is not a metric of the server: {expression}")),
            None => Ok(filled.replace("LABEL_REASON", reason).replace("LABEL_PATH", path)),
        }
    }
}
