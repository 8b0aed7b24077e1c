//! Parses Prometheus' text format, as far as the tests need it.

use std::collections::BTreeMap;

/// Values by series, such as `candlepower_request_success_total{finish_reason="stop"}`.
#[derive(Debug)]
pub(crate) struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    pub(crate) fn parse(text: &str) -> Self {
        let series =
            text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(|line| {
                let (series, value) = line.rsplit_once(' ').unwrap();
                (series.to_owned(), value.parse().unwrap())
            });
        Self(series.collect())
    }

    /// The value of a series, by its name without `candlepower_`, with its labels.
    pub(crate) fn series(&self, series: &str) -> f64 {
        self.0[&format!("candlepower_{series}")]
    }

    /// Sum of a metric over its labels, by its name without `candlepower_`; 0 if it is missing.
    pub(crate) fn value(&self, name: &str) -> f64 {
        let name = format!("candlepower_{name}");
        let of_metric = |series: &str| series.split('{').next() == Some(name.as_str());
        self.0.iter().filter(|(series, _)| of_metric(series)).map(|(_, value)| value).sum()
    }
}
