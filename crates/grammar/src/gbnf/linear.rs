//! Endless rules and tail recursion.

use super::parse::{Grammar, Node};
use crate::{Error, Result};

/// Refuses rules that match no finite text, because they always call themselves.
pub(super) fn check_that_all_end(grammar: &Grammar) -> Result<()> {
    let mut ends = vec![false; grammar.rules.len()];
    loop {
        let mut grew = false;
        for (number, rule) in grammar.rules.iter().enumerate() {
            if !ends[number] && can_end(&rule.body, &ends) {
                (ends[number], grew) = (true, true);
            }
        }
        if !grew {
            break;
        }
    }
    match grammar.rules.iter().zip(ends).find(|(_, ends)| !ends) {
        None => Ok(()),
        Some((rule, _)) => {
            let (line, name) = (rule.line, &rule.name);
            Err(Error::Constraint(format!(
                "line {line}, rule `{name}`: it always calls itself, so that no text can end; add an alternative without it"
            )))
        }
    }
}

fn can_end(node: &Node, ends: &[bool]) -> bool {
    match node {
        Node::Chars(_) => true,
        Node::Rule(rule) => ends[*rule],
        Node::Sequence(nodes) => nodes.iter().all(|node| can_end(node, ends)),
        Node::Choice(nodes) => nodes.iter().any(|node| can_end(node, ends)),
        Node::Repeat(node, least, _) => *least == 0 || can_end(node, ends),
    }
}

/// Turns tail recursion, `ws ::= [ ] ws | ""`, into repetition, which is regular: `ws ::= [ ]* ""`.
pub(super) fn remove_tail_recursion(grammar: &mut Grammar) {
    for (number, rule) in grammar.rules.iter_mut().enumerate() {
        if !mentions(&rule.body, number) {
            continue;
        }
        if let Some(Split { again: Some(again), otherwise: Some(otherwise) }) =
            split(&rule.body, number)
        {
            rule.body = Node::Sequence(vec![Node::Repeat(Box::new(again), 0, None), otherwise]);
        }
    }
}

fn mentions(node: &Node, rule: usize) -> bool {
    let mut found = false;
    node.for_each_rule(&mut |mentioned| found |= mentioned == rule);
    found
}

/// A node of the form: `again` and then the rule itself, or `otherwise`.
struct Split {
    again: Option<Node>,
    otherwise: Option<Node>,
}

/// Splits a node; `None` if it calls the rule at another position than its end.
fn split(node: &Node, rule: usize) -> Option<Split> {
    if !mentions(node, rule) {
        return Some(Split { again: None, otherwise: Some(node.clone()) });
    }
    match node {
        Node::Rule(_) => Some(Split { again: Some(Node::Sequence(Vec::new())), otherwise: None }),
        Node::Sequence(nodes) => {
            let (last, before) = nodes.split_last()?;
            if before.iter().any(|node| mentions(node, rule)) {
                return None;
            }
            let split = split(last, rule)?;
            let after = |node| Node::Sequence(before.iter().cloned().chain([node]).collect());
            Some(Split { again: split.again.map(after), otherwise: split.otherwise.map(after) })
        }
        Node::Choice(nodes) => {
            let splits: Vec<Split> =
                nodes.iter().map(|node| split(node, rule)).collect::<Option<_>>()?;
            let (again, otherwise): (Vec<_>, Vec<_>) =
                splits.into_iter().map(|split| (split.again, split.otherwise)).unzip();
            Some(Split { again: one_of(again), otherwise: one_of(otherwise) })
        }
        // An optional tail is the choice between the tail and nothing.
        Node::Repeat(node, 0, Some(1)) => {
            let Split { again, otherwise } = split(node, rule)?;
            Some(Split {
                again,
                otherwise: one_of(vec![otherwise, Some(Node::Sequence(Vec::new()))]),
            })
        }
        // Other repetitions may call the rule several times, which is not recursion at the end only.
        Node::Repeat(..) | Node::Chars(_) => None,
    }
}

fn one_of(nodes: Vec<Option<Node>>) -> Option<Node> {
    let nodes: Vec<Node> = nodes.into_iter().flatten().collect();
    (!nodes.is_empty()).then(|| Node::choice(nodes))
}
