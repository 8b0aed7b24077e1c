//! Grammars in GBNF, the EBNF that clients of llama.cpp and SGLang send, as grammars in Lark's notation.
//!
//! GBNF describes texts character by character; the library reads lexemes, each of which takes as many characters as it can.
//! What is regular becomes one lexeme, within which nothing is lost. Where a lexeme could take a character that belongs to
//! what follows, it is split (`plan`), down to single characters if need be, so that every text of the grammar is allowed.
//!
//! Source: grammars/README.md of llama.cpp, whose format this is.

mod automaton;
mod chars;
mod emit;
mod linear;
mod parse;
mod plan;
#[cfg(test)]
mod tests;

use crate::Result;

/// Whether a grammar is in this format: rules are defined with `::=`, which Lark's notation does not have.
pub(crate) fn is_gbnf(text: &str) -> bool {
    text.lines().filter_map(|line| line.split_once("::=")).any(|(name, _)| {
        let name = name.trim();
        !name.is_empty() && name.chars().all(parse::is_name)
    })
}

/// The same grammar in Lark's notation.
///
/// # Errors
/// [`crate::Error::Constraint`] with the line and the rule.
pub(crate) fn to_lark(text: &str) -> Result<String> {
    let mut grammar = parse::parse(text)?;
    linear::check_that_all_end(&grammar)?;
    linear::remove_tail_recursion(&mut grammar);
    let plan = plan::Plan::new(&grammar)?;
    Ok(emit::lark(&grammar, &plan))
}

/// A regular expression of one text.
pub(crate) fn literal_regex(text: &str) -> String {
    text.chars().map(|character| chars::CharSet::one(character).to_regex()).collect()
}
