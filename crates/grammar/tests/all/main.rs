//! Outputs sampled from the allowed tokens are valid according to another implementation of JSON Schema.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod differential;

use candlepower_grammar::{Constraint, Grammar, GrammarCompiler};
use candlepower_tokenizer::{SkipSpecialTokens, Tokenizer};
use fastrand::Rng;
use serde_json::Value;

const TOKENIZER: &[u8] = include_bytes!("../../../server/demo/tokenizer.json");
const EOS: u32 = 1275;
const NUM_LOGITS: usize = 1280;

const OUTPUTS_PER_SCHEMA: usize = 10;
const MAX_TOKENS: usize = 400;
/// The minimum of finished outputs in 1,000: random strings without a maximum length seldom end.
const MIN_FINISHED: usize = 900;

/// Samples tokens uniformly from the allowed ones; `None` if the output does not end in time.
fn sample(mut grammar: Grammar, random: &mut Rng, max_tokens: usize) -> Option<Vec<u32>> {
    let mut ids = Vec::new();
    while ids.len() < max_tokens {
        let mask = grammar.allowed().unwrap();
        let allowed: Vec<u32> = (0..NUM_LOGITS as u32).filter(|id| mask.allows(*id)).collect();
        assert!(!allowed.is_empty(), "nothing is allowed after {ids:?}");
        // Sampling without a model leads to states that a model would seldom reach.
        let id = *random.choice(&allowed).unwrap();
        if id == EOS {
            return Some(ids);
        }
        grammar.accept(id).unwrap();
        ids.push(id);
        if grammar.is_finished() {
            return Some(ids);
        }
    }
    None
}

#[test]
fn outputs_sampled_at_random_are_valid() {
    let tokenizer = Tokenizer::from_bytes(TOKENIZER, None).unwrap();
    let compiler = GrammarCompiler::new(&tokenizer, &[EOS], NUM_LOGITS).unwrap();
    let schemas = candlepower_testing::schemas::varied();
    assert_eq!(schemas.len(), 100);
    let (mut finished, mut random) = (0, Rng::with_seed(0));
    for schema in &schemas {
        let grammar = compiler.compile(&Constraint::JsonSchema(schema.clone()));
        let grammar = grammar.unwrap_or_else(|error| panic!("{error}: {schema}"));
        let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
        for _ in 0..OUTPUTS_PER_SCHEMA {
            let Some(ids) = sample(grammar.clone(), &mut random, MAX_TOKENS) else { continue };
            let text = tokenizer.decode(&ids, SkipSpecialTokens::No).unwrap();
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
            let errors: Vec<String> =
                validator.iter_errors(&value).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{errors:?}: {text} of {schema}");
            finished += 1;
        }
    }
    assert!(finished >= MIN_FINISHED, "{finished} outputs have ended");
}
