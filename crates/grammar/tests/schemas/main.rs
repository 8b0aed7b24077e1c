//! Outputs that are drawn at random from the allowed tokens are valid by another implementation of JSON Schema.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod varied;

use candlepower_grammar::{Constraint, Grammar, GrammarCompiler};
use candlepower_tokenizer::{SkipSpecialTokens, Tokenizer};
use serde_json::Value;

const TOKENIZER: &[u8] = include_bytes!("../../../server/demo/tokenizer.json");
const EOS: u32 = 1275;
const NUM_LOGITS: usize = 1280;

const OUTPUTS_PER_SCHEMA: u64 = 10;
const MAX_TOKENS: usize = 400;
/// Of 1,000 outputs; random strings without an upper length seldom end.
const MIN_FINISHED: usize = 900;

/// SplitMix64, whose numbers depend on the seed alone.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

/// Draws tokens, each allowed one as likely as another; `None` if the output does not end in time.
fn draw(mut grammar: Grammar, random: &mut Random) -> Option<Vec<u32>> {
    let mut ids = Vec::new();
    while ids.len() < MAX_TOKENS {
        let mask = grammar.allowed().unwrap();
        let allowed: Vec<u32> = (0..NUM_LOGITS as u32).filter(|id| mask.allows(*id)).collect();
        assert!(!allowed.is_empty(), "nothing is allowed after {ids:?}");
        let id = allowed[random.below(allowed.len())];
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
fn outputs_drawn_at_random_are_valid() {
    let tokenizer = Tokenizer::from_bytes(TOKENIZER, None).unwrap();
    let compiler = GrammarCompiler::new(&tokenizer, &[EOS], NUM_LOGITS).unwrap();
    let schemas = varied::schemas();
    assert_eq!(schemas.len(), 100);
    let mut finished = 0;
    for (number, schema) in schemas.iter().enumerate() {
        let grammar = compiler.compile(&Constraint::JsonSchema(schema.clone()));
        let grammar = grammar.unwrap_or_else(|error| panic!("{error}: {schema}"));
        let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
        for output in 0..OUTPUTS_PER_SCHEMA {
            let mut random = Random(number as u64 * 1000 + output);
            let Some(ids) = draw(grammar.clone(), &mut random) else { continue };
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
