//! Compiling a constraint to the first state of a grammar.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use candlepower_tokenizer::Tokenizer;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};

use crate::cache::Cache;
use crate::constraint::Notation;
use crate::cost::Class;
use crate::lexemes::{self, Digits};
use crate::schema::exact_integers;
use crate::trial::{STACK_BYTES, Trials};
use crate::vocabulary::{SpecialToken, Words};
use crate::{Constraint, Error, Grammar, Result};

/// llguidance's own limits. The times are its authors' figures for one core.
const LIMITS: ParserLimits = ParserLimits {
    // Items of one row of the parser: four for each optional property of an object, and one for each string of a rule.
    max_items_in_row: 5000,
    // 20 ms.
    initial_lexer_fuel: 1_000_000,
    // 14 ms for a mask.
    step_lexer_fuel: 200_000,
    // 3 ms for a mask.
    step_max_items: 50_000,
    // At most 100 MB.
    max_lexer_states: 50_000,
    max_grammar_size: 500_000,
    precompute_large_lexemes: true,
    verbose_errors: false,
};
/// The assumed memory of a small constraint. 50 to 240 KiB were measured.
const SMALL_BYTES: usize = 256 << 10;

/// Limits for compiling one constraint, unless it is small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileLimits {
    /// CPU time of one thread.
    pub time: Duration,
    /// Memory, including the stack.
    pub memory_bytes: usize,
}

impl Default for CompileLimits {
    fn default() -> Self {
        Self { time: Duration::from_millis(250), memory_bytes: 64 << 20 }
    }
}

impl CompileLimits {
    pub(crate) fn too_long(&self) -> Error {
        let milliseconds = self.time.as_millis();
        Error::Constraint(format!(
            "compiling it takes longer than {milliseconds} ms (max_constraint_time)"
        ))
    }

    pub(crate) fn too_large(&self) -> Error {
        let mebibytes = self.memory_bytes >> 20;
        Error::Constraint(format!(
            "compiling it needs more than {mebibytes} MiB (max_constraint_memory)"
        ))
    }
}

/// Compiles constraints for one model. Many threads may use it at once.
pub struct GrammarCompiler {
    factory: ParserFactory,
    words: Words,
    special: Vec<SpecialToken>,
    cache: Mutex<Cache>,
    trials: Option<Arc<Trials>>,
}

impl GrammarCompiler {
    /// A compiler for a model with `num_logits` logits, whose outputs end with one of `eos_token_ids`.
    /// It takes a tenth of a second for a vocabulary of 100,000 tokens.
    ///
    /// # Errors
    /// [`Error::Vocabulary`].
    pub fn new(tokenizer: &Tokenizer, eos_token_ids: &[u32], num_logits: usize) -> Result<Self> {
        Self::over(Words::new(tokenizer, eos_token_ids, num_logits)?, Some(tokenizer.clone()))
    }

    /// A compiler without a tokenizer, which splits forced text greedily into tokens.
    pub(crate) fn of_words(words: Words) -> Result<Self> {
        Self::over(words, None)
    }

