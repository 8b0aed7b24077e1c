//! A planned grammar in Lark syntax.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::parse::{Grammar, Node};
use super::plan::{Piece, Plan};

/// `start`, a rule `rN` for each rule, a terminal `LN` for each lexeme, and a terminal `TN` for each rule within lexemes.
pub(super) fn lark(grammar: &Grammar, plan: &Plan) -> String {
    let mut text = format!("start: {}\n", piece_text(&plan.root, plan));
    for (rule, piece) in &plan.rules {
        line(&mut text, &format!("r{rule}: {}", piece_text(piece, plan)));
    }
    let mut terminals = BTreeSet::new();
    for (number, lexeme) in plan.lexemes.iter().enumerate() {
        let mut node = node_text(&lexeme.node);
        if lexeme.is_nullable {
            // Lexemes match at least one character; the rules allow the empty ones.
            node = format!("({node}) & /[\\x{{0}}-\\x{{10ffff}}]+/");
        }
        line(&mut text, &format!("L{number}: {node}"));
        add_rules(grammar, &lexeme.node, &mut terminals);
    }
    for rule in terminals {
        line(&mut text, &format!("T{rule}: {}", node_text(&grammar.rules[rule].body)));
    }
    text
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a string takes it");
}

/// Adds all rules that are reachable from a node.
fn add_rules(grammar: &Grammar, node: &Node, found: &mut BTreeSet<usize>) {
    let mut waiting = Vec::new();
    node.for_each_rule(&mut |rule| waiting.push(rule));
    while let Some(rule) = waiting.pop() {
        if found.insert(rule) {
            grammar.rules[rule].body.for_each_rule(&mut |rule| waiting.push(rule));
        }
    }
}

fn piece_text(piece: &Piece, plan: &Plan) -> String {
    let texts =
        |pieces: &[Piece]| pieces.iter().map(|piece| piece_text(piece, plan)).collect::<Vec<_>>();
    match piece {
        // The terminal excludes the empty text, so the rule makes it optional.
        Piece::Lexeme(lexeme) if plan.lexemes[*lexeme].is_nullable => format!("L{lexeme}?"),
        Piece::Lexeme(lexeme) => format!("L{lexeme}"),
        Piece::Rule(rule) => format!("r{rule}"),
        Piece::Sequence(pieces) => sequence(&texts(pieces)),
        Piece::Choice(pieces) => format!("({})", texts(pieces).join(" | ")),
        Piece::Repeat(piece, least, most) => repeat(&piece_text(piece, plan), *least, *most),
    }
}

fn node_text(node: &Node) -> String {
    let texts = |nodes: &[Node]| nodes.iter().map(node_text).collect::<Vec<_>>();
    match node {
        Node::Chars(chars) => format!("/{}/", chars.to_regex()),
        Node::Rule(rule) => format!("T{rule}"),
        Node::Sequence(nodes) => sequence(&texts(nodes)),
        Node::Choice(nodes) => format!("({})", texts(nodes).join(" | ")),
        Node::Repeat(node, least, most) => repeat(&node_text(node), *least, *most),
    }
}

fn sequence(texts: &[String]) -> String {
    if texts.is_empty() { "\"\"".to_owned() } else { format!("({})", texts.join(" ")) }
}

fn repeat(text: &str, least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (_, Some(0)) => "\"\"".to_owned(),
        (0, None) => format!("({text})*"),
        (1, None) => format!("({text})+"),
        (0, Some(1)) => format!("({text})?"),
        (least, None) => format!("({text}){{{least},}}"),
        (least, Some(most)) => format!("({text}){{{least},{most}}}"),
    }
}
