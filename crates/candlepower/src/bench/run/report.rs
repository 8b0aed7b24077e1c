//! The results of `bench run`, as text and as JSON.

use candlepower_checkpoint::ModelSpec;
use candlepower_engine::EngineInfo;
use candlepower_server::config::ByteSize;
use serde_json::{Value, json};

use super::shape::ShapeResult;
use crate::bench::stats::number;
use crate::table::table;

/// Bytes of weights that a step reads.
pub(super) struct Weights {
    bytes: u64,
    /// Weights without embedding tables, of which a step reads only some rows. Experts that no token uses are subtracted later.
    bytes_per_step: u64,
    experts: Option<Experts>,
}

/// The experts of all layers.
struct Experts {
    /// Bytes of all experts.
    bytes: f64,
    /// Share of the experts that one token uses.
    chosen: f64,
}

impl Weights {
    pub(super) fn new(info: &EngineInfo, spec: &ModelSpec) -> Self {
        Self {
            bytes: info.weights_bytes,
            bytes_per_step: info.weights_bytes.saturating_sub(info.looked_up_bytes),
            experts: spec.layers.iter().find_map(|layer| layer.ffn.experts()).map(|experts| {
                Experts {
                    bytes: info.weights_bytes as f64 * spec.share_of_experts(),
                    chosen: experts.top_k as f64 / experts.count as f64,
                }
            }),
        }
    }

    /// Bytes that a step with this many tokens reads, if all experts are equally likely.
    fn bytes_read(&self, tokens: usize) -> f64 {
        let unread = self
            // `(1 - chosen)^tokens` is the probability that no token of the batch uses an expert.
            .experts
            .as_ref()
            .map_or(0.0, |experts| experts.bytes * (1.0 - experts.chosen).powf(tokens as f64));
        self.bytes_per_step as f64 - unread
    }

    pub(super) fn to_json(&self, name: &str, info: &EngineInfo) -> Value {
        json!({
            "name": name,
            "architecture": info.architecture,
            "weights_dtype": info.weights_dtype,
            "weights_bytes": self.bytes,
            "weights_bytes_per_step": self.bytes_per_step,
            "max_model_len": info.max_model_len,
        })
    }

    fn bytes_per_s(&self, result: &ShapeResult) -> f64 {
        self.bytes_read(result.shape.batch) / result.decode.step_s.mean
    }
}

/// The keys that the help explains.
pub(super) fn to_json(result: &ShapeResult, weights: &Weights) -> Value {
    let ShapeResult { shape, prefill, decode } = result;
    json!({
        "batch": shape.batch,
        "input_tokens": shape.input_tokens,
        "output_tokens": shape.output_tokens,
        "prefill": {
            "tokens": prefill.tokens,
            "duration_s": prefill.duration_s,
            "tokens_per_s": prefill.tokens_per_s(),
            "steps": prefill.steps,
            "forward_share": prefill.forward_s / prefill.duration_s,
        },
        "decode": {
            "steps": decode.steps,
            "tokens_per_s": result.decode_tokens_per_s(),
            "step_s": decode.step_s,
            "weights_bytes_per_s": weights.bytes_per_s(result),
            "forward_share": decode.forward_share,
            "rest_of_step_share": decode.rest_of_step_share,
            "between_steps_share": decode.between_steps_share,
        },
    })
}

/// The results for people.
pub(super) fn to_table(
    name: &str,
    info: &EngineInfo,
    weights: &Weights,
    results: &[ShapeResult],
) -> String {
    let head = [
        "batch",
        "tokens in",
        "prefill tokens/s",
        "decode tokens/s",
        "step ms mean",
        "p50",
        "p90",
        "p99",
        "weights GB/s",
        "forward",
        "rest of step",
        "between steps",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(results.iter().map(|result| cells(result, weights)));
    format!(
        "{name}: {}, {} of {} weights, of which each step reads {}{}, on {} threads, device {}\n\n{}",
        info.architecture,
        ByteSize(weights.bytes),
        info.weights_dtype,
        if weights.experts.is_some() { "at most " } else { "" },
        ByteSize(weights.bytes_per_step),
        info.num_threads,
        info.device,
        table(&lines)
    )
}

fn cells(result: &ShapeResult, weights: &Weights) -> Vec<String> {
    let ShapeResult { shape, prefill, decode } = result;
    let step = &decode.step_s;
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let mut cells = vec![shape.batch.to_string(), shape.input_tokens.to_string()];
    cells.extend([prefill.tokens_per_s(), result.decode_tokens_per_s()].map(number));
    cells.extend([step.mean, step.p50, step.p90, step.p99].map(|s| number(s * 1e3)));
    cells.push(number(weights.bytes_per_s(result) / 1e9));
    let shares = [decode.forward_share, decode.rest_of_step_share, decode.between_steps_share];
    cells.extend(shares.map(percent));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_read_as_far_as_tokens_go_to_them() {
        let dense = Weights { bytes: 1000, bytes_per_step: 900, experts: None };
        assert_eq!(dense.bytes_read(1), 900.0);
        let experts = Some(Experts { bytes: 800.0, chosen: 0.25 });
        let weights = Weights { experts, ..dense };
        assert_eq!([1, 2].map(|tokens| weights.bytes_read(tokens)), [300.0, 450.0]);
        assert!((weights.bytes_read(64) - 900.0).abs() < 0.001);
    }
}
