//! Tests of the tokenizer crate over real files: small tokenizers and goldens made with transformers.

#![allow(clippy::unwrap_used, reason = "all of this is tests")]

mod detokenizer;
mod prompt;
mod template;
mod tokenization;
mod tokenizer;

use candlepower_tokenizer::Tokenizer;

/// One of the tokenizers made by scripts/goldens/tokenizer_fixtures.py.
fn fixture(name: &str) -> Tokenizer {
    Tokenizer::from_bytes(&fixture_bytes(name), None).unwrap()
}

fn fixture_bytes(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/data/{name}.tokenizer.json", env!("CARGO_MANIFEST_DIR")))
        .unwrap()
}
