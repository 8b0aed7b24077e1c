//! SmolLM2-135M-Instruct, a real model in GGUF's Q4_1, compared with transformers' results for its dequantized weights:
//! log-probabilities in float64, chats in float32. By default the log-probabilities of four texts, five chats and five schemas are compared. With
//! `CANDLEPOWER_TEST_REAL_MODEL=all` it is all of them.

mod unquantized;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{Server, ServerBuilder, TempFolder, python, run_to_end};

/// Tolerance of a log-probability in float32 around its value in float64.
const TOLERANCE: f64 = 1e-4;
/// Texts and tokens that float32 does not settle, with their tolerance. By `scripts/goldens/real_model.py --measure`, transformers' own
/// float32 is 2.0e-4 from float64 at this token on one machine, and 3.1e-5 on another. At all other tokens it is at most 5.2e-5.
const UNSETTLED: [(&str, usize, f64); 1] = [("declaration", 49, 4e-4)];
/// Relative tolerance of a perplexity.
const PERPLEXITY: f64 = 0.01;
/// Number of tokens of a chat, as in `scripts/goldens/real_model.py`.
const CHAT_TOKENS: u32 = 48;

/// The questions, and transformers' results.
struct Reference {
    file: PathBuf,
    inputs: Value,
    expected: Value,
    all: bool,
}

impl Reference {
    /// `None`, with a message, if the model is not installed. It comes from a package registry.
    fn find() -> Option<Self> {
        let Some(file) = std::env::var_os("CANDLEPOWER_TEST_SMOLLM2") else {
            eprintln!(
                "skipped: CANDLEPOWER_TEST_SMOLLM2 names no model; `cargo xtask test` installs it"
            );
            return None;
        };
        let read = |name: &str| {
            let path = folder().join(name);
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
        };
        Some(Self {
            file: file.into(),
            inputs: read("inputs.json"),
            expected: read("smollm2.json"),
            all: std::env::var("CANDLEPOWER_TEST_REAL_MODEL").is_ok_and(|which| which == "all"),
        })
    }

    /// The first of some inputs, or all.
    fn inputs(&self, kind: &str, few: usize) -> &[Value] {
        let all = self.inputs[kind].as_array().unwrap();
        if self.all { all } else { &all[..few.min(all.len())] }
    }

    /// The first texts, or all, with transformers' log-probabilities of their tokens without the first.
    fn texts(&self, few: usize) -> impl Iterator<Item = (&str, &str, Vec<f64>)> {
        self.inputs("texts", few).iter().map(|entry| {
            let name = entry["name"].as_str().unwrap();
            let scores = &self.expected["log_probabilities"][name];
            (name, entry["text"].as_str().unwrap(), floats(scores))
        })
    }

    fn server(&self, flags: &str) -> Server {
        start(&self.file, flags)
    }

    /// Checks the perplexity against transformers' in float32. All texts are used, since a few give too noisy a
    /// value.
    fn check_perplexity(&self, server: &Server, what: &str) {
        let (mut found, mut expected) = (Vec::new(), Vec::new());
        for (_, text, scores) in self.texts(usize::MAX) {
            found.extend(scores_of(server, text));
            expected.extend(scores);
        }
        assert_eq!(found.len(), expected.len());
        let perplexity = |scores: &[f64]| (-scores.iter().sum::<f64>() / scores.len() as f64).exp();
        let change = perplexity(&found) / perplexity(&expected) - 1.0;
        eprintln!("{what}: perplexity {:.3}, {:+.3} %", perplexity(&found), change * 100.0);
        assert!(change.abs() < PERPLEXITY, "{what}: perplexity changes by {change}");
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("real_model")
}

fn start(model: &Path, flags: &str) -> Server {
    ServerBuilder::new(model)
        .flags("--served-model-name demo --max-model-len 1024 --max-num-seqs 4")
        .flags(flags)
        .start()
}

fn floats(values: &Value) -> Vec<f64> {
    values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

/// The log-probabilities of a text's tokens without the first.
fn scores_of(server: &Server, text: &str) -> Vec<f64> {
    let answer =
        server.complete(json!({"prompt": text, "max_tokens": 0, "echo": true, "logprobs": 0}));
    let scores = answer["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
    scores[1..].iter().map(|score| score.as_f64().unwrap()).collect()
}

#[test]
fn float32_is_what_transformers_computes() {
    let Some(reference) = Reference::find() else { return };
    let server = reference.server("--dtype float32");
    let mut largest = 0f64;
    for (name, text, expected) in reference.texts(4) {
        let found = scores_of(&server, text);
        assert_eq!(found.len(), expected.len(), "{name}");
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let difference = (found - expected).abs();
            let unsettled = UNSETTLED.iter().find(|(text, token, _)| (*text, *token) == (name, i));
            let tolerance = unsettled.map_or(TOLERANCE, |(.., tolerance)| *tolerance);
            assert!(difference < tolerance, "{name}, token {i}: {found} and {expected}");
            if unsettled.is_none() {
                largest = largest.max(difference);
            }
        }
    }
    eprintln!("largest difference of a log probability: {largest:.1e}");
    for (i, question) in reference.inputs("chats", 5).iter().enumerate() {
        let answer = server.chat(json!({
            "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": CHAT_TOKENS,
        }));
        let text = &answer["choices"][0]["message"]["content"];
        assert_eq!(text, &reference.expected["chats"][i], "{question}");
    }
}

#[test]
fn the_default_dtype_keeps_the_perplexity_and_every_schema() {
    let Some(reference) = Reference::find() else { return };
    let server = reference.server("");
    reference.check_perplexity(&server, "default");
    let count = reference.inputs("schemas", 5).len();
    run_to_end(
        python("clients/schema_answers.py")
            .arg(server.url())
            .arg(folder().join("inputs.json"))
            .arg(count.to_string()),
    );
}

#[test]
fn a_cache_of_eight_bits_keeps_the_perplexity() {
    let Some(reference) = Reference::find() else { return };
    reference.check_perplexity(&reference.server("--kv-cache-dtype fp8"), "FP8 cache");
}

#[test]
fn eight_bits_on_load_keep_the_perplexity() {
    let Some(reference) = Reference::find() else { return };
    let folder = TempFolder::new();
    let file = folder.path().join("unquantized.gguf");
    unquantized::write(&reference.file, &file);
    reference.check_perplexity(&start(&file, "--quantize-on-load int8"), "int8 on load");
}
