//! Structured output: token masks for a JSON schema, a regular expression, a choice or a grammar.
//!
//! [`GrammarCompiler`] is made once per model. It compiles a [`Constraint`] into a [`Grammar`], the state of one sequence.
//! [`Grammar::allowed`] returns the mask for the next token, and [`Grammar::accept`] advances the state by the sampled token.
//! [`Grammar::forced_token`] is the only allowed token, if there is one, so that no sampling is needed. Nothing is ignored
//! silently: a part of a constraint that cannot be enforced is an error that names it.

mod budget;
mod cache;
mod compiler;
mod constraint;
mod cost;
mod error;
mod gbnf;
mod grammar;
mod lark;
mod lexemes;
mod schema;
mod structural_tag;
#[cfg(test)]
mod tests;
mod trial;
mod vocabulary;

pub use candlepower_tokenizer::Tokenizer;
pub use compiler::{CompileLimits, GrammarCompiler};
pub use constraint::{Constraint, escape_slashes};
pub use error::{Error, Result};
pub use grammar::{Grammar, Mask};
pub use schema::{
    Exclusions, TEXT_KEYWORDS, closed, expressions, match_empty, take_unenforced_patterns,
    with_references_to_definitions, without_unused_definitions,
};
pub use trial::{TRIAL_COMMAND, run_trials};
