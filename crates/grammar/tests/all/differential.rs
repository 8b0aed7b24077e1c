//! Compares grammars with another implementation of JSON Schema, for random schemas and instances close to their limits.
//!
//! An instance that the grammar accepts must be valid. Refused valid instances are counted by kind, because a grammar may be
//! stricter than its schema. `CANDLEPOWER_SCHEMA_PAIRS` is the number of pairs.

use std::collections::BTreeMap;

use candlepower_grammar::{Constraint, Grammar, GrammarCompiler};
use candlepower_tokenizer::{AddSpecialTokens, SkipSpecialTokens, Tokenizer};
use fastrand::Rng;
use serde_json::Value;

use crate::{EOS, NUM_LOGITS, TOKENIZER};
use candlepower_testing::schemas::Pairs;

const USUAL_PAIRS: usize = 20_000;
/// Maximum refused valid texts shown for each kind.
const SHOWN: usize = 8;
const INSTANCES: usize = 12;
/// Maximum tokens of an output sampled from the allowed tokens.
const SAMPLED_TOKENS: usize = 60;
/// Maximum digits of numbers for the other implementation, which parses them in double precision.
const EXACT_DIGITS: usize = 15;

/// Whether the grammar accepts a text as a whole. It must not reach a state in which no token is allowed.
fn takes(tokenizer: &Tokenizer, mut grammar: Grammar, schema: &Value, text: &str) -> bool {
    let allows = |grammar: &mut Grammar, id: u32| {
        let mask = grammar.allowed().unwrap_or_else(|error| panic!("{error}: {text} of {schema}"));
        mask.allows(id)
    };
    for id in tokenizer.encode(text, AddSpecialTokens::No).unwrap() {
        if grammar.is_finished() || !allows(&mut grammar, id) {
            return false;
        }
        grammar.accept(id).unwrap();
    }
    grammar.is_finished() || allows(&mut grammar, EOS)
}

/// Whether a text has a number that the other implementation would round.
fn is_rounded(text: &str) -> bool {
    let digits = |number: &str| number.bytes().filter(u8::is_ascii_digit).count();
    text.split(|c: char| !c.is_ascii_digit() && c != '.')
        .any(|number| digits(number) > EXACT_DIGITS)
}

/// Whether an object has a name twice, of which other implementations see only the last.
fn is_ambiguous(text: &str, value: &Value) -> bool {
    let keys = |value: &Value| -> usize {
        fn count(value: &Value) -> usize {
            match value {
                Value::Object(object) => object.len() + object.values().map(count).sum::<usize>(),
                Value::Array(items) => items.iter().map(count).sum(),
                _ => 0,
            }
        }
        count(value)
    };
    // A colon in a string is counted, too, and makes the text ambiguous here: that only leaves out a valid text.
    text.matches(':').count() != keys(value)
}

#[test]
fn what_the_grammar_takes_is_valid() {
    let pairs = std::env::var("CANDLEPOWER_SCHEMA_PAIRS").ok();
    let pairs = pairs.map_or(USUAL_PAIRS, |pairs| pairs.parse().unwrap());
    let tokenizer = Tokenizer::from_bytes(TOKENIZER, None).unwrap();
    let compiler = GrammarCompiler::new(&tokenizer, &[EOS], NUM_LOGITS).unwrap();
    let mut source = Pairs::new(38);
    let mut random = Rng::with_seed(38);
    let (mut tried, mut valid, mut refused, mut not_compiled) = (0, 0, BTreeMap::new(), 0);
    let mut sampled = 0;
    while tried < pairs {
        let schema = source.schema(3);
        let Ok(validator) = jsonschema::options().should_validate_formats(true).build(&schema)
        else {
            continue;
        };
        let Ok(grammar) = compiler.compile(&Constraint::JsonSchema(schema.clone())) else {
            not_compiled += 1;
            continue;
        };
        if let Some(ids) = crate::sample(grammar.clone(), &mut random, SAMPLED_TOKENS) {
            let text = tokenizer.decode(&ids, SkipSpecialTokens::No).unwrap();
            let value: Value = serde_json::from_str(&text).unwrap();
            sampled += 1;
            // The other implementation rounds long numbers, so its verdict on them says nothing.
            assert!(is_rounded(&text) || validator.is_valid(&value), "{text} of {schema}");
        }
        for _ in 0..INSTANCES {
            let text = source.instance(&schema, &schema, 4);
            let value: Value = serde_json::from_str(&text).unwrap();
            let is_valid = validator.is_valid(&value);
            let is_taken = takes(&tokenizer, grammar.clone(), &schema, &text);
            let is_ambiguous = is_ambiguous(&text, &value);
            tried += 1;
            valid += usize::from(is_valid && is_taken);
            assert!(!is_taken || is_valid, "{text} is not an instance of {schema}");
            if is_valid && !is_taken && !is_ambiguous {
                let (count, shown): &mut (usize, Vec<String>) =
                    refused.entry(kind_of(&text)).or_default();
                *count += 1;
                if shown.len() < SHOWN {
                    shown.push(format!("{text} of {schema}"));
                }
            }
        }
    }
    println!(
        "{tried} pairs, {valid} valid and accepted, {sampled} outputs sampled; {not_compiled} schemas refused; valid but refused:"
    );
    for (kind, (count, shown)) in &refused {
        println!("- {count} with {kind}:\n    {}", shown.join("\n    "));
    }
    // The test proves nothing if hardly any output ends, or if hardly any instance is accepted.
    assert!(sampled * 20 > tried / INSTANCES, "{sampled} outputs have ended");
    assert!(valid * 5 > tried, "{valid} of {tried} are valid and accepted");
}

/// The likely reason for refusing a valid text.
fn kind_of(text: &str) -> &'static str {
    match text {
        _ if text.contains("\\u") => "a character as an escape",
        _ if text.contains(['e', 'E']) && !text.contains('"') => "a number with an exponent",
        _ if text.contains(".0") || text.contains("0.50") => "a number with zeros at its end",
        _ if text.contains('{') => "an object",
        _ => "another one",
    }
}
