//! Summaries of measurements.

use std::time::Duration;

use serde::Serialize;

/// Mean and percentiles, in the unit of the values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl Summary {
    /// A summary of values in any order; `None` if there are none.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let max = *values.last()?;
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let at = |percent| percentile(&values, percent);
        Some(Self { mean, p50: at(50.0), p90: at(90.0), p99: at(99.0), max })
    }

    /// A summary of times, in seconds.
    pub(super) fn of_times(times: impl IntoIterator<Item = Duration>) -> Option<Self> {
        Self::of(times.into_iter().map(|time| time.as_secs_f64()))
    }

    /// Mean, p50, p90 and p99 in milliseconds, as cells of a table.
    pub(super) fn cells_ms(summary: Option<&Self>) -> [String; 4] {
        match summary {
            Some(s) => [s.mean, s.p50, s.p90, s.p99].map(|seconds| number(seconds * 1e3)),
            None => ["-"; 4].map(str::to_owned),
        }
    }
}

/// A number with about four significant digits.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        0.0..10.0 => format!("{value:.2}"),
        10.0..1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// The percentile of sorted values, interpolated between neighbours.
///
/// Source: the default of `numpy.percentile`.
fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let place = (sorted.len() - 1) as f64 * percent / 100.0;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    low + (high - low) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_numpys() {
        let summary = Summary::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((summary.mean, summary.p50, summary.max), (2.5, 2.5, 4.0));
        assert!((summary.p90 - 3.7).abs() < 1e-9 && (summary.p99 - 3.97).abs() < 1e-9);
        let one = Summary::of([7.0]).unwrap();
        assert_eq!((one.p50, one.p99), (7.0, 7.0));
        assert_eq!(Summary::of([]), None);
    }

    #[test]
    fn numbers_have_about_four_digits() {
        assert_eq!([0.1234, 12.34, 1234.4].map(number), ["0.12", "12.3", "1234"]);
        assert_eq!(Summary::cells_ms(None)[0], "-");
    }
}
