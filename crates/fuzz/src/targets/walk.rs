//! Long walks through grammars. Each token is one of the allowed ones.

use candlepower_grammar::{Constraint, Error, Grammar};
use fastrand::Rng;
use serde_json::json;

use super::grammar::{Constraints, NUM_LOGITS, compiler};
use crate::{Round, Verdict};

/// The longest walk, in tokens.
const MAX_TOKENS: usize = 300;

const AMBIGUOUS: &str = "start: a*\na: b | a b | b a\nb: /[a-z]/ | \"(\" a \")\"\n";

pub(super) fn open() -> Round {
    let (compiler, constraints) = (compiler(), Constraints::new());
    Box::new(move |random| {
        let constraint = match random.usize(..4) {
            0 => constraints.changed(random),
            1 => constraints.unchanged(random),
            _ => costly(random),
        };
        Verdict::of(compiler.compile(&constraint).and_then(|grammar| walk(grammar, random)))
    })
}

/// Walks until the text is complete, or up to a limit.
fn walk(mut grammar: Grammar, random: &mut Rng) -> Result<(), Error> {
    for _ in 0..random.usize(1..MAX_TOKENS) {
        if grammar.is_finished() {
            break;
        }
        let mask = grammar.allowed()?;
        let allowed: Vec<u32> = (0..NUM_LOGITS as u32).filter(|id| mask.allows(*id)).collect();
        let token = *random.choice(&allowed).expect("a mask allows something");
        // The mask and the grammar's state are two computations. A token of the mask that the state refuses is a
        // fault of ours.
        match grammar.accept(token) {
            Err(Error::State(reason)) => panic!("token {token} was allowed, and then: {reason}"),
            accepted => accepted?,
        }
    }
    Ok(())
}

/// Constraints whose states grow with the text.
fn costly(random: &mut Rng) -> Constraint {
    let times = 1 << random.u32(0..12);
    match random.usize(..7) {
        0 => Constraint::Regex(format!("(a{{{times}}}){{{times}}}")),
        // A deterministic automaton for this pattern has 2^n states.
        1 => Constraint::Regex(format!(".*a.{{{}}}b", random.usize(1..18))),
        2 => Constraint::Regex("(a?b?)".repeat(times)),
        // The number of parses grows like the Catalan numbers of the text's length.
        3 => Constraint::Gbnf("root ::= root root | [a-z]".to_owned()),
        4 => Constraint::Lark(AMBIGUOUS.to_owned()),
        5 => {
            let name = |index: usize| (format!("p{index}"), json!({"type": "string"}));
            let properties: serde_json::Map<_, _> = (0..times).map(name).collect();
            Constraint::JsonSchema(json!({"type": "object", "properties": properties}))
        }
        _ => Constraint::Choice((0..times).map(|index| format!("{index:05}")).collect()),
    }
}
