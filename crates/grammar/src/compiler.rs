//! From a constraint to the first state of a grammar.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use candlepower_tokenizer::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};

use crate::constraint::Notation;
use crate::vocabulary::SpecialToken;
use crate::{Constraint, Error, Grammar, Result, vocabulary};

/// Most that may come next at one place, as the library counts it: four for each optional property of an object, and one
/// for each text of a rule. It looks through all of them for each one.
const MAX_ITEMS_IN_ROW: usize = 5000;
/// Compiled constraints that are kept.
const CACHE_SIZE: usize = 128;

/// Compiles constraints for one model. May be used by many threads at once.
pub struct GrammarCompiler {
    factory: ParserFactory,
    num_logits: usize,
    special: Vec<SpecialToken>,
    /// The last ones first.
    cache: Mutex<Vec<(String, Grammar)>>,
}

impl GrammarCompiler {
    /// For a model with `num_logits` logits, whose texts end with one of `eos_token_ids`. Takes a tenth of a second for
    /// a vocabulary of 100,000.
    ///
    /// # Errors
    /// [`Error::Vocabulary`].
    pub fn new(tokenizer: &Tokenizer, eos_token_ids: &[u32], num_logits: usize) -> Result<Self> {
        let env = vocabulary::token_env(tokenizer, eos_token_ids, num_logits)?;
        let slices = SlicedBiasComputer::json_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| Error::Vocabulary(format!("{error:#}")))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        factory.limits_mut().max_items_in_row = MAX_ITEMS_IN_ROW;
        let special = vocabulary::special_tokens(tokenizer, num_logits);
        Ok(Self { factory, num_logits, special, cache: Mutex::default() })
    }

    /// The first state of a constraint; the same constraint is compiled once.
    ///
    /// # Errors
    /// [`Error::Constraint`] with the keyword, the place or the limit; [`Error::EmptyChoice`].
    pub fn compile(&self, constraint: &Constraint) -> Result<Grammar> {
        let notation = constraint.notation(&self.special)?;
        let key = notation.key();
        if let Some(grammar) = self.cached(&key) {
            return Ok(grammar);
        }
        let grammar = self.compile_anew(notation)?.for_another_request();
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.retain(|(other, _)| *other != key);
        cache.insert(0, (key, grammar.clone()));
        cache.truncate(CACHE_SIZE);
        Ok(grammar)
    }

    fn cached(&self, key: &str) -> Option<Grammar> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cache.iter().position(|(other, _)| other == key)?;
        let found = cache.remove(at);
        let grammar = found.1.for_another_request();
        cache.insert(0, found);
        Some(grammar)
    }

    fn compile_anew(&self, notation: Notation) -> Result<Grammar> {
        let is_foreign = matches!(notation, Notation::Foreign(_));
        let top = match notation {
            Notation::Json(schema) => TopLevelGrammar::from_json_schema(schema),
            Notation::Lark(grammar) | Notation::Foreign(grammar) => {
                TopLevelGrammar::from_lark(grammar)
            }
        };
        let compile = || Matcher::new(self.factory.create_parser(top));
        // A grammar from outside must not end the server, whatever the library makes of it.
        let matcher = catch_unwind(AssertUnwindSafe(compile))
            .map_err(|_| Error::Constraint("it cannot be compiled".to_owned()))?;
        match matcher.get_error() {
            Some(error) => Err(Error::Constraint(reason(&error))),
            None => Grammar::new(matcher, self.num_logits, is_foreign),
        }
    }
}

/// What the library says first, and why, where that is in another line; the rest shows its own state.
fn reason(text: &str) -> String {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    match lines.find_map(|line| line.strip_prefix("error: ")) {
        Some(why) if first.ends_with(':') => format!("{first} {why}"),
        _ => first.to_owned(),
    }
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler")
            .field("num_logits", &self.num_logits)
            .finish_non_exhaustive()
    }
}
