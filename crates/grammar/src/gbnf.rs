//! Conversion of GBNF, the EBNF that clients of llama.cpp and SGLang send, to Lark syntax.
//!
//! GBNF describes texts character by character; the library reads lexemes, each of which matches as many characters as possible.
//! A regular part becomes one lexeme, which loses no text. A lexeme that could match a character of the next one is split
//! (`plan`), down to single characters if necessary, so that every text of the grammar is allowed.
//!
//! Source: grammars/README.md of llama.cpp.

mod automaton;
mod chars;
mod emit;
mod linear;
mod parse;
mod plan;
#[cfg(test)]
mod tests;

use crate::Result;

/// Whether a grammar is in GBNF: it defines rules with `::=`, which Lark syntax does not have.
pub(crate) fn is_gbnf(text: &str) -> bool {
    text.lines().filter_map(|line| line.split_once("::=")).any(|(name, _)| {
        let name = name.trim();
        !name.is_empty() && name.chars().all(parse::is_name)
    })
}

/// The same grammar in Lark syntax.
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

/// A regular expression for one string.
pub(crate) fn literal_regex(text: &str) -> String {
    text.chars().map(|character| chars::CharSet::one(character).to_regex()).collect()
}