    fn over(words: Words, tokenizer: Option<Tokenizer>) -> Result<Self> {
        let env = words.env(tokenizer);
        // Slices for JSON strings cut the time of masks within strings: 14 times at the 90th percentile with 128,000
        // tokens.
        let slices = SlicedBiasComputer::json_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| Error::Vocabulary(format!("{error:#}")))?;
        factory.quiet();
        *factory.limits_mut() = LIMITS;
        let special = words.special_tokens();
        Ok(Self { factory, words, special, cache: Mutex::default(), trials: None })
    }

    /// Compiles each constraint that is not small in a child process first, which has these limits. `program` starts this
    /// program with [`TRIAL_COMMAND`](crate::TRIAL_COMMAND).
    #[must_use]
    pub fn with_trials(self, program: fn() -> Command, limits: CompileLimits) -> Self {
        let trials = Trials::new(program, self.words.encode(), limits);
        Self { trials: Some(trials), ..self }
    }

    /// The first state of a constraint, from the cache if it was compiled before.
    ///
    /// # Errors
    /// [`Error::Constraint`] with the keyword, the position or the limit; [`Error::EmptyChoice`]; [`Error::Trial`].
    pub fn compile(&self, constraint: &Constraint) -> Result<Grammar> {
        self.compile_unless(constraint, 0, &AtomicBool::new(false))
    }

    /// Like [`compile`](Self::compile), but stops soon after `cancelled` becomes true. Callers, numbered by `caller`, have
    /// equal shares of the cache.
    ///
    /// # Errors
    /// Those of [`compile`](Self::compile), and [`Error::Cancelled`].
    pub fn compile_unless(
        &self,
        constraint: &Constraint,
        caller: u64,
        cancelled: &AtomicBool,
    ) -> Result<Grammar> {
        let class = constraint.class()?;
        let key = constraint.key();
        if let Some(grammar) = self.cache().get(&key) {
            // The clone shares no budget: a time that one request spent must not fail the next one.
            return Ok(grammar.for_another_request());
        }
        let (grammar, bytes) = if class != Class::Large {
            (self.compile_here(constraint, class == Class::Plain)?, SMALL_BYTES)
        } else {
            let bytes = match &self.trials {
                Some(trials) => trials.run(constraint, cancelled)?,
                // Without trials, as in tests and in the child itself, nothing was measured.
                None => 0,
            };
            // The trial may have ended well just before the cancellation, and the second compilation takes as long
            // again.
            if cancelled.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            (self.compile_deep(constraint)?, bytes.max(SMALL_BYTES))
        };
        let bytes = bytes + key.len();
        // A copy takes about as long as a tenth of the compilation of a small constraint, so there is one.
        let own = grammar.for_another_request();
        self.cache().insert(key, caller, grammar, bytes);
        Ok(own)
    }

    /// The first state of a constraint in the cache.
    pub fn compiled(&self, constraint: &Constraint) -> Option<Grammar> {
        self.cache().get(&constraint.key()).map(Grammar::for_another_request)
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiles on a thread with a large stack, which is only address space until it is used.
    fn compile_deep(&self, constraint: &Constraint) -> Result<Grammar> {
        std::thread::scope(|scope| {
            let thread =
                std::thread::Builder::new().name("compile".to_owned()).stack_size(STACK_BYTES);
            let compile = thread.spawn_scoped(scope, || self.compile_here(constraint, false));
            let compile = compile.map_err(|error| Error::Trial(error.to_string()))?;
            compile.join().unwrap_or_else(|_| Err(cannot_be_compiled()))
        })
    }

    /// Compiles in this thread. The states of a plain schema need no test.
    pub(crate) fn compile_here(&self, constraint: &Constraint, is_plain: bool) -> Result<Grammar> {
        let compile = || {
            let (top, text) = match constraint.notation(&self.special)? {
                Notation::Json(schema) => {
                    // The text is scanned, not the schema: a number in a description can only raise the limits, which
                    // does no harm.
                    let text = schema.to_string();
                    (TopLevelGrammar::from_json_schema(schema), text)
                }
                Notation::Lark(grammar) => (TopLevelGrammar::from_lark(grammar.clone()), grammar),
            };
            let factory = &self.factory;
            let (digits, integers) = (Digits::needed(&text), exact_integers(&text));
            let (env, limits) = (factory.tok_env(), factory.limits());
            let grammar = lexemes::tightened(top, env, limits, digits, integers)?;
            let matcher = Matcher::new(factory.create_parser_from_init_default(grammar));
            match matcher.get_error() {
                Some(error) => Err(Error::Constraint(reason(&error))),
                None => Grammar::new(matcher, self.words.num_logits(), !is_plain),
            }
        };
        // A panic of the library must not end the server. A stack overflow cannot be caught: the child process is for that.
        catch_unwind(AssertUnwindSafe(compile)).unwrap_or_else(|_| Err(cannot_be_compiled()))
    }
}

fn cannot_be_compiled() -> Error {
    Error::Constraint("compiling it failed unexpectedly; please report this as a bug".to_owned())
}

/// The first line of the library's message, and the cause if it is in another line. The rest shows its internal state.
/// Messages of panics, which it catches, and names of its settings mean nothing to users.
pub(crate) fn reason(text: &str) -> String {
    const INTERNAL: [&str; 3] = ["panic", "limits.", "NoExtensionBias"];
    if INTERNAL.iter().any(|words| text.contains(words)) {
        return "it is too complex to compile; make it smaller".to_owned();
    }
    // The library names a definition that the request need not have.
    if text.contains("circular references with sibling keys") {
        return "a schema that contains itself cannot be combined with other keywords: leave out what is beside its `$ref`, \
                in its `allOf`, or said of it by `patternProperties` and `properties` together"
            .to_owned();
    }
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
            .field("num_logits", &self.words.num_logits())
            .finish_non_exhaustive()
    }
}
