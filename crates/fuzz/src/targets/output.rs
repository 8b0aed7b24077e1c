//! Answers of models: marks of reasoning and tool calls, arguments and texts in any order, in pieces, and cut anywhere.

use std::sync::Arc;

use candlepower_dialect::{
    Callable, Dialect, OutputEvent, OutputParser, ReasoningFormat, Thinking, ToolFormat,
};
use fastrand::Rng;

use crate::{Round, Verdict};

const MAX_PIECES: usize = 24;
/// Calls as most formats write them behind a mark.
const CALLS: [&str; 4] = [
    "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
    "\n<function=f>\n<parameter=a>1</parameter>\n</function>",
    "f\n{\"a\": 1}",
    "call:f{a:1}",
];
/// Texts that occur in calls of several formats.
const PIECES: [&str; 28] = [
    " ",
    "\n",
    "\n\n \t",
    "f",
    "g",
    "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
    "{\"name\": \"f\", \"parameters\": ",
    "{\"a\": \"x\"}",
    "{",
    "}",
    "[",
    "]",
    "[f(a=1)]",
    "(a='",
    ")",
    "\"",
    "\\\"",
    ":",
    ",",
    "<",
    ">",
    "</",
    "<function=f>",
    "<parameter=a>",
    "</parameter>",
    "é名🦀",
    "functions.f:0",
    "Ok.",
];

pub(super) fn open() -> Round {
    let functions: Arc<[Callable]> =
        ["f", "get"].map(|name| Callable { name: name.to_owned(), parameters: None }).into();
    Box::new(move |random| {
        let reasoning = match random.bool() {
            true => random.choice(ReasoningFormat::ALL).copied(),
            false => None,
        };
        let dialect = Dialect { tools: random.choice(ToolFormat::ALL).copied(), reasoning };
        let thinking = *random
            .choice(&[Thinking::Open, Thinking::Possible, Thinking::Closed])
            .expect("there are three");
        let functions = Some(Arc::clone(&functions));
        let parser = match random.bool() {
            true => OutputParser::new(dialect, thinking, functions),
            false => OutputParser::of_calls(dialect, thinking, functions),
        };
        match num_calls(parser, &text(dialect, random), random) {
            0 => Verdict::Refused("no call".to_owned()),
            _ => Verdict::Accepted,
        }
    })
}

/// Marks of the formats, parts of them, and other pieces.
fn text(dialect: Dialect, random: &mut Rng) -> String {
    let marks = dialect.marks();
    let mut text = String::new();
    for _ in 0..random.usize(1..MAX_PIECES) {
        match random.choice(&marks).filter(|_| random.u8(..3) == 0) {
            Some(mark) => {
                // A part of a mark at the end of a piece must be kept until the next piece decides.
                let end =
                    if random.u8(..4) == 0 { random.usize(..=mark.len()) } else { mark.len() };
                text.push_str(&mark[..mark.floor_char_boundary(end)]);
                if random.bool() {
                    text.push_str(CALLS[random.usize(..CALLS.len())]);
                }
            }
            None => text.push_str(PIECES[random.usize(..PIECES.len())]),
        }
    }
    text
}

/// Number of calls in a text that arrives in random pieces. It ends by itself, or is cut.
fn num_calls(mut parser: OutputParser, text: &str, random: &mut Rng) -> usize {
    let mut calls = 0;
    let mut count = |events: Vec<OutputEvent>| {
        calls +=
            events.iter().filter(|event| matches!(event, OutputEvent::CallStart { .. })).count();
    };
    let mut rest = text;
    while !rest.is_empty() {
        // A length counts bytes, and the parser takes text, so pieces end between characters.
        let most = random.usize(1..=rest.len().min(40));
        let len = rest.ceil_char_boundary(most);
        count(parser.push(&rest[..len]));
        rest = &rest[len..];
    }
    // An answer that `max_tokens` cuts has no end of its own. A cut between white space and a call has panicked
    // before.
    count(if random.bool() { parser.finish() } else { parser.cut() });
    calls
}
