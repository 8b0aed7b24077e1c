//! Which tokens a constraint allows next: a JSON schema, a regular expression, a choice or a grammar becomes, for each
//! sequence, a set of tokens at every step.
//!
//! [`GrammarCompiler`] is made once per model. It compiles a [`Constraint`] into a [`Grammar`], the state of one sequence:
//! [`Grammar::allowed`] gives the mask for the next token, [`Grammar::accept`] takes the token that was drawn, and
//! [`Grammar::forced_token`] is the token that needs no drawing. Nothing is dropped in silence: what a constraint asks for
//! and cannot be had is an error that names it.

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
    Exclusions, TEXT_KEYWORDS, closed, expressions, match_empty, take_unheld_patterns,
    with_references_to_definitions, without_unused_definitions,
};
pub use trial::{TRIAL_COMMAND, run_trials};
